//! Finds programs on the host, and the host folders that must be visible for them inside.
//!
//! The first one on the search path is used, as outside. One decision: a program is skipped if it is only reachable
//! through a folder that holds far more (a home folder, for example). A version manager's shim is resolved to the
//! program that it starts, because the files it reads do not exist in a sandbox.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::search_path::answering;
use crate::stand_ins::{self, Found};

/// Folders of /usr that are covered inside unless a program needs them.
const COVERED_FOLDERS: [&str; 2] = ["/usr/local/bin", "/usr/local/sbin"];
/// The usual folders of toolchains that may be missing from the search path: in the home folder, in /, and of the
/// system.
const USUAL_AT_HOME: [&str; 5] = [".cargo/bin", ".deno/bin", ".bun/bin", ".juliaup/bin", "go/bin"];
const TOOLCHAIN_FOLDERS: [&str; 3] = ["/usr/local/go/bin", "/opt/julia/bin", "/opt/kotlinc/bin"];
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/bin", "/bin", "/usr/local/bin"];
/// The maximum number of folders of a search path.
const FOLDERS_MAX: usize = 64;

/// A program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its path inside and outside.
    pub(crate) path: PathBuf,
    /// The file behind all links.
    pub(crate) real: PathBuf,
    /// The folder that must be visible for it.
    pub(crate) tree: Option<PathBuf>,
    /// The reason for the choice, in words that follow its path.
    pub(crate) reason: String,
}

/// Finds programs; looks for each name once.
#[derive(Debug)]
pub struct Finder {
    /// The existing folders without links: several entries of a search path are often one folder.
    folders: Vec<PathBuf>,
    /// The number of folders from the search path; the others follow.
    on_path: usize,
    home: Option<PathBuf>,
    known: Mutex<BTreeMap<String, Result<Program, NotFound>>>,
}

/// The reason why a program is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotFound {
    #[error("{0} was not found")]
    Nowhere(String),
    #[error("{} is there, but showing it to sandboxes would show all of {}", .0.display(), .1.display())]
    TooBroad(PathBuf, PathBuf),
}

impl Finder {
    /// Searches the search path first, then the system's folders, then those of installers.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let home = std::env::home_dir().filter(|home| home.is_absolute());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let listed = answering(std::env::split_paths(&path).take(FOLDERS_MAX).collect());
        let mut folders: Vec<PathBuf> = SYSTEM_FOLDERS.iter().map(PathBuf::from).collect();
        folders.extend(TOOLCHAIN_FOLDERS.iter().map(PathBuf::from));
        if let Some(home) = &home {
            folders.extend(USUAL_AT_HOME.iter().map(|folder| home.join(folder)));
            folders.extend(newest_of_nvm(home));
        }
        Self::new(listed, folders, home)
    }

    /// Knows only an image's programs, by name and path. Ignores the host.
    pub(crate) fn of_image(programs: &BTreeMap<String, PathBuf>) -> Self {
        let found = |path: &PathBuf| Program {
            path: path.clone(),
            real: path.clone(),
            tree: None,
            reason: String::new(),
        };
        let known = programs.iter().map(|(name, path)| (name.clone(), Ok(found(path))));
        Self {
            folders: Vec::new(),
            on_path: 0,
            home: None,
            known: Mutex::new(known.collect()),
        }
    }

    pub(crate) fn new(listed: Vec<PathBuf>, others: Vec<PathBuf>, home: Option<PathBuf>) -> Self {
        let mut unique: Vec<PathBuf> = Vec::new();
        let mut on_path = 0;
        let listed = listed.into_iter().map(|folder| (folder, true));
        for (folder, is_listed) in listed.chain(others.into_iter().map(|folder| (folder, false))) {
            if !folder.is_absolute() {
                continue;
            }
            let Ok(folder) = folder.canonicalize() else { continue };
            if !unique.iter().any(|known| known.as_os_str() == folder.as_os_str()) {
                unique.push(folder);
                on_path = if is_listed { unique.len() } else { on_path };
            }
        }
        Self {
            on_path,
            folders: unique,
            home,
            known: Mutex::default(),
        }
    }

    /// Returns the program of this name.
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

    /// Returns the path of a program inside, if it lies in the system's folders.
    pub(crate) fn path_of(&self, name: &str) -> Option<PathBuf> {
        let found = self.find(name).ok()?;
        found.tree.is_none().then_some(found.path)
    }

    fn look(&self, name: &str) -> Result<Program, NotFound> {
        let mut problem = NotFound::Nowhere(name.to_owned());
        let mut passed_over: Option<String> = None;
        for (number, folder) in self.folders.iter().enumerate() {
            let file = folder.join(name);
            if !is_program(&file) {
                continue;
            }
            let path = match stand_ins::follow(folder, name, |name| std::env::var(name).ok()) {
                Found::Program => file.clone(),
                Found::StandsFor(path) if is_program(&path) => path,
                Found::StandsFor(_) | Found::Nothing => {
                    let reason = || format!("{} starts none outside of a project", file.display());
                    passed_over.get_or_insert_with(reason);
                    continue;
                }
            };
            let Ok(real) = path.canonicalize() else { continue };
            let (path, real) = match real.file_name().and_then(OsStr::to_str) {
                Some("rustup" | "rustup-init") if name != "rustup" => match self.of_rustup(name) {
                    Some(path) => (path.clone(), path),
                    None => continue,
                },
                _ => (path, real),
            };
            let through = (path != file).then_some(file);
            match program(path, real) {
                Ok(program) => {
                    let reason = reason(number < self.on_path, through.as_deref(), passed_over.as_deref());
                    return Ok(Program { reason, ..program });
                }
                Err(broad) => {
                    passed_over.get_or_insert_with(|| broad.to_string());
                    problem = broad;
                }
            }
        }
        Err(problem)
    }

    /// Returns the program that rustup's shim would start outside of any project.
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

