//! The tree of an image: its layers combined, with a hard link for each file.
//!
//! No file is copied, and none changes later. Images therefore share common layers on the disk and in memory, and the
//! kernel needs no overlay mounts. All paths are relative to open folders, and no link is followed out of the tree.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::ImageError;
use crate::record::{DEPTH_MAX, Path};
use crate::writer::{below, empty, names, os, remove};

const FOLDER_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);
/// The maximum size that is read of an image's `passwd` or `group` file.
const USERS_MAX: u64 = 256 << 10;

/// A layer to apply to the tree.
pub(crate) struct Part<'a> {
    pub(crate) files: &'a std::path::Path,
    pub(crate) whiteouts: &'a [Path],
    pub(crate) opaques: &'a [Path],
    pub(crate) implied: &'a BTreeSet<Path>,
}

/// Builds the tree in a new folder.
pub(crate) fn build(root: &std::path::Path, parts: &[Part<'_>]) -> Result<(), ImageError> {
    let tree_error = |error: Errno| ImageError::store("merge the layers", &error.into());
    let open = |path: &std::path::Path| rustix::fs::open(path, FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty());
    std::fs::create_dir(root).map_err(|error| ImageError::store("make the tree's folder", &error))?;
    let tree = open(root).map_err(tree_error)?;
    rustix::fs::fchmod(&tree, Mode::from_raw_mode(0o755)).map_err(tree_error)?;
    for part in parts {
        apply_whiteouts(&tree, part).map_err(tree_error)?;
        let files = open(part.files).map_err(tree_error)?;
        add_layer(
            &tree,
            &files,
            &below(&tree, &Path::default(), FOLDER_FLAGS).map_err(tree_error)?,
            &Path::default(),
            part,
            0,
        )
        .map_err(tree_error)?;
    }
    own_files(&tree).map_err(|error| ImageError::store("write the sandbox's own files into /etc", &error))
}

/// Removes the entries that the layer deletes.
fn apply_whiteouts(tree: &OwnedFd, part: &Part<'_>) -> Result<(), Errno> {
    let absent = |error| matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP);
    for path in part.opaques {
        match below(tree, path, FOLDER_FLAGS) {
            Ok(folder) => empty(&folder)?,
            Err(error) if absent(error) => {}
            Err(error) => return Err(error),
        }
    }
    for path in part.whiteouts {
        let Some((folder, name)) = path.split() else { continue };
        match below(tree, &folder, FOLDER_FLAGS).and_then(|folder| remove(&folder, name)) {
            Err(error) if !absent(error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn add_layer(
    tree: &OwnedFd,
    from: &OwnedFd,
    to: &OwnedFd,
    at: &Path,
    part: &Part<'_>,
    depth: usize,
) -> Result<(), Errno> {
    if depth > DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    for name in names(from)? {
        let name = name.as_slice();
        let found = rustix::fs::statat(from, os(name), AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            let path = at.child(name);
            let inner = rustix::fs::openat(from, os(name), FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
            let folder = folder_at(tree, to, name, &path, part)?;
            add_layer(tree, &inner, &folder, &path, part, depth + 1)?;
            continue;
        }
        let link = || rustix::fs::linkat(from, os(name), to, os(name), AtFlags::empty());
        match link() {
            Err(Errno::EXIST) => {
                remove(to, name)?;
                link()?;
            }
            other => other?,
        }
    }
    Ok(())
}

/// Opens the folder of this name, and creates it if it does not exist. A link to a folder is kept only if the layer
/// has no record of the folder: `/lib/x` in a layer without `/lib` is written to the target of `/lib`.
fn folder_at(tree: &OwnedFd, to: &OwnedFd, name: &[u8], path: &Path, part: &Part<'_>) -> Result<OwnedFd, Errno> {
    let open = || rustix::fs::openat(to, os(name), FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty());
    let make = || {
        rustix::fs::mkdirat(to, os(name), Mode::from_raw_mode(0o755))?;
        rustix::fs::chmodat(to, os(name), Mode::from_raw_mode(0o755), AtFlags::empty())?;
        open()
    };
    match open() {
        Ok(folder) => Ok(folder),
        Err(Errno::NOENT) => make(),
        Err(_) => {
            if part.implied.contains(path)
                && let Ok(folder) = below(tree, path, FOLDER_FLAGS)
            {
                return Ok(folder);
            }
            remove(to, name)?;
            make()
        }
    }
}

/// Writes the files in `/etc` that describe the sandbox to programs: the user, and the absence of a network. The
/// image's other users stay listed.
fn own_files(tree: &OwnedFd) -> std::io::Result<()> {
    let etc = match rustix::fs::openat(tree, "etc", FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(etc) => etc,
        Err(error) => {
            if error != Errno::NOENT {
                remove(tree, b"etc")?;
            }
            rustix::fs::mkdirat(tree, "etc", Mode::from_raw_mode(0o755))?;
            rustix::fs::chmodat(tree, "etc", Mode::from_raw_mode(0o755), AtFlags::empty())?;
            rustix::fs::openat(tree, "etc", FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty())?
        }
    };
    let users = lines(tree, b"etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
    let groups = lines(tree, b"etc/group", "root:x:0:\n");
    for (name, text) in [
        ("passwd", format!("{users}user:x:1000:1000:user:/home/user:/bin/sh\n")),
        ("group", format!("{groups}user:x:1000:\n")),
        ("hosts", "127.0.0.1 localhost sandcell\n::1 localhost\n".to_owned()),
        ("hostname", "sandcell\n".to_owned()),
        ("resolv.conf", "# no network\n".to_owned()),
    ] {
        match remove(&etc, name.as_bytes()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&etc, name, flags, Mode::from_raw_mode(0o644))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        std::fs::File::from(file).write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Returns the image's lines of a list of users or groups, without the lines that conflict with the sandbox's.
fn lines(tree: &OwnedFd, path: &[u8], otherwise: &str) -> String {
    use std::io::Read as _;
    let read = || -> Option<String> {
        let path = Path::parse(path).ok()?;
        let file = below(tree, &path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
        let found = rustix::fs::fstat(&file).ok()?;
        let mut text = Vec::new();
        let regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !regular {
            return None;
        }
        std::fs::File::from(file).take(USERS_MAX).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    let Some(text) = read() else {
        return otherwise.to_owned();
    };
    let own = |line: &&str| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next(), fields.nth(1));
        id.is_some() && name != Some("user") && id != Some("1000")
    };
    text.lines().filter(own).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
