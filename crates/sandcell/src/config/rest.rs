//! Whether `serve --http` has resources beside MCP.

use super::value::Value;

/// Whether there are resources beside MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestResources {
    /// There are none.
    Absent,
    /// They are at `/v1` and `/run_code`.
    Served,
}

impl RestResources {
    /// Reads the setting.
    pub(super) const fn read(value: &Value) -> Option<Self> {
        match value {
            Value::Flag(true) => Some(Self::Served),
            Value::Flag(false) => Some(Self::Absent),
            _ => None,
        }
    }
}
