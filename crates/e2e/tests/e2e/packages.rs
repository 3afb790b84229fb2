use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::index::{Index, Wheel};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, not_required, skip, until};

/// Returns uv, if this machine has it: CI names it.
pub fn uv() -> Option<PathBuf> {
    let named = std::env::var_os("SANDCELL_TEST_UV").map(PathBuf::from);
    let path = std::env::var("PATH").unwrap_or_default();
    let listed = path.split(':').map(|folder| Path::new(folder).join("uv"));
    let is_program = |path: &PathBuf| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
    named.into_iter().chain(listed).find(is_program)
}

/// Returns a command on a machine with this index, and uv if available.
pub(crate) fn command(place: &TestDir, index: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = with_pip(place, index, arguments);
    if let Some(uv) = uv() {
        let folder = uv.parent().unwrap().display().to_string();
        command.env("PATH", format!("/usr/local/bin:/usr/bin:/bin:{folder}"));
    }
    command
}

/// Returns a command on a machine with this index and without uv.
pub(crate) fn with_pip(place: &TestDir, index: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = place.command(arguments);
    command.env("PIP_INDEX_URL", index).env("PIP_CONFIG_FILE", "/dev/null");
    command
}

fn server(place: &TestDir, index: &Index) -> Client {
    Client::start(&mut command(place, &index.url(), &["serve"]))
}

/// Starts an index with a package that needs another one.
pub(crate) fn stocked() -> Index {
    let index = Index::start();
    index.add(
        &Wheel::new("demo_one", "1.0")
            .requires("helper-one>=1")
            .file("demo_one.py", "import helper_one\nanswer = helper_one.half * 2\n"),
    );
    index.add(
        &Wheel::new("demo_one", "2.0")
            .requires("helper-one>=1")
            .file("demo_one.py", "answer = 2\n"),
    );
    index.add(
        &Wheel::new("helper_one", "1.5")
            .file("helper_one/__init__.py", "half = 21\n")
            .file("helper_one/data/x.txt", "x"),
    );
    index
}

pub(crate) fn install(server: &Client, packages: Value) -> Answer {
    server.call("install_package", json!({"packages": packages}))
}

/// Returns the number of finished layers, and of drafts, in the data folder.
pub(crate) fn kept(place: &TestDir) -> (usize, usize) {
    let count = |path: PathBuf| std::fs::read_dir(path).map_or(0, Iterator::count);
    let packages = place.path("data").join("packages");
    let owners = std::fs::read_dir(packages.join("owners"))
        .into_iter()
        .flatten()
        .flatten();
    (
        owners.map(|owner| count(owner.path().join("layers"))).sum(),
        count(packages.join("drafts")),
    )
}

#[test]
fn packages_reach_a_running_session_and_its_variables_stay() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let server = server(&place, &index);
    let missing = server.run("x = 1\nimport demo_one");
    assert!(
        missing.all().contains("install_package(packages=[\"demo-one\"])"),
        "{missing:?}"
    );
    let done = install(&server, json!(["demo_one==1.0"]));
    assert_eq!(done.status(), "ok", "{done:?}\n{}", server.log());
    assert!(
        done.all().contains("installed demo-one 1.0") && done.all().contains("helper-one 1.5"),
        "{done:?}"
    );
    assert_eq!(server.text("import demo_one\nprint(demo_one.answer, x)").trim(), "42 1");
    let again = install(&server, json!(["demo-one"]));
    assert!(again.all().contains("already there: demo-one 1.0"), "{again:?}");
    let status = server.call("get_sandbox_status", json!({}));
    assert!(status.0.to_string().contains("demo-one 1.0"), "{status:?}");
    let history = server.call("get_execution_history", json!({}));
    assert_eq!(
        history.0["structuredContent"]["installed_packages"],
        json!(["demo-one 1.0", "helper-one 1.5"])
    );
    // Code in the sandbox cannot reach the index, neither at its own port nor at another.
    let reach = format!(
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', {}), 2)\nexcept OSError as error:\n    print('no', error)",
        index.port
    );
    assert!(server.text(&reach).starts_with("no"));
}

/// A package with a program that works only when Python has read the package's `.pth` file.
fn tool() -> Wheel {
    Wheel::new("demo_tool", "1.0")
        .file("demo_tool.py", "def main():\n    print('tool')\n")
        .file("demo_tool.pth", "import sys; sys.from_pth = True\n")
        .file(
            "demo_tool-1.0.dist-info/entry_points.txt",
            "[console_scripts]\ndemo-tool = demo_tool:main\n",
        )
}

