//! A real proxy with real connections to servers on loopback addresses. Only the operator's exception allows these
//! addresses.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicUsize;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpListener;

use super::*;

const TEST_LIMITS: EgressLimits = EgressLimits {
    connections: 4,
    bytes: 1 << 20,
};

fn texts(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|text| (*text).to_owned()).collect()
}

/// A server that answers every request with the received head, and counts connections.
struct Server {
    port: u16,
    seen: Arc<AtomicUsize>,
}

impl Server {
    async fn start(address: Ipv4Addr, answer: &'static str) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<AtomicUsize>::default();
        let counted = seen.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    let mut buffer = [0; 4096];
                    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                        match stream.read(&mut buffer).await {
                            Ok(0) | Err(_) => return,
                            Ok(count) => head.extend_from_slice(&buffer[..count]),
                        }
                    }
                    match answer {
                        "echo" => {
                            let head = String::from_utf8_lossy(&head).into_owned();
                            let said = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
                            let _ = stream.write_all(said.as_bytes()).await;
                        }
                        "flood" => {
                            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                            while stream.write_all(&[0; 65536]).await.is_ok() {}
                        }
                        other => {
                            let _ = stream.write_all(other.as_bytes()).await;
                        }
                    }
                });
            }
        });
        Self { port, seen }
    }

    fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

/// The resolver of the tests. The exception allows the address of `good.example`; the other names are traps.
fn resolve() -> Resolve {
    Arc::new(|name, _port| {
        let found: &[&str] = match name.as_str() {
            "good.example" | "a.good.example" => &["127.0.0.77"],
            "rebind.example" => &["127.0.0.1"],
            "mapped.example" => &["::ffff:127.0.0.1"],
            "zero.example" => &["0.0.0.0"],
            "nat64.example" => &["64:ff9b::7f00:1"],
            "metadata.example" => &["169.254.169.254"],
            "six.example" => &["::1", "fd00::1", "fe80::1"],
            "private.example" => &["10.0.0.1", "192.168.0.1", "172.16.0.1", "100.64.0.1"],
            _ => &[],
        };
        let found = found.iter().map(|text| text.parse().unwrap()).collect();
        Box::pin(async move { Ok(found) })
    })
}

fn egress(asked: &[&str], deny: &[&str], limits: EgressLimits) -> Arc<Egress> {
    let allow = texts(&["*", "*:*", "127.0.0.1:*", "127.0.0.77:*", "[::1]:*"]);
    let rules = EgressRules::read(&allow, &texts(deny), &texts(&["127.0.0.77"]), limits).unwrap();
    let asked = rules.asked(&texts(asked)).unwrap();
    Egress::resolving(Arc::new(rules), asked, "sb", resolve())
}

fn open(egress: &Arc<Egress>) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(egress.clone().serve(theirs));
    ours
}

/// Sends bytes on a new connection, and reads until its end or a pause.
async fn say(egress: &Arc<Egress>, bytes: &[u8]) -> String {
    let mut stream = open(egress);
    stream.write_all(bytes).await.unwrap();
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    let mut patience = Duration::from_secs(20);
    while let Ok(Ok(count @ 1..)) = timeout(patience, stream.read(&mut buffer)).await {
        got.extend_from_slice(&buffer[..count]);
        patience = Duration::from_millis(100);
    }
    String::from_utf8_lossy(&got).into_owned()
}

#[tokio::test]
async fn a_request_is_forwarded_with_its_own_host_and_without_hop_by_hop_headers() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "echo").await;
    let egress = egress(&["good.example:*"], &[], TEST_LIMITS);
    let port = server.port;
    let text = format!(
        "GET http://good.example:{port}/a?b=c HTTP/1.1\r\nHost: evil.example\r\nProxy-Connection: keep-alive\r\n\
         Proxy-Authorization: Basic eA==\r\nConnection: x-own, close\r\nX-Own: 1\r\nX-Stays: 2\r\nTE: trailers\r\n\r\n"
    );
    let answer = say(&egress, text.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let lower = answer.to_lowercase();
    assert!(
        lower.contains("get /a?b=c http/1.1") && lower.contains("x-stays: 2"),
        "{answer}"
    );
    assert!(lower.contains(&format!("host: good.example:{port}")), "{answer}");
    for gone in ["evil.example", "proxy-", "x-own", "te: trailers"] {
        assert!(!lower.contains(gone), "{gone}: {answer}");
    }
    assert!(egress.bytes() > 100 && egress.denied() == 0);
}

