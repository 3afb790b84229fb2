//! Templates: the kinds of sandboxes that a request can name. The operator's `[e2b_server.templates.NAME]` tables describe
//! them.

use std::collections::BTreeMap;

use sandcell_engine::CreateRequest;
use sandcell_sandbox::{ByteSize, Cpus};
use serde::Deserialize;

/// The templates without any settings. Each is the machine's own programs.
const BUILT_IN: [&str; 2] = ["base", "code-interpreter-v1"];
/// The maximum number of templates in the settings.
const MAX_TEMPLATES: usize = 100;
/// The maximum length of a name.
const MAX_NAME_CHARS: usize = 64;

/// The templates of a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Templates(BTreeMap<String, Template>);

/// A kind of sandbox.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Template {
    /// A container image.
    image: Option<String>,
    /// Packages that its Python has from the start.
    packages: Vec<String>,
    memory_mb: Option<u64>,
    cpus: Option<f64>,
    disk_mb: Option<u64>,
    /// Environment variables of all its programs.
    pub(crate) env: BTreeMap<String, String>,
    /// A line for the shell that runs in the background from the start.
    pub(crate) start: Option<String>,
}

/// Checks the `[e2b_server.templates]` table without keeping it. Returns the reason to refuse it, as the end of a sentence
/// about the setting.
///
/// # Errors
/// A template that cannot be used.
pub fn check_templates(table: &toml::Table) -> Result<(), String> {
    Templates::read(table).map(drop)
}

impl Templates {
    /// Reads the `[e2b_server.templates]` table.
    ///
    /// # Errors
    /// A template that cannot be used: the reason, for people.
    pub fn read(table: &toml::Table) -> Result<Self, String> {
        if table.len() > MAX_TEMPLATES {
            return Err(format!("has more than {MAX_TEMPLATES} templates"));
        }
        let mut templates = BTreeMap::new();
        for (name, value) in table {
            let of = |reason: String| format!("{name:?}: {reason}");
            let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
            if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.bytes().all(fits) {
                return Err(of(format!(
                    "a name has 1 to {MAX_NAME_CHARS} lower-case letters, digits, - and _"
                )));
            }
            let template: Template = value
                .clone()
                .try_into()
                .map_err(|error: toml::de::Error| of(error.message().to_owned()))?;
            template.check().map_err(of)?;
            templates.insert(name.clone(), template);
        }
        Ok(Self(templates))
    }

    /// Returns a template.
    pub(crate) fn find(&self, name: &str) -> Option<Template> {
        let built_in = || BUILT_IN.contains(&name).then(Template::default);
        self.0.get(name).cloned().or_else(built_in)
    }

    /// Returns the names of all templates.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.keys().map(String::as_str).chain(BUILT_IN).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Template {
    fn check(&self) -> Result<(), String> {
        let is_positive = |number: Option<u64>| number.is_none_or(|number| number > 0);
        if !is_positive(self.memory_mb) || !is_positive(self.disk_mb) {
            return Err("memory_mb and disk_mb are at least 1".to_owned());
        }
        if self.cpus.is_some_and(|cpus| Cpus::from_cores(cpus).is_none()) {
            return Err("cpus is a number of processors, such as 0.5".to_owned());
        }
        let is_name = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
        if !self
            .env
            .iter()
            .all(|(name, value)| is_name(name) && !value.contains('\0'))
        {
            return Err("env has a name or value that no variable can have".to_owned());
        }
        if self
            .start
            .as_ref()
            .is_some_and(|line| line.trim().is_empty() || line.contains('\0'))
        {
            return Err("start is a command".to_owned());
        }
        Ok(())
    }

    /// Returns the request for a sandbox of this kind.
    pub(crate) fn request(&self) -> CreateRequest {
        let size = |mebibytes: Option<u64>| mebibytes.map(ByteSize::mib);
        CreateRequest {
            count: 1,
            image: self.image.clone(),
            packages: self.packages.clone(),
            memory: size(self.memory_mb),
            cpus: self.cpus.and_then(Cpus::from_cores),
            disk: size(self.disk_mb),
            ..CreateRequest::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Templates, String> {
        Templates::read(&text.parse().unwrap())
    }

    #[test]
    fn templates_are_read_strictly() {
        let templates = read(
            "[data]\npackages = [\"numpy\"]\nmemory_mb = 1024\ncpus = 0.5\nstart = \"sleep 1\"\nenv = {A = \"b\"}\n[base]\ndisk_mb \
             = 5\n",
        )
        .unwrap();
        assert_eq!(templates.names(), ["base", "code-interpreter-v1", "data"]);
        let request = templates.find("data").unwrap().request();
        assert_eq!((request.count, request.packages), (1, vec!["numpy".to_owned()]));
        assert_eq!(request.memory, Some(ByteSize::mib(1024)));
        assert_eq!(templates.find("base").unwrap().request().disk, Some(ByteSize::mib(5)));
        assert!(templates.find("none").is_none());
        for (text, word) in [
            ("[Data]", "lower-case"),
            ("[data]\nmemory = 5", "memory"),
            ("[data]\nmemory_mb = 0", "at least 1"),
            ("[data]\nmemory_mb = \"x\"", "invalid type"),
            ("[data]\ncpus = -1", "cpus"),
            ("[data]\nstart = \" \"", "start"),
            ("[data]\nenv = {\"A=B\" = \"c\"}", "env"),
            ("data = 5", "invalid type"),
        ] {
            let reason = read(text).unwrap_err();
            assert!(reason.contains(word), "{text}: {reason}");
        }
    }
}
