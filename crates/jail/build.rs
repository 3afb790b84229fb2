//! Turns `policy/seccomp.policy` into a Rust table, so that a mistake in the data breaks the build.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a build script fails by panicking and talks to cargo on stdout"
)]

use std::fmt::Write as _;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=policy/seccomp.policy");
    let text = std::fs::read_to_string("policy/seccomp.policy").expect("policy/seccomp.policy is readable");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo names the architecture");
    let mut table = String::from("&[\n");
    let mut section_applies = true;
    for (index, line) in text.lines().enumerate() {
        let at = format!("policy/seccomp.policy:{}", index + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section_applies = section == arch;
            continue;
        }
        let (rule, reason) = line
            .split_once(" #")
            .unwrap_or_else(|| panic!("{at}: a call needs its reason"));
        assert!(!reason.trim().is_empty(), "{at}: a call needs its reason");
        if section_applies {
            let (name, action) = parse(rule.trim(), &at);
            // `fchmodat2` has the same number on every architecture. libc does not have it for all of them yet.
            let number = match name.as_str() {
                "fchmodat2" => "452".to_owned(),
                _ => format!("libc::SYS_{name}"),
            };
            writeln!(
                table,
                "    Entry {{ name: {name:?}, number: {number}, action: {action} }},"
            )
            .expect("writing to a string");
        }
    }
    table.push(']');
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo names the output folder"));
    std::fs::write(out.join("seccomp_table.rs"), table).expect("the output folder is writable");
}

fn parse(rule: &str, at: &str) -> (String, String) {
    let Some((name, rest)) = rule.split_once(':') else {
        return (rule.to_owned(), "Action::Allow".to_owned());
    };
    let rest = rest.trim();
    if let Some(errno) = rest.strip_prefix("errno ") {
        return (name.trim().to_owned(), format!("Action::Errno(libc::{})", errno.trim()));
    }
    let (conditions, errno) = match rest.split_once(" else ") {
        Some((conditions, errno)) => (conditions, errno.trim()),
        None => (rest, "EPERM"),
    };
    let mut alternatives = String::new();
    for alternative in conditions.split("||") {
        let tests: Vec<String> = alternative
            .split("&&")
            .map(|test| parse_test(test.trim(), at))
            .collect();
        write!(alternatives, "&[{}], ", tests.join(", ")).expect("writing to a string");
    }
    (
        name.trim().to_owned(),
        match errno {
            "DONE" => format!("Action::AllowIf {{ any: &[{alternatives}], errno: 0 }}"),
            errno => format!("Action::AllowIf {{ any: &[{alternatives}], errno: libc::{errno} }}"),
        },
    )
}

fn parse_test(test: &str, at: &str) -> String {
    let words: Vec<&str> = test.split_whitespace().collect();
    let (argument, mask, operator, value) = match words.as_slice() {
        [argument, operator, value] => (*argument, "u64::MAX", *operator, *value),
        [argument, "&", mask, operator, value] => (*argument, *mask, *operator, *value),
        _ => panic!("{at}: cannot read the test {test:?}"),
    };
    let (argument, mask) = match argument.strip_suffix(".low") {
        Some(argument) => (argument, "0xffff_ffff"),
        None => (argument, mask),
    };
    let index = argument
        .strip_prefix("arg")
        .unwrap_or_else(|| panic!("{at}: cannot read the argument {argument:?}"));
    assert!(
        matches!(index, "0" | "1" | "2" | "3" | "4" | "5"),
        "{at}: there is no argument {argument:?}"
    );
    let equal = match operator {
        "==" => true,
        "!=" => false,
        _ => panic!("{at}: cannot read the operator {operator:?}"),
    };
    format!("Test {{ argument: {index}, mask: {mask}, equal: {equal}, value: {value} }}")
}
