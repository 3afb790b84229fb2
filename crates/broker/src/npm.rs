//! An npm registry for one installation, answered from the machine's own registry. It serves a package's metadata,
//! with rewritten addresses, and the archives listed there. As with [`Index`](crate::Index), a client can fetch the
//! listed archives of a package and nothing else.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt as _;
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::fetch::{Client, FetchError, RequestParts};
use crate::index::{Body, FetchProblems, Rules, full_body, plain, streamed};
use crate::link::{Link, Page};

/// The default registry.
const PUBLIC_REGISTRY: &str = "https://registry.npmjs.org/";
/// The maximum size of one package's page. The largest page of the public registry has about 40 MB.
const PAGE_MAX: u64 = 64 << 20;
/// The maximum number of packages that one installation may request.
const PACKAGES_MAX: usize = 3000;
/// The maximum number of recorded problems of each kind.
const TROUBLE_MAX: usize = 50;
/// The maximum size that is read of one settings file.
const FILE_MAX: u64 = 1 << 20;
/// The `Accept` headers. The short form contains everything except the publication times of versions.
const ACCEPT_SHORT: &str = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8";
const ACCEPT_FULL: &str = "application/json";
/// The fields of a version that an installer needs.
const NEEDED_FIELDS: [&str; 14] = [
    "name",
    "version",
    "dependencies",
    "optionalDependencies",
    "peerDependencies",
    "peerDependenciesMeta",
    "bundleDependencies",
    "bundledDependencies",
    "bin",
    "engines",
    "os",
    "cpu",
    "libc",
    "deprecated",
];

/// The machine owner's settings for npm: environment variables and `.npmrc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpmMachine {
    registry: Url,
    /// Registries of scopes, such as `@acme`.
    scopes: BTreeMap<String, Url>,
    /// Tokens by registry address, without the scheme.
    tokens: Vec<(String, String)>,
}

impl NpmMachine {
    /// Reads the settings. `variable` returns the value of an environment variable.
    ///
    /// # Errors
    /// An address is invalid. The text does not repeat it. Ignoring the address could select the wrong registry.
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let get = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let file = get("NPM_CONFIG_USERCONFIG").or_else(|| get("HOME").map(|home| format!("{home}/.npmrc")));
        let text = file.map_or_else(String::new, |path| read_file(Path::new(&path)));
        let mut machine = Self {
            registry: Url::parse(PUBLIC_REGISTRY).map_err(|_| "the public registry has no address".to_owned())?,
            scopes: BTreeMap::new(),
            tokens: Vec::new(),
        };
        for line in text.lines().map(str::trim) {
            let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with(['#', ';'])) else {
                continue;
            };
            let (key, value) = (key.trim(), expanded(value.trim().trim_matches('"'), &get));
            if key == "registry" {
                machine.registry = address(&value, ".npmrc")?;
            } else if let Some(scope) = key.strip_suffix(":registry") {
                machine.scopes.insert(scope.to_owned(), address(&value, ".npmrc")?);
            } else if let Some(place) = key.strip_suffix(":_authToken") {
                machine.tokens.push((place.to_owned(), value));
            }
        }
        if let Some(text) = get("npm_config_registry").or_else(|| get("NPM_CONFIG_REGISTRY")) {
            machine.registry = address(&text, "the environment")?;
        }
        Ok(machine)
    }

    /// Returns the registries' hosts and paths, for display.
    #[must_use]
    pub fn shown(&self) -> Vec<String> {
        let all = std::iter::once(&self.registry).chain(self.scopes.values());
        all.map(|url| format!("{}{}", url.host_str().unwrap_or_default(), url.path()))
            .collect()
    }

    fn registry_of(&self, name: &str) -> &Url {
        let scope = name.split_once('/').map(|(scope, _)| scope);
        scope.and_then(|scope| self.scopes.get(scope)).unwrap_or(&self.registry)
    }

    fn token(&self, url: &Url) -> Option<&str> {
        let text = url.as_str();
        let bare = text.split_once(':').map_or(text, |(_, rest)| rest);
        let fits = |(place, _): &&(String, String)| {
            let place = place.trim_end_matches('/');
            bare.strip_prefix(place)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.tokens.iter().find(fits).map(|(_, token)| token.as_str())
    }
}

fn read_file(path: &Path) -> String {
    use std::io::Read as _;
    let mut text = String::new();
    // Most machines have no such file.
    let _absent = std::fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
    text
}

/// Replaces each `${NAME}` by the value of the environment variable.
fn expanded(text: &str, get: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, tail)) = after.split_once('}') else {
            break;
        };
        out.push_str(before);
        out.push_str(&get(name).unwrap_or_default());
        rest = tail;
    }
    out.push_str(rest);
    out
}

fn address(text: &str, place: &str) -> Result<Url, String> {
    let url = Url::parse(text.trim()).ok();
    url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .map(|mut url| {
            if !url.path().ends_with('/') {
                url.set_path(&format!("{}/", url.path()));
            }
            url
        })
        .ok_or_else(|| format!("{place} names an npm registry that is not an http or https address"))
}

