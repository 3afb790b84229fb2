//! Permits: the operator's proof to a server on the same machine.
//!
//! A permit is a file in the server's data folder that only the server's own user can make. It names one request by its
//! hash, and the server removes it when it is used. So nothing that travels over the connection can be used a second time
//! or for another request, and a caller's token alone is never enough.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

/// The header with the name of a permit.
pub const PERMIT_HEADER: &str = "sandcell-permit";

const FOLDER_NAME: &str = "permits";
/// The maximum age of a permit.
const MAX_AGE: Duration = Duration::from_secs(60);
/// The characters of a permit's name: 128 bits in hexadecimal digits.
const NAME_CHARS: usize = 32;
/// The characters of a hash.
const HASH_CHARS: u64 = 64;

/// The permits of a data folder.
#[derive(Debug, Clone)]
pub struct Permits(PathBuf);

impl Permits {
    /// Returns the permits of a data folder.
    #[must_use]
    pub fn new(data_dir: &Path) -> Self {
        Self(data_dir.join(FOLDER_NAME))
    }

    /// Makes a permit for one request. Returns its name.
    ///
    /// # Errors
    /// This user cannot write to the data folder, or the system has no random numbers.
    pub fn issue(&self, path: &str, body: &[u8]) -> io::Result<String> {
        self.make_folder()?;
        // The server takes no permit of another user, and another user's folder would keep the server's user out.
        #[cfg(unix)]
        check_owner(&self.0)?;
        self.remove_old();
        let number = [getrandom::u64(), getrandom::u64()];
        let mut name = String::new();
        for part in number {
            name.push_str(&format!("{:016x}", part.map_err(io::Error::other)?));
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .open(self.0.join(&name))?
            .write_all(hash(path, body).as_bytes())?;
        Ok(name)
    }

    /// Uses a permit up. Returns false if there is none of this name for this request.
    #[must_use]
    pub fn take(&self, name: &str, path: &str, body: &[u8]) -> bool {
        let is_name = name.len() == NAME_CHARS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_name {
            return false;
        }
        let file = self.0.join(name);
        let text = self.read(&file);
        // The one that removes it has it: two requests cannot use the same permit.
        let removed = fs::remove_file(&file).is_ok();
        removed && text.is_some_and(|text| text == hash(path, body))
    }

    /// Reads a permit that only the owner of the folder can have made.
    fn read(&self, path: &Path) -> Option<String> {
        let folder = fs::symlink_metadata(&self.0).ok()?;
        let entry = fs::symlink_metadata(path).ok()?;
        let age = SystemTime::now()
            .duration_since(entry.modified().ok()?)
            .unwrap_or_default();
        if !folder.is_dir() || !entry.is_file() || age > MAX_AGE || !is_private(&folder, &entry) {
            return None;
        }
        let mut text = String::new();
        let file = File::open(path).ok()?;
        file.take(HASH_CHARS + 1).read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn make_folder(&self) -> io::Result<()> {
        #[cfg(unix)]
        if let Some(data_dir) = self.0.parent().filter(|folder| folder.exists()) {
            check_owner(data_dir)?;
        }
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.0)
    }

    /// Removes permits that nobody has used.
    fn remove_old(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        for entry in entries.flatten() {
            let modified = entry.metadata().and_then(|entry| entry.modified());
            let age = modified.map(|time| SystemTime::now().duration_since(time).unwrap_or_default());
            if age.is_ok_and(|age| age > MAX_AGE) {
                let _gone = fs::remove_file(entry.path());
            }
        }
    }
}

/// Returns true if nobody but this program's user can write the folder and the permit.
#[cfg(unix)]
fn is_private(folder: &fs::Metadata, permit: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let user = rustix::process::geteuid().as_raw();
    folder.uid() == user && permit.uid() == user && folder.mode() & 0o022 == 0 && permit.mode() & 0o077 == 0
}

/// Fails if a folder is not this program's user's.
#[cfg(unix)]
fn check_owner(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let owner = fs::symlink_metadata(folder)?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{} belongs to the user {owner}, and you are another one",
            folder.display()
        ),
    ))
}

/// The data folder belongs to one user on these systems.
#[cfg(not(unix))]
const fn is_private(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// Returns the hash of a request.
fn hash(path: &str, body: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(path.as_bytes());
    hash.update([0]);
    hash.update(body);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_is_valid_once_and_for_one_request() {
        let folder = tempfile::tempdir().unwrap();
        let permits = Permits::new(folder.path());
        let name = permits.issue("/a", b"body").unwrap();
        assert!(permits.take(&name, "/a", b"body"));
        assert!(!permits.take(&name, "/a", b"body"));
        for (path, body) in [("/b", &b"body"[..]), ("/a", b"other"), ("/abo", b"dy")] {
            let name = permits.issue("/a", b"body").unwrap();
            assert!(!permits.take(&name, path, body), "{path}");
            assert!(!permits.take(&name, "/a", b"body"), "a wrong request uses it up");
        }
    }

    #[test]
    fn a_name_is_never_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let permits = Permits::new(folder.path());
        permits.issue("/a", b"").unwrap();
        fs::write(folder.path().join("file"), hash("/a", b"")).unwrap();
        for name in ["../file", "", ".", "/etc/passwd", &"a".repeat(NAME_CHARS)] {
            assert!(!permits.take(name, "/a", b""), "{name}");
        }
        assert!(folder.path().join("file").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_permit_that_others_could_have_made_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let permits = Permits::new(folder.path());
        let name = permits.issue("/a", b"").unwrap();
        let path = folder.path().join(FOLDER_NAME).join(&name);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(!permits.take(&name, "/a", b""));
        let name = permits.issue("/a", b"").unwrap();
        let path = folder.path().join(FOLDER_NAME).join(&name);
        fs::rename(&path, folder.path().join("moved")).unwrap();
        symlink("../moved", &path).unwrap();
        assert!(!permits.take(&name, "/a", b""));
        let name = permits.issue("/a", b"").unwrap();
        fs::set_permissions(folder.path().join(FOLDER_NAME), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!permits.take(&name, "/a", b""));
    }
}
