//! E2B's API: driven by E2B's own SDKs, and by bad requests.

use std::io::{BufReader, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use sandcell_e2e::http::{Reply, Server, command, connect};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, machine, name_of, skip, sources, until};

/// Makes a key in E2B's form.
fn key(place: &TestDir, name: &str) -> String {
    let made = command(place, &["token", "create", name, "--e2b"]);
    let key = String::from_utf8(made).unwrap().trim().to_owned();
    let digits = key.strip_prefix("e2b_").expect("a key of E2B's form");
    assert!(
        digits.len() == 40 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{key}"
    );
    key
}

/// The files of Python tests.
const PYTHON_TEST_FILES: [&str; 7] = [
    "test_commands.py",
    "test_filesystem.py",
    "test_live.py",
    "test_pause.py",
    "test_control.py",
    "test_interpreter.py",
    "test_data.py",
];

/// Runs these Python tests with one release of E2B's SDK.
fn python(test: &str, release: &str, files: &[&str]) {
    let sdks = std::env::var_os("SANDCELL_TEST_E2B_SDKS");
    let (Some(sdks), Ok(data)) = (sdks, std::env::var("SANDCELL_TEST_DATA_PYTHON")) else {
        skip(
            test,
            "no Python with E2B's SDKs, or none with data libraries (see CONTRIBUTING.md; SANDCELL_TEST_E2B_SDKS and \
             SANDCELL_TEST_DATA_PYTHON name them)",
        );
        return;
    };
    let place = TestDir::with_settings(&format!("python = \"{data}\"\n"));
    let (ann, bob) = (key(&place, "ann"), key(&place, "bob"));
    let server = Server::start(&place, &["--e2b"]);
    let origin = format!("http://{}", server.address);
    let line = format!("E2B_API_URL={origin}\n");
    until(DEFAULT_TIMEOUT, "the variables are printed", || {
        server.log().contains(&line).then_some(())
    });
    let output = Command::new(PathBuf::from(sdks).join(release).join("bin/python"))
        .args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"])
        .args(
            files
                .iter()
                .map(|file| sources().join("crates/e2e/tests/e2b_sdk").join(file)),
        )
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", place.work())
        .env("E2B_API_URL", &origin)
        .env("E2B_SANDBOX_URL", &origin)
        .env("E2B_API_KEY", &ann)
        .env("SANDCELL_TEST_E2B_OTHER_KEY", &bob)
        .current_dir(place.work())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}\n{}", server.log());
    assert!(said.contains(" passed") && !said.contains("skipped"), "{said}");
}

#[test]
fn e2bs_newest_sdk_works() {
    let _turn = begin!();
    python(&name_of(e2bs_newest_sdk_works), "newest", &PYTHON_TEST_FILES);
}

#[test]
fn e2bs_sdk_that_checks_keys_works() {
    let _turn = begin!();
    python(&name_of(e2bs_sdk_that_checks_keys_works), "august", &PYTHON_TEST_FILES);
}

#[test]
fn e2bs_sdk_of_spring_works() {
    let _turn = begin!();
    // Its code interpreter ignores E2B_SANDBOX_URL, so it needs a domain with TLS.
    python(&name_of(e2bs_sdk_of_spring_works), "april", &PYTHON_TEST_FILES[..3]);
}

/// Runs a program of an agent framework, which uses E2B's SDK, against a server. It prints a line for each check.
fn framework(command: &mut Command) {
    let place = TestDir::new();
    let server = Server::start(&place, &["--e2b"]);
    let origin = format!("http://{}", server.address);
    let output = command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", place.work())
        .env("E2B_API_URL", &origin)
        .env("E2B_SANDBOX_URL", &origin)
        .env("E2B_API_KEY", format!("e2b_{}", "0".repeat(40)))
        .current_dir(place.work())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{}\n{said}\n{}", output.status, server.log());
    assert!(
        said.lines().filter(|line| line.starts_with("ok ")).count() > 10,
        "{said}"
    );
}

fn python_framework(test: &str, name: &str) {
    let Some(sdks) = std::env::var_os("SANDCELL_TEST_E2B_SDKS") else {
        skip(
            test,
            "no Python with agent frameworks (see CONTRIBUTING.md; SANDCELL_TEST_E2B_SDKS names the folder)",
        );
        return;
    };
    let programs = sources().join("crates/e2e/tests/e2b_sdk/frameworks");
    let python = PathBuf::from(sdks).join(name).join("bin/python");
    framework(
        Command::new(python)
            .arg("-B")
            .arg(programs.join(format!("run_{name}.py"))),
    );
}

