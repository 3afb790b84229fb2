use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::packages::{command, stocked};
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::index::Wheel;
use sandcell_e2e::machine::descendants;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, name_of, skip, until};

/// Runs code in a new sandbox from the pool, as soon as an idle one has loaded this module.
fn in_one_that_waited(server: &Client, module: &str, code: &str) -> Answer {
    let code = format!("import sys\nprint('{module}' in sys.modules)\ndel sys\n{code}");
    until(DEFAULT_TIMEOUT, "a sandbox with the module waits", || {
        let answer = server.call("create_run_close", json!({"code": code}));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        answer.output().starts_with("True\n").then_some(answer)
    })
}

#[test]
fn preloaded_modules_are_loaded_before_the_call_and_otherwise_invisible() {
    let _turn = begin!();
    // `this` prints a poem when it is loaded.
    let place = TestDir::with_settings("preload = [\"this\", \"no_such_module\", \"wave\"]\n[pool]\nparked = 1\n");
    let server = Client::start(&mut place.command(&["serve"]));
    let answer = in_one_that_waited(
        &server,
        "wave",
        "print(sorted(name for name in dir() if name[0] != '_'))",
    );
    assert_eq!(answer.output().trim(), "True\n['In', 'Out']");
    assert!(!answer.all().contains("Beautiful"), "{answer:?}");

    // The name must still be imported, and a missing module is an error as usual.
    let answer = in_one_that_waited(
        &server,
        "wave",
        "import wave\nprint(wave.open.__name__)\ntry: import no_such_module\nexcept ImportError as error: print(error)",
    );
    assert_eq!(answer.output().trim(), "True\nopen\nNo module named 'no_such_module'");
    // An idle sandbox reports it, possibly one that was made after these calls.
    until(DEFAULT_TIMEOUT, "the log names the modules", || {
        server
            .log()
            .contains("no_such_module could not be loaded")
            .then_some(())
    });
    let log = server.log();
    assert_eq!(log.matches("no_such_module could not be loaded").count(), 1, "{log}");
    assert!(!log.contains("wave could not"), "{log}");
}

#[test]
fn forked_sessions_share_no_legacy_numpy_random_state() {
    fn here() {}
    let _turn = begin!();
    let Ok(data) = std::env::var("SANDCELL_TEST_DATA_PYTHON") else {
        return skip(
            &name_of(here),
            "no Python with data libraries (SANDCELL_TEST_DATA_PYTHON names it)",
        );
    };
    let settings =
        format!("python = {data:?}\npreload = [\"numpy.random\"]\n[pool]\nparked = 0\nwarm_parents = true\n");
    let place = TestDir::with_settings(&settings);
    let server = Client::start(&mut place.command(&["serve"]));
    // Random numbers continue after the reported state, so that state is the generator's own.
    let code = "import json, os, numpy\n\
                first = numpy.random.random(3).tolist() + [numpy.random.normal()]\n\
                name, key, place, *rest = numpy.random.get_state()\n\
                again = numpy.random.RandomState()\n\
                again.set_state((name, key, place, *rest))\n\
                same = again.random(1000).tolist() == numpy.random.random(1000).tolist()\n\
                whole = len(set(key.tolist())) > 600\n\
                new = numpy.random.default_rng().random()\n\
                print(json.dumps([os.getppid() == 0, same, whole, first, new]))";
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for _ in 0..4 {
        // A session that started by itself proves nothing.
        seen.insert(until(DEFAULT_TIMEOUT, "a session begins as a copy", || {
            let answer = server.call("create_run_close", json!({"code": code}));
            let said: Value = serde_json::from_str(answer.output().trim()).unwrap();
            assert_eq!((&said[1], &said[2]), (&json!(true), &json!(true)), "{said}");
            (said[0] == json!(true)).then(|| format!("{} {}", said[3], said[4]))
        }));
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn an_idle_session_with_preloaded_modules_is_restored_after_a_crash() {
    let _turn = begin!();
    let place = TestDir::with_settings("preload = [\"wave\"]\n[pool]\nparked = 1\n");
    let server = Client::start(&mut place.command(&["serve"]));
    in_one_that_waited(&server, "wave", "");
    // A session whose snapshot is not ready yet is not restored, and its next interpreter is not preloaded: the test
    // starts over then.
    until(DEFAULT_TIMEOUT, "a session that waited is restored", || {
        let id = server.run("x = 41").sandbox();
        let waited = server.text("import sys\nprint('wave' in sys.modules)") == "True\n";
        let copied = || {
            let living = descendants(server.pid());
            living.iter().any(|seen| seen.name == "sandcell-copy").then_some(())
        };
        if waited {
            until(DEFAULT_TIMEOUT, "the session has a copy", copied);
            let answer = server.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)");
            assert_eq!(answer.status(), "killed", "{answer:?}");
            // Not a restore from an older snapshot: on a slow machine, one may be made during the wait, and the next
            // one late.
            if answer.meta()["restored"]["cell"] == 2 {
                return Some(());
            }
        }
        server.call("close_sandbox", json!({"sandbox_id": id}));
        None
    });
    assert_eq!(server.text("print(x + 1, 'wave' in sys.modules)").trim(), "42 True");
}

#[test]
fn an_invalid_module_name_is_refused_at_startup() {
    let _turn = begin!();
    let place = TestDir::with_settings("preload = [\"os; print(1)\"]\n");
    let output = place.command(&["serve"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("`preload`") && text.contains("os; print(1)"),
        "{text}"
    );
}

#[test]
fn installed_packages_win_over_preloaded_ones() {
    let _turn = begin!();
    let settings = "base = \"tools\"\npreload = [\"demo_one\"]\n[pool]\nparked = 1\n";
    let (place, index) = (TestDir::with_settings(settings), stocked());
    index.add(&Wheel::new("other", "1.0").file("other.py", "name = 'other'\n"));
    let arguments = ["base", "build", "tools", "demo-one==1.0"];
    let built = command(&place, &index.url(), &arguments).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
    let waits = || drop(in_one_that_waited(&server, "demo_one", ""));
    let look = "import sys\nprint('demo_one' in sys.modules)\nimport demo_one\nprint(demo_one.answer)";

    waits();
    let answer = server.call("create_run_close", json!({"code": look, "packages": ["demo-one==2.0"]}));
    assert_eq!(answer.output(), "False\n2\n", "{answer:?}");

    waits();
    let answer = server.call("create_sandbox", json!({"packages": ["demo-one==2.0"]}));
    let answer = server.call(
        "execute_code",
        json!({"code": look, "sandbox_id": answer.data()["sandbox_id"]}),
    );
    assert_eq!(answer.output(), "False\n2\n", "{answer:?}");

    // No other action discards the loaded modules.
    waits();
    let code = format!("{look}\nimport other\nprint(other.name)");
    let answer = server.call("create_run_close", json!({"code": code, "packages": ["other"]}));
    assert_eq!(answer.output(), "True\n42\nother\n", "{answer:?}");
}
