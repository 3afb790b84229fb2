//! `sandcell doctor`: the isolation that this machine provides, its gaps and their remedies, and a test by attacks.

mod attack_run;
mod attacks;
mod canary;
mod capacity;
mod host;
mod layers;
mod outer;
mod text;
mod verdict;

use std::io;
use std::process::ExitCode;

use clap::Args;
use sandcell_engine::Engine;
use sandcell_languages::{Choice, Detected};
use sandcell_sandbox::{Code, Failure, Language as _, LayerReport, LayerState, LeftOut, Level};
use serde_json::json;
use std::sync::Arc;

use super::install::{self, Configured};
use super::output::{self, Printed, Style};
use crate::config::Settings;
use crate::wiring::{self, Launcher};
use attack_run::{AttackRun, State};
use capacity::CapacityReport;
use host::Advice;

/// Shows the isolation that this machine provides, and attacks its own sandbox to test it
///
/// Each layer that is weaker than it could be is listed with the command that mends it. The attacks run inside a real
/// sandbox of this machine and take a few seconds. Exits with 0 only if sandboxes can be made and every attack held.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Prints {level, ok, layers, attacks, backends}
    #[arg(long)]
    json: bool,
}

const NO_UV: &str = "packages are installed with pip, which takes several times as long as uv would: uv is not on PATH";
const GET_UV: &str = "pip install uv (or pipx install uv), or put the program uv into bin/ of the data folder";
const NO_DATA: &str = "Python in sandboxes has no pandas: the first import fails, and each sandbox has to install it";
const NO_NPM: &str = "packages of npm cannot be installed: node is here, and npm is not on PATH";
const GET_NPM: &str = "apt-get install npm, or put npm of a Node distribution on PATH";

/// All findings.
#[derive(Debug)]
struct Report {
    level: Level,
    floor: Level,
    layers: Vec<LayerReport>,
    left_out: Vec<LeftOut>,
    backends: Vec<BackendRow>,
    python: Result<String, Failure>,
    /// The program of each language, and the reason for the choice.
    choices: Vec<Choice>,
    /// The installer of Python packages: uv's path, or an error where pip is used; none where this build has no
    /// installer.
    uv: Option<Result<std::path::PathBuf, ()>>,
    /// The installer of npm packages; none where Node is absent, or this build has no installer.
    npm: Option<Result<std::path::PathBuf, ()>>,
    /// The reason that the data folder is unusable.
    data_folder: Option<Failure>,
    /// The command that gives sandboxes data libraries. None if they have them.
    data: Option<String>,
    attack_run: Option<AttackRun>,
    /// Other problems that prevent code from running: unreadable settings, a missing base.
    problems: Vec<Failure>,
    host: Vec<Advice>,
    room: CapacityReport,
    /// Outer limits that are lower than those of a sandbox.
    outer: Vec<Advice>,
    clients: Vec<Configured>,
}

/// A back end of the settings.
#[derive(Debug)]
struct BackendRow {
    name: String,
    level: Option<Level>,
    failure: Option<Failure>,
}

impl Report {
    fn ok(&self) -> bool {
        self.python.is_ok()
            && self.backends.iter().any(|backend| backend.failure.is_none())
            && self.attack_run.as_ref().is_some_and(AttackRun::held)
    }
}

