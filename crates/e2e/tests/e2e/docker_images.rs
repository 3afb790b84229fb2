//! Container images: missing languages, registries with logins, daemons that drop the connection. Needs a daemon,
//! images and Debian's `docker-registry`, as `.ci/docker` and `.ci/run` provide them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use sandcell_e2e::client::Client;
use sandcell_e2e::docker::{Daemon, variable};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{name_of, skip, turns::Turn, until};

/// Returns the daemon for tests, and a shared turn.
fn daemon(test: &str) -> Option<(Daemon, Turn)> {
    Some((Daemon::find(test)?, Turn::shared()))
}

/// Serves the files of a folder and records the requests.
struct Mirror {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Mirror {
    fn serve(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (folder, noted) = (folder.to_owned(), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (folder, noted) = (folder.clone(), Arc::clone(&noted));
                std::thread::spawn(move || answer(stream, &folder, &noted));
            }
        });
        Self { port, asked }
    }
}

fn answer(mut stream: TcpStream, folder: &Path, noted: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 2 {
        line.clear();
    }
    noted.lock().unwrap().push(path.clone());
    let name = path.rsplit('/').next()?;
    match std::fs::read(folder.join(name)) {
        Ok(bytes) => {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                bytes.len()
            )
            .ok()?;
            stream.write_all(&bytes).ok()
        }
        Err(_) => write!(
            stream,
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .ok(),
    }
}

/// Builds an image of this name whose package manager uses this port.
fn image_of_mirror(daemon: &Daemon, base: &str, port: u16, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("sources.list");
    std::fs::write(&list, format!("deb [trusted=yes] http://127.0.0.1:{port} ./\n")).unwrap();
    let id = daemon.say(&["create", base, "/bin/sh"]);
    daemon.say(&[
        "cp",
        &list.display().to_string(),
        &format!("{id}:/etc/apt/sources.list"),
    ]);
    daemon.say(&["commit", &id, name]);
    daemon.say(&["rm", &id]);
}

