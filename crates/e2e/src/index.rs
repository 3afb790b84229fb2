//! A test package index: one thread per connection, generated wheels, and every fault that an index can have.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// A running index. It ends with the test's process.
pub struct Index {
    pub port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    projects: Mutex<BTreeMap<String, Vec<File>>>,
    asked: Mutex<Vec<String>>,
    /// The required `Authorization` of every request.
    login: Mutex<Option<String>>,
}

#[derive(Clone)]
struct File {
    name: String,
    bytes: Vec<u8>,
    sha256: String,
    uploaded: String,
    /// The announced size, if it is not the real one.
    announced: Option<u64>,
    leads: FileLocation,
}

/// The announced location of a file.
#[derive(Clone, Default)]
pub enum FileLocation {
    /// On the index.
    #[default]
    Home,
    /// At this address, by a link of the page.
    Link(String),
    /// At this address, by a redirection.
    Redirection(String),
}

impl Index {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || drop(serve(&stream, &state)));
            }
        });
        Self { port, state }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/simple/", self.port)
    }

    /// Adds a wheel.
    pub fn add(&self, wheel: &Wheel) {
        self.add_file(wheel, &wheel.bytes(), None, "2020-01-01T00:00:00Z");
    }

    /// Adds a wheel with an upload time and a hash, which may be wrong.
    pub fn add_file(&self, wheel: &Wheel, bytes: &[u8], sha256: Option<&str>, uploaded: &str) {
        let file = File {
            name: wheel.filename(),
            bytes: bytes.to_vec(),
            sha256: sha256.map_or_else(|| hex(&Sha256::digest(bytes)), str::to_owned),
            uploaded: uploaded.to_owned(),
            announced: None,
            leads: FileLocation::Home,
        };
        let mut projects = self.state.projects.lock().unwrap();
        projects.entry(wheel.name.replace('_', "-")).or_default().push(file);
    }

    /// Adds a source distribution: these files below `NAME-VERSION/`.
    pub fn add_source(&self, name: &str, version: &str, files: &[(&str, &str)]) {
        let mut archive = Vec::new();
        for (path, text) in files {
            let path = format!("{name}-{version}/{path}");
            super::registry::append(&mut archive, &path, b'0', "", text.as_bytes());
        }
        archive.extend([0; 1024]);
        let bytes = super::oci::gzip(&archive);
        self.put(
            name,
            format!("{name}-{version}.tar.gz"),
            bytes,
            None,
            FileLocation::Home,
        );
    }

    /// Adds a wheel with this announced size whose bytes never end.
    pub fn add_endless(&self, wheel: &Wheel, announced: u64) {
        self.put(
            &wheel.name,
            wheel.filename(),
            wheel.bytes(),
            Some(announced),
            FileLocation::Home,
        );
    }

    /// Adds a wheel whose file is at another address.
    pub fn add_elsewhere(&self, wheel: &Wheel, leads: FileLocation) {
        self.put(&wheel.name, wheel.filename(), wheel.bytes(), None, leads);
    }

    fn put(&self, project: &str, name: String, bytes: Vec<u8>, announced: Option<u64>, leads: FileLocation) {
        let file = File {
            sha256: hex(&Sha256::digest(&bytes)),
            name,
            bytes,
            uploaded: "2020-01-01T00:00:00Z".to_owned(),
            announced,
            leads,
        };
        let mut projects = self.state.projects.lock().unwrap();
        projects.entry(project.replace('_', "-")).or_default().push(file);
    }

    /// Requires this `Authorization` header from now on.
    pub fn demand(&self, authorization: &str) {
        *self.state.login.lock().unwrap() = Some(authorization.to_owned());
    }

    /// Returns the requested paths.
    pub fn asked(&self) -> Vec<String> {
        self.state.asked.lock().unwrap().clone()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn serve(stream: &TcpStream, state: &State) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let path = first.split(' ').nth(1).unwrap_or("").to_owned();
        let mut login = None;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("authorization:") {
                // The value is case-sensitive, so it is taken from the original line.
                login = Some(line[line.len() - value.len()..].trim().to_owned());
            }
        }
        state.asked.lock().unwrap().push(path.clone());
        let wanted = state.login.lock().unwrap().clone();
        if wanted.is_some() && login != wanted {
            answer(stream, "401 Unauthorized", "text/plain", b"no")?;
            continue;
        }
        if !respond(stream, &path, state)? {
            return Ok(());
        }
    }
}

