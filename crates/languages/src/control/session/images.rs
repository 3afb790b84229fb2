//! Images: the state of a session goes on in another sandbox.

use std::time::Duration;

use sandcell_sandbox::{ImageFile, ImageMade, SandboxError, SessionError, StateImage};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::frame::{Decoder, Frame};
use super::DriverSession;
use super::checkpoints::{Checkpoint, Order};

/// The deadline for a copy to begin its image, and for it to write the image.
const IMAGE_MAX: Duration = Duration::from_secs(20);
/// The time between two looks whether the copy still lives.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The deadline for a copy to drop its image.
const DROP_MAX: Duration = Duration::from_secs(2);
/// The deadline for an interpreter to write the files of an image and to prepare to load its memory.
const LOAD_MAX: Duration = Duration::from_secs(30);
/// The deadline for a loaded session to answer.
const ARRIVE_MAX: Duration = Duration::from_secs(10);

/// The report of a copy about its image.
struct Imaged {
    made: Option<ImageMade>,
    size: u64,
}

impl DriverSession {
    /// Makes an image of a checkpoint.
    pub(super) async fn make_image(&mut self, number: u32, max_bytes: u64) -> Result<ImageMade, String> {
        let Some(Checkpoint { pid, .. }) = self.checkpoints.get(&number).copied() else {
            return Err("the copy of it is gone".to_owned());
        };
        let made = self.image_of(pid, max_bytes).await;
        if made.is_err() {
            // An image that was only begun would be written at the next order, whatever its size.
            self.drop_image_of(number).await;
        }
        made
    }

    /// Orders a copy to begin an image, and to write it if it is small enough.
    async fn image_of(&mut self, pid: i32, max_bytes: u64) -> Result<ImageMade, String> {
        let begun = self.order_image(pid).await?;
        if begun.made.is_some() {
            return Err("its copy wrote an image before it was asked to".to_owned());
        }
        if begun.size > max_bytes {
            return Err(format!(
                "it has {} MB in memory, and a second copy of them may have {} MB",
                begun.size >> 20,
                max_bytes >> 20
            ));
        }
        let written = self.order_image(pid).await?;
        written.made.ok_or_else(|| "its copy wrote no image".to_owned())
    }

    pub(super) async fn drop_image_of(&mut self, number: u32) {
        let Some(Checkpoint { pid, .. }) = self.checkpoints.get(&number).copied() else {
            return;
        };
        if let Err(error) = self.link.handle.order_image(pid, true).await {
            tracing::debug!(%error, "an image of a session could not be dropped");
            return;
        }
        // The answer is a reason why there is no image. A late report of an image may come before it.
        let dropped = timeout(DROP_MAX, async { while self.imaged(pid, DROP_MAX).await.is_ok() {} });
        if dropped.await.is_err() {
            tracing::debug!("an image of a session was perhaps not dropped");
        }
    }

    async fn order_image(&mut self, pid: i32) -> Result<Imaged, String> {
        let ordered = self.link.handle.order_image(pid, false).await;
        ordered.map_err(|error| match error {
            SandboxError::Unsupported(reason) => reason,
            other => other.to_string(),
        })?;
        self.imaged(pid, IMAGE_MAX).await
    }

    /// Waits for the report of a copy about its image. The error is the reason why there is none.
    async fn imaged(&mut self, pid: i32, patience: Duration) -> Result<Imaged, String> {
        let deadline = Instant::now() + patience;
        loop {
            let look = deadline.min(Instant::now() + POLL_INTERVAL);
            let event = match timeout_at(look, self.events.recv()).await {
                Ok(Some(event)) => event,
                Ok(None) => return Err("the copy of it is gone".to_owned()),
                Err(_) if Instant::now() < deadline => match self.link.handle.kept().await {
                    Ok(kept) if !kept.contains(&pid) => return Err("the copy of it has ended".to_owned()),
                    _ => continue,
                },
                Err(_) => return Err(format!("its copy did not answer within {} s", patience.as_secs())),
            };
            for frame in self.take_between(event).map_err(|error| error.to_string())? {
                match frame {
                    Frame::Imaged {
                        pid: of,
                        made,
                        size,
                        why,
                    } if of == pid => {
                        return if why.is_empty() {
                            Ok(Imaged { made, size })
                        } else {
                            Err(why)
                        };
                    }
                    _ => {}
                }
            }
        }
    }

    /// Makes this session, in which no code has run, go on from an image. The private files become those of the image.
    ///
    /// # Errors
    /// The state cannot go on here. The session is over.
    pub async fn load(&mut self, image: &StateImage) -> Result<(), SessionError> {
        let answer = |nonce: &str, frame| match frame {
            Frame::Loading { nonce: of, why } if of == nonce => Some(why),
            _ => None,
        };
        let memory = image.memory.as_ref().map(part);
        let request = json!({"type": "load", "files": part(&image.files), "memory": memory});
        let failed = |reason: String| SessionError::Start {
            language: "python".to_owned(),
            reason,
        };
        let why = self.ask(request, LOAD_MAX, answer).await?;
        match why.as_deref() {
            None => return Err(failed("the interpreter ended while it loaded the state".to_owned())),
            Some("") => {}
            Some(why) => return Err(failed(why.to_owned())),
        }
        if memory.is_none() {
            return Ok(());
        }
        self.decoder = Decoder::default();
        let arrived = timeout(ARRIVE_MAX, self.resume(Order::Branch, 0, None)).await;
        match arrived {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.broken(error.to_string()).await),
            Err(_) => Err(self.broken("the loaded state did not answer in time".to_owned()).await),
        }
    }
}

fn part(file: &ImageFile) -> Value {
    json!({"position": file.position, "bytes": file.bytes, "share": file.shared})
}