#[test]
fn processes_started_by_code_see_new_packages_at_once() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), Index::start());
    index.add(&tool());
    let server = server(&place, &index);
    let bash = |code: &str| {
        server
            .call("execute_code", json!({"code": code, "language": "bash"}))
            .output()
    };
    assert_eq!(bash("echo begun").trim(), "begun");
    assert_eq!(server.text("import subprocess, sys\nprint('begun')").trim(), "begun");
    let done = install(&server, json!(["demo-tool"]));
    assert_eq!(done.status(), "ok", "{done:?}\n{}", server.log());
    for arguments in [
        "[sys.executable, '-c', CODE]",
        "[sys.executable, '-I', '-c', CODE]",
        "['python3', '-c', CODE], env={}",
    ] {
        let code = format!(
            "CODE = 'import demo_tool, sys; print(sys.from_pth)'\nsubprocess.run({arguments}, check=True)\nNone"
        );
        assert_eq!(server.text(&code).trim(), "True", "{arguments}");
    }
    assert_eq!(server.text("!demo-tool").trim(), "tool");
    assert_eq!(
        server
            .text("%%bash\ncd /tmp\nPYTHONPATH=. python3 -c 'import demo_tool; print(1)'")
            .trim(),
        "1"
    );
    let workers = "import multiprocessing\nwith multiprocessing.get_context('spawn').Pool(1) as pool:\n    \
                   print(pool.apply(eval, ('__import__(\"demo_tool\").__name__',)))\nfrom multiprocessing import util\n\
                   print(util._args_from_interpreter_flags())";
    assert_eq!(server.text(workers).trim(), "demo_tool\n['-B']");
    assert_eq!(
        bash("python3 -c 'import demo_tool; print(2)' && demo-tool").trim(),
        "2\ntool"
    );
    // A separate sandbox, in another language.
    let run = json!({"code": "demo-tool; python3 -c 'import demo_tool; print(3)'", "language": "bash", "packages": ["pypi:demo-tool"]});
    assert_eq!(server.call("create_run_close", run).output().trim(), "tool\n3");
    // The machine's own Python is unchanged.
    assert!(!Path::new("/usr/local/lib/python3.11/dist-packages/sandcell.pth").exists());
}

#[test]
fn an_installed_set_is_reused_and_immutable() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let server = server(&place, &index);
    let first = server.call("create_sandbox", json!({"packages": ["demo-one==1.0"]}));
    assert!(!first.is_error(), "{first:?}\n{}", server.log());
    let asked = index.asked().len();
    let second = server.call("create_sandbox", json!({"packages": ["demo-one==1.0"]}));
    assert_eq!(index.asked().len(), asked, "the index was asked again");
    let attack = "import demo_one, os\npath = demo_one.__file__\nfor what in (lambda: open(path, 'a'), lambda: os.remove(path), \
                  lambda: os.chmod(path, 0o777), lambda: os.rename(path, path + 'x'), lambda: open(os.path.dirname(path) + '/new.py', 'w')):\n    \
                  try:\n        what()\n        print('changed')\n    except OSError as error:\n        print(error.errno)";
    let ids = [&first, &second].map(|answer| answer.0["structuredContent"]["sandbox_id"].clone());
    let attacked = server.call("execute_code", json!({"code": attack, "sandbox_id": ids[0]}));
    assert_eq!(attacked.output().trim(), "30\n30\n30\n30\n30", "{attacked:?}");
    let seen = server.call(
        "execute_code",
        json!({"code": "import demo_one\ndemo_one.answer", "sandbox_id": ids[1]}),
    );
    assert!(seen.all().contains("42"), "{seen:?}");
    assert_eq!(kept(&place), (1, 0));
    let mounts = server.call(
        "execute_code",
        json!({"code": "print(open('/proc/self/mountinfo').read())", "sandbox_id": ids[1]}),
    );
    assert!(
        !mounts.all().contains(&*place.path("data").to_string_lossy()),
        "a path of the host shows"
    );
}

#[test]
fn pip_is_used_where_uv_is_missing() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let server = Client::start(&mut with_pip(&place, &index.url(), &["serve"]));
    let done = install(&server, json!(["demo-one"]));
    assert!(
        done.all().contains("demo-one 2.0") && done.all().contains("helper-one 1.5"),
        "{done:?}\n{}",
        server.log()
    );
    assert_eq!(server.text("import demo_one\nprint(demo_one.answer)").trim(), "2");
}

