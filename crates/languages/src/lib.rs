//! The languages of code: their detection on this machine, and the ways to run them.
//!
//! [`control`] is the host's end of a driver's control channel. All languages that keep variables between calls share
//! it. Each of them has a folder with its driver, the program that runs inside the sandbox. The other languages are
//! entries of a [`table`], which operators can extend. Nothing here isolates anything: code runs in the
//! [`Sandbox`](sandcell_sandbox::Sandbox) that the caller passes.
#![forbid(unsafe_code)]

mod bash;
pub mod control;
mod disk_cache;
mod image_detect;
mod java;
mod node;
pub mod python;
pub mod search_path;
mod stand_ins;
mod system;
pub mod table;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandcell_sandbox::{Code, Failure, Language, SandboxPath};

pub use image_detect::{detect_in, suppose, with_images};
pub use system::{SYSTEM_PACKAGES, SystemPackages};
use table::{Finder, Table, TableLanguage};

/// The operator's language settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The Python to use in place of the machine's default; may belong to a virtual environment.
    pub python: Option<PathBuf>,
    /// The operator's folder for the disk cache, which keeps interpreters' answers between starts.
    pub memory: Option<PathBuf>,
    /// True if sessions are not restored after a crash.
    pub forgetful: bool,
    /// Folders with language tables that extend the built-in one. A folder may be missing.
    pub tables: Vec<PathBuf>,
}

/// A language that this machine lacks but could have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// The extensions of its files.
    pub extensions: Vec<String>,
    /// Interpreters after `#!` that identify it.
    pub hashbangs: Vec<String>,
    /// The reason for its absence, and the remedy.
    pub failure: Failure,
}

/// The program that runs a language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The language.
    pub language: String,
    /// The program's path, the same inside and outside.
    pub program: PathBuf,
    /// The reason for the choice, in words that follow its path.
    pub reason: String,
}

/// The languages of this machine.
#[derive(Debug, Default)]
pub struct Detected {
    /// Python, if this machine has it.
    pub python: Option<Arc<python::PythonLanguage>>,
    /// The other languages that can run.
    pub table: Vec<TableLanguage>,
    /// The languages that cannot run, each with the reason and the remedy.
    pub missing: Vec<Missing>,
    /// Candidates for missing languages. Each depends on the version of a program, which is unknown until the program
    /// is asked.
    pub undecided: Vec<TableLanguage>,
    /// The faults of the operator's tables.
    pub problems: Vec<Failure>,
    /// Folders of the host, outside `/usr`, that must be visible inside, read-only and at the same path.
    pub trees: Vec<PathBuf>,
    /// Files and folders below the host's `/etc` that must be visible inside.
    pub config: Vec<PathBuf>,
    /// Files that exist only in sandboxes, by their paths inside.
    pub added: Vec<(PathBuf, String)>,
    /// The program of each language, and the reason for the choice.
    pub choices: Vec<Choice>,
    /// Folders of the chosen programs, the most important one first.
    pub programs: Vec<PathBuf>,
}

impl Detected {
    /// Returns the languages that can run, Python first.
    #[must_use]
    pub fn languages(&self) -> Vec<Arc<dyn Language>> {
        let mut languages: Vec<Arc<dyn Language>> = Vec::new();
        if let Some(python) = &self.python {
            languages.push(python.clone());
        }
        for language in &self.table {
            languages.push(Arc::new(language.clone()));
        }
        languages
    }

    /// Returns the language of a file by its name, or else by the interpreter after `#!` in its first line. It may be a
    /// missing language, since its name leads the caller to the remedy.
    #[must_use]
    pub fn language_of(&self, file: &Path, code: &str) -> Option<String> {
        let extension = file.extension().and_then(OsStr::to_str).map(str::to_lowercase);
        match extension.as_deref() {
            Some("py" | "pyw") => Some("python".to_owned()),
            Some(extension) => self
                .by(|kind| kind.is_called(extension))
                .or_else(|| self.by(|kind| kind.ends(extension))),
            None => None,
        }
        .or_else(|| {
            let interpreter = hashbang(code)?;
            if interpreter.starts_with("python") {
                return Some("python".to_owned());
            }
            self.by(|kind| kind.hashbangs.iter().any(|name| name == interpreter))
        })
    }

    /// Returns the first matching language, available or missing.
    fn by(&self, fits: impl Fn(&Kind<'_>) -> bool) -> Option<String> {
        let here = self.table.iter().map(|language| Kind {
            name: &language.info().name,
            aliases: &language.info().aliases,
            extensions: &language.info().extensions,
            hashbangs: language.hashbangs(),
        });
        let missing = self.missing.iter().map(|missing| Kind {
            name: &missing.name,
            aliases: &missing.aliases,
            extensions: &missing.extensions,
            hashbangs: &missing.hashbangs,
        });
        here.chain(missing).find(fits).map(|kind| kind.name.to_owned())
    }
}

/// The properties that identify a language's files.
struct Kind<'a> {
    name: &'a str,
    aliases: &'a [String],
    extensions: &'a [String],
    hashbangs: &'a [String],
}

