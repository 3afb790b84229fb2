use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip};

/// The minimum number of languages that CI installs.
const MIN_LANGUAGES: usize = 20;

/// Returns a command with the search path of the tests, and with the toolchain that builds them.
pub(crate) fn command(place: &TestDir, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    let rustup = std::env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let rustup = rustup.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".rustup")));
    if let Some(rustup) = rustup.filter(|folder| folder.join("settings.toml").is_file()) {
        command.env("RUSTUP_HOME", rustup);
    }
    command
}

pub(crate) fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn server(place: &TestDir) -> Client {
    Client::start(&mut command(place, &["serve"]))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns true when a program needed by the test exists; else the test is skipped by name.
pub(crate) fn has<F>(program: &str, here: F) -> bool {
    let found = ["/usr/bin", "/bin"]
        .iter()
        .any(|folder| PathBuf::from(folder).join(program).exists());
    if !found {
        skip(&name_of(here), &format!("no {program}"));
    }
    found
}

pub(crate) fn execute(server: &Client, language: &str, code: &str) -> Answer {
    server.call("execute_code", json!({"language": language, "code": code}))
}

#[test]
fn every_present_language_works_inside_a_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    let told = output(&mut command(&place, &["languages", "--test", "--json"]));
    let rows: Result<Vec<Value>, _> = serde_json::from_slice(&told.stdout);
    let rows = rows.unwrap_or_else(|error| panic!("{error}: {}", text(&told.stderr)));
    let here: Vec<&Value> = rows.iter().filter(|row| row["available"] == true).collect();
    // Deno's engine (which runs TypeScript as well where Node cannot) needs shared memory without a file. It is
    // unavailable where the watchdog enforces limits.
    let excused = |row: &Value| {
        let reason = row["test"]["reason"].as_str().unwrap_or_default();
        reason.contains("virtual memory for CodeRange") && !rustix::process::geteuid().is_root()
    };
    let failed: Vec<&&Value> = here
        .iter()
        .filter(|row| row["test"]["ok"] != true && !excused(row))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(
        told.status.success() || here.iter().any(|row| excused(row)),
        "{}",
        text(&told.stderr)
    );
    for row in &here {
        assert!(row["version"].is_string() && row["hint"].is_null(), "{row}");
    }
    for row in rows.iter().filter(|row| row["available"] == false) {
        assert!(row["hint"].as_str().unwrap().contains("install"), "{row}");
    }
    println!("{} languages were tested", here.len());
    if here.len() < MIN_LANGUAGES {
        fn itself() {}
        skip(
            &name_of(itself),
            &format!("only {} languages are installed", here.len()),
        );
    }
}

#[test]
fn the_language_comes_from_the_file_name_or_first_line() {
    let _turn = begin!();
    fn here() {}
    if !has("perl", here) {
        return;
    }
    let place = TestDir::new();
    for (name, code) in [
        ("a.pl", "print \"<$ARGV[0]>\\n\""),
        ("b.sh", "echo \"<$1>\""),
        ("c", "#!/usr/bin/env perl\nprint \"<$ARGV[0]>\\n\""),
        ("d.py", "import sys; print(f'<{sys.argv[1]}>')"),
    ] {
        let file = place.write(name, code).display().to_string();
        let told = output(&mut command(&place, &["run", &file, "--", "a b"]));
        assert_eq!(text(&told.stdout), "<a b>\n", "{name}: {}", text(&told.stderr));
    }
}

