//! The command line and its dispatch. Each command has one file; the doc comment of a command is its help.

#[cfg(unix)]
mod audit;
#[cfg(all(target_os = "linux", feature = "native"))]
mod base;
mod check;
#[cfg(feature = "bridge")]
mod commit;
mod config;
mod demo;
#[cfg(feature = "bridge")]
mod diff;
mod doctor;
#[cfg(feature = "bridge")]
mod forward;
#[cfg(all(unix, feature = "history"))]
mod history;
#[cfg(all(target_os = "linux", feature = "native"))]
mod images;
mod install;
mod languages;
mod output;
#[cfg(feature = "docker")]
mod prepared;
mod progress;
#[cfg(test)]
mod reference;
mod replace;
mod run;
#[cfg(feature = "bridge")]
mod save;
mod serve;
#[cfg(unix)]
mod service;
mod shell;
mod token;
#[cfg(feature = "tools")]
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use sandcell_sandbox::Failure;

use crate::config::{FlagValue, Settings, Surroundings};
use crate::telemetry;
use crate::wiring::Launcher;

/// The exit code of clap's own errors.
const USAGE_EXIT: u8 = 2;
/// The exit code of `run` when sandcell itself could not run the program.
const RUN_FAILED_EXIT: u8 = 125;

/// The command that gives every sandbox data libraries.
const DATA_BASE: &str = "sandcell base build data numpy pandas matplotlib --use";

/// Runs untrusted code in a strict sandbox, as an MCP server for AI agents or from the command line.
///
/// Start with `sandcell demo`: it starts the server, speaks MCP to it and shows the answers. `sandcell doctor` shows
/// the isolation that this machine provides. stdout carries data only; logs and messages go to stderr.
#[derive(Debug, Parser)]
#[command(name = "sandcell", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// A file of settings to read after those of the system and the user
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Run(run::RunArgs),
    Demo(demo::DemoArgs),
    Doctor(doctor::DoctorArgs),
    Languages(languages::LanguagesArgs),
    Check(check::CheckArgs),
    #[cfg(all(target_os = "linux", feature = "native"))]
    Base(base::BaseArgs),
    #[cfg(unix)]
    Service(service::ServiceArgs),
    #[cfg(all(target_os = "linux", feature = "native"))]
    Images(images::ImagesArgs),
    #[cfg(feature = "docker")]
    Prepared(prepared::PreparedArgs),
    #[cfg(feature = "bridge")]
    Forward(forward::ForwardArgs),
    #[cfg(feature = "bridge")]
    Diff(diff::DiffArgs),
    #[cfg(feature = "bridge")]
    Commit(commit::CommitArgs),
    #[cfg(feature = "bridge")]
    Save(save::SaveArgs),
    #[cfg(feature = "bridge")]
    Saved(save::SavedArgs),
    Token(token::TokenArgs),
    #[cfg(feature = "tools")]
    Tools(tools::ToolsArgs),
    #[cfg(all(unix, feature = "history"))]
    History(history::HistoryArgs),
    #[cfg(unix)]
    Audit(audit::AuditArgs),
    Config(config::ConfigArgs),
    Install(install::InstallArgs),
    Completions(shell::CompletionsArgs),
    Manual(shell::ManualArgs),
}

/// Flags of the commands that make sandboxes.
#[derive(Debug, Clone, Default, Args)]
struct SandboxArgs {
    /// Back ends to use, the preferred one first
    #[arg(long, value_name = "NAME[,NAME…]", value_delimiter = ',')]
    backend: Vec<String>,

    /// Shows a folder of this machine to the sandboxes: `ro` (the default) read-only, `cow` as a private
    /// copy-on-write view; code never writes to the folder itself. `cow,commit=ask` lets `sandcell commit` apply a
    /// sandbox's changes to the folder. Repeatable
    #[arg(long, value_name = "HOST[:SANDBOX][:ro|:cow[,commit=ask]]")]
    mount: Vec<String>,
}

impl SandboxArgs {
    fn flags(&self) -> Vec<FlagValue> {
        vec![
            FlagValue {
                key: "backend",
                flag: "--backend",
                texts: self.backend.clone(),
            },
            FlagValue {
                key: "mount",
                flag: "--mount",
                texts: self.mount.clone(),
            },
        ]
    }
}

/// Runs the command named by this process's arguments.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap chooses the stream and the colours. A closed stream is ignored.
            let _nobody_listens = error.print();
            let is_run = std::env::args_os().nth(1).is_some_and(|first| first == "run");
            if is_run && is_about_a_word(&error) {
                output::tip("the program's own arguments follow `--`: sandcell run FILE -- ARGS");
            }
            return match (error.use_stderr(), is_run) {
                (false, _) => ExitCode::SUCCESS,
                (true, true) => ExitCode::from(RUN_FAILED_EXIT),
                (true, false) => ExitCode::from(USAGE_EXIT),
            };
        }
    };
    telemetry::start();
    dispatch(cli)
}