#[test]
fn uv_and_pip_in_code_lead_to_the_same_place() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    if uv().is_none() {
        return skip(
            "packages::uv_and_pip_in_code_lead_to_the_same_place",
            "no uv (pip install uv, SANDCELL_TEST_UV)",
        );
    }
    let server = server(&place, &index);
    // The cell's time limit does not include the wait for the installation.
    let code = "x = 7\n!pip install -q demo-one==1.0\nimport demo_one\nprint(demo_one.answer, x)";
    let ran = server.call("execute_code", json!({"code": code, "timeout_s": 20}));
    assert!(ran.output().contains("42 7"), "{ran:?}\n{}", server.log());
    let refused = server.run("%pip install -r requirements.txt");
    assert!(refused.all().contains("options are not taken"), "{refused:?}");
    let run = server.call(
        "create_run_close",
        json!({"code": "import helper_one\nprint(helper_one.half)", "packages": ["helper-one"]}),
    );
    assert_eq!(run.output().trim(), "21", "{run:?}");
    let program = place.write("p.py", "import demo_one, subprocess, sys\nprint(demo_one.answer)\n\
        print(subprocess.run([sys.executable, '-c', 'import demo_one; print(demo_one.answer)'], capture_output=True, text=True).stdout)");
    let out = command(
        &place,
        &index.url(),
        &["run", "--package", "demo-one==1.0", program.to_str().unwrap()],
    )
    .output()
    .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&out.stdout)
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["42", "42"],
        "{out:?}"
    );
}

#[test]
fn everything_but_package_names_is_refused_before_any_request() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let server = server(&place, &index);
    for (package, part) in [
        ("-r requirements.txt", "options"),
        ("--index-url=https://evil.example/simple", "options"),
        ("git+https://example.org/x", "version control"),
        ("https://example.org/x.whl", "addresses"),
        ("demo @ file:///etc/passwd", "addresses"),
        ("../../etc", "files"),
        ("demo; import os", "cannot be installed"),
        ("$(touch /tmp/pwned)", "cannot be installed"),
        ("d\u{0435}mo", "not a character"),
        ("a\nb", "control character"),
        ("json", "built in, just import it"),
        ("nunpy", "did you mean numpy"),
        ("sklearn", "scikit-learn"),
    ] {
        let answer = install(&server, json!([package]));
        assert!(
            answer.is_error() && answer.all().contains(part),
            "{package:?}: {answer:?}"
        );
        let created = server.call("create_sandbox", json!({"packages": [package]}));
        assert!(created.is_error(), "{package:?}: {created:?}");
    }
    let many: Vec<String> = (0..5_000).map(|number| format!("p{number}")).collect();
    assert!(install(&server, json!(many)).all().contains("at most 100"));
    assert_eq!(index.asked(), Vec::<String>::new());
}

#[test]
fn operator_lists_apply_to_dependencies() {
    let _turn = begin!();
    let index = stocked();
    for (settings, package, part, remedy) in [
        ("allow = [\"demo-one\"]", "demo-one", "helper-one", "demo-one"),
        (
            "allow = [\"helper-one\", \"demo-one<2\"]",
            "demo-one==2.0",
            "demo-one 2.0",
            "demo-one<2",
        ),
        ("allow = [\"helper-one\"]", "demo-one", "demo-one", "helper-one"),
        ("deny = [\"Helper.One\"]", "demo-one", "helper-one", ""),
        (
            "deny = [\"demo-one==1.0\", \"demo-one==2.0\"]",
            "demo-one",
            "demo-one",
            "",
        ),
    ] {
        let place = TestDir::with_settings(&format!("[packages]\n{settings}\n"));
        let server = server(&place, &index);
        let answer = install(&server, json!([package]));
        assert!(
            answer.all().contains("package_not_allowed"),
            "{settings}: {answer:?}\n{}",
            server.log()
        );
        assert!(
            answer.all().contains(part) && answer.all().contains(remedy),
            "{settings}: {answer:?}"
        );
        assert_eq!(kept(&place).0, 0);
    }
    let place = TestDir::with_settings("[packages]\nallow = [\"helper-*\", \"demo-one<2\"]\n");
    let server = server(&place, &index);
    let answer = install(&server, json!(["demo-one"]));
    assert!(
        answer.all().contains("demo-one 1.0"),
        "an older version is allowed: {answer:?}\n{}",
        server.log()
    );
}

