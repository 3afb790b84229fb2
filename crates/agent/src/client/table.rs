//! The streams that are open, and what may come on each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use sandcell_sandbox::{Connection, ProcessEvent};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::AgentEnd;
use crate::protocol::{Breach, ReceiveWindow, WINDOW, cost};

/// Streams that were given up and not confirmed yet. More than this, and the agent does not answer on purpose.
pub(super) const MAX_ABANDONED: usize = 65_536;

/// The payload of a REPLY.
pub(super) type Answer = oneshot::Sender<Vec<u8>>;

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) streams: BTreeMap<u32, Stream>,
    pub(super) abandoned: BTreeSet<u32>,
    /// The id that was used last.
    last: Option<u32>,
    /// The id that the agent has used last.
    pub(super) last_theirs: u32,
    pub(super) end: Option<AgentEnd>,
}

impl Table {
    /// A new stream's id. None: all two thousand million of them were used.
    pub(super) fn fresh_id(&mut self) -> Option<u32> {
        let id = self.last.map_or(Some(1), |last| last.checked_add(2))?;
        self.last = Some(id);
        Some(id)
    }
}

#[derive(Debug)]
pub(super) enum Stream {
    /// Waits for its REPLY only.
    Question { answer: Answer },
    /// Gets file contents, then its REPLY.
    Read {
        answer: Answer,
        bytes: Vec<u8>,
        limit: usize,
        window: ReceiveWindow,
        contents: oneshot::Sender<Vec<u8>>,
    },
    /// Sends file contents and gets a REPLY.
    Write { answer: Answer, credit: Arc<Credit> },
    /// A program.
    Program(Box<ProgramStream>),
    /// A port inside that leads here.
    Port {
        /// Some until it was answered.
        answer: Option<Answer>,
        connections: mpsc::Sender<Box<dyn Connection>>,
    },
    /// A connection to such a port.
    Connection(ConnectionStream),
}

/// A connection to a forwarded port.
#[derive(Debug)]
pub(super) struct ConnectionStream {
    pub(super) port: u32,
    /// Takes what comes from inside, until its end was told. What waits is bounded by the window.
    pub(super) arrived: Option<mpsc::UnboundedSender<Bytes>>,
    pub(super) window: ReceiveWindow,
    pub(super) credit: Arc<Credit>,
}

/// A program as the receiving side sees it.
#[derive(Debug)]
pub(super) struct ProgramStream {
    /// Some until the start was answered.
    pub(super) answer: Option<Answer>,
    pub(super) events: mpsc::Sender<ProcessEvent>,
    /// Events that the channel had no room for; a task moves them on when it has. Bounded by the windows.
    pub(super) waiting: VecDeque<(ProcessEvent, Option<(u8, usize)>)>,
    pub(super) stdout: Option<ReceiveWindow>,
    pub(super) stderr: Option<ReceiveWindow>,
    pub(super) control: Option<ReceiveWindow>,
    /// How often its end may still be told: once, and once for each heir that was asked for.
    pub(super) ends: u32,
    pub(super) stdin: Option<Arc<Credit>>,
    pub(super) control_in: Option<Arc<Credit>>,
}

impl ProgramStream {
    /// The window of a channel outwards; None if it is closed or does not exist.
    pub(super) fn window(&mut self, channel: u8) -> &mut Option<ReceiveWindow> {
        match channel {
            1 => &mut self.stdout,
            2 => &mut self.stderr,
            _ => &mut self.control,
        }
    }

    pub(super) fn credit(&self, channel: u8) -> Option<&Arc<Credit>> {
        match channel {
            0 => self.stdin.as_ref(),
            3 => self.control_in.as_ref(),
            _ => None,
        }
    }
}

/// What may still be sent on a channel. Waiting for it is fair.
#[derive(Debug)]
pub(super) struct Credit {
    left: Semaphore,
    spent: AtomicU32,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            left: Semaphore::new(usize::try_from(WINDOW).unwrap_or(0)),
            spent: AtomicU32::new(0),
        }
    }
}

impl Credit {
    /// Waits until a frame of that many bytes may be sent. False when the other side takes no more.
    pub(super) async fn spend(&self, bytes: usize) -> bool {
        let cost = cost(bytes);
        match self.left.acquire_many(cost).await {
            Ok(permit) => {
                permit.forget();
                self.spent.fetch_add(cost, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes credit that came back.
    pub(super) fn refund(&self, amount: u32) -> Result<(), Breach> {
        let subtract = |spent: u32| spent.checked_sub(amount);
        if self
            .spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract)
            .is_err()
        {
            return Err(Breach::new("more credit than was spent"));
        }
        self.left.add_permits(usize::try_from(amount).unwrap_or(0));
        Ok(())
    }

    /// The other side takes no more: whoever waits is let go.
    pub(super) fn close(&self) {
        self.left.close();
    }
}
