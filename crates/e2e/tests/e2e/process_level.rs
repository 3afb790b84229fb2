//! A host that forbids user namespaces: refused, or the `process` level if `isolation_min` allows it.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use sandcell_e2e::client::Client;
use sandcell_e2e::machine::{self, ProcessIdentity};
use sandcell_e2e::test_dir::{SECRET_VALUE, TestDir};
use sandcell_e2e::{begin, python, until};

/// Executes a program that cannot make user namespaces: it runs inside one that allows no more. Root keeps all its
/// ids.
const NO_USER_NAMESPACES_SCRIPT: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
ready, go = os.pipe(), os.pipe()
user, group = os.getuid(), os.getgid()
# An ordinary user stays one: as root inside it would hold capabilities that it does not have on such a host.
maps = ("0 0 4294967295",) * 2 if user == 0 else (f"{user} {user} 1", f"{group} {group} 1")
parent = os.getpid()
child = os.fork()
if child == 0:
    # The helper maps the ids; the program itself stays the test's own child.
    os.read(ready[0], 1)
    if user:
        open(f"/proc/{parent}/setgroups", "w").write("deny")
    open(f"/proc/{parent}/uid_map", "w").write(maps[0])
    open(f"/proc/{parent}/gid_map", "w").write(maps[1])
    os.write(go[1], b"x")
    os._exit(0)
if libc.unshare(0x10000000):
    sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
os.write(ready[1], b"x")
os.read(go[0], 1)
os.waitpid(child, 0)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Executes a program that may make every namespace except network namespaces: it fails at a late step.
const NO_NETWORKS_SCRIPT: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
unshare = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
flag, refused, allowed = 0x40000000, 0x00050001, 0x7FFF0000
steps = [(0x20, 0, 0, 0), (0x15, 0, 3, unshare), (0x20, 0, 0, 16), (0x45, 0, 1, flag), (6, 0, 0, refused), (6, 0, 0, allowed)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(Program(len(steps), ctypes.addressof(text)))):
    sys.exit("seccomp: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Returns the command on a host where user namespaces are forbidden.
fn forbidden(command: &Command) -> Command {
    through(NO_USER_NAMESPACES_SCRIPT, command)
}

/// Returns the command, executed by this Python program.
fn through(program: &str, command: &Command) -> Command {
    let mut outer = Command::new(python().unwrap());
    outer.args(["-I", "-S", "-c", program]);
    outer.arg(command.get_program()).args(command.get_args()).env_clear();
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    outer
}

/// Landlock is the barrier between code and host at this level.
fn landlock() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|text| text.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (version < (6, 12)).then(|| format!("Linux {release} has no Landlock that holds signals (6.12)"))
}

macro_rules! needs_landlock {
    () => {
        if let Some(reason) = landlock() {
            fn here() {}
            sandcell_e2e::skip(&sandcell_e2e::name_of(here), &reason);
            return;
        }
    };
}

fn place() -> TestDir {
    TestDir::with_settings("isolation_min = \"process\"\n[pool]\nparked = 0\n")
}

fn serve(place: &TestDir) -> Client {
    Client::start(&mut forbidden(&place.command(&["serve"])))
}

