//! Notifications of ends, and questions for the user, at the official SDK's client.

use std::ffi::OsStr;
use std::process::Command;

use crate::packages::{command, stocked};
use crate::python_sdk::{drive, sdk};
use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of};

/// Runs one topic of the script against a server that this command starts, or against the one at `address`.
fn talk(python: &OsStr, topic: &str, mode: &str, server: &Command, address: Option<&str>) {
    drive(python, "talking.py", &[topic, mode], server, address);
}

/// Tests the notification of a sandbox's end, in both modes.
fn expiry(test: &str, mode: &str) {
    let Some(python) = sdk(test) else { return };
    let place = TestDir::new();
    let command = place.command(&["serve"]);
    talk(&python, "expiry", mode, &command, None);
    let server = Server::start(&place, &[]);
    let address = format!("http://{}/mcp", server.address);
    talk(&python, "expiry", mode, &command, Some(&address));
}

#[test]
fn a_client_that_set_a_level_is_told_before_its_sandbox_ends() {
    let _turn = begin!();
    expiry(
        &name_of(a_client_that_set_a_level_is_told_before_its_sandbox_ends),
        "legacy",
    );
}

#[test]
fn a_call_of_the_newest_protocol_that_asks_for_a_level_is_told_too() {
    let _turn = begin!();
    expiry(
        &name_of(a_call_of_the_newest_protocol_that_asks_for_a_level_is_told_too),
        "auto",
    );
}

/// Starts a server whose operator leaves packages and hosts to the user's consent.
fn asked(test: &str, topic: &str, mode: &str) {
    let Some(python) = sdk(test) else { return };
    let index = stocked();
    let place = TestDir::with_settings(
        "[packages]\nask = [\"*\"]\nallow = [\"unrelated\"]\ndeny = [\"evil\"]\n\
         [network]\nask = [\"*\"]\nallow = [\"allowed.example\"]\n",
    );
    let local = command(&place, &index.url(), &["serve"]);
    talk(&python, topic, mode, &local, None);
    if topic == "asking" {
        let server = Server::spawn(&mut command(&place, &index.url(), &["serve", "--http", "127.0.0.1:0"]));
        let address = format!("http://{}/mcp", server.address);
        talk(&python, topic, mode, &local, Some(&address));
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