impl Kind<'_> {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    fn ends(&self, extension: &str) -> bool {
        self.extensions.iter().any(|own| own.eq_ignore_ascii_case(extension))
    }
}

/// Returns the interpreter's name in a first line such as `#!/usr/bin/env -S deno run`.
fn hashbang(code: &str) -> Option<&str> {
    let line = code.lines().next()?.strip_prefix("#!")?;
    let mut words = line.split_whitespace();
    let program = words.next()?.rsplit('/').next()?;
    if program != "env" {
        return Some(program);
    }
    words
        .find(|word| !word.starts_with('-') && !word.contains('='))
        .and_then(|word| word.rsplit('/').next())
}

/// Configuration that common programs of the host read: for fonts, certificates, pictures, browsers, manual pages,
/// texts. None of it is secret. Configuration that may hold passwords (of git, of wget) is not in the list.
const OF_PROGRAMS: [&str; 16] = [
    "/etc/fonts",
    "/etc/ssl",
    "/etc/ca-certificates",
    "/etc/pki/tls",
    "/etc/pki/ca-trust",
    "/etc/ImageMagick-6",
    "/etc/ImageMagick-7",
    "/etc/chromium",
    "/etc/chromium.d",
    "/etc/manpath.config",
    "/etc/man_db.conf",
    "/etc/groff",
    "/etc/texmf",
    "/etc/terminfo",
    "/etc/OpenCL",
    "/etc/magic",
];

/// Detects every language. Unless its answer is cached, Python's interpreter runs once on the host for some
/// milliseconds. The other languages are detected only by their programs' names.
#[must_use]
pub fn detect(settings: &Settings) -> Detected {
    let mut detected = Detected::default();
    match python::locate_remembered(settings.python.as_deref(), settings.memory.as_deref()) {
        Ok(runtime) => {
            detected.trees.extend(runtime.trees.iter().cloned());
            detected.trees.extend(table::covered_folder(&runtime.executable));
            detected.added.extend(python::layers_file(&runtime));
            detected.choices.push(Choice {
                language: "python".to_owned(),
                program: runtime.executable.clone(),
                reason: runtime.reason.clone(),
            });
            detected
                .programs
                .extend(runtime.executable.parent().map(Path::to_owned));
            // Debian's library has links to this folder (`sitecustomize.py`).
            detected.config.extend(table::config(&["/etc/python3*".to_owned()]));
            detected.python = Some(Arc::new(
                python::PythonLanguage::new(runtime).with_snapshots(!settings.forgetful),
            ));
        }
        Err(error) => detected.missing.push(Missing {
            name: "python".to_owned(),
            aliases: vec!["python3".to_owned(), "py".to_owned()],
            extensions: vec!["py".to_owned()],
            hashbangs: Vec::new(),
            failure: error.into(),
        }),
    }
    match Table::load(&settings.tables) {
        Ok(table) => {
            let finder = Finder::of_this_machine();
            table.detect(&finder, settings.memory.as_deref(), &mut detected);
            detected.added.extend(java::with_limits(&finder));
            detected
                .added
                .extend(finder.path_of("bash").and_then(|bash| bash::tools_program(&bash)));
        }
        Err(failure) => detected.problems.push(failure),
    }
    detected
        .config
        .extend(OF_PROGRAMS.iter().map(PathBuf::from).filter(|path| path.exists()));
    detected.trees.sort();
    // In sorted order, a folder inside a tree comes directly after the tree.
    let mut outer: Vec<PathBuf> = Vec::new();
    for tree in std::mem::take(&mut detected.trees) {
        if !outer.last().is_some_and(|last| tree.starts_with(last)) {
            outer.push(tree);
        }
    }
    detected.trees = outer;
    let mut known = std::collections::BTreeSet::new();
    detected.programs.retain(|folder| known.insert(folder.clone()));
    detected.config.sort();
    detected.config.dedup();
    detected
}

/// Returns a path inside a sandbox that this crate composed.
pub(crate) fn own_path(text: &str) -> Result<SandboxPath, Failure> {
    SandboxPath::parse(text).map_err(|error| {
        Failure::new(
            Code::Internal,
            format!("{text:?} cannot be a path: {error}"),
            "report this",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_is_found_by_file_name_or_first_line() {
        let found = detect(&Settings::default());
        for (file, code, language) in [
            ("a.py", "", Some("python")),
            ("a.RB", "", Some("ruby")),
            ("a.ts", "", Some("typescript")),
            ("a.mjs", "", Some("javascript")),
            ("a.cc", "", Some("cpp")),
            ("a.R", "", Some("r")),
            ("a", "#!/usr/bin/env -S deno run -A\n", Some("deno")),
            ("a", "#!/usr/bin/python3.11 -u\n", Some("python")),
            ("a", "#! /bin/sh\n", Some("bash")),
            ("a.unknown", "#!/usr/bin/env LANG=C perl\n", Some("perl")),
            ("a.rb", "#!/bin/sh\n", Some("ruby")),
            ("a", "print(1)", None),
            ("a", "#!", None),
            ("a", "#!/usr/bin/env", None),
        ] {
            assert_eq!(
                found.language_of(Path::new(file), code).as_deref(),
                language,
                "{file} {code}"
            );
        }
    }
}
