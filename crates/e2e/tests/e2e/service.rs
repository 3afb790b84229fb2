use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use sandcell_e2e::client::Client;
use sandcell_e2e::machine::{kill, process};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, is_root, until};

/// A place whose servers run in the background. They end when it is dropped.
struct Background {
    place: TestDir,
    more: Vec<(&'static str, String)>,
}

impl Background {
    fn new(idle_s: u32) -> Self {
        let place = TestDir::new();
        std::fs::create_dir(place.path("run")).unwrap();
        std::fs::set_permissions(place.path("run"), std::fs::Permissions::from_mode(0o700)).unwrap();
        Self {
            place,
            more: vec![("SANDCELL_SERVICE__IDLE_S", idle_s.to_string())],
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.command(arguments);
        command.env("XDG_RUNTIME_DIR", self.place.path("run"));
        command.env("SANDCELL_SERVICE__ON_DEMAND", "true");
        command.envs(self.more.iter().map(|(name, value)| (name, value)));
        command
    }

    fn client(&self) -> Client {
        Client::start(&mut self.command(&["serve"]))
    }

    fn status(&self) -> Vec<Value> {
        let output = self.command(&["service", "status", "--json"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn pid(&self) -> u32 {
        let all = self.status();
        assert_eq!(all.len(), 1, "{all:?}");
        u32::try_from(all[0]["pid"].as_u64().unwrap()).unwrap()
    }

    fn socket(&self) -> PathBuf {
        PathBuf::from(self.status()[0]["socket"].as_str().unwrap())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ended = self.command(&["service", "stop"]).output();
    }
}

/// Starts a program that claims to be a server of another version.
fn other_version(socket: &std::path::Path, sandboxes: u32) -> Child {
    let program = r#"
import json, os, socket, sys
path, sandboxes = sys.argv[1], int(sys.argv[2])
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("listening", flush=True)
while True:
    caller, _ = listener.accept()
    asked = caller.recv(65536)
    if b"GET /service " in asked:
        body = json.dumps({"version": "0.0.1", "sandboxes": sandboxes, "running": 0, "calls": 0, "uptime_s": 1})
    else:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": [], "old": True}})
    caller.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        % (len(body), body.encode())
    )
    caller.close()
"#;
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", program])
        .arg(socket)
        .arg(sandboxes.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "listening\n");
    child
}

#[test]
fn simultaneous_clients_share_one_server_and_keep_their_variables_after_a_kill() {
    let _turn = begin!();
    let background = Background::new(600);
    let (one, two) = std::thread::scope(|scope| {
        let start = || Client::start(&mut background.command(&["serve"]));
        let (one, two) = (scope.spawn(start), scope.spawn(start));
        (one.join().unwrap(), two.join().unwrap())
    });
    let made = one.run("x = 41");
    assert_eq!(two.text("print(x + 1)").trim(), "42");
    let server = background.pid();
    kill(one.pid());
    drop((one, two));
    let again = background.client();
    let kept = again.run("x + 1");
    assert!(kept.all().contains("42"), "{}", kept.all());
    assert_eq!(kept.sandbox(), made.sandbox());
    assert_eq!(background.pid(), server);
    let mode = std::fs::metadata(background.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn one_flag_keeps_variables_across_one_shot_servers() {
    let _turn = begin!();
    let background = Background::new(600);
    let call = |code: &str| {
        let mut command = background.command(&["serve", "--shared"]);
        command.env_remove("SANDCELL_SERVICE__ON_DEMAND");
        Client::start(&mut command).text(code)
    };
    call("x = 41");
    assert_eq!(call("print(x + 1)").trim(), "42");
}

#[test]
fn the_model_is_told_if_sandboxes_end_with_the_client() {
    let _turn = begin!();
    let background = Background::new(600);
    let told = |arguments: &[&str]| {
        let mut command = background.command(arguments);
        command.env_remove("SANDCELL_SERVICE__ON_DEMAND");
        let hello = Client::start_silent(&mut command).initialize();
        hello["instructions"].as_str().unwrap().contains("serve --shared")
    };
    assert!(told(&["serve"]));
    assert!(!told(&["serve", "--shared"]));
}

#[test]
fn a_killed_server_is_restarted_despite_its_stale_socket() {
    let _turn = begin!();
    let background = Background::new(600);
    let client = background.client();
    assert_eq!(client.text("x = 1\nprint(x)").trim(), "1");
    let (first, socket) = (background.pid(), background.socket());
    let seen = process(first);
    kill(first);
    until(DEFAULT_TIMEOUT, "the server is gone", || (!seen.lives()).then_some(()));
    assert!(socket.exists(), "the socket was left behind");
    // A call to the dying server may report the broken connection once; later calls work, in a new sandbox.
    let asked = json!({"name": "execute_code", "arguments": {"code": "print('x' in globals())"}});
    let answer = until(DEFAULT_TIMEOUT, "an answer of a new server", || {
        let answer = client.request_raw("tools/call", asked.clone());
        answer.to_string().contains("new sandbox").then_some(answer)
    });
    let printed = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert_eq!(printed.trim(), "False", "{answer}");
    assert_ne!(background.pid(), first);
}

#[test]
fn an_unused_server_ends_and_removes_its_socket() {
    let _turn = begin!();
    let mut background = Background::new(1);
    background.more.push(("SANDCELL_LIMITS__IDLE_S", "1".to_owned()));
    let client = background.client();
    assert_eq!(client.text("print(6 * 7)").trim(), "42");
    until(DEFAULT_TIMEOUT, "the server ends", || {
        background.status().is_empty().then_some(())
    });
    let left = || {
        let entries = std::fs::read_dir(background.place.path("run/sandcell")).unwrap();
        let names = entries.flatten().map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".sock")).count()
    };
    until(DEFAULT_TIMEOUT, "the socket goes", || (left() == 0).then_some(()));
    // The client that is still connected is not affected.
    assert_eq!(client.text("print(6 * 7)").trim(), "42");
}

#[test]
fn another_version_is_replaced_when_it_has_no_state() {
    let _turn = begin!();
    let background = Background::new(600);
    let client = background.client();
    let socket = background.socket();
    drop(client);
    for (sandboxes, replaced) in [(0, true), (3, false)] {
        let stopped = background.command(&["service", "stop"]).output().unwrap();
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
        until(DEFAULT_TIMEOUT, "the socket goes", || (!socket.exists()).then_some(()));
        let mut old = other_version(&socket, sandboxes);
        let client = Client::start_silent(&mut background.command(&["serve"]));
        let listed = client.request_raw("tools/list", json!({}));
        if replaced {
            assert!(old.wait().unwrap().code().is_none(), "it was told to end");
            assert_eq!(background.status()[0]["version"], env!("CARGO_PKG_VERSION"));
        } else {
            assert_eq!(listed["result"]["old"], true, "{listed}");
            until(DEFAULT_TIMEOUT, "the client is notified", || {
                client.log().contains("another version").then_some(())
            });
            old.kill().unwrap();
            old.wait().unwrap();
            std::fs::remove_file(&socket).unwrap();
        }
    }
}

#[test]
fn clients_with_different_settings_do_not_share_a_server() {
    let _turn = begin!();
    let background = Background::new(600);
    let plain = background.client();
    plain.run("x = 1");
    let with_flag = Client::start(&mut background.command(&["serve", "--tools", "execute_code"]));
    let tools = with_flag.request("tools/list", json!({}));
    assert_eq!(tools["tools"].as_array().unwrap().len(), 1, "{tools}");
    let mut command = background.command(&["serve"]);
    command.env("SANDCELL_LIMITS__MEMORY_MB", "300");
    let with_variable = Client::start(&mut command);
    let made = with_variable.call("create_sandbox", json!({}));
    assert_eq!(made.data()["limits"]["memory_mb"], 300, "{}", made.all());
    assert_eq!(background.status().len(), 3);
}

#[test]
fn other_users_cannot_connect() {
    let _turn = begin!();
    let background = Background::new(600);
    let client = background.client();
    assert_eq!(client.text("print(1)").trim(), "1");
    let socket = background.socket();
    if is_root() {
        // Another user gets no answer, regardless of the file modes.
        let mut folder = socket.as_path();
        while let Some(parent) = folder
            .parent()
            .filter(|parent| parent.starts_with(background.place.path("")))
        {
            std::fs::set_permissions(parent, std::fs::Permissions::from_mode(0o777)).unwrap();
            folder = parent;
        }
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o777)).unwrap();
        let program = "import socket, sys\n\
                       s = socket.socket(socket.AF_UNIX)\n\
                       s.settimeout(20)\n\
                       s.connect(sys.argv[1])\n\
                       try:\n    s.sendall(b'GET /service HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n')\n    got = s.recv(100)\n\
                       except (BrokenPipeError, ConnectionResetError):\n    got = b''\n\
                       print(len(got))";
        let asked = Command::new("setpriv")
            .args([
                "--reuid",
                "61234",
                "--regid",
                "61234",
                "--clear-groups",
                "/usr/bin/python3",
                "-c",
                program,
            ])
            .arg(&socket)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&asked.stdout).trim(), "0", "{asked:?}");
        assert_eq!(client.text("print(2)").trim(), "2");
    }
    // A folder that others can enter is not trusted.
    let folder = socket.parent().unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o770)).unwrap();
    let mut refused = background.command(&["serve"]);
    let output = refused.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("chmod 700"), "{text}");
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_server_that_cannot_start_reports_the_reason_to_the_call() {
    let _turn = begin!();
    let background = Background::new(600);
    let mut command = background.command(&["serve", "--tools", "no_such_tool"]);
    let client = Client::start_silent(&mut command);
    let refused = client.request_raw("tools/list", json!({}));
    let text = refused["error"].to_string();
    assert!(
        text.contains("no_such_tool") && text.contains("backend_unavailable"),
        "{refused}"
    );
}

#[test]
fn an_explicit_socket_path_is_served_and_connected_to() {
    let _turn = begin!();
    let background = Background::new(600);
    let socket = background.place.path("run/own.sock");
    let mut server = background
        .place
        .command(&["serve", "--socket", socket.to_str().unwrap()]);
    let mut server = server
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(DEFAULT_TIMEOUT, "the socket", || socket.exists().then_some(()));
    let to = format!("unix:{}", socket.display());
    let client = Client::start(&mut background.place.command(&["serve", "--connect", &to]));
    assert_eq!(client.text("print(6 * 7)").trim(), "42");
    let second = background
        .place
        .command(&["serve", "--socket", socket.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("listens"),
        "{second:?}"
    );
    server.kill().unwrap();
    server.wait().unwrap();
    let refused = client.request_raw("tools/list", json!({}));
    assert_eq!(refused["error"]["data"]["code"], "backend_unavailable", "{refused}");
}
