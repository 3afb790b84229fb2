//! Encodes and decodes frames.

use serde::Serialize;

use super::ProtocolError;

/// The maximum value of a frame's length field.
pub const MAX_FRAME: usize = 8 << 20;

/// The bytes of the kind and the stream id. The length field counts them.
const HEADER_BYTES: usize = 5;

/// The minimum room that the decoder offers to a read: at first, and after reads that filled their room.
const MIN_READ_BYTES: usize = 4 << 10;
const MAX_READ_BYTES: usize = 64 << 10;

/// An empty decoder or buffer with more bytes than this releases its memory.
const MAX_KEPT_BYTES: usize = 512 << 10;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the protocol's table defines each")]
pub enum Kind {
    Hello,
    Request,
    Reply,
    Event,
    Data,
    Credit,
    Close,
    Reset,
    Goodbye,
}

impl Kind {
    /// The byte on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Request => 2,
            Self::Reply => 3,
            Self::Event => 4,
            Self::Data => 5,
            Self::Credit => 6,
            Self::Close => 7,
            Self::Reset => 8,
            Self::Goodbye => 9,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Request,
            3 => Self::Reply,
            4 => Self::Event,
            5 => Self::Data,
            6 => Self::Credit,
            7 => Self::Close,
            8 => Self::Reset,
            9 => Self::Goodbye,
            _ => return None,
        })
    }
}

/// A frame that borrows from the decoder's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind.
    pub kind: Kind,
    /// The stream it belongs to.
    pub stream: u32,
    /// The rest.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Returns the channel and the bytes of DATA.
    ///
    /// # Errors
    /// The payload has no byte of data.
    pub fn data(&self) -> Result<(u8, &'a [u8]), ProtocolError> {
        match self.payload.split_first() {
            Some((channel, bytes)) if !bytes.is_empty() => Ok((*channel, bytes)),
            _ => Err(ProtocolError::new("an empty DATA frame")),
        }
    }

    /// Returns the channel and the amount of CREDIT.
    ///
    /// # Errors
    /// The payload does not have five bytes.
    pub fn credit(&self) -> Result<(u8, u32), ProtocolError> {
        match *self.payload {
            [channel, a, b, c, d] => Ok((channel, u32::from_le_bytes([a, b, c, d]))),
            _ => Err(ProtocolError::new("a CREDIT frame of the wrong size")),
        }
    }

    /// Returns the channel of CLOSE.
    ///
    /// # Errors
    /// The payload does not have one byte.
    pub fn close(&self) -> Result<u8, ProtocolError> {
        match *self.payload {
            [channel] => Ok(channel),
            _ => Err(ProtocolError::new("a CLOSE frame of the wrong size")),
        }
    }
}

/// Cuts a byte stream into frames. Holds at most one frame and the rest of one read.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// The room for the next read. It grows after full reads. Most sandboxes send only small frames.
    read_bytes: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            end: 0,
            read_bytes: MIN_READ_BYTES,
        }
    }
}

