//! `sandcell config`: the settings in force and their origins.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Subcommand};
use sandcell_sandbox::{Code, Failure, plain_path};
use sandcell_settings::{Setting, Value};
use serde_json::json;

use super::output::{self, Style};
use super::printed;
use super::replace::replace;
use crate::config::table;
use crate::config::{Layered, Origin, Surroundings, edit, read, read_if_there};

/// The first line of a new settings file.
const FILE_HEADER: &str =
    "# Settings of sandcell, in TOML. `sandcell config` shows each one with its value and its origin.\n";
/// Editors that are tried when the environment names none.
const FALLBACK_EDITORS: [&str; 3] = ["editor", "nano", "vi"];

/// Prints the settings in force and their origins, or changes one
///
/// Settings are read from these places; a later place wins: defaults, /etc/sandcell/config.toml,
/// ~/.config/sandcell/config.toml (%APPDATA%\sandcell\config.toml on Windows), `--config FILE`, `.env` in the working
/// folder, environment variables (SANDCELL_ and the key in capitals, `__` between table and key), flags. The output
/// without `--json` is itself valid TOML. `set`, `unset` and `edit` change your own file, or the one that `--config`
/// names.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: Option<ConfigCommand>,

    /// Prints a list of {key, value, origin, env, doc}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Writes a setting into the file, such as `base data` or `limits.memory_mb 1024`; comments and other settings
    /// stay
    Set {
        /// Its key, such as `limits.memory_mb`
        key: String,

        /// Its value; several make a list
        #[arg(required = true)]
        value: Vec<String>,
    },
    /// Removes a setting from the file, so that its default holds again
    Unset {
        /// Its key
        key: String,
    },
    /// Opens the file in your editor ($VISUAL or $EDITOR), and checks it afterwards
    Edit,
}

