//! Decodes a stream of bytes as text, in parts. A character that is cut between two parts is joined.

/// The decoder, with the bytes of an incomplete character.
#[derive(Debug, Default)]
pub struct Utf8 {
    unfinished: Vec<u8>,
}

impl Utf8 {
    /// Decodes the next bytes. Invalid UTF-8 becomes U+FFFD.
    pub fn text(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.unfinished);
        all.extend_from_slice(bytes);
        let end = whole_characters(&all);
        self.unfinished = all.split_off(end);
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Returns the number of bytes that wait for the rest of their character.
    #[must_use]
    pub fn held(&self) -> u64 {
        u64::try_from(self.unfinished.len()).unwrap_or(0)
    }

    /// Decodes the remaining bytes at the end of the stream.
    pub fn end(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.unfinished)).into_owned()
    }
}

/// Returns the number of bytes before an incomplete last character.
fn whole_characters(bytes: &[u8]) -> usize {
    let lead = bytes.iter().rev().take(4).position(|byte| byte & 0xc0 != 0x80);
    let Some(back) = lead else { return bytes.len() };
    let at = bytes.len() - back - 1;
    let needs = match bytes.get(at) {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => 1,
    };
    if needs > back + 1 { at } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_characters_are_joined() {
        let text = "aé€😀z";
        for size in 1..6 {
            let mut reader = Utf8::default();
            let mut read: String = text.as_bytes().chunks(size).map(|part| reader.text(part)).collect();
            read.push_str(&reader.end());
            assert_eq!(read, text, "in parts of {size}");
        }
    }

    #[test]
    fn invalid_bytes_are_replaced_and_never_delayed() {
        let mut reader = Utf8::default();
        assert_eq!(reader.text(b"a\xff\x80b"), "a\u{fffd}\u{fffd}b");
        assert_eq!(reader.text(b"\xf0\x9f"), "");
        assert_eq!(reader.text(b"x"), "\u{fffd}x");
        assert_eq!(reader.text(b"\xe2"), "");
        assert_eq!(reader.end(), "\u{fffd}");
    }
}
