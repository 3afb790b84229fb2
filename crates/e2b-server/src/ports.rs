//! Ports: passes requests on to programs that listen in a sandbox.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{
    CONNECTION, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::uri::Authority;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use sandcell_mcp::{BrokenOff, EndpointBody, EndpointRequest, RequestBody, Takeover, holding, whole_body};
use sandcell_sandbox::Code;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use crate::answer;
use crate::call::InSandbox;
use crate::problem::Problem;
use crate::registry::Sandbox;
use crate::target::{INTERNAL_HEADERS, SECRET_HEADERS};

/// The maximum time for a program to change the protocol of its connection.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum length of a host.
const MAX_HOST_BYTES: usize = 255;
/// Headers about one connection, which are not passed on.
const OF_CONNECTION: [HeaderName; 7] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// More of them, without a constant.
const OF_CONNECTION_BY_NAME: [&str; 2] = ["keep-alive", "proxy-connection"];

/// Passes a request on to the program that listens on this port.
pub(crate) async fn pass_on(
    call: InSandbox,
    port: u16,
    request: EndpointRequest<'_>,
) -> Result<Response<EndpointBody>, Problem> {
    let EndpointRequest {
        mut parts,
        body: RequestBody::Raw(body),
        takeover,
        ..
    } = request
    else {
        return Err(Problem::invalid("the body is missing"));
    };
    let (engine, sandbox) = (&call.state.engine, &call.sandbox);
    let permit = match knows_secret(&parts.headers, sandbox, port) {
        true => None,
        false => Some(sandbox.public_permit()?),
    };
    let connection = match engine.open_port(&sandbox.owner, &sandbox.id, port).await {
        Ok(connection) => connection,
        Err(failure) if failure.code == Code::NotFound && engine.has_sandbox(&sandbox.owner, &sandbox.id) => {
            return Ok(closed_port(&sandbox.id, port));
        }
        Err(failure) => return Err(failure.into()),
    };
    let broken = |error: hyper::Error| {
        tracing::debug!(%error, "a program did not answer on its port");
        Problem::new(
            StatusCode::BAD_GATEWAY,
            format!("the program on port {port} closed the connection without an answer"),
        )
    };
    let (mut sender, driver) = http1::Builder::new()
        .handshake(TokioIo::new(connection))
        .await
        .map_err(broken)?;
    tokio::spawn(driver.with_upgrades());
    let client = parts.extensions.remove::<OnUpgrade>();
    let upgrades = client.is_some() && is_upgrade(&parts.headers);
    let outgoing = outgoing(&parts.uri, &parts.headers, upgrades, body).map(|mut request| {
        *request.method_mut() = parts.method.clone();
        let host = sandbox.terms.host.as_deref().and_then(|host| shown_host(host, port));
        if let Some(host) = host {
            request.headers_mut().insert(HOST, host);
        }
        request
    })?;
    let mut response = sender.send_request(outgoing).await.map_err(broken)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client.filter(|_| upgrades) else {
            return Err(Problem::new(
                StatusCode::BAD_GATEWAY,
                format!("the program on port {port} changed the protocol although it was not asked to"),
            ));
        };
        let program = hyper::upgrade::on(&mut response);
        let protocol = response.headers().get(UPGRADE).cloned();
        remove_headers_of_connection(response.headers_mut());
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.extend(protocol.map(|protocol| (UPGRADE, protocol)));
        tokio::spawn(join(client, program, takeover, permit));
        return Ok(response.map(|_| whole_body(Vec::new())));
    }
    remove_headers_of_connection(response.headers_mut());
    // The connection lives until the body was read.
    Ok(response.map(|body| holding(body.map_err(|_| BrokenOff).boxed(), permit)))
}

/// Returns the host that a program sees instead of the real one. None if it is not a host.
pub(crate) fn shown_host(host: &str, port: u16) -> Option<HeaderValue> {
    let host = host.replace("${PORT}", &port.to_string());
    let is_host =
        host.len() <= MAX_HOST_BYTES && host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'));
    HeaderValue::try_from(host).ok().filter(|_| is_host)
}

