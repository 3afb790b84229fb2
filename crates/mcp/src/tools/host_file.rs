//! `upload_file`: binary content, or a file of the host below a folder that the operator allowed.
//!
//! A host path is first resolved (links followed), and must then be below an allowed folder. It is opened without
//! following any link, starting from that folder. So neither `..`, nor a link that leads out, nor one created between
//! the check and the opening reaches anything else. Anything unclear is refused.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::FutureExt as _;
use sandcell_sandbox::{Code, Failure};
use serde_json::json;

use super::files::{append_field, check_size, path_field, required_path, store};
use super::{Call, Effect, Tool, ToolFacts, sandbox_field};
use crate::answer::Answer;
use crate::arguments::echo;
use crate::schema::{Field, Kind};

pub(super) fn upload_file(facts: &ToolFacts) -> Tool {
    let local = Field::new("local_path", Kind::Text, json!("/data/input.csv"));
    let fields = vec![
        path_field().required(),
        Field::new("content_base64", Kind::Content, json!("iVBORw0KGgo=")),
        local
            .about("Instead of content_base64: a host file in an allowed folder")
            .hidden_if(!facts.uploads),
        append_field(),
        sandbox_field(),
    ];
    Tool {
        name: "upload_file",
        description: "Put binary content into a file of a sandbox, making parent folders. At most 10 MiB a call; send \
                      more in parts with append."
            .into(),
        fields,
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| upload(call).boxed(),
    }
}

async fn upload(mut call: Call) -> Result<Answer, Failure> {
    let path = required_path(&mut call.arguments)?;
    let most = call.engine.config().file_bytes.as_bytes();
    let content = call.arguments.text("content_base64");
    let local = call.arguments.text("local_path");
    let bytes = match (content, local) {
        (Some(content), None) => decode(&content, most)?,
        (None, Some(local)) => {
            let allowed = call.engine.config().upload_from.clone();
            let read = move || read_host_file(&allowed, Path::new(&local), most);
            tokio::task::spawn_blocking(read)
                .await
                .unwrap_or_else(|_| Err(not_allowed()))?
        }
        _ => {
            return Err(Failure::invalid(
                "upload_file needs either `content_base64` or `local_path`, and not both",
                "a valid example is \"content_base64\": \"aGVsbG8=\"",
            ));
        }
    };
    store(call, &path, bytes).await
}

fn decode(text: &str, most: u64) -> Result<Bytes, Failure> {
    check_size(
        "the content",
        (text.len() / 4).saturating_mul(3).saturating_sub(2),
        most,
    )?;
    base64("content_base64", text, "write_file")
}

/// Strict base64: the standard alphabet with its padding. Line breaks, which many encoders add, are accepted.
pub(super) fn base64(name: &str, text: &str, for_text: &str) -> Result<Bytes, Failure> {
    let cleaned;
    let text = if text.bytes().any(|byte| matches!(byte, b'\n' | b'\r')) {
        cleaned = text.replace(['\n', '\r'], "");
        &cleaned
    } else {
        text
    };
    STANDARD.decode(text).map(Bytes::from).map_err(|error| {
        Failure::invalid(
            format!("`{name}` is not base64: {error}"),
            format!(
                "encode the bytes with the standard alphabet (A-Z a-z 0-9 + /) and padding, such as \"aGVsbG8=\"; \
                 for text use {for_text}"
            ),
        )
    })
}

fn not_allowed() -> Failure {
    Failure::new(
        Code::DeniedByPolicy,
        "`local_path` is not a readable regular file in a folder that the operator allowed",
        "send the content with content_base64, or ask the operator to add the folder to `upload_from`",
    )
}

/// Reads a host file of at most `most` bytes below one of the allowed folders. Paths outside give the same error,
/// existing or not.
fn read_host_file(allowed: &[PathBuf], path: &Path, most: u64) -> Result<Bytes, Failure> {
    if !path.is_absolute() {
        return Err(Failure::invalid(
            format!(
                "`local_path` must be an absolute path of the host, not {}",
                echo(&path.to_string_lossy())
            ),
            "a valid example is \"local_path\": \"/data/input.csv\"",
        ));
    }
    let real = path.canonicalize().map_err(|_| not_allowed())?;
    let (folder, below) = allowed
        .iter()
        .filter_map(|folder| folder.canonicalize().ok())
        .find_map(|folder| {
            let below = real.strip_prefix(&folder).ok()?.to_owned();
            Some((folder, below))
        })
        .ok_or_else(not_allowed)?;
    let file = open_below(&folder, &below).map_err(|_| not_allowed())?;
    let metadata = file.metadata().map_err(|_| not_allowed())?;
    if !metadata.is_file() {
        return Err(not_allowed());
    }
    let size = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    check_size("the host file", size, most)?;
    let mut bytes = Vec::with_capacity(size);
    // The file may have grown since its size was read.
    file.take(most + 1).read_to_end(&mut bytes).map_err(|_| not_allowed())?;
    check_size("the host file", bytes.len(), most)?;
    Ok(bytes.into())
}

