//! Detects the languages of a container image from inside one of its sandboxes: the programs on its search path and its
//! Python. Nothing of this machine is considered.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sandcell_sandbox::{
    Advice, Backend, ByteSize, Code, EntryKind, Failure, Finding, Language, LanguageInfo, NotLoaded, Program, Sandbox,
    SandboxPath, Session, SessionError, StateImage,
};

use crate::python::{PythonLanguage, PythonRuntime, runtime_inside};
use crate::table::{Finder, Table};
use crate::{Detected, Missing, Settings};

/// The maximum number of folders of a search path, and of programs per folder.
const FOLDERS_MAX: usize = 16;
const PROGRAMS_MAX: usize = 10_000;

/// Detects the languages of this sandbox's image.
pub async fn detect_in(sandbox: &dyn Sandbox, image: &str, settings: &Settings) -> Detected {
    let programs = programs(sandbox).await;
    let python = python(sandbox, &programs).await;
    describe(&programs, python, image, settings)
}

/// Returns the assumed languages of an image before any sandbox of it exists: Python and nothing else.
#[must_use]
pub fn suppose(image: &str, settings: &Settings) -> Detected {
    const PYTHON_PROGRAM: &str = "python3";
    let programs = BTreeMap::from([(PYTHON_PROGRAM.to_owned(), PathBuf::from(PYTHON_PROGRAM))]);
    describe(&programs, Some(unasked(PYTHON_PROGRAM)), image, settings)
}

fn describe(
    programs: &BTreeMap<String, PathBuf>,
    python: Option<PythonRuntime>,
    image: &str,
    settings: &Settings,
) -> Detected {
    let mut detected = Detected::default();
    match python {
        Some(runtime) => {
            detected.python = Some(Arc::new(
                PythonLanguage::new(runtime).with_snapshots(!settings.forgetful),
            ));
        }
        None => detected.missing.push(Missing {
            name: "python".to_owned(),
            aliases: vec!["python3".to_owned(), "py".to_owned()],
            extensions: vec!["py".to_owned()],
            hashbangs: Vec::new(),
            failure: absent("python", image),
        }),
    }
    match Table::load(&settings.tables) {
        Ok(table) => table.detect(&Finder::of_image(programs), None, &mut detected),
        Err(failure) => detected.problems.push(failure),
    }
    for missing in &mut detected.missing {
        missing.failure = absent(&missing.name, image);
    }
    // These are folders of this machine, which are useless in an image.
    detected.undecided.clear();
    detected.trees.clear();
    detected.config.clear();
    detected.programs.clear();
    detected.choices.clear();
    detected
}

fn absent(language: &str, image: &str) -> Failure {
    Failure::new(
        Code::LanguageUnavailable,
        format!("{language} is not in the image {image}"),
        "choose an image that has it: `image` of create_sandbox for one sandbox, `docker.image` for all in containers",
    )
}

async fn python(sandbox: &dyn Sandbox, programs: &BTreeMap<String, PathBuf>) -> Option<PythonRuntime> {
    for name in ["python3", "python"] {
        if !programs.contains_key(name) {
            continue;
        }
        match runtime_inside(name, sandbox).await {
            Some(runtime) => return Some(runtime),
            None => tracing::debug!(name, "an interpreter of the image does not answer or is too old"),
        }
    }
    None
}

/// Returns the files on the search path. Some may be no programs, such as text files; they do no harm.
async fn programs(sandbox: &dyn Sandbox) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let path = sandbox.base_env().get("PATH").map_or("/usr/bin:/bin", String::as_str);
    for folder in path
        .split(':')
        .filter(|folder| folder.starts_with('/'))
        .take(FOLDERS_MAX)
    {
        let Ok(place) = SandboxPath::parse(folder) else {
            continue;
        };
        let listing = sandbox.files().list(&place, false, PROGRAMS_MAX).await;
        for entry in listing.map(|listing| listing.entries).unwrap_or_default() {
            if matches!(entry.kind, EntryKind::File | EntryKind::Link) {
                found
                    .entry(entry.name.clone())
                    .or_insert_with(|| within(&place, &entry.name));
            }
        }
    }
    found
}

