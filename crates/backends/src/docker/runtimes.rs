//! Adds missing languages to images: installed once in a temporary container, and committed as a new image.
//!
//! There are two phases, because an installer must be root and reach mirrors, and a sandbox must do neither. The first
//! container is root with few of root's capabilities. It has no secret and no route; its network is only the operator's
//! mirrors, over the agent's stream. Its files are committed. A sandbox is a second container, of the committed image,
//! as restricted as any other. The base image's digest and the packages name the result, so the next sandbox finds it.
//! The agent is in a separate volume, so a new agent does not cause new installations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::models::ContainerConfig;
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, InspectContainerOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptions,
};
use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{
    Channel, Command, Consent, Exit, Files, Network, NetworkRule, PROXY_PORT, Preparing, ProcessEvent, SandboxError,
    SandboxPath, StdinMode,
};
use sha2::{Digest, Sha256};
use tokio::time::{interval, timeout};

use super::connect::one_line;
use super::container_request::{self, Common, Image};
use super::daemon::Daemon;
use super::jobs::{JobState, Jobs, ProgressReporter, WaitLimit};
use super::labels;
use super::sandbox;

/// The repository of prepared images.
pub(super) const PREPARED_REPOSITORY: &str = "sandcell-prepared";
/// The number of prepared images that are kept; the oldest are removed first.
const MAX_PREPARED_IMAGES: usize = 20;
/// The deadline of an installation and its cleanup.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(900);
/// The maximum growth of the container in bytes, and the interval at which it is checked.
const MAX_GROWTH_BYTES: i64 = 2 << 30;
const SIZE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The kept bytes of a step's output.
const MAX_OUTPUT_BYTES: usize = 8 << 10;
/// The maximum number of folders of a search path, and of programs per folder.
const MAX_PATH_FOLDERS: usize = 16;
const MAX_FOLDER_PROGRAMS: usize = 10_000;
/// Incremented when images of an earlier recipe must not be used any more.
const RECIPE_VERSION: &str = "1";

/// A language that is added to images that lack it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// The language's name.
    pub language: String,
    /// Programs, any of which provides it.
    pub programs: Vec<String>,
    /// Its packages on Debian and derived distributions.
    pub apt: Vec<String>,
    /// Its packages on Alpine.
    pub apk: Vec<String>,
}

/// The package manager of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Apt,
    Apk,
}

/// The state of knowledge about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ImageState {
    /// Nothing is missing, or nothing can be added.
    Good,
    /// This prepared image is used in its place.
    Prepared(Image),
}

/// The missing languages of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissingLanguages {
    runtimes: Vec<Runtime>,
    manager: Manager,
}

impl MissingLanguages {
    fn languages(&self) -> String {
        let names: Vec<&str> = self.runtimes.iter().map(|lacked| lacked.language.as_str()).collect();
        names.join(", ")
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Runtimes {
    wanted: Vec<Runtime>,
    /// The network of installations, which allows the mirrors only; none: nothing is installed.
    mirrors: Option<Arc<dyn Network>>,
    known: Mutex<HashMap<String, ImageState>>,
    jobs: Arc<Jobs>,
}

impl Runtimes {
    pub(super) fn new(wanted: Vec<Runtime>, mirrors: Option<Arc<dyn Network>>) -> Self {
        Self {
            wanted,
            mirrors,
            known: Mutex::default(),
            jobs: Arc::default(),
        }
    }

    /// Returns the progress of an installation, by the name of its image.
    pub(super) fn progress(&self, name: &str) -> Option<Preparing> {
        self.jobs.progress(name)
    }

    fn note(&self, image: &str, known: ImageState) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(image.to_owned(), known);
    }

    /// Returns true if no image is ever extended.
    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_empty() || self.mirrors.is_none()
    }