/// Sends one answer. Returns false when the connection has ended.
fn respond(mut stream: &TcpStream, path: &str, state: &State) -> std::io::Result<bool> {
    if let Some(name) = path.strip_prefix("/simple/").map(|rest| rest.trim_end_matches('/')) {
        match name {
            "slow" => std::thread::sleep(std::time::Duration::from_secs(3600)),
            "garbage" => {
                let kind = "application/vnd.pypi.simple.v1+json";
                return answer(stream, "200 OK", kind, b"\x00\xff{{{ not an index").map(|()| true);
            }
            "broken" => {
                return answer(stream, "500 Internal Server Error", "text/plain", b"no").map(|()| true);
            }
            "endless" => {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 107374182400\r\n\r\n";
                stream.write_all(head.as_bytes())?;
                while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
                return Ok(false);
            }
            _ => {}
        }
        let files = state.projects.lock().unwrap().get(name).cloned();
        let Some(files) = files else {
            return answer(stream, "404 Not Found", "text/plain", b"no such project").map(|()| true);
        };
        return answer(
            stream,
            "200 OK",
            "application/vnd.pypi.simple.v1+json",
            page(name, &files).as_bytes(),
        )
        .map(|()| true);
    }
    let name = path.rsplit('/').next().unwrap_or("");
    let projects = state.projects.lock().unwrap();
    let file = projects.values().flatten().find(|file| file.name == name).cloned();
    drop(projects);
    match file {
        Some(File {
            announced: Some(size), ..
        }) => {
            stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").as_bytes())?;
            while stream.write_all(&[0; 1 << 16]).is_ok() {}
            return Ok(false);
        }
        Some(File {
            leads: FileLocation::Redirection(to),
            ..
        }) => {
            let head = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(head.as_bytes())?;
        }
        Some(file) => answer(stream, "200 OK", "application/octet-stream", &file.bytes)?,
        None => answer(stream, "404 Not Found", "text/plain", b"no such file")?,
    }
    Ok(true)
}

fn page(name: &str, files: &[File]) -> String {
    let files: Vec<serde_json::Value> = files
        .iter()
        .map(|file| {
            let url = match &file.leads {
                FileLocation::Link(to) => to.clone(),
                FileLocation::Home | FileLocation::Redirection(_) => format!("../../files/{}", file.name),
            };
            serde_json::json!({
                "filename": file.name,
                "url": url,
                "hashes": {"sha256": file.sha256},
                "upload-time": file.uploaded,
                "size": file.bytes.len(),
            })
        })
        .collect();
    serde_json::json!({"meta": {"api-version": "1.1"}, "name": name, "files": files, "versions": []}).to_string()
}

fn answer(mut stream: &TcpStream, status: &str, kind: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// The content of a wheel.
pub struct Wheel {
    name: String,
    version: String,
    requires: Vec<String>,
    files: Vec<(String, Vec<u8>, u32)>,
}

/// The mode of a regular file, and of a symbolic link, in a zip entry.
const FILE_MODE: u32 = 0o100_644;
const LINK_MODE: u32 = 0o120_777;

impl Wheel {
    pub fn new(name: &str, version: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            requires: Vec::new(),
            files: Vec::new(),
        }
    }

    pub fn requires(mut self, requirement: &str) -> Self {
        self.requires.push(requirement.to_owned());
        self
    }

    pub fn file(mut self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.files.push((path.to_owned(), content.as_ref().to_vec(), FILE_MODE));
        self
    }

    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.files
            .push((path.to_owned(), target.as_bytes().to_vec(), LINK_MODE));
        self
    }

    pub fn filename(&self) -> String {
        format!("{}-{}-py3-none-any.whl", self.name, self.version)
    }

    /// Returns the archive without compression, which zip permits.
    pub fn bytes(&self) -> Vec<u8> {
        let info = format!("{}-{}.dist-info", self.name, self.version);
        let mut metadata = format!(
            "Metadata-Version: 2.1\nName: {}\nVersion: {}\n",
            self.name, self.version
        );
        for requirement in &self.requires {
            metadata.push_str(&format!("Requires-Dist: {requirement}\n"));
        }
        let mut files = self.files.clone();
        files.push((format!("{info}/METADATA"), metadata.into_bytes(), FILE_MODE));
        let wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
        files.push((format!("{info}/WHEEL"), wheel.into(), FILE_MODE));
        let mut record: String = files.iter().map(|(path, ..)| format!("{path},,\n")).collect();
        record.push_str(&format!("{info}/RECORD,,\n"));
        files.push((format!("{info}/RECORD"), record.into_bytes(), FILE_MODE));
        zip(&files)
    }
}

fn zip(files: &[(String, Vec<u8>, u32)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (path, content, mode) in files {
        let offset = u32::try_from(out.len()).unwrap();
        let (size, name) = (
            u32::try_from(content.len()).unwrap(),
            u16::try_from(path.len()).unwrap(),
        );
        let mut common = Vec::new();
        common.extend([20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0x50]);
        let mut sum = flate2::Crc::new();
        sum.update(content);
        common.extend(sum.sum().to_le_bytes());
        common.extend(size.to_le_bytes());
        common.extend(size.to_le_bytes());
        common.extend(name.to_le_bytes());
        common.extend([0, 0]);
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(path.as_bytes());
        out.extend(content);
        directory.extend(b"PK\x01\x02");
        // The creator is Unix, so that readers use the mode.
        directory.extend([20, 3]);
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend((mode << 16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(path.as_bytes());
    }
    let (start, length) = (
        u32::try_from(out.len()).unwrap(),
        u32::try_from(directory.len()).unwrap(),
    );
    let count = u16::try_from(files.len()).unwrap();
    out.extend(directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(length.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}
