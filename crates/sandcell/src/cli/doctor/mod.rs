//! `sandcell doctor`: what this machine can isolate, why not more, and whether it holds.

mod attacks;
mod capacity;
mod host;
mod lure;
mod siege;

use std::io;
use std::process::ExitCode;

use clap::Args;
use sandcell_engine::Engine;
use sandcell_languages::Detected;
use sandcell_sandbox::{Code, Failure, Language as _, LayerReport, LayerState, Level};
use serde_json::json;
use std::sync::Arc;

use super::install::{self, Configured};
use super::output::{self, Printed, Style, safe};
use crate::config::Settings;
use crate::wiring::{self, Launcher};
use capacity::Room;
use host::Advice;
use siege::Siege;

/// Says what this machine can isolate and why not more, and attacks itself to see what holds
///
/// Each layer that is weaker than it could be comes with the command that mends it. The attacks run inside a real
/// sandbox of this machine and take a few seconds. Exits with 0 only if sandboxes can be made and every attack held.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Prints {level, ok, layers, attacks, backends}
    #[arg(long)]
    json: bool,
}

const NO_UV: &str = "packages are installed with pip, which takes several times as long as uv would: uv is not on PATH";
const GET_UV: &str = "pip install uv (or pipx install uv), or put the program uv into bin/ of the data folder";
const NO_NPM: &str = "packages of npm cannot be installed: node is here, and npm is not on PATH";
const GET_NPM: &str = "apt-get install npm, or put npm of a Node distribution on PATH";

/// Everything that was found.
#[derive(Debug)]
struct Report {
    level: Level,
    floor: Level,
    layers: Vec<LayerReport>,
    backends: Vec<BackendRow>,
    python: Result<String, Failure>,
    /// What installs packages: uv's path, or nothing where pip has to do; none where this build installs none.
    uv: Option<Result<std::path::PathBuf, ()>>,
    /// What installs packages of npm; none where there is no Node to use them, or this build installs none.
    npm: Option<Result<std::path::PathBuf, ()>>,
    siege: Option<Siege>,
    /// What else keeps code from being run: settings that cannot be read, a base that is not there.
    problems: Vec<Failure>,
    host: Vec<Advice>,
    room: Room,
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
            && self.siege.as_ref().is_some_and(Siege::held)
    }
}

