//! Sandboxes in containers. Needs a daemon and images that `.ci/docker` makes.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::doctor::{ill, says};
use crate::packages;
use sandcell_e2e::client::Client;
use sandcell_e2e::docker::{self, Daemon, variable};
use sandcell_e2e::test_dir::{SECRET_NAME, SECRET_VALUE, TestDir};
use sandcell_e2e::{name_of, skip, turns::Turn, until};

/// A daemon and its images.
struct Docker {
    daemon: Daemon,
    /// An image with only a static shell as /sh.
    bare: String,
    _turn: Turn,
}

/// Begins a test that needs a daemon. A separate test covers users without access to the daemon.
macro_rules! docker {
    () => {{
        fn here() {}
        match Docker::find(&name_of(here)) {
            Some(docker) => docker,
            None => return,
        }
    }};
}

impl Docker {
    fn find(test: &str) -> Option<Self> {
        Some(Self {
            daemon: Daemon::find(test)?,
            bare: variable("SANDCELL_TEST_BARE_IMAGE").expect(".ci/docker names the image"),
            _turn: Turn::shared(),
        })
    }

    fn place(&self) -> TestDir {
        self.place_with("")
    }

    /// Returns a place with more settings; those of tables go last.
    fn place_with(&self, tables: &str) -> TestDir {
        TestDir::with_settings(&format!(
            "backend = \"docker\"\n{tables}\n[docker]\nhost = \"{}\"\nimage = \"{}\"\npull = \"never\"\n",
            self.daemon.host, self.daemon.image
        ))
    }
}

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

#[test]
fn a_session_in_a_container_behaves_like_a_native_one() {
    let docker = docker!();
    let place = docker.place();
    let server = server(&place);
    let first = server.run("x = 40\nprint('out')\nx + 2");
    assert_eq!(first.status(), "ok", "{first:?}");
    assert!(first.all().contains("out") && first.all().contains("42"), "{first:?}");
    let isolation = &first.meta()["isolation"];
    assert_eq!(
        (&isolation["backend"], &isolation["level"]),
        (&json!("docker"), &json!("container"))
    );
    assert_eq!(server.text("x += 1\nprint(x)").trim(), "41");
    // The file tools and code see the same files.
    server.call("write_file", json!({"path": "a/b.txt", "content": "from the tool"}));
    assert_eq!(server.text("print(open('a/b.txt').read())").trim(), "from the tool");
    server.text("open('/tmp/c', 'w').write('from the code')");
    assert!(
        server
            .call("read_file", json!({"path": "/tmp/c"}))
            .all()
            .contains("from the code")
    );
    // An error keeps the variables, and so does a time-out.
    let failed = server.run("1 / 0");
    assert_eq!(
        (failed.status(), failed.cause()),
        ("error", "code_failed"),
        "{failed:?}"
    );
    let late = server.call("execute_code", json!({"code": "while True: pass", "timeout_s": 0.5}));
    assert_eq!(late.cause(), "timeout", "{late:?}");
    assert_eq!(server.text("print(x)").trim(), "41");
    // Another language, with standard input.
    let shell = server.call(
        "execute_code",
        json!({"code": "read a; echo $a-$((6 * 7))", "language": "bash", "stdin": "in\n"}),
    );
    assert!(shell.output().contains("in-42"), "{shell:?}");
    let status = server.call("get_sandbox_status", json!({}));
    assert_eq!(
        status.data()["sandboxes"][0]["isolation"]["backend"],
        "docker",
        "{status:?}"
    );
}

#[test]
fn reached_limits_of_a_container_are_named() {
    let docker = docker!();
    let limits = "[limits]\nmemory_mb = 128\ndisk_mb = 64\nprocesses = 24\ninodes = 1000";
    let place = docker.place_with(limits);
    let server = server(&place);
    // More memory than processes may use, but less than the container with its files may use.
    let memory = server.run(
        "kept = 1\nx = bytearray(160 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(3)",
    );
    assert_eq!(memory.cause(), "out_of_memory", "{memory:?}");
    let much = server.run("parts = []\nwhile True: parts.append(bytearray(8 << 20))");
    assert_eq!(much.cause(), "out_of_memory", "{much:?}");
    let disk = server.run("open('big', 'wb').write(b'x' * (80 << 20))");
    assert_eq!(disk.cause(), "disk_full", "{disk:?}");
    // Files do not count as memory of processes.
    let half = "import os; os.path.exists('big') and os.remove('big')\nopen('half', 'wb').write(b'x' * (60 << 20))\ny = bytearray(80 << 20)\nprint(len(y))";
    assert_eq!(server.text(half).trim(), (80 << 20).to_string());
    let many = server.run("import subprocess\nprint(len([subprocess.Popen(['sleep', '60']) for _ in range(40)]))");
    assert_eq!(many.cause(), "process_limit", "{many:?}");
}

