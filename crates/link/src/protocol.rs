//! The messages of a link, and the state of each end. No I/O.

use std::collections::VecDeque;
use std::time::Duration;

use snow::{Builder, HandshakeState, TransportState};

use crate::Key;

/// The cryptographic protocol: fresh keys for each connection, and a common secret that proves both ends.
const NOISE_PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The first part of the text that both ends mix into their handshake. The name of the sandbox follows.
const PROTOCOL_NAME: &str = "sandcell-link-1";
/// The bytes of a handshake message: a public key and a tag.
const HANDSHAKE_BYTES: usize = 48;
/// The bytes that encryption adds.
const TAG_BYTES: usize = 16;
/// The most bytes of a stream in one message.
const MAX_DATA_BYTES: usize = 16 << 10;
/// The most bytes of an encrypted message.
const MAX_MESSAGE_BYTES: usize = MAX_DATA_BYTES + 1 + TAG_BYTES;
/// The most bytes that one end has sent and the other has not consumed.
pub const WINDOW_BYTES: usize = 1 << 20;
/// With this many encrypted bytes waiting for the connection, no more are made.
const MAX_OUTGOING_BYTES: usize = 128 << 10;
/// After this many consumed bytes the peer is told at once.
const ACK_BYTES: u64 = 64 << 10;
/// The time after which the peer is told of fewer.
pub const ACK_DELAY: Duration = Duration::from_millis(20);
/// The time without a message of ours after which the peer gets one.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The time without a message of the peer after which a connection counts as broken.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// The time limit for a handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

const RESUME: u8 = 1;
const DATA: u8 = 2;
const ACK: u8 = 3;
const PING: u8 = 4;
const CLOSE: u8 = 5;
const REFUSED: u8 = 6;

/// The identity of a link: the host chooses it, and an agent serves one.
pub type LinkId = [u8; 16];

/// The reason why a connection cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The peer does not know the key, means another sandbox, or is no end of a link.
    #[error("the other side did not prove that it knows the key")]
    WrongKey,
    /// A message has an impossible length, kind or number.
    #[error("the other side broke the link's protocol")]
    Violation,
}

/// A handshake in progress.
#[derive(Debug)]
pub struct Handshake(Box<HandshakeState>);

impl Handshake {
    /// Begins a handshake. `sandbox` is the name of the sandbox that both ends mean.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn new(key: &Key, sandbox: &str, is_host: bool) -> Result<Self, ProtocolError> {
        let pattern = NOISE_PATTERN.parse().map_err(|_| ProtocolError::Violation)?;
        let prologue = format!("{PROTOCOL_NAME}\n{sandbox}");
        let builder = Builder::new(pattern)
            .prologue(prologue.as_bytes())
            .and_then(|builder| builder.psk(0, key.bytes()))
            .map_err(|_| ProtocolError::Violation)?;
        let state = if is_host {
            builder.build_initiator()
        } else {
            builder.build_responder()
        };
        Ok(Self(Box::new(state.map_err(|_| ProtocolError::Violation)?)))
    }

    /// Returns this end's message with its length.
    ///
    /// # Errors
    /// It is not this end's turn.
    pub fn write(&mut self) -> Result<Vec<u8>, ProtocolError> {
        let mut message = [0; HANDSHAKE_BYTES];
        let written = self.0.write_message(&[], &mut message);
        let written = written.map_err(|_| ProtocolError::Violation)?;
        Ok(with_length(message.get(..written).unwrap_or_default()))
    }

    /// Takes the peer's message out of `received`; returns false if it is not whole yet.
    ///
    /// # Errors
    /// The peer does not know the key.
    pub fn read(&mut self, received: &mut Vec<u8>) -> Result<bool, ProtocolError> {
        let message = match take_message(received, HANDSHAKE_BYTES) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(false),
            Err(_) => return Err(ProtocolError::WrongKey),
        };
        let mut payload = [0; HANDSHAKE_BYTES];
        let read = self.0.read_message(&message, &mut payload);
        read.map(|_| true).map_err(|_| ProtocolError::WrongKey)
    }

    /// Returns the connection after both messages.
    ///
    /// # Errors
    /// A message is missing.
    pub fn finish(self) -> Result<Connection, ProtocolError> {
        let noise = self.0.into_transport_mode().map_err(|_| ProtocolError::Violation)?;
        Ok(Connection {
            noise: Box::new(noise),
            received: Vec::new(),
            outgoing: VecDeque::new(),
            resumed_at: None,
        })
    }
}

