use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use sandcell_e2e::http::{Reply, Server, command, connect, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, python, until};

#[test]
fn health_is_public_and_metrics_need_authorization() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let any_name = "GET /healthz HTTP/1.1\r\nHost: 10.1.2.3\r\nConnection: close\r\n\r\n";
    assert_eq!(server.raw(any_name).body, "ok\n");
    assert_eq!(server.get("/readyz", "").status, 200);
    server.caller().text("print(1)");
    server.caller().run("1 / 0");
    let page = server.get("/metrics", "").body;
    for line in [
        "sandcell_executions_total{status=\"ok\"} 1",
        "sandcell_executions_total{status=\"error\"} 1",
        "sandcell_causes_total{code=\"code_failed\"} 1",
        "sandcell_sandboxes 1",
        "sandcell_execution_seconds_count 2",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    // Once tokens exist, only a token made for metrics opens the metrics.
    let (_, caller) = token(&place, &["caller"]);
    let (_, watcher) = token(&place, &["watcher", "--metrics"]);
    server.get("/metrics", "").refused(401);
    server
        .get("/metrics", &format!("Authorization: Bearer {caller}\r\n"))
        .refused(403);
    let page = server.get("/metrics", &format!("Authorization: Bearer {watcher}\r\n"));
    assert_eq!(page.status, 200);
    assert!(
        page.body.contains("sandcell_http_refused_total{reason=\"token\"} 1"),
        "{}",
        page.body
    );
    assert_eq!(server.get("/healthz", "").status, 200);
    // With an unreadable list of tokens the server refuses all callers, and probes report it.
    std::fs::write(place.path("data").join("tokens.json"), "{").unwrap();
    assert_eq!(server.get("/readyz", "").status, 503);
    server.with_token(&caller).request("tools/list", json!({})).refused(503);
}

#[test]
fn running_calls_are_answered_before_the_server_ends() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut server = Server::start(&place, &[]);
    let old = server.caller().in_session();
    let new = server.caller();
    let code = json!({"code": "import time\nprint('begun', flush=True)\ntime.sleep(2)\nprint('done')"});
    let mut streams = [
        old.begin(&old.tool("create_run_close", &code), ""),
        new.begin(&new.tool("create_run_close", &code), ""),
    ];
    until(Duration::from_secs(20), "both run", || {
        let page = server.get("/metrics", "").body;
        page.contains("sandcell_sandboxes 2\n").then_some(())
    });
    server.signal("-TERM");
    until(Duration::from_secs(5), "nothing new is taken", || {
        std::net::TcpStream::connect(server.address).is_err().then_some(())
    });
    for stream in &mut streams {
        let reply = Reply::read(stream).unwrap();
        assert!(reply.message().to_string().contains("done"), "{reply:?}");
    }
    assert_eq!(server.wait(Duration::from_secs(8)), Some(0), "{}", server.log());
}

#[test]
fn long_calls_do_not_delay_shutdown() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\ndrain_s = 1\n");
    let mut server = Server::start(&place, &[]);
    let old = server.caller().in_session();
    let streams: Vec<_> = [old, server.caller()]
        .iter()
        .map(|caller| {
            caller.begin(
                &caller.tool("create_run_close", &json!({"code": "while True: pass"})),
                "",
            )
        })
        .collect();
    until(Duration::from_secs(20), "both run", || {
        server
            .get("/metrics", "")
            .body
            .contains("sandcell_sandboxes 2\n")
            .then_some(())
    });
    server.signal("-TERM");
    assert_eq!(server.wait(Duration::from_secs(8)), Some(0), "{}", server.log());
    drop(streams);
}