/// Returns the prepared images that were made from this one.
fn prepared(place: &TestDir, of: &str) -> Vec<Value> {
    let output = place.command(&["prepared", "list", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    all.into_iter().filter(|image| image["of"] == of).collect()
}

#[test]
fn python_is_installed_once_into_an_image_without_it_and_runs_fully_isolated() {
    fn here() {}
    let test = name_of(here);
    let Some((daemon, _turn)) = daemon(&test) else { return };
    let host = &daemon.host;
    let (Some(base), Some(folder)) = (
        variable("SANDCELL_TEST_APT_IMAGE"),
        variable("SANDCELL_TEST_APT_MIRROR"),
    ) else {
        skip(&test, "no image with apt-get (eval \"$(.ci/docker)\")");
        return;
    };
    let mirror = Mirror::serve(Path::new(&folder));
    let name = format!("sandcell-test/apt:{}", std::process::id());
    image_of_mirror(&daemon, &base, mirror.port, &name);
    let settings = |mirrors: &str| {
        TestDir::with_settings(&format!(
            "backend = \"docker\"\ntoolset = \"container\"\n[network]\nprivate = [\"127.0.0.1\"]\n[docker]\nhost = \"{host}\"\n\
             image = \"{name}\"\npull = \"never\"\nmirrors = [{mirrors}]\n[pool]\nparked = 0\n"
        ))
    };
    // Without the mirror among the allowed hosts, the error names the missing one.
    let closed = settings("\"deb.debian.org\"");
    let server = Client::start(&mut closed.command(&["serve"]));
    let refused = server
        .call("initialize_sandbox", json!({"image": name}))
        .refused("image_unavailable");
    assert!(
        refused.contains("docker.mirrors") && refused.contains("127.0.0.1"),
        "{refused}"
    );
    assert!(mirror.asked.lock().unwrap().is_empty());
    drop(server);

    let place = settings(&format!("\"127.0.0.1:{}\"", mirror.port));
    let server = Client::start(&mut place.command(&["serve"]));
    // Concurrent requests make one installation.
    let ids: Vec<_> = std::thread::scope(|scope| {
        let call = || server.call("initialize_sandbox", json!({"image": name}));
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(call)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(ids.iter().any(|answer| !answer.is_error()), "{ids:?}\n{}", server.log());
    let debs = mirror
        .asked
        .lock()
        .unwrap()
        .iter()
        .filter(|path| path.ends_with(".deb"))
        .count();
    assert_eq!(debs, 1, "{:?}", mirror.asked.lock().unwrap());
    let made = server.call("initialize_sandbox", json!({"image": name}));
    assert!(!made.is_error(), "{made:?}");
    let code = "import os, socket\n\
        caps = [line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')]\n\
        root = 'written'\n\
        try:\n    open('/usr/bin/new', 'w')\nexcept OSError as error:\n    root = 'closed'\n\
        links = sorted(os.listdir('/sys/class/net')) if os.path.isdir('/sys/class/net') else []\n\
        proxy = [name for name in os.environ if 'proxy' in name.lower()]\n\
        out = socket.socket().connect_ex(('127.0.0.1', 3128))\n\
        print(os.getuid() >= 30000, set(''.join(caps)), root, proxy, out != 0, os.environ.get('FROM_THE_IMAGE'))";
    let ran = server.call("execute_code", json!({"code": code}));
    assert!(ran.output().contains("True {'0'} closed [] True yes"), "{ran:?}");
    let own = prepared(&place, &name);
    assert_eq!(own.len(), 1, "{own:?}");
    assert_eq!(own[0]["adds"], "python", "{own:?}");
    // The container of the installation is removed, and the package lists are not in the image.
    assert!(
        daemon
            .say(&["ps", "--all", "--format", "{{.Command}}", "--no-trunc"])
            .lines()
            .all(|line| !line.contains("installing"))
    );
    drop(server);

    // Another server finds the prepared image, without the mirror.
    let asked = mirror.asked.lock().unwrap().len();
    let server = Client::start(&mut place.command(&["serve"]));
    let made = server.call("initialize_sandbox", json!({"image": name}));
    assert!(!made.is_error(), "{made:?}");
    assert_eq!(mirror.asked.lock().unwrap().len(), asked);
    drop(server);

    // The operator can remove the image.
    until(
        Duration::from_secs(20),
        "its containers are gone and it can be removed",
        || {
            let pruned = place.command(&["prepared", "prune"]).output().unwrap();
            assert!(pruned.status.success(), "{pruned:?}");
            prepared(&place, &name).is_empty().then_some(())
        },
    );
    daemon.say(&["rmi", "--force", &name]);
}

#[test]
fn a_failed_install_reports_the_package_manager_error_and_leaves_nothing() {
    fn here() {}
    let test = name_of(here);
    let Some((daemon, _turn)) = daemon(&test) else { return };
    let host = &daemon.host;
    let Some(base) = variable("SANDCELL_TEST_APT_IMAGE") else {
        skip(&test, "no image with apt-get (eval \"$(.ci/docker)\")");
        return;
    };
    let empty = tempfile::tempdir().unwrap();
    std::fs::write(empty.path().join("Packages"), "").unwrap();
    let mirror = Mirror::serve(empty.path());
    let name = format!("sandcell-test/apt-empty:{}", std::process::id());
    image_of_mirror(&daemon, &base, mirror.port, &name);
    let place = TestDir::with_settings(&format!(
        "backend = \"docker\"\n[network]\nprivate = [\"127.0.0.1\"]\n[docker]\nhost = \"{host}\"\nimage = \"{name}\"\npull = \"never\"\n\
         mirrors = [\"127.0.0.1:{}\"]\n[pool]\nparked = 0\n",
        mirror.port
    ));
    let server = Client::start(&mut place.command(&["serve"]));
    let said = server.call("create_sandbox", json!({})).refused("image_unavailable");
    assert!(said.contains("python") && said.contains("E: "), "{said}");
    let pid = format!("/{}/", server.pid());
    until(Duration::from_secs(20), "its containers go", || {
        let all = daemon.say(&["ps", "--all", "--format", "{{.Label \"dev.sandcell.server\"}}"]);
        (!all.contains(&pid)).then_some(())
    });
    drop(server);
    daemon.say(&["rmi", "--force", &name]);
}

/// Debian's registry with one user, on loopback.
struct Registry {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `robot:hunter2` in htpasswd's format.
const HTPASSWD_LINE: &str = "robot:$2y$05$abcdefghijklmnopqrstuuoXuKqgZXLiJqzfmMXDDhSFPIvxV7t8.\n";

impl Registry {
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        std::fs::write(at("passwords"), HTPASSWD_LINE).unwrap();
        std::fs::write(
            at("config.yml"),
            format!(
                "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n\
                 auth: {{htpasswd: {{realm: tests, path: {}}}}}\n",
                at("data"),
                at("passwords")
            ),
        )
        .unwrap();
        let child = Command::new("docker-registry")
            .args(["serve", &at("config.yml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let registry = Self {
            child,
            port,
            _folder: folder,
        };
        until(Duration::from_secs(20), "the registry answers", || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Some(registry)
    }
}

/// A folder as `docker login` writes it.
fn login(folder: &Path, text: &Value) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), text.to_string()).unwrap();
    folder.to_owned()
}

#[test]
fn private_images_are_pulled_with_docker_login_credentials() {
    fn here() {}
    let test = name_of(here);
    let Some((daemon, _turn)) = daemon(&test) else { return };
    let (host, image) = (&daemon.host, &daemon.image);
    let Some(registry) = Registry::start() else {
        skip(&test, "no docker-registry (Debian's package of that name)");
        return;
    };
    let at = format!("127.0.0.1:{}", registry.port);
    let name = format!("{at}/private/python:{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    // `robot:hunter2`
    let known = json!({"auths": {&at: {"auth": "cm9ib3Q6aHVudGVyMg=="}}});
    let with = login(&folder.path().join("with"), &known);
    daemon.say(&["tag", image, &name]);
    let config = with.display().to_string();
    daemon.say(&["--config", &config, "push", "--quiet", &name]);
    daemon.say(&["rmi", &name]);
    let place = TestDir::with_settings(&format!(
        "backend = \"docker\"\n[docker]\nhost = \"{host}\"\nimage = \"{name}\"\n[pool]\nparked = 0\n"
    ));
    let ask = |config: &Path, path: Option<&str>| {
        let mut command = place.command(&["serve"]);
        command.env("DOCKER_CONFIG", config);
        if let Some(path) = path {
            command.env("PATH", path);
        }
        let server = Client::start(&mut command);
        let answer = server.call("create_sandbox", json!({"image": name}));
        (answer, server.log())
    };
    // No credentials; a wrong password; an empty file.
    let without = login(&folder.path().join("without"), &json!({}));
    let (nobody, _) = ask(&without, None);
    let said = nobody.refused("image_unavailable");
    assert!(said.contains("docker login") && said.contains(&at), "{said}");
    let wrong = login(
        &folder.path().join("wrong"),
        &json!({"auths": {&at: {"username": "robot", "password": "x"}}}),
    );
    let said = ask(&wrong, None).0.refused("image_unavailable");
    assert!(said.contains("docker login"), "{said}");
    let broken = folder.path().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("config.json"), "{hunter2").unwrap();
    let (answer, log) = ask(&broken, None);
    let said = answer.refused("image_unavailable");
    assert!(
        said.contains("config.json") && !said.contains("hunter2") && !log.contains("hunter2"),
        "{said}"
    );
    // With a credential helper.
    let tools = folder.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    let program = tools.join("docker-credential-tests");
    std::fs::write(
        &program,
        format!("#!/bin/sh\nread server\n[ \"$1 $server\" = \"get {at}\" ] && echo '{{\"Username\": \"robot\", \"Secret\": \"hunter2\"}}'\n"),
    )
    .unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let helper = login(&folder.path().join("helper"), &json!({"credHelpers": {&at: "tests"}}));
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let (made, log) = ask(&helper, Some(&path));
    assert!(!made.is_error(), "{made:?}\n{log}");
    assert!(!log.contains("hunter2"), "{log}");
    daemon.say(&["rmi", "--force", &name]);
    // With credentials in the file.
    let (made, log) = ask(&with, None);
    assert!(!made.is_error(), "{made:?}");
    assert!(!log.contains("hunter2"), "{log}");
    // An image that the registry does not have.
    let server = Client::start(place.command(&["serve"]).env("DOCKER_CONFIG", &with));
    let missing = server.call("create_sandbox", json!({"image": format!("{at}/private/none:1")}));
    let said = missing.refused("image_unavailable");
    assert!(said.contains("check the name"), "{said}");
    drop(server);
    daemon.say(&["rmi", "--force", &name]);
}

/// A proxy to the real daemon that answers pulls itself.
fn between(folder: &Path, real: &str, pull: fn(&mut UnixStream)) -> String {
    let path = folder.join("between.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let real = real.strip_prefix("unix://").unwrap().to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let real = real.clone();
            std::thread::spawn(move || carry(client, &real, pull));
        }
    });
    format!("unix://{}", path.display())
}

fn carry(mut client: UnixStream, real: &str, pull: fn(&mut UnixStream)) -> Option<()> {
    let mut daemon = UnixStream::connect(real).ok()?;
    let (mut back, mut to_client) = (daemon.try_clone().ok()?, client.try_clone().ok()?);
    std::thread::spawn(move || std::io::copy(&mut back, &mut to_client));
    let mut bytes = [0; 64 << 10];
    loop {
        let count = client.read(&mut bytes).ok().filter(|count| *count > 0)?;
        // A request's head arrives in one piece.
        if bytes[..count].windows(14).any(|part| part == b"/images/create") {
            pull(&mut client);
            let _ = client.shutdown(std::net::Shutdown::Both);
            return None;
        }
        daemon.write_all(&bytes[..count]).ok()?;
    }
}

fn chunk(stream: &mut UnixStream, text: &str) {
    let _ = write!(stream, "{:x}\r\n{text}\n\r\n", text.len() + 1);
}

const CHUNKED_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_slow_pull_shows_progress_and_a_failed_one_is_reported() {
    fn here() {}
    let Some((daemon, _turn)) = daemon(&name_of(here)) else {
        return;
    };
    let (host, image) = (&daemon.host, &daemon.image);
    let started = |pull: fn(&mut UnixStream)| {
        let folder = tempfile::tempdir().unwrap();
        let socket = between(folder.path(), host, pull);
        let place = TestDir::with_settings(&format!(
            "backend = \"docker\"\n[docker]\nhost = \"{socket}\"\nimage = \"{image}\"\n[pool]\nparked = 0\n"
        ));
        let server = Client::start(&mut place.command(&["serve"]));
        (server, place, folder)
    };
    let (server, _place, _folder) = started(|stream| {
        let _ = stream.write_all(CHUNKED_HEAD);
        chunk(
            stream,
            r#"{"id":"a","status":"Downloading","progressDetail":{"current":3000000,"total":9000000}}"#,
        );
        std::thread::sleep(Duration::from_secs(3));
        chunk(
            stream,
            r#"{"errorDetail":{"message":"write /x: no space left on device"},"error":"write /x: no space left on device"}"#,
        );
        let _ = stream.write_all(b"0\r\n\r\n");
    });
    let call =
        json!({"name": "create_sandbox", "arguments": {"image": "slow.example/a:1"}, "_meta": {"progressToken": "p"}});
    let answer = server.request("tools/call", call);
    let said = answer.to_string();
    assert!(
        said.contains("no space left") && said.contains("docker system"),
        "{said}"
    );
    let told = server.notifications();
    let pulling = told.iter().find(|told| told.to_string().contains("3 of 9 MB"));
    let pulling = pulling.unwrap_or_else(|| panic!("{told:?}"));
    assert!(pulling.to_string().contains("pulling slow.example/a:1"), "{pulling}");

    let (server, _place, _folder) = started(|stream| {
        let _ = stream.write_all(CHUNKED_HEAD);
        chunk(
            stream,
            r#"{"id":"a","status":"Downloading","progressDetail":{"current":1,"total":9}}"#,
        );
    });
    let said = server
        .call("create_sandbox", json!({"image": "broken.example/a:1"}))
        .refused("image_unavailable");
    assert!(said.contains("broken.example/a:1"), "{said}");
    // The failed pull leaves the existing image unchanged.
    assert_eq!(server.text("print(1)").trim(), "1");
}

#[test]
fn a_copy_on_write_mount_is_private_to_the_sandbox() {
    fn here() {}
    let Some((daemon, _turn)) = daemon(&name_of(here)) else {
        return;
    };
    let (host, image) = (&daemon.host, &daemon.image);
    let project = tempfile::tempdir().unwrap();
    let at = |name: &str| project.path().join(name);
    std::fs::create_dir_all(at("deep/er")).unwrap();
    let long = "long-".repeat(30);
    for (name, text) in [("note", "of the operator"), ("deep/er/file", "x"), (&long, "long")] {
        std::fs::write(at(name), text).unwrap();
    }
    std::fs::write(at("run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(at("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("note", at("link")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd-of-nowhere", at("dangling")).unwrap();
    std::fs::set_permissions(project.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let place = |limits: &str| {
        TestDir::with_settings(&format!(
            "backend = \"docker\"\n[[mount]]\nhost = \"{}\"\nsandbox = \"/mnt/project\"\nmode = \"cow\"\n{limits}\n[docker]\nhost = \"{host}\"\n\
             image = \"{image}\"\npull = \"never\"\n",
            project.path().display()
        ))
    };
    let own = place("[limits]\ndisk_mb = 32");
    let server = Client::start(&mut own.command(&["serve"]));
    let code = format!(
        "import os, subprocess\nos.chdir('/mnt/project')\n\
         print(open('link').read(), os.readlink('dangling'), open('deep/er/file').read(), open('{long}').read())\n\
         print(subprocess.run(['./run.sh'], capture_output=True, text=True).stdout.strip())\n\
         open('note', 'a').write(' and of the code')\nos.remove('deep/er/file')\nopen('new', 'w').write('n')\n\
         print(open('note').read())"
    );
    let text = server.text(&code);
    assert!(
        text.contains("of the operator /etc/passwd-of-nowhere x long\nran\n"),
        "{text}"
    );
    assert!(text.contains("of the operator and of the code"), "{text}");
    assert_eq!(std::fs::read_to_string(at("note")).unwrap(), "of the operator");
    assert!(at("deep/er/file").exists() && !at("new").exists());
    // Another sandbox has a separate copy.
    let other = server.call("create_sandbox", json!({}));
    let code = json!({"code": "print(open('/mnt/project/note').read())", "sandbox_id": other.data()["sandbox_id"]});
    assert_eq!(server.call("execute_code", code).output().trim(), "of the operator");
    // The copy counts for the disk of the sandbox.
    let full = server.run("open('/mnt/project/big', 'wb').write(bytes(64 << 20))");
    assert_ne!(full.status(), "ok", "{full:?}");
    drop(server);
    // A file that does not fit is reported, and no sandbox runs without it.
    std::fs::write(at("large"), vec![b'x'; 20 << 20]).unwrap();
    std::fs::set_permissions(at("large"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let small = place("[limits]\ndisk_mb = 8");
    let said = Client::start(&mut small.command(&["serve"]))
        .run("1")
        .refused("backend_unavailable");
    assert!(said.contains("does not fit") && said.contains("disk_mb"), "{said}");
}

#[test]
fn doctor_reports_an_unavailable_image_and_runs_no_attacks() {
    fn here() {}
    let Some((daemon, _turn)) = daemon(&name_of(here)) else {
        return;
    };
    let host = &daemon.host;
    let place = TestDir::with_settings(&format!(
        "backend = \"docker\"\n[docker]\nhost = \"{host}\"\nimage = \"127.0.0.1:9/none:1\"\n"
    ));
    let output = place
        .command(&["doctor", "--json"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &report["backends"][0];
    assert_eq!(
        (&row["available"], &report["attacks"]["tried"]),
        (&json!(false), &json!(0)),
        "{row}"
    );
    let reason = row["reason"].as_str().unwrap();
    assert!(
        reason.contains("127.0.0.1:9/none:1") && reason.contains("refused"),
        "{row}"
    );
    assert!(
        row["remedy"].as_str().unwrap().contains("reaches the registry"),
        "{row}"
    );
}

/// A pull that never ends by itself. A closed connection shows that the daemon's client cancelled it.
fn endless(stream: &mut UnixStream) {
    let _ = stream.write_all(CHUNKED_HEAD);
    for done in 1.. {
        let step = format!(
            r#"{{"id":"a","status":"Downloading","progressDetail":{{"current":{done}000000,"total":900000000}}}}"#
        );
        if write!(stream, "{:x}\r\n{step}\n\r\n", step.len() + 1).is_err() {
            CANCELLED_PULLS.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The number of cancelled pulls.
static CANCELLED_PULLS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

#[test]
fn a_pull_is_aborted_when_its_request_is_cancelled() {
    fn here() {}
    let Some((daemon, _turn)) = daemon(&name_of(here)) else {
        return;
    };
    let (host, image) = (&daemon.host, &daemon.image);
    let folder = tempfile::tempdir().unwrap();
    let socket = between(folder.path(), host, endless);
    let place = TestDir::with_settings(&format!(
        "backend = \"docker\"\n[docker]\nhost = \"{socket}\"\nimage = \"{image}\"\n[pool]\nparked = 0\n"
    ));
    let ended = || CANCELLED_PULLS.load(std::sync::atomic::Ordering::SeqCst);
    let server = Client::start(&mut place.command(&["serve"]));
    let within = |what: &str, look: &dyn Fn() -> bool| until(Duration::from_secs(20), what, || look().then_some(()));
    let pull = |name: &str, token: &str| {
        let call = json!({"name": "create_sandbox", "arguments": {"image": name}, "_meta": {"progressToken": token}});
        let id = server.begin("tools/call", call).id;
        within("the answer reports the pull", &|| {
            server
                .notifications()
                .iter()
                .any(|note| note.to_string().contains(name) && note["params"]["progressToken"] == token)
        });
        id
    };
    let back = |id: u64| server.notify("notifications/cancelled", json!({"requestId": id}));
    let one = pull("slow.example/a:1", "one");
    back(one);
    within("the daemon is left", &|| ended() == 1);
    // Two callers wait for the same pull: it continues for the second when the first one gives up.
    let (two, three) = (pull("slow.example/b:1", "two"), pull("slow.example/b:1", "three"));
    back(two);
    assert_eq!(server.text("print(1)").trim(), "1");
    assert_eq!(ended(), 1);
    back(three);
    within("the daemon is left", &|| ended() == 2);
    drop(server);

    // Ctrl-C stops a waiting command.
    let program = place.write("main.py", "print(1)");
    let mut command = place.command(&["run", "--image", "slow.example/c:1"]);
    let mut child = command
        .arg(&program)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("pulling slow.example/c:1") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it said nothing of the pull");
    }
    assert!(line.contains("of 900 MB"), "{line}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let status = child.wait().unwrap();
    assert!(rest.contains("did not run"), "{rest}");
    assert_eq!(status.code(), Some(125), "{rest}");
    within("the daemon is left", &|| ended() == 3);
}
