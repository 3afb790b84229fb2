//! The images of this machine: found by name, pulled once for all concurrent callers, and returned with a lock.
//!
//! A pull outlives the call that started it. A call waits for some seconds and then returns the progress; the next
//! call for the same image continues to wait. Dropping [`LocalImages::pull`] cancels that pull and leaves nothing
//! behind.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sandcell_sandbox::{Backend, Image, Images, Preparing, SandboxError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::error::ImageError;
use crate::inside::Kind;
use crate::local::{Folder, archive, blob_name, stamp};
use crate::manifest::{Descriptor, Digest, Document, Manifest, Settings, choose};
use crate::name::{Allow, ImageName, Reference};
use crate::record;
use crate::registry::{Registries, Registry, collect_stream};
use crate::store::{Draft, Layer, NameRecord, Pruned, Store, StoredImage, tree_key};
use crate::tree;
use crate::unpack::{Blob, Unpacker};
use crate::writer::{UnpackLimits, Written};

/// The maximum time that one call waits for a pull.
const CALL_WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit of a pull.
const PULL_TIMEOUT: Duration = Duration::from_secs(1800);
/// The maximum number of concurrent pulls.
const MAX_PULLS: usize = 8;
/// The maximum number of files, folders and links of one image.
const MAX_ENTRIES: u64 = 1_000_000;

/// The operator's settings for images.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data folder.
    pub data: PathBuf,
    /// The program that unpacks (`… images unpack`): sandcell itself.
    pub program: PathBuf,
    /// The registry images that callers may use.
    pub allow: Vec<Allow>,
    /// The folders with images that callers may use.
    pub folders: Vec<PathBuf>,
    /// True if missing images are pulled.
    pub pull: bool,
    /// Registries without TLS.
    pub insecure: Vec<String>,
    /// Mirrors, which are tried before their registry: (registry, mirror).
    pub mirrors: Vec<(String, String)>,
    /// Files with credentials.
    pub logins: Vec<PathBuf>,
    /// The maximum download of one image in bytes.
    pub download_max: u64,
    /// The maximum unpacked size of one image in bytes.
    pub unpacked_max: u64,
    /// The maximum total size of all images in bytes.
    pub kept_max: u64,
}

/// The progress of a pull.
#[derive(Debug, Clone)]
enum Stage {
    Pulling(Preparing),
    Done,
    Failed(ImageError),
}

/// The images of this machine.
#[derive(Debug)]
pub struct LocalImages {
    config: Config,
    store: Store,
    registries: Registries,
    pulls: Mutex<HashMap<String, Pull>>,
    /// The pull permits. A cancelled pull keeps its permit until its threads end.
    permits: Arc<Semaphore>,
    next: AtomicU64,
}

/// A running pull.
#[derive(Debug)]
struct Pull {
    number: u64,
    stage: watch::Sender<Stage>,
    stop: Arc<Notify>,
}

/// The resources that a pull keeps until its last thread ends. A thread that writes may still run after the pull was
/// cancelled.
#[derive(Debug)]
struct PullGuard {
    /// The lock that prevents removals from the store.
    _lock: File,
    /// One of the [`MAX_PULLS`] permits.
    _permit: OwnedSemaphorePermit,
}

/// Removes a pull from the list on drop, also after a cancellation or panic.
struct PullEntry {
    images: Arc<LocalImages>,
    key: String,
    number: u64,
}

impl Drop for PullEntry {
    fn drop(&mut self) {
        let mut pulls = self.images.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        // A cancelled pull may have a successor with the same name.
        if pulls.get(&self.key).is_some_and(|one| one.number == self.number) {
            pulls.remove(&self.key);
        }
    }
}

/// Formats progress in one line, as a part of a sentence.
fn format_progress(progress: &Preparing) -> String {
    let (done, total) = (progress.done / 1_000_000, progress.total / 1_000_000);
    match progress.total {
        0 => progress.text.clone(),
        _ => format!("{}, {done} of {total} MB so far", progress.text),
    }
}

/// Returns progress without numbers.
fn step(text: &str) -> Preparing {
    Preparing {
        text: text.to_owned(),
        ..Preparing::default()
    }
}

