//! The addresses of E2B's services.

use hyper::Method;
use sandcell_mcp::{EndpointInput, NotFound};

use crate::connect;
use crate::limits::{ENVD_PORT, FRAME_HEAD_BYTES, INTERPRETER_PORT};
use crate::logs::Form;

/// The address of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// An operation of the control plane, and the id of its sandbox.
    Control(Operation, Option<String>),
    Health,
    Envs,
    EnvdMetrics,
    Files,
    /// A method of `process.Process`.
    Process(String),
    /// A method of `filesystem.Filesystem`.
    Filesystem(String),
    /// A call of `envd` that this server knows and does not have.
    Missing(&'static str),
    Execute,
    Contexts,
    Context(String),
    RestartContext(String),
    InterpreterHealth,
    /// A port of a program in the sandbox.
    Port(u16),
}

/// An operation of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    List,
    Info,
    Kill,
    Connect,
    Timeout,
    Refreshes,
    Metrics,
    Logs(Form),
    Pause,
    Fork,
    Network,
    Snapshot,
    Snapshots,
    DropSnapshot,
    /// A call that this server knows and does not have.
    Missing(&'static str),
}

impl Route {
    /// Returns the part of the request that the route needs.
    pub(crate) fn input(&self) -> EndpointInput {
        match self {
            Self::Control(Operation::Kill, _) => EndpointInput::CallerAtOnce,
            Self::Control(Operation::List | Operation::Info | Operation::Metrics | Operation::Logs(_), _)
            | Self::Health
            | Self::InterpreterHealth
            | Self::Envs
            | Self::EnvdMetrics
            | Self::Context(_) => EndpointInput::Caller,
            Self::Files => EndpointInput::Stream,
            Self::Process(method) if method == "StreamInput" => EndpointInput::Raw,
            Self::Port(_) => EndpointInput::Raw,
            Self::Process(method) if matches!(method.as_str(), "Start" | "Connect") => {
                EndpointInput::Whole { head: FRAME_HEAD_BYTES }
            }
            Self::Filesystem(method) if method == "WatchDir" => EndpointInput::Whole { head: FRAME_HEAD_BYTES },
            Self::Control(..)
            | Self::Process(_)
            | Self::Filesystem(_)
            | Self::Missing(_)
            | Self::Execute
            | Self::Contexts
            | Self::RestartContext(_) => EndpointInput::Whole { head: 0 },
        }
    }
}

/// The first names of the control plane's paths.
const CONTROL_NAMES: [&str; 8] = [
    "sandboxes",
    "snapshots",
    "templates",
    "volumes",
    "secrets",
    "teams",
    "api-keys",
    "access-tokens",
];

/// Returns true for a path of the control plane.
pub(crate) fn is_control(path: &str) -> bool {
    let mut names = path.split('/').skip(1);
    let first = match names.next() {
        Some("v2" | "v3") => names.next(),
        first => first,
    };
    first.is_some_and(|first| CONTROL_NAMES.contains(&first))
}

/// Returns true for a path of `envd` that the server itself does not have, and that can be asked for without naming a
/// sandbox.
pub(crate) fn is_of_envd(path: &str) -> bool {
    connect::is_connect(path) || matches!(path, "/files" | "/health" | "/metrics" | "/envs")
}

/// Returns the route of a request: for this port of a sandbox, or for the control plane.
///
/// # Errors
/// There is nothing at this address, or it does not take the method.
pub(crate) fn find(method: &Method, path: &str, port: Option<u16>) -> Result<Route, NotFound> {
    let names: Vec<&str> = path.split('/').skip(1).collect();
    match port {
        None => control(method, &names),
        Some(ENVD_PORT) => envd(method, &names),
        Some(INTERPRETER_PORT) => interpreter(method, &names),
        Some(port) => Ok(Route::Port(port)),
    }
}

fn control(method: &Method, names: &[&str]) -> Result<Route, NotFound> {
    let (names, form) = match names {
        ["v2" | "v3", rest @ ..] => (rest, Form::Second),
        names => (names, Form::First),
    };
    let (get, post, put, delete) = (
        method == Method::GET,
        method == Method::POST,
        method == Method::PUT,
        method == Method::DELETE,
    );
    let operation = match names {
        ["sandboxes"] if post => (Operation::Create, None),
        ["sandboxes"] if get => (Operation::List, None),
        ["sandboxes"] => return Err(NotFound::Method("GET, POST")),
        ["sandboxes", "metrics"] if get => (Operation::Missing("metrics of several sandboxes"), None),
        ["sandboxes", id] if get => (Operation::Info, Some(*id)),
        ["sandboxes", id] if delete => (Operation::Kill, Some(*id)),
        ["sandboxes", _] => return Err(NotFound::Method("GET, DELETE")),
        ["sandboxes", id, "connect" | "resume"] if post => (Operation::Connect, Some(*id)),
        ["sandboxes", id, "timeout"] if post => (Operation::Timeout, Some(*id)),
        ["sandboxes", id, "refreshes"] if post => (Operation::Refreshes, Some(*id)),
        ["sandboxes", id, "metrics"] if get => (Operation::Metrics, Some(*id)),
        ["sandboxes", id, "pause"] if post => (Operation::Pause, Some(*id)),
        ["sandboxes", id, "snapshots"] if post => (Operation::Snapshot, Some(*id)),
        ["sandboxes", id, "fork"] if post => (Operation::Fork, Some(*id)),
        ["sandboxes", id, "network"] if put => (Operation::Network, Some(*id)),
        ["sandboxes", _, "network"] => return Err(NotFound::Method("PUT")),
        ["sandboxes", id, "logs"] if get => (Operation::Logs(form), Some(*id)),
        ["sandboxes", _, "logs"] => return Err(NotFound::Method("GET")),
        [
            "sandboxes",
            _,
            "connect" | "resume" | "timeout" | "refreshes" | "pause" | "snapshots" | "fork",
        ] => return Err(NotFound::Method("POST")),
        ["snapshots"] if get => (Operation::Snapshots, None),
        ["snapshots"] => return Err(NotFound::Method("GET")),
        ["templates", id] if delete => (Operation::DropSnapshot, Some(*id)),
        ["templates", ..] => (Operation::Missing("building templates"), None),
        ["volumes", ..] => (Operation::Missing("volumes"), None),
        ["secrets", ..] => (Operation::Missing("secrets"), None),
        ["teams" | "api-keys" | "access-tokens", ..] => (Operation::Missing("accounts"), None),
        _ => return Err(NotFound::Address),
    };
    Ok(Route::Control(operation.0, operation.1.map(str::to_owned)))
}

