//! Finds programs on the host, and what of the host must be visible for them inside.
//!
//! One decision: a program that is only reachable through a folder that holds far more than it (a home folder, say) is
//! not used, and a version manager's stand-in never is, because what it looks at does not exist in a sandbox.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::search_path::answering;

/// Folders of /usr that are covered inside unless something in them is needed.
const COVERED: [&str; 2] = ["/usr/local/bin", "/usr/local/sbin"];
/// Where installers put toolchains without asking that the search path has them, below the home folder and below /.
const USUAL_AT_HOME: [&str; 5] = [".cargo/bin", ".deno/bin", ".bun/bin", ".juliaup/bin", "go/bin"];
const USUAL: [&str; 3] = ["/usr/local/go/bin", "/opt/julia/bin", "/opt/kotlinc/bin"];
const SYSTEM: [&str; 3] = ["/usr/bin", "/bin", "/usr/local/bin"];
/// The most folders of a search path that are looked at.
const FOLDERS_MAX: usize = 64;

/// A program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// The path to start it by, inside as outside.
    pub(crate) path: PathBuf,
    /// The file that it is in the end.
    pub(crate) real: PathBuf,
    /// The folder that must be shown for it.
    pub(crate) tree: Option<PathBuf>,
}

/// Looks for programs; each name once.
#[derive(Debug)]
pub struct Finder {
    /// Those that are there, without links: several names of a search path are often one folder.
    folders: Vec<PathBuf>,
    home: Option<PathBuf>,
    known: Mutex<BTreeMap<String, Result<Program, NotFound>>>,
}

/// Why there is no such program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotFound {
    #[error("{0} was not found")]
    Nowhere(String),
    #[error("{} is there, but showing it to sandboxes would show all of {}", .0.display(), .1.display())]
    TooBroad(PathBuf, PathBuf),
}

impl Finder {
    /// With the system's folders first, then the search path's, then those that installers use.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let home = std::env::home_dir().filter(|home| home.is_absolute());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
        folders.extend(answering(std::env::split_paths(&path).take(FOLDERS_MAX).collect()));
        folders.extend(USUAL.iter().map(PathBuf::from));
        if let Some(home) = &home {
            folders.extend(USUAL_AT_HOME.iter().map(|folder| home.join(folder)));
            folders.extend(newest_of_nvm(home));
        }
        Self::new(folders, home)
    }

    /// Of an image: programs by their names, each with its path. Nothing of the host is looked at.
    pub(crate) fn of_image(programs: &BTreeMap<String, PathBuf>) -> Self {
        let found = |path: &PathBuf| Program {
            path: path.clone(),
            real: path.clone(),
            tree: None,
        };
        let known = programs.iter().map(|(name, path)| (name.clone(), Ok(found(path))));
        Self {
            folders: Vec::new(),
            home: None,
            known: Mutex::new(known.collect()),
        }
    }

    pub(crate) fn new(folders: Vec<PathBuf>, home: Option<PathBuf>) -> Self {
        let mut unique: Vec<PathBuf> = Vec::new();
        for folder in folders {
            let stand_ins = folder.components().any(|part| part.as_os_str() == "shims");
            if !folder.is_absolute() || stand_ins {
                continue;
            }
            let Ok(folder) = folder.canonicalize() else { continue };
            if !unique.iter().any(|known| known.as_os_str() == folder.as_os_str()) {
                unique.push(folder);
            }
        }
        Self {
            folders: unique,
            home,
            known: Mutex::default(),
        }
    }

    /// The program of this name.
    pub(crate) fn find(&self, name: &str) -> Result<Program, NotFound> {
        let Ok(mut known) = self.known.lock() else {
            return Err(NotFound::Nowhere(name.to_owned()));
        };
        if let Some(found) = known.get(name) {
            return found.clone();
        }
        let found = self.look(name);
        known.insert(name.to_owned(), found.clone());
        found
    }

    /// The path of the program of this name inside, where it lies in the system's folders.
    pub(crate) fn path_of(&self, name: &str) -> Option<PathBuf> {
        let found = self.find(name).ok()?;
        found.tree.is_none().then_some(found.path)
    }

    fn look(&self, name: &str) -> Result<Program, NotFound> {
        let mut problem = NotFound::Nowhere(name.to_owned());
        for folder in &self.folders {
            let path = folder.join(name);
            if !is_program(&path) {
                continue;
            }
            let Ok(real) = path.canonicalize() else { continue };
            let (path, real) = match real.file_name().and_then(OsStr::to_str) {
                Some("rustup" | "rustup-init") if name != "rustup" => match self.of_rustup(name) {
                    Some(path) => (path.clone(), path),
                    None => continue,
                },
                _ => (path, real),
            };
            match program(path, real) {
                Ok(program) => return Ok(program),
                Err(broad) => problem = broad,
            }
        }
        Err(problem)
    }

    /// The program that rustup's stand-in would start outside of any project.
    fn of_rustup(&self, name: &str) -> Option<PathBuf> {
        let folder = std::env::var_os("RUSTUP_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(self.home.as_ref()?.join(".rustup")))?;
        let settings = std::fs::read_to_string(folder.join("settings.toml")).ok()?;
        let settings: toml::Table = settings.parse().ok()?;
        let chosen = settings.get("default_toolchain")?.as_str()?;
        let toolchain = folder.join("toolchains").join(Path::new(chosen).file_name()?);
        let path = toolchain.join("bin").join(name).canonicalize().ok()?;
        is_program(&path).then_some(path)
    }
}