#[test]
fn releases_that_are_too_young_are_left_out() {
    let _turn = begin!();
    let (place, index) = (TestDir::with_settings("[packages]\nmin_age_days = 7\n"), Index::start());
    index.add(&Wheel::new("aged", "1.0").file("aged.py", ""));
    let young = Wheel::new("aged", "2.0").file("aged.py", "");
    index.add_file(&young, &young.bytes(), None, "2999-01-01T00:00:00Z");
    let server = server(&place, &index);
    assert!(install(&server, json!(["aged"])).all().contains("aged 1.0"));
    let answer = server.call("create_run_close", json!({"code": "1", "packages": ["aged==2.0"]}));
    assert!(
        answer.all().contains("package_not_allowed") && answer.all().contains("7 days"),
        "{answer:?}"
    );
}

#[test]
fn a_failing_or_misbehaving_index_is_named_in_time() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let mad = server(&place, &index);
    for (package, part) in [
        ("garbage", "not package index JSON"),
        ("broken", "status 500"),
        ("endless", "more than"),
        ("no-such-package-anywhere", "there is no package called"),
    ] {
        let began = Instant::now();
        let answer = install(&mad, json!([package]));
        assert!(
            answer.all().contains("package_failed") && answer.all().contains(part),
            "{package}: {answer:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(50), "{package}");
    }
    let slow = mad.call("install_package", json!({"packages": ["slow"], "timeout_s": 1}));
    assert!(
        slow.all().contains("timeout") && slow.all().contains("within 1 s"),
        "{slow:?}"
    );
    assert_eq!(kept(&place), (0, 0));
    let nowhere = Client::start(&mut command(&place, "http://127.0.0.1:1/simple/", &["serve"]));
    let answer = install(&nowhere, json!(["helper-one"]));
    assert!(answer.all().contains("could not be reached"), "{answer:?}");
}

#[test]
fn a_hostile_wheel_leaves_no_layer_and_touches_nothing() {
    let _turn = begin!();
    let (place, index) = (TestDir::with_settings("[packages]\ndisk_mb = 16\n"), Index::start());
    let up = "../".repeat(12);
    index.add(&Wheel::new("climbs", "1.0").file(&format!("{up}{}/pwned", place.work().display()), "x"));
    index.add(&Wheel::new("rooted", "1.0").file(&format!("{}/pwned", place.work().display()), "x"));
    let liar = Wheel::new("liar", "1.0").file("liar.py", "");
    index.add_file(&liar, &liar.bytes(), Some(&"0".repeat(64)), "2020-01-01T00:00:00Z");
    index.add(&Wheel::new("bulky", "1.0").file("bulky.bin", vec![0; 20 << 20]));
    index.add_file(
        &Wheel::new("torn", "1.0"),
        b"PK\x03\x04 and no more",
        None,
        "2020-01-01T00:00:00Z",
    );
    let server = server(&place, &index);
    for (package, codes) in [
        ("climbs", &["package_failed", "installed climbs"][..]),
        ("rooted", &["package_failed", "installed rooted"]),
        ("liar", &["package_failed"]),
        ("bulky", &["disk_full"]),
        ("torn", &["package_failed"]),
    ] {
        let answer = install(&server, json!([package]));
        assert!(
            codes.iter().any(|code| answer.all().contains(code)),
            "{package}: {answer:?}\n{}",
            server.log()
        );
        assert!(!place.work().join("pwned").exists(), "{package} wrote outside");
        assert_eq!(kept(&place).1, 0, "{package}");
    }
    for folder in ["work", "tmp", "home"] {
        let left: Vec<_> = std::fs::read_dir(place.path(folder))
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        assert!(left.iter().all(|path| !path.ends_with("pwned")), "{left:?}");
    }
}

#[test]
fn links_in_a_wheel_are_not_installed() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), Index::start());
    index.add(
        &Wheel::new("linked", "1.0")
            .file("linked.py", "x = 1\n")
            .link("leak", "/etc/shadow"),
    );
    let server = server(&place, &index);
    let answer = install(&server, json!(["linked"]));
    assert_eq!(answer.status(), "ok", "{answer:?}\n{}", server.log());
    let mut folders = vec![place.path("data").join("packages/owners")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            assert!(!kind.is_symlink(), "{:?}", entry.path());
            if kind.is_dir() {
                folders.push(entry.path());
            }
        }
    }
}

