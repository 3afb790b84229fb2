//! `sandcell serve`: the MCP server. This file serves on stdin and stdout.

#[cfg(feature = "bridge")]
mod connect;
#[cfg(all(unix, feature = "bridge"))]
mod demand;
mod http;
#[cfg_attr(not(all(target_os = "linux", feature = "native")), path = "serve/no_parent.rs")]
mod parent;
#[cfg(unix)]
mod socket;

#[cfg(feature = "bridge")]
pub(super) use connect::token;

use std::process::ExitCode;

use clap::Args;
use sandcell_mcp::{SandboxLifetime, ServeError, ServerOptions, UnknownTool};
use sandcell_sandbox::{Code, Failure};

use self::http::Listen;
use super::{SandboxArgs, output};
use crate::config::{FlagValue, Settings, Surroundings};
use crate::reload::Reloader;
use crate::signals::{self, OnHangUp};
use crate::telemetry;
use crate::wiring::{self, Launcher};

/// Serves MCP on stdin and stdout until stdin is closed, or over HTTP
///
/// stdout carries only MCP; logs go to stderr (SANDCELL_LOG sets the level). End of file on stdin, SIGTERM and SIGINT
/// end the server and all of its sandboxes.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Listens for Streamable HTTP at /mcp instead: an address with a port, or a port on loopback. Addresses that
    /// others can reach need a token (`sandcell token create`)
    #[arg(long, value_name = "ADDR")]
    http: Option<Listen>,

    /// Serves a web page at /: the token holder's sandboxes, files and executions, and code to run
    #[arg(long, requires = "http")]
    page: bool,

    /// Also serves E2B's API, for programs that use E2B's SDKs
    #[arg(long, requires = "http")]
    e2b: bool,

    /// Lets everyone who can reach the server run code, also from other machines, while no token exists
    #[arg(long, requires = "http")]
    dangerously_without_authentication: bool,

    /// Listens at a socket of the file system instead, for programs of the same user; ends after `service.idle_s`
    /// without use. `service.on_demand` starts such servers automatically
    #[cfg(unix)]
    #[arg(long, value_name = "PATH", conflicts_with = "http")]
    socket: Option<std::path::PathBuf>,

    /// Passes all messages on to a running server, by the address of its /mcp (`sandcell serve --http`) or by its
    /// socket (`unix:/path`): the sandboxes belong to that server and outlive this client. SANDCELL_TOKEN is the token
    /// that is sent to an address, if set
    #[cfg(feature = "bridge")]
    #[arg(long, value_name = "URL|unix:PATH", conflicts_with_all = ["http", "toolset", "tools", "shared"])]
    connect: Option<String>,

    /// Keeps sandboxes and variables when this client ends: passes all messages on to a server in the background,
    /// which it starts if there is none. Clients with the same arguments share it. For frameworks that start a server
    /// for each call (LangChain, LlamaIndex). The setting `service.on_demand` does the same; `sandcell service` shows
    /// and ends it
    #[arg(long, conflicts_with = "http")]
    shared: bool,

    /// Also answers HTTP requests (MCP and REST) of the program that started this one. The number is an inherited
    /// descriptor: a Unix stream socket over which that program sends connected sockets (SCM_RIGHTS), one in a message
    /// of one byte. Sandboxes are the same as on stdin; `--tools` and `--toolset` do not restrict these requests. The
    /// Python package moves large files this way
    #[arg(long, value_name = "FD", conflicts_with_all = ["http", "socket"])]
    parent_socket: Option<i32>,

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
            key: "service.on_demand",
            flag: "--shared",
            texts: self.shared.then(|| "true".to_owned()).into_iter().collect(),
        });
        flags.push(FlagValue {
            key: "http.page",
            flag: "--page",
            texts: self.page.then(|| "true".to_owned()).into_iter().collect(),
        });
        flags.push(FlagValue {
            key: "e2b_server.enabled",
            flag: "--e2b",
            texts: self.e2b.then(|| "true".to_owned()).into_iter().collect(),
        });
        flags
    }

    fn options(&self, settings: &Settings) -> ServerOptions {
        ServerOptions {
            toolset: settings.toolset,
            tools: (!self.tools.is_empty()).then(|| self.tools.clone()),
            mounts: settings.mounts.clone(),
            lives: SandboxLifetime::default(),
            wait: Some(settings.wait),
            #[cfg(feature = "conformance")]
            conformance: if self.conformance {
                sandcell_mcp::Fixture::Present
            } else {
                sandcell_mcp::Fixture::Absent
            },
        }
    }
}

