//! `sandcell forward`: a port of this machine that leads to a program in a sandbox.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Args;
use sandcell_mcp::PortForward;
use sandcell_sandbox::Failure;
use tokio::net::TcpListener;

use super::{output, serve};
use crate::signals;

/// Makes a program that listens in a sandbox of a running server reachable on this machine, until it is interrupted
///
/// `sandcell forward sb… 3000 --to http://127.0.0.1:8123/mcp` listens on 127.0.0.1:3000 and passes each connection on to
/// port 3000 of the sandbox. SANDCELL_TOKEN is the token of the server, if it needs one.
#[derive(Debug, Args)]
pub(super) struct ForwardArgs {
    /// The sandbox
    sandbox: String,

    /// The port on which the program listens
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// The server: the address that `sandcell serve --http` prints, or its socket
    #[arg(long, value_name = "URL|unix:PATH")]
    to: String,

    /// The address on this machine; port 0 lets the system choose [default: 127.0.0.1 and the same port]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

pub(super) fn run(args: &ForwardArgs) -> Result<ExitCode, Failure> {
    let runtime = crate::wiring::runtime()?;
    runtime.block_on(forward(args))
}

async fn forward(args: &ForwardArgs) -> Result<ExitCode, Failure> {
    let mut stop = signals::Stop::listen()?;
    let token = serve::token()?;
    let forward = PortForward::new(&args.to, token.as_deref(), &args.sandbox, args.port).await?;
    let address = args
        .listen
        .unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)));
    let listening = async {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        Ok::<_, std::io::Error>((listener, bound))
    };
    let (listener, bound) = listening.await.map_err(|error| {
        Failure::invalid(
            format!("{address} cannot be listened on: {error}"),
            "choose another address with --listen, such as --listen 127.0.0.1:0",
        )
    })?;
    output::note(&format!("forwarding {bound} to port {} of {}", args.port, args.sandbox));
    tokio::select! {
        () = forward.serve(listener, |from, failure| {
            output::note(&format!("{from}: {} ({})", failure.message, failure.remedy));
        }) => {}
        _signal = stop.next() => {}
    }
    Ok(ExitCode::SUCCESS)
}
