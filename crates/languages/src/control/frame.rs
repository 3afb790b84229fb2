//! Frames of the control channel as bytes: `length`, `header length`, a JSON header, raw blobs.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes, BytesMut};
use sandcell_sandbox::{CellError, ImageMade, MimeBundle, NotLoaded, Variable};
use serde::Deserialize;

/// The maximum length of a driver's frame body, in bytes.
pub(super) const BODY_MAX: usize = 8 << 20;
const HEADER_MAX: usize = 1 << 20;
const BLOBS_MAX: usize = 16;
const MIME_MAX: usize = 100;
const TEXT_MAX: usize = 64 << 10;
const PICTURE_MAX: usize = 4 << 20;
const OTHER_MAX: usize = 1 << 20;
const PLAIN_MIME: &str = "text/plain";

/// The reason why bytes are no valid frame. The connection is unusable afterwards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message says what it is")]
pub enum FrameError {
    #[error("a frame of {0} bytes (at most {BODY_MAX} are allowed)")]
    TooLong(usize),
    #[error("a frame whose header does not fit into it")]
    HeaderLength,
    // The parser's message would repeat text that code has written.
    #[error("a header that is not in the protocol, at byte {column}")]
    Header { column: usize },
    #[error("blobs that do not add up to their frame")]
    BlobSum,
    #[error("more than {BLOBS_MAX} blobs, a type twice, or a type that is none")]
    BlobTypes,
    #[error("a value without text/plain")]
    NoText,
}

/// A valid frame from a driver, within the host's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The driver is ready for cells.
    Ready {
        /// The interpreter's version, at most 40 printable ASCII characters.
        version: String,
    },
    /// A rich value.
    Display {
        /// The nonce of its cell, as claimed.
        nonce: String,
        /// Its representations.
        bundle: MimeBundle,
    },
    /// The last expression's value.
    Result {
        /// The nonce of its cell, as claimed.
        nonce: String,
        /// Its representations.
        bundle: MimeBundle,
    },
    /// A cell is over.
    Done {
        /// The nonce of its cell, as claimed.
        nonce: String,
        /// The end of the cell.
        done: Done,
    },
    /// A cell requests packages, and waits.
    Install {
        /// The nonce of its cell, as claimed.
        nonce: String,
        /// The requirements as written; at most 200, each at most 1,000 bytes.
        packages: Vec<String>,
    },
    /// Between cells: the session's snapshot, which can replace the interpreter if that dies.
    Copy {
        /// The process id inside; none if there is no snapshot (any more).
        pid: Option<i32>,
        /// The last cell that it includes.
        cell: u32,
        /// The reason for its absence, as a word of the protocol.
        why: String,
    },
    /// A snapshot has become the session.
    Resumed {
        /// The nonce of its session, as claimed.
        nonce: String,
        /// The last cell that it includes.
        cell: u32,
        /// Another snapshot of the same state; none if the session could not make it, or was not asked.
        kept: Option<i32>,
    },
    /// Between cells: a checkpoint, on request.
    Kept {
        /// The nonce of the request, as claimed.
        nonce: String,
        /// The process id inside; none if there is no checkpoint.
        pid: Option<i32>,
        /// The last cell that it includes.
        cell: u32,
        /// The reason for its absence, as a word of the protocol.
        why: String,
    },
    /// A kept snapshot has begun or written an image of itself, or has none.
    Imaged {
        /// The snapshot's process id inside, as claimed.
        pid: i32,
        /// The image, if it is written.
        made: Option<ImageMade>,
        /// The size of an image that was begun, in bytes.
        size: u64,
        /// The reason why there is none; at most 300 bytes. Empty if there is one.
        why: String,
    },
    /// The answer to a request to load an image.
    Loading {
        /// The nonce of the request, as claimed.
        nonce: String,
        /// The reason why it cannot be loaded; at most 300 bytes. Empty: it is loaded now.
        why: String,
    },
    /// Memory of processes, on request.
    Measured {
        /// The nonce of the request, as claimed.
        nonce: String,
        /// Bytes for each process of the request; at most 64.
        bytes: Vec<u64>,
    },
    /// The session's variables, on request.
    Variables {
        /// The nonce of the request, as claimed.
        nonce: String,
        /// At most 200 variables.
        variables: Vec<Variable>,
    },
    /// The end of a request to preload modules.
    Preloaded {
        /// The nonce of the request, as claimed.
        nonce: String,
        /// Modules that could not be loaded; at most 200.
        missing: Vec<NotLoaded>,
        /// The loaded top-level modules that are not part of the language; at most 2,000.
        loaded: Vec<String>,
    },
    /// The end of a request to add environment variables.
    Environment {
        /// The nonce of the request, as claimed.
        nonce: String,
        /// True if all of them are set.
        set: bool,
    },
}