#[test]
fn smolagents_runs_its_code_here() {
    let _turn = begin!();
    python_framework(&name_of(smolagents_runs_its_code_here), "smolagents");
}

#[test]
fn deep_agents_work_with_files_and_commands_here() {
    let _turn = begin!();
    python_framework(&name_of(deep_agents_work_with_files_and_commands_here), "deepagents");
}

#[test]
fn computesdk_uses_this_server_as_its_provider() {
    let _turn = begin!();
    let of = |name| std::env::var_os(name);
    let (Some(node), Some(modules)) = (of("SANDCELL_TEST_NODE"), of("SANDCELL_TEST_NODE_MODULES")) else {
        skip(
            &name_of(computesdk_uses_this_server_as_its_provider),
            "no Node 22 with ComputeSDK (see CONTRIBUTING.md; SANDCELL_TEST_NODE and SANDCELL_TEST_NODE_MODULES name them)",
        );
        return;
    };
    let program = sources().join("crates/e2e/tests/node_clients/computesdk.mjs");
    framework(Command::new(node).arg(program).arg(modules));
}

/// Runs a program with one of E2B's packages for JavaScript. An older package reports less: these fields are missing.
fn javascript(test: &str, package: &str, missing: &[&str]) {
    let of = |name| std::env::var_os(name);
    let (Some(node), Some(modules)) = (of("SANDCELL_TEST_NODE"), of("SANDCELL_TEST_NODE_MODULES")) else {
        skip(
            test,
            "no Node 22 with E2B's SDK (see CONTRIBUTING.md; SANDCELL_TEST_NODE and SANDCELL_TEST_NODE_MODULES name them)",
        );
        return;
    };
    let place = TestDir::new();
    let server = Server::start(&place, &["--e2b"]);
    let origin = format!("http://{}", server.address);
    let output = Command::new(node)
        .arg(sources().join("crates/e2e/tests/node_clients/e2b.mjs"))
        .arg(modules)
        .arg(package)
        .env_clear()
        .env("E2B_API_URL", &origin)
        .env("E2B_SANDBOX_URL", &origin)
        .env("E2B_API_KEY", format!("e2b_{}", "0".repeat(40)))
        .current_dir(place.work())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let seen: Value =
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)));
    let mut expected = json!({
        "code": "21", "kept": "40", "error": "ZeroDivisionError", "js": "2", "command": ["out\n", "hi\n", 0], "failed": 3,
        "read": "héllo", "list": [["a.txt", "file", 6]], "exists": [true, false], "bytes": true, "context": "/tmp",
        "killed": true, "info": {"a": "b"}, "running": true, "paused": [true, "paused", false],
        "resumed": "20", "changes": [["create", "b.txt"], ["write", "b.txt"]], "terminal": true, "gone": true, "after": false,
    });
    expected
        .as_object_mut()
        .unwrap()
        .retain(|field, _| !missing.contains(&field.as_str()));
    assert_eq!(seen, expected);
}

#[test]
fn e2bs_newest_sdk_for_javascript_works() {
    let _turn = begin!();
    let test = name_of(e2bs_newest_sdk_for_javascript_works);
    javascript(&test, "@e2b/code-interpreter", &[]);
}

#[test]
fn e2bs_sdk_for_javascript_that_checks_keys_works() {
    let _turn = begin!();
    javascript(
        &name_of(e2bs_sdk_for_javascript_that_checks_keys_works),
        "e2b-august",
        &[],
    );
}

#[test]
fn e2bs_sdk_of_spring_for_javascript_works() {
    let _turn = begin!();
    // Its code interpreter ignores E2B_SANDBOX_URL.
    let missing = ["code", "kept", "error", "js", "context", "resumed", "gone"];
    javascript(
        &name_of(e2bs_sdk_of_spring_for_javascript_works),
        "e2b-spring",
        &missing,
    );
}

/// A program that speaks E2B's API by hand.
struct Client {
    address: SocketAddr,
}

