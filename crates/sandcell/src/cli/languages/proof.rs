//! The programs that test a language inside a sandbox, and their expected results.

use std::time::{Duration, Instant};

use bytes::Bytes;
use sandcell_engine::{ExecutionView, Phase, Principal, ProgramRequest, Status, Watch};
use sandcell_languages::table::{Ability, Proof, built_in_proof};
use sandcell_sandbox::{Code, Consent, SandboxPath, SessionEvent};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::wiring::WiredEngine;

/// The time limit of a program that ends by itself.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of a program that never ends.
const ENDLESS_TIMEOUT: Duration = Duration::from_millis(500);
/// The exit status that the first program chooses.
const CHOSEN_STATUS: i32 = 7;

/// Runs the four programs of a language; none if the language has none.
pub(super) async fn run(wired: &WiredEngine, language: &str) -> Option<Result<Duration, String>> {
    let own = wired
        .found
        .table
        .iter()
        .find(|found| sandcell_sandbox::Language::info(*found).name == language)
        .and_then(|found| found.proof().cloned());
    let proof = own.or_else(|| built_in_proof(language))?;
    let started = Instant::now();
    Some(all(wired, language, &proof).await.map(|()| started.elapsed()))
}

async fn all(wired: &WiredEngine, language: &str, proof: &Proof) -> Result<(), String> {
    let told = works(&once(wired, language, &proof.works, PROGRAM_TIMEOUT).await?, proof);
    told.map_err(|reason| format!("the program that works: {reason}"))?;
    let view = once(wired, language, &proof.fails, PROGRAM_TIMEOUT).await?;
    if view.status != Status::Error || view.phase != Phase::Run {
        return Err(format!("the program that fails: {}", ending(&view)));
    }
    let view = once(wired, language, &proof.broken, PROGRAM_TIMEOUT).await?;
    if view.status != Status::Error {
        return Err(format!("the program with a syntax error: {}", ending(&view)));
    }
    let view = once(wired, language, &proof.endless, ENDLESS_TIMEOUT).await?;
    if view.status != Status::Timeout || view.cause.as_ref().is_none_or(|cause| cause.code != Code::Timeout) {
        return Err(format!("the program that never ends: {}", ending(&view)));
    }
    Ok(())
}

async fn once(wired: &WiredEngine, language: &str, code: &str, timeout: Duration) -> Result<ExecutionView, String> {
    let request = ProgramRequest {
        image: None,
        code: code.to_owned(),
        language: language.to_owned(),
        packages: Vec::new(),
        args: vec!["wörld".to_owned()],
        files: vec![(
            SandboxPath::parse("note.txt").map_err(|error| error.to_string())?,
            Bytes::from_static(b"kept\n"),
        )],
        outputs: Vec::new(),
        timeout: Some(timeout),
        memory: None,
        network: Vec::new(),
        consent: Consent::NotAsked,
        compile_timeout: None,
        progress: watch::Sender::new(String::new()),
        watch: Watch::default(),
    };
    let (stdin, from) = mpsc::channel(1);
    let (to, mut events) = mpsc::channel::<SessionEvent>(64);
    let reading = tokio::spawn(async move { while events.recv().await.is_some() {} });
    let who = Principal("cli".into());
    if stdin.send(Bytes::from_static(b"moin\n")).await.is_err() {
        return Err("its standard input could not be given".to_owned());
    }
    drop(stdin);
    let cancel = CancellationToken::new();
    let view = wired.engine.run_program(&who, request, from, to, cancel).await;
    reading.abort();
    view.map_err(|failure| failure.to_string())
}

/// Checks the results of the first program against the language's abilities.
fn works(view: &ExecutionView, proof: &Proof) -> Result<(), String> {
    let can = |ability| proof.can.contains(&ability);
    let mut expected = vec!["héllo ☃"];
    expected.extend(can(Ability::Stdin).then_some("MOIN"));
    expected.extend(can(Ability::Args).then_some("wörld"));
    expected.extend(can(Ability::Files).then_some("kept"));
    let lines: Vec<&str> = view
        .stdout
        .text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let status = if can(Ability::Exit) { CHOSEN_STATUS } else { 0 };
    if lines == expected && view.exit_code == Some(status) {
        return Ok(());
    }
    Err(format!(
        "it printed {lines:?} instead of {expected:?}; {}",
        ending(view)
    ))
}

/// Returns the end of a program, with the last of its output.
fn ending(view: &ExecutionView) -> String {
    let status = match view.exit_code {
        Some(code) => format!("it ended as {:?} with {code}", view.status),
        None => format!("it ended as {:?}", view.status),
    };
    let cause = view
        .cause
        .as_ref()
        .map(|cause| cause.message.clone())
        .unwrap_or_default();
    let mut said: Vec<&str> = view.stderr.text.trim().lines().rev().take(8).collect();
    said.reverse();
    format!("{status}; {cause}; {}", said.join(" | "))
}