#[test]
fn without_user_namespaces_nothing_runs_unless_allowed_and_the_error_has_a_remedy() {
    let _turn = begin!();
    let place = TestDir::new();
    let file = place.write("a.py", "print('ran')");
    let command = place.command(&["run", file.to_str().unwrap()]);
    let output = forbidden(&command).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    assert!(output.stdout.is_empty());
    for word in [
        "user_namespace",
        "user.max_user_namespaces is 0",
        "sysctl -w user.max_user_namespaces",
        "isolation_min = \"process\"",
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
    // Remedies that would not help here.
    for word in ["apparmor", "--security-opt", "or newer"] {
        assert!(!error.contains(word), "{word}: {error}");
    }
}

#[test]
fn the_process_level_is_the_fallback_where_parts_of_proc_are_covered() {
    let _turn = begin!();
    needs_landlock!();
    let place = place();
    let (file, cover) = (place.write("a.py", "print('ran')"), place.write("uptime", "1.00 1.00"));
    let cover = format!("mount --bind '{}' /proc/uptime", cover.display());
    let mut command = crate::limited_hosts::after(&cover, &place.command(&["run", file.to_str().unwrap()]));
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ran\n", "{output:?}");
}

#[test]
fn the_process_level_is_the_fallback_where_one_namespace_kind_is_missing() {
    let _turn = begin!();
    needs_landlock!();
    let place = place();
    let server = Client::start(&mut through(NO_NETWORKS_SCRIPT, &place.command(&["serve"])));
    let answer = server.run("print(6 * 7)");
    assert_eq!(answer.output().trim(), "42", "{answer:?}");
    assert_eq!(answer.meta()["isolation"]["level"], "process", "{answer:?}");
}

#[test]
fn a_toolchain_readable_by_root_only_does_not_block_the_process_level() {
    let _turn = begin!();
    needs_landlock!();
    let place = place();
    std::fs::create_dir_all(place.work().join("private/deno/bin")).unwrap();
    let program = place.write("private/deno/bin/deno", "#!/bin/sh\n");
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(&program, 0o755);
    let bin = program.parent().unwrap();
    mode(bin.ancestors().nth(2).unwrap(), 0o700);
    let mut command = place.command(&["serve"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let server = Client::start(&mut forbidden(&command));
    assert_eq!(server.text("print(6 * 7)").trim(), "42");
}

#[test]
fn the_process_level_runs_sessions_programs_and_files_and_names_itself() {
    let _turn = begin!();
    needs_landlock!();
    let place = place();
    let server = serve(&place);
    let first = server.run("x = 41");
    let code = "import subprocess, tempfile, shutil, sqlite3, threading, asyncio\n\
        open('a.txt', 'w').write('hello')\nshutil.copy2('a.txt', 'b.txt')\n\
        db = sqlite3.connect('d.sqlite'); db.execute('create table t(a)'); db.commit()\n\
        with tempfile.NamedTemporaryFile() as f: f.write(b'x')\n\
        async def later(): await asyncio.sleep(0.01); return 7\n\
        out = subprocess.run(['sh', '-c', 'cat b.txt | tr a-z A-Z'], capture_output=True, text=True).stdout\n\
        print(x + 1, out, asyncio.run(later()))";
    let answer = server.run(code);
    assert_eq!(answer.output().trim(), "42 HELLO 7", "{answer:?}");
    let isolation = &first.meta()["isolation"];
    assert_eq!(isolation["level"], "process");
    let degraded = isolation["degraded"].to_string();
    for layer in [
        "user_namespace",
        "pid_namespace",
        "network_namespace",
        "private_root",
        "disk_limit",
    ] {
        assert!(degraded.contains(layer), "{layer}: {degraded}");
        assert!(!isolation["layers"].as_array().unwrap().contains(&json!(layer)) || layer == "disk_limit");
    }
    let read = server.call("read_file", json!({"path": "b.txt"}));
    assert!(read.all().contains("hello"), "{read:?}");
    server.call("write_file", json!({"path": "/tmp/in.txt", "content": "from outside"}));
    let back = server.text("import os; print(open(os.environ['TMPDIR'] + '/in.txt').read())");
    assert_eq!(back.trim(), "from outside");
    let listed = server.call("list_files", json!({"path": "/home/user"}));
    assert!(listed.all().contains("a.txt"), "{listed:?}");
}

/// Tries everything that the level promises to stop and prints the successful attacks.
const ATTACK_SCRIPT: &str = r#"
import ctypes, errno, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
breaches, tried = [], 0
def attack(name, act):
    global tried
    tried += 1
    try:
        got = act()
        if got is not False:
            breaches.append(f"{name}: {str(got)[:80]}")
    except (OSError, PermissionError, subprocess.SubprocessError, ImportError, MemoryError):
        pass
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def written(path):
    with open(path, "w") as f:
        f.write("changed")
    return path
W, SERVER, TEST = TARGET["work"], TARGET["server"], TARGET["test"]
secret = W + "/secret.txt"
# files
attack("read a file of the owner's", lambda: open(secret).read())
attack("list a folder of the owner's", lambda: os.listdir(W))
attack("write a file of the owner's", lambda: written(secret))
attack("make a file in the owner's folder", lambda: written(W + "/new"))
attack("make a folder", lambda: os.mkdir(W + "/newdir"))
attack("delete a file", lambda: os.unlink(secret))
attack("rename a file", lambda: os.rename(secret, W + "/renamed"))
attack("move a file in", lambda: os.rename(secret, "stolen"))
attack("link a file in", lambda: os.link(secret, "linked") or open("linked").read())
attack("follow a link out", lambda: os.symlink(secret, "link") or open("link").read())
attack("truncate a file", lambda: os.truncate(secret, 0))
attack("set an attribute", lambda: os.setxattr(secret, b"user.x", b"1"))
attack("change an owner", lambda: os.chown(secret, os.getuid(), os.getgid()))
attack("make a fifo", lambda: os.mkfifo(W + "/fifo"))
attack("run a program of the owner's", lambda: subprocess.run([W + "/program"]).returncode == 0)
attack("read a sibling's folder", lambda: os.listdir(os.path.dirname(os.path.dirname(os.environ["HOME"]))))
for path in ["/etc/passwd", "/etc/shadow", "/etc/hostname", "/var/log", "/root", "/home", "/tmp", "/dev/shm", "/run",
             "/sys/kernel", "/dev", "/proc", "/boot", "/srv", "/opt"]:
    attack("look into " + path, lambda: os.listdir(path) if os.path.isdir(path) else open(path).read())
# effects without an error are looked at from outside
for act in (lambda: os.chmod(secret, 0), lambda: os.utime(secret, (1, 1)), lambda: os.chmod(W, 0o777),
            lambda: call(268, -100, secret.encode(), 0), lambda: call(452, -100, secret.encode(), 0, 0)):
    try: act()
    except OSError: pass
fd = os.open("/usr/bin/env", os.O_RDONLY)
attack("a lease on a system file", lambda: __import__("fcntl").fcntl(fd, 1024, 1))
attack("watch a folder", lambda: libc.inotify_init1(0) >= 0)
# processes
for name, pid in (("server", SERVER), ("test", TEST), ("parent", os.getppid()), ("init", 1)):
    attack("signal the " + name, lambda: os.kill(pid, 0) or True)
    attack("stop the " + name, lambda: os.kill(pid, 19) or True)
    attack("environment of the " + name, lambda: open(f"/proc/{pid}/environ", "rb").read())
    attack("memory of the " + name, lambda: open(f"/proc/{pid}/mem", "rb"))
    attack("descriptors of the " + name, lambda: os.listdir(f"/proc/{pid}/fd"))
    attack("command line of the " + name, lambda: open(f"/proc/{pid}/cmdline", "rb").read())
    attack("program of the " + name, lambda: os.readlink(f"/proc/{pid}/exe"))
    attack("folder of the " + name, lambda: os.readlink(f"/proc/{pid}/cwd"))
    attack("trace the " + name, lambda: call(101, 16, pid, 0, 0))
    attack("limit the " + name, lambda: __import__("resource").prlimit(pid, 7, (5, 5)) and True)
    attack("priority of the " + name, lambda: os.setpriority(0, pid, 19) or True)
    attack("read memory of the " + name, lambda: call(310, pid, 0, 0, 0, 0, 0) >= 0)
    attack("take a descriptor of the " + name, lambda: call(438, os.pidfd_open(pid), 1, 0))
    attack("signal by descriptor the " + name, lambda: libc.syscall(424, os.pidfd_open(pid), 0, None, 0) == 0)
attack("signal everybody's group", lambda: os.killpg(os.getpgid(SERVER), 0) or True)
# network
for family in range(0, 46):
    for kind in (1, 2, 3, 5):
        attack(f"socket {family} {kind}", lambda: socket.socket(family, kind).fileno() >= 0)
for family in range(2, 46):
    attack(f"pair {family}", lambda: socket.socketpair(family)[0].fileno() >= 0)
attack("datagram pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].fileno() >= 0)
pair = socket.socketpair()
attack("connect a pair anew", lambda: pair[0].connect(TARGET["socket"]) or True)
attack("bind a pair", lambda: pair[0].bind("here") or True)
attack("pass a descriptor", lambda: socket.send_fds(pair[0], [b"x"], [0]))
# kernel
for name, number in dict(unshare=272, setns=308, mount=165, chroot=161, ptrace=101, bpf=321, perf=298, keyctl=250,
                         userfaultfd=323, io_uring=425, open_tree=428, fsopen=430, shmget=29, semget=64, msgget=68,
                         mq_open=240, fanotify=300, open_by_handle=304, quotactl=179, syslog=103, acct=163,
                         sethostname=170, kcmp=312, pivot=155, move_pages=279).items():
    attack("call " + name, lambda: call(number, 0x10000000, 0, 0, 0, 0) >= 0)
attack("a new user namespace", lambda: call(56, 0x10000011, 0, 0, 0, 0) >= 0)
attack("become root", lambda: os.setuid(0) or (os.getuid() == 0 and TARGET["root"]))
attack("gain by a setuid program", lambda: b"Seccomp" and subprocess.run(["su", "-c", "id"], input=b"", capture_output=True).returncode == 0)
attack("set a terminal's input", lambda: __import__("fcntl").ioctl(0, 0x5412, b"x"))
attack("make a device", lambda: os.mknod("null", 0o20666, os.makedev(1, 3)) or True)
# secrets
attack("a variable of the server's", lambda: TARGET["name"] in os.environ)
attack("other descriptors", lambda: [n for n in range(5, 200) if os.path.exists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}").startswith("/")] or False)
print(tried)
print("\n".join(breaches))
"#;

#[test]
fn the_process_level_stops_every_promised_attack() {
    let _turn = begin!();
    needs_landlock!();
    if !cfg!(target_arch = "x86_64") {
        fn here() {}
        return sandcell_e2e::skip(&sandcell_e2e::name_of(here), "the attacks name x86_64 calls by number");
    }
    let place = place();
    let secret = place.write("secret.txt", SECRET_VALUE);
    let program = place.write("program", "#!/bin/sh\nexit 0\n");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(place.work().join("socket")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let before = (
        std::fs::metadata(&secret).unwrap(),
        std::fs::metadata(place.work()).unwrap(),
    );
    let server = serve(&place);
    let target = json!({
        "work": place.work(), "server": server.pid(), "test": std::process::id(), "socket": place.work().join("socket"),
        "root": sandcell_e2e::is_root(), "name": sandcell_e2e::test_dir::SECRET_NAME,
    });
    let code = format!(
        "import json\nTARGET = json.loads({:?})\n{ATTACK_SCRIPT}",
        target.to_string()
    );
    let answer = server.run(&code);
    assert_eq!(answer.status(), "ok", "{answer:?}\n{}", server.log());
    let text = answer.output();
    let (tried, breaches) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
    assert!(tried.parse::<u32>().unwrap() > 250, "{text}");
    assert_eq!(breaches, "", "came through");
    // From outside: nothing has changed, and the attacked processes are alive.
    let after = (
        std::fs::metadata(&secret).unwrap(),
        std::fs::metadata(place.work()).unwrap(),
    );
    for (before, after) in [(&before.0, &after.0), (&before.1, &after.1)] {
        assert_eq!(before.permissions(), after.permissions());
        assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    }
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), SECRET_VALUE);
    assert!(listener.accept().is_err(), "somebody connected");
    assert_eq!(server.text("print('lives')").trim(), "lives");
}

#[test]
fn two_sandboxes_without_namespaces_cannot_reach_each_other() {
    let _turn = begin!();
    needs_landlock!();
    let place = place();
    let server = serve(&place);
    let other = server.call("create_sandbox", json!({}));
    let other = other.data()["sandbox_id"].clone();
    let code = "import os\nopen('mine.txt', 'w').write('mine')\nprint(os.getpid(), os.environ['HOME'])";
    let answer = server.call("execute_code", json!({"code": code, "sandbox_id": other}));
    let output = answer.output();
    let (pid, home) = output.trim().split_once(' ').unwrap();
    let text = server.text(&format!(
        "import os\ndef attempt(act):\n    try: act(); return 'BREACH'\n    except OSError: return 'held'\n\
         print(attempt(lambda: os.kill({pid}, 0)), attempt(lambda: open('{home}/mine.txt').read()), \
         attempt(lambda: os.listdir('{home}')), attempt(lambda: open('/proc/{pid}/environ').read()))"
    ));
    assert_eq!(text.trim(), "held held held held");
}

/// A program that detaches itself in every possible way, and stays.
const DAEMON_SCRIPT: &str = "import os, time, signal\n\
    for depth in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        \
    if os.fork() == 0:\n            for s in (1, 2, 15, 13): signal.signal(s, signal.SIG_IGN)\n            \
    os.close(0); os.close(1); os.close(2)\n            time.sleep(300)\n        os._exit(0)\n\
    while True:\n    try: os.wait()\n    except ChildProcessError: break\n\
    open('big', 'wb').write(b'x' * 1000000)\nos.makedirs('deep/' + 'd/' * 100)\nprint('gone')";

/// Checks that an end of sandboxes at this level leaves nothing.
fn ends_with_nothing_left(end: impl FnOnce(&mut Client, &BTreeSet<ProcessIdentity>)) {
    let place = place();
    let before = machine::abandoned_folders();
    let mut server = serve(&place);
    assert_eq!(server.text(DAEMON_SCRIPT).trim(), "gone");
    let everybody = machine::descendants(server.pid());
    assert!(everybody.len() > 5, "{everybody:?}");
    end(&mut server, &everybody);
    let limit = Duration::from_secs(10);
    until(limit, "every process has ended", || {
        (!everybody.iter().any(ProcessIdentity::lives)).then_some(())
    });
    until(limit, "every folder has gone", || {
        machine::abandoned_folders().is_subset(&before).then_some(())
    });
}

#[test]
fn nothing_of_a_sandbox_without_namespaces_outlives_the_server() {
    let _turn = begin!(alone);
    needs_landlock!();
    ends_with_nothing_left(|server, _| {
        server.hang_up();
        server.wait(Duration::from_secs(10));
    });
    ends_with_nothing_left(|server, _| {
        machine::kill(server.pid());
        server.wait(Duration::from_secs(10));
    });
}

#[test]
fn after_any_single_process_is_killed_the_others_clean_up() {
    let _turn = begin!(alone);
    needs_landlock!();
    // Launcher, guardian, agent and spare processes run one program; each is killed once, and then the server ends.
    for victim in 0..6 {
        ends_with_nothing_left(|server, everybody| {
            let ours: Vec<&ProcessIdentity> = everybody.iter().filter(|seen| seen.name == "exe").collect();
            machine::kill(ours[victim % ours.len()].pid);
            let _ = server.call("list_files", json!({}));
            server.hang_up();
            server.wait(Duration::from_secs(10));
        });
    }
}

fn abused(server: &Client, code: &str) -> Value {
    let answer = server.call(
        "create_run_close",
        json!({"code": code, "memory_mb": 128, "timeout_s": 20}),
    );
    assert!(answer.meta().is_object(), "{answer:?}");
    answer.meta()["cause"].clone()
}

#[test]
fn a_disk_that_empties_slowly_is_reported_as_full() {
    let _turn = begin!(alone);
    needs_landlock!();
    let place = TestDir::with_settings(
        "isolation_min = \"process\"\n[limits]\ndisk_mb = 512\ninodes = 12000\n[pool]\nparked = 0\n",
    );
    let server = serve(&place);
    let code = "for n in range(200000): open(f'f{n}', 'w').close()";
    let answer = server.call(
        "create_run_close",
        json!({"code": code, "timeout_s": 100, "wait_s": 55}),
    );
    assert_eq!(answer.cause(), "disk_full", "{answer:?}");
}

#[test]
fn abuse_without_namespaces_is_stopped_and_named() {
    let _turn = begin!(alone);
    needs_landlock!();
    let place = TestDir::with_settings(
        "isolation_min = \"process\"\n[limits]\ndisk_mb = 32\ninodes = 5000\nprocesses = 32\n[pool]\nparked = 0\n",
    );
    let server = serve(&place);
    let full = abused(
        &server,
        "b = b'x' * (1 << 20)\nfor n in range(200):\n    open(f'f{n}', 'wb').write(b)",
    );
    assert_eq!(full["code"], "disk_full", "{full}");
    let hidden = "import os\nb = b'x' * (1 << 20)\nkept = []\nfor n in range(60):\n    f = os.open('f', 66); os.unlink('f'); \
                  kept.append(f)\n    [os.write(f, b) for _ in range(4)]";
    let hidden = abused(&server, hidden);
    assert_eq!(hidden["code"], "disk_full", "{hidden}");
    let mapped = "import mmap, os, time\nb = b'x' * (1 << 20)\nfor n in range(60):\n    f = open('f', 'w+b')\n    \
                  [f.write(b) for _ in range(4)]; f.flush()\n    os.unlink('f')\n    import ctypes\n    \
                  ctypes.CDLL(None, use_errno=True).mmap(None, 4096, 1, 2, f.fileno(), 0)\n    f.close()\n    time.sleep(0.05)";
    let mapped = abused(&server, mapped);
    assert_eq!(mapped["code"], "disk_full", "{mapped}");
    let unseen = "import os, shutil, time\nwith open('/bin/sleep', 'rb') as f: program = f.read()\n\
                  f = os.open('p', os.O_CREAT | os.O_WRONLY, 0o111); os.write(f, program); os.close(f)\n\
                  os.spawnv(os.P_WAIT, './p', ['p', '15'])";
    // Root may read everything.
    if !sandcell_e2e::is_root() {
        let unseen = abused(&server, unseen);
        assert_eq!(unseen["code"], "disk_full", "{unseen}");
    }
    let inodes = abused(&server, "for n in range(200000): open(f'f{n}', 'w').close()");
    assert_eq!(inodes["code"], "disk_full", "{inodes}");
    let memory = abused(&server, "b = []\nwhile True: b.append(bytearray(1 << 20))");
    assert_eq!(memory["code"], "out_of_memory", "{memory}");
    let crowd = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)";
    let crowd = abused(&server, crowd);
    assert_eq!(crowd["code"], "process_limit", "{crowd}");
    assert!(
        full["message"].as_str().unwrap().contains("32 MiB in 5000 files"),
        "{full}"
    );
    for cause in [full, hidden, mapped, inodes, memory, crowd] {
        assert!(!cause["remedy"].as_str().unwrap().is_empty(), "{cause}");
    }
    assert_eq!(server.text("print('lives')").trim(), "lives");
}

#[test]
fn doctor_names_the_process_level_and_confirms_its_promises() {
    let _turn = begin!(alone);
    needs_landlock!();
    let place = place();
    let output = forbidden(&place.command(&["doctor", "--json"])).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let results = report["attacks"]["results"].as_array().unwrap();
    let through: Vec<&Value> = results.iter().filter(|result| result["held"] != true).collect();
    assert!(through.is_empty(), "{through:?}");
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["level"], "process", "{report}");
    let missing = report["layers"].as_array().unwrap().iter();
    let missing: BTreeSet<&str> = missing
        .filter(|layer| layer["state"] == "missing" && layer["remedy"].is_string())
        .filter_map(|layer| layer["name"].as_str())
        .collect();
    for layer in [
        "user_namespace",
        "pid_namespace",
        "network_namespace",
        "private_root",
        "private_proc",
    ] {
        assert!(missing.contains(layer), "{layer}: {missing:?}");
    }
    assert_eq!(report["attacks"]["tried"], report["attacks"]["held"], "{report}");
}