impl Client {
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n",
            self.address,
            body.len()
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut stream = connect(self.address);
        // A server that refuses early may not read the whole request.
        let _all_or_part = stream.write_all(&[format!("{head}\r\n").as_bytes(), body].concat());
        Reply::read(&mut BufReader::new(stream)).expect("an answer")
    }

    /// Makes a sandbox. Returns its id and its secret.
    fn sandbox(&self) -> (String, String) {
        let body = json!({"templateID": "base", "timeout": 120});
        let made = self.send("POST", "/sandboxes", &[JSON_TYPE], body.to_string().as_bytes());
        assert_eq!(made.status, 201, "{made:?}");
        let made = made.message();
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        (text("sandboxID"), text("envdAccessToken"))
    }
}

const JSON_TYPE: (&str, &str) = ("Content-Type", "application/json");
const STREAM_TYPE: (&str, &str) = ("Content-Type", "application/connect+json");

fn server(place: &TestDir) -> (Server, Client) {
    let server = Server::start(place, &["--e2b"]);
    let client = Client {
        address: server.address,
    };
    (server, client)
}

/// Returns a message in a frame of Connect.
fn framed(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let length = u32::try_from(text.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn templates_are_the_operators_settings() {
    let _turn = begin!();
    let place = TestDir::with_settings(
        "[e2b_server.templates.web]\nmemory_mb = 300\ncpus = 0.5\ndisk_mb = 64\nenv = {MODE = \"template\", OTHER = \"template\"}\n\
         start = \"echo $E2B_SANDBOX_ID >> started; exec python3 -m http.server 8000\"\n",
    );
    let (server, client) = server(&place);
    let body = json!({"templateID": "web", "timeout": 120, "envVars": {"OTHER": "request"}}).to_string();
    let key = [JSON_TYPE, ("Idempotency-Key", "one")];
    let made = client.send("POST", "/sandboxes", &key, body.as_bytes());
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.message();
    let (id, secret) = (
        made["sandboxID"].as_str().unwrap(),
        made["envdAccessToken"].as_str().unwrap(),
    );
    // A retry starts nothing.
    let again = client.send("POST", "/sandboxes", &key, body.as_bytes());
    assert_eq!(again.message()["sandboxID"], id);
    let port = |port, secret| {
        [
            ("E2b-Sandbox-Id", id),
            ("E2b-Sandbox-Port", port),
            ("X-Access-Token", secret),
        ]
    };
    let listed = until(DEFAULT_TIMEOUT, "the program listens", || {
        let reply = client.send("GET", "/started", &port("8000", secret), b"");
        (reply.status == 200).then_some(reply)
    });
    assert_eq!(listed.body, format!("{id}\n"));
    let head = [&port("49983", secret)[..], &[JSON_TYPE]].concat();
    let processes = client.send("POST", "/process.Process/List", &head, b"{}").message();
    assert_eq!(processes["processes"][0]["tag"], "start", "{processes}");
    assert_eq!(processes["processes"].as_array().unwrap().len(), 1);
    let code = json!({"code": "import os; print(os.environ['MODE'], os.environ['OTHER'])", "sandbox_id": id});
    assert_eq!(
        server.caller().call("execute_code", code).output(),
        "template request\n"
    );
    let info = client.send("GET", &format!("/sandboxes/{id}"), &[], b"").message();
    assert_eq!(
        (&info["templateID"], &info["memoryMB"]),
        (&json!("web"), &json!(300)),
        "{info}"
    );
    let unknown = json!({"templateID": "nothing"}).to_string();
    let unknown = client.send("POST", "/sandboxes", &[JSON_TYPE], unknown.as_bytes());
    assert_eq!(unknown.status, 404);
    let message = unknown.message()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("base, code-interpreter-v1, web"), "{message}");
    let snapshot = format!("/sandboxes/{id}/snapshots");
    let taken = client.send("POST", &snapshot, &[JSON_TYPE], b"{\"name\": \"web\"}");
    assert_eq!(taken.status, 400, "the name of a template: {taken:?}");
}

#[test]
fn input_reaches_a_program_while_its_stream_goes_on() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = server(&place);
    let (id, secret) = client.sandbox();
    let head = [
        ("E2b-Sandbox-Id", id.as_str()),
        ("E2b-Sandbox-Port", "49983"),
        ("X-Access-Token", secret.as_str()),
    ];
    let stream_head = [&head[..], &[STREAM_TYPE]].concat();
    let script = "read a; echo \"got $a\" > one; read b; echo \"got $b\" > two; cat > rest";
    let start = json!({"process": {"cmd": "bash", "args": ["-c", script]}, "tag": "reader"});
    let data = |text: &str| framed(&json!({"data": {"input": {"stdin": STANDARD.encode(text)}}}));
    let named = framed(&json!({"start": {"process": {"tag": "reader"}}}));
    let file = |name: &str| {
        until(DEFAULT_TIMEOUT, "the program has written", || {
            let read = client.send("GET", &format!("/files?path={name}"), &head, b"");
            (read.status == 200 && !read.body.is_empty()).then_some(read.body)
        })
    };
    std::thread::scope(|scope| {
        scope.spawn(|| client.send("POST", "/process.Process/Start", &stream_head, &framed(&start)));
        until(DEFAULT_TIMEOUT, "the program runs", || {
            let json_head = [&head[..], &[JSON_TYPE]].concat();
            let listed = client
                .send("POST", "/process.Process/List", &json_head, b"{}")
                .message();
            (listed["processes"].as_array().map(Vec::len) == Some(1)).then_some(())
        });
        let mut stream = connect(client.address);
        write!(
            stream,
            "POST /process.Process/StreamInput HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
             Content-Type: application/connect+json\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\n\
             X-Access-Token: {secret}\r\n\r\n",
            client.address
        )
        .unwrap();
        let mut send = |bytes: &[u8]| {
            let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
            stream.write_all(&chunk).unwrap();
        };
        send(&[&named[..], &data("first\n")].concat());
        assert_eq!(file("one"), "got first\n");
        // A message in two parts.
        let second = [data("second\n"), framed(&json!({"keepalive": {}}))].concat();
        send(&second[..9]);
        send(&second[9..]);
        assert_eq!(file("two"), "got second\n");
        send(b"\x02\0\0\0\x02{}");
        stream.write_all(b"0\r\n\r\n").unwrap();
        let reply = Reply::read(&mut BufReader::new(stream)).expect("an answer");
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (200, "\0\0\0\0\u{2}{}\u{2}\0\0\0\u{2}{}")
        );
        // The end of the stream does not close the standard input.
        let whole = [&named[..], &data("x")].concat();
        let more = client.send("POST", "/process.Process/StreamInput", &stream_head, &whole);
        assert!(!more.body.contains("error"), "{more:?}");
        for (body, expected) in [
            (data("x"), "begins with `start`"),
            ([&named[..], &named].concat(), "second `start`"),
            (Vec::new(), "begins with `start`"),
            (framed(&json!({"keepalive": {}})), "begins with `start`"),
            (named[..7].to_vec(), "ended within a message"),
            (framed(&json!({"start": {"process": {"tag": "other"}}})), "not found"),
            (framed(&json!({"other": {}})), "not as expected"),
        ] {
            let refused = client.send("POST", "/process.Process/StreamInput", &stream_head, &body);
            assert!(refused.body.contains(expected), "{expected}: {refused:?}");
        }
        let close = json!({"process": {"tag": "reader"}}).to_string();
        let json_head = [&head[..], &[JSON_TYPE]].concat();
        let closed = client.send("POST", "/process.Process/CloseStdin", &json_head, close.as_bytes());
        assert_eq!(closed.status, 200, "{closed:?}");
        assert_eq!(file("rest"), "x");
    });
}

