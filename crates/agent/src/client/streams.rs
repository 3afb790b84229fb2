//! The open streams, and the frames that each permits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use sandcell_sandbox::{Channel, Connection, ProcessEvent, SandboxError};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::AgentEnd;
use crate::protocol::{INITIAL_WINDOW, ProtocolError, ReceiveWindow, cost};

/// The maximum number of streams that were given up and not confirmed yet. With more, the agent does not answer on
/// purpose.
pub(super) const MAX_ABANDONED: usize = 65_536;

/// The capacity of a program's event channel. Together with the windows, one program makes the host hold at most about
/// 2 MiB.
pub(super) const EVENT_CAPACITY: usize = 16;

/// CREDIT frames to send after a batch of frames: stream, channel, amount.
pub(super) type Credits = Vec<(u32, u8, u32)>;

/// The payload of a REPLY.
pub(super) type Answer = oneshot::Sender<Vec<u8>>;

#[derive(Debug, Default)]
pub(super) struct StreamTable {
    pub(super) streams: BTreeMap<u32, Stream>,
    pub(super) abandoned: BTreeSet<u32>,
    /// The last id that this side used.
    last: Option<u32>,
    /// The last id that the agent used.
    pub(super) last_theirs: u32,
    pub(super) end: Option<AgentEnd>,
}

impl StreamTable {
    /// Returns the id for a new stream. None if all two thousand million ids were used.
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
    /// A forwarded port.
    Port {
        /// Some until the agent has answered.
        answer: Option<Answer>,
        connections: mpsc::Sender<Box<dyn Connection>>,
    },
    /// A connection to a forwarded port, or to a port inside.
    Connection(ConnectionStream),
    /// A connection that the host has asked for.
    Opening {
        answer: Answer,
        connection: ConnectionStream,
    },
}

/// A connection.
#[derive(Debug)]
pub(super) struct ConnectionStream {
    /// The stream of the forwarded port. None: the host opened the connection.
    pub(super) port: Option<u32>,
    /// Receives the bytes from inside. None after end of file. The window bounds the queue.
    pub(super) arrived: Option<mpsc::UnboundedSender<Bytes>>,
    pub(super) window: ReceiveWindow,
    pub(super) credit: Arc<Credit>,
}

/// The receiving side's state of a program.
#[derive(Debug)]
pub(super) struct ProgramStream {
    /// Some until the agent has answered the start.
    pub(super) answer: Option<Answer>,
    pub(super) events: mpsc::Sender<ProcessEvent>,
    /// Events without room in the channel. A task moves them when there is room. The windows bound them.
    pub(super) waiting: VecDeque<(ProcessEvent, Option<(u8, usize)>)>,
    pub(super) stdout: Option<ReceiveWindow>,
    pub(super) stderr: Option<ReceiveWindow>,
    pub(super) control: Option<ReceiveWindow>,
    /// The permitted number of further `exited` events: one, and one for each heir that was asked for.
    pub(super) ends: u32,
    pub(super) stdin: Option<Arc<Credit>>,
    pub(super) control_in: Option<Arc<Credit>>,
}

impl ProgramStream {
    /// Returns the window of an outward channel. None if it is closed or does not exist.
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

/// The remaining credit of a channel. Waiting for it is fair.
#[derive(Debug)]
pub(super) struct Credit {
    left: Semaphore,
    spent: AtomicU32,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            left: Semaphore::new(usize::try_from(INITIAL_WINDOW).unwrap_or(0)),
            spent: AtomicU32::new(0),
        }
    }
}

impl Credit {
    /// Waits until a frame with this number of bytes may be sent. Returns false when the other side takes no more.
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

    /// Adds credit that the other side returned.
    pub(super) fn refund(&self, amount: u32) -> Result<(), ProtocolError> {
        let subtract = |spent: u32| spent.checked_sub(amount);
        if self
            .spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract)
            .is_err()
        {
            return Err(ProtocolError::new("more credit than was spent"));
        }
        self.left.add_permits(usize::try_from(amount).unwrap_or(0));
        Ok(())
    }

    /// Wakes all waiting senders, since the other side takes no more bytes.
    pub(super) fn close(&self) {
        self.left.close();
    }
}

/// Returns the error for bytes on a channel that this side has closed.
pub(super) fn closed_channel_error(channel: Channel) -> SandboxError {
    SandboxError::Setup {
        step: format!("write to {channel:?} after it was closed"),
        source: std::io::Error::from(std::io::ErrorKind::BrokenPipe),
    }
}