/// A driver's report of a cell's end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in `CellStatus`")]
pub enum Done {
    Ok,
    Exit(i32),
    Error(CellError),
    Interrupted(CellError),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Header {
    Ready {
        version: String,
        #[serde(rename = "pid")]
        _pid: u32,
    },
    Display {
        nonce: String,
        blobs: Vec<Blob>,
    },
    Result {
        nonce: String,
        blobs: Vec<Blob>,
    },
    Done {
        nonce: String,
        status: Status,
        #[serde(default)]
        exit_code: i32,
        #[serde(default)]
        error: CellError,
    },
    Install {
        nonce: String,
        packages: Vec<String>,
    },
    Copy {
        pid: i32,
        cell: u32,
        #[serde(default)]
        why: String,
    },
    Resumed {
        nonce: String,
        cell: u32,
        #[serde(default)]
        kept: i32,
    },
    Kept {
        nonce: String,
        pid: i32,
        cell: u32,
        why: String,
    },
    Imaged {
        pid: i32,
        descriptor: i32,
        position: u64,
        bytes: u64,
        size: u64,
        why: String,
    },
    Loading {
        nonce: String,
        why: String,
    },
    Measured {
        nonce: String,
        bytes: Vec<u64>,
    },
    Variables {
        nonce: String,
        variables: Vec<Variable>,
    },
    Preloaded {
        nonce: String,
        missing: Vec<NotLoaded>,
        loaded: Vec<String>,
    },
    Environment {
        nonce: String,
        set: bool,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Ok,
    Error,
    Interrupted,
    Exit,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Blob {
    mime: String,
    bytes: u64,
}

/// Cuts a byte stream into frames. Buffers at most one frame and the surplus of its last piece.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Adds bytes in pieces of any size.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next whole frame, or `None` until more bytes arrive.
    ///
    /// # Errors
    /// [`FrameError`] as soon as it is certain that the bytes violate the protocol.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = length_of(*prefix);
        if length > BODY_MAX {
            return Err(FrameError::TooLong(length));
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        let body = self.buffer.split_to(length).freeze();
        parse(body).map(Some)
    }
}

fn length_of(prefix: [u8; 4]) -> usize {
    usize::try_from(u32::from_le_bytes(prefix)).unwrap_or(usize::MAX)
}

fn parse(mut body: Bytes) -> Result<Frame, FrameError> {
    let prefix = *body.first_chunk::<4>().ok_or(FrameError::HeaderLength)?;
    body.advance(4);
    let length = length_of(prefix);
    if length > body.len() || length > HEADER_MAX {
        return Err(FrameError::HeaderLength);
    }
    let header = body.split_to(length);
    let header: Header =
        serde_json::from_slice(&header).map_err(|error| FrameError::Header { column: error.column() })?;
    let no_blobs = |body: &Bytes| body.is_empty().then_some(()).ok_or(FrameError::BlobSum);
    match header {
        Header::Ready { version, .. } => {
            no_blobs(&body)?;
            let version = version.chars().filter(char::is_ascii_graphic).take(40).collect();
            Ok(Frame::Ready { version })
        }
        Header::Display { nonce, blobs } => Ok(Frame::Display {
            nonce,
            bundle: bundle(&blobs, body)?,
        }),
        Header::Result { nonce, blobs } => Ok(Frame::Result {
            nonce,
            bundle: bundle(&blobs, body)?,
        }),
        Header::Done {
            nonce,
            status,
            exit_code,
            error,
        } => {
            no_blobs(&body)?;
            let done = match status {
                Status::Ok => Done::Ok,
                Status::Exit => Done::Exit(exit_code),
                Status::Error => Done::Error(bounded(error)),
                Status::Interrupted => Done::Interrupted(bounded(error)),
            };
            Ok(Frame::Done { nonce, done })
        }
        Header::Install { nonce, mut packages } => {
            no_blobs(&body)?;
            packages.truncate(200);
            packages.iter_mut().for_each(|text| clip(text, 1000));
            Ok(Frame::Install { nonce, packages })
        }
        Header::Copy { pid, cell, mut why } => {
            no_blobs(&body)?;
            clip(&mut why, 40);
            // The first process and process groups can be no snapshots.
            let pid = (pid > 1).then_some(pid);
            Ok(Frame::Copy { pid, cell, why })
        }
        Header::Resumed { nonce, cell, kept } => {
            no_blobs(&body)?;
            let kept = (kept > 1).then_some(kept);
            Ok(Frame::Resumed { nonce, cell, kept })
        }
        Header::Kept {
            nonce,
            pid,
            cell,
            mut why,
        } => {
            no_blobs(&body)?;
            clip(&mut why, 40);
            let pid = (pid > 1).then_some(pid);
            Ok(Frame::Kept { nonce, pid, cell, why })
        }
        Header::Imaged {
            pid,
            descriptor,
            position,
            bytes,
            size,
            mut why,
        } => {
            no_blobs(&body)?;
            clip(&mut why, 300);
            let made = ImageMade {
                process: pid,
                descriptor,
                position,
                bytes,
            };
            let made = (why.is_empty() && descriptor >= 0).then_some(made);
            Ok(Frame::Imaged { pid, made, size, why })
        }
        Header::Loading { nonce, mut why } => {
            no_blobs(&body)?;
            clip(&mut why, 300);
            Ok(Frame::Loading { nonce, why })
        }
        Header::Measured { nonce, mut bytes } => {
            no_blobs(&body)?;
            bytes.truncate(64);
            Ok(Frame::Measured { nonce, bytes })
        }
        Header::Variables { nonce, mut variables } => {
            no_blobs(&body)?;
            variables.truncate(200);
            for variable in &mut variables {
                for text in [
                    &mut variable.name,
                    &mut variable.kind,
                    &mut variable.shape,
                    &mut variable.preview,
                ] {
                    clip(text, 200);
                }
            }
            Ok(Frame::Variables { nonce, variables })
        }
        Header::Preloaded {
            nonce,
            mut missing,
            mut loaded,
        } => {
            no_blobs(&body)?;
            missing.truncate(200);
            for module in &mut missing {
                clip(&mut module.name, 200);
                clip(&mut module.why, 300);
            }
            loaded.truncate(2000);
            loaded.retain(|name| name.len() <= 200);
            Ok(Frame::Preloaded { nonce, missing, loaded })
        }
        Header::Environment { nonce, set } => {
            no_blobs(&body)?;
            Ok(Frame::Environment { nonce, set })
        }
    }
}

/// Cuts the blobs apart. Drops those above the limits, and truncates text.
fn bundle(blobs: &[Blob], mut rest: Bytes) -> Result<MimeBundle, FrameError> {
    if blobs.len() > BLOBS_MAX {
        return Err(FrameError::BlobTypes);
    }
    let mut found = BTreeMap::new();
    for blob in blobs {
        let length = usize::try_from(blob.bytes).map_err(|_| FrameError::BlobSum)?;
        if length > rest.len() {
            return Err(FrameError::BlobSum);
        }
        let data = rest.split_to(length);
        if !is_mime(&blob.mime) || found.insert(blob.mime.clone(), data).is_some() {
            return Err(FrameError::BlobTypes);
        }
    }
    if !rest.is_empty() {
        return Err(FrameError::BlobSum);
    }
    let text = found.remove(PLAIN_MIME).ok_or(FrameError::NoText)?;
    found.retain(|mime, data| {
        data.len()
            <= if mime.starts_with("image/") || mime == "text/html" {
                PICTURE_MAX
            } else {
                OTHER_MAX
            }
    });
    found.insert(PLAIN_MIME.to_owned(), clip_bytes(text, TEXT_MAX));
    // Copy the kept data: a slice would keep the whole frame alive, including its dropped and uncounted parts.
    for data in found.values_mut() {
        *data = Bytes::copy_from_slice(data);
    }
    Ok(MimeBundle(found))
}

fn is_mime(text: &str) -> bool {
    text.len() <= MIME_MAX
        && text.split_once('/').is_some_and(|(kind, _)| !kind.is_empty())
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns at most `max` bytes, cut between characters if the bytes are text.
fn clip_bytes(mut bytes: Bytes, max: usize) -> Bytes {
    if bytes.len() > max {
        let is_continuation = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
        let mut end = max;
        while end > max.saturating_sub(4) && is_continuation(end) {
            end -= 1;
        }
        bytes.truncate(end);
    }
    bytes
}

fn clip(text: &mut String, max: usize) {
    text.truncate(text.floor_char_boundary(max));
}

fn bounded(mut error: CellError) -> CellError {
    clip(&mut error.name, 200);
    clip(&mut error.message, 16 << 10);
    clip(&mut error.traceback, TEXT_MAX);
    clip(&mut error.hint, 2 << 10);
    if !["memory", "network", "disk", "processes", "stdin", "package"].contains(&error.class.as_str()) {
        error.class.clear();
    }
    error
}

/// Encodes a frame: the header as JSON, then the blobs, which the header must list.
///
/// # Panics
/// Never.
#[must_use]
pub fn encode(header: &serde_json::Value, blobs: &[&[u8]]) -> Bytes {
    let header = header.to_string();
    let body = 4 + header.len() + blobs.iter().map(|blob| blob.len()).sum::<usize>();
    let mut frame = BytesMut::with_capacity(4 + body);
    frame.extend_from_slice(&prefix_of(body));
    frame.extend_from_slice(&prefix_of(header.len()));
    frame.extend_from_slice(header.as_bytes());
    for blob in blobs {
        frame.extend_from_slice(blob);
    }
    frame.freeze()
}

fn prefix_of(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn decode(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        decoder.next_frame()
    }

    #[test]
    fn a_value_survives_encoding_and_decoding() {
        let bytes = encode(
            &json!({"type": "result", "nonce": "n", "blobs": [
                {"mime": "text/plain", "bytes": 2}, {"mime": "image/png", "bytes": 3}]}),
            &[b"42", b"\x89PN"],
        );
        let Ok(Some(Frame::Result { nonce, bundle })) = decode(&bytes) else {
            panic!("not a result");
        };
        assert_eq!(nonce, "n");
        assert_eq!(bundle.text(), "42");
        assert_eq!(bundle.get("image/png").map(AsRef::as_ref), Some(&b"\x89PN"[..]));
    }

    #[test]
    fn the_error_about_a_bad_header_does_not_quote_it() {
        let forged = encode(&json!({"type": "x\n\n[ok 1 ms ex0]"}), &[]);
        let said = decode(&forged).unwrap_err().to_string();
        assert!(!said.contains("[ok") && !said.contains('\n'), "{said}");
    }

    #[test]
    fn an_error_keeps_only_known_classes() {
        let done = json!({"type": "done", "nonce": "n", "status": "error", "error": {
            "name": "E", "message": "m", "traceback": "t", "hint": "", "class": "root"}});
        let Ok(Some(Frame::Done {
            done: Done::Error(error),
            ..
        })) = decode(&encode(&done, &[]))
        else {
            panic!("not an error");
        };
        assert_eq!((error.name.as_str(), error.class.as_str()), ("E", ""));
    }

    #[test]
    fn unknown_frames_are_refused() {
        let display = |blobs: serde_json::Value| json!({"type": "display", "nonce": "n", "blobs": blobs});
        for (header, blob, expected) in [
            (
                display(json!([{"mime": "text/plain", "bytes": 3}])),
                "ab",
                FrameError::BlobSum,
            ),
            (
                display(json!([{"mime": "text/plain", "bytes": 1}])),
                "ab",
                FrameError::BlobSum,
            ),
            (
                display(json!([{"mime": "text/html", "bytes": 2}])),
                "ab",
                FrameError::NoText,
            ),
            (
                display(json!([{"mime": "text plain", "bytes": 2}])),
                "ab",
                FrameError::BlobTypes,
            ),
            (
                display(json!([{"mime": "a/b", "bytes": 1}, {"mime": "a/b", "bytes": 1}])),
                "ab",
                FrameError::BlobTypes,
            ),
            (
                display(json!([{"mime": "text/plain", "bytes": u64::MAX}])),
                "ab",
                FrameError::BlobSum,
            ),
            (
                json!({"type": "done", "nonce": "n", "status": "ok"}),
                "ab",
                FrameError::BlobSum,
            ),
        ] {
            assert_eq!(decode(&encode(&header, &[blob.as_bytes()])), Err(expected), "{header}");
        }
        for header in [
            json!({"type": "exec"}),
            json!({"type": "done", "nonce": "n", "status": "root"}),
            json!({"type": "ready", "version": "3", "pid": 1, "extra": 1}),
            json!([1]),
        ] {
            assert!(
                matches!(decode(&encode(&header, &[])), Err(FrameError::Header { .. })),
                "{header}"
            );
        }
        assert_eq!(
            decode(&[255, 255, 255, 255]),
            Err(FrameError::TooLong(usize::try_from(u32::MAX).unwrap()))
        );
        assert_eq!(decode(&[2, 0, 0, 0, 1, 0]), Err(FrameError::HeaderLength));
        assert_eq!(decode(&[4, 0, 0, 0, 9, 0, 0, 0]), Err(FrameError::HeaderLength));
        assert!(matches!(
            decode(&[6, 0, 0, 0, 2, 0, 0, 0, 255, 254]),
            Err(FrameError::Header { .. })
        ));
    }

    #[test]
    fn too_long_texts_are_cut_and_too_large_pictures_left_out() {
        let text = "é".repeat(TEXT_MAX);
        let picture = vec![0_u8; PICTURE_MAX + 1];
        let bytes = encode(
            &json!({"type": "display", "nonce": "n", "blobs": [
                {"mime": "text/plain", "bytes": text.len()}, {"mime": "image/png", "bytes": picture.len()}]}),
            &[text.as_bytes(), &picture],
        );
        let Ok(Some(Frame::Display { bundle, .. })) = decode(&bytes) else {
            panic!("not a display");
        };
        assert_eq!(bundle.text(), "é".repeat(TEXT_MAX / 2));
        assert_eq!(bundle.get("image/png"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_never_panic_or_exceed_one_frame(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000), cut in 1_usize..50,
        ) {
            let mut decoder = Decoder::default();
            'all: for piece in bytes.chunks(cut) {
                decoder.push(piece);
                loop {
                    match decoder.next_frame() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'all,
                    }
                }
                prop_assert!(decoder.buffer.len() <= BODY_MAX + 4);
            }
        }

        #[test]
        fn frames_survive_being_cut_anywhere(
            texts in proptest::collection::vec("\\PC{0,40}", 1..5), cut in 1_usize..20,
        ) {
            let mut stream = Vec::new();
            for text in &texts {
                stream.extend_from_slice(&encode(
                    &json!({"type": "result", "nonce": "n", "blobs": [{"mime": "text/plain", "bytes": text.len()}]}),
                    &[text.as_bytes()],
                ));
            }
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in stream.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().map_err(|e| TestCaseError::fail(e.to_string()))? {
                    if let Frame::Result { bundle, .. } = frame {
                        seen.push(bundle.text());
                    }
                }
            }
            prop_assert_eq!(seen, texts);
        }

        #[test]
        fn any_json_header_is_accepted_or_refused(header in "[{\\[\"a-z:,0-9}\\]]{0,60}") {
            let mut frame = Vec::new();
            frame.extend_from_slice(&prefix_of(4 + header.len()));
            frame.extend_from_slice(&prefix_of(header.len()));
            frame.extend_from_slice(header.as_bytes());
            let _ = decode(&frame);
        }
    }
}
