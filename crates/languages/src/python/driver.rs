//! The driver's files, and the frames that carry them to an interpreter.
//!
//! There are two frames, so that the first one fits into a pipe. It has the files that every session needs at its
//! start. The second one follows while the interpreter starts, and has files that most sessions never need.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde_json::json;
use sha2::{Digest, Sha256};

use sandcell_sandbox::{HOME, SYSTEM_PATH, layer_places, program_places};

use super::probe::{PythonRuntime, run_python};
use crate::control::encode;

/// A file of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverFile {
    /// Its name without `.py`.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
}

const BOOT_SOURCE: &str = include_str!("driver/boot.py");

const DRIVER_FILES: [DriverFile; 25] = [
    file("core", include_str!("driver/core.py")),
    file("imports", include_str!("driver/imports.py")),
    file("tooloffer", include_str!("driver/tooloffer.py")),
    file("environment", include_str!("driver/environment.py")),
    file("snapshots", include_str!("driver/snapshots.py")),
    file("errors", include_str!("driver/errors.py")),
    file("advice", include_str!("driver/advice.py")),
    file("lookups", include_str!("driver/lookups.py")),
    file("pretty", include_str!("driver/pretty.py")),
    file("rich", include_str!("driver/rich.py")),
    file("charts", include_str!("driver/charts.py")),
    file("chartdata", include_str!("driver/chartdata.py")),
    file("exact", include_str!("driver/exact.py")),
    file("magics", include_str!("driver/magics.py")),
    file("moremagics", include_str!("driver/moremagics.py")),
    file("notebook", include_str!("driver/notebook.py")),
    file("shell", include_str!("driver/shell.py")),
    file("packages", include_str!("driver/packages.py")),
    file("hosttools", include_str!("driver/hosttools.py")),
    file("toolcalls", include_str!("driver/toolcalls.py")),
    file("images", include_str!("driver/images.py")),
    file("reloads", include_str!("driver/reloads.py")),
    file("variables", include_str!("driver/variables.py")),
    file("workers", include_str!("driver/workers.py")),
    file("zygote", include_str!("driver/zygote.py")),
];

/// The number of files, from the first one on, that are in the first frame.
const AT_START: usize = 3;
/// The delay before the driver is compiled, unless an interpreter needs it sooner.
const COMPILE_DELAY: Duration = Duration::from_secs(10);
/// The delay after the start of an interpreter that would have needed it: the start has the processors until then.
const COMPILE_HURRY_DELAY: Duration = Duration::from_millis(100);

const fn file(name: &'static str, source: &'static str) -> DriverFile {
    DriverFile { name, source }
}

/// Reads `name length` pairs and sources; writes the magic number, pairs and code objects in the same order. All but
/// the first are compressed, if the interpreter that reads them can decompress them.
const COMPILE_SOURCE: &str = r#"
import sys, marshal, _frozen_importlib_external as x
try:
    import zlib
except ImportError:
    zlib = None
read, out = sys.stdin.buffer, [x.MAGIC_NUMBER.hex()]
head, codes = read.readline().decode().split(), []
for name, size in zip(head[::2], head[1::2]):
    data = marshal.dumps(compile(read.read(int(size)), "<sandcell %s>" % name, "exec", 0, True, 2))
    name += ".code"
    if codes and zlib:
        name, data = name.replace(".code", ".zip"), zlib.compress(data, 9)
    codes.append(data)
    out += [name, str(len(data))]
sys.stdout.buffer.write(" ".join(out).encode() + b"\n" + b"".join(codes))
"#;

/// Returns the files of the driver that runs inside a session, the start file first.
#[must_use]
pub fn driver_sources() -> &'static [DriverFile] {
    &DRIVER_FILES
}

/// The driver's command line and its first input.
#[derive(Debug)]
pub(super) struct Boot {
    executable: PathBuf,
    site: serde_json::Value,
    /// Built when the first session needs it.
    from_source: OnceLock<Bytes>,
    compiled: Arc<OnceLock<Option<Compiled>>>,
    /// Speeds up the scheduled compilation.
    begun: OnceLock<mpsc::Sender<()>>,
}

/// The driver as code objects of an interpreter.
#[derive(Debug)]
struct Compiled {
    /// The magic number of the interpreters that accept it.
    magic: String,
    /// (name, code) of each file, in order.
    parts: Vec<(String, Bytes)>,
    /// The first frames of a session.
    frames: Bytes,
}

