//! Ports of programs: the connection of a request becomes one to a program in the sandbox.

use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{HeaderMap, Response, StatusCode};
use sandcell_mcp::{EndpointBody, PORT_PROTOCOL, whole_body};
use sandcell_sandbox::Failure;

use crate::problem::Problem;
use crate::request::Call;

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
                format!("the request does not ask for the protocol {PORT_PROTOCOL:?}"),
                format!("send it over HTTP/1.1 with `Connection: Upgrade` and `Upgrade: {PORT_PROTOCOL}`"),
            )
        })?;
    let sandbox = call.ids.first().map_or("", String::as_str);
    let connection = call.engine.open_port(&call.caller, sandbox, port).await?;
    tokio::spawn(call.takeover.copy(upgrade, connection));
    let mut response = Response::new(whole_body(Vec::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(PORT_PROTOCOL));
    Ok(response)
}

fn asks_for_protocol(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .and_then(|protocol| protocol.to_str().ok())
        .is_some_and(|protocol| protocol.eq_ignore_ascii_case(PORT_PROTOCOL))
}