pub(super) fn run(args: &ServeArgs, settings: Settings, around: Surroundings) -> Result<ExitCode, Failure> {
    // Before anything else can be given its number. Servers that only pass calls on drop it, and the parent sees that.
    let parent = args.parent_socket.map(parent::adopt).transpose()?;
    #[cfg(feature = "bridge")]
    if let Some(url) = &args.connect {
        parent::close(parent);
        let runtime = wiring::runtime()?;
        let result = runtime.block_on(connect::serve(args, url));
        runtime.shutdown_background();
        return result;
    }
    #[cfg(unix)]
    if let Some(socket) = &args.socket {
        let launcher = Launcher::start();
        let runtime = wiring::runtime()?;
        let _last = ActiveTracing::start(&settings)?;
        let result = runtime.block_on(socket::serve(args, socket, settings, around, launcher));
        runtime.shutdown_background();
        return result;
    }
    if settings.service.on_demand && args.http.is_none() {
        #[cfg(all(unix, feature = "bridge"))]
        {
            parent::close(parent);
            let runtime = wiring::runtime()?;
            let result = runtime.block_on(demand::serve(args, &settings));
            runtime.shutdown_background();
            return result;
        }
        #[cfg(not(all(unix, feature = "bridge")))]
        return Err(Failure::new(
            Code::BackendUnavailable,
            "this build has no servers in the background",
            "set service.on_demand = false",
        ));
    }
    let launcher = Launcher::start();
    let runtime = wiring::runtime()?;
    let _last = ActiveTracing::start(&settings)?;
    let result = match args.http {
        None => runtime.block_on(serve(args, settings, around, launcher, parent)),
        Some(listen) => runtime.block_on(http::serve(args, listen, settings, around, launcher)),
    };
    // A thread may block forever in a read of stdin. Shutdown does not wait for it.
    runtime.shutdown_background();
    result
}

/// Active tracing, while an engine exists. Dropping it sends the last spans.
struct ActiveTracing;

impl ActiveTracing {
    fn start(settings: &Settings) -> Result<Self, Failure> {
        telemetry::trace(settings.traces.as_deref())?;
        Ok(Self)
    }
}

impl Drop for ActiveTracing {
    fn drop(&mut self) {
        telemetry::finish();
    }
}

async fn serve(
    args: &ServeArgs,
    mut settings: Settings,
    around: Surroundings,
    launcher: Launcher,
    parent: Option<parent::Socket>,
) -> Result<ExitCode, Failure> {
    let mut stop = signals::Stop::listen()?;
    settings.apply_toolset();
    let options = ServerOptions {
        lives: SandboxLifetime::WithClient,
        ..args.options(&settings)
    };
    let reloader = Reloader::new(around, OnHangUp::Ends)?;
    let wired = wiring::wire(settings, launcher).await;
    for problem in &wired.problems {
        output::failure(problem);
    }
    let following = reloader.start(wired.running());
    let _parent = parent
        .map(|socket| parent::serve(&wired.engine, &options, socket))
        .transpose()?;
    let ended = tokio::select! {
        served = sandcell_mcp::serve_stdio(wired.engine.clone(), options) => {
            served.map_err(failure)
        }
        _signal = stop.next() => Ok(()),
    };
    drop(following);
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
