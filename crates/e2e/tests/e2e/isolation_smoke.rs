use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};

use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::{SECRET_VALUE, TestDir};
use sandcell_e2e::{begin, is_root, machine};

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().filter_map(Value::as_u64).collect()
}

#[test]
fn files_of_the_host_are_not_visible() {
    let _turn = begin!();
    let place = TestDir::new();
    let secret = place.write("secret.txt", SECRET_VALUE);
    let server = server(&place);
    let code = format!(
        r#"
import json, os
def look(path):
    try:
        return os.listdir(path)
    except OSError as e:
        return type(e).__name__
def read(path):
    try:
        return open(path).read()
    except OSError as e:
        return type(e).__name__
print(json.dumps({{
    'top': sorted(os.listdir('/')), 'home': look('/home'), 'root': look('/root'), 'sys': look('/sys/kernel'),
    'run': look('/run'), 'secret': read({secret:?}), 'shadow': read('/etc/shadow'), 'passwd': read('/etc/passwd'),
    'cwd': os.getcwd(), 'dev': sorted(os.listdir('/dev')), 'mounts': read('/proc/self/mountinfo'),
}}))"#
    );
    let seen = server.json(&code);
    assert_eq!(seen["home"], json!(["user"]));
    assert_eq!(seen["cwd"], "/home/user");
    for (what, empty) in [("root", json!([])), ("sys", json!([])), ("run", json!([]))] {
        assert!(seen[what].is_string() || seen[what] == empty, "/{what}: {}", seen[what]);
    }
    for what in ["secret", "shadow"] {
        let text = seen[what].as_str().unwrap();
        assert!(
            matches!(text, "FileNotFoundError" | "PermissionError"),
            "{what}: {text}"
        );
    }
    let passwd = seen["passwd"].as_str().unwrap();
    assert!(
        passwd.lines().count() <= 4 && !passwd.contains("/bin/bash\nroot"),
        "a stub: {passwd}"
    );
    let devices: BTreeSet<&str> = seen["dev"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let expected = BTreeSet::from([
        "full", "null", "random", "tty", "urandom", "zero", "fd", "stdin", "stdout", "stderr", "shm", "pts", "ptmx",
    ]);
    assert!(devices.is_subset(&expected), "more devices than expected: {devices:?}");
    let mounts = seen["mounts"].as_str().unwrap();
    let host = place.work().display().to_string();
    for leak in [
        host.as_str(),
        "lowerdir=/usr",
        "upperdir=/",
        "workdir=/",
        "/dev/vd",
        "/dev/sd",
        "/dev/nvme",
    ] {
        assert!(
            !mounts.contains(leak),
            "the mount table shows the host's {leak}: {mounts}"
        );
    }
}

#[test]
fn the_environment_of_the_host_is_not_visible() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let seen = server.json(
        r#"
import json, os
found = dict(os.environ)
for p in os.listdir('/proc'):
    if p.isdigit():
        for name in ('environ', 'cmdline', 'maps'):
            try:
                found[p + name] = open(f'/proc/{p}/{name}', 'rb').read().decode(errors='replace')
            except OSError:
                pass
print(json.dumps(found))"#,
    );
    let text = seen.to_string();
    assert!(!text.contains(SECRET_VALUE), "{text}");
    assert!(!text.contains("CELL_E2E"), "{text}");
    assert!(!text.contains(&place.path("home").display().to_string()), "{text}");
    assert_eq!(seen["HOME"], "/home/user");
    assert!(
        !seen.as_object().unwrap().keys().any(|key| key.starts_with("SANDCELL_")),
        "{text}"
    );
}

#[test]
fn the_network_is_not_reachable() {
    let _turn = begin!();
    let place = TestDir::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let path = place.work().join("host.sock");
    let _unix = UnixListener::bind(&path).unwrap();
    let server = server(&place);
    let seen = server.json(&format!(
        r#"
import json, os, socket
def attempt(f):
    try:
        f(); return 'reached'
    except OSError as e:
        return type(e).__name__
def connect(family, kind, address):
    s = socket.socket(family, kind); s.settimeout(2); s.connect(address)
print(json.dumps({{
    'loopback': attempt(lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {port}))),
    'outside': attempt(lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ('1.1.1.1', 443))),
    'outside6': attempt(lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ('2606:4700::1111', 443))),
    'udp': attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))),
    'name': attempt(lambda: socket.getaddrinfo('example.com', 80)),
    'metadata': attempt(lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ('169.254.169.254', 80))),
    'unix': attempt(lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, {path:?})),
    'raw': attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    'packet': attempt(lambda: socket.socket(17, socket.SOCK_RAW)),
    'vsock': attempt(lambda: socket.socket(40, socket.SOCK_STREAM)),
    'alg': attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET)),
}}))"#
    ));
    for (what, outcome) in seen.as_object().unwrap() {
        assert_ne!(outcome, "reached", "{what}: {seen}");
    }
}

