//! Makes, lists and closes sandboxes.

use hyper::header::{HeaderValue, LOCATION};
use hyper::{Response, StatusCode};
use sandcell_engine::{CreateRequest, Watch};
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::{Code, Consent, Cpus, Failure};

use crate::model::{Closed, CreateSandbox, KnownLanguage, Languages, Sandbox, Sandboxes, SetNetwork};
use crate::problem::Problem;
use crate::request::{Call, mebibytes, seconds};
use crate::respond;

/// Makes a sandbox.
pub(crate) async fn create(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: CreateSandbox = call.json()?;
    let size = |name, size: Option<u64>| size.map(|size| mebibytes(name, size)).transpose();
    let lifetime = asked.lifetime_s.map(|time| seconds("lifetime_s", time));
    let request = CreateRequest {
        idle: None,
        count: 1,
        key: asked.key,
        packages: asked.packages,
        env: asked.env,
        memory: size("memory_mb", asked.memory_mb)?,
        cpus: asked.cpus.map(cores).transpose()?,
        disk: size("disk_mb", asked.disk_mb)?,
        pauses_at_end: false,
        lifetime: lifetime.transpose()?,
        label: asked.label,
        backend: asked.backend,
        image: asked.image,
        network: asked.network,
        watch: Watch::default(),
        consent: Consent::CannotAsk,
        from: None,
        functions: Vec::new(),
    };
    let made = call.engine.create(&call.caller, request).await?;
    let view = made.first().ok_or_else(|| {
        let message = "the engine made no sandbox and gave no reason";
        Failure::new(
            Code::Internal,
            message,
            "try again; tell the operator if it happens again",
        )
    })?;
    let status = if view.made_now {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let mut response = respond::json(status, &Sandbox::from(view));
    if let Ok(location) = HeaderValue::try_from(format!("/v1/sandboxes/{}", view.id)) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

fn cores(cpus: f64) -> Result<Cpus, Failure> {
    Cpus::from_cores(cpus).ok_or_else(|| {
        let message = format!("`cpus`: {cpus} is no number of cores");
        Failure::invalid(message, "give a number such as 0.5 or 2")
    })
}

/// Lists the caller's sandboxes.
pub(crate) async fn list(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let views = call.engine.status(&call.caller, None).await?;
    let sandboxes = views.iter().map(Sandbox::from).collect();
    Ok(respond::json(StatusCode::OK, &Sandboxes { sandboxes }))
}

/// Returns one sandbox.
pub(crate) async fn status(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let views = call.engine.status(&call.caller, Some(call.id())).await?;
    match views.first() {
        Some(view) => Ok(respond::json(StatusCode::OK, &Sandbox::from(view))),
        None => Err(Failure::new(Code::NotFound, "there is no such sandbox", "make one").into()),
    }
}

/// Replaces the hosts that a sandbox can reach.
pub(crate) async fn set_network(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: SetNetwork = call.json()?;
    call.engine.set_network(&call.caller, call.id(), &asked.hosts).await?;
    status(call).await
}

/// Closes a sandbox.
pub(crate) async fn close(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let closed = call.engine.close(&call.caller, call.id()).await?.to_string();
    Ok(respond::json(StatusCode::OK, &Closed { closed }))
}

/// Lists the languages of the server.
pub(crate) async fn languages(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let languages = call.engine.languages().into_iter().map(|language| KnownLanguage {
        name: language.name,
        aliases: language.aliases,
        version: language.version,
        session: language.session,
    });
    let languages = Languages {
        default: call.engine.default_language().to_owned(),
        languages: languages.collect(),
    };
    Ok(respond::json(StatusCode::OK, &languages))
}
