//! Where uv is. It is found on PATH or in the data folder, and shown to the installer in a folder of its own, so that
//! nothing that lies beside it is seen inside.

use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The program that installs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tool {
    /// uv, at this place of the host.
    Uv(PathBuf),
    /// pip of the interpreter inside; slower, the same result.
    Pip,
}

/// Looks for uv in the folders of `path` (as the variable PATH has them) and in the data folder.
#[must_use]
pub fn find_uv(path: Option<&str>, data: Option<&Path>) -> Option<PathBuf> {
    let listed = path.unwrap_or_default().split(':').map(PathBuf::from);
    let own = data.map(|data| data.join("bin"));
    listed
        .chain(own)
        .map(|folder| folder.join("uv"))
        .find(|file| is_program(file))
}

/// An executable file that is no script: a version manager's stand-in would look for its real program inside.
fn is_program(file: &Path) -> bool {
    let runs = file.is_absolute()
        && file
            .metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    let mut magic = [0; 4];
    runs && std::fs::File::open(file).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok()) && magic == *b"\x7fELF"
}

/// A folder below `tools` with a copy of the program and nothing else.
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
    // Another server may have been quicker; then its copy is as good.
    if copy.is_file() {
        Ok(folder)
    } else {
        made.map(|()| folder)
    }
}