#[cfg(target_os = "linux")]
fn open_below(folder: &Path, below: &Path) -> std::io::Result<std::fs::File> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

    let folder = openat(
        CWD,
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // NONBLOCK: opening a FIFO must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(folder, below, flags, Mode::empty(), resolve)?.into())
}

/// Other systems have no call that opens below a folder. The path is checked again after opening, and must not have
/// become a link.
#[cfg(not(target_os = "linux"))]
fn open_below(folder: &Path, below: &Path) -> std::io::Result<std::fs::File> {
    let path = folder.join(below);
    if !std::fs::symlink_metadata(&path)?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let file = std::fs::File::open(&path)?;
    if path.canonicalize()? != path {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const MAX_BYTES: u64 = 100;

    fn folders() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let allowed = root.path().join("allowed");
        std::fs::create_dir(&allowed).unwrap();
        std::fs::write(root.path().join("secret"), "secret").unwrap();
        std::fs::write(allowed.join("data"), "data").unwrap();
        (root, allowed)
    }

    #[test]
    fn a_file_in_an_allowed_folder_is_read_also_through_a_link_that_stays_inside() {
        let (_root, allowed) = folders();
        symlink("data", allowed.join("link")).unwrap();
        for name in ["data", "link", "./data"] {
            let bytes = read_host_file(std::slice::from_ref(&allowed), &allowed.join(name), MAX_BYTES).unwrap();
            assert_eq!(bytes, "data");
        }
    }

    #[test]
    fn nothing_else_is_read_and_the_error_hides_whether_it_exists() {
        let (root, allowed) = folders();
        symlink(root.path().join("secret"), allowed.join("out")).unwrap();
        symlink(root.path(), allowed.join("up")).unwrap();
        for path in [
            root.path().join("secret"),
            root.path().join("missing"),
            allowed.join("../secret"),
            allowed.join("out"),
            allowed.join("up/secret"),
            allowed.clone(),
            allowed.join("missing"),
            "/proc/self/environ".into(),
        ] {
            let failure = read_host_file(std::slice::from_ref(&allowed), &path, MAX_BYTES).unwrap_err();
            assert_eq!(failure, not_allowed(), "{}", path.display());
        }
        assert_eq!(
            read_host_file(&[], &allowed.join("data"), MAX_BYTES).unwrap_err(),
            not_allowed()
        );
        let relative = read_host_file(&[allowed], Path::new("data"), MAX_BYTES).unwrap_err();
        assert_eq!(relative.code, Code::InvalidArgument);
    }

    #[test]
    fn a_link_that_appears_after_the_check_is_not_followed() {
        let (root, allowed) = folders();
        symlink(root.path().join("secret"), allowed.join("swapped")).unwrap();
        assert!(open_below(&allowed, Path::new("swapped")).is_err());
        assert!(open_below(&allowed, Path::new("../secret")).is_err());
    }

    #[test]
    fn a_fifo_is_refused_without_waiting_and_a_large_file_is_named() {
        let (_root, allowed) = folders();
        std::fs::write(allowed.join("large"), vec![0; 101]).unwrap();
        let failure = read_host_file(std::slice::from_ref(&allowed), &allowed.join("large"), MAX_BYTES).unwrap_err();
        assert_eq!(failure.code, Code::LimitReached);
        let fifo = allowed.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        if made.is_ok_and(|status| status.success()) {
            assert_eq!(read_host_file(&[allowed], &fifo, MAX_BYTES).unwrap_err(), not_allowed());
        }
    }

    #[test]
    fn base64_is_checked_strictly() {
        assert_eq!(decode("aGVs\r\nbG8=\n", MAX_BYTES).unwrap(), "hello");
        assert_eq!(decode("", MAX_BYTES).unwrap(), "");
        for bad in [
            "aGVsbG8",
            "aGVs bG8=",
            "aGVsbG9=",
            "a-_=",
            "!!!!",
            "data:;base64,aGVsbG8=",
        ] {
            assert_eq!(decode(bad, MAX_BYTES).unwrap_err().code, Code::InvalidArgument, "{bad}");
        }
        assert_eq!(
            decode(&"AAAA".repeat(1000), MAX_BYTES).unwrap_err().code,
            Code::LimitReached
        );
    }
}
