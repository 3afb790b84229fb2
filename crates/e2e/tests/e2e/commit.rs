//! Changes in copy-on-write mounts: what a sandbox has changed, and the operator's commits of it to the host's folder.

mod conflicts;
mod hosts;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, UNIX_EPOCH};

use sandcell_e2e::client::Client;
use sandcell_e2e::http::{Caller, Server};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, until};
use serde_json::{Value, json};

/// A server with a mounted project, and a sandbox.
struct Project {
    place: TestDir,
    server: Server,
    caller: Caller,
}

fn am_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}

/// Makes the folder of a project with some files.
fn make_project(place: &TestDir) -> PathBuf {
    let folder = place.work().join("project");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::create_dir_all(folder.join("old")).unwrap();
    for (name, text) in [
        ("a.txt", "one\ntwo\nthree\n"),
        ("gone.txt", "gone\n"),
        ("same.txt", "same\n"),
        ("src/main.py", "print(1)\n"),
        ("old/x", "x\n"),
        ("old/y", "y\n"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    settle(&folder);
    folder
}

/// Waits until new files are older than one tick of the kernel's clock, so that they do not look newer than a sandbox.
fn settle(folder: &Path) {
    let changed = folder.metadata().unwrap();
    let changed = Duration::new(
        changed.ctime().try_into().unwrap(),
        changed.ctime_nsec().try_into().unwrap(),
    );
    until(DEFAULT_TIMEOUT, "the clock moves", || {
        let age = UNIX_EPOCH.elapsed().unwrap().saturating_sub(changed);
        (age.as_millis() > 100).then_some(())
    });
}

impl Project {
    fn start(rule: &str) -> Self {
        let place = TestDir::new();
        make_project(&place);
        Self::of(place, rule)
    }

    fn of(place: TestDir, rule: &str) -> Self {
        let mount = format!("{}:/mnt/p:cow{rule}", place.work().join("project").display());
        let server = Server::start(&place, &["--mount", &mount]);
        let caller = server.caller();
        Self { place, server, caller }
    }

    fn run(&self, code: &str) -> String {
        let answer = self.caller.call("execute_code", json!({"code": code}));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        answer.output()
    }

    fn sandbox(&self) -> String {
        let status = self.caller.call("get_sandbox_status", json!({}));
        status.data()["sandboxes"][0]["sandbox_id"].as_str().unwrap().to_owned()
    }

    fn command(&self, name: &str, more: &[&str]) -> Output {
        let (sandbox, url) = (self.sandbox(), format!("http://{}", self.server.address));
        let mut arguments = vec![name, &sandbox];
        arguments.extend(more);
        arguments.extend(["--to", &url]);
        self.place.command(&arguments).output().unwrap()
    }

    /// Commits and returns the result.
    #[track_caller]
    fn commit(&self, more: &[&str]) -> Value {
        let output = self.command("commit", &[more, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.work().join("project").join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap()
    }
}

/// Returns the paths of applied changes, below the mount.
fn applied(result: &Value) -> Vec<&str> {
    paths(result, "applied")
}

fn paths<'a>(result: &'a Value, list: &str) -> Vec<&'a str> {
    let items = result[list].as_array().unwrap().iter();
    items
        .map(|change| change["path"].as_str().unwrap().trim_start_matches("/mnt/p/"))
        .collect()
}

/// Returns the code of the refusal of a path.
fn refused(result: &Value, path: &str) -> String {
    let all = result["refused"].as_array().unwrap();
    let found = all.iter().find(|change| change["path"] == format!("/mnt/p/{path}"));
    let found = found.unwrap_or_else(|| panic!("{path} was not refused: {result}"));
    found["code"].as_str().unwrap().to_owned()
}

const EVERY_CHANGE: &str = "
import os, shutil
os.chdir('/mnt/p')
open('a.txt', 'w').write('one\\n2\\nthree\\n')
os.remove('gone.txt')
shutil.rmtree('old'); os.mkdir('old'); open('old/new', 'w').write('n')
os.makedirs('d/e'); open('d/e/f', 'w').write('f')
os.symlink('e/f', 'd/in')
os.utime('same.txt')
";

#[test]
fn changes_in_a_mount_are_listed_and_committed() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    std::fs::set_permissions(project.at("a.txt"), PermissionsExt::from_mode(0o640)).unwrap();
    settle(&project.at("a.txt"));
    project.run(EVERY_CHANGE);
    let changes = project.caller.call("file_changes", json!({}));
    let mounts = &changes.data()["mounts"];
    assert_eq!(mounts["omitted"], 0);
    let seen: Vec<String> = mounts["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| format!("{} {}", file["kind"].as_str().unwrap(), file["path"].as_str().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            "modified /mnt/p/a.txt",
            "created /mnt/p/d",
            "created /mnt/p/d/e",
            "created /mnt/p/d/e/f",
            "created /mnt/p/d/in",
            "removed /mnt/p/gone.txt",
            "created /mnt/p/old/new",
            "removed /mnt/p/old/x",
            "removed /mnt/p/old/y",
        ]
    );
    let diff = project.command("diff", &["--mounts"]);
    let diff = String::from_utf8(diff.stdout).unwrap();
    assert!(diff.contains("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"), "{diff}");
    assert!(diff.contains("created /mnt/p/d/in (link, "), "{diff}");
    // Nothing has reached the host yet, and a dry run changes nothing.
    let dry = project.commit(&["--dry-run"]);
    assert_eq!(applied(&dry).len(), 9, "{dry}");
    assert_eq!(project.text("a.txt"), "one\ntwo\nthree\n");
    let one = project.commit(&["/mnt/p/d/e", "/mnt/p/none"]);
    assert_eq!(applied(&one), ["d", "d/e", "d/e/f"]);
    assert_eq!(refused(&one, "none"), "not_found");
    let output = project.command("commit", &[]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("modified /mnt/p/a.txt\n") && text.contains("0 refused"),
        "{text}"
    );
    assert_eq!(project.text("a.txt"), "one\n2\nthree\n");
    assert_eq!(project.at("a.txt").metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(std::fs::read_link(project.at("d/in")).unwrap(), Path::new("e/f"));
    let names = |folder: &str| {
        let mut names: Vec<_> = std::fs::read_dir(project.at(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("old"), ["new"]);
    assert_eq!(names("."), ["a.txt", "d", "old", "same.txt", "src"]);
    // A later change of the sandbox is no conflict with the commit before it.
    project.run("open('/mnt/p/a.txt', 'w').write('four\\n')");
    let again = project.commit(&[]);
    assert_eq!(applied(&again), ["a.txt"], "{again}");
    assert_eq!(project.text("a.txt"), "four\n");
    let log = project.place.path("data").join("audit.jsonl");
    until(DEFAULT_TIMEOUT, "the commits are in the audit log", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        (text.matches("changes_committed").count() == 3).then_some(())
    });
}

#[test]
fn nothing_is_committed_without_the_operator() {
    let _turn = begin!();
    let project = Project::start("");
    project.run("open('/mnt/p/a.txt', 'w').write('x')");
    let output = project.command("commit", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("[denied_by_policy]"),
        "{said}"
    );
    assert!(said.contains("commit = \"ask\""), "{said}");
    drop(project);

    let project = Project::start(",commit=ask");
    project.run("open('/mnt/p/a.txt', 'w').write('x')");
    let path = format!("/v1/sandboxes/{}/commit", project.sandbox());
    let post = |permit: &str| {
        let host = project.server.address;
        project.server.raw(format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{permit}Content-Length: 2\r\n\
             Connection: close\r\n\r\n{{}}"
        ))
    };
    for permit in [
        "",
        "Sandcell-Permit: ../../etc/passwd\r\n",
        "Sandcell-Permit: 00000000000000000000000000000000\r\n",
    ] {
        let reply = post(permit);
        assert_eq!(
            (reply.status, &reply.message()["code"]),
            (403, &json!("denied_by_policy")),
            "{permit}"
        );
    }
    // A user who cannot write to the server's data folder is not the operator.
    let (sandbox, url) = (project.sandbox(), format!("http://{}", project.server.address));
    let mut command = project.place.command(&["commit", &sandbox, "--to", &url]);
    command.env("SANDCELL_DATA_DIR", project.place.path("tmp"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("[denied_by_policy]"),
        "{said}"
    );
    assert_eq!(project.text("a.txt"), "one\ntwo\nthree\n");
}

/// Starts a server over standard input and output whose client can ask its user.
fn asking(place: &TestDir) -> Client {
    let mount = format!("{}:/mnt/p:cow,commit=ask", place.work().join("project").display());
    Client::start_asking(&mut place.command(&["serve", "--mount", &mount]))
}

/// Waits for the question with this number, and answers it after `before`.
fn answer_question(client: &Client, number: usize, allow: bool, before: impl FnOnce()) -> String {
    let question = until(DEFAULT_TIMEOUT, "the question arrives", || {
        let asked = client.notifications();
        let mut questions = asked.iter().filter(|message| message["method"] == "elicitation/create");
        questions.nth(number).cloned()
    });
    before();
    let content = json!({"action": "accept", "content": {"allow": allow}});
    let message = json!({"jsonrpc": "2.0", "id": question["id"], "result": content});
    client.send_line(message.to_string().as_bytes());
    question["params"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_person_is_asked_about_exactly_the_changes_that_are_applied() {
    let _turn = begin!();
    let place = TestDir::new();
    let folder = make_project(&place);
    let text = || std::fs::read_to_string(folder.join("a.txt")).unwrap();
    let client = asking(&place);
    client.text("open('/mnt/p/a.txt', 'w').write('new'); open('/mnt/p/b\\nc', 'w').write('b')");

    let call = client.begin_call("commit_changes", json!({}));
    let question = answer_question(&client, 0, false, || {});
    assert!(question.contains("2 changes"), "{question}");
    assert!(question.contains("modified /mnt/p/a.txt (3 bytes)"), "{question}");
    assert!(question.contains("created /mnt/p/b\\nc (1 bytes)"), "{question}");
    assert!(call.answer().refused("denied_by_policy").contains("declined"));
    assert_eq!(text(), "one\ntwo\nthree\n");

    // Code changes a file while the person reads the question.
    client.text(
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'while [ ! -e /tmp/go ]; do sleep 0.01; done; printf evl > /mnt/p/a.txt; \
         touch /tmp/done'])",
    );
    let call = client.begin_call("commit_changes", json!({}));
    answer_question(&client, 1, true, || {
        client.call("write_file", json!({"path": "/tmp/go", "content": ""}));
        until(DEFAULT_TIMEOUT, "the file changes", || {
            let answer = client.call("read_file", json!({"path": "/tmp/done"}));
            (!answer.is_error()).then_some(())
        });
    });
    let failure = call.answer().refused("denied_by_policy");
    assert!(failure.contains("not those that the user has seen"), "{failure}");
    assert_eq!(text(), "one\ntwo\nthree\n");

    let call = client.begin_call("commit_changes", json!({"paths": ["/mnt/p/a.txt"]}));
    answer_question(&client, 2, true, || {});
    let answer = call.answer();
    assert_eq!(answer.data()["applied_count"], 1, "{answer:?}");
    assert_eq!(text(), "evl");
}

#[test]
fn only_the_changes_of_a_fingerprint_are_applied() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run("open('/mnt/p/a.txt', 'w').write('seen'); open('/mnt/p/same.txt', 'w').write('mine')");
    let fingerprint = |project: &Project| {
        let dry = project.commit(&["--dry-run"]);
        dry["fingerprint"].as_str().unwrap().to_owned()
    };
    let seen = fingerprint(&project);
    assert_eq!(fingerprint(&project), seen);
    // The sandbox changes the content, and the host its file.
    for change in ["sandbox", "host"] {
        match change {
            "sandbox" => drop(project.run("import os; open('/mnt/p/a.txt', 'w').write('evil')")),
            _ => std::fs::write(project.at("same.txt"), "theirs").unwrap(),
        }
        let output = project.command("commit", &["--expect", &seen]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("dry run again"), "{output:?}");
        assert_eq!(project.text("a.txt"), "one\ntwo\nthree\n");
        project.run("open('/mnt/p/a.txt', 'w').write('seen')");
    }
    let seen = fingerprint(&project);
    let result = project.commit(&["--expect", &seen]);
    assert_eq!(
        (applied(&result), &result["fingerprint"]),
        (vec!["a.txt"], &json!(null))
    );
    assert_eq!(refused(&result, "same.txt"), "conflict");
    assert_eq!(project.text("a.txt"), "seen");
}

#[test]
fn a_client_over_http_cannot_approve_a_commit() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run("open('/mnt/p/a.txt', 'w').write('x')");
    let shown = project.caller.call("commit_changes", json!({"dry_run": true}));
    assert_eq!(shown.data()["applied_count"], 1, "{shown:?}");
    let refused = project
        .caller
        .call("commit_changes", json!({}))
        .refused("denied_by_policy");
    assert!(refused.contains("sandcell commit"), "{refused}");
    assert_eq!(project.text("a.txt"), "one\ntwo\nthree\n");
}

