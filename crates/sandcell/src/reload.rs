//! Settings that change while a server runs. The server checks the files every two seconds, and at once on a hang-up
//! signal.
//!
//! All changes are read and checked before any is put in force, so that a broken file changes nothing. Settings that
//! cannot change in a running server are named in the log and keep their values.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sandcell_engine::{Engine, NetworkedSandbox};
use sandcell_sandbox::Failure;

use crate::config::{Layered, Settings, Surroundings, read, table};
use crate::signals::{HangUps, OnHangUp};
use crate::telemetry;
use crate::wiring::ReloadTargets;

/// The interval between checks of the settings files.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum number of sandboxes, and of hosts of each, in one log line.
const MAX_SANDBOXES_LOGGED: usize = 20;
const MAX_HOSTS_LOGGED: usize = 8;

/// A file's fingerprint; a changed fingerprint means a changed file.
type Stamp = Option<(SystemTime, u64, u64)>;

/// Follows the files of a server's settings.
#[derive(Debug)]
pub(crate) struct Reloader {
    around: Surroundings,
    on_hang_up: OnHangUp,
    stamps: Vec<Stamp>,
    /// The settings read last.
    seen: Layered,
    /// The settings in force.
    in_force: Layered,
}

/// The result of a check of the settings.
#[derive(Debug, PartialEq, Eq)]
enum ReloadOutcome {
    Same,
    /// The applied settings, and those that need a restart.
    Changed {
        taken: BTreeSet<&'static str>,
        left: BTreeSet<&'static str>,
    },
}

impl Reloader {
    /// Creates a reloader and reads the settings now in force.
    ///
    /// # Errors
    /// When the settings have become unusable since they were read.
    pub(crate) fn new(around: Surroundings, on_hang_up: OnHangUp) -> Result<Self, Failure> {
        let stamps = stamps(&around);
        let layered = read(&around)?;
        Ok(Self {
            around,
            on_hang_up,
            stamps,
            seen: layered.clone(),
            in_force: layered,
        })
    }

    /// Follows the files in a separate task. The task ends when the returned handle is dropped.
    pub(crate) fn start(self, running: ReloadTargets) -> ReloadTask {
        ReloadTask(tokio::spawn(self.follow(running)))
    }

    /// Applies changes until the future is dropped.
    async fn follow(mut self, running: ReloadTargets) {
        let mut hang_ups = HangUps::listen(self.on_hang_up);
        loop {
            let asked = tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => false,
                () = hang_ups.next() => true,
            };
            let now = stamps(&self.around);
            if !asked && now == self.stamps {
                continue;
            }
            self.stamps = now;
            match self.check(&running) {
                Ok(ReloadOutcome::Same) if asked => tracing::warn!("the settings were read again: nothing has changed"),
                Ok(ReloadOutcome::Same) => {}
                Ok(ReloadOutcome::Changed { taken, left }) => {
                    let words = |keys: &BTreeSet<&str>| keys.iter().copied().collect::<Vec<_>>().join(", ");
                    if !taken.is_empty() {
                        tracing::warn!("other settings are in force: {}", words(&taken));
                        if taken.iter().any(|key| key.starts_with("network.")) {
                            log_remaining_networks(&running.engine);
                        }
                    }
                    if !left.is_empty() {
                        tracing::warn!(
                            "settings that need a restart have changed: {}; restart the server to apply them",
                            words(&left)
                        );
                    }
                }
                Err(failure) => tracing::warn!(
                    "the settings cannot be used, and those before stay in force: {}; {}",
                    failure.message,
                    failure.remedy
                ),
            }
        }
    }

    /// Reads all, checks all, and then applies all.
    fn check(&mut self, running: &ReloadTargets) -> Result<ReloadOutcome, Failure> {
        let layered = read(&self.around)?;
        let changed: BTreeSet<&'static str> = layered
            .iter()
            .filter(|(key, (value, _))| self.seen.get(*key).is_none_or(|(before, _)| before != value))
            .map(|(key, _)| *key)
            .collect();
        // All settings must be usable, also those that need a restart.
        Settings::from_layers(&layered)?;
        let (taken, left): (BTreeSet<_>, BTreeSet<_>) = changed.into_iter().partition(|key| is_live(key));
        let mut wanted = self.in_force.clone();
        wanted.extend(taken.iter().filter_map(|key| Some((*key, layered.get(key)?.clone()))));
        if !taken.is_empty() {
            let mut settings = Settings::from_layers(&wanted)?;
            settings.apply_toolset();
            let log = settings.log.clone();
            let mut ready = running.prepare(settings)?;
            let none_wait = running.engine.config().pool.parked == Some(0) && !taken.contains("pool.parked");
            if ready.parked().is_none() && none_wait {
                ready.disable_idle_sandboxes();
            }
            running.apply(ready);
            telemetry::change(&log);
        }
        (self.seen, self.in_force) = (layered, wanted);
        Ok(if taken.is_empty() && left.is_empty() {
            ReloadOutcome::Same
        } else {
            ReloadOutcome::Changed { taken, left }
        })
    }
}

/// Logs the sandboxes that keep the network that they were made with.
fn log_remaining_networks(engine: &Engine) {
    let all = engine.networked_sandboxes();
    if all.is_empty() {
        return;
    }
    let describe = |reaching: &NetworkedSandbox| {
        let (shown, more) = reaching
            .hosts
            .split_at_checked(MAX_HOSTS_LOGGED)
            .unwrap_or((&reaching.hosts, &[]));
        let more = if more.is_empty() { "" } else { ", …" };
        let word = if reaching.still_allowed {
            ""
        } else {
            " (not allowed any more)"
        };
        format!("{} {}{more}{word}", reaching.sandbox_id, shown.join(", "))
    };
    let mut words: Vec<String> = all.iter().take(MAX_SANDBOXES_LOGGED).map(describe).collect();
    if let Some(more) = all.len().checked_sub(MAX_SANDBOXES_LOGGED).filter(|more| *more > 0) {
        words.push(format!("and {more} more"));
    }
    tracing::warn!(
        "existing sandboxes keep their network until they end: {}",
        words.join("; ")
    );
}

/// The task of a reloader. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct ReloadTask(tokio::task::JoinHandle<()>);

impl Drop for ReloadTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Existing sandboxes keep the values of their creation.
fn is_live(key: &str) -> bool {
    table::find(key).is_some_and(|setting| setting.declaration.live)
}

fn stamps(around: &Surroundings) -> Vec<Stamp> {
    let files = around.files.iter().chain(&around.named_file).chain(&around.dotenv);
    files.map(PathBuf::as_path).map(stamp).collect()
}

fn stamp(file: &Path) -> Stamp {
    let meta = std::fs::metadata(file).ok()?;
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(&meta);
    #[cfg(not(unix))]
    let inode = 0;
    Some((meta.modified().ok()?, meta.len(), inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_and_folders_never_change_in_a_running_server() {
        for fixed in [
            "isolation_min",
            "limits_min",
            "backend",
            "data_dir",
            "limits.history_rows",
        ] {
            assert!(!is_live(fixed), "{fixed}");
        }
        for live in ["limits.cpus", "packages.allow", "network.deny", "quota.cpu_s", "log"] {
            assert!(is_live(live), "{live}");
        }
    }
}
