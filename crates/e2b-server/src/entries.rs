//! Descriptions of files and folders in `envd`'s form.

use sandcell_sandbox::{Code, Entry, EntryKind, SandboxPath, from_unix_millis, rfc3339_millis};
use serde_json::{Value, json};

use crate::call::InSandbox;
use crate::limits::{ROOT_ID, USER_NAME};
use crate::paths::path;
use crate::problem::Problem;

pub(crate) async fn entry(call: &InSandbox, path: &SandboxPath) -> Result<Entry, Problem> {
    let (engine, sandbox) = (&call.state.engine, &call.sandbox);
    let entry = engine.entry(&sandbox.owner, Some(&sandbox.id), path).await;
    entry.map(|entry| entry.value).map_err(|failure| match failure.code {
        Code::NotFound => Problem::not_found(format!("path '{path}' does not exist")),
        _ => failure.into(),
    })
}

/// Returns the description of a file. A link has the type of its target.
pub(crate) async fn described(call: &InSandbox, path: &SandboxPath) -> Result<Value, Problem> {
    let entry = entry(call, path).await?;
    let kind = match entry.kind {
        EntryKind::Link => kind_of_target(call, path, &entry).await,
        kind => kind,
    };
    Ok(value(call, path.as_str(), &entry, kind))
}

/// Returns the description of a changed file. None if it is gone, or if the sandbox is paused.
pub(crate) async fn described_unless_paused(call: &InSandbox, path: &SandboxPath) -> Option<Value> {
    let (engine, sandbox) = (&call.state.engine, &call.sandbox);
    let entry = engine.entry_unless_paused(&sandbox.owner, &sandbox.id, path).await;
    let entry = entry.ok().flatten()?;
    Some(value(call, path.as_str(), &entry, entry.kind))
}

/// Returns the type of a link's target, if that is known.
pub(crate) async fn kind_of_target(call: &InSandbox, link: &SandboxPath, found: &Entry) -> EntryKind {
    match path(&absolute(link.as_str(), found.target.as_deref().unwrap_or_default())) {
        Ok(target) => entry(call, &target).await.map_or(EntryKind::Other, |entry| entry.kind),
        Err(_) => EntryKind::Other,
    }
}

/// Returns the description of an entry, with its metadata.
pub(crate) fn value(call: &InSandbox, path: &str, entry: &Entry, kind: EntryKind) -> Value {
    let mut value = without_metadata(path, entry, kind);
    if entry.kind == EntryKind::File
        && let Some(metadata) = call.sandbox.file_metadata.of(path)
        && let Some(value) = value.as_object_mut()
    {
        value.insert("metadata".to_owned(), json!(metadata));
    }
    value
}

fn without_metadata(path: &str, entry: &Entry, kind: EntryKind) -> Value {
    let name = path.rsplit('/').next().unwrap_or_default();
    let owner = |id: u32| if id == ROOT_ID { "root" } else { USER_NAME };
    let modified = from_unix_millis(entry.modified_ms);
    let mut value = json!({
        "name": if name.is_empty() { "/" } else { name },
        "type": match kind {
            EntryKind::Folder => "FILE_TYPE_DIRECTORY",
            // The SDKs leave out entries of other types.
            EntryKind::File | EntryKind::Link | EntryKind::Other => "FILE_TYPE_FILE",
        },
        "path": path,
        "size": entry.size.to_string(),
        "mode": entry.mode,
        "permissions": permissions(entry.kind, entry.mode),
        "owner": owner(entry.user),
        "group": owner(entry.group),
        "modifiedTime": rfc3339_millis(modified),
    });
    if let (Some(target), Some(object)) = (&entry.target, value.as_object_mut()) {
        object.insert("isSymlink".to_owned(), true.into());
        object.insert("symlinkTarget".to_owned(), absolute(path, target).into());
    }
    value
}

/// Returns the absolute path of a link's target.
fn absolute(link: &str, target: &str) -> String {
    if target.starts_with('/') {
        return target.to_owned();
    }
    let folder = link.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

/// Returns permissions as `ls` shows them.
fn permissions(kind: EntryKind, mode: u32) -> String {
    let first = match kind {
        EntryKind::File => '-',
        EntryKind::Folder => 'd',
        EntryKind::Link => 'L',
        EntryKind::Other => '?',
    };
    let letters = "rwxrwxrwx".chars().enumerate();
    std::iter::once(first)
        .chain(letters.map(|(place, letter)| if mode & (0o400 >> place) == 0 { '-' } else { letter }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_link_is_an_absolute_path() {
        for (target, expected) in [
            ("b", "/x/b"),
            ("./b/", "/x/b"),
            ("../../b", "/b"),
            ("/b", "/b"),
            ("", "/x"),
        ] {
            assert_eq!(absolute("/x/link", target), expected, "{target}");
        }
    }

    #[test]
    fn permissions_are_those_of_ls() {
        assert_eq!(permissions(EntryKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(EntryKind::Folder, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(EntryKind::File, 0o000), "----------");
    }
}