#[test]
fn two_hundred_streams_of_input_at_once_are_bounded_and_leave_nothing() {
    let _turn = begin!();
    let place = TestDir::new();
    let (mut server, client) = server(&place);
    let (id, secret) = client.sandbox();
    let head = [
        ("E2b-Sandbox-Id", id.as_str()),
        ("E2b-Sandbox-Port", "49983"),
        ("X-Access-Token", secret.as_str()),
    ];
    let stream_head = [&head[..], &[STREAM_TYPE]].concat();
    let named = framed(&json!({"start": {"process": {"tag": "reader"}}}));
    let send_whole = || client.send("POST", "/process.Process/StreamInput", &stream_head, &named);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = framed(&json!({"process": {"cmd": "cat"}, "tag": "reader"}));
            let mut stream = connect(client.address);
            let request = format!(
                "POST /process.Process/Start HTTP/1.1\r\nHost: {}\r\nContent-Type: application/connect+json\r\n\
                 E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {secret}\r\nContent-Length: {}\r\n\r\n",
                client.address,
                start.len()
            );
            stream.write_all(&[request.as_bytes(), &start].concat()).unwrap();
            // It ends with the server.
            let _end = std::io::copy(&mut stream, &mut std::io::sink());
        });
        until(DEFAULT_TIMEOUT, "the program runs", || {
            let reply = send_whole();
            (!reply.body.contains("error")).then_some(())
        });
        let open = |bytes: &[u8]| {
            let mut stream = connect(client.address);
            let request = format!(
                "POST /process.Process/StreamInput HTTP/1.1\r\nHost: {}\r\nContent-Type: application/connect+json\r\n\
                 E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {secret}\r\n\
                 Transfer-Encoding: chunked\r\n\r\n{:x}\r\n",
                client.address,
                bytes.len()
            );
            // A server that refuses early may not read everything.
            let _all_or_part = stream.write_all(&[request.as_bytes(), bytes, b"\r\n"].concat());
            stream
        };
        // Half of them begin with a message that never becomes whole.
        let streams: Vec<_> = (0..200)
            .map(|number| open(if number % 2 == 0 { &named } else { &named[..7] }))
            .collect();
        until(DEFAULT_TIMEOUT, "the bound is reached", || {
            send_whole().body.contains("too many streams of input").then_some(())
        });
        let json_head = [&head[..], &[JSON_TYPE]].concat();
        let listed = client.send("POST", "/process.Process/List", &json_head, b"{}");
        assert_eq!(listed.status, 200, "{listed:?}");
        drop(streams);
        until(DEFAULT_TIMEOUT, "streams that broke off make room", || {
            (!send_whole().body.contains("error")).then_some(())
        });
        let again: Vec<_> = (0..8).map(|_| open(&named)).collect();
        server.signal("-KILL");
        server.wait(DEFAULT_TIMEOUT);
        drop(again);
    });
}

