use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::support::place::Place;
use crate::support::{begin, machine, until};

/// `sandcell run` of a file with this code.
fn run(place: &Place, code: &str, options: &[&str], arguments: &[&str], stdin: &str) -> Output {
    let file = place.write("program.py", code).display().to_string();
    let mut all = vec!["run"];
    all.extend(options);
    all.push(&file);
    if !arguments.is_empty() {
        all.push("--");
        all.extend(arguments);
    }
    let mut child = place
        .command(&all)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that reads nothing may be gone before all is written.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_status_is_the_programs() {
    let _turn = begin!();
    let place = Place::new();
    for (code, status) in [
        ("print('fine')", 0),
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("import os; os._exit(42)", 42),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139),
    ] {
        let output = run(&place, code, &[], &[], "");
        assert_eq!(output.status.code(), Some(status), "{code}: {}", text(&output.stderr));
    }
}

#[test]
fn a_time_out_is_124_and_memory_is_137() {
    let _turn = begin!();
    let place = Place::new();
    let output = run(
        &place,
        "print('so far', flush=True)\nwhile True: pass",
        &["--timeout", "1"],
        &[],
        "",
    );
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "so far\n");
    assert!(
        text(&output.stderr).contains("--timeout"),
        "it says how to get more: {}",
        text(&output.stderr)
    );
    // Programs that read the result get the same words, not those of another interface.
    let output = run(&place, "while True: pass", &["--timeout", "1", "--json"], &[], "");
    let object: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let remedy = object["cause"]["remedy"].as_str().unwrap();
    assert!(
        remedy.contains("--timeout") && !remedy.contains("timeout_s"),
        "{remedy}"
    );
    let output = run(
        &place,
        "b = []\nwhile True: b.append(bytearray(8 << 20))",
        &["--memory", "128"],
        &[],
        "",
    );
    let said = text(&output.stderr);
    // Python itself may notice first; then it is a MemoryError of the program.
    assert!(
        output.status.code() == Some(137) || said.contains("MemoryError"),
        "{:?}: {said}",
        output.status
    );
    assert!(said.contains("128") || said.contains("MemoryError"), "{said}");
}