/// Returns true for an unexpected word, also next to `--code`.
fn is_about_a_word(error: &clap::Error) -> bool {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => !word.starts_with('-'),
        (ErrorKind::ArgumentConflict, _) => true,
        _ => false,
    }
}

fn dispatch(cli: Cli) -> ExitCode {
    let file = cli.config;
    match cli.command {
        Command::Serve(args) => {
            let around = Surroundings::of_this_process(file, args.flags());
            ended(settings(&around).and_then(|settings| serve::run(&args, settings, around)))
        }
        Command::Run(args) => run::main(args, |flags| load(file, flags)),
        Command::Demo(args) => demo::main(&args, file.as_deref()),
        Command::Doctor(args) => {
            ended(load(file, Vec::new()).and_then(|settings| printed(doctor::run(&args, settings, Launcher::start()))))
        }
        Command::Languages(args) => ended(
            load(file, Vec::new()).and_then(|settings| printed(languages::run(&args, settings, Launcher::start()))),
        ),
        Command::Check(args) => ended(load(file, Vec::new()).and_then(|settings| check::run(&args, &settings))),
        #[cfg(all(target_os = "linux", feature = "native"))]
        Command::Base(args) => ended(load(file.clone(), Vec::new()).and_then(|settings| {
            let launcher = matches!(args.command, base::BaseCommand::Build { .. }).then(Launcher::start);
            base::run(&args, settings, launcher, file)
        })),
        #[cfg(unix)]
        Command::Service(args) => ended(service::run(&args)),
        #[cfg(all(target_os = "linux", feature = "native"))]
        Command::Images(args) => images::main(&args, || load(file, Vec::new())),
        #[cfg(feature = "docker")]
        Command::Prepared(args) => ended(load(file, Vec::new()).and_then(|settings| prepared::run(&args, &settings))),
        #[cfg(feature = "bridge")]
        Command::Forward(args) => ended(forward::run(&args)),
        #[cfg(feature = "bridge")]
        Command::Diff(args) => ended(diff::run(&args)),
        #[cfg(feature = "bridge")]
        Command::Commit(args) => ended(load(file, Vec::new()).and_then(|settings| commit::run(&args, &settings))),
        #[cfg(feature = "bridge")]
        Command::Save(args) => ended(save::save(&args)),
        #[cfg(feature = "bridge")]
        Command::Saved(args) => ended(save::saved(&args)),
        Command::Token(args) => ended(load(file, Vec::new()).and_then(|settings| token::run(&args, &settings))),
        #[cfg(feature = "tools")]
        Command::Tools(args) => ended(load(file, Vec::new()).and_then(|settings| tools::run(&args, &settings))),
        #[cfg(all(unix, feature = "history"))]
        Command::History(args) => ended(load(file, Vec::new()).and_then(|settings| history::run(&args, &settings))),
        #[cfg(unix)]
        Command::Audit(args) => ended(load(file, Vec::new()).and_then(|settings| audit::run(&args, &settings))),
        Command::Config(args) => ended(config::run(&args, file)),
        Command::Install(args) => ended(install::run(&args, file.as_deref())),
        Command::Completions(args) => ended(printed(shell::completions(&args, Cli::command()))),
        Command::Manual(args) => ended(shell::manual(&args, Cli::command()).and_then(printed)),
    }
}

fn load(file: Option<PathBuf>, flags: Vec<FlagValue>) -> Result<Settings, Failure> {
    settings(&Surroundings::of_this_process(file, flags))
}

fn settings(around: &Surroundings) -> Result<Settings, Failure> {
    let settings = Settings::load(around)?;
    telemetry::change(&settings.log);
    if let (None, Some(problem)) = (&settings.data_dir, settings.data_problem()) {
        tracing::warn!("{}. Remedy: {}", problem.message, problem.remedy);
    }
    Ok(settings)
}

/// Returns the exit status of a command, and prints its failure first.
fn ended(result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        output::failure(&failure);
        ExitCode::FAILURE
    })
}

/// Returns the exit status of a command that printed data. A reader that closed stdout is no error; any other write
/// error is reported.
fn printed(result: output::Printed) -> Result<ExitCode, Failure> {
    match result {
        Ok(code) => Ok(code),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        // The command failed before it printed anything.
        Err(error) => match error.get_ref().and_then(|inner| inner.downcast_ref::<Failure>()) {
            Some(failure) => Err(failure.clone()),
            None => Err(unwritable(&error)),
        },
    }
}

/// Returns the failure of a command whose stdout cannot be written.
fn unwritable(error: &std::io::Error) -> Failure {
    Failure::new(
        sandcell_sandbox::Code::Internal,
        format!("stdout cannot be written: {error}"),
        "check where stdout leads, and the room on its disk",
    )
}
