//! The setting for REST resources of `serve --http`.

use super::value::Value;

/// Enables or disables the REST resources next to MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestResources {
    /// The resources do not exist.
    Absent,
    /// The resources are served at `/v1` and `/run_code`.
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