    /// Returns the image for sandboxes of this one, and true if that is known already. If false, the caller inspects
    /// the first sandbox with [`Self::look`].
    pub(super) async fn in_place_of(&self, image: &Image, daemon: &Daemon) -> (Image, bool) {
        if self.is_idle() {
            return (image.clone(), true);
        }
        let known = self
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&image.id)
            .cloned();
        match known {
            Some(ImageState::Good) => (image.clone(), true),
            Some(ImageState::Prepared(prepared)) if is_there(daemon, &prepared.id).await.is_some() => (prepared, true),
            Some(ImageState::Prepared(_)) | None => (image.clone(), false),
        }
    }

    /// Finds the missing languages from inside a sandbox of the image. None: nothing is missing, or nothing can be
    /// added.
    pub(super) async fn look(
        &self,
        image: &Image,
        name: &str,
        files: &dyn Files,
        path: &str,
    ) -> Option<MissingLanguages> {
        let programs = programs(files, path).await;
        let has = |program: &String| programs.contains(program.as_str());
        let lacked = self.wanted.iter().filter(|wanted| !wanted.programs.iter().any(has));
        let runtimes: Vec<Runtime> = lacked.cloned().collect();
        let manager = match () {
            () if programs.contains("apt-get") => Some(Manager::Apt),
            () if programs.contains("apk") => Some(Manager::Apk),
            () => None,
        };
        match manager {
            Some(manager) if !runtimes.is_empty() => Some(MissingLanguages { runtimes, manager }),
            Some(_) => {
                self.note(&image.id, ImageState::Good);
                None
            }
            None => {
                for lacked in &runtimes {
                    tracing::warn!(
                        image = name,
                        "the image has no {}, and neither apt-get nor apk to install it",
                        lacked.language
                    );
                }
                self.note(&image.id, ImageState::Good);
                None
            }
        }
    }

    /// Returns the image with its missing languages: an earlier one if there is one, else a new one.
    pub(super) async fn add(
        self: &Arc<Self>,
        name: &str,
        image: &Image,
        lack: &MissingLanguages,
        daemon: &Arc<Daemon>,
        common: &Common,
    ) -> Result<Image, SandboxError> {
        let tag = format!("{PREPARED_REPOSITORY}:{}", key(image, lack));
        if let Some(prepared) = is_there(daemon, &tag).await {
            self.note(&image.id, ImageState::Prepared(prepared.clone()));
            return Ok(prepared);
        }
        let installation = Installation {
            name: name.to_owned(),
            image: image.clone(),
            lack: lack.clone(),
            tag: tag.clone(),
            daemon: Arc::clone(daemon),
            common: common.clone(),
            mirrors: self.mirrors.clone(),
        };
        let failed = |reason: String, remedy: &str| SandboxError::Image {
            image: name.to_owned(),
            reason,
            remedy: remedy.to_owned(),
        };
        let languages = lack.languages();
        let job = |progress: ProgressReporter| async move { installation.run(&progress).await };
        match self.jobs.join(name, WaitLimit::Call, INSTALL_TIMEOUT, job).await {
            JobState::Done => {}
            JobState::Running(progress) => {
                return Err(failed(
                    match progress.text.as_str() {
                        "" => format!("{languages} is being installed into it"),
                        text => text.to_owned(),
                    },
                    "call again in a moment: the installation continues, and the call waits for it",
                ));
            }
            JobState::TooMany(most) => {
                return Err(failed(
                    format!("runtimes are being installed into {most} other images"),
                    "call again in a moment",
                ));
            }
            JobState::Failed(reason) => {
                return Err(failed(
                    format!("it has no {languages}, which could not be installed: {reason}"),
                    remedy(&reason),
                ));
            }
        }
        let prepared = is_there(daemon, &tag).await.ok_or_else(|| {
            failed(
                format!("{languages} was installed, but the image with it has been removed since"),
                "call again; check whether another program removes images on the daemon's machine",
            )
        })?;
        self.note(&image.id, ImageState::Prepared(prepared.clone()));
        Ok(prepared)
    }
}

/// Returns the remedy for a failed installation.
fn remedy(reason: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if has(&["docker.mirrors"]) {
        "tell the operator: docker.mirrors names the hosts that installations may reach, network.private addresses that are not public"
    } else if has(&["no space left", "No space left"]) {
        "free disk space in the daemon's data folder (`docker system df`, `sandcell prepared prune`)"
    } else {
        "choose an image that has it (python:3.13-slim), or tell the operator: docker.languages says what is installed into images, docker.mirrors from where"
    }
}

