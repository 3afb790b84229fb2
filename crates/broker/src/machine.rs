//! The machine owner's settings for package indexes. They are read from the same places as pip and uv use: environment
//! variables, `uv.toml`, `pip.conf`, `.netrc`. Variables have precedence over files, and uv's files over pip's.
//!
//! The files belong to the owner. They are read outside, and none of their content goes inside. Unknown keys are
//! ignored, because they are settings of other tools.
//!
//! `pip.conf` and `.npmrc` are parsed here, each in some twenty lines. A library such as `rust-ini` brings further
//! crates, refuses a file for one line that it cannot parse, and knows neither pip's keys nor npm's variables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reqwest::Url;

/// The default index.
const PUBLIC_INDEX: &str = "https://pypi.org/simple";
/// The maximum size that is read of one settings file.
const FILE_MAX: u64 = 1 << 20;

/// An unusable file or address in the machine's settings.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// An invalid address.
    #[error("{place} names {what}, which is not an http or https address")]
    Address {
        /// The file or source of the setting.
        place: String,
        /// The name of the setting. Never the address itself, which may contain a password.
        what: String,
    },
    /// A named file that cannot be read.
    #[error("{path} could not be read")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A file with a syntax error.
    #[error("{path} is not valid TOML")]
    Toml {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        #[source]
        source: Box<toml::de::Error>,
    },
}

/// The machine's settings for package indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The index addresses in order of precedence. The first index with a project is used.
    pub(crate) indexes: Vec<Url>,
    /// The local folders with packages.
    pub(crate) folders: Vec<PathBuf>,
    /// Additional certificate files.
    pub(crate) certificates: Vec<PathBuf>,
    /// An additional proxy to those of the environment.
    pub(crate) proxy: Option<String>,
    /// User names and passwords by host.
    pub(crate) logins: BTreeMap<String, (String, String)>,
}

/// The settings from one source, in the same form for both tools.
#[derive(Debug, Default)]
struct SourceSettings {
    index: Option<String>,
    extra: Vec<String>,
    links: Vec<String>,
    certificates: Vec<String>,
    proxy: Option<String>,
}

impl Machine {
    /// Reads the settings. `variable` returns the value of an environment variable.
    ///
    /// # Errors
    /// A named file is not readable, or an address is invalid. Ignoring it could select the wrong index.
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, MachineError> {
        let get = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let home = get("HOME").map(PathBuf::from);
        let mut sources = vec![("the environment".to_owned(), of_environment(&get))];
        for path in uv_files(&get, home.as_deref())? {
            sources.push((path.0.display().to_string(), of_uv(&path.0, &path.1)?));
        }
        for path in pip_files(&get, home.as_deref())? {
            sources.push((path.0.display().to_string(), of_pip(&path.1)));
        }
        let mut machine = Self::default();
        let mut default = None;
        for (place, found) in sources {
            let address = |text: &str, what: &str| {
                let url = Url::parse(text.trim()).ok();
                url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
                    .ok_or_else(|| MachineError::Address {
                        place: place.clone(),
                        what: what.to_owned(),
                    })
            };
            if default.is_none()
                && let Some(text) = &found.index
            {
                default = Some(address(text, "an index")?);
            }
            // Each list is one setting: the list of the source with the highest precedence replaces the others.
            if machine.indexes.is_empty() {
                for text in &found.extra {
                    machine.indexes.push(address(text, "an extra index")?);
                }
            }
            if machine.folders.is_empty() {
                machine.folders = found.links.iter().filter_map(|text| local_folder(text)).collect();
            }
            if machine.certificates.is_empty() {
                machine.certificates = found.certificates.iter().map(PathBuf::from).collect();
            }
            machine.proxy = machine.proxy.or(found.proxy);
        }
        machine
            .indexes
            .extend(default.or_else(|| Url::parse(PUBLIC_INDEX).ok()));
        machine.indexes.dedup();
        if let Some(path) = get("NETRC").map(PathBuf::from).or(home.map(|home| home.join(".netrc")))
            && let Some(text) = read(&path, false)?
        {
            machine.logins = netrc(&text);
        }
        Ok(machine)
    }

    /// Returns the index addresses without user names and passwords, for display.
    #[must_use]
    pub fn shown(&self) -> Vec<String> {
        self.indexes
            .iter()
            .map(|url| format!("{}://{}{}", url.scheme(), host(url), url.path()))
            .collect()
    }

    /// Returns the user name and password for an address: those in the address, or those of its host.
    pub(crate) fn login(&self, url: &Url) -> Option<(String, String)> {
        if !url.username().is_empty() {
            return Some((unescape(url.username()), unescape(url.password().unwrap_or_default())));
        }
        let same =
            |index: &&Url| !index.username().is_empty() && host(index) == host(url) && index.scheme() == url.scheme();
        if let Some(index) = self.indexes.iter().find(same) {
            return self.login(index);
        }
        self.logins.get(url.host_str()?).cloned()
    }
}