#[test]
fn no_commit_leads_out_of_the_folder() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    let outside = project.place.work().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("x"), "outside").unwrap();
    project.run(
        "import os, socket; os.chdir('/mnt/p')\nos.symlink('/etc/passwd', 'absolute'); os.symlink('../outside/x', 'above')\n\
         os.symlink('src/../../outside', 'through'); os.symlink('src', 'good')\nos.mkfifo('fifo'); \
         socket.socket(socket.AF_UNIX).bind('socket')\nopen('old/x', 'w').write('mine'); open('src/new', 'w').write('mine')\n\
         open('line\\nfeed', 'w').write('mine'); open(b'bad\\xff', 'w').write('mine')\nopen('suid', 'w').write('mine'); \
         os.chmod('suid', 0o6777)\nopen('a.txt', 'w').write('mine')",
    );
    // The host's folders become links after the sandbox has changed files in them.
    std::fs::remove_dir_all(project.at("old")).unwrap();
    symlink(&outside, project.at("old")).unwrap();
    std::fs::remove_file(project.at("a.txt")).unwrap();
    symlink(outside.join("x"), project.at("a.txt")).unwrap();
    let result = project.commit(&["--force"]);
    for (path, code) in [
        ("absolute", "link"),
        ("above", "link"),
        ("through", "link"),
        ("fifo", "type"),
        ("socket", "type"),
        ("bad\\xff", "name"),
        ("old", "type_change"),
        ("old/x", "type_change"),
    ] {
        assert_eq!(refused(&result, path), code, "{path}: {result}");
    }
    for path in ["good", "src/new", "line\nfeed", "suid", "a.txt"] {
        assert!(applied(&result).contains(&path), "{path}: {result}");
    }
    assert_eq!(project.at("suid").metadata().unwrap().mode() & 0o7777, 0o755);
    // The link was replaced, not its target.
    assert!(project.at("a.txt").symlink_metadata().unwrap().is_file());
    assert_eq!(std::fs::read_to_string(outside.join("x")).unwrap(), "outside");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn changes_while_code_is_writing_are_complete_or_refused() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    let running = project.caller.call(
        "execute_code",
        json!({"code": "import time; open('/mnt/p/a.txt', 'w').write('half'); time.sleep(60)", "wait_s": 1}),
    );
    assert_eq!(running.status(), "running", "{running:?}");
    let output = project.command("commit", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("[busy]"), "{said}");
    assert_eq!(project.text("a.txt"), "one\ntwo\nthree\n");
    project.caller.call("cancel_execution", json!({}));
    // A background process replaces the content of a file all the time. Each content has one letter only.
    project.run(
        "import subprocess\nsubprocess.Popen(['python3', '-c', \"while True:\\n for c in 'abc':\\n  open('/mnt/p/busy', \
         'w').write(c * 3000000)\"])",
    );
    for _ in 0..5 {
        let result = project.commit(&["/mnt/p/busy", "--force"]);
        for change in result["refused"].as_array().unwrap() {
            let code = change["code"].as_str().unwrap();
            assert!(["changing", "not_found"].contains(&code), "{result}");
        }
    }
}

