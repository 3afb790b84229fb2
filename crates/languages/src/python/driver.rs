//! The driver's files, and the frames that bring them to an interpreter.
//!
//! Two, so that what the interpreter waits for fits into a pipe: the first has what every session needs at its start, the
//! second, which is on its way meanwhile, what most never need.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde_json::json;

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

const BOOT: &str = include_str!("driver/boot.py");

const FILES: [DriverFile; 19] = [
    file("core", include_str!("driver/core.py")),
    file("imports", include_str!("driver/imports.py")),
    file("copies", include_str!("driver/copies.py")),
    file("errors", include_str!("driver/errors.py")),
    file("advice", include_str!("driver/advice.py")),
    file("lookups", include_str!("driver/lookups.py")),
    file("pretty", include_str!("driver/pretty.py")),
    file("rich", include_str!("driver/rich.py")),
    file("charts", include_str!("driver/charts.py")),
    file("chartdata", include_str!("driver/chartdata.py")),
    file("magics", include_str!("driver/magics.py")),
    file("moremagics", include_str!("driver/moremagics.py")),
    file("notebook", include_str!("driver/notebook.py")),
    file("shell", include_str!("driver/shell.py")),
    file("packages", include_str!("driver/packages.py")),
    file("reloads", include_str!("driver/reloads.py")),
    file("variables", include_str!("driver/variables.py")),
    file("workers", include_str!("driver/workers.py")),
    file("parent", include_str!("driver/parent.py")),
];

/// So many of them, from the first one on, are in the first frame.
const AT_START: usize = 2;
/// When the driver is compiled if nobody needs it sooner.
const LATER: Duration = Duration::from_secs(10);

const fn file(name: &'static str, source: &'static str) -> DriverFile {
    DriverFile { name, source }
}

/// Reads `name length` pairs and sources; writes the magic number, pairs and code objects. The same order. All but the
/// start are compressed, where the interpreter that reads them can undo it.
const COMPILE: &str = r#"
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

/// The files of the driver that runs inside a session, the first one being its start.
#[must_use]
pub fn driver_sources() -> &'static [DriverFile] {
    &FILES
}

/// How the driver is started, and what it reads first.
#[derive(Debug)]
pub(super) struct Boot {
    executable: PathBuf,
    site: serde_json::Value,
    /// Made when the first session needs it.
    from_source: OnceLock<Bytes>,
    compiled: Arc<OnceLock<Option<Compiled>>>,
    /// Hurries the compilation that has begun.
    begun: OnceLock<mpsc::Sender<()>>,
}

/// The driver as an interpreter has compiled it.
#[derive(Debug)]
struct Compiled {
    /// Which interpreters understand it.
    magic: String,
    /// (name, code) of each file, in their order.
    parts: Vec<(String, Bytes)>,
    /// The first frames of a session.
    frames: Bytes,
}

impl Compiled {
    /// Runs the interpreter, which takes some 100 ms.
    fn make(executable: &Path, site: &serde_json::Value) -> Option<Self> {
        Self::parse(&Bytes::from(compile(executable)?), site)
    }

    /// From what [`COMPILE`] has written.
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
        if parts.len() != FILES.len() {
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

    /// For an interpreter that only its name is known of: it is looked up inside, and finds its packages itself.
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

    /// Isolated from the environment and without `site`, whose work the driver does when it is needed. No byte code
    /// files: they would appear among the caller's own.
    pub(super) fn argv(&self) -> Vec<String> {
        let mut argv = vec![self.executable.to_string_lossy().into_owned()];
        argv.extend(["-I", "-S", "-B", "-X", "utf8", "-c", BOOT].map(str::to_owned));
        argv
    }

    /// The driver as code objects, if it was compiled by now.
    fn compiled(&self) -> Option<&Compiled> {
        self.compiled.get()?.as_ref()
    }

    /// The first frames: with code objects if they are there by now.
    pub(super) fn frames(&self) -> Bytes {
        match self.compiled() {
            Some(compiled) => compiled.frames.clone(),
            None => {
                let make = || frames(&self.site, "", &source_parts());
                self.from_source.get_or_init(make).clone()
            }
        }
    }

    /// What an interpreter reads first that becomes a warmed parent.
    pub(super) fn frames_of_parent(&self) -> Bytes {
        let mut header = self.site.clone();
        if let Some(fields) = header.as_object_mut() {
            // Read as Python, in which a number is the same text as here.
            fields.insert("parent".to_owned(), 1.into());
            fields.insert("env".to_owned(), json!(usual_environment()));
            fields.insert("env_loading".to_owned(), json!(BTreeMap::from(WHILE_LOADING)));
        }
        match self.compiled() {
            Some(compiled) => frames(&header, &compiled.magic, &borrowed(&compiled.parts)),
            None => frames(&header, "", &source_parts()),
        }
    }

    /// Compiles the driver in a thread of its own: at once if an interpreter is being started, which would have needed it, or else in
    /// a while. The session that begins it may be one of a hundred that all want the processors and are copies.
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
                    if hurried.recv_timeout(LATER) == Err(RecvTimeoutError::Disconnected) {
                        return; // nobody is left who could need it
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
            // It has begun, or is done, where nobody hears this.
            let _ = hurry.send(());
        }
    }
}

/// Code objects of all files, made by the interpreter that will read them.
fn compile(executable: &Path) -> Option<Vec<u8>> {
    let head: Vec<_> = FILES
        .iter()
        .map(|file| format!("{} {}", file.name, file.source.len()))
        .collect();
    let mut input = (head.join(" ") + "\n").into_bytes();
    for file in &FILES {
        input.extend_from_slice(file.source.as_bytes());
    }
    run_python(executable, COMPILE, &input, Duration::from_secs(20)).ok()
}

/// What a child of a warmed parent reads first. Of the environment it is told what is not as in its parent.
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

/// The search path where no interpreter lies outside the system's folders.
static USUAL_PATH: LazyLock<String> = LazyLock::new(|| format!("{}:{SYSTEM_PATH}", program_places()));

/// The environment of a parent, and most often of its children: what programs find in a sandbox with the usual limits.
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

/// What libraries find beside it while a parent loads them: no threads, which would not be there in its children.
const WHILE_LOADING: [(&str, &str); 3] = [
    ("MKL_NUM_THREADS", "1"),
    ("NUMEXPR_NUM_THREADS", "1"),
    ("POLARS_MAX_THREADS", "1"),
];

fn source_parts() -> Vec<(String, &'static [u8])> {
    FILES
        .iter()
        .map(|file| (format!("{}.py", file.name), file.source.as_bytes()))
        .collect()
}

/// What every session needs at its start, and behind it the rest.
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