pub(super) fn run(args: &DoctorArgs, settings: Settings, launcher: Launcher) -> Printed {
    let runtime = wiring::runtime().map_err(io::Error::other)?;
    let report = runtime.block_on(examine(settings, launcher));
    runtime.shutdown_background();
    if args.json {
        output::json(&as_json(&report))?;
    } else {
        output::text(&as_text(&report, Style::of(&io::stdout())))?;
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
    // A look at the machine is not bound by how little its sandboxes get.
    settings.engine.limits.processes = settings.engine.limits.processes.max(32);
    let uv = uv(&settings);
    let found = wiring::languages(&settings);
    let wired = wiring::wire_briefly(settings, launcher, found, wiring::Ask::Nobody).await;
    let python = python(&wired.found);
    let layers = layers(&wired.engine);
    let missing = layers.iter().filter(|layer| layer.state == LayerState::Missing);
    let absent: Vec<String> = missing.map(|layer| layer.name.clone()).collect();
    let mut problems = wired.problems.clone();
    let siege = if python.is_ok() && problems.is_empty() && wired.unready.is_none() {
        siege::lay(&wired.engine, &absent)
            .await
            .map_err(|failure| problems.push(failure))
            .ok()
    } else {
        None
    };
    // What has a line of its own is said once.
    problems.retain(|problem| {
        python.as_ref().err() != Some(problem)
            && wired
                .backends
                .iter()
                .all(|backend| backend.failure.as_ref() != Some(problem))
    });
    let report = Report {
        level: wired.level(),
        floor,
        host: host::advice(situation(&layers)),
        room: Room {
            capacity: wired.engine.capacity(),
            allowed,
        },
        clients: install::configured(),
        layers,
        backends: wired
            .backends
            .iter()
            .map(|row| BackendRow {
                name: row.name.clone(),
                level: row.level,
                failure: row.failure.clone().or_else(|| {
                    // Of the first one that works: its image is the one that was tried.
                    let first = wired.backends.iter().find(|other| other.failure.is_none());
                    let unready = wired.unready.as_ref()?;
                    first
                        .is_some_and(|first| first.name == row.name)
                        .then(|| unready.clone())
                }),
            })
            .collect(),
        siege,
        problems,
        npm: npm(&wired.engine),
        python,
        uv,
    };
    wired.engine.shutdown().await;
    report
}

#[cfg(all(target_os = "linux", feature = "native"))]
fn uv(settings: &Settings) -> Option<Result<std::path::PathBuf, ()>> {
    Some(wiring::packages::uv(settings).ok_or(()))
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

/// What advice for the host depends on.
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
    let empty = Siege::default();
    let siege = report.siege.as_ref().unwrap_or(&empty);
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
        "attacks": {
            "tried": siege.results.len(),
            "held": siege.results.iter().filter(|result| result.held).count(),
            "results": siege.results,
        },
        "backends": backends.collect::<Vec<_>>(),
        "python": python,
        "problems": report.problems,
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
        "host": report.host,
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

fn as_text(report: &Report, style: Style) -> String {
    let mut text = String::from("\n");
    text.push_str(&verdict(report, style));
    for backend in &report.backends {
        match &backend.failure {
            None => text.push_str(&format!("{} back end {}\n", style.green("✓"), backend.name)),
            Some(failure) => text.push_str(&trouble(style, &format!("back end {}", backend.name), failure)),
        }
    }
    match &report.python {
        // Of an image that cannot be looked into it is only supposed to be there.
        Ok(version) if version.is_empty() => {}
        Ok(version) => text.push_str(&format!("{} Python {version}\n", style.green("✓"))),
        Err(failure) => text.push_str(&trouble(style, "Python", failure)),
    }
    for problem in &report.problems {
        text.push_str(&trouble(style, "sandboxes", problem));
    }
    match &report.uv {
        Some(Ok(path)) => text.push_str(&format!(
            "{} packages are installed with uv ({})\n",
            style.green("✓"),
            path.display()
        )),
        Some(Err(())) => text.push_str(&format!(
            "{} {NO_UV}\n    {} {GET_UV}\n",
            style.yellow("!"),
            style.bold("fix:")
        )),
        None => {}
    }
    match &report.npm {
        Some(Ok(path)) => text.push_str(&format!(
            "{} packages of npm are installed with {}\n",
            style.green("✓"),
            path.display()
        )),
        Some(Err(())) => text.push_str(&format!(
            "{} {NO_NPM}\n    {} {GET_NPM}\n",
            style.yellow("!"),
            style.bold("fix:")
        )),
        None => {}
    }
    if !report.layers.is_empty() {
        text.push_str(&format!("\n{}\n", style.bold("Layers")));
        let mut told: Option<&str> = None;
        for group in report.layers.chunk_by(same_trouble) {
            let remedy = group.first().and_then(|layer| layer.remedy.as_deref());
            text.push_str(&layer_line(group, style, remedy.filter(|remedy| told != Some(*remedy))));
            told = remedy.or(told);
        }
    }
    text.push_str(
        &report
            .siege
            .as_ref()
            .map(|siege| attacks_text(siege, style))
            .unwrap_or_default(),
    );
    text.push_str(&report.room.as_text(style));
    text.push_str(&host_text(&report.host, style));
    text.push_str(&clients_text(&report.clients, style));
    text
}

/// What the user's clients start, or what to give them.
fn clients_text(clients: &[Configured], style: Style) -> String {
    let mut text = format!("\n{}\n", style.bold("Your clients"));
    for row in clients {
        match (&row.trouble, &row.program) {
            (None, program) => text.push_str(&format!(
                "  {} {} starts {}\n",
                style.green("✓"),
                row.client,
                safe(program.as_deref().unwrap_or_default())
            )),
            (Some((reason, remedy)), _) => text.push_str(&format!(
                "  {} {} ({}): {}\n      {} {remedy}\n",
                style.red("✗"),
                row.client,
                row.file.display(),
                safe(reason),
                style.bold("fix:")
            )),
        }
    }
    if clients.is_empty() {
        text.push_str(&format!(
            "  `sandcell install CLIENT`, or an entry in its MCP settings: command {}, arguments [\"serve\"]\n",
            std::env::current_exe().map_or_else(|_| "sandcell".to_owned(), |path| format!("\"{}\"", path.display())),
        ));
    }
    text.push('\n');
    text
}

fn verdict(report: &Report, style: Style) -> String {
    if report.ok() {
        let level = style.bold(report.level.as_str());
        return format!(
            "{} This machine isolates at level {level}, and every attack held.\n\n",
            style.green("✓")
        );
    }
    let why = if report.backends.iter().all(|backend| backend.failure.is_some()) {
        format!(
            "no sandbox can be made here at level {} or above, so sandcell runs no code",
            report.floor
        )
    } else if report.python.is_err() {
        "there is no interpreter to run code with".to_owned()
    } else if report.siege.is_none() {
        "no sandbox can be made with these settings".to_owned()
    } else {
        "an attack was not held; do not run code from strangers here".to_owned()
    };
    format!("{} Not ready: {why}.\n\n", style.red("✗"))
}

fn trouble(style: Style, what: &str, failure: &Failure) -> String {
    format!(
        "{} {what}: {}\n    {} {}\n",
        style.red("✗"),
        failure.message,
        style.bold("fix:"),
        failure.remedy
    )
}

/// Layers that stand in one line: those that lack something for the same reason.
fn same_trouble(one: &LayerReport, two: &LayerReport) -> bool {
    one.reason.is_some() && (one.state, &one.reason, &one.remedy) == (two.state, &two.reason, &two.remedy)
}

/// `remedy` is left out where the line before has said it.
fn layer_line(group: &[LayerReport], style: Style, remedy: Option<&str>) -> String {
    let Some(layer) = group.first() else {
        return String::new();
    };
    let names: Vec<&str> = group.iter().map(|layer| layer.name.as_str()).collect();
    let (mark, state) = match layer.state {
        LayerState::Active => (style.green("✓"), String::new()),
        LayerState::Degraded => (style.yellow("~"), style.yellow(" (weaker)")),
        LayerState::Missing => (style.red("✗"), style.red(" (missing)")),
    };
    let mut text = format!("  {mark} {}{state}", names.join(", "));
    if let Some(reason) = &layer.reason {
        text.push_str(&format!(": {reason}"));
    }
    text.push('\n');
    if let Some(remedy) = remedy {
        text.push_str(&format!("      {} {remedy}\n", style.bold("fix:")));
    }
    text
}

/// What the operator could change on the host.
fn host_text(advice: &[Advice], style: Style) -> String {
    if advice.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{}  (lasting in /etc/sysctl.d)\n",
        style.bold("The host could be stricter")
    );
    for one in advice {
        text.push_str(&format!(
            "  {} {} is {}: {}\n      {} {}\n",
            style.yellow("~"),
            one.name,
            one.now,
            one.reason,
            style.bold("fix:"),
            one.remedy
        ));
    }
    text
}

/// One line for each layer that was attacked, and one for each attack that was not held.
fn attacks_text(siege: &Siege, style: Style) -> String {
    let held = siege.results.iter().filter(|result| result.held).count();
    let mut text = format!(
        "\n{}  {} tried, {} held, in {:.1} s\n",
        style.bold("Attacks on a sandbox of this machine"),
        siege.results.len(),
        held,
        siege.took.as_secs_f64()
    );
    let mut layers: Vec<&str> = Vec::new();
    for result in &siege.results {
        if !layers.contains(&result.layer) {
            layers.push(result.layer);
        }
    }
    for layer in layers {
        let of_layer: Vec<_> = siege.results.iter().filter(|result| result.layer == layer).collect();
        let held = of_layer.iter().filter(|result| result.held).count();
        let mark = if held == of_layer.len() {
            style.green("✓")
        } else {
            style.red("✗")
        };
        let names: Vec<&str> = of_layer.iter().map(|result| result.name).collect();
        text.push_str(&format!(
            "  {mark} {layer:<17} {held:>2}/{:<2}  {}\n",
            of_layer.len(),
            style.dim(&shorten(&names.join(" · "), 54))
        ));
        for result in of_layer.iter().filter(|result| !result.held) {
            text.push_str(&format!(
                "      {} {}\n",
                style.red(&format!("{}:", result.name)),
                safe(&result.detail)
            ));
        }
    }
    text
}

fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{head}…")
}

