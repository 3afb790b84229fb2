use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Output, Stdio};

use serde_json::Value;

use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, machine, skip, until};

/// Runs `sandcell run` on a file with this code.
fn run(place: &TestDir, code: &str, options: &[&str], arguments: &[&str], stdin: &str) -> Output {
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
    // A program that reads nothing may end before everything is written.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_status_of_the_program_is_returned() {
    let _turn = begin!();
    let place = TestDir::new();
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
    let place = TestDir::new();
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
    // The JSON result uses the words of this command, not those of another interface.
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
    // Python itself may notice first and raise a MemoryError.
    assert!(
        output.status.code() == Some(137) || said.contains("MemoryError"),
        "{:?}: {said}",
        output.status
    );
    assert!(said.contains("128") || said.contains("MemoryError"), "{said}");
}

#[test]
fn a_failure_of_sandcell_itself_is_125() {
    let _turn = begin!();
    let place = TestDir::new();
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
fn output_and_input_are_streamed_while_the_program_runs() {
    let _turn = begin!();
    let place = TestDir::new();
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
    // The program waits for input now, so this line was printed while it runs.
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
fn streams_stay_separate_and_bytes_unchanged() {
    let _turn = begin!();
    let place = TestDir::new();
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
fn the_run_command_makes_no_idle_sandboxes() {
    let _turn = begin!();
    let place = TestDir::new();
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
    // Twenty times the pause after which a server prepares processes for later sandboxes.
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
    let place = TestDir::new();
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
fn files_are_copied_in_and_back() {
    let _turn = begin!();
    let place = TestDir::new();
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
fn json_output_is_one_complete_object() {
    let _turn = begin!();
    let place = TestDir::new();
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
fn the_run_command_hides_secrets_of_the_host() {
    let _turn = begin!();
    let place = TestDir::new();
    let secret = place.write("secret.txt", sandcell_e2e::test_dir::SECRET_VALUE);
    let code = format!(
        "import os\nprint(os.environ)\ntry:\n    print(open({secret:?}).read())\nexcept OSError as e:\n    print(type(e).__name__)\nprint(os.listdir('/home'), os.listdir('/proc/self/fd'))"
    );
    let output = run(&place, &code, &[], &[], "");
    let said = text(&output.stdout);
    assert!(!said.contains(sandcell_e2e::test_dir::SECRET_VALUE), "{said}");
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
    let place = TestDir::new();
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

/// Returns the last lines of a failed run.
fn advice(place: &TestDir, code: &str, options: &[&str]) -> String {
    let output = run(place, code, options, &[], "");
    assert_ne!(output.status.code(), Some(0), "{code}");
    text(&output.stderr)
}

#[test]
fn a_failure_ends_with_a_hint() {
    let _turn = begin!();
    let place = TestDir::new();
    for (code, hint) in [
        (
            "import pandas_of_nobody",
            "hint: pandas_of_nobody is not installed: add --package pandas_of_nobody",
        ),
        ("import PIL.Image", "hint: PIL is not installed: add --package pillow"),
        ("input('name? ')", "hint: the program reads standard input"),
        (
            "import socket; socket.create_connection(('example.com', 80))",
            "hint: the sandbox has no network: name the hosts with --network HOST",
        ),
    ] {
        let said = advice(&place, code, &[]);
        assert!(said.contains(hint), "{code}: {said}");
    }
    let said = advice(&place, "1 / 0", &[]);
    assert!(!said.contains("hint:"), "{said}");
    let output = run(&place, "import pandas_of_nobody", &["--json"], &[], "");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        object["hint"].as_str().unwrap().contains("--package pandas_of_nobody"),
        "{object}"
    );
}

#[test]
fn amounts_have_units_and_file_names_must_be_unique() {
    let _turn = begin!();
    let place = TestDir::new();
    place.write("numbers.txt", "1 2 39");
    let code = "open('sum.txt', 'w').write(str(sum(map(int, open('numbers.txt').read().split()))))";
    let options = [
        "-l",
        "python",
        "--memory",
        "1GB",
        "--timeout",
        "5s",
        "--file",
        "numbers.txt",
        "--out",
        "sum.txt",
    ];
    let output = run(&place, code, &options, &[], "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(place.work().join("sum.txt")).unwrap(), "42");
}

#[test]
fn pictures_are_saved_next_to_each_other_and_named() {
    let _turn = begin!();
    let place = TestDir::new();
    place.write("plot-1.png", "mine");
    // The files that drawing libraries would save, without such a library.
    let code = "import os\nfolder = '/tmp/.sandcell/pictures'\nos.makedirs(folder)\npng = b'\\x89PNG\\r\\n\\x1a\\n'\n\
                for number in range(3):\n    open(f'{folder}/{number}.png', 'wb').write(png + bytes([number]))\n\
                open(f'{folder}/3.png', 'w').write('#!/bin/sh')\nos.symlink('/etc/passwd', f'{folder}/4.png')\nos.mkfifo(f'{folder}/5.png')";
    let output = run(&place, code, &[], &[], "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let named = "picture: plot-2.png (1 KB)\npicture: plot-3.png (1 KB)\npicture: plot-4.png (1 KB)\n";
    assert!(text(&output.stderr).contains(named), "{}", text(&output.stderr));
    assert_eq!(std::fs::read(place.work().join("plot-1.png")).unwrap(), b"mine");
    assert_eq!(
        std::fs::read(place.work().join("plot-4.png")).unwrap(),
        b"\x89PNG\r\n\x1a\n\x02"
    );
    assert!(
        !place.work().join("plot-5.png").exists(),
        "what is no picture is not saved as one"
    );
    let output = run(&place, code, &["--json", "--pictures", "/proc/nowhere"], &[], "");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let first = object["pictures"][0].as_str().unwrap();
    assert!(first.starts_with(&place.path("tmp").display().to_string()), "{object}");
}

#[test]
fn pictures_shown_by_matplotlib_and_pillow_become_files() {
    let _turn = begin!();
    let Some(data) = std::env::var_os("SANDCELL_TEST_DATA_PYTHON") else {
        return skip(
            "pictures_shown_by_matplotlib_and_pillow_become_files",
            "no Python with data libraries (SANDCELL_TEST_DATA_PYTHON names it)",
        );
    };
    let place = TestDir::with_settings(&format!("python = {:?}\n", data.to_string_lossy()));
    let code = "import matplotlib\nmatplotlib.use('TkAgg')\nimport matplotlib.pyplot as plt\n\
                plt.plot([1, 2])\nplt.show()\nfigure, axes = plt.subplots()\naxes.bar([1], [2])\nfigure.show()\n\
                from PIL import Image\nImage.new('CMYK', (9, 9)).show()\nplt.figure()\nplt.show()\nprint('done')";
    let output = run(&place, code, &["--timeout", "120"], &[], "");
    assert_eq!(text(&output.stdout), "done\n", "{}", text(&output.stderr));
    for number in 1..=3 {
        let bytes = std::fs::read(place.work().join(format!("plot-{number}.png"))).unwrap();
        assert!(bytes.starts_with(b"\x89PNG"), "{number}");
    }
    assert!(
        !place.work().join("plot-4.png").exists(),
        "an empty figure is no picture"
    );
}

#[test]
fn a_setting_is_written_from_the_command_line_and_the_rest_of_the_file_stays() {
    let place = TestDir::new();
    let config = |arguments: &[&str]| {
        let all: Vec<&str> = std::iter::once("config").chain(arguments.iter().copied()).collect();
        let output = place.command(&all).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let file = place.path("home").join(".config/sandcell/config.toml");
    let (status, said) = config(&["set", "limits.memory_mb", "1024"]);
    assert!(
        status == Some(0) && said.contains(&file.display().to_string()),
        "{said}"
    );
    std::fs::write(&file, "# enough for pandas\n[limits]\nmemory_mb = 1024 # MiB\n").unwrap();
    assert_eq!(config(&["set", "base", "data"]).0, Some(0));
    let now = std::fs::read_to_string(&file).unwrap();
    assert!(
        now.contains("# enough for pandas\n[limits]\nmemory_mb = 1024 # MiB\n"),
        "{now}"
    );
    assert!(config(&[]).1.contains("base = \"data\""));
    for (arguments, expected) in [
        (&["set", "memory_mb", "1"][..], "did you mean `limits.memory_mb`?"),
        (&["set", "limits.memory_mb", "lots"], "a whole number from"),
        (&["unset", "limits.cpus"], "is not in"),
    ] {
        let (_, said) = config(arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), now, "nothing else was written");
    let over = place
        .command(&["config", "set", "base", "two"])
        .env("SANDCELL_BASE", "three")
        .output()
        .unwrap();
    assert!(
        text(&over.stderr).contains("SANDCELL_BASE in the environment wins"),
        "{over:?}"
    );
    // The editor of this test replaces a word, as sed does.
    let edited = place
        .command(&["config", "edit"])
        .env("EDITOR", "sed -i s/1024/oops/")
        .output()
        .unwrap();
    let said = text(&edited.stderr);
    assert!(
        !edited.status.success() && said.contains("config edit` opens the file again"),
        "{said}"
    );
    let edited = place
        .command(&["config", "edit"])
        .env("EDITOR", "sed -i s/oops/512/")
        .output()
        .unwrap();
    assert!(edited.status.success(), "{edited:?}");
    assert!(config(&["unset", "base"]).1.contains("was taken out of"));
    assert!(!std::fs::read_to_string(&file).unwrap().contains("base"));
}

#[test]
fn code_can_be_given_on_the_command_line() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut command = place.command(&["run", "-c", "import sys\nprint(sys.argv[1], input())", "--", "a"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"b\n").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "a b\n");
    let output = place
        .command(&["run", "-c", "echo $((6*7))", "-l", "bash"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "42\n");
}

#[test]
fn a_data_folder_that_cannot_be_used_is_reported() {
    let _turn = begin!();
    let place = TestDir::new();
    let doctor = place
        .command(&["doctor"])
        .env("SANDCELL_DATA_DIR", "/dev/null")
        .output()
        .unwrap();
    let said = text(&doctor.stdout);
    assert!(
        said.contains("data folder: the data folder /dev/null cannot be used"),
        "{said}"
    );
    let run = place
        .command(&["run", "-c", "print(1)"])
        .env("SANDCELL_DATA_DIR", "/dev/null")
        .output()
        .unwrap();
    assert_eq!(text(&run.stdout), "1\n");
    assert!(text(&run.stderr).contains("is not kept in the history"), "{run:?}");
}

#[test]
fn mistakes_are_answered_with_a_suggestion() {
    let _turn = begin!();
    let place = TestDir::new();
    for (arguments, variable, expected) in [
        (
            &["run", "a.py", "x"][..],
            None,
            "arguments follow `--`: sandcell run FILE -- ARGS",
        ),
        (&["run", "-c", "1", "--network", "a b"], None, "--network: "),
        (&["run", "-c", "1", "--package", "a b"], None, "a separate item"),
        (&["--config", "nofile", "config"], None, "there is no such file"),
        (
            &["history"],
            Some(("SANDCELL_DATA_DIR", "/dev/null")),
            "the data folder /dev/null cannot be used",
        ),
        (
            &["base", "list"],
            Some(("SANDCELL_DATA_DIR", "/proc/nowhere")),
            "/proc cannot be written",
        ),
        (&["languages", "pyton"], None, "did you mean `python`?"),
        (
            &["config"],
            Some(("SANDCELL_MEMORY_MB", "1")),
            "did you mean `SANDCELL_LIMITS__MEMORY_MB`?",
        ),
        (
            &["config"],
            Some(("SANDCELL_TIMEOUT", "1")),
            "did you mean `SANDCELL_LIMITS__TIMEOUT_S`?",
        ),
    ] {
        let output = place.command(arguments).envs(variable).output().unwrap();
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains(expected),
            "{arguments:?}: {said}"
        );
        assert!(!said.contains("stdout"), "{said}");
    }
}
