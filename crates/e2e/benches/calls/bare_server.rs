//! The lower bound and a comparison server: a bare server of the same MCP library with an empty tool, and one whose
//! tool runs Python as any other program, without isolation. This program starts itself as that server.

use std::process::{Command, Stdio};

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServiceExt as _};

use sandcell_e2e::client::Client;
use sandcell_e2e::python;

const BARE_SERVER_VARIABLE: &str = "SANDCELL_BENCH_FLOOR";

/// Serves and does not return, if this process was started as the bare server.
pub fn serve_if_asked() {
    if std::env::var_os(BARE_SERVER_VARIABLE).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (read, write) = rmcp::transport::stdio();
        Floor.serve((read, write)).await.unwrap().waiting().await.unwrap();
    });
    std::process::exit(0);
}

/// Returns a client of the bare server.
pub fn client() -> Client {
    let mut command = Command::new(std::env::current_exe().unwrap());
    Client::start(command.env_clear().env(BARE_SERVER_VARIABLE, "1"))
}

struct Floor;

impl ServerHandler for Floor {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = ["empty", "run"].map(|name| Tool::new(name, "", serde_json::Map::new()));
        Ok(ListToolsResult::with_all_items(tools.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let text = match request.name.as_ref() {
            "run" => run(request.arguments.unwrap_or_default()["code"].as_str().unwrap()),
            _ => String::new(),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

fn run(code: &str) -> String {
    let output = Command::new(python().unwrap())
        .args(["-I", "-S", "-c", code])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}
