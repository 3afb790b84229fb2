//! The output in results, and the calls that read the rest.

use std::time::Duration;

use sandcell_engine::{Status, StreamName, StreamPart};
use sandcell_sandbox::{ByteSize, Code};

use sandcell_testkit::{Bench, code_of};

fn part(stream: StreamName, offset: i64, limit: u64, find: Option<&str>) -> StreamPart {
    StreamPart {
        stream,
        offset,
        limit,
        find: find.map(str::to_owned),
    }
}

#[tokio::test(start_paused = true)]
async fn streams_result_and_error_are_separate() {
    let bench = Bench::new();
    let view = bench.exec("print out\neprint err\nset x 5\nget x\nraise E").await;
    assert_eq!(
        (view.stdout.text.as_str(), view.stderr.text.as_str()),
        ("out\n", "err\n")
    );
    assert_eq!(view.result.as_deref(), Some("5"));
    assert_eq!(view.error.unwrap().traceback, "line 1\nE: boom");
    assert!(!view.stdout.truncated);
}

#[tokio::test(start_paused = true)]
async fn long_output_is_cut_and_the_rest_can_be_read() {
    let bench = Bench::with(|config| {
        config.hints.read_rest = Some("get(id={execution_id}, stream={stream}, offset={offset})".into());
    });
    let view = bench.exec("bytes 600000").await;
    assert!(view.stdout.truncated && view.stdout.text.len() <= 20 << 10);
    assert_eq!(view.stdout.total_bytes, 600_000);
    let call = format!("get(id={}, stream=stdout, offset=", view.id);
    let (head, rest) = view.stdout.text.split_once("[... ").unwrap();
    assert!(rest.contains(&call), "{rest:.200}");
    let from = rest.split_once(&call).unwrap().1.split(')').next().unwrap();
    let offset: i64 = from.parse().unwrap();
    assert_eq!(usize::try_from(offset).unwrap(), head.trim_end().len());
    let slice = bench
        .engine
        .stream(
            &bench.me,
            view.id.as_str(),
            &part(StreamName::Stdout, offset, 1000, None),
        )
        .await
        .unwrap();
    let expected: String = "0123456789"
        .chars()
        .cycle()
        .skip(usize::try_from(offset % 10).unwrap())
        .take(1000)
        .collect();
    assert_eq!(slice.text, expected);
    assert_eq!((slice.total_bytes, slice.eof), (600_000, false));
    assert_eq!(slice.next_offset, u64::try_from(offset).unwrap() + 1000);
}

#[tokio::test(start_paused = true)]
async fn all_texts_of_a_result_share_the_inline_budget() {
    let bench = Bench::new();
    let line = "word ".repeat(3000);
    let code = format!(
        "bytes 100000\neprint {line}\nset x {line}\nget x\nraise {}",
        "E".repeat(9000)
    );
    let view = bench.exec(&code).await;
    let shown = view.stdout.text.len()
        + view.stderr.text.len()
        + view.result.as_ref().unwrap().len()
        + view.error.as_ref().unwrap().traceback.len();
    assert!(shown <= 20 << 10 && shown > 19 << 10, "{shown}");
}

#[tokio::test(start_paused = true)]
async fn a_gigabyte_of_output_is_counted_and_not_stored() {
    let bench = Bench::with(|config| config.output_kept = ByteSize::kib(100));
    let view = bench.exec("bytes 60000000").await;
    assert_eq!(view.stdout.total_bytes, 60_000_000);
    let lost = 60_000_000 - (100 << 10);
    assert!(
        view.stdout.text.contains(&format!("{lost} of them were not kept")),
        "{:.20000}",
        view.stdout.text
    );
    let slice = bench
        .engine
        .stream(
            &bench.me,
            view.id.as_str(),
            &part(StreamName::Stdout, 76_790, 5000, None),
        )
        .await
        .unwrap();
    assert!(slice.text.contains(&format!("{lost} bytes were not kept")), "{slice:?}");
    assert_eq!(slice.next_offset, 60_000_000 - (25 << 10));
}