/// The source of a layer's blob.
enum BlobSource<'a> {
    Registry(&'a Registry),
    Folder(&'a Folder),
}

/// One layer of an image.
struct WantedLayer {
    digest: Digest,
    size: u64,
    /// The path of its blob in a folder.
    file: String,
}

/// An image that was found, before its layers are fetched.
struct ResolvedImage {
    digest: Digest,
    settings: Settings,
    layers: Vec<WantedLayer>,
}

impl LocalImages {
    /// Creates the service with these settings. Touches no file until it is used.
    #[must_use]
    pub fn new(config: Config) -> Arc<Self> {
        let registries = Registries {
            insecure: config.insecure.clone(),
            mirrors: config.mirrors.clone(),
            logins: config.logins.clone(),
        };
        let store = Store::new(&config.data);
        store.sweep();
        Arc::new(Self {
            store,
            registries,
            config,
            pulls: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_PULLS)),
            next: AtomicU64::default(),
        })
    }

    /// Returns the stored images by name.
    #[must_use]
    pub fn list(&self) -> Vec<StoredImage> {
        self.store.list()
    }

    /// Removes an image, unless a sandbox uses it.
    ///
    /// # Errors
    /// [`ImageError`]: there is no image of this name, it is in use, or an image is being pulled.
    pub fn remove(&self, name: &str) -> Result<Pruned, ImageError> {
        let full = name.parse::<ImageName>()?.to_string();
        let Some(kept) = self.list().into_iter().find(|kept| kept.name == full) else {
            return Err(ImageError::NotHere);
        };
        let busy = || ImageError::Store {
            step: format!("remove {full}"),
            reason: "it is in use".to_owned(),
        };
        if kept.in_use {
            return Err(busy());
        }
        match self.store.remove(&|name_record| name_record.name == full)? {
            Some(pruned) if pruned.images > 0 => Ok(pruned),
            Some(_) => Err(busy()),
            None => Err(ImageError::Busy(1)),
        }
    }

    /// Removes all images that no sandbox uses.
    ///
    /// # Errors
    /// [`ImageError`]: an image is being pulled, or the disk failed.
    pub fn prune(&self) -> Result<Pruned, ImageError> {
        self.store.prepare()?;
        self.store.remove(&|_| true)?.ok_or(ImageError::Busy(1))
    }

    /// Pulls an image, also if it is stored already. For the operator. Sends the progress to `progress`. Dropping the
    /// future cancels the pull and leaves nothing behind.
    ///
    /// # Errors
    /// [`ImageError`] gives the reason.
    pub async fn pull(
        &self,
        name: &str,
        backend: &Arc<dyn Backend>,
        progress: &watch::Sender<Preparing>,
    ) -> Result<StoredImage, ImageError> {
        let parsed: ImageName = name.parse()?;
        let on_progress = |at: Preparing| {
            progress.send_replace(at);
        };
        timeout(PULL_TIMEOUT, self.fetch(&parsed, backend, &on_progress))
            .await
            .map_err(|_| ImageError::Slow(PULL_TIMEOUT.as_secs()))??;
        let full = parsed.to_string();
        let kept = self.list().into_iter().find(|kept| kept.name == full);
        kept.ok_or(ImageError::NotHere)
    }

    /// Returns true if the image is stored, so that using it does not start a pull.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let parsed = name.parse::<ImageName>();
        parsed.is_ok_and(|parsed| self.kept(&parsed).is_some())
    }

    /// Parses the name, and checks that callers may use it. Links in a local path are resolved.
    fn allowed(&self, name: &str) -> Result<ImageName, ImageError> {
        let parsed: ImageName = name.parse()?;
        match parsed {
            ImageName::Registry(ref reference) => {
                let covered = self.config.allow.iter().any(|entry| entry.covers(reference));
                covered.then_some(parsed).ok_or(ImageError::NotAllowed)
            }
            ImageName::Layout(path, name) => Ok(ImageName::Layout(self.allowed_path(&path)?, name)),
            ImageName::Archive(path, name) => Ok(ImageName::Archive(self.allowed_path(&path)?, name)),
        }
    }

    /// Resolves a path below an allowed folder. Other paths get the same error whether they exist or not.
    fn allowed_path(&self, path: &Path) -> Result<PathBuf, ImageError> {
        let real = path.canonicalize().map_err(|_| ImageError::NotAllowed)?;
        let mut folders = self
            .config
            .folders
            .iter()
            .filter_map(|folder| folder.canonicalize().ok());
        folders
            .any(|folder| real.starts_with(&folder))
            .then_some(real)
            .ok_or(ImageError::NotAllowed)
    }

    /// Returns the stored image of this name, with its tree locked.
    fn kept(&self, name: &ImageName) -> Option<Image> {
        let name_record = self.store.name_record(&name.to_string())?;
        if stamp(name) != name_record.stamp {
            return None;
        }
        let (root, lock) = self.store.tree(&tree_key(&name_record.layers))?;
        let NameRecord { name, digest, env, .. } = name_record;
        let name = if name.contains('@') {
            name
        } else {
            format!("{name}@{digest}")
        };
        Some(Image {
            name,
            root: root.canonicalize().ok()?,
            env,
            held: Arc::new(lock),
        })
    }

    /// Waits a limited time for a pull of this image, and starts the pull if none is running.
    async fn pulled(self: &Arc<Self>, name: ImageName, backend: Arc<dyn Backend>) -> Result<(), ImageError> {
        let mut stage = self.join(name, backend)?;
        let over = stage.wait_for(|stage| !matches!(stage, Stage::Pulling(_)));
        let over = timeout(CALL_WAIT_TIMEOUT, over)
            .await
            .map(|over| over.map(|stage| stage.clone()));
        match over {
            Ok(Ok(Stage::Done)) => Ok(()),
            Ok(Ok(Stage::Failed(error))) => Err(error),
            Ok(Err(_)) => Err(ImageError::Cancelled),
            Ok(Ok(Stage::Pulling(_))) | Err(_) => match stage.borrow().clone() {
                Stage::Pulling(at) => Err(ImageError::Pulling(format_progress(&at))),
                Stage::Done => Ok(()),
                Stage::Failed(error) => Err(error),
            },
        }
    }

    fn join(
        self: &Arc<Self>,
        name: ImageName,
        backend: Arc<dyn Backend>,
    ) -> Result<watch::Receiver<Stage>, ImageError> {
        let key = name.to_string();
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = pulls.get(&key) {
            return Ok(one.stage.subscribe());
        }
        if pulls.len() >= MAX_PULLS {
            return Err(ImageError::Busy(MAX_PULLS));
        }
        let (sender, stage) = watch::channel(Stage::Pulling(step("asking the registry")));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (images, stop) = (Arc::clone(self), Arc::new(Notify::new()));
        let entry = PullEntry {
            images: Arc::clone(self),
            key: key.clone(),
            number,
        };
        let one = Pull {
            number,
            stage: sender.clone(),
            stop: Arc::clone(&stop),
        };
        pulls.insert(key, one);
        // A runtime that is shutting down drops the task before `spawn` returns, and the task's entry takes this lock.
        drop(pulls);
        tokio::spawn(async move {
            tracing::info!(image = entry.key, "pulling");
            let on_progress = |at: Preparing| {
                sender.send_replace(Stage::Pulling(at));
            };
            let end = tokio::select! {
                end = timeout(PULL_TIMEOUT, images.fetch(&name, &backend, &on_progress)) => end,
                () = stop.notified() => return,
            };
            let end = match end {
                Ok(Ok(())) => Stage::Done,
                Ok(Err(error)) => Stage::Failed(error),
                Err(_) => Stage::Failed(ImageError::Slow(PULL_TIMEOUT.as_secs())),
            };
            // The next call starts a new pull.
            drop(entry);
            sender.send_replace(end);
        });
        Ok(stage)
    }

    /// Pulls an image, also if it is stored already.
    async fn fetch(
        &self,
        name: &ImageName,
        backend: &Arc<dyn Backend>,
        on_progress: &(dyn Fn(Preparing) + Send + Sync),
    ) -> Result<(), ImageError> {
        let (store, program) = (self.store.clone(), self.config.program.clone());
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| ImageError::Cancelled)?;
        let (held, tool) = run_blocking(move || {
            store.prepare()?;
            let held = PullGuard {
                _lock: store.prevent_removal()?,
                _permit: permit,
            };
            Ok((Arc::new(held), store.tool(&program)?))
        })
        .await?;
        let work = PullJob {
            images: self,
            backend,
            tool: &tool,
            on_progress,
            held: &held,
        };
        match name {
            ImageName::Registry(reference) => work.bring_registry(name, reference).await?,
            ImageName::Layout(path, inner) => {
                let before = stamp(name);
                let folder = Folder::open(path)?;
                let found = work.look_up_layout(&folder, inner.as_deref())?;
                work.import(name, before, found, &BlobSource::Folder(&folder)).await?;
            }
            ImageName::Archive(path, inner) => work.import_archive(name, path, inner.as_deref()).await?,
        }
        drop(held);
        let (store, max_bytes, name) = (self.store.clone(), self.config.kept_max, name.to_string());
        run_blocking(move || {
            store.make_room(max_bytes, &name);
            Ok(())
        })
        .await
    }
}

