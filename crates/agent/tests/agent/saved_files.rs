//! Saved states of files: every kind of change is undone, and reported.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{Code, Failure, SavedChangeKind, SavedFiles, SavedSize};

use super::common::*;

struct Place {
    folder: tempfile::TempDir,
    client: AgentClient,
    _server: Server,
}

/// A description of everything below a folder: type, mode, time of modification and content.
type Tree = BTreeMap<PathBuf, (u32, i64, i64, String)>;

fn tree(folder: &Path) -> Tree {
    let mut found = Tree::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let at = entry.unwrap().path();
            let meta = at.symlink_metadata().unwrap();
            let content = if meta.is_symlink() {
                std::fs::read_link(&at).unwrap().display().to_string()
            } else if meta.is_file() {
                String::from_utf8_lossy(&std::fs::read(&at).unwrap()).into_owned()
            } else {
                String::new()
            };
            if meta.is_dir() {
                folders.push(at.clone());
            }
            found.insert(at, (meta.mode(), meta.mtime(), meta.mtime_nsec(), content));
        }
    }
    found
}

impl Place {
    async fn new() -> Self {
        let (server, client) = connect().await;
        Self {
            folder: tempfile::tempdir().unwrap(),
            client,
            _server: server,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.at(name), text).unwrap();
    }

    fn saved(&self) -> &dyn SavedFiles {
        self.client.saved_files().unwrap()
    }

    async fn save(&self, number: u32) -> SavedSize {
        self.saved()
            .save(number, &[path(self.folder.path())], 64 << 20)
            .await
            .unwrap()
    }

    /// Restores a saved state, after which nothing differs from it.
    async fn restore(&self, number: u32) -> u64 {
        let changed = self.saved().restore(number).await.unwrap();
        assert_eq!(self.changes(number).await, []);
        changed
    }

    async fn changes(&self, number: u32) -> Vec<(String, SavedChangeKind)> {
        let folder = format!("{}/", self.folder.path().display());
        let found = self.saved().changes(number, 1000).await.unwrap();
        let changes = found.changes.into_iter();
        changes
            .map(|change| (change.path.strip_prefix(&folder).unwrap().to_owned(), change.kind))
            .collect()
    }
}

