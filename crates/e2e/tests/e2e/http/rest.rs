//! `/v1`, from the view of a program without an SDK.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::{Value, json};

use crate::python_sdk::sdk;
use sandcell_e2e::http::{Reply, Server, command, connect, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, name_of, until};

/// A program that calls `/v1`, with a connection for each request.
pub(super) struct Client {
    address: SocketAddr,
    token: Option<String>,
}

impl Client {
    pub(super) fn new(server: &Server, token: Option<&str>) -> Self {
        Self {
            address: server.address,
            token: token.map(str::to_owned),
        }
    }

    /// Sends a request without waiting for the answer; `more` contains further header lines.
    fn begin(&self, method: &str, path: &str, more: &str, body: &[u8]) -> BufReader<TcpStream> {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.address
        );
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if method != "GET" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        let mut stream = connect(self.address);
        let request = [format!("{head}{more}\r\n").as_bytes(), body].concat();
        // A server that refuses early may not read the whole request.
        let _all_or_part = stream.write_all(&request);
        BufReader::new(stream)
    }

    fn send(&self, method: &str, path: &str, more: &str, body: &[u8]) -> Reply {
        Reply::read(&mut self.begin(method, path, more, body)).expect("an answer")
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", b"")
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, JSON_HEADER, body.to_string().as_bytes())
    }

    pub(super) fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, "", b"")
    }

    /// Requests events without waiting for the answer.
    fn events(&self, path: &str, body: &Value) -> BufReader<TcpStream> {
        let more = format!("{JSON_HEADER}Accept: text/event-stream\r\n");
        self.begin("POST", path, &more, body.to_string().as_bytes())
    }

    /// Makes a sandbox.
    fn sandbox(&self) -> String {
        let made = self.post("/v1/sandboxes", &json!({}));
        assert_eq!(made.status, 201, "{made:?}");
        text(&made.message(), "sandbox_id")
    }
}

const JSON_HEADER: &str = "Content-Type: application/json\r\n";

fn text(value: &Value, field: &str) -> String {
    value[field]
        .as_str()
        .unwrap_or_else(|| panic!("{field}: {value}"))
        .to_owned()
}

/// Fails unless the call was refused with this status and code, and a remedy.
#[track_caller]
fn refused(reply: &Reply, status: u16, code: &str) -> Value {
    assert_eq!(reply.status, status, "{reply:?}");
    let problem = reply.message();
    assert_eq!(problem["code"], code, "{problem}");
    for field in ["message", "remedy"] {
        assert!(!text(&problem, field).is_empty(), "{problem}");
    }
    problem
}

/// Returns the events of a complete answer: name and data.
fn events_of(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = reply.body.split("\n\n").filter_map(|event| {
        let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
        Some((name.to_owned(), serde_json::from_str(data).unwrap()))
    });
    events.collect()
}

/// Returns the output of a stream, all of its events together.
fn printed(events: &[(String, Value)], stream: &str) -> String {
    let of_stream = events.iter().filter(|(name, _)| name == stream);
    of_stream.map(|(_, data)| text(data, "text")).collect()
}

fn open(place: &TestDir) -> (Server, Client) {
    let server = Server::start(place, &[]);
    let client = Client::new(&server, None);
    (server, client)
}

