use crate::support::Bench;
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speed() {
    let bench = Bench::new();
    bench.exec("set x 1").await;
    let n = 20000;
    let t = std::time::Instant::now();
    for _ in 0..n {
        bench.exec("get x").await;
    }
    eprintln!("PER CALL {:?}", t.elapsed() / n);
    let t = std::time::Instant::now();
    let v = bench.exec("bytes 100000000").await;
    eprintln!("100 MB {:?} {}", t.elapsed(), v.stdout.total_bytes);
    let t = std::time::Instant::now();
    let code = "print abc def ghi\n".repeat(50000);
    let v = bench.exec(&code).await;
    eprintln!("lines {:?} {}", t.elapsed(), v.stdout.total_bytes);
    let t = std::time::Instant::now();
    let v = bench.exec("cell").await;
    eprintln!("after {:?} {}", t.elapsed(), v.stdout.total_bytes);
}
