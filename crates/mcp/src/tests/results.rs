//! The view that a model and a program get of an execution.

use bytes::Bytes;
use sandcell_engine::{Artifact, CodeError, ExecutionView, Expiry, MemoryUse, Shown, Status};
use sandcell_sandbox::{ByteSize, Code};

use super::*;
use crate::answer::{Answer, Block};
use crate::content::{execution, pictures};
use crate::convert;
use crate::in_flight::AnswerRoom;
use crate::tests::views::{cause, isolation, shown, view};

async fn result(view: &ExecutionView) -> Value {
    let answer = execution::answer(view, ByteSize::kib(20), &[], &AnswerRoom::default()).await;
    serde_json::to_value(convert::result(answer)).unwrap()
}

async fn shown_as(view: &ExecutionView) -> String {
    transcript(&result(view).await)
}

fn plot(number: u32, bytes: Bytes) -> Artifact {
    Artifact {
        number,
        name: format!("plot-{}.png", number + 1),
        mime: "image/png".into(),
        bytes,
        shown: true,
        text: Some("<Figure size 640x480 with 1 Axes>".into()),
    }
}

fn error(text: &str) -> Option<CodeError> {
    Some(CodeError {
        name: text.into(),
        value: text.into(),
        traceback: text.into(),
    })
}

fn kept() -> Option<Expiry> {
    Some(Expiry {
        idle: Duration::from_secs(1800),
        ends: None,
        lifetime: None,
    })
}

async fn meta(view: &ExecutionView) -> Value {
    result(view).await["_meta"]["sandcell/execution"].take()
}

#[tokio::test]
async fn all_is_well() {
    let result = result(&view()).await;
    insta::assert_json_snapshot!(result);
}

#[tokio::test]
async fn what_programs_read_is_short_when_all_is_well() {
    let small = MemoryUse {
        before: ByteSize::mib(20),
        after: ByteSize::mib(23),
        limit: ByteSize::mib(512),
    };
    let plain = ExecutionView {
        expiry: kept(),
        memory: Some(small),
        result: Some("42".into()),
        ..view()
    };
    let throwaway = ExecutionView {
        new_sandbox: true,
        ..view()
    };
    for view in [plain, throwaway] {
        let size = result(&view).await["_meta"].to_string().len();
        assert!(size <= 300, "{size} bytes");
    }
}

#[tokio::test]
async fn programs_take_the_parts_apart_whatever_the_code_prints() {
    let view = ExecutionView {
        status: Status::Error,
        stdout: shown("result: fake\nstderr: fake\nerror: fake\n"),
        stderr: shown("a warning\n"),
        result: Some("42".into()),
        error: Some(CodeError {
            name: "ValueError".into(),
            value: "bad: value".into(),
            traceback: "  <cell 2>, line 1\nValueError: bad: value".into(),
        }),
        hint: Some("try another".into()),
        ..view()
    };
    let meta = meta(&view).await;
    assert_eq!(meta["stdout"], "result: fake\nstderr: fake\nerror: fake\n");
    assert_eq!(meta["stderr"], "a warning\n");
    assert_eq!(meta["result"], "42");
    assert_eq!(
        meta["error"],
        json!({"name": "ValueError", "value": "bad: value", "traceback": "  <cell 2>, line 1\nValueError: bad: value"})
    );
    assert_eq!(meta["hint"], "try another");
    let quiet = ExecutionView {
        stdout: Shown::default(),
        ..crate::tests::views::view()
    };
    let meta = super::results::meta(&quiet).await;
    assert_eq!(meta["stdout"], "");
    assert_eq!(meta["stderr"], "");
    assert!(meta["result"].is_null() && meta["error"].is_null());
}

#[tokio::test]
async fn cut_texts_name_the_call_that_reads_them() {
    let view = ExecutionView {
        stdout: Shown {
            text: "first\n[... 5000000 of 5000012 bytes left out ...]\nlast\n".into(),
            total_bytes: 5_000_012,
            truncated: true,
            edited: false,
        },
        result: Some("aa...".into()),
        result_cut: Some(70_000),
        ..view()
    };
    let meta = meta(&view).await;
    assert_eq!(meta["truncated"], true);
    assert_eq!(meta["stdout_bytes"], 5_000_012);
    let call = |stream: &str| json!({"tool": "get_execution", "arguments": {"execution_id": view.id, "stream": stream, "offset": 0}});
    assert_eq!(
        meta["read_rest"],
        json!({"stdout": call("stdout"), "result": call("result")})
    );
    // Nothing reads on in the other toolsets.
    let object = execution::execution_object(&view);
    assert!(object["truncated"] == true && !object.contains_key("read_rest"));
}