/// The registry of one installation.
#[derive(Debug)]
pub struct NpmIndex {
    client: Arc<Client>,
    machine: NpmMachine,
    rules: Rules,
    state: Mutex<State>,
    fetched: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The listed archives, each with its address and file name.
    files: Vec<(Link, String)>,
    asked: usize,
    problems: FetchProblems,
}

impl NpmIndex {
    /// Creates the registry of one installation.
    #[must_use]
    pub fn new(client: Arc<Client>, machine: NpmMachine, rules: Rules) -> Arc<Self> {
        Arc::new(Self {
            client,
            machine,
            rules,
            state: Mutex::default(),
            fetched: AtomicU64::new(0),
        })
    }

    /// Answers the requests of one connection until it closes. `port` is the registry's port inside the sandbox.
    pub async fn serve(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, port: u16) {
        let service = hyper::service::service_fn(move |request| {
            let index = self.clone();
            async move { Ok::<_, Infallible>(index.answer(request, port).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the npm registry failed");
        }
    }

    /// Returns the problems until now.
    #[must_use]
    pub fn problems(&self) -> FetchProblems {
        self.state().problems.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, text: String) {
        tracing::info!("npm registry: {text}");
        note(&mut self.state().problems.failures, text);
    }

    fn failed_to_fetch(&self, error: &FetchError, text: String) {
        tracing::info!("npm registry: {text}");
        self.state().problems.note(error, text);
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, port: u16) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        let path = request.uri().path().trim_start_matches('/').to_owned();
        if let Some((number, name)) = path.strip_prefix("-/file/").and_then(|rest| rest.split_once('/')) {
            return self.file(number, name).await;
        }
        let name = path.replace("%2f", "/").replace("%2F", "/");
        if !is_name(&name) {
            return plain(StatusCode::NOT_FOUND, "it is not a package name");
        }
        match self.package(&name, port).await {
            Ok(page) => {
                let mut answer = Response::new(full_body(page.into()));
                let kind = header::HeaderValue::from_static("application/json");
                answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                answer
            }
            Err(FetchError::Absent { .. }) => {
                note(&mut self.state().problems.unknown, name);
                plain(StatusCode::NOT_FOUND, "the registry has no such package")
            }
            Err(error) => {
                let text = error.to_string();
                self.failed_to_fetch(&error, text.clone());
                plain(StatusCode::FORBIDDEN, &text)
            }
        }
    }

    /// Returns the registry's metadata of a package: the versions that the rules permit, with addresses of this
    /// registry.
    async fn package(&self, name: &str, port: u16) -> Result<Vec<u8>, FetchError> {
        let mut url = self.machine.registry_of(name).clone();
        // The name is one path segment: the slash of a scope is part of it.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push(name);
        }
        let bad = |reason: &str| FetchError::Unreachable {
            host: crate::machine::host(&url),
            reason: reason.to_owned(),
        };
        if self.state().asked >= PACKAGES_MAX {
            return Err(bad("too many packages for one installation"));
        }
        self.state().asked += 1;
        let accept = if self.rules.newest.is_some() {
            ACCEPT_FULL
        } else {
            ACCEPT_SHORT
        };
        let link = Link::of_index(url.clone());
        let token = |url: &Url| self.machine.token(url).map(str::to_owned);
        let parts = RequestParts { accept, token: &token };
        let response = self.client.begin_with(&link, PAGE_MAX, &parts).await?;
        let from = Arc::clone(&response.page);
        let body = response.all().await?;
        let page: Value = serde_json::from_slice(&body).map_err(|_| bad("its answer is not package JSON"))?;
        let versions = page.get("versions").and_then(Value::as_object);
        let versions = versions.ok_or_else(|| bad("its package document has no versions"))?;
        let times = page.get("time").and_then(Value::as_object);
        let mut kept = Map::new();
        for (version, says) in versions {
            if !(self.rules.allows)(name, Some(version)) {
                note(&mut self.state().problems.hidden, name.to_owned());
                continue;
            }
            if let Some(newest) = &self.rules.newest {
                let time = times.and_then(|times| times.get(version)).and_then(Value::as_str);
                if time.is_none_or(|time| time.get(..19) > newest.get(..19)) {
                    note(&mut self.state().problems.too_new, name.to_owned());
                    continue;
                }
            }
            if let Some(ours) = self.version(name, version, says, &from, port) {
                kept.insert(version.clone(), ours);
            }
        }
        let tags = page.get("dist-tags").and_then(Value::as_object);
        let known = |version: &Value| version.as_str().is_some_and(|version| kept.contains_key(version));
        let tags: Map<String, Value> = tags
            .into_iter()
            .flatten()
            .filter(|(_, version)| known(version))
            .map(|(tag, version)| (tag.clone(), version.clone()))
            .collect();
        let ours = serde_json::json!({"name": name, "dist-tags": tags, "versions": kept});
        Ok(ours.to_string().into_bytes())
    }

    /// Returns a version with the fields that an installer needs, and an address of this registry.
    fn version(&self, name: &str, version: &str, says: &Value, from: &Arc<Page>, port: u16) -> Option<Value> {
        let dist = says.get("dist")?;
        let tarball = from.url().join(dist.get("tarball")?.as_str()?).ok()?;
        if !matches!(tarball.scheme(), "http" | "https") {
            return None;
        }
        let file = format!(
            "{}-{version}.tgz",
            name.replace(['@', '/'], "-").trim_start_matches('-')
        );
        let number = {
            let mut state = self.state();
            state.files.push((from.link(tarball), file.clone()));
            state.files.len() - 1
        };
        let mut ours: Map<String, Value> = NEEDED_FIELDS
            .iter()
            .filter_map(|key| Some(((*key).to_owned(), says.get(*key)?.clone())))
            .collect();
        let mut place = Map::new();
        for key in ["integrity", "shasum", "fileCount", "unpackedSize"] {
            if let Some(value) = dist.get(key) {
                place.insert(key.to_owned(), value.clone());
            }
        }
        place.insert(
            "tarball".to_owned(),
            Value::from(format!("http://127.0.0.1:{port}/-/file/{number}/{file}")),
        );
        ours.insert("dist".to_owned(), Value::Object(place));
        Some(Value::Object(ours))
    }

    async fn file(self: Arc<Self>, number: &str, name: &str) -> Response<Body> {
        let found = number
            .parse()
            .ok()
            .and_then(|number: usize| self.state().files.get(number).cloned())
            .filter(|(_, file)| file == name);
        let Some((link, _)) = found else {
            return plain(StatusCode::NOT_FOUND, "no such file was named");
        };
        let token = |url: &Url| self.machine.token(url).map(str::to_owned);
        let parts = RequestParts {
            accept: "*/*",
            token: &token,
        };
        let response = self.client.begin_with(&link, self.rules.file_max, &parts).await;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                self.failed_to_fetch(&error, format!("{name}: {error}"));
                return plain(StatusCode::FORBIDDEN, &error.to_string());
            }
        };
        let length = response.length;
        let body = response.body.map(move |part: Result<Bytes, FetchError>| {
            let failed = |text: String| {
                self.failure(text.clone());
                std::io::Error::other(text)
            };
            let part = part.map_err(|error| failed(error.to_string()))?;
            let size = u64::try_from(part.len()).unwrap_or(u64::MAX);
            let before = self.fetched.fetch_add(size, Ordering::Relaxed);
            if before.saturating_add(size) > self.rules.total_max {
                let most = self.rules.total_max;
                return Err(failed(format!("more than {most} bytes for one installation")));
            }
            Ok(Frame::data(part))
        });
        streamed(length, body.boxed())
    }
}