#[cfg(test)]
mod tests {
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
            backends: vec![BackendRow {
                name: "native".to_owned(),
                level: None,
                failure: Some(failure),
            }],
            python: Ok("3.11.2".to_owned()),
            uv: Some(Err(())),
            npm: Some(Err(())),
            siege: None,
            problems: Vec::new(),
            room: Room {
                capacity: None,
                allowed: 256,
            },
            host: vec![Advice {
                name: "kernel.dmesg_restrict",
                now: "0".to_owned(),
                reason: "the log is open",
                remedy: "sudo sysctl -w kernel.dmesg_restrict=1".to_owned(),
            }],
            clients: Vec::new(),
        }
    }

    #[test]
    fn a_machine_that_cannot_isolate_is_not_ok_and_hears_why_and_what_mends_it() {
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
        assert!(text.contains("uv is not on PATH"), "{text}");
        let json = as_json(&report);
        assert_eq!(json["host"][0]["remedy"], "sudo sysctl -w kernel.dmesg_restrict=1");
        assert_eq!(json["ok"], false);
        assert_eq!(json["attacks"]["tried"], 0);
        assert_eq!(json["backends"][0]["available"], false);
        assert_eq!(json["layers"][0]["state"], "missing");
    }

    #[test]
    fn a_build_that_installs_no_packages_hears_nothing_of_installers() {
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

    #[test]
    fn one_attack_that_is_not_held_makes_it_not_ok() {
        let mut report = unable();
        report.backends[0].failure = None;
        let result = |held| siege::Outcome {
            name: "mount a file system",
            layer: "namespaces",
            held,
            detail: "broke mount gave 0\u{1b}[2J".to_owned(),
        };
        let mut siege = Siege {
            results: vec![result(true)],
            took: std::time::Duration::from_secs(1),
        };
        report.siege = Some(siege);
        assert!(report.ok());
        siege = Siege {
            results: vec![result(true), result(false)],
            took: std::time::Duration::from_secs(1),
        };
        report.siege = Some(siege);
        assert!(!report.ok());
        let text = as_text(&report, Style::plain());
        assert!(text.contains("broke mount gave 0\\u{1b}[2J"), "{text}");
        assert!(text.contains("1/2"), "{text}");
    }
}
