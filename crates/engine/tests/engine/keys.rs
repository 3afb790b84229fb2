//! One key names one sandbox, for any number of requests.

use std::time::Duration;

use sandcell_engine::{CreateRequest, Outside, Principal};
use sandcell_sandbox::{ByteSize, Code};

use sandcell_testkit::Bench;

fn of(key: &str) -> CreateRequest {
    CreateRequest {
        count: 1,
        key: Some(key.to_owned()),
        ..CreateRequest::default()
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_with_one_key_share_a_sandbox_and_other_callers_get_another() {
    let bench = Bench::new();
    let (one, two) = tokio::join!(
        bench.engine.create(&bench.me, of("a")),
        bench.engine.create(&bench.me, of("a"))
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one[0].id, two[0].id);
    assert_eq!(
        [one[0].made_now, two[0].made_now].iter().filter(|made| **made).count(),
        1
    );
    let again = bench.engine.create(&bench.me, of("a")).await.unwrap();
    assert!(again[0].id == one[0].id && !again[0].made_now && again[0].key.as_deref() == Some("a"));
    let other = bench.engine.create(&bench.me, of("b")).await.unwrap();
    assert!(other[0].id != one[0].id && other[0].made_now);
    let stranger = bench.engine.create(&Principal::new("stranger"), of("a")).await.unwrap();
    assert!(stranger[0].id != one[0].id && stranger[0].made_now);
}

#[tokio::test(start_paused = true)]
async fn the_key_of_an_ended_sandbox_is_free_and_requests_keep_a_sandbox_alive() {
    let bench = Bench::with(|config| config.idle = Duration::from_secs(100));
    let first = bench.engine.create(&bench.me, of("a")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(80)).await;
    bench.engine.create(&bench.me, of("a")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(80)).await;
    let kept = bench.engine.create(&bench.me, of("a")).await.unwrap();
    assert_eq!(kept[0].id, first[0].id);
    bench.engine.close(&bench.me, first[0].id.as_str()).await.unwrap();
    let anew = bench.engine.create(&bench.me, of("a")).await.unwrap();
    assert!(anew[0].id != first[0].id && anew[0].made_now);
}

#[tokio::test(start_paused = true)]
async fn a_different_request_with_the_same_key_is_refused_with_the_difference() {
    let bench = Bench::new();
    bench.engine.create(&bench.me, of("a")).await.unwrap();
    let larger = CreateRequest {
        memory: Some(ByteSize::mib(700)),
        lifetime: Some(Duration::from_secs(60)),
        ..of("a")
    };
    let refused = bench.engine.create(&bench.me, larger).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(refused.message.contains("memory_mb, lifetime_s"), "{refused}");
    for wrong in [
        CreateRequest { count: 2, ..of("c") },
        of(""),
        of(&"k".repeat(101)),
        of("a\nb"),
    ] {
        let refused = bench.engine.create(&bench.me, wrong).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
    }
    assert_eq!(bench.engine.status(&bench.me, None).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_disconnects_closes_the_sandbox_only_if_no_other_asked_for_it() {
    let bench = Bench::new();
    // The first call gives up while the sandbox is made. The second one gets it.
    let (gone, kept) = tokio::join!(
        tokio::time::timeout(Duration::ZERO, bench.engine.create(&bench.me, of("a"))),
        bench.engine.create(&bench.me, of("a"))
    );
    let kept = kept.unwrap();
    if let Ok(first) = gone {
        assert_eq!(first.unwrap()[0].id, kept[0].id);
    }
    assert!(bench.exec_in(kept[0].id.as_str(), "cell").await.is_ok());
    // No call waits for this one.
    drop(tokio::time::timeout(Duration::ZERO, bench.engine.create(&bench.me, of("b"))).await);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let left = bench.engine.status(&bench.me, None).await.unwrap();
    assert!(left.iter().any(|view| view.key.as_deref() == Some("a")), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_is_reported_in_advance() {
    let bench = Bench::new();
    let req = CreateRequest {
        lifetime: Some(Duration::from_secs(1000)),
        ..of("a")
    };
    let made = bench.engine.create(&bench.me, req).await.unwrap();
    let id = made[0].id.as_str();
    let early = bench.exec_in(id, "cell").await.unwrap().expiry.unwrap();
    assert!(early.ends_soon().is_none() && early.idles_soon().is_none());
    assert_eq!(early.lifetime, Some(Duration::from_secs(1000)));
    let bench = Bench::with(|config| config.idle = Duration::from_secs(30));
    let view = bench.exec("cell").await;
    assert_eq!(view.expiry.unwrap().idles_soon(), Some(Duration::from_secs(30)));
}

#[tokio::test(start_paused = true)]
async fn changed_settings_apply_to_later_requests() {
    let bench = Bench::new();
    let before = bench.create(2).await.unwrap();
    let mut config = (*bench.engine.config()).clone();
    config.sandboxes_per_caller = 2;
    config.limits.memory = ByteSize::mib(300);
    config.timeout = Duration::from_secs(7);
    bench.engine.change(config, Outside::default());
    let refused = bench.create(1).await.unwrap_err();
    assert_eq!(refused.code, Code::LimitReached);
    assert!(refused.message.contains("2 of 2"), "{refused}");
    // Existing sandboxes keep the settings that they were made with.
    let views = bench.engine.status(&bench.me, Some(&before[0])).await.unwrap();
    assert_eq!(views[0].limits.memory, ByteSize::mib(512));
    bench.engine.close(&bench.me, &before[0]).await.unwrap();
    let made = bench.create(1).await.unwrap();
    let views = bench.engine.status(&bench.me, Some(&made[0])).await.unwrap();
    assert_eq!(views[0].limits.memory, ByteSize::mib(300));
    assert_eq!(bench.engine.config().timeout, Duration::from_secs(7));
}