fn note(list: &mut Vec<String>, text: String) {
    if list.len() < TROUBLE_MAX && !list.contains(&text) {
        list.push(text);
    }
}

/// Returns true for `name` and `@scope/name`.
fn is_name(text: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('.')
            && word
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~'))
    };
    match text.strip_prefix('@').map(|rest| rest.split_once('/')) {
        Some(Some((scope, name))) => word(scope) && word(name) && text.len() <= 214,
        Some(None) => false,
        None => word(text) && text.len() <= 214,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(npmrc: &str, variables: &[(&str, &str)]) -> Result<NpmMachine, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("npmrc");
        std::fs::write(&file, npmrc).unwrap();
        NpmMachine::read(&|name| match name {
            "NPM_CONFIG_USERCONFIG" => Some(file.display().to_string()),
            name => variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned()),
        })
    }

    #[test]
    fn the_machines_registries_and_tokens_are_read() {
        let found = machine(
            "; a comment\nregistry=https://npm.example/all\n@acme:registry = \"https://acme.example/npm/\"\n\
             //acme.example/npm/:_authToken=${TOKEN}\n",
            &[("TOKEN", "s3cret")],
        )
        .unwrap();
        assert_eq!(found.shown(), ["npm.example/all/", "acme.example/npm/"]);
        let own = found.registry_of("@acme/x");
        assert_eq!(found.token(own), Some("s3cret"));
        assert_eq!(found.token(&own.join("x/-/x-1.tgz").unwrap()), Some("s3cret"));
        for other in [
            "https://npm.example/all/",
            "https://acme.example/npmx/",
            "https://acme.example.evil/npm/",
        ] {
            assert_eq!(found.token(&Url::parse(other).unwrap()), None, "{other}");
        }
        let found = machine("", &[("npm_config_registry", "http://127.0.0.1:4873")]).unwrap();
        assert_eq!(found.registry.as_str(), "http://127.0.0.1:4873/");
        assert_eq!(machine("", &[]).unwrap().registry.as_str(), PUBLIC_REGISTRY);
        assert!(machine("registry=ftp://me:pw@x/", &[]).is_err_and(|error| !error.contains("pw")));
    }

    #[test]
    fn scopes_and_names_are_plain_words() {
        for name in ["left-pad", "@types/node", "JSONStream", "a.b_c~d"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "", ".", "..", "../x", "@x", "@/x", "@x/", "@x/y/z", "a/b", "a b", "a%2f", "-/file", "a?b", "@.x/y",
        ] {
            assert!(!is_name(name), "{name}");
        }
    }
}