#[test]
fn a_sandbox_is_created_used_inspected_and_closed() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let body = json!({"label": "a", "key": "k", "memory_mb": 256, "env": {"MODE": "test"}});
    let made = client.post("/v1/sandboxes", &body);
    assert_eq!(made.status, 201, "{made:?}");
    let id = text(&made.message(), "sandbox_id");
    assert_eq!(made.header("location"), Some(format!("/v1/sandboxes/{id}").as_str()));
    assert_eq!(made.message()["limits"]["memory_mb"], 256);
    // The same key and fields return the same sandbox.
    let again = client.post("/v1/sandboxes", &body);
    assert_eq!((again.status, text(&again.message(), "sandbox_id")), (200, id.clone()));
    let run = format!("/v1/sandboxes/{id}/run");
    let first = client.post(&run, &json!({"code": "import os\nx = os.environ['MODE']"}));
    assert_eq!(
        (first.status, &first.message()["status"]),
        (200, &json!("ok")),
        "{first:?}"
    );
    let second = client.post(
        &run,
        &json!({"code": "import sys\nprint('é', x)\nprint('e', file=sys.stderr)\nx * 2"}),
    );
    let second = second.message();
    assert_eq!(
        (&second["stdout"], &second["stderr"], &second["result"]),
        (&json!("é test\n"), &json!("e\n"), &json!("'testtest'"))
    );
    let failed = client.post(&run, &json!({"code": "1/0"})).message();
    assert_eq!(
        (&failed["status"], &failed["error"]["name"]),
        (&json!("error"), &json!("ZeroDivisionError"))
    );
    let status = client.get(&format!("/v1/sandboxes/{id}")).message();
    assert_eq!(
        (&status["label"], &status["sessions"][0]["cells"]),
        (&json!("a"), &json!(3))
    );
    let list = client.get("/v1/sandboxes").message();
    assert_eq!(list["sandboxes"][0]["sandbox_id"], id.as_str());
    let languages = client.get("/v1/languages").message();
    assert_eq!(languages["default"], "python");
    let closed = client.send("DELETE", &format!("/v1/sandboxes/{id}"), "", b"");
    assert_eq!((closed.status, closed.message()), (200, json!({"closed": id})));
    let gone = refused(&client.get(&format!("/v1/sandboxes/{id}")), 404, "not_found");
    assert!(text(&gone, "remedy").contains("GET /v1/sandboxes"), "{gone}");
}

#[test]
fn code_runs_once_with_files_both_ways() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let code = "data = open('in.bin','rb').read()\nopen('o/out.bin','wb').write(data*2)\nprint(open('o/t.txt').read(), input())";
    let body = json!({
        "code": code, "stdin": "typed\n", "files": {"in.bin": {"base64": "AP8="}, "o/t.txt": "text"},
        "outputs": ["o/out.bin", "none"],
    });
    let run = client.post("/v1/run", &body);
    assert_eq!(run.status, 200, "{run:?}");
    let run = run.message();
    assert_eq!(run["stdout"], "text typed\n", "{run}");
    assert_eq!(
        (
            &run["files"][0]["size"],
            &run["missing_files"].as_array().unwrap().len()
        ),
        (&json!(4), &1)
    );
    let file = client.get(&text(&run["files"][0], "url"));
    assert_eq!((file.status, file.header("content-length")), (200, Some("4")));
    assert_eq!(file.header("content-type"), Some("application/octet-stream"));
    // Output beyond an answer's limit is read in parts.
    let body = json!({"code": "print('ab' * 300000)", "max_output_bytes": 100});
    let run = client.post("/v1/run", &body).message();
    assert_eq!((text(&run, "stdout").len(), &run["truncated"]), (100, &json!(true)));
    let id = text(&run, "execution_id");
    let end = client.get(&format!("/v1/executions/{id}/output?offset=-5")).message();
    assert_eq!((&end["text"], &end["eof"]), (&json!("abab\n"), &json!(true)));
    assert_eq!(end["total_bytes"], 600_001);
    let whole = client
        .post("/v1/run", &json!({"code": "print('ab' * 300000)"}))
        .message();
    assert_eq!(
        (text(&whole, "stdout").len(), &whole["truncated"]),
        (600_001, &json!(false))
    );
    let slow = json!({"code": "import time\ntime.sleep(60)", "timeout_s": 0.5});
    assert_eq!(client.post("/v1/run", &slow).message()["status"], "timeout");
}

