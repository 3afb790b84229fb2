//! Interpreters of the operator at paths where a sandbox has private folders.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, python, skip};

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        // The parent was made for the test; it stays if another program uses it.
        if let Some(parent) = self.0.parent().filter(|parent| parent.starts_with("/home")) {
            let _ = std::fs::remove_dir(parent);
        }
    }
}

fn environment(parent: &Path) -> Option<Folder> {
    std::fs::create_dir_all(parent).ok()?;
    let folder = Folder(parent.join(format!("cell venv {}", std::process::id())));
    let mut make = Command::new(python()?);
    // Without pip the environment is made quickly, and from the standard library alone.
    let made = make
        .args(["-m", "venv", "--without-pip"])
        .arg(&folder.0)
        .output()
        .ok()?;
    if !made.status.success() {
        return None;
    }
    let library = std::fs::read_dir(folder.0.join("lib")).ok()?.flatten().next()?.path();
    std::fs::write(library.join("site-packages/own_module.py"), "answer = 42\n").ok()?;
    Some(folder)
}

fn works_whole(environment: &Path) {
    let place = TestDir::with_settings(&format!(
        "python = {:?}\n",
        environment.join("bin/python").to_str().unwrap()
    ));
    let server = Client::start(&mut place.command(&["serve"]));
    let code = "import own_module, os, sys, subprocess\nopen('/tmp/x', 'w').write('x')\nopen('y', 'w').write('y')\n\
                child = subprocess.run([sys.executable, '-c', 'import own_module; print(own_module.answer)'], \
                capture_output=True, text=True)\nprint(own_module.answer, os.getcwd(), child.stdout.strip(), sys.prefix)";
    let text = server.text(code);
    let expected = format!("42 /home/user 42 {}", environment.display());
    assert_eq!(text.trim(), expected);
    let refused = server.text(
        "import own_module\ntry:\n    open(own_module.__file__, 'a')\n    print('BREACH')\nexcept OSError as e: print('held')",
    );
    assert_eq!(refused.trim(), "held");
    let answer = server.call(
        "create_run_close",
        json!({"code": "import own_module; print(own_module.answer)"}),
    );
    assert_eq!(answer.output().trim(), "42", "{answer:?}");
    let file = place.write("main.py", "import own_module\nprint(own_module.answer)");
    let run = place.command(&["run", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout).trim(), "42", "{run:?}");
}

#[test]
fn a_virtual_environment_below_tmp_works_fully() {
    let _turn = begin!();
    let Some(environment) = environment(Path::new("/tmp")) else {
        fn here() {}
        return skip(
            &sandcell_e2e::name_of(here),
            "python3 makes no virtual environments (python3-venv)",
        );
    };
    works_whole(&environment.0);
}

#[test]
fn a_virtual_environment_below_home_user_of_the_host_works_fully() {
    let _turn = begin!();
    // An ordinary user may not make /home/user. If the user already owns it, the test runs.
    let mine = || {
        let probe = Path::new("/home/user").join(format!("probe {}", std::process::id()));
        std::fs::create_dir(&probe)
            .and_then(|()| std::fs::remove_dir(&probe))
            .is_ok()
    };
    if !sandcell_e2e::is_root() && !mine() {
        println!("not for this user: /home/user is made by root only");
        return;
    }
    let Some(environment) = environment(Path::new("/home/user")) else {
        fn here() {}
        return skip(
            &sandcell_e2e::name_of(here),
            "python3 makes no virtual environments (python3-venv)",
        );
    };
    works_whole(&environment.0);
}

#[test]
fn typescript_runs_at_the_first_start_without_a_cached_node_version() {
    let _turn = begin!();
    let Some(node) = std::env::var_os("SANDCELL_TEST_NODE").map(PathBuf::from) else {
        fn here() {}
        return skip(
            &sandcell_e2e::name_of(here),
            "no Node 22 (see CONTRIBUTING.md; SANDCELL_TEST_NODE)",
        );
    };
    for (code, expected) in [
        (
            "enum Color { Red, Green = 5 }\nclass P { constructor(public a: number) {} }\n\
             console.log(Color[5], new P(3).a, await Promise.resolve(4))\n",
            "Green 3 4",
        ),
        (
            "import path = require('node:path')\nnamespace N { export const x = 1 }\nconsole.log(path.basename('/a/b'), N.x)\n",
            "b 1",
        ),
    ] {
        let place = TestDir::new();
        let file = place.write("main.ts", code);
        let mut run = place.command(&["run", file.to_str().unwrap()]);
        run.env("PATH", format!("{}:/usr/bin:/bin", node.parent().unwrap().display()));
        let run = run.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout).trim(), expected, "{run:?}");
    }
}