#[test]
fn code_that_does_not_compile_never_runs_and_names_the_line() {
    let _turn = begin!();
    fn here() {}
    if !has("gcc", here) {
        return;
    }
    let place = TestDir::new();
    let broken = "#include <stdio.h>\nint main(void) {\n  puts(\"ran\");\n  return x;\n}\n";
    let file = place.write("broken.c", broken).display().to_string();
    let told = output(&mut command(&place, &["run", "--json", &file]));
    let object: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told.status.code(), Some(1), "{object}");
    assert_eq!(object["phase"], "compile", "{object}");
    assert_eq!(object["cause"]["code"], "code_failed", "{object}");
    assert!(object["stderr"].as_str().unwrap().contains("main.c:4:10"), "{object}");
    assert_eq!(object["stdout"], "", "{object}");
    let server = server(&place);
    let answer = execute(&server, "c", broken);
    assert!(!answer.is_error(), "{answer:?}");
    assert_eq!(answer.meta()["phase"], "compile", "{answer:?}");
    assert!(answer.all().contains("cell1.c:4:10"), "{answer:?}");
    assert!(!answer.state_lost(), "{answer:?}");
    let fixed = execute(&server, "c", &broken.replace("return x", "return 3"));
    assert!(fixed.meta()["phase"].is_null(), "{fixed:?}");
    assert_eq!(fixed.meta()["exit_code"], 3, "{fixed:?}");
    assert!(fixed.all().contains("ran"), "{fixed:?}");
}

#[test]
fn a_language_without_a_session_sees_the_files_and_leaves_no_build_files() {
    let _turn = begin!();
    fn here() {}
    if !has("gcc", here) || !has("perl", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    server.call("write_file", json!({"path": "note.txt", "content": "from outside"}));
    server.call(
        "write_file",
        json!({"path": "answer.h", "content": "#define ANSWER 42\n"}),
    );
    let c = "#include <stdio.h>\n#include \"answer.h\"\nint main(void) { printf(\"%d\\n\", ANSWER); }";
    assert!(execute(&server, "c", c).all().starts_with("42"));
    let perl =
        "open(my $f, '<', 'note.txt'); print <$f>, \"\\n\"; our $x = 5; open(my $g, '>', 'made.txt'); print $g 'x'";
    assert!(execute(&server, "perl", perl).all().starts_with("from outside"));
    let again = execute(&server, "pl", "print defined $x ? 'kept' : 'fresh'");
    assert!(again.all().starts_with("fresh"), "{again:?}");
    let files = server.call("list_files", json!({})).all();
    assert!(files.contains("made.txt") && !files.contains("cell"), "{files}");
    let python = server.run("print(open('made.txt').read())");
    assert!(python.all().starts_with('x'), "{python:?}");
}

#[test]
fn programs_of_a_sessionless_language_report_exit_codes_and_signals() {
    let _turn = begin!();
    fn here() {}
    if !has("perl", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    let slow = json!({"language": "perl", "code": "$| = 1; print \"so far\\n\"; 1 while 1", "timeout_s": 0.5});
    let answer = server.call("execute_code", slow);
    assert_eq!(answer.status(), "timeout", "{answer:?}");
    assert!(answer.all().starts_with("so far"), "{answer:?}");
    assert!(!answer.state_lost(), "there was no state to lose: {answer:?}");
    let deaf = json!({"language": "perl", "code": "$SIG{INT} = 'IGNORE'; 1 while 1", "timeout_s": 0.3});
    let answer = server.call("execute_code", deaf);
    assert_eq!(answer.status(), "timeout", "{answer:?}");
    assert!(!answer.state_lost(), "{answer:?}");
    let answer = execute(&server, "perl", "kill 'SEGV', $$; sleep 5");
    assert_eq!(answer.cause(), "crashed", "{answer:?}");
    let hungry = execute(&server, "perl", "my @a; while (1) { push @a, 'x' x 10_000_000; }");
    assert_ne!(hungry.status(), "ok", "{hungry:?}");
    let reads = json!({"language": "perl", "code": "print uc for <STDIN>", "stdin": "a\nb"});
    let answer = server.call("execute_code", reads);
    assert!(answer.all().starts_with("A\nB"), "{answer:?}");
    let once = json!({"language": "perl", "code": "print 6 * 7; exit 9"});
    let answer = server.call("create_run_close", once);
    assert_eq!(answer.meta()["exit_code"], 9, "{answer:?}");
    assert!(answer.all().starts_with("42"), "{answer:?}");
}

#[test]
fn an_unknown_language_is_refused_with_a_suggestion() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = execute(&server, "pyhton", "1");
    assert!(answer.is_error(), "{answer:?}");
    assert!(answer.all().contains("did you mean 'python'?"), "{answer:?}");
    let table = "[nowhere]\nextensions = [\"nw\"]\ninstall = \"apt-get install nowhere\"\n[[nowhere.way]]\nprograms = [\"no-such-program\"]\nrun = [\"{no-such-program}\"]\n";
    let folder = place.path("tables");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("nowhere.toml"), table).unwrap();
    let place = TestDir::with_settings(&format!("languages = [{:?}]\n", folder.display().to_string()));
    let server = Client::start(&mut command(&place, &["serve"]));
    let answer = execute(&server, "nowhere", "1");
    assert!(answer.all().contains("language_unavailable"), "{answer:?}");
    assert!(answer.all().contains("apt-get install nowhere"), "{answer:?}");
}

