//! `sandcell base`: prepared sets of packages that sandboxes start with.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use sandcell_packages::{BaseInfo, Bases};
use sandcell_sandbox::{Code, Failure, Preparing};
use serde_json::json;
use tokio::sync::watch;

use super::config;
use super::output::{self, Style};
use super::progress::Progress;
use crate::config::{Settings, edit};
use crate::signals;
use crate::wiring::{self, Launcher};

/// The maximum size of a lock file, in bytes.
const MAX_LOCK_BYTES: u64 = 8 << 20;

/// Prepared sets of packages that sandboxes start with (`sandcell config set base NAME`)
#[derive(Debug, Args)]
pub(super) struct BaseArgs {
    #[command(subcommand)]
    pub(super) command: BaseCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum BaseCommand {
    /// Installs packages as a base, or replaces the base of that name
    Build {
        /// The base's name: lower-case letters, digits, - and _
        name: String,

        /// A package, such as `numpy`, `pandas>=2,<3` or, of npm, `npm:zod@^3`
        #[arg(value_name = "PACKAGE", required_unless_present = "lock")]
        packages: Vec<String>,

        /// A list of exact versions with hashes, as `uv pip compile --generate-hashes` writes it, in place of names
        #[arg(short = 'r', value_name = "LOCKFILE", conflicts_with = "packages")]
        lock: Option<PathBuf>,

        /// Also writes `base = "NAME"` into your settings, so that every sandbox starts with it
        #[arg(long = "use")]
        use_it: bool,
    },
    /// Lists the bases
    List {
        /// Prints a list of {name, python, packages, npm, bytes, usable}
        #[arg(long)]
        json: bool,
    },
    /// Removes a base
    Remove {
        /// The base's name
        name: String,
    },
}

pub(super) fn run(
    args: &BaseArgs,
    settings: Settings,
    launcher: Option<Launcher>,
    file: Option<PathBuf>,
) -> Result<ExitCode, Failure> {
    let runtime = wiring::runtime()?;
    let result = runtime.block_on(carry_out(args, settings, launcher, file));
    runtime.shutdown_background();
    result
}

async fn carry_out(
    args: &BaseArgs,
    settings: Settings,
    launcher: Option<Launcher>,
    file: Option<PathBuf>,
) -> Result<ExitCode, Failure> {
    let (bases, backend) = wiring::bases(&settings, launcher).await?;
    let printed = match &args.command {
        BaseCommand::Build {
            name,
            packages: wanted,
            lock,
            use_it,
        } => {
            let lock = lock.as_ref().map(read_lock).transpose()?;
            let built = build(&bases, name, wanted, lock.as_deref()).await;
            backend.shutdown().await;
            let built = built?;
            if *use_it {
                config::set(edit::setting("base")?, std::slice::from_ref(&built.name), file)?;
            }
            say_built(&settings, &built, *use_it)
        }
        BaseCommand::List { json } => {
            let found = bases.list()?;
            if let (true, Some(problem)) = (found.is_empty(), settings.data_problem()) {
                return Err(problem);
            }
            say_list(&found, *json)
        }
        BaseCommand::Remove { name } => {
            bases.remove(name)?;
            Ok(())
        }
    };
    match printed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(super::unwritable(&error)),
    }
}

fn read_lock(path: &PathBuf) -> Result<String, Failure> {
    use std::io::Read as _;
    let unreadable =
        |error: io::Error| Failure::invalid(format!("{} cannot be read: {error}", path.display()), "check the path");
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_LOCK_BYTES)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    Ok(text)
}

/// Builds a base and shows the progress. A signal of the user cancels the build and nothing of it is left.
async fn build(bases: &Bases, name: &str, wanted: &[String], lock: Option<&str>) -> Result<BaseInfo, Failure> {
    let mut stop = signals::Stop::listen()?;
    let sender = watch::Sender::new(String::new());
    let mut steps = sender.subscribe();
    let mut progress = Progress::new();
    let at = |step: &watch::Ref<'_, String>| Preparing {
        text: step.to_string(),
        ..Preparing::default()
    };
    let work = bases.build(name, wanted, lock, &sender);
    tokio::pin!(work);
    loop {
        tokio::select! {
            built = &mut work => {
                progress.clear();
                return built;
            }
            Ok(()) = steps.changed() => {
                progress.show(&at(&steps.borrow_and_update()));
            }
            () = tokio::time::sleep(std::time::Duration::from_secs(1)), if io::stderr().is_terminal() => {
                progress.show(&at(&steps.borrow()));
            }
            _ = stop.next() => {
                progress.clear();
                return Err(Failure::new(Code::Cancelled, "the base was not built; nothing of it is left", "run it again"));
            }
        }
    }
}

fn say_built(settings: &Settings, base: &BaseInfo, use_it: bool) -> io::Result<()> {
    let style = Style::of(&io::stdout());
    let mut text = format!(
        "{} base {}: {}\n",
        style.green("✓"),
        style.bold(&base.name),
        contents(base)
    );
    if use_it {
        text.push_str("  every new sandbox starts with it\n");
    } else if settings.base.as_deref() != Some(base.name.as_str()) {
        text.push_str(&format!(
            "  to start every sandbox with it: sandcell config set base {}\n",
            base.name
        ));
    }
    output::text(&text)
}

fn contents(base: &BaseInfo) -> String {
    let packages: Vec<String> = base
        .packages
        .iter()
        .chain(&base.npm)
        .map(|one| format!("{} {}", one.name, one.version))
        .collect();
    let mut about = format!("{} MiB", base.bytes >> 20);
    if !base.python.is_empty() {
        about.push_str(&format!(", Python {}", base.python));
    }
    if !base.npm.is_empty() {
        about.push_str(", Node");
    }
    format!("{} ({about})", packages.join(", "))
}

fn say_list(bases: &[BaseInfo], as_json: bool) -> io::Result<()> {
    if as_json {
        let row = |base: &BaseInfo| {
            json!({
                "name": base.name,
                "python": base.python,
                "packages": base.packages,
                "npm": base.npm,
                "bytes": base.bytes,
                "usable": base.usable,
            })
        };
        return output::json(&bases.iter().map(row).collect());
    }
    let mut text = String::new();
    for base in bases {
        let note = if base.usable {
            ""
        } else {
            "  (not for this machine's interpreters any more; build it again)"
        };
        text.push_str(&format!("{}: {}{note}\n", base.name, contents(base)));
    }
    if bases.is_empty() {
        text.push_str("there is no base yet: sandcell base build data numpy pandas matplotlib --use\n");
    }
    output::text(&text)
}
