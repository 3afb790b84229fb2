//! Translates the code interpreter's output lines into events. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sandcell_sandbox::{CellError, CellStatus, Exit, MimeBundle, OutputStream, SessionEvent};
use serde_json::{Map, Value};

/// The maximum length of a line in bytes: a picture with its data.
const MAX_LINE_BYTES: usize = 48 << 20;

/// The interpreter's representations: key, MIME type, and true if the text is base64.
const RESULT_FORMATS: [(&str, &str, bool); 12] = [
    ("text", "text/plain", false),
    ("html", "text/html", false),
    ("markdown", "text/markdown", false),
    ("svg", "image/svg+xml", false),
    ("png", "image/png", true),
    ("jpeg", "image/jpeg", true),
    ("pdf", "application/pdf", true),
    ("latex", "text/latex", false),
    ("javascript", "application/javascript", false),
    ("json", "application/json", false),
    ("data", "application/vnd.e2b.data+json", false),
    ("chart", "application/vnd.sandcell.chart+json", false),
];

/// The meaning of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResultLine {
    /// An event for the caller.
    Event(SessionEvent),
    /// The error that the code raised; the end of the cell follows.
    Raised(CellError),
    /// The cell is over.
    End,
    /// The interpreter ended during the cell.
    Lost,
    /// An irrelevant line.
    Nothing,
}

/// The reason why a line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum LineError {
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    #[error("a line is not a JSON object")]
    Json,
}

/// Splits bytes in pieces of any size into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// The number of bytes already searched for a line end.
    searched: usize,
}

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the meaning of the next whole line.
    pub(super) fn next(&mut self) -> Result<Option<ResultLine>, LineError> {
        let fresh = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(end) = fresh.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return if self.buffer.len() > MAX_LINE_BYTES {
                Err(LineError::TooLong)
            } else {
                Ok(None)
            };
        };
        let line: Vec<u8> = self.buffer.drain(..=self.searched + end).collect();
        self.searched = 0;
        if line.trim_ascii().is_empty() {
            return Ok(Some(ResultLine::Nothing));
        }
        match serde_json::from_slice(&line) {
            Ok(Value::Object(object)) => Ok(Some(said(&object))),
            Ok(_) | Err(_) => Err(LineError::Json),
        }
    }
}

fn said(line: &Map<String, Value>) -> ResultLine {
    let text = |key: &str| line.get(key).and_then(Value::as_str).unwrap_or_default();
    let output = |stream| match text("text") {
        "" => ResultLine::Nothing,
        text => ResultLine::Event(SessionEvent::Output {
            stream,
            bytes: Bytes::copy_from_slice(text.as_bytes()),
        }),
    };
    match text("type") {
        "stdout" => output(OutputStream::Stdout),
        "stderr" => output(OutputStream::Stderr),
        "result" => {
            let bundle = bundle(line);
            if bundle.0.is_empty() {
                return ResultLine::Nothing;
            }
            let main = line.get("is_main_result").and_then(Value::as_bool) == Some(true);
            ResultLine::Event(if main {
                SessionEvent::Result(bundle)
            } else {
                SessionEvent::Display(bundle)
            })
        }
        "error" => ResultLine::Raised(CellError {
            name: text("name").to_owned(),
            message: text("value").to_owned(),
            traceback: readable(text("traceback")),
            ..CellError::default()
        }),
        "end_of_execution" => ResultLine::End,
        "unexpected_end_of_execution" => ResultLine::Lost,
        // Counters, keep-alive messages, and additions of later versions.
        _ => ResultLine::Nothing,
    }
}