/// Returns true if the request has a secret of the sandbox. Only ports of public sandboxes get requests without one.
fn knows_secret(headers: &HeaderMap, sandbox: &Sandbox, port: u16) -> bool {
    let secrets = SECRET_HEADERS
        .iter()
        .filter_map(|name| headers.get(*name)?.to_str().ok());
    secrets.into_iter().any(|secret| sandbox.accepts(secret, port))
}

/// Returns the request as the program gets it.
fn outgoing(uri: &Uri, headers: &HeaderMap, upgrades: bool, body: Incoming) -> Result<Request<Incoming>, Problem> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::new(body);
    *request.uri_mut() = path
        .parse()
        .map_err(|_| Problem::invalid("the address cannot be passed on"))?;
    let mut kept = headers.clone();
    remove_headers_of_connection(&mut kept);
    kept.remove(EXPECT);
    for name in INTERNAL_HEADERS {
        kept.remove(name);
    }
    if upgrades {
        kept.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        for protocol in headers.get_all(UPGRADE) {
            kept.append(UPGRADE, protocol.clone());
        }
    }
    if let Some(host) = headers.get(HOST) {
        kept.insert("x-forwarded-host", host.clone());
    }
    *request.headers_mut() = kept;
    Ok(request)
}

/// Removes the headers that are about one connection only, and those that `Connection` names.
fn remove_headers_of_connection(headers: &mut HeaderMap) {
    let values: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    let named = values.iter().filter_map(|value| value.to_str().ok());
    for name in named.flat_map(|value| value.split(',')) {
        if let Ok(name) = name.trim().parse::<HeaderName>() {
            headers.remove(name);
        }
    }
    for name in OF_CONNECTION {
        headers.remove(name);
    }
    for name in OF_CONNECTION_BY_NAME {
        headers.remove(name);
    }
}

/// Returns true if the client asks to change the protocol of its connection, as for a WebSocket.
fn is_upgrade(headers: &HeaderMap) -> bool {
    let words = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    headers.contains_key(UPGRADE)
        && words
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

/// Connects the client with the program, after both have changed the protocol.
async fn join(client: OnUpgrade, program: OnUpgrade, takeover: Takeover, permit: Option<OwnedSemaphorePermit>) {
    if let Ok(Ok(program)) = tokio::time::timeout(UPGRADE_TIMEOUT, program).await {
        takeover.copy(client, TokioIo::new(program)).await;
    }
    drop(permit);
}

/// Returns E2B's answer for a port that no program listens on.
fn closed_port(sandbox: &str, port: u16) -> Response<EndpointBody> {
    let body = json!({
        "sandboxId": sandbox,
        "message": "The sandbox is running but port is not open",
        "port": port,
        "code": StatusCode::BAD_GATEWAY.as_u16(),
    });
    answer::json(StatusCode::BAD_GATEWAY, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_program_sees_the_host_that_its_creator_names() {
        let shown = |host| shown_host(host, 8000);
        assert_eq!(shown("app.example:${PORT}").unwrap(), "app.example:8000");
        assert_eq!(shown("app.example").unwrap(), "app.example");
        let long = "a".repeat(300);
        for refused in ["", "a b", "a\r\nx: y", "user@app.example", "app/x", &long] {
            assert_eq!(shown(refused), None, "{refused:?}");
        }
    }

    #[test]
    fn headers_about_the_connection_are_removed() {
        let mut found = headers(&[
            ("connection", "close, X-Own"),
            ("x-own", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("accept", "*/*"),
        ]);
        remove_headers_of_connection(&mut found);
        assert_eq!(found, headers(&[("accept", "*/*")]));
    }

    #[test]
    fn only_a_request_with_both_headers_changes_the_protocol() {
        assert!(is_upgrade(&headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket")
        ])));
        assert!(!is_upgrade(&headers(&[("upgrade", "websocket")])));
        assert!(!is_upgrade(&headers(&[("connection", "upgrade")])));
    }
}
