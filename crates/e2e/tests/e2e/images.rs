//! Sandboxes from container images, without a container daemon.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::json;

use sandcell_e2e::client::Client;
use sandcell_e2e::docker::Daemon;
use sandcell_e2e::oci::{Answer, Entry, Image, Registry, digest, gzip, layer, shell};
use sandcell_e2e::test_dir::{SECRET_VALUE, TestDir};
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, name_of, skip, until};

/// Begins a test that needs a static shell for its images.
macro_rules! images {
    () => {{
        fn here() {}
        let turn = begin!();
        if !Path::new("/bin/busybox").exists() {
            skip(&name_of(here), "no static shell (apt-get install busybox-static)");
            return;
        }
        turn
    }};
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `sandcell run --image` of a shell's script.
fn run(place: &TestDir, image: &str, code: &str) -> Output {
    let file = place.write("program.sh", code).display().to_string();
    place
        .command(&["run", "--image", image, "--language", "bash", &file])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Checks that failed pulls leave nothing: no draft, no name.
#[track_caller]
fn nothing_is_left(place: &TestDir) {
    let drafts = place.path("data/images/drafts");
    until(Duration::from_secs(10), "no draft is left", || {
        let left = std::fs::read_dir(&drafts).map_or(0, Iterator::count);
        (left == 0).then_some(())
    });
    let names = std::fs::read_dir(place.path("data/images/names")).map_or(0, Iterator::count);
    assert_eq!(names, 0);
}

/// Returns the place of a server that accepts every image name.
fn open_place() -> TestDir {
    TestDir::with_settings("[images]\nallow = [\"*\"]\n")
}

#[test]
fn a_script_runs_with_an_images_own_programs_and_nothing_of_this_machine() {
    let _turn = images!();
    let place = TestDir::new();
    let upper = layer(&[
        Entry::File("etc/added", 0o644, b"second layer\n"),
        Entry::File("bin/.wh.touch", 0o644, b""),
        Entry::File("bin/setuid", 0o4755, b"#!/bin/sh\n"),
        Entry::Device("dev/mem"),
    ]);
    Image::of(&[shell(), upper]).write(&place.path("image"));
    let name = format!("oci:{}", place.path("image").display());
    let code = "cat /etc/os-release /etc/added\nid -u; id -un\necho $FROM_THE_IMAGE $HOME $LD_PRELOAD.\n\
                ls /usr /lib 2>&1 | head -n 2\nls /bin/touch 2>&1\nstat -c %a /bin/setuid\n\
                (echo x > /etc/new) 2>&1; echo y > /home/user/y && echo z > /tmp/z && cat y /tmp/z\nls /dev/mem 2>&1; ls /";
    let output = run(&place, &name, code);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said} {}", text(&output.stderr));
    for expected in [
        "ID=of-the-image\nsecond layer\n1000\nuser\nyes /home/user .\n",
        "/bin/touch: No such file",
        "\n755\n",
        "Read-only file system",
        "\ny\nz\n",
        "/dev/mem: No such file",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in {said}");
    }
    assert!(!said.contains("python") && !said.contains(SECRET_VALUE), "{said}");
    // The image is stored, and used again without its source.
    std::fs::remove_dir_all(place.path("image/blobs")).unwrap();
    assert_eq!(run(&place, &name, "cat /etc/added").stdout, b"second layer\n");
    let list = place.command(&["images", "list", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(
        (list[0]["name"].as_str(), list[0]["in_use"].as_bool()),
        (Some(name.as_str()), Some(false))
    );
    let removed = place.command(&["images", "remove", &name]).output().unwrap();
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    for folder in ["layers", "trees", "names", "drafts"] {
        let left = std::fs::read_dir(place.path("data/images").join(folder))
            .unwrap()
            .count();
        assert_eq!(left, 0, "{folder}");
    }
}

#[test]
fn image_content_at_our_mount_points_is_ignored() {
    let _turn = images!();
    let place = TestDir::new();
    let hostile = layer(&[
        Entry::Link("proc", "/tmp"),
        Entry::Link("dev", "/home/user"),
        Entry::File("home", 0o644, b"a file"),
        Entry::Link("tmp", "../../../../etc"),
        Entry::Link("opt", "/proc"),
        Entry::Link("var", "/"),
    ]);
    Image::of(&[shell(), hostile]).write(&place.path("image"));
    let name = format!("oci:{}", place.path("image").display());
    let output = run(
        &place,
        &name,
        "echo a > /tmp/a; cat /tmp/a /proc/self/comm; ls /dev/null; echo b > b; cat /home/user/b",
    );
    assert_eq!(
        text(&output.stdout),
        "a\ncat\n/dev/null\nb\n",
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_jail_also_isolates_an_image() {
    let _turn = images!();
    let place = TestDir::new();
    Image::of(&[shell()]).write(&place.path("image"));
    let name = format!("oci:{}", place.path("image").display());
    let code = "/bin/busybox mount -t tmpfs x /tmp 2>&1 | head -n 1\n/bin/busybox unshare -U /bin/true 2>&1 | head -n 1\n\
                /bin/busybox chroot / /bin/sh -c 'echo in' 2>&1 | head -n 1\n/bin/busybox mknod /tmp/n c 1 3 2>&1 | head -n 1\n\
                (echo 1 > /proc/sys/kernel/hostname) 2>&1\ncat /proc/1/environ 2>&1\n/bin/busybox grep -c /host /proc/self/mountinfo\n\
                /bin/busybox grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status\n/bin/busybox wget -T 2 http://192.0.2.1/ 2>&1 | head -n 1\n\
                /bin/busybox grep lowerdir /proc/self/mountinfo";
    let output = run(&place, &name, code);
    let said = text(&output.stdout);
    for expected in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
    let refused = said.matches("Operation not permitted").count() + said.matches("Permission denied").count();
    assert!(refused >= 4, "{said}");
    assert!(!said.contains("\nin\n"), "{said}");
    let data = place.path("data").display().to_string();
    assert!(!said.contains(&data), "the mount table tells where images are: {said}");
}

#[test]
fn concurrent_requests_share_one_pull_of_an_image() {
    let _turn = images!();
    let image = Image::of(&[shell(), layer(&[Entry::File("mark", 0o644, b"of the registry\n")])]);
    let registry = Registry::with(&image);
    let place = open_place();
    let server = Client::start(&mut place.command(&["serve"]));
    let waiting: Vec<_> = (0..3)
        .map(|_| server.begin_call("create_sandbox", json!({"image": registry.name()})))
        .collect();
    for one in waiting {
        let answer = one.answer();
        assert!(!answer.is_error(), "{}", answer.all());
        let id = answer.data()["sandbox_id"].as_str().unwrap().to_owned();
        let ran = server.call(
            "execute_code",
            json!({"sandbox_id": id, "language": "bash", "code": "cat /mark; echo $FROM_THE_IMAGE"}),
        );
        assert_eq!(ran.output(), "of the registry\nyes\n", "{}", ran.all());
        // A language missing from the image is reported by name.
        let absent = server.call("execute_code", json!({"sandbox_id": id, "code": "print(1)"}));
        assert!(absent.all().contains("python is not in the image"), "{}", absent.all());
    }
    for one in &image.layers {
        assert_eq!(registry.asked(&format!("blobs/{one}")), 1);
    }
    // A sandbox uses the image, so it stays.
    let kept = place.command(&["images", "prune"]).output().unwrap();
    assert!(text(&kept.stdout).starts_with("0 images"), "{kept:?}");
    server.hang_up();
}

#[test]
fn callers_may_name_only_allowed_images() {
    let _turn = images!();
    let image = Image::of(&[shell()]);
    let registry = Registry::with(&image);
    let place = TestDir::new();
    image.write(&place.path("image"));
    let server = Client::start(&mut place.command(&["serve"]));
    let local = format!("oci:{}", place.path("image").display());
    for name in [
        registry.name().as_str(),
        &local,
        "ghcr.io/team/tool",
        "docker-archive:/etc/hostname",
    ] {
        let answer = server.call("create_sandbox", json!({"image": name}));
        answer.refused("denied_by_policy");
    }
    server
        .call("create_sandbox", json!({"image": "Not/A/Name"}))
        .refused("invalid_argument");
    assert_eq!(registry.asked(""), 0, "nobody was asked");
    // A folder that the operator allowed, and a link that leads out of it.
    let folder = place.work();
    image.write(&folder.join("good"));
    let allowing = TestDir::with_settings(&format!("upload_from = [\"{}\"]\n", folder.display()));
    std::os::unix::fs::symlink("/etc", folder.join("link")).unwrap();
    let server = Client::start(&mut allowing.command(&["serve"]));
    let good = server.call(
        "create_sandbox",
        json!({"image": format!("oci:{}/good", folder.display())}),
    );
    assert!(!good.is_error(), "{}", good.all());
    let out = server.call(
        "create_sandbox",
        json!({"image": format!("oci:{}/link", folder.display())}),
    );
    out.refused("denied_by_policy");
}

#[test]
fn a_lying_or_failing_registry_is_reported_and_leaves_nothing() {
    let _turn = images!();
    let image = Image::of(&[shell()]);
    let place = open_place();
    let server = Client::start(&mut place.command(&["serve"]));
    let blob = format!("blobs/{}", image.layers[0]);
    let try_with = |path: &str, answer: Answer, name: &dyn Fn(&Registry) -> String, code: &str, word: &str| {
        let registry = Registry::with(&image);
        registry.say(path, answer);
        let answer = server.call("create_sandbox", json!({"image": name(&registry)}));
        let said = answer.refused(code);
        assert!(said.contains(word), "{path}: {said}");
    };
    let plain = |registry: &Registry| registry.name();
    let by_digest =
        |registry: &Registry| format!("{}@{}", registry.name(), digest(image.manifest.to_string().as_bytes()));
    let lies = |bytes: &[u8]| Answer::Bytes(bytes.to_vec());
    let other = gzip(&layer(&[Entry::File("bin/sh", 0o755, b"evil")]));
    try_with(&blob, lies(&other), &plain, "image_unavailable", "digest");
    let mut longer = image.blobs[&image.layers[0]].clone();
    longer.extend_from_slice(b"more");
    try_with(&blob, lies(&longer), &plain, "limit_reached", "bytes");
    try_with(
        &blob,
        Answer::Status(404, ""),
        &plain,
        "image_unavailable",
        "does not have this image",
    );
    try_with(
        &blob,
        Answer::Status(307, "Location: http://127.0.0.1:9/x\r\n"),
        &plain,
        "denied_by_policy",
        "not encrypted",
    );
    try_with(
        &blob,
        Answer::Status(307, "Location: https://169.254.169.254/x\r\n"),
        &plain,
        "denied_by_policy",
        "public internet",
    );
    try_with(
        "manifests/latest",
        Answer::Status(307, "Location: /v2/team/tool/manifests/latest\r\n"),
        &plain,
        "image_unavailable",
        "too many times",
    );
    try_with(
        "manifests/latest",
        lies(b"<html>"),
        &plain,
        "image_unavailable",
        "manifest",
    );
    try_with(
        "manifests/latest",
        Answer::Status(401, ""),
        &plain,
        "image_unavailable",
        "login",
    );
    let realm = "WWW-Authenticate: Bearer realm=\"https://10.0.0.1/token\",service=\"x\"\r\n";
    try_with(
        "manifests/latest",
        Answer::Status(401, realm),
        &plain,
        "denied_by_policy",
        "public internet",
    );
    try_with(
        "manifests/latest",
        Answer::Status(429, ""),
        &plain,
        "image_unavailable",
        "no more requests",
    );
    try_with(
        "manifests/latest",
        Answer::Status(500, ""),
        &plain,
        "image_unavailable",
        "500",
    );
    let mut manifest = image.manifest.clone();
    manifest["annotations"] = json!({"changed": "yes"});
    let path = format!("manifests/{}", digest(image.manifest.to_string().as_bytes()));
    try_with(
        &path,
        lies(manifest.to_string().as_bytes()),
        &by_digest,
        "image_unavailable",
        "digest",
    );
    // The registry has ended.
    let gone = server.call("create_sandbox", json!({"image": "127.0.0.1:9/team/tool"}));
    gone.refused("image_unavailable");
    nothing_is_left(&place);
}

#[test]
fn hostile_layers_are_refused_and_touch_nothing_outside() {
    let _turn = images!();
    let place = TestDir::new();
    let outside = place.path("outside");
    std::fs::create_dir(&outside).unwrap();
    let away = outside.display().to_string();
    for (number, (entries, word)) in [
        (
            vec![Entry::File("../../../../../../tmp/escape", 0o644, b"x")],
            "a name contains ..",
        ),
        (vec![Entry::HardLink("h", "../../etc/passwd")], "a name contains .."),
        (vec![Entry::Link("l", &away), Entry::HardLink("h", "l/x")], "hard link"),
        (vec![Entry::File("a/.wh...", 0o644, b"")], "outside its folder"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = place.path(&format!("image{number}"));
        Image::of(&[layer(&entries)]).write(&folder);
        let name = format!("oci:{}", folder.display());
        let output = place.command(&["images", "pull", &name]).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(word), "{word}: {said}");
        nothing_is_left(&place);
    }
    // A link out of the image is only a link, also for the layer above.
    let below = layer(&[Entry::Link("l", &away), Entry::Link("etc", &away)]);
    let above = layer(&[Entry::File("l/x", 0o644, b"x"), Entry::File("l/.wh.y", 0o644, b"")]);
    std::fs::write(outside.join("y"), "stays").unwrap();
    Image::of(&[shell(), below, above]).write(&place.path("image"));
    let name = format!("oci:{}", place.path("image").display());
    let output = place.command(&["images", "pull", &name]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    // Layers with a wrong unpacked size, and one that exceeds the allowed size.
    let mut lying = Image::of(&[shell()]);
    let other = gzip(&layer(&[Entry::File("x", 0o644, b"y")]));
    lying.manifest["layers"] = json!([{"digest": digest(&other), "size": other.len()}]);
    lying.blobs.insert(digest(&other), other);
    lying.write(&place.path("lying"));
    let name = format!("oci:{}", place.path("lying").display());
    let output = place.command(&["images", "pull", &name]).output().unwrap();
    assert!(text(&output.stderr).contains("digest"), "{}", text(&output.stderr));
    let place = TestDir::with_settings("[images]\nunpacked_mb = 1\n");
    let zeros = vec![0; 3 << 20];
    Image::of(&[layer(&[Entry::File("zeros", 0o644, &zeros)])]).write(&place.path("bomb"));
    let name = format!("oci:{}", place.path("bomb").display());
    let output = place.command(&["images", "pull", &name]).output().unwrap();
    assert!(
        text(&output.stderr).contains("more than 1 MiB"),
        "{}",
        text(&output.stderr)
    );
    nothing_is_left(&place);
}

/// A running command.
struct RunningCommand(Child);

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn drafts(place: &TestDir) -> Vec<PathBuf> {
    let found = std::fs::read_dir(place.path("data/images/drafts"))
        .into_iter()
        .flatten()
        .flatten();
    found.map(|entry| entry.path()).collect()
}

/// Returns a registry that sends an image's layer except for its last byte.
fn registry_that_stalls() -> Registry {
    let image = Image::of(&[shell()]);
    let registry = Registry::with(&image);
    let whole = image.blobs[&image.layers[0]].clone();
    registry.say(
        &format!("blobs/{}", image.layers[0]),
        Answer::Stalls(whole[..whole.len() - 1].to_vec()),
    );
    registry
}

#[test]
fn an_aborted_or_killed_pull_leaves_nothing() {
    let _turn = images!();
    let registry = registry_that_stalls();
    let place = TestDir::new();
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let mut command = place.command(&["images", "pull", &registry.name()]);
        let started = RunningCommand(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until(DEFAULT_TIMEOUT, "the layer is being unpacked", || {
            drafts(&place)
                .iter()
                .any(|draft| draft.join("files/bin").exists())
                .then_some(())
        });
        let pid = rustix::process::Pid::from_raw(i32::try_from(started.0.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        let mut started = started;
        started.0.wait().unwrap();
        if signal == rustix::process::Signal::KILL {
            // The next command cleans up.
            assert!(place.command(&["images", "list"]).output().unwrap().status.success());
        }
        nothing_is_left(&place);
    }
}

#[test]
fn a_call_sees_pull_progress_and_its_cancellation_aborts_the_pull() {
    let _turn = images!();
    let registry = registry_that_stalls();
    let place = open_place();
    let server = Client::start(&mut place.command(&["serve"]));
    let arguments = json!({"image": registry.name()});
    let params = json!({"name": "create_sandbox", "arguments": arguments, "_meta": {"progressToken": "p"}});
    let id = server.begin("tools/call", params).id;
    until(DEFAULT_TIMEOUT, "the answer reports the pull", || {
        let told = server.notifications();
        let mut notes = told
            .iter()
            .map(|note| note["params"]["message"].as_str().unwrap_or_default());
        notes
            .any(|said| said.contains("pulling") && said.contains("layer 1 of 1") && said.contains("MB"))
            .then_some(())
    });
    until(DEFAULT_TIMEOUT, "the layer is being unpacked", || {
        (!drafts(&place).is_empty()).then_some(())
    });
    server.notify("notifications/cancelled", json!({"requestId": id}));
    until(DEFAULT_TIMEOUT, "the pull has ended", || {
        drafts(&place).is_empty().then_some(())
    });
    nothing_is_left(&place);
    assert_eq!(server.text("print(1)").trim(), "1");
}

#[test]
fn a_real_registry_is_pulled_from_by_name_digest_and_login() {
    let _turn = images!();
    let has = |program: &str| {
        ["/usr/bin", "/bin"]
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    };
    if !has("docker-registry") || !has("skopeo") {
        skip(
            "images::a_real_registry",
            "no registry (apt-get install docker-registry skopeo)",
        );
        return;
    }
    let place = TestDir::new();
    Image::of(&[shell(), layer(&[Entry::File("mark", 0o644, b"real\n")])]).write(&place.path("image"));
    // `secret`.
    place.write(
        "users",
        "me:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n",
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    drop(listener);
    let config = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{host}'}}\nauth: {{htpasswd: {{realm: r, path: {}}}}}\n",
        place.path("registry").display(),
        place.path("work/users").display()
    );
    let file = place.write("registry.yml", config);
    let mut command = Command::new("docker-registry");
    let quiet = command
        .arg("serve")
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _registry = RunningCommand(quiet.spawn().unwrap());
    until(DEFAULT_TIMEOUT, "the registry listens", || {
        std::net::TcpStream::connect(&host).ok()
    });
    let pushed = Command::new("skopeo")
        .args([
            "copy",
            "--insecure-policy",
            "--dest-tls-verify=false",
            "--dest-creds",
            "me:secret",
        ])
        .arg(format!("oci:{}", place.path("image").display()))
        .arg(format!("docker://{host}/team/tool:1"))
        .output()
        .unwrap();
    assert!(pushed.status.success(), "{}", text(&pushed.stderr));
    let name = format!("{host}/team/tool:1");
    let refused = place.command(&["images", "pull", &name]).output().unwrap();
    assert!(text(&refused.stderr).contains("login"), "{}", text(&refused.stderr));
    std::fs::create_dir(place.path("home/.docker")).unwrap();
    let logins = json!({"auths": {&host: {"auth": "bWU6c2VjcmV0"}}});
    std::fs::write(place.path("home/.docker/config.json"), logins.to_string()).unwrap();
    let pulled = place.command(&["images", "pull", &name]).output().unwrap();
    assert!(pulled.status.success(), "{}", text(&pulled.stderr));
    assert_eq!(run(&place, &name, "cat /mark").stdout, b"real\n");
    let said = text(&pulled.stdout);
    let digest = said.split_whitespace().find(|word| word.contains("sha256:")).unwrap();
    let digest = &digest[digest.find("sha256:").unwrap()..][..71];
    let output = run(&place, &format!("{host}/team/tool@{digest}"), "cat /mark");
    assert_eq!(text(&output.stdout), "real\n", "{}", text(&output.stderr));
}

#[test]
fn a_saved_image_with_python_keeps_variables() {
    let _turn = images!();
    fn here() {}
    let Some(daemon) = Daemon::find(&name_of(here)) else {
        return;
    };
    let place = TestDir::new();
    let archive = place.path("work/python.tar");
    daemon.say(&["save", "-o", &archive.display().to_string(), &daemon.image]);
    let place = TestDir::with_settings(&format!("upload_from = [\"{}\"]\n", place.work().display()));
    let server = Client::start(&mut place.command(&["serve"]));
    let name = format!("docker-archive:{}", archive.display());
    // A pull outlives the call that began it.
    let made = until(DEFAULT_TIMEOUT, "the image is there", || {
        let made = server.call("create_sandbox", json!({"image": name}));
        (!made.all().contains("is being pulled")).then_some(made)
    });
    assert!(!made.is_error(), "{}", made.all());
    let id = made.data()["sandbox_id"].as_str().unwrap().to_owned();
    let run = |code: &str| server.call("execute_code", json!({"sandbox_id": id, "code": code}));
    assert!(!run("import os, json, ssl, sqlite3\nx = os.environ['FROM_THE_IMAGE']").is_error());
    assert_eq!(
        run("print(x, os.getcwd(), os.getuid())").output(),
        "yes /home/user 1000\n"
    );
    let packages = server.call("install_package", json!({"sandbox_id": id, "package": "demo"}));
    assert!(
        packages.is_error() && packages.all().contains("of an image"),
        "{}",
        packages.all()
    );
}
