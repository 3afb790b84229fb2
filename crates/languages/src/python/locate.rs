//! Finds the interpreter to use: the first on the search path, as outside.
//!
//! A version manager's shim (pyenv, asdf, mise, …) chooses its interpreter by files and variables that do not exist in
//! a sandbox. So the shim is resolved to its interpreter, and only a binary whose name, with all links resolved, is a
//! Python's counts.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

use sandcell_sandbox::{Code, Failure};

use super::probe::{PythonRuntime, probe};
use crate::search_path::answering;
use crate::stand_ins::{self, Found};
use crate::table::reason;

/// The reason why no Python is usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    /// The machine has none.
    #[error("no Python was found on this machine{}", stand_in_note(.stand_in))]
    NotFound {
        /// A version manager's shim that was found instead.
        stand_in: Option<PathBuf>,
    },
    /// This interpreter does not run.
    #[error("{} is not a usable Python: {reason}", .path.display())]
    Unusable {
        /// The interpreter.
        path: PathBuf,
        /// The observed fault.
        reason: String,
    },
    /// This interpreter is too old for the driver.
    #[error("{} is Python {version}; 3.9 or later is needed", .path.display())]
    TooOld {
        /// The interpreter.
        path: PathBuf,
        /// Its version.
        version: String,
    },
    /// A library that this interpreter needs cannot be shown, or is found through a variable that sandboxes do not
    /// have.
    #[error("{} cannot start in a sandbox: library {} is not visible there", .path.display(), .library.display())]
    NotVisible {
        /// The interpreter.
        path: PathBuf,
        /// The library.
        library: PathBuf,
    },
    /// The folder that this interpreter needs holds far more, so it cannot be shown.
    #[error("{} needs the whole of {} to be visible in sandboxes", .path.display(), .folder.display())]
    TooBroad {
        /// The interpreter.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
}

fn stand_in_note(stand_in: &Option<PathBuf>) -> String {
    match stand_in {
        Some(path) => format!(
            " ({} is a version manager's stand-in, not an interpreter)",
            path.display()
        ),
        None => String::new(),
    }
}

impl From<LocateError> for Failure {
    fn from(error: LocateError) -> Self {
        let remedy = match &error {
            LocateError::NotFound { .. } => {
                "install python3 (apt-get install python3), or set python = \"/path/to/python\" in the configuration"
            }
            LocateError::Unusable { .. } => {
                "set python = to an interpreter that runs, or leave it out to use the machine's own"
            }
            LocateError::NotVisible { .. } => {
                "put the library into a separate folder that the interpreter finds without LD_LIBRARY_PATH: by an rpath (`patchelf --set-rpath`) or by `ldconfig`"
            }
            LocateError::TooOld { .. } => "install a newer python3, or set python = to one",
            LocateError::TooBroad { .. } => {
                "make a virtual environment in a separate folder and set python = to its bin/python"
            }
        };
        Self::new(Code::LanguageUnavailable, error.to_string(), remedy)
    }
}

/// Finds the Python for sandboxes: `chosen` by the operator, or else the machine's.
///
/// # Errors
/// [`LocateError`]; an unusable chosen one is an error, never replaced by another.
pub fn locate(chosen: Option<&Path>) -> Result<PythonRuntime, LocateError> {
    locate_remembered(chosen, None)
}

/// The same, with a disk cache: `memory` is the folder for interpreters' answers.
///
/// # Errors
/// [`LocateError`]; an unusable chosen one is an error, never replaced by another.
pub fn locate_remembered(chosen: Option<&Path>, memory: Option<&Path>) -> Result<PythonRuntime, LocateError> {
    match chosen {
        Some(path) => locate_chosen(path, memory),
        None => {
            let (paths, on_path) = candidates(std::env::var_os("PATH").as_deref());
            locate_among(paths, on_path, memory)
        }
    }
}

