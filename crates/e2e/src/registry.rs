//! A test npm registry: generated archives, and faults.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

/// A running registry. It ends with the test's process.
pub struct Registry {
    pub port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    packages: Mutex<BTreeMap<String, Vec<Published>>>,
    asked: Mutex<Vec<String>>,
}

#[derive(Clone)]
struct Published {
    version: String,
    says: Value,
    bytes: Vec<u8>,
    integrity: String,
    /// The announced size, if it is not the real one.
    announced: Option<u64>,
}

/// An entry of an archive.
pub enum Entry {
    File(&'static str, String),
    /// A symbolic link, and its target.
    Link(&'static str, &'static str),
    /// A hard link.
    Hard(&'static str, &'static str),
    /// A character device.
    Device(&'static str),
}

impl Registry {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || drop(serve(&stream, &state, port)));
            }
        });
        Self { port, state }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Publishes a version: the fields of its package.json other than name and version, and its files.
    pub fn publish(&self, name: &str, version: &str, says: Value, entries: &[Entry]) {
        self.publish_as(name, version, says, entries, None, None);
    }

    /// Publishes a version with a wrong hash or size.
    pub fn publish_as(
        &self,
        name: &str,
        version: &str,
        mut says: Value,
        entries: &[Entry],
        integrity: Option<&str>,
        announced: Option<u64>,
    ) {
        says["name"] = json!(name);
        says["version"] = json!(version);
        let mut archive = Vec::new();
        append(
            &mut archive,
            "package/package.json",
            b'0',
            "",
            says.to_string().as_bytes(),
        );
        for entry in entries {
            match entry {
                Entry::File(path, text) => append(&mut archive, path, b'0', "", text.as_bytes()),
                Entry::Link(path, target) => append(&mut archive, path, b'2', target, b""),
                Entry::Hard(path, target) => append(&mut archive, path, b'1', target, b""),
                Entry::Device(path) => append(&mut archive, path, b'3', "", b""),
            }
        }
        archive.extend([0; 1024]);
        let bytes = gzip(&archive);
        let own = format!("sha512-{}", BASE64_STANDARD.encode(Sha512::digest(&bytes)));
        let published = Published {
            version: version.to_owned(),
            says,
            integrity: integrity.map_or(own, str::to_owned),
            bytes,
            announced,
        };
        let mut packages = self.state.packages.lock().unwrap();
        packages.entry(name.to_owned()).or_default().push(published);
    }

    /// Returns the requested paths.
    pub fn asked(&self) -> Vec<String> {
        self.state.asked.lock().unwrap().clone()
    }
}

fn serve(stream: &TcpStream, state: &State, port: u16) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
        }
        let path = first.split(' ').nth(1).unwrap_or("").to_owned();
        state.asked.lock().unwrap().push(path.clone());
        respond(stream, &path, state, port)?;
    }
}

fn respond(mut stream: &TcpStream, path: &str, state: &State, port: u16) -> std::io::Result<()> {
    let path = path
        .trim_start_matches('/')
        .replace("%2F", "/")
        .replace("%2f", "/")
        .replace("%40", "@");
    if path == "garbage" {
        return answer(stream, "200 OK", b"\x00\xff{{{ not a package", None);
    }
    if path == "broken" {
        return answer(stream, "500 Internal Server Error", b"no", None);
    }
    let packages = state.packages.lock().unwrap().clone();
    if let Some((name, file)) = path.split_once("/-/") {
        let found = packages
            .get(name)
            .and_then(|all| all.iter().find(|one| format!("{}.tgz", one.version) == file));
        let Some(one) = found else {
            return answer(stream, "404 Not Found", b"no such file", None);
        };
        answer(stream, "200 OK", &one.bytes, one.announced)?;
        // Zeros follow for the announced size, until the client disconnects.
        while one.announced.is_some() && stream.write_all(&[0; 65536]).is_ok() {}
        return Ok(());
    }
    let Some(all) = packages.get(&path) else {
        return answer(stream, "404 Not Found", b"{}", None);
    };
    let versions: Map<String, Value> = all
        .iter()
        .map(|one| {
            let mut says = one.says.clone();
            let home = format!("http://127.0.0.1:{port}/{path}/-/{}.tgz", one.version);
            let tarball = says["elsewhere"].as_str().map_or(home, str::to_owned);
            says["dist"] = json!({
                "tarball": tarball,
                "integrity": one.integrity,
            });
            (one.version.clone(), says)
        })
        .collect();
    let newest = all.last().map(|one| one.version.clone());
    let page = json!({"name": path, "dist-tags": {"latest": newest}, "versions": versions});
    answer(stream, "200 OK", page.to_string().as_bytes(), None)
}

fn answer(mut stream: &TcpStream, status: &str, body: &[u8], announced: Option<u64>) -> std::io::Result<()> {
    let length = announced.unwrap_or(body.len() as u64);
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// Appends one entry to a tar archive.
pub(super) fn append(archive: &mut Vec<u8>, path: &str, kind: u8, target: &str, bytes: &[u8]) {
    let mut head = [0; 512];
    let mut put = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, "0000755");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", bytes.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(157, target);
    put(257, "ustar\u{0}00");
    put(329, "0000001");
    put(337, "0000003");
    head[156] = kind;
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend(head);
    archive.extend(bytes);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

/// Wraps bytes as gzip without compression, so that a package takes as much of the disk as an archive as it does unpacked.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
