//! Runs a command in a sandbox, next to its sessions.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use hyper::Response;
use sandcell_engine::{CommandRequest, Watch};
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::SandboxPath;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::model::{CommandLine, RunCommand};
use crate::problem::Problem;
use crate::request::{Call, path};
use crate::run;

/// Runs a command in a sandbox.
pub(crate) async fn command(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: RunCommand = call.json()?;
    let watch = Watch::default();
    let request = CommandRequest {
        command: match asked.command {
            CommandLine::Shell(line) => sandcell_engine::CommandLine::Shell(line),
            CommandLine::Program(argv) => sandcell_engine::CommandLine::Argv(argv),
        },
        cwd: match &asked.cwd {
            Some(cwd) => path("cwd", cwd)?,
            None => SandboxPath::home(),
        },
        env: asked.env,
        sandbox_id: Some(call.id().to_owned()),
        timeout: run::timeout(asked.timeout_s)?,
        terminal: None,
        wait: run::wait(&call, asked.wait_s)?,
        watch: watch.clone(),
    };
    let (engine, caller) = (Arc::clone(call.engine), call.caller.clone());
    let stdin = stdin_of(asked.stdin);
    // The route reads the output from the engine's buffers, so this channel's receiver is dropped.
    let (output, _) = mpsc::channel(1);
    let running = async move {
        let cancel = CancellationToken::new();
        engine.run_command(&caller, request, stdin, output, cancel).await
    };
    run::answer(&call, running.boxed(), watch, asked.max_output_bytes).await
}

/// Returns a standard input with this text and nothing more.
pub(crate) fn stdin_of(text: Option<String>) -> mpsc::Receiver<Bytes> {
    let (send, receive) = mpsc::channel(1);
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        // The channel has room for one message.
        drop(send.try_send(Bytes::from(text)));
    }
    receive
}
