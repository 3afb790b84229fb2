//! The Connect protocol with JSON: single answers, streams of framed messages, and error codes.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use hyper::{HeaderMap, Response, StatusCode};
use sandcell_mcp::{EndpointBody, whole_body};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::answer;
use crate::limits::FRAME_HEAD_BYTES;
use crate::problem::Problem;

/// The type of single requests and answers.
pub(crate) const UNARY_TYPE: &str = "application/json";
/// The type of streams.
pub(crate) const STREAM_TYPE: &str = "application/connect+json";
/// The interval of keep-alive events, unless the request names one.
const KEEP_ALIVE: Duration = Duration::from_secs(90);
/// The maximum size of a message of a stream of requests.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// The flag of a compressed message.
const COMPRESSED_FLAG: u8 = 1;
/// The flag of the last message of a stream.
const END_STREAM_FLAG: u8 = 2;

/// Returns true for a path of a Connect service.
pub(crate) fn is_connect(path: &str) -> bool {
    ["/process.Process/", "/filesystem.Filesystem/"]
        .iter()
        .any(|service| path.starts_with(service))
}

/// Refuses a request that is not of this type.
pub(crate) fn check_type(headers: &HeaderMap, expected: &str) -> Result<(), Problem> {
    let kind = headers
        .get("content-type")
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case(expected) {
        let message = format!("the content type is {essence:?}: this call takes {expected}");
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let encoding = |name| headers.get(name).is_some_and(|encoding| encoding != "identity");
    if encoding("content-encoding") || encoding("connect-content-encoding") {
        return Err(Problem::unimplemented("compressed messages"));
    }
    Ok(())
}

/// Reads the one message of the request for a stream.
pub(crate) fn message<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let Some((head, message)) = body.split_at_checked(FRAME_HEAD_BYTES) else {
        return Err(Problem::invalid("the body has no frame of Connect"));
    };
    let (flags, length) = match head {
        [flags, length @ ..] => (
            *flags,
            length.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)),
        ),
        [] => (0, 0),
    };
    if flags & COMPRESSED_FLAG != 0 {
        return Err(Problem::unimplemented("compressed messages"));
    }
    if flags != 0 {
        return Err(Problem::invalid(format!(
            "the frame has the unknown flags {flags:#04x}"
        )));
    }
    // The client may end its stream in the same body.
    match message.split_at_checked(length) {
        Some((message, [] | [END_STREAM_FLAG, ..])) => answer::parse(message),
        Some(_) => Err(Problem::invalid("the stream has more than one message")),
        None => Err(Problem::invalid(format!(
            "the frame has {} of {length} bytes",
            message.len()
        ))),
    }
}

/// The messages of the stream of a request, as its bytes arrive.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    bytes: BytesMut,
    ended: bool,
}

impl Messages {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole message.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        if self.ended {
            return self.check_end().map(|()| None);
        }
        let Some((head, rest)) = self.bytes.split_first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(None);
        };
        let [flags, length @ ..] = *head;
        if flags & COMPRESSED_FLAG != 0 {
            return Err(Problem::unimplemented("compressed messages"));
        }
        if flags & !END_STREAM_FLAG != 0 {
            return Err(Problem::invalid(format!(
                "the frame has the unknown flags {flags:#04x}"
            )));
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE_BYTES {
            let message = format!("the frame has {length} bytes, more than {MAX_MESSAGE_BYTES}");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        if rest.len() < length {
            return Ok(None);
        }
        self.bytes.advance(FRAME_HEAD_BYTES);
        let message = self.bytes.split_to(length).freeze();
        self.ended = flags == END_STREAM_FLAG;
        Ok(Some(message).filter(|_| !self.ended))
    }

    /// Refuses a stream that ended within a message, or that went on after its end.
    pub(crate) fn check_end(&self) -> Result<(), Problem> {
        match (self.bytes.is_empty(), self.ended) {
            (true, _) => Ok(()),
            (false, true) => Err(Problem::invalid("the stream goes on after its end")),
            (false, false) => Err(Problem::invalid("the stream ended within a message")),
        }
    }
}

/// Returns the interval of keep-alive events of a stream.
pub(crate) fn keep_alive(headers: &HeaderMap) -> Duration {
    let asked = headers
        .get("keepalive-ping-interval")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    asked
        .filter(|seconds| *seconds > 0)
        .map_or(KEEP_ALIVE, Duration::from_secs)
}

