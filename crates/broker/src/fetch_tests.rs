//! Real requests to servers on loopback addresses: one is the operator's index, the other a trap.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// A server with fixed answers by path. It records the heads of its requests.
struct Server {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(answers: &[(&str, String)]) -> Self {
        let answers: Arc<HashMap<String, String>> = Arc::new(
            answers
                .iter()
                .map(|(path, text)| ((*path).to_owned(), text.clone()))
                .collect(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&heads);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answers, seen) = (Arc::clone(&answers), Arc::clone(&seen));
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    let mut buffer = [0; 4096];
                    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                        match stream.read(&mut buffer).await {
                            Ok(0) | Err(_) => break,
                            Ok(count) => head.extend_from_slice(&buffer[..count]),
                        }
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    seen.lock().unwrap().push(head);
                    let none = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n".to_owned();
                    let answer = answers.get(&path).unwrap_or(&none);
                    let said = format!("{}\r\n", answer.replacen("\r\n", "\r\nConnection: close\r\n", 1));
                    let _ = stream.write_all(said.as_bytes()).await;
                });
            }
        });
        Self { port, heads }
    }

    fn url(&self, path: &str) -> Url {
        Url::parse(&format!("http://127.0.0.1:{}{path}", self.port)).unwrap()
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn moved(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n")
}

fn fine() -> String {
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n".to_owned()
}

fn client(index: &Url, origins: &[String]) -> Client {
    let machine = Machine {
        indexes: vec![index.clone()],
        ..Machine::default()
    };
    let resolve: Resolve = Arc::new(|name, _| {
        let found = match name.as_str() {
            "inner.example" => "127.0.0.1",
            "metadata.example" => "169.254.169.254",
            _ => "::ffff:10.0.0.1",
        };
        Box::pin(std::future::ready(Ok(vec![found.parse().unwrap()])))
    });
    Client::resolving(machine, origins, resolve).unwrap()
}

/// Returns addresses that lead from an index to a service of the machine or its network.
fn traps(port: u16) -> Vec<String> {
    vec![
        format!("http://127.0.0.1:{port}/trap"),
        format!("http://127.0.0.2:{port}/trap"),
        format!("http://0.0.0.0:{port}/trap"),
        format!("http://2130706433:{port}/trap"),
        format!("http://0x7f000001:{port}/trap"),
        format!("http://0177.0.0.1:{port}/trap"),
        format!("http://[::1]:{port}/trap"),
        format!("http://[::ffff:127.0.0.1]:{port}/trap"),
        format!("http://localhost:{port}/trap"),
        format!("http://user:word@127.0.0.1:{port}/trap"),
        format!("https://127.0.0.1:{port}/trap"),
        format!("ftp://127.0.0.1:{port}/trap"),
        "http://127.0.0.1/trap".to_owned(),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://[fd00:ec2::254]/latest/".to_owned(),
        "http://[64:ff9b::7f00:1]/".to_owned(),
        "http://[2002:7f00:1::]/".to_owned(),
        "http://100.64.0.1/".to_owned(),
        "http://inner.example/trap".to_owned(),
        "http://metadata.example/latest/".to_owned(),
        "https://mapped.example/".to_owned(),
        "file:///etc/passwd".to_owned(),
    ]
}

#[tokio::test]
async fn neither_a_link_nor_a_redirection_leads_to_an_inner_address() {
    let trap = Server::start(&[("/trap", fine())]).await;
    let traps = traps(trap.port);
    let paths: Vec<String> = (0..traps.len()).map(|number| format!("/{number}")).collect();
    let mut answers: Vec<(&str, String)> = paths
        .iter()
        .zip(&traps)
        .map(|(path, to)| (path.as_str(), moved(to)))
        .collect();
    answers.push(("/simple/", fine()));
    let index = Server::start(&answers).await;
    let client = client(&index.url("/simple/"), &[]);
    let page = client
        .begin(&Link::of_index(index.url("/simple/")), 9)
        .await
        .unwrap()
        .page;
    for (path, to) in paths.iter().zip(&traps) {
        let link = page.link(Url::parse(to).unwrap());
        let redirected = page.link(index.url(path));
        for (link, how) in [(link, "link"), (redirected, "redirection")] {
            let error = client.begin(&link, 9).await.err().expect(how);
            let text = error.to_string();
            assert!(matches!(error, FetchError::Refused { .. }), "{how} to {to}: {text}");
            assert!(text.contains(&format!("127.0.0.1:{} leads to ", index.port)), "{text}");
        }
    }
    assert_eq!(trap.heads(), Vec::<String>::new());
}

#[tokio::test]
async fn an_index_may_link_to_itself_and_to_named_origins_and_its_password_stays_with_it() {
    let files = Server::start(&[("/a.whl", fine())]).await;
    let elsewhere = files.url("/a.whl").to_string();
    let index = Server::start(&[
        ("/simple/", moved("/pages/")),
        ("/pages/", fine()),
        ("/a.whl", moved(&elsewhere)),
        ("/loop", moved("/loop")),
    ])
    .await;
    let mut url = index.url("/simple/");
    url.set_username("me").unwrap();
    url.set_password(Some("hush")).unwrap();
    let client = client(&url, &[format!("http://127.0.0.1:{}", files.port)]);
    let page = client.begin(&Link::of_index(url), 9).await.unwrap().page;
    assert_eq!(page.url().path(), "/pages/");
    client.begin(&page.link(index.url("/a.whl")), 9).await.unwrap();
    assert_eq!(files.heads().len(), 1);
    let login = |head: &String| head.to_ascii_lowercase().contains("authorization: basic");
    assert!(index.heads().iter().all(login), "{:?}", index.heads());
    assert!(!files.heads().iter().any(login), "{:?}", files.heads());
    let looped = client.begin(&page.link(index.url("/loop")), 9).await.err();
    assert!(matches!(looped, Some(FetchError::Redirects { .. })), "{looped:?}");
}

#[tokio::test]
async fn the_public_route_connects_only_to_checked_addresses() {
    let trap = Server::start(&[("/", fine())]).await;
    let client = client(&trap.url("/"), &[]);
    let unchecked = client
        .public
        .get(format!("http://inner.example:{}/", trap.port))
        .send()
        .await;
    assert!(unchecked.is_err());
    assert_eq!(trap.heads(), Vec::<String>::new());
}
