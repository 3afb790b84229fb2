//! `sandcell prepared`: container images with installed languages.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use sandcell_backends::docker;
use sandcell_sandbox::Failure;
use serde_json::json;

use super::{output, printed};
use crate::config::Settings;
use crate::wiring;

/// Lists and removes the container images into which languages were installed
///
/// An image that lacks a language of `docker.languages` gets it once, in a copy that the daemon stores. At most twenty
/// of them are kept. After a removal, the next sandbox of that image installs the languages again.
#[derive(Debug, Args)]
pub(super) struct PreparedArgs {
    #[command(subcommand)]
    command: PreparedCommand,
}

#[derive(Debug, Subcommand)]
enum PreparedCommand {
    /// Lists the images, the newest first
    List {
        /// Prints a list of {id, of, adds, created_s, size}
        #[arg(long)]
        json: bool,
    },
    /// Removes all images that no container uses
    Prune {
        /// Prints a list of the removed images
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &PreparedArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let own = wiring::docker::own_settings(settings)?;
    let (host, certificates) = (own.host.as_deref(), own.certificates.as_deref());
    let runtime = wiring::runtime()?;
    let (images, json) = match &args.command {
        PreparedCommand::List { json } => (runtime.block_on(docker::prepared(host, certificates))?, *json),
        PreparedCommand::Prune { json } => (runtime.block_on(docker::prune(host, certificates))?, *json),
    };
    if json {
        let all: Vec<_> = images
            .iter()
            .map(|image| {
                json!({"id": image.id, "of": image.of, "adds": image.adds, "created_s": image.created_s, "size": image.size})
            })
            .collect();
        return printed(output::json(&json!(all)).map(|()| ExitCode::SUCCESS));
    }
    let lines: Vec<String> = images
        .iter()
        .map(|image| {
            let id: String = image.id.trim_start_matches("sha256:").chars().take(12).collect();
            let of = output::safe(&image.of);
            format!(
                "{id}  {of} with {}  {} MB\n",
                output::safe(&image.adds),
                image.size / 1_000_000
            )
        })
        .collect();
    let text = match (lines.is_empty(), &args.command) {
        (false, _) => lines.concat(),
        (true, PreparedCommand::List { .. }) => "none\n".to_owned(),
        (true, PreparedCommand::Prune { .. }) => "there was none to remove\n".to_owned(),
    };
    printed(output::text(&text).map(|()| ExitCode::SUCCESS))
}