#[test]
fn many_files_and_a_huge_file_are_committed() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run(
        "import os; os.chdir('/mnt/p')\nfor folder in range(30):\n    os.mkdir(f'd{folder}')\n    for n in range(1000): \
         open(f'd{folder}/{n}', 'w').write(str(n))\nopen('huge', 'wb').write(b'0123456789abcdef' * (6 << 20))",
    );
    let changes = project.caller.call("file_changes", json!({}));
    let mounts = &changes.data()["mounts"];
    assert_eq!(mounts["files"].as_array().unwrap().len(), 1000);
    assert_eq!(mounts["omitted"], 30_031 - 1000);
    let result = project.commit(&[]);
    assert_eq!(applied(&result).len(), 30_031, "{}", result["refused"]);
    assert_eq!(project.text("d29/999"), "999");
    assert_eq!(project.at("huge").metadata().unwrap().len(), 96 << 20);
    // Sparse files count with their whole size.
    project.run("import os\nfor n in range(3):\n    with open(f'/mnt/p/sparse{n}', 'wb') as f: os.truncate(f.fileno(), 500 << 20)");
    let output = project.command("commit", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("[limit_reached]"), "{said}");
    assert!(!project.at("sparse0").exists());
}

#[test]
fn a_full_or_read_only_disk_of_the_host_is_named() {
    let _turn = begin!();
    for (options, small, code) in [("size=256k", true, "disk_full"), ("ro", false, "host")] {
        let place = TestDir::new();
        std::fs::create_dir(place.work().join("project")).unwrap();
        let mount = format!("{}:/mnt/p:cow,commit=ask", place.work().join("project").display());
        let serve = place.command(&["serve", "--http", "127.0.0.1:0", "--mount", &mount]);
        let mut command = Command::new("unshare");
        let kind: &[&str] = if am_root() {
            &["--mount"]
        } else {
            &["--map-root-user", "--mount"]
        };
        let script = format!("mount -t tmpfs -o {options} t project\nexec \"$@\"");
        command
            .args(kind)
            .args(["sh", "-ec", &script, "sh"])
            .arg(serve.get_program())
            .args(serve.get_args())
            .env_clear()
            .envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(place.work());
        let server = Server::spawn(&mut command);
        let project = Project {
            caller: server.caller(),
            server,
            place,
        };
        project.run("open('/mnt/p/big', 'w').write('x' * 1000000); open('/mnt/p/small', 'w').write('s')");
        let result = project.commit(&[]);
        assert_eq!(refused(&result, "big"), code, "{result}");
        assert_eq!(applied(&result).contains(&"small"), small, "{result}");
        // No part of the file stays on the disk: there is room for another one.
        if small {
            project.run("import os; os.remove('/mnt/p/big'); open('/mnt/p/next', 'w').write('x' * 200000)");
            assert_eq!(applied(&project.commit(&[])), ["next"]);
        }
    }
}

