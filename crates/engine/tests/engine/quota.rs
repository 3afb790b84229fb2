//! The limits of one caller over all of its sandboxes.

use std::time::Duration;

use sandcell_engine::{CreateRequest, Principal, Quota};
use sandcell_sandbox::{ByteSize, Code};

use sandcell_testkit::{Bench, code_of};

fn of(count: u32) -> CreateRequest {
    CreateRequest {
        count,
        ..CreateRequest::default()
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_all_sandboxes_stays_within_the_quota_and_is_released() {
    let bench = Bench::with(|config| {
        config.quota = Quota {
            memory: config.limits.memory.max(ByteSize::mib(1)),
            ..Quota::default()
        };
    });
    let ids = bench.create(1).await.unwrap();
    let failure = bench.create(1).await.unwrap_err();
    assert_eq!(failure.code, Code::LimitReached);
    assert!(
        failure.message.contains("of memory together") && failure.remedy.contains("memory_mb"),
        "{failure}"
    );
    // The default sandbox would be a second one.
    assert_eq!(
        bench.try_exec(code_of("cell")).await.unwrap_err().code,
        Code::LimitReached
    );
    let other = Principal::new("other");
    assert!(
        bench.engine.create(&other, of(1)).await.is_ok(),
        "each caller has a separate quota"
    );
    assert_eq!(
        bench.engine.create(&other, of(2)).await.unwrap_err().code,
        Code::LimitReached
    );
    bench.engine.close(&bench.me, &ids[0]).await.unwrap();
    assert!(bench.create(1).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_caller_beyond_its_cpu_quota_waits_and_loses_nothing() {
    let bench = Bench::with(|config| {
        config.quota = Quota {
            cpu: Duration::from_secs(10),
            ..Quota::default()
        };
        config.idle = Duration::from_secs(86_400);
    });
    let first = bench.exec("sleep 12000\ncpu 11000").await;
    assert!(first.cpu >= Duration::from_secs(11), "{:?}", first.cpu);
    let failure = bench.try_exec(code_of("cell")).await.unwrap_err();
    assert_eq!(failure.code, Code::LimitReached);
    assert!(failure.message.contains("processor time"), "{failure}");
    tokio::time::sleep(Duration::from_secs(3700)).await;
    let again = bench.exec("cell").await;
    assert_eq!(again.sandbox_id, first.sandbox_id, "the sandbox is still there");
}
