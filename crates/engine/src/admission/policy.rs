//! Checks of requests. Pure: it sees a request and the settings, and nothing else.
//!
//! Every check happens before anything is made or started, so that a refused call changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{
    Advice, ByteSize, Code, Cpus, Failure, Finding, Language, Limits, MAX_TIMEOUT, NetworkRule, SandboxPath, Severity,
};

use crate::{Analysis, CreateRequest, EngineConfig, SandboxId};

/// The maximum length of the name of a session.
const MAX_SESSION_NAME: usize = 64;
/// The maximum lifetime that a request can ask for.
pub const MAX_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// The minimum memory limit. Below it no interpreter starts. A clear refusal is better than a puzzling crash later.
pub const MIN_MEMORY: ByteSize = ByteSize::mib(16);
const MIN_DISK: ByteSize = ByteSize::mib(1);
/// The smallest share that the kernel's quota can express (1 ms in 100 ms).
const MIN_CPUS: Cpus = Cpus::milli(10);
const MAX_ENV: usize = 100;
const MAX_ENV_VALUE: usize = 32 * 1024;
const MAX_LABEL: usize = 100;
const MAX_FILES: usize = 100;
const MAX_ARGS: usize = 1000;
const MAX_ARGS_BYTES: usize = 128 * 1024;
/// The maximum number of bytes of standard input in one call. The same number of bytes waits for a command that does
/// not read.
pub(crate) const MAX_STDIN_PART_BYTES: usize = 1 << 20;
/// The maximum size of all requested output files of one run together.
pub(crate) const MAX_OUTPUT_BYTES: u64 = 32 << 20;

/// Checks source code: not empty, not too long, no NUL.
pub(crate) fn code(config: &EngineConfig, code: &str) -> Result<(), Failure> {
    let limit = config.code_bytes.as_bytes();
    if bytes_of(code.len()) > limit {
        return Err(Failure::invalid(
            format!("the code has {} bytes; at most {limit} are possible", code.len()),
            "split it over several calls, or write the data into a file and read it from there",
        ));
    }
    if code.contains('\0') {
        return Err(Failure::invalid(
            "the code contains a NUL character",
            "write it as an escape of the language, such as \\x00",
        ));
    }
    if code.trim().is_empty() {
        return Err(Failure::invalid("the code is empty", "pass the code to run"));
    }
    Ok(())
}