/// One pull.
struct PullJob<'a> {
    images: &'a LocalImages,
    backend: &'a Arc<dyn Backend>,
    tool: &'a Path,
    on_progress: &'a (dyn Fn(Preparing) + Send + Sync),
    held: &'a Arc<PullGuard>,
}

impl PullJob<'_> {
    fn store(&self) -> &Store {
        &self.images.store
    }

    async fn bring_registry(&self, name: &ImageName, reference: &Reference) -> Result<(), ImageError> {
        let mut last = None;
        for registry in self.images.registries.of(reference)? {
            let found = match self.look_up(&registry, reference).await {
                Ok(found) => found,
                Err(error) => {
                    // Mirrors come first, so the last error is the registry's own.
                    tracing::debug!(%error, "a registry does not have an image");
                    last = Some(error);
                    continue;
                }
            };
            return self.import(name, None, found, &BlobSource::Registry(&registry)).await;
        }
        Err(last.unwrap_or(ImageError::NotHere))
    }

    async fn look_up(&self, registry: &Registry, reference: &Reference) -> Result<ResolvedImage, ImageError> {
        use crate::manifest::{CONFIG_MAX, MANIFEST_MAX};
        let which = match (&reference.digest, &reference.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.clone().unwrap_or_else(|| "latest".to_owned()),
        };
        let (bytes, named) = registry
            .manifest(&which, reference.digest.as_ref(), MANIFEST_MAX)
            .await?;
        let (manifest, digest) = match Document::parse(&bytes)? {
            Document::Manifest(manifest) => (manifest, named),
            Document::Index(all) => {
                let one = choose(&all)?;
                let (bytes, digest) = registry
                    .manifest(&one.digest.to_string(), Some(&one.digest), MANIFEST_MAX)
                    .await?;
                (manifest_of(&bytes)?, digest)
            }
        };
        let config = registry.blob(&manifest.config.digest, CONFIG_MAX).await?;
        let config = collect_stream(config).await?;
        if Digest::of(&config) != manifest.config.digest {
            return Err(ImageError::Digest {
                what: "its configuration".to_owned(),
            });
        }
        resolved_image(digest, &manifest, &config)
    }

    fn look_up_layout(&self, folder: &Folder, name: Option<&str>) -> Result<ResolvedImage, ImageError> {
        let all = folder.index(name)?;
        // The index has one image, or one for each platform, perhaps behind another index.
        let mut one = match all.as_slice() {
            [only] => only.clone(),
            several => choose(several)?.clone(),
        };
        let manifest = match Document::parse(&folder.small(&one.digest)?)? {
            Document::Manifest(manifest) => manifest,
            Document::Index(inner) => {
                one = choose(&inner)?.clone();
                manifest_of(&folder.small(&one.digest)?)?
            }
        };
        let config = folder.small(&manifest.config.digest)?;
        resolved_image(one.digest, &manifest, &config)
    }

    /// Unpacks an archive of `docker save` in a sandbox, into a folder that exists during the pull, and imports the
    /// image.
    async fn import_archive(&self, name: &ImageName, path: &Path, inner: Option<&str>) -> Result<(), ImageError> {
        let before = stamp(name);
        let draft = Arc::new(self.store().draft()?);
        let blob = Blob {
            stream: archive(path)?,
            known: None,
        };
        (self.on_progress)(step("reading the archive"));
        let config = &self.images.config;
        let limits = UnpackLimits {
            bytes: config.unpacked_max,
            entries: MAX_ENTRIES,
        };
        self.unpacker(limits).run(Kind::Archive, blob, &draft, &|_| {}).await?;
        let folder = Folder::open(&draft.path().join("files"))?;
        let saved = folder.saved(inner)?;
        let config = folder.config(&saved.config)?;
        let mut layers = Vec::new();
        for file in &saved.layers {
            let (digest, size) = folder.measure(file).await?;
            layers.push(WantedLayer {
                digest,
                size,
                file: file.clone(),
            });
        }
        let found = ResolvedImage {
            digest: Digest::of(&config),
            settings: Settings::parse(&config, layers.len())?,
            layers,
        };
        self.import(name, before, found, &BlobSource::Folder(&folder)).await
    }

    fn unpacker(&self, limits: UnpackLimits) -> Unpacker<'_> {
        Unpacker {
            backend: self.backend,
            tool: self.tool,
            limits,
        }
    }

    /// Fetches the missing layers, and builds the tree.
    async fn import(
        &self,
        name: &ImageName,
        stamp: Option<String>,
        found: ResolvedImage,
        source: &BlobSource<'_>,
    ) -> Result<(), ImageError> {
        let config = &self.images.config;
        let total = found.layers.iter().fold(0_u64, |sum, one| sum.saturating_add(one.size));
        if matches!(source, BlobSource::Registry(_)) && total > config.download_max {
            return Err(ImageError::TooLarge {
                what: "the image, packed,",
                limit: config.download_max >> 20,
                unit: "MiB",
            });
        }
        let done = AtomicU64::new(0);
        let (mut layers, mut left) = (Vec::new(), (config.unpacked_max, MAX_ENTRIES));
        for (number, one) in found.layers.iter().enumerate() {
            let count = found.layers.len();
            let fed = |more: u64| {
                let done = done.fetch_add(more, Ordering::Relaxed).saturating_add(more);
                (self.on_progress)(Preparing {
                    text: format!("layer {} of {count}", number + 1),
                    done,
                    total,
                });
            };
            let limits = UnpackLimits {
                bytes: left.0,
                entries: left.1,
            };
            let layer = match self.store().layer(&one.digest) {
                Some((layer, _)) => {
                    fed(one.size);
                    layer
                }
                None => self.import_layer(one, source, limits, &fed).await?,
            };
            let said = found.settings.diff_ids.get(number);
            if layer.diff_id.as_ref() != said {
                return Err(ImageError::Digest {
                    what: format!("layer {}, unpacked,", number + 1),
                });
            }
            let too_large = ImageError::TooLarge {
                what: "the image, unpacked,",
                limit: config.unpacked_max >> 20,
                unit: "MiB",
            };
            left.0 = left.0.checked_sub(layer.bytes).ok_or_else(|| too_large.clone())?;
            left.1 = left.1.checked_sub(layer.entries).ok_or(too_large)?;
            layers.push(layer);
        }
        let digests: Vec<Digest> = found.layers.into_iter().map(|one| one.digest).collect();
        self.make_tree(&digests, &layers).await?;
        let sum = |of: fn(&Layer) -> u64| layers.iter().map(of).sum::<u64>();
        let name_record = NameRecord {
            name: name.to_string(),
            digest: found.digest,
            stamp,
            env: found.settings.env,
            layers: digests,
            bytes: sum(|layer| layer.bytes),
            left_out: sum(|layer| layer.left_out),
            setuid: sum(|layer| layer.setuid),
        };
        if name_record.left_out > 0 || name_record.setuid > 0 {
            tracing::info!(
                image = name_record.name,
                left_out = name_record.left_out,
                setuid = name_record.setuid,
                "device nodes and pipes of the image were left out, and permissions of other users were dropped"
            );
        }
        self.store().remember(&name_record)
    }

    async fn import_layer(
        &self,
        one: &WantedLayer,
        source: &BlobSource<'_>,
        limits: UnpackLimits,
        fed: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Layer, ImageError> {
        let stream = match source {
            BlobSource::Registry(registry) => registry.blob(&one.digest, one.size).await?,
            BlobSource::Folder(folder) => folder.stream(&one.file)?,
        };
        let blob = Blob {
            stream,
            known: Some((one.digest.clone(), one.size)),
        };
        let draft = Arc::new(self.store().draft()?);
        let written = self.unpacker(limits).run(Kind::Layer, blob, &draft, fed).await?;
        let layer = layer_of(written);
        let (store, digest, kept) = (self.store().clone(), one.digest.clone(), layer.clone());
        let held = Arc::clone(self.held);
        run_blocking(move || {
            let _held = held;
            store.publish_layer(&draft, &digest, &kept)
        })
        .await?;
        Ok(layer)
    }

    async fn make_tree(&self, digests: &[Digest], layers: &[Layer]) -> Result<(), ImageError> {
        if self.store().tree(&tree_key(digests)).is_some() {
            return Ok(());
        }
        (self.on_progress)(step("merging the layers"));
        build_tree(
            self.store().clone(),
            Arc::clone(self.held),
            digests.to_vec(),
            layers.to_vec(),
        )
        .await
    }
}

