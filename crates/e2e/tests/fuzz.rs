//! Input from callers, mutated, to the real binary. See `crates/fuzz/README.md`.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test"
)]

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;
use sandcell_fuzz::Mutator;
use serde_json::json;

#[test]
fn fuzz_the_server_answers_the_next_call_after_any_input() {
    let _turn = begin!();
    let place = TestDir::new();
    let client = Client::start(&mut place.command(&["serve"]));
    // Valid calls need an existing session.
    assert_eq!(client.text("print(1)").trim(), "1");
    // Skip ids that mutated input may have used.
    for _ in 0..100_000 {
        client.fresh_id();
    }
    let mut mutator = Mutator::new("mcp");
    while let Some(bytes) = mutator.next() {
        // The transport reads lines. No code runs, so that only the parsing is measured.
        for line in bytes.split(|byte| *byte == b'\n') {
            client.send_line(line);
        }
        if mutator.tried.is_multiple_of(50) {
            // A mutated line may have used the same id in an invalid request, but not three times.
            let answers: Vec<_> = (0..3).map(|_| client.request_raw("ping", json!({}))).collect();
            let answered = answers.iter().any(|answer| answer.get("result").is_some());
            assert!(answered, "{answers:?}\n{}", client.log());
        }
    }
    assert_eq!(client.text("print(6 * 7)").trim(), "42");
    assert_eq!(client.noise(), Vec::<String>::new());
    assert!(!client.log().contains("panicked"), "{}", client.log());
    println!("{} inputs", mutator.tried);
}

#[test]
fn fuzz_settings_are_accepted_or_refused_with_a_reason() {
    let place = TestDir::new();
    let mut mutator = Mutator::new("config");
    for bytes in mutator.by_ref() {
        let file = place.write("fuzzed.toml", &bytes);
        let output = place
            .command(&["config", "--config", &file.display().to_string()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code();
        assert!(
            !said.contains("panicked") && code.is_some(),
            "{code:?} {said}\n{}",
            String::from_utf8_lossy(&bytes)
        );
        assert!(code == Some(0) || !said.trim().is_empty(), "{code:?} without a word");
    }
    println!("{} inputs", mutator.tried);
}
