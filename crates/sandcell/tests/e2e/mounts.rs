//! Hosts that have other file systems mounted below what sandboxes see: GPU hosts, WSL2, `docker run --init`.

use std::process::{Output, Stdio};

use serde_json::Value;

use crate::support::begin;
use crate::support::place::Place;

/// Shell words that mount something, in a mount namespace of its own, and then run sandcell with these arguments. An ordinary
/// user does so in a user namespace, where the server works as an ordinary user's.
fn mounted(place: &Place, mounts: &str, arguments: &[&str]) -> Output {
    let sandcell = place.command(arguments);
    let mut command = std::process::Command::new("unshare");
    let kind: &[&str] = if am_root() {
        &["--mount"]
    } else {
        &["--map-root-user", "--mount"]
    };
    command
        .args(kind)
        .args(["sh", "-ec", &format!("{mounts}\nexec \"$@\""), "sh"])
        .arg(sandcell.get_program())
        .args(sandcell.get_args())
        .env_clear()
        .envs(sandcell.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(place.work())
        .stdin(Stdio::null());
    command.output().unwrap()
}

fn am_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}

/// A program's output where these are mounted.
#[track_caller]
fn printed(place: &Place, mounts: &str, code: &str) -> String {
    let file = place.write("program.py", code).display().to_string();
    let output = mounted(place, mounts, &["run", &file]);
    assert!(output.status.success(), "{mounts}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Looks at what is there, and tries to write to it.
const LOOK: &str = r#"
import os, sys
for path in sys.argv[1:] or PATHS:
    if os.path.isdir(path):
        print(path, sorted(os.listdir(path)))
        path += "/new"
    else:
        print(path, open(path, "rb").read(4))
    try:
        open(path, "ab")
        print("written")
    except OSError:
        pass
"#;

fn look(paths: &[&str]) -> String {
    format!("PATHS = {paths:?}\n{LOOK}")
}

#[test]
fn a_file_system_mounted_below_usr_is_seen_read_only() {
    let _turn = begin!();
    let place = Place::new();
    let mounts = "mount -t tmpfs t /usr/share\nmkdir /usr/share/inner\nmount -t tmpfs t /usr/share/inner\n\
                  echo hi >/usr/share/inner/file";
    let seen = printed(
        &place,
        mounts,
        &look(&["/usr/share", "/usr/share/inner", "/usr/bin/sh"]),
    );
    assert_eq!(
        seen,
        "/usr/share ['inner']\n/usr/share/inner ['file']\n/usr/bin/sh b'\\x7fELF'\n"
    );
}

#[test]
fn a_file_mounted_on_another_one_is_seen_in_its_place() {
    let _turn = begin!();
    let place = Place::new();
    let file = place.write("own", "mine");
    let mounts = format!("mount --bind {} /usr/bin/yes", file.display());
    let code = "import os\nprint(open('/usr/bin/yes').read(), len(os.listdir('/usr/bin')) > 50, os.access('/usr/bin/yes', os.W_OK))";
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(printed(&place, &mounts, code), "mine True False\n");
}

#[test]
fn file_systems_of_the_kernel_are_left_out_and_the_doctor_names_them() {
    let _turn = begin!();
    let place = Place::new();
    // Where the folder is taken apart, and where that would be too much.
    for folder in ["/usr/games", "/usr/lib/locale"] {
        if !std::path::Path::new(folder).is_dir() {
            continue;
        }
        let mounts = format!("mount -t devpts -o newinstance none {folder}");
        assert_eq!(printed(&place, &mounts, &look(&[folder])), format!("{folder} []\n"));
        let output = mounted(&place, &mounts, &["doctor", "--json"]);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let left_out: Vec<_> = report["left_out"].as_array().unwrap().iter().collect();
        assert_eq!(left_out.len(), 1, "{report}");
        assert_eq!(left_out[0]["path"], folder);
        assert!(left_out[0]["reason"].as_str().unwrap().contains("devpts"), "{report}");
        let output = mounted(&place, &mounts, &["doctor"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.matches(&format!("{folder}: devpts")).count(), 1, "{said}");
    }
}

#[test]
fn a_file_system_mounted_below_an_operators_folder_is_seen_at_its_place() {
    let _turn = begin!();
    let place = Place::new();
    let folder = place.work().join("project");
    std::fs::create_dir_all(folder.join("data/deep")).unwrap();
    std::fs::create_dir_all(folder.join("own")).unwrap();
    std::fs::write(folder.join("read.me"), "words").unwrap();
    let mounts = format!(
        "mount -t tmpfs t {0}/data\necho inner >{0}/data/file\nchmod -R a+rX {0}",
        folder.display()
    );
    let file = place
        .write(
            "program.py",
            look(&["/mnt/project", "/mnt/project/data", "/mnt/project/read.me"]),
        )
        .display()
        .to_string();
    let all = "/mnt/project ['data', 'own', 'read.me']\n/mnt/project/data ['file']\n/mnt/project/read.me b'word'\n";
    for (mode, seen) in [("ro", all.to_owned()), ("cow", all.replace('\n', "\nwritten\n"))] {
        let mount = format!("{}:/mnt/project:{mode}", folder.display());
        let output = mounted(&place, &mounts, &["run", "--mount", &mount, &file]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), seen, "{mode}: {output:?}");
    }
    // Nothing came through to the host's folder.
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["data", "own", "read.me"]);
    assert_eq!(std::fs::read_to_string(folder.join("read.me")).unwrap(), "words");
}