#[tokio::test]
async fn tunnels_work_over_connect_and_socks_with_names_and_addresses() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "echo").await;
    let egress = egress(&["*.good.example:*", "127.0.0.77:*"], &[], TEST_LIMITS);
    let port = server.port;
    let mut stream = open(&egress);
    let ask = format!("CONNECT a.good.example:{port} HTTP/1.1\r\nHost: a.good.example:{port}\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut buffer = [0; 1024];
    let count = stream.read(&mut buffer).await.unwrap();
    assert!(
        buffer[..count].starts_with(b"HTTP/1.1 200 OK\r\n"),
        "{:?}",
        &buffer[..count]
    );
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let count = stream.read(&mut buffer).await.unwrap();
    assert!(String::from_utf8_lossy(&buffer[..count]).contains("GET / HTTP/1.1"));
    let [high, low] = port.to_be_bytes();
    let mut by_name = vec![5, 1, 0, 5, 1, 0, 3, 14];
    by_name.extend_from_slice(b"a.good.example");
    let by_address = vec![5, 2, 2, 0, 5, 1, 0, 1, 127, 0, 0, 77];
    for mut ask in [by_name, by_address] {
        ask.extend_from_slice(&[high, low]);
        ask.extend_from_slice(b"GET /socks HTTP/1.1\r\n\r\n");
        let answer = say(&egress, &ask).await;
        assert!(answer.starts_with("\u{5}\u{0}\u{5}\u{0}"), "{answer:?}");
        assert!(answer.contains("GET /socks"), "{answer:?}");
    }
    assert_eq!(server.seen(), 3);
}

#[tokio::test]
async fn a_tunnel_carries_all_bytes_after_its_head_and_its_request_has_no_body() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "echo").await;
    let egress = egress(&["good.example:*"], &[], TEST_LIMITS);
    let port = server.port;
    let head = format!("CONNECT good.example:{port} HTTP/1.1\r\nHost: good.example:{port}\r\n");
    let inner = "GET /first HTTP/1.1\r\n\r\n";
    for fine in [
        "",
        "Content-Length: 0\r\n",
        "Expect: 100-continue\r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\n",
    ] {
        let answer = say(&egress, format!("{head}{fine}\r\n{inner}").as_bytes()).await;
        let (proxys, hosts) = answer.split_once("\r\n\r\n").unwrap();
        assert!(proxys.starts_with("HTTP/1.1 200 "), "{fine}: {answer}");
        assert!(!proxys.to_lowercase().contains("content-length"), "{fine}: {answer}");
        assert!(hosts.ends_with(inner), "{fine}: {answer}");
    }
    assert_eq!(server.seen(), 4);
    for bad in [
        "Content-Length: 1\r\n",
        "Content-Length: 26\r\n",
        "Content-Length: 00\r\n",
        "Content-Length: 0\r\nContent-Length: 1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let behind = format!("5\r\nhello\r\n0\r\n\r\nGET http://good.example:{port}/hidden HTTP/1.1\r\n\r\n");
        let answer = say(&egress, format!("{head}{bad}\r\n{behind}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{bad}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{bad}: {answer}");
    }
    assert_eq!(server.seen(), 4, "no connection for what is refused");
}