impl Decoder {
    /// Returns room to read into. [`Decoder::filled`] reports the number of read bytes.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if self.bytes.len() > MAX_KEPT_BYTES {
                self.bytes = Vec::new();
            }
        }
        let wanted = self.wanted();
        if self.bytes.len() - self.end < wanted && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() - self.end < wanted {
            self.bytes.resize(self.end + wanted, 0);
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// Returns the missing bytes of the unfinished frame, and at least the usual room. Grows by at most doubling, so a
    /// length field alone does not make the decoder allocate.
    fn wanted(&self) -> usize {
        let have = self.end - self.start;
        let missing = self.head().map_or(0, |(length, _)| (length + 4).saturating_sub(have));
        missing.clamp(self.read_bytes, have.max(self.read_bytes))
    }

    /// Reports that `count` bytes of the room were filled.
    pub fn filled(&mut self, count: usize) {
        if count >= self.read_bytes {
            self.read_bytes = (2 * self.read_bytes).min(MAX_READ_BYTES);
        }
        self.end = self.end.saturating_add(count).min(self.bytes.len());
    }

    fn head(&self) -> Option<(usize, &[u8])> {
        let unread = self.bytes.get(self.start..self.end)?;
        let (length, rest) = unread.split_first_chunk::<4>()?;
        Some((usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX), rest))
    }

    /// Returns the next whole frame, if there is one.
    ///
    /// # Errors
    /// The length is out of range or the kind is unknown.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, ProtocolError> {
        let Some((length, _)) = self.head() else {
            return Ok(None);
        };
        if !(HEADER_BYTES..=MAX_FRAME).contains(&length) {
            return Err(ProtocolError::new(format!("a frame of {length} bytes")));
        }
        let from = self.start + 4;
        if self.end - from < length {
            return Ok(None);
        }
        self.start = from + length;
        let body = self.bytes.get(from..from + length).unwrap_or_default();
        let Some((&[number, a, b, c, d], payload)) = body.split_first_chunk::<HEADER_BYTES>() else {
            return Err(ProtocolError::new("a frame without a head"));
        };
        let kind =
            Kind::from_number(number).ok_or_else(|| ProtocolError::new(format!("a frame of unknown kind {number}")))?;
        Ok(Some(Frame {
            kind,
            stream: u32::from_le_bytes([a, b, c, d]),
            payload,
        }))
    }
}

