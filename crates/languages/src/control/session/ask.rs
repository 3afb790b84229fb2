//! Requests to a driver between two cells: to list variables, to preload modules and to add environment variables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{
    Channel, EndReason, NotLoaded, OutputStream, ProcessEvent, SandboxError, SessionError, SessionEvent, Variable,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::{DriverSession, Frame, PreloadedModules, encode};

/// The deadline of the listing of variables.
const LIST_MAX: Duration = Duration::from_secs(5);
/// The deadline for loading all requested modules.
const PRELOAD_MAX: Duration = Duration::from_secs(120);
/// The deadline for setting environment variables.
const ENVIRONMENT_MAX: Duration = Duration::from_secs(5);
/// The maximum kept bytes of each stream between two cells.
const LATE_KEPT: usize = 256 << 10;
/// Output between two cells is complete after a pause of `LATE_QUIET`. Output after `LATE_MAX` belongs to the next
/// cell.
const LATE_QUIET: Duration = Duration::from_millis(1);
const LATE_MAX: Duration = Duration::from_millis(20);

/// The output to one stream between two cells.
#[derive(Debug, Default)]
pub(super) struct Late {
    bytes: Vec<u8>,
    dropped: usize,
}

impl Late {
    fn push(&mut self, bytes: &[u8]) {
        let (kept, rest) = bytes.split_at(bytes.len().min(LATE_KEPT - self.bytes.len()));
        self.bytes.extend_from_slice(kept);
        self.dropped += rest.len();
    }

    fn take(&mut self) -> Option<Bytes> {
        let mut late = std::mem::take(self);
        if late.dropped > 0 {
            late.bytes
                .extend_from_slice(format!("\n[{} more bytes were not kept]\n", late.dropped).as_bytes());
        }
        (!late.bytes.is_empty()).then(|| late.bytes.into())
    }
}

impl DriverSession {
    /// Returns the variables; none if the session is over.
    pub(super) async fn list_variables(&mut self) -> Result<Vec<Variable>, SessionError> {
        let question = json!({"type": "variables"});
        let answer = |nonce: &str, frame| match frame {
            Frame::Variables { nonce: of, variables } if of == nonce => Some(variables),
            _ => None,
        };
        let listed = self.ask(question, LIST_MAX, answer).await?;
        Ok(listed.unwrap_or_default())
    }

    /// Loads modules; returns those that could not be loaded. Without modules it only runs the warm-up cell.
    pub(super) async fn load_modules(&mut self, modules: &[String]) -> Result<Vec<NotLoaded>, SessionError> {
        let modules: Vec<String> = modules
            .iter()
            .filter(|name| !self.preloaded.asked.contains(name))
            .cloned()
            .collect();
        if !self.link.handed_over {
            return Ok(Vec::new());
        }
        self.ask_to_load(&modules).await
    }

    /// The same, without the check whether it is needed.
    pub(super) async fn ask_to_load(&mut self, modules: &[String]) -> Result<Vec<NotLoaded>, SessionError> {
        let question = json!({"type": "preload", "modules": modules});
        let answer = |nonce: &str, frame| match frame {
            Frame::Preloaded {
                nonce: of,
                missing,
                loaded,
            } if of == nonce => Some((missing, loaded)),
            _ => None,
        };
        let ended = || SessionError::Protocol("it ended while modules were loaded ahead".to_owned());
        let (missing, loaded) = self.ask(question, PRELOAD_MAX, answer).await?.ok_or_else(ended)?;
        if !modules.is_empty() {
            let is_missing = |name: &String| missing.iter().any(|missing| missing.name == *name);
            let asked = self.preloaded.asked.iter().chain(modules);
            self.preloaded = Arc::new(PreloadedModules {
                asked: asked.filter(|name| !is_missing(name)).cloned().collect(),
                top: loaded,
            });
        }
        Ok(missing)
    }

    /// Adds environment variables; returns false if the driver does not understand the request.
    pub(super) async fn add_variables(&mut self, env: &BTreeMap<String, String>) -> Result<bool, SessionError> {
        if !self.link.handed_over {
            return Ok(false);
        }
        let question = json!({"type": "environment", "env": env});
        let answer = |nonce: &str, frame| match frame {
            Frame::Environment { nonce: of, set } if of == nonce => Some(set),
            _ => None,
        };
        match self.ask(question, ENVIRONMENT_MAX, answer).await? {
            Some(true) => Ok(true),
            Some(false) => Err(self.broken("it could not set environment variables".to_owned()).await),
            None => Err(SessionError::Protocol(
                "it ended while environment variables were set".to_owned(),
            )),
        }
    }

    /// Sends a request that the driver may answer late or never. The answer is none then.
    pub(super) async fn ask_gently<T>(
        &mut self,
        question: Value,
        patience: Duration,
        answer: impl Fn(&str, Frame) -> Option<T>,
    ) -> Result<Option<T>, SessionError> {
        // A late answer is dropped, as every frame that nobody waits for.
        Ok(self.ask_once(question, patience, answer).await?.flatten())
    }

