//! Atomic replacement of a file.

use std::io::{self, Write as _};
use std::path::Path;

/// Writes a new file next to the old one and renames it. The mode is that of the replaced file, or of `like`. A new
/// file is readable by its user alone, since settings hold keys.
pub(super) fn replace(path: &Path, text: &str, like: Option<&Path>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".sandcell-").tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    if let Ok(found) = std::fs::metadata(like.unwrap_or(path)) {
        file.as_file().set_permissions(found.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
