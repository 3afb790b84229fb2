//! Finds uv on PATH or in the data folder, and copies it into a separate folder for the installer. The sandbox
//! therefore does not see other files of uv's original folder.

use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The installing program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tool {
    /// uv, at this path of the host.
    Uv(PathBuf),
    /// pip of the interpreter inside. It is slower and has the same result.
    Pip,
}

/// Searches uv in the folders of `path` (in the form of the variable PATH) and in the data folder.
#[must_use]
pub fn find_uv(path: Option<&str>, data: Option<&Path>) -> Option<PathBuf> {
    let listed = path.unwrap_or_default().split(':').map(PathBuf::from);
    let own = data.map(|data| data.join("bin"));
    listed
        .chain(own)
        .map(|folder| folder.join("uv"))
        .find(|file| is_program(file))
}

/// Returns true for an executable file that is not a script. The script of a version manager would search its real
/// program inside the sandbox.
fn is_program(file: &Path) -> bool {
    let runs = file.is_absolute()
        && file
            .metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    let mut magic = [0; 4];
    runs && std::fs::File::open(file).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok()) && magic == *b"\x7fELF"
}

/// Returns a folder below `tools` that contains only a copy of the program.
pub(crate) fn staged(program: &Path, tools: &Path) -> std::io::Result<PathBuf> {
    let real = program.canonicalize()?;
    let found = real.metadata()?;
    let name = format!(
        "uv-{}-{}.{}-{}",
        found.size(),
        found.mtime(),
        found.mtime_nsec(),
        found.ino()
    );
    let folder = tools.join(name);
    let copy = folder.join("uv");
    if copy.is_file() {
        return Ok(folder);
    }
    std::fs::create_dir_all(tools)?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    let draft = tools.join(format!("draft-{:016x}", u64::from_le_bytes(random)));
    std::fs::create_dir(&draft)?;
    let made = std::fs::copy(&real, draft.join("uv"))
        .and_then(|_| std::fs::set_permissions(draft.join("uv"), std::fs::Permissions::from_mode(0o555)))
        .and_then(|()| std::fs::rename(&draft, &folder));
    if made.is_err() {
        let _ = std::fs::remove_dir_all(&draft);
    }
    // Another server may have made the same copy first.
    if copy.is_file() {
        Ok(folder)
    } else {
        made.map(|()| folder)
    }
}