#[test]
fn malformed_requests_of_e2bs_api_are_errors_in_its_form() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = server(&place);
    let (sandbox, secret) = client.sandbox();
    let inside = |port: &'static str| {
        [
            ("E2b-Sandbox-Id", sandbox.as_str()),
            ("E2b-Sandbox-Port", port),
            ("X-Access-Token", secret.as_str()),
        ]
    };
    let envd = |more: &[(&'static str, &'static str)]| [&inside("49983")[..], more].concat();
    let start = framed(&json!({"process": {"cmd": "/bin/true"}}));
    // The frames of a stream: cut, too long, compressed, unknown flags, none at all.
    for (body, expected) in [
        (start[..3].to_vec(), "no frame"),
        (start[..start.len() - 1].to_vec(), "bytes"),
        ([&[1], &start[1..]].concat(), "compressed"),
        ([&[4], &start[1..]].concat(), "flags"),
        ([&start[..], &start[..]].concat(), "more than one message"),
        (vec![0, 255, 255, 255, 255], "bytes"),
        (Vec::new(), "no frame"),
        (framed(&json!({"process": {"args": []}})), "cmd"),
    ] {
        let reply = client.send("POST", "/process.Process/Start", &envd(&[STREAM_TYPE]), &body);
        assert_eq!(reply.status, 200, "{expected}: {reply:?}");
        // The last message of the stream has the error.
        let message: Value = serde_json::from_str(reply.body.split_at(5).1).unwrap();
        assert!(message["error"]["code"].is_string(), "{message}");
        assert!(
            message["error"]["message"].as_str().unwrap().contains(expected),
            "{expected}: {message}"
        );
    }
    for (method, path, headers, body, status) in [
        ("POST", "/process.Process/Start", envd(&[JSON_TYPE]), start.clone(), 200),
        (
            "POST",
            "/process.Process/Nothing",
            envd(&[JSON_TYPE]),
            b"{}".to_vec(),
            404,
        ),
        ("GET", "/process.Process/List", envd(&[]), Vec::new(), 400),
        (
            "POST",
            "/filesystem.Filesystem/Stat",
            envd(&[JSON_TYPE]),
            b"{\"path\": 5}".to_vec(),
            400,
        ),
        (
            "POST",
            "/filesystem.Filesystem/Stat",
            envd(&[JSON_TYPE]),
            b"{\"path\": \"a\\u0000b\"}".to_vec(),
            400,
        ),
        (
            "POST",
            "/filesystem.Filesystem/WatchDir",
            envd(&[STREAM_TYPE]),
            framed(&json!({"path": "/no/such/folder"})),
            200,
        ),
        (
            "POST",
            "/files",
            envd(&[("Content-Type", "text/plain")]),
            b"x".to_vec(),
            400,
        ),
        (
            "POST",
            "/files?path=a",
            envd(&[("Content-Type", "multipart/form-data")]),
            b"x".to_vec(),
            400,
        ),
        (
            "POST",
            "/files?path=a",
            envd(&[("Content-Type", "multipart/form-data; boundary=b")]),
            b"--b\r\nno form".to_vec(),
            400,
        ),
        (
            "POST",
            "/files?path=a",
            envd(&[
                ("Content-Type", "application/octet-stream"),
                ("Content-Encoding", "gzip"),
            ]),
            b"not gzip at all".to_vec(),
            400,
        ),
        ("GET", "/files?path=%00", envd(&[]), Vec::new(), 400),
        (
            "POST",
            "/execute",
            inside("49999").to_vec(),
            b"{\"code\": [1]}".to_vec(),
            400,
        ),
        (
            "POST",
            "/execute",
            inside("49999").to_vec(),
            b"{\"code\": \"1\", \"context_id\": \"x\", \"language\": \"python\"}".to_vec(),
            400,
        ),
        (
            "POST",
            "/execute",
            inside("49999").to_vec(),
            b"{\"code\": \"1\", \"context_id\": \"x\"}".to_vec(),
            404,
        ),
        ("POST", "/sandboxes", vec![JSON_TYPE], b"[".to_vec(), 400),
        (
            "POST",
            "/sandboxes",
            vec![JSON_TYPE],
            b"{\"timeout\": 99999999999}".to_vec(),
            400,
        ),
        (
            "POST",
            "/sandboxes",
            vec![JSON_TYPE],
            b"{\"timeout\": -1}".to_vec(),
            400,
        ),
        (
            "POST",
            "/sandboxes",
            vec![JSON_TYPE, ("Idempotency-Key", "a b")],
            b"{}".to_vec(),
            400,
        ),
        (
            "POST",
            "/sandboxes",
            vec![JSON_TYPE],
            b"{\"templateID\": \"other\"}".to_vec(),
            404,
        ),
        (
            "POST",
            "/sandboxes",
            vec![JSON_TYPE],
            b"{\"volumeMounts\": [{}]}".to_vec(),
            501,
        ),
        ("GET", "/v2/sandboxes?limit=0", Vec::new(), Vec::new(), 400),
        ("PATCH", "/sandboxes", Vec::new(), Vec::new(), 405),
        ("GET", "/templates", Vec::new(), Vec::new(), 501),
    ] {
        let reply = client.send(method, path, &headers, &body);
        assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
    }
    // Nothing of this broke the sandbox or the server.
    let code = json!({"code": "6 * 7"}).to_string();
    let ran = client.send("POST", "/execute", &inside("49999"), code.as_bytes());
    assert!(ran.body.contains("\"text\":\"42\""), "{ran:?}");
}

