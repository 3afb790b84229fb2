//! The generated pages of `docs/reference`: the help of every command, and every setting. The tests here fail when a
//! page differs from the code; `UPDATE_REFERENCE=1 cargo test -p sandcell reference` writes them.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::CommandFactory;

use super::Cli;
use crate::config::table::{self, OTHER_VARIABLES};

fn commands() -> String {
    let mut page = String::from(
        "# Commands\n\nGenerated from the help of each command by `UPDATE_REFERENCE=1 cargo test -p sandcell reference`.\n",
    );
    let mut cli = Cli::command().term_width(100).max_term_width(100);
    cli.build();
    let _infallible = write!(
        page,
        "\n## sandcell\n\n```text\n{}\n```\n",
        tidy(&cli.render_long_help().to_string())
    );
    let visible: Vec<clap::Command> = cli
        .get_subcommands()
        .filter(|one| !one.is_hide_set())
        .cloned()
        .collect();
    for mut command in visible {
        if command.get_name() == "help" {
            continue;
        }
        let name = command.get_name().to_owned();
        let help = tidy(&command.render_long_help().to_string());
        let _infallible = write!(page, "\n## sandcell {name}\n\n```text\n{help}\n```\n");
        let told = |one: &&mut clap::Command| one.get_name() != "help" && !one.is_hide_set();
        for inner in command.get_subcommands_mut().filter(told) {
            let (inner_name, help) = (inner.get_name().to_owned(), tidy(&inner.render_long_help().to_string()));
            let _infallible = write!(page, "\n### sandcell {name} {inner_name}\n\n```text\n{help}\n```\n");
        }
    }
    page
}

fn tidy(help: &str) -> String {
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

fn settings() -> String {
    let mut page = String::from(
        "# Settings\n\nGenerated from the table of settings by `UPDATE_REFERENCE=1 cargo test -p sandcell reference`.\n\n\
         From weakest to strongest: defaults, `/etc/sandcell/config.toml`, `~/.config/sandcell/config.toml` \
         (on Windows `%APPDATA%\\sandcell\\config.toml`), `--config FILE`, `.env` in the working folder, environment, flags. `sandcell config` prints the settings in force \
         and their origins. An unknown key is an error that names the most similar known one.\n\n\
         In a file, `limits.cpus` is `cpus` in the table `[limits]`. In the environment, lists are separated by commas. \
         `.env` may come with a stranger's project, so settings marked *operator* are refused there.\n\n\
         | setting | takes | default | environment | |\n|---|---|---|---|---|\n",
    );
    for setting in table::settings() {
        let declaration = &setting.declaration;
        let default = if declaration.default.is_empty() {
            String::new()
        } else {
            format!("`{}`", declaration.default)
        };
        let _infallible = writeln!(
            page,
            "| `{}`{} | {} | {default} | `{}` | {} |",
            setting.key,
            if declaration.dotenv { "" } else { " *operator*" },
            declaration.kind.describe(),
            setting.env_name(),
            setting.doc,
        );
    }
    page.push_str("\nOther variables:\n\n");
    for (name, doc) in OTHER_VARIABLES {
        let _infallible = writeln!(page, "- `{name}`: {doc}");
    }
    page
}

fn languages() -> String {
    let mut page = String::from(
        "# Languages\n\nGenerated from the table of languages by `UPDATE_REFERENCE=1 cargo test -p sandcell reference`.\n\n\
         Python, JavaScript and Bash keep variables between calls; the others run each execution as a separate \
         program that sees the sandbox's files. `sandcell languages` lists those of a machine, and `--test` runs them. \
         [Add a language](../guides/add-a-language.md) explains how to add to this table.\n\n\
         | language | other names | files | keeps variables | how it runs | how to get it |\n|---|---|---|---|---|---|\n\
         | python | `python3`, `py` | `.py` | yes | `python3 {src} {args}` | `apt-get install python3` |\n",
    );
    for language in sandcell_languages::table::built_in() {
        let code = |words: &[String]| {
            words
                .iter()
                .map(|word| format!("`{word}`"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let files: Vec<String> = language.extensions.iter().map(|end| format!(".{end}")).collect();
        let ways: Vec<String> = language
            .ways
            .iter()
            .map(|way| format!("`{}`", way.replace('|', "\\|")))
            .collect();
        let _infallible = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} |",
            language.name,
            code(&language.aliases),
            code(&files),
            if language.session { "yes" } else { "" },
            ways.join(" or "),
            language.install,
        );
    }
    page
}

#[track_caller]
fn is_fresh(name: &str, page: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/reference")
        .join(name);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "{} is stale; run UPDATE_REFERENCE=1 cargo test -p sandcell reference",
        path.display()
    );
}

#[test]
fn the_page_of_commands_matches_the_help() {
    is_fresh("cli.md", &commands());
}

#[test]
fn the_page_of_settings_matches_the_table() {
    is_fresh("settings.md", &settings());
}

#[test]
fn the_page_of_languages_matches_the_table() {
    is_fresh("languages.md", &languages());
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}