/// Returns the representations of a result. Undecodable ones are left out.
fn bundle(line: &Map<String, Value>) -> MimeBundle {
    let mut bundle = BTreeMap::new();
    for (key, mime, encoded) in RESULT_FORMATS {
        let bytes = match line.get(key) {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) if encoded => {
                let plain: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
                match STANDARD.decode(plain) {
                    Ok(bytes) => bytes,
                    Err(_) => continue,
                }
            }
            Some(Value::String(text)) => text.clone().into_bytes(),
            Some(other) => other.to_string().into_bytes(),
        };
        bundle.insert(mime.to_owned(), Bytes::from(bytes));
    }
    // Representations under custom MIME types.
    if let Some(Value::Object(extra)) = line.get("extra") {
        for (mime, value) in extra.iter().filter(|(mime, _)| mime.contains('/')).take(16) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            bundle.entry(mime.clone()).or_insert_with(|| Bytes::from(text));
        }
    }
    if !bundle.is_empty() {
        bundle.entry("text/plain".to_owned()).or_default();
    }
    MimeBundle(bundle)
}

/// The error class of code that reads standard input, which these sessions do not have.
pub(super) const NO_STDIN: &str = "no_stdin";

/// Returns how a cell ended, from the error that it raised, if any.
pub(super) fn status(raised: Option<CellError>) -> CellStatus {
    let Some(error) = raised else {
        return CellStatus::Ok;
    };
    match error.name.as_str() {
        // The interpreter ended. The service reports that without a traceback, unlike errors that code raises.
        "ContextRestarting" | "UnexpectedEndOfExecution" | "WebSocketError" if error.traceback.is_empty() => lost(),
        // Jupyter kernels turn `sys.exit` into this error: the session lives on.
        "SystemExit" => CellStatus::Exit(match error.message.trim() {
            "" | "None" => 0,
            text => text.parse().unwrap_or(1),
        }),
        "KeyboardInterrupt" => CellStatus::Interrupted(error),
        "StdinNotImplementedError" => CellStatus::Error(CellError {
            class: NO_STDIN.to_owned(),
            ..error
        }),
        "MemoryError" => CellStatus::Error(CellError {
            class: "memory".to_owned(),
            ..error
        }),
        _ => CellStatus::Error(error),
    }
}

/// The status of a cell whose interpreter was lost.
pub(super) const fn lost() -> CellStatus {
    CellStatus::Died(Exit::Signal(9))
}

/// Makes a traceback readable: kernels add colours and rules, and the service joins the lines.
fn readable(text: &str) -> String {
    const TRACEBACK_HEAD: &str = "Traceback (most recent call last)";
    let plain = without_escapes(text);
    let Some((_, frames)) = plain
        .strip_prefix("-----")
        .and_then(|rest| rest.split_once(TRACEBACK_HEAD))
    else {
        return plain;
    };
    format!(
        "{TRACEBACK_HEAD}:\n{}",
        frames.trim_start_matches(':').trim_start_matches('\n')
    )
}