/// Returns the path of a program in a folder inside, with the sandbox's separator whatever this machine's is.
fn within(folder: &SandboxPath, name: &str) -> PathBuf {
    PathBuf::from(format!("{}/{name}", folder.as_str().trim_end_matches('/')))
}

/// Wraps this machine's languages so that they are detected again in sandboxes of an image.
#[must_use]
pub fn with_images(languages: Vec<Arc<dyn Language>>, settings: &Settings) -> Vec<Arc<dyn Language>> {
    let settings = Arc::new(settings.clone());
    let wrap = |home: Arc<dyn Language>| -> Arc<dyn Language> {
        Arc::new(PerSandboxLanguage {
            home,
            settings: Arc::clone(&settings),
        })
    };
    languages.into_iter().map(wrap).collect()
}

/// A language of this machine that an image may provide differently. It is detected in each sandbox separately, since
/// changes that code makes in one sandbox (to its search path, for example) must not affect others of the same image.
#[derive(Debug)]
struct PerSandboxLanguage {
    home: Arc<dyn Language>,
    settings: Arc<Settings>,
}

#[async_trait]
impl Language for PerSandboxLanguage {
    fn info(&self) -> &LanguageInfo {
        self.home.info()
    }

    fn program(&self, code: &str, args: &[String], env: &BTreeMap<String, String>) -> Result<Program, Failure> {
        self.home.program(code, args, env)
    }

    fn memory(&self) -> ByteSize {
        self.home.memory()
    }

    fn analyse(&self, code: &str, advice: &Advice) -> Vec<Finding> {
        self.home.analyse(code, advice)
    }

    async fn inside(&self, sandbox: &dyn Sandbox) -> Result<Option<Arc<dyn Language>>, Failure> {
        let Some(image) = sandbox.image() else {
            return Ok(None);
        };
        let name = self.info().name.as_str();
        let programs = programs(sandbox).await;
        let found: Option<Arc<dyn Language>> = if name == "python" {
            let interpreter = ["python3", "python"].iter().find(|name| programs.contains_key(**name));
            interpreter.map(|name| -> Arc<dyn Language> {
                let python = PythonLanguage::new(unasked(name));
                Arc::new(python.with_snapshots(!self.settings.forgetful))
            })
        } else {
            let table = Table::load(&self.settings.tables)?;
            let language = table.of_image(name, &Finder::of_image(&programs));
            language.map(|language| -> Arc<dyn Language> { Arc::new(language) })
        };
        found.map(Some).ok_or_else(|| absent(name, image))
    }

    async fn start_zygote(
        &self,
        backend: &Arc<dyn Backend>,
        modules: &[String],
        attached: &[PathBuf],
    ) -> Result<Vec<NotLoaded>, SessionError> {
        self.home.start_zygote(backend, modules, attached).await
    }

    fn matching_zygote(&self, attached: &[PathBuf]) -> Option<u64> {
        self.home.matching_zygote(attached)
    }

    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError> {
        self.home.open(sandbox).await
    }

    fn image_format(&self) -> String {
        self.home.image_format()
    }

    async fn open_image(&self, sandbox: &dyn Sandbox, image: &StateImage) -> Result<Box<dyn Session>, SessionError> {
        self.home.open_image(sandbox, image).await
    }
}

/// Returns an interpreter that is known only by its name.
fn unasked(name: &str) -> PythonRuntime {
    PythonRuntime {
        executable: PathBuf::from(name),
        version: String::new(),
        trees: Vec::new(),
        site: Vec::new(),
        venv: None,
        libraries: Vec::new(),
        reason: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_an_image_have_the_sandboxs_paths_on_every_system() {
        for (folder, path) in [("/usr/bin/", "/usr/bin/node"), ("/", "/node")] {
            let folder = SandboxPath::parse(folder).unwrap();
            assert_eq!(within(&folder, "node").to_str(), Some(path));
        }
    }

    #[test]
    fn an_uninspected_image_is_assumed_to_have_python_only() {
        let found = suppose("some/image", &Settings::default());
        assert!(found.python.is_some() && found.table.is_empty());
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        let ruby = found.missing.iter().find(|missing| missing.name == "ruby").unwrap();
        assert!(ruby.failure.message.contains("some/image"), "{}", ruby.failure);
    }
}
