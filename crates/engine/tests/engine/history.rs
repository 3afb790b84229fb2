//! The history as its caller sees it.

use std::time::Duration;

use sandcell_engine::{ExecuteRequest, HistoryRecord, Principal, Status};
use sandcell_sandbox::Code;

use sandcell_testkit::{Bench, code_of, run_of};

async fn newest(bench: &Bench) -> HistoryRecord {
    bench
        .engine
        .history(&bench.me, 1, None)
        .await
        .unwrap()
        .records
        .remove(0)
}

#[tokio::test(start_paused = true)]
async fn executions_are_recorded_newest_first_with_previews() {
    let bench = Bench::new();
    let long = format!("print {}", "y".repeat(300));
    let first = bench.exec(&long).await;
    let second = bench.exec("sleep 1500\nraise ValueError").await;
    let view = bench.engine.history(&bench.me, 10, None).await.unwrap();
    assert_eq!(
        (view.total, view.records.len(), view.installed_packages.len()),
        (2, 2, 0)
    );
    let [newer, older] = &view.records[..] else {
        panic!("{view:?}")
    };
    assert_eq!((&newer.execution_id, &older.execution_id), (&second.id, &first.id));
    assert_eq!(
        (newer.status, newer.success, newer.duration_ms),
        (Status::Error, false, 1500)
    );
    assert_eq!(newer.error.as_deref(), Some("ValueError: boom"));
    assert_eq!(newer.code_preview, "sleep 1500\nraise ValueError");
    assert_eq!(older.stdout_preview, format!("{}...", "y".repeat(200)));
    assert_eq!(older.code_preview, format!("print {}...", "y".repeat(94)));
    assert!(older.success && older.error.is_none());
    assert_eq!((older.timestamp.len(), view.session_start.len()), (24, 20));
}

#[tokio::test(start_paused = true)]
async fn refused_code_is_recorded_too() {
    let bench = Bench::new();
    bench.try_exec(code_of("  ")).await.unwrap_err();
    let record = newest(&bench).await;
    assert_eq!(
        (record.success, record.duration_ms, record.status),
        (false, 0, Status::Error)
    );
    assert!(record.sandbox_id.is_none() && record.error.unwrap().contains("empty"));
    let unknown = ExecuteRequest {
        language: "cobol".into(),
        ..code_of("x")
    };
    bench.try_exec(unknown).await.unwrap_err();
    assert_eq!(newest(&bench).await.language, "cobol");
    let mut run = run_of("cell");
    run.timeout = Some(Duration::ZERO);
    bench.once(run).await.unwrap_err();
    assert_eq!(newest(&bench).await.code_preview, "cell");
}

#[tokio::test(start_paused = true)]
async fn time_outs_and_throwaway_runs_are_recorded() {
    let bench = Bench::new();
    bench.exec("sleep 100000").await;
    let record = newest(&bench).await;
    assert_eq!(record.status, Status::Timeout);
    assert!(record.error.unwrap().contains("interrupted after 30 s"));
    let view = bench.once(run_of("print once")).await.unwrap();
    assert_eq!(newest(&bench).await.execution_id, view.id);
}

#[tokio::test(start_paused = true)]
async fn one_sandbox_can_be_picked_even_when_it_is_closed() {
    let bench = Bench::new();
    let id = bench.create(1).await.unwrap().remove(0);
    bench.exec_in(&id, "print there").await.unwrap();
    bench.exec("print here").await;
    bench.engine.close(&bench.me, &id).await.unwrap();
    let view = bench.engine.history(&bench.me, 10, Some(&id)).await.unwrap();
    assert_eq!((view.total, view.records.len()), (1, 1), "those of this sandbox");
    assert_eq!(view.records[0].stdout_preview, "there\n");
    let failure = bench.engine.history(&bench.me, 10, Some("sb0")).await.unwrap_err();
    assert_eq!(failure.code, Code::NotFound);
    let stranger = bench
        .engine
        .history(&Principal::new("stranger"), 10, Some(&id))
        .await
        .unwrap_err();
    assert_eq!(stranger.code, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn reset_starts_a_new_view() {
    let bench = Bench::new();
    bench.exec("cell").await;
    bench.engine.reset(&bench.me, None, None).await.unwrap();
    let view = bench.engine.history(&bench.me, 10, None).await.unwrap();
    assert_eq!((view.total, view.records.len()), (0, 0));
    bench.exec("cell").await;
    assert_eq!(bench.engine.history(&bench.me, 10, None).await.unwrap().total, 1);
}

#[tokio::test(start_paused = true)]
async fn beyond_the_caller_limit_the_oldest_executions_are_removed() {
    let bench = Bench::new();
    let run = async |who: &Principal| {
        let cancel = tokio_util::sync::CancellationToken::new();
        let done = bench.engine.run_once(who, run_of("print hello"), cancel).await;
        bench.world.live_becomes(0).await;
        done.unwrap().id.to_string()
    };
    let first = Principal::new("caller 0");
    let early = run(&first).await;
    for number in 1..=1024 {
        run(&Principal::new(&format!("caller {number}"))).await;
    }
    let gone = bench
        .engine
        .execution(&first, &early, Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(gone.code, Code::NotFound);
    let again = run(&first).await;
    let found = bench.engine.execution(&first, &again, Duration::ZERO).await.unwrap();
    assert_eq!(found.stdout.text, "hello\n");
}