/// Returns the host and port.
pub(crate) fn host(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default();
    url.port()
        .map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"))
}

/// Decodes percent escapes in the user name or password of an address.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, later)) = rest.split_first() {
        let hex = later.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
            .filter(|_| *first == b'%')
        {
            Some(byte) => {
                bytes.push(byte);
                rest = later.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = later;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn local_folder(text: &str) -> Option<PathBuf> {
    let path = text.strip_prefix("file://").unwrap_or(text);
    Path::new(path).is_absolute().then(|| PathBuf::from(path))
}

fn words(text: Option<String>) -> Vec<String> {
    text.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Returns the address of uv's form `name=address`, in which a name is optional.
fn unnamed(text: &str) -> String {
    match text.split_once('=') {
        Some((name, address)) if !name.contains([':', '/']) => address.to_owned(),
        Some(_) | None => text.to_owned(),
    }
}

fn of_environment(get: &dyn Fn(&str) -> Option<String>) -> SourceSettings {
    let first = |names: &[&str]| names.iter().find_map(|name| get(name));
    let mut extra: Vec<String> = words(get("UV_INDEX")).iter().map(|text| unnamed(text)).collect();
    extra.extend(words(first(&["UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"])));
    SourceSettings {
        index: first(&["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"]).map(|text| unnamed(&text)),
        extra,
        links: words(first(&["UV_FIND_LINKS", "PIP_FIND_LINKS"]).map(|text| text.replace(',', " "))),
        certificates: ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]
            .iter()
            .filter_map(|name| get(name))
            .collect(),
        proxy: get("PIP_PROXY"),
    }
}

type Texts = Vec<(PathBuf, String)>;

fn uv_files(get: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Result<Texts, MachineError> {
    if let Some(path) = get("UV_CONFIG_FILE") {
        return Ok(read(Path::new(&path), true)?
            .map(|text| (path.into(), text))
            .into_iter()
            .collect());
    }
    let config = get("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or(home.map(|home| home.join(".config")));
    existing([
        config.map(|folder| folder.join("uv/uv.toml")),
        Some("/etc/uv/uv.toml".into()),
    ])
}

fn pip_files(get: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Result<Texts, MachineError> {
    let mut files = Vec::new();
    if let Some(path) = get("PIP_CONFIG_FILE") {
        if path == "/dev/null" {
            return Ok(files);
        }
        files.extend(read(Path::new(&path), true)?.map(|text| (path.into(), text)));
    }
    let config = get("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or(home.map(|home| home.join(".config")));
    files.extend(existing([
        config.map(|folder| folder.join("pip/pip.conf")),
        home.map(|home| home.join(".pip/pip.conf")),
    ])?);
    files.extend(existing([
        Some("/etc/pip.conf".into()),
        Some("/etc/xdg/pip/pip.conf".into()),
    ])?);
    Ok(files)
}

fn existing(paths: [Option<PathBuf>; 2]) -> Result<Texts, MachineError> {
    let mut found = Vec::new();
    for path in paths.into_iter().flatten() {
        if let Some(text) = read(&path, false)? {
            found.push((path, text));
        }
    }
    Ok(found)
}

/// Returns the text of a settings file. None if the file does not exist and is not `needed`.
fn read(path: &Path, needed: bool) -> Result<Option<String>, MachineError> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes));
    match file {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if !needed && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(MachineError::File {
            path: path.to_owned(),
            source,
        }),
    }
}

fn of_uv(path: &Path, text: &str) -> Result<SourceSettings, MachineError> {
    let table: toml::Table = text.parse().map_err(|source| MachineError::Toml {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    let mut found = SourceSettings::default();
    let pip = table.get("pip").and_then(toml::Value::as_table);
    for table in [Some(&table), pip].into_iter().flatten() {
        let text = |key: &str| table.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let list = |key: &str| -> Vec<String> {
            let items = table.get(key).and_then(toml::Value::as_array);
            items
                .into_iter()
                .flatten()
                .filter_map(toml::Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        found.index = found.index.or_else(|| text("index-url"));
        found.extra.extend(list("extra-index-url"));
        found.links.extend(list("find-links"));
    }
    for index in table.get("index").and_then(toml::Value::as_array).into_iter().flatten() {
        let Some(url) = index.get("url").and_then(toml::Value::as_str) else {
            continue;
        };
        if index.get("default").and_then(toml::Value::as_bool) == Some(true) {
            found.index = Some(url.to_owned());
        } else if index.get("explicit").and_then(toml::Value::as_bool) != Some(true) {
            found.extra.push(url.to_owned());
        }
    }
    Ok(found)
}

/// Parses pip's file: sections, `key = value`, and further values of a list on indented lines. The settings of
/// installation are in `[global]` and `[install]`. `[install]` has precedence.
fn of_pip(text: &str) -> SourceSettings {
    let mut values: BTreeMap<(String, String), String> = BTreeMap::new();
    let (mut section, mut key) = (String::new(), String::new());
    for line in text.lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
            key.clear();
        } else if line.starts_with([' ', '\t']) && !key.is_empty() {
            if let Some(value) = values.get_mut(&(section.clone(), key.clone())) {
                value.push(' ');
                value.push_str(bare);
            }
        } else if let Some((name, value)) = bare.split_once(['=', ':']) {
            key = name.trim().to_lowercase().replace('_', "-");
            values.insert((section.clone(), key.clone()), value.trim().to_owned());
        }
    }
    let get = |key: &str| {
        ["install", "global"]
            .iter()
            .find_map(|section| values.get(&((*section).to_owned(), key.to_owned())).cloned())
    };
    SourceSettings {
        index: get("index-url"),
        extra: words(get("extra-index-url")),
        links: words(get("find-links")),
        certificates: get("cert").into_iter().collect(),
        proxy: get("proxy"),
    }
}

fn netrc(text: &str) -> BTreeMap<String, (String, String)> {
    let mut logins: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut words = text.split_whitespace();
    let mut machine = None;
    while let Some(word) = words.next() {
        match word {
            "machine" => machine = words.next().map(str::to_owned),
            "default" => machine = None,
            "login" | "password" => {
                let Some(value) = words.next() else { break };
                if let Some(name) = &machine {
                    let login = logins.entry(name.clone()).or_default();
                    let field = if word == "login" { &mut login.0 } else { &mut login.1 };
                    value.clone_into(field);
                }
            }
            _ => {}
        }
    }
    logins
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(variables: &[(&str, &str)]) -> Result<Machine, MachineError> {
        let variables: BTreeMap<String, String> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_string_lossy().into_owned();
        Machine::read(&|name| {
            let alone = [("HOME", home.as_str()), ("PIP_CONFIG_FILE", "/dev/null")];
            let fixed = alone.iter().find(|(known, _)| *known == name);
            variables
                .get(name)
                .cloned()
                .or(fixed.map(|(_, value)| (*value).to_owned()))
        })
    }

    #[test]
    fn without_settings_the_public_index_is_used() {
        assert_eq!(machine(&[]).unwrap().shown(), ["https://pypi.org/simple"]);
    }

    #[test]
    fn extra_indexes_come_before_the_main_one_and_passwords_are_not_shown() {
        let found = machine(&[
            ("PIP_INDEX_URL", "https://me:s%40cret@index.example/simple/"),
            ("PIP_EXTRA_INDEX_URL", "https://other.example/a"),
        ])
        .unwrap();
        assert_eq!(
            found.shown(),
            ["https://other.example/a", "https://index.example/simple/"]
        );
        let file = Url::parse("https://index.example/files/x.whl").unwrap();
        assert_eq!(found.login(&file), Some(("me".into(), "s@cret".into())));
        assert_eq!(
            found.login(&Url::parse("https://elsewhere.example/x.whl").unwrap()),
            None
        );
    }

    #[test]
    fn uv_wins_over_pip_and_variables_over_files() {
        let folder = tempfile::tempdir().unwrap();
        let (uv, pip) = (folder.path().join("uv.toml"), folder.path().join("pip.conf"));
        std::fs::write(&uv, "[[index]]\nurl = \"https://uv.example/s\"\ndefault = true\n").unwrap();
        std::fs::write(
            &pip,
            "[global]\nindex-url = https://pip.example/s\nextra-index-url =\n    https://a.example/s\n    https://b.example/s\ncert = /c.pem\n",
        )
        .unwrap();
        let files = [
            ("UV_CONFIG_FILE", uv.to_str().unwrap()),
            ("PIP_CONFIG_FILE", pip.to_str().unwrap()),
        ];
        let found = machine(&files).unwrap();
        assert_eq!(
            found.shown(),
            ["https://a.example/s", "https://b.example/s", "https://uv.example/s"]
        );
        assert_eq!(found.certificates, [PathBuf::from("/c.pem")]);
        let mut with = files.to_vec();
        with.push(("UV_INDEX_URL", "https://variable.example/s"));
        assert!(
            machine(&with)
                .unwrap()
                .shown()
                .contains(&"https://variable.example/s".to_owned())
        );
    }

    #[test]
    fn an_address_with_another_scheme_is_an_error_that_does_not_repeat_it() {
        let error = machine(&[("PIP_INDEX_URL", "ftp://me:secret@x/")])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the environment") && !error.contains("secret"),
            "{error}"
        );
    }

    #[test]
    fn a_netrc_file_supplies_logins_by_host() {
        let logins = netrc("machine a.example login me password pw\ndefault login x password y");
        assert_eq!(logins.len(), 1);
        assert_eq!(logins["a.example"], ("me".into(), "pw".into()));
    }
}
