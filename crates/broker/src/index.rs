//! A package index for one installation. It speaks HTTP on a byte stream from inside, and answers from the machine's
//! own indexes.
//!
//! A request from inside is a request line and a few headers. The index answers only `GET` of two kinds of path, the
//! second kind only for files that it has listed before. So a client can fetch the listed files of a project and
//! nothing else. Bytes are counted, per file and in total.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::fetch::{Client, FetchError};
use crate::link::Link;
use crate::simple::{self, File, normalised};

/// The maximum size of one page of an index in bytes.
const PAGE_MAX: u64 = 64 << 20;
/// The maximum size of one file's metadata in bytes.
const METADATA_MAX: u64 = 4 << 20;
/// The maximum number of projects that one installation may request.
const PROJECTS_MAX: usize = 5000;
/// The maximum number of recorded problems of each kind.
const TROUBLE_MAX: usize = 50;

pub(crate) type Body = BoxBody<Bytes, std::io::Error>;
type Parts = futures::stream::BoxStream<'static, Result<Bytes, FetchError>>;

/// Decides if a version of a project may be offered. The arguments are the normalised name, and the version from the
/// file name.
pub type Allows = Box<dyn Fn(&str, Option<&str>) -> bool + Send + Sync>;

/// The limits of one installation's downloads.
pub struct Rules {
    /// Decides which versions are offered.
    pub allows: Allows,
    /// Files uploaded after this time (RFC 3339, UTC, seconds) are hidden, and files of unknown age.
    pub newest: Option<String>,
    /// True if source distributions can be fetched.
    pub sources: bool,
    /// The maximum size of one file in bytes.
    pub file_max: u64,
    /// The maximum size of all files together in bytes.
    pub total_max: u64,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules")
            .field("newest", &self.newest)
            .finish_non_exhaustive()
    }
}

/// The problems of one installation's downloads, in the order of their occurrence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FetchProblems {
    /// Projects that no index knows.
    pub unknown: Vec<String>,
    /// Projects of which the rules hide every version.
    pub hidden: Vec<String>,
    /// Projects with some files hidden because they are too new or of unknown age.
    pub too_new: Vec<String>,
    /// Descriptions of index failures.
    pub failures: Vec<String>,
    /// Descriptions of links and redirects that were not followed.
    pub refused: Vec<String>,
}

impl FetchProblems {
    /// Records the reason of a failed fetch.
    pub(crate) fn note(&mut self, error: &FetchError, text: String) {
        let list = match error {
            FetchError::Refused { .. } => &mut self.refused,
            _ => &mut self.failures,
        };
        if list.len() < TROUBLE_MAX && !list.contains(&text) {
            list.push(text);
        }
    }
}

/// The index of one installation.
#[derive(Debug)]
pub struct Index {
    client: Arc<Client>,
    rules: Rules,
    state: Mutex<State>,
    fetched: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<Source>,
    numbers: HashMap<String, usize>,
    pages: HashMap<String, Bytes>,
    problems: FetchProblems,
}

/// The source of a listed file.
#[derive(Debug, Clone)]
enum Source {
    Remote { link: Link, filename: String },
    Local { path: PathBuf, filename: String },
}

impl Source {
    fn filename(&self) -> &str {
        match self {
            Self::Remote { filename, .. } | Self::Local { filename, .. } => filename,
        }
    }
}

impl Index {
    /// Creates the index of one installation.
    #[must_use]
    pub fn new(client: Arc<Client>, rules: Rules) -> Arc<Self> {
        Arc::new(Self {
            client,
            rules,
            state: Mutex::default(),
            fetched: AtomicU64::new(0),
        })
    }

