//! A language of the table that can run here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    ByteSize, Code, Command, Compile, Failure, HOME, Language, LanguageInfo, Pictures, Program, Sandbox, Session,
    SessionError, StdinMode,
};

use super::find::{Finder, NotFound, Program as Found};
use super::naming;
use super::one_shot::OneShotSession;
use super::versions::{self, VersionCache};
use super::{Driver, Entry, Naming, Way};
use crate::own_path;

/// The variable with the memory of the sandbox, in MiB, for programs and this module.
const MEMORY_VARIABLE: &str = "MEMORY_LIMIT_MB";
/// The variable with its number of cores.
const CORES_VARIABLE: &str = "OMP_NUM_THREADS";
/// The defaults for back ends that do not set these variables.
const MEMORY_DEFAULT: &str = "512";
const MEMORY_DEFAULT_MB: u64 = 512;
const CORES_DEFAULT: &str = "1";
/// A file whose only purpose is to create its folder.
const KEEP_FILE: &str = ".keep";

/// A language that runs as its table entry describes.
#[derive(Debug, Clone)]
pub struct TableLanguage(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    info: LanguageInfo,
    entry: Entry,
    way: Way,
    programs: BTreeMap<String, Found>,
    trees: Vec<PathBuf>,
}

/// A program's names and paths.
struct Places {
    /// The source's name, without a folder.
    file: String,
    /// The source's folder.
    folder: String,
    /// A folder for build results.
    dir: String,
    class: String,
}

/// The absence of a language, with its reason.
#[derive(Debug)]
pub(super) struct Absent {
    pub(super) failure: Failure,
    /// Ways to run it that depend on the unknown version of a program.
    pub(super) undecided: Vec<TableLanguage>,
}

/// The obstacles that the ways to run a language met.
#[derive(Debug, Default)]
struct Problems {
    /// Programs that were not found.
    nowhere: Vec<String>,
    /// A program that was found but cannot be shown in sandboxes.
    hidden: Option<String>,
    /// A program with an unsuitable version.
    unfit: Option<String>,
}

impl Problems {
    fn add(&mut self, error: NotFound) {
        match error {
            NotFound::Nowhere(name) if self.nowhere.contains(&name) => {}
            NotFound::Nowhere(name) => self.nowhere.push(name),
            NotFound::TooBroad(..) => {
                self.hidden.get_or_insert_with(|| error.to_string());
            }
        }
    }

    fn text(self) -> String {
        let nowhere = match self.nowhere.as_slice() {
            [] => None,
            [one] => Some(format!("{one} was not found")),
            [first @ .., last] => Some(format!("{} and {last} were not found", first.join(", "))),
        };
        let all: Vec<String> = [nowhere, self.hidden, self.unfit].into_iter().flatten().collect();
        match all.as_slice() {
            [] => "no way to run it".to_owned(),
            all => all.join("; "),
        }
    }
}

impl TableLanguage {
    /// Takes the first way whose programs are all available.
    pub(super) fn find(name: &str, entry: &Entry, finder: &Finder, versions: &VersionCache) -> Result<Self, Absent> {
        let mut problems = Problems::default();
        let mut undecided = Vec::new();
        for way in &entry.way {
            let programs: Result<BTreeMap<_, _>, _> = way
                .programs
                .iter()
                .map(|program| Ok((program.clone(), finder.find(program)?)))
                .collect();
            let programs = match programs {
                Ok(programs) => programs,
                Err(error) => {
                    problems.add(error);
                    continue;
                }
            };
            let mut language = Self::new(name, entry, way, programs);
            let version = versions.of(&language).unwrap_or_default();
            if way.min_version.is_some() || way.before_version.is_some() {
                // Known after `sandcell languages` has asked for a language that this program runs.
                let Some(known) = language.first().and_then(|program| versions.of_program(&program.real)) else {
                    undecided.push(language);
                    continue;
                };
                if let Some(problem) = language.unfit(known) {
                    problems.unfit.get_or_insert(problem);
                    continue;
                }
            }
            language.set_version(version);
            return Ok(language);
        }
        let failure = Failure::new(
            Code::LanguageUnavailable,
            format!("{name} is not on this machine: {}", problems.text()),
            format!("install it on the host ({}) and restart sandcell", entry.install),
        );
        Err(Absent { failure, undecided })
    }

    /// Returns the reason if a program of this version cannot run the language in this way.
    pub(super) fn unfit(&self, version: &str) -> Option<String> {
        let Inner { way, .. } = self.0.as_ref();
        let names = || way.programs.join(", ");
        let old = way
            .min_version
            .as_deref()
            .filter(|least| !versions::is_at_least(version, least));
        let new = way
            .before_version
            .as_deref()
            .filter(|bound| versions::is_at_least(version, bound));
        match (old, new) {
            (Some(least), _) => Some(format!("{} {version} is older than {least}", names())),
            (None, Some(bound)) => Some(format!("{} {version} is not older than {bound}", names())),
            (None, None) => None,
        }
    }

