//! Commits when the host gets in the way: a killed server, files of other users, a folder that was replaced.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::{Project, am_root, applied, make_project, refused, settle};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, until};

/// The number of files that the sandbox moves, and of files that it changes.
const FILE_COUNT: usize = 200;

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn a_server_that_is_killed_during_a_commit_loses_no_file() {
    let _turn = begin!();
    // The number of files in the new folder at the moment of the kill. Removals follow when all are there.
    for arrived in [1, FILE_COUNT / 2, FILE_COUNT] {
        let place = TestDir::new();
        let folder = make_project(&place);
        let moved = |number: usize| format!("moved {number}\n").repeat(50);
        for number in 0..FILE_COUNT {
            fs::write(folder.join(format!("src/m{number}")), moved(number)).unwrap();
            fs::write(folder.join(format!("e{number}")), "old").unwrap();
        }
        settle(&folder);
        let mut project = Project::of(place, ",commit=ask");
        project.run(&format!(
            "import os; os.chdir('/mnt/p'); os.mkdir('lib')\nfor i in range({FILE_COUNT}):\n    \
             os.rename(f'src/m{{i}}', f'lib/m{{i}}'); open(f'e{{i}}', 'w').write('new')"
        ));
        let url = format!("http://{}", project.server.address);
        let mut command = project.place.command(&["commit", &project.sandbox(), "--to", &url]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut committing = command.spawn().unwrap();
        until(DEFAULT_TIMEOUT, "files have arrived", || {
            let is_over = committing.try_wait().unwrap().is_some();
            (entries(&folder.join("lib")) >= arrived || is_over).then_some(())
        });
        project.server.signal("-KILL");
        project.server.wait(DEFAULT_TIMEOUT);
        committing.wait().unwrap();
        for number in 0..FILE_COUNT {
            let whole = ["src", "lib"].iter().any(|name| {
                let file = folder.join(name).join(format!("m{number}"));
                fs::read_to_string(file).is_ok_and(|text| text == moved(number))
            });
            assert!(whole, "m{number} is lost, killed at {arrived}");
            let edited = fs::read_to_string(folder.join(format!("e{number}"))).unwrap();
            assert!(["old", "new"].contains(&edited.as_str()), "e{number}: {edited:?}");
        }
    }
}

#[test]
fn a_server_of_root_reads_only_files_of_the_folders_owner() {
    let _turn = begin!();
    if !am_root() {
        return;
    }
    let place = TestDir::new();
    let folder = make_project(&place);
    let change_owner = |file: &Path, owner: &str| {
        let status = Command::new("chown").arg(owner).arg(file).status();
        assert!(status.unwrap().success());
    };
    change_owner(&folder, "4321:4321");
    settle(&folder);
    let project = Project::of(place, ",commit=ask");
    project.run("for name in ('own', 'other'): open('/mnt/p/' + name, 'w').write('public\\n')");
    // The host's files appear afterwards. Only the folder's owner may read the one, and only root the other.
    for (name, owner) in [("own", "4321:4321"), ("other", "0:0")] {
        let file = folder.join(name);
        fs::write(&file, "secret\n").unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        change_owner(&file, owner);
    }
    let changes = project.caller.call("file_changes", json!({}));
    let listed = changes.data()["mounts"].to_string();
    assert!(
        listed.contains("/mnt/p/own") && listed.contains("/mnt/p/other"),
        "{listed}"
    );
    let shown = listed.matches("-secret").count();
    assert_eq!(shown, 1, "only the difference of `own` is shown: {listed}");
}

#[test]
fn a_folder_that_was_replaced_takes_no_commit() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run("open('/mnt/p/a.txt', 'w').write('mine'); open('/mnt/p/new.txt', 'w').write('n')");
    let (folder, old) = (project.at(""), project.place.work().join("before"));
    fs::rename(&folder, &old).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.txt"), "of another project").unwrap();
    let output = project.command("commit", &["--json"]);
    let said = format!("{output:?}");
    assert_eq!(project.text("a.txt"), "of another project", "{said}");
    assert!(!folder.join("new.txt").exists(), "{said}");
    assert_eq!(
        fs::read_to_string(old.join("a.txt")).unwrap(),
        "one\ntwo\nthree\n",
        "{said}"
    );
    assert!(!old.join("new.txt").exists(), "{said}");
    assert!(!output.status.success(), "{said}");
}

#[test]
fn a_link_that_would_lead_out_through_a_link_of_the_host_is_refused() {
    let _turn = begin!();
    let place = TestDir::new();
    let folder = make_project(&place);
    symlink("/etc", folder.join("outside")).unwrap();
    settle(&folder);
    let project = Project::of(place, ",commit=ask");
    project.run(
        "import os; os.chdir('/mnt/p'); os.mkdir('d'); os.symlink('../outside/passwd', 'd/out'); os.symlink('../a.txt', \
         'd/in'); os.symlink('outside/passwd', 'near')",
    );
    let result = project.commit(&[]);
    for link in ["d/out", "near"] {
        assert!(!project.at(link).is_symlink(), "{result}");
        refused(&result, link);
    }
    assert!(applied(&result).contains(&"d/in"), "{result}");
}

#[test]
fn a_named_folder_is_removed_with_all_its_files() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run("import shutil; shutil.rmtree('/mnt/p/old'); open('/mnt/p/new.txt', 'w').write('n')");
    let result = project.commit(&["/mnt/p/old"]);
    assert_eq!(applied(&result), ["old", "old/x", "old/y"], "{result}");
    assert!(!project.at("old").exists() && !project.at("new.txt").exists());
}