#[test]
fn a_sandbox_is_opened_by_its_own_secret_only() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = server(&place);
    let (one, secret) = client.sandbox();
    let (other, _) = client.sandbox();
    let with = |id: &str, secret: &str| {
        let headers = [
            ("E2b-Sandbox-Id", id),
            ("E2b-Sandbox-Port", "49983"),
            ("X-Access-Token", secret),
        ];
        client.send("GET", "/health", &headers, b"")
    };
    assert_eq!(with(&one, &secret).status, 204);
    let foreign = with(&other, &secret);
    let unknown = with(&format!("sb{}", "a".repeat(26)), &secret);
    assert_eq!((foreign.status, unknown.status), (502, 502));
    // But for the id, both say the same.
    let shape = |reply: &Reply, id: &str| reply.body.replace(id, "ID");
    assert_eq!(
        shape(&foreign, &other),
        shape(&unknown, &format!("sb{}", "a".repeat(26)))
    );
    // Headers that appear twice could name two sandboxes.
    let headers = [
        ("E2b-Sandbox-Id", one.as_str()),
        ("E2b-Sandbox-Id", other.as_str()),
        ("X-Access-Token", secret.as_str()),
    ];
    assert_ne!(client.send("GET", "/envs", &headers, b"").status, 200);
    // A name of the domain leads to the same sandbox, and needs the same secret.
    let host = |id: &str, secret: Option<&str>| {
        let mut request = format!("GET /health HTTP/1.1\r\nHost: 49983-{id}.localhost\r\nConnection: close\r\n");
        if let Some(secret) = secret {
            request.push_str(&format!("X-Access-Token: {secret}\r\n"));
        }
        let mut stream = connect(client.address);
        stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
        Reply::read(&mut BufReader::new(stream)).expect("an answer").status
    };
    assert_eq!(host(&one, Some(&secret)), 204);
    assert_eq!(host(&one, None), 401);
    assert_eq!(host(&other, Some(&secret)), 502);
}

