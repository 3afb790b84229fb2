use super::*;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::symlink;

/// The files, whiteouts, opaque folders and implied folders of a layer.
type Added = (std::path::PathBuf, Vec<Path>, Vec<Path>, BTreeSet<Path>);

struct Layers {
    folder: tempfile::TempDir,
    all: Vec<Added>,
}

fn path(text: &str) -> Path {
    Path::parse(text.as_bytes()).unwrap()
}

impl Layers {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            all: Vec::new(),
        }
    }

    fn add(&mut self, files: &[(&str, &str)]) -> &mut Added {
        let root = self.folder.path().join(format!("l{}", self.all.len()));
        std::fs::create_dir(&root).unwrap();
        for (name, text) in files {
            let file = root.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            match text.strip_prefix("-> ") {
                Some(target) => symlink(target, file).unwrap(),
                None => std::fs::write(file, text).unwrap(),
            }
        }
        self.all.push((root, Vec::new(), Vec::new(), BTreeSet::new()));
        self.all.last_mut().unwrap()
    }

    fn build(&self) -> std::path::PathBuf {
        let root = self.folder.path().join("tree");
        let parts: Vec<Part<'_>> = self
            .all
            .iter()
            .map(|(files, whiteouts, opaques, implied)| Part {
                files,
                whiteouts,
                opaques,
                implied,
            })
            .collect();
        build(&root, &parts).unwrap();
        root
    }
}

fn text(root: &std::path::Path, name: &str) -> Option<String> {
    std::fs::read_to_string(root.join(name)).ok()
}

#[test]
fn upper_layers_add_replace_and_remove() {
    let mut layers = Layers::new();
    layers.add(&[
        ("a", "1"),
        ("b", "1"),
        ("d/x", "1"),
        ("d/y", "1"),
        ("o/x", "1"),
        ("k/x", "1"),
    ]);
    let upper = layers.add(&[("b", "2"), ("o/z", "2"), ("k", "now a file")]);
    upper.1.push(path("a"));
    upper.1.push(path("d/x"));
    upper.1.push(path("never/was"));
    upper.2.push(path("o"));
    let root = layers.build();
    assert_eq!(text(&root, "a"), None);
    assert_eq!(text(&root, "b").as_deref(), Some("2"));
    assert_eq!((text(&root, "d/x"), text(&root, "d/y").as_deref()), (None, Some("1")));
    assert_eq!((text(&root, "o/x"), text(&root, "o/z").as_deref()), (None, Some("2")));
    assert_eq!(text(&root, "k").as_deref(), Some("now a file"));
    // Files are linked, not copied, and the layers are unchanged.
    let of = |at: std::path::PathBuf| at.metadata().unwrap().ino();
    assert_eq!(of(root.join("d/y")), of(layers.all[0].0.join("d/y")));
    assert_eq!(text(&layers.all[0].0, "a").as_deref(), Some("1"));
}

#[test]
fn a_whiteout_does_not_remove_files_of_its_own_layer() {
    let mut layers = Layers::new();
    layers.add(&[("d/old", "1")]);
    let upper = layers.add(&[("d/new", "2")]);
    upper.1.push(path("d"));
    let root = layers.build();
    assert_eq!(
        (text(&root, "d/old"), text(&root, "d/new").as_deref()),
        (None, Some("2"))
    );
}

#[test]
fn links_are_never_followed_out_of_the_tree() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("victim"), "safe").unwrap();
    let away = format!("-> {}", outside.path().display());
    let mut layers = Layers::new();
    layers.add(&[("d", &away), ("i", &away), ("o", &away), ("etc", &away)]);
    let upper = layers.add(&[("d/victim", "2"), ("i/victim", "2")]);
    upper.1.extend([path("d/victim"), path("o/victim")]);
    upper.2.push(path("o"));
    upper.3.insert(path("i"));
    let root = layers.build();
    assert_eq!(text(outside.path(), "victim").as_deref(), Some("safe"));
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    assert_eq!(text(&root, "d/victim").as_deref(), Some("2"));
    assert!(root.join("etc/passwd").exists());
}

#[test]
fn an_implied_folder_follows_an_existing_link() {
    let mut layers = Layers::new();
    layers.add(&[("usr/lib/libc", "c"), ("lib", "-> usr/lib")]);
    layers.add(&[("lib/more", "m")]).3.insert(path("lib"));
    let root = layers.build();
    assert_eq!(text(&root, "usr/lib/more").as_deref(), Some("m"));
    assert_eq!(text(&root, "lib/libc").as_deref(), Some("c"));
}

#[test]
fn the_sandbox_user_is_added_to_the_users_of_the_image() {
    let mut layers = Layers::new();
    layers.add(&[
        (
            "etc/passwd",
            "root:x:0:0::/root:/bin/ash\nnode:x:1000:1000::/home/node:/bin/sh\nwww:x:33:33::/:/x",
        ),
        ("etc/hosts", "-> /proc/self/environ"),
    ]);
    let root = layers.build();
    let users = text(&root, "etc/passwd").unwrap();
    let names: Vec<&str> = users.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(names, ["root", "www", "user"]);
    assert!(text(&root, "etc/hosts").unwrap().starts_with("127.0.0.1"));
    // The layer's file is unchanged.
    assert!(text(&layers.all[0].0, "etc/passwd").unwrap().contains("node"));
}
