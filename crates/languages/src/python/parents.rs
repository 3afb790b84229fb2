//! Warmed interpreters: one has loaded the operator's modules, and sessions begin as its children.
//!
//! It is replaced after so many children or so much time, since all of them have its hash seed and its layout in memory.
//! Whatever fails here, the session is started in the usual way.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandcell_sandbox::{Backend, NotLoaded, SessionError};

use crate::control::{Ahead, DriverSession, Snapshots, Start};

/// After so many children, or so long, another one takes its place.
const CHILDREN_MAX: u32 = 1000;
const AGE_MAX: Duration = Duration::from_secs(3600);
/// One that failed sooner than this after its start is replaced only after such a pause.
const LIFE_MIN: Duration = Duration::from_secs(60);
/// One that ended sooner than this after its start ends by itself, and is not replaced at once.
const ENDS_BY_ITSELF: Duration = Duration::from_secs(1);
/// How long the one before lives on.
const FORMER: Duration = Duration::from_secs(10);
/// After so many failures in a row it counts as broken.
const FAILURES_MAX: u32 = 3;

/// How a parent is started.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) argv: Vec<String>,
    pub(super) start: Start,
    pub(super) boot: Bytes,
    pub(super) modules: Vec<String>,
    /// Folders with packages that it sees, in the order of their places.
    pub(super) attached: Vec<PathBuf>,
}

/// One that is ready.
#[derive(Debug)]
pub(super) struct Warm {
    pub(super) number: u64,
    ahead: Arc<Ahead>,
    since: Instant,
    children: AtomicU32,
    failures: AtomicU32,
    recipe: Recipe,
    /// Ends it when dropped.
    driver: DriverSession,
}

/// The parent that there is.
#[derive(Debug, Default)]
pub(super) struct Parents {
    current: Mutex<Option<Arc<Warm>>>,
    /// The one before, for sandboxes that were in the making when it was replaced.
    former: Mutex<Option<Arc<Warm>>>,
    /// Held while another one is started.
    starting: tokio::sync::Mutex<()>,
}

/// A parent that is asked for one child.
#[derive(Debug)]
pub(super) struct Chosen {
    warm: Arc<Warm>,
    pub(super) number: u64,
    pub(super) ahead: Arc<Ahead>,
}

impl Warm {
    /// Whether an interpreter that started in a sandbox with these folders would have loaded the same. What is attached there
    /// alone may hold other versions of what the parent has loaded.
    fn fits(&self, attached: &[PathBuf]) -> bool {
        let beyond = attached.strip_prefix(self.recipe.attached.as_slice());
        beyond.is_some_and(|folders| !folders.iter().any(|folder| self.ahead.is_in(folder)))
    }
}

impl Parents {
    // Whoever holds these only assigns.
    fn current(&self) -> MutexGuard<'_, Option<Arc<Warm>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn former(&self) -> MutexGuard<'_, Option<Arc<Warm>>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one, in place of the one that there is.
    pub(super) async fn start(self: &Arc<Self>, recipe: Recipe) -> Result<Vec<NotLoaded>, SessionError> {
        let _alone = self.starting.lock().await;
        self.start_alone(recipe).await
    }

    async fn start_alone(self: &Arc<Self>, recipe: Recipe) -> Result<Vec<NotLoaded>, SessionError> {
        let parent = recipe.backend.warm(&recipe.argv, &recipe.attached).await?;
        let start = Start {
            boot: recipe.boot.clone(),
            copies: Snapshots::Unsupported,
            ..recipe.start.clone()
        };
        let (driver, missing) = DriverSession::parent(parent.process, start, &recipe.modules).await?;
        let warm = Warm {
            number: parent.number,
            ahead: Arc::clone(driver.ahead()),
            since: Instant::now(),
            children: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            recipe,
            driver,
        };
        let former = self.current().replace(Arc::new(warm));
        self.former().clone_from(&former);
        let parents = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(FORMER).await;
            let ended = parents
                .former()
                .take_if(|kept| former.as_ref().is_some_and(|former| Arc::ptr_eq(kept, former)));
            drop(ended);
        });
        Ok(missing)
    }

    /// The parent that there is. One that has ended (with the launcher, say) is replaced at once.
    fn living(self: &Arc<Self>) -> Option<Arc<Warm>> {
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

    /// The parent that there is, if its children fit into sandboxes with these folders.
    pub(super) fn fitting(self: &Arc<Self>, attached: &[PathBuf]) -> Option<Arc<Warm>> {
        self.living().filter(|warm| warm.fits(attached))
    }

    /// The parent of one more child, for a sandbox with these folders, which may expect that of one.
    pub(super) fn choose(self: &Arc<Self>, attached: &[PathBuf], expected: Option<u64>) -> Option<Chosen> {
        let current = self.living();
        let warm = match expected {
            None => current,
            Some(number) => [current, self.former().clone()]
                .into_iter()
                .flatten()
                .find(|warm| warm.number == number),
        };
        let warm = warm.filter(|warm| warm.fits(attached))?;
        let before = warm.children.fetch_add(1, Ordering::Relaxed);
        if before >= CHILDREN_MAX || warm.since.elapsed() > AGE_MAX {
            self.renew(&warm, Duration::ZERO);
        }
        Some(Chosen {
            number: warm.number,
            ahead: Arc::clone(&warm.ahead),
            warm,
        })
    }

    /// The child has become a session.
    pub(super) fn worked(chosen: &Chosen) {
        chosen.warm.failures.store(0, Ordering::Relaxed);
    }

    /// The child has not become a session, in a sandbox in which an interpreter could be started.
    pub(super) fn failed(self: &Arc<Self>, chosen: &Chosen, error: &SessionError) {
        let warm = &chosen.warm;
        tracing::debug!(%error, "no child of the warmed interpreter could be had");
        if warm.failures.fetch_add(1, Ordering::Relaxed) + 1 < FAILURES_MAX {
            return;
        }
        let mut current = self.current();
        if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, warm)) {
            return;
        }
        *current = None;
        drop(current);
        let mut pause = Duration::ZERO;
        if warm.since.elapsed() < LIFE_MIN {
            tracing::warn!("the warmed interpreter does not work; for a minute sessions start without it: {error}");
            pause = LIFE_MIN;
        }
        self.renew(warm, pause);
    }

    /// Starts another one in the background after a pause, unless one was started meanwhile, or is just now.
    fn renew(self: &Arc<Self>, warm: &Arc<Warm>, pause: Duration) {
        let (parents, recipe, number) = (Arc::clone(self), warm.recipe.clone(), warm.number);
        tokio::spawn(async move {
            let mut pause = pause;
            loop {
                tokio::time::sleep(pause).await;
                let Ok(_alone) = parents.starting.try_lock() else {
                    return;
                };
                let other = |current: &Arc<Warm>| current.number != number;
                if parents.current().as_ref().is_some_and(other) {
                    return;
                }
                let Err(error) = parents.start_alone(recipe.clone()).await else {
                    return;
                };
                tracing::warn!("no other warmed interpreter could be started: {error}");
                pause = LIFE_MIN;
            }
        });
    }
}