#[test]
fn a_port_in_use_is_named() {
    let _turn = begin!();
    let place = TestDir::new();
    let first = Server::start(&place, &[]);
    let output = place
        .command(&["serve", "--http", &first.address.to_string()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        said.contains(&first.address.to_string()) && said.contains("--http"),
        "{said}"
    );
}

#[test]
fn tokens_are_shown_once_and_listed_without_their_secret() {
    let place = TestDir::new();
    let plain = String::from_utf8(command(&place, &["token", "create", "Ann's laptop"])).unwrap();
    let secret = plain.trim_end();
    assert!(
        secret.len() > 60 && !secret.contains(char::is_whitespace),
        "the token alone: {plain:?}"
    );
    let listed = String::from_utf8(command(&place, &["token", "list"])).unwrap();
    assert!(listed.contains("Ann's laptop") && !listed.contains(secret), "{listed}");
    let made: serde_json::Value =
        serde_json::from_slice(&command(&place, &["token", "create", "b", "--expires", "2", "--json"])).unwrap();
    assert!(made["expires_at"].as_str().unwrap().ends_with('Z'), "{made}");
    assert_eq!(made.as_object().unwrap().len(), 4);
    let revoke = place.command(&["token", "revoke", "tknone"]).output().unwrap();
    assert!(!revoke.status.success() && String::from_utf8_lossy(&revoke.stderr).contains("not_found"));
    let nothing = place.command(&["token", "create", ""]).output().unwrap();
    assert!(!nothing.status.success());
}

/// Sends a request over TLS as a program that trusts only this certificate. Returns the program's output.
fn over_tls(server: &Server, certificate: &str, secret: &str) -> Result<String, String> {
    let script = "import ssl, sys, urllib.request as r\n\
                  c = ssl.create_default_context(cafile=sys.argv[2])\n\
                  q = r.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + sys.argv[3]})\n\
                  print(r.urlopen(q, context=c, timeout=30).read().decode())";
    let url = format!("https://localhost:{}/metrics", server.address.port());
    let output = Command::new(python().unwrap())
        .args(["-I", "-c", script, &url, certificate, secret])
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(said(&output.stdout))
    } else {
        Err(said(&output.stderr))
    }
}

#[test]
fn tls_serves_the_current_certificate() {
    let _turn = begin!();
    let folder = sandcell_e2e::sources().join("crates/e2e/tests/e2e/http/certificates");
    let file = |name: &str| folder.join(name);
    let used = TestDir::new();
    let (certificate, key) = (used.path("cert.pem"), used.path("key.pem"));
    let install = |name: &str| {
        std::fs::copy(file(&format!("{name}.pem")), &certificate).unwrap();
        std::fs::copy(file(&format!("{name}.key")), &key).unwrap();
    };
    install("first");
    let settings = format!(
        "[http]\ntls_certificate = \"{}\"\ntls_key = \"{}\"\n",
        certificate.display(),
        key.display()
    );
    let place = TestDir::with_settings(&settings);
    let (_, secret) = token(&place, &["watcher", "--metrics"]);
    let server = Server::start(&place, &[]);
    assert!(server.log().contains("https://"), "{}", server.log());
    let trusting = |name: &str| over_tls(&server, file(&format!("{name}.pem")).to_str().unwrap(), &secret);
    let page = trusting("first").unwrap();
    assert!(page.contains("sandcell_sandboxes"), "{page}");
    assert!(trusting("second").unwrap_err().contains("CERTIFICATE_VERIFY_FAILED"));
    // A request in clear text gets no answer.
    let mut stream = connect(server.address);
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let _broken_off = std::io::Read::read_to_end(&mut stream, &mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // A renewed certificate is used without a restart. A broken one leaves the last one in use.
    install("second");
    until(Duration::from_secs(20), "the new one is served", || {
        trusting("second").ok()
    });
    std::fs::write(&certificate, "nonsense").unwrap();
    until(Duration::from_secs(20), "the broken one is told", || {
        trusting("second").unwrap();
        server.log().contains("is not used").then_some(())
    });
    let half = TestDir::with_settings(&format!("[http]\ntls_certificate = \"{}\"\n", certificate.display()));
    let output = half.command(&["serve", "--http", "127.0.0.1:0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("http.tls_key"));
}
