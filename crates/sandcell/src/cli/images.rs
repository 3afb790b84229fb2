//! `sandcell images`: container images for sandboxes, without a container daemon.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use sandcell_images::{Kind, LocalImages, Pruned, StoredImage};
use sandcell_sandbox::{Backend, Code, Failure, Preparing};
use serde_json::json;
use tokio::sync::watch;

use super::output::{self, Style};
use super::progress::Progress;
use crate::config::Settings;
use crate::signals::Stop;
use crate::wiring::{self, Launcher};

/// Manages container images for sandboxes without a container daemon (`sandcell run --image`, `image` of
/// create_sandbox)
#[derive(Debug, Args)]
pub(super) struct ImagesArgs {
    #[command(subcommand)]
    command: ImagesCommand,
}

#[derive(Debug, Subcommand)]
enum ImagesCommand {
    /// Fetches an image, or a newer one of the same name
    Pull {
        /// Its name, such as `python:3.13-slim`, `oci:/folder` or `docker-archive:/file.tar`
        name: String,
    },
    /// Lists the stored images
    List {
        /// Prints a list of {name, digest, bytes, used_s, in_use}
        #[arg(long)]
        json: bool,
    },
    /// Removes an image that no sandbox uses
    Remove {
        /// Its name
        name: String,
    },
    /// Removes all images that no sandbox uses
    Prune,
    /// Unpacks a layer from stdin; runs inside a sandbox
    #[command(hide = true)]
    Unpack {
        /// The kind of layer
        kind: Kind,
        /// The maximum number of unpacked bytes
        limit: u64,
    },
}

pub(super) fn main(args: &ImagesArgs, load: impl FnOnce() -> Result<Settings, Failure>) -> ExitCode {
    if let ImagesCommand::Unpack { kind, limit } = args.command {
        return unpack(kind, limit);
    }
    let done = load().and_then(|settings| {
        let images = wiring::images::of(&settings)?.ok_or_else(no_data)?;
        match &args.command {
            ImagesCommand::Pull { name } => pull_alone(&settings, &images, name, Launcher::start()),
            ImagesCommand::List { json } => super::printed(say_list(&images.list(), *json)),
            ImagesCommand::Remove { name } => {
                let pruned = images.remove(name).map_err(|error| error.failure(name))?;
                super::printed(say_pruned(pruned))
            }
            ImagesCommand::Prune => {
                let pruned = images.prune().map_err(|error| error.failure("to remove"))?;
                super::printed(say_pruned(pruned))
            }
            ImagesCommand::Unpack { .. } => Ok(ExitCode::FAILURE),
        }
    });
    super::ended(done)
}

/// Unpacks a layer. This code runs inside a sandbox and uses only stdin and stdout.
fn unpack(kind: Kind, limit: u64) -> ExitCode {
    let mut output = io::BufWriter::with_capacity(256 << 10, io::stdout().lock());
    match sandcell_images::unpack(kind, limit, io::stdin().lock(), &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // The caller discards all output after a failure.
            let _nobody_listens = writeln!(io::stderr(), "{reason}");
            ExitCode::FAILURE
        }
    }
}

fn no_data() -> Failure {
    Failure::new(
        Code::ImageUnavailable,
        "there is no data folder to keep images in",
        "set data_dir, or HOME",
    )
}

fn pull_alone(
    settings: &Settings,
    images: &Arc<LocalImages>,
    name: &str,
    launcher: Launcher,
) -> Result<ExitCode, Failure> {
    let runtime = wiring::runtime()?;
    let pulled = runtime.block_on(async {
        let mut stop = Stop::listen()?;
        let backend = wiring::native_alone(settings, launcher).await?;
        let pulled = pull(images, name, &backend, &mut stop).await;
        backend.shutdown().await;
        pulled
    });
    // A task that still writes a draft removes the draft when it ends, which is at once.
    runtime.shutdown_timeout(Duration::from_secs(5));
    let kept = pulled?;
    let style = Style::of(&io::stdout());
    super::printed(
        output::text(&format!(
            "{} {} ({} MB)\n  {}\n",
            style.green("✓"),
            style.bold(&kept.name),
            kept.bytes / 1_000_000,
            style.dim(&kept.digest)
        ))
        .map(|()| ExitCode::SUCCESS),
    )
}

/// Pulls an image and shows the progress. A signal of the user cancels the pull and nothing of it is left.
pub(super) async fn pull(
    images: &LocalImages,
    name: &str,
    backend: &Arc<dyn Backend>,
    stop: &mut Stop,
) -> Result<StoredImage, Failure> {
    let sender = watch::Sender::new(Preparing {
        text: "asking the registry".to_owned(),
        ..Preparing::default()
    });
    let mut steps = sender.subscribe();
    let mut progress = Progress::new();
    let work = images.pull(name, backend, &sender);
    tokio::pin!(work);
    let mut tick = tokio::time::interval(Duration::from_millis(250));
    loop {
        tokio::select! {
            pulled = &mut work => {
                progress.clear();
                return pulled.map_err(|error| error.failure(name));
            }
            _ = tick.tick() => {
                let step = steps.borrow_and_update().clone();
                progress.show(&step);
            }
            _ = stop.next() => {
                progress.clear();
                return Err(Failure::new(Code::Cancelled, "the image was not pulled; nothing of it is left", "run it again"));
            }
        }
    }
}

fn say_list(kept: &[StoredImage], as_json: bool) -> output::Printed {
    if as_json {
        let row = |one: &StoredImage| {
            let used = one.used.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            json!({
                "name": one.name,
                "digest": one.digest,
                "bytes": one.bytes,
                "used_s": used.as_secs(),
                "in_use": one.in_use,
            })
        };
        output::json(&kept.iter().map(row).collect())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for one in kept {
        let note = if one.in_use { "  in use" } else { "" };
        let digest: String = one.digest.chars().take(19).collect();
        text.push_str(&format!(
            "{}  {digest}  {} MB{note}\n",
            output::safe(&one.name),
            one.bytes / 1_000_000
        ));
    }
    if kept.is_empty() {
        text.push_str("there is no image yet: sandcell images pull python:3.13-slim\n");
    }
    output::text(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn say_pruned(pruned: Pruned) -> output::Printed {
    output::text(&format!(
        "{} images removed, {} MB free again\n",
        pruned.images,
        pruned.bytes / 1_000_000
    ))?;
    Ok(ExitCode::SUCCESS)
}
