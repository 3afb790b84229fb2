//! A fake service with E2B's protocol. It is strict: a request that the published description does not allow is a
//! fault, and a test that ends with faults fails. One port serves everything, as `E2B_API_URL` and `E2B_SANDBOX_URL`
//! allow. Its sandboxes are folders; its interpreters are real ones of this machine.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a part of tests: they may panic; that is how they fail"
)]

mod wire;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use wire::{Answer, Request, chunk, find, frame, shape};

/// The account's key.
pub const API_KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";
/// The account's template.
pub const TEMPLATE_NAME: &str = "code-interpreter-v1";
const ENVD_PORT: &str = "49983";
const INTERPRETER_PORT: &str = "49999";

/// The interpreter's program: reads one cell per line, writes lines of the protocol.
const DRIVER_SCRIPT: &str = include_str!("driver.py");

/// The state that tests prepare and inspect.
#[derive(Default)]
struct ServiceState {
    sandboxes: BTreeMap<String, Box>,
    next: u32,
    /// The faults of requests.
    faults: Vec<String>,
    /// Method and path of every request to the service, and its idempotency key if it has one.
    asked: Vec<(String, Option<String>)>,
    /// The service's next answers: status and headers.
    busy: Vec<(u16, &'static str)>,
    /// Only older services' paths exist.
    older: bool,
    envd_version: String,
    timeouts: u32,
    internet: Vec<Value>,
}

struct Box {
    root: TempDir,
    state: &'static str,
    access: String,
    traffic: String,
    env: BTreeMap<String, String>,
    contexts: BTreeMap<String, Arc<Context>>,
    processes: BTreeMap<u64, Option<ChildStdin>>,
}

impl Box {
    fn made(access: String, traffic: String, env: BTreeMap<String, String>) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("home/user")).unwrap();
        std::fs::create_dir_all(root.path().join("tmp")).unwrap();
        Self {
            root,
            state: "running",
            access,
            traffic,
            env,
            contexts: BTreeMap::new(),
            processes: BTreeMap::new(),
        }
    }
}

