//! A link: one byte stream in each direction between a host and the agent in a Pod.
//!
//! The host connects to the agent by TCP or through a tunnel. Such a connection can break at any time. Then the host connects again, and
//! the streams continue: nothing is lost, doubled or out of order. Code inside the Pod can also connect to the agent's port. So both ends
//! prove that they know the same key, and all messages are encrypted.
//!
//! [`protocol`] has the messages and the state, without I/O; `host` and `agent` are the two ends.
//! `docs/design/link.md` describes the protocol.
#![forbid(unsafe_code)]

#[cfg(all(unix, feature = "agent"))]
pub mod agent;
#[cfg(feature = "host")]
pub mod host;
pub mod protocol;

use std::fmt;

/// The number of bytes of a key.
pub const KEY_BYTES: usize = 32;

/// The secret that both ends of a link know.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// Makes a key of random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads a key from hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut key = [0; KEY_BYTES];
        if text.len() != 2 * KEY_BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(key))
    }

    /// Returns the key as hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

/// A key is not shown.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_other_text_is_refused() {
        let key = Key::new([0xa5; KEY_BYTES]);
        assert_eq!(Key::parse(&key.to_hex()), Some(key));
        for text in [
            "",
            "a5",
            &"zz".repeat(KEY_BYTES),
            &"é".repeat(KEY_BYTES),
            &"+1".repeat(KEY_BYTES),
        ] {
            assert_eq!(Key::parse(text), None, "{text}");
        }
    }
}
