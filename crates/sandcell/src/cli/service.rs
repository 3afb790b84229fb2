//! `sandcell service`: the servers in the background.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use sandcell_sandbox::Failure;
use serde_json::json;

use super::{output, printed};
use crate::service::{self, SocketState};
use crate::wiring;

/// Shows and ends the servers in the background (`service.on_demand`)
///
/// With `service.on_demand = true`, `sandcell serve` passes all messages on to a server in the background and starts
/// one if there is none, so sandboxes and their variables outlive a client. The server ends by itself `service.idle_s`
/// after the last call and sandbox.
#[derive(Debug, Args)]
pub(super) struct ServiceArgs {
    #[command(subcommand)]
    command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// Shows the status of each server
    Status {
        /// Prints a list of {socket, pid, version, sandboxes, running, calls, uptime_s}
        #[arg(long)]
        json: bool,
    },
    /// Ends the servers and their sandboxes
    Stop,
}

pub(super) fn run(args: &ServiceArgs) -> Result<ExitCode, Failure> {
    let runtime = wiring::runtime()?;
    match &args.command {
        ServiceCommand::Status { json } => printed(runtime.block_on(status(*json))?),
        ServiceCommand::Stop => printed(runtime.block_on(stop())?),
    }
}

async fn status(as_json: bool) -> Result<output::Printed, Failure> {
    let (mut rows, mut lines) = (Vec::new(), String::new());
    for socket in service::sockets()? {
        let SocketState::Server(status, pid) = service::ask(&socket).await? else {
            continue;
        };
        let pid = pid.map(|pid| pid.as_raw_nonzero().get());
        lines.push_str(&format!(
            "process {}, version {}: {} sandboxes, {} running, {} calls, up {} s\n  {}\n",
            pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string()),
            status.version,
            status.sandboxes,
            status.running,
            status.calls,
            status.uptime_s,
            socket.display()
        ));
        let mut row = json!(status);
        if let Some(row) = row.as_object_mut() {
            row.insert("socket".to_owned(), json!(socket));
            row.insert("pid".to_owned(), json!(pid));
        }
        rows.push(row);
    }
    if lines.is_empty() {
        lines.push_str("no server runs in the background\n");
    }
    let told = if as_json {
        output::json(&json!(rows))
    } else {
        output::text(&lines)
    };
    Ok(told.map(|()| ExitCode::SUCCESS))
}

async fn stop() -> Result<output::Printed, Failure> {
    let mut ended = 0_u32;
    for socket in service::sockets()? {
        if let SocketState::Server(_, pid) = service::ask(&socket).await? {
            service::stop(&socket, pid).await?;
            ended += 1;
        }
    }
    Ok(output::text(&format!("ended: {ended}\n")).map(|()| ExitCode::SUCCESS))
}
