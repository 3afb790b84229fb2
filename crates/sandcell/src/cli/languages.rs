//! `sandcell languages`: the languages that this machine can run.

mod proof;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures::StreamExt as _;
use sandcell_languages::{Choice, Detected};
use sandcell_sandbox::{Failure, LanguageInfo};
use serde_json::json;

use super::output::{self, Printed, Style};
use crate::config::Settings;
use crate::config::table::nearest;
use crate::wiring::{self, Launcher, VersionQuery};

/// Lists the languages of this machine
///
/// Unknown versions are queried once inside a sandbox and stored. With `--test` each language runs four small programs
/// inside: one that prints, reads its input, its arguments and a file and chooses its exit status; one that fails; one
/// with a syntax error; and one that never ends.
#[derive(Debug, Args)]
pub(super) struct LanguagesArgs {
    /// Only these languages, by name or alias; without: all
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Prints a list of {name, aliases, version, available, session, packages, program, reason, hint}
    #[arg(long)]
    json: bool,

    /// Also runs small programs of each language inside a sandbox
    #[arg(long)]
    test: bool,
}

/// A language as this command shows it.
#[derive(Debug)]
struct LanguageRow {
    name: String,
    aliases: Vec<String>,
    version: Option<String>,
    session: bool,
    libraries: Vec<String>,
    /// The program that runs the language, and the reason for this choice.
    choice: Option<Choice>,
    /// The way to install the language where it is absent.
    hint: Option<String>,
    /// The result of test runs inside a sandbox: their duration, or the reason that they failed.
    tested: Option<Result<Duration, String>>,
}

pub(super) fn run(args: &LanguagesArgs, settings: Settings, launcher: Launcher) -> Printed {
    let runtime = wiring::runtime().map_err(io::Error::other)?;
    let rows = runtime.block_on(rows(args, settings, launcher));
    runtime.shutdown_background();
    let rows = rows?;
    if args.json {
        output::json(&as_json(&rows))?;
    } else {
        output::text(&as_text(&rows, Style::of(&io::stdout())))?;
    }
    let failed = rows.iter().any(|row| matches!(row.tested, Some(Err(_))));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Queries unknown versions, and runs the tests if requested.
async fn rows(args: &LanguagesArgs, settings: Settings, launcher: Launcher) -> io::Result<Vec<LanguageRow>> {
    let found = wiring::languages(&settings);
    if let Some(problem) = found.problems.first() {
        output::failure(problem);
    }
    let told = !found.problems.is_empty();
    let wired = wiring::wire_briefly(settings, launcher, found, VersionQuery::Unknown).await;
    if let (None, false, Some(problem)) = (&wired.preferred, told, wired.problems.first()) {
        output::failure(problem);
    }
    let here = wired.found.languages();
    let choices = &wired.found.choices;
    let mut rows: Vec<LanguageRow> = here.iter().map(|language| present(language.info(), choices)).collect();
    rows.extend(absent(&wired.found));
    if !args.names.is_empty() {
        let unknown = args
            .names
            .iter()
            .find(|name| !rows.iter().any(|row| row.is_called(name)));
        if let Some(name) = unknown {
            let failure = unknown_language(name, &rows);
            wired.engine.shutdown().await;
            return Err(io::Error::other(failure));
        }
        rows.retain(|row| args.names.iter().any(|name| row.is_called(name)));
    }
    if args.test {
        let problem = wired.problems.first();
        let at_once = std::thread::available_parallelism()
            .map_or(1, std::num::NonZero::get)
            .min(4);
        let tests = rows.iter_mut().filter(|row| row.hint.is_none()).map(|row| async {
            row.tested = match problem {
                Some(problem) => Some(Err(problem.to_string())),
                None => proof::run(&wired, &row.name).await,
            };
        });
        futures::stream::iter(tests)
            .buffer_unordered(at_once)
            .collect::<()>()
            .await;
    }
    wired.engine.shutdown().await;
    Ok(rows)
}

fn unknown_language(name: &str, rows: &[LanguageRow]) -> Failure {
    let names = rows
        .iter()
        .flat_map(|row| std::iter::once(&row.name).chain(&row.aliases));
    let lower = name.to_lowercase();
    let remedy = match nearest(&lower, names.map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`? `sandcell languages` lists all of them"),
        None => "`sandcell languages` lists all of them; docs/guides/add-a-language.md shows how to add one".to_owned(),
    };
    Failure::invalid(format!("no language is called '{}'", output::safe(name)), remedy)
}

impl LanguageRow {
    fn is_called(&self, name: &str) -> bool {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .any(|own| own.eq_ignore_ascii_case(name))
    }
}

fn absent(found: &Detected) -> Vec<LanguageRow> {
    let row = |missing: &sandcell_languages::Missing| LanguageRow {
        name: missing.name.clone(),
        aliases: missing.aliases.clone(),
        version: None,
        session: false,
        libraries: Vec::new(),
        choice: None,
        hint: Some(format!("{}; {}", missing.failure.message, missing.failure.remedy)),
        tested: None,
    };
    found.missing.iter().map(row).collect()
}

fn present(info: &LanguageInfo, choices: &[Choice]) -> LanguageRow {
    LanguageRow {
        name: info.name.clone(),
        aliases: info.aliases.clone(),
        version: Some(info.version.clone()).filter(|version| !version.is_empty()),
        session: info.session,
        libraries: info.libraries.clone(),
        choice: choices.iter().find(|choice| choice.language == info.name).cloned(),
        hint: None,
        tested: None,
    }
}

fn as_json(rows: &[LanguageRow]) -> serde_json::Value {
    rows.iter()
        .map(|row| {
            let mut object = json!({
                "name": row.name,
                "aliases": row.aliases,
                "version": row.version,
                "available": row.hint.is_none(),
                "session": row.session,
                "packages": false,
                "libraries": row.libraries,
                "program": row.choice.as_ref().map(|choice| &choice.program),
                "reason": row.choice.as_ref().map(|choice| &choice.reason),
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

fn as_text(rows: &[LanguageRow], style: Style) -> String {
    let mut text = String::new();
    for row in rows {
        let mark = if row.hint.is_none() {
            style.green("●")
        } else {
            style.red("○")
        };
        let version = match (&row.version, &row.hint) {
            (Some(version), _) => version.as_str(),
            (None, None) => "(version unknown)",
            (None, Some(_)) => "not found",
        };
        text.push_str(&format!("{mark} {} {version}", style.bold(&row.name)));
        if row.session {
            text.push_str("  keeps variables");
        }
        match &row.tested {
            Some(Ok(took)) => text.push_str(&style.green(&format!("  works in a sandbox ({} ms)", took.as_millis()))),
            Some(Err(reason)) => text.push_str(&style.red(&format!("  fails in a sandbox: {}", output::safe(reason)))),
            None => {}
        }
        text.push('\n');
        if !row.aliases.is_empty() {
            text.push_str(&style.dim(&format!("    also called {}\n", row.aliases.join(", "))));
        }
        if let Some(choice) = &row.choice {
            let (program, reason) = (choice.program.display(), &choice.reason);
            text.push_str(&style.dim(&format!("    {program}: {reason}\n")));
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
    fn only_an_absent_language_has_a_hint() {
        let row = |hint: Option<&str>| LanguageRow {
            name: "python".to_owned(),
            aliases: vec!["py".to_owned()],
            version: hint.is_none().then(|| "3.11.2".to_owned()),
            session: hint.is_none(),
            libraries: Vec::new(),
            choice: None,
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
