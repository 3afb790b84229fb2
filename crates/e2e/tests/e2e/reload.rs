use serde_json::json;

use crate::packages::{command, stocked};
use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, until};

fn memory_of_a_new_sandbox(server: &Server) -> u64 {
    let made = server.caller().call("create_sandbox", json!({}));
    let memory = made.data()["limits"]["memory_mb"].as_u64();
    let closed = server
        .caller()
        .call("close_sandbox", json!({"sandbox_id": made.data()["sandbox_id"]}));
    assert!(!closed.is_error(), "{}", closed.all());
    memory.unwrap_or_else(|| panic!("{}", made.all()))
}

/// Replaces the settings file by a new one, as editors do.
fn rewrite(place: &TestDir, text: &str) {
    let (file, new) = (place.path("config.toml"), place.path("config.new"));
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, file).unwrap();
}

#[test]
fn package_and_network_rules_are_reloaded_at_run_time() {
    let _turn = begin!();
    let index = stocked();
    let network = "[network]\nallow = [\"a.example\", \"b.example\"]\n";
    let place = TestDir::with_settings(&format!("[packages]\ndeny = [\"demo-one\"]\n{network}"));
    let server = Server::spawn(&mut command(&place, &index.url(), &["serve", "--http", "127.0.0.1:0"]));
    let logged = |words: &str| {
        until(DEFAULT_TIMEOUT, words, || server.log().contains(words).then_some(()));
    };
    let caller = server.caller();
    let install = |what: &str| caller.call("install_package", json!({"packages": [what]}));
    let reach = |host: &str| caller.call("create_sandbox", json!({"network": [host]}));
    install("demo-one==1.0").refused("package_not_allowed");
    let before = reach("a.example");
    let other = reach("b.example");
    // A file with an unreadable list changes no other setting either.
    rewrite(
        &place,
        "[packages]\ndeny = []\nnpm_deny = [\"not a name\"]\n[network]\nallow = []\n",
    );
    logged("those before stay in force");
    install("demo-one==1.0").refused("package_not_allowed");
    assert!(!reach("a.example").is_error());
    rewrite(
        &place,
        "[packages]\ndeny = [\"helper-one==9\"]\n[network]\nallow = [\"b.example\"]\n",
    );
    logged("other settings are in force: network.allow, packages.deny");
    let done = install("demo-one==1.0");
    assert!(done.all().contains("demo-one 1.0"), "{}", done.all());
    reach("a.example").refused("network_denied");
    // Existing sandboxes keep their network access, and the log reports it.
    let id = |made: &sandcell_e2e::client::Answer| made.data()["sandbox_id"].as_str().unwrap().to_owned();
    logged(&format!("{} a.example (not allowed any more)", id(&before)));
    logged(&format!("{} b.example;", id(&other)));
    let kept = caller.call("get_sandbox_status", json!({"sandbox_id": id(&before)}));
    assert!(kept.data().to_string().contains("a.example"), "{}", kept.all());
    // And back again: an earlier permission does not persist.
    rewrite(&place, "[packages]\ndeny = [\"helper-one\"]\n");
    until(DEFAULT_TIMEOUT, "the other rule", || {
        let taken = server.log().matches("in force: network.allow, packages.deny").count();
        (taken == 2).then_some(())
    });
    let refused = caller.call("create_sandbox", json!({"packages": ["demo-one==1.0"]}));
    assert!(
        refused.refused("package_not_allowed").contains("helper-one"),
        "{}",
        refused.all()
    );
}

#[test]
fn caller_limits_are_reloaded_at_run_time() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nrequests_per_caller = 64\n");
    let server = Server::start(&place, &[]);
    let caller = server.caller();
    let slow = json!({"code": "import time\ntime.sleep(12)", "language": "python"});
    let mut open: Vec<_> = (0..3)
        .map(|_| caller.begin(&caller.tool("create_run_close", &slow), ""))
        .collect();
    until(DEFAULT_TIMEOUT, "three calls", || {
        let all = caller.call("get_sandbox_status", json!({}));
        (all.data()["sandboxes"].as_array().unwrap().len() == 3).then_some(())
    });
    rewrite(
        &place,
        "[http]\nrequests_per_caller = 2\nsession_idle_s = 77\npage = true\n",
    );
    server.signal("-HUP");
    until(DEFAULT_TIMEOUT, "the other limit", || {
        server
            .log()
            .contains("in force: http.requests_per_caller, http.session_idle_s")
            .then_some(())
    });
    until(DEFAULT_TIMEOUT, "what needs another start", || {
        server.log().contains("http.page; restart the server").then_some(())
    });
    // Existing requests continue; a new one is refused until two of them have ended.
    caller.request("tools/list", json!({})).refused(429);
    for stream in &mut open {
        let reply = sandcell_e2e::http::Reply::read(stream).unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    until(DEFAULT_TIMEOUT, "a place", || {
        let reply = caller.request("tools/list", json!({}));
        (reply.status == 200).then_some(())
    });
}

#[test]
fn a_changed_file_is_reloaded_a_broken_one_is_not_and_restart_only_settings_are_named() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nmemory_mb = 300\n");
    let server = Server::start(&place, &[]);
    let write = |text: &str| rewrite(&place, text);
    let logged = |words: &str| {
        until(DEFAULT_TIMEOUT, words, || server.log().contains(words).then_some(()));
    };
    assert_eq!(memory_of_a_new_sandbox(&server), 300);
    let before = server.caller().call("create_sandbox", json!({}));
    write("[limits]\nmemory_mb = 400\nsandboxes_per_caller = 2\nhistory_rows = 77\n");
    logged("other settings are in force: limits.memory_mb, limits.sandboxes_per_caller");
    logged("limits.history_rows; restart the server");
    assert_eq!(memory_of_a_new_sandbox(&server), 400);
    let kept = server
        .caller()
        .call("get_sandbox_status", json!({"sandbox_id": before.data()["sandbox_id"]}));
    assert_eq!(
        kept.data()["sandboxes"][0]["limits"]["memory_mb"],
        300,
        "{}",
        kept.all()
    );
    let too_many = server.caller().call("create_sandbox", json!({"count": 2}));
    assert!(
        too_many.refused("limit_reached").contains("1 of 2"),
        "{}",
        too_many.all()
    );
    // A valid line has no effect if another line is invalid.
    write("[limits]\nmemory_mb = 500\ncpus = \"many\"\n");
    logged("those before stay in force");
    assert_eq!(memory_of_a_new_sandbox(&server), 400);
    write("[limits]\nmemory_mb = 500\n[network]\nallow = [\"not a host\"]\n");
    until(DEFAULT_TIMEOUT, "a second warning", || {
        (server.log().matches("those before stay in force").count() == 2).then_some(())
    });
    assert_eq!(memory_of_a_new_sandbox(&server), 400);
    // A hang-up triggers an immediate check, and does not end a server in the background.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap(),
        rustix::process::Signal::HUP,
    )
    .unwrap();
    until(DEFAULT_TIMEOUT, "a third warning", || {
        (server.log().matches("those before stay in force").count() == 3).then_some(())
    });
    write("log = \"info\"\n[limits]\nmemory_mb = 600\n");
    logged("other settings are in force: limits.memory_mb, limits.sandboxes_per_caller, log");
    assert_eq!(memory_of_a_new_sandbox(&server), 600);
}
