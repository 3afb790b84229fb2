//! Makes, lists and drops checkpoints of a sandbox, and brings them back.

use hyper::{Response, StatusCode};
use sandcell_engine::{BranchFrom, CreateFrom, CreateRequest, RewindTo, SaveRequest, SavedFrom};
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::Consent;

use crate::model::{
    Changes, Checkpoint, Checkpoints, CreateBranches, CreateCheckpoint, CreatedCheckpoint, DroppedCheckpoint,
    OpenSaved, Rewind, Rewound, Sandbox, Sandboxes, SaveSandbox, Saved, SavedStates,
};
use crate::problem::Problem;
use crate::request::{Call, seconds};
use crate::respond;

/// The maximum number of changed files in an answer.
const MAX_CHANGES: usize = 1000;

/// Makes a checkpoint.
pub(crate) async fn create(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: CreateCheckpoint = call.json()?;
    let made = call
        .engine
        .checkpoint(&call.caller, Some(call.id()), asked.name.as_deref())
        .await?;
    Ok(respond::json(StatusCode::CREATED, &CreatedCheckpoint::from(made)))
}

/// Makes sandboxes with the state of this one.
pub(crate) async fn branch(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: CreateBranches = call.json()?;
    let lifetime = asked.lifetime_s.map(|time| seconds("lifetime_s", time));
    let request = CreateRequest {
        count: asked.count.unwrap_or(1),
        lifetime: lifetime.transpose()?,
        label: asked.label,
        consent: Consent::CannotAsk,
        from: Some(CreateFrom::Sandbox(BranchFrom {
            sandbox_id: Some(call.id().to_owned()),
            checkpoint: asked.checkpoint,
        })),
        ..CreateRequest::default()
    };
    let views = call.engine.create(&call.caller, request).await?;
    let sandboxes = views.iter().map(Sandbox::from).collect();
    Ok(respond::json(StatusCode::CREATED, &Sandboxes { sandboxes }))
}

/// Saves the state of this sandbox.
pub(crate) async fn save(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: SaveSandbox = call.json()?;
    let request = SaveRequest {
        from: BranchFrom {
            sandbox_id: Some(call.id().to_owned()),
            checkpoint: asked.checkpoint,
        },
        name: asked.name,
        only_files: asked.only_files,
    };
    let saved = call.engine.save(&call.caller, &request).await?;
    Ok(respond::json(StatusCode::CREATED, &Saved::from(&saved)))
}

/// Lists the saved states, by name.
pub(crate) async fn saved(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let saved = call.engine.saved(&call.caller).await?;
    let saved = saved.iter().map(Saved::from).collect();
    Ok(respond::json(StatusCode::OK, &SavedStates { saved }))
}

/// Makes sandboxes with a saved state.
pub(crate) async fn open_saved(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: OpenSaved = call.json()?;
    let lifetime = asked.lifetime_s.map(|time| seconds("lifetime_s", time));
    let request = CreateRequest {
        count: asked.count.unwrap_or(1),
        env: asked.env,
        network: asked.network,
        lifetime: lifetime.transpose()?,
        label: asked.label,
        consent: Consent::CannotAsk,
        from: Some(CreateFrom::Saved(SavedFrom {
            name: call.id().to_owned(),
            only_files: asked.only_files,
        })),
        ..CreateRequest::default()
    };
    let views = call.engine.create(&call.caller, request).await?;
    let sandboxes = views.iter().map(Sandbox::from).collect();
    Ok(respond::json(StatusCode::CREATED, &Sandboxes { sandboxes }))
}

/// Removes a saved state.
pub(crate) async fn drop_saved(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    call.engine.drop_saved(&call.caller, call.id()).await?;
    let dropped = call.id().to_owned();
    Ok(respond::json(StatusCode::OK, &DroppedCheckpoint { dropped }))
}

/// Lists the checkpoints, oldest first.
pub(crate) async fn list(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let views = call.engine.checkpoints(&call.caller, Some(call.id())).await?;
    let checkpoints = views.iter().map(Checkpoint::from).collect();
    Ok(respond::json(StatusCode::OK, &Checkpoints { checkpoints }))
}

/// Drops a checkpoint.
pub(crate) async fn remove(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let name = call.ids.get(1).map_or("", String::as_str);
    call.engine.drop_checkpoint(&call.caller, Some(call.id()), name).await?;
    let dropped = name.to_owned();
    Ok(respond::json(StatusCode::OK, &DroppedCheckpoint { dropped }))
}

/// Brings back a checkpoint.
pub(crate) async fn rewind(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: Rewind = call.json()?;
    let view = call
        .engine
        .rewind(&call.caller, Some(call.id()), &RewindTo::parse(&asked.to))
        .await?;
    Ok(respond::json(StatusCode::OK, &Rewound::from(&view)))
}

/// Lists the files that differ from those of a checkpoint, and those of copy-on-write mounts that differ from the host's.
pub(crate) async fn changes(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let since = call
        .query
        .text("since")
        .filter(|since| !since.is_empty())
        .map(RewindTo::parse);
    let limit: Option<usize> = call.query.value("limit", "a whole number")?;
    let limit = limit.unwrap_or(MAX_CHANGES).min(MAX_CHANGES);
    let view = call
        .engine
        .changes(&call.caller, Some(call.id()), since.as_ref(), limit)
        .await?;
    Ok(respond::json(StatusCode::OK, &Changes::from(&view)))
}