    fn new(name: &str, entry: &Entry, way: &Way, programs: BTreeMap<String, Found>) -> Self {
        let mut trees: Vec<PathBuf> = programs.values().filter_map(|found| found.tree.clone()).collect();
        trees.extend(way.shows.iter().filter(|path| path.is_dir()).cloned());
        Self(Arc::new(Inner {
            info: LanguageInfo {
                name: name.to_owned(),
                aliases: entry.aliases.clone(),
                version: String::new(),
                session: entry.session.is_some(),
                extensions: entry.extensions.clone(),
                libraries: Vec::new(),
            },
            entry: entry.clone(),
            way: way.clone(),
            programs,
            trees,
        }))
    }

    /// The host folders outside `/usr` that it needs.
    #[must_use]
    pub fn trees(&self) -> &[PathBuf] {
        &self.0.trees
    }

    /// Interpreters after `#!` that identify it.
    #[must_use]
    pub fn hashbangs(&self) -> &[String] {
        &self.0.entry.hashbang
    }

    /// The prefix of picture files that its programs leave in the home folder.
    pub(super) fn pictures(&self) -> Option<&str> {
        self.0.entry.pictures.as_deref()
    }

    /// The programs that prove that it works, if its own entry has them.
    #[must_use]
    pub fn proof(&self) -> Option<&super::Proof> {
        self.0.entry.proof.as_ref()
    }

    pub(super) fn programs(&self) -> impl Iterator<Item = &Found> {
        self.0.programs.values()
    }

    /// Returns the program that runs or compiles its code.
    pub(super) fn choice(&self) -> Option<crate::Choice> {
        let first = self.first()?;
        Some(crate::Choice {
            language: self.0.info.name.clone(),
            program: first.path.clone(),
            reason: first.reason.clone(),
        })
    }

