//! The answer of a tool, independent of MCP. Only `convert` converts it into MCP types.

use sandcell_sandbox::Failure;
use serde_json::{Map, Value, json};

/// A content block of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Block {
    /// Text.
    Text(String),
    /// A picture that models can see.
    Image {
        /// `image/png` or `image/jpeg`.
        mime: &'static str,
        /// The file in base64.
        base64: String,
    },
    /// A resource that can be read with its URI.
    Link(Link),
}

/// A link to a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its `sandcell://` address.
    pub(crate) uri: String,
    /// A short name.
    pub(crate) name: String,
    /// Its type, if known.
    pub(crate) mime: Option<String>,
    /// Its size in bytes.
    pub(crate) size: u64,
}

/// The answer to a tool call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Answer {
    /// The content blocks for the model.
    pub(crate) blocks: Vec<Block>,
    /// The same result as data, for tools that declare an output schema. Never combined with pictures.
    pub(crate) structured: Option<Value>,
    /// Metadata for programs.
    pub(crate) meta: Map<String, Value>,
    /// True if the call failed.
    pub(crate) failed: bool,
}

impl Answer {
    /// An answer of one text.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self {
            blocks: vec![Block::Text(text.into())],
            ..Self::default()
        }
    }

    /// A text and the same facts as data.
    pub(crate) fn data(text: impl Into<String>, structured: Value) -> Self {
        Self {
            structured: Some(structured),
            ..Self::text(text)
        }
    }

    /// Adds metadata for programs.
    pub(crate) fn with_meta(mut self, key: &str, value: Value) -> Self {
        self.meta.insert(key.to_owned(), value);
        self
    }

    /// The execution that still runs, if this answers a call that did not wait for its end.
    pub(crate) fn running(&self) -> Option<String> {
        let execution = self.meta.get("sandcell/execution")?;
        let id = execution.get("execution_id")?.as_str()?;
        (execution.get("status")?.as_str()? == "running").then(|| id.to_owned())
    }

    /// The answer to a failed call.
    pub(crate) fn failure(failure: &Failure) -> Self {
        let text = format!("{}: {}\nWhat to do: {}", failure.code, failure.message, failure.remedy);
        Self {
            failed: true,
            ..Self::text(text)
        }
        .with_meta(
            "sandcell/error",
            json!({"code": failure.code, "message": failure.message, "remedy": failure.remedy}),
        )
    }
}

/// Notices of the server, one a line, placed before everything else.
pub(crate) fn notice_lines(notices: &[String]) -> String {
    notices.iter().fold(String::new(), |text, notice| text + notice + "\n")
}