/// Prints the kernel's view of the process inside.
const PROCESS_VIEW_SCRIPT: &str = r"
import json, os
status = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
def refused(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    'uid': os.getuid(), 'groups': os.getgroups(),
    'caps': [status[name].strip() for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')],
    'privileges': status['NoNewPrivs'].strip(), 'filters': status.get('Seccomp_filters', '2').strip(),
    'interfaces': [line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line],
    'names': open('/etc/resolv.conf').read(),
    'root': refused(lambda: open('/etc/x', 'w')), 'volume': refused(lambda: open('/data/x', 'w')),
    'agent': refused(lambda: open('/.sandcell/agent', 'r+b')), 'own': refused(lambda: open('/.sandcell/x', 'w')),
    'memory': refused(lambda: open('/proc/1/mem', 'rb')), 'fds': refused(lambda: os.listdir('/proc/1/fd')),
    'limits': refused(lambda: __import__('resource').prlimit(1, 7, (0, 0))),
    'priority': refused(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)),
    'sockets': [root + '/' + name for root, _, names in os.walk('/run') for name in names if name.endswith('.sock')],
    'environment': sorted(os.environ), 'processes': sorted(int(p) for p in os.listdir('/proc') if p.isdigit())[:1],
    'hosts': [m for m in open('/proc/self/mountinfo') if '/etc/' in m.split()[4] and not m.split()[4].startswith(('/etc/hosts', '/etc/hostname', '/etc/resolv.conf'))],
}))";