fn locate_chosen(path: &Path, memory: Option<&Path>) -> Result<PythonRuntime, LocateError> {
    let unusable = |reason: &str| LocateError::Unusable {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    let inside = path.join("bin").join("python");
    let path = if path.join("pyvenv.cfg").is_file() {
        &inside
    } else {
        path
    };
    match kind_of(path) {
        Kind::Absent => Err(unusable("it does not exist")),
        Kind::StandIn => Err(unusable(
            "it is a script or a version manager's stand-in, not an interpreter",
        )),
        Kind::Interpreter if path.is_absolute() => probe(path, memory).map(|runtime| PythonRuntime {
            reason: "named by the setting `python`".to_owned(),
            ..runtime
        }),
        Kind::Interpreter => Err(unusable("the path must be absolute")),
    }
}

/// Tries these paths in order; the first `on_path` of them come from the search path.
fn locate_among(paths: Vec<PathBuf>, on_path: usize, memory: Option<&Path>) -> Result<PythonRuntime, LocateError> {
    let mut stand_in = None;
    let mut failed = None;
    let mut passed_over: Option<String> = None;
    let mut tried: Vec<PathBuf> = Vec::new();
    for (number, file) in paths.into_iter().enumerate() {
        let path = interpreter_of(&file);
        match kind_of(&path) {
            Kind::Absent => {}
            Kind::StandIn => {
                passed_over.get_or_insert_with(|| format!("{} starts none outside of a project", file.display()));
                stand_in = stand_in.or(Some(file));
            }
            Kind::Interpreter => {
                // A virtual environment's interpreter is a link to another one.
                if tried.contains(&path) {
                    continue;
                }
                match probe(&path, memory) {
                    Ok(runtime) => {
                        let through = (path != file).then_some(file.as_path());
                        let reason = reason(number < on_path, through, passed_over.as_deref());
                        return Ok(PythonRuntime { reason, ..runtime });
                    }
                    Err(error) => {
                        passed_over.get_or_insert_with(|| error.to_string());
                        failed = failed.or(Some(error));
                    }
                }
                tried.push(path);
            }
        }
    }
    Err(failed.unwrap_or(LocateError::NotFound { stand_in }))
}

/// Returns the interpreter behind a shim, else the file itself.
fn interpreter_of(file: &Path) -> PathBuf {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(OsStr::to_str)) else {
        return file.to_owned();
    };
    if kind_of(file) != Kind::StandIn {
        return file.to_owned();
    }
    match stand_ins::follow(folder, name, |name| std::env::var(name).ok()) {
        Found::StandsFor(path) => path,
        Found::Program | Found::Nothing => file.to_owned(),
    }
}

/// Returns the paths to try, and the number of those from the search path. These come first, as outside, then the
/// system's. In each folder the name without a version comes first.
fn candidates(search: Option<&OsStr>) -> (Vec<PathBuf>, usize) {
    let names = || std::iter::once("python3".to_owned()).chain((9..=15).rev().map(|minor| format!("python3.{minor}")));
    let listed = search.map(|search| std::env::split_paths(search).collect::<Vec<_>>());
    let listed = listed.into_iter().flatten().filter(|path| path.is_absolute());
    let mut found: Vec<PathBuf> = Vec::new();
    let mut add = |folders: Vec<PathBuf>| {
        for path in folders.iter().flat_map(|folder| names().map(|name| folder.join(name))) {
            if !found.contains(&path) {
                found.push(path);
            }
        }
        found.len()
    };
    let on_path = add(answering(listed.take(64).collect()));
    add(["/usr/bin", "/usr/local/bin"].map(PathBuf::from).to_vec());
    (found, on_path)
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Absent,
    StandIn,
    Interpreter,
}

/// Determines whether a path, with all links resolved, is a Python binary or a shim.
fn kind_of(path: &Path) -> Kind {
    let Ok(real) = path.canonicalize() else {
        return Kind::Absent;
    };
    if !real.is_file() {
        return Kind::Absent;
    }
    let named = real
        .file_name()
        .and_then(OsStr::to_str)
        .is_some_and(|name| name.to_lowercase().starts_with("py"));
    let mut start = [0_u8; 4];
    let read = std::fs::File::open(&real).and_then(|mut file| file.read_exact(&mut start));
    match (named, read) {
        (true, Ok(())) if is_binary(start) => Kind::Interpreter,
        _ => Kind::StandIn,
    }
}

