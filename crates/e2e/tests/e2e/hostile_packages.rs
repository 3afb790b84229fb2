use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::packages::{command, install, kept, with_pip};
use sandcell_e2e::client::Client;
use sandcell_e2e::index::{Index, Wheel};
use sandcell_e2e::test_dir::{SECRET_VALUE, TestDir};
use sandcell_e2e::{begin, is_root};

#[test]
fn an_endless_file_is_refused_by_its_stated_or_sent_size() {
    let _turn = begin!();
    let (place, index) = (TestDir::with_settings("[packages]\nfile_mb = 8\n"), Index::start());
    index.add_endless(&Wheel::new("announced", "1.0"), 100 << 30);
    index.add(&Wheel::new("large", "1.0").file("large.bin", vec![0; 9 << 20]));
    let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
    for package in ["announced", "large"] {
        let answer = install(&server, json!([package]));
        assert!(
            answer.all().contains("package_failed") && answer.all().contains("more than 8388608 bytes"),
            "{package}: {answer:?}\n{}",
            server.log()
        );
    }
    assert_eq!(kept(&place), (0, 0));
}

/// A build backend without dependencies. During the build it tries forbidden actions and records the results.
fn backend(targets: &[(&str, String)]) -> String {
    let tries: String = targets
        .iter()
        .map(|(name, code)| format!("attempt({name:?}, lambda: {code})\n"))
        .collect();
    format!(
        r#"
import os, socket, zipfile
came = {{}}
def attempt(name, what):
    try:
        came[name] = repr(what())[:80]
    except BaseException as error:
        came[name] = type(error).__name__
{tries}
def get_requires_for_build_wheel(config_settings=None):
    return []
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "harmful-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("harmful.py", "came = " + repr(came))
        wheel.writestr("harmful-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: harmful\nVersion: 1.0\n")
        wheel.writestr("harmful-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("harmful-1.0.dist-info/RECORD", "")
    return name
"#
    )
}

#[test]
fn a_source_distribution_is_refused_or_built_in_a_sandbox() {
    let _turn = begin!();
    let index = Index::start();
    let strict = TestDir::new();
    let secret = strict.write("secret", "of the host");
    let outside = strict.work().join("pwned");
    let backend = backend(&[
        (
            "write",
            format!("open({:?}, 'w').write('x')", outside.display().to_string()),
        ),
        ("read", format!("open({:?}).read()", secret.display().to_string())),
        ("shadow", "open('/etc/shadow').read()".to_owned()),
        (
            "index",
            format!("socket.create_connection(('127.0.0.1', {}), 3)", index.port),
        ),
        ("outside", "socket.create_connection(('1.1.1.1', 80), 3)".to_owned()),
        (
            "environment",
            format!("[name for name in os.environ if {SECRET_VALUE:?} in os.environ[name]]"),
        ),
    ]);
    let project = "[build-system]\nrequires = []\nbuild-backend = \"own\"\nbackend-path = [\".\"]\n\
                   [project]\nname = \"harmful\"\nversion = \"1.0\"\n";
    let info = "Metadata-Version: 2.1\nName: harmful\nVersion: 1.0\n";
    let files = [
        ("pyproject.toml", project),
        ("own.py", backend.as_str()),
        ("PKG-INFO", info),
    ];
    index.add_source("harmful", "1.0", &files);
    let server = Client::start(&mut command(&strict, &index.url(), &["serve"]));
    let refused = install(&server, json!(["harmful"]));
    assert!(refused.all().contains("package_failed"), "{refused:?}");
    assert!(
        index.asked().iter().all(|path| !path.ends_with(".tar.gz")),
        "it was not even fetched"
    );
    // If the operator allows source builds, it is built with the rights of an installer.
    let place = TestDir::with_settings("[packages]\nonly_binary = false\n");
    let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
    let done = install(&server, json!(["harmful"]));
    assert_eq!(done.status(), "ok", "{done:?}\n{}", server.log());
    let came = server.text("import harmful, json\nprint(json.dumps(harmful.came))");
    let came: serde_json::Value = serde_json::from_str(came.trim()).unwrap();
    for (what, expected) in [
        ("write", &["FileNotFoundError", "PermissionError"][..]),
        ("read", &["FileNotFoundError", "PermissionError"]),
        ("shadow", &["FileNotFoundError", "PermissionError"]),
        ("index", &["ConnectionRefusedError"]),
        ("outside", &["OSError"]),
        ("environment", &["[]"]),
    ] {
        assert!(expected.iter().any(|word| came[what] == *word), "{what}: {came}");
    }
    assert!(!outside.exists());
}

/// A small file system mounted over a folder, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(folder: &Path, size: &str) -> Self {
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=0755"), "tmpfs"])
            .arg(folder)
            .status();
        assert!(done.unwrap().success(), "a tmpfs can be mounted");
        Self(folder.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_no_draft_and_the_next_install_works() {
    let _turn = begin!();
    if !is_root() {
        // Only root can mount a small disk; the test also runs as root.
        return;
    }
    let (place, index) = (TestDir::new(), Index::start());
    index.add(&Wheel::new("large", "1.0").file("large.bin", vec![7; 12 << 20]));
    index.add(&Wheel::new("little", "1.0").file("little.py", "fine = True\n"));
    let disk = SmallDisk::at(&place.path("data"), "6m");
    // With pip, since a copy of uv would fill the disk itself.
    let server = Client::start(&mut with_pip(&place, &index.url(), &["serve"]));
    let answer = install(&server, json!(["large"]));
    assert!(answer.all().contains("disk_full"), "{answer:?}\n{}", server.log());
    assert_eq!(kept(&place), (0, 0), "nothing is left of it");
    let answer = install(&server, json!(["little"]));
    assert_eq!(answer.status(), "ok", "{answer:?}\n{}", server.log());
    assert_eq!(server.text("import little\nprint(little.fine)").trim(), "True");
    drop(server);
    drop(disk);
}
