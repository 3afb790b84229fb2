//! sandcell as an MCP server. The only crate that knows MCP.
//!
//! A call arrives as a line of JSON (`stdio`). `arguments` and `schema` check it against the tool's fields. The tool
//! calls the engine. `content`, `answer` and `convert` make content blocks of the result. The output of code is
//! never mixed with the server's text: the last text block of a result is the server's alone.
#![forbid(unsafe_code)]

mod answer;
#[cfg(feature = "bridge")]
mod approvals;
mod arguments;
mod auth;
#[cfg(feature = "bridge")]
mod checkpoint_client;
mod completion;
#[cfg(feature = "conformance")]
mod conformance;
mod content;
mod convert;
mod elicitation;
mod http;
mod in_flight;
mod instructions;
mod limits;
mod notebook;
mod notifications;
mod permits;
#[cfg(feature = "bridge")]
mod port_forward;
mod priority;
mod prompts;
#[cfg(feature = "bridge")]
mod proxy;
mod resources;
#[cfg(feature = "bridge")]
mod rest_client;
mod schema;
mod server;
mod spans;
mod stdio;
mod tasks;
#[cfg(test)]
mod tests;
mod time;
mod tools;

#[cfg(feature = "bridge")]
pub use approvals::{Approval, Approvals};
pub use auth::oauth::{OauthError, OauthOptions};
pub use auth::{Anonymous, NewToken, Token, TokenError, TokenForm, TokenStore, TokenUse};
#[cfg(feature = "bridge")]
pub use checkpoint_client::Checkpoints;
pub use content::execution_object;
pub use http::{
    Activity, BodySender, BodyStream, BrokenOff, Claim, Credential, Disconnected, EndpointBody, EndpointInput,
    EndpointRequest, Endpoints, HttpControl, HttpError, HttpLimits, HttpOptions, HttpServer, InvalidHostOrigin,
    LargeAnswer, LargeAnswers, NotFound, PORT_PROTOCOL, Page, Refusal, RequestBody, RequestHead, Takeover, TlsError,
    TlsFiles, channel_body, holding, whole_body,
};
pub use instructions::SandboxLifetime;
pub use notebook::notebook;
pub use permits::{PERMIT_HEADER, Permits};
#[cfg(feature = "bridge")]
pub use port_forward::PortForward;
#[cfg(feature = "bridge")]
pub use proxy::{ProxyError, Wake, proxy_stdio};
#[cfg(feature = "conformance")]
pub use server::Fixture;
pub use server::{ServerOptions, UnknownTool};
pub use stdio::{ServeError, serve_stdio};
pub use tools::{Interpreters, Toolset};

/// The call that reads the rest of a cut stream. The engine puts it into its markers (`Hints::read_rest`).
const READ_REST: &str = "get_execution(execution_id=\"{execution_id}\", stream=\"{stream}\", offset={offset})";

/// The hints in results, in the words of the toolset `sandbox`.
fn hints() -> sandcell_engine::Hints {
    sandcell_engine::Hints {
        more_memory: "work on the data in parts, or ask for more with memory_mb (create_sandbox or create_run_close)"
            .to_owned(),
        more_time: "raise timeout_s (at most 3600); with a small wait_s the call returns early and the code runs on"
            .to_owned(),
        more_disk: "delete files, or make a sandbox with a larger disk_mb (create_sandbox)".to_owned(),
        bring_data: "bring the data with write_file or upload_file, or make it in the code".to_owned(),
        bring_packages: "install_package installs packages of Python and npm, as does `packages` of create_run_close"
            .to_owned(),
        give_stdin: "pass stdin with the call, one line for each input()".to_owned(),
        read_rest: Some(READ_REST.to_owned()),
    }
}

/// The directive that every log filter must have. rmcp logs whole requests and results (code, output, secrets).
pub const LOG_DIRECTIVE: &str = "rmcp=off";