/// Checks text for standard input, with the same bound as code.
pub(crate) fn stdin(config: &EngineConfig, stdin: Option<&str>) -> Result<(), Failure> {
    let limit = config.code_bytes.as_bytes();
    match stdin {
        Some(text) if bytes_of(text.len()) > limit => Err(Failure::invalid(
            format!("stdin has {} bytes; at most {limit} are possible", text.len()),
            "write the data into a file and read it from there",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Checks a part of a command's standard input.
pub(crate) fn stdin_part(bytes: &Bytes) -> Result<(), Failure> {
    if bytes.len() <= MAX_STDIN_PART_BYTES {
        return Ok(());
    }
    Err(Failure::new(
        Code::LimitReached,
        format!(
            "stdin has {} bytes; at most {MAX_STDIN_PART_BYTES} are possible in one call",
            bytes.len()
        ),
        "start the command with keep_stdin, and send parts with write_stdin",
    ))
}

/// Returns the time limit of an execution.
pub(crate) fn timeout(config: &EngineConfig, asked: Option<Duration>) -> Result<Duration, Failure> {
    match asked {
        None => Ok(config.timeout),
        Some(asked) if asked.is_zero() || asked > MAX_TIMEOUT => Err(Failure::invalid(
            format!("a time-out of {} s is not possible", asked.as_secs_f64()),
            format!("choose more than 0 and at most {} s", MAX_TIMEOUT.as_secs()),
        )),
        Some(asked) => Ok(asked),
    }
}

/// Returns the limits of a sandbox: the requested ones, with the default for the rest.
pub(crate) fn limits(
    config: &EngineConfig,
    memory: Option<ByteSize>,
    cpus: Option<Cpus>,
    disk: Option<ByteSize>,
) -> Result<Limits, Failure> {
    let (mut limits, most) = (config.limits.clone(), &config.max_limits);
    if let Some(asked) = memory {
        within(
            "memory",
            "MiB",
            asked.as_mib(),
            MIN_MEMORY.as_mib(),
            most.memory.as_mib(),
        )?;
        limits.memory = asked;
    }
    if let Some(asked) = disk {
        within("disk", "MiB", asked.as_mib(), MIN_DISK.as_mib(), most.disk.as_mib())?;
        limits.disk = asked;
    }
    if let Some(asked) = cpus {
        within(
            "processor time",
            "thousandths of a core",
            asked.as_milli().into(),
            MIN_CPUS.as_milli().into(),
            most.cpus.as_milli().into(),
        )?;
        limits.cpus = asked;
    }
    Ok(limits)
}

/// Returns the memory of a sandbox for one run: the requested size, else the language's need where that is more than
/// the default, within the operator's maximum.
pub(crate) fn memory(config: &EngineConfig, asked: Option<ByteSize>, language: &dyn Language) -> Option<ByteSize> {
    let needed = language.memory().min(config.max_limits.memory);
    asked.or_else(|| (needed > config.limits.memory).then_some(needed))
}

/// Returns the static-analysis findings that the caller should know.
///
/// In strict mode code with a finding that denies is refused. The failure names every such finding.
pub(crate) fn findings(
    config: &EngineConfig,
    language: &dyn Language,
    code: &str,
    stdin: Stdin,
    network: &NetworkRule,
) -> Result<Vec<Finding>, Failure> {
    if config.analysis == Analysis::Off {
        return Ok(Vec::new());
    }
    let advice = Advice {
        network: *network != NetworkRule::None,
        stdin: stdin == Stdin::Given,
        modules: None,
    };
    let (denied, noticed): (Vec<Finding>, Vec<Finding>) = language
        .analyse(code, &advice)
        .into_iter()
        .partition(|finding| finding.severity == Severity::Deny);
    if config.analysis == Analysis::Strict && !denied.is_empty() {
        let told = denied
            .iter()
            .take(10)
            .map(|finding| format!("line {}: {}", finding.line, finding.message));
        return Err(Failure::new(
            Code::CodeRejected,
            format!("the code was not run: {}", told.collect::<Vec<_>>().join("; ")),
            "write it without these; the operator's setting analysis = \"strict\" refuses them",
        ));
    }
    Ok(noticed)
}

/// The presence of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    Given,
    Absent,
}

impl Stdin {
    pub(crate) const fn of(text: Option<&str>) -> Self {
        match text {
            Some(_) => Self::Given,
            None => Self::Absent,
        }
    }
}

fn within(what: &str, unit: &str, asked: u64, least: u64, most: u64) -> Result<(), Failure> {
    if asked < least {
        return Err(Failure::invalid(
            format!("{asked} {unit} of {what} are too little"),
            format!("ask for at least {least} and at most {most} {unit}"),
        ));
    }
    if asked > most {
        return Err(Failure::new(
            Code::LimitReached,
            format!("{asked} {unit} of {what} are more than the {most} that the operator allows"),
            format!("ask for at most {most} {unit}"),
        ));
    }
    Ok(())
}

/// Checks a request for new sandboxes, except for free room.
pub(crate) fn create(config: &EngineConfig, req: &CreateRequest, backends: &[&'static str]) -> Result<Limits, Failure> {
    if req.count == 0 {
        return Err(Failure::invalid("count is 0", "ask for at least one sandbox"));
    }
    if let Some(name) = &req.backend
        && !backends.contains(&name.as_str())
    {
        return Err(Failure::invalid(
            format!(
                "there is no back end called '{}'",
                crate::api::ids::quote_for_error(name)
            ),
            format!("choose one of: {}", backends.join(", ")),
        ));
    }
    lifetime(req.lifetime)?;
    label(req.label.as_deref())?;
    key(req)?;
    image(req.image.as_deref())?;
    env(&req.env)?;
    limits(config, req.memory, req.cpus, req.disk)
}

/// Checks the time until the end of a sandbox.
pub(crate) fn lifetime(lifetime: Option<Duration>) -> Result<(), Failure> {
    match lifetime {
        Some(lifetime) if lifetime.is_zero() || lifetime > MAX_LIFETIME => Err(Failure::invalid(
            format!("a lifetime of {} s is not possible", lifetime.as_secs_f64()),
            format!("choose more than 0 and at most {} s", MAX_LIFETIME.as_secs()),
        )),
        _ => Ok(()),
    }
}

/// Checks the name of a session.
pub(crate) fn session_name(name: &str) -> Result<String, Failure> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > MAX_SESSION_NAME || !name.bytes().all(fits) {
        return Err(Failure::invalid(
            format!(
                "'{}' is not a name of a session",
                crate::api::ids::quote_for_error(name)
            ),
            format!("use 1 to {MAX_SESSION_NAME} lower-case letters, digits, - and _"),
        ));
    }
    Ok(name.to_owned())
}

/// Checks the name of a checkpoint.
pub(crate) fn checkpoint_name(name: &str) -> Result<String, Failure> {
    let known = state_name(name, "a checkpoint")?;
    if RESERVED_CHECKPOINTS.iter().any(|reserved| name.starts_with(reserved)) {
        return Err(Failure::invalid(
            format!("checkpoints named '{name}' are made by calls with alternatives"),
            "use another name",
        ));
    }
    Ok(known)
}

/// Checks the name of a saved state.
pub(crate) fn saved_name(name: &str) -> Result<String, Failure> {
    state_name(name, "a saved state")
}

fn state_name(name: &str, of: &str) -> Result<String, Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !begins || name.len() > MAX_SESSION_NAME || !name.bytes().all(fits) {
        return Err(Failure::invalid(
            format!("'{}' is not a name of {of}", crate::api::ids::quote_for_error(name)),
            format!("use 1 to {MAX_SESSION_NAME} letters, digits, -, _ and ., beginning with a letter or digit"),
        ));
    }
    Ok(name.to_owned())
}

/// The beginnings of names that callers cannot give.
const RESERVED_CHECKPOINTS: [&str; 2] = ["before-alternatives", "alternative-"];

fn label(label: Option<&str>) -> Result<(), Failure> {
    let Some(label) = label else { return Ok(()) };
    if label.chars().count() > MAX_LABEL || label.chars().any(char::is_control) {
        return Err(Failure::invalid(
            "the label is too long or has control characters",
            format!("use at most {MAX_LABEL} visible characters"),
        ));
    }
    Ok(())
}

fn key(req: &CreateRequest) -> Result<(), Failure> {
    let Some(key) = &req.key else { return Ok(()) };
    if key.is_empty() || key.chars().count() > MAX_LABEL || key.chars().any(char::is_control) {
        return Err(Failure::invalid(
            "the key is empty, too long or has control characters",
            format!("use 1 to {MAX_LABEL} visible characters"),
        ));
    }
    if req.count != 1 {
        return Err(Failure::invalid(
            "a key is for one sandbox",
            "leave count out, or make each with a separate key",
        ));
    }
    Ok(())
}

/// Checks that two calls with the same key have the same request. The failure names the differences.
pub(crate) fn same_request(now: &CreateRequest, before: &CreateRequest, id: &SandboxId) -> Result<(), Failure> {
    let differs = [
        ("packages", now.packages != before.packages),
        ("env", now.env != before.env),
        ("memory_mb", now.memory != before.memory),
        ("cpus", now.cpus != before.cpus),
        ("disk_mb", now.disk != before.disk),
        ("lifetime_s", now.lifetime != before.lifetime),
        ("label", now.label != before.label),
        ("backend", now.backend != before.backend),
        ("image", now.image != before.image),
        ("network", now.network != before.network),
        ("functions", now.functions != before.functions),
        ("from_saved", now.from != before.from),
    ];
    let differs: Vec<&str> = differs
        .into_iter()
        .filter_map(|(name, so)| so.then_some(name))
        .collect();
    if differs.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid(
        format!(
            "the key belongs to sandbox {id}, which was requested with other values: {}",
            differs.join(", ")
        ),
        "repeat the earlier call unchanged, use another key, or close that sandbox first",
    ))
}

pub(crate) fn image(image: Option<&str>) -> Result<(), Failure> {
    let Some(image) = image else { return Ok(()) };
    // The characters of an image reference. A tool could read a leading dash as an option.
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if image.is_empty() || image.len() > 255 || image.starts_with('-') || !image.chars().all(fits) {
        return Err(Failure::invalid(
            format!(
                "'{}' is not the name of an image",
                crate::api::ids::quote_for_error(image)
            ),
            "write it like alpine:3.20 or registry.example/name@sha256:…",
        ));
    }
    Ok(())
}

/// Checks environment variables: shell names, values without NUL.
pub(crate) fn env(env: &BTreeMap<String, String>) -> Result<(), Failure> {
    if env.len() > MAX_ENV {
        return Err(Failure::invalid(
            format!("env has {} variables", env.len()),
            format!("use at most {MAX_ENV}"),
        ));
    }
    for (name, value) in env {
        let mut letters = name.bytes();
        let starts = letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        if !starts || name.len() > 255 || !letters.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(Failure::invalid(
                format!(
                    "'{}' is not the name of a variable",
                    crate::api::ids::quote_for_error(name)
                ),
                "use letters, digits and _, not starting with a digit",
            ));
        }
        if value.len() > MAX_ENV_VALUE || value.contains('\0') {
            return Err(Failure::invalid(
                format!("the value of {name} is too long or contains a NUL character"),
                format!("use at most {MAX_ENV_VALUE} bytes, or write it into a file"),
            ));
        }
    }
    Ok(())
}