#[test]
fn output_arrives_as_events_while_the_code_runs() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let id = client.sandbox();
    let code =
        "import sys\nprint('one', flush=True)\nopen('go').read()\nprint('two')\nprint('bad', file=sys.stderr)\n'end'";
    let mkfifo = json!({"command": ["mkfifo", "go"]});
    assert_eq!(
        client.post(&format!("/v1/sandboxes/{id}/commands"), &mkfifo).message()["exit_code"],
        0
    );
    let mut stream = client.events(&format!("/v1/sandboxes/{id}/run"), &json!({"code": code}));
    // The first word is there while the code waits for the second sandbox call.
    let mut seen = String::new();
    while !seen.contains("one\\n") {
        assert!(stream.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    assert!(!seen.contains("event: result"), "{seen}");
    let go = json!({"command": "echo x > go"});
    assert_eq!(
        client.post(&format!("/v1/sandboxes/{id}/commands"), &go).message()["status"],
        "ok"
    );
    while !seen.contains("event: result") {
        assert!(stream.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    // A later request gets the same events from the start.
    let executions = client.get("/v1/executions?limit=50").message();
    let finished = executions["finished"].as_array().unwrap();
    let of_code = finished.iter().find(|one| one["language"] == "python").unwrap();
    let path = format!("/v1/executions/{}", text(of_code, "execution_id"));
    let reply = client.send("GET", &path, "Accept: text/event-stream\r\n", b"");
    let events = events_of(&reply);
    assert_eq!(events[0].0, "start");
    assert_eq!(
        (printed(&events, "stdout").as_str(), printed(&events, "stderr").as_str()),
        ("one\ntwo\n", "bad\n")
    );
    let (last, data) = events.last().unwrap();
    assert_eq!((last.as_str(), &data["result"]), ("result", &json!("'end'")));
    // Code that cannot run gives an error with its status, not a stream.
    let mut none = client.events("/v1/run", &json!({"code": "1", "language": "latin"}));
    refused(&Reply::read(&mut none).unwrap(), 400, "language_unavailable");
}

#[test]
fn commands_run_in_parallel_with_a_busy_session() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let id = client.sandbox();
    let busy = json!({"code": "import time\ntime.sleep(600)", "wait_s": 0, "timeout_s": 900});
    let busy = client.post(&format!("/v1/sandboxes/{id}/run"), &busy);
    assert_eq!(
        (busy.status, &busy.message()["status"]),
        (202, &json!("running")),
        "{busy:?}"
    );
    let path = format!("/v1/sandboxes/{id}/commands");
    let shell = json!({
        "command": "cat; echo $A; pwd; echo err >&2; exit 7", "stdin": "in ", "env": {"A": "b"}, "cwd": "/tmp",
    });
    let run = client.post(&path, &shell).message();
    assert_eq!(
        (&run["exit_code"], &run["status"]),
        (&json!(7), &json!("error")),
        "{run}"
    );
    assert_eq!(
        (&run["stdout"], &run["stderr"]),
        (&json!("in b\n/tmp\n"), &json!("err\n"))
    );
    let argv = json!({"command": ["printf", "%s", "a b; exit 1"]});
    assert_eq!(client.post(&path, &argv).message()["stdout"], "a b; exit 1");
    let events =
        Reply::read(&mut client.events(&path, &json!({"command": "printf '\\303'; sleep 0.1; printf '\\251'"})));
    assert_eq!(printed(&events_of(&events.unwrap()), "stdout"), "é");
    let cancelled = client.send(
        "POST",
        &format!("/v1/executions/{}/cancel", text(&busy.message(), "execution_id")),
        "",
        b"",
    );
    assert_eq!(
        (cancelled.status, &cancelled.message()["status"]),
        (200, &json!("cancelled"))
    );
}

#[test]
fn files_are_raw_bytes_both_ways_in_ranges_and_parts() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let id = client.sandbox();
    let file = format!("/v1/sandboxes/{id}/file?path=d/big.bin");
    let bytes: Vec<u8> = (0..5_000_001_u32)
        .map(|n| b'a' + u8::try_from(n % 23).unwrap())
        .collect();
    let written = client.send("PUT", &file, "", &bytes);
    assert_eq!(
        (written.status, &written.message()["size"]),
        (200, &json!(5_000_001)),
        "{written:?}"
    );
    let read = client.get(&file);
    assert!(
        read.status == 200 && read.body.as_bytes() == bytes,
        "{}",
        read.body.len()
    );
    for (range, status, from, to) in [
        ("0-0", 206, 0, 1),
        ("1048570-1048585", 206, 1_048_570, 1_048_586),
        ("5000000-9999999999", 206, 5_000_000, 5_000_001),
        ("-3", 206, 4_999_998, 5_000_001),
        ("0-1,3-4", 200, 0, bytes.len()),
    ] {
        let part = client.send("GET", &file, &format!("Range: bytes={range}\r\n"), b"");
        assert!(
            part.status == status && part.body.as_bytes() == &bytes[from..to],
            "{range}: {}",
            part.status
        );
    }
    let beyond = client.send("GET", &file, "Range: bytes=5000001-\r\n", b"");
    refused(&beyond, 416, "invalid_argument");
    assert_eq!(beyond.header("content-range"), Some("bytes */5000001"));
    let more = client.send("PUT", &format!("{file}&append=true"), "", b"\0\xff");
    assert_eq!(more.message()["size"], 5_000_003);
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let head = format!(
        "PUT /v1/sandboxes/{id}/file?path=e HTTP/1.1\r\nHost: {}\r\n{chunked}",
        client.address
    );
    let mut stream = connect(client.address);
    stream.write_all(head.as_bytes()).unwrap();
    let reply = Reply::read(&mut BufReader::new(stream)).unwrap();
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    assert_eq!(client.get(&format!("/v1/sandboxes/{id}/file?path=e")).body, "abcde");
    let empty = client.send("PUT", &format!("/v1/sandboxes/{id}/file?path=empty"), "", b"");
    assert_eq!(empty.message()["size"], 0);
    let folder = client
        .get(&format!("/v1/sandboxes/{id}/files?recursive=true"))
        .message();
    let names: Vec<&str> = { folder["entries"].as_array().unwrap().iter() }
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    for name in ["d", "d/big.bin", "e", "empty"] {
        assert!(names.contains(&name), "{names:?}");
    }
    refused(
        &client.get(&format!("/v1/sandboxes/{id}/file?path=none")),
        404,
        "not_found",
    );
    refused(
        &client.get(&format!("/v1/sandboxes/{id}/file")),
        400,
        "invalid_argument",
    );
    refused(
        &client.get(&format!("/v1/sandboxes/{id}/file?path=a/../b")),
        400,
        "invalid_argument",
    );
    let read_only = client.send("PUT", &format!("/v1/sandboxes/{id}/file?path=/usr/x"), "", b"x");
    refused(&read_only, 403, "denied_by_policy");
}

#[test]
fn code_ends_when_its_client_disconnects() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let id = client.sandbox();
    let path = format!("/v1/sandboxes/{id}/run");
    let code = json!({"code": "import time\nprint('up', flush=True)\ntime.sleep(600)", "timeout_s": 900});
    let running = || {
        client.get("/v1/executions").message()["running"]
            .as_array()
            .unwrap()
            .len()
    };
    let mut stream = client.events(&path, &code);
    let mut seen = String::new();
    while !seen.contains("up\\n") {
        assert!(stream.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    assert_eq!(running(), 1);
    drop(stream);
    until(DEFAULT_TIMEOUT, "the end after events", || {
        (running() == 0).then_some(())
    });
    let stream = client.begin("POST", &path, JSON_HEADER, code.to_string().as_bytes());
    until(DEFAULT_TIMEOUT, "the run", || (running() == 1).then_some(()));
    drop(stream);
    until(DEFAULT_TIMEOUT, "the end of a plain call", || {
        (running() == 0).then_some(())
    });
    let finished = client.get("/v1/executions").message();
    for execution in finished["finished"].as_array().unwrap() {
        assert_eq!(execution["status"], "cancelled", "{finished}");
    }
    // An execution whose call answered early continues.
    let body = json!({"code": "import time\ntime.sleep(600)", "timeout_s": 900, "wait_s": 0.01});
    assert_eq!(client.post(&path, &body).status, 202);
    assert_eq!(running(), 1);
}

#[test]
fn a_slow_reader_of_events_blocks_nothing_and_sees_the_gaps() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\noutput_kept_mb = 1\n");
    let (server, client) = open(&place);
    let code = json!({"code": "line = 'x' * 1023\nfor _ in range(65536): print(line)", "timeout_s": 300});
    let mut stream = client.events("/v1/run", &code);
    let mut first = String::new();
    while !first.contains("event: start") {
        assert!(stream.read_line(&mut first).unwrap() > 0, "{first}");
    }
    // The client reads nothing until the code has ended.
    let ended = || {
        let executions = client.get("/v1/executions").message();
        (executions["total"] == 1).then_some(())
    };
    until(DEFAULT_TIMEOUT, "the end of the code", ended);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").trim().parse().unwrap();
    let mut rest = String::new();
    while !rest.contains("event: result") {
        assert!(stream.read_line(&mut rest).unwrap() > 0, "{}", rest.len());
    }
    let data = rest.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let skipped: u64 = events.iter().filter_map(|event| event["skipped_bytes"].as_u64()).sum();
    let told: usize = events
        .iter()
        .filter_map(|event| event["text"].as_str())
        .map(str::len)
        .sum();
    let told = u64::try_from(told).unwrap();
    assert!(skipped > 0 && told + skipped == 64 << 20, "{told} and {skipped}");
    assert!(
        peak_kb < 400 << 10,
        "the server took {peak_kb} KiB for 64 MiB of output"
    );
}

#[test]
fn an_invalid_request_is_refused_with_the_reason() {
    let _turn = begin!();
    let place = TestDir::new();
    let (server, client) = open(&place);
    let id = client.sandbox();
    let run = format!("/v1/sandboxes/{id}/run");
    let unknown = refused(
        &client.post(&run, &json!({"code": "1", "lang": "python"})),
        400,
        "invalid_argument",
    );
    assert!(text(&unknown, "message").contains("unknown field `lang`"), "{unknown}");
    let wrong = refused(&client.post(&run, &json!({"code": 1})), 400, "invalid_argument");
    assert!(text(&wrong, "message").contains("`code`"), "{wrong}");
    let missing = refused(&client.post(&run, &json!({"stdin": "x"})), 400, "invalid_argument");
    assert!(text(&missing, "message").contains("`code`"), "{missing}");
    let inner = json!({"code": "1", "files": {"a": {"base64": 5}}});
    let inner = refused(&client.post("/v1/run", &inner), 400, "invalid_argument");
    assert!(text(&inner, "message").contains("`files.a`"), "{inner}");
    let base64 = json!({"code": "1", "files": {"a": {"base64": "!"}}});
    let base64 = refused(&client.post("/v1/run", &base64), 400, "invalid_argument");
    assert!(text(&base64, "message").contains("`files.a`"), "{base64}");
    for (body, part) in [
        (json!({"code": "1", "timeout_s": -1}), "timeout_s"),
        (json!({"code": "1", "timeout_s": 1e300}), "timeout_s"),
        (json!({"code": "1", "timeout_s": 0}), "time-out"),
        (json!({"code": "", "timeout_s": 1}), "empty"),
        (
            json!({"code": "1", "max_output_bytes": 999_999_999}),
            "max_output_bytes",
        ),
    ] {
        let problem = refused(&client.post(&run, &body), 400, "invalid_argument");
        assert!(text(&problem, "message").contains(part), "{problem}");
    }
    let cpus = refused(
        &client.post("/v1/sandboxes", &json!({"cpus": -1})),
        400,
        "invalid_argument",
    );
    assert!(text(&cpus, "message").contains("`cpus`"), "{cpus}");
    for broken in [
        &b"{"[..],
        b"[]",
        b"",
        b"\xff",
        b"{} {}",
        b"{\"code\":\"1\",\"code\":\"2\"}",
    ] {
        refused(&client.send("POST", &run, JSON_HEADER, broken), 400, "invalid_argument");
    }
    let many = format!("{{\"code\":\"1\",\"x\":[{}0]}}", "0,".repeat(20_000));
    refused(
        &client.send("POST", &run, JSON_HEADER, many.as_bytes()),
        400,
        "invalid_argument",
    );
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    refused(&client.send("POST", &run, form, b"code=1"), 415, "invalid_argument");
    let huge = format!("{JSON_HEADER}Content-Length: 99999999999\r\n\r\n");
    let head = format!("POST {run} HTTP/1.1\r\nHost: {}\r\n{huge}", client.address);
    refused(&server.raw(head), 413, "invalid_argument");
    refused(&client.get("/v1/nothing"), 404, "not_found");
    refused(&client.get("/v1/executions?token=x"), 400, "invalid_argument");
    refused(&client.get("/v1/executions?limit=1&limit=2"), 400, "invalid_argument");
    refused(&client.get("/v1/executions?limit=x"), 400, "invalid_argument");
    let method = client.send("PATCH", "/v1/sandboxes", "", b"");
    refused(&method, 405, "invalid_argument");
    assert_eq!(method.header("allow"), Some("GET, POST"));
    refused(&client.get("/v1/executions/exnone"), 404, "not_found");
    // Other pages and other host names are refused, as everywhere.
    let foreign = client.send(
        "POST",
        &run,
        &format!("{JSON_HEADER}Origin: https://evil.example\r\n"),
        b"{\"code\":\"1\"}",
    );
    refused(&foreign, 403, "denied_by_policy");
    let twice = client.send(
        "POST",
        &run,
        &format!("{JSON_HEADER}Host: evil.example\r\n"),
        b"{\"code\":\"1\"}",
    );
    refused(&twice, 400, "invalid_argument");
    assert_eq!(
        client.post(&run, &json!({"code": "1"})).status,
        200,
        "the service goes on"
    );
}

#[test]
fn callers_need_tokens_and_see_nothing_of_each_other() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nrequests_per_caller = 4\n[limits]\nsandboxes_per_caller = 1\n");
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &[]);
    let (ann, bob) = (Client::new(&server, Some(&ann)), Client::new(&server, Some(&bob)));
    let stranger = Client::new(&server, None);
    let missing = stranger.get("/v1/sandboxes");
    refused(&missing, 401, "unauthorized");
    assert!(missing.header("www-authenticate").unwrap().starts_with("Bearer"));
    refused(
        &Client::new(&server, Some("wrong")).post("/run_code", &json!({})),
        401,
        "unauthorized",
    );
    refused(
        &stranger.send("PUT", "/v1/sandboxes/x/file?path=a", "", b"x"),
        401,
        "unauthorized",
    );
    // The API description needs no token.
    assert_eq!(stranger.get("/v1/openapi.json").status, 200);
    let id = ann.sandbox();
    let run = ann
        .post(
            &format!("/v1/sandboxes/{id}/run"),
            &json!({"code": "open('f','w').write('hers')"}),
        )
        .message();
    let execution = text(&run, "execution_id");
    assert_eq!(bob.get("/v1/sandboxes").message(), json!({"sandboxes": []}));
    assert_eq!(bob.get("/v1/executions").message()["total"], 0);
    for path in [
        format!("/v1/sandboxes/{id}"),
        format!("/v1/sandboxes/{id}/files"),
        format!("/v1/sandboxes/{id}/file?path=f"),
        format!("/v1/executions/{execution}"),
        format!("/v1/executions/{execution}/output"),
        format!("/v1/executions/{execution}/files/0"),
    ] {
        let foreign = refused(&bob.get(&path), 404, "not_found").to_string();
        let never = |id: &str| format!("{}{}", &id[..id.len() - 1], if id.ends_with('a') { "b" } else { "a" });
        let other = path.replace(&id, &never(&id)).replace(&execution, &never(&execution));
        let unknown = refused(&bob.get(&other), 404, "not_found").to_string();
        assert_eq!(
            foreign.replace(&id, "ID").replace(&execution, "ID"),
            unknown.replace(&never(&id), "ID").replace(&never(&execution), "ID"),
        );
    }
    for path in [
        format!("/v1/sandboxes/{id}/run"),
        format!("/v1/sandboxes/{id}/commands"),
    ] {
        let body = json!({"code": "1"});
        let command = json!({"command": "true"});
        let body = if path.ends_with("run") { body } else { command };
        refused(&bob.post(&path, &body), 404, "not_found");
    }
    refused(
        &bob.send("PUT", &format!("/v1/sandboxes/{id}/file?path=f"), "", b"his"),
        404,
        "not_found",
    );
    refused(
        &bob.send("DELETE", &format!("/v1/sandboxes/{id}"), "", b""),
        404,
        "not_found",
    );
    refused(
        &bob.send("POST", &format!("/v1/executions/{execution}/cancel"), "", b""),
        404,
        "not_found",
    );
    assert_eq!(ann.get(&format!("/v1/sandboxes/{id}/file?path=f")).body, "hers");
    // The caller's quota applies here as well.
    let more = ann.post("/v1/sandboxes", &json!({}));
    refused(&more, 429, "limit_reached");
    assert!(more.header("retry-after").is_some());
    let sleeping = json!({"code": "import time\ntime.sleep(600)", "timeout_s": 900});
    let asleep: Vec<_> = (0..4)
        .map(|_| ann.events(&format!("/v1/sandboxes/{id}/run"), &sleeping))
        .collect();
    let full = until(DEFAULT_TIMEOUT, "the bound of requests", || {
        let reply = ann.get("/v1/executions");
        (reply.status == 429).then_some(reply)
    });
    refused(&full, 429, "busy");
    assert_eq!(
        ann.get("/v1/sandboxes").status,
        200,
        "what tells how it stands is answered beyond the bound"
    );
    assert_eq!(bob.post("/v1/run", &json!({"code": "1"})).status, 200);
    drop(asleep);
}

