//! Sandboxes and their owners: ids, limits, expiry, back ends, the end of the server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandcell_engine::{AbsentBackend, CreateRequest, EngineConfig, ExecuteRequest, Principal, SkippedBackend};
use sandcell_sandbox::{ByteSize, Code};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use sandcell_testkit::{Bench, FakeBackend, World, code_of};

fn one() -> CreateRequest {
    CreateRequest {
        count: 1,
        ..CreateRequest::default()
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_closed_and_foreign_ids_answer_alike() {
    let bench = Bench::new();
    let ids = bench.create(2).await.unwrap();
    bench.engine.close(&bench.me, &ids[0]).await.unwrap();
    let stranger = Principal::new("stranger");
    let unknown = format!("sb{}", "a".repeat(26));
    let answer = |failure: sandcell_sandbox::Failure, id: &str| {
        let message = failure.message.replace(id, "ID");
        (failure.code, message, failure.remedy)
    };
    let expected = answer(bench.exec_in(&unknown, "cell").await.unwrap_err(), &unknown);
    assert_eq!(expected.0, Code::NotFound);
    assert_eq!(
        answer(bench.exec_in(&ids[0], "cell").await.unwrap_err(), &ids[0]),
        expected
    );
    let foreign = ExecuteRequest {
        sandbox_id: Some(ids[1].clone()),
        ..code_of("cell")
    };
    let engine = &bench.engine;
    let failure = engine.execute(&stranger, foreign, CancellationToken::new()).await;
    assert_eq!(answer(failure.unwrap_err(), &ids[1]), expected);
    assert_eq!(
        answer(engine.close(&stranger, &ids[1]).await.unwrap_err(), &ids[1]),
        expected
    );
    assert_eq!(
        answer(engine.status(&stranger, Some(&ids[1])).await.unwrap_err(), &ids[1]),
        expected
    );
    assert_eq!(
        answer(engine.reset(&stranger, Some(&ids[1]), None).await.unwrap_err(), &ids[1]),
        expected
    );
    assert!(engine.status(&stranger, None).await.unwrap().is_empty());
    assert!(bench.exec_in("nonsense \u{202e} id", "cell").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn foreign_executions_answer_like_unknown_ones() {
    let bench = Bench::new();
    let view = bench.exec("print secret").await;
    let stranger = Principal::new("stranger");
    let id = view.id.as_str();
    let failure = bench.engine.execution(&stranger, id, Duration::ZERO).await.unwrap_err();
    let unknown = bench
        .engine
        .execution(&bench.me, "ex1", Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(
        (failure.code, failure.message.replace(id, "ex1")),
        (unknown.code, unknown.message)
    );
    assert!(bench.engine.cancel(&stranger, Some(id)).await.is_err());
    assert!(bench.engine.cancel(&stranger, None).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn each_caller_has_a_separate_default_sandbox() {
    let bench = Bench::new();
    let mine = bench.exec("set x 1").await;
    let other = Principal::new("other");
    let theirs = bench
        .engine
        .execute(&other, code_of("get x"), CancellationToken::new())
        .await
        .unwrap();
    assert_ne!(mine.sandbox_id, theirs.sandbox_id);
    assert!(theirs.result.is_none());
}

#[tokio::test(start_paused = true)]
async fn two_first_calls_at_once_share_one_default_sandbox() {
    let bench = Bench::new();
    *bench.world.create_delay.lock().unwrap() = Duration::from_secs(1);
    let (a, b) = tokio::join!(bench.exec("set x 7"), bench.exec("get x"));
    assert_eq!(a.sandbox_id, b.sandbox_id);
    assert!(a.new_sandbox && !b.new_sandbox);
    assert_eq!(b.result.as_deref(), Some("7"));
    assert_eq!(bench.world.made.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_sandbox_expires_and_its_id_says_when() {
    let bench = Bench::new();
    let first = bench.exec("set x 1").await;
    tokio::time::sleep(Duration::from_secs(29 * 60)).await;
    bench.exec("cell").await;
    tokio::time::sleep(Duration::from_secs(29 * 60)).await;
    assert_eq!(bench.world.live(), 1, "a call restarts the idle time");
    tokio::time::sleep(Duration::from_secs(2 * 60)).await;
    assert_eq!(bench.world.live(), 0);
    let failure = bench.exec_in(first.sandbox_id.as_str(), "cell").await.unwrap_err();
    assert_eq!(failure.code, Code::Expired);
    assert!(failure.message.contains("after 30 min without a call"), "{failure}");
    let stranger = Principal::new("stranger");
    let foreign = bench
        .engine
        .status(&stranger, Some(first.sandbox_id.as_str()))
        .await
        .unwrap_err();
    assert_eq!(foreign.code, Code::NotFound);
    let next = bench.exec("get x").await;
    assert!(next.new_sandbox && next.state_lost);
    let notice = &next.notices[0];
    assert!(
        notice.starts_with("new sandbox: the previous one expired at "),
        "{notice}"
    );
    assert!(notice.ends_with("; its variables and files are gone"), "{notice}");
}

#[tokio::test(start_paused = true)]
async fn idle_time_does_not_count_while_something_runs() {
    let bench = Bench::with(|config| config.idle = Duration::from_secs(60));
    let req = ExecuteRequest {
        timeout: Some(Duration::from_secs(3600)),
        ..code_of("sleep 1000000\nprint done")
    };
    assert_eq!(bench.try_exec(req).await.unwrap().stdout.text, "done\n");
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(bench.world.live(), 1);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(bench.world.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_ends_a_sandbox_even_in_use() {
    let bench = Bench::new();
    let req = CreateRequest {
        lifetime: Some(Duration::from_secs(100)),
        ..one()
    };
    let view = bench.engine.create(&bench.me, req).await.unwrap().remove(0);
    assert_eq!(view.ends, Some(view.created + Duration::from_secs(100)));
    let req = ExecuteRequest {
        sandbox_id: Some(view.id.to_string()),
        timeout: Some(Duration::from_secs(3600)),
        ..code_of("sleep 1000000")
    };
    let began = Instant::now();
    let ended = bench.try_exec(req).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(107));
    assert_eq!(ended.cause.unwrap().code, Code::Expired);
    bench.world.live_becomes(0).await;
    let failure = bench.exec_in(view.id.as_str(), "cell").await.unwrap_err();
    assert!(failure.message.contains("end of its lifetime"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn the_sandboxes_of_a_caller_are_bounded_and_a_batch_is_all_or_nothing() {
    let bench = Bench::with(|config| config.sandboxes_per_caller = 4);
    let ids = bench.create(3).await.unwrap();
    let failure = bench.create(2).await.unwrap_err();
    assert_eq!(failure.code, Code::LimitReached);
    assert!(failure.message.starts_with("3 of 4 sandboxes in use"), "{failure}");
    assert_eq!(bench.world.made.load(Ordering::SeqCst), 3);
    bench.create(1).await.unwrap();
    let failure = bench.try_exec(code_of("cell")).await.unwrap_err();
    assert_eq!(failure.code, Code::LimitReached);
    assert!(failure.message.starts_with("4 of 4") && failure.remedy.contains("close_sandbox"));
    bench.engine.close(&bench.me, &ids[0]).await.unwrap();
    assert!(bench.exec("cell").await.new_sandbox);
    let other = Principal::new("other");
    assert!(
        bench.engine.create(&other, one()).await.is_ok(),
        "the limit is each caller's own"
    );
}

#[tokio::test(start_paused = true)]
async fn the_sandboxes_of_a_server_are_bounded() {
    let bench = Bench::with(|config| config.sandboxes = 2);
    bench.create(2).await.unwrap();
    let failure = bench.engine.create(&Principal::new("other"), one()).await.unwrap_err();
    assert_eq!(failure.code, Code::LimitReached);
    assert!(failure.message.contains("2 of 2 sandboxes of this server"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_batch_leaves_no_sandbox() {
    let bench = Bench::new();
    bench.world.fail_from.store(3, Ordering::SeqCst);
    let failure = bench.create(4).await.unwrap_err();
    assert_eq!(failure.code, Code::BackendUnavailable);
    bench.world.live_becomes(0).await;
    bench.world.fail_from.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(bench.create(16).await.unwrap().len(), 16, "no place stays taken");
}

#[tokio::test(start_paused = true)]
async fn sandboxes_of_a_disconnected_caller_are_closed() {
    let bench = Bench::new();
    *bench.world.create_delay.lock().unwrap() = Duration::from_secs(5);
    let gave_up = tokio::time::timeout(Duration::from_secs(1), bench.create(3)).await;
    assert!(gave_up.is_err());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((bench.world.made.load(Ordering::SeqCst), bench.world.live()), (3, 0));
    assert!(bench.engine.status(&bench.me, None).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failed_default_sandbox_is_an_error_and_the_next_call_retries() {
    let bench = Bench::new();
    bench.world.fail_from.store(1, Ordering::SeqCst);
    let failure = bench.try_exec(code_of("cell")).await.unwrap_err();
    assert_eq!(failure.code, Code::BackendUnavailable);
    assert!(
        failure.message.contains("cgroup") && failure.message.contains("no space"),
        "{failure}"
    );
    bench.world.fail_from.store(usize::MAX, Ordering::SeqCst);
    assert!(bench.exec("cell").await.new_sandbox);
}

#[tokio::test(start_paused = true)]
async fn a_back_end_that_hangs_times_out_after_thirty_seconds() {
    let bench = Bench::new();
    *bench.world.create_delay.lock().unwrap() = Duration::from_secs(10_000);
    let failure = bench.try_exec(code_of("cell")).await.unwrap_err();
    assert_eq!(failure.code, Code::BackendUnavailable);
    assert!(failure.message.contains("30 s"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn slow_creation_is_answered_with_running_too() {
    let bench = Bench::new();
    *bench.world.create_delay.lock().unwrap() = Duration::from_secs(20);
    let req = ExecuteRequest {
        wait: Some(Duration::from_secs(2)),
        watch: sandcell_engine::Watch::default(),
        ..code_of("print made")
    };
    let view = bench.try_exec(req).await.unwrap();
    let done = bench
        .engine
        .execution(&bench.me, view.id.as_str(), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(done.stdout.text, "made\n");
}

#[tokio::test(start_paused = true)]
async fn back_ends_are_tried_in_order_and_a_named_one_is_the_only_one() {
    let world = Arc::new(World::default());
    let down = FakeBackend::broken("down", world.clone(), "unavailable");
    let fine = FakeBackend::new("fine", world.clone());
    let bench = Bench::made(|_| {}, world, vec![down, fine]);
    let view = bench.exec("cell").await;
    assert_eq!(view.isolation.backend, "fine");
    let passed: Vec<_> = view
        .skipped_backends
        .iter()
        .map(|one| (one.backend.as_str(), one.code))
        .collect();
    assert_eq!(passed, [("down", Code::BackendUnavailable)]);
    let status = bench.engine.status(&bench.me, None).await.unwrap();
    assert_eq!(status[0].skipped_backends, view.skipped_backends);
    let with = |name: &str| CreateRequest {
        backend: Some(name.to_owned()),
        ..one()
    };
    let failure = bench.engine.create(&bench.me, with("down")).await.unwrap_err();
    assert_eq!(failure.code, Code::BackendUnavailable);
    let failure = bench.engine.create(&bench.me, with("nowhere")).await.unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument);
    assert!(failure.remedy.contains("down, fine"), "{failure}");
    let view = bench.engine.create(&bench.me, with("fine")).await.unwrap().remove(0);
    assert_eq!(view.isolation.backend, "fine");
    assert!(view.skipped_backends.is_empty(), "it is the one that was asked for");
}

#[tokio::test(start_paused = true)]
async fn absent_back_ends_are_listed_where_they_were_preferred() {
    let absent = |after, name: &str| AbsentBackend {
        after,
        skipped: SkippedBackend::new(
            name,
            sandcell_sandbox::Failure::new(Code::BackendUnavailable, format!("{name}: no daemon"), "start it"),
        ),
    };
    let world = Arc::new(World::default());
    let backends = vec![FakeBackend::new("fine", world.clone())];
    let config = |config: &mut EngineConfig| config.absent_backends = vec![absent(0, "first"), absent(1, "last")];
    let bench = Bench::made(config, world, backends);
    let view = bench.exec("cell").await;
    let passed: Vec<_> = view.skipped_backends.iter().map(|one| one.backend.as_str()).collect();
    assert_eq!(passed, ["first"], "one that comes later was not passed over");
    let named = CreateRequest {
        backend: Some("last".to_owned()),
        ..one()
    };
    let failure = bench.engine.create(&bench.me, named).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.remedy.as_str()),
        (Code::BackendUnavailable, "start it")
    );
}

#[tokio::test(start_paused = true)]
async fn an_image_that_no_back_end_knows_is_an_invalid_argument() {
    let world = Arc::new(World::default());
    let plain = FakeBackend::broken("plain", world.clone(), "unsupported");
    let bench = Bench::made(|_| {}, world.clone(), vec![plain.clone()]);
    let req = CreateRequest {
        image: Some("alpine:3.20".into()),
        ..one()
    };
    let failure = bench.engine.create(&bench.me, req.clone()).await.unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument);
    let down = FakeBackend::broken("down", world.clone(), "isolation");
    let bench = Bench::made(|_| {}, world, vec![plain, down]);
    let failure = bench.engine.create(&bench.me, req).await.unwrap_err();
    assert_eq!(
        failure.code,
        Code::IsolationUnavailable,
        "the reason of the one that knows images counts"
    );
}

#[tokio::test(start_paused = true)]
async fn without_any_back_end_the_answer_states_the_reason() {
    let bench = Bench::made(|_| {}, Arc::new(World::default()), Vec::new());
    let failure = bench.try_exec(code_of("cell")).await.unwrap_err();
    assert_eq!(failure.code, Code::BackendUnavailable);
    assert!(bench.engine.create(&bench.me, one()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_requested_options_reach_the_back_end_and_the_view() {
    let bench = Bench::new();
    let req = CreateRequest {
        memory: Some(ByteSize::mib(64)),
        env: [("KEY".to_owned(), "value".to_owned())].into(),
        label: Some("for tests".into()),
        ..one()
    };
    let view = bench.engine.create(&bench.me, req).await.unwrap().remove(0);
    let spec = bench.world.specs.lock().unwrap()[0].clone();
    assert_eq!(
        (spec.limits.memory, spec.env["KEY"].as_str()),
        (ByteSize::mib(64), "value")
    );
    assert_eq!(
        (view.limits.memory, view.label.as_deref()),
        (ByteSize::mib(64), Some("for tests"))
    );
    assert!(!view.is_default);
}

#[tokio::test(start_paused = true)]
async fn status_describes_a_sandbox_and_its_activity() {
    let bench = Bench::new();
    bench.create(1).await.unwrap();
    let running = bench.start("note on\nsleep 20000", "on").await;
    let views = bench.engine.status(&bench.me, None).await.unwrap();
    assert_eq!(views.len(), 2);
    let default = views.iter().find(|view| view.is_default).unwrap();
    assert_eq!((&default.id, default.state), (&running.sandbox_id, "busy"));
    assert_eq!(default.sessions.len(), 1);
    assert!(default.sessions[0].busy && default.sessions[0].cells == 1);
    assert_eq!(default.usage.unwrap().memory_peak, 9 << 20);
    bench.engine.cancel(&bench.me, None).await.unwrap();
    let view = bench
        .engine
        .status(&bench.me, Some(running.sandbox_id.as_str()))
        .await
        .unwrap()
        .remove(0);
    assert_eq!(
        (view.state, view.sessions[0].busy, view.sessions[0].cells),
        ("idle", false, 1)
    );
    let left = view.idle_expires.duration_since(std::time::SystemTime::now()).unwrap();
    assert!(
        left > Duration::from_secs(29 * 60) && left <= Duration::from_secs(30 * 60),
        "{left:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_close_means_closed_and_a_slow_close_is_bounded() {
    let bench = Bench::new();
    let id = bench.create(1).await.unwrap().remove(0);
    assert_eq!(bench.engine.close(&bench.me, &id).await.unwrap().as_str(), id);
    assert_eq!(bench.world.live(), 0);
    assert_eq!(
        bench.engine.close(&bench.me, &id).await.unwrap_err().code,
        Code::NotFound
    );
    *bench.world.close_delay.lock().unwrap() = Duration::from_secs(1000);
    let id = bench.create(1).await.unwrap().remove(0);
    let began = Instant::now();
    bench.engine.close(&bench.me, &id).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(7));
    bench.world.live_becomes(0).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_everything_within_five_seconds_and_can_be_repeated() {
    let world = Arc::new(World::default());
    let backend = FakeBackend::new("fake", world.clone());
    let bench = Bench::made(|_| {}, world, vec![backend.clone()]);
    bench.create(5).await.unwrap();
    let running = bench.start("note on\nundead", "on").await;
    let began = Instant::now();
    bench.engine.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!((bench.world.live(), backend.shut.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(
        bench.try_exec(code_of("cell")).await.unwrap_err().code,
        Code::BackendUnavailable
    );
    bench.engine.shutdown().await;
    let view = bench
        .engine
        .execution(&bench.me, running.id.as_str(), Duration::from_secs(20))
        .await
        .unwrap();
    assert_ne!(view.status, sandcell_engine::Status::Running);
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_stuck_sandboxes() {
    let bench = Bench::new();
    bench.create(3).await.unwrap();
    *bench.world.close_delay.lock().unwrap() = Duration::from_secs(1000);
    let began = Instant::now();
    bench.engine.shutdown().await;
    assert!(began.elapsed() <= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_back_end_that_ends_all_sandboxes_together_does_so_before_each_is_closed() {
    let bench = Bench::new();
    bench.create(3).await.unwrap();
    *bench.world.close_delay.lock().unwrap() = Duration::from_secs(1000);
    bench
        .world
        .ends_together
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let began = Instant::now();
    bench.engine.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(bench.world.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_engine_ends_its_sandboxes() {
    let Bench { engine, world, me } = Bench::new();
    engine
        .execute(&me, code_of("cell"), CancellationToken::new())
        .await
        .unwrap();
    drop(engine);
    world.live_becomes(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_at_once_leave_nothing_behind() {
    let bench = Arc::new(Bench::with(|config| config.sandboxes = 1000));
    let tasks = (0..100).map(|n| {
        let bench = bench.clone();
        tokio::spawn(async move {
            let who = Principal::new(&format!("caller {n}"));
            for _ in 0..5 {
                let code = code_of(&format!("print {n}"));
                let view = bench
                    .engine
                    .execute(&who, code, CancellationToken::new())
                    .await
                    .unwrap();
                assert_eq!(view.stdout.text, format!("{n}\n"));
            }
            let own = bench.engine.status(&who, None).await.unwrap();
            assert_eq!(own.len(), 1);
            bench.engine.close(&who, own[0].id.as_str()).await.unwrap();
        })
    });
    for task in futures::future::join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(bench.world.live(), 0);
    assert_eq!(bench.world.interpreters.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_back_end_panic_is_an_error_and_holds_no_permit() {
    let world = Arc::new(World::default());
    let bad = FakeBackend::broken("bad", world.clone(), "panic");
    let bench = Bench::made(|config| config.sandboxes_per_caller = 1, world, vec![bad]);
    for _ in 0..3 {
        assert_eq!(bench.try_exec(code_of("cell")).await.unwrap_err().code, Code::Internal);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_is_closed_while_it_is_made_does_not_stay() {
    let bench = Bench::new();
    *bench.world.create_delay.lock().unwrap() = Duration::from_secs(3);
    let req = ExecuteRequest {
        wait: Some(Duration::from_secs(1)),
        watch: sandcell_engine::Watch::default(),
        ..code_of("cell")
    };
    let view = bench.try_exec(req).await.unwrap();
    let starting = bench.engine.status(&bench.me, None).await.unwrap();
    assert_eq!(starting[0].state, "starting");
    bench.engine.close(&bench.me, view.sandbox_id.as_str()).await.unwrap();
    assert_eq!((bench.world.made.load(Ordering::SeqCst), bench.world.live()), (1, 0));
    let ended = bench
        .engine
        .execution(&bench.me, view.id.as_str(), Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(ended.status, sandcell_engine::Status::Killed);
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_ended_sandboxes_is_bounded() {
    let bench = Bench::with(|config| config.sandboxes_per_caller = 10);
    let mut ids = Vec::new();
    for _ in 0..7 {
        ids.extend(bench.create(10).await.unwrap());
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    let mut codes = Vec::new();
    for id in &ids {
        codes.push(bench.exec_in(id, "cell").await.unwrap_err().code);
    }
    assert_eq!(codes.iter().filter(|code| **code == Code::Expired).count(), 64);
    assert_eq!(codes.iter().filter(|code| **code == Code::NotFound).count(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_even_if_the_first_new_sandbox_could_not_be_made() {
    let bench = Bench::new();
    bench.exec("set x 1").await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    bench.world.fail_from.store(1, Ordering::SeqCst);
    bench.try_exec(code_of("cell")).await.unwrap_err();
    bench.world.fail_from.store(usize::MAX, Ordering::SeqCst);
    let view = bench.exec("cell").await;
    assert!(view.state_lost && view.notices[0].contains("expired at"));
}

#[tokio::test(start_paused = true)]
async fn many_sandboxes_are_made_in_groups_and_other_callers_do_not_wait() {
    let bench = Bench::with(|config| {
        config.sandboxes_per_caller = 100;
        config.sandboxes = 200;
    });
    *bench.world.create_delay.lock().unwrap() = Duration::from_secs(1);
    let began = tokio::time::Instant::now();
    let other = Principal::new("other");
    let single = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        bench.engine.create(&other, one()).await.unwrap();
        began.elapsed()
    };
    let (ids, single) = tokio::join!(bench.create(40), single);
    assert_eq!(ids.unwrap().len(), 40);
    assert_eq!(began.elapsed().as_secs(), 3, "16, 16 and 8");
    assert_eq!(single.as_millis(), 1500);
}

#[tokio::test(start_paused = true)]
async fn one_failed_creation_cancels_the_rest_of_the_batch() {
    let bench = Bench::with(|config| config.sandboxes_per_caller = 100);
    *bench.world.create_delay.lock().unwrap() = Duration::from_secs(1);
    bench.world.fail_from.store(20, Ordering::SeqCst);
    let failure = bench.create(100).await.unwrap_err();
    assert!(failure.message.contains("no space"), "{failure:?}");
    assert!(bench.world.made.load(Ordering::SeqCst) <= 32);
    bench.world.live_becomes(0).await;
    bench.world.fail_from.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(bench.create(100).await.unwrap().len(), 100, "no place stays taken");
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_can_be_extended_and_shortened() {
    let bench = Bench::new();
    let req = CreateRequest {
        count: 1,
        lifetime: Some(Duration::from_secs(100)),
        idle: Some(Duration::from_secs(100_000)),
        ..CreateRequest::default()
    };
    let id = bench.engine.create(&bench.me, req).await.unwrap()[0].id.to_string();
    tokio::time::sleep(Duration::from_secs(90)).await;
    bench
        .engine
        .set_lifetime(&bench.me, &id, Duration::from_secs(5000))
        .unwrap();
    // Far beyond its first end and the usual idle time.
    tokio::time::sleep(Duration::from_secs(4000)).await;
    assert!(bench.engine.has_sandbox(&bench.me, &id));
    bench.exec_in(&id, "cell").await.unwrap();
    bench
        .engine
        .set_lifetime(&bench.me, &id, Duration::from_secs(10))
        .unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    let failure = bench.exec_in(&id, "cell").await.unwrap_err();
    assert!(failure.message.contains("end of its lifetime"), "{failure}");
    assert!(!bench.engine.has_sandbox(&bench.me, &id));
    let (other, second) = (Principal::new("other"), Duration::from_secs(1));
    let mine = bench.create(1).await.unwrap().remove(0);
    assert!(bench.engine.set_lifetime(&other, &mine, second).is_err());
    assert!(!bench.engine.has_sandbox(&other, &mine));
    for impossible in [Duration::ZERO, Duration::MAX] {
        let failure = bench.engine.set_lifetime(&bench.me, &mine, impossible).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument);
    }
}
