//! `sandcell forward`: programs in a sandbox, from this machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use super::rest::Client;
use sandcell_e2e::http::{Server, connect, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, until};

/// Lets a sandbox run a web server on this port.
fn serve_inside(client: &Client, sandbox: &str, port: u16) {
    let code = format!(
        "import subprocess, socket, time\n\
         server = subprocess.Popen(['python3', '-m', 'http.server', '--bind', '127.0.0.1', '{port}'])\n\
         for _ in range(200):\n    \
             try:\n        \
                 socket.create_connection(('127.0.0.1', {port})).close()\n        \
                 break\n    \
             except OSError:\n        \
                 time.sleep(0.05)\n\
         open('page.txt', 'w').write('from inside')"
    );
    let ran = client.post(&format!("/v1/sandboxes/{sandbox}/run"), &json!({"code": code}));
    assert_eq!(ran.message()["status"], "ok", "{ran:?}");
}

/// A running `sandcell forward`.
struct Forward {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
    address: SocketAddr,
}

impl Forward {
    fn start(place: &TestDir, server: &Server, token: &str, sandbox: &str, port: u16) -> Self {
        let to = format!("http://{}/mcp", server.address);
        let port = port.to_string();
        let mut child = place
            .command(&["forward", sandbox, &port, "--to", &to, "--listen", "127.0.0.1:0"])
            .env("SANDCELL_TOKEN", token)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let address = first
            .strip_prefix("forwarding ")
            .and_then(|rest| rest.split(' ').next()?.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{first:?}"));
        Self { child, lines, address }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn get(address: SocketAddr) -> String {
    let mut stream = connect(address);
    stream.write_all(b"GET /page.txt HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    // A refused connection may be reset.
    let _whole_or_reset = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn a_program_in_a_sandbox_is_reached_on_a_local_port() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &[]);
    let client = Client::new(&server, Some(&ann));
    let made: Value = client.post("/v1/sandboxes", &json!({})).message();
    let sandbox = made["sandbox_id"].as_str().unwrap();
    let mut forward = Forward::start(&place, &server, &ann, sandbox, 8000);
    // No program listens yet.
    assert_eq!(get(forward.address), "");
    let mut refused = String::new();
    forward.lines.read_line(&mut refused).unwrap();
    assert!(
        refused.contains("no program in the sandbox listens on port 8000"),
        "{refused}"
    );
    serve_inside(&client, sandbox, 8000);
    for _ in 0..3 {
        assert!(get(forward.address).ends_with("from inside"));
    }
    // A connection that does nothing holds up no other.
    let idle = TcpStream::connect(forward.address).unwrap();
    assert!(get(forward.address).ends_with("from inside"));
    drop(idle);

    // Another caller's sandbox answers like one that never was.
    let to = format!("http://{}/mcp", server.address);
    let other = |sandbox: &str| {
        let output = place
            .command(&["forward", sandbox, "8000", "--to", &to])
            .env("SANDCELL_TOKEN", &bob)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).replace(sandbox, "ID")
    };
    let (foreign, unknown) = (other(sandbox), other("sbaaaaaaaaaaaaaaaaaaaaaaaaaa"));
    assert!(foreign.contains("there is no sandbox 'ID'"), "{foreign}");
    assert_eq!(foreign, unknown);

    // The end of the sandbox ends its connections.
    let mut open = connect(forward.address);
    let closed = client.delete(&format!("/v1/sandboxes/{sandbox}"));
    assert!(closed.status < 300, "{closed:?}");
    until(DEFAULT_TIMEOUT, "the connection ends", || {
        matches!(open.read(&mut [0; 16]), Ok(0) | Err(_)).then_some(())
    });
}

#[test]
fn the_connection_to_a_port_must_be_asked_for() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let client = Client::new(&server, None);
    let made: Value = client.post("/v1/sandboxes", &json!({})).message();
    let sandbox = made["sandbox_id"].as_str().unwrap();
    for (port, expected) in [
        ("8000", "Upgrade: tcp"),
        ("0", "65535"),
        ("70000", "65535"),
        ("x", "65535"),
    ] {
        let answer = client.get(&format!("/v1/sandboxes/{sandbox}/ports/{port}"));
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.message().to_string().contains(expected), "{answer:?}");
    }
}
