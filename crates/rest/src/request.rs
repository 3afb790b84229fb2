//! An admitted request, and strict parsers of its parts. Their errors name the field.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::ACCEPT;
use hyper::upgrade::OnUpgrade;
use sandcell_engine::{Engine, Principal};
use sandcell_mcp::{LargeAnswers, Permits, RequestBody, Takeover};
use sandcell_sandbox::{ByteSize, Code, Failure, SandboxPath};
use serde::de::DeserializeOwned;

use crate::queues::CallerQueues;

/// A request for one of the resources.
pub(crate) struct Call<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) queues: &'a CallerQueues,
    pub(crate) permits: Option<&'a Permits>,
    pub(crate) caller: Principal,
    /// The ids in the path, in order.
    pub(crate) ids: Vec<String>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: RequestBody<'a>,
    pub(crate) large: LargeAnswers<'a>,
    /// The connection, for a resource that takes it over.
    pub(crate) upgrade: Option<OnUpgrade>,
    pub(crate) takeover: Takeover,
}

impl Call<'_> {
    /// Returns the first id of the path.
    pub(crate) fn id(&self) -> &str {
        self.ids.first().map_or("", String::as_str)
    }

    /// Parses the JSON body as this type.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        match &self.body {
            RequestBody::Whole(bytes) => json(bytes),
            RequestBody::Nothing | RequestBody::Stream(_) | RequestBody::Raw(_) => json(&Bytes::new()),
        }
    }

    /// Returns true if the client asks for events.
    pub(crate) fn wants_events(&self) -> bool {
        let kinds = self.headers.get_all(ACCEPT).iter();
        let kinds: Vec<&str> = kinds.filter_map(|value| value.to_str().ok()).collect();
        let has = |kind| kinds.iter().any(|value| value.contains(kind));
        has("text/event-stream") && !has("application/json")
    }
}

/// Parses a JSON body as this type.
pub(crate) fn json<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Failure> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if !error.is_data() {
            return not_json(&error);
        }
        let message = match path.as_str() {
            "." => format!("the body: {error}"),
            // The error already names the field.
            path if error.to_string().contains(&format!("field `{path}`")) => error.to_string(),
            path => format!("`{path}`: {error}"),
        };
        Failure::invalid(message, "/v1/openapi.json lists the fields and their types")
    })?;
    reader.end().map_err(|error| not_json(&error))?;
    Ok(read)
}

fn not_json(error: &serde_json::Error) -> Failure {
    Failure::invalid(format!("the body is not JSON: {error}"), "send one JSON object")
}

/// The query of an address: known fields, each at most once.
#[derive(Debug, Default)]
pub(crate) struct Query(BTreeMap<&'static str, String>);

/// A permitted field of a query.
#[derive(Debug)]
pub(crate) struct QueryField {
    pub(crate) name: &'static str,
    pub(crate) kind: QueryKind,
    pub(crate) about: &'static str,
}

/// The type of a query's field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryKind {
    RequiredText,
    Text,
    Whole,
    Signed,
    Number,
    Flag,
}

impl Query {
    /// Parses a query. Returns none if a field is unknown or appears twice.
    pub(crate) fn parse(query: Option<&str>, fields: &'static [QueryField]) -> Option<Self> {
        let mut read = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let field = fields.iter().find(|field| field.name == name)?;
            if read.insert(field.name, value.into_owned()).is_some() {
                return None;
            }
        }
        Some(Self(read))
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns a path inside the sandbox.
    pub(crate) fn path(&self, name: &str) -> Result<Option<SandboxPath>, Failure> {
        self.text(name).map(|text| path(name, text)).transpose()
    }

    /// Parses a value, such as a whole number.
    pub(crate) fn value<T: std::str::FromStr>(&self, name: &str, what: &str) -> Result<Option<T>, Failure> {
        let read = |text: &str| {
            text.parse().map_err(|_| {
                let message = format!("`{name}` is not {what}");
                Failure::invalid(message, format!("give {what}, or leave `{name}` out"))
            })
        };
        self.text(name).map(read).transpose()
    }
}

/// Parses a path inside a sandbox, from the field of this name.
pub(crate) fn path(name: &str, text: &str) -> Result<SandboxPath, Failure> {
    SandboxPath::parse(text).map_err(|error| {
        Failure::invalid(
            format!("`{name}`: {error}"),
            "give a path inside the sandbox without `..`, such as `data.csv` (in /home/user) or `/tmp/data.csv`",
        )
    })
}

/// Converts the seconds of the field of this name.
pub(crate) fn seconds(name: &str, seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        let message = format!("`{name}`: {seconds} s are no span of time");
        Failure::invalid(message, "give a number of seconds from 0 on")
    })
}

/// Converts the MiB of the field of this name.
pub(crate) fn mebibytes(name: &str, mebibytes: u64) -> Result<ByteSize, Failure> {
    if mebibytes > 1 << 40 {
        let message = format!("`{name}`: {mebibytes} MiB are more than any machine has");
        return Err(Failure::new(Code::InvalidArgument, message, "ask for less"));
    }
    Ok(ByteSize::mib(mebibytes))
}
