//! `sandcell languages`: what this machine can run.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sandcell_engine::{Engine, Principal, RunRequest, Status};
use sandcell_languages::Detected;
use sandcell_sandbox::LanguageInfo;
use serde_json::json;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use super::output::{self, Printed, Style};
use crate::config::Settings;
use crate::wiring::{self, Launcher};

/// Lists the languages of this machine
#[derive(Debug, Args)]
pub(super) struct LanguagesArgs {
    /// Prints a list of {name, aliases, version, available, session, packages, hint}
    #[arg(long)]
    json: bool,

    /// Also runs a small program of each inside a sandbox
    #[arg(long)]
    pub(super) test: bool,
}

/// A language as this command shows it.
#[derive(Debug)]
struct Row {
    name: String,
    aliases: Vec<String>,
    version: Option<String>,
    libraries: Vec<String>,
    /// How to get it where it is absent.
    hint: Option<String>,
    /// What a run of it inside a sandbox gave: how long it took, or why it failed.
    tested: Option<Result<Duration, String>>,
}

pub(super) fn run(args: &LanguagesArgs, settings: Settings, launcher: Option<Launcher>) -> Printed {
    let rows = match launcher {
        None => rows(wiring::languages(&settings)),
        Some(launcher) => match wiring::runtime() {
            Ok(runtime) => {
                let rows = runtime.block_on(test(settings, launcher));
                runtime.shutdown_background();
                rows
            }
            Err(failure) => return Err(io::Error::other(failure)),
        },
    };
    if args.json {
        output::json(&as_json(&rows))?;
    } else {
        output::text(&as_text(&rows, Style::of(&io::stdout())))?;
    }
    let failed = rows.iter().any(|row| matches!(row.tested, Some(Err(_))));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn rows(found: Detected) -> Vec<Row> {
    let present = found.languages.iter().map(|language| present(language.info()));
    let absent = found.missing.into_iter().map(|(name, failure)| Row {
        name,
        aliases: Vec::new(),
        version: None,
        libraries: Vec::new(),
        hint: Some(format!("{}; {}", failure.message, failure.remedy)),
        tested: None,
    });
    present.chain(absent).collect()
}

fn present(info: &LanguageInfo) -> Row {
    Row {
        name: info.name.clone(),
        aliases: info.aliases.clone(),
        version: Some(info.version.clone()),
        libraries: info.libraries.clone(),
        hint: None,
        tested: None,
    }
}

async fn test(settings: Settings, launcher: Launcher) -> Vec<Row> {
    let mut rows = rows(wiring::languages(&settings));
    let wired = wiring::wire_briefly(settings, launcher).await;
    for row in rows.iter_mut().filter(|row| row.hint.is_none()) {
        row.tested = Some(match wired.problems.first() {
            Some(problem) => Err(problem.to_string()),
            None => test_one(&wired.engine, &row.name).await,
        });
    }
    wired.engine.shutdown().await;
    rows
}

async fn test_one(engine: &Arc<Engine>, language: &str) -> Result<Duration, String> {
    let request = RunRequest {
        code: "print(6 * 7)".to_owned(),
        language: language.to_owned(),
        stdin: None,
        files: Vec::new(),
        outputs: Vec::new(),
        timeout: Some(Duration::from_secs(20)),
        wait: None,
        memory: None,
    };
    let who = Principal("cli".into());
    let started = std::time::Instant::now();
    let view = engine.run_once(&who, request, CancellationToken::new()).await;
    let view = view.map_err(|failure| failure.to_string())?;
    match (view.status, view.stdout.text.trim()) {
        (Status::Ok, "42") => Ok(started.elapsed()),
        (status, _) => Err(view
            .cause
            .map_or_else(|| format!("ended as {status:?}"), |cause| cause.message)),
    }
}

fn as_json(rows: &[Row]) -> serde_json::Value {
    rows.iter()
        .map(|row| {
            let mut object = json!({
                "name": row.name,
                "aliases": row.aliases,
                "version": row.version,
                "available": row.hint.is_none(),
                "session": row.hint.is_none(),
                "packages": false,
                "libraries": row.libraries,
                "hint": row.hint,
            });
            if let (Some(map), Some(tested)) = (object.as_object_mut(), &row.tested) {
                let tested = match tested {
                    Ok(took) => json!({"ok": true, "ms": took.as_secs_f64() * 1000.0}),
                    Err(reason) => json!({"ok": false, "reason": reason}),
                };
                map.insert("test".to_owned(), tested);
            }
            object
        })
        .collect()
}

fn as_text(rows: &[Row], style: Style) -> String {
    let mut text = String::new();
    for row in rows {
        let mark = if row.hint.is_none() {
            style.green("●")
        } else {
            style.red("○")
        };
        let version = row.version.as_deref().unwrap_or("not found");
        text.push_str(&format!("{mark} {} {version}", style.bold(&row.name)));
        match &row.tested {
            Some(Ok(took)) => text.push_str(&style.green(&format!("  ran in a sandbox in {} ms", took.as_millis()))),
            Some(Err(reason)) => text.push_str(&style.red(&format!("  failed in a sandbox: {reason}"))),
            None => {}
        }
        text.push('\n');
        if !row.aliases.is_empty() {
            text.push_str(&style.dim(&format!("    also called {}\n", row.aliases.join(", "))));
        }
        if !row.libraries.is_empty() {
            text.push_str(&style.dim(&format!("    data libraries: {}\n", row.libraries.join(", "))));
        }
        if let Some(hint) = &row.hint {
            text.push_str(&format!("    {hint}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_that_is_absent_comes_with_a_hint_and_the_others_with_none() {
        let row = |hint: Option<&str>| Row {
            name: "python".to_owned(),
            aliases: vec!["py".to_owned()],
            version: hint.is_none().then(|| "3.11.2".to_owned()),
            libraries: Vec::new(),
            hint: hint.map(str::to_owned),
            tested: None,
        };
        let json = as_json(&[row(None), row(Some("install it"))]);
        assert_eq!(json[0]["available"], true);
        assert!(json[0]["hint"].is_null());
        assert_eq!(json[1]["available"], false);
        assert_eq!(json[1]["hint"], "install it");
        for key in ["name", "aliases", "version", "available", "session", "packages", "hint"] {
            assert!(json[0].get(key).is_some(), "{key}");
        }
    }
}