#[tokio::test]
async fn alternative_spellings_of_a_host_are_denied() {
    let server = Server::start(Ipv4Addr::LOCALHOST, "echo").await;
    let egress = egress(&["*", "*:*"], &["denied.example", "*.denied.example"], TEST_LIMITS);
    let port = server.port;
    let hosts = [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[fe80::1%25lo]",
        "localhost",
        "rebind.example",
        "mapped.example",
        "zero.example",
        "nat64.example",
        "metadata.example",
        "six.example",
        "private.example",
        "denied.example",
        "x.DENIED.example.",
        "user@good.example",
        "good.example@127.0.0.1",
        "good.example%00.evil",
        "good.example%23",
    ];
    for host in hosts {
        let before = egress.denied();
        for ask in [
            format!("GET http://{host}:{port}/ HTTP/1.1\r\nHost: good.example\r\n\r\n"),
            format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        ] {
            let answer = say(&egress, ask.as_bytes()).await;
            let refused = answer.starts_with("HTTP/1.1 403 network_denied") || answer.starts_with("HTTP/1.1 400");
            assert!(refused, "{ask}: {answer}");
        }
        let mut ask = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
        ask.extend_from_slice(host.as_bytes());
        ask.extend_from_slice(&port.to_be_bytes());
        let answer = say(&egress, &ask).await;
        assert!(answer.starts_with("\u{5}\u{0}\u{5}\u{2}"), "{host}: {answer:?}");
        assert!(egress.denied() > before, "{host}");
    }
    for address in [
        vec![1, 127, 0, 0, 1],
        vec![1, 0, 0, 0, 0],
        [&[4][..], &Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()].concat(),
    ] {
        let mut ask = vec![5, 1, 0, 5, 1, 0];
        ask.extend_from_slice(&address);
        ask.extend_from_slice(&port.to_be_bytes());
        let answer = say(&egress, &ask).await;
        assert!(answer.starts_with("\u{5}\u{0}\u{5}\u{2}"), "{address:?}: {answer:?}");
    }
    assert_eq!(server.seen(), 0);
    let kept = egress.denied_since(0);
    assert!(kept.len() <= MAX_STORED_DENIALS && egress.denied_since(egress.denied()).is_empty());
}

#[tokio::test]
async fn an_unlisted_port_is_denied_and_the_answer_names_the_entry_to_write() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "echo").await;
    let egress = egress(&["good.example"], &[], TEST_LIMITS);
    let port = server.port;
    let answer = say(
        &egress,
        format!("GET http://good.example:{port}/ HTTP/1.1\r\n\r\n").as_bytes(),
    )
    .await;
    assert!(
        answer.contains(&format!("network = [\"good.example:{port}\"]")),
        "{answer}"
    );
    let answer = say(&egress, b"CONNECT other.example:443 HTTP/1.1\r\n\r\n").await;
    assert!(answer.contains("network = [\"other.example\"]"), "{answer}");
    assert_eq!(server.seen(), 0);
    assert_eq!(egress.denied_since(1)[0].target, "other.example");
}

#[tokio::test]
async fn each_request_of_a_connection_is_checked_and_bodies_hide_none() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "echo").await;
    let egress = egress(&["good.example:*"], &[], TEST_LIMITS);
    let port = server.port;
    // The second of two requests has another target.
    let two =
        format!("GET http://good.example:{port}/1 HTTP/1.1\r\n\r\nGET http://evil.example:{port}/2 HTTP/1.1\r\n\r\n");
    let answer = say(&egress, two.as_bytes()).await;
    assert!(
        answer.contains("GET /1") && answer.contains("403 network_denied"),
        "{answer}"
    );
    // The end of the body is ambiguous. The hidden request is part of the body, or the whole request is refused.
    let hidden = "GET /hidden HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    let both = format!(
        "POST http://good.example:{port}/3 HTTP/1.1\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
        hidden.len() + 5
    );
    let answer = say(&egress, both.as_bytes()).await;
    assert!(!answer.contains("/hidden"), "{answer}");
    for bad in [
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: +5",
        "Transfer-Encoding : chunked",
        "X: 1\r\n folded",
    ] {
        let text = format!("POST http://good.example:{port}/4 HTTP/1.1\r\n{bad}\r\n\r\n{hidden}");
        let answer = say(&egress, text.as_bytes()).await;
        assert!(!answer.contains("/hidden"), "{bad}: {answer}");
    }
    // Requests that are not for a proxy.
    for text in [
        "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET https://good.example/ HTTP/1.1\r\n\r\n",
    ] {
        assert!(
            say(&egress, text.as_bytes()).await.starts_with("HTTP/1.1 400"),
            "{text}"
        );
    }
    assert!(!say(&egress, b"\x04\x01nonsense\r\n\r\n").await.contains("200"));
}

