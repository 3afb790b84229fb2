//! Hosts with other file systems mounted below the folders that sandboxes show: GPU hosts, WSL2, `docker run --init`.

use std::process::{Output, Stdio};

use serde_json::Value;

use sandcell_e2e::begin;
use sandcell_e2e::test_dir::TestDir;

/// Runs shell commands that mount something in a new mount namespace, and then sandcell with these arguments. An
/// ordinary user gets a user namespace, where the server works as an ordinary user's.
pub fn mounted(place: &TestDir, mounts: &str, arguments: &[&str]) -> Output {
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

/// Returns a program's output on a host with these mounts.
#[track_caller]
fn printed(place: &TestDir, mounts: &str, code: &str) -> String {
    let file = place.write("program.py", code).display().to_string();
    let output = mounted(place, mounts, &["run", &file]);
    assert!(output.status.success(), "{mounts}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Lists these folders, and tries to write to them.
const LOOK_SCRIPT: &str = r#"
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
    format!("PATHS = {paths:?}\n{LOOK_SCRIPT}")
}

#[test]
fn a_file_system_mounted_below_usr_is_seen_read_only() {
    let _turn = begin!();
    let place = TestDir::new();
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
fn a_file_bind_mounted_over_another_is_visible() {
    let _turn = begin!();
    let place = TestDir::new();
    let file = place.write("own", "mine");
    let mounts = format!("mount --bind {} /usr/bin/yes", file.display());
    let code = "import os\nprint(open('/usr/bin/yes').read(), len(os.listdir('/usr/bin')) > 50, os.access('/usr/bin/yes', os.W_OK))";
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(printed(&place, &mounts, code), "mine True False\n");
}

#[test]
fn kernel_file_systems_are_left_out_and_doctor_names_them() {
    let _turn = begin!();
    let place = TestDir::new();
    // A folder that is shown entry by entry, and one that has too many entries for that.
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
fn a_file_system_mounted_below_an_operator_folder_is_visible() {
    let _turn = begin!();
    let place = TestDir::new();
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
    // No write reached the host's folder.
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["data", "own", "read.me"]);
    assert_eq!(std::fs::read_to_string(folder.join("read.me")).unwrap(), "words");
}

/// Layouts of mounts, a program's expression for its view, and the expected value.
const MOUNT_LAYOUTS: &[(&str, &str, &str)] = &[
    // A hidden folder on a file system that sandboxes may not see.
    ("mount -t devpts -o newinstance d /usr/local", "os.listdir('/usr/local')", "[]"),
    // The host sees the later mount.
    (
        "mount -t devpts -o newinstance d /usr/games; mount -t tmpfs t /usr/games; echo 1 >/usr/games/seen",
        "os.listdir('/usr/games')",
        "['seen']",
    ),
    (
        "mount -t tmpfs a /usr/share; mkdir -p /usr/share/b/c; mount -t devpts -o newinstance d /usr/share/b/c
         mount -t tmpfs t /usr/share/b; echo 1 >/usr/share/b/c",
        "os.path.isfile('/usr/share/b/c')",
        "True",
    ),
    // Below a folder that other users cannot enter.
    (
        "mount -t tmpfs a /usr/share; mkdir -m 700 /usr/share/b; mkdir /usr/share/b/c; mount -t tmpfs t /usr/share/b/c",
        "os.listdir('/usr/share')",
        "['b']",
    ),
    // Names that are not UTF-8, of visible and of hidden folders.
    (
        "mount -t tmpfs a /usr/share; x=/usr/share/$(printf 'x\\377'); mkdir $x; echo hidden >$x/under
         mount -t devpts -o newinstance d $x; y=/usr/share/$(printf 'y\\377'); mkdir $y; mount -t tmpfs t $y; echo 1 >$y/seen",
        "[sorted(os.listdir(b'/usr/share/' + name)) for name in (b'x\\xff', b'y\\xff')]",
        "[[], [b'seen']]",
    ),
    // A bind mount of the tree itself, with the mounts below it.
    ("mount --rbind /usr /usr; mount -t tmpfs t /usr/games", "os.listdir('/usr/games')", "[]"),
    // The mounted folder has been deleted.
    (
        "mount -t tmpfs a /usr/share; mkdir /usr/share/gone /usr/share/at; mount --bind /usr/share/gone /usr/share/at
         rmdir /usr/share/gone",
        "os.listdir('/usr/share/at')",
        "[]",
    ),
];

#[test]
fn unusual_mount_layouts_work_and_look_as_on_the_host() {
    let _turn = begin!();
    let place = TestDir::new();
    for (mounts, look, seen) in MOUNT_LAYOUTS {
        let code = format!("import os\nprint({look})");
        assert_eq!(printed(&place, mounts, &code).trim_end(), *seen, "{mounts}");
    }
}

#[test]
fn an_operator_folder_with_many_mounts_is_never_bound_directly() {
    let _turn = begin!();
    let place = TestDir::new();
    let folder = place.work().join("project");
    for number in 0..120 {
        std::fs::create_dir_all(folder.join(format!("{number}"))).unwrap();
    }
    let socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
    let mounts = format!("chmod -R a+rwX {0}; mount -t tmpfs t {0}/1", folder.display());
    let code = "import socket\nwith socket.socket(socket.AF_UNIX) as s:\n    try:\n        s.connect('/mnt/project/socket')\n\
                \x20       print('reached')\n    except OSError:\n        print('not reached')";
    let file = place.write("program.py", code).display().to_string();
    for mode in ["ro", "cow"] {
        let mount = format!("{}:/mnt/project:{mode}", folder.display());
        let output = mounted(&place, &mounts, &["run", "--mount", &mount, &file]);
        let (said, why) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        if am_root() {
            assert_eq!(said, "not reached\n", "{mode}: {output:?}");
        } else {
            assert!(!output.status.success() && said.is_empty(), "{mode}: {output:?}");
            assert!(
                why.contains("run the server as root") && why.contains("project"),
                "{why}"
            );
        }
    }
    drop(socket);
}

#[test]
fn mounts_in_an_operator_folder_expose_no_files_of_other_owners() {
    let _turn = begin!();
    if !am_root() {
        return;
    }
    let place = TestDir::new();
    let folder = place.work().join("project");
    std::fs::create_dir_all(folder.join("data")).unwrap();
    let mounts = format!(
        "chown 4321:4321 {0}; chmod 755 {0}; mount -t tmpfs -o mode=700,uid=1234 t {0}/data; echo secret >{0}/data/file",
        folder.display()
    );
    let code = "import os\ntry:\n    print(os.listdir('/mnt/project/data'))\nexcept OSError as error:\n    print(error.strerror)";
    let file = place.write("program.py", code).display().to_string();
    for mode in ["ro", "cow"] {
        let mount = format!("{}:/mnt/project:{mode}", folder.display());
        let output = mounted(&place, &mounts, &["run", "--mount", &mount, &file]);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "Permission denied\n",
            "{mode}: {output:?}"
        );
    }
}

#[test]
fn a_file_bind_mounted_in_an_operator_folder_is_visible() {
    let _turn = begin!();
    let place = TestDir::new();
    let folder = place.work().join("project");
    std::fs::create_dir_all(folder.join("deep")).unwrap();
    std::fs::write(folder.join("deep/settings"), "old").unwrap();
    let other = place.write("other", "new");
    let mounts = format!(
        "chmod -R a+rX {0} {1}; mount --bind {1} {0}/deep/settings",
        folder.display(),
        other.display()
    );
    let code = "print(open('/mnt/project/deep/settings').read())";
    let file = place.write("program.py", code).display().to_string();
    for mode in ["ro", "cow"] {
        let mount = format!("{}:/mnt/project:{mode}", folder.display());
        let output = mounted(&place, &mounts, &["run", "--mount", &mount, &file]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "new\n", "{mode}: {output:?}");
    }
}