/// Recognises ELF, Mach-O (thin of either width, or universal) and Windows programs.
fn is_binary(start: [u8; 4]) -> bool {
    matches!(
        start,
        [0x7F, b'E', b'L', b'F'] | [0xCF | 0xCE, 0xFA, 0xED, 0xFE] | [0xCA, 0xFE, 0xBA, 0xBE] | [b'M', b'Z', _, _]
    )
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn script(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_version_managers_script_is_not_an_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("python3");
        script(&shim, "#!/usr/bin/env bash\nexec pyenv exec python3 \"$@\"\n");
        assert_eq!(
            locate_among(vec![shim.clone()], 1, None),
            Err(LocateError::NotFound {
                stand_in: Some(shim.clone())
            })
        );
        let Err(LocateError::Unusable { reason, .. }) = locate(Some(&shim)) else {
            panic!("a script was taken for an interpreter");
        };
        assert!(reason.contains("stand-in"), "{reason}");
    }

    #[test]
    fn a_link_to_a_version_managers_own_binary_is_not_an_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("python3");
        symlink("/bin/sh", &shim).unwrap();
        assert_eq!(kind_of(&shim), Kind::StandIn);
    }

    #[test]
    fn a_chosen_python_that_is_absent_is_an_error_with_its_path() {
        let error = locate(Some(Path::new("/dev/null/python"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/dev/null/python is not a usable Python: it does not exist"
        );
        assert_eq!(Failure::from(error).code, Code::LanguageUnavailable);
    }

    #[test]
    fn no_python_at_all_says_what_to_install() {
        let failure = Failure::from(locate_among(Vec::new(), 0, None).unwrap_err());
        assert_eq!(failure.message, "no Python was found on this machine");
        assert!(failure.remedy.contains("apt-get install python3"), "{}", failure.remedy);
    }

    #[test]
    fn the_search_path_comes_before_the_system() {
        let (found, on_path) = candidates(Some(OsStr::new("/opt/x/bin:relative")));
        assert_eq!(found.first(), Some(&PathBuf::from("/opt/x/bin/python3")));
        assert_eq!(found.get(on_path), Some(&PathBuf::from("/usr/bin/python3")));
        assert!(found.contains(&PathBuf::from("/opt/x/bin/python3.12")));
        assert!(found.iter().all(|path| path.is_absolute()));
    }

    #[test]
    fn a_stand_in_is_followed_and_reported_with_the_reason() {
        let Ok(system) = locate(None) else {
            println!("skipped: this machine has no Python");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let (none, own) = (folder.path().join("m/shims/python3"), folder.path().join("own/python3"));
        for (path, text) in [
            (&none, "#!/bin/sh\nexec pyenv exec python3 \"$@\"\n".to_owned()),
            (
                &own,
                format!("#!/bin/sh\nexec {} \"$@\"\n", system.executable.display()),
            ),
        ] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            script(path, &text);
        }
        let found = locate_among(vec![none.clone(), own.clone()], 2, None).unwrap();
        assert_eq!(found.executable, system.executable);
        let expected = format!(
            "the first usable one on PATH, started by {}; skipped: {} starts none outside of a project",
            own.display(),
            none.display()
        );
        assert_eq!(found.reason, expected);
    }

    #[test]
    fn the_system_python_is_found_and_described() {
        let Ok(runtime) = locate(None) else {
            println!("skipped: this machine has no Python");
            return;
        };
        assert!(runtime.executable.is_absolute());
        assert!(runtime.version.starts_with("3."), "{}", runtime.version);
    }

    #[test]
    fn a_virtual_environment_is_recognised_and_shown() {
        let Ok(system) = locate(None) else {
            println!("skipped: this machine has no Python");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let venv = folder.path().canonicalize().unwrap().join("env");
        let made = std::process::Command::new(&system.executable)
            .args(["-m", "venv", "--without-pip"])
            .arg(&venv)
            .output();
        if !made.is_ok_and(|output| output.status.success()) {
            println!("skipped: this Python cannot make virtual environments");
            return;
        }
        for chosen in [venv.clone(), venv.join("bin/python")] {
            let runtime = locate(Some(&chosen)).unwrap();
            assert_eq!(runtime.executable, venv.join("bin/python"));
            assert_eq!(runtime.venv.as_ref(), Some(&venv));
            assert!(runtime.trees.contains(&venv), "{:?}", runtime.trees);
            assert!(
                runtime.site.iter().all(|path| path.starts_with(&venv)),
                "{:?}",
                runtime.site
            );
        }
    }
}