#[tokio::test]
async fn bytes_are_bounded_and_then_everything_is_denied() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "flood").await;
    let egress = egress(&["good.example:*"], &[], TEST_LIMITS);
    let port = server.port;
    let ask = format!("GET http://good.example:{port}/ HTTP/1.1\r\n\r\n");
    let mut stream = open(&egress);
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut all = 0;
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        all += count;
    }
    assert!((500_000..1_400_000).contains(&all), "{all}");
    assert_eq!(egress.bytes(), TEST_LIMITS.bytes);
    let answer = say(&egress, ask.as_bytes()).await;
    assert!(
        answer.contains("are used up") && answer.contains("network.total_mb"),
        "{answer}"
    );
}

#[tokio::test]
async fn connections_are_bounded_and_an_open_tunnel_counts() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "echo").await;
    let egress = egress(&["good.example:*"], &[], TEST_LIMITS);
    let ask = format!("CONNECT good.example:{} HTTP/1.1\r\n\r\n", server.port);
    let mut open_ones = Vec::new();
    for _ in 0..TEST_LIMITS.connections {
        let mut stream = open(&egress);
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut buffer = [0; 256];
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
        open_ones.push(stream);
    }
    assert_eq!(say(&egress, ask.as_bytes()).await, "", "one more than there are places");
    assert!(matches!(egress.denied_since(0)[0].reason, DenialReason::Limit(_)));
    drop(open_ones);
    for _ in 0..100 {
        if say(&egress, ask.as_bytes()).await.starts_with("HTTP/1.1 200") {
            return;
        }
    }
    panic!("places are given back");
}

#[tokio::test]
async fn open_connections_end_with_the_sandbox() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "flood").await;
    let egress = egress(&["good.example:*"], &[], TEST_LIMITS);
    let ask = format!("CONNECT good.example:{} HTTP/1.1\r\n\r\n", server.port);
    let mut tunnel = open(&egress);
    tunnel.write_all(ask.as_bytes()).await.unwrap();
    let mut buffer = [0; 256];
    assert!(tunnel.read(&mut buffer).await.unwrap() > 0);
    egress.close();
    let rest = timeout(Duration::from_secs(10), tunnel.read(&mut buffer)).await;
    assert!(matches!(rest, Ok(Ok(0) | Err(_))), "{rest:?}");
    assert_eq!(say(&egress, ask.as_bytes()).await, "");
}

