//! Values that code shows, in the form of E2B's results.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandcell_engine::ShownValue;
use serde_json::{Map, Value, json};

/// The fields of a result for representations that are text.
const TEXT_FIELDS: [(&str, &str); 6] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("text/latex", "latex"),
    ("application/javascript", "javascript"),
];
/// The fields of a result for representations that are bytes. They are sent as base64.
const BINARY_FIELDS: [(&str, &str); 3] = [("image/png", "png"), ("image/jpeg", "jpeg"), ("application/pdf", "pdf")];
/// The fields of a result for representations that are JSON.
const JSON_FIELDS: [(&str, &str); 3] = [
    ("application/json", "json"),
    ("application/vnd.sandcell.figure+json", "chart"),
    ("application/vnd.sandcell.data+json", "data"),
];
/// The mark of a displayed mapping without a text: its text was made for other clients.
const MADE_TEXT: &str = "text/vnd.sandcell.made-text";
/// Other representations that are not for clients.
const INTERNAL_TYPE_PREFIXES: [&str; 2] = ["application/vnd.sandcell", "text/vnd.sandcell"];

/// Returns the line of a value.
pub(crate) fn result(value: &ShownValue) -> Value {
    let mut line = Map::new();
    let mut extra = Map::new();
    for (mime, bytes) in &value.bundle.0 {
        let text = || String::from_utf8_lossy(bytes).into_owned();
        if let Some((_, field)) = TEXT_FIELDS.iter().find(|(known, _)| known == mime) {
            let text = if *field == "text" {
                without_quotes(text())
            } else {
                text()
            };
            line.insert((*field).to_owned(), text.into());
        } else if let Some((_, field)) = BINARY_FIELDS.iter().find(|(known, _)| known == mime) {
            line.insert((*field).to_owned(), STANDARD.encode(bytes).into());
        } else if let Some((_, field)) = JSON_FIELDS.iter().find(|(known, _)| known == mime) {
            let parsed = serde_json::from_slice(bytes).unwrap_or_else(|_| text().into());
            line.insert((*field).to_owned(), parsed);
        } else if !INTERNAL_TYPE_PREFIXES.iter().any(|own| mime.starts_with(own)) {
            let content = match std::str::from_utf8(bytes) {
                Ok(text) if mime.ends_with("json") => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
                Ok(text) => text.into(),
                Err(_) => STANDARD.encode(bytes).into(),
            };
            extra.insert(mime.clone(), content);
        }
    }
    if value.bundle.get(MADE_TEXT).is_some() {
        line.remove("text");
    }
    line.insert("type".to_owned(), "result".into());
    line.insert("extra".to_owned(), extra.into());
    line.insert("is_main_result".to_owned(), value.is_result.into());
    json!(line)
}

/// Returns the text of a string's value without the quotes around it, as E2B shows strings.
fn without_quotes(text: String) -> String {
    for quote in ['\'', '"'] {
        let inner = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner.to_owned();
        }
    }
    text
}

/// Returns JSON text with only ASCII characters.
pub(crate) fn ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            plain.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                plain.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sandcell_sandbox::MimeBundle;

    use super::*;

    fn shown(parts: &[(&str, &[u8])], is_result: bool) -> Value {
        let parts = parts
            .iter()
            .map(|(mime, bytes)| ((*mime).to_owned(), Bytes::copy_from_slice(bytes)));
        result(&ShownValue {
            bundle: MimeBundle(parts.collect()),
            is_result,
            stdout: 0,
            stderr: 0,
        })
    }

    #[test]
    fn each_representation_has_its_field() {
        let line = shown(
            &[
                ("text/plain", b"<Figure>"),
                ("image/png", b"\x89PNG"),
                ("application/json", b"{\"a\": [1]}"),
                ("text/html", b"<b>x</b>"),
                ("application/geo+json", b"{\"b\": 2}"),
                ("application/vnd.sandcell.table+json", b"{}"),
                ("application/vnd.sandcell.figure+json", b"{\"type\": \"line\"}"),
                ("application/vnd.sandcell.data+json", b"{\"x\": [1]}"),
            ],
            false,
        );
        let expected = json!({
            "type": "result", "text": "<Figure>", "png": "iVBORw==", "json": {"a": [1]}, "chart": {"type": "line"},
            "data": {"x": [1]}, "html": "<b>x</b>",
            "extra": {"application/geo+json": {"b": 2}}, "is_main_result": false,
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn a_text_that_was_made_for_others_is_left_out() {
        let line = shown(
            &[
                ("text/plain", b"$y$"),
                ("text/latex", b"$y$"),
                ("text/vnd.sandcell.made-text", b"true"),
            ],
            false,
        );
        assert_eq!(
            (line.get("text"), &line["latex"], &line["extra"]),
            (None, &json!("$y$"), &json!({}))
        );
    }

    #[test]
    fn json_for_lines_has_only_ascii_characters() {
        let text = json!({"text": "a\u{85}\u{2028}é😀\n"}).to_string();
        let plain = ascii(&text);
        assert!(plain.is_ascii(), "{plain}");
        let (before, after): (Value, Value) = (
            serde_json::from_str(&text).unwrap(),
            serde_json::from_str(&plain).unwrap(),
        );
        assert_eq!(before, after);
    }

    #[test]
    fn a_string_is_shown_without_its_quotes() {
        for (text, expected) in [
            ("'hi'", "hi"),
            ("\"it's\"", "it's"),
            ("'", "'"),
            ("42", "42"),
            ("''", ""),
        ] {
            assert_eq!(
                shown(&[("text/plain", text.as_bytes())], true)["text"],
                expected,
                "{text}"
            );
        }
    }
}