/// Builds the tree of these layers. `held` keeps the layers until the end, even if the caller gives up.
async fn build_tree(
    store: Store,
    held: Arc<PullGuard>,
    digests: Vec<Digest>,
    layers: Vec<Layer>,
) -> Result<(), ImageError> {
    run_blocking(move || {
        let _held = held;
        let draft = store.draft()?;
        build(&store, &draft, &digests, &layers)?;
        store.publish_tree(&draft, &tree_key(&digests))
    })
    .await
}

/// Runs work with many files on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ImageError::Unpack("the task that wrote it ended unexpectedly".to_owned()))?
}

fn build(store: &Store, draft: &Draft, digests: &[Digest], layers: &[Layer]) -> Result<(), ImageError> {
    let gone = || ImageError::Store {
        step: "find a layer".to_owned(),
        reason: "it has been removed since".to_owned(),
    };
    let paths = |texts: &[String]| -> Result<Vec<record::Path>, ImageError> {
        texts
            .iter()
            .map(|text| record::Path::from_hex(text).ok_or_else(gone))
            .collect()
    };
    let mut all = Vec::new();
    for (digest, layer) in digests.iter().zip(layers) {
        let (_, files) = store.layer(digest).ok_or_else(gone)?;
        let implied = paths(&layer.implied)?.into_iter().collect();
        all.push((files, paths(&layer.whiteouts)?, paths(&layer.opaques)?, implied));
    }
    let parts: Vec<tree::Part<'_>> = all
        .iter()
        .map(|(files, whiteouts, opaques, implied)| tree::Part {
            files,
            whiteouts,
            opaques,
            implied,
        })
        .collect();
    tree::build(&draft.path().join("root"), &parts)
}

