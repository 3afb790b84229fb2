//! Checks frames from the agent and delivers them.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use sandcell_sandbox::{Channel, ProcessEvent};
use tokio::sync::mpsc::error::TrySendError;

use super::AgentEnd;
use super::connection::{AgentConnection, goodbye, protocol_error};
use super::forward::{self, ConnectionEnds};
use super::streams::{Credits, ProgramStream, Stream, StreamTable};
use crate::protocol::{
    BODY_CHANNEL, Connected, Decoder, ErrorCode, Event, Frame, Kind, MAX_CONNECTIONS, OutBuffer, ProtocolError, Reply,
    WireError, channel_from_number,
};

/// The effects of a batch of frames, except changes of the table.
#[derive(Default)]
struct FrameEffects {
    credits: Credits,
    /// Programs whose events wait for room in their channel.
    stalled: Vec<u32>,
    /// Opened connections, and refused ones with their error.
    connected: Vec<(u32, Result<ConnectionEnds, WireError>)>,
    /// Streams to confirm with RESET.
    resets: Vec<u32>,
}

impl AgentConnection {
    /// Handles every whole frame that the decoder holds.
    pub(super) fn handle_frames(self: &Arc<Self>, decoder: &mut Decoder) -> Result<(), AgentEnd> {
        let mut effects = FrameEffects::default();
        {
            let mut table = self.table();
            while let Some(frame) = decoder.next_frame().map_err(protocol_error)? {
                if frame.kind == Kind::Goodbye {
                    return Err(goodbye(frame.payload));
                }
                table.frame(&frame, &mut effects).map_err(protocol_error)?;
            }
        }
        for stream in effects.stalled {
            tokio::spawn(deliver_waiting(Arc::downgrade(self), stream));
        }
        for (stream, connected) in effects.connected {
            forward::start(self, stream, connected);
        }
        for stream in effects.resets {
            self.writer.send(|out| out.reset(stream));
        }
        self.give_credit(&effects.credits);
        Ok(())
    }

    pub(super) fn give_credit(&self, credits: &Credits) {
        if !credits.is_empty() {
            let append = |out: &mut OutBuffer| {
                credits
                    .iter()
                    .for_each(|(stream, channel, amount)| out.credit(*stream, *channel, *amount))
            };
            self.writer.send(append);
        }
    }
}

/// Moves the waiting events of a program with a slow reader into its channel, as room appears.
async fn deliver_waiting(agent: Weak<AgentConnection>, stream: u32) {
    loop {
        let events = {
            let Some(agent) = agent.upgrade() else { return };
            match agent.table().streams.get(&stream) {
                Some(Stream::Program(program)) => program.events.clone(),
                _ => return,
            }
        };
        let permit = events.reserve().await;
        let Some(agent) = agent.upgrade() else { return };
        let mut credits = Credits::new();
        let more = {
            let mut table = agent.table();
            let Some(Stream::Program(program)) = table.streams.get_mut(&stream) else {
                return;
            };
            let Some((event, charge)) = program.waiting.pop_front() else {
                return;
            };
            if let Ok(permit) = permit {
                permit.send(event);
            }
            program.taken(stream, charge, &mut credits);
            !program.waiting.is_empty()
        };
        agent.give_credit(&credits);
        if !more {
            return;
        }
    }
}

impl StreamTable {
    fn frame(&mut self, frame: &Frame<'_>, effects: &mut FrameEffects) -> Result<(), ProtocolError> {
        let id = frame.stream;
        if self.abandoned.contains(&id) {
            // The agent sent the frame before it learned of the RESET.
            if frame.kind == Kind::Reset {
                self.abandoned.remove(&id);
            }
            return Ok(());
        }
        if frame.kind == Kind::Request {
            let connected = self.connected(id, frame.payload)?;
            effects.connected.push((id, connected));
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Err(ProtocolError::new(format!(
                "{:?} on stream {id}, which is not open",
                frame.kind
            )));
        };
        match frame.kind {
            Kind::Reply => self.reply(id, frame.payload),
            Kind::Data => {
                let (channel, bytes) = frame.data()?;
                stream.data(id, channel, bytes, effects)
            }
            Kind::Credit => {
                let (channel, amount) = frame.credit()?;
                match stream {
                    Stream::Write { credit, .. } if channel == BODY_CHANNEL => credit.refund(amount),
                    Stream::Program(program) => match program.credit(channel) {
                        Some(credit) => credit.refund(amount),
                        None => Err(ProtocolError::new("credit for a channel that does not exist")),
                    },
                    Stream::Connection(connection) if channel == BODY_CHANNEL => connection.credit.refund(amount),
                    _ => Err(ProtocolError::new("credit for a stream that sends nothing")),
                }
            }
            Kind::Close => stream.close(id, frame.close()?, effects),
            Kind::Event => stream.event(id, frame.payload, effects),
            Kind::Reset if matches!(stream, Stream::Connection(_)) => {
                if let Some(Stream::Connection(connection)) = self.streams.remove(&id) {
                    connection.credit.close();
                }
                effects.resets.push(id);
                Ok(())
            }
            Kind::Hello | Kind::Request | Kind::Reset | Kind::Goodbye => Err(ProtocolError::new(format!(
                "the agent may not send {:?} here",
                frame.kind
            ))),
        }
    }

