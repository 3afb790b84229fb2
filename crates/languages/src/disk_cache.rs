//! The disk cache: small files in the operator's data folder with answers that the next start can reuse.
//!
//! A file is used only if no other user could have written it. If anything is wrong with a file, the question is asked
//! again.

use std::path::Path;

#[cfg(unix)]
use rustix::fs::OFlags;

/// The maximum size that is read, in bytes.
#[cfg(unix)]
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads a file in a folder, if only this user could have written to either.
#[cfg(unix)]
pub(crate) fn read_own(file: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let folder = file.parent()?.symlink_metadata().ok()?;
    if !folder.is_dir() || !is_ours(&folder) {
        return None;
    }
    // Follow no link and wait for no pipe, so that the checked file is the one that is read.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(file)
        .ok()?;
    let found = opened.metadata().ok()?;
    if !found.is_file() || !is_ours(&found) {
        return None;
    }
    let mut bytes = Vec::new();
    opened.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(unix)]
fn is_ours(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0
}

#[cfg(not(unix))]
pub(crate) fn read_own(_file: &Path) -> Option<Vec<u8>> {
    None
}

/// Replaces the file `name` in the folder atomically.
#[cfg(unix)]
pub(crate) fn write_own(memory: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(memory)?;
    // A random name: in containers every server has the same process id, and another may write or have died while
    // writing.
    let mut any = [0; 8];
    getrandom::fill(&mut any).map_err(std::io::Error::other)?;
    let new = memory.join(format!("{name}.{:016x}", u64::from_le_bytes(any)));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| std::fs::rename(&new, memory.join(name)));
    if written.is_err() {
        std::fs::remove_file(&new)?;
    }
    written
}

#[cfg(not(unix))]
pub(crate) fn write_own(_memory: &Path, _name: &str, _bytes: &[u8]) -> std::io::Result<()> {
    Ok(())
}

/// Identifies a file's content by its metadata: a different file or content gives a different text.
#[cfg(unix)]
pub(crate) fn state(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let found = path.metadata().ok()?;
    Some(format!(
        "{}:{}:{}:{}.{}:{}.{}",
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec()
    ))
}

#[cfg(not(unix))]
pub(crate) fn state(_path: &Path) -> Option<String> {
    None
}
