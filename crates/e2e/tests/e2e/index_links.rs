//! Links of package indexes: a page, a redirection or an archive's address that names a service of this machine or its
//! network is refused, and no connection is made.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::npm;
use crate::packages::{command, install};
use sandcell_e2e::client::Client;
use sandcell_e2e::index::{FileLocation, Index, Wheel};
use sandcell_e2e::registry::Registry;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, skip};

/// A service of the machine that counts connections.
struct Service {
    port: u16,
    seen: Arc<AtomicUsize>,
}

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for _ in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { port, seen }
    }

    /// Returns addresses that lead to the service, and similar ones.
    fn addresses(&self) -> Vec<String> {
        let port = self.port;
        vec![
            format!("http://127.0.0.1:{port}/secret"),
            format!("http://[::ffff:127.0.0.1]:{port}/secret"),
            format!("http://localhost:{port}/secret"),
            "http://169.254.169.254/latest/meta-data/".to_owned(),
        ]
    }
}

#[test]
fn a_python_index_cannot_link_to_local_services() {
    let _turn = begin!();
    let (service, index) = (Service::start(), Index::start());
    let mut wanted = Vec::new();
    for (number, to) in service.addresses().into_iter().enumerate() {
        for (how, leads) in [
            ("link", FileLocation::Link(to.clone())),
            ("moved", FileLocation::Redirection(to.clone())),
        ] {
            let wheel = Wheel::new(&format!("{how}{number}"), "1.0").file("x.py", "");
            index.add_elsewhere(&wheel, leads);
            wanted.push((format!("{how}{number}"), to.clone()));
        }
    }
    let place = TestDir::new();
    let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
    for (package, to) in wanted {
        let answer = install(&server, json!([package]));
        let text = answer.refused("network_denied");
        let origin: String = to.split('/').take(3).collect::<Vec<_>>().join("/");
        let shown = origin.replace("127.0.0.1]", "7f00:1]");
        assert!(text.contains(&shown), "{package} to {to}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
    assert_eq!(service.seen.load(Ordering::SeqCst), 0);
}

#[test]
fn an_index_may_link_to_an_origin_the_operator_names() {
    let _turn = begin!();
    let (files, index) = (Index::start(), Index::start());
    let wheel = Wheel::new("elsewhere", "1.0").file("elsewhere.py", "here = 1\n");
    files.add(&wheel);
    let to = format!("http://127.0.0.1:{}/files/{}", files.port, wheel.filename());
    index.add_elsewhere(&wheel, FileLocation::Redirection(to));
    let settings = format!("[packages]\norigins = [\"http://127.0.0.1:{}\"]\n", files.port);
    let place = TestDir::with_settings(&settings);
    let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
    let answer = install(&server, json!(["elsewhere"]));
    assert_eq!(answer.status(), "ok", "{answer:?}\n{}", server.log());
}

#[test]
fn an_npm_registry_cannot_link_to_local_services() {
    let _turn = begin!();
    if let Some(reason) = npm::missing() {
        return skip("index_links::an_npm_registry_cannot_link_to_local_services", reason);
    }
    let (service, registry) = (Service::start(), Registry::start());
    let addresses = service.addresses();
    for (number, to) in addresses.iter().enumerate() {
        registry.publish(&format!("led{number}"), "1.0.0", json!({"elsewhere": to}), &[]);
    }
    let place = TestDir::new();
    let server = npm::server(&place, &registry.url());
    for number in 0..addresses.len() {
        let answer = npm::install(&server, json!([format!("led{number}")]));
        let text = answer.refused("network_denied");
        assert!(text.contains("npm registry links to a forbidden address"), "{text}");
    }
    assert_eq!(service.seen.load(Ordering::SeqCst), 0);
}
