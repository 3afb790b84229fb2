//! Completions for the arguments of prompts and resource addresses: the caller's own sandboxes, files and executions.
//! They only help with typing. Completion creates nothing, and returns nothing for sandboxes of other callers.

use std::sync::Arc;
use std::time::Duration;

use sandcell_engine::{Engine, Principal};
use sandcell_sandbox::{EntryKind, Failure};

/// The maximum number of values in one answer, as the protocol sets it.
const MAX_VALUES: usize = 100;
/// The maximum number of a folder's entries that are searched.
const MAX_FOLDER_ENTRIES: usize = 2000;
/// The maximum number of executions that are searched.
const MAX_EXECUTIONS: usize = 50;

/// An argument that is being typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompletionQuery<'a> {
    /// The name of the prompt, or the form of the address.
    pub(crate) of: &'a str,
    /// The argument.
    pub(crate) name: &'a str,
    /// The part typed so far.
    pub(crate) value: &'a str,
    /// An argument that is already set: the sandbox for a path, the execution for a number.
    pub(crate) within: Option<&'a str>,
}

/// The possible values, and their total number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Completions {
    pub(crate) values: Vec<String>,
    pub(crate) total: usize,
}

/// Completes an argument. Returns no values after a failure, such as an unknown id or a missing folder.
pub(crate) async fn complete(engine: &Arc<Engine>, caller: &Principal, typed: &CompletionQuery<'_>) -> Completions {
    let found = match typed.name {
        "sandbox_id" => sandboxes(engine, caller).await,
        "execution_id" => executions(engine, caller).await,
        "n" => artifacts(engine, caller, typed.within).await,
        "path" => paths(engine, caller, typed).await,
        _ => Ok(Vec::new()),
    };
    let mut values = found.unwrap_or_default();
    values.retain(|value| value.starts_with(typed.value));
    let total = values.len();
    values.truncate(MAX_VALUES);
    Completions { values, total }
}

async fn sandboxes(engine: &Arc<Engine>, caller: &Principal) -> Result<Vec<String>, Failure> {
    let all = engine.status(caller, None).await?;
    Ok(all.iter().map(|sandbox| sandbox.id.to_string()).collect())
}

async fn executions(engine: &Arc<Engine>, caller: &Principal) -> Result<Vec<String>, Failure> {
    let history = engine.history(caller, MAX_EXECUTIONS, None).await?;
    Ok(history
        .records
        .iter()
        .map(|record| record.execution_id.to_string())
        .collect())
}

async fn artifacts(engine: &Arc<Engine>, caller: &Principal, execution: Option<&str>) -> Result<Vec<String>, Failure> {
    let Some(execution) = execution else {
        return Ok(Vec::new());
    };
    let view = engine.execution(caller, execution, Duration::ZERO).await?;
    Ok(view
        .artifacts
        .iter()
        .map(|artifact| artifact.number.to_string())
        .collect())
}

/// Returns files and folders (with a trailing slash) of the named live sandbox, or of the default sandbox.
async fn paths(engine: &Arc<Engine>, caller: &Principal, typed: &CompletionQuery<'_>) -> Result<Vec<String>, Failure> {
    let all = engine.status(caller, None).await?;
    let meant = match typed.within {
        Some(id) => all.iter().find(|sandbox| sandbox.id.to_string() == id),
        None => all.iter().find(|sandbox| sandbox.is_default),
    };
    // Listing the files of the default sandbox would make it if it does not exist.
    let Some(sandbox) = meant else {
        return Ok(Vec::new());
    };
    let folder = typed.value.rsplit_once('/').map_or("", |(folder, _)| folder);
    // Addresses have their slash before the path, and in a prompt a path without one is that of the home folder.
    let is_address = typed.of.contains("://");
    let whole = if is_address {
        format!("/{folder}")
    } else {
        folder.to_owned()
    };
    let whole = match whole.as_str() {
        "" if typed.value.starts_with('/') => "/",
        "" => ".",
        whole => whole,
    };
    let path = crate::arguments::sandbox_path("path", whole)?;
    let id = sandbox.id.to_string();
    let listing = engine
        .list_files(caller, Some(&id), &path, false, MAX_FOLDER_ENTRIES)
        .await?
        .value;
    let start = typed
        .value
        .rsplit_once('/')
        .map(|(folder, _)| format!("{folder}/"))
        .unwrap_or_default();
    let entries = listing.entries.iter();
    Ok(entries
        .map(|entry| {
            let slash = if entry.kind == EntryKind::Folder { "/" } else { "" };
            format!("{start}{}{slash}", entry.name)
        })
        .collect())
}