    fn reply(&mut self, id: u32, payload: &[u8]) -> Result<(), ProtocolError> {
        // The requester may have been cancelled. Then the answer has no receiver.
        let stream = self.streams.remove(&id);
        match stream {
            Some(Stream::Question { answer }) => drop(answer.send(payload.to_vec())),
            Some(Stream::Write { answer, credit }) => {
                credit.close();
                drop(answer.send(payload.to_vec()));
            }
            Some(Stream::Read {
                answer,
                bytes,
                contents,
                ..
            }) => {
                drop(contents.send(bytes));
                drop(answer.send(payload.to_vec()));
            }
            Some(Stream::Program(mut program)) => {
                let Some(answer) = program.answer.take() else {
                    return Err(ProtocolError::new("a second answer to a start"));
                };
                let reply = serde_json::from_slice::<Reply<serde::de::IgnoredAny>>(payload);
                let started = matches!(reply, Ok(Reply::Ok(_)));
                if started {
                    self.streams.insert(id, Stream::Program(program));
                }
                drop(answer.send(payload.to_vec()));
            }
            Some(Stream::Port {
                answer: Some(answer),
                connections,
            }) => {
                let reply = serde_json::from_slice::<Reply<serde::de::IgnoredAny>>(payload);
                if matches!(reply, Ok(Reply::Ok(_))) {
                    let port = Stream::Port {
                        answer: None,
                        connections,
                    };
                    self.streams.insert(id, port);
                }
                drop(answer.send(payload.to_vec()));
            }
            Some(Stream::Opening { answer, connection }) => {
                let reply = serde_json::from_slice::<Reply<serde::de::IgnoredAny>>(payload);
                if matches!(reply, Ok(Reply::Ok(_))) {
                    self.streams.insert(id, Stream::Connection(connection));
                }
                drop(answer.send(payload.to_vec()));
            }
            Some(Stream::Port { answer: None, .. } | Stream::Connection(_)) => {
                return Err(ProtocolError::new("an answer without a request"));
            }
            None => {}
        }
        Ok(())
    }

    /// Opens the agent's stream for a new connection to a forwarded port.
    fn connected(&mut self, id: u32, payload: &[u8]) -> Result<Result<ConnectionEnds, WireError>, ProtocolError> {
        if !id.is_multiple_of(2) || id <= self.last_theirs {
            return Err(ProtocolError::new(format!("stream {id} cannot be opened by the agent")));
        }
        self.last_theirs = id;
        let asked: Connected =
            serde_json::from_slice(payload).map_err(|error| ProtocolError::new(format!("a bad REQUEST: {error}")))?;
        // The host's own stream decides about the target of a connection. The bytes from inside do not.
        let connections = match self.streams.get(&asked.forward) {
            Some(Stream::Port {
                answer: None,
                connections,
            }) => connections,
            // The host closed the port before it received this frame.
            None if self.abandoned.contains(&asked.forward) => {
                return Ok(Err(WireError::new(ErrorCode::NotFound, "the port is closed")));
            }
            _ => return Err(ProtocolError::new("a connection to a port that was never opened")),
        };
        let own = |stream: &&Stream| matches!(stream, Stream::Connection(found) if found.port == Some(asked.forward));
        let limit = || WireError::new(ErrorCode::Limit, "too many connections");
        if self.streams.values().filter(own).count() >= MAX_CONNECTIONS {
            return Ok(Err(limit()));
        }
        let (stream, ends, theirs) = forward::pair(Some(asked.forward));
        if connections.try_send(theirs).is_err() {
            return Ok(Err(limit()));
        }
        self.streams.insert(id, Stream::Connection(stream));
        Ok(Ok(ends))
    }
}