pub(super) fn run(args: &ConfigArgs, file: Option<PathBuf>) -> Result<ExitCode, Failure> {
    match &args.command {
        None => {
            let layers = read(&Surroundings::of_this_process(file, Vec::new()))?;
            let written = if args.json {
                output::json(&as_json(&layers))
            } else {
                output::text(&as_text(&layers, Style::of(&io::stdout())))
            };
            printed(written.map(|()| ExitCode::SUCCESS))
        }
        Some(ConfigCommand::Set { key, value }) => {
            set(edit::setting(key)?, value, file)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(ConfigCommand::Unset { key }) => {
            let (setting, path) = (edit::setting(key)?, target(file)?);
            let text = read_if_there(&path)?.unwrap_or_default();
            match edit::unset(&path, &text, setting)? {
                Some(text) => {
                    write(&path, &text)?;
                    say(&format!("{key} was taken out of {}", path.display()));
                }
                None => say(&format!("{key} is not in {}", path.display())),
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(ConfigCommand::Edit) => edit_file(&target(file)?),
    }
}

/// Writes a setting into the user's file, or into the file that `--config` names. Reports a stronger source of the
/// same setting.
pub(super) fn set(setting: &'static Setting, words: &[String], file: Option<PathBuf>) -> Result<(), Failure> {
    let path = target(file.clone())?;
    let text = read_if_there(&path)?.unwrap_or_default();
    write(&path, &edit::set(&path, &text, setting, words)?)?;
    let key = setting.key;
    say(&format!("{key} was written to {}", path.display()));
    let layers = read(&Surroundings::of_this_process(file, Vec::new()))?;
    match layers.get(key).map(|(_, origin)| origin) {
        Some(Origin::DotEnv(..) | Origin::Environment(_)) => {
            let origin = layers
                .get(key)
                .map(|(_, origin)| origin.to_string())
                .unwrap_or_default();
            say(&format!("{origin} wins over it: remove that for the file to count"));
        }
        Some(Origin::Default | Origin::File(_) | Origin::Flag(_)) | None => {}
    }
    Ok(())
}

/// Returns the file to change. A symbolic link stays a link: its target is changed.
pub(super) fn target(file: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let path = file.or_else(edit::users_file).ok_or_else(|| {
        Failure::new(
            Code::InvalidArgument,
            "there is no folder for your settings: HOME is not set",
            "set HOME, or name the file with --config FILE",
        )
    })?;
    Ok(std::fs::canonicalize(&path).map_or(path, plain_path))
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    replace(path, text, None).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::invalid(
        format!("{} cannot be written: {error}", path.display()),
        "check the file's and its folder's owner and rights, or name another file with --config FILE",
    )
}

fn say(line: &str) {
    // A closed stderr is ignored: there is no other place for the message.
    let _nobody_listens = writeln!(io::stderr().lock(), "{line}");
}

fn edit_file(path: &Path) -> Result<ExitCode, Failure> {
    if !path.exists() {
        write(path, FILE_HEADER)?;
    }
    let named = ["VISUAL", "EDITOR"].into_iter().find_map(|name| {
        let value = std::env::var(name).ok()?;
        Some(value).filter(|value| !value.trim().is_empty())
    });
    let candidates: Vec<&str> = match &named {
        Some(command) => vec![command],
        None => FALLBACK_EDITORS.to_vec(),
    };
    let ended = candidates.iter().find_map(|command| {
        let mut words = command.split_whitespace();
        let mut editor = Command::new(words.next()?);
        editor.args(words).arg(path).status().ok()
    });
    let Some(status) = ended else {
        return Err(Failure::invalid(
            format!("no editor could be started: {}", candidates.join(", ")),
            format!("set EDITOR to one that is here, or edit {} by hand", path.display()),
        ));
    };
    if !status.success() {
        return Err(Failure::invalid(
            format!("the editor ended with {status}"),
            "run it again",
        ));
    }
    let text = read_if_there(path)?.unwrap_or_default();
    edit::check(path, &text).map_err(|error| {
        let failure = Failure::from(error);
        let remedy = format!("{}; `sandcell config edit` opens the file again", failure.remedy);
        Failure { remedy, ..failure }
    })?;
    say(&format!("{} is valid", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn as_json(layers: &Layered) -> serde_json::Value {
    let rows = table::settings().filter_map(|setting| {
        let (value, origin) = layers.get(setting.key)?;
        Some(json!({
            "key": setting.key,
            "value": value.to_json(),
            "origin": origin.to_string(),
            "env": setting.env_name(),
            "doc": setting.doc,
        }))
    });
    rows.collect()
}

fn as_text(layers: &Layered, style: Style) -> String {
    let mut text = String::new();
    let mut table = "";
    for setting in table::settings() {
        let Some((value, origin)) = layers.get(setting.key) else {
            continue;
        };
        let (this_table, name) = setting.key.split_once('.').unwrap_or(("", setting.key));
        if this_table != table {
            text.push_str(&format!("\n{}\n", style.bold(&format!("[{this_table}]"))));
            table = this_table;
        }
        let line = match value.to_json() {
            serde_json::Value::Null => format!("# {name} is not set"),
            serde_json::Value::Array(items) if setting.key == "mount" => mounts(&items),
            _ if matches!(value, Value::Secret(_)) => format!("# {name} is set and not shown"),
            value => format!("{name} = {value}"),
        };
        let from = match origin {
            Origin::Default => style.dim("# default"),
            other => style.cyan(&format!("# {other}")),
        };
        text.push_str(&format!("{line:<36} {from}\n"));
    }
    text
}

/// Formats mounts as one inline array, which is valid TOML.
fn mounts(items: &[serde_json::Value]) -> String {
    let text = |item: &serde_json::Value, key: &str| item.get(key).cloned().unwrap_or_default().to_string();
    let tables: Vec<String> = items
        .iter()
        .map(|item| {
            let (host, sandbox, mode) = (text(item, "host"), text(item, "sandbox"), text(item, "mode"));
            let commit = match item.get("commit") {
                Some(rule) => format!(", commit = {rule}"),
                None => String::new(),
            };
            format!("{{ host = {host}, sandbox = {sandbox}, mode = {mode}{commit} }}")
        })
        .collect();
    format!("mount = [{}]", tables.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Surroundings, read};

    #[test]
    fn printed_settings_can_be_parsed_again() {
        let layers = read(&Surroundings::default()).unwrap();
        let text = as_text(&layers, Style::plain());
        assert!(text.contains("memory_mb = 512"), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, &text).unwrap();
        let again = read(&Surroundings {
            named_file: Some(file),
            ..Surroundings::default()
        })
        .unwrap();
        for (key, (value, _)) in &layers {
            assert_eq!(&again[key].0, value, "{key}");
        }
    }

    #[test]
    fn every_setting_is_in_the_json() {
        let rows = as_json(&read(&Surroundings::default()).unwrap());
        assert_eq!(rows.as_array().unwrap().len(), table::settings().count());
        assert_eq!(rows[0]["key"], "backend");
        assert_eq!(rows[0]["origin"], "default");
    }
}
