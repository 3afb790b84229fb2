//! The official SDK's client is told of ends, and asked what is left to its user.

use std::process::{Command, Stdio};

use crate::packages::{command, stocked};
use crate::support::http::Server;
use crate::support::place::Place;
use crate::support::{begin, name_of, skip, sources};

/// Runs the script about one topic against a server on standard input and output, or against the one at `address`.
fn talk(test: &str, topic: &str, mode: &str, place: &Place, address: Option<&str>) {
    talk_to(&place.command(&["serve"]), test, topic, mode, address);
}

/// The same with a server that is started by this command.
fn talk_to(server: &Command, test: &str, topic: &str, mode: &str, address: Option<&str>) {
    let Some(python) = std::env::var_os("SANDCELL_TEST_MCP_PYTHON") else {
        skip(
            test,
            "no Python with the official MCP SDK (see CONTRIBUTING.md; SANDCELL_TEST_MCP_PYTHON names it)",
        );
        return;
    };
    let mut client = Command::new(python);
    client
        .args(["-I", "-B"])
        .arg(sources().join("crates/sandcell/tests/python_sdk/talking.py"))
        .args([topic, mode])
        .env_clear()
        .envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(server.get_current_dir().unwrap())
        .stdin(Stdio::null());
    match address {
        Some(address) => client.arg(address),
        None => client.arg(server.get_program()).args(server.get_args()),
    };
    let output = client.output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    assert!(said.contains("all steps passed"), "{said}");
}

fn over_http(test: &str, topic: &str, mode: &str, place: &Place) {
    let server = Server::start(place, &[]);
    let address = format!("http://{}/mcp", server.address);
    talk(test, topic, mode, place, Some(&address));
}

#[test]
fn a_client_that_set_a_level_is_told_before_its_sandbox_ends() {
    let _turn = begin!();
    let test = name_of(a_client_that_set_a_level_is_told_before_its_sandbox_ends);
    talk(&test, "expiry", "legacy", &Place::new(), None);
    over_http(&test, "expiry", "legacy", &Place::new());
}

#[test]
fn a_call_of_the_newest_protocol_that_asks_for_a_level_is_told_too() {
    let _turn = begin!();
    let test = name_of(a_call_of_the_newest_protocol_that_asks_for_a_level_is_told_too);
    talk(&test, "expiry", "auto", &Place::new(), None);
    over_http(&test, "expiry", "auto", &Place::new());
}

/// A server whose operator leaves packages and hosts to the user.
fn asked(test: &str, topic: &str, mode: &str) {
    let index = stocked();
    let place = Place::with_settings(
        "[packages]\nask = [\"*\"]\nallow = [\"unrelated\"]\ndeny = [\"evil\"]\n\
         [network]\nask = [\"*\"]\nallow = [\"allowed.example\"]\n",
    );
    talk_to(&command(&place, &index.url(), &["serve"]), test, topic, mode, None);
    if topic == "asking" {
        let server = Server::spawn(&mut command(&place, &index.url(), &["serve", "--http", "127.0.0.1:0"]));
        let address = format!("http://{}/mcp", server.address);
        talk(test, topic, mode, &place, Some(&address));
    }
}

#[test]
fn what_is_left_to_the_user_is_asked_in_a_session() {
    let _turn = begin!();
    asked(
        &name_of(what_is_left_to_the_user_is_asked_in_a_session),
        "asking",
        "legacy",
    );
}

#[test]
fn what_is_left_to_the_user_is_asked_in_rounds_of_the_newest_protocol() {
    let _turn = begin!();
    asked(
        &name_of(what_is_left_to_the_user_is_asked_in_rounds_of_the_newest_protocol),
        "asking",
        "auto",
    );
}

#[test]
fn a_user_who_does_not_answer_has_not_said_yes() {
    let _turn = begin!();
    asked(
        &name_of(a_user_who_does_not_answer_has_not_said_yes),
        "silence",
        "legacy",
    );
}

#[test]
fn no_answer_is_taken_that_was_not_given_to_this_very_call() {
    let _turn = begin!();
    asked(
        &name_of(no_answer_is_taken_that_was_not_given_to_this_very_call),
        "forged",
        "auto",
    );
}
