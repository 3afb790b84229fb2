//! Scans a JSON message without parsing it: its depth, its id, and the presence of a method. Works on pieces, in
//! constant memory, so that a message that is too large or too deep still gets an answer with its id.

use serde_json::Value;

/// The maximum kept bytes of a key or an id; longer ones are unknown to the server.
const TOKEN_BYTES: usize = 300;

/// The state of the current message.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    depth: u32,
    deepest: u32,
    /// Brackets, commas and colons: at least the number of values.
    marks: u32,
    in_string: bool,
    escaped: bool,
    /// The unparsed string, number or word at the top level that is being read.
    token: Vec<u8>,
    token_too_long: bool,
    key: Vec<u8>,
    after_colon: bool,
    id: Option<Value>,
    has_method: bool,
    is_list: bool,
}

impl Scanner {
    /// Scans the next bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.in_string {
                self.string_byte(byte);
            } else {
                self.plain_byte(byte);
            }
        }
    }

    /// The deepest level of brackets so far.
    pub(crate) fn deepest(&self) -> u32 {
        self.deepest
    }

    /// The maximum number of values, those in a map counted with their keys.
    pub(crate) fn marks(&self) -> u32 {
        self.marks
    }

    /// The request's id, if it is a string or a whole number.
    pub(crate) fn id(&self) -> Option<&Value> {
        self.id.as_ref()
    }

    /// Returns true for a likely notification, which never gets an answer.
    pub(crate) fn is_notification(&self) -> bool {
        self.has_method && self.id.is_none()
    }

    /// Returns true for a list of messages.
    pub(crate) fn is_list(&self) -> bool {
        self.is_list
    }

    fn string_byte(&mut self, byte: u8) {
        self.keep(byte);
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            _ => {}
        }
    }

    fn plain_byte(&mut self, byte: u8) {
        if matches!(byte, b'{' | b'[' | b',' | b':') {
            self.marks = self.marks.saturating_add(1);
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.token.clear();
                self.token_too_long = false;
                self.keep(byte);
            }
            b'{' | b'[' => {
                self.is_list |= self.depth == 0 && byte == b'[';
                self.depth = self.depth.saturating_add(1);
                self.deepest = self.deepest.max(self.depth);
                self.token.clear();
            }
            b'}' | b']' => {
                self.end_of_value();
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => self.end_of_value(),
            b':' if self.depth == 1 => {
                self.key = std::mem::take(&mut self.token);
                self.after_colon = true;
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.keep(byte),
        }
    }

    /// Only top-level parts of the message's object are kept.
    fn keep(&mut self, byte: u8) {
        if self.depth != 1 {
            return;
        }
        if self.token.len() < TOKEN_BYTES {
            self.token.push(byte);
        } else {
            self.token_too_long = true;
        }
    }

    fn end_of_value(&mut self) {
        if self.depth != 1 || !std::mem::take(&mut self.after_colon) {
            return;
        }
        let token = std::mem::take(&mut self.token);
        let whole = !std::mem::take(&mut self.token_too_long);
        match self.key.as_slice() {
            b"\"id\"" if whole => {
                let value: Option<Value> = serde_json::from_slice(&token).ok();
                self.id = value.filter(|value| value.is_string() || value.is_i64());
            }
            b"\"method\"" => self.has_method = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scan(text: &str) -> Scanner {
        let mut scanner = Scanner::default();
        for piece in text.as_bytes().chunks(3) {
            scanner.feed(piece);
        }
        scanner
    }

    #[test]
    fn the_id_is_found_at_any_position() {
        for (text, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"method":"x"}"#, Some(json!(7))),
            (
                r#"{"method":"x","params":{"id":1,"a":"}\",\"id\":2"}, "id" : "a\"b" }"#,
                Some(json!("a\"b")),
            ),
            (r#"{"params":[[[{"id":3}]]],"id":-4}"#, Some(json!(-4))),
            (r#"{"id":null,"method":"x"}"#, None),
            (r#"{"id":1.5}"#, None),
            (r#"{"id":{"a":1}}"#, None),
            (r#"{"method":"x"}"#, None),
            (r#"["id",5]"#, None),
            ("garbage", None),
        ] {
            assert_eq!(scan(text).id(), id.as_ref(), "{text}");
        }
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(1000));
        assert_eq!(scan(&long).id(), None);
    }

    #[test]
    fn depth_counts_brackets_outside_of_strings() {
        assert_eq!(scan(r#"{"a":[["[[[["]]}"#).deepest(), 3);
        assert_eq!(scan(&"[".repeat(200_000)).deepest(), 200_000);
        assert_eq!(scan(r#""\"[""#).deepest(), 0);
    }

    #[test]
    fn values_are_counted_outside_of_strings() {
        assert_eq!(scan(r#"{"a":[1,2,{"b":"[,:{"}]}"#).marks(), 7);
        assert_eq!(scan(&"{\"\":0},".repeat(1000)).marks(), 3000);
    }

    #[test]
    fn a_message_with_a_method_and_no_id_is_a_notification() {
        assert!(scan(r#"{"method":"notifications/x"}"#).is_notification());
        assert!(!scan(r#"{"method":"x","id":1}"#).is_notification());
        assert!(!scan("{}").is_notification());
        assert!(scan(r#" [{"method":"x"}]"#).is_list());
        assert!(!scan(r#"{"a":[]}"#).is_list());
    }
}