impl Stream {
    /// Returns the program of this stream, if it has been started.
    fn started(&mut self) -> Result<&mut ProgramStream, ProtocolError> {
        match self {
            Self::Program(program) if program.answer.is_none() => Ok(program),
            _ => Err(ProtocolError::new("a frame about a program that was not started")),
        }
    }

    fn data(&mut self, id: u32, channel: u8, data: &[u8], effects: &mut FrameEffects) -> Result<(), ProtocolError> {
        if let Self::Read {
            bytes, limit, window, ..
        } = self
        {
            if channel != BODY_CHANNEL || data.len() > limit.saturating_sub(bytes.len()) {
                return Err(ProtocolError::new("more file contents than were asked for"));
            }
            window.receive(data.len())?;
            bytes.extend_from_slice(data);
            effects
                .credits
                .extend(window.passed(data.len()).map(|amount| (id, BODY_CHANNEL, amount)));
            return Ok(());
        }
        if let Self::Connection(connection) = self {
            let arrived = connection.arrived.as_ref().filter(|_| channel == BODY_CHANNEL);
            let arrived = arrived.ok_or_else(|| ProtocolError::new("bytes on a channel that is closed"))?;
            connection.window.receive(data.len())?;
            // The receiver may have been dropped. Then the task that notices this gives the stream up.
            drop(arrived.send(Bytes::copy_from_slice(data)));
            return Ok(());
        }
        let program = self.started()?;
        let name = outward_channel(channel)?;
        let window = program.window(channel).as_mut();
        window
            .ok_or_else(|| ProtocolError::new("output on a channel that is closed"))?
            .receive(data.len())?;
        let event = ProcessEvent::Output {
            channel: name,
            bytes: Bytes::copy_from_slice(data),
        };
        program.deliver(id, event, Some((channel, data.len())), effects);
        Ok(())
    }

    fn close(&mut self, id: u32, channel: u8, effects: &mut FrameEffects) -> Result<(), ProtocolError> {
        if let Self::Connection(connection) = self {
            let open = connection.arrived.take().filter(|_| channel == BODY_CHANNEL);
            return open
                .map(drop)
                .ok_or_else(|| ProtocolError::new("a channel was closed twice"));
        }
        let program = self.started()?;
        let name = outward_channel(channel)?;
        if program.window(channel).take().is_none() {
            return Err(ProtocolError::new("a channel was closed twice"));
        }
        program.deliver(id, ProcessEvent::Closed { channel: name }, None, effects);
        Ok(())
    }

    fn event(&mut self, id: u32, payload: &[u8], effects: &mut FrameEffects) -> Result<(), ProtocolError> {
        let event =
            serde_json::from_slice(payload).map_err(|error| ProtocolError::new(format!("a bad EVENT: {error}")))?;
        let program = self.started()?;
        match event {
            Event::Exited { exit } => {
                program.ends = program
                    .ends
                    .checked_sub(1)
                    .ok_or_else(|| ProtocolError::new("a program ended twice"))?;
                program.deliver(id, ProcessEvent::Exited { exit }, None, effects);
            }
            Event::Refused { channel } => match program.credit(channel) {
                Some(credit) => credit.close(),
                None => return Err(ProtocolError::new("a channel that does not exist was refused")),
            },
        }
        Ok(())
    }
}

impl ProgramStream {
    /// Hands an event to the program's reader, or keeps it until the channel has room.
    fn deliver(&mut self, id: u32, event: ProcessEvent, charge: Option<(u8, usize)>, effects: &mut FrameEffects) {
        if !self.waiting.is_empty() {
            self.waiting.push_back((event, charge));
            return;
        }
        match self.events.try_send(event) {
            // A dropped reader counts as one that takes everything.
            Ok(()) | Err(TrySendError::Closed(_)) => self.taken(id, charge, &mut effects.credits),
            Err(TrySendError::Full(event)) => {
                self.waiting.push_back((event, charge));
                effects.stalled.push(id);
            }
        }
    }

    /// Counts bytes as taken. They are in the reader's bounded channel.
    fn taken(&mut self, id: u32, charge: Option<(u8, usize)>, credits: &mut Credits) {
        if let Some((channel, bytes)) = charge
            && let Some(amount) = self.window(channel).as_mut().and_then(|window| window.passed(bytes))
        {
            credits.push((id, channel, amount));
        }
    }
}

fn outward_channel(channel: u8) -> Result<Channel, ProtocolError> {
    match channel_from_number(channel) {
        Some(name @ (Channel::Stdout | Channel::Stderr | Channel::Control)) => Ok(name),
        Some(Channel::Stdin) | None => Err(ProtocolError::new(format!("output on channel {channel}"))),
    }
}
