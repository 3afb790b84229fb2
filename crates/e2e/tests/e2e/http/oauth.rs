use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::python_sdk::sdk;
use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, sources};

/// A separate authorization server. Ended when dropped.
struct Issuer {
    child: Child,
    address: String,
}

impl Issuer {
    fn start(python: &std::ffi::OsStr) -> Self {
        let mut child = Command::new(python)
            .args(["-I", "-B"])
            .arg(sources().join("crates/e2e/tests/python_sdk/issuer.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        let address = address.trim().to_owned();
        assert!(address.starts_with("http://127.0.0.1:"), "{address}");
        Self { child, address }
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        let _ended_before = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Returns a free port. The settings need the address of a resource before the server listens.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn the_official_client_finds_the_issuer_and_is_admitted_with_its_tokens() {
    let _turn = begin!();
    let test = name_of(the_official_client_finds_the_issuer_and_is_admitted_with_its_tokens);
    let Some(python) = sdk(&test) else { return };
    let issuer = Issuer::start(&python);
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/mcp");
    let place = TestDir::with_settings(&format!(
        "[auth]\nissuer = \"{}\"\nresource = \"{url}\"\nscopes = [\"sandcell\"]\n",
        issuer.address
    ));
    let server = Server::start_on(&place, &format!("127.0.0.1:{port}"), &[]);
    let output = Command::new(&python)
        .args(["-I", "-B"])
        .arg(sources().join("crates/e2e/tests/python_sdk/oauth.py"))
        .args([&url, &issuer.address])
        .current_dir(place.work())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = format!(
        "{}{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        server.log()
    );
    assert!(output.status.success(), "{said}");
    assert!(said.contains("all steps passed"), "{said}");
}

#[test]
fn an_incomplete_issuer_setting_stops_the_start() {
    for (settings, said) in [
        ("issuer = \"https://id.example.com\"", "auth.resource"),
        ("resource = \"https://sandcell.example.com/mcp\"", "auth.issuer"),
        ("scopes = [\"sandcell\"]", "auth.issuer"),
        (
            "issuer = \"http://id.example.com\"\nresource = \"https://sandcell.example.com/mcp\"",
            "https://",
        ),
    ] {
        let place = TestDir::with_settings(&format!("[auth]\n{settings}\n"));
        let output = place.command(&["serve", "--http", "127.0.0.1:0"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(said), "{settings}: {text}");
    }
}

#[test]
fn with_an_issuer_a_token_is_required_and_own_tokens_stay_valid() {
    let _turn = begin!();
    // No server listens there, so its keys are unavailable.
    let issuer = format!("http://127.0.0.1:{}", free_port());
    let resource = "https://sandcell.example.com/mcp";
    let place = TestDir::with_settings(&format!("[auth]\nissuer = \"{issuer}\"\nresource = \"{resource}\"\n"));
    let server = Server::start(&place, &[]);
    let bare = server.caller().request("tools/list", serde_json::json!({}));
    assert_eq!(bare.status, 401);
    assert!(bare.header("www-authenticate").unwrap().contains("resource_metadata="));
    let well_known = "/.well-known/oauth-protected-resource";
    for path in [well_known.to_owned(), format!("{well_known}/mcp")] {
        let reply = server.get(&path, "");
        assert_eq!(reply.status, 200, "{path}");
    }
    for path in [
        format!("{well_known}/other"),
        format!("{well_known}x"),
        format!("{well_known}/mcp/"),
    ] {
        assert_eq!(server.get(&path, "").status, 404, "{path}");
    }
    let made = place.command(&["token", "create", "own"]).output().unwrap();
    let own = String::from_utf8(made.stdout).unwrap();
    let reply = server
        .with_token(own.trim())
        .request("tools/list", serde_json::json!({}));
    assert_eq!(reply.status, 200);
    // A well-formed JWT of an unreachable issuer: it is refused, but not permanently.
    let jwt = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.e30.AAAA";
    assert_eq!(
        server
            .with_token(jwt)
            .request("tools/list", serde_json::json!({}))
            .status,
        503
    );
    assert_eq!(
        server
            .with_token("a.b.c")
            .request("tools/list", serde_json::json!({}))
            .status,
        401
    );
}