#[test]
fn an_operator_table_adds_a_language_and_an_invalid_one_is_reported() {
    let _turn = begin!();
    let place = TestDir::new();
    let folder = place.path("tables");
    std::fs::create_dir(&folder).unwrap();
    let table = "[upper]\nextensions = [\"up\"]\ninstall = \"coreutils\"\n[[upper.way]]\nprograms = [\"tr\", \"cat\"]\nrun = [\"{cat}\", \"{src}\"]\n";
    std::fs::write(folder.join("upper.toml"), table).unwrap();
    let settings = format!("languages = [{:?}]\n", folder.display().to_string());
    let with_it = TestDir::with_settings(&settings);
    let file = with_it.write("a.up", "shown as it is\n").display().to_string();
    let told = output(&mut command(&with_it, &["run", &file]));
    assert_eq!(text(&told.stdout), "shown as it is\n", "{}", text(&told.stderr));
    std::fs::write(folder.join("wrong.toml"), table.replace("run =", "rnu =")).unwrap();
    let told = output(&mut command(&with_it, &["run", &file]));
    assert_eq!(told.status.code(), Some(125));
    assert!(text(&told.stderr).contains("wrong.toml"), "{}", text(&told.stderr));
}

#[test]
fn a_bash_session_keeps_variables_functions_folder_and_options() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let run = |code: &str| execute(&server, "bash", code);
    run(
        "x=5; list=(a 'b c'); declare -A map=([k]=v); greet() { echo \"hello $1\"; }; export MADE=here; mkdir -p d; cd d",
    );
    let kept = run("echo $x \"${list[1]}\" ${map[k]}; greet you; pwd; env | grep ^MADE");
    assert!(
        kept.all().starts_with("5 b c v\nhello you\n/home/user/d\nMADE=here\n"),
        "{kept:?}"
    );
    // The end of a shell does not end the session.
    for (code, status) in [
        ("echo before; exit 3; echo after", 3),
        ("set -e; false; echo after", 1),
        ("set +e; (exit 4)", 4),
    ] {
        let answer = run(code);
        assert_eq!(answer.meta()["exit_code"], status, "{answer:?}");
        assert!(!answer.all().contains("after") && !answer.state_lost(), "{answer:?}");
    }
    let kept = run("echo $x \"${list[1]}\" ${map[k]}; greet you; pwd");
    assert!(kept.all().starts_with("5 b c v\nhello you\n/home/user/d\n"), "{kept:?}");
    let wrong = run("echo one\nno_such_program\n");
    assert!(wrong.all().contains("line 2: no_such_program"), "{wrong:?}");
    assert_eq!(wrong.meta()["exit_code"], 127, "{wrong:?}");
    let broken = run("if true; then (");
    assert_eq!(broken.status(), "error", "{broken:?}");
    let reads = json!({"language": "sh", "code": "read a; read b; echo \"[$a|$b]\"", "stdin": "1 \"x\"\nzwei ☃"});
    assert!(server.call("execute_code", reads).all().starts_with("[1 \"x\"|zwei ☃]"));
    assert!(
        run("read a || echo nothing to read")
            .all()
            .starts_with("nothing to read")
    );
    assert!(run("trap 'echo bye' EXIT; echo hi").all().starts_with("hi\nbye"));
}

