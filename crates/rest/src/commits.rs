//! Applies changes in copy-on-write mounts to the host's folders.
//!
//! A caller's token is not the operator's approval. So a request that changes anything needs a permit, which only the
//! user of the server can make on its machine. A dry run needs none.

use hyper::{Response, StatusCode};
use sandcell_engine::{CommitAuthority, Fingerprint};
use sandcell_mcp::{EndpointBody, PERMIT_HEADER, RequestBody};
use sandcell_sandbox::{Code, Failure};

use crate::model::{Commit, Committed};
use crate::problem::Problem;
use crate::request::Call;
use crate::respond;

/// Applies changes.
pub(crate) async fn commit(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: Commit = call.json()?;
    let authority = match asked.dry_run {
        true => CommitAuthority::DryRun,
        false => operator(&call, asked.expected())?,
    };
    let view = call
        .engine
        .commit(&call.caller, Some(call.id()), &asked.request(), authority)
        .await?;
    Ok(respond::json(StatusCode::OK, &Committed::from(view)))
}

/// Checks that the operator has made this request.
fn operator(call: &Call<'_>, expected: Option<Fingerprint>) -> Result<CommitAuthority, Failure> {
    let name = call.headers.get(PERMIT_HEADER).and_then(|name| name.to_str().ok());
    let body: &[u8] = match &call.body {
        RequestBody::Whole(bytes) => bytes,
        RequestBody::Nothing | RequestBody::Stream(_) | RequestBody::Raw(_) => &[],
    };
    let path = format!("/v1/sandboxes/{}/commit", call.id());
    match (call.permits, name) {
        (Some(permits), Some(name)) if permits.take(name, &path, body) => Ok(CommitAuthority::Operator { expected }),
        _ => Err(Failure::new(
            Code::DeniedByPolicy,
            "changes are applied only for the operator of the server; a caller's token is not enough",
            "run `sandcell commit` on the server's machine as the user of the server, with the server's data folder \
             (data_dir); dry_run shows what it would do",
        )),
    }
}
