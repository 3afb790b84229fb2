use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, skip, until};

/// A web server of the host on a loopback address, which sandboxes reach only by the operator's exception.
struct Web {
    port: u16,
    /// The heads of the received requests.
    asked: Arc<Mutex<Vec<String>>>,
    /// The number of open connections.
    open: Arc<AtomicUsize>,
}

impl Web {
    fn start(address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let web = Self {
            port: listener.local_addr().unwrap().port(),
            asked: Arc::default(),
            open: Arc::default(),
        };
        let (asked, open) = (web.asked.clone(), web.open.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, open) = (asked.clone(), open.clone());
                std::thread::spawn(move || {
                    open.fetch_add(1, Ordering::SeqCst);
                    serve(stream, &asked);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        web
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

/// Answers with the length of the received body. `/hold` keeps the connection open, `/big` is four megabytes.
fn serve(mut stream: TcpStream, asked: &Mutex<Vec<String>>) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length:").map(str::to_owned));
    let length: usize = length.map_or(0, |text| text.trim().parse().unwrap());
    while bytes.len() < end + length {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    asked.lock().unwrap().push(head.clone());
    let body = if head.contains(" /big") {
        vec![b'x'; 4_000_000]
    } else {
        format!("got {length} bytes").into_bytes()
    };
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream
        .write_all(answer.as_bytes())
        .and_then(|()| stream.write_all(&body));
    if head.contains(" /hold") {
        while matches!(stream.read(&mut buffer), Ok(1..)) {}
    }
}

/// Returns a place whose operator allows hosts, and names loopback addresses for some of them.
fn place() -> TestDir {
    TestDir::with_settings(
        "[network]\n\
         allow = [\"good.example:*\", \"*.wide.example:*\", \"127.0.0.77:*\", \"localhost.localdomain\"]\n\
         deny = [\"bad.wide.example\"]\n\
         private = [\"good.example=127.0.0.77\", \"a.wide.example=127.0.0.77\", \"bad.wide.example=127.0.0.77\", \"127.0.0.77\"]\n",
    )
}

fn sandbox(server: &Client, network: &[String]) -> String {
    let made = server.call("create_sandbox", json!({"network": network}));
    assert!(!made.is_error(), "{made:?}\n{}", server.log());
    made.0["structuredContent"]["sandbox_id"].as_str().unwrap().to_owned()
}

fn run(server: &Client, id: &str, code: &str) -> Answer {
    server.call("execute_code", json!({"code": code, "sandbox_id": id}))
}

/// Opens an address and prints the response, or the error.
const GET_FUNCTION: &str = "import urllib.request, urllib.error\n\
    def get(url, data=None):\n    \
        with urllib.request.urlopen(url, data, timeout=10) as answer:\n        \
            return answer.read().decode()\n";

#[test]
fn an_allowed_host_is_reached_by_every_common_client() {
    let _turn = begin!();
    let (place, web) = (place(), Web::start("127.0.0.77"));
    let server = Client::start(&mut place.command(&["serve"]));
    let port = web.port;
    let id = sandbox(&server, &[format!("good.example:{port}"), format!("127.0.0.77:{port}")]);
    let code = format!(
        "{GET_FUNCTION}print(get('http://good.example:{port}/a'), get('http://good.example:{port}/b', b'x' * 300000), len(get('http://good.example:{port}/big')))"
    );
    let got = run(&server, &id, &code);
    assert_eq!(
        got.output().trim(),
        "got 0 bytes got 300000 bytes 4000000",
        "{got:?}\n{}",
        server.log()
    );
    // CONNECT, as for https, and SOCKS with a host name.
    let tunnel = format!(
        "import http.client\nlink = http.client.HTTPConnection('127.0.0.1', 3128)\nlink.set_tunnel('good.example', {port})\n\
         link.request('GET', '/tunnel')\nprint(link.getresponse().read().decode())"
    );
    assert_eq!(run(&server, &id, &tunnel).output().trim(), "got 0 bytes");
    let socks = format!(
        "import socket\nway = socket.create_connection(('127.0.0.1', 3128))\nway.sendall(b'\\x05\\x01\\x00')\nprint(way.recv(2))\n\
         way.sendall(b'\\x05\\x01\\x00\\x03\\x0cgood.example' + ({port}).to_bytes(2, 'big'))\nprint(way.recv(10)[:2])\n\
         way.sendall(b'GET /socks HTTP/1.1\\r\\n\\r\\n')\nprint(way.makefile('rb').read().endswith(b'got 0 bytes'))"
    );
    assert_eq!(
        run(&server, &id, &socks).output().trim(),
        "b'\\x05\\x00'\nb'\\x05\\x00'\nTrue"
    );
    let heads = web.asked();
    assert!(
        heads[0].contains("/a HTTP/1.1") && heads[0].to_lowercase().contains(&format!("host: good.example:{port}"))
    );
    assert!(
        heads.iter().all(|head| !head.to_lowercase().contains("proxy")),
        "{heads:?}"
    );
    assert!(
        server
            .call("get_sandbox_status", json!({"sandbox_id": id}))
            .all()
            .contains("network: good.example:")
    );
    // Another sandbox on the same server has none of this access.
    let other = server.run(&format!("{GET_FUNCTION}import socket\nfor port in (3128, {port}):\n    try:\n        socket.create_connection(('127.0.0.1', port), 2)\n        print('reached')\n    except OSError as error:\n        print('no')\ntry:\n    get('http://good.example:{port}/')\nexcept OSError:\n    print('no')"));
    assert_eq!(other.output().trim(), "no\nno\nno", "{other:?}");
}

#[test]
fn the_hosts_of_a_live_sandbox_can_be_changed() {
    let _turn = begin!();
    let (place, web) = (place(), Web::start("127.0.0.77"));
    let server = Server::start(&place, &["--e2b"]);
    let (caller, port) = (server.caller(), web.port);
    let (name, address) = (format!("good.example:{port}"), format!("127.0.0.77:{port}"));
    let put = |path: &str, body: Value| {
        let (host, body) = (server.address, body.to_string());
        server.raw(format!(
            "PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        ))
    };
    let made = caller.call("create_sandbox", json!({"network": [name, address]}));
    let id = made.data()["sandbox_id"].as_str().unwrap().to_owned();
    let run = |id: &str, code: String| caller.call("execute_code", json!({"code": code, "sandbox_id": id}));
    let reaches = |id: &str, host: &str| run(id, format!("{GET_FUNCTION}print(get('http://{host}/'))"));
    let is_denied = |id: &str, host: &str| {
        let answer = reaches(id, host);
        assert!(answer.all().contains("the network denied a host"), "{answer:?}");
    };
    run(
        &id,
        format!(
            "import http.client\nlinks = []\nfor host in ('good.example', '127.0.0.77'):\n    link = \
             http.client.HTTPConnection('127.0.0.1', 3128); link.set_tunnel(host, {port}); link.request('GET', '/hold'); \
             links.append(link.getresponse())"
        ),
    );
    until(DEFAULT_TIMEOUT, "both connections are open", || {
        (web.open() == 2).then_some(())
    });
    let network = format!("/v1/sandboxes/{id}/network");
    let changed = put(&network, json!({"hosts": [address]}));
    assert_eq!(
        (changed.status, &changed.message()["network"]),
        (200, &json!([address]))
    );
    until(DEFAULT_TIMEOUT, "one of them ends", || (web.open() == 1).then_some(()));
    assert_eq!(reaches(&id, &address).output().trim(), "got 0 bytes");
    is_denied(&id, &name);
    // A host that the operator does not allow changes nothing.
    for (hosts, status) in [(json!(["other.example"]), 403), (json!([address, "bad host"]), 400)] {
        let refused = put(&network, json!({"hosts": hosts}));
        assert_eq!(refused.status, status, "{refused:?}");
    }
    assert_eq!(reaches(&id, &address).output().trim(), "got 0 bytes");
    assert_eq!(put(&network, json!({"hosts": []})).message()["network"], json!([]));
    until(DEFAULT_TIMEOUT, "the other one ends", || {
        (web.open() == 0).then_some(())
    });
    is_denied(&id, &address);
    assert_eq!(put(&network, json!({"hosts": [name]})).status, 200);
    assert_eq!(reaches(&id, &name).output().trim(), "got 0 bytes");
    // A branch has the hosts that its source has now.
    let branch = caller.call("create_sandbox", json!({"from_sandbox": id}));
    let branch = branch.data()["sandbox_id"].as_str().unwrap().to_owned();
    assert_eq!(reaches(&branch, &name).output().trim(), "got 0 bytes");
    is_denied(&branch, &address);

    let without = caller.call("create_sandbox", json!({}));
    let without = format!(
        "/v1/sandboxes/{}/network",
        without.data()["sandbox_id"].as_str().unwrap()
    );
    assert_eq!(put(&without, json!({"hosts": []})).status, 200);
    let refused = put(&without, json!({"hosts": [name]}));
    assert_eq!(
        (refused.status, &refused.message()["code"]),
        (403, &json!("network_denied"))
    );

    // The same by E2B's call.
    let host = server.address;
    let made = server.raw(format!(
        "POST /sandboxes HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\
         Connection: close\r\n\r\n{{\"templateID\":\"base\"}}"
    ));
    let made = made.message();
    let id = made["sandboxID"].as_str().unwrap_or_else(|| panic!("{made}"));
    assert_eq!(reaches(id, &name).output().trim(), "got 0 bytes");
    let network = format!("/sandboxes/{id}/network");
    let denies = json!({"denyOut": ["0.0.0.0/0"], "allowOut": [address]});
    assert_eq!(put(&network, denies).status, 204);
    is_denied(id, &name);
    assert_eq!(reaches(id, &address).output().trim(), "got 0 bytes");
    assert_eq!(put(&network, json!({"allow_internet_access": false})).status, 204);
    is_denied(id, &address);
    // Rules that are left out are cleared.
    assert_eq!(put(&network, json!({})).status, 204);
    assert_eq!(reaches(id, &name).output().trim(), "got 0 bytes");
    let log = place.path("data").join("audit.jsonl");
    until(DEFAULT_TIMEOUT, "the changes are in the audit log", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        (text.matches("network_changed").count() == 6).then_some(())
    });
}

#[test]
fn unlisted_hosts_are_denied_with_the_entry_that_would_allow_them() {
    let _turn = begin!();
    let (place, web, trap) = (place(), Web::start("127.0.0.77"), Web::start("127.0.0.1"));
    let server = Client::start(&mut place.command(&["serve"]));
    let (port, closed) = (web.port, trap.port);
    // Hosts beyond the operator's list are refused before anything is made.
    for (hosts, code) in [
        (json!(["evil.example"]), "network_denied"),
        (json!(["*"]), "network_denied"),
        (json!(["bad.wide.example"]), "network_denied"),
        (json!(["http://good.example/"]), "invalid_argument"),
        (json!(["good.example\u{0}.evil.example"]), "invalid_argument"),
        (json!(["2130706433"]), "invalid_argument"),
    ] {
        let refused = server.call("create_sandbox", json!({"network": hosts}));
        assert!(
            refused.is_error() && refused.all().contains(code),
            "{hosts}: {refused:?}"
        );
    }
    let id = sandbox(
        &server,
        &["*.wide.example:*".to_owned(), "localhost.localdomain".to_owned()],
    );
    let denied = run(
        &server,
        &id,
        &format!("{GET_FUNCTION}get('http://good.example:{port}/')"),
    );
    let text = denied.all();
    assert!(
        text.contains("network_denied") && text.contains(&format!("network = [\"good.example:{port}\"]")),
        "{text}"
    );
    for address in [
        format!("http://bad.wide.example:{port}/"),
        format!("http://127.0.0.77:{port}/"),
        format!("http://127.0.0.1:{closed}/"),
        format!("http://localhost:{closed}/"),
        format!("http://[::1]:{closed}/"),
        format!("http://[::ffff:127.0.0.1]:{closed}/"),
        format!("http://2130706433:{closed}/"),
        format!("http://0x7f.1:{closed}/"),
        format!("http://0:{closed}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://metadata.google.internal/".to_owned(),
        "https://evil.example/".to_owned(),
    ] {
        let code =
            format!("{GET_FUNCTION}import os\nos.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\nget({address:?})");
        let denied = run(&server, &id, &code);
        assert!(denied.all().contains("network_denied"), "{address}: {denied:?}");
    }
    // Without the proxy there is no access, and the answer mentions the proxy.
    let direct = run(
        &server,
        &id,
        &format!("import socket\nsocket.create_connection(('127.0.0.77', {port}), 5)"),
    );
    assert_eq!(direct.status(), "error", "{direct:?}");
    let direct = run(&server, &id, "import socket\nsocket.getaddrinfo('good.example', 80)");
    assert!(
        direct.all().contains("network_denied") && direct.all().contains("HTTP_PROXY"),
        "{direct:?}"
    );
    // The allowed name still leads only to the operator's address.
    let code = format!("{GET_FUNCTION}print(get('http://a.wide.example:{port}/fine'))");
    assert_eq!(run(&server, &id, &code).output().trim(), "got 0 bytes");
    assert_eq!((web.asked().len(), trap.asked().len(), trap.open()), (1, 0, 0));
    assert!(server.log().contains("network denied"), "{}", server.log());
}

#[test]
fn a_run_reaches_the_hosts_of_its_flag_and_leaves_nothing() {
    let _turn = begin!();
    let (place, web) = (place(), Web::start("127.0.0.77"));
    let port = web.port;
    let file = place.write(
        "program.py",
        format!("{GET_FUNCTION}print(get('http://good.example:{port}/'))"),
    );
    let command = |network: &str| {
        let output = place
            .command(&["run", "--network", network, &file.display().to_string()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, said, log) = command(&format!("good.example:{port}"));
    assert_eq!((status, said.trim()), (Some(0), "got 0 bytes"), "{log}");
    let (status, _, log) = command("none");
    assert_eq!(status, Some(1), "{log}");
    // Hosts named on the command line are allowed; the program asks for another host.
    let (status, _, log) = command("evil.example");
    assert!(status == Some(1) && log.contains("network_denied"), "{log}");
    let (status, _, log) = command("a.wide.example:*");
    assert!(
        status == Some(1) && log.contains("good.example") && log.contains("add the host to --network"),
        "{log}"
    );
    // An open connection ends with its sandbox.
    let server = Client::start(&mut place.command(&["serve"]));
    let code = format!(
        "import http.client\nlink = http.client.HTTPConnection('127.0.0.1', 3128)\nlink.set_tunnel('good.example', {port})\n\
         link.request('GET', '/hold')\nprint(link.sock.recv(10))"
    );
    let network = format!("good.example:{port}");
    let id = sandbox(&server, &[network]);
    let held = run(&server, &id, &code);
    assert!(held.output().contains("HTTP/1.1"), "{held:?}");
    until(Duration::from_secs(5), "the connection stands", || {
        (web.open() == 1).then_some(())
    });
    server.call("close_sandbox", json!({"sandbox_id": id}));
    until(Duration::from_secs(2), "the connection is closed", || {
        (web.open() == 0).then_some(())
    });
}

#[test]
fn a_run_needs_no_setting_for_its_hosts_and_obeys_the_deny_list() {
    let _turn = begin!();
    let (place, web) = (TestDir::new(), Web::start("127.0.0.77"));
    let address = format!("127.0.0.77:{}", web.port);
    let file = place.write("program.py", format!("{GET_FUNCTION}print(get('http://{address}/'))"));
    let file = file.display().to_string();
    let run = |place: &TestDir, network: &str| {
        let mut command = place.command(&["run", "--network", network, &file]);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let allowed = run(&place, &address);
    assert_eq!(
        String::from_utf8_lossy(&allowed.stdout).trim(),
        "got 0 bytes",
        "{allowed:?}"
    );
    let place = place.with("[network]\ndeny = [\"127.0.0.0/8\"]\n");
    let denied = run(&place, &address);
    assert!(!denied.status.success(), "{denied:?}");
    assert!(
        String::from_utf8_lossy(&denied.stderr).contains("network"),
        "{denied:?}"
    );
}

#[test]
fn fetch_of_every_node_version_uses_the_proxy() {
    let _turn = begin!();
    let named = std::env::var_os("SANDCELL_TEST_NODE").map(PathBuf::from);
    let nodes: Vec<PathBuf> = ["/usr/bin/node", "/usr/local/bin/node"]
        .into_iter()
        .map(PathBuf::from)
        .chain(named)
        .filter(|node| node.exists())
        .collect();
    if nodes.is_empty() {
        return skip(
            "network::fetch_of_every_node_version_uses_the_proxy",
            "no node (apt-get install nodejs)",
        );
    }
    for node in nodes {
        let (place, web) = (place(), Web::start("127.0.0.77"));
        let path = format!("{}:/usr/bin:/bin", node.parent().unwrap().display());
        let (port, secure) = (web.port, "https://bad.wide.example/");
        let code = format!(
            "const text = async (url) => {{ try {{ return await (await fetch(url)).text() }} catch (error) {{ return 'no: ' + (error.cause ?? error).message }} }};\n\
             text('http://good.example:{port}/a').then(async (first) => {{ console.log(first); console.log(await text('http://good.example:{port}/b')); console.log(await text('{secure}')) }});"
        );
        let file = place.write("program.js", &code);
        let output = place
            .command(&[
                "run",
                "--network",
                &format!("good.example:{port}"),
                &file.display().to_string(),
            ])
            .env("PATH", &path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with("got 0 bytes\ngot 0 bytes\nno: "),
            "{node:?}: {said}\n{log}"
        );
        let server = Client::start(place.command(&["serve"]).env("PATH", &path));
        let id = sandbox(&server, &[format!("good.example:{port}")]);
        let cell = |code: &str| {
            server.call(
                "execute_code",
                json!({"code": code, "language": "javascript", "sandbox_id": id}),
            )
        };
        let got = cell(&format!("await (await fetch('http://good.example:{port}/c')).text()"));
        assert!(got.all().contains("got 0 bytes"), "{node:?}: {got:?}");
        let denied = cell(&format!("await fetch('{secure}')"));
        assert!(denied.all().contains("network_denied"), "{node:?}: {denied:?}");
        assert_eq!(web.asked().len(), 3, "{node:?}");
    }
}

#[test]
fn a_tunnel_loses_no_byte_and_one_with_content_is_refused() {
    let _turn = begin!();
    let (place, web) = (place(), Web::start("127.0.0.77"));
    let server = Client::start(&mut place.command(&["serve"]));
    let port = web.port;
    let id = sandbox(&server, &[format!("good.example:{port}")]);
    let tunnel = |headers: &str| {
        let code = format!(
            "import socket\nway = socket.create_connection(('127.0.0.1', 3128), 10)\n\
             way.sendall(b'CONNECT good.example:{port} HTTP/1.1\\r\\n{headers}\\r\\n' \
             b'POST /all HTTP/1.1\\r\\nContent-Length: 4\\r\\n\\r\\nbody')\n\
             got = b''\nwhile piece := way.recv(4096): got += piece\nprint(got.decode())"
        );
        run(&server, &id, &code).all()
    };
    for fine in ["", "Content-Length: 0\\r\\n"] {
        let said = tunnel(fine);
        assert!(
            said.contains("200 OK") && said.contains("got 4 bytes"),
            "{fine}: {said}"
        );
    }
    assert!(
        web.asked().iter().all(|head| head.starts_with("POST /all ")),
        "{:?}",
        web.asked()
    );
    for bad in ["Content-Length: 1\\r\\n", "Transfer-Encoding: chunked\\r\\n"] {
        let said = tunnel(bad);
        assert!(said.contains("HTTP/1.1 400"), "{bad}: {said}");
    }
    assert_eq!(web.asked().len(), 2);
}

#[test]
fn a_sandbox_that_floods_its_proxy_does_not_affect_others() {
    let _turn = begin!();
    let (place, web) = (place(), Web::start("127.0.0.77"));
    let server = Client::start(&mut place.command(&["serve"]));
    let port = web.port;
    let network = [format!("good.example:{port}")];
    let (hostile, other) = (sandbox(&server, &network), sandbox(&server, &network));
    // Connections that send nothing, begin a request, send a flood without reading, or name odd hosts without end.
    let flood = format!(
        "import socket\nways = []\nfor number in range(120):\n    try:\n        way = socket.create_connection(('127.0.0.1', 3128), 1)\n        way.setblocking(False)\n        \
         way.send([b'', b'G', b'\\x05\\xff', b'CONNECT good.example:{port} HTTP/1.1\\r\\n\\r\\n' + b'x' * 60000][number % 4])\n        ways.append(way)\n    except OSError as error:\n        pass\nprint(len(ways) > 20)"
    );
    assert_eq!(run(&server, &hostile, &flood).output().trim(), "True");
    let code = format!("{GET_FUNCTION}print(get('http://good.example:{port}/'))");
    assert_eq!(run(&server, &other, &code).output().trim(), "got 0 bytes");
    assert_eq!(server.run("print(1)").output().trim(), "1");
    server.call("close_sandbox", json!({"sandbox_id": hostile}));
    assert_eq!(run(&server, &other, &code).output().trim(), "got 0 bytes");
}