/// Frames that wait to be written.
#[derive(Debug, Default)]
pub struct OutBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl OutBuffer {
    /// Returns the number of unwritten bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Returns true if all bytes were written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the unwritten bytes.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Removes the first `count` bytes, which were written.
    pub fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.bytes.len());
        if self.start == self.bytes.len() {
            self.start = 0;
            self.bytes.clear();
            if self.bytes.capacity() > MAX_KEPT_BYTES {
                self.bytes = Vec::new();
            }
        } else if self.start >= MAX_KEPT_BYTES {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Appends a frame with a payload of several parts. Returns false and appends nothing if the frame would be too
    /// long.
    #[must_use]
    pub fn frame(&mut self, kind: Kind, stream: u32, parts: &[&[u8]]) -> bool {
        let length = parts
            .iter()
            .fold(HEADER_BYTES, |sum, part| sum.saturating_add(part.len()));
        let Some(field) = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME) else {
            return false;
        };
        self.bytes.reserve(length + 4);
        self.bytes.extend_from_slice(&field.to_le_bytes());
        self.bytes.push(kind.number());
        self.bytes.extend_from_slice(&stream.to_le_bytes());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        true
    }

    /// Appends a frame with a JSON payload. Returns false if it is too long or cannot be serialized.
    #[must_use]
    pub fn message(&mut self, kind: Kind, stream: u32, message: &impl Serialize) -> bool {
        serde_json::to_vec(message).is_ok_and(|json| self.frame(kind, stream, &[&json]))
    }

    /// Appends DATA.
    pub fn data(&mut self, stream: u32, channel: u8, bytes: &[u8]) {
        debug_assert!(bytes.len() < MAX_FRAME - HEADER_BYTES);
        let _fits = self.frame(Kind::Data, stream, &[&[channel], bytes]);
    }

    /// Appends CREDIT.
    pub fn credit(&mut self, stream: u32, channel: u8, amount: u32) {
        let _fits = self.frame(Kind::Credit, stream, &[&[channel], &amount.to_le_bytes()]);
    }

    /// Appends CLOSE.
    pub fn close(&mut self, stream: u32, channel: u8) {
        let _fits = self.frame(Kind::Close, stream, &[&[channel]]);
    }

    /// Appends RESET.
    pub fn reset(&mut self, stream: u32) {
        let _fits = self.frame(Kind::Reset, stream, &[]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feed(decoder: &mut Decoder, mut bytes: &[u8], step: usize) -> Result<Vec<(Kind, u32, Vec<u8>)>, ProtocolError> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let room = decoder.room();
            let count = bytes.len().min(step).min(room.len());
            room[..count].copy_from_slice(&bytes[..count]);
            decoder.filled(count);
            bytes = &bytes[count..];
            while let Some(frame) = decoder.next_frame()? {
                frames.push((frame.kind, frame.stream, frame.payload.to_vec()));
            }
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut_of_the_byte_stream(
            payloads in proptest::collection::vec((1_u8..10, any::<u32>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
            step in 1_usize..700,
        ) {
            let mut out = OutBuffer::default();
            let mut expected = Vec::new();
            for (number, stream, payload) in payloads {
                let kind = Kind::from_number(number).unwrap();
                prop_assert!(out.frame(kind, stream, &[&payload]));
                expected.push((kind, stream, payload));
            }
            prop_assert_eq!(feed(&mut Decoder::default(), out.pending(), step), Ok(expected));
        }

        #[test]
        fn arbitrary_bytes_decode_to_frames_or_a_protocol_error_within_one_frame_of_memory(
            bytes in proptest::collection::vec(any::<u8>(), 0..5_000), step in 1_usize..5_000,
        ) {
            let mut decoder = Decoder::default();
            let _ = feed(&mut decoder, &bytes, step);
            prop_assert!(decoder.bytes.len() <= 4 * MAX_READ_BYTES);
        }
    }

    #[test]
    fn the_longest_frame_is_accepted_and_one_byte_more_is_refused() {
        let payload = vec![7; MAX_FRAME - HEADER_BYTES];
        let mut out = OutBuffer::default();
        assert!(out.frame(Kind::Reply, 3, &[&payload]));
        let mut decoder = Decoder::default();
        let frames = feed(&mut decoder, out.pending(), 100_000).unwrap();
        assert_eq!(frames, [(Kind::Reply, 3, payload.clone())]);
        assert!(!out.frame(Kind::Reply, 3, &[&payload, b"1"]));
        decoder.room();
        assert!(
            decoder.bytes.len() <= MAX_KEPT_BYTES,
            "an empty decoder gives a large frame's memory back"
        );
    }

    #[test]
    fn bad_lengths_and_unknown_kinds_are_protocol_errors() {
        for length in [0_u32, 4, u32::try_from(MAX_FRAME).unwrap() + 1, u32::MAX] {
            assert!(
                feed(&mut Decoder::default(), &length.to_le_bytes(), 100).is_err(),
                "{length}"
            );
        }
        for kind in [0_u8, 10, 255] {
            let bytes = [5, 0, 0, 0, kind, 1, 0, 0, 0];
            assert!(feed(&mut Decoder::default(), &bytes, 100).is_err(), "{kind}");
        }
    }

    #[test]
    fn the_read_buffer_starts_small_and_grows_after_full_reads() {
        let mut decoder = Decoder::default();
        for _ in 0..1000 {
            decoder.room();
            assert!(decoder.bytes.len() <= MIN_READ_BYTES);
            decoder.filled(0);
        }
        let mut out = OutBuffer::default();
        out.data(1, 1, &vec![7; 256 << 10]);
        feed(&mut decoder, out.pending(), usize::MAX).unwrap();
        assert!(decoder.room().len() >= MAX_READ_BYTES);
    }

    #[test]
    fn a_length_alone_does_not_make_the_decoder_allocate() {
        let mut decoder = Decoder::default();
        feed(&mut decoder, &u32::try_from(MAX_FRAME).unwrap().to_le_bytes(), 4).unwrap();
        decoder.room();
        assert!(decoder.bytes.len() <= 2 * MAX_READ_BYTES);
    }

    #[test]
    fn written_bytes_are_dropped_in_order() {
        let mut out = OutBuffer::default();
        out.data(1, 1, b"abc");
        out.credit(1, 2, 9);
        let all = out.pending().to_vec();
        out.consume(5);
        assert_eq!(out.pending(), &all[5..]);
        out.consume(usize::MAX);
        assert!(out.is_empty());
    }
}
