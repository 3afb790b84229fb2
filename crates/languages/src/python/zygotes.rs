//! Zygotes: interpreters that have loaded the operator's modules, whose children become sessions.
//!
//! A zygote is replaced after a number of children or some time, since all children share its hash seed and address
//! layout. If anything fails here, the session starts with its own interpreter.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandcell_sandbox::{Backend, NotLoaded, SandboxError, SessionError};

use crate::control::{DriverSession, PreloadedModules, Snapshots, Start};

/// The maximum number of children and the maximum age of a zygote.
const CHILDREN_MAX: u32 = 1000;
const AGE_MAX: Duration = Duration::from_secs(3600);
/// A zygote that fails before this age is replaced only after a pause of the same length.
const LIFE_MIN: Duration = Duration::from_secs(60);
/// A zygote that ends before this age must have caused its end itself, and is not replaced at once.
const ENDS_BY_ITSELF: Duration = Duration::from_secs(1);
/// The time for which a replaced zygote lives on.
const FORMER_LIFETIME: Duration = Duration::from_secs(10);
/// The time to wait for a zygote to start, and the pause between two looks.
const START_WAIT: Duration = Duration::from_secs(5);
const START_LOOK: Duration = Duration::from_millis(20);
/// A zygote with this many failures in a row counts as broken.
const FAILURES_MAX: u32 = 3;

/// The parameters for starting a zygote.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) argv: Vec<String>,
    pub(super) start: Start,
    pub(super) boot: Bytes,
    pub(super) modules: Vec<String>,
    /// Its folders with packages, in mount order.
    pub(super) attached: Vec<PathBuf>,
}

/// A zygote that is ready.
#[derive(Debug)]
pub(super) struct Zygote {
    pub(super) number: u64,
    preloaded: Arc<PreloadedModules>,
    since: Instant,
    children: AtomicU32,
    failures: AtomicU32,
    recipe: Recipe,
    /// A drop ends the zygote.
    driver: DriverSession,
}

/// The current zygote.
#[derive(Debug, Default)]
pub(super) struct Zygotes {
    current: Mutex<Option<Arc<Zygote>>>,
    /// The previous one, for sandboxes that were in creation when it was replaced.
    former: Mutex<Option<Arc<Zygote>>>,
    /// Held while a zygote starts.
    starting: tokio::sync::Mutex<()>,
}

/// A zygote that was chosen for one child.
#[derive(Debug)]
pub(super) struct ChosenZygote {
    zygote: Arc<Zygote>,
    pub(super) number: u64,
    pub(super) preloaded: Arc<PreloadedModules>,
}

impl Zygote {
    /// Returns true if an interpreter started in a sandbox with these folders would load the same modules. Folders that
    /// only the sandbox has may contain other versions of modules that the zygote has loaded.
    fn fits(&self, attached: &[PathBuf]) -> bool {
        let beyond = attached.strip_prefix(self.recipe.attached.as_slice());
        beyond.is_some_and(|folders| !folders.iter().any(|folder| self.preloaded.is_in(folder)))
    }
}

impl Zygotes {
    // A holder of these locks only assigns, so a poisoned state is whole.
    fn current(&self) -> MutexGuard<'_, Option<Arc<Zygote>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn former(&self) -> MutexGuard<'_, Option<Arc<Zygote>>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a zygote, which replaces the current one.
    pub(super) async fn start(self: &Arc<Self>, recipe: Recipe) -> Result<Vec<NotLoaded>, SessionError> {
        let _guard = self.starting.lock().await;
        self.start_alone(recipe).await
    }