#[test]
fn a_sandbox_sees_only_its_own_processes() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let seen = server.json(
        "import json, os\n\
         def can_signal():\n    try:\n        os.kill(1, 9)\n        return 'sent'\n    except OSError as e:\n        return type(e).__name__\n\
         print(json.dumps({'pids': sorted(int(p) for p in os.listdir('/proc') if p.isdigit()), 'me': os.getpid(), 'kill': can_signal()}))",
    );
    let pids = numbers(&seen["pids"]);
    assert!(pids.len() <= 4 && pids.iter().all(|pid| *pid < 100), "{seen}");
    // The sandbox lives, regardless of the result of the signal call.
    assert_eq!(server.text("print(1)").trim(), "1");
}

#[test]
fn code_runs_without_privileges() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let seen = server.json(
        r#"
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
status = dict(l.split(':\t', 1) for l in open('/proc/self/status').read().splitlines() if ':\t' in l)
def fails(f):
    ctypes.set_errno(0)
    return f() == -1
print(json.dumps({
    'caps': [status[k] for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')],
    'nnp': status['NoNewPrivs'], 'seccomp': status['Seccomp'], 'groups': status['Groups'].strip(), 'uid': os.getuid(),
    'unshare_user': fails(lambda: libc.unshare(0x10000000)), 'unshare_mount': fails(lambda: libc.unshare(0x20000)),
    'mount': fails(lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)), 'setuid': fails(lambda: libc.setuid(0)) or os.getuid() == 0,
    'ptrace': fails(lambda: libc.ptrace(16, 1, 0, 0)), 'chroot': fails(lambda: libc.chroot(b'/tmp')),
}))"#,
    );
    assert!(
        seen["caps"]
            .as_array()
            .unwrap()
            .iter()
            .all(|caps| caps == "0000000000000000"),
        "{seen}"
    );
    assert_eq!(
        (seen["nnp"].as_str(), seen["seccomp"].as_str()),
        (Some("1"), Some("2")),
        "{seen}"
    );
    for what in ["unshare_user", "unshare_mount", "mount", "ptrace", "chroot"] {
        assert_eq!(seen[what], true, "{what} worked: {seen}");
    }
}

#[test]
fn seen_from_the_host_a_sandbox_has_separate_namespaces_and_ids() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let made = server.call("create_sandbox", json!({"count": 2}));
    let held: Vec<u32> = made.data()["sandbox_ids"]
        .as_array()
        .expect("ids")
        .iter()
        .zip(["one", "other"])
        .map(|(id, name)| server.interpreter(id, name).pid)
        .collect();
    let ours = machine::namespaces(std::process::id());
    let first = machine::namespaces(held[0]);
    let second = machine::namespaces(held[1]);
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        // A non-dumpable process hides these links from ordinary users. Then the comparison is skipped.
        if let (Some(one), Some(two)) = (first.get(kind), second.get(kind)) {
            assert_ne!(one, &ours[kind], "{kind} is the host's");
            assert_ne!(one, two, "{kind} is shared by two sandboxes");
        } else {
            assert!(!is_root(), "root sees every namespace: {first:?} {second:?}");
        }
    }
    for pid in &held {
        assert_eq!(machine::status(*pid, "CapEff").as_deref(), Some("0000000000000000"));
        assert_eq!(machine::status(*pid, "CapBnd").as_deref(), Some("0000000000000000"));
    }
    if is_root() {
        let ids: BTreeSet<String> = held.iter().filter_map(|pid| machine::status(*pid, "Uid")).collect();
        assert_eq!(ids.len(), 2, "each sandbox has a user id of its own: {ids:?}");
        assert!(
            ids.iter()
                .all(|id| id.split_whitespace().all(|one| one.parse::<u32>().unwrap() > 65_535)),
            "{ids:?}"
        );
    }
}

#[test]
fn system_files_cannot_be_written() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let seen = server.json(
        r#"
import json, os
def write(path):
    try:
        open(path, 'a').write('x'); return 'written'
    except OSError as e:
        return type(e).__name__
print(json.dumps({p: write(p) for p in (
    '/x', '/usr/x', '/usr/bin/python3', '/etc/passwd', '/etc/x', '/bin/sh', '/dev/x', '/proc/sys/kernel/hostname',
    '/proc/sysrq-trigger', '/proc/self/oom_score_adj_x', '/home/x', '/lib/x', '/home/user/ok', '/tmp/ok', '/dev/shm/ok')}))"#,
    );
    for (path, outcome) in seen.as_object().unwrap() {
        let expected = path.ends_with("/ok");
        assert_eq!(outcome == "written", expected, "{path}: {outcome}");
    }
}

#[test]
fn every_result_names_its_isolation() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = server.run("1");
    let isolation = &answer.meta()["isolation"];
    assert_eq!(isolation["backend"], "native", "{isolation}");
    assert_eq!(isolation["level"], "namespace", "{isolation}");
    assert!(isolation["layers"].as_array().unwrap().len() >= 5, "{isolation}");
    assert!(isolation["degraded"].is_array(), "{isolation}");
    let status = server.call("get_sandbox_status", json!({"sandbox_id": answer.sandbox()}));
    assert!(status.all().contains("namespace"), "{status:?}");
}
