//! Files of a caller's sandbox.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{ByteSize, Code, SandboxPath, WriteMode};
use tokio::time::Instant;

use sandcell_testkit::Bench;

fn path(text: &str) -> SandboxPath {
    SandboxPath::parse(text).unwrap()
}

async fn write(bench: &Bench, at: &str, text: &str, mode: WriteMode) -> Result<u64, sandcell_sandbox::Failure> {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    let answer = bench.engine.write_file(&bench.me, None, &path(at), bytes, mode).await?;
    Ok(answer.value)
}

#[tokio::test(start_paused = true)]
async fn files_are_written_listed_and_read_in_the_default_sandbox() {
    let bench = Bench::new();
    assert_eq!(write(&bench, "a.txt", "hello", WriteMode::Replace).await.unwrap(), 5);
    assert_eq!(write(&bench, "a.txt", " you", WriteMode::Append).await.unwrap(), 9);
    write(&bench, "b.txt", "", WriteMode::Replace).await.unwrap();
    let listing = bench
        .engine
        .list_files(&bench.me, None, &SandboxPath::home(), false, 1)
        .await
        .unwrap();
    assert!(!listing.new_sandbox);
    assert_eq!(
        (listing.value.entries[0].name.as_str(), listing.value.omitted),
        ("a.txt", 1)
    );
    let chunk = bench
        .engine
        .read_file(&bench.me, None, &path("a.txt"), 6, 100)
        .await
        .unwrap();
    assert_eq!((&chunk.value.bytes[..], chunk.value.total), (&b"you"[..], 9));
    let view = bench.exec("cell").await;
    assert_eq!(view.sandbox_id, chunk.sandbox_id);
}

#[tokio::test(start_paused = true)]
async fn a_file_call_makes_the_default_sandbox_and_reports_a_lost_one() {
    let bench = Bench::new();
    let answer = bench
        .engine
        .list_files(&bench.me, None, &SandboxPath::home(), false, 10)
        .await
        .unwrap();
    assert!(answer.new_sandbox && answer.notices.is_empty());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let answer = bench
        .engine
        .list_files(&bench.me, None, &SandboxPath::home(), false, 10)
        .await
        .unwrap();
    assert!(answer.new_sandbox && answer.notices[0].contains("expired at"));
}

#[tokio::test(start_paused = true)]
async fn reads_are_assembled_from_pieces_and_bounded() {
    let bench = Bench::with(|config| config.file_bytes = ByteSize::bytes(1000));
    write(&bench, "a", &"x".repeat(800), WriteMode::Replace).await.unwrap();
    write(&bench, "a", &"y".repeat(800), WriteMode::Append).await.unwrap();
    bench.world.read_piece.store(7, Ordering::SeqCst);
    let chunk = bench
        .engine
        .read_file(&bench.me, None, &path("a"), 0, u64::MAX)
        .await
        .unwrap();
    assert_eq!((chunk.value.bytes.len(), chunk.value.total), (1000, 1600));
    let chunk = bench
        .engine
        .read_file(&bench.me, None, &path("a"), 1500, u64::MAX)
        .await
        .unwrap();
    assert_eq!(chunk.value.bytes.len(), 100);
    let chunk = bench
        .engine
        .read_file(&bench.me, None, &path("a"), 9999, 10)
        .await
        .unwrap();
    assert!(chunk.value.bytes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_file_operations_have_the_documented_error_code() {
    let bench = Bench::with(|config| config.file_bytes = ByteSize::bytes(1000));
    let failure = write(&bench, "a", &"x".repeat(1001), WriteMode::Replace)
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::LimitReached);
    assert_eq!(
        bench.world.made.load(Ordering::SeqCst),
        0,
        "it is refused before a sandbox is made"
    );
    let failure = write(&bench, "/usr/a", "x", WriteMode::Replace).await.unwrap_err();
    assert_eq!(failure.code, Code::DeniedByPolicy);
    let failure = bench
        .engine
        .read_file(&bench.me, None, &path("none"), 0, 10)
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_file_call_that_hangs_times_out() {
    let bench = Bench::new();
    let began = Instant::now();
    let failure = write(&bench, "/slow", "x", WriteMode::Replace).await.unwrap_err();
    assert_eq!(failure.code, Code::Timeout);
    assert!(began.elapsed() <= Duration::from_secs(31));
}

#[tokio::test(start_paused = true)]
async fn files_are_described_moved_and_removed() {
    let bench = Bench::new();
    write(&bench, "a.txt", "hello", WriteMode::Replace).await.unwrap();
    let entry = bench.engine.entry(&bench.me, None, &path("a.txt")).await.unwrap();
    assert_eq!((entry.value.name.as_str(), entry.value.size), ("a.txt", 5));
    let made = async || {
        bench
            .engine
            .make_folder(&bench.me, None, &path("folder"))
            .await
            .unwrap()
            .value
    };
    assert_eq!((made().await, made().await), (true, false));
    let (from, to) = (path("a.txt"), path("folder/b.txt"));
    bench.engine.move_file(&bench.me, None, &from, &to).await.unwrap();
    assert!(bench.engine.entry(&bench.me, None, &from).await.is_err());
    bench
        .engine
        .remove_file(&bench.me, None, &path("folder"))
        .await
        .unwrap();
    let failure = bench.engine.entry(&bench.me, None, &to).await.unwrap_err();
    assert_eq!(failure.code, Code::NotFound);
    let failure = bench.engine.remove_file(&bench.me, None, &to).await.unwrap_err();
    assert_eq!(failure.code, Code::NotFound);
}