/// Removes terminal escape sequences.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\u{1b}' {
            plain.push(c);
            continue;
        }
        if rest.next() == Some('[') {
            for c in rest.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        }
    }
    plain.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<ResultLine> {
        let mut lines = Lines::default();
        let mut said = Vec::new();
        // Two bytes at a time, so that the result cannot depend on the network's pieces.
        for piece in text.as_bytes().chunks(2) {
            lines.push(piece);
            while let Some(one) = lines.next().unwrap() {
                said.push(one);
            }
        }
        said
    }

    #[test]
    fn a_conversation_becomes_events() {
        let said = all(concat!(
            r#"{"type":"number_of_executions","execution_count":1}"#,
            "\n",
            r#"{"type":"stdout","text":"hi\n","timestamp":"2026-11-20T21:47:20.53+00:00"}"#,
            "\n",
            r#"{"type":"keepalive"}"#,
            "\n",
            r#"{"type":"result","text":"<Figure>","png":"aGk=\n","chart":{"type":"line"},"extra":{},"is_main_result":false}"#,
            "\n",
            r#"{"type":"result","text":"42","json":{"a":[1]},"is_main_result":true}"#,
            "\n",
            r#"{"type":"from the future","x":1}"#,
            "\n",
            r#"{"type":"error","name":"ZeroDivisionError","value":"division by zero","traceback":"\u001b[0;31mTraceback\u001b[0m\nline\n"}"#,
            "\n",
            r#"{"type":"end_of_execution"}"#,
            "\n",
        ));
        let events: Vec<&ResultLine> = said.iter().filter(|one| **one != ResultLine::Nothing).collect();
        let ResultLine::Event(SessionEvent::Output { stream, bytes }) = events[0] else {
            panic!("{events:?}")
        };
        assert_eq!((*stream, bytes.as_ref()), (OutputStream::Stdout, &b"hi\n"[..]));
        let ResultLine::Event(SessionEvent::Display(figure)) = events[1] else {
            panic!("{events:?}")
        };
        assert_eq!(figure.get("image/png").unwrap().as_ref(), b"hi");
        assert_eq!(
            figure.get("application/vnd.sandcell.chart+json").unwrap().as_ref(),
            br#"{"type":"line"}"#
        );
        let ResultLine::Event(SessionEvent::Result(value)) = events[2] else {
            panic!("{events:?}")
        };
        assert_eq!(value.text(), "42");
        assert_eq!(value.get("application/json").unwrap().as_ref(), br#"{"a":[1]}"#);
        let ResultLine::Raised(error) = events[3] else {
            panic!("{events:?}")
        };
        assert_eq!(
            (error.name.as_str(), error.traceback.as_str()),
            ("ZeroDivisionError", "Traceback\nline")
        );
        assert_eq!(events[4], &ResultLine::End);
    }

    #[test]
    fn an_invalid_picture_is_left_out() {
        let said = all("{\"type\":\"result\",\"png\":\"?\",\"text\":\"x\",\"is_main_result\":true}\n\n");
        let ResultLine::Event(SessionEvent::Result(value)) = &said[0] else {
            panic!("{said:?}")
        };
        assert_eq!(value.0.len(), 1);
        assert_eq!(said[1], ResultLine::Nothing);
    }

    #[test]
    fn malformed_lines_are_errors() {
        let mut lines = Lines::default();
        lines.push(b"[]\n");
        assert_eq!(lines.next(), Err(LineError::Json));
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; MAX_LINE_BYTES + 1]);
        assert_eq!(lines.next(), Err(LineError::TooLong));
    }

    #[test]
    fn a_kernel_traceback_is_shown_like_a_python_traceback() {
        let text = "\u{1b}[31m---------------------------------------------------------------------------\u{1b}[39mZeroDivisionError\
                    \u{20}                        Traceback (most recent call last)Cell In[4], line 1\n----> 1 1/0\nZeroDivisionError: division by zero";
        assert_eq!(
            readable(text),
            "Traceback (most recent call last):\nCell In[4], line 1\n----> 1 1/0\nZeroDivisionError: division by zero"
        );
        assert_eq!(
            readable("  Cell In[7], line 1\nSyntaxError: no\n"),
            "  Cell In[7], line 1\nSyntaxError: no"
        );
    }

    #[test]
    fn an_exit_is_not_an_error() {
        let raised = |name: &str, message: &str| {
            status(Some(CellError {
                name: name.into(),
                message: message.into(),
                ..CellError::default()
            }))
        };
        assert_eq!(status(None), CellStatus::Ok);
        assert_eq!(raised("SystemExit", "3"), CellStatus::Exit(3));
        assert_eq!(raised("SystemExit", "None"), CellStatus::Exit(0));
        assert_eq!(raised("SystemExit", "text"), CellStatus::Exit(1));
        assert!(matches!(raised("KeyboardInterrupt", ""), CellStatus::Interrupted(_)));
        assert!(matches!(
            raised("ContextRestarting", "Context was restarted"),
            CellStatus::Died(_)
        ));
    }
}