/// Derives a prepared image's tag from its ingredients.
fn key(image: &Image, lack: &MissingLanguages) -> String {
    let mut digest = Sha256::new();
    for part in [RECIPE_VERSION, &image.id] {
        digest.update(part);
        digest.update([0]);
    }
    for lacked in &lack.runtimes {
        for package in packages(lack.manager, lacked) {
            digest.update(package);
            digest.update([0]);
        }
    }
    digest
        .finalize()
        .iter()
        .take(10)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn packages(manager: Manager, runtime: &Runtime) -> &[String] {
    match manager {
        Manager::Apt => &runtime.apt,
        Manager::Apk => &runtime.apk,
    }
}

/// Returns an image that the daemon has. None also if the daemon cannot be asked; the next request reports that.
async fn is_there(daemon: &Daemon, name: &str) -> Option<Image> {
    Image::from_daemon(daemon.docker.inspect_image(name).await.ok()?)
}

/// Returns the names of the files on a search path.
async fn programs(files: &dyn Files, path: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let folders = path.split(':').filter(|folder| folder.starts_with('/'));
    for folder in folders.take(MAX_PATH_FOLDERS) {
        let Ok(folder) = SandboxPath::parse(folder) else {
            continue;
        };
        if let Ok(listing) = files.list(&folder, false, MAX_FOLDER_PROGRAMS).await {
            found.extend(listing.entries.into_iter().map(|entry| entry.name));
        }
    }
    found
}

/// One installation.
struct Installation {
    name: String,
    image: Image,
    lack: MissingLanguages,
    tag: String,
    daemon: Arc<Daemon>,
    common: Common,
    mirrors: Option<Arc<dyn Network>>,
}

impl Installation {
    async fn run(&self, progress: &ProgressReporter) -> Result<(), String> {
        let languages = self.lack.languages();
        tracing::info!(image = self.name, "installing {languages} into a copy of the image");
        let caches: &[&str] = match self.lack.manager {
            Manager::Apt => &["/var/cache/apt", "/var/lib/apt/lists"],
            Manager::Apk => &[],
        };
        let body = container_request::installing(&self.image, &self.common, caches);
        let made = sandbox::make(&self.daemon, body).await;
        let (container, client) = made.map_err(|error| error.to_string())?;
        // Removes the container in every case, also when this future is dropped.
        let _ending = Ending(Arc::clone(&container));
        let mirrors = self.mirrors.as_ref().ok_or("no mirrors are allowed")?;
        let rule = mirrors
            .check(mirrors.allowed(), &Consent::NotAsked)
            .map_err(|failure| failure.message)?;
        if rule == NetworkRule::None {
            return Err("docker.mirrors names no host".to_owned());
        }
        let forward = client.forward(PROXY_PORT, "network").await;
        let forward = forward.map_err(|error| error.to_string())?;
        let way = mirrors
            .open(&rule, forward, &container.life.name)
            .map_err(|failure| failure.message)?;
        for (number, argv) in self.steps().into_iter().enumerate() {
            let say = |line: &str| {
                progress.report(Preparing {
                    text: format!("installing {languages} into {}: {line}", one_line(&self.name)),
                    done: u64::try_from(number).unwrap_or(u64::MAX),
                    total: 0,
                });
            };
            let step = self.step(&client, argv, say);
            let done = tokio::select! {
                done = step => done,
                full = self.watch(&container.life.name) => Err(full),
            };
            if let Err(said) = done {
                let denied = way.denied_since(0);
                let hosts: Vec<&str> = denied.iter().map(|denied| denied.what.as_str()).collect();
                return Err(match hosts.as_slice() {
                    [] => said,
                    hosts => format!("{said} (docker.mirrors does not allow {})", hosts.join(", ")),
                });
            }
        }
        drop(way);
        let path = self.path();
        let there = programs(client.files(), &path).await;
        for lacked in &self.lack.runtimes {
            if !lacked.programs.iter().any(|program| there.contains(program)) {
                return Err(format!(
                    "installed {}, which provides none of {}",
                    packages(self.lack.manager, lacked).join(" "),
                    lacked.programs.join(", ")
                ));
            }
        }
        progress.report(Preparing {
            text: format!("keeping {} with {languages}", one_line(&self.name)),
            ..Preparing::default()
        });
        self.commit(&container.life.name).await?;
        prune_to(&self.daemon, MAX_PREPARED_IMAGES).await;
        Ok(())
    }

    fn path(&self) -> String {
        let own = self.image.env.get("PATH").map(String::as_str);
        own.unwrap_or("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .to_owned()
    }

    fn steps(&self) -> Vec<Vec<String>> {
        let packages = self
            .lack
            .runtimes
            .iter()
            .flat_map(|lacked| packages(self.lack.manager, lacked));
        let with = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self.lack.manager {
            Manager::Apt => {
                // Fetching as root avoids the capabilities to become apt's own user.
                let options = [
                    "apt-get",
                    "-q",
                    "-o",
                    "APT::Sandbox::User=root",
                    "-o",
                    "Acquire::Languages=none",
                    "-o",
                    "Acquire::Retries=2",
                    "-o",
                    "Acquire::http::Timeout=20",
                    "-o",
                    "APT::Update::Error-Mode=any",
                    "-o",
                    "Dpkg::Use-Pty=0",
                ];
                let mut install = with(&options);
                install.extend(with(&["install", "-y", "--no-install-recommends", "--"]));
                install.extend(packages.cloned());
                let mut update = with(&options);
                update.push("update".to_owned());
                vec![update, install]
            }
            Manager::Apk => {
                let mut add = with(&["apk", "add", "--no-cache", "--no-progress", "--"]);
                add.extend(packages.cloned());
                vec![add]
            }
        }
    }

    /// Runs one program; the error is its complaint.
    async fn step(&self, client: &AgentClient, argv: Vec<String>, say: impl Fn(&str)) -> Result<(), String> {
        let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
        let path = self.path();
        let env = [
            ("PATH", path.as_str()),
            ("HOME", "/root"),
            ("LC_ALL", "C.UTF-8"),
            ("DEBIAN_FRONTEND", "noninteractive"),
            ("http_proxy", &proxy),
            ("https_proxy", &proxy),
        ];
        let program = argv.first().cloned().unwrap_or_default();
        let command = Command {
            argv,
            env: env
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
            cwd: "/".to_owned(),
            stands_alone: false,
            stdin: StdinMode::Null,
            control: false,
            terminal: None,
        };
        let mut process = client.spawn(command).await.map_err(|error| error.to_string())?;
        let mut said = Vec::new();
        let (mut exit, mut open) = (None, 2_u8);
        while exit.is_none() || open > 0 {
            match process.events.recv().await {
                Some(ProcessEvent::Output { bytes, .. }) => {
                    said.extend_from_slice(&bytes);
                    let surplus = said.len().saturating_sub(MAX_OUTPUT_BYTES);
                    said.drain(..surplus);
                    let text = String::from_utf8_lossy(&said);
                    if let Some(line) = text.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
                        say(&one_line(line).chars().take(100).collect::<String>());
                    }
                }
                Some(ProcessEvent::Closed { channel }) => {
                    open = open.saturating_sub(u8::from(matches!(channel, Channel::Stdout | Channel::Stderr)));
                }
                Some(ProcessEvent::Exited { exit: how }) => exit = Some(how),
                None => {
                    return Err("the container that installs ended: out of memory, or removed from outside".to_owned());
                }
            }
        }
        match exit {
            Some(Exit::Code(0)) => Ok(()),
            Some(_) | None => Err(complaint(&program, &String::from_utf8_lossy(&said))),
        }
    }

    /// Returns, with the reason, when the container exceeds its size limit.
    async fn watch(&self, name: &str) -> String {
        let mut ticks = interval(SIZE_CHECK_INTERVAL);
        loop {
            ticks.tick().await;
            let options = InspectContainerOptionsBuilder::default().size(true).build();
            let found = self.daemon.docker.inspect_container(name, Some(options)).await;
            let size = found.ok().and_then(|found| found.size_rw).unwrap_or(0);
            if size > MAX_GROWTH_BYTES {
                return format!("it takes more than {} MB", MAX_GROWTH_BYTES >> 20);
            }
        }
    }

    async fn commit(&self, container: &str) -> Result<(), String> {
        let (repository, tag) = self.tag.split_once(':').unwrap_or((PREPARED_REPOSITORY, "latest"));
        let options = CommitContainerOptionsBuilder::default()
            .container(container)
            .repo(repository)
            .tag(tag)
            .pause(true)
            .build();
        let config = ContainerConfig {
            labels: Some(labels::of_image(&self.name, &self.image.id, &self.lack.languages())),
            env: Some(
                self.image
                    .env
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect(),
            ),
            ..ContainerConfig::default()
        };
        let committed = self.daemon.docker.commit_container(options, config).await;
        committed.map(drop).map_err(|error| one_line(&error.to_string()))
    }
}

/// Returns the relevant part of a program's output: its errors, else its last lines.
fn complaint(program: &str, said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_error = |line: &&&str| {
        let begins = ["E:", "ERROR", "dpkg: error"].iter().any(|word| line.starts_with(word));
        begins || line.contains("No space left")
    };
    let mut errors: Vec<&str> = lines.iter().filter(is_error).copied().take(3).collect();
    if errors.is_empty() {
        errors = lines.iter().rev().take(3).rev().copied().collect();
    }
    format!("{program} said: {}", one_line(&errors.join("; ")))
}

/// Ends a container on drop.
struct Ending(Arc<super::daemon::Container>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.life.ask();
    }
}

