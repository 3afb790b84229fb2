//! `sandcell serve`: the MCP server, here on stdin and stdout.

#[cfg(feature = "bridge")]
mod connect;
mod http;

use std::process::ExitCode;

use clap::Args;
use sandcell_mcp::{ServeError, ServerOptions, Toolset, UnknownTool};
use sandcell_sandbox::{Code, Failure, Mount};

use self::http::Listen;
use super::{SandboxArgs, output};
use crate::config::{FlagValue, Settings};
use crate::signals;
use crate::wiring::{self, Launcher};

/// Serves MCP on stdin and stdout until stdin is closed, or over HTTP
///
/// stdout carries MCP and nothing else; logs go to stderr (SANDCELL_LOG says how much). End of file on stdin,
/// SIGTERM and SIGINT end the server and every sandbox of it.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Listens for Streamable HTTP at /mcp instead: an address with a port, or a port of this machine alone. Addresses
    /// that others can reach need a token (`sandcell token create`)
    #[arg(long, value_name = "ADDR")]
    http: Option<Listen>,

    /// Has a page to look at, at /: sandboxes and executions of whoever shows a token there
    #[arg(long, requires = "http")]
    page: bool,

    /// Lets everybody who can reach the server run code, also from other machines, while no token exists
    #[arg(long, requires = "http")]
    dangerously_without_authentication: bool,

    /// Passes everything on to a server that runs (`sandcell serve --http`), by the address of its /mcp: sandboxes are
    /// that server's, and outlive this client. SANDCELL_TOKEN is the token that is sent, if any
    #[cfg(feature = "bridge")]
    #[arg(long, value_name = "URL", conflicts_with_all = ["http", "toolset", "tools"])]
    connect: Option<String>,

    /// The set of tools to offer: `sandbox`, `container` or `script`
    #[arg(long, value_name = "NAME")]
    toolset: Option<String>,

    /// Offers only these tools of the set
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    tools: Vec<String>,

    /// Adds the fixtures that the official MCP conformance suite calls
    #[cfg(feature = "conformance")]
    #[arg(long, hide = true, requires = "http")]
    conformance: bool,

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
        flags.push(FlagValue {
            key: "http.page",
            flag: "--page",
            texts: self.page.then(|| "true".to_owned()).into_iter().collect(),
        });
        flags
    }

    fn options(&self, toolset: Toolset, mounts: Vec<Mount>) -> ServerOptions {
        ServerOptions {
            toolset,
            tools: (!self.tools.is_empty()).then(|| self.tools.clone()),
            mounts,
            #[cfg(feature = "conformance")]
            conformance: if self.conformance {
                sandcell_mcp::Fixture::Present
            } else {
                sandcell_mcp::Fixture::Absent
            },
        }
    }
}

pub(super) fn run(args: &ServeArgs, settings: Settings, launcher: Launcher) -> Result<ExitCode, Failure> {
    let runtime = wiring::runtime()?;
    #[cfg(feature = "bridge")]
    if let Some(url) = &args.connect {
        // Nothing is isolated here.
        drop(launcher);
        let result = runtime.block_on(connect::serve(args, url));
        runtime.shutdown_background();
        return result;
    }
    let result = match args.http {
        None => runtime.block_on(serve(args, settings, launcher)),
        Some(listen) => runtime.block_on(http::serve(args, listen, settings, launcher)),
    };
    // A thread that reads stdin may wait for ever; it has nothing left to lose.
    runtime.shutdown_background();
    result
}

async fn serve(args: &ServeArgs, mut settings: Settings, launcher: Launcher) -> Result<ExitCode, Failure> {
    let mut stop = signals::Stop::listen()?;
    settings.suit_toolset();
    let toolset = settings.toolset;
    let mounts = settings.mounts.clone();
    let wired = wiring::wire(settings, launcher).await;
    for problem in &wired.problems {
        output::failure(problem);
    }
    let options = args.options(toolset, mounts);
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
        ServeError::UnknownTool(unknown) => unknown_tool(&unknown),
        other => Failure::new(
            Code::Internal,
            other.to_string(),
            "check what the client sends and its log",
        ),
    }
}

fn unknown_tool(unknown: &UnknownTool) -> Failure {
    Failure::invalid(format!("--tools: {unknown}"), "correct --tools, or leave it out")
}