#[tokio::test(start_paused = true)]
async fn streams_are_read_from_the_end_by_search_and_while_running() {
    let bench = Bench::new();
    let view = bench
        .start("print one\nprint two\nprint three\nnote on\nsleep 20000", "on")
        .await;
    let id = view.id.as_str();
    let read = async |stream, offset, limit, find| {
        let part = part(stream, offset, limit, find);
        bench.engine.stream(&bench.me, id, &part).await
    };
    let slice = read(StreamName::Stdout, -6, 100, None).await.unwrap();
    assert_eq!((slice.text.as_str(), slice.offset, slice.eof), ("three\n", 8, false));
    let slice = read(StreamName::Stdout, 0, 4, Some("two")).await.unwrap();
    assert_eq!((slice.text.as_str(), slice.offset), ("two\n", 4));
    let slice = read(StreamName::Stdout, 0, 3, Some("four")).await.unwrap();
    assert_eq!((slice.text.as_str(), slice.offset), ("", 14));
    let slice = read(StreamName::Code, 0, 9, None).await.unwrap();
    assert_eq!((slice.text.as_str(), slice.eof), ("print one", false));
    for (limit, find) in [(0, None), (5, Some(""))] {
        let failure = read(StreamName::Stdout, 0, limit, find).await.unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument);
    }
    bench.engine.cancel(&bench.me, None).await.unwrap();
    assert!(read(StreamName::Stdout, -6, 100, None).await.unwrap().eof);
    assert!(read(StreamName::Stdout, i64::MIN, 100, None).await.is_ok());
    assert!(read(StreamName::Stdout, i64::MAX, u64::MAX, None).await.unwrap().eof);
}

#[tokio::test(start_paused = true)]
async fn plots_are_artifacts_and_displayed_text_is_output() {
    let bench = Bench::new();
    let view = bench.exec("print a\nplot\ndisplay b\nplot").await;
    assert_eq!(
        view.stdout.text,
        "a\n[plot-1.png: <Figure>]\nb\n[plot-2.png: <Figure>]\n"
    );
    let names: Vec<&str> = view.artifacts.iter().map(|artifact| artifact.name.as_str()).collect();
    assert_eq!(names, ["plot-1.png", "plot-2.png"]);
    assert!(view.artifacts.iter().all(|artifact| artifact.shown));
}

#[tokio::test(start_paused = true)]
async fn results_outlive_their_sandbox() {
    let bench = Bench::new();
    let view = bench.exec("plot\nprint kept").await;
    bench.engine.close(&bench.me, view.sandbox_id.as_str()).await.unwrap();
    let later = bench
        .engine
        .execution(&bench.me, view.id.as_str(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(
        (later.stdout.text.as_str(), later.artifacts.len()),
        ("[plot-1.png: <Figure>]\nkept\n", 1)
    );
}

#[tokio::test(start_paused = true)]
async fn old_results_are_removed_and_the_answer_states_it() {
    let bench = Bench::new();
    let first = bench.exec("print first").await;
    for _ in 0..256 {
        assert_eq!(bench.exec("cell").await.status, Status::Ok);
    }
    let failure = bench
        .engine
        .execution(&bench.me, first.id.as_str(), Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::Expired);
    assert!(bench.try_exec(code_of("cell")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn old_output_is_removed_beyond_the_size_limit_and_the_newest_stays() {
    let bench = Bench::new();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(bench.exec("bytes 6000000").await.id);
    }
    let read = async |id: &sandcell_engine::ExecutionId| {
        let last = part(StreamName::Stdout, -9, 9, None);
        let slice = bench.engine.stream(&bench.me, id.as_str(), &last).await;
        slice.map(|slice| slice.text.len()).map_err(|failure| failure.code)
    };
    assert_eq!(read(&ids[0]).await, Err(Code::Expired));
    assert_eq!(read(&ids[1]).await, Err(Code::Expired));
    assert_eq!(read(&ids[2]).await, Ok(9));
}

#[tokio::test(start_paused = true)]
async fn undelivered_output_is_stored_longer_but_within_a_bound() {
    let bench = Bench::new();
    let id = bench.start("note runs\nbytes 10000000", "runs").await.id;
    bench.exec("bytes 3000000").await;
    bench.exec("bytes 3000000").await;
    let read = async || {
        let whole = bench.engine.execution(&bench.me, id.as_str(), Duration::ZERO).await;
        whole
            .map(|view| view.stdout.total_bytes)
            .map_err(|failure| failure.code)
    };
    assert_eq!(read().await, Ok(10_020_000));
    // Now the output is delivered, and later output replaces it.
    bench.exec("print next").await;
    assert_eq!(read().await, Err(Code::Expired));
    let mut unread = Vec::new();
    for _ in 0..3 {
        unread.push(bench.start("note runs\nbytes 10000000", "runs").await.id);
    }
    bench.exec("print last").await;
    let states = unread
        .iter()
        .map(|id| bench.engine.execution(&bench.me, id.as_str(), Duration::ZERO));
    let states: Vec<bool> = futures::future::join_all(states)
        .await
        .iter()
        .map(Result::is_ok)
        .collect();
    assert_eq!(states, [false, true, true]);
}
