//! Determines an interpreter's properties, by running it once for some milliseconds on the host.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use sandcell_sandbox::{Sandbox, SandboxPath, StdinMode, gather};

use super::locate::LocateError;
use super::probe_cache;

/// An interpreter that can run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonRuntime {
    /// Its path, the same on the host and inside.
    pub executable: PathBuf,
    /// Its version, such as `3.11.2`.
    pub version: String,
    /// Host folders outside `/usr` that must be visible inside, read-only and at the same path.
    pub trees: Vec<PathBuf>,
    /// Folders from which installed packages are imported.
    pub site: Vec<PathBuf>,
    /// The virtual environment, if there is one.
    pub venv: Option<PathBuf>,
    /// Importable data libraries with versions (`numpy 2.1.0`).
    pub libraries: Vec<String>,
    /// The reason for the choice.
    pub reason: String,
}

/// Prints, each ended by NUL: version, executable, prefix, base prefix, virtual environment or nothing, and site
/// folders (including missing ones, since the answer is cached). For an interpreter outside `/usr` it also prints the
/// shared libraries that it and the modules of its standard library have loaded, under the loader's names.
///
/// `site` is imported but not run: it would execute code in .pth files.
const PROBE_SOURCE: &str = r#"
import sys, os, site
folder = os.path.dirname(sys.executable)
venv, dirs = "", []
for root in (os.path.dirname(folder), folder):
    try:
        with open(os.path.join(root, "pyvenv.cfg"), encoding="utf-8") as f:
            text = f.read().lower().replace(" ", "")
    except OSError:
        continue
    base = sys.base_prefix
    venv = sys.prefix = sys.exec_prefix = root
    dirs = site.getsitepackages([root])
    if "include-system-site-packages=true" in text:
        sys.prefix = sys.exec_prefix = base
        dirs += site.getsitepackages([base])
        sys.prefix = sys.exec_prefix = root
    break
else:
    dirs = site.getsitepackages()
dirs = [d for i, d in enumerate(dirs) if d not in dirs[:i]]
libs = []
if sys.platform == "linux" and not os.path.realpath(sys.executable).startswith("/usr/"):
    for name in ("_bz2 _ctypes _curses _dbm _decimal _gdbm _hashlib _lzma _sqlite3 _ssl _uuid pyexpat readline zlib").split():
        try:
            __import__(name)
        except Exception:
            pass
    try:
        import ctypes
        class Info(ctypes.Structure):
            _fields_ = [("address", ctypes.c_size_t), ("name", ctypes.c_char_p)]
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
        note = lambda info, size, data: libs.append(os.fsdecode(info[0].name)) or 0
        ctypes.CDLL(None).dl_iterate_phdr(kind(note), None)
    except Exception:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as f:
            libs = sorted({"/" + line.rstrip("\n").split("/", 1)[1] for line in f if ".so" in line and "/" in line})
out = ["%d.%d.%d" % sys.version_info[:3], sys.executable, sys.prefix, sys.base_prefix, venv] + dirs
out += ["library:" + path for path in libs if path.startswith("/")]
sys.stdout.buffer.write("".join(s + "\0" for s in out).encode("utf-8", "surrogateescape"))
"#;

/// Packages worth reporting to a caller, by their distribution names.
const REPORTED_LIBRARIES: &[&str] = &[
    "numpy",
    "pandas",
    "matplotlib",
    "scipy",
    "scikit-learn",
    "polars",
    "pillow",
    "seaborn",
    "plotly",
    "altair",
    "bokeh",
    "sympy",
    "statsmodels",
    "networkx",
    "pyarrow",
    "duckdb",
    "openpyxl",
    "xlsxwriter",
    "requests",
    "httpx",
    "beautifulsoup4",
    "lxml",
    "pyyaml",
    "opencv-python",
    "opencv-python-headless",
    "scikit-image",
    "torch",
    "tensorflow",
    "jax",
    "xgboost",
    "lightgbm",
    "transformers",
    "nltk",
    "spacy",
    "geopandas",
    "shapely",
    "numba",
    "sqlalchemy",
    "pypdf",
    "python-docx",
    "reportlab",
    "tqdm",
];

/// The prefix of a library in an interpreter's answer.
const LIBRARY_PREFIX: &str = "library:";
/// The folders in which NixOS and Guix keep all packages.
const PACKAGE_STORES: [&str; 2] = ["/nix/store", "/gnu/store"];
const OUTPUT_MAX: u64 = 4 << 20;
/// The same bound for an interpreter in an image, and the maximum number of entries of a folder there.
const INSIDE_MAX: usize = 64 << 10;
const ENTRIES_MAX: usize = 5000;