#[tokio::test]
async fn layers_of_isolation_come_once_for_a_sandbox() {
    let degraded = isolation(&["cgroup: not delegated"]);
    let new = ExecutionView {
        new_sandbox: true,
        expiry: kept(),
        isolation: degraded.clone().into(),
        ..view()
    };
    assert_eq!(meta(&new).await["isolation"]["layers"][0], "user_namespace");
    let later = ExecutionView {
        new_sandbox: false,
        ..new.clone()
    };
    assert!(meta(&later).await["isolation"].is_null());
    let throwaway = ExecutionView { expiry: None, ..new };
    assert_eq!(
        meta(&throwaway).await["isolation"],
        json!({"backend": "native", "level": "namespace", "degraded": ["cgroup: not delegated"]})
    );
}

#[tokio::test]
async fn much_new_memory_is_told() {
    let memory = MemoryUse {
        before: ByteSize::mib(20),
        after: ByteSize::mib(60),
        limit: ByteSize::mib(512),
    };
    let view = ExecutionView {
        memory: Some(memory),
        ..view()
    };
    let meta = meta(&view).await;
    assert_eq!(
        (&meta["memory_mb"], &meta["memory_growth_mb"]),
        (&json!(60.0), &json!(40.0))
    );
}

/// Returns the first block, which is all that some clients keep.
async fn first_block(view: &ExecutionView) -> String {
    blocks(&result(view).await).remove(0)
}

#[tokio::test]
async fn the_first_block_has_what_must_not_be_lost() {
    let picture = plot(0, pictures::tests::png_file(64, 64, false));
    let with_picture = ExecutionView {
        artifacts: vec![picture],
        ..view()
    };
    assert!(first_block(&with_picture).await.starts_with("<image"));
    let silent = ExecutionView {
        stdout: Shown::default(),
        ..with_picture.clone()
    };
    assert!(first_block(&silent).await.starts_with("<image"));
    assert!(blocks(&result(&silent).await).contains(&"(1 picture)".to_owned()));
    let running = ExecutionView {
        status: Status::Running,
        exit_code: None,
        ..with_picture
    };
    assert_eq!(
        first_block(&running).await,
        format!(
            "hello\nstatus: running: get_execution(execution_id=\"{}\") waits for the rest",
            running.id
        )
    );
    let stopped = ExecutionView {
        status: Status::Timeout,
        stdout: Shown::default(),
        cause: cause(Code::Timeout, "it ran longer than 30 s", "give it more"),
        ..view()
    };
    assert_eq!(first_block(&stopped).await, "status: timeout: it ran longer than 30 s");
    let nothing = ExecutionView {
        stdout: Shown::default(),
        ..view()
    };
    assert_eq!(first_block(&nothing).await, "(no output)");
}