#[test]
fn without_the_switch_e2bs_addresses_are_nothing() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let client = Client {
        address: server.address,
    };
    assert_eq!(client.send("POST", "/sandboxes", &[JSON_TYPE], b"{}").status, 404);
    let headers = [("E2b-Sandbox-Id", "sb1"), ("X-Access-Token", "x")];
    assert_eq!(client.send("GET", "/envs", &headers, b"").status, 404);
}

#[test]
fn a_client_that_leaves_interrupts_its_code_and_not_its_program() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = server(&place);
    let (sandbox, secret) = client.sandbox();
    let leave = |port: &str, path: &str, kind: (&str, &str), body: &[u8], wanted: &str| {
        let mut stream = connect(client.address);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nE2b-Sandbox-Id: {sandbox}\r\nE2b-Sandbox-Port: {port}\r\n\
             X-Access-Token: {secret}\r\n{}: {}\r\nContent-Length: {}\r\n\r\n",
            client.address,
            kind.0,
            kind.1,
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut seen = Vec::new();
        let mut piece = [0; 4096];
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            let read = std::io::Read::read(&mut stream, &mut piece).unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..read]);
        }
    };
    let code = "kept = 5\nprint('begun', flush=True)\nwhile True: pass";
    let code = json!({"code": code, "env_vars": {"ONCE": "x"}}).to_string();
    leave("49999", "/execute", JSON_TYPE, code.as_bytes(), "begun");
    let inside = [
        ("E2b-Sandbox-Id", sandbox.as_str()),
        ("E2b-Sandbox-Port", "49999"),
        ("X-Access-Token", secret.as_str()),
    ];
    // Its variables are kept, and the environment variables of that run are reset.
    let code = json!({"code": "kept, __import__('os').environ.get('ONCE')"}).to_string();
    let ran = client.send("POST", "/execute", &inside, code.as_bytes());
    assert!(ran.body.contains("\"text\":\"(5, None)\""), "{ran:?}");
    let script = json!({"process": {"cmd": "/bin/sh", "args": ["-c", "echo begun; sleep 1; touch went-on"]}});
    leave("49983", "/process.Process/Start", STREAM_TYPE, &framed(&script), "data");
    until(DEFAULT_TIMEOUT, "the program has gone on", || {
        let inside = [inside[0], ("E2b-Sandbox-Port", "49983"), inside[2]];
        (client.send("GET", "/files?path=went-on", &inside, b"").status == 200).then_some(())
    });
}

#[test]
fn a_killed_server_leaves_no_process_of_a_paused_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    let (server, client) = server(&place);
    let (sandbox, secret) = client.sandbox();
    let inside = [
        ("E2b-Sandbox-Id", sandbox.as_str()),
        ("E2b-Sandbox-Port", "49999"),
        ("X-Access-Token", secret.as_str()),
    ];
    let code = json!({"code": "import subprocess; subprocess.Popen(['sleep', '1000'])"}).to_string();
    let ran = client.send("POST", "/execute", &inside, code.as_bytes());
    assert_eq!(ran.status, 200, "{ran:?}");
    let paused = client.send("POST", &format!("/sandboxes/{sandbox}/pause"), &[JSON_TYPE], b"{}");
    assert_eq!(paused.status, 204, "{paused:?}");
    let processes = machine::descendants(server.pid());
    assert!(processes.iter().any(|process| process.name == "sleep"), "{processes:?}");
    machine::kill(server.pid());
    until(DEFAULT_TIMEOUT, "everything has ended", || {
        processes.iter().all(|process| !process.lives()).then_some(())
    });
}