/// How it is started inside, and what must be shown for that. There is no link in the way to `path`.
fn program(path: PathBuf, real: PathBuf) -> Result<Program, NotFound> {
    let tree = match covered_folder(&real) {
        Some(folder) => Some(folder),
        None if is_system(&real) => None,
        None => Some(own_folder(&real)?),
    };
    // The name it was found by matters to programs that are several (clang++): it is kept if it can be seen inside.
    let visible = match &tree {
        Some(tree) => path.starts_with(tree),
        None => is_system(&path) && covered_folder(&path).is_none(),
    };
    Ok(Program {
        path: if visible { path } else { real.clone() },
        real,
        tree,
    })
}

/// The folder that an installation outside of the system's is: the one above its `bin`.
fn own_folder(real: &Path) -> Result<PathBuf, NotFound> {
    let near = real.parent().unwrap_or(real);
    let folder = match (near.file_name().and_then(OsStr::to_str), near.parent()) {
        (Some("bin" | "sbin" | "libexec"), Some(above)) => above,
        _ => near,
    };
    if may_be_shown(folder) {
        Ok(folder.to_owned())
    } else {
        Err(NotFound::TooBroad(real.to_owned(), folder.to_owned()))
    }
}

/// Whether a folder of the host may be shown to sandboxes for a program's sake: not one that holds far more.
pub(crate) fn may_be_shown(folder: &Path) -> bool {
    let parts = folder.components().count();
    let home = std::env::home_dir();
    let at_home = home
        .as_ref()
        .is_some_and(|home| folder == home || *folder == home.join(".local"));
    // It may be a path of sandboxes alone, which Windows does not call absolute.
    let plain = folder.has_root() && folder.components().all(|part| part.as_os_str() != "..");
    let private = ["/etc", "/proc", "/sys", "/dev", "/run", "/boot"]
        .iter()
        .any(|root| folder.starts_with(root));
    plain && parts > 2 && !(folder.starts_with("/home") && parts <= 3) && !at_home && !private
}

/// What every sandbox sees anyway.
fn is_system(path: &Path) -> bool {
    ["/usr", "/bin", "/sbin", "/lib", "/lib64"]
        .iter()
        .any(|root| path.starts_with(root))
}