    /// Answers the requests of one connection until it closes.
    pub async fn serve(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = hyper::service::service_fn(move |request| {
            let index = self.clone();
            async move { Ok::<_, Infallible>(index.answer(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the package index broke off");
        }
    }

    /// Returns the problems until now.
    #[must_use]
    pub fn problems(&self) -> FetchProblems {
        self.state().problems.clone()
    }

    /// Returns the number of fetched bytes until now.
    #[must_use]
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, text: String) {
        tracing::info!("package index: {text}");
        let failures = &mut self.state().problems.failures;
        if failures.len() < TROUBLE_MAX && !failures.contains(&text) {
            failures.push(text);
        }
    }

    fn failed_to_fetch(&self, error: &FetchError, text: String) {
        tracing::info!("package index: {text}");
        self.state().problems.note(error, text);
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        let path = request.uri().path();
        if let Some(name) = path.strip_prefix("/simple/") {
            let name = name.trim_end_matches('/').to_owned();
            return self.project(&name).await;
        }
        let Some((number, name)) = path.strip_prefix("/file/").and_then(|rest| rest.split_once('/')) else {
            return plain(StatusCode::NOT_FOUND, "there is nothing here");
        };
        let (number, name) = (number.to_owned(), name.to_owned());
        self.file(&number, &name).await
    }

    async fn project(&self, name: &str) -> Response<Body> {
        let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 200 || !name.chars().all(sound) {
            return plain(StatusCode::NOT_FOUND, "it is not a project name");
        }
        let name = normalised(name);
        if let Some(page) = self.state().pages.get(&name) {
            return page_answer(page.clone());
        }
        match self.look_up(&name).await {
            Ok(Some(page)) => {
                let mut state = self.state();
                if state.pages.len() >= PROJECTS_MAX {
                    return plain(StatusCode::TOO_MANY_REQUESTS, "too many projects for one installation");
                }
                state.pages.insert(name, page.clone());
                page_answer(page)
            }
            Ok(None) => {
                let unknown = &mut self.state().problems.unknown;
                if unknown.len() < TROUBLE_MAX && !unknown.contains(&name) {
                    unknown.push(name);
                }
                plain(StatusCode::NOT_FOUND, "no index has this project")
            }
            Err(error) => {
                let text = error.to_string();
                self.failed_to_fetch(&error, text.clone());
                // Installers do not retry this status for minutes, unlike a server error.
                plain(StatusCode::FORBIDDEN, &text)
            }
        }
    }

    /// Returns the page of a project: the files of the first index with this project, and those in the machine's
    /// folders.
    async fn look_up(&self, name: &str) -> Result<Option<Bytes>, FetchError> {
        let mut files = self.local(name);
        let mut known = !files.is_empty();
        for index in &self.client.machine().indexes {
            let mut page = index.clone();
            // An address with a slash at its end means the same as one without.
            if let Ok(mut path) = page.path_segments_mut() {
                path.pop_if_empty().push(name).push("");
            }
            match self.client.fetch_page(&Link::of_index(page.clone()), PAGE_MAX).await {
                Ok((body, is_json, from)) => {
                    let found =
                        simple::parse(&body, is_json, from.url()).map_err(|reason| FetchError::Unreachable {
                            host: crate::machine::host(&page),
                            reason,
                        })?;
                    files.extend(found.into_iter().map(|file| {
                        let source = Url::parse(&file.url).ok().map(|url| Source::Remote {
                            link: from.link(url),
                            filename: file.filename.clone(),
                        });
                        (file, source)
                    }));
                    known = true;
                    break;
                }
                Err(FetchError::Absent { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if !known {
            return Ok(None);
        }
        let count = files.len();
        let kept = self.permitted(name, files);
        if kept.is_empty() && count > 0 {
            let hidden = &mut self.state().problems.hidden;
            if !hidden.contains(&name.to_owned()) && hidden.len() < TROUBLE_MAX {
                hidden.push(name.to_owned());
            }
        }
        Ok(Some(simple::render(name, &kept).into()))
    }

    /// Returns the files that the rules permit, with addresses of this index.
    fn permitted(&self, name: &str, files: Vec<(File, Option<Source>)>) -> Vec<File> {
        let mut kept = Vec::new();
        let mut state = self.state();
        for (mut file, source) in files {
            let Some(source) = source else { continue };
            if !(self.rules.allows)(name, simple::version_of(&file.filename, name)) {
                continue;
            }
            if let Some(newest) = &self.rules.newest {
                let second = |time: &str| time.get(..19).map(str::to_owned);
                let time = file.upload_time.as_deref().and_then(second);
                if time.is_none() || time > second(newest) {
                    if !state.problems.too_new.contains(&name.to_owned()) && state.problems.too_new.len() < TROUBLE_MAX
                    {
                        state.problems.too_new.push(name.to_owned());
                    }
                    continue;
                }
            }
            let next = state.files.len();
            let number = *state.numbers.entry(file.url.clone()).or_insert(next);
            if number == next {
                state.files.push(source);
            }
            file.url = format!("/file/{number}/{}", file.filename);
            kept.push(file);
        }
        kept
    }

    /// Returns the project's files in the machine's folders of packages.
    fn local(&self, name: &str) -> Vec<(File, Option<Source>)> {
        let mut found = Vec::new();
        for folder in &self.client.machine().folders {
            let Ok(entries) = std::fs::read_dir(folder) else {
                continue;
            };
            for entry in entries.flatten().take(10_000) {
                let Some(filename) = entry.file_name().to_str().map(str::to_owned) else {
                    continue;
                };
                let project = filename.split('-').next().map(normalised);
                let is_file = entry.metadata().is_ok_and(|found| found.is_file());
                if !is_file || !filename.ends_with(".whl") || project.as_deref() != Some(name) {
                    continue;
                }
                let source = Source::Local {
                    path: entry.path(),
                    filename: filename.clone(),
                };
                let file = File {
                    url: entry.path().to_string_lossy().into_owned(),
                    filename,
                    hashes: std::collections::BTreeMap::new(),
                    requires_python: None,
                    core_metadata: None,
                    yanked: None,
                    size: None,
                    upload_time: None,
                };
                found.push((file, Some(source)));
            }
        }
        found
    }

    async fn file(self: Arc<Self>, number: &str, name: &str) -> Response<Body> {
        let source = number
            .parse()
            .ok()
            .and_then(|number: usize| self.state().files.get(number).cloned());
        let Some(source) = source else {
            return plain(StatusCode::NOT_FOUND, "no such file was named");
        };
        let metadata = name.strip_suffix(".metadata") == Some(source.filename());
        if !metadata && name != source.filename() {
            return plain(StatusCode::NOT_FOUND, "no such file was named");
        }
        if !metadata && !self.rules.sources && !name.ends_with(".whl") {
            return plain(StatusCode::FORBIDDEN, "only wheels are fetched");
        }
        let limit = if metadata { METADATA_MAX } else { self.rules.file_max };
        let body = match source {
            Source::Remote { mut link, .. } => {
                if metadata {
                    let path = format!("{}.metadata", link.url().path());
                    link = link.with_path(&path);
                }
                self.client
                    .begin(&link, limit)
                    .await
                    .map(|response| (response.length, response.body))
            }
            Source::Local { path, .. } => local_body(path, limit).await,
        };
        match body {
            Ok((length, body)) => self.stream(length, body),
            Err(error) => {
                // If separate metadata is absent, the installer reads it from the file itself.
                if !metadata {
                    self.failed_to_fetch(&error, format!("{name}: {error}"));
                }
                plain(StatusCode::NOT_FOUND, &error.to_string())
            }
        }
    }

    /// Relays a body and counts its bytes.
    fn stream(self: Arc<Self>, length: Option<u64>, body: Parts) -> Response<Body> {
        let body = body.map(move |part| {
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

/// Returns an answer with a streamed body.
pub(crate) fn streamed(
    length: Option<u64>,
    body: futures::stream::BoxStream<'static, std::io::Result<Frame<Bytes>>>,
) -> Response<Body> {
    let mut answer = Response::new(BodyExt::boxed(StreamBody::new(SyncStream(Mutex::new(body)))));
    if let Some(length) = length {
        answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    answer
}

/// A stream that only its owner polls. The mutex makes it `Sync`, as the body's type requires.
struct SyncStream<T>(Mutex<futures::stream::BoxStream<'static, T>>);

impl<T> futures::Stream for SyncStream<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        let stream = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        stream.as_mut().poll_next(context)
    }
}

async fn local_body(
    path: PathBuf,
    limit: u64,
) -> Result<
    (
        Option<u64>,
        futures::stream::BoxStream<'static, Result<Bytes, FetchError>>,
    ),
    FetchError,
> {
    let host = "a folder of this machine".to_owned();
    let unreachable = |error: std::io::Error| FetchError::Unreachable {
        host: host.clone(),
        reason: error.to_string(),
    };
    let file = tokio::fs::File::open(&path).await.map_err(unreachable)?;
    let length = file.metadata().await.map_err(unreachable)?.len();
    if length > limit {
        return Err(FetchError::TooLarge { host, limit });
    }
    let parts = futures::stream::try_unfold(file, |mut file| async move {
        use tokio::io::AsyncReadExt as _;
        let mut buffer = Vec::with_capacity(128 << 10);
        (&mut file).take(128 << 10).read_to_end(&mut buffer).await?;
        Ok((!buffer.is_empty()).then(|| (Bytes::from(buffer), file)))
    });
    let parts = parts.map(move |part: std::io::Result<Bytes>| {
        part.map_err(|error| FetchError::Unreachable {
            host: host.clone(),
            reason: error.to_string(),
        })
    });
    Ok((Some(length), parts.boxed()))
}

fn page_answer(page: Bytes) -> Response<Body> {
    let mut answer = Response::new(full_body(page));
    let kind = header::HeaderValue::from_static("application/vnd.pypi.simple.v1+json");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

pub(crate) fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut answer = Response::new(full_body(Bytes::from(text.to_owned())));
    *answer.status_mut() = status;
    answer
}

pub(crate) fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}