#[test]
fn code_in_a_container_has_no_rights_and_sees_nothing_of_the_host() {
    let docker = docker!();
    let place = docker.place();
    let server = server(&place);
    let found = server.json(PROCESS_VIEW_SCRIPT);
    let uid = found["uid"].as_u64().unwrap();
    assert!((30_000..60_000).contains(&uid), "{found}");
    let caps: Vec<&str> = found["caps"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(caps.iter().all(|set| set.bytes().all(|digit| digit == b'0')), "{found}");
    assert_eq!(found["privileges"], "1", "{found}");
    // The daemon's filter and the agent's own.
    assert_eq!(found["filters"], "2", "{found}");
    assert_eq!(found["interfaces"], json!(["lo"]), "{found}");
    for closed in ["root", "volume", "agent", "own", "memory", "fds", "limits", "priority"] {
        assert!(found[closed].is_string(), "{closed} is open: {found}");
    }
    assert_eq!(
        (&found["sockets"], &found["hosts"]),
        (&json!([]), &json!([])),
        "{found}"
    );
    // DNS names are not resolved either, even if the host's resolver would answer.
    let names = found["names"].as_str().unwrap();
    assert!(!names.contains("nameserver") || names.contains("127.0.0.1"), "{names}");
    let names = found["environment"].to_string();
    assert!(
        !names.contains(SECRET_NAME) && names.contains("FROM_THE_IMAGE"),
        "{names}"
    );
    let all = server.text("print(open('/proc/1/environ', errors='replace').read() if __import__('os').access('/proc/1/environ', 4) else '')");
    assert!(!all.contains(SECRET_VALUE), "{all}");
    // Two sandboxes have different user ids.
    let other = server.call("create_sandbox", json!({}));
    let other = server.call(
        "execute_code",
        json!({"code": "import os; print(os.getuid())", "sandbox_id": other.data()["sandbox_id"]}),
    );
    assert_ne!(other.output().trim(), uid.to_string());
}

#[test]
fn any_image_works_and_missing_programs_are_reported() {
    let docker = docker!();
    let place = docker.place();
    let server = server(&place);
    let bare = server.call("create_sandbox", json!({"image": docker.bare}));
    let bare = bare.data()["sandbox_id"].clone();
    assert!(bare.is_string());
    // The image has no C library, no shell at the usual path and no folders. The file tools work nevertheless.
    server.call(
        "write_file",
        json!({"path": "x", "content": "in a bare image", "sandbox_id": bare}),
    );
    let read = server.call("read_file", json!({"path": "x", "sandbox_id": bare}));
    assert!(read.all().contains("in a bare image"), "{read:?}");
    let python = server.call("execute_code", json!({"code": "print(1)", "sandbox_id": bare}));
    let said = python.all();
    assert!(
        said.contains("language_unavailable") && said.contains("python3"),
        "{python:?}"
    );
    server
        .call("create_sandbox", json!({"image": "sandcell/none:1"}))
        .refused("image_unavailable");
    for wrong in ["../x", "a//b", "a b"] {
        let answer = server.call("create_sandbox", json!({"image": wrong}));
        assert!(answer.is_error(), "{wrong}: {answer:?}");
    }
    // A language that the default image lacks.
    let ruby = server.call("execute_code", json!({"code": "1", "language": "ruby"}));
    assert!(ruby.is_error() && ruby.all().contains("image"), "{ruby:?}");
}

#[test]
fn nothing_is_left_however_the_server_ends() {
    let docker = docker!();
    let place = docker.place();
    for kill in [false, true] {
        let mut server = server(&place);
        let pid = server.pid();
        server.text("import subprocess; p = subprocess.Popen(['sleep', '1000'])");
        let own = docker.daemon.containers(pid);
        assert!(!own.is_empty());
        let mut inspect = vec!["inspect", "--format", "{{range .Mounts}}{{.Name}} {{end}}"];
        inspect.extend(own.iter().map(String::as_str));
        let mounts = docker.daemon.say(&inspect);
        let volumes: Vec<&str> = mounts
            .split_whitespace()
            .filter(|name| !name.starts_with("sandcell-"))
            .collect();
        assert_eq!(volumes.len(), own.len(), "{mounts}");
        if kill {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        } else {
            server.hang_up();
        }
        server.wait(Duration::from_secs(20));
        until(Duration::from_secs(20), "its containers go", || {
            docker.daemon.containers(pid).is_empty().then_some(())
        });
        until(Duration::from_secs(10), "their volumes go", || {
            let all = docker.daemon.say(&["volume", "ls", "--quiet"]);
            (!volumes.iter().any(|name| all.contains(name))).then_some(())
        });
    }
}

#[test]
fn leftovers_of_a_killed_server_are_removed_at_the_next_start() {
    let docker = docker!();
    let place = docker.place();
    let first = server(&place);
    first.text("1");
    let label = "dev.sandcell.server";
    let name = docker.daemon.containers(first.pid()).pop().unwrap();
    let inspect = format!("{{{{index .Config.Labels \"{label}\"}}}}");
    let alive = docker.daemon.say(&["inspect", "--format", &inspect, &name]);
    // One container was created but never started, by a process of this machine that has ended. Another belongs to a
    // live server.
    let gone = alive.replacen(&format!("/{}/", first.pid()), "/4194303/", 1);
    assert_ne!(gone, alive);
    let make = |owner: &str| {
        let labels = [format!("{label}={owner}"), "dev.sandcell=sandbox".to_owned()];
        docker.daemon.say(&[
            "create",
            "--label",
            &labels[0],
            "--label",
            &labels[1],
            &docker.bare,
            "/sh",
        ])
    };
    let (left, kept) = (make(&gone), make(&alive));
    let second = server(&place);
    second.text("1");
    let there = |id: &str| {
        docker
            .daemon
            .say(&["ps", "--all", "--quiet", "--no-trunc"])
            .lines()
            .any(|line| line == id)
    };
    until(Duration::from_secs(10), "what was left goes", || {
        (!there(&left)).then_some(())
    });
    assert!(there(&kept), "a living server's container was removed");
    docker.daemon.say(&["rm", "--force", &kept]);
    assert_eq!(first.text("print(2)").trim(), "2");
}

#[test]
fn a_container_removed_from_outside_is_a_lost_sandbox() {
    let docker = docker!();
    let place = docker.place_with("[pool]\nparked = 0");
    let server = server(&place);
    server.text("x = 1");
    for name in docker.daemon.containers(server.pid()) {
        docker.daemon.say(&["rm", "--force", &name]);
    }
    let next = until(Duration::from_secs(10), "the loss is noticed", || {
        let next = server.run("print('x' in globals())");
        (next.status() == "ok").then_some(next)
    });
    assert!(next.output().contains("False"), "{next:?}");
    assert!(next.state_lost(), "{next:?}");
}

#[test]
fn the_command_line_runs_programs_in_containers() {
    let docker = docker!();
    let place = docker.place();
    let run = |code: &str, arguments: &[&str]| {
        let file = place.write("main.py", code);
        let mut command = place.command(&["run"]);
        command.args(arguments).arg(file).stdin(Stdio::null()).output().unwrap()
    };
    let output = run("import sys; print('hello'); sys.exit(7)", &[]);
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(7), b"hello\n".as_slice()),
        "{output:?}"
    );
    assert_eq!(run("while True: pass", &["--timeout", "1"]).status.code(), Some(124));
    let hungry = "x = []\nwhile True: x.append(bytearray(8 << 20))";
    assert_eq!(run(hungry, &["--memory", "100"]).status.code(), Some(137));
}