fn with_length(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    bytes
}

/// Takes a whole message out of `received`.
fn take_message(received: &mut Vec<u8>, most: usize) -> Result<Option<Vec<u8>>, ProtocolError> {
    let Some(length) = received.first_chunk::<2>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes(*length));
    if length == 0 || length > most {
        return Err(ProtocolError::Violation);
    }
    let Some(message) = received.get(2..2 + length).map(<[u8]>::to_vec) else {
        return Ok(None);
    };
    received.drain(..2 + length);
    Ok(Some(message))
}

/// The state of the two streams at one end. It outlives connections.
#[derive(Debug)]
pub struct Streams {
    id: LinkId,
    /// Bytes that the peer has not consumed yet. The first one has the number `consumed_by_peer`.
    unconsumed: VecDeque<u8>,
    consumed_by_peer: u64,
    /// Bytes of the peer that the local side has not taken yet.
    incoming: VecDeque<u8>,
    /// The number of bytes received in all, and of those that the local side has taken.
    received: u64,
    consumed: u64,
    /// The last `consumed` that the peer was told.
    told: u64,
}

impl Streams {
    /// Creates the streams of a link.
    #[must_use]
    pub const fn new(id: LinkId) -> Self {
        Self {
            id,
            unconsumed: VecDeque::new(),
            consumed_by_peer: 0,
            incoming: VecDeque::new(),
            received: 0,
            consumed: 0,
            told: 0,
        }
    }

    /// Returns the link's identity.
    #[must_use]
    pub const fn id(&self) -> LinkId {
        self.id
    }

    /// Returns the number of bytes that can be sent now.
    #[must_use]
    pub fn room(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.unconsumed.len())
    }

    /// Sends bytes of the local side, at most [`Streams::room`].
    pub fn send(&mut self, bytes: &[u8]) {
        self.unconsumed.extend(bytes);
    }

    /// Returns bytes for the local side; empty if there are none.
    #[must_use]
    pub fn incoming(&self) -> &[u8] {
        self.incoming.as_slices().0
    }

    /// Records that the local side has taken this many bytes.
    pub fn take(&mut self, count: usize) {
        self.incoming.drain(..count.min(self.incoming.len()));
        self.consumed = self.consumed.saturating_add(u64::try_from(count).unwrap_or(0));
    }

    /// Returns true if the peer should be told of consumed bytes.
    #[must_use]
    pub const fn owes_ack(&self) -> bool {
        self.consumed != self.told
    }

    /// Records that the peer has consumed this many bytes in all.
    fn are_consumed(&mut self, consumed: u64) -> Result<(), ProtocolError> {
        let newly = consumed
            .checked_sub(self.consumed_by_peer)
            .ok_or(ProtocolError::Violation)?;
        let newly = usize::try_from(newly).map_err(|_| ProtocolError::Violation)?;
        if newly > self.unconsumed.len() {
            return Err(ProtocolError::Violation);
        }
        self.unconsumed.drain(..newly);
        self.consumed_by_peer = consumed;
        Ok(())
    }

    /// Returns true if everything was sent and consumed.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.unconsumed.is_empty()
    }
}

/// How far a peer is in the stream to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    received: u64,
    consumed: u64,
}