impl Compiled {
    /// Runs the interpreter, which takes some 100 ms.
    fn make(executable: &Path, site: &serde_json::Value) -> Option<Self> {
        Self::parse(&Bytes::from(compile(executable)?), site)
    }

    /// Parses the output of [`COMPILE_SOURCE`].
    fn parse(output: &Bytes, site: &serde_json::Value) -> Option<Self> {
        let end = output.iter().position(|byte| *byte == b'\n')?;
        let mut words = std::str::from_utf8(output.get(..end)?).ok()?.split(' ');
        let magic = words.next()?.to_owned();
        let mut parts = Vec::new();
        let mut at = end + 1;
        while let Some(name) = words.next() {
            let next = at.checked_add(words.next()?.parse().ok()?)?;
            output.get(at..next)?;
            parts.push((name.to_owned(), output.slice(at..next)));
            at = next;
        }
        if parts.len() != DRIVER_FILES.len() {
            return None;
        }
        let frames = frames(site, &magic, &borrowed(&parts));
        Some(Self { magic, parts, frames })
    }
}

fn borrowed(parts: &[(String, Bytes)]) -> Vec<(String, &[u8])> {
    parts.iter().map(|(name, code)| (name.clone(), &**code)).collect()
}

impl Boot {
    pub(super) fn new(runtime: &PythonRuntime) -> Self {
        let site = json!({
            "site": runtime.site.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            "layers": layer_places(),
            "prefix": runtime.venv.as_ref().map(|path| path.to_string_lossy()).unwrap_or_default(),
        });
        Self {
            executable: runtime.executable.clone(),
            from_source: OnceLock::new(),
            site,
            compiled: Arc::new(OnceLock::new()),
            begun: OnceLock::new(),
        }
    }

    /// Creates the driver for an interpreter known only by name: it is found on the search path inside, and finds its
    /// packages itself.
    pub(super) fn abroad(name: &Path) -> Self {
        let site = json!({"layers": layer_places(), "prefix": ""});
        Self {
            executable: PathBuf::from(name),
            from_source: OnceLock::new(),
            site,
            compiled: Arc::new(OnceLock::new()),
            begun: OnceLock::new(),
        }
    }

    /// Isolated from the environment, and without `site`, whose work the driver does on demand. No byte code files:
    /// they would appear among the caller's own.
    pub(super) fn argv(&self) -> Vec<String> {
        let mut argv = vec![self.executable.to_string_lossy().into_owned()];
        argv.extend(["-I", "-S", "-B", "-X", "utf8", "-c", BOOT_SOURCE].map(str::to_owned));
        argv
    }

    /// Returns the driver as code objects, if they exist by now.
    fn compiled(&self) -> Option<&Compiled> {
        self.compiled.get()?.as_ref()
    }

    /// Returns the first frames, with code objects if they exist by now.
    pub(super) fn frames(&self) -> Bytes {
        match self.compiled() {
            Some(compiled) => compiled.frames.clone(),
            None => {
                let make = || frames(&self.site, "", &source_parts());
                self.from_source.get_or_init(make).clone()
            }
        }
    }

    /// Returns the first input of an interpreter that becomes a zygote.
    pub(super) fn zygote_frames(&self) -> Bytes {
        let mut header = self.site.clone();
        if let Some(fields) = header.as_object_mut() {
            // The driver evaluates it as Python, where a number has the same text as in JSON.
            fields.insert("zygote".to_owned(), 1.into());
            fields.insert("env".to_owned(), json!(usual_environment()));
            fields.insert("env_loading".to_owned(), json!(BTreeMap::from(WHILE_LOADING)));
        }
        match self.compiled() {
            Some(compiled) => frames(&header, &compiled.magic, &borrowed(&compiled.parts)),
            None => frames(&header, "", &source_parts()),
        }
    }

    /// Compiles the driver in a separate thread: soon if an interpreter is starting and would have needed it, otherwise
    /// after a longer delay. The session that schedules it may be one of a hundred zygote children that compete for
    /// the processors.
    pub(super) fn compile_in_background(&self, needed: bool) {
        if self.compiled().is_some() {
            return;
        }
        let hurry = self.begun.get_or_init(|| {
            let (hurry, hurried) = mpsc::channel();
            let (executable, site, compiled) = (self.executable.clone(), self.site.clone(), Arc::clone(&self.compiled));
            let spawned = std::thread::Builder::new()
                .name("compile-driver".to_owned())
                .spawn(move || {
                    match hurried.recv_timeout(COMPILE_DELAY) {
                        Ok(()) => std::thread::sleep(COMPILE_HURRY_DELAY),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => return, // no one is left to need it
                    }
                    let made = Compiled::make(&executable, &site);
                    if made.is_none() {
                        tracing::debug!("the driver could not be compiled; sessions start from its source");
                    }
                    let _already = compiled.set(made);
                });
            if let Err(error) = spawned {
                tracing::debug!(%error, "no thread to compile the driver in");
            }
            hurry
        });
        if needed {
            // Fails if the thread has already begun or is done.
            let _ = hurry.send(());
        }
    }
}

