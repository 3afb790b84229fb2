use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use sandcell_e2e::client::Client;
use sandcell_e2e::http::{Server, command, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, is_root, name_of, skip, until};

/// The maximum delay of a commit: a second.
const MAX_COMMIT_DELAY: Duration = Duration::from_secs(1);

fn listed(place: &TestDir, more: &[&str]) -> Vec<Value> {
    let mut arguments = vec!["history", "--json", "--last", "100000"];
    arguments.extend(more);
    serde_json::from_slice(&command(place, &arguments)).unwrap()
}

fn ids(rows: &[Value]) -> BTreeSet<String> {
    let id = |row: &Value| row["execution_id"].as_str().unwrap().to_owned();
    rows.iter().map(id).collect()
}

fn kill(pid: u32) {
    let status = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_killed_server_loses_at_most_the_last_second_of_history() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut expected = BTreeSet::new();
    for round in 0..4_u64 {
        let mut client = Client::start(&mut place.command(&["serve"]));
        let began = Instant::now();
        let mut told: Vec<(Instant, String)> = Vec::new();
        // The server is killed at a different moment in each round, in the middle of executions that have just ended.
        let until_killed = MAX_COMMIT_DELAY + Duration::from_millis(200 + 37 * round);
        while began.elapsed() < until_killed {
            let answer = client.run(&format!("print({round}); 'x' * {}", told.len()));
            told.push((
                Instant::now(),
                answer.meta()["execution_id"].as_str().unwrap().to_owned(),
            ));
        }
        kill(client.pid());
        let end = Instant::now();
        client.wait(Duration::from_secs(10));
        let finished = told.iter().filter(|(at, _)| end.duration_since(*at) > MAX_COMMIT_DELAY);
        expected.extend(finished.map(|(_, id)| id.clone()));
        let kept = ids(&listed(&place, &[]));
        let lost: Vec<_> = expected.difference(&kept).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
    }
    assert!(!expected.is_empty());
    // The next server continues the history of the last one.
    let client = Client::start(&mut place.command(&["serve"]));
    let view = client.call("get_execution_history", json!({"last_n": 50}));
    assert!(view.data()["total"].as_u64().unwrap() >= u64::try_from(expected.len()).unwrap());
    assert!(ids(view.data()["records"].as_array().unwrap()).len() == 50);
}

