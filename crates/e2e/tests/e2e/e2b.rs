use std::process::{Command, Output};

use serde_json::json;

use crate::npm;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, skip};
use sandcell_fake_e2b::{API_KEY, Fake};

/// Returns a command whose environment names the service in the service's own variables.
fn command(place: &TestDir, fake: &Fake, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command
        .env("E2B_API_KEY", API_KEY)
        .env("E2B_API_URL", &fake.url)
        .env("E2B_SANDBOX_URL", &fake.url);
    command
}

fn server(place: &TestDir, fake: &Fake) -> Client {
    Client::start(command(place, fake, &["serve"]).env("INTERPRETER_TYPE", "e2b"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_same_tools_run_code_at_e2b() {
    let _turn = begin!();
    let (place, fake) = (TestDir::new(), Fake::start());
    let mut server = server(&place, &fake);
    let first = server.run("x = 41\nprint('there')");
    assert_eq!(first.status(), "ok", "{first:?}\n{}", server.log());
    assert_eq!(first.meta()["isolation"]["backend"], "e2b");
    assert_eq!(first.meta()["isolation"]["level"], "container");
    assert_eq!(fake.ids().len(), 1, "none waits ahead");
    assert!(server.text("x + 1").contains("42"));
    let raised = server.run("print('before')\n1/0");
    assert_eq!(raised.cause(), "code_failed");
    assert!(
        raised.all().contains("before") && raised.all().contains("ZeroDivisionError"),
        "{raised:?}"
    );
    let slow = server.call("execute_code", json!({"code": "while True: pass", "timeout_s": 1}));
    assert_eq!(slow.status(), "timeout", "{slow:?}");
    assert!(!slow.state_lost(), "{slow:?}");
    assert!(server.text("print(x)").contains("41"));
    // The file tools and code see the same files.
    server.call("write_file", json!({"path": "note.txt", "content": "kept\n"}));
    server.call(
        "write_file",
        json!({"path": "note.txt", "content": "more\n", "append": true}),
    );
    assert_eq!(server.text("print(open('note.txt').read(), end='')"), "kept\nmore\n");
    server.text("open('made.txt', 'w').write('by code')");
    let read = server.call("read_file", json!({"path": "made.txt"}));
    assert!(read.all().contains("by code"), "{read:?}");
    let listed = server.call("list_files", json!({}));
    assert!(
        listed.all().contains("made.txt") && listed.all().contains("note.txt"),
        "{listed:?}"
    );
    // Missing abilities are reported.
    let stdin = server.call("execute_code", json!({"code": "input()", "stdin": "x"}));
    assert!(stdin.all().contains("no standard input"), "{stdin:?}");
    let other = server.call("execute_code", json!({"code": "1", "language": "ruby"}));
    other.refused("language_unavailable");
    let status = server.call("get_sandbox_status", json!({}));
    assert!(status.all().contains("back end e2b") || status.data()["sandboxes"][0]["isolation"]["backend"] == "e2b");
    assert!(
        !format!(
            "{}{}",
            server.log(),
            server.run("import os\nprint(dict(os.environ))").all()
        )
        .contains(API_KEY)
    );
    server.hang_up();
    server.wait(sandcell_e2e::DEFAULT_TIMEOUT);
    assert!(fake.ids().is_empty(), "nothing is left: {:?}", fake.ids());
    fake.had_no_faults();
}

#[test]
fn one_shot_and_created_sandboxes_are_terminated() {
    let _turn = begin!();
    let (place, fake) = (TestDir::new(), Fake::start());
    let server = server(&place, &fake);
    let once = server.call(
        "create_run_close",
        json!({
            "code": "print(open('in.txt').read())\nopen('out.txt', 'w').write('result')",
            "files": {"in.txt": "given"}, "outputs": ["out.txt"],
        }),
    );
    assert_eq!(once.status(), "ok", "{once:?}");
    assert!(once.all().contains("given"));
    assert_eq!(once.of_kind("resource_link").count(), 1, "{once:?}");
    let made = server.call("create_sandbox", json!({"env": {"MODE": "test"}}));
    let id = made.data()["sandbox_id"].as_str().unwrap().to_owned();
    let seen = server.call(
        "execute_code",
        json!({"code": "import os\nprint(os.environ['MODE'])", "sandbox_id": id}),
    );
    assert_eq!(seen.output().trim(), "test", "{seen:?}");
    server.call("close_sandbox", json!({"sandbox_id": id}));
    sandcell_e2e::until(sandcell_e2e::DEFAULT_TIMEOUT, "both are ended", || {
        fake.ids().is_empty().then_some(())
    });
    fake.had_no_faults();
}

#[test]
fn a_sandbox_that_expired_at_e2b_is_reported_and_replaced() {
    let _turn = begin!();
    let (place, fake) = (TestDir::new(), Fake::start());
    let server = server(&place, &fake);
    server.text("x = 41");
    fake.expire_all();
    let lost = server.run("print(x)");
    assert!(lost.all().contains("expired"), "{lost:?}");
    assert!(lost.cause() == "expired" || lost.is_error(), "{lost:?}");
    let next = server.run("print('x' in globals())");
    assert!(next.output().contains("False"), "{next:?}");
    assert!(next.state_lost() || lost.state_lost(), "{next:?}");
    fake.had_no_faults();
}

#[test]
fn the_fallback_is_used_with_the_reason_and_never_below_the_isolation_floor() {
    let _turn = begin!();
    let (place, fake) = (TestDir::new(), Fake::start());
    // Without a key.
    let server = Client::start(&mut place.command(&["serve", "--backend", "e2b,native"]));
    let ran = server.run("print(6 * 7)");
    assert_eq!(ran.status(), "ok", "{ran:?}\n{}", server.log());
    let isolation = &ran.meta()["isolation"];
    assert_eq!(isolation["backend"], "native");
    assert_eq!(isolation["passed_over"][0]["backend"], "e2b");
    assert!(
        isolation["passed_over"][0]["remedy"]
            .to_string()
            .contains("E2B_API_KEY")
    );
    assert!(ran.verdict().contains("skipped: back end e2b"), "{}", ran.verdict());
    let again = server.run("1");
    assert_eq!(
        again.meta()["isolation"]["passed_over"][0]["backend"],
        "e2b",
        "every result says it"
    );
    let status = server.call("get_sandbox_status", json!({"sandbox_id": again.sandbox()}));
    assert!(status.all().contains("skipped: back end e2b"), "{status:?}");
    // With a key, but the isolation floor is higher than the service's level.
    let place = TestDir::with_settings("isolation_min = \"microvm\"\n");
    let server = Client::start(&mut command(&place, &fake, &["serve", "--backend", "e2b"]));
    let refused = server.run("1").refused("isolation_unavailable");
    assert!(
        refused.contains("container") && refused.contains("microvm"),
        "{refused}"
    );
    assert!(fake.ids().is_empty());
    // A wrong key, and no other back end.
    let place = TestDir::new();
    let mut wrong = command(&place, &fake, &["serve", "--backend", "e2b"]);
    let server = Client::start(wrong.env("E2B_API_KEY", "e2b_wrong_hush"));
    let refused = server.run("1").refused("backend_unavailable");
    assert!(refused.contains("API key") && !refused.contains("hush"), "{refused}");
    assert!(!server.log().contains("hush"));
    fake.had_no_faults();
}

#[test]
fn packages_are_installed_inside_under_the_operators_lists() {
    let _turn = begin!();
    let (place, fake) = (TestDir::new(), Fake::start());
    let server = server(&place, &fake);
    let installed = server.call("install_package", json!({"package": "python-dateutil>=2"}));
    assert_eq!(
        installed.output(),
        "installed python-dateutil 2.9.0\ndependencies: six 1.17.0\n",
        "{installed:?}\n{}",
        server.log()
    );
    assert_eq!(server.text("import six\nprint(six.__version__)").trim(), "1.17.0");
    let unknown = server.call("install_package", json!({"package": "no-such-package"}));
    assert!(
        unknown.refused("package_failed").contains("No matching distribution"),
        "{unknown:?}"
    );
    for trick in ["--index-url=http://x", "six @ http://x/six.whl", "./six"] {
        server
            .call("install_package", json!({"package": trick}))
            .refused("invalid_argument");
    }
    let fresh = server.call(
        "create_run_close",
        json!({"code": "import six\nprint('there')", "packages": ["six"]}),
    );
    assert_eq!(fresh.output().trim(), "there", "{fresh:?}");

    let strict = TestDir::with_settings("[packages]\ndeny = [\"six\"]\n");
    let server = super::e2b::server(&strict, &fake);
    let refused = server.call("install_package", json!({"package": "python-dateutil"}));
    assert!(refused.refused("package_not_allowed").contains("six"), "{refused:?}");
    let there = server.text("import os\nprint(os.path.exists('six.py'))");
    assert_eq!(there.trim(), "False");
}

#[test]
fn packages_of_npm_are_installed_inside_under_the_operators_lists() {
    let _turn = begin!();
    if let Some(missing) = npm::missing() {
        return skip(
            "e2b::packages_of_npm_are_installed_inside_under_the_operators_lists",
            missing,
        );
    }
    let (place, fake, registry) = (TestDir::new(), Fake::start(), npm::stocked());
    let inside = |server: &Client, env: &[(&str, &str)]| {
        // In the fake service HOME is a folder of this machine, where npm would put its cache.
        let mut all = json!({
            "npm_config_registry": registry.url(), "npm_config_cache": place.path("cache"), "PATH": npm::path(&place),
        });
        for (name, value) in env {
            all[name] = json!(value);
        }
        let made = server.call("create_sandbox", json!({"env": all}));
        made.data()["sandbox_id"].as_str().unwrap().to_owned()
    };
    let install = |server: &Client, id: &str, packages: &[&str]| {
        server.call(
            "install_package",
            json!({"packages": packages, "language": "javascript", "sandbox_id": id}),
        )
    };
    let node = |server: &Client, id: &str, code: &str| {
        let code = format!(
            "import subprocess\nprint(subprocess.run(['node', '-e', {code:?}], capture_output=True, text=True))"
        );
        let ran = server.call("execute_code", json!({"code": code, "sandbox_id": id}));
        ran.output().to_owned()
    };

    let server = server(&place, &fake);
    let id = inside(&server, &[]);
    let installed = install(&server, &id, &["demo-one@1"]);
    assert_eq!(
        installed.output(),
        "installed demo-one 1.0.0\ndependencies: @scope/helper 1.5.0\n",
        "{installed:?}\n{}",
        server.log()
    );
    let printed = node(
        &server,
        &id,
        "const one = require('demo-one'); console.log(one.answer, one.ran)",
    );
    assert!(printed.contains("42 false"), "no script ran: {printed}");
    // Later installations keep the earlier ones, and the user's own packages stay.
    let code =
        "import os\nos.makedirs('node_modules/own')\nopen('node_modules/own/index.js', 'w').write('exports.mine = 7')";
    server.call("execute_code", json!({"code": code, "sandbox_id": id}));
    let again = install(&server, &id, &["@scope/helper", "npm:demo-one@1.0.0"]);
    assert!(again.output().starts_with("already there: "), "{again:?}");
    let newer = install(&server, &id, &["demo-one@2"]);
    assert!(newer.output().contains("changed from 1.0.0 to 2.0.0"), "{newer:?}");
    let printed = node(
        &server,
        &id,
        "console.log(require('own').mine); import('demo-one').then(m => console.log(m.answer))",
    );
    assert!(printed.contains("7\\n2"), "{printed}");
    let left = "import os\nprint([name for name in os.listdir('node_modules/@scope')])";
    let left = server.call("execute_code", json!({"code": left, "sandbox_id": id}));
    assert_eq!(left.output().trim(), "[]", "what nothing needs any more is gone");
    // A failure states npm's reason and changes nothing.
    let unknown = install(&server, &id, &["no-such-package"]);
    let reason = unknown.refused("package_failed");
    assert!(
        reason.contains("404 Not Found") && reason.contains("no-such-package"),
        "{reason}"
    );
    let reason = install(&server, &id, &["demo-one@77"]).refused("package_failed");
    assert!(reason.contains("No matching version found for demo-one@77"), "{reason}");
    assert!(
        install(&server, &id, &["demo-one"])
            .output()
            .starts_with("already there: demo-one 2.0.0")
    );
    for trick in ["--registry=http://x", "git+ssh://x/y", "./demo-one", "x;id"] {
        install(&server, &id, &[trick]).refused("invalid_argument");
    }
    let few = place.path("few");
    std::fs::create_dir(&few).unwrap();
    std::os::unix::fs::symlink("/bin/sh", few.join("sh")).unwrap();
    let id = inside(&server, &[("PATH", few.to_str().unwrap())]);
    let absent = install(&server, &id, &["demo-one"]).refused("package_failed");
    assert!(absent.contains("npm: not found"), "{absent}");

    let strict = TestDir::with_settings("[packages]\nnpm_deny = [\"@scope/*\"]\n");
    let server = super::e2b::server(&strict, &fake);
    let id = inside(&server, &[]);
    let refused = install(&server, &id, &["demo-one@1"]);
    assert!(
        refused.refused("package_not_allowed").contains("@scope/helper"),
        "{refused:?}"
    );
    let allowed = install(&server, &id, &["demo-one@2"]);
    assert_eq!(allowed.output(), "installed demo-one 2.0.0\n", "{allowed:?}");
    fake.had_no_faults();
}

#[test]
fn a_sandbox_of_a_named_back_end_can_be_requested() {
    let _turn = begin!();
    let (place, fake) = (TestDir::new(), Fake::start());
    let server = Client::start(&mut command(&place, &fake, &["serve", "--backend", "native,e2b"]));
    let here = server.run("import sys\nprint(sys.version)");
    assert_eq!(here.meta()["isolation"]["backend"], "native");
    let made = server.call("create_sandbox", json!({"backend": "e2b"}));
    assert_eq!(made.data()["isolation"]["backend"], "e2b", "{made:?}");
    let id = made.data()["sandbox_id"].as_str().unwrap();
    let there = server.call("execute_code", json!({"code": "print(6 * 7)", "sandbox_id": id}));
    assert_eq!(there.output().trim(), "42", "{there:?}");
    fake.had_no_faults();
}

#[test]
fn the_command_line_runs_programs_there_and_shows_no_key() {
    let _turn = begin!();
    let (place, fake) = (TestDir::new(), Fake::start());
    let file = place.write("hello.py", "import sys\nprint('hello', sys.argv[1])\nsys.exit(3)\n");
    let file = file.to_str().unwrap();
    let output = command(&place, &fake, &["run", "--backend", "e2b", file, "--", "you"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "hello you\n",
        "{}",
        said(&output)
    );
    assert_eq!(output.status.code(), Some(3));
    assert!(fake.ids().is_empty());
    for arguments in [&["config"][..], &["config", "--json"], &["doctor", "--json"]] {
        let output = command(&place, &fake, arguments)
            .env("SANDCELL_LOG", "debug")
            .output()
            .unwrap();
        assert!(!said(&output).contains(API_KEY), "{arguments:?}");
    }
    fake.had_no_faults();
}

#[test]
fn the_other_toolsets_work_with_e2b() {
    let _turn = begin!();
    let (place, fake) = (TestDir::new(), Fake::start());
    let start = |toolset: &str| {
        Client::start(&mut command(
            &place,
            &fake,
            &["serve", "--backend", "e2b", "--toolset", toolset],
        ))
    };
    let server = start("container");
    let made = server.call("initialize_sandbox", json!({}));
    assert_eq!(made.data()["isolation"]["backend"], "e2b", "{made:?}");
    server.text("x = 41");
    assert!(server.text("x + 1").contains("42"));
    server.call("stop_sandbox", json!({}));
    let server = start("script");
    let call = |code: &str| server.call("run_code", json!({"code": code})).data().clone();
    assert_eq!(call("x = 41\nprint(x)")["stdout"], "41\n");
    assert_eq!(call("print(x)")["success"], false);
    let refused = call("import os");
    assert_eq!(
        (&refused["success"], &refused["duration_ms"]),
        (&json!(false), &json!(0)),
        "{refused}"
    );
    fake.had_no_faults();
}
