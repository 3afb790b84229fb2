//! Tests of `run`: its arguments, and its reports of a program's end.

use super::*;
use clap::Parser;

#[derive(Debug, Parser)]
struct RunOnly {
    #[command(flatten)]
    run: RunArgs,
}

fn parse(args: &[&str]) -> Result<RunArgs, clap::Error> {
    RunOnly::try_parse_from(std::iter::once(&"run").chain(args)).map(|parsed| parsed.run)
}

#[test]
fn arguments_after_two_dashes_belong_to_the_program() {
    let args = parse(&["a.py", "--json", "--", "--timeout", "x"]).unwrap();
    assert_eq!(args.args, ["--timeout", "x"]);
    assert!(args.json && args.timeout.is_none());
    assert_eq!(parse(&[]).unwrap().program, Path::new("-"));
}

#[test]
fn invalid_limits_are_refused() {
    for bad in [
        ["--timeout", "0"],
        ["--timeout", "-1"],
        ["--timeout", "3601"],
        ["--timeout", "nan"],
        ["--timeout", "inf"],
        ["--memory", "0"],
        ["--memory", "99999999999"],
        ["--memory", "1.5"],
    ] {
        assert!(parse(&bad).is_err(), "{bad:?}");
    }
    assert_eq!(
        parse(&["--timeout", "0.5"]).unwrap().timeout,
        Some(Duration::from_millis(500))
    );
}

#[test]
fn an_invalid_path_is_refused_with_its_flag() {
    for bad in ["out.txt:", ":x", "../x:y", "..", "/"] {
        assert!(OutputFile::parse(bad).unwrap_err().message.contains("--out"), "{bad}");
    }
    let folder = tempfile::tempdir().unwrap();
    let out = OutputFile::parse(&format!("/tmp/a.png:{}", folder.path().display())).unwrap();
    assert_eq!(out.host, folder.path().join("a.png"));
    let out = OutputFile::parse("plots/a.png").unwrap();
    assert_eq!(
        (out.sandbox.as_str(), out.host.as_path()),
        ("/home/user/plots/a.png", Path::new("a.png"))
    );
    let out = OutputFile::parse("a.txt:b:c").unwrap();
    assert_eq!(
        (out.sandbox.as_str(), out.host.as_path()),
        ("/home/user/a.txt", Path::new("b:c"))
    );
}

#[test]
fn a_too_long_or_missing_source_is_reported() {
    let failure = read_bounded(Path::new("/dev/zero"), ByteSize::kib(4)).unwrap_err();
    assert_eq!(failure.code, Code::LimitReached);
    let failure = read_bounded(Path::new("/no/such/file"), ByteSize::kib(4)).unwrap_err();
    assert!(failure.message.contains("/no/such/file"));
}

#[test]
fn amounts_may_have_units_and_the_language_a_short_flag() {
    let args = parse(&["-l", "bash", "--memory", "1GB", "--timeout", "5s", "a.sh"]).unwrap();
    assert_eq!(args.language.as_deref(), Some("bash"));
    assert_eq!(args.memory, Some(ByteSize::mib(1024)));
    assert_eq!(args.timeout, Some(Duration::from_secs(5)));
}

#[test]
fn hosts_on_the_command_line_are_allowed_and_only_addresses_may_be_private() {
    let mut network = NetworkSettings {
        allow: vec!["a.example".to_owned()],
        ask: Vec::new(),
        deny: Vec::new(),
        private: Vec::new(),
        connections: 1,
        total: ByteSize::mib(1),
    };
    let named = ["b.example", "none", "10.1.2.3:8080", "::1"].map(str::to_owned);
    allow_hosts(&mut network, &named);
    assert_eq!(network.allow, ["a.example", "b.example", "10.1.2.3:8080", "::1"]);
    assert_eq!(network.private, ["10.1.2.3", "::1"]);
}
