//! Atomic replacement of a file.

use std::io::{self, Write as _};
use std::path::Path;

/// Writes a new file next to the old one and renames it. The mode is that of the replaced file, or of `like`. A new
/// file is readable by its user alone, since settings hold keys. Anything else than a regular file, such as a device, is
/// not replaced.
pub(super) fn replace(path: &Path, text: &str, like: Option<&Path>) -> io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        replace(&path, "one", None).unwrap();
        replace(&path, "two", None).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        let (socket, link) = (folder.path().join("socket"), folder.path().join("link"));
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for other in [&socket, &link, &folder.path().to_owned()] {
            let kind = std::fs::symlink_metadata(other).unwrap().file_type();
            replace(other, "x", None).unwrap_err();
            assert_eq!(std::fs::symlink_metadata(other).unwrap().file_type(), kind);
        }
    }
}