#[test]
fn two_requests_for_the_same_packages_share_one_layer() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let server = server(&place, &index);
    let ids: Vec<Value> = (0..3)
        .map(|_| server.call("create_sandbox", json!({})).0["structuredContent"]["sandbox_id"].clone())
        .collect();
    let pending: Vec<_> = ids
        .iter()
        .map(|id| server.begin_call("install_package", json!({"packages": ["demo-one"], "sandbox_id": id})))
        .collect();
    for one in pending {
        let answer = one.wait_or(|| server.log());
        assert!(answer.to_string().contains("installed demo-one 2.0"), "{answer}");
    }
    assert_eq!(kept(&place), (1, 0));
    let resolved = index
        .asked()
        .iter()
        .filter(|path| path.ends_with("/simple/demo-one/"))
        .count();
    assert_eq!(resolved, 1, "the others waited for the first and found its answer");
}

#[test]
fn an_aborted_install_leaves_nothing() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let server = server(&place, &index);
    let running = server.call("install_package", json!({"packages": ["slow"], "wait_s": 0.2}));
    assert_eq!(running.status(), "running", "{running:?}");
    until(Duration::from_secs(20), "the index is asked", || {
        index.asked().iter().any(|path| path.contains("slow")).then_some(())
    });
    let id = running.0["_meta"]["sandcell/execution"]["execution_id"].clone();
    let ended = server.call("cancel_execution", json!({"execution_id": id}));
    assert_eq!(ended.status(), "cancelled", "{ended:?}");
    assert_eq!(kept(&place), (0, 0));
    assert_eq!(server.text("print(1)").trim(), "1");
    assert!(
        install(&server, json!(["helper-one"])).all().contains("helper-one 1.5"),
        "the next one works"
    );
}

#[test]
fn passwords_of_the_index_stay_outside() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    index.demand("Basic bWU6aHVzaC1odXNo"); // me:hush-hush
    let url = format!("http://me:hush-hush@127.0.0.1:{}/simple/", index.port);
    let server = Client::start(&mut command(&place, &url, &["serve"]));
    assert!(
        install(&server, json!(["helper-one"])).all().contains("helper-one 1.5"),
        "{}",
        server.log()
    );
    let wrong = url.replace("hush-hush", "wrong-pass");
    let other = TestDir::new();
    let locked_out = Client::start(&mut command(&other, &wrong, &["serve"]));
    let answer = install(&locked_out, json!(["helper-one"]));
    assert!(answer.all().contains("status 401"), "{answer:?}");
    assert!(!answer.0.to_string().contains("wrong-pass") && !locked_out.log().contains("wrong-pass"));
    let look = "import os, glob\nfound = str(dict(os.environ)) + open('/proc/1/environ').read() if os.access('/proc/1/environ', 4) else str(dict(os.environ))\nprint('hush-hush' in found)";
    assert_eq!(server.text(look).trim(), "False");
}

