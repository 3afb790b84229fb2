//! Images for tests, made of a static shell and other requested files: as a folder of the OCI layout, and behind a
//! registry with scripted answers, including wrong ones.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// One entry of a layer.
pub enum Entry<'a> {
    Folder(&'a str),
    File(&'a str, u32, &'a [u8]),
    Link(&'a str, &'a str),
    HardLink(&'a str, &'a str),
    Device(&'a str),
}

/// Makes a layer as a tar archive. Names are written unchanged.
pub fn layer(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let (name, kind, mode, target, content) = match entry {
            Entry::Folder(name) => (*name, tar::EntryType::Directory, 0o755, "", &b""[..]),
            Entry::File(name, mode, content) => (*name, tar::EntryType::Regular, *mode, "", *content),
            Entry::Link(name, target) => (*name, tar::EntryType::Symlink, 0o777, *target, &b""[..]),
            Entry::HardLink(name, target) => (*name, tar::EntryType::Link, 0o644, *target, &b""[..]),
            Entry::Device(name) => (*name, tar::EntryType::Char, 0o666, "", &b""[..]),
        };
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Makes a layer with a shell, its tools, and a file that contains the shell's path.
pub fn shell() -> Vec<u8> {
    let busybox = std::fs::read("/bin/busybox").unwrap();
    let mut entries = vec![
        Entry::Folder("bin/"),
        Entry::File("bin/busybox", 0o755, &busybox),
        Entry::File("etc/os-release", 0o600, b"ID=of-the-image\n"),
        Entry::File(
            "etc/passwd",
            0o644,
            b"root:x:0:0::/root:/bin/sh\nwww:x:33:33::/:/bin/sh\n",
        ),
    ];
    let links = [
        "sh", "cat", "ls", "id", "echo", "env", "touch", "stat", "mkdir", "ln", "head", "sleep",
    ];
    let names: Vec<String> = links.iter().map(|name| format!("bin/{name}")).collect();
    entries.extend(names.iter().map(|name| Entry::Link(name, "busybox")));
    layer(&entries)
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    format!(
        "sha256:{}",
        hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    )
}

/// An image: its blobs by digest, and its manifest.
#[derive(Clone)]
pub struct Image {
    pub blobs: HashMap<String, Vec<u8>>,
    pub manifest: Value,
    /// Digests of its packed layers.
    pub layers: Vec<String>,
}

impl Image {
    /// Makes an image of these layers, which are compressed by gzip.
    pub fn of(layers: &[Vec<u8>]) -> Self {
        let machine = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "os": "linux", "architecture": machine,
            "config": {"Env": ["PATH=/bin", "FROM_THE_IMAGE=yes", "LD_PRELOAD=/evil.so", "HOME=/root"]},
            "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|one| digest(one)).collect::<Vec<_>>()},
        });
        let config = config.to_string().into_bytes();
        let mut blobs = HashMap::new();
        let mut put = |bytes: Vec<u8>| {
            let (name, size) = (digest(&bytes), bytes.len());
            blobs.insert(name.clone(), bytes);
            json!({"digest": name, "size": size, "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"})
        };
        let config = put(config);
        let layers: Vec<Value> = layers.iter().map(|one| put(gzip(one))).collect();
        let names = layers.iter().map(|one| one["digest"].as_str().unwrap().to_owned());
        Self {
            layers: names.collect(),
            manifest: json!({"schemaVersion": 2, "config": config, "layers": layers}),
            blobs,
        }
    }

    /// Writes the image as a folder of the OCI layout.
    pub fn write(&self, folder: &Path) {
        let blobs = folder.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).unwrap();
        let manifest = self.manifest.to_string().into_bytes();
        let own = (digest(&manifest), manifest.clone());
        for (name, bytes) in self
            .blobs
            .iter()
            .map(|(name, bytes)| (name.clone(), bytes.clone()))
            .chain([own])
        {
            std::fs::write(blobs.join(name.strip_prefix("sha256:").unwrap()), bytes).unwrap();
        }
        let index = json!({"schemaVersion": 2, "manifests": [{"digest": digest(&manifest), "size": manifest.len()}]});
        std::fs::write(folder.join("index.json"), index.to_string()).unwrap();
        std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }
}

/// A registry's answer to a request for a path with this ending.
#[derive(Clone)]
pub enum Answer {
    Bytes(Vec<u8>),
    Status(u16, &'static str),
    /// Announces more bytes than these, sends these, and then stalls until the client disconnects.
    Stalls(Vec<u8>),
}

/// A registry with one repository, `team/tool`, on the loopback address.
pub struct Registry {
    pub host: String,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    pub fn with(image: &Image) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let registry = Self {
            host: listener.local_addr().unwrap().to_string(),
            answers: Arc::default(),
            asked: Arc::default(),
        };
        let manifest = image.manifest.to_string().into_bytes();
        registry.say(
            &format!("manifests/{}", digest(&manifest)),
            Answer::Bytes(manifest.clone()),
        );
        registry.say("manifests/latest", Answer::Bytes(manifest));
        for (name, bytes) in &image.blobs {
            registry.say(&format!("blobs/{name}"), Answer::Bytes(bytes.clone()));
        }
        let (answers, asked) = (Arc::clone(&registry.answers), Arc::clone(&registry.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, asked) = (Arc::clone(&answers), Arc::clone(&asked));
                std::thread::spawn(move || serve(stream, &answers, &asked));
            }
        });
        registry
    }

    pub fn name(&self) -> String {
        format!("{}/team/tool", self.host)
    }

    pub fn say(&self, path: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// Returns the number of requests for a path.
    pub fn asked(&self, path: &str) -> usize {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|one| one.ends_with(path))
            .count()
    }
}

fn serve(mut stream: TcpStream, answers: &Mutex<HashMap<String, Answer>>, asked: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        while reader.read_line(&mut line).is_ok_and(|read| read > 2) {}
        asked.lock().unwrap().push(path.clone());
        let known = path
            .strip_prefix("/v2/team/tool/")
            .and_then(|path| answers.lock().unwrap().get(path).cloned());
        let sent = match known {
            Some(Answer::Bytes(bytes)) => write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len())
                .and_then(|()| stream.write_all(&bytes)),
            Some(Answer::Status(status, headers)) => {
                write!(stream, "HTTP/1.1 {status} Said\r\n{headers}Content-Length: 0\r\n\r\n")
            }
            Some(Answer::Stalls(bytes)) => {
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len() + 1)
                    .and_then(|()| stream.write_all(&bytes));
                // Waits until the client disconnects.
                let _ = stream.read(&mut [0]);
                return;
            }
            None => write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        };
        if sent.is_err() {
            return;
        }
    }
}
