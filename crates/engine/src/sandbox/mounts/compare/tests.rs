use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;

use super::*;

/// A folder of the host, and the entries of a layer over it.
struct Place {
    host: tempfile::TempDir,
    layer: Vec<LayerEntry>,
}

fn at(name: &str) -> String {
    format!("/mnt/p/{name}")
}

impl Place {
    fn new(names: &[&str]) -> Self {
        let host = tempfile::tempdir().unwrap();
        for name in names {
            let path = host.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "text").unwrap();
            fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
        }
        Self {
            host,
            layer: Vec::new(),
        }
    }

    fn entry(&mut self, name: &str, entry: Option<(MountEntryKind, u64)>) -> &mut LayerEntry {
        self.layer.push(LayerEntry {
            path: at(name),
            escaped: false,
            copied: false,
            hides: false,
            entry: entry.map(|(kind, bytes)| MountEntry {
                kind,
                bytes,
                mode: match kind {
                    MountEntryKind::Folder => 0o755,
                    MountEntryKind::Link => 0o777,
                    _ => 0o644,
                },
                modified_ns: 0,
                target: (kind == MountEntryKind::Link).then(|| "target".to_owned()),
            }),
        });
        self.layer.last_mut().unwrap()
    }

    fn compare(&self, committed: &[&str]) -> Compared {
        let folder = HostFolder::open(self.host.path()).unwrap();
        let committed: Vec<String> = committed.iter().map(|name| at(name)).collect();
        compare(&folder, "/mnt/p", &self.layer, Some(&committed))
    }

    /// Returns the changes in words. A question mark: only if the contents differ.
    fn seen(&self, committed: &[&str]) -> Vec<String> {
        let compared = self.compare(committed);
        assert_eq!(compared.omitted, 0);
        let line = |(change, unsure): &(MountChange, bool)| {
            let name = change.path.strip_prefix("/mnt/p/").unwrap();
            format!("{} {name}{}", change.kind.as_str(), if *unsure { "?" } else { "" })
        };
        compared.changes.iter().map(line).collect()
    }
}

fn make_modes(host: &Path) {
    for name in ["folder", "kept", "gone"] {
        let _ = fs::set_permissions(host.join(name), PermissionsExt::from_mode(0o755));
    }
}

#[test]
fn every_kind_of_difference_is_found() {
    let mut place = Place::new(&[
        "equal",
        "size",
        "folder/below",
        "gone/deep/file",
        "file",
        "kept/untouched",
    ]);
    symlink("target", place.host.path().join("same link")).unwrap();
    symlink("other", place.host.path().join("link")).unwrap();
    make_modes(place.host.path());
    for (name, kind, bytes) in [
        ("equal", MountEntryKind::File, 4),
        ("size", MountEntryKind::File, 5),
        ("same link", MountEntryKind::Link, 0),
        ("link", MountEntryKind::Link, 0),
        ("new", MountEntryKind::File, 1),
        ("folder", MountEntryKind::File, 1),
        ("file", MountEntryKind::Folder, 0),
        ("file/in", MountEntryKind::File, 1),
        ("kept", MountEntryKind::Folder, 0),
        ("fifo", MountEntryKind::Fifo, 0),
    ] {
        place.entry(name, Some((kind, bytes)));
    }
    place.entry("gone", None);
    place.entry("never there", None);
    assert_eq!(
        place.seen(&[]),
        [
            "modified equal?",
            "created fifo",
            "modified file",
            "created file/in",
            "modified folder",
            "removed folder/below",
            "removed gone",
            "removed gone/deep",
            "removed gone/deep/file",
            "modified link",
            "created new",
            "modified size",
        ]
    );
}

#[test]
fn a_folder_that_hides_the_hosts_one_removes_its_entries() {
    let mut place = Place::new(&["folder/kept", "folder/gone", "folder/sub/gone", "folder/other/gone"]);
    make_modes(place.host.path());
    place.entry("folder", Some((MountEntryKind::Folder, 0))).hides = true;
    place.entry("folder/kept", Some((MountEntryKind::File, 4)));
    place.entry("folder/sub", Some((MountEntryKind::Folder, 0)));
    fs::set_permissions(place.host.path().join("folder/sub"), PermissionsExt::from_mode(0o755)).unwrap();
    place.entry("folder/sub/new", Some((MountEntryKind::File, 1)));
    assert_eq!(
        place.seen(&[]),
        [
            "removed folder/gone",
            "modified folder/kept?",
            "removed folder/other",
            "removed folder/other/gone",
            "removed folder/sub/gone",
            "created folder/sub/new",
        ]
    );
}

#[test]
fn what_a_commit_has_made_and_the_layer_lacks_is_removed() {
    let mut place = Place::new(&["made", "stays", "d/x", "theirs"]);
    place.entry("stays", Some((MountEntryKind::File, 4)));
    assert_eq!(
        place.seen(&["made", "stays", "d", "d/x", "gone on the host"]),
        ["removed d", "removed d/x", "removed made", "modified stays?"]
    );
}

#[test]
fn nothing_is_shown_that_code_could_not_find() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return;
    }
    let mut place = Place::new(&["secret/file", "open/file", "other"]);
    place.entry("secret", None);
    place.entry("open/file", Some((MountEntryKind::File, 4)));
    for (name, mode) in [("secret", 0o700), ("open", 0o700)] {
        let path = place.host.path().join(name);
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&path, Some(4321), Some(4321)).unwrap();
    }
    let compared = place.compare(&[]);
    let seen: Vec<_> = { compared.changes.iter() }
        .map(|(change, _)| (&*change.path, &change.before))
        .collect();
    // The folder itself is visible, its entries are not.
    assert_eq!((seen[0], compared.omitted), (("/mnt/p/open/file", &None), 1));
    assert_eq!((seen.len(), seen[1].0), (2, "/mnt/p/secret"));
}

#[test]
fn links_of_the_host_are_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x"), "outside").unwrap();
    let mut place = Place::new(&["a"]);
    symlink(outside.path(), place.host.path().join("folder")).unwrap();
    place.entry("folder/x", Some((MountEntryKind::File, 7)));
    place.entry("folder/gone", None);
    let compared = place.compare(&[]);
    assert_eq!((compared.changes.len(), compared.omitted), (1, 1));
    assert_eq!(compared.changes[0].0.before, None);
}
