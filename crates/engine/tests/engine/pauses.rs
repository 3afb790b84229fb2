//! Pauses of sandboxes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sandcell_engine::{CreateRequest, ExecuteRequest, Principal, Status};
use sandcell_sandbox::Code;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use sandcell_testkit::{Bench, code_of};

const ONE_MINUTE: Duration = Duration::from_secs(60);
const ONE_DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn sandbox(bench: &Bench, pauses_at_end: bool) -> String {
    let request = CreateRequest {
        count: 1,
        lifetime: Some(ONE_MINUTE),
        pauses_at_end,
        ..CreateRequest::default()
    };
    let made = bench.engine.create(&bench.me, request).await.unwrap();
    made.first().unwrap().id.to_string()
}

/// Lets the processes of the newest sandbox use the processor.
fn use_processor(bench: &Bench) {
    let sandboxes = bench.world.sandboxes.lock().unwrap();
    sandboxes.last().unwrap().usage.lock().unwrap().cpu_us += 1_000_000;
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_does_not_expire_and_the_next_call_resumes_it() {
    let bench = Bench::new();
    let (engine, me) = (&bench.engine, &bench.me);
    let id = sandbox(&bench, false).await;
    assert!(engine.pause(me, &id).await.unwrap());
    assert!(!engine.pause(me, &id).await.unwrap(), "it is paused already");
    sleep(ONE_DAY).await;
    let view = engine.status(me, Some(&id)).await.unwrap().remove(0);
    assert_eq!(view.state, "paused");
    assert!(engine.is_paused(me, &id), "a status does not resume it");
    bench.exec_in(&id, "cell").await.unwrap();
    assert!(!engine.is_paused(me, &id));
    // It lives for five minutes at least after a call has resumed it.
    sleep(4 * ONE_MINUTE).await;
    assert!(engine.has_sandbox(me, &id));
    sleep(2 * ONE_MINUTE).await;
    assert!(!engine.has_sandbox(me, &id));
}

#[tokio::test(start_paused = true)]
async fn a_resumed_sandbox_lives_as_long_as_the_caller_wants() {
    let bench = Bench::new();
    let (engine, me) = (&bench.engine, &bench.me);
    let id = sandbox(&bench, false).await;
    assert!(
        !engine.resume(me, &id, Some(ONE_MINUTE)).await.unwrap(),
        "it is not paused"
    );
    engine.pause(me, &id).await.unwrap();
    assert!(engine.resume(me, &id, Some(ONE_MINUTE / 2)).await.unwrap());
    sleep(ONE_MINUTE / 2 + Duration::from_secs(1)).await;
    assert!(!engine.has_sandbox(me, &id));
    let stranger = Principal::new("stranger");
    let mine = sandbox(&bench, false).await;
    let refused = engine.pause(&stranger, &mine).await.unwrap_err();
    assert_eq!(refused.code, Code::NotFound);
    assert!(!engine.is_paused(&stranger, &mine) && !engine.is_paused(me, &mine));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_paused_at_the_end_of_its_lifetime_if_it_was_asked_for() {
    let bench = Bench::new();
    let id = sandbox(&bench, true).await;
    sleep(ONE_DAY).await;
    assert!(bench.engine.is_paused(&bench.me, &id));
    bench.engine.close(&bench.me, &id).await.unwrap();
    assert!(!bench.engine.has_sandbox(&bench.me, &id));
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_whose_code_runs_is_closed() {
    let bench = Bench::new();
    let (engine, me) = (&bench.engine, &bench.me);
    let id = sandbox(&bench, false).await;
    // What was used before and between pauses is no reason.
    for _ in 0..3 {
        use_processor(&bench);
        engine.pause(me, &id).await.unwrap();
        sleep(ONE_MINUTE).await;
        engine.resume(me, &id, Some(ONE_DAY / 2)).await.unwrap();
    }
    engine.pause(me, &id).await.unwrap();
    sleep(ONE_MINUTE).await;
    assert!(engine.has_sandbox(me, &id));
    use_processor(&bench);
    sleep(ONE_MINUTE).await;
    let failure = bench.exec_in(&id, "cell").await.unwrap_err();
    assert_eq!(failure.code, Code::SessionLost);
    assert!(failure.message.contains("although it was paused"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_that_cannot_be_checked_is_closed() {
    let bench = Bench::new();
    let id = sandbox(&bench, false).await;
    bench.engine.pause(&bench.me, &id).await.unwrap();
    bench.world.usage_hangs.store(true, Ordering::SeqCst);
    sleep(ONE_MINUTE).await;
    assert!(!bench.engine.has_sandbox(&bench.me, &id));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_leaves_no_half_of_a_pause() {
    let bench = Bench::new();
    let (engine, me) = (&bench.engine, &bench.me);
    let id = sandbox(&bench, false).await;
    for _ in 0..20 {
        let moment = Duration::from_millis(5);
        drop(tokio::time::timeout(moment, engine.pause(me, &id)).await);
        sleep(Duration::from_secs(1)).await;
        let inside = bench.world.sandboxes.lock().unwrap().last().unwrap().clone();
        assert_eq!(engine.is_paused(me, &id), inside.paused.load(Ordering::SeqCst));
        drop(tokio::time::timeout(moment, engine.resume(me, &id, Some(ONE_DAY / 2))).await);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(engine.is_paused(me, &id), inside.paused.load(Ordering::SeqCst));
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_code_does_not_count_a_pause() {
    let bench = Bench::new();
    let (engine, me) = (&bench.engine, &bench.me);
    let id = sandbox(&bench, false).await;
    let request = ExecuteRequest {
        sandbox_id: Some(id.clone()),
        timeout: Some(ONE_MINUTE / 2),
        wait: Some(Duration::ZERO),
        ..code_of("sleep 1000000000")
    };
    let view = engine.execute(me, request, CancellationToken::new()).await.unwrap();
    assert_eq!(view.status, Status::Running);
    sleep(ONE_MINUTE / 4).await;
    engine.pause(me, &id).await.unwrap();
    sleep(ONE_DAY).await;
    engine.resume(me, &id, Some(ONE_DAY / 2)).await.unwrap();
    sleep(ONE_MINUTE / 6).await;
    let status = |view: &sandcell_engine::ExecutionView| view.status;
    let view = engine.execution(me, view.id.as_str(), Duration::ZERO).await.unwrap();
    assert_eq!(status(&view), Status::Running, "the pause did not count");
    let view = engine.execution(me, view.id.as_str(), ONE_MINUTE).await.unwrap();
    assert_eq!(status(&view), Status::Timeout, "the rest of the time did");
}

#[tokio::test(start_paused = true)]
async fn a_pause_waits_for_a_listing_of_variables_and_costs_no_session() {
    let bench = Bench::new();
    let (engine, me) = (&bench.engine, &bench.me);
    let id = sandbox(&bench, false).await;
    let run = async |code: &str| {
        let request = ExecuteRequest {
            sandbox_id: Some(id.clone()),
            ..code_of(code)
        };
        engine.execute(me, request, CancellationToken::new()).await.unwrap()
    };
    run("set x 42").await;
    *bench.world.listing_takes.lock().unwrap() = Duration::from_secs(3);
    let (status, paused) = tokio::join!(engine.status(me, Some(&id)), async {
        sleep(Duration::from_secs(1)).await;
        engine.pause(me, &id).await
    });
    let variables = status.unwrap()[0].sessions[0].variables.clone().unwrap();
    assert_eq!((variables[0].name.as_str(), paused.unwrap()), ("x", true));
    assert!(engine.is_paused(me, &id));
    // A paused sandbox is not asked.
    assert_eq!(
        engine.status(me, Some(&id)).await.unwrap()[0].sessions[0].variables,
        None
    );
    assert_eq!(run("get x").await.result.as_deref(), Some("42"));
}
