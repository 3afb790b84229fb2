//! Shows names that are not UTF-8 as text: such a byte becomes `\xNN`.
//!
//! A file whose real name has these characters takes precedence, so this notation hides no file that could be opened
//! without it.

const ESCAPE_PREFIX: &[u8] = b"\\x";
/// The length of one escape: the mark and two digits.
const ESCAPE_LENGTH: usize = 4;

/// Returns a name as text.
pub(super) fn to_text(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Returns the name that is shown as this text, if it differs from the text.
pub(super) fn from_text(text: &str) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        match rest.get(..ESCAPE_LENGTH).and_then(byte) {
            Some(byte) => {
                name.push(byte);
                rest = rest.get(ESCAPE_LENGTH..).unwrap_or_default();
            }
            None => {
                name.push(*first);
                rest = others;
            }
        }
    }
    (name.len() < text.len()).then_some(name)
}

/// Returns the byte of an escape. Bytes of ASCII are never escaped.
fn byte(written: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(written.strip_prefix(ESCAPE_PREFIX)?).ok()?;
    let byte = u8::from_str_radix(digits, 16).ok()?;
    (byte >= 0x80).then_some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_name_decodes_to_the_original() {
        for name in [
            &b"caf\xe9.txt"[..],
            b"\xff\xfe",
            b"a/\xe4\xb8/b",
            "é\\".as_bytes(),
            b"\xf0\x9f",
        ] {
            let text = to_text(name);
            let back = from_text(&text).unwrap_or_else(|| text.clone().into_bytes());
            assert_eq!(back, name, "{text}");
        }
        assert_eq!(to_text(b"caf\xe9.txt"), "caf\\xe9.txt");
    }

    #[test]
    fn plain_names_are_not_escaped() {
        for text in ["plain", "é中😀", "a\\x41", "\\x", "\\xe", "\\xzz", "C:\\x"] {
            assert_eq!(from_text(text), None, "{text}");
            assert_eq!(to_text(text.as_bytes()), text);
        }
    }
}