#[tokio::test]
async fn connections_to_hosts_that_are_taken_away_end() {
    let server = Server::start(Ipv4Addr::new(127, 0, 0, 77), "flood").await;
    let limits = EgressLimits {
        connections: 8,
        bytes: 1 << 40,
    };
    let egress = egress(&["good.example:*", "127.0.0.77:*"], &[], limits);
    let port = server.port;
    let mut buffer = [0; 256];
    let mut tunnels = Vec::new();
    for host in ["good.example", "127.0.0.77"] {
        let mut connect = open(&egress);
        let ask = format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n");
        connect.write_all(ask.as_bytes()).await.unwrap();
        let mut socks = open(&egress);
        let length = u8::try_from(host.len()).unwrap();
        let ask = [
            b"\x05\x01\x00\x05\x01\x00\x03",
            &[length][..],
            host.as_bytes(),
            &port.to_be_bytes(),
        ]
        .concat();
        socks.write_all(&ask).await.unwrap();
        let mut plain = open(&egress);
        let ask = format!("GET http://{host}:{port}/ HTTP/1.1\r\n\r\n");
        plain.write_all(ask.as_bytes()).await.unwrap();
        for mut one in [connect, socks] {
            assert!(one.read(&mut buffer).await.unwrap() > 0);
            one.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            tunnels.push(one);
        }
        assert!(plain.read(&mut buffer).await.unwrap() > 0);
        tunnels.push(plain);
    }
    // A host that the operator does not allow changes nothing.
    assert!(egress.ask(&texts(&["10.0.0.1"])).is_err());
    egress.ask(&texts(&["127.0.0.77:*"])).unwrap();
    let mut rest = vec![0; 1 << 16];
    let denied = tunnels.drain(..3).collect::<Vec<_>>();
    for mut one in denied {
        let end = timeout(Duration::from_secs(10), async {
            while matches!(one.read(&mut rest).await, Ok(1..)) {}
        });
        assert!(end.await.is_ok(), "a connection goes on");
    }
    for mut one in tunnels {
        // The server has no end.
        for _ in 0..8 {
            let more = timeout(Duration::from_secs(10), one.read(&mut rest)).await;
            assert!(matches!(more, Ok(Ok(1..))), "{more:?}");
        }
    }
    let ask = format!("CONNECT good.example:{port} HTTP/1.1\r\n\r\n");
    assert!(say(&egress, ask.as_bytes()).await.starts_with("HTTP/1.1 403"));
    egress.ask(&texts(&["good.example:*"])).unwrap();
    let mut again = open(&egress);
    again.write_all(ask.as_bytes()).await.unwrap();
    assert!(again.read(&mut buffer).await.unwrap() > 0);
    assert!(buffer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn slow_clients_are_disconnected() {
    let egress = egress(&["good.example:*"], &[], TEST_LIMITS);
    for start in [
        &b""[..],
        b"G",
        b"GET http://good.example/ HTTP/1.1\r\nX: ",
        b"\x05",
        b"\x05\x01\x00\x05\x01",
    ] {
        let mut stream = open(&egress);
        stream.write_all(start).await.unwrap();
        let began = tokio::time::Instant::now();
        let mut rest = Vec::new();
        let mut reading = tokio::spawn(async move {
            let mut left = 1000;
            // A byte from time to time does not extend the time limit.
            while left > 0 {
                tokio::time::sleep(Duration::from_secs(3)).await;
                left -= 1;
                if stream.write_all(b"x").await.is_err() {
                    break;
                }
            }
            let _ = stream.read_to_end(&mut rest).await;
            left
        });
        let left = timeout(Duration::from_secs(600), &mut reading).await;
        assert!(left.is_ok_and(|left| left.unwrap() > 0), "{start:?}");
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{start:?}: {:?}",
            began.elapsed()
        );
    }
}

#[test]
fn entries_of_the_operator_are_read_strictly_and_deny_wins() {
    for (allow, deny, private) in [
        ("http://x.example", "", ""),
        ("localhost", "", ""),
        ("", "300.0.0.0/8", ""),
        ("", "", "not an address"),
        ("", "", "x.example=nothing"),
        ("", "", "x=1.2.3.4"),
    ] {
        let one = |text: &str| {
            texts(&[text])
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
        };
        assert!(
            EgressRules::read(&one(allow), &one(deny), &one(private), TEST_LIMITS).is_err(),
            "{allow}{deny}{private}"
        );
    }
    let rules = EgressRules::read(
        &texts(&["*.example.com"]),
        &texts(&["evil.example.com", "1.1.1.0/24"]),
        &texts(&["10.0.0.0/8", "db.corp.example=10.9.9.9"]),
        TEST_LIMITS,
    )
    .unwrap();
    assert!(rules.asked(&texts(&["*.example.com", "api.example.com"])).is_ok());
    for (asked, word) in [
        ("evil.example.com", "denied by the operator"),
        ("example.org", "not among the hosts that the operator allows"),
        ("*", "not among"),
        ("api.example.com:25", "not among"),
        ("http://x", "name the host alone"),
        ("", "empty"),
    ] {
        let denial = rules.asked(&texts(&[asked])).unwrap_err();
        assert!(denial.reason.to_string().contains(word), "{asked}: {}", denial.reason);
        assert!(!denial.remedy().is_empty());
    }
    assert!(rules.asked(&vec!["a.example.com".to_owned(); 101]).is_err());
    assert!(rules.reaches("10.1.1.1".parse().unwrap()) && !rules.reaches("192.168.1.1".parse().unwrap()));
    assert!(!rules.reaches("1.1.1.1".parse().unwrap()) && rules.reaches("9.9.9.9".parse().unwrap()));
    assert_eq!(rules.pinned(&Host::parse("db.corp.example").unwrap()).len(), 1);
    // An empty allow-list allows no host.
    let none = EgressRules::read(&[], &[], &[], TEST_LIMITS).unwrap();
    assert!(none.asked(&texts(&["api.example.com"])).is_err() && none.asked(&[]).unwrap().is_empty());
}