/// A live interpreter.
struct Context {
    pid: u32,
    child: Mutex<Child>,
    stdin: Mutex<ChildStdin>,
    /// The time of the last interrupt of a cell.
    interrupted: Mutex<Option<Instant>>,
    /// Locked while a cell runs.
    lines: Mutex<Receiver<String>>,
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The running service. Ends with the test.
#[derive(Clone)]
pub struct Fake {
    pub url: String,
    world: Arc<Mutex<ServiceState>>,
}

/// A stand-in for pip.
const PIP_SCRIPT: &str = include_str!("pip.py");
impl Fake {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let world = Arc::new(Mutex::new(ServiceState {
            envd_version: "0.6.13".into(),
            ..ServiceState::default()
        }));
        let fake = Self { url, world };
        let serving = fake.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let fake = serving.clone();
                std::thread::spawn(move || fake.serve(stream));
            }
        });
        fake
    }

    fn with<T>(&self, look: impl FnOnce(&mut ServiceState) -> T) -> T {
        look(&mut self.world.lock().unwrap())
    }

    /// Fails the test if a request had a fault.
    #[track_caller]
    pub fn had_no_faults(&self) {
        let faults = self.with(|world| world.faults.clone());
        assert!(faults.is_empty(), "{faults:#?}");
    }

    pub fn ids(&self) -> Vec<String> {
        self.with(|world| world.sandboxes.keys().cloned().collect())
    }

    /// Ends all sandboxes like an expired lifetime.
    pub fn expire_all(&self) {
        let gone = self.with(|world| std::mem::take(&mut world.sandboxes));
        drop(gone);
    }

    /// Creates one sandbox without a service and without tokens, as in debug mode.
    pub fn be_bare(&self) {
        let one = Box::made(String::new(), String::new(), BTreeMap::new());
        self.with(|world| world.sandboxes.insert("debug_sandbox_id".into(), one));
    }

    pub fn contexts(&self) -> usize {
        self.with(|world| world.sandboxes.values().map(|one| one.contexts.len()).sum())
    }

    pub fn pause_all(&self) {
        self.with(|world| world.sandboxes.values_mut().for_each(|one| one.state = "paused"));
    }

    /// Sets the answers to the next requests to the service.
    pub fn answer_next(&self, answers: &[(u16, &'static str)]) {
        self.with(|world| world.busy.extend(answers));
    }

    pub fn be_older(&self, envd_version: &str) {
        self.with(|world| {
            world.older = true;
            world.envd_version = envd_version.to_owned();
        });
    }

    pub fn asked(&self) -> Vec<(String, Option<String>)> {
        self.with(|world| world.asked.clone())
    }

    pub fn kept_alive(&self) -> u32 {
        self.with(|world| world.timeouts)
    }

    /// Returns the internet settings of all creations.
    pub fn internet(&self) -> Vec<Value> {
        self.with(|world| world.internet.clone())
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut writer = stream;
        while let Some(request) = Request::read(&mut reader) {
            let answer = self.answer(&request, &mut writer);
            let sent = match answer {
                Some(answer) => answer.write(&mut writer),
                None => return,
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn fault(&self, request: &Request, what: impl Into<String>) -> Answer {
        let what = what.into();
        self.with(|world| {
            world
                .faults
                .push(format!("{} {}: {what}", request.method, request.path))
        });
        Answer::error(400, &what)
    }

    /// Returns the answer; none if it was streamed.
    fn answer(&self, request: &Request, writer: &mut TcpStream) -> Option<Answer> {
        match request.header("e2b-sandbox-id") {
            None => Some(self.control(request)),
            Some(id) => self.inside(&id, request, writer),
        }
    }

    // The service's API.

    fn control(&self, request: &Request) -> Answer {
        let once = request.header("idempotency-key");
        let shown = format!("{} {}", request.method, request.path);
        self.with(|world| world.asked.push((shown, once.clone())));
        if let Some((status, header)) = self.with(|world| (!world.busy.is_empty()).then(|| world.busy.remove(0))) {
            let mut answer = Answer::error(status, "busy");
            answer.headers.push_str(header);
            return answer;
        }
        if request.header("x-api-key").as_deref() != Some(API_KEY) {
            return Answer::error(401, "Invalid API key");
        }
        if let Some(once) = once
            && (once.is_empty()
                || !once
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        {
            return self.fault(request, "an idempotency key of other characters");
        }
        let older = self.with(|world| world.older);
        let path: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
        let path = match (path.as_slice(), older) {
            (["v2", ..], true) => return Answer::error(404, "no such path"),
            (["v2", rest @ ..], false) => rest,
            (rest, _) => rest,
        };
        match (request.method.as_str(), path) {
            ("GET", ["sandboxes"]) => Answer::json(200, &json!([])),
            ("POST", ["sandboxes"]) => self.create(request),
            ("GET", ["sandboxes", id]) => self.about(id, |one| {
                Answer::json(
                    200,
                    &json!({
                        "templateID": TEMPLATE_NAME, "sandboxID": id, "clientID": "c", "startedAt": "2026-11-20T21:47:20Z",
                        "endAt": "2026-11-20T21:57:20Z", "cpuCount": 2, "memoryMB": 1024, "diskSizeMB": 5000,
                        "state": one.state, "envdVersion": "0.6.13",
                    }),
                )
            }),
            ("DELETE", ["sandboxes", id]) => match self.with(|world| world.sandboxes.remove(*id)) {
                Some(_) => Answer::empty(204),
                None => Answer::error(404, "no such sandbox"),
            },
            ("POST", ["sandboxes", id, what @ ("timeout" | "connect")]) => {
                if let Err(fault) = shape(&request.json(), &[("timeout", "u64", true)]) {
                    return self.fault(request, fault);
                }
                if *what == "timeout" {
                    self.with(|world| world.timeouts += 1);
                }
                self.about(id, |one| {
                    if *what == "timeout" {
                        return Answer::empty(204);
                    }
                    one.state = "running";
                    Answer::json(
                        200,
                        &json!({"templateID": TEMPLATE_NAME, "sandboxID": id, "clientID": "c", "envdVersion": "0.6.13"}),
                    )
                })
            }
            ("GET", ["sandboxes", id, "metrics"]) => self.about(id, |_| {
                Answer::json(
                    200,
                    &json!([{
                        "timestamp": "2026-11-20T21:47:20Z", "timestampUnix": 1, "cpuCount": 2, "cpuUsedPct": 1.5,
                        "memUsed": 77_000_000_u64, "memTotal": 1_000_000_000_u64, "diskUsed": 5_000_000, "diskTotal": 9,
                    }]),
                )
            }),
            _ => self.fault(request, "no such call"),
        }
    }

    fn about(&self, id: &str, answer: impl FnOnce(&mut Box) -> Answer) -> Answer {
        self.with(|world| match world.sandboxes.get_mut(id) {
            Some(one) => answer(one),
            None => Answer::error(404, "no such sandbox"),
        })
    }

    fn create(&self, request: &Request) -> Answer {
        let body = request.json();
        let fields = [
            ("templateID", "string", true),
            ("timeout", "u64", true),
            ("metadata", "texts", false),
            ("envVars", "texts", false),
            ("allow_internet_access", "bool", false),
        ];
        if let Err(fault) = shape(&body, &fields) {
            return self.fault(request, fault);
        }
        if body["templateID"] != TEMPLATE_NAME {
            return Answer::error(404, "template not found");
        }
        let env = body["envVars"].as_object().cloned().unwrap_or_default();
        self.with(|world| {
            world.next += 1;
            world.internet.push(body["allow_internet_access"].clone());
            let id = format!("i{:04}fake", world.next);
            let (access, traffic) = (format!("access-{id}"), format!("traffic-{id}"));
            let answer = json!({
                "templateID": TEMPLATE_NAME, "sandboxID": id, "clientID": "c", "envdVersion": world.envd_version,
                "envdAccessToken": access, "trafficAccessToken": traffic, "domain": null,
            });
            let env = env.into_iter().map(|(k, v)| (k, v.as_str().unwrap().to_owned()));
            world.sandboxes.insert(id, Box::made(access, traffic, env.collect()));
            Answer::json(201, &answer)
        })
    }

    // A sandbox's ports.

    fn inside(&self, id: &str, request: &Request, writer: &mut TcpStream) -> Option<Answer> {
        if request.header("x-api-key").is_some() || request.raw.contains(API_KEY) {
            return Some(self.fault(request, "the key came into a sandbox"));
        }
        let known = self.with(|world| {
            let one = world.sandboxes.get(id)?;
            Some((one.access.clone(), one.traffic.clone(), one.state))
        });
        let Some((access, traffic, "running")) = known else {
            let body = json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502});
            return Some(Answer::json(502, &body));
        };
        let given = ["x-access-token", "e2b-traffic-access-token"].map(|name| request.header(name).unwrap_or_default());
        if given != [access, traffic] {
            return Some(self.fault(request, "wrong tokens"));
        }
        let port = request.header("e2b-sandbox-port").unwrap_or_default();
        let path: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
        match (port.as_str(), request.method.as_str(), path.as_slice()) {
            (INTERPRETER_PORT, "POST", ["contexts"]) => Some(self.new_context(id, request)),
            (INTERPRETER_PORT, "DELETE", ["contexts", context]) => {
                let gone = self.with(|world| {
                    world
                        .sandboxes
                        .get_mut(id)
                        .and_then(|one| one.contexts.remove(*context))
                });
                Some(match gone {
                    Some(context) => {
                        // The thread that waits for the context's cell holds it, too.
                        context.child.lock().unwrap().kill().unwrap();
                        Answer::empty(204)
                    }
                    None => Answer::error(404, "Context not found"),
                })
            }
            (INTERPRETER_PORT, "POST", ["execute"]) => self.execute(id, request, writer),
            (ENVD_PORT, "GET" | "POST", ["files"]) => Some(self.content(id, request)),
            (ENVD_PORT, "POST", ["filesystem.Filesystem", method]) => Some(self.filesystem(id, method, request)),
            (ENVD_PORT, "POST", ["process.Process", "Start"]) => self.start_process(id, request, writer),
            (ENVD_PORT, "POST", ["process.Process", method]) => Some(self.process(id, method, request)),
            _ => Some(self.fault(request, "no such call")),
        }
    }

    fn new_context(&self, id: &str, request: &Request) -> Answer {
        let body = request.json();
        if let Err(fault) = shape(&body, &[("language", "string", false), ("cwd", "string", false)]) {
            return self.fault(request, fault);
        }
        if body["language"] != "python" {
            return Answer::error(500, "no kernel");
        }
        let (root, env) = self.with(|world| {
            let one = &world.sandboxes[id];
            (one.root.path().join("home/user"), one.env.clone())
        });
        let mut command = Command::new("python3");
        command
            .args(["-u", "-c", DRIVER_SCRIPT])
            .current_dir(root)
            .env_clear()
            .envs(env);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let context = Context {
            pid: child.id(),
            stdin: Mutex::new(child.stdin.take().unwrap()),
            child: Mutex::new(child),
            lines: Mutex::new(lines),
            interrupted: Mutex::default(),
        };
        self.with(|world| {
            world.next += 1;
            let name = format!("context-{}", world.next);
            let answer = json!({"id": name, "language": "python", "cwd": "/home/user"});
            world
                .sandboxes
                .get_mut(id)
                .unwrap()
                .contexts
                .insert(name, Arc::new(context));
            Answer::json(200, &answer)
        })
    }

    fn execute(&self, id: &str, request: &Request, writer: &mut TcpStream) -> Option<Answer> {
        let body = request.json();
        let fields = [
            ("code", "string", true),
            ("context_id", "string", false),
            ("language", "string", false),
            ("env_vars", "texts", false),
        ];
        if let Err(fault) = shape(&body, &fields) {
            return Some(self.fault(request, fault));
        }
        if body.get("context_id").is_some() == body.get("language").is_some() {
            return Some(self.fault(request, "either context_id or language"));
        }
        let name = body["context_id"].as_str().unwrap_or_default().to_owned();
        let Some(context) = self.with(|world| world.sandboxes[id].contexts.get(&name).cloned()) else {
            return Some(Answer::error(404, "Context not found"));
        };
        let lines = context.lines.lock().unwrap();
        let mut here = writer
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
            .is_ok();
        let just_now = |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() < Duration::from_millis(250));
        if just_now(&context.interrupted.lock().unwrap()) {
            drop(lines);
            // The real service also silently drops a cell that arrives during an interrupt.
            while chunk(writer, b"{\"type\":\"keepalive\"}\n").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
            return None;
        }
        let code = format!("{}\n", body["code"]);
        context.stdin.lock().unwrap().write_all(code.as_bytes()).unwrap();
        let (mut silent, mut told) = (0, false);
        loop {
            let line = match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    silent += 1;
                    // Keep-alive lines detect a client that left.
                    here = here && chunk(writer, b"{\"type\":\"keepalive\"}\n").is_ok();
                    if !here && !told {
                        told = true;
                        signal("INT", context.pid.into());
                        *context.interrupted.lock().unwrap() = Some(Instant::now());
                    }
                    assert!(silent < 2000, "a cell without an end");
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let restarted = json!({
                        "type": "error", "name": "ContextRestarting", "value": "Context was restarted", "traceback": "",
                    });
                    let _ = chunk(
                        writer,
                        format!("{restarted}\n{{\"type\":\"end_of_execution\"}}\n").as_bytes(),
                    );
                    let _ = chunk(writer, b"");
                    self.with(|world| world.sandboxes.get_mut(id).map(|one| one.contexts.remove(&name)));
                    return None;
                }
            };
            here = here && chunk(writer, format!("{line}\n").as_bytes()).is_ok();
            if line.contains("\"end_of_execution\"") {
                break;
            }
        }
        if here && chunk(writer, b"").is_ok() {
            Some(Answer::sent())
        } else {
            None
        }
    }

    fn host_path(&self, id: &str, path: &str) -> PathBuf {
        let root = self.with(|world| world.sandboxes[id].root.path().to_owned());
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/home/user/{path}")
        };
        root.join(path.trim_start_matches('/'))
    }

    fn content(&self, id: &str, request: &Request) -> Answer {
        let Some(path) = request.query("path") else {
            return self.fault(request, "no path");
        };
        let host = self.host_path(id, &path);
        if request.method == "GET" {
            return match std::fs::read(host) {
                Ok(bytes) => Answer::bytes(200, bytes),
                Err(_) => Answer::json(404, &json!({"code": 404, "message": "path does not exist"})),
            };
        }
        let kind = request.header("content-type").unwrap_or_default();
        let version = self.with(|world| world.envd_version.clone());
        let bytes = if kind == "application/octet-stream" && version != "0.3.0" {
            request.body.clone()
        } else if let Some(boundary) = kind.strip_prefix("multipart/form-data; boundary=") {
            if request.query("username").as_deref() != Some("user") || request.header("authorization").is_none() {
                return self.fault(request, "an old program without a user");
            }
            let start = find(&request.body, b"\r\n\r\n").unwrap() + 4;
            let end = find(&request.body, format!("\r\n--{boundary}--\r\n").as_bytes()).unwrap();
            assert!(find(&request.body, b"name=\"file\"").is_some());
            request.body[start..end].to_vec()
        } else {
            return self.fault(request, format!("content of the kind {kind}"));
        };
        std::fs::create_dir_all(host.parent().unwrap()).unwrap();
        std::fs::write(&host, bytes).unwrap();
        Answer::json(
            200,
            &json!([{"name": host.file_name().unwrap().to_str(), "type": "file", "path": path}]),
        )
    }

    fn unary(&self, request: &Request) -> Result<Value, Answer> {
        let kind = request.header("content-type").unwrap_or_default();
        if kind != "application/json" || request.header("connect-protocol-version").as_deref() != Some("1") {
            return Err(self.fault(request, "not Connect with JSON"));
        }
        Ok(request.json())
    }

    fn filesystem(&self, id: &str, method: &str, request: &Request) -> Answer {
        let body = match self.unary(request) {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        let fields: &[_] = match method {
            "Stat" => &[("path", "string", true)],
            "ListDir" => &[("path", "string", true), ("depth", "u64", false)],
            "MakeDir" | "Remove" => &[("path", "string", true)],
            "Move" => &[("source", "string", true), ("destination", "string", true)],
            _ => return self.fault(request, "no such method"),
        };
        if let Err(fault) = shape(&body, fields) {
            return self.fault(request, fault);
        }
        let path = body["path"].as_str().or(body["source"].as_str()).unwrap().to_owned();
        let host = self.host_path(id, &path);
        match method {
            "MakeDir" if host.exists() => {
                return Answer::json(
                    409,
                    &json!({"code": "already_exists", "message": "path exists already"}),
                );
            }
            "MakeDir" => {
                std::fs::create_dir_all(&host).unwrap();
                return Answer::json(200, &json!({"entry": entry(&path, &host.metadata().unwrap())}));
            }
            "Remove" => {
                let removed = match host.symlink_metadata() {
                    Ok(found) if found.is_dir() => std::fs::remove_dir_all(&host),
                    Ok(_) => std::fs::remove_file(&host),
                    Err(_) => Ok(()),
                };
                removed.unwrap();
                return Answer::json(200, &json!({}));
            }
            "Move" => {
                let target = body["destination"].as_str().unwrap();
                return match std::fs::rename(&host, self.host_path(id, target)) {
                    Ok(()) => Answer::json(200, &json!({"entry": {"name": "moved", "path": target}})),
                    Err(_) => Answer::json(404, &json!({"code": "not_found", "message": "path does not exist"})),
                };
            }
            _ => {}
        }
        let Ok(found) = std::fs::metadata(&host) else {
            return Answer::json(404, &json!({"code": "not_found", "message": "path does not exist"}));
        };
        if method == "Stat" {
            return Answer::json(200, &json!({"entry": entry(&path, &found)}));
        }
        if !found.is_dir() {
            return Answer::json(
                400,
                &json!({"code": "invalid_argument", "message": "path is not a directory"}),
            );
        }
        let mut entries = Vec::new();
        walk(&host, &path, body["depth"].as_u64().unwrap_or(1), &mut entries);
        Answer::json(200, &json!({"entries": entries}))
    }

    fn start_process(&self, id: &str, request: &Request, writer: &mut TcpStream) -> Option<Answer> {
        let kind = request.header("content-type").unwrap_or_default();
        if kind != "application/connect+json" || request.body.len() < 5 || request.body[0] != 0 {
            return Some(self.fault(request, "no frame of Connect"));
        }
        let length = u32::from_be_bytes(request.body[1..5].try_into().unwrap()) as usize;
        let body: Value = serde_json::from_slice(&request.body[5..]).unwrap_or_default();
        if request.body.len() != length + 5 {
            return Some(self.fault(request, "a frame of another length"));
        }
        let process = &body["process"];
        let fields = [
            ("cmd", "string", true),
            ("args", "list", false),
            ("envs", "texts", false),
            ("cwd", "string", false),
        ];
        if let Err(fault) =
            shape(&body, &[("process", "object", true), ("stdin", "bool", false)]).and(shape(process, &fields))
        {
            return Some(self.fault(request, fault));
        }
        let inner = |text: &str| {
            if text.starts_with("/home/user") || text.starts_with("/tmp/") {
                self.host_path(id, text).display().to_string()
            } else {
                text.to_owned()
            }
        };
        let mut command = Command::new(inner(process["cmd"].as_str().unwrap()));
        if process["args"]
            .as_array()
            .is_some_and(|words| words.starts_with(&[json!("-m"), json!("pip")]))
        {
            command.args(["-c", PIP_SCRIPT]);
        }
        command.args(
            process["args"]
                .as_array()
                .unwrap()
                .iter()
                .map(|word| inner(word.as_str().unwrap())),
        );
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.envs(
            process["envs"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| (k, v.as_str().unwrap())),
        );
        command.current_dir(inner(process["cwd"].as_str().unwrap_or("/home/user")));
        command.stdin(if body["stdin"] == false {
            Stdio::null()
        } else {
            Stdio::piped()
        });
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n";
        writer.write_all(head).ok()?;
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let error = json!({"error": {"code": "invalid_argument", "message": error.to_string()}});
                chunk(writer, &frame(2, &error)).ok()?;
                chunk(writer, b"").ok()?;
                return Some(Answer::sent());
            }
        };
        let pid = u64::from(child.id());
        let stdin = child.stdin.take();
        self.with(|world| world.sandboxes.get_mut(id).unwrap().processes.insert(pid, stdin));
        chunk(writer, &frame(0, &json!({"event": {"start": {"pid": pid}}}))).ok()?;
        let (sender, pieces) = channel();
        let out: std::boxed::Box<dyn Read + Send> = std::boxed::Box::new(child.stdout.take().unwrap());
        let err: std::boxed::Box<dyn Read + Send> = std::boxed::Box::new(child.stderr.take().unwrap());
        for (name, mut pipe) in [("stdout", out), ("stderr", err)] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = pipe.read(&mut piece) {
                    let _ = sender.send(json!({"event": {"data": {name: STANDARD.encode(&piece[..read])}}}));
                }
            });
        }
        drop(sender);
        for piece in pieces {
            chunk(writer, &frame(0, &piece)).ok()?;
        }
        let status = child.wait().unwrap();
        self.with(|world| world.sandboxes.get_mut(id).map(|one| one.processes.remove(&pid)));
        let end = match status.code() {
            // Zeros are omitted, as protobuf's JSON allows.
            Some(0) => json!({"exited": true, "status": "exit status 0"}),
            Some(code) => json!({"exitCode": code, "exited": true, "status": format!("exit status {code}")}),
            None => json!({"exitCode": -1, "status": "signal: killed"}),
        };
        chunk(writer, &frame(0, &json!({"event": {"end": end}}))).ok()?;
        chunk(writer, &frame(2, &json!({}))).ok()?;
        chunk(writer, b"").ok()?;
        Some(Answer::sent())
    }

    fn process(&self, id: &str, method: &str, request: &Request) -> Answer {
        let body = match self.unary(request) {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        let fields: &[_] = match method {
            "SendInput" => &[("process", "object", true), ("input", "object", true)],
            "SendSignal" => &[("process", "object", true), ("signal", "string", true)],
            "CloseStdin" => &[("process", "object", true)],
            _ => return self.fault(request, "no such method"),
        };
        if let Err(fault) = shape(&body, fields).and(shape(&body["process"], &[("pid", "u64", true)])) {
            return self.fault(request, fault);
        }
        let pid = body["process"]["pid"].as_u64().unwrap();
        let found = self.with(|world| {
            let stdin = world.sandboxes.get_mut(id)?.processes.get_mut(&pid)?;
            match method {
                "SendInput" => {
                    let bytes = STANDARD.decode(body["input"]["stdin"].as_str()?).ok()?;
                    stdin.as_mut()?.write_all(&bytes).ok()?;
                }
                "CloseStdin" => drop(stdin.take()),
                _ => {
                    let name = body["signal"].as_str()?.strip_prefix("SIGNAL_SIG")?;
                    ["KILL", "TERM"].contains(&name).then(|| signal(name, pid))?;
                }
            }
            Some(())
        });
        match found {
            Some(()) => Answer::json(200, &json!({})),
            None => Answer::json(404, &json!({"code": "not_found", "message": "process not found"})),
        }
    }
}

fn signal(name: &str, pid: u64) {
    let kill = format!("kill -{name} {pid}");
    let _ = Command::new("/bin/sh").args(["-c", &kill]).status();
}

fn entry(path: &str, found: &std::fs::Metadata) -> Value {
    let kind = if found.is_dir() {
        "FILE_TYPE_DIRECTORY"
    } else {
        "FILE_TYPE_FILE"
    };
    let name = path.rsplit('/').next().unwrap();
    json!({
        "name": name, "type": kind, "path": path, "size": found.len().to_string(), "mode": 420,
        "permissions": "-rw-r--r--", "owner": "user", "group": "user", "modifiedTime": "2026-11-20T21:47:20.53Z",
    })
}

fn walk(host: &std::path::Path, path: &str, depth: u64, entries: &mut Vec<Value>) {
    for one in std::fs::read_dir(host).unwrap().flatten() {
        let below = format!("{}/{}", path.trim_end_matches('/'), one.file_name().to_str().unwrap());
        let found = one.metadata().unwrap();
        entries.push(entry(&below, &found));
        if found.is_dir() && depth > 1 {
            walk(&one.path(), &below, depth - 1, entries);
        }
    }
}