/// Runs the interpreter with a script, isolated and with an empty environment; returns its output.
///
/// # Errors
/// Describes the fault, with the last line that the interpreter wrote to stderr.
pub(super) fn run_python(executable: &Path, script: &str, input: &[u8], max: Duration) -> Result<Vec<u8>, String> {
    let mut child = Command::new(executable)
        .args(["-I", "-S", "-B", "-X", "utf8", "-c", script])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (sender, receiver) = mpsc::channel();
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new;
        let errors = thread()
            .spawn_scoped(scope, || stdin.map(|mut pipe| pipe.write_all(input)))
            .and_then(|_| thread().spawn_scoped(scope, move || sender.send(read_all(stdout))))
            .and_then(|_| thread().spawn_scoped(scope, || read_all(stderr)));
        let received = match &errors {
            Ok(_) => receiver.recv_timeout(max),
            Err(_) => Err(mpsc::RecvTimeoutError::Disconnected),
        };
        if received.is_err() {
            // This also ends the reads of the other threads.
            if let Err(error) = child.kill() {
                tracing::debug!(%error, "an interpreter that does not answer could not be killed");
            }
        }
        let status = child.wait();
        let errors = errors.map_err(|error| format!("a thread to talk to it could not be started: {error}"))?;
        Ok::<_, String>((received, status, errors.join().unwrap_or_default()))
    });
    let (received, status, errors) = outcome?;
    let output = received.map_err(|_| format!("it gave no answer within {} s", max.as_secs()))?;
    match status {
        Ok(status) if status.success() => Ok(output),
        Ok(status) => {
            let errors = String::from_utf8_lossy(&errors);
            let last = errors.trim_end().rsplit('\n').next().unwrap_or_default();
            Err(format!("{status}: {last}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe
        && let Err(error) = pipe.take(OUTPUT_MAX).read_to_end(&mut bytes)
    {
        tracing::debug!(%error, "an interpreter's output could not be read to its end");
    }
    bytes
}

/// Determines an interpreter's properties.
///
/// # Errors
/// [`LocateError`] if it does not run, is too old, or lies in a folder that cannot be shown to sandboxes.
pub(super) fn probe(path: &Path, memory: Option<&Path>) -> Result<PythonRuntime, LocateError> {
    let unusable = |reason: String| LocateError::Unusable {
        path: path.to_owned(),
        reason,
    };
    let output = match memory.and_then(|memory| probe_cache::recall(memory, path)) {
        Some(known) => known,
        None => {
            let output = run_python(path, PROBE_SOURCE, b"", Duration::from_secs(10)).map_err(|reason| {
                missing_library(&reason).map_or_else(
                    || unusable(reason.clone()),
                    |library| LocateError::NotVisible {
                        path: path.to_owned(),
                        library: PathBuf::from(library),
                    },
                )
            })?;
            if let Some(memory) = memory {
                probe_cache::keep(memory, path, &output);
            }
            output
        }
    };
    let mut fields = output
        .split(|byte| *byte == 0)
        .map(|field| String::from_utf8_lossy(field).into_owned());
    let mut field = || fields.next().unwrap_or_default();
    let (version, executable, prefix, base, venv) = (field(), field(), field(), field(), field());
    let (loaded, site): (Vec<String>, Vec<String>) = fields
        .filter(|text| !text.is_empty())
        .partition(|text| text.starts_with(LIBRARY_PREFIX));
    let site: Vec<PathBuf> = site
        .into_iter()
        .map(PathBuf::from)
        .filter(|folder| folder.is_dir())
        .collect();
    if !is_new_enough(&version) {
        return Err(LocateError::TooOld {
            path: path.to_owned(),
            version,
        });
    }
    let venv = (!venv.is_empty()).then(|| PathBuf::from(venv));
    let mut trees = trees(
        [Some(PathBuf::from(prefix)), Some(PathBuf::from(base)), venv.clone()],
        path,
    )?;
    let loaded = loaded
        .iter()
        .filter_map(|text| text.strip_prefix(LIBRARY_PREFIX))
        .map(Path::new);
    show_libraries(&mut trees, loaded, path)?;
    Ok(PythonRuntime {
        executable: startable(PathBuf::from(executable), &trees),
        libraries: libraries(&site),
        reason: String::new(),
        version,
        trees,
        site,
        venv,
    })
}

/// Does the same for an interpreter in a sandbox of an image. `python` is a name on the search path inside. None if it
/// does not answer or is too old.
pub(crate) async fn runtime_inside(python: &str, sandbox: &dyn Sandbox) -> Option<PythonRuntime> {
    let argv = [python, "-I", "-S", "-B", "-X", "utf8", "-c", PROBE_SOURCE].map(str::to_owned);
    let command = sandcell_sandbox::Command {
        argv: argv.to_vec(),
        env: sandbox.base_env().clone(),
        cwd: "/".to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: false,
        terminal: None,
    };
    let asked = async { Some(gather(sandbox.spawn(command).await.ok()?, INSIDE_MAX).await) };
    let answer = tokio::time::timeout(Duration::from_secs(10), asked).await.ok()??;
    let mut fields = answer.stdout.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let version = fields.next()?.into_owned();
    if !is_new_enough(&version) {
        return None;
    }
    // The executable, two prefixes and the virtual environment mean nothing outside.
    let mut found = vec![None; REPORTED_LIBRARIES.len()];
    for folder in fields.skip(4).filter(|folder| folder.starts_with('/')).take(8) {
        let Ok(path) = SandboxPath::parse(&folder) else {
            continue;
        };
        let listing = sandbox.files().list(&path, false, ENTRIES_MAX).await;
        for entry in listing.map(|listing| listing.entries).unwrap_or_default() {
            note_library(&entry.name, &mut found);
        }
    }
    Some(PythonRuntime {
        executable: PathBuf::from(python),
        version,
        trees: Vec::new(),
        site: Vec::new(),
        venv: None,
        libraries: found.into_iter().flatten().collect(),
        reason: String::new(),
    })
}

fn is_new_enough(version: &str) -> bool {
    let mut parts = version.split('.').map(str::parse::<u32>);
    matches!((parts.next(), parts.next()), (Some(Ok(3)), Some(Ok(minor))) if minor >= 9)
}

/// Returns the folders to show, with the targets of links; nested folders are left out.
fn trees(folders: [Option<PathBuf>; 3], python: &Path) -> Result<Vec<PathBuf>, LocateError> {
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in folders.into_iter().flatten() {
        let real = folder.canonicalize().unwrap_or_else(|_| folder.clone());
        for path in [folder, real] {
            if is_system(&path) || found.iter().any(|tree| path.starts_with(tree)) {
                continue;
            }
            if is_too_broad(&path) {
                return Err(LocateError::TooBroad {
                    path: python.to_owned(),
                    folder: path,
                });
            }
            found.retain(|tree| !tree.starts_with(&path));
            found.push(path);
        }
    }
    Ok(found)
}

/// Adds the folders of libraries outside these trees, under the loader's names and as the targets of links.
fn show_libraries<'a>(
    trees: &mut Vec<PathBuf>,
    loaded: impl Iterator<Item = &'a Path>,
    python: &Path,
) -> Result<(), LocateError> {
    for library in loaded {
        let real = library.canonicalize().unwrap_or_else(|_| library.to_owned());
        for path in [library, &real] {
            if is_system(path) || trees.iter().any(|tree| path.starts_with(tree)) {
                continue;
            }
            // A store has a folder for each of dozens of packages, and everybody may read all of it.
            let store = PACKAGE_STORES
                .iter()
                .map(Path::new)
                .find(|store| path.starts_with(store));
            let folder = store.or_else(|| path.parent()).filter(|folder| !is_too_broad(folder));
            let folder = folder.ok_or_else(|| LocateError::NotVisible {
                path: python.to_owned(),
                library: library.to_owned(),
            })?;
            trees.retain(|tree| !tree.starts_with(folder));
            trees.push(folder.to_owned());
        }
    }
    Ok(())
}

/// Returns the missing library that a loader's message names (glibc and musl).
fn missing_library(reason: &str) -> Option<&str> {
    let words = [
        "error while loading shared libraries: ",
        "Error loading shared library ",
    ];
    let (_, rest) = words.iter().find_map(|words| reason.split_once(words))?;
    rest.split(':').next()
}

/// Returns true for paths that every sandbox shows anyway.
fn is_system(path: &Path) -> bool {
    ["/usr", "/bin", "/lib", "/lib64"]
        .iter()
        .any(|root| path.starts_with(root))
}

/// Returns true for folders that hold far more than an interpreter, and must not be shown.
fn is_too_broad(path: &Path) -> bool {
    let parts = path.components().count();
    parts <= 2 || (path.starts_with("/home") && parts <= 3) || std::env::home_dir().is_some_and(|home| home == path)
}

/// Returns the path to start: as given if all links on the way are visible inside, else with all links resolved.
fn startable(executable: PathBuf, trees: &[PathBuf]) -> PathBuf {
    let visible = |path: &Path| is_system(path) || trees.iter().any(|tree| path.starts_with(tree));
    let mut path = executable.clone();
    for _ in 0..16 {
        if !visible(&path) {
            return executable.canonicalize().unwrap_or(executable);
        }
        match path.read_link() {
            Ok(target) => path = path.parent().unwrap_or_else(|| Path::new("/")).join(target),
            Err(_) => return executable,
        }
    }
    executable
}

/// Reads names and versions from the folders that describe installed distributions; imports nothing.
fn libraries(site: &[PathBuf]) -> Vec<String> {
    let mut found: Vec<Option<String>> = vec![None; REPORTED_LIBRARIES.len()];
    for folder in site {
        let Ok(entries) = folder.read_dir() else { continue };
        for entry in entries.flatten() {
            if let Some(name) = entry.file_name().to_str() {
                note_library(name, &mut found);
            }
        }
    }
    found.into_iter().flatten().collect()
}

/// Records a folder's package and version, if it is one of the packages worth reporting.
fn note_library(folder: &str, found: &mut [Option<String>]) {
    if let Some((name, version)) = distribution(folder)
        && let Some(place) = REPORTED_LIBRARIES.iter().position(|known| *known == name)
        && let Some(slot) = found.get_mut(place)
        && slot.is_none()
    {
        *slot = Some(format!("{name} {version}"));
    }
}

/// (name, version) from `scikit_learn-1.5.0.dist-info` or `numpy-1.24.2.egg-info`.
fn distribution(folder: &str) -> Option<(String, &str)> {
    let stem = folder
        .strip_suffix(".dist-info")
        .or_else(|| folder.strip_suffix(".egg-info"))?;
    let (name, version) = stem.split_once('-')?;
    let version = version.split_once("-py").map_or(version, |(version, _)| version);
    Some((name.to_lowercase().replace(['_', '.'], "-"), version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_are_parsed_from_folder_names() {
        for (folder, expected) in [
            ("scikit_learn-1.5.0.dist-info", Some(("scikit-learn", "1.5.0"))),
            ("Pillow-9.4.0.egg-info", Some(("pillow", "9.4.0"))),
            ("PyYAML-6.0-py3.11.egg-info", Some(("pyyaml", "6.0"))),
            ("numpy", None),
            ("x.dist-info", None),
        ] {
            let expected = expected.map(|(name, version)| (name.to_owned(), version));
            assert_eq!(distribution(folder), expected, "{folder}");
        }
    }

    #[test]
    fn python_before_3_9_is_refused() {
        assert!(is_new_enough("3.9.0"));
        assert!(is_new_enough("3.14.1"));
        assert!(!is_new_enough("3.8.18"));
        assert!(!is_new_enough("2.7.18"));
        assert!(!is_new_enough(""));
    }

    #[test]
    fn folders_that_hold_more_than_an_interpreter_are_not_mounted() {
        for folder in ["/", "/root", "/opt", "/home/someone"] {
            assert!(is_too_broad(Path::new(folder)), "{folder}");
        }
        assert!(!is_too_broad(Path::new("/opt/python3.12")));
        assert!(!is_too_broad(Path::new("/home/someone/venv")));
    }

    #[test]
    fn mounted_trees_exclude_system_folders_and_nested_trees() {
        let folders = ["/dev/null/py/venv", "/usr", "/dev/null/py"].map(|path| Some(PathBuf::from(path)));
        assert_eq!(
            trees(folders, Path::new("/x")).ok(),
            Some(vec![PathBuf::from("/dev/null/py")])
        );
    }

    #[test]
    fn libraries_elsewhere_are_mounted_with_their_folder_and_stores_as_a_whole() {
        let loaded = [
            "/usr/lib/libc.so.6",
            "/dev/null/py/lib/libpython.so",
            "/dev/null/ssl/lib/libssl.so.3",
            "/nix/store/a-glibc/lib/libc.so.6",
        ];
        let mut trees = vec![PathBuf::from("/dev/null/py"), PathBuf::from("/nix/store/b-python")];
        show_libraries(&mut trees, loaded.iter().map(Path::new), Path::new("/x")).unwrap();
        assert_eq!(
            trees,
            ["/dev/null/py", "/dev/null/ssl/lib", "/nix/store"].map(PathBuf::from)
        );
        let error = show_libraries(
            &mut trees,
            std::iter::once(Path::new("/opt/libz.so.1")),
            Path::new("/x"),
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "/x cannot start in a sandbox: library /opt/libz.so.1 is not visible there"
        );
    }

    #[test]
    fn a_library_that_a_loader_misses_is_named() {
        for (reason, expected) in [
            (
                "exit status: 127: /x: error while loading shared libraries: libz.so.1: cannot open shared object file: No such file",
                Some("libz.so.1"),
            ),
            (
                "exit status: 127: Error loading shared library libz.so.1: No such file or directory (needed by /x)",
                Some("libz.so.1"),
            ),
            ("exit status: 1: SyntaxError", None),
        ] {
            assert_eq!(missing_library(reason), expected, "{reason}");
        }
    }
}