    /// Returns the path of the interpreter that its driver runs in.
    fn first_program(&self) -> String {
        self.first()
            .map(|found| found.path.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    fn first(&self) -> Option<&Found> {
        let name = self.0.way.programs.first()?;
        self.0.programs.get(name)
    }

    /// The file of the first program, with links resolved.
    pub(super) fn first_real(&self) -> Option<PathBuf> {
        self.first().map(|program| program.real.clone())
    }

    pub(super) fn set_version(&mut self, version: String) {
        Arc::make_mut(&mut self.0).info.version = version;
    }

    /// Returns the command that prints the version, and its input; none if the language has no such command.
    pub(super) fn version_command(&self, env: &BTreeMap<String, String>) -> Option<(Command, String)> {
        let places = Places {
            file: "version".to_owned(),
            folder: HOME.to_owned(),
            dir: "/tmp".to_owned(),
            class: "Main".to_owned(),
        };
        let way = &self.0.way;
        let input = way.version_input.clone().unwrap_or_default();
        (!way.version.is_empty()).then(|| (self.command(&way.version, &places, HOME, &[], env), input))
    }

    pub(super) fn compile_timeout(&self) -> std::time::Duration {
        match self.0.way.compile.is_empty() {
            true => std::time::Duration::ZERO,
            false => self.0.way.compile_timeout(),
        }
    }

    /// Returns the files and steps for this code. `stem` is the source's name if the language does not prescribe one.
    pub(super) fn build(
        &self,
        stem: &str,
        code: &str,
        args: &[String],
        env: &BTreeMap<String, String>,
    ) -> Result<Program, Failure> {
        let Inner { info, entry, way, .. } = self.0.as_ref();
        let dir = format!("/tmp/.sandcell-{}", info.name);
        let places = self.places(stem, code, &dir);
        let text = match &entry.prepend {
            Some(prepend) if !code.contains(&prepend.unless) => format!("{}{code}", prepend.text),
            Some(_) | None => code.to_owned(),
        };
        let source = own_path(&format!("{}/{}", places.folder, places.file))?;
        let mut files = vec![(source, Bytes::from(text))];
        if self.needs_dir() && !way.apart {
            files.push((own_path(&format!("{dir}/{KEEP_FILE}"))?, Bytes::new()));
        }
        let mut run = self.command(&way.run, &places, HOME, args, env);
        if way.programs.iter().any(|program| program == "node") {
            let (path, text) = crate::node::with_preload(&mut run.env);
            files.push((own_path(&path)?, Bytes::from(text)));
        }
        let compile_in = if way.apart { dir.as_str() } else { HOME };
        Ok(Program {
            files,
            compile: (!way.compile.is_empty()).then(|| Compile {
                command: self.command(&way.compile, &places, compile_in, &[], env),
                timeout: way.compile_timeout(),
            }),
            run,
            pictures: match self.pictures() {
                Some(prefix) => Some(Pictures {
                    folder: own_path(HOME)?,
                    prefix: prefix.to_owned(),
                }),
                None => None,
            },
        })
    }

    fn needs_dir(&self) -> bool {
        let way = &self.0.way;
        let mut items = way.compile.iter().chain(&way.run).chain(way.env.values());
        items.any(|item| item.contains("{dir}") || item.contains("{bin}"))
    }

    fn places(&self, stem: &str, code: &str, dir: &str) -> Places {
        let Inner { info, entry, way, .. } = self.0.as_ref();
        let plain = info.extensions.first().map_or("txt", String::as_str);
        let mut class = "Main".to_owned();
        let file = match entry.naming {
            Naming::Plain => format!("{stem}.{plain}"),
            Naming::Java => {
                let names = naming::java(code);
                class = names.class;
                format!("{}.{plain}", names.file)
            }
            Naming::Node if plain != "js" && naming::assigns_modules(code) => format!("{stem}.c{plain}"),
            Naming::Node if naming::is_module(code) => format!("{stem}.m{plain}"),
            Naming::Node if plain != "js" && naming::requires(code) => format!("{stem}.c{plain}"),
            Naming::Node => format!("{stem}.{plain}"),
        };
        Places {
            file,
            folder: if way.apart { dir.to_owned() } else { HOME.to_owned() },
            dir: dir.to_owned(),
            class,
        }
    }

    fn command(
        &self,
        items: &[String],
        places: &Places,
        cwd: &str,
        args: &[String],
        env: &BTreeMap<String, String>,
    ) -> Command {
        // A step that runs in the source's folder names the file without a folder, as the author does.
        let source = if places.folder == cwd {
            places.file.clone()
        } else {
            format!("{}/{}", places.folder, places.file)
        };
        let fill = |item: &String| self.fill(item, places, &source, env);
        let mut all = env.clone();
        all.extend(self.0.way.env.iter().map(|(name, value)| (name.clone(), fill(value))));
        let mut argv = Vec::new();
        for item in items {
            if item == "{args}" {
                argv.extend_from_slice(args);
            } else {
                argv.push(fill(item));
            }
        }
        Command {
            argv,
            env: all,
            cwd: cwd.to_owned(),
            stands_alone: false,
            stdin: StdinMode::Null,
            control: false,
            terminal: None,
        }
    }

    /// Replaces the placeholders of one item. Inserted text is not scanned again.
    fn fill(&self, item: &str, places: &Places, source: &str, env: &BTreeMap<String, String>) -> String {
        let mut text = String::new();
        let mut rest = item;
        while let Some((before, name, after)) = next_placeholder(rest) {
            text.push_str(before);
            match name {
                "src" => text.push_str(source),
                "dir" => text.push_str(&places.dir),
                "bin" => text.push_str(&format!("{}/program", places.dir)),
                "class" => text.push_str(&places.class),
                "memory_mb" => text.push_str(env.get(MEMORY_VARIABLE).map_or(MEMORY_DEFAULT, String::as_str)),
                "heap_mb" => {
                    let memory = env.get(MEMORY_VARIABLE).and_then(|text| text.parse::<u64>().ok());
                    text.push_str(&(memory.unwrap_or(MEMORY_DEFAULT_MB) / 2).to_string());
                }
                "cpus" => text.push_str(env.get(CORES_VARIABLE).map_or(CORES_DEFAULT, String::as_str)),
                program => {
                    if let Some(found) = self.0.programs.get(program) {
                        text.push_str(&found.path.to_string_lossy());
                    }
                }
            }
            rest = after;
        }
        text.push_str(rest);
        text
    }
}

/// Returns the first `{name}` of a text as three parts: before it, its name, after it. Other braces are text.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let open = from + text.get(from..)?.find('{')?;
        let inside = text.get(open + 1..)?;
        let length = inside.find(|c: char| !(c.is_ascii_alphanumeric() || "_+#-.".contains(c)))?;
        if length > 0 && inside.get(length..)?.starts_with('}') {
            return Some((text.get(..open)?, inside.get(..length)?, inside.get(length + 1..)?));
        }
        from = open + 1;
    }
}

/// Returns the placeholder names of an item.
pub(super) fn placeholders(item: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = item;
    while let Some((_, name, after)) = next_placeholder(rest) {
        names.push(name);
        rest = after;
    }
    names
}

#[async_trait]
impl Language for TableLanguage {
    fn info(&self) -> &LanguageInfo {
        &self.0.info
    }

    fn program(&self, code: &str, args: &[String], env: &BTreeMap<String, String>) -> Result<Program, Failure> {
        self.build("main", code, args, env)
    }

    fn memory(&self) -> ByteSize {
        ByteSize::mib(self.0.entry.memory_mb)
    }

    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError> {
        match self.0.entry.session {
            None => Ok(Box::new(OneShotSession::new(self.clone(), sandbox))),
            Some(Driver::Node) => Ok(Box::new(
                crate::node::open(self.first_program(), &self.0.way.env, sandbox.as_ref()).await?,
            )),
            Some(Driver::Bash) => Ok(Box::new(
                crate::bash::open(self.first_program(), sandbox.as_ref()).await?,
            )),
        }
    }
}