/// Checks the files that a fresh sandbox starts with, and the requested output files.
pub(crate) fn transfers(
    config: &EngineConfig,
    files: &[(SandboxPath, Bytes)],
    outputs: &[SandboxPath],
) -> Result<(), Failure> {
    if files.len() > MAX_FILES || outputs.len() > MAX_FILES {
        return Err(Failure::invalid(
            format!("{} files and {} outputs are too many", files.len(), outputs.len()),
            format!("use at most {MAX_FILES} of each; pack them into an archive"),
        ));
    }
    for (path, bytes) in files {
        file_size(config, path, bytes.len())?;
    }
    Ok(())
}

/// Checks the size of one file call.
pub(crate) fn file_size(config: &EngineConfig, path: &SandboxPath, size: usize) -> Result<(), Failure> {
    let limit = config.file_bytes.as_bytes();
    if bytes_of(size) > limit {
        return Err(Failure::new(
            Code::LimitReached,
            format!("{path} would get {size} bytes; one call moves at most {limit}"),
            "write it in parts with append",
        ));
    }
    Ok(())
}

/// Checks the arguments of a program.
pub(crate) fn args(args: &[String]) -> Result<(), Failure> {
    let total: usize = args.iter().map(String::len).sum();
    if args.len() > MAX_ARGS || total > MAX_ARGS_BYTES || args.iter().any(|arg| arg.contains('\0')) {
        return Err(Failure::invalid(
            "the program's arguments are too many, too long, or contain a NUL character",
            format!("use at most {MAX_ARGS} with {MAX_ARGS_BYTES} bytes together"),
        ));
    }
    Ok(())
}