#[test]
fn a_run_ends_with_its_callers_token() {
    let _turn = begin!();
    let place = TestDir::new();
    let (id, ann) = token(&place, &["ann"]);
    let server = Server::start(&place, &[]);
    let client = Client::new(&server, Some(&ann));
    let code = json!({"code": "import time\nprint('up', flush=True)\ntime.sleep(600)", "timeout_s": 900});
    let mut events = client.events("/v1/run", &code);
    let mut seen = String::new();
    while !seen.contains("up\\n") {
        assert!(events.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    let mut plain = client.begin("POST", "/v1/run", JSON_HEADER, code.to_string().as_bytes());
    let running = || {
        client.get("/v1/executions").message()["running"]
            .as_array()
            .unwrap()
            .len()
    };
    until(DEFAULT_TIMEOUT, "both", || (running() == 2).then_some(()));
    command(&place, &["token", "revoke", &id]);
    refused(&Reply::read(&mut plain).unwrap(), 401, "unauthorized");
    while events.read_line(&mut seen).unwrap() > 0 {}
    assert!(!seen.contains("event: result"), "{seen}");
}

#[test]
fn the_description_is_valid_openapi_and_names_every_resource() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let description = client.get("/v1/openapi.json");
    assert_eq!(description.header("content-type"), Some("application/json"));
    let document = description.message();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/v1/sandboxes/{sandbox_id}/file"]["put"].is_object());
    assert_eq!(
        document["paths"]["/run_code"]["post"]["operationId"],
        "runCodeAsSandboxFusion"
    );
    let Some(python) = sdk(&name_of(here)) else { return };
    let file = place.write("openapi.json", &description.body);
    let check = "import json, sys\nfrom openapi_spec_validator import OpenAPIV31SpecValidator as V\n\
                 errors = [str(e) for e in V(json.load(open(sys.argv[1]))).iter_errors()]\nprint('\\n'.join(errors))\n\
                 sys.exit(bool(errors))";
    let checked = Command::new(python).args(["-c", check]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
}

#[test]
fn an_operator_can_disable_the_rest_routes() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nrest = false\n");
    let (server, client) = open(&place);
    for path in ["/v1/openapi.json", "/v1/sandboxes", "/run_code"] {
        assert_eq!(client.get(path).status, 404, "{path}");
    }
    assert!(!server.log().contains("/v1"), "{}", server.log());
}