/// Returns the code objects of all files, compiled by the interpreter that will read them.
fn compile(executable: &Path) -> Option<Vec<u8>> {
    let head: Vec<_> = DRIVER_FILES
        .iter()
        .map(|file| format!("{} {}", file.name, file.source.len()))
        .collect();
    let mut input = (head.join(" ") + "\n").into_bytes();
    for file in &DRIVER_FILES {
        input.extend_from_slice(file.source.as_bytes());
    }
    run_python(executable, COMPILE_SOURCE, &input, Duration::from_secs(20)).ok()
}

/// Returns the first input of a zygote's child. It contains only the differences from the zygote's environment.
pub(super) fn begin_frame(env: &BTreeMap<String, String>, cwd: &str) -> Bytes {
    let usual = usual_environment();
    let other: BTreeMap<_, _> = env
        .iter()
        .filter(|(name, value)| usual.get(name.as_str()) != Some(&value.as_str()))
        .collect();
    let without: Vec<_> = usual.keys().filter(|name| !env.contains_key(**name)).collect();
    encode(
        &json!({"type": "begin", "env": other, "without": without, "cwd": cwd}),
        &[],
    )
}

/// The search path if no interpreter lies outside the system's folders.
static USUAL_PATH: LazyLock<String> = LazyLock::new(|| format!("{}:{SYSTEM_PATH}", program_places()));

/// The environment of a zygote and of most of its children: that of programs in a sandbox with the default limits.
fn usual_environment() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        ("HOME", HOME),
        ("PATH", USUAL_PATH.as_str()),
        ("USER", "user"),
        ("LOGNAME", "user"),
        ("SHELL", "/bin/bash"),
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C.UTF-8"),
        ("TERM", "dumb"),
        ("TMPDIR", "/tmp"),
        ("TZ", "UTC"),
        ("MEMORY_LIMIT_MB", "512"),
        ("OMP_NUM_THREADS", "1"),
        ("OPENBLAS_NUM_THREADS", "1"),
        ("GOMAXPROCS", "1"),
        ("PYTHON_CPU_COUNT", "1"),
    ])
}

/// Additional variables while a zygote loads libraries: they prevent threads, which would not survive in its children.
const WHILE_LOADING: [(&str, &str); 3] = [
    ("MKL_NUM_THREADS", "1"),
    ("NUMEXPR_NUM_THREADS", "1"),
    ("POLARS_MAX_THREADS", "1"),
];

/// Returns a digest of the driver. Only a driver with the same digest can load the memory of a session.
pub(super) fn digest() -> String {
    let mut digest = Sha256::new();
    for file in &DRIVER_FILES {
        digest.update(file.name);
        digest.update([0]);
        digest.update(file.source);
        digest.update([0]);
    }
    let digest = digest.finalize();
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn source_parts() -> Vec<(String, &'static [u8])> {
    DRIVER_FILES
        .iter()
        .map(|file| (format!("{}.py", file.name), file.source.as_bytes()))
        .collect()
}

/// Returns the frame with the start files, followed by the frame with the rest.
fn frames(site: &serde_json::Value, magic: &str, files: &[(String, &[u8])]) -> Bytes {
    let (start, rest) = files.split_at(AT_START.min(files.len()));
    let mut header = site.clone();
    if let Some(fields) = header.as_object_mut() {
        fields.insert("type".to_owned(), "boot".into());
        fields.insert("magic".to_owned(), magic.into());
    }
    let mut frames = BytesMut::from(frame(header, start).as_ref());
    frames.extend_from_slice(&frame(json!({"type": "parts"}), rest));
    frames.freeze()
}

fn frame(mut header: serde_json::Value, files: &[(String, &[u8])]) -> Bytes {
    if let Some(fields) = header.as_object_mut() {
        let blobs: Vec<_> = files
            .iter()
            .map(|(name, data)| json!({"name": name, "bytes": data.len()}))
            .collect();
        fields.insert("blobs".to_owned(), blobs.into());
    }
    let blobs: Vec<_> = files.iter().map(|(_, data)| *data).collect();
    encode(&header, &blobs)
}
