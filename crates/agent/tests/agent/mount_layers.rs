//! The private layers of copy-on-write mounts: every kind of entry, without an overlay file system.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use sandcell_agent::client::AgentClient;
use sandcell_agent::server::ServerConfig;
use sandcell_sandbox::{LayerEntries, LayerEntry, MountEntryKind};

use super::common::*;

/// The layer of one mount, and an agent that sees it.
struct Layer {
    folder: tempfile::TempDir,
    client: AgentClient,
    _server: Server,
}

impl Layer {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mounts = folder.path().join("opt/sandcell/mounts/cow0");
        std::fs::create_dir_all(mounts.join("upper")).unwrap();
        symlink("/mnt/p", mounts.join("mount")).unwrap();
        let (server, client) = connect_to(ServerConfig {
            root: folder.path().to_owned(),
            ..config()
        })
        .await;
        Self {
            folder,
            client,
            _server: server,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join("opt/sandcell/mounts/cow0/upper").join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn whiteout(&self, name: &str) {
        mknodat(CWD, self.at(name), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    async fn found(&self, max: usize) -> LayerEntries {
        self.client.mount_layers().unwrap().entries(max).await.unwrap()
    }

    /// Returns the types and paths of all entries.
    async fn seen(&self) -> Vec<String> {
        let found = self.found(1000).await;
        assert_eq!(found.omitted, 0);
        let line = |one: &LayerEntry| {
            let kind = one.entry.as_ref().map_or("removed", |entry| entry.kind.as_str());
            format!("{kind} {}", one.path.strip_prefix("/mnt/p/").unwrap())
        };
        found.entries.iter().map(line).collect()
    }
}

#[tokio::test]
async fn every_kind_of_entry_is_listed() {
    let layer = Layer::new().await;
    layer.put("file", "text");
    layer.put("folder/deep/file", "text");
    symlink("target", layer.at("link")).unwrap();
    layer.whiteout("gone");
    layer.whiteout("folder/gone");
    mknodat(CWD, layer.at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert_eq!(
        layer.seen().await,
        [
            "FIFO fifo",
            "file file",
            "folder folder",
            "folder folder/deep",
            "file folder/deep/file",
            "removed folder/gone",
            "removed gone",
            "link link",
        ]
    );
    let found = layer.found(1000).await;
    let file = found.entries[1].entry.as_ref().unwrap();
    assert_eq!((file.kind, file.bytes), (MountEntryKind::File, 4));
    assert_eq!(
        found.entries[7].entry.as_ref().unwrap().target.as_deref(),
        Some("target")
    );
}

#[tokio::test]
async fn the_marks_of_the_kernel_are_reported() {
    let layer = Layer::new().await;
    layer.put("copied", "a");
    layer.put("hides/new", "a");
    let mark = |name: &str, mark: &str, value: &[u8]| {
        setxattr(
            layer.at(name),
            format!("user.overlay.{mark}"),
            value,
            XattrFlags::empty(),
        )
        .is_ok()
    };
    if !mark("copied", "origin", b"") {
        println!("skipped: this file system has no attributes of users");
        return;
    }
    assert!(mark("hides", "opaque", b"y"));
    let found = layer.found(10).await;
    let seen: Vec<_> = found.entries.iter().map(|one| (one.copied, one.hides)).collect();
    assert_eq!(seen, [(true, false), (false, true), (false, false)]);
}

#[tokio::test]
async fn hostile_names_and_depths_are_bounded() {
    let layer = Layer::new().await;
    layer.put("line\nfeed", "a");
    std::fs::write(layer.at("").join(OsStr::from_bytes(b"bad\xff")), "a").unwrap();
    // Deeper than a path can name. Each folder is made in the one before it.
    let mut folder = std::fs::File::open(layer.at("")).unwrap();
    let name = CString::new("d".repeat(250)).unwrap();
    for _ in 0..40 {
        rustix::fs::mkdirat(&folder, &name, Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        folder = rustix::fs::openat(&folder, &name, flags, Mode::empty()).unwrap().into();
    }
    let found = layer.found(1000).await;
    assert_eq!(found.omitted, 1);
    let escaped: Vec<_> = found.entries.iter().filter(|one| one.escaped).collect();
    assert_eq!(escaped.len(), 1);
    assert_eq!(escaped[0].path, "/mnt/p/bad\\xff");
    assert!(found.entries.iter().any(|one| one.path == "/mnt/p/line\nfeed"));
    // tempfile cannot remove such a tree by path.
    let status = std::process::Command::new("rm").arg("-rf").arg(layer.at("")).status();
    assert!(status.unwrap().success());
}

#[tokio::test]
async fn no_link_is_followed() {
    let layer = Layer::new().await;
    let outside = layer.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "a").unwrap();
    symlink(&outside, layer.at("a")).unwrap();
    symlink(Path::new("/"), layer.at("root")).unwrap();
    assert_eq!(layer.seen().await, ["link a", "link root"]);
}

#[tokio::test]
async fn many_entries_are_counted_beyond_the_bound() {
    let layer = Layer::new().await;
    for number in 0..2000 {
        layer.put(&format!("folder/{number}"), "");
    }
    let found = layer.found(100).await;
    assert_eq!((found.entries.len(), found.omitted), (100, 1901));
    let all = layer.found(50_000).await;
    assert_eq!((all.entries.len(), all.omitted), (2001, 0));
}