/// An image with added languages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its id.
    pub id: String,
    /// The requested name of its base image.
    pub of: String,
    /// The added languages.
    pub adds: String,
    /// The creation time, in seconds since 1970.
    pub created_s: i64,
    /// Its size with all layers, in bytes.
    pub size: u64,
}

/// Returns the prepared images, the newest first.
pub(super) async fn list(docker: &bollard::Docker) -> Result<Vec<Prepared>, bollard::errors::Error> {
    let label = format!("{}={}", labels::KIND_LABEL, labels::IMAGE_KIND);
    let filters = HashMap::from([("label", vec![label.as_str()])]);
    let options = ListImagesOptionsBuilder::default().filters(&filters).build();
    let mut found: Vec<Prepared> = docker
        .list_images(Some(options))
        .await?
        .into_iter()
        .map(|mut image| Prepared {
            of: image.labels.remove(labels::BASE_NAME_LABEL).unwrap_or_default(),
            adds: image.labels.remove(labels::LANGUAGES_LABEL).unwrap_or_default(),
            id: image.id,
            created_s: image.created,
            size: u64::try_from(image.size).unwrap_or(0),
        })
        .collect();
    found.sort_by_key(|image| std::cmp::Reverse(image.created_s));
    Ok(found)
}

/// Removes all prepared images but the newest `keep`, and returns the removed ones. Images in use stay.
pub(super) async fn prune(docker: &bollard::Docker, keep: usize) -> Result<Vec<Prepared>, bollard::errors::Error> {
    let mut removed = Vec::new();
    for image in list(docker).await?.into_iter().skip(keep) {
        match docker.remove_image(&image.id, None::<RemoveImageOptions>, None).await {
            Ok(_) => removed.push(image),
            Err(bollard::errors::Error::DockerResponseServerError {
                status_code: 404 | 409, ..
            }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

async fn prune_to(daemon: &Daemon, keep: usize) {
    match timeout(Duration::from_secs(30), prune(&daemon.docker, keep)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "old images could not be removed"),
        Err(_) => tracing::debug!("removing old images took too long"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lack(manager: Manager) -> MissingLanguages {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        MissingLanguages {
            runtimes: vec![Runtime {
                language: "javascript".to_owned(),
                programs: words("node"),
                apt: words("nodejs"),
                apk: words("nodejs icu"),
            }],
            manager,
        }
    }

    #[test]
    fn the_name_of_a_derived_image_depends_on_its_content() {
        let image = |id: &str| Image {
            id: id.to_owned(),
            ..Image::default()
        };
        let all = [
            key(&image("a"), &lack(Manager::Apt)),
            key(&image("b"), &lack(Manager::Apt)),
            key(&image("a"), &lack(Manager::Apk)),
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 3);
        assert_eq!(all[0], key(&image("a"), &lack(Manager::Apt)));
        assert_eq!(all[0].len(), 20);
    }

    #[test]
    fn the_errors_of_a_package_manager_are_reported() {
        let said = "Reading lists...\nE: Unable to locate package x\nmore\n";
        assert_eq!(
            complaint("apt-get", said),
            "apt-get said: E: Unable to locate package x"
        );
        assert_eq!(complaint("apk", "a\nb\nc\nd"), "apk said: b; c; d");
        assert!(remedy("(docker.mirrors does not allow x)").contains("docker.mirrors"));
        assert!(remedy("No space left on device").contains("free disk space"));
    }
}
