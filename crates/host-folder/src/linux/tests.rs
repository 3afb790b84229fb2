use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::PathBuf;

use super::*;

struct Project {
    place: tempfile::TempDir,
    folder: HostFolder,
}

impl Project {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("project")).unwrap();
        let folder = HostFolder::open(&place.path().join("project")).unwrap();
        Self { place, folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join("project").join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap()
    }

    fn write(&self, name: &str, text: &str, replaces: Option<&HostStatus>) -> Result<HostStatus, HostError> {
        let mut file = self.folder.begin_file(name)?;
        file.write(text.as_bytes())?;
        file.finish(replaces, 0o755)
    }

    fn status(&self, name: &str) -> Option<HostStatus> {
        self.folder.status(name).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.at(".")).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn a_new_file_has_the_mode_and_a_replaced_one_keeps_its_own() {
    let project = Project::new();
    project.write("new", "1", None).unwrap();
    assert_eq!(project.at("new").metadata().unwrap().mode() & 0o7777, 0o755);
    std::fs::write(project.at("old"), "before").unwrap();
    std::fs::set_permissions(project.at("old"), PermissionsExt::from_mode(0o640)).unwrap();
    let before = project.status("old").unwrap();
    let after = project.write("old", "after", Some(&before)).unwrap();
    assert_eq!((project.text("old").as_str(), after.mode), ("after", 0o640));
    assert_eq!(project.status("old"), Some(after));
    assert_eq!(project.names(), ["new", "old"]);
}

#[test]
fn set_id_bits_are_never_given() {
    let project = Project::new();
    let mut file = project.folder.begin_file("program").unwrap();
    file.write(b"x").unwrap();
    assert_eq!(file.finish(None, 0o6755).unwrap().mode, 0o755);
}

#[test]
fn a_file_that_changed_in_the_meantime_is_not_replaced() {
    let project = Project::new();
    std::fs::write(project.at("file"), "before").unwrap();
    let before = project.status("file").unwrap();
    std::fs::write(project.at("file"), "theirs").unwrap();
    assert_eq!(project.write("file", "ours", Some(&before)), Err(HostError::Changed));
    assert_eq!(project.write("file", "ours", None), Err(HostError::Changed));
    assert_eq!(project.folder.remove("file", &before), Err(HostError::Changed));
    assert_eq!(project.text("file"), "theirs");
    assert_eq!(project.names(), ["file"]);
}

#[test]
fn no_path_leads_through_a_link_or_out_of_the_folder() {
    let project = Project::new();
    let outside = project.place.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    symlink("../outside", project.at("link")).unwrap();
    symlink("../outside/secret", project.at("file")).unwrap();
    for path in [
        "link/new",
        "link/secret",
        "../outside/new",
        "a/../../outside/new",
        "/etc/passwd2",
        "..",
        "a/..",
        "",
    ] {
        assert!(project.folder.begin_file(path).is_err(), "{path}");
        assert!(project.folder.make_folder(path, 0o755).is_err(), "{path}");
        assert!(project.folder.make_link(path, "x", None).is_err(), "{path}");
    }
    assert_eq!(project.folder.begin_file("link/new").unwrap_err(), HostError::Link);
    assert_eq!(project.folder.read_inside("file").unwrap_err(), HostError::Denied);
    // The link itself is replaced, and not the file at its target.
    let link = project.status("file").unwrap();
    assert_eq!(link.kind, HostKind::Link);
    project.write("file", "ours", Some(&link)).unwrap();
    assert_eq!(project.text("file"), "ours");
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "secret");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn a_folder_that_became_a_link_after_the_check_is_not_entered() {
    let project = Project::new();
    let outside = project.place.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::create_dir(project.at("sub")).unwrap();
    assert_eq!(project.status("sub/new"), None);
    std::fs::remove_dir(project.at("sub")).unwrap();
    symlink(&outside, project.at("sub")).unwrap();
    assert_eq!(project.write("sub/new", "x", None), Err(HostError::Link));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_file_in_progress_stays_in_its_folder_when_the_path_becomes_a_link() {
    let project = Project::new();
    let outside = project.place.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::create_dir(project.at("sub")).unwrap();
    let mut file = project.folder.begin_file("sub/new").unwrap();
    file.write(b"x").unwrap();
    std::fs::rename(project.at("sub"), project.at("moved")).unwrap();
    symlink(&outside, project.at("sub")).unwrap();
    file.finish(None, 0o644).unwrap();
    assert_eq!(project.text("moved/new"), "x");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_link_that_leads_out_is_recognized() {
    let project = Project::new();
    std::fs::create_dir(project.at("sub")).unwrap();
    symlink("/etc", project.at("out")).unwrap();
    for (path, target, out) in [
        ("a", "sub", false),
        ("a", "sub/missing", false),
        ("sub/a", "../b", false),
        ("sub/a", "../../b", true),
        ("a", "out/passwd", true),
        ("a", "..", true),
        ("a", "/etc", true),
    ] {
        assert_eq!(
            project.folder.link_leads_out(path, target),
            Ok(out),
            "{path} -> {target}"
        );
    }
}

#[test]
fn folders_and_links_are_made_and_removed() {
    let project = Project::new();
    let folder = project.folder.make_folder("sub", 0o700).unwrap();
    assert_eq!((folder.kind, folder.mode), (HostKind::Folder, 0o700));
    assert_eq!(project.folder.make_folder("sub", 0o700), Err(HostError::Changed));
    let link = project.folder.make_link("sub/link", "target", None).unwrap();
    assert_eq!(link.target.as_deref(), Some(&b"target"[..]));
    let link = project.folder.make_link("sub/link", "other", Some(&link)).unwrap();
    let folder = project.status("sub").unwrap();
    assert_eq!(project.folder.remove("sub", &folder), Err(HostError::NotEmpty));
    project.folder.remove("sub/link", &link).unwrap();
    let folder = project.status("sub").unwrap();
    project.folder.remove("sub", &folder).unwrap();
    assert_eq!(project.names(), Vec::<String>::new());
}

#[test]
fn the_folder_stays_the_same_one_when_its_path_changes() {
    let project = Project::new();
    let moved = project.place.path().join("moved");
    std::fs::rename(project.place.path().join("project"), &moved).unwrap();
    std::fs::create_dir(project.place.path().join("project")).unwrap();
    project.write("new", "x", None).unwrap();
    assert!(moved.join("new").exists() && !project.at("new").exists());
}