/// The folder of /usr that has to be uncovered for a program in it.
#[must_use]
pub fn covered_folder(program: &Path) -> Option<PathBuf> {
    let covered = |folder: &&str| program.starts_with(folder);
    COVERED.iter().find(|folder| covered(folder)).map(PathBuf::from)
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(_path: &Path) -> bool {
    false
}

/// The newest Node that nvm has installed.
fn newest_of_nvm(home: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(home.join(".nvm/versions/node")).ok()?;
    let number = |path: &PathBuf| -> Vec<u32> {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.trim_start_matches('v')
            .split('.')
            .filter_map(|part| part.parse().ok())
            .collect()
    };
    let newest = versions
        .take(1000)
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .max_by_key(number)?;
    Some(newest.join("bin"))
}

/// Whether this can be a pattern of configuration: below /etc, and a `*` in its last part only.
pub(crate) fn is_config(pattern: &str) -> bool {
    let Some(name) = pattern.strip_prefix("/etc/") else {
        return false;
    };
    !name.is_empty() && name != "*" && !name.starts_with('.') && !name.contains('/') && name.matches('*').count() <= 1
}

/// What of the host's /etc these patterns mean.
pub(crate) fn config(patterns: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for pattern in patterns {
        let Some(name) = pattern.strip_prefix("/etc/") else {
            continue;
        };
        match name.split_once('*') {
            None => found.extend(Some(PathBuf::from(pattern)).filter(|path| path.symlink_metadata().is_ok())),
            Some((start, end)) => {
                let Ok(listed) = std::fs::read_dir("/etc") else {
                    continue;
                };
                let fits = |name: &str| {
                    name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
                };
                let named = listed
                    .filter_map(Result::ok)
                    .filter_map(|entry| entry.file_name().into_string().ok());
                found.extend(named.filter(|name| fits(name)).map(|name| Path::new("/etc").join(name)));
            }
        }
    }
    found
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn make(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_toolchain_in_a_folder_of_its_own_is_shown_with_that_folder() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        make(&root.join("tools/zig-1/bin/zig"));
        std::fs::create_dir(root.join("bin")).unwrap();
        symlink(root.join("tools/zig-1/bin/zig"), root.join("bin/zig")).unwrap();
        let found = Finder::new(vec![root.join("bin")], None).find("zig").unwrap();
        assert_eq!(found.tree, Some(root.join("tools/zig-1")));
        assert_eq!(found.path, root.join("tools/zig-1/bin/zig"));
    }

    #[test]
    fn a_name_beside_the_program_it_is_a_link_to_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        make(&root.join("llvm/bin/clang"));
        symlink("clang", root.join("llvm/bin/clang++")).unwrap();
        let found = Finder::new(vec![root.join("llvm/bin")], None).find("clang++").unwrap();
        assert_eq!(found.path, root.join("llvm/bin/clang++"));
        assert_eq!(found.real, root.join("llvm/bin/clang"));
    }

    #[test]
    fn stand_ins_and_files_that_cannot_be_executed_are_passed_by() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        make(&root.join("shims/ruby"));
        std::fs::create_dir(root.join("bin")).unwrap();
        std::fs::write(root.join("bin/ruby"), "no program").unwrap();
        let finder = Finder::new(vec![root.join("shims"), root.join("bin")], None);
        assert_eq!(finder.find("ruby"), Err(NotFound::Nowhere("ruby".to_owned())));
    }

    #[test]
    fn rustups_stand_in_is_followed_to_the_default_toolchain() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().canonicalize().unwrap().join("h");
        make(&home.join(".cargo/bin/rustup"));
        symlink("rustup", home.join(".cargo/bin/rustc")).unwrap();
        make(&home.join(".rustup/toolchains/1.90-x/bin/rustc"));
        std::fs::write(home.join(".rustup/settings.toml"), "default_toolchain = \"1.90-x\"\n").unwrap();
        if std::env::var_os("RUSTUP_HOME").is_some() {
            println!("skipped: RUSTUP_HOME is set here");
            return;
        }
        let found = Finder::new(vec![home.join(".cargo/bin")], Some(home.clone()))
            .find("rustc")
            .unwrap();
        assert_eq!(found.tree, Some(home.join(".rustup/toolchains/1.90-x")));
    }

    #[test]
    fn folders_that_hold_far_more_than_a_program_are_never_shown() {
        for broad in [
            "/",
            "/opt",
            "/home/me",
            "/etc/secret/x",
            "/root",
            "/proc/self/x",
            "relative/x/y",
            "/opt/../etc/x",
        ] {
            assert!(!may_be_shown(Path::new(broad)), "{broad}");
        }
        assert!(may_be_shown(Path::new("/opt/julia")));
        assert!(may_be_shown(Path::new("/home/me/.deno")));
    }

    #[test]
    fn programs_of_an_administrator_uncover_their_folder() {
        assert_eq!(
            covered_folder(Path::new("/usr/local/bin/node")),
            Some("/usr/local/bin".into())
        );
        assert_eq!(covered_folder(Path::new("/usr/local/go/bin/go")), None);
        assert_eq!(covered_folder(Path::new("/usr/bin/go")), None);
    }

    #[test]
    fn configuration_is_below_etc_and_one_part_deep() {
        for bad in [
            "/etc",
            "/etc/",
            "/etc/*",
            "/etc/a/b",
            "/etc/../x",
            "/usr/x",
            "/etc/.x",
            "/etc/a*b*",
        ] {
            assert!(!is_config(bad), "{bad}");
        }
        assert!(is_config("/etc/php") && is_config("/etc/java-*"));
    }
}
