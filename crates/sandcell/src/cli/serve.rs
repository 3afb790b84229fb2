//! `sandcell serve`: the MCP server.

use std::process::ExitCode;

use clap::Args;
use sandcell_mcp::ServeError;
use sandcell_sandbox::{Code, Failure};

use super::{SandboxArgs, output};
use crate::config::{FlagValue, Settings};
use crate::signals;
use crate::wiring::{self, Launcher};

/// Serves MCP on stdin and stdout, until stdin is closed
///
/// stdout carries MCP and nothing else; logs go to stderr (SANDCELL_LOG says how much). End of file on stdin,
/// SIGTERM and SIGINT end the server and every sandbox of it.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The set of tools to offer: `sandbox`
    #[arg(long, value_name = "NAME")]
    toolset: Option<String>,

    /// Offers only these tools of the set
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    tools: Vec<String>,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

impl ServeArgs {
    pub(super) fn flags(&self) -> Vec<FlagValue> {
        let mut flags = self.sandbox.flags();
        flags.push(FlagValue {
            key: "toolset",
            flag: "--toolset",
            texts: self.toolset.clone().into_iter().collect(),
        });
        flags
    }
}

pub(super) fn run(args: &ServeArgs, settings: Settings, launcher: Launcher) -> Result<ExitCode, Failure> {
    let runtime = wiring::runtime()?;
    let result = runtime.block_on(serve(args, settings, launcher));
    // A thread that reads stdin may wait for ever; it has nothing left to lose.
    runtime.shutdown_background();
    result
}

async fn serve(args: &ServeArgs, mut settings: Settings, launcher: Launcher) -> Result<ExitCode, Failure> {
    let mut stop = signals::Stop::listen()?;
    settings.engine.hints.read_rest = Some(sandcell_mcp::READ_REST.to_owned());
    let mounts = settings.mounts.clone();
    let wired = wiring::wire(settings, launcher).await;
    for problem in &wired.problems {
        output::failure(problem);
    }
    let options = sandcell_mcp::ServerOptions {
        tools: (!args.tools.is_empty()).then(|| args.tools.clone()),
        mounts,
    };
    let ended = tokio::select! {
        served = sandcell_mcp::serve_stdio(wired.engine.clone(), options) => {
            served.map_err(failure)
        }
        _signal = stop.next() => Ok(()),
    };
    tokio::select! {
        () = wired.engine.shutdown() => {}
        _second = stop.next() => {}
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::UnknownTool(unknown) => {
            Failure::invalid(format!("--tools: {unknown}"), "correct --tools, or leave it out")
        }
        other => Failure::new(
            Code::Internal,
            other.to_string(),
            "check what the client sends and its log",
        ),
    }
}