#[test]
fn a_base_is_present_from_the_start_and_can_come_from_a_lock_file() {
    let _turn = begin!();
    let (place, index) = (TestDir::with_settings("base = \"tools\"\n"), stocked());
    let program = place.write("p.py", "print(1)");
    let early = place.command(&["run", program.to_str().unwrap()]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&early.stderr).contains("sandcell base build tools"),
        "{early:?}"
    );
    let built = command(&place, &index.url(), &["base", "build", "tools", "demo-one==1.0"])
        .output()
        .unwrap();
    assert!(
        built.status.success() && String::from_utf8_lossy(&built.stdout).contains("helper-one 1.5"),
        "{built:?}"
    );
    {
        let server = Client::start(&mut place.command(&["serve"]));
        assert_eq!(server.text("import demo_one\nprint(demo_one.answer)").trim(), "42");
    }
    let wheel = Wheel::new("helper_one", "1.5")
        .file("helper_one/__init__.py", "half = 21\n")
        .file("helper_one/data/x.txt", "x");
    let hash: String = <sha2::Sha256 as sha2::Digest>::digest(wheel.bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let good = place.write("good.lock", format!("helper-one==1.5 --hash=sha256:{hash}\n"));
    let built = command(
        &place,
        &index.url(),
        &["base", "build", "locked", "-r", good.to_str().unwrap()],
    )
    .output()
    .unwrap();
    assert!(built.status.success(), "{built:?}");
    let bad = place.write(
        "bad.lock",
        format!("helper-one==1.5 --hash=sha256:{}\n", "0".repeat(64)),
    );
    let refused = command(
        &place,
        &index.url(),
        &["base", "build", "wrong", "-r", bad.to_str().unwrap()],
    )
    .output()
    .unwrap();
    assert!(!refused.status.success(), "{refused:?}");
    let list = place.command(&["base", "list", "--json"]).output().unwrap();
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|base| base["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["locked", "tools"]);
    assert!(
        place
            .command(&["base", "remove", "locked"])
            .output()
            .unwrap()
            .status
            .success()
    );
    assert!(
        !place
            .command(&["base", "remove", "locked"])
            .output()
            .unwrap()
            .status
            .success()
    );
}

#[test]
fn a_base_is_used_by_its_setting_and_by_a_run_that_needs_its_packages() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let said = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&both).into_owned()
    };
    let program = place
        .write("p.py", "import demo_one\nprint(demo_one.answer)")
        .display()
        .to_string();
    let run = ["run", &program, "--package", "demo-one==1.0"];
    let first = said(&mut command(&place, &index.url(), &run));
    assert!(
        first.contains("installing packages: ") && first.contains("42\n"),
        "{first}"
    );
    said(&mut command(
        &place,
        &index.url(),
        &["base", "build", "tools", "demo-one==1.0"],
    ));
    // Without an index: everything is installed already.
    assert_eq!(said(&mut place.command(&run)), "42\n");
    let built = said(&mut command(
        &place,
        &index.url(),
        &["base", "build", "tools", "demo-one==1.0", "--use"],
    ));
    assert!(
        built.contains("base was written to") && built.contains("every new sandbox starts with it"),
        "{built}"
    );
    let server = Client::start(&mut place.command(&["serve"]));
    assert_eq!(server.text("import demo_one\nprint(demo_one.answer)").trim(), "42");
}

#[test]
fn a_base_with_a_file_system_mounted_in_it_is_refused_by_name() {
    let _turn = begin!();
    let (place, index) = (TestDir::with_settings("base = \"tools\"\n"), stocked());
    let built = command(&place, &index.url(), &["base", "build", "tools", "demo-one==1.0"])
        .output()
        .unwrap();
    assert!(built.status.success(), "{built:?}");
    let package = folder_named(&place.path("data"), "helper_one").expect("the base has the package");
    let program = place.write("p.py", "import demo_one\nprint(demo_one.answer)");
    let program = program.to_str().unwrap();
    let whole = crate::mounts::mounted(&place, "", &["run", program]);
    assert_eq!(String::from_utf8_lossy(&whole.stdout).trim(), "42", "{whole:?}");
    let mount = format!("mount -t tmpfs none {}", package.display());
    let refused = crate::mounts::mounted(&place, &mount, &["run", program]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(text.contains(package.to_str().unwrap()), "{text}");
    assert!(text.contains("unmount what is mounted there"), "{text}");
}

/// Finds the folder of this name below another one.
fn folder_named(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let folders: Vec<PathBuf> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    let found = folders.iter().find(|path| path.ends_with(name));
    found
        .cloned()
        .or_else(|| folders.iter().find_map(|path| folder_named(path, name)))
}

#[test]
fn the_configured_index_of_the_machine_serves_a_real_package() {
    let _turn = begin!();
    let name = "packages::the_configured_index_of_the_machine_serves_a_real_package";
    let place = TestDir::new();
    let mut command = place.command(&["serve"]);
    if let Some(uv) = uv() {
        command.env(
            "PATH",
            format!("/usr/local/bin:/usr/bin:/bin:{}", uv.parent().unwrap().display()),
        );
    }
    // The test's own environment names the index that is reachable from here.
    let ours = |name: &str| {
        [
            "PIP_",
            "UV_",
            "SSL_CERT",
            "REQUESTS_CA",
            "CURL_CA",
            "HTTP",
            "http",
            "NO_PROXY",
            "no_proxy",
        ]
        .iter()
        .any(|start| name.starts_with(start))
    };
    command.envs(std::env::vars().filter(|(name, _)| ours(name)));
    let server = Client::start(&mut command);
    let answer = server.call("install_package", json!({"packages": ["six"], "timeout_s": 40}));
    if answer.all().contains("could not be reached") || answer.all().contains("timeout") {
        // Never required: a machine without a network is valid.
        return not_required(name, "the package index cannot be reached");
    }
    assert!(answer.all().contains("installed six"), "{answer:?}\n{}", server.log());
    assert!(
        server
            .text("import six\nprint(six.__file__)")
            .starts_with("/opt/sandcell/"),
        "{answer:?}"
    );
}
