//! Monitors the launcher's life: detects its end and its silence, and ends it.

use std::os::fd::{AsRawFd, RawFd};

use sandcell_jail::launcher::{Activity, Exit};
use tokio::io::unix::AsyncFd;
use tokio::time::MissedTickBehavior;

use super::*;
use crate::native::liveness::{Judgement, LOOK_INTERVAL, Liveness};

/// The number of a signal.
const SIGKILL: i32 = 9;
/// The time a killed launcher has to die. After that its descendants are killed one by one.
const DEATH_DEADLINE: Duration = Duration::from_millis(300);
/// A launcher that is asked to end is killed if this many looks in a row show no activity.
const IDLE_LOOKS: u32 = 3;

/// The process' descriptor, which reports its end.
struct WatchedLauncher(Arc<Conversation>);

impl AsRawFd for WatchedLauncher {
    fn as_raw_fd(&self) -> RawFd {
        self.0.process.end().as_raw_fd()
    }
}

impl Conversation {
    pub(super) fn expect_word(&self) {
        if !self.owes.swap(true, Ordering::AcqRel) {
            self.asked.notify_one();
        }
    }

    /// Returns true if an answer of the launcher is due.
    fn owes_anything(&self) -> bool {
        let waits = |entry: &Entry| {
            matches!(*entry.stage.borrow(), Stage::Making)
                || !(entry.usage.is_empty() && entry.attaching.is_empty() && entry.entering.is_empty())
        };
        self.owes.load(Ordering::Acquire) || lock(&self.jails).values().any(waits)
    }

    /// Describes, as the end of a sentence, the origin of a signal that killed a process of this server's group.
    pub(super) fn killer(&self, signal: i32) -> &'static str {
        match lock(&self.kills).any() {
            Some(true) if signal == SIGKILL => ": the kernel's, because memory ran out",
            Some(_) | None => ", from outside",
        }
    }

    /// Records that the launcher is gone, and every sandbox with it.
    pub(super) fn lost(&self, reason: EndReason) {
        let reason = self.sentence.get().copied().unwrap_or(reason);
        let over = |health: &mut Health| {
            let first = !matches!(health, Health::Over(_));
            if first {
                *health = Health::Over(reason);
            }
            first
        };
        if !self.health.send_if_modified(over) {
            return;
        }
        let ended = Stage::Ended(Ended { reason });
        for (_, entry) in lock(&self.jails).drain() {
            entry.stage.send_replace(ended.clone());
        }
    }

    /// Kills the launcher and all that it made. It may hang in a state that no signal reaches.
    pub(in crate::native) async fn destroy(&self, reason: EndReason) {
        let _ = self.sentence.set(reason);
        let _ = self.process.kill();
        if timeout(DEATH_DEADLINE, self.is_reaped()).await.is_err() {
            self.process.kill_descendants();
        }
        self.lost(reason);
    }

    /// Waits until its process has ended.
    pub(in crate::native) async fn is_reaped(&self) {
        let mut reaped = self.reaped.subscribe();
        let _ = reaped.wait_for(|reaped| *reaped).await;
    }

    /// Returns the health of the launcher.
    pub(in crate::native) fn health(&self) -> Health {
        *self.health.borrow()
    }

    /// Waits until it is gone.
    pub(in crate::native) async fn over(&self) {
        let mut health = self.health.subscribe();
        let _ = health.wait_for(|health| matches!(health, Health::Over(_))).await;
    }

    /// Returns true if the launcher ended or is doubted. Call it after a request failed; waits briefly, since its end
    /// may not be known yet.
    pub(in crate::native) async fn is_lost(&self) -> bool {
        timeout(DEATH_DEADLINE, self.unfit()).await.is_ok()
    }

    /// Returns true if the launcher ended on request and so left nothing behind.
    pub(in crate::native) fn ended_by_itself(&self) -> bool {
        matches!(self.health(), Health::Over(EndReason::LauncherLost))
    }

    /// Waits until it is doubted or gone, and returns its health.
    pub(in crate::native) async fn unfit(&self) -> Health {
        let mut health = self.health.subscribe();
        let found = health.wait_for(|health| *health != Health::Well).await;
        found.map_or(Health::Over(EndReason::LauncherLost), |health| *health)
    }

    /// Closes the stream. The launcher notices, removes every sandbox and exits; we see its exit.
    pub(in crate::native) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Closes the stream and waits until the launcher has removed everything and ended. An inactive launcher is killed;
    /// a slow one has much to remove.
    pub(in crate::native) async fn end(&self) {
        self.hang_up();
        tokio::select! {
            () = self.is_reaped() => {}
            () = self.stands_still(IDLE_LOOKS) => self.destroy(EndReason::LauncherStuck).await,
        }
    }

    /// Waits until `looks` looks in a row find the launcher waiting or stopped, without any activity since the previous
    /// look.
    pub(super) async fn stands_still(&self, looks: u32) {
        let mut interval = tokio::time::interval(LOOK_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last, mut same) = (None, 0);
        while same < looks {
            interval.tick().await;
            let found = self.process.activity();
            let rests = matches!(found, Some(Activity::Stopped | Activity::Waits { .. }));
            same = if rests && found == last { same + 1 } else { 0 };
            last = found;
        }
    }
}

