use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use sandcell_languages::{Settings, detect};
use sandcell_sandbox::CellStatus;

use crate::stub::Stub;
use crate::{EXECUTION_ID, session};

#[tokio::test]
async fn a_session_calls_tools_with_a_command() {
    let stub = Stub::start();
    let mut bash = session!("bash", Some(&stub));
    let ran = bash
        .run(r#"tools call demo.echo '{"x": "é"}' && tools call demo.text"#)
        .await;
    assert_eq!(ran.stdout, "{\"x\":\"é\"}\nhéllo\n", "{ran:?}");
    let ran = bash.run_with(
        "tools call demo.echo - | cat; tools call demo.nothing",
        Some(r#"{"y": [1]}"#),
    );
    assert_eq!(ran.await.stdout, "{\"y\":[1]}\n");
    let calls = stub.take_calls();
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert!(
        calls.iter().all(|(execution, _)| execution == EXECUTION_ID),
        "{calls:?}"
    );
    let ran = bash
        .run("tools servers; tools search 'a &' é; tools describe demo.get-item")
        .await;
    for expected in [
        "demo\tStubs\n",
        "At /v1/tools?limit=10&query=a%20%26%20%C3%A9.\n",
        "At /v1/tools?server=demo&tool=get-item.\n",
    ] {
        assert!(ran.stdout.contains(expected), "{ran:?}");
    }
}

#[tokio::test]
async fn a_failed_call_has_a_status_and_its_error_on_stderr() {
    let stub = Stub::start();
    let mut bash = session!("bash", Some(&stub));
    let ran = bash
        .run("tools call demo.fail || echo $?; tools call demo || echo $?")
        .await;
    assert_eq!(ran.stdout, "1\n2\n", "{ran:?}");
    assert!(
        ran.stderr
            .starts_with("tools: it went wrong; do it right\nusage: tools "),
        "{ran:?}"
    );
    // With these options, the failed call ends the cell. The next shell has the command, too.
    let ran = bash
        .run("set -euo pipefail; x=$(tools call demo.echo); echo $x; tools call demo.fail; echo not reached")
        .await;
    assert_eq!(
        (ran.stdout.as_str(), &ran.status),
        ("{}\n", &CellStatus::Exit(1)),
        "{ran:?}"
    );
    let ran = bash
        .run("tools call demo.text; tools call demo.text; SANDCELL_TOOLS_URL=http://127.0.0.1:1 tools servers")
        .await;
    assert_eq!(ran.stdout, "héllo\nhéllo\n", "{ran:?}");
    assert!(ran.stderr.contains("does not answer"), "{ran:?}");
}

#[tokio::test]
async fn a_call_leaves_nothing_in_the_shell() {
    let stub = Stub::start();
    let mut bash = session!("bash", Some(&stub));
    let code =
        "IFS=,; readonly line=1 status=2 body=3 fd=4; shopt -s nocasematch; set -fu; before=$(echo /proc/$$/fd/*)
        tools call demo.echo '{\"x\": 1}'; tools call demo.text >/dev/null
        [[ $before == $(echo /proc/$$/fd/*) && $IFS == , && A == a && $- == *f*u* ]] && echo same";
    let ran = bash.run(code).await;
    assert_eq!(ran.stdout, "{\"x\":1}\nsame\n", "{ran:?}");
    let names: Vec<String> = bash
        .session
        .variables()
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.name)
        .collect();
    assert_eq!(names, ["before", "body", "fd", "line", "status"]);
    // A function of the code wins, also after the end of its shell.
    let ran = bash.run("tools() { echo mine; }; exit 3").await;
    assert_eq!(ran.status, CellStatus::Exit(3));
    assert_eq!(bash.run("tools call demo.text").await.stdout, "mine\n");
}

#[tokio::test]
async fn a_long_answer_is_complete() {
    let stub = Stub::start();
    let mut bash = session!("bash", Some(&stub));
    let ran = bash
        .run(r#"x=$(tools call demo.repeat '{"count": 300000}'); echo ${#x}"#)
        .await;
    assert_eq!(ran.stdout, "300000\n", "{ran:?}");
    // The reader has gone. That is no error of the call.
    let ran = bash
        .run(r#"tools call demo.repeat '{"count": 300000}' | head -c 4"#)
        .await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("éé", ""), "{ran:?}");
}

#[tokio::test]
async fn an_interrupt_ends_a_waiting_call() {
    let stub = Stub::start();
    let mut bash = session!("bash", Some(&stub));
    let interrupter = bash.interrupter();
    let interrupt = async {
        stub.until_waiting(1).await;
        interrupter.interrupt().await.unwrap();
    };
    let (ran, ()) = tokio::join!(bash.run("tools call demo.wait; echo not reached"), interrupt);
    assert!(matches!(ran.status, CellStatus::Interrupted(_)), "{ran:?}");
    stub.until_lost(1).await;
    assert_eq!(bash.run("tools call demo.text").await.stdout, "héllo\n");
}

#[tokio::test]
async fn without_tools_there_is_no_such_command() {
    let mut bash = session!("bash", None);
    let ran = bash.run("type tools; env | grep SANDCELL; declare -F").await;
    assert!(
        !ran.stdout.contains("tools") && !ran.stdout.contains("SANDCELL_TOOLS"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn other_programs_call_tools_with_a_program() {
    let stub = Stub::start();
    let detected = detect(&Settings::default());
    let added = detected.added.iter().find(|(path, _)| path.ends_with("tools/tools"));
    let Some((_, text)) = added else {
        println!("skipped: no bash");
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("tools");
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = |line: &str| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::null()).env_clear();
        let path = format!("{}:/usr/bin:/bin", place.path().display());
        let variables = [
            ("PATH", path.as_str()),
            ("SANDCELL_TOOLS_URL", stub.url.as_str()),
            ("SANDCELL_EXECUTION", EXECUTION_ID),
        ];
        let ran = command.envs(variables).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    assert_eq!(
        run("tools call demo.echo '{\"x\": 1}'"),
        (Some(0), "{\"x\":1}\n".to_owned(), String::new())
    );
    assert_eq!(
        run("tools call demo.fail"),
        (Some(1), String::new(), "tools: it went wrong; do it right\n".to_owned())
    );
    assert_eq!(stub.take_calls().first().unwrap().0, EXECUTION_ID);
    assert_eq!(run("tools").0, Some(2));
}