pub(super) fn run(args: &DoctorArgs, settings: Settings, launcher: Launcher) -> Printed {
    let runtime = wiring::runtime().map_err(io::Error::other)?;
    let report = runtime.block_on(examine(settings, launcher));
    runtime.shutdown_background();
    if args.json {
        output::json(&as_json(&report))?;
    } else {
        output::text(&text::of(&report, Style::of(&io::stdout())))?;
    }
    Ok(if report.ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn examine(mut settings: Settings, launcher: Launcher) -> Report {
    let floor = settings.isolation_min;
    let allowed = u64::try_from(settings.engine.sandboxes).unwrap_or(u64::MAX);
    // The examination needs more processes than a small configured limit may allow.
    settings.engine.limits.processes = settings.engine.limits.processes.max(32);
    let uv = uv(&settings);
    let base = base(&settings).await;
    let data_folder = settings.data_problem();
    let found = wiring::languages(&settings);
    let limits = settings.engine.limits.clone();
    let wired = wiring::wire_briefly(settings, launcher, found, wiring::VersionQuery::Required).await;
    let python = python(&wired.found).map_err(without_doctor_advice);
    let mut layers = layers(&wired.engine);
    let host = host::advice(situation(&layers));
    let names = |state| {
        let of_state = layers.iter().filter(|layer| layer.state == state);
        of_state.map(|layer| layer.name.clone()).collect::<Vec<_>>()
    };
    let (absent, weaker) = (names(LayerState::Missing), names(LayerState::Degraded));
    let mut problems: Vec<Failure> = wired.problems.iter().cloned().map(without_doctor_advice).collect();
    let attack_run = if python.is_ok() && problems.is_empty() && wired.unready.is_none() {
        attack_run::run(&wired.engine, &absent, &weaker)
            .await
            .map_err(|failure| problems.push(without_doctor_advice(failure)))
            .ok()
    } else {
        None
    };
    let own = wired
        .preferred
        .as_ref()
        .filter(|backend| backend.name() == attack_run::NATIVE_BACKEND);
    let mut backends = backends(&wired);
    let mut level = wired.level();
    if let (None, Some(backend)) = (&attack_run, own)
        && let Some(failed) = layers::failed(backend, limits.clone()).await
    {
        layers = layers::after_failure(layers, &failed);
        if let Some(row) = backends.iter_mut().find(|row| row.name == attack_run::NATIVE_BACKEND) {
            row.failure = Some(without_doctor_advice(failed.failure));
            row.level = None;
        }
        level = backends.iter().find_map(|row| row.level).unwrap_or(Level::None);
    }
    for layer in &mut layers {
        layer.remedy = layer.remedy.as_deref().map(without_doctor);
    }
    // A problem that has its own line is not repeated.
    problems.retain(|problem| {
        python.as_ref().err() != Some(problem)
            && backends.iter().all(|backend| backend.failure.as_ref() != Some(problem))
    });
    let report = Report {
        level,
        floor,
        host,
        room: CapacityReport {
            capacity: wired.engine.capacity(),
            allowed,
        },
        outer: outer::advice(&limits),
        clients: install::configured(),
        layers,
        left_out: left_out(&wired.engine),
        backends,
        attack_run,
        problems,
        npm: npm(&wired.engine),
        data_folder,
        data: base.filter(|_| python.is_ok() && !has_pandas(&wired.found)),
        python,
        choices: wired.found.choices.clone(),
        uv,
    };
    wired.engine.shutdown().await;
    report
}

fn backends(wired: &wiring::WiredEngine) -> Vec<BackendRow> {
    let row = |row: &wiring::BackendState| BackendRow {
        name: row.name.clone(),
        level: row.level,
        failure: row
            .failure
            .clone()
            .or_else(|| {
                // The first working back end: the image that was tried is its image.
                let first = wired.backends.iter().find(|other| other.failure.is_none());
                let unready = wired.unready.as_ref()?;
                first
                    .is_some_and(|first| first.name == row.name)
                    .then(|| unready.clone())
            })
            .map(without_doctor_advice),
    };
    wired.backends.iter().map(row).collect()
}

/// Returns the failure without the advice to run the doctor, which is already running.
fn without_doctor_advice(failure: Failure) -> Failure {
    let remedy = without_doctor(&failure.remedy);
    Failure { remedy, ..failure }
}

/// Returns a remedy without the parts that point to this command.
fn without_doctor(remedy: &str) -> String {
    let parts: Vec<&str> = remedy
        .split("; ")
        .filter(|part| !part.contains("sandcell doctor"))
        .collect();
    if parts.is_empty() {
        "docs/guides/hosts.md lists what each kind of host needs".to_owned()
    } else {
        parts.join("; ")
    }
}

#[cfg(all(target_os = "linux", feature = "native"))]
fn uv(settings: &Settings) -> Option<Result<std::path::PathBuf, ()>> {
    Some(wiring::packages::uv(settings).ok_or(()))
}

/// Returns the command that gives every sandbox a base; none where they have one.
#[cfg(all(target_os = "linux", feature = "native"))]
async fn base(settings: &Settings) -> Option<String> {
    if settings.base.is_some()
        || settings
            .backends
            .first()
            .is_none_or(|first| first != attack_run::NATIVE_BACKEND)
    {
        return None;
    }
    let (bases, _) = wiring::bases(settings, None).await.ok()?;
    let with_pandas = bases.having(&["pandas".to_owned()]).ok().flatten();
    Some(with_pandas.map_or_else(
        || super::DATA_BASE.to_owned(),
        |name| format!("sandcell config set base {name}"),
    ))
}

#[cfg(not(all(target_os = "linux", feature = "native")))]
async fn base(_: &Settings) -> Option<String> {
    None
}

fn has_pandas(found: &Detected) -> bool {
    let python = found.python.as_ref();
    python.is_some_and(|python| python.info().libraries.iter().any(|one| one.starts_with("pandas")))
}

#[cfg(all(target_os = "linux", feature = "native"))]
fn npm(engine: &Engine) -> Option<Result<std::path::PathBuf, ()>> {
    let has_node = engine.languages().iter().any(|language| language.name == "javascript");
    has_node.then(|| wiring::packages::npm().ok_or(()))
}

#[cfg(not(all(target_os = "linux", feature = "native")))]
const fn uv(_settings: &Settings) -> Option<Result<std::path::PathBuf, ()>> {
    None
}

#[cfg(not(all(target_os = "linux", feature = "native")))]
const fn npm(_engine: &Engine) -> Option<Result<std::path::PathBuf, ()>> {
    None
}

fn layers(engine: &Arc<Engine>) -> Vec<LayerReport> {
    engine
        .backends()
        .into_iter()
        .next()
        .map(|backend| backend.layers)
        .unwrap_or_default()
}

/// Returns the mounts of the host that the first back end leaves out.
fn left_out(engine: &Arc<Engine>) -> Vec<LeftOut> {
    let first = engine.backends().into_iter().next();
    first.map(|backend| backend.left_out).unwrap_or_default()
}

/// Returns the inputs of the advice for the host.
fn situation(layers: &[LayerReport]) -> host::Situation {
    host::Situation {
        root: am_root(),
        watched: layers
            .iter()
            .any(|layer| layer.name == "memory_limit" && layer.state != LayerState::Active),
        systemd: host::systemd(),
    }
}

#[cfg(unix)]
fn am_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
const fn am_root() -> bool {
    false
}

fn python(found: &Detected) -> Result<String, Failure> {
    if let Some(python) = &found.python {
        let info = python.info();
        return Ok(match info.libraries.as_slice() {
            [] => info.version.clone(),
            libraries => format!("{} with {}", info.version, libraries.join(", ")),
        });
    }
    let missing = found.missing.iter().find(|missing| missing.name == "python");
    Err(missing.map_or_else(
        || {
            Failure::new(
                Code::LanguageUnavailable,
                "this build has no languages",
                "install another build",
            )
        },
        |missing| missing.failure.clone(),
    ))
}

fn as_json(report: &Report) -> serde_json::Value {
    let empty = AttackRun::default();
    let attack_run = report.attack_run.as_ref().unwrap_or(&empty);
    let backends = report.backends.iter().map(|backend| {
        json!({
            "name": backend.name,
            "available": backend.failure.is_none(),
            "level": backend.level,
            "reason": backend.failure.as_ref().map(|failure| &failure.message),
            "remedy": backend.failure.as_ref().map(|failure| &failure.remedy),
        })
    });
    let python = match &report.python {
        Ok(version) => json!({"available": true, "version": version, "reason": null, "remedy": null}),
        Err(failure) => {
            json!({"available": false, "version": null, "reason": failure.message, "remedy": failure.remedy})
        }
    };
    json!({
        "level": report.level,
        "ok": report.ok(),
        "layers": report.layers,
        "left_out": report.left_out,
        "attacks": {
            "tried": attack_run.count(State::Held) + attack_run.count(State::Breached),
            "held": attack_run.count(State::Held),
            "breached": attack_run.count(State::Breached),
            "not_tried": attack_run.count(State::NotTried),
            "results": attack_run.results,
        },
        "backends": backends.collect::<Vec<_>>(),
        "python": python,
        "languages": report.choices.iter().map(|choice| json!({
            "name": choice.language, "program": choice.program, "reason": choice.reason,
        })).collect::<Vec<_>>(),
        "problems": report.problems,
        "data_folder": report.data_folder,
        "data_libraries": report.data.as_ref().map(|remedy| json!({"reason": NO_DATA, "remedy": remedy})),
        "uv": report.uv.as_ref().map(|uv| json!({
            "available": uv.is_ok(),
            "path": uv.as_ref().ok(),
            "reason": uv.is_err().then_some(NO_UV),
            "remedy": uv.is_err().then_some(GET_UV),
        })),
        "npm": report.npm.as_ref().map(|npm| json!({
            "available": npm.is_ok(),
            "path": npm.as_ref().ok(),
            "reason": npm.is_err().then_some(NO_NPM),
            "remedy": npm.is_err().then_some(GET_NPM),
        })),
        "host": report.host.iter().chain(&report.outer).collect::<Vec<_>>(),
        "capacity": report.room.as_json(),
        "clients": report.clients.iter().map(|row| json!({
            "client": row.client,
            "file": row.file,
            "program": row.program,
            "available": row.trouble.is_none(),
            "reason": row.trouble.as_ref().map(|(reason, _)| reason),
            "remedy": row.trouble.as_ref().map(|(_, remedy)| remedy),
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::text::of as as_text;
    use super::*;

    fn unable() -> Report {
        let failure = Failure::new(
            Code::IsolationUnavailable,
            "isolation layer user namespace is not available: the kernel forbids it",
            "sudo sysctl kernel.unprivileged_userns_clone=1",
        );
        Report {
            level: Level::None,
            floor: Level::Namespace,
            layers: vec![LayerReport {
                name: "user namespace".to_owned(),
                state: LayerState::Missing,
                reason: Some("the kernel forbids it".to_owned()),
                remedy: Some("sudo sysctl kernel.unprivileged_userns_clone=1".to_owned()),
            }],
            left_out: vec![LeftOut {
                path: "/usr/lib/wsl/drivers".to_owned(),
                reason: "9p is not a local file system".to_owned(),
            }],
            backends: vec![BackendRow {
                name: "native".to_owned(),
                level: None,
                failure: Some(failure),
            }],
            python: Ok("3.11.2".to_owned()),
            choices: Vec::new(),
            uv: Some(Err(())),
            npm: Some(Err(())),
            data_folder: None,
            data: None,
            attack_run: None,
            problems: Vec::new(),
            host: vec![Advice {
                name: "kernel.dmesg_restrict",
                now: "0".to_owned(),
                reason: "the log is open".to_owned(),
                remedy: "sudo sysctl -w kernel.dmesg_restrict=1".to_owned(),
            }],
            room: CapacityReport {
                capacity: None,
                allowed: 256,
            },
            outer: Vec::new(),
            clients: Vec::new(),
        }
    }

    #[test]
    fn a_machine_that_cannot_isolate_is_not_ok_and_gets_the_cause_and_the_fix() {
        let report = unable();
        assert!(!report.ok());
        let text = as_text(&report, Style::plain());
        assert!(
            text.contains("Not ready: no sandbox can be made here at level namespace"),
            "{text}"
        );
        assert!(
            text.contains("sudo sysctl kernel.unprivileged_userns_clone=1"),
            "{text}"
        );
        assert!(text.contains("fix: sudo sysctl -w kernel.dmesg_restrict=1"), "{text}");
        assert!(text.contains("npm is not on PATH"), "{text}");
        assert!(text.contains("/usr/lib/wsl/drivers: 9p is not"), "{text}");
        assert!(text.contains("uv is not on PATH"), "{text}");
        let json = as_json(&report);
        assert_eq!(json["host"][0]["remedy"], "sudo sysctl -w kernel.dmesg_restrict=1");
        assert_eq!(json["ok"], false);
        assert_eq!(json["attacks"]["tried"], 0);
        assert_eq!(json["backends"][0]["available"], false);
        assert_eq!(json["layers"][0]["state"], "missing");
    }

    #[test]
    fn a_build_without_package_installs_mentions_no_installers() {
        let report = Report {
            uv: None,
            npm: None,
            ..unable()
        };
        let text = as_text(&report, Style::plain());
        assert!(!text.contains(NO_UV) && !text.contains(NO_NPM), "{text}");
        let json = as_json(&report);
        assert!(json["uv"].is_null() && json["npm"].is_null(), "{json}");
    }

    fn attacked(states: &[State]) -> Report {
        let mut report = unable();
        report.backends[0].failure = None;
        let result = |state: &State| attack_run::Outcome {
            name: "mount a file system",
            layer: "namespaces",
            held: *state == State::Held,
            state: *state,
            detail: "broke mount gave 0\u{1b}[2J".to_owned(),
        };
        report.attack_run = Some(AttackRun {
            results: states.iter().map(result).collect(),
            took: std::time::Duration::from_secs(1),
        });
        report
    }

    #[test]
    fn one_successful_attack_makes_the_report_not_ok() {
        assert!(attacked(&[State::Held]).ok());
        let report = attacked(&[State::Held, State::Breached, State::NotTried]);
        assert!(!report.ok());
        let text = as_text(&report, Style::plain());
        assert!(text.contains("broke mount gave 0\\u{1b}[2J"), "{text}");
        assert!(text.contains("1/3"), "{text}");
        assert!(text.contains("2 tried, 1 held, 1 could not be tried"), "{text}");
        assert!(text.contains("an attack was not held"), "{text}");
        let attacks = &as_json(&report)["attacks"];
        for (field, count) in [("tried", 2), ("held", 1), ("breached", 1), ("not_tried", 1)] {
            assert_eq!(attacks[field], count, "{field}");
        }
        assert_eq!(attacks["results"][2]["state"], "not_tried");
    }

    #[test]
    fn an_attack_that_could_not_run_is_neither_a_breach_nor_a_pass() {
        let report = attacked(&[State::Held, State::NotTried]);
        assert!(!report.ok());
        let text = as_text(&report, Style::plain());
        assert!(!text.contains("an attack was not held"), "{text}");
        assert!(text.contains("1 attack could not be tried (broke mount"), "{text}");
        assert!(text.contains("mount a file system: not tried: broke"), "{text}");
    }

    #[test]
    fn the_doctor_does_not_advise_to_run_the_doctor() {
        assert_eq!(
            without_doctor("try again; `sandcell doctor` on the host says why"),
            "try again"
        );
        assert_eq!(without_doctor("raise the limit"), "raise the limit");
        assert!(without_doctor("`sandcell doctor` says why").contains("hosts.md"));
    }
}
