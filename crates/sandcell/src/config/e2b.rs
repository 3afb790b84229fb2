//! The settings of the back end e2b, as complete types.

use std::time::Duration;

use sandcell_sandbox::{Level, Secret};

use super::{ConfigError, Getter, Value, wrong};

/// The operator's settings for the E2B service.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "e2b"), allow(dead_code, reason = "only the back end e2b looks at it"))]
pub(crate) struct E2bSettings {
    pub(crate) key: Option<Secret>,
    pub(crate) domain: String,
    pub(crate) api_url: Option<String>,
    pub(crate) sandbox_url: Option<String>,
    pub(crate) debug: bool,
    pub(crate) template: String,
    pub(crate) lifetime: Duration,
    pub(crate) level: Option<Level>,
    pub(crate) internet: bool,
}

impl E2bSettings {
    /// Reads the settings.
    pub(super) fn read(get: &Getter<'_>) -> Result<Self, ConfigError> {
        let line = |key| match get.value(key)? {
            Value::Text(line) => Ok(line.clone()),
            _ => Err(wrong(key)),
        };
        let flag = |key| match get.value(key)? {
            Value::Flag(flag) => Ok(*flag),
            _ => Err(wrong(key)),
        };
        Ok(Self {
            key: match get.value("e2b.api_key")? {
                Value::Secret(key) => key.clone(),
                _ => return Err(wrong("e2b.api_key")),
            },
            domain: line("e2b.domain")?.unwrap_or_default(),
            api_url: line("e2b.api_url")?,
            sandbox_url: line("e2b.sandbox_url")?,
            debug: flag("e2b.debug")?,
            template: line("e2b.template")?.unwrap_or_default(),
            lifetime: Duration::from_secs(get.integer("e2b.timeout_s")?),
            level: match get.word("e2b.level")?.as_str() {
                "auto" => None,
                "microvm" => Some(Level::Microvm),
                "gvisor" => Some(Level::Gvisor),
                "container" => Some(Level::Container),
                _ => return Err(wrong("e2b.level")),
            },
            internet: flag("e2b.internet")?,
        })
    }
}