#[tokio::test]
async fn every_kind_of_change_is_reported_and_undone() {
    use SavedChangeKind::{Created, Modified, Removed};
    let place = Place::new().await;
    std::fs::create_dir_all(place.at("sub/deep")).unwrap();
    place.put("same", "same");
    place.put("rewritten", "aaaa");
    place.put("grown", "a");
    place.put("cut", "aaaa");
    place.put("removed", "a");
    place.put("now a folder", "a");
    place.put("mode", "a");
    place.put("empty", "");
    place.put("large", &"0123456789abcdef".repeat(20_000));
    place.put("sub/deep/file", "deep");
    place.put("one name", "linked");
    std::fs::hard_link(place.at("one name"), place.at("other name")).unwrap();
    std::fs::create_dir(place.at("now a file")).unwrap();
    std::fs::set_permissions(place.at("mode"), PermissionsExt::from_mode(0o640)).unwrap();
    symlink("same", place.at("link")).unwrap();
    symlink("nowhere", place.at("dangling")).unwrap();
    std::fs::write(place.at("zeros"), vec![0; 300_000]).unwrap();
    let before = tree(place.folder.path());
    let size = place.save(1).await;
    assert_eq!(size.files, u64::try_from(before.len()).unwrap());
    assert_eq!(place.changes(1).await, []);

    place.put("rewritten", "bbbb");
    place.put("grown", "ab");
    place.put("cut", "aa");
    std::fs::remove_file(place.at("removed")).unwrap();
    std::fs::remove_file(place.at("now a folder")).unwrap();
    std::fs::create_dir_all(place.at("now a folder/x/y")).unwrap();
    place.put("now a folder/x/y/z", "z");
    std::fs::remove_dir(place.at("now a file")).unwrap();
    place.put("now a file", "a");
    std::fs::set_permissions(place.at("mode"), PermissionsExt::from_mode(0o400)).unwrap();
    std::fs::remove_dir_all(place.at("sub")).unwrap();
    let mut large = std::fs::read(place.at("large")).unwrap();
    large[200_000] = b'!';
    std::fs::write(place.at("large"), large).unwrap();
    std::fs::remove_file(place.at("link")).unwrap();
    symlink("grown", place.at("link")).unwrap();
    std::fs::remove_file(place.at("dangling")).unwrap();
    place.put("new", "n");
    place.put("one name", "both changed");
    std::fs::write(place.at("zeros"), vec![0; 299_999]).unwrap();
    std::fs::remove_file(place.at("empty")).unwrap();
    mknodat(CWD, place.at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let expected = [
        ("cut", Modified),
        ("dangling", Removed),
        ("empty", Removed),
        ("fifo", Created),
        ("grown", Modified),
        ("large", Modified),
        ("link", Modified),
        ("mode", Modified),
        ("new", Created),
        ("now a file", Modified),
        ("now a folder", Modified),
        ("now a folder/x", Created),
        ("now a folder/x/y", Created),
        ("now a folder/x/y/z", Created),
        ("one name", Modified),
        ("other name", Modified),
        ("removed", Removed),
        ("rewritten", Modified),
        ("sub", Removed),
        ("sub/deep", Removed),
        ("sub/deep/file", Removed),
        ("zeros", Modified),
    ]
    .map(|(name, kind)| (name.to_owned(), kind));
    assert_eq!(place.changes(1).await, expected);
    let old = place.saved().read(1, &path(place.at("rewritten")), 1, 2).await.unwrap();
    assert_eq!((old.bytes.as_ref(), old.total), (&b"aa"[..], 4));

    let later = tree(place.folder.path());
    place.save(2).await;
    assert!(place.restore(1).await > 10);
    assert_eq!(tree(place.folder.path()), before);
    assert_eq!(place.restore(1).await, 0, "nothing is written twice");
    place.restore(2).await;
    assert_eq!(tree(place.folder.path()), later);
}

#[tokio::test]
async fn names_of_one_file_that_became_different_files_are_restored_separately() {
    let place = Place::new().await;
    place.put("a", "first");
    place.put("b", "second");
    place.save(1).await;
    let before = tree(place.folder.path());
    std::fs::remove_file(place.at("b")).unwrap();
    std::fs::hard_link(place.at("a"), place.at("b")).unwrap();
    place.put("a", "third");
    place.restore(1).await;
    assert_eq!(tree(place.folder.path()), before);
}

#[tokio::test]
async fn a_file_is_restored_in_place_for_programs_that_have_it_open() {
    let place = Place::new().await;
    place.put("a", "before");
    place.save(1).await;
    let inode = place.at("a").metadata().unwrap().ino();
    place.put("a", "and after");
    place.restore(1).await;
    assert_eq!(place.at("a").metadata().unwrap().ino(), inode);
    assert_eq!(std::fs::read_to_string(place.at("a")).unwrap(), "before");
}

#[tokio::test]
async fn unchanged_files_are_kept_once() {
    let place = Place::new().await;
    place.put("a", &"a".repeat(1_000_000));
    place.put("b", "b");
    // The list of files counts as well.
    let list = 1..1000;
    let held = |size: SavedSize, content: u64| list.contains(&(size.held - content));
    assert!(held(place.save(1).await, 1_000_001));
    assert!(held(place.save(2).await, 0));
    place.put("b", "c");
    let third = place.save(3).await;
    assert!(held(third, 1) && third.bytes == 1_000_001, "{third:?}");
    let left = place.saved().forget(1).await.unwrap();
    // What was counted for the first state counts for the second one now.
    assert!(left[&2] > 1_000_000 && left[&3] < 1000, "{left:?}");
    let left = place.saved().forget(2).await.unwrap();
    assert!(left[&3] > 1_000_000, "{left:?}");
    place.put("a", "");
    place.restore(3).await;
    assert_eq!(std::fs::read_to_string(place.at("a")).unwrap().len(), 1_000_000);
}

#[tokio::test]
async fn files_beyond_the_bound_are_refused_and_a_forgotten_state_is_gone() {
    let place = Place::new().await;
    place.put("a", &"a".repeat(100_000));
    let code = |error| Failure::from(error).code;
    let folders = [path(place.folder.path())];
    let refused = place.saved().save(1, &folders, 99_999).await.unwrap_err();
    assert_eq!(code(refused), Code::LimitReached);
    assert_eq!(code(place.saved().restore(1).await.unwrap_err()), Code::NotFound);
    place.saved().save(1, &folders, 101_000).await.unwrap();
    place.saved().forget(1).await.unwrap();
    assert_eq!(code(place.saved().changes(1, 10).await.unwrap_err()), Code::NotFound);
    for number in 2..34 {
        place.saved().save(number, &folders, 1 << 20).await.unwrap();
    }
    let refused = place.saved().save(34, &folders, 1 << 20).await.unwrap_err();
    assert_eq!(code(refused), Code::LimitReached);
}

/// An operation of a random program on files.
fn change(place: &Place, (what, which, other): (u8, u8, u8)) {
    let name = |which: u8| {
        let folder = ["", "d/", "d/e/"][usize::from(which % 3)];
        place.at(&format!("{folder}{}", ["f", "g", "h"][usize::from(which / 3 % 3)]))
    };
    let (at, to) = (name(which), name(other));
    // Whatever fails is a program's own mistake.
    let _ = match what % 8 {
        0 | 1 => std::fs::write(&at, "x".repeat(usize::from(other) * 300)),
        2 => std::fs::remove_file(&at),
        3 => std::fs::create_dir_all(at.parent().unwrap()),
        4 => std::fs::rename(&at, &to),
        5 => symlink("f", &at),
        6 => std::fs::remove_dir_all(place.at("d")),
        _ => std::fs::hard_link(&at, &to),
    };
}

#[test]
fn after_any_program_the_files_are_those_of_the_saved_state_again() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let programs = || proptest::collection::vec(any::<(u8, u8, u8)>(), 0..25);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let ran = runner.run(&(programs(), programs()), |(first, second)| {
        runtime.block_on(async {
            let place = Place::new().await;
            first.into_iter().for_each(|step| change(&place, step));
            place.save(1).await;
            let before = tree(place.folder.path());
            second.into_iter().for_each(|step| change(&place, step));
            place.restore(1).await;
            assert_eq!(tree(place.folder.path()), before);
        });
        Ok(())
    });
    ran.unwrap();
}
