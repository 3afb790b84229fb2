use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::registry::{Entry, Registry};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, skip};

/// Returns npm's own program, if this machine has it: CI names it.
fn npm() -> Option<PathBuf> {
    let named = std::env::var_os("SANDCELL_TEST_NPM").map(PathBuf::from);
    let listed = ["/usr/local/bin/npm", "/usr/bin/npm"].into_iter().map(PathBuf::from);
    named
        .into_iter()
        .chain(listed)
        .filter_map(|path| path.canonicalize().ok())
        .find(|path| path.ends_with("npm/bin/npm-cli.js"))
}

/// Returns the prerequisite, other than sandboxes, that these tests lack.
pub(crate) fn missing() -> Option<&'static str> {
    let node = ["/usr/local/bin/node", "/usr/bin/node"]
        .iter()
        .any(|path| PathBuf::from(path).exists());
    match (node, npm()) {
        (false, _) => Some("no node (apt-get install nodejs)"),
        (true, None) => Some("no npm (apt-get install npm, SANDCELL_TEST_NPM)"),
        (true, Some(_)) => None,
    }
}

/// Returns a PATH with npm.
pub(crate) fn path(place: &TestDir) -> String {
    let folder = place.path("home").join("bin");
    std::fs::create_dir_all(&folder).unwrap();
    let link = folder.join("npm");
    if !link.exists() {
        std::os::unix::fs::symlink(npm().unwrap(), &link).unwrap();
    }
    format!("{}:/usr/local/bin:/usr/bin:/bin", folder.display())
}

/// Returns a command on a machine that has npm and this registry.
fn command(place: &TestDir, registry: &str, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command.env("PATH", path(place));
    command.env("npm_config_registry", registry);
    command
}

pub(crate) fn server(place: &TestDir, registry: &str) -> Client {
    Client::start(&mut command(place, registry, &["serve"]))
}

pub(crate) fn install(server: &Client, packages: Value) -> Answer {
    server.call(
        "install_package",
        json!({"packages": packages, "language": "javascript"}),
    )
}

fn js(server: &Client, code: &str) -> Answer {
    server.call("execute_code", json!({"code": code, "language": "javascript"}))
}

fn file(path: &'static str, text: &str) -> Entry {
    Entry::File(path, text.to_owned())
}

/// A registry with a package that needs another one and has scripts that must not run.
pub(crate) fn stocked() -> Registry {
    let registry = Registry::start();
    let scripts = json!({
        "preinstall": "touch /tmp/site/ran", "install": "exit 1", "postinstall": "exit 1", "prepare": "exit 1"
    });
    registry.publish(
        "demo-one",
        "1.0.0",
        json!({"main": "index.js", "dependencies": {"@scope/helper": "^1.0.0"}, "scripts": scripts}),
        &[file(
            "package/index.js",
            "exports.answer = require('@scope/helper').half * 2; exports.ran = require('fs').existsSync(__dirname + '/../../ran');",
        )],
    );
    registry.publish(
        "demo-one",
        "2.0.0",
        json!({"type": "module", "exports": "./index.mjs"}),
        &[file("package/index.mjs", "export const answer = 2;")],
    );
    registry.publish(
        "@scope/helper",
        "1.5.0",
        json!({"main": "main.js", "bin": {"half": "./half.js", "out": "../../../../../bin/sh"}}),
        &[
            file("package/main.js", "exports.half = 21;"),
            file(
                "package/half.js",
                "#!/usr/bin/env node\nconsole.log(require('./main').half);\n",
            ),
        ],
    );
    registry
}

#[test]
fn npm_packages_reach_a_running_session_and_no_script_runs() {
    let _turn = begin!();
    if let Some(reason) = missing() {
        return skip("npm::npm_packages_reach_a_running_session_and_no_script_runs", reason);
    }
    let (place, registry) = (TestDir::new(), stocked());
    let server = server(&place, &registry.url());
    assert_eq!(js(&server, "var x = 7; console.log(x)").output().trim(), "7");
    let done = install(&server, json!(["demo-one@1"]));
    assert_eq!(done.status(), "ok", "{done:?}\n{}", server.log());
    assert!(
        done.all().contains("installed demo-one 1.0.0") && done.all().contains("@scope/helper 1.5.0"),
        "{done:?}"
    );
    let used = js(
        &server,
        "const one = require('demo-one'); console.log(one.answer, one.ran, x)",
    );
    assert_eq!(used.output().trim(), "42 false 7", "{used:?}");
    let again = js(&server, "console.log((await import('@scope/helper')).default.half)");
    assert_eq!(again.output().trim(), "21", "{again:?}");
    // Programs of packages, and code outside of the home folder.
    let shell =
        "half && cd /tmp && node -e 'console.log(require(\"@scope/helper\").half)' && command -v out || echo none";
    let ran = server.call("execute_code", json!({"code": shell, "language": "bash"}));
    assert_eq!(ran.output().trim(), "21\n21\nnone", "{ran:?}");
    let status = server.call("get_sandbox_status", json!({})).0.to_string();
    assert!(status.contains("demo-one"), "{status}");
    // Code inside cannot change the package, and cannot reach the registry.
    let attack = "try { require('fs').writeFileSync(require.resolve('demo-one'), 'x') } catch (error) { console.log(error.code) }";
    assert_eq!(js(&server, attack).output().trim(), "EROFS");
    let reach = format!(
        "await new Promise((done) => require('net').connect({}, '127.0.0.1').on('error', (error) => done(console.log(error.code))).on('connect', () => done(console.log('reached'))))",
        registry.port
    );
    assert_eq!(js(&server, &reach).output().trim(), "ECONNREFUSED");
    // A repeated install sends no request, and a newer version is reported.
    let asked = registry.asked().len();
    let run = server.call(
        "create_run_close",
        json!({"code": "console.log(require('demo-one').answer)", "language": "javascript", "packages": ["demo-one@1"]}),
    );
    assert_eq!(run.output().trim(), "42", "{run:?}");
    assert_eq!(registry.asked().len(), asked, "the registry was asked again");
    let newer = install(&server, json!(["demo-one@2"]));
    assert!(
        newer.all().contains("demo-one changed from 1.0.0 to 2.0.0"),
        "{newer:?}"
    );
    server.call("reset_session_state", json!({"language": "javascript"}));
    let module = server.call(
        "execute_code",
        json!({"code": "import('demo-one').then((one) => console.log(one.answer))", "language": "javascript"}),
    );
    assert_eq!(module.output().trim(), "2", "{module:?}");
}