#[test]
fn packages_reach_running_containers_and_stay_read_only() {
    fn here() {}
    let docker = docker!();
    // The image has no pip.
    if packages::uv().is_none() {
        skip(&name_of(here), "no uv (SANDCELL_TEST_UV)");
        return;
    }
    let (place, index) = (docker.place(), packages::stocked());
    let server = Client::start(&mut packages::command(&place, &index.url(), &["serve"]));
    server.text("x = 1");
    let done = server.call("install_package", json!({"packages": ["demo_one==1.0"]}));
    assert_eq!(done.status(), "ok", "{done:?}\n{}", server.log());
    assert_eq!(server.text("import demo_one\nprint(demo_one.answer, x)").trim(), "42 1");
    let changed = server.run("open(demo_one.__file__, 'w')");
    assert_eq!(changed.status(), "error", "{changed:?}");
    let made = server.run("open('/opt/sandcell/own', 'w')");
    assert_eq!(made.status(), "error", "{made:?}");
    // From the start of another sandbox, but not for an image that the packages were not made for.
    let second = server.call("create_sandbox", json!({"packages": ["demo_one==1.0"]}));
    let code = json!({"code": "import demo_one; print(demo_one.answer)", "sandbox_id": second.data()["sandbox_id"]});
    assert_eq!(server.call("execute_code", code).output().trim(), "42");
    let other = server.call(
        "create_sandbox",
        json!({"packages": ["demo_one==1.0"], "image": docker.bare}),
    );
    assert!(
        other.is_error() && other.all().contains("which is not the default one"),
        "{other:?}"
    );
}

/// Returns the server's first answer with these settings of the daemon, and the doctor's report to the operator.
fn without(settings: &str) -> (String, Value) {
    let place = TestDir::with_settings(&format!("backend = \"docker\"\n[docker]\n{settings}\n"));
    let server = server(&place);
    let said = server.run("1").refused("backend_unavailable");
    let doctor = place
        .command(&["doctor", "--json"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!doctor.status.success());
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    (said, report["backends"][0].clone())
}

#[test]
fn a_missing_daemon_is_reported_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join("none.sock");
    for (settings, reason, remedy) in [
        (
            format!("host = \"unix://{}\"", host.display()),
            "no Docker daemon",
            "start Docker",
        ),
        ("host = \"127.0.0.1:2375\"".to_owned(), "127.0.0.1:2375", "DOCKER_HOST"),
        ("host = \"tcp://127.0.0.1:9\"".to_owned(), "127.0.0.1:9", "DOCKER_HOST"),
    ] {
        let (said, row) = without(&settings);
        assert!(said.contains(reason) && said.contains(remedy), "{said}");
        assert_eq!(
            (&row["name"], &row["available"]),
            (&json!("docker"), &json!(false)),
            "{row}"
        );
        assert!(row["reason"].as_str().unwrap().contains(reason), "{row}");
        assert!(row["remedy"].as_str().unwrap().contains(remedy), "{row}");
    }
}

