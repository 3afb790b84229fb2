//! `sandcell config`: the settings in force and where each came from.

use std::io;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::output::{self, Printed, Style};
use crate::config::table::SETTINGS;
use crate::config::{Layered, Origin, Value};

/// Prints the settings in force and where each came from
///
/// Settings come from, the later winning: defaults, /etc/sandcell/config.toml, ~/.config/sandcell/config.toml
/// (%APPDATA%\sandcell\config.toml on Windows), `--config FILE`, `.env` in the working folder, environment variables
/// (SANDCELL_ and the key in capitals, `__` between table and key), flags. The output without `--json` is itself valid TOML.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// Prints a list of {key, value, origin, env, doc}
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ConfigArgs, layers: &Layered) -> Printed {
    if args.json {
        output::json(&as_json(layers))?;
    } else {
        output::text(&as_text(layers, Style::of(&io::stdout())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(layers: &Layered) -> serde_json::Value {
    let rows = SETTINGS.iter().filter_map(|setting| {
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
    for setting in SETTINGS {
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

/// Mounts as one inline array, which is TOML too.
fn mounts(items: &[serde_json::Value]) -> String {
    let text = |item: &serde_json::Value, key: &str| item.get(key).cloned().unwrap_or_default().to_string();
    let tables: Vec<String> = items
        .iter()
        .map(|item| {
            let (host, sandbox, mode) = (text(item, "host"), text(item, "sandbox"), text(item, "mode"));
            format!("{{ host = {host}, sandbox = {sandbox}, mode = {mode} }}")
        })
        .collect();
    format!("mount = [{}]", tables.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Surroundings, read};

    #[test]
    fn what_is_printed_can_be_read_back() {
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
        assert_eq!(rows.as_array().unwrap().len(), SETTINGS.len());
        assert_eq!(rows[0]["key"], "backend");
        assert_eq!(rows[0]["origin"], "default");
    }
}