fn layer_of(written: Written) -> Layer {
    let texts = |paths: Vec<record::Path>| paths.iter().map(record::Path::to_hex).collect();
    Layer {
        diff_id: written.summary.diff_id,
        bytes: written.bytes,
        entries: written.entries,
        whiteouts: texts(written.whiteouts),
        opaques: texts(written.opaques),
        implied: texts(written.implied.into_iter().collect()),
        left_out: written.summary.left_out,
        setuid: written.summary.setuid,
    }
}

fn manifest_of(bytes: &[u8]) -> Result<Manifest, ImageError> {
    match Document::parse(bytes)? {
        Document::Manifest(manifest) => Ok(manifest),
        Document::Index(_) => Err(ImageError::Format {
            what: "its manifest",
            reason: "an image index refers to another index".to_owned(),
        }),
    }
}

fn resolved_image(digest: Digest, manifest: &Manifest, config: &[u8]) -> Result<ResolvedImage, ImageError> {
    let wanted = |one: &Descriptor| WantedLayer {
        digest: one.digest.clone(),
        size: one.size,
        file: blob_name(&one.digest),
    };
    Ok(ResolvedImage {
        digest,
        settings: Settings::parse(config, manifest.layers.len())?,
        layers: manifest.layers.iter().map(wanted).collect(),
    })
}

