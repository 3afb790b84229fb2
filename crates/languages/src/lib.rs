//! The languages that code can be in: how they are found on this machine, and how their code is run.
//!
//! [`control`] is the host's end of a driver's control channel, the same for every language that keeps variables
//! between calls; each of those has a folder of its own with its driver, the program that runs inside the sandbox. The
//! others are entries of a [`table`], which operators can add to. Nothing here isolates anything: code runs in
//! whatever [`Sandbox`](sandcell_sandbox::Sandbox) it is given.
#![forbid(unsafe_code)]

mod bash;
pub mod control;
mod inside;
mod java;
mod memory;
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

pub use inside::{detect_in, suppose, with_images};
pub use system::{SYSTEM_PACKAGES, SystemPackages};
use table::{Finder, Table, TableLanguage};

/// What the operator says about languages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The Python to use instead of the machine's own; also of a virtual environment.
    pub python: Option<PathBuf>,
    /// A folder of the operator's in which what interpreters say of themselves is remembered between starts.
    pub memory: Option<PathBuf>,
    /// Whether sessions are not restored after a crash.
    pub forgetful: bool,
    /// Folders with tables of languages that add to the built-in one. One that does not exist holds none.
    pub tables: Vec<PathBuf>,
}

/// A language that this machine could have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// What its files' names end with.
    pub extensions: Vec<String>,
    /// Interpreters after `#!` that mean it.
    pub hashbangs: Vec<String>,
    /// Why it is not here, and how to get it.
    pub failure: Failure,
}

/// The program that a language is run by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The language.
    pub language: String,
    /// The program, inside as outside.
    pub program: PathBuf,
    /// The reason for the choice, in words that follow its path.
    pub reason: String,
}

/// The languages of this machine.
#[derive(Debug, Default)]
pub struct Detected {
    /// Python, where it is here.
    pub python: Option<Arc<python::PythonLanguage>>,
    /// The others that can run.
    pub table: Vec<TableLanguage>,
    /// Those that cannot, with the reason and its remedy.
    pub missing: Vec<Missing>,
    /// Candidates for missing languages. Each depends on the version of a program, which is unknown until the program is asked.
    pub undecided: Vec<TableLanguage>,
    /// Tables of the operator's that cannot be used.
    pub problems: Vec<Failure>,
    /// Folders of the host, outside `/usr`, that must be visible inside, read-only and at the same path.
    pub trees: Vec<PathBuf>,
    /// Files and folders below the host's `/etc` that must be visible inside.
    pub config: Vec<PathBuf>,
    /// Files that only sandboxes have, by their paths inside.
    pub added: Vec<(PathBuf, String)>,
    /// The program of each language, and the reason for the choice.
    pub choices: Vec<Choice>,
    /// Folders of the programs that were chosen, the most important one first.
    pub programs: Vec<PathBuf>,
}

impl Detected {
    /// Those that can run, Python first.
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

    /// The language that a file's name says or, where it says none, the interpreter after `#!` in its first line.
    /// Also one that is not here, whose name then leads to how to get it.
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

    /// The first kind of code that fits, of those that are here and those that are not.
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

/// What tells a language's files.
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

/// The interpreter's name in a first line such as `#!/usr/bin/env -S deno run`.
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

/// What programs of the host read that are no languages: fonts, certificates, pictures, browsers, manual pages, texts. Nothing in them is
/// secret; configuration that may hold passwords (of git, of wget) is not among them.
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

/// Finds every language. Python's interpreter runs once, for some milliseconds, on the host, unless it is remembered;
/// the others are looked for by their programs' names only.
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
            // Debian's library has links there (`sitecustomize.py`).
            detected.config.extend(table::config(&["/etc/python3*".to_owned()]));
            detected.python = Some(Arc::new(
                python::PythonLanguage::new(runtime).with_copies(!settings.forgetful),
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
        }
        Err(failure) => detected.problems.push(failure),
    }
    detected
        .config
        .extend(OF_PROGRAMS.iter().map(PathBuf::from).filter(|path| path.exists()));
    detected.trees.sort();
    // What lies in a tree comes right after it.
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

/// A path inside a sandbox that this crate makes itself.
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
    fn a_files_name_or_first_line_says_its_language() {
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