/// Determines a program's path inside and the folder that must be visible for it. `path` contains no link.
fn program(path: PathBuf, real: PathBuf) -> Result<Program, NotFound> {
    let tree = match covered_folder(&real) {
        Some(folder) => Some(folder),
        None if is_system(&real) => None,
        None => Some(own_folder(&real)?),
    };
    // Multi-call programs (clang++) depend on the name they are started by: it is kept if it is visible inside.
    let visible = match &tree {
        Some(tree) => path.starts_with(tree),
        None => is_system(&path) && covered_folder(&path).is_none(),
    };
    Ok(Program {
        path: if visible { path } else { real.clone() },
        real,
        tree,
        reason: String::new(),
    })
}

/// The reason why a program was chosen, in words that follow its path.
pub(crate) fn reason(on_path: bool, through: Option<&Path>, passed_over: Option<&str>) -> String {
    let mut reason = match (on_path, passed_over) {
        (true, None) => "the first on PATH".to_owned(),
        (true, Some(_)) => "the first usable one on PATH".to_owned(),
        (false, _) => "not on PATH".to_owned(),
    };
    if let Some(file) = through {
        reason.push_str(&format!(", started by {}", file.display()));
    }
    if let Some(other) = passed_over {
        reason.push_str(&format!("; skipped: {other}"));
    }
    reason
}