#[async_trait]
impl Images for LocalImages {
    async fn find(self: Arc<Self>, name: &str, backend: Arc<dyn Backend>) -> Result<Image, SandboxError> {
        let parsed = self.allowed(name).map_err(|error| error.of(name))?;
        if let Some(image) = self.kept(&parsed) {
            return Ok(image);
        }
        if !self.config.pull {
            return Err(ImageError::NotHere.of(name));
        }
        self.pulled(parsed.clone(), backend)
            .await
            .map_err(|error| error.of(name))?;
        self.kept(&parsed).ok_or_else(|| ImageError::NotHere.of(name))
    }

    fn preparing(&self, name: &str) -> Option<Preparing> {
        let name = self.allowed(name).ok()?;
        let pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        match &*pulls.get(&name.to_string())?.stage.borrow() {
            Stage::Pulling(at) => Some(Preparing {
                text: format!("pulling {name}: {}", at.text),
                ..at.clone()
            }),
            Stage::Done | Stage::Failed(_) => None,
        }
    }

    fn abandon(&self, name: &str) {
        let Ok(name) = self.allowed(name) else { return };
        let key = name.to_string();
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        if pulls.get(&key).is_some_and(|one| one.stage.receiver_count() == 0)
            && let Some(one) = pulls.remove(&key)
        {
            tracing::info!(image = key, "the pull was given up");
            one.stop.notify_one();
        }
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