#[test]
fn a_caller_finds_only_its_own_rows_after_a_restart() {
    let _turn = begin!();
    let place = TestDir::new();
    let (ann_id, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let sandbox = {
        let mut server = Server::start(&place, &[]);
        let answer = server.with_token(&ann).run("of_ann = 41\nof_ann + 1");
        server.with_token(&bob).run("print('of bob')");
        server.signal("-TERM");
        assert_eq!(server.wait(Duration::from_secs(20)), Some(0));
        answer.sandbox()
    };
    let server = Server::start(&place, &[]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    let all = |caller: &sandcell_e2e::http::Caller| caller.call("get_execution_history", json!({}));
    let (hers, his) = (all(&ann), all(&bob));
    assert_eq!((&hers.data()["total"], &his.data()["total"]), (&json!(1), &json!(1)));
    assert_eq!(hers.data()["records"][0]["code_preview"], "of_ann = 41\nof_ann + 1");
    assert_eq!(his.data()["records"][0]["code_preview"], "print('of bob')");
    // Another caller's sandbox gives the same answer as one that never existed.
    let by_sandbox = |caller: &sandcell_e2e::http::Caller, sandbox: &str| {
        caller.call("get_execution_history", json!({"sandbox_id": sandbox}))
    };
    assert_eq!(
        by_sandbox(&ann, &sandbox).data()["records"].as_array().unwrap().len(),
        1
    );
    let never = "sbaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let (foreign, unknown) = (by_sandbox(&bob, &sandbox), by_sandbox(&bob, never));
    assert_eq!(foreign.0.to_string().replace(&sandbox, never), unknown.0.to_string());
    assert!(foreign.is_error());
    // A reset hides earlier executions from its caller; the operator sees all.
    ann.call("reset_session_state", json!({}));
    assert_eq!(all(&ann).data()["total"], 0);
    assert_eq!(all(&bob).data()["total"], 1);
    assert_eq!(listed(&place, &["--owner", &format!("token:{ann_id}")]).len(), 1);
    assert_eq!(listed(&place, &[]).len(), 2);
}

#[test]
fn a_corrupt_file_causes_one_warning_and_no_failed_execution() {
    let _turn = begin!();
    let place = TestDir::new();
    let broken: Vec<u8> = (0..30_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 11).to_le_bytes()[0])
        .collect();
    std::fs::create_dir_all(place.path("data")).unwrap();
    let file = place.path("data").join("history.db");
    std::fs::write(&file, &broken).unwrap();
    let client = Client::start(&mut place.command(&["serve"]));
    for number in 0..5 {
        assert_eq!(client.text(&format!("print({number})")), format!("{number}\n"));
    }
    let view = client.call("get_execution_history", json!({}));
    assert_eq!(view.data()["total"], 5);
    assert_eq!(view.data()["records"].as_array().unwrap().len(), 5);
    assert_eq!(
        client.log().matches("kept in memory only").count(),
        1,
        "{}",
        client.log()
    );
    assert_eq!(std::fs::read(&file).unwrap(), broken, "the file is the operator's");
    let output = place.command(&["history"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("move the file away"),
        "{said}"
    );
}

/// A full disk; unmounted when dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(folder: &'a Path) -> Option<Self> {
        std::fs::create_dir_all(folder).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs"])
            .arg(folder)
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _nothing_else_to_do = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_causes_one_warning_and_no_failed_execution() {
    // Other tests compare the machine's mounts before and after.
    let _turn = begin!(alone);
    let name = name_of(a_full_disk_causes_one_warning_and_no_failed_execution);
    let place = TestDir::new();
    let folder = place.path("data");
    let disk = is_root().then(|| SmallDisk::mount(&folder)).flatten();
    if disk.is_none() {
        if is_root() {
            skip(&name, "a file system cannot be mounted here");
        }
        // An ordinary user cannot mount a disk; the same test also runs as root.
        return;
    }
    let mut client = Client::start(&mut place.command(&["serve"]));
    let large = format!("print(len('{}'))", "x".repeat(60_000));
    for _ in 0..8 {
        assert_eq!(client.text(&large), "60000\n");
        std::thread::sleep(Duration::from_millis(60));
    }
    let view = client.call("get_execution_history", json!({}));
    assert_eq!(view.data()["total"], 8);
    assert_eq!(view.data()["records"].as_array().unwrap().len(), 8);
    assert_eq!(
        client.log().matches("kept in memory only").count(),
        1,
        "{}",
        client.log()
    );
    client.hang_up();
    assert_eq!(client.wait(Duration::from_secs(20)), Some(0));
    // Earlier records are complete.
    let kept = listed(&place, &[]);
    assert!((1..8).contains(&kept.len()), "{}", kept.len());
}

#[test]
fn nothing_is_written_if_the_operator_disabled_history() {
    let _turn = begin!();
    let place = TestDir::with_settings("[history]\nstore = \"memory\"\n");
    let client = Client::start(&mut place.command(&["serve"]));
    client.run("1");
    assert_eq!(client.call("get_execution_history", json!({})).data()["total"], 1);
    assert!(!place.path("data").join("history.db").exists());
    assert!(listed(&place, &[]).is_empty());
}

#[test]
fn the_command_lists_searches_shows_and_deletes() {
    let _turn = begin!();
    let place = TestDir::new();
    let client = Client::start(&mut place.command(&["serve"]));
    client.run("import sys\nprint('needle')\nprint('to stderr', file=sys.stderr)\n6 * 7");
    client.run("1 / 0");
    client.call(
        "execute_code",
        json!({"code": "got = input()", "stdin": "a password\n"}),
    );
    client.call("get_execution_history", json!({}));
    let all = listed(&place, &[]);
    assert_eq!(all.len(), 3);
    assert_eq!(all[1]["status"], "error");
    assert!(all[1]["error"].as_str().unwrap().contains("ZeroDivisionError"));
    let found = listed(&place, &["--search", "NEEDLE"]);
    assert_eq!(found.len(), 1);
    let cost = &found[0];
    assert!(cost["peak_memory_mb"].as_f64().unwrap() > 1.0, "{cost}");
    assert!(
        cost["cpu_ms"].is_u64() && cost["stdout_bytes"] == 7 && cost["stderr_bytes"] == 10,
        "{cost}"
    );
    let id = cost["execution_id"].as_str().unwrap();
    let shown: Value = serde_json::from_slice(&command(&place, &["history", "show", id, "--json"])).unwrap();
    assert_eq!((&shown["stdout"], &shown["result"]), (&json!("needle\n"), &json!("42")));
    let told = String::from_utf8(command(&place, &["history", "show", id])).unwrap();
    assert!(
        told.contains("ms of processor time") && told.contains("needle"),
        "{told}"
    );
    assert_eq!(listed(&place, &["--status", "error"]).len(), 1);
    assert_eq!(listed(&place, &["--owner", "nobody"]).len(), 0);
    // Input of the code is not stored.
    for file in ["history.db", "history.db-wal"] {
        let bytes = std::fs::read(place.path("data").join(file)).unwrap();
        assert!(!bytes.windows(8).any(|eight| eight == b"password"), "{file}");
    }
    command(&place, &["history", "forget", id]);
    assert!(listed(&place, &["--search", "needle"]).is_empty());
    let log = std::fs::read_to_string(place.path("data").join("audit.jsonl")).unwrap();
    assert!(log.contains("history_forgotten") && log.contains(id), "{log}");
    let again = place.command(&["history", "forget", id]).output().unwrap();
    assert!(!again.status.success());
}

#[test]
fn the_number_of_rows_is_bounded() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nhistory_rows = 5\n");
    let client = Client::start(&mut place.command(&["serve"]));
    for number in 0..12 {
        client.run(&format!("{number}"));
    }
    let view = client.call("get_execution_history", json!({"last_n": 50}));
    assert_eq!(view.data()["total"], 12);
    let shown = view.data()["records"].as_array().unwrap();
    let codes: Vec<&str> = shown.iter().map(|row| row["code_preview"].as_str().unwrap()).collect();
    assert_eq!(codes, ["11", "10", "9", "8", "7"]);
    assert_eq!(listed(&place, &[]).len(), 5);
}

#[test]
fn an_exported_notebook_has_the_pictures_even_after_a_restart() {
    let _turn = begin!();
    let place = TestDir::new();
    let client = Client::start(&mut place.command(&["serve"]));
    let png = "b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20)";
    client.run(&format!(
        "class Plot:\n    def _repr_png_(self):\n        return {png}\n    def __repr__(self):\n        return 'a plot'"
    ));
    let shown = client.run("from IPython.display import display\nprint('drawn')\ndisplay(Plot())\nPlot()");
    assert_eq!(
        shown.of_kind("image").count() + shown.of_kind("resource_link").count(),
        2,
        "{shown:?}"
    );
    client.run("class Drawing:\n    def _repr_svg_(self):\n        return '<svg xmlns=\"http://www.w3.org/2000/svg\"/>'\nDrawing()");
    client.call("get_execution_history", json!({}));
    drop(client);
    let drawn = shown.meta()["execution_id"].as_str().unwrap();
    let row: Value = serde_json::from_slice(&command(&place, &["history", "show", drawn, "--json"])).unwrap();
    assert_eq!(row["pictures"][1]["size"], 28, "{row:#}");
    assert!(row["pictures"][1].get("bytes").is_none(), "{row:#}");
    let told = String::from_utf8(command(&place, &["history", "show", drawn])).unwrap();
    let pictures = told.lines().find(|line| line.starts_with("pictures: ")).unwrap();
    assert!(
        pictures.contains("plot-1.png (1 KB), ") && pictures.ends_with("`sandcell history export` has them"),
        "{told}"
    );
    let file = place.path("work").join("plots.ipynb");
    command(&place, &["history", "export", "--out", file.to_str().unwrap()]);
    let notebook: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let pictures = |cell: usize, mime: &str| -> Vec<Value> {
        let outputs = notebook["cells"][cell]["outputs"].as_array().unwrap();
        let data = outputs.iter().map(|output| output["data"][mime].clone());
        data.filter(|data| !data.is_null()).collect()
    };
    use base64::Engine as _;
    let bytes = [b"\x89PNG\r\n\x1a\n".as_slice(), &[0; 20]].concat();
    let encoded = json!(base64::engine::general_purpose::STANDARD.encode(bytes));
    assert_eq!(pictures(1, "image/png"), [encoded.clone(), encoded], "{notebook:#}");
    assert!(
        pictures(2, "image/svg+xml")[0].to_string().contains("<svg"),
        "{notebook:#}"
    );
    // Deleting an execution also deletes its pictures.
    let id = notebook["cells"][1]["id"].as_str().unwrap();
    command(&place, &["history", "forget", id]);
    let again: Value = serde_json::from_slice(&command(&place, &["history", "export"])).unwrap();
    assert!(!again.to_string().contains("image/png"), "{again:#}");
    let test = name_of(an_exported_notebook_has_the_pictures_even_after_a_restart);
    let Some(kernel) = std::env::var_os("SANDCELL_TEST_JUPYTER_PYTHON") else {
        skip(
            &test,
            "no Python with a Jupyter kernel (SANDCELL_TEST_JUPYTER_PYTHON names it)",
        );
        return;
    };
    let knows = Command::new(&kernel)
        .args(["-I", "-c", "import nbclient"])
        .stderr(Stdio::null())
        .status();
    if !knows.is_ok_and(|status| status.success()) {
        skip(
            &test,
            "SANDCELL_TEST_JUPYTER_PYTHON has no nbclient (crates/e2e/tests/notebooks/kernel.txt)",
        );
        return;
    }
    // Jupyter's own reader accepts the notebook, and Jupyter's own runner runs it.
    let output = Command::new(kernel)
        .args(["-I", "-B"])
        .arg(sandcell_e2e::sources().join("crates/e2e/tests/notebooks/validate.py"))
        .arg(&file)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", place.path("home"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let ran: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(ran[1], json!(["stream", "image/png", "image/png"]), "{ran}");
    assert_eq!(ran[2], json!(["image/svg+xml"]), "{ran}");
}

#[test]
fn an_exported_notebook_runs_again_with_the_same_results() {
    let _turn = begin!();
    let place = TestDir::new();
    let client = Client::start(&mut place.command(&["serve"]));
    let sandbox = client.run("import math\nnumbers = [1, 2, 3]\nprint('begun')").sandbox();
    client.run("total = sum(numbers)\nprint('total', total)\ntotal * math.tau");
    client.run("print('before')\n{}['absent']");
    client.call("execute_code", json!({"code": "echo from bash", "language": "bash"}));
    client.call(
        "execute_code",
        json!({"code": "no such language", "language": "brainfuck"}),
    );
    client.run("f'{total} is still here'");
    client.call("get_execution_history", json!({}));
    let file = place.path("work").join("again.ipynb");
    command(
        &place,
        &["history", "export", "--last", "100", "--out", file.to_str().unwrap()],
    );
    let notebook: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let cells = notebook["cells"].as_array().unwrap();
    let kinds: Vec<&str> = cells.iter().map(|cell| cell["cell_type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["code", "code", "code", "code", "markdown", "code"]);
    assert_eq!(notebook["nbformat"], 4);
    let of_sandbox = command(&place, &["history", "export", "--sandbox", &sandbox]);
    let of_sandbox: Value = serde_json::from_slice(&of_sandbox).unwrap();
    assert_eq!(of_sandbox["cells"].as_array().unwrap().len(), 5);
    let text = |value: &Value| -> String {
        let lines = value.as_array().map(Vec::as_slice).unwrap_or_default();
        lines.iter().map(|line| line.as_str().unwrap()).collect()
    };
    let expected: Vec<Value> = cells
        .iter()
        .filter(|cell| cell["cell_type"] == "code")
        .map(|cell| {
            let find = |kind: &str| {
                let outputs = cell["outputs"].as_array().unwrap();
                outputs
                    .iter()
                    .find(|output| output["output_type"] == kind)
                    .cloned()
                    .unwrap_or_default()
            };
            let result = find("execute_result");
            let result = (!result.is_null()).then(|| text(&result["data"]["text/plain"]));
            json!({"stdout": text(&find("stream")["text"]), "result": result, "error": find("error")["ename"]})
        })
        .collect();
    // In a new session of this server.
    let fresh = client.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
    let source = |cell: &Value| text(&cell["source"]);
    for (cell, gave) in cells.iter().filter(|cell| cell["cell_type"] == "code").zip(&expected) {
        if source(cell).starts_with("%%bash") {
            continue;
        }
        let answer = client.call("execute_code", json!({"code": source(cell), "sandbox_id": fresh}));
        assert!(
            answer.all().contains(gave["stdout"].as_str().unwrap()),
            "{}",
            answer.all()
        );
        assert_eq!(answer.status() == "error", !gave["error"].is_null());
    }
    // In Jupyter itself.
    let Some(kernel) = std::env::var_os("SANDCELL_TEST_JUPYTER_PYTHON") else {
        skip(
            &name_of(an_exported_notebook_runs_again_with_the_same_results),
            "no Python with a Jupyter kernel (SANDCELL_TEST_JUPYTER_PYTHON names it)",
        );
        return;
    };
    let output = Command::new(kernel)
        .args(["-I", "-B"])
        .arg(sandcell_e2e::sources().join("crates/e2e/tests/notebooks/rerun.py"))
        .arg(&file)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", place.path("home"))
        .env("TMPDIR", place.path("tmp"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let gave: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(gave, expected);
}

#[test]
fn executions_of_the_run_command_are_recorded() {
    let _turn = begin!();
    let place = TestDir::new();
    let program = place.write("a.py", "print('once')");
    command(&place, &["run", program.to_str().unwrap()]);
    let rows = until(Duration::from_secs(5), "the row is there", || {
        Some(listed(&place, &["--owner", "cli"])).filter(|rows| !rows.is_empty())
    });
    assert_eq!(rows[0]["stdout_preview"], "once\n");
}

#[test]
fn an_execution_is_found_by_the_beginning_of_its_id_and_the_newest_by_last() {
    let _turn = begin!();
    let place = TestDir::new();
    for code in ["print('one')", "print('two')"] {
        let file = place.write("p.py", code);
        assert!(
            place
                .command(&["run", file.to_str().unwrap()])
                .status()
                .unwrap()
                .success()
        );
    }
    let rows = listed(&place, &[]);
    let oldest = rows[1]["execution_id"].as_str().unwrap().to_owned();
    let show = |arguments: &[&str]| {
        let all: Vec<&str> = ["history", "show"].iter().chain(arguments).copied().collect();
        let output = place.command(&all).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    assert!(show(&[]).contains("print('two')"));
    assert!(show(&["last"]).contains("print('two')"));
    assert!(show(&[&oldest[..12]]).contains("print('one')"));
    let both = show(&["ex"]);
    assert!(
        both.contains("more than one execution begins with 'ex'") && both.contains(&oldest),
        "{both}"
    );
    let none = show(&["exnobody"]);
    assert!(
        none.contains("no execution 'exnobody'") && none.contains("`last` means the newest"),
        "{none}"
    );
}
