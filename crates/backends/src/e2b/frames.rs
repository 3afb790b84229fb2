//! Frames of Connect streams with JSON: one byte of flags, four of length, the message. Pure.

use serde_json::Value;

/// The maximum length of a message in bytes.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The flag of the last frame, which reports how the stream ended.
const END_FLAG: u8 = 2;

/// A frame of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Frame {
    /// A message.
    Message(Value),
    /// The end of the stream, with its error if there was one.
    End(Option<ConnectError>),
}

/// An error of the Connect protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectError {
    pub(super) code: String,
    pub(super) message: String,
}

impl ConnectError {
    /// Reads an error object; missing fields become empty.
    pub(super) fn of(value: &Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            code: text("code"),
            message: text("message"),
        }
    }
}

/// The reason why bytes are not frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a message of {0} bytes is longer than {MAX_MESSAGE_BYTES}")]
    TooLong(u64),
    #[error("a message has flags {0:#04x}, which are not supported")]
    Flags(u8),
    #[error("a message is no JSON")]
    Json,
}

/// Decodes frames from bytes in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Adds bytes. The buffer is bounded by one message and one piece.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next whole frame.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<5>() else {
            return Ok(None);
        };
        let [flags, a, b, c, d] = *head;
        let announced = u32::from_be_bytes([a, b, c, d]);
        let length = usize::try_from(announced).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE_BYTES {
            return Err(FrameError::TooLong(announced.into()));
        }
        if flags & !END_FLAG != 0 {
            return Err(FrameError::Flags(flags));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let value: Value = serde_json::from_slice(body).map_err(|_| FrameError::Json)?;
        self.buffer.drain(..length + 5);
        Ok(Some(if flags & END_FLAG == 0 {
            Frame::Message(value)
        } else {
            Frame::End(value.get("error").map(ConnectError::of))
        }))
    }
}

/// Encodes a message as a frame. Only for our messages, which are short.
pub(super) fn encode(message: &Value) -> Vec<u8> {
    let body = message.to_string().into_bytes();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut frame = vec![0];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&body);
    frame
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn end(body: &str) -> Vec<u8> {
        let mut frame = encode(&serde_json::from_str(body).unwrap());
        frame[0] = END_FLAG;
        frame
    }

    #[test]
    fn frames_survive_being_cut_at_every_byte() {
        let message = json!({"event": {"start": {"pid": 7}}, "text": "äöü"});
        let mut bytes = encode(&message);
        bytes.extend(end(r#"{"error":{"code":"not_found","message":"no"}}"#));
        for cut in 0..=bytes.len() {
            let mut decoder = Decoder::default();
            let mut frames = Vec::new();
            for piece in [&bytes[..cut], &bytes[cut..]] {
                decoder.push(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    frames.push(frame);
                }
            }
            let error = ConnectError {
                code: "not_found".into(),
                message: "no".into(),
            };
            assert_eq!(
                frames,
                [Frame::Message(message.clone()), Frame::End(Some(error))],
                "{cut}"
            );
            assert!(decoder.buffer.is_empty());
        }
    }

    #[test]
    fn malformed_and_compressed_frames_are_errors() {
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0xff, 0, 0, 0]);
        assert_eq!(decoder.next(), Err(FrameError::TooLong(0xff00_0000)));
        let mut decoder = Decoder::default();
        decoder.push(&[1, 0, 0, 0, 2, b'{', b'}']);
        assert_eq!(decoder.next(), Err(FrameError::Flags(1)), "compressed");
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0, 0, 0, 2, b'{', b'x']);
        assert_eq!(decoder.next(), Err(FrameError::Json));
        let mut decoder = Decoder::default();
        decoder.push(&end("{}"));
        assert_eq!(decoder.next(), Ok(Some(Frame::End(None))));
    }
}