/// A message of the peer that the owner of the link must handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The peer states its link and its position in the stream to it. If the link is right, [`Connection::resume_at`] must follow.
    Resumes(LinkId, Position),
    /// The peer closes the link.
    Closed,
    /// The agent serves another link.
    Refused,
}

/// One connection after its handshake.
#[derive(Debug)]
pub struct Connection {
    noise: Box<TransportState>,
    received: Vec<u8>,
    /// Encrypted bytes for the connection.
    outgoing: VecDeque<u8>,
    /// The number of the next byte to send. None before the peer has said what it received.
    resumed_at: Option<u64>,
}

impl Connection {
    /// Tells the peer which link this is, and what was received and consumed of it.
    ///
    /// # Errors
    /// The connection is used up.
    pub fn resume(&mut self, streams: &mut Streams) -> Result<(), ProtocolError> {
        let mut message = vec![RESUME];
        message.extend_from_slice(&streams.id);
        message.extend_from_slice(&streams.received.to_be_bytes());
        // What an earlier connection said of it may not have arrived.
        message.extend_from_slice(&streams.consumed.to_be_bytes());
        self.put(&message)?;
        streams.told = streams.consumed;
        Ok(())
    }

    /// Continues to send after the bytes that the peer has received.
    ///
    /// # Errors
    /// The peer can neither miss what it consumed nor have what was not sent.
    pub fn resume_at(&mut self, streams: &mut Streams, peer: Position) -> Result<(), ProtocolError> {
        let unconsumed = u64::try_from(streams.unconsumed.len()).unwrap_or(u64::MAX);
        let sent = streams.consumed_by_peer.saturating_add(unconsumed);
        if peer.received > sent || peer.consumed > peer.received {
            return Err(ProtocolError::Violation);
        }
        streams.are_consumed(peer.consumed)?;
        self.resumed_at = Some(peer.received);
        Ok(())
    }

    /// Tells a host that the agent serves another link.
    ///
    /// # Errors
    /// The connection is used up.
    pub fn refuse(&mut self) -> Result<(), ProtocolError> {
        self.put(&[REFUSED])
    }

    /// Shows the peer that this end lives.
    ///
    /// # Errors
    /// The connection is used up.
    pub fn ping(&mut self) -> Result<(), ProtocolError> {
        self.put(&[PING])
    }

    /// Tells the peer how much the local side has consumed. `now` is true when the delay for few bytes is over.
    ///
    /// # Errors
    /// The connection is used up.
    pub fn acknowledge(&mut self, streams: &mut Streams, now: bool) -> Result<(), ProtocolError> {
        let untold = streams.consumed.saturating_sub(streams.told);
        if untold == 0 || (untold < ACK_BYTES && !now) {
            return Ok(());
        }
        let mut message = vec![ACK];
        message.extend_from_slice(&streams.consumed.to_be_bytes());
        self.put(&message)?;
        streams.told = streams.consumed;
        Ok(())
    }

    /// Tells the peer that the link closes.
    ///
    /// # Errors
    /// The connection is used up.
    pub fn close(&mut self) -> Result<(), ProtocolError> {
        self.put(&[CLOSE])
    }

    /// Encrypts what can be sent now.
    ///
    /// # Errors
    /// The connection is used up.
    pub fn fill(&mut self, streams: &Streams) -> Result<(), ProtocolError> {
        let Some(mut next) = self.resumed_at else {
            return Ok(());
        };
        while self.outgoing.len() < MAX_OUTGOING_BYTES {
            let skip = usize::try_from(next.saturating_sub(streams.consumed_by_peer)).unwrap_or(usize::MAX);
            let count = streams.unconsumed.len().saturating_sub(skip).min(MAX_DATA_BYTES);
            if count == 0 {
                break;
            }
            let mut message = Vec::with_capacity(count + 1);
            message.push(DATA);
            message.extend(streams.unconsumed.range(skip..skip + count));
            self.put(&message)?;
            next = next.saturating_add(u64::try_from(count).unwrap_or(0));
            self.resumed_at = Some(next);
        }
        Ok(())
    }