    /// Sends a request and waits for the answer; none if the session is over or ends meanwhile.
    pub(super) async fn ask<T>(
        &mut self,
        question: Value,
        patience: Duration,
        answer: impl Fn(&str, Frame) -> Option<T>,
    ) -> Result<Option<T>, SessionError> {
        match self.ask_once(question, patience, answer).await? {
            Some(answer) => Ok(answer),
            None => Err(self
                .broken(format!("it did not answer within {} s", patience.as_secs()))
                .await),
        }
    }

    /// Sends a request and waits for the answer: `Some(None)` if the session is over or ends meanwhile, `None` after the
    /// patience. An answer that breaks the protocol ends the session.
    async fn ask_once<T>(
        &mut self,
        question: Value,
        patience: Duration,
        answer: impl Fn(&str, Frame) -> Option<T>,
    ) -> Result<Option<Option<T>>, SessionError> {
        if self.over.is_some() || self.untold.is_some() {
            return Ok(Some(None));
        }
        let nonce = self.next_nonce();
        let frame = encode(&with_nonce(question, &nonce), &[]);
        match timeout(patience, self.answer(frame, |frame| answer(&nonce, frame))).await {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(SessionError::Protocol(reason))) => Err(self.broken(reason).await),
            Ok(Err(other)) => Err(other),
            Err(_) => Ok(None),
        }
    }

    /// Output in the meantime comes from background threads, and is delivered with the next cell.
    async fn answer<T>(
        &mut self,
        frame: Bytes,
        answer: impl Fn(Frame) -> Option<T>,
    ) -> Result<Option<T>, SessionError> {
        let link = Arc::clone(&self.link);
        link.handle.write(Channel::Control, frame).await?;
        loop {
            let Some(event) = self.events.recv().await else {
                return Err(SandboxError::Gone(EndReason::AgentLost).into());
            };
            for frame in self.take_between(event)? {
                if let Some(found) = answer(frame) {
                    return Ok(Some(found));
                }
            }
            if self.untold.is_some() {
                return Ok(None);
            }
        }
    }

    /// Keeps output to be delivered before the next cell.
    pub(super) fn keep_late(&mut self, stream: OutputStream, bytes: &[u8]) {
        match stream {
            OutputStream::Stdout => self.late.0.push(bytes),
            OutputStream::Stderr => self.late.1.push(bytes),
        }
    }

    /// Handles an event while no cell runs. Returns the frames that do not concern snapshots.
    pub(super) fn take_between(&mut self, event: ProcessEvent) -> Result<Vec<Frame>, SessionError> {
        let mut frames = Vec::new();
        match event {
            ProcessEvent::Output { channel, bytes } => match channel {
                Channel::Stdout => self.late.0.push(&bytes),
                Channel::Stderr => self.late.1.push(&bytes),
                Channel::Control => {
                    self.decoder.push(&bytes);
                    while let Some(frame) = self.next_frame()? {
                        match frame {
                            Frame::Copy { pid, why, .. } => self.link.snapshot.record(pid, &why),
                            other => frames.push(other),
                        }
                    }
                }
                Channel::Stdin => {}
            },
            ProcessEvent::Closed { channel } => {
                self.open = self.open.saturating_sub(1);
                self.control_closed |= channel == Channel::Control;
            }
            ProcessEvent::Exited { exit } => self.untold = Some(exit),
        }
        Ok(frames)
    }

    /// Delivers, before a cell, the output of earlier cells' threads and processes since. Usually there is none, and
    /// this does not wait.
    pub(super) async fn pass_late(&mut self, to: &mpsc::Sender<SessionEvent>) -> Result<(), SessionError> {
        let deadline = Instant::now() + LATE_MAX;
        while self.untold.is_none() {
            let event = match self.events.try_recv() {
                Ok(event) => event,
                Err(_) if self.late.0.bytes.is_empty() && self.late.1.bytes.is_empty() => break,
                Err(_) => match timeout_at(deadline.min(Instant::now() + LATE_QUIET), self.events.recv()).await {
                    Ok(Some(event)) => event,
                    Ok(None) | Err(_) => break,
                },
            };
            // Frames can only concern cells that are over.
            self.take_between(event)?;
            if Instant::now() >= deadline {
                break;
            }
        }
        let (stdout, stderr) = (self.late.0.take(), self.late.1.take());
        for (stream, bytes) in [(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)] {
            if let Some(bytes) = bytes {
                super::pass(to, SessionEvent::Background { stream, bytes }).await;
            }
        }
        Ok(())
    }
}

fn with_nonce(mut question: Value, nonce: &str) -> Value {
    if let Some(fields) = question.as_object_mut() {
        fields.insert("nonce".to_owned(), nonce.into());
    }
    question
}