/// Receives the launcher's messages until it has ended.
pub(super) async fn listen(conversation: Weak<Conversation>, mut buffer: Vec<u8>) {
    // The strong reference lives only while it waits for a message; closing the stream wakes this task through the
    // socket.
    while let Some(conversation) = conversation.upgrade() {
        match conversation.receive(&mut buffer).await {
            Ok(Some((message, descriptors))) => conversation.take(message, descriptors),
            // A temporary shortage in this process, or an unreadable message, must not cost every sandbox.
            Err(error) if !wire::is_gone(&error) => {
                tracing::warn!(%error, "a message of the launcher could not be taken");
                tokio::time::sleep(TAKE_AGAIN).await;
            }
            // The launcher's end states the reason.
            Ok(None) | Err(_) => return,
        }
    }
}

/// Waits for the launcher's end.
pub(super) async fn reap(conversation: Arc<Conversation>) {
    #[expect(
        deprecated,
        reason = "what takes its place is unsafe, which this crate forbids; the number stays the same descriptor's, since \
                  `Watched` holds the conversation that owns it"
    )]
    let watched = AsyncFd::with_interest(WatchedLauncher(Arc::clone(&conversation)), Interest::READABLE);
    match &watched {
        Ok(watched) => drop(watched.readable().await),
        // epoll accepts no more files, so the process is polled.
        Err(_) => {
            while !conversation.process.has_ended() {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        }
    }
    let exit = conversation.process.wait();
    conversation.reaped.send_replace(true);
    let reason = match exit {
        Ok(Exit::Signal(SIGKILL)) if lock(&conversation.kills).any() == Some(true) => EndReason::LauncherOutOfMemory,
        Ok(Exit::Signal(_)) => EndReason::LauncherKilled,
        Ok(Exit::Code(_)) | Err(_) => EndReason::LauncherLost,
    };
    conversation.lost(reason);
}

/// Monitors a launcher that owes an answer (see [`Liveness`]).
pub(super) async fn attend(conversation: Weak<Conversation>) {
    let mut liveness = Liveness::default();
    loop {
        let Some(now) = conversation.upgrade() else { return };
        if matches!(now.health(), Health::Over(_)) {
            return;
        }
        let given_up = now.health() == Health::Doubted && lock(&now.jails).is_empty();
        if given_up {
            now.hang_up();
        }
        if !given_up && !now.owes_anything() {
            liveness = Liveness::default();
            tokio::select! {
                () = now.asked.notified() => {}
                _ = now.is_reaped() => return,
            }
        }
        drop(now);
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Some(now) = conversation.upgrade() else { return };
        let heard = now.heard.swap(false, Ordering::AcqRel);
        match liveness.look(heard, || now.process.activity()) {
            Judgement::Fine => {}
            Judgement::Ask => {
                let _ = wire::send(now.socket.as_fd(), &ToLauncher::Ping {}, &[]);
            }
            Judgement::Doubt => {
                let doubt = |health: &mut Health| {
                    let well = *health == Health::Well;
                    if well {
                        *health = Health::Doubted;
                    }
                    well
                };
                if now.health.send_if_modified(doubt) {
                    tracing::warn!("the launcher of sandboxes does not answer; another one is started for new ones");
                }
            }
            Judgement::Stuck => {
                tracing::warn!("the launcher of sandboxes hangs and is ended; its sandboxes are lost");
                now.destroy(EndReason::LauncherStuck).await;
            }
        }
    }
}