    /// Returns true if the peer has named its link.
    #[must_use]
    pub const fn is_resumed(&self) -> bool {
        self.resumed_at.is_some()
    }

    /// Returns encrypted bytes for the connection; empty if there are none.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.as_slices().0
    }

    /// Records that the connection has taken this many bytes.
    pub fn written(&mut self, count: usize) {
        self.outgoing.drain(..count.min(self.outgoing.len()));
    }

    /// Takes bytes of the connection. The first notice ends the call, and the next call continues, also without bytes.
    ///
    /// # Errors
    /// The peer broke the protocol. The connection cannot be used any more.
    pub fn read(&mut self, bytes: &[u8], streams: &mut Streams) -> Result<Option<Notice>, ProtocolError> {
        self.received.extend_from_slice(bytes);
        while let Some(message) = take_message(&mut self.received, MAX_MESSAGE_BYTES)? {
            let mut plain = vec![0; message.len()];
            let length = self
                .noise
                .read_message(&message, &mut plain)
                .map_err(|_| ProtocolError::Violation)?;
            let notice = self.take(plain.get(..length).unwrap_or_default(), streams)?;
            if notice.is_some() {
                return Ok(notice);
            }
        }
        Ok(None)
    }

    fn take(&mut self, plain: &[u8], streams: &mut Streams) -> Result<Option<Notice>, ProtocolError> {
        let (kind, rest) = plain.split_first().ok_or(ProtocolError::Violation)?;
        match *kind {
            RESUME if self.resumed_at.is_none() => {
                let (id, numbers) = rest
                    .split_at_checked(size_of::<LinkId>())
                    .ok_or(ProtocolError::Violation)?;
                let id = LinkId::try_from(id).map_err(|_| ProtocolError::Violation)?;
                let (received, consumed) = numbers
                    .split_at_checked(size_of::<u64>())
                    .ok_or(ProtocolError::Violation)?;
                let peer = Position {
                    received: read_number(received)?,
                    consumed: read_number(consumed)?,
                };
                Ok(Some(Notice::Resumes(id, peer)))
            }
            REFUSED if self.resumed_at.is_none() => Ok(Some(Notice::Refused)),
            DATA if self.resumed_at.is_some() => {
                if streams.incoming.len().saturating_add(rest.len()) > WINDOW_BYTES {
                    return Err(ProtocolError::Violation);
                }
                streams.incoming.extend(rest);
                streams.received = streams.received.saturating_add(u64::try_from(rest.len()).unwrap_or(0));
                Ok(None)
            }
            ACK if self.resumed_at.is_some() => {
                let consumed = read_number(rest)?;
                // Only what this connection or one before it has sent can have been consumed.
                if self.resumed_at.is_some_and(|next| consumed > next) {
                    return Err(ProtocolError::Violation);
                }
                streams.are_consumed(consumed)?;
                Ok(None)
            }
            PING => Ok(None),
            CLOSE if self.resumed_at.is_some() => Ok(Some(Notice::Closed)),
            _ => Err(ProtocolError::Violation),
        }
    }

    /// Encrypts a message for the connection.
    fn put(&mut self, plain: &[u8]) -> Result<(), ProtocolError> {
        let mut message = vec![0; plain.len() + TAG_BYTES];
        let written = self.noise.write_message(plain, &mut message);
        let written = written.map_err(|_| ProtocolError::Violation)?;
        self.outgoing
            .extend(with_length(message.get(..written).unwrap_or_default()));
        Ok(())
    }
}

fn read_number(bytes: &[u8]) -> Result<u64, ProtocolError> {
    <[u8; 8]>::try_from(bytes)
        .map(u64::from_be_bytes)
        .map_err(|_| ProtocolError::Violation)
}
