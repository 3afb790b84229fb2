//! Copies a folder of the host into a container: extracts an archive from standard input below a folder.
//!
//! It runs inside with the sandbox's own rights, like any other program. The host's sandcell writes the archive, with
//! folders before their contents. The archive contains only files, folders and links.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

const BLOCK_BYTES: usize = 512;
/// The maximum length of a name that does not fit into its header, in bytes.
const MAX_NAME_BYTES: u64 = 64 << 10;

/// Reads an archive to its end.
///
/// # Errors
/// The error of the first entry that could not be written. The entries before it exist.
pub fn unpack(mut archive: impl Read, to: &Path) -> io::Result<()> {
    let (mut long_name, mut long_link) = (None, None);
    loop {
        let mut head = [0; BLOCK_BYTES];
        archive.read_exact(&mut head)?;
        if head.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let size = number(field(&head, 124, 12))?;
        let kind = head.get(156).copied().unwrap_or_default();
        if kind == b'L' || kind == b'K' {
            let text = read_name(&mut archive, size)?;
            if kind == b'L' {
                long_name = Some(text);
            } else {
                long_link = Some(text);
            }
            continue;
        }
        let name = long_name.take().unwrap_or_else(|| field(&head, 0, 100).to_vec());
        let link = long_link.take().unwrap_or_else(|| field(&head, 157, 100).to_vec());
        let path = below(to, &name)?;
        let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        match kind {
            b'5' => folder(&path).map_err(with_path)?,
            b'2' => symlink(Path::new(std::ffi::OsStr::from_bytes(&link)), &path).map_err(with_path)?,
            b'0' => {
                let mode = u32::try_from(number(field(&head, 100, 8))?).unwrap_or(0o644) & 0o777;
                let modified = UNIX_EPOCH + Duration::from_secs(number(field(&head, 136, 12))?);
                file(&mut archive, &path, size, mode, modified).map_err(with_path)?;
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "an entry of an unknown kind",
                ));
            }
        }
    }
}

/// Returns the bytes of a field up to its end or the first zero.
fn field(head: &[u8; BLOCK_BYTES], at: usize, len: usize) -> &[u8] {
    let field = head.get(at..at + len).unwrap_or_default();
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn number(field: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(field).unwrap_or_default().trim();
    u64::from_str_radix(text, 8).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a number cannot be read"))
}

fn read_name(archive: &mut impl Read, size: u64) -> io::Result<Vec<u8>> {
    if size > MAX_NAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a name is too long"));
    }
    let mut text = Vec::new();
    archive.by_ref().take(size).read_to_end(&mut text)?;
    skip(archive, size)?;
    // Some archives end the name with a zero.
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
    Ok(text)
}

/// Skips the padding after an entry of `size` bytes.
fn skip(archive: &mut impl Read, size: u64) -> io::Result<()> {
    let rest = size.next_multiple_of(512) - size;
    io::copy(&mut archive.by_ref().take(rest), &mut io::sink()).map(drop)
}

fn below(to: &Path, name: &[u8]) -> io::Result<PathBuf> {
    let name = Path::new(std::ffi::OsStr::from_bytes(name));
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if name.components().all(plain) {
        Ok(to.join(name))
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a name leads out of the folder",
        ))
    }
}

fn folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        // The archive's root folder exists already.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn file(archive: &mut impl Read, path: &Path, size: u64, mode: u32, modified: std::time::SystemTime) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let copied = io::copy(&mut archive.by_ref().take(size), &mut file)?;
    if copied != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    file.set_modified(modified)?;
    skip(archive, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn archive(from: &Path, names: &[&str]) -> Vec<u8> {
        let mut tar = Command::new("tar");
        tar.args(["-c", "--format=gnu", "--absolute-names", "-C"])
            .arg(from)
            .args(names);
        let output = tar.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    #[test]
    fn files_folders_and_links_are_unpacked_as_packed() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        let long = "name-".repeat(40);
        std::fs::create_dir_all(from.join("a/b")).unwrap();
        std::fs::create_dir(&to).unwrap();
        std::fs::write(from.join("a/b").join(&long), vec![7; 5000]).unwrap();
        std::fs::write(from.join("empty"), "").unwrap();
        std::fs::set_permissions(from.join("empty"), Permissions::from_mode(0o750)).unwrap();
        symlink(&long, from.join("link")).unwrap();
        let bytes = archive(&from, &["."]);
        unpack(bytes.as_slice(), &to).unwrap();
        assert_eq!(std::fs::read(to.join("a/b").join(&long)).unwrap(), vec![7; 5000]);
        assert_eq!(std::fs::read_link(to.join("link")).unwrap(), Path::new(&long));
        let empty = to.join("empty").metadata().unwrap();
        assert_eq!((empty.len(), empty.permissions().mode() & 0o777), (0, 0o750));
        let modified = |path: &Path| {
            path.metadata()
                .unwrap()
                .modified()
                .unwrap()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_secs()
        };
        assert_eq!(modified(&to.join("empty")), modified(&from.join("empty")));
        // A truncated archive is an error.
        for cut in [100, 512, bytes.len() / 2] {
            let again = place.path().join(cut.to_string());
            std::fs::create_dir(&again).unwrap();
            assert!(unpack(&bytes[..cut], &again).is_err(), "{cut}");
        }
    }

    #[test]
    fn names_that_leave_the_target_folder_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("to");
        std::fs::create_dir(&to).unwrap();
        std::fs::write(place.path().join("outside"), "x").unwrap();
        let absolute = place.path().join("outside").display().to_string();
        for name in ["to/../outside", absolute.as_str()] {
            let bytes = archive(place.path(), &[name]);
            let error = unpack(bytes.as_slice(), &to).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name}: {error}");
        }
    }
}