#[test]
fn what_sandcell_itself_could_not_do_is_125() {
    let _turn = begin!();
    let place = Place::new();
    for arguments in [
        &["run", "/no/such/file.py"][..],
        &["run", "--language", "klingon", "program.py"],
        &["run", "--backend", "klingon", "program.py"],
        &["run", "--file", "/no/such:/x", "program.py"],
        &["run", "--memory", "0", "program.py"],
    ] {
        place.write("program.py", "print(1)");
        let output = place.command(arguments).stdin(Stdio::null()).output().unwrap();
        assert!(
            matches!(output.status.code(), Some(125 | 2)),
            "{arguments:?}: {output:?}"
        );
        assert!(
            !output.stderr.is_empty() && output.stdout.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
}

#[test]
fn output_comes_while_the_program_runs_and_input_goes_in() {
    let _turn = begin!();
    let place = Place::new();
    let file = place.write(
        "echo.py",
        "print('first', flush=True)\nprint('got', input(), flush=True)\nimport sys\nprint(len(sys.stdin.read()))",
    );
    let mut child = place
        .command(&["run", file.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // The program waits for input now, so this line can only have come while it runs.
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    stdin.write_all(b"hello\n").unwrap();
    line.clear();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "got hello\n");
    stdin.write_all(&vec![b'x'; 300_000]).unwrap();
    drop(stdin);
    line.clear();
    stdout.read_to_string(&mut line).unwrap();
    assert_eq!(line, "300000\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn streams_stay_apart_and_bytes_stay_bytes() {
    let _turn = begin!();
    let place = Place::new();
    let output = run(
        &place,
        "import os\nos.write(1, bytes(range(256)) * 4000)\nos.write(2, b'to err\\n')",
        &[],
        &[],
        "",
    );
    let expected: Vec<u8> = (0..=255).cycle().take(1_024_000).collect();
    assert!(output.stdout == expected, "{} bytes came", output.stdout.len());
    assert_eq!(text(&output.stderr), "to err\n");
}

#[test]
fn for_one_program_nothing_is_made_ahead() {
    let _turn = begin!();
    let place = Place::new();
    let file = place.write("program.py", "print('up', flush=True)\ninput()\n");
    let mut child = place
        .command(&["run", &file.display().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    // Twenty times the pause after which a server makes processes for sandboxes to come.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let there = machine::descendants(child.id());
    assert!(
        there.len() <= 5,
        "the launcher, what makes and holds the sandbox, and the program: {there:?}"
    );
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_program_can_come_from_standard_input() {
    let _turn = begin!();
    let place = Place::new();
    let mut child = place
        .command(&["run", "-", "--", "a", "b c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"import sys\nprint(sys.argv[1:])\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "['a', 'b c']\n");
}

#[test]
fn files_go_in_and_come_back() {
    let _turn = begin!();
    let place = Place::new();
    let input = place.write("numbers.txt", "1\n2\n39\n").display().to_string();
    let back = place.work().join("sum.txt").display().to_string();
    let code = "open('sum.txt', 'w').write(str(sum(map(int, open('/home/user/in/numbers.txt')))))";
    let output = run(
        &place,
        code,
        &[
            "--file",
            &format!("{input}:in/numbers.txt"),
            "--out",
            &format!("sum.txt:{back}"),
        ],
        &[],
        "",
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(&back).unwrap(), "42");
    let missing = run(&place, "pass", &["--out", &format!("none.txt:{back}.2")], &[], "");
    assert!(text(&missing.stderr).contains("none.txt"), "{}", text(&missing.stderr));
    assert_ne!(
        missing.status.code(),
        Some(0),
        "a wanted file that is not there is not a success"
    );
}

#[test]
fn json_tells_everything_at_once() {
    let _turn = begin!();
    let place = Place::new();
    let output = run(
        &place,
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(4)",
        &["--json"],
        &[],
        "",
    );
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let object: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(object["stdout"], "out\n");
    assert_eq!(object["stderr"], "err\n");
    assert_eq!(object["exit_code"], 4);
    for key in [
        "execution_id",
        "sandbox_id",
        "language",
        "status",
        "duration_ms",
        "cpu_ms",
        "peak_memory_mb",
        "stdout_bytes",
        "stderr_bytes",
        "truncated",
        "state_lost",
        "new_sandbox",
        "cause",
        "isolation",
        "result",
    ] {
        assert!(object.get(key).is_some(), "{key} is missing: {object}");
    }
    assert_eq!(object["isolation"]["level"], "namespace");
}

#[test]
fn the_hosts_secrets_stay_outside_here_too() {
    let _turn = begin!();
    let place = Place::new();
    let secret = place.write("secret.txt", crate::support::place::SECRET);
    let code = format!(
        "import os\nprint(os.environ)\ntry:\n    print(open({secret:?}).read())\nexcept OSError as e:\n    print(type(e).__name__)\nprint(os.listdir('/home'), os.listdir('/proc/self/fd'))"
    );
    let output = run(&place, &code, &[], &[], "");
    let said = text(&output.stdout);
    assert!(!said.contains(crate::support::place::SECRET), "{said}");
    assert!(
        said.contains("FileNotFoundError") && said.contains("['user']"),
        "{said}"
    );
    assert!(
        said.contains("['0', '1', '2', '3']"),
        "no descriptor but its own: {said}"
    );
}

#[test]
fn a_killed_run_leaves_nothing() {
    let _turn = begin!(alone);
    let place = Place::new();
    let file = place.write("long.py", "print('up', flush=True)\nimport time\ntime.sleep(600)");
    let mut child = place
        .command(&["run", "--timeout", "600", file.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    let held = machine::descendants(child.id());
    assert!(!held.is_empty());
    let groups = machine::groups_of(&held);
    child.kill().unwrap();
    child.wait().unwrap();
    until(std::time::Duration::from_secs(2), "nothing is left", || {
        let gone = held.iter().all(|seen| !seen.lives()) && groups.iter().all(|folder| !folder.exists());
        (gone && place.temporary_files().is_empty()).then_some(())
    });
}
