//! Reads and writes the small files by which the kernel reports and takes settings: those of /proc and of cgroups.

use std::io::{self, Read as _};

use rustix::fs::Mode;

/// The size of most files of /proc and cgroups, in bytes.
const SMALL_FILE_BYTES: usize = 4096;

/// Reads a file of the kernel, which is usually short. Asking for its size first, as the standard library does, would
/// cost as much as reading it, and a check of many processes must be fast. Empty if it cannot be read.
pub(crate) fn small_file(path: &str) -> String {
    let Ok(file) = std::fs::File::open(path) else {
        return String::new();
    };
    let mut text = Vec::with_capacity(SMALL_FILE_BYTES);
    // Longer content needs further reads, each of which may return less than the buffer's size.
    if file.take(u64::MAX).read_to_end(&mut text).is_err() {
        return String::new();
    }
    String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Writes a control file in one `write` and checks its result.
pub(crate) fn write_once(path: &str, text: &str) -> io::Result<()> {
    let file = rustix::fs::open(
        path,
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let written = rustix::io::write(&file, text.as_bytes())?;
    if written == text.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}
