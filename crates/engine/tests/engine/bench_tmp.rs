use crate::support::Bench;
#[tokio::test(flavor = "current_thread")]
async fn speed() {
    let bench = Bench::new();
    bench.exec("set x 1").await;
    let n = 50000;
    let t = std::time::Instant::now();
    for _ in 0..n { bench.exec("get x").await; }
    eprintln!("PER CALL {:?}", t.elapsed() / n);
    let t = std::time::Instant::now();
    for _ in 0..n { tokio::spawn(async {}).await.unwrap(); }
    eprintln!("SPAWN {:?}", t.elapsed() / n);
}
