use serde_json::json;

use crate::support::http::Server;
use crate::support::place::Place;
use crate::support::{PATIENCE, begin, until};

fn memory_of_a_new_sandbox(server: &Server) -> u64 {
    let made = server.caller().call("create_sandbox", json!({}));
    let memory = made.data()["limits"]["memory_mb"].as_u64();
    let closed = server
        .caller()
        .call("close_sandbox", json!({"sandbox_id": made.data()["sandbox_id"]}));
    assert!(!closed.is_error(), "{}", closed.all());
    memory.unwrap_or_else(|| panic!("{}", made.all()))
}

#[test]
fn a_file_that_changes_is_taken_over_a_broken_one_is_not_and_what_needs_a_start_is_named() {
    let _turn = begin!();
    let place = Place::with_settings("[limits]\nmemory_mb = 300\n");
    let server = Server::start(&place, &[]);
    let write = |text: &str| {
        // As editors do: a new file in the place of the old one.
        let (file, new) = (place.path("config.toml"), place.path("config.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, file).unwrap();
    };
    let logged = |words: &str| {
        until(PATIENCE, words, || server.log().contains(words).then_some(()));
    };
    assert_eq!(memory_of_a_new_sandbox(&server), 300);
    let before = server.caller().call("create_sandbox", json!({}));
    write("[limits]\nmemory_mb = 400\nsandboxes_per_caller = 2\nhistory_rows = 77\n");
    logged("other settings are in force: limits.memory_mb, limits.sandboxes_per_caller");
    logged("limits.history_rows; start it anew");
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
    // One good line does not come through when another one is wrong.
    write("[limits]\nmemory_mb = 500\ncpus = \"many\"\n");
    logged("those before stay in force");
    assert_eq!(memory_of_a_new_sandbox(&server), 400);
    write("[limits]\nmemory_mb = 500\n[network]\nallow = [\"not a host\"]\n");
    until(PATIENCE, "a second warning", || {
        (server.log().matches("those before stay in force").count() == 2).then_some(())
    });
    assert_eq!(memory_of_a_new_sandbox(&server), 400);
    // A hang-up looks at once, and does not end a server in the background.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap(),
        rustix::process::Signal::HUP,
    )
    .unwrap();
    until(PATIENCE, "a third warning", || {
        (server.log().matches("those before stay in force").count() == 3).then_some(())
    });
    write("log = \"info\"\n[limits]\nmemory_mb = 600\n");
    logged("other settings are in force: limits.memory_mb, limits.sandboxes_per_caller, log");
    assert_eq!(memory_of_a_new_sandbox(&server), 600);
}