#[test]
fn operator_folders_are_visible_and_read_only() {
    let docker = docker!();
    let project = tempfile::tempdir().unwrap();
    std::fs::write(project.path().join("note"), "of the operator").unwrap();
    let place = docker.place_with(&format!(
        "[[mount]]\nhost = \"{}\"\nsandbox = \"/mnt/project\"\nmode = \"ro\"",
        project.path().display()
    ));
    let reading = server(&place);
    // The sandbox's user never owns the folder.
    let open = Command::new("chmod")
        .arg("-R")
        .arg("a+rX")
        .arg(project.path())
        .status()
        .unwrap();
    assert!(open.success());
    assert_eq!(
        reading.text("print(open('/mnt/project/note').read())").trim(),
        "of the operator"
    );
    assert_eq!(reading.run("open('/mnt/project/note', 'w')").status(), "error");
}

#[test]
fn a_daemon_on_a_tcp_port_is_used_with_certificates_only() {
    let docker = docker!();
    let port = std::env::var("SANDCELL_TEST_DOCKER_TLS").expect(".ci/docker names the port");
    let certificates = std::env::var("SANDCELL_TEST_DOCKER_CERTIFICATES").expect(".ci/docker makes them");
    let place = TestDir::new();
    let program = place.write("main.py", "print(6 * 7)");
    let run = |certificates: &str| {
        let mut command = place.command(&["run"]);
        command.arg(&program).stdin(Stdio::null()).envs([
            ("SANDCELL_BACKEND", "docker"),
            ("DOCKER_HOST", port.as_str()),
            ("DOCKER_CERT_PATH", certificates),
            ("SANDCELL_DOCKER__IMAGE", docker.daemon.image.as_str()),
        ]);
        command.output().unwrap()
    };
    let good = run(&certificates);
    assert_eq!(good.stdout, b"42\n", "{good:?}");
    let plain = run("");
    assert_eq!(plain.status.code(), Some(125), "{plain:?}");
    let missing = run("/dev/null/absent");
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(
        said.contains("/dev/null/absent") && said.contains("DOCKER_CERT_PATH"),
        "{said}"
    );
}

#[test]
fn a_missing_runtime_of_the_daemon_is_reported() {
    let docker = docker!();
    let (said, _) = without(&format!("host = \"{}\"\nruntime = \"no-such\"", docker.daemon.host));
    assert!(said.contains("no-such") && said.contains("docker.runtime"), "{said}");
}

#[test]
fn a_user_without_access_to_the_daemon_gets_a_remedy() {
    fn here() {}
    let Some(host) = docker::host(&name_of(here)) else {
        return;
    };
    if docker::is_open(&host) {
        println!("not for a user who may talk to the daemon");
        return;
    }
    let (said, _) = without(&format!("host = \"{host}\""));
    assert!(
        said.contains("may not access") && said.contains("usermod -aG docker"),
        "{said}"
    );
}

#[test]
fn the_doctor_names_the_language_that_the_image_lacks() {
    let docker = docker!();
    let told = ill(&TestDir::new(), &|command| {
        command.envs([
            ("SANDCELL_BACKEND", "docker"),
            ("DOCKER_HOST", docker.daemon.host.as_str()),
            ("SANDCELL_DOCKER__IMAGE", docker.bare.as_str()),
        ]);
    });
    says(&told, &told.0["python"], "python is not in the image", "docker.image");
}

#[test]
fn doctor_accepts_a_machine_with_isolating_containers() {
    let docker = docker!();
    let place = TestDir::new();
    let doctor = place
        .command(&["doctor", "--json"])
        .envs([
            ("SANDCELL_BACKEND", "docker"),
            ("DOCKER_HOST", docker.daemon.host.as_str()),
            ("SANDCELL_DOCKER__IMAGE", docker.daemon.image.as_str()),
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert!(doctor.status.success(), "{report:#}");
    assert!(report["attacks"]["tried"].as_u64().unwrap() > 50, "{report:#}");
}