#[test]
fn bash_variables_are_listed_without_running_code() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let made = execute(
        &server,
        "bash",
        "greeting=$'hé \"x\"\\n'; declare -i count=3; list=(1 2 'three four'); declare -A map=([k]=v); bad=$'a\\xffb'; \
         declare -n trap_name='list[$(touch /tmp/ran)]'; shopt -s nocasematch; readonly a=1 b=2 n=3 text=4 head=5 name=6 status=7",
    );
    assert_eq!(made.status(), "ok", "{made:?}");
    let listed = || {
        let status = server.call("get_sandbox_status", json!({}));
        let id = status.0["structuredContent"]["sandboxes"][0]["sandbox_id"].clone();
        server.call("get_sandbox_status", json!({"sandbox_id": id}))
    };
    for ended in ["true", "exit 3"] {
        execute(&server, "bash", ended);
        let status = listed();
        let variables = status.0["structuredContent"]["sandboxes"][0]["sessions"][0]["variables"].to_string();
        for part in ["greeting", "count", "list", "map", "trap_name", "three four"] {
            assert!(variables.contains(part), "{ended}: {part}: {status:?}");
        }
        for part in ["PATH", "BASH", "__sandcell", "LC_ALL"] {
            assert!(!variables.contains(part), "{ended}: {part}: {status:?}");
        }
    }
    let kept = execute(
        &server,
        "bash",
        "ls /tmp/ran; echo \"$greeting $a ${list[2]} ${map[k]}\"",
    );
    assert!(
        kept.all().contains("hé \"x\"\n 1 three four v") && kept.all().contains("No such file"),
        "{kept:?}"
    );
}

#[test]
fn an_endless_cell_of_bash_is_interrupted_and_variables_stay() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    // Variable names that the driver's own functions might use.
    for code in [
        "kept=yes status=s name=n text=t; while :; do :; done",
        "kept=yes status=s name=n text=t; sleep 60",
    ] {
        let call = json!({"language": "bash", "code": code, "timeout_s": 0.5});
        let answer = server.call("execute_code", call);
        assert_eq!(answer.status(), "timeout", "{answer:?}");
        assert!(!answer.state_lost(), "{answer:?}");
        let kept = execute(&server, "bash", "echo $kept $status $name $text");
        assert!(kept.all().starts_with("yes s n t"), "{kept:?}");
    }
}

