//! Ports of programs: the connection of a request becomes one to a program in the sandbox.

use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sandcell_engine::PortConnection;
use sandcell_mcp::{EndpointBody, whole_body};
use sandcell_sandbox::Failure;
use tokio::io::copy_bidirectional;
use tokio_util::sync::CancellationToken;

use crate::problem::Problem;
use crate::request::Call;

/// The protocol of the connection afterwards: the bytes of the port.
const PROTOCOL: &str = "tcp";
/// The maximum time for the client to begin with that protocol.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a port of a sandbox.
pub(crate) async fn connect(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let port = call
        .ids
        .get(1)
        .and_then(|port| port.parse::<u16>().ok().filter(|port| *port > 0));
    let port = port.ok_or_else(|| Failure::invalid("the port is not a number from 1 to 65535", "check the address"))?;
    let upgrade = call
        .upgrade
        .filter(|_| asks_for_protocol(&call.headers))
        .ok_or_else(|| {
            Failure::invalid(
                format!("the request does not ask for the protocol {PROTOCOL:?}"),
                format!("send it over HTTP/1.1 with `Connection: Upgrade` and `Upgrade: {PROTOCOL}`"),
            )
        })?;
    let sandbox = call.ids.first().map_or("", String::as_str);
    let connection = call.engine.open_port(&call.caller, sandbox, port).await?;
    tokio::spawn(copy(upgrade, connection, call.ended));
    let mut response = Response::new(whole_body(Vec::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    Ok(response)
}

fn asks_for_protocol(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .and_then(|protocol| protocol.to_str().ok())
        .is_some_and(|protocol| protocol.eq_ignore_ascii_case(PROTOCOL))
}

/// Copies bytes between the client and the program until one of them, the sandbox or the client's access ends.
async fn copy(client: OnUpgrade, mut program: PortConnection, ended: CancellationToken) {
    let Ok(Ok(client)) = tokio::time::timeout(UPGRADE_TIMEOUT, client).await else {
        return;
    };
    let mut client = TokioIo::new(client);
    tokio::select! {
        _ended = copy_bidirectional(&mut client, &mut program) => {}
        () = ended.cancelled() => {}
    }
}