/// Converts a length to the integer type of limits.
pub(crate) fn bytes_of(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EngineConfig {
        EngineConfig::default()
    }

    #[test]
    fn code_that_is_empty_too_long_or_has_nul_is_refused() {
        let config = config();
        for bad in ["", "  \n\t ", "print(1)\0", "\u{3000}"] {
            assert_eq!(code(&config, bad).unwrap_err().code, Code::InvalidArgument, "{bad:?}");
        }
        let long = "#".repeat((1 << 20) + 1);
        let refused = code(&config, &long).unwrap_err();
        assert!(
            refused.message.contains("1048577") && refused.message.contains("1048576"),
            "{refused}"
        );
        assert!(code(&config, &long[1..]).is_ok());
    }

    #[test]
    fn a_timeout_is_more_than_zero_and_at_most_an_hour() {
        let config = config();
        assert_eq!(timeout(&config, None).unwrap(), Duration::from_secs(30));
        assert!(timeout(&config, Some(Duration::from_secs(3600))).is_ok());
        for bad in [
            Duration::ZERO,
            Duration::from_secs(3601),
            Duration::MAX,
            Duration::from_millis(3_600_001),
        ] {
            let refused = timeout(&config, Some(bad)).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument);
            assert!(refused.remedy.contains("3600"), "{refused}");
        }
    }

    #[test]
    fn limits_of_zero_are_invalid_and_huge_ones_name_the_maximum() {
        let config = config();
        let mib = |n| Some(ByteSize::mib(n));
        assert_eq!(
            limits(&config, mib(0), None, None).unwrap_err().code,
            Code::InvalidArgument
        );
        assert_eq!(
            limits(&config, None, None, mib(0)).unwrap_err().code,
            Code::InvalidArgument
        );
        assert_eq!(
            limits(&config, None, Some(Cpus::milli(0)), None).unwrap_err().code,
            Code::InvalidArgument
        );
        let refused = limits(&config, mib(u64::MAX), None, None).unwrap_err();
        assert_eq!(refused.code, Code::LimitReached);
        assert!(refused.remedy.contains("16384"), "{refused}");
        assert_eq!(limits(&config, mib(64), None, None).unwrap().memory, ByteSize::mib(64));
    }

    #[test]
    fn a_request_for_sandboxes_is_checked_in_every_field() {
        let base = CreateRequest {
            count: 1,
            ..CreateRequest::default()
        };
        let with = |change: &dyn Fn(&mut CreateRequest)| {
            let mut req = base.clone();
            change(&mut req);
            create(&config(), &req, &["native"])
        };
        assert!(with(&|_| {}).is_ok());
        type Change = Box<dyn Fn(&mut CreateRequest)>;
        let bad: Vec<Change> = vec![
            Box::new(|r| r.count = 0),
            Box::new(|r| r.backend = Some("docker".into())),
            Box::new(|r| r.lifetime = Some(Duration::ZERO)),
            Box::new(|r| r.lifetime = Some(Duration::MAX)),
            Box::new(|r| r.label = Some("x".repeat(101))),
            Box::new(|r| r.label = Some("a\nb".into())),
            Box::new(|r| r.image = Some(String::new())),
            Box::new(|r| r.image = Some("--privileged".into())),
            Box::new(|r| r.image = Some("a b".into())),
            Box::new(|r| drop(r.env.insert("1A".into(), String::new()))),
            Box::new(|r| drop(r.env.insert("A=B".into(), String::new()))),
            Box::new(|r| drop(r.env.insert(String::new(), String::new()))),
            Box::new(|r| drop(r.env.insert("A".into(), "x\0".into()))),
            Box::new(|r| r.env = (0..101).map(|n| (format!("V{n}"), String::new())).collect()),
        ];
        for (n, change) in bad.iter().enumerate() {
            assert_eq!(with(change).unwrap_err().code, Code::InvalidArgument, "case {n}");
        }
        let refused = with(&bad[1]).unwrap_err();
        assert!(refused.remedy.contains("native"), "{refused}");
    }

    #[test]
    fn arguments_are_bounded() {
        assert!(args(&["a".into(), String::new()]).is_ok());
        assert!(args(&["a\0".into()]).is_err());
        assert!(args(&vec![String::new(); 1001]).is_err());
        assert!(args(&["x".repeat(128 * 1024 + 1)]).is_err());
    }
}