fn envd(method: &Method, names: &[&str]) -> Result<Route, NotFound> {
    let (get, post) = (method == Method::GET, method == Method::POST);
    match names {
        ["process.Process", name] if post => Ok(Route::Process((*name).to_owned())),
        ["filesystem.Filesystem", name] if post => Ok(Route::Filesystem((*name).to_owned())),
        ["process.Process" | "filesystem.Filesystem", _] => Err(NotFound::Method("POST")),
        ["health"] if get => Ok(Route::Health),
        ["metrics"] if get => Ok(Route::EnvdMetrics),
        ["envs"] if get => Ok(Route::Envs),
        ["files"] if get || post => Ok(Route::Files),
        ["files"] => Err(NotFound::Method("GET, POST")),
        ["files", "compose"] if post => Ok(Route::Missing("joining files")),
        ["health" | "metrics" | "envs"] => Err(NotFound::Method("GET")),
        _ => Err(NotFound::Address),
    }
}

fn interpreter(method: &Method, names: &[&str]) -> Result<Route, NotFound> {
    let (get, post, delete) = (method == Method::GET, method == Method::POST, method == Method::DELETE);
    match names {
        ["execute"] if post => Ok(Route::Execute),
        ["execute"] => Err(NotFound::Method("POST")),
        ["contexts"] if get || post => Ok(Route::Contexts),
        ["contexts"] => Err(NotFound::Method("GET, POST")),
        ["contexts", id] if delete => Ok(Route::Context((*id).to_owned())),
        ["contexts", id, "restart"] if post => Ok(Route::RestartContext((*id).to_owned())),
        ["contexts", _] => Err(NotFound::Method("DELETE")),
        ["contexts", _, "restart"] => Err(NotFound::Method("POST")),
        ["health"] if get => Ok(Route::InterpreterHealth),
        ["health"] => Err(NotFound::Method("GET")),
        _ => Err(NotFound::Address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_plane_has_old_and_new_paths() {
        for path in ["/sandboxes", "/v2/sandboxes"] {
            assert_eq!(
                find(&Method::POST, path, None),
                Ok(Route::Control(Operation::Create, None))
            );
            assert!(is_control(path));
        }
        let connect = Route::Control(Operation::Connect, Some("sb1".to_owned()));
        for path in [
            "/v2/sandboxes/sb1/connect",
            "/sandboxes/sb1/connect",
            "/sandboxes/sb1/resume",
        ] {
            assert_eq!(find(&Method::POST, path, None), Ok(connect.clone()));
        }
        for path in [
            "/",
            "/mcp",
            "/v1/sandboxes",
            "/healthz",
            "/metrics",
            "/v2",
            "/sandboxesx",
        ] {
            assert!(!is_control(path), "{path}");
        }
    }

    #[test]
    fn each_port_has_its_own_addresses() {
        let start = Route::Process("Start".to_owned());
        assert_eq!(
            find(&Method::POST, "/process.Process/Start", Some(ENVD_PORT)),
            Ok(start)
        );
        assert_eq!(
            find(&Method::POST, "/process.Process/Start", Some(INTERPRETER_PORT)),
            Err(NotFound::Address)
        );
        assert_eq!(
            find(&Method::POST, "/execute", Some(INTERPRETER_PORT)),
            Ok(Route::Execute)
        );
        assert_eq!(find(&Method::POST, "/execute", Some(ENVD_PORT)), Err(NotFound::Address));
        assert_eq!(find(&Method::GET, "/anything", Some(8000)), Ok(Route::Port(8000)));
        // The control plane is not reached through a sandbox.
        assert_eq!(
            find(&Method::GET, "/sandboxes", Some(ENVD_PORT)),
            Err(NotFound::Address)
        );
    }

    #[test]
    fn the_head_of_a_frame_is_not_read_as_json() {
        let input = |method: &str| Route::Process(method.to_owned()).input();
        assert_eq!(input("Start"), EndpointInput::Whole { head: 5 });
        assert_eq!(input("List"), EndpointInput::Whole { head: 0 });
    }

    #[test]
    fn a_wrong_method_names_the_right_ones() {
        for (method, path, port, allowed) in [
            (Method::PUT, "/sandboxes", None, "GET, POST"),
            (Method::GET, "/sandboxes/sb1/pause", None, "POST"),
            (Method::GET, "/process.Process/Start", Some(ENVD_PORT), "POST"),
            (Method::PUT, "/files", Some(ENVD_PORT), "GET, POST"),
            (Method::GET, "/execute", Some(INTERPRETER_PORT), "POST"),
        ] {
            assert_eq!(find(&method, path, port), Err(NotFound::Method(allowed)), "{path}");
        }
    }
}