#[test]
fn a_folder_that_the_server_may_not_write_is_named() {
    let _turn = begin!();
    if am_root() {
        return;
    }
    let project = Project::start(",commit=ask");
    project.run("open('/mnt/p/src/main.py', 'w').write('mine'); open('/mnt/p/a.txt', 'w').write('mine')");
    std::fs::set_permissions(project.at("src"), PermissionsExt::from_mode(0o555)).unwrap();
    // The new mode is a conflict.
    let result = project.commit(&["--force"]);
    std::fs::set_permissions(project.at("src"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(refused(&result, "src/main.py"), "host", "{result}");
    assert_eq!(applied(&result), ["a.txt"]);
}

#[test]
fn a_sandbox_cannot_use_a_commit_to_read_what_it_may_not_read() {
    let _turn = begin!();
    if !am_root() {
        return;
    }
    let project = Project::start(",commit=ask");
    project.run("open('/mnt/p/secret', 'w').write('secret\\n')");
    // The host's file appears afterwards, and only another user may read it.
    std::fs::write(project.at("secret"), "secret\n").unwrap();
    std::fs::set_permissions(project.at("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    let status = Command::new("chown").arg("4321").arg(project.at("secret")).status();
    assert!(status.unwrap().success());
    let changes = project.caller.call("file_changes", json!({}));
    assert!(!changes.data()["mounts"].to_string().contains("-secret"), "{changes:?}");
    // Not even whether the contents are equal.
    let body = json!({"dry_run": true}).to_string();
    let path = format!("/v1/sandboxes/{}/commit", project.sandbox());
    let host = project.server.address;
    let reply = project.server.raw(format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n{body}",
        body.len()
    ));
    let result = reply.message();
    assert_eq!(
        (&result["unchanged"], refused(&result, "secret").as_str()),
        (&json!(0), "conflict")
    );
    assert_eq!(refused(&project.commit(&[]), "secret"), "conflict");
}
