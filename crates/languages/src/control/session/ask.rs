//! Questions to a driver between two cells: its variables, and modules to be loaded ahead.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{
    Channel, EndReason, NotLoaded, OutputStream, ProcessEvent, SandboxError, SessionError, Variable,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Ahead, DriverSession, Frame, encode};

/// How long the listing of variables may take.
const LIST_MAX: Duration = Duration::from_secs(5);
/// How long modules may take to be loaded, all together.
const PRELOAD_MAX: Duration = Duration::from_secs(120);
/// Bytes of output between two cells that are kept.
const LATE_KEPT: usize = 256 << 10;

impl DriverSession {
    /// The variables; none of a session that is over.
    pub(super) async fn list_variables(&mut self) -> Result<Vec<Variable>, SessionError> {
        let question = json!({"type": "variables"});
        let answer = |nonce: &str, frame| match frame {
            Frame::Variables { nonce: of, variables } if of == nonce => Some(variables),
            _ => None,
        };
        let listed = self.ask(question, LIST_MAX, answer).await?;
        Ok(listed.unwrap_or_default())
    }

    /// Loads modules; says which could not be. With none it only rehearses a cell.
    pub(super) async fn load_modules(&mut self, modules: &[String]) -> Result<Vec<NotLoaded>, SessionError> {
        let modules: Vec<String> = modules
            .iter()
            .filter(|name| !self.ahead.asked.contains(name))
            .cloned()
            .collect();
        if !self.link.handed_over {
            return Ok(Vec::new());
        }
        self.ask_to_load(&modules).await
    }

    /// The same without asking whether it is needed.
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
            let asked = self.ahead.asked.iter().chain(modules);
            self.ahead = Arc::new(Ahead {
                asked: asked.filter(|name| !is_missing(name)).cloned().collect(),
                top: loaded,
            });
        }
        Ok(missing)
    }

    /// Asks and waits for the answer; none if the session is over, or ends meanwhile.
    async fn ask<T>(
        &mut self,
        mut question: Value,
        patience: Duration,
        answer: impl Fn(&str, Frame) -> Option<T>,
    ) -> Result<Option<T>, SessionError> {
        if self.over.is_some() || self.untold.is_some() {
            return Ok(None);
        }
        let nonce = self.next_nonce();
        if let Some(fields) = question.as_object_mut() {
            fields.insert("nonce".to_owned(), nonce.clone().into());
        }
        let frame = encode(&question, &[]);
        let problem = match timeout(patience, self.answer(frame, |frame| answer(&nonce, frame))).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(SessionError::Protocol(reason))) => reason,
            Ok(Err(other)) => return Err(other),
            Err(_) => format!("it did not answer within {} s", patience.as_secs()),
        };
        Err(self.broken(problem).await)
    }

    /// Output that comes meanwhile is a background thread's; the next cell brings it.
    async fn answer<T>(
        &mut self,
        frame: Bytes,
        answer: impl Fn(Frame) -> Option<T>,
    ) -> Result<Option<T>, SessionError> {
        let link = Arc::clone(&self.link);
        link.handle.write(Channel::Control, frame).await?;
        loop {
            match self.events.recv().await {
                Some(ProcessEvent::Output {
                    channel: Channel::Control,
                    bytes,
                }) => {
                    self.decoder.push(&bytes);
                    while let Some(frame) = self.next_frame()? {
                        if let Frame::Copy { pid, why, .. } = &frame {
                            link.copies.told(*pid, why);
                        }
                        if let Some(found) = answer(frame) {
                            return Ok(Some(found));
                        }
                    }
                }
                Some(ProcessEvent::Closed { .. }) => self.open = self.open.saturating_sub(1),
                Some(ProcessEvent::Exited { exit }) => {
                    self.untold = Some(exit);
                    return Ok(None);
                }
                Some(ProcessEvent::Output { channel, bytes }) => self.keep_late(channel, bytes),
                None => return Err(SandboxError::Gone(EndReason::AgentLost).into()),
            }
        }
    }

    fn keep_late(&mut self, channel: Channel, bytes: Bytes) {
        let kept: usize = self.late.iter().map(|(_, bytes)| bytes.len()).sum();
        let stream = match channel {
            Channel::Stdout => OutputStream::Stdout,
            Channel::Stderr => OutputStream::Stderr,
            Channel::Stdin | Channel::Control => return,
        };
        if kept.saturating_add(bytes.len()) <= LATE_KEPT {
            self.late.push((stream, bytes));
        }
    }
}