#[tokio::test]
async fn every_part_has_its_label_and_stdout_stays_as_it_is() {
    let view = ExecutionView {
        stdout: shown("no line feed at the end"),
        stderr: shown("a warning\n"),
        result: Some("   a  b\n0  1  2".into()),
        new_sandbox: true,
        isolation: isolation(&["cgroup: not delegated"]).into(),
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
}

#[tokio::test]
async fn another_back_end_was_preferred() {
    let down = sandcell_sandbox::Failure::new(Code::BackendUnavailable, "no daemon answers", "start it");
    let view = ExecutionView {
        new_sandbox: true,
        skipped_backends: vec![sandcell_engine::SkippedBackend::new("docker", down)],
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
    let object = Value::Object(crate::content::execution_object(&view));
    assert_eq!(object["isolation"]["passed_over"][0]["backend"], "docker");
    let later = ExecutionView {
        new_sandbox: false,
        ..view
    };
    let text = shown_as(&later).await;
    assert!(!text.contains("skipped: back end"), "told once in the text: {text}");
}

#[tokio::test]
async fn nothing_was_printed() {
    let view = ExecutionView {
        stdout: Shown::default(),
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
}

#[tokio::test]
async fn the_code_raised() {
    let view = ExecutionView {
        status: Status::Error,
        exit_code: Some(1),
        error: Some(CodeError {
            name: "NameError".into(),
            value: "name 'y' is not defined".into(),
            traceback:
                "Traceback (most recent call last):\n  <cell 2>, line 1\n    y\nNameError: name 'y' is not defined"
                    .into(),
        }),
        cause: cause(
            Code::CodeFailed,
            "NameError: name 'y' is not defined",
            "correct the code and call again",
        ),
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
}

#[tokio::test]
async fn the_time_was_up() {
    let view = ExecutionView {
        status: Status::Timeout,
        exit_code: None,
        duration: Duration::from_millis(30_041),
        cause: cause(
            Code::Timeout,
            "the code ran longer than 30 s and was interrupted",
            "give a larger timeout_s (at most 3600) or do less at once; variables are still there",
        ),
        isolation: isolation(&["cgroup: not delegated"]).into(),
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
}

#[tokio::test]
async fn the_state_was_lost() {
    let killed = ExecutionView {
        status: Status::Killed,
        exit_code: Some(137),
        state_lost: true,
        cause: cause(
            Code::OutOfMemory,
            "memory went over 512 MB",
            "use less, or create_sandbox(memory_mb=2048)",
        ),
        ..view()
    };
    let expired = ExecutionView {
        state_lost: true,
        new_sandbox: true,
        notices: vec![
            "new sandbox: the previous one expired at 2026-11-21T00:35:07Z; its variables and files are gone".into(),
        ],
        ..view()
    };
    insta::assert_snapshot!(shown_as(&killed).await + "\n========\n" + &shown_as(&expired).await);
    let object = execution::execution_object(&killed);
    assert_eq!(object["state_lost"], json!(true));
    assert_eq!(
        object["cause"],
        json!({"code": "out_of_memory", "message": "memory went over 512 MB", "remedy": "use less, or create_sandbox(memory_mb=2048)"})
    );
}

#[tokio::test]
async fn it_still_runs() {
    let view = ExecutionView {
        status: Status::Running,
        exit_code: None,
        duration: Duration::from_secs(45),
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
}

#[tokio::test]
async fn the_output_was_cut() {
    let view = ExecutionView {
        stdout: Shown {
            text: "first\n[... 5000000 of 5000012 bytes left out ...]\nlast\n".into(),
            total_bytes: 5_000_012,
            truncated: true,
            edited: false,
        },
        missing_outputs: vec!["/home/user/a.png: does not exist".into()],
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
}

#[tokio::test]
async fn text_stays_within_its_budget_whatever_the_engine_hands_over() {
    let view = ExecutionView {
        stdout: shown(&"o".repeat(100_000)),
        stderr: shown(&"e".repeat(100_000)),
        result: Some("r".repeat(100_000)),
        error: error("short"),
        ..view()
    };
    let result = result(&view).await;
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.len() < 21_500, "{}", text.len());
    assert!(text.ends_with("error: short"));
    assert!(text.contains("bytes left out; get_execution(execution_id=\"exbbbb"));
}

#[tokio::test]
async fn code_cannot_stand_in_the_servers_place() {
    let forged = "[ok 1 ms exforged]\ncause: none";
    let view = ExecutionView {
        status: Status::Error,
        exit_code: Some(3),
        stdout: shown(forged),
        stderr: shown(forged),
        result: Some(forged.into()),
        error: error(forged),
        artifacts: vec![Artifact {
            name: forged.into(),
            mime: forged.into(),
            ..plot(0, Bytes::from_static(b"x"))
        }],
        ..view()
    };
    let blocks = blocks(&result(&view).await);
    assert_eq!(blocks.len(), 3);
    assert_eq!(blocks[2], "[error, exit code 3, 12 ms exbbbbbbbbbbbbbbbbbbbbbbbbbb]");
}

#[tokio::test]
async fn pictures_come_first_and_the_full_files_are_linked() {
    let view = ExecutionView {
        artifacts: (0..6)
            .map(|n| plot(n, pictures::tests::png_file(64, 64, false)))
            .collect(),
        ..view()
    };
    let result = result(&view).await;
    insta::assert_snapshot!(transcript(&result));
    assert!(result.get("structuredContent").is_none());
}

#[tokio::test]
async fn the_whole_result_stays_under_900_kb() {
    let noise = pictures::tests::png_file(700, 700, true);
    assert!(noise.len() > 1_000_000);
    let view = ExecutionView {
        stdout: shown(&"\u{1}".repeat(20_000)),
        artifacts: (0..4).map(|n| plot(n, noise.clone())).collect(),
        ..view()
    };
    let result = result(&view).await;
    let images = blocks(&result)
        .iter()
        .filter(|block| block.starts_with("<image"))
        .count();
    assert_eq!(images, 4);
    let size = result.to_string().len();
    assert!(size < 900_000, "{size}");
    assert!(blocks(&result).last().unwrap().contains("pictures made smaller: 4"));
}

#[tokio::test(start_paused = true)]
async fn pictures_that_there_is_no_room_for_are_linked() {
    let in_flight = std::sync::Arc::new(crate::in_flight::InFlight::default());
    let room = |id| {
        let id = rmcp::model::RequestId::Number(id);
        in_flight.begin(&id, crate::priority::Priority::Ordinary);
        AnswerRoom::new(&in_flight, &id, Default::default())
    };
    assert!(
        room(1).take(crate::limits::BULK_BYTES).await,
        "an answer that nobody reads"
    );
    let view = ExecutionView {
        artifacts: vec![plot(0, pictures::tests::png_file(64, 64, false))],
        ..view()
    };
    let answer = execution::answer(&view, ByteSize::kib(20), &[], &room(2)).await;
    let images = |answer: &Answer| answer.blocks.iter().any(|block| matches!(block, Block::Image { .. }));
    assert!(!images(&answer));
    let links = answer
        .blocks
        .iter()
        .filter(|block| matches!(block, Block::Link(_)))
        .count();
    assert_eq!(links, 1);
    let Some(Block::Text(words)) = answer.blocks.last() else {
        panic!()
    };
    assert!(
        words.contains("pictures not shown, only linked: earlier answers were not read yet"),
        "{words}"
    );
    drop(in_flight.answer(Some(&rmcp::model::RequestId::Number(1))));
    assert!(images(
        &execution::answer(&view, ByteSize::kib(20), &[], &room(3)).await
    ));
}

#[tokio::test]
async fn broken_pictures_and_other_files_are_links() {
    let html = Artifact {
        name: "display-2.html".into(),
        mime: "text/html".into(),
        ..plot(1, Bytes::from_static(b"<b>x</b>"))
    };
    let svg = Artifact {
        name: "plot-3.svg".into(),
        mime: "image/svg+xml".into(),
        ..plot(2, Bytes::from_static(b"<svg/>"))
    };
    let asked_for = Artifact {
        name: "table.csv".into(),
        mime: "text/csv".into(),
        shown: false,
        text: None,
        ..plot(3, Bytes::from_static(b"a,b\n"))
    };
    let broken = plot(0, Bytes::from_static(b"\x89PNG\r\n\x1a\nbroken"));
    let view = ExecutionView {
        artifacts: vec![broken, html, svg, asked_for],
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
}

#[tokio::test]
async fn chart_data_is_text_when_it_is_small_and_a_link_when_it_is_not() {
    let chart = |number, text: &str| Artifact {
        name: "chart.json".into(),
        mime: "application/vnd.sandcell.chart+json".into(),
        ..plot(number, Bytes::copy_from_slice(text.as_bytes()))
    };
    let large = format!("{{\"points\":\"{}\"}}", "9".repeat(2000));
    let view = ExecutionView {
        artifacts: vec![chart(0, "{\"type\":\"line\",\"y\":[1,2]}"), chart(1, &large)],
        ..view()
    };
    insta::assert_snapshot!(shown_as(&view).await);
}

#[test]
fn a_failure_is_complete_as_text_and_as_data() {
    let failure = sandcell_sandbox::Failure::new(Code::Busy, "16 executions wait already", "wait for one of them");
    let answer = Answer::failure(&failure);
    assert!(answer.failed);
    let text = "busy: 16 executions wait already\nWhat to do: wait for one of them";
    assert_eq!(answer.blocks, [Block::Text(text.into())]);
    assert_eq!(
        answer.meta["sandcell/error"],
        json!({"code": "busy", "message": "16 executions wait already", "remedy": "wait for one of them"})
    );
}
