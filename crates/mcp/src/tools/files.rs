//! Listing and writing files of a sandbox.

use std::fmt::Write as _;

use bytes::Bytes;
use futures::FutureExt as _;
use sandcell_engine::FileAnswer;
use sandcell_sandbox::{Entry, EntryKind, Failure, Listing, SandboxPath, WriteMode, from_unix_millis, rfc3339};
use serde_json::{Value, json};

use super::{Call, Effect, Tool, sandbox_field};
use crate::answer::{Answer, notice_lines};
use crate::arguments::{Arguments, sandbox_path};
use crate::limits::LIST_ENTRIES;
use crate::schema::{self, Field, Kind};

pub(super) fn path_field() -> Field {
    Field::new("path", Kind::Text, json!("data.csv"))
}

/// The path of a call that must name one.
pub(super) fn required_path(arguments: &mut Arguments) -> Result<SandboxPath, Failure> {
    sandbox_path("path", &arguments.required_text("path")?)
}

pub(super) fn list_files() -> Tool {
    Tool {
        name: "list_files",
        description: "List a folder of a sandbox: name, type, size, modified.".into(),
        fields: vec![
            path_field()
                .about("Relative paths start at /home/user")
                .default(json!("/home/user")),
            Field::new("recursive", Kind::Flag, json!(true)),
            sandbox_field(),
        ],
        output: Some(schema::output_list(
            &[("sandbox_id", "string"), ("path", "string"), ("more", "integer")],
            "files",
            &[
                ("name", "string"),
                ("type", "string"),
                ("size", "integer"),
                ("modified", "string"),
                ("target?", ""),
            ],
        )),
        effect: Effect::Reads,
        run: |call| list(call).boxed(),
    }
}

async fn list(mut call: Call) -> Result<Answer, Failure> {
    let path = match call.arguments.text("path") {
        Some(text) => sandbox_path("path", &text)?,
        None => SandboxPath::home(),
    };
    let recursive = call.arguments.flag("recursive");
    let sandbox = call.arguments.text("sandbox_id");
    let answer = call
        .engine
        .list_files(&call.caller, sandbox.as_deref(), &path, recursive, LIST_ENTRIES)
        .await?;
    Ok(Answer::data(list_text(&path, &answer), list_data(&path, &answer)))
}

/// A listing, for programs.
pub(crate) fn list_data(path: &SandboxPath, answer: &FileAnswer<Listing>) -> Value {
    let files: Vec<Value> = answer.value.entries.iter().map(entry_data).collect();
    let mut data = json!({
        "sandbox_id": answer.sandbox_id, "path": path, "files": files, "more": answer.value.omitted,
    });
    // Some clients show only the data to a model.
    if let (Some(data), false) = (data.as_object_mut(), answer.notices.is_empty()) {
        data.insert("notices".into(), json!(answer.notices));
    }
    data
}

/// Returns a name for display. Only characters that would break a line, or change the direction of the surrounding
/// text, are escaped.
pub(super) fn shown_name(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        match c {
            '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{feff}' => {
                text.extend(c.escape_unicode());
            }
            c if c.is_control() => text.extend(c.escape_debug()),
            c => text.push(c),
        }
    }
    text
}

fn list_text(path: &SandboxPath, answer: &FileAnswer<Listing>) -> String {
    let listing = &answer.value;
    let mut text = notice_lines(&answer.notices);
    let _ = write!(text, "{path} in {}", answer.sandbox_id);
    if listing.entries.is_empty() {
        text.push_str(": empty");
    }
    for entry in &listing.entries {
        let modified = rfc3339(from_unix_millis(entry.modified_ms));
        let name = shown_name(&entry.name);
        let _ = match entry.kind {
            EntryKind::File => write!(text, "\n{name}  {} bytes  {modified}", entry.size),
            EntryKind::Folder => write!(text, "\n{name}/  {modified}"),
            EntryKind::Link => match &entry.target {
                Some(target) => write!(text, "\n{name}  link to {}  {modified}", shown_name(target)),
                None => write!(text, "\n{name}  link  {modified}"),
            },
            EntryKind::Other => write!(text, "\n{name}  neither file nor folder  {modified}"),
        };
    }
    if listing.omitted > 0 {
        let _ = write!(text, "\n... and {} more; list a folder below", listing.omitted);
    }
    text
}

fn entry_data(entry: &Entry) -> Value {
    let mut data = json!({
        "name": entry.name,
        "type": entry.kind,
        "size": entry.size,
        "modified": rfc3339(from_unix_millis(entry.modified_ms)),
    });
    if let (Some(target), Some(data)) = (&entry.target, data.as_object_mut()) {
        data.insert("target".into(), json!(target));
    }
    data
}

pub(super) fn write_file() -> Tool {
    Tool {
        name: "write_file",
        description: "Write a text file into a sandbox, making parent folders. For binary use upload_file.".into(),
        fields: vec![
            path_field().required(),
            Field::new("content", Kind::Content, json!("a,b\n1,2\n")).required(),
            append_field(),
            sandbox_field(),
        ],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| write(call).boxed(),
    }
}

pub(super) fn append_field() -> Field {
    Field::new("append", Kind::Flag, json!(true)).about("Add to the file instead of replacing it")
}

async fn write(mut call: Call) -> Result<Answer, Failure> {
    let path = required_path(&mut call.arguments)?;
    let content = Bytes::from(call.arguments.required_text("content")?);
    store(call, &path, content).await
}

/// Writes bytes with the call's `append` and `sandbox_id`.
pub(super) async fn store(mut call: Call, path: &SandboxPath, bytes: Bytes) -> Result<Answer, Failure> {
    let mode = if call.arguments.flag("append") {
        WriteMode::Append
    } else {
        WriteMode::Replace
    };
    let sandbox = call.arguments.text("sandbox_id");
    check_size("the content", bytes.len(), call.engine.config().file_bytes.as_bytes())?;
    let written = bytes.len();
    let answer = call
        .engine
        .write_file(&call.caller, sandbox.as_deref(), path, bytes, mode)
        .await?;
    let mut text = notice_lines(&answer.notices);
    let _ = write!(text, "wrote {written} bytes to {path} in {}", answer.sandbox_id);
    if mode == WriteMode::Append {
        let _ = write!(text, "; it now has {} bytes", answer.value);
    }
    Ok(Answer::text(text).with_meta(
        "sandcell/file",
        json!({
            "sandbox_id": answer.sandbox_id, "new_sandbox": answer.new_sandbox, "path": path,
            "bytes_written": written, "size": answer.value,
        }),
    ))
}

/// Refuses more bytes than one call moves.
pub(super) fn check_size(what: &str, size: usize, most: u64) -> Result<(), Failure> {
    if u64::try_from(size).is_ok_and(|size| size <= most) {
        return Ok(());
    }
    Err(Failure::new(
        sandcell_sandbox::Code::LimitReached,
        format!("{what} has {size} bytes; one call moves at most {most}"),
        "send it in parts: the first as usual, the others with append=true",
    ))
}