/// Returns the time until the end of a stream that its request names.
pub(crate) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let asked: Option<u32> = headers
        .get("connect-timeout-ms")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let asked = asked.filter(|milliseconds| *milliseconds > 0)?;
    Some(Duration::from_millis(asked.into()))
}

/// Waits until this moment. Waits forever if there is none.
pub(crate) async fn sleep_until_some(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Makes the frame of a message.
pub(crate) fn frame(message: &Value) -> Bytes {
    framed(0, message)
}

/// Makes the last frame of a stream that ended as it should.
pub(crate) fn end() -> Bytes {
    framed(END_STREAM_FLAG, &json!({}))
}

/// Makes the last frame of a stream that failed.
pub(crate) fn failed(problem: &Problem) -> Bytes {
    framed(
        END_STREAM_FLAG,
        &json!({"error": {"code": problem.code.as_str(), "message": problem.message}}),
    )
}

/// Answers a stream of requests.
pub(crate) fn last_answer(message: &Value) -> Response<EndpointBody> {
    let body = [frame(message), end()].concat();
    answer::with_body(StatusCode::OK, STREAM_TYPE, whole_body(body))
}

/// Answers with a stream that has failed before its first event.
pub(crate) fn failed_stream(problem: &Problem) -> Response<EndpointBody> {
    answer::with_body(StatusCode::OK, STREAM_TYPE, whole_body(failed(problem)))
}

fn framed(flags: u8, message: &Value) -> Bytes {
    let text = message.to_string();
    let mut frame = BytesMut::with_capacity(FRAME_HEAD_BYTES + text.len());
    frame.put_u8(flags);
    frame.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    frame.put_slice(text.as_bytes());
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8]) -> Result<Value, String> {
        message(body).map_err(|problem| problem.message)
    }

    #[test]
    fn a_message_is_read_from_its_frame() {
        let framed = frame(&json!({"a": 1}));
        assert_eq!(read(&framed), Ok(json!({"a": 1})));
        let ended = [framed.as_ref(), end().as_ref()].concat();
        assert_eq!(read(&ended), Ok(json!({"a": 1})));
    }

    #[test]
    fn messages_are_read_however_their_bytes_arrive() {
        let first = json!({"start": {"process": {"pid": 1}}});
        let bytes = [frame(&first), frame(&json!({"keepalive": {}})), end()].concat();
        for size in 1..=bytes.len() {
            let mut messages = Messages::default();
            let mut read = Vec::new();
            for part in bytes.chunks(size) {
                messages.push(part);
                while let Some(message) = messages.next().unwrap() {
                    read.push(serde_json::from_slice::<Value>(&message).unwrap());
                }
            }
            assert_eq!(read, [first.clone(), json!({"keepalive": {}})], "parts of {size} bytes");
            messages.check_end().unwrap();
        }
        for (body, expected) in [
            (&b"\x01\0\0\0\x02{}"[..], "does not support compressed"),
            (b"\x04\0\0\0\x02{}", "unknown flags 0x04"),
            (b"\0\xff\xff\xff\xff{}", "4294967295 bytes, more than"),
            (b"\x02\0\0\0\0\0\0\0\0\0", "after its end"),
            (b"\0\0\0\0\x02{", "within a message"),
            (b"\0\0\0", "within a message"),
        ] {
            let mut messages = Messages::default();
            messages.push(body);
            let read = std::iter::from_fn(|| messages.next().transpose()).collect::<Result<Vec<_>, _>>();
            let error = read.map(drop).and_then(|()| messages.check_end()).unwrap_err();
            assert!(error.message.contains(expected), "{}", error.message);
        }
    }

    #[test]
    fn a_malformed_frame_is_refused_wherever_it_is_cut() {
        let framed = frame(&json!({"text": "something long enough"}));
        for end in 0..framed.len() {
            assert!(read(&framed[..end]).is_err(), "{end} bytes");
        }
        for (body, expected) in [
            (&b"\x01\0\0\0\x02{}"[..], "does not support compressed"),
            (b"\x04\0\0\0\x02{}", "unknown flags 0x04"),
            (b"\0\xff\xff\xff\xff{}", "2 of 4294967295 bytes"),
            (b"\0\0\0\0\x02{}\0\0\0\0\x02{}", "more than one message"),
            (b"\0\0\0\0\x02[1", "not as expected"),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