#[test]
fn npm_packages_are_present_at_the_start_of_a_sandbox_a_run_and_in_a_base() {
    let _turn = begin!();
    if let Some(reason) = missing() {
        return skip(
            "npm::npm_packages_are_present_at_the_start_of_a_sandbox_a_run_and_in_a_base",
            reason,
        );
    }
    let (place, registry) = (TestDir::new(), stocked());
    let answer = "console.log(require('demo-one').answer)";
    {
        let server = server(&place, &registry.url());
        let made = server.call("create_sandbox", json!({"packages": ["npm:demo-one@1"]}));
        assert!(!made.is_error(), "{made:?}\n{}", server.log());
        let id = made.0["structuredContent"]["sandbox_id"].clone();
        let used = server.call(
            "execute_code",
            json!({"sandbox_id": id, "code": answer, "language": "javascript"}),
        );
        assert_eq!(used.output().trim(), "42", "{used:?}");
        // The prefix of the name decides the registry, not the language of the call.
        let more = server.call(
            "install_package",
            json!({"sandbox_id": id, "packages": ["npm:@scope/helper", " npm:demo-one@1.0.0"]}),
        );
        assert!(
            more.all().contains("already there: ") && more.all().contains("demo-one 1.0.0"),
            "{more:?}"
        );
        for (package, part) in [
            ("npm:git+https://evil.example/x", "not accepted"),
            ("npm:--registry=x", "options"),
            ("npm:npm:demo-one", "not accepted"),
            ("npm:", "not a package name"),
            ("pypi:npm:demo-one", "npm is not on this machine"),
        ] {
            let refused = server.call("create_sandbox", json!({"packages": [package]}));
            assert!(
                refused.is_error() && refused.all().contains(part),
                "{package}: {refused:?}"
            );
        }
    }
    let command = |arguments: &[&str]| {
        let output = command(&place, &registry.url(), arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (said, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let file = place.write("program.js", answer);
    let file = file.to_str().unwrap();
    let (said, log) = command(&["run", "--package", "npm:demo-one@1", file]);
    assert_eq!(said.trim(), "42", "{log}");
    let (said, log) = command(&["base", "build", "tools", "npm:demo-one@1"]);
    assert!(
        said.contains("base tools") && said.contains("demo-one 1.0.0"),
        "{said}\n{log}"
    );
    let (said, log) = command(&["base", "list", "--json"]);
    let list: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}\n{log}"));
    assert_eq!(
        (&list[0]["usable"], &list[0]["packages"], &list[0]["npm"][0]["name"]),
        (&json!(true), &json!([]), &json!("@scope/helper")),
        "{list}"
    );
    let asked = registry.asked().len();
    let server = Client::start(self::command(&place, &registry.url(), &["serve"]).env("SANDCELL_BASE", "tools"));
    assert_eq!(js(&server, answer).output().trim(), "42");
    let status = server.call("get_sandbox_status", json!({})).0.to_string();
    assert!(status.contains("demo-one 1.0.0"), "{status}");
    let bases = command(&["base", "remove", "tools"]);
    assert!(!bases.1.contains("error"), "{bases:?}");
    assert_eq!(registry.asked().len(), asked, "the registry was asked again");
}

#[test]
fn invalid_npm_names_are_refused_and_operator_lists_apply_to_dependencies() {
    let _turn = begin!();
    if let Some(reason) = missing() {
        return skip(
            "npm::invalid_npm_names_are_refused_and_operator_lists_apply_to_dependencies",
            reason,
        );
    }
    let registry = stocked();
    {
        let place = TestDir::new();
        let server = server(&place, &registry.url());
        for (package, part) in [
            ("--registry=http://evil.example", "options"),
            ("git+https://evil.example/x", "not accepted"),
            ("file:/etc", "not accepted"),
            ("me/repository", "not accepted"),
            ("x@npm:demo-one", "not accepted"),
            ("demo-one; touch x", "not a package name"),
            ("fs", "built in"),
        ] {
            let answer = install(&server, json!([package]));
            assert!(
                answer.is_error() && answer.all().contains(part),
                "{package}: {answer:?}"
            );
        }
        assert_eq!(registry.asked(), Vec::<String>::new());
    }
    for (settings, package, part) in [
        ("npm_allow = [\"demo-one\"]", "demo-one@1", "@scope/helper"),
        ("npm_allow = [\"demo-one@1\", \"@scope/*\"]", "demo-one@2", "demo-one"),
        ("npm_deny = [\"@scope/*\"]", "demo-one@1", "@scope/helper"),
        ("npm_deny = [\"demo-one\"]", "demo-one@1", "demo-one"),
        ("allow = [\"numpy\"]", "demo-one@1", "npm_allow"),
    ] {
        let place = TestDir::with_settings(&format!("[packages]\n{settings}\n"));
        let server = server(&place, &registry.url());
        let answer = install(&server, json!([package]));
        assert!(
            answer.all().contains("package_not_allowed") && answer.all().contains(part),
            "{settings}: {answer:?}\n{}",
            server.log()
        );
    }
    let place = TestDir::with_settings("[packages]\nnpm_allow = [\"demo-one@1\", \"@scope/*\"]\n");
    let server = server(&place, &registry.url());
    let answer = install(&server, json!(["demo-one"]));
    assert!(
        answer.all().contains("demo-one 1.0.0"),
        "an older version is allowed: {answer:?}"
    );
}

#[test]
fn a_hostile_npm_package_touches_nothing_and_a_bad_registry_is_named() {
    let _turn = begin!();
    if let Some(reason) = missing() {
        return skip(
            "npm::a_hostile_npm_package_touches_nothing_and_a_bad_registry_is_named",
            reason,
        );
    }
    let (place, registry) = (
        TestDir::with_settings("[packages]\ndisk_mb = 32\nfile_mb = 64\n"),
        Registry::start(),
    );
    let main = || file("package/index.js", "exports.fine = true;");
    registry.publish(
        "traps",
        "1.0.0",
        json!({}),
        &[
            main(),
            file("package/../../../../../../../../tmp/climbed", "x"),
            file("/tmp/rooted", "x"),
            Entry::Link("package/passwd", "/etc/passwd"),
            Entry::Link("package/up", "../../../../../.."),
            file("package/up/tmp/through", "x"),
            Entry::Hard("package/hard", "/etc/passwd"),
            Entry::Device("package/device"),
        ],
    );
    registry.publish_as("liar", "1.0.0", json!({}), &[main()], Some("sha512-AAAA"), None);
    registry.publish_as("endless", "1.0.0", json!({}), &[main()], None, Some(100 << 30));
    registry.publish(
        "bomb",
        "1.0.0",
        json!({}),
        &[file("package/big", &"x".repeat(20 << 20))],
    );
    for (name, needs) in [
        ("wants-git", "git+https://evil.example/x.git"),
        ("wants-file", "file:/etc"),
    ] {
        registry.publish(name, "1.0.0", json!({"dependencies": {"x": needs}}), &[main()]);
    }
    let server = server(&place, &registry.url());
    for (package, part) in [
        ("liar", "package_failed"),
        ("endless", "more than"),
        ("bomb", "disk_full"),
        ("wants-git", "package_failed"),
        ("wants-file", "package_failed"),
        ("garbage", "not package JSON"),
        ("broken", "status 500"),
        ("not-there", "there is no npm package called not-there"),
    ] {
        let answer = install(&server, json!([package]));
        assert!(answer.all().contains(part), "{package}: {answer:?}\n{}", server.log());
    }
    let done = install(&server, json!(["traps"]));
    // The package is either refused, or installed without the links that lead out of it.
    if done.status() == "ok" {
        let code = "const fs = require('fs'); const root = fs.realpathSync('node_modules/traps'); console.log(require('traps').fine, fs.readdirSync(root).filter((name) => !fs.lstatSync(root + '/' + name).isFile()).join())";
        let seen = js(&server, code);
        assert!(
            seen.output().starts_with("true") && !seen.output().contains("passwd"),
            "{seen:?}"
        );
    }
    for path in ["/tmp/climbed", "/tmp/rooted", "/tmp/through"] {
        assert!(!PathBuf::from(path).exists(), "{path}");
    }
    let owners = place.path("data").join("packages").join("drafts");
    assert_eq!(
        std::fs::read_dir(owners).map_or(0, Iterator::count),
        0,
        "a draft is left"
    );
    let nowhere = TestDir::new();
    let answer = install(&self::server(&nowhere, "http://127.0.0.1:1/"), json!(["traps"]));
    assert!(answer.all().contains("could not be reached"), "{answer:?}");
}