    async fn start_alone(self: &Arc<Self>, recipe: Recipe) -> Result<Vec<NotLoaded>, SessionError> {
        let unsupported = || SandboxError::Unsupported("zygotes".to_owned());
        let zygotes = recipe.backend.zygotes().ok_or_else(unsupported)?;
        let zygote = zygotes.start_zygote(&recipe.argv, &recipe.attached).await?;
        let start = Start {
            boot: recipe.boot.clone(),
            snapshots: Snapshots::Unsupported,
            ..recipe.start.clone()
        };
        let (driver, missing) = DriverSession::zygote(zygote.process, start, &recipe.modules).await?;
        let zygote = Zygote {
            number: zygote.number,
            preloaded: Arc::clone(driver.preloaded()),
            since: Instant::now(),
            children: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            recipe,
            driver,
        };
        let former = self.current().replace(Arc::new(zygote));
        self.former().clone_from(&former);
        let zygotes = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(FORMER_LIFETIME).await;
            let ended = zygotes
                .former()
                .take_if(|kept| former.as_ref().is_some_and(|former| Arc::ptr_eq(kept, former)));
            drop(ended);
        });
        Ok(missing)
    }

    /// Returns the current zygote. If it has ended (with the launcher, for example), begins to replace it.
    fn living(self: &Arc<Self>) -> Option<Arc<Zygote>> {
        let mut current = self.current();
        if !current.as_ref()?.driver.is_lost() {
            return current.clone();
        }
        let ended = current.take()?;
        drop(current);
        let by_itself = ended.since.elapsed() < ENDS_BY_ITSELF;
        self.renew(&ended, if by_itself { LIFE_MIN } else { Duration::ZERO });
        None
    }

    /// Returns the current zygote, if its children are suitable for sandboxes with these folders.
    pub(super) fn fitting(self: &Arc<Self>, attached: &[PathBuf]) -> Option<Arc<Zygote>> {
        self.living().filter(|zygote| zygote.fits(attached))
    }

    /// Chooses the zygote for one more child, in a sandbox with these folders. `expected` is the zygote whose child the
    /// sandbox already expects.
    pub(super) fn choose(self: &Arc<Self>, attached: &[PathBuf], expected: Option<u64>) -> Option<ChosenZygote> {
        let current = self.living();
        let zygote = match expected {
            None => current,
            Some(number) => [current, self.former().clone()]
                .into_iter()
                .flatten()
                .find(|zygote| zygote.number == number),
        };
        let zygote = zygote.filter(|zygote| zygote.fits(attached))?;
        let before = zygote.children.fetch_add(1, Ordering::Relaxed);
        if before >= CHILDREN_MAX || zygote.since.elapsed() > AGE_MAX {
            self.renew(&zygote, Duration::ZERO);
        }
        Some(ChosenZygote {
            number: zygote.number,
            preloaded: Arc::clone(&zygote.preloaded),
            zygote,
        })
    }

    /// Chooses the zygote for a child that cannot do without one. Waits while it starts.
    pub(super) async fn choose_soon(self: &Arc<Self>, attached: &[PathBuf]) -> Option<ChosenZygote> {
        let deadline = Instant::now() + START_WAIT;
        loop {
            let chosen = self.choose(attached, None);
            if chosen.is_some() || Instant::now() > deadline {
                return chosen;
            }
            tokio::time::sleep(START_LOOK).await;
        }
    }

    /// Records that the child has become a session.
    pub(super) fn worked(chosen: &ChosenZygote) {
        chosen.zygote.failures.store(0, Ordering::Relaxed);
    }

    /// Records that the child did not become a session in a sandbox where an interpreter could be started.
    pub(super) fn failed(self: &Arc<Self>, chosen: &ChosenZygote, error: &SessionError) {
        let zygote = &chosen.zygote;
        tracing::debug!(%error, "the zygote forked no worker");
        if zygote.failures.fetch_add(1, Ordering::Relaxed) + 1 < FAILURES_MAX {
            return;
        }
        let mut current = self.current();
        if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, zygote)) {
            return;
        }
        *current = None;
        drop(current);
        let mut pause = Duration::ZERO;
        if zygote.since.elapsed() < LIFE_MIN {
            tracing::warn!("the zygote does not work; for a minute sessions start without it: {error}");
            pause = LIFE_MIN;
        }
        self.renew(zygote, pause);
    }

    /// Starts a replacement in the background after a pause, unless there is or starts another one by then.
    fn renew(self: &Arc<Self>, zygote: &Arc<Zygote>, pause: Duration) {
        let (zygotes, recipe, number) = (Arc::clone(self), zygote.recipe.clone(), zygote.number);
        tokio::spawn(async move {
            let mut pause = pause;
            loop {
                tokio::time::sleep(pause).await;
                let Ok(_guard) = zygotes.starting.try_lock() else {
                    return;
                };
                let other = |current: &Arc<Zygote>| current.number != number;
                if zygotes.current().as_ref().is_some_and(other) {
                    return;
                }
                let Err(error) = zygotes.start_alone(recipe.clone()).await else {
                    return;
                };
                tracing::warn!("no other zygote could be started: {error}");
                pause = LIFE_MIN;
            }
        });
    }
}