/// Returns the folder of an installation outside of the system's folders: the parent of its `bin`.
fn own_folder(real: &Path) -> Result<PathBuf, NotFound> {
    // An npm program needs the packages next to its own.
    let modules = real
        .ancestors()
        .filter(|folder| folder.ends_with("node_modules"))
        .last();
    if let Some(modules) = modules.filter(|modules| may_be_shown(modules)) {
        return Ok(modules.to_owned());
    }
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

/// Returns true if a host folder may be shown to sandboxes for a program: it must not hold far more than that.
pub(crate) fn may_be_shown(folder: &Path) -> bool {
    let parts = folder.components().count();
    let home = std::env::home_dir();
    let at_home = home
        .as_ref()
        .is_some_and(|home| folder == home || *folder == home.join(".local"));
    // The path may exist only in sandboxes; Windows does not call it absolute.
    let plain = folder.has_root() && folder.components().all(|part| part.as_os_str() != "..");
    let private = ["/etc", "/proc", "/sys", "/dev", "/run", "/boot"]
        .iter()
        .any(|root| folder.starts_with(root));
    plain && parts > 2 && !(folder.starts_with("/home") && parts <= 3) && !at_home && !private
}

/// Returns true for paths that every sandbox shows anyway.
fn is_system(path: &Path) -> bool {
    ["/usr", "/bin", "/sbin", "/lib", "/lib64"]
        .iter()
        .any(|root| path.starts_with(root))
}

/// Returns the folder of /usr that must be uncovered for a program in it.
#[must_use]
pub fn covered_folder(program: &Path) -> Option<PathBuf> {
    let covered = |folder: &&str| program.starts_with(folder);
    COVERED_FOLDERS.iter().find(|folder| covered(folder)).map(PathBuf::from)
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

/// Returns the newest Node that nvm has installed.
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

/// Returns true for a valid pattern of configuration: below /etc, one part deep, with at most one `*`.
pub(crate) fn is_config(pattern: &str) -> bool {
    let Some(name) = pattern.strip_prefix("/etc/") else {
        return false;
    };
    !name.is_empty() && name != "*" && !name.starts_with('.') && !name.contains('/') && name.matches('*').count() <= 1
}

/// Returns the files of the host's /etc that match these patterns.
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
    fn a_toolchain_in_a_separate_folder_is_mounted_with_that_folder() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        make(&root.join("tools/zig-1/bin/zig"));
        std::fs::create_dir(root.join("bin")).unwrap();
        symlink(root.join("tools/zig-1/bin/zig"), root.join("bin/zig")).unwrap();
        let found = Finder::new(vec![root.join("bin")], vec![], None).find("zig").unwrap();
        assert_eq!(found.tree, Some(root.join("tools/zig-1")));
        assert_eq!(found.path, root.join("tools/zig-1/bin/zig"));
    }

    #[test]
    fn an_npm_program_is_mounted_with_the_packages_it_needs() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let modules = root.join("node/lib/node_modules");
        make(&modules.join("tsx/node_modules/deep/cli.mjs"));
        make(&modules.join("tsx/dist/cli.mjs"));
        std::fs::create_dir_all(root.join("node/bin")).unwrap();
        for (name, file) in [("tsx", "tsx/dist/cli.mjs"), ("deep", "tsx/node_modules/deep/cli.mjs")] {
            symlink(modules.join(file), root.join("node/bin").join(name)).unwrap();
            let found = Finder::new(vec![root.join("node/bin")], vec![], None)
                .find(name)
                .unwrap();
            assert_eq!((found.path, found.tree), (modules.join(file), Some(modules.clone())));
        }
    }

    #[test]
    fn a_link_next_to_its_program_keeps_its_name() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        make(&root.join("llvm/bin/clang"));
        symlink("clang", root.join("llvm/bin/clang++")).unwrap();
        let found = Finder::new(vec![root.join("llvm/bin")], vec![], None)
            .find("clang++")
            .unwrap();
        assert_eq!(found.path, root.join("llvm/bin/clang++"));
        assert_eq!(found.real, root.join("llvm/bin/clang"));
    }

    #[test]
    fn stand_ins_and_non_executable_files_are_skipped() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        make(&root.join("shims/ruby"));
        std::fs::create_dir(root.join("bin")).unwrap();
        std::fs::write(root.join("bin/ruby"), "no program").unwrap();
        let finder = Finder::new(vec![root.join("shims"), root.join("bin")], vec![], None);
        assert_eq!(finder.find("ruby"), Err(NotFound::Nowhere("ruby".to_owned())));
    }

    #[test]
    fn the_first_on_the_search_path_is_chosen_and_the_reason_names_skipped_ones() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        for folder in ["node22", "system", "shims"] {
            make(&root.join(folder).join("bin/node"));
        }
        make(&root.join("m/shims/node"));
        let bin = |folder: &str| root.join(folder).join("bin");
        let finder = |listed: &[PathBuf]| Finder::new(listed.to_vec(), vec![bin("system")], None);
        let found = finder(&[bin("node22"), bin("system")]).find("node").unwrap();
        assert_eq!(
            (found.path, found.reason.as_str()),
            (bin("node22").join("node"), "the first on PATH")
        );
        let shims = root.join("m/shims");
        let found = finder(&[shims.clone(), bin("node22")]).find("node").unwrap();
        assert_eq!(found.path, bin("node22").join("node"));
        let expected = format!(
            "the first usable one on PATH; skipped: {} starts none outside of a project",
            shims.join("node").display()
        );
        assert_eq!(found.reason, expected);
        make(&root.join("m/versions/9/bin/node"));
        std::fs::write(root.join("m/version"), "9").unwrap();
        let found = finder(&[shims.clone(), bin("node22")]).find("node").unwrap();
        assert_eq!(found.path, root.join("m/versions/9/bin/node"));
        assert!(
            found
                .reason
                .ends_with(&format!("started by {}", shims.join("node").display())),
            "{}",
            found.reason
        );
        let found = finder(&[]).find("node").unwrap();
        assert_eq!(
            (found.path, found.reason.as_str()),
            (bin("system").join("node"), "not on PATH")
        );
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
        let found = Finder::new(vec![home.join(".cargo/bin")], vec![], Some(home.clone()))
            .find("rustc")
            .unwrap();
        assert_eq!(found.tree, Some(home.join(".rustup/toolchains/1.90-x")));
    }

    #[test]
    fn folders_that_hold_far_more_than_a_program_are_never_mounted() {
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
    fn a_program_in_usr_local_exposes_its_folder() {
        assert_eq!(
            covered_folder(Path::new("/usr/local/bin/node")),
            Some("/usr/local/bin".into())
        );
        assert_eq!(covered_folder(Path::new("/usr/local/go/bin/go")), None);
        assert_eq!(covered_folder(Path::new("/usr/bin/go")), None);
    }

    #[test]
    fn configuration_is_a_direct_child_of_etc() {
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
