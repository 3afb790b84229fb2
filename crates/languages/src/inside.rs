//! The languages of a container image, found from inside a sandbox of it: which programs are on its search path, and
//! what its Python is. Nothing of this machine counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use sandcell_sandbox::{
    Advice, Backend, ByteSize, Code, EntryKind, Failure, Finding, Language, LanguageInfo, NotLoaded, Program, Sandbox,
    SandboxPath, Session, SessionError,
};

use crate::python::{PythonLanguage, PythonRuntime, runtime_inside};
use crate::table::{Finder, Table};
use crate::{Detected, Missing, Settings};

/// Folders of a search path that are looked at, and programs of one folder.
const FOLDERS_MAX: usize = 16;
const PROGRAMS_MAX: usize = 10_000;

/// Finds the languages of the image that this sandbox is made of. Without a sandbox Python is assumed to be there, and
/// nothing else.
pub async fn detect_in(sandbox: Option<&dyn Sandbox>, image: &str, settings: &Settings) -> Detected {
    let mut detected = Detected::default();
    let programs = match sandbox {
        Some(sandbox) => programs(sandbox).await,
        None => BTreeMap::from([("python3".to_owned(), PathBuf::from("python3"))]),
    };
    match python(sandbox, &programs).await {
        Some(runtime) => {
            detected.python = Some(Arc::new(PythonLanguage::new(runtime).with_copies(!settings.forgetful)));
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
        Ok(table) => table.detect(&Finder::of_image(&programs), None, &mut detected),
        Err(failure) => detected.problems.push(failure),
    }
    for missing in &mut detected.missing {
        missing.failure = absent(&missing.name, image);
    }
    // Folders of this machine, which an image has no use for.
    detected.trees.clear();
    detected.config.clear();
    detected
}

fn absent(language: &str, image: &str) -> Failure {
    Failure::new(
        Code::LanguageUnavailable,
        format!("{language} is not in the image {image}"),
        "choose an image that has it: `image` of create_sandbox for one sandbox, `docker.image` for all in containers",
    )
}

async fn python(sandbox: Option<&dyn Sandbox>, programs: &BTreeMap<String, PathBuf>) -> Option<PythonRuntime> {
    for name in ["python3", "python"] {
        if !programs.contains_key(name) {
            continue;
        }
        match sandbox {
            Some(sandbox) => match runtime_inside(name, sandbox).await {
                Some(runtime) => return Some(runtime),
                None => tracing::debug!(name, "an interpreter of the image does not answer or is too old"),
            },
            None => {
                return Some(unasked(name));
            }
        }
    }
    None
}

/// What can be started by its name alone. Also what cannot, such as a text file in such a folder: it does no harm.
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
                let path = Path::new(folder).join(&entry.name);
                found.entry(entry.name).or_insert(path);
            }
        }
    }
    found
}

/// Languages of this machine that are looked for again in sandboxes of an image.
#[must_use]
pub fn with_images(languages: Vec<Arc<dyn Language>>, settings: &Settings) -> Vec<Arc<dyn Language>> {
    let settings = Arc::new(settings.clone());
    let wrap = |home: Arc<dyn Language>| -> Arc<dyn Language> {
        Arc::new(Travelling {
            home,
            settings: Arc::clone(&settings),
        })
    };
    languages.into_iter().map(wrap).collect()
}

/// A language of this machine that an image may have otherwise. It is looked for in each sandbox anew, since what code has
/// changed in one (its search path, say) must not count for others of the same image.
#[derive(Debug)]
struct Travelling {
    home: Arc<dyn Language>,
    settings: Arc<Settings>,
}

#[async_trait]
impl Language for Travelling {
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
                Arc::new(python.with_copies(!self.settings.forgetful))
            })
        } else {
            let table = Table::load(&self.settings.tables)?;
            let language = table.of_image(name, &Finder::of_image(&programs));
            language.map(|language| -> Arc<dyn Language> { Arc::new(language) })
        };
        found.map(Some).ok_or_else(|| absent(name, image))
    }

    async fn warm(&self, backend: &Arc<dyn Backend>, modules: &[String]) -> Result<Vec<NotLoaded>, SessionError> {
        self.home.warm(backend, modules).await
    }

    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError> {
        self.home.open(sandbox).await
    }
}

/// An interpreter by its name alone.
fn unasked(name: &str) -> PythonRuntime {
    PythonRuntime {
        executable: PathBuf::from(name),
        version: String::new(),
        trees: Vec::new(),
        site: Vec::new(),
        venv: None,
        libraries: Vec::new(),
    }
}
