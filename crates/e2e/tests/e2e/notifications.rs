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
fn a_client_with_a_log_level_is_notified_before_its_sandbox_ends() {
    let _turn = begin!();
    expiry(
        &name_of(a_client_with_a_log_level_is_notified_before_its_sandbox_ends),
        "legacy",
    );
}

#[test]
fn a_newest_protocol_call_with_a_log_level_is_notified_too() {
    let _turn = begin!();
    expiry(
        &name_of(a_newest_protocol_call_with_a_log_level_is_notified_too),
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
fn consent_is_asked_by_elicitation_in_a_session() {
    let _turn = begin!();
    asked(
        &name_of(consent_is_asked_by_elicitation_in_a_session),
        "asking",
        "legacy",
    );
}

#[test]
fn consent_is_asked_in_rounds_of_the_newest_protocol() {
    let _turn = begin!();
    asked(
        &name_of(consent_is_asked_in_rounds_of_the_newest_protocol),
        "asking",
        "auto",
    );
}

#[test]
fn an_unanswered_question_is_not_consent() {
    let _turn = begin!();
    asked(&name_of(an_unanswered_question_is_not_consent), "silence", "legacy");
}

#[test]
fn answers_to_other_calls_are_not_accepted() {
    let _turn = begin!();
    asked(&name_of(answers_to_other_calls_are_not_accepted), "forged", "auto");
}