#[test]
fn a_javascript_session_keeps_variables_and_returns_values() {
    let _turn = begin!();
    fn here() {}
    if !has("node", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    let run = |code: &str| execute(&server, "js", code).all();
    run("const a = 1; let b = 2; function f(x) { return x + a } class K { m() { return 'k' } }");
    assert!(run("const a = 10; b = a + b; [a, b, f(1), new K().m()]").starts_with("result: [ 10, 12, 11, 'k' ]"));
    assert!(run("class K { m() { return 'new' } }\nnew K().m()").starts_with("result: 'new'"));
    assert!(run("await new Promise(done => setTimeout(done, 5, 'waited'))").starts_with("result: 'waited'"));
    let imports = "import { readFileSync as read } from 'node:fs'\nconst os = await import('os')\nrequire('fs').writeFileSync('x', 'file')\nread('x', 'utf8') + os.EOL.length";
    assert!(run(imports).starts_with("result: 'file1'"));
    assert!(
        run("async function main() { await null; setTimeout(() => console.log('late'), 20) }\nmain()")
            .starts_with("late")
    );
    let thrown = execute(&server, "js", "function g() {\n  null.x\n}\ng()");
    assert!(thrown.all().contains("at g (cell7.js:2:8)"), "{thrown:?}");
    assert!(
        !thrown.all().contains("node:internal") && !thrown.all().contains("sandcell"),
        "{thrown:?}"
    );
    let broken = execute(&server, "js", "let ok = 1\nlet z = ;");
    assert!(
        broken.all().contains("cell8.js:2:9") && broken.all().contains("SyntaxError"),
        "{broken:?}"
    );
    let ended = execute(
        &server,
        "js",
        "console.log('out'); process.exit(3); console.log('after')",
    );
    assert_eq!(ended.meta()["exit_code"], 3, "{ended:?}");
    assert!(!ended.all().contains("after") && !ended.state_lost(), "{ended:?}");
    let reads = json!({"language": "js", "code": "require('fs').readFileSync(0, 'utf8')", "stdin": "héllo"});
    assert!(server.call("execute_code", reads).all().starts_with("result: 'héllo'"));
    assert!(run("Promise.reject(new TypeError('no'))").contains("TypeError: no"));
    assert!(run("a").starts_with("result: 10"));
}

#[test]
fn the_status_lists_the_variables_of_a_javascript_session() {
    let _turn = begin!();
    fn here() {}
    if !has("node", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    let made = execute(
        &server,
        "js",
        "const count = 3; let name = 'w\u{f6}rld'; var list = [1, 2, 3]; shared = new Map([[1, 2]]); class K {} const own = new K();\n\
         const bytes = new Uint8Array(20000); function f() {} let never;\n\
         const trap = new Proxy({}, { get() { throw 1 }, getPrototypeOf() { throw 2 }, ownKeys() { throw 3 } });\n\
         Object.defineProperty(globalThis, 'getter', { get() { throw 4 }, configurable: true })",
    );
    assert_eq!(made.status(), "ok", "{made:?}");
    let id = made.meta()["sandbox_id"].clone();
    let status = server.call("get_sandbox_status", json!({"sandbox_id": id}));
    let sessions = &status.0["structuredContent"]["sandboxes"][0]["sessions"];
    let listed = sessions
        .as_array()
        .and_then(|sessions| sessions.iter().find(|session| session["language"] == "javascript"))
        .and_then(|session| session["variables"].as_array())
        .unwrap_or_else(|| panic!("{status:?}"));
    let of = |name: &str| listed.iter().find(|one| one["name"] == name);
    for (name, kind, shape, preview) in [
        ("count", "number", "", "3"),
        ("name", "string", "5", "\"w\u{f6}rld\""),
        ("list", "Array", "3", ""),
        ("shared", "Map", "1", ""),
        ("own", "K", "0", ""),
        ("bytes", "Uint8Array", "20000", ""),
        ("never", "undefined", "", "undefined"),
        ("trap", "Proxy", "", ""),
    ] {
        let one = of(name).unwrap_or_else(|| panic!("{name}: {listed:?}"));
        assert_eq!(
            (&one["type"], &one["shape"], &one["preview"]),
            (&json!(kind), &json!(shape), &json!(preview))
        );
    }
    assert_eq!(of("bytes").unwrap()["bytes"], 20000);
    for hidden in ["f", "K", "getter", "require", "console"] {
        assert!(of(hidden).is_none(), "{hidden}");
    }
    assert!(execute(&server, "js", "count").all().starts_with("result: 3"));
}

#[test]
fn an_endless_cell_of_javascript_is_interrupted_and_variables_stay() {
    let _turn = begin!();
    fn here() {}
    if !has("node", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    for code in [
        "kept = 'yes'; for (;;) {}",
        "kept = 'yes'; await new Promise(() => {})",
        "kept = 'yes'; setTimeout(() => {}, 1e6)",
    ] {
        let call = json!({"language": "javascript", "code": code, "timeout_s": 0.7});
        let answer = server.call("execute_code", call);
        assert_eq!(answer.status(), "timeout", "{answer:?}");
        assert!(!answer.state_lost(), "{answer:?}");
        assert!(
            execute(&server, "javascript", "kept")
                .all()
                .starts_with("result: 'yes'")
        );
    }
}

#[test]
fn sessions_of_several_languages_share_the_files_of_one_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.run("open('shared.txt', 'w').write('by python'); x = 1");
    assert!(
        execute(&server, "bash", "cat shared.txt; echo; x=2")
            .all()
            .starts_with("by python")
    );
    assert!(server.run("print(x)").all().starts_with('1'));
    let reset = server.call("reset_session_state", json!({"language": "bash"}));
    assert!(!reset.is_error(), "{reset:?}");
    assert!(execute(&server, "bash", "echo [$x]").all().starts_with("[]"));
    assert!(server.run("print(x)").all().starts_with('1'));
}

#[test]
fn analysis_findings_accompany_the_result_and_strict_mode_refuses_to_run() {
    let _turn = begin!();
    let place = TestDir::new();
    let file = place.write("a.py", "import os\nname = input()\nimport no_such_module_at_all\n");
    let file = file.display().to_string();
    let told = output(&mut command(&place, &["check", "--json", &file]));
    let object: Value = serde_json::from_slice(&told.stdout).unwrap();
    let rules: Vec<(&str, u64)> = object["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| (finding["rule"].as_str().unwrap(), finding["line"].as_u64().unwrap()))
        .collect();
    assert_eq!(rules, [("input-without-stdin", 2), ("missing-import", 3)], "{object}");
    assert_eq!(object["ok"], true, "{object}");
    let told = output(&mut command(&place, &["check", "--profile", "strict", &file]));
    assert_eq!(told.status.code(), Some(1));
    assert!(
        text(&told.stdout).contains("a.py:1:8: refused: imports os"),
        "{}",
        text(&told.stdout)
    );
    let server = server(&place);
    let advised = server.run("x = 1\nname = input('? ')");
    assert!(advised.verdict().contains("advice: line 2: input()"), "{advised:?}");
    assert_eq!(server.run("import os\nprint(1)").output().trim(), "1");
    let strict = TestDir::with_settings("analysis = \"strict\"\n");
    let server = Client::start(&mut command(&strict, &["serve"]));
    let refused = server
        .run("import json\nfrom os import path\neval('1')")
        .refused("code_rejected");
    assert!(
        refused.contains("line 2: imports os") && refused.contains("line 3: calls eval"),
        "{refused}"
    );
    let deep = "(".repeat(500_000) + &")".repeat(500_000);
    assert!(!server.run(&deep).status().is_empty());
    assert_eq!(server.run("print(6 * 7)").output().trim(), "42");
}

#[test]
fn programs_see_the_cpus_and_memory_of_their_sandbox() {
    let _turn = begin!();
    fn here() {}
    let place = TestDir::new();
    let server = server(&place);
    let code = "import os, multiprocessing\nnumbers = {line.split()[0]: int(line.split()[1]) // 1024 for line in open('/proc/meminfo')}\n\
                print(os.cpu_count(), multiprocessing.cpu_count(), os.sysconf('SC_NPROCESSORS_CONF'), numbers['MemTotal:'])\n\
                print(open('/proc/cpuinfo').read().count('processor'), open('/sys/fs/cgroup/cpu.max').read().strip())\n\
                print(open('/sys/fs/cgroup/memory.max').read().strip(), open('/sys/fs/cgroup/memory/memory.limit_in_bytes').read().strip())";
    let limit = 512 << 20;
    assert_eq!(
        server.text(code).trim(),
        format!("1 1 1 512\n1 100000 100000\n{limit} {limit}")
    );
    let shell = "nproc; cat /sys/devices/system/cpu/online; python3 -c 'import os; print(os.cpu_count())'";
    let ran = server.call("execute_code", json!({"code": shell, "language": "bash"}));
    assert_eq!(ran.output().trim(), "1\n0\n1", "{ran:?}");
    // Half a processor counts as one; a higher memory limit shows as more memory.
    let other = server.call("create_sandbox", json!({"cpus": 0.5, "memory_mb": 700}));
    let id = other.0["structuredContent"]["sandbox_id"].clone();
    let asked = server.call("execute_code", json!({"code": code, "sandbox_id": id}));
    let limit = 700 << 20;
    assert_eq!(
        asked.output().trim(),
        format!("1 1 1 700\n1 50000 100000\n{limit} {limit}")
    );
    // The files cannot be changed, and other sandboxes have separate ones.
    let attack = "import os\nfor name in ('/proc/meminfo', '/proc/stat', '/sys/fs/cgroup/memory.max', '/sys/x'):\n    try:\n        open(name, 'w')\n        \
                  print('changed', name)\n    except OSError:\n        pass\nprint(sorted(os.listdir('/sys')))";
    assert_eq!(server.text(attack).trim(), "['devices', 'fs']");
    if has("node", here) {
        let count = "const os = require('os'); [os.cpus().length, os.availableParallelism?.() ?? 1, os.totalmem() / 2 ** 20].join()";
        let node = server.call("execute_code", json!({"code": count, "language": "javascript"}));
        assert!(node.output().contains("1,1,512"), "{node:?}");
    }
}

#[test]
fn the_first_program_on_the_search_path_runs_and_the_choice_is_reported() {
    let _turn = begin!();
    let place = TestDir::new();
    let Some(python) = sandcell_e2e::python() else {
        return skip(
            "languages::the_first_program_on_the_search_path_runs_and_the_choice_is_reported",
            "no Python",
        );
    };
    for folder in ["first", "m", "m/shims"] {
        std::fs::create_dir(place.work().join(folder)).unwrap();
    }
    let stand_in = place.write(
        "first/python3",
        format!("#!/bin/sh\nexec {} \"$@\"\n", python.display()),
    );
    let nothing = place.write("m/shims/python3", "#!/bin/sh\nexec pyenv exec python3 \"$@\"\n");
    for file in [&stand_in, &nothing] {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let folders = [&nothing, &stand_in].map(|file| file.parent().unwrap().display().to_string());
    let path = format!("{}:{}:/usr/bin:/bin", folders[0], folders[1]);
    let out = output(place.command(&["languages", "python", "--json"]).env("PATH", path));
    let listed: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(listed[0]["program"], json!(python), "{listed}");
    let expected = format!(
        "the first usable one on PATH, started by {}; skipped: {} starts none outside of a project",
        stand_in.display(),
        nothing.display()
    );
    assert_eq!(listed[0]["reason"], json!(expected));
}

#[test]
fn failures_caused_by_the_sandbox_come_with_advice() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let pip = "echo 'error: externally-managed-environment' >&2; exit 1";
    let told = server.call("execute_code", json!({"code": pip, "language": "bash"}));
    assert!(
        told.all().contains("hint: pip has no network here: install_package"),
        "{told:?}"
    );
    let glyph = "import sys; print('UserWarning: Glyph 20013 missing from font(s) DejaVu Sans.', file=sys.stderr)";
    assert!(server.run(glyph).all().contains("plt.rcParams[\"font.family\"]"));
    assert!(
        !server
            .run("print('Glyph 1 missing from font(s)')")
            .all()
            .contains("hint")
    );
    let file = place.write("p.sh", pip).display().to_string();
    let ran = output(&mut place.command(&["run", &file]));
    let words = text(&ran.stderr);
    assert!(
        words.contains("hint: pip has no network here: --package NAME brings"),
        "{words}"
    );
    assert_eq!(ran.status.code(), Some(1));
}

#[test]
fn r_plots_are_returned_as_pictures_and_stay_in_the_home_folder() {
    let _turn = begin!();
    fn here() {}
    if !has("Rscript", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    let r = |code: &str| execute(&server, "r", code);
    let pictures = |answer: &Answer| {
        let blocks = answer.0["content"].as_array().unwrap();
        blocks.iter().filter(|block| block["type"] == "image").count()
    };
    let drawn = r("plot(1:3); hist(c(1, 2, 2)); cat('done')");
    assert_eq!((drawn.status(), pictures(&drawn)), ("ok", 2), "{drawn:?}");
    assert!(drawn.output().contains("done"), "{drawn:?}");
    let kept = r("cat(file.exists('Rplot001.png'), file.exists('Rplots.pdf'))");
    assert_eq!((kept.output().trim(), pictures(&kept)), ("TRUE FALSE", 0));
    assert_eq!(pictures(&r("barplot(1:2)")), 1);
    let file = place.write("plots.R", "plot(1:3); hist(c(1, 2, 2)); cat('done')");
    let run = place
        .command(&["run", file.to_str().unwrap()])
        .current_dir(place.work())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "done", "{run:?}");
    for number in [1, 2] {
        let bytes = std::fs::read(place.work().join(format!("plot-{number}.png"))).unwrap();
        assert!(bytes.starts_with(b"\x89PNG"), "{number}");
    }
}
