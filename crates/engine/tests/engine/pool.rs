//! Idle sandboxes: their number and their loaded modules.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use sandcell_engine::{CommandLine, CommandRequest, CreateRequest, PoolConfig, Status, Watch};
use sandcell_sandbox::{ByteSize, SandboxPath};
use tokio_util::sync::CancellationToken;

use sandcell_testkit::{Bench, run_of, streamed};

/// Creates an engine with a pool that follows demand within this memory.
fn bench(memory: ByteSize, preload: &[&str]) -> Bench {
    Bench::with(|config| {
        config.pool = PoolConfig {
            parked: None,
            memory,
            preload: preload.iter().map(|name| (*name).to_owned()).collect(),
            warm: false,
        };
    })
}

/// A burst larger than the pool, and time for the pool to grow.
async fn burst(bench: &Bench) {
    let calls = (0..12).map(|_| bench.once(run_of("cell")));
    for view in join_all(calls).await {
        view.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_sandbox_counts_with_the_memory_it_uses() {
    let light = bench(ByteSize::mib(100), &[]);
    burst(&light).await;
    assert_eq!(light.engine.counts().waiting, 8);
    assert_eq!(light.world.preloaded.load(Ordering::SeqCst), 0);

    let heavy = bench(ByteSize::mib(100), &["numpy", "no_such"]);
    heavy.world.weight.store(40 << 20, Ordering::SeqCst);
    burst(&heavy).await;
    assert_eq!(heavy.engine.counts().waiting, 2);
    heavy.world.live_becomes(2).await;
}

#[tokio::test(start_paused = true)]
async fn the_pool_grows_for_bursts_before_a_call_misses() {
    let bench = bench(ByteSize::mib(100), &[]);
    let once_and_wait = async |pause: u64| {
        bench.once(run_of("cell")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        bench.engine.counts().waiting
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.engine.counts().waiting, 1);
    for _ in 0..3 {
        assert_eq!(once_and_wait(1000).await, 1);
    }
    assert_eq!(once_and_wait(50).await, 1);
    assert_eq!(once_and_wait(50).await, 2);
    for _ in 0..3 {
        assert_eq!(once_and_wait(50).await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn warm_up_cells_run_only_while_no_call_waits() {
    let bench = bench(ByteSize::mib(100), &[]);
    let warm_up_cells = || bench.world.warm_up_cells.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((bench.engine.counts().waiting, warm_up_cells()), (1, 1));
    burst(&bench).await;
    assert_eq!((bench.engine.counts().waiting, warm_up_cells()), (8, 1));
    bench.once(run_of("cell")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((bench.engine.counts().waiting, warm_up_cells()), (8, 2));
}

/// Creates a sandbox with a variable, and runs a program in it. Returns the variable that the program gets, and the number
/// of sandboxes that were made for the call.
async fn with_variable(bench: &Bench, value: &str) -> (String, usize) {
    let request = CreateRequest {
        count: 1,
        env: [("OWN".to_owned(), value.to_owned())].into(),
        ..CreateRequest::default()
    };
    let specs = || bench.world.specs.lock().unwrap().len();
    let before = specs();
    let view = bench.engine.create(&bench.me, request).await.unwrap().remove(0);
    let made = specs() - before;
    let command = CommandRequest {
        command: CommandLine::Argv(vec!["sh".to_owned()]),
        cwd: SandboxPath::parse("/home/user").unwrap(),
        env: BTreeMap::new(),
        sandbox_id: Some(view.id.to_string()),
        timeout: None,
        terminal: None,
        wait: None,
        watch: Watch::default(),
    };
    let (view, _) = streamed(&[], |stdin, output| {
        let cancel = CancellationToken::new();
        bench.engine.run_command(&bench.me, command, stdin, output, cancel)
    })
    .await;
    assert_eq!(view.unwrap().status, Status::Ok);
    let command = bench.world.commands.lock().unwrap().pop().unwrap();
    (command.env.get("OWN").unwrap().clone(), made)
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_with_variables_is_an_idle_one_if_they_can_be_added() {
    let bench = bench(ByteSize::mib(100), &[]);
    let pause = || tokio::time::sleep(Duration::from_secs(1));
    pause().await;
    assert_eq!(with_variable(&bench, "first").await, ("first".to_owned(), 0));

    // The idle sandbox stays for another caller.
    pause().await;
    let waiting = bench.engine.counts().waiting;
    bench.world.env_can_be_added.store(false, Ordering::SeqCst);
    assert_eq!(with_variable(&bench, "second").await, ("second".to_owned(), 1));
    assert_eq!(bench.engine.counts().waiting, waiting);

    // The idle sandbox is useless now.
    bench.world.env_can_be_added.store(true, Ordering::SeqCst);
    bench.world.env_fails.store(true, Ordering::SeqCst);
    assert_eq!(with_variable(&bench, "third").await, ("third".to_owned(), 1));
    bench.world.env_fails.store(false, Ordering::SeqCst);
    pause().await;
    assert_eq!(with_variable(&bench, "fourth").await, ("fourth".to_owned(), 0));
}

#[tokio::test(start_paused = true)]
async fn modules_that_exceed_the_memory_limit_are_not_preloaded() {
    let bench = bench(ByteSize::mib(64), &["torch"]);
    bench.world.weight.store(300 << 20, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(20)).await;
    burst(&bench).await;
    assert_eq!(bench.world.preloaded.load(Ordering::SeqCst), 1);
    assert_eq!(bench.engine.counts().waiting, 5);
}

#[tokio::test(start_paused = true)]
async fn modules_that_crash_the_interpreter_are_dropped_from_preloading() {
    let bench = bench(ByteSize::mib(256), &["killer"]);
    bench.world.preload_fails.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.world.preloaded.load(Ordering::SeqCst), 3);
    assert_eq!(bench.engine.counts().waiting, 1);
    bench.world.live_becomes(1).await;
    assert_eq!(bench.once(run_of("print ran")).await.unwrap().stdout.text, "ran\n");
}
