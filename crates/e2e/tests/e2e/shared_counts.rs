//! Kernel counts per user of the host: sixteen hostile sandboxes of one caller take as much as they can, other
//! sandboxes continue, and the host user keeps half of each count.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, is_root, python};

const SANDBOX_COUNT: usize = 16;
const SERVER_SETTINGS: &str = "[limits]\nsandboxes_per_caller = 20\nsandboxes = 20\nmemory_mb = 128\n";
/// The limits of open files, queued signals and locked memory (in bytes) of the server, which it cannot raise.
const MAX_OPEN_FILES: u64 = 1024;
const MAX_SIGNALS: u64 = 2000;
const MAX_LOCKED_BYTES: u64 = 256 << 10;

/// Executes a program under these limits.
const UNDER_LIMITS: &str = r#"
import ctypes, os, resource, sys
# Root loses the capability to raise hard limits (PR_CAPBSET_DROP, CAP_SYS_RESOURCE).
ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
resource.setrlimit(resource.RLIMIT_SIGPENDING, (int(sys.argv[2]),) * 2)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(sys.argv[3]),) * 2)
os.execv(sys.argv[4], sys.argv[4:])
"#;

fn python_under_limits() -> Command {
    let mut outer = Command::new(python().unwrap());
    outer.args(["-I", "-S", "-c", UNDER_LIMITS]);
    outer.args([MAX_OPEN_FILES, MAX_SIGNALS, MAX_LOCKED_BYTES].map(|limit| limit.to_string()));
    outer
}

fn under_limits(command: &Command) -> Command {
    let mut outer = python_under_limits();
    outer.arg(command.get_program()).args(command.get_args()).env_clear();
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    outer
}

fn start() -> (TestDir, Client) {
    let place = TestDir::with_settings(SERVER_SETTINGS);
    let server = Client::start(&mut under_limits(&place.command(&["serve"])));
    (place, server)
}

/// Runs this code in several sandboxes of one caller. Returns the sandboxes and the last line of each.
fn run_in_all(server: &Client, code: &str) -> (Vec<Value>, Vec<String>) {
    let made: Vec<Value> = (0..SANDBOX_COUNT)
        .map(|_| server.call("create_sandbox", json!({})).data()["sandbox_ids"][0].clone())
        .collect();
    let calls: Vec<_> = made
        .iter()
        .map(|id| server.begin_call("execute_code", json!({"code": code, "sandbox_id": id, "timeout_s": 20})))
        .collect();
    let said = calls
        .into_iter()
        .map(|call| call.answer().output().lines().last().unwrap_or_default().to_owned())
        .collect();
    (made, said)
}

fn sum(said: &[String]) -> u64 {
    said.iter().map(|text| text.parse::<u64>().unwrap()).sum()
}

/// Returns the output of a program of the host user under the same limits.
fn outside(code: &str) -> u64 {
    let mut command = python_under_limits();
    let python = python().unwrap();
    let output = command.arg(python).args(["-I", "-S", "-c", code]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

fn others_go_on(server: &Client) {
    let answer = server.call("create_run_close", json!({"code": "print(6 * 7)"}));
    assert_eq!(answer.output().trim(), "42", "{answer:?}\n{}", server.log());
}

#[test]
fn sixteen_sandboxes_leave_half_of_the_watches() {
    let _turn = begin!(alone);
    let most: u64 = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let take = "import ctypes\nlibc = ctypes.CDLL(None)\nheld = []\n\
        while len(held) < MOST and (fd := libc.inotify_init1(0)) >= 0:\n    held.append(fd)\nprint(len(held))";
    let take = take.replace("MOST", &(most + 1).to_string());
    let before = outside(&take);
    let (_place, server) = start();
    let (_made, said) = run_in_all(&server, &take);
    let taken = sum(&said);
    let left = outside(&take);
    println!("{taken} of {most} inotify instances are in the sandboxes, {left} of {before} are left: {said:?}");
    assert!(taken > 0, "{said:?}");
    assert!(taken <= most / 2, "{said:?}");
    // Other programs of this user start and end meanwhile.
    assert!(left + most / 2 + 8 >= before, "{left} are left of {before}");
    others_go_on(&server);
}

#[test]
fn sixteen_sandboxes_leave_half_of_the_queued_signals() {
    let _turn = begin!(alone);
    let take = "import ctypes, os, signal\nlibc = ctypes.CDLL(None)\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, {40})\nnumber = 0\n\
        while number < 4000 and libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) == 0:\n    number += 1\nprint(number)";
    let before = outside(take);
    assert!(
        before > MAX_SIGNALS / 2,
        "this user has {before} of {MAX_SIGNALS} queued signals left"
    );
    let (_place, server) = start();
    let (_made, said) = run_in_all(&server, take);
    let (taken, left) = (sum(&said), outside(take));
    println!("{taken} of {MAX_SIGNALS} signals are queued in the sandboxes, {left} of {before} are left: {said:?}");
    assert!(taken > 0, "{said:?}");
    // Other programs of this user start and end meanwhile.
    assert!(
        left + MAX_SIGNALS / 2 + 8 >= before,
        "{left} are left of {before}: {said:?}"
    );
    others_go_on(&server);
}

#[test]
fn sixteen_sandboxes_leave_half_of_the_locked_memory() {
    let _turn = begin!(alone);
    // Shared-memory segments of a few pages, each locked by itself (SHM_LOCK).
    let take = "import ctypes\nlibc = ctypes.CDLL(None)\nlocked = 0\n\
        while locked < 1 << 20 and (one := libc.shmget(0, 16384, 0o600)) >= 0:\n    \
        if libc.shmctl(one, 11, None) < 0:\n        break\n    locked += 16384\nprint(locked)";
    let (_place, server) = start();
    let (_made, said) = run_in_all(&server, take);
    let taken = sum(&said);
    println!("{taken} of {MAX_LOCKED_BYTES} bytes are locked in the sandboxes: {said:?}");
    // Where the watchdog enforces limits there are no shared-memory segments.
    assert!(taken > 0 || !is_root(), "{said:?}");
    assert!(taken <= MAX_LOCKED_BYTES / 2, "{said:?}");
    others_go_on(&server);
}

/// Puts as many descriptors in transit as possible, where they are hardest to detect, and waits. A child does it,
/// since it may be killed before the answer is written.
const FLOOD_SCRIPT: &str = r#"
import os, resource, socket, threading, time
if os.fork() == 0:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    def fill(there):
        there.setblocking(False)
        try:
            while True:
                socket.send_fds(there, [b"x"], [0] * 250)
        except OSError:
            pass
    if WAY == "nested":
        p, q = socket.socketpair()
        x, there = socket.socketpair()
        socket.send_fds(p, [b"x"], [x.fileno()])
        x.close()
    elif WAY == "not accepted":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0here")
        listener.listen(64)
        many = [socket.socket(socket.AF_UNIX) for _ in range(16)]
        for there in many:
            there.connect("\0here")
        [fill(there) for there in many]
    else:
        here, there = socket.socketpair()
    threads = [threading.Thread(target=fill, args=(there,)) for _ in range(16)]
    [thread.start() for thread in threads]
    time.sleep(30)
    os._exit(0)
print(1)
"#;

/// Tests whether a message with a descriptor is refused to a program with half of the default limit, at the last of
/// many tries.
const IS_REFUSED: &str = r#"
import resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
ours, theirs = socket.socketpair()
end = time.monotonic() + 10
while True:
    try:
        socket.send_fds(ours, [b"x"], [0])
        print(0)
        break
    except OSError:
        if time.monotonic() > end:
            print(1)
            break
        time.sleep(0.02)
"#;

#[test]
fn sixteen_floods_of_descriptors_in_flight_end_and_others_go_on() {
    let _turn = begin!(alone);
    for way in ["nested", "not accepted", "open"] {
        let (_place, server) = start();
        let code = format!("WAY = {way:?}\n{FLOOD_SCRIPT}");
        let (made, _) = run_in_all(&server, &code);
        others_go_on(&server);
        assert_eq!(outside(IS_REFUSED), 0, "{way}: the host user cannot pass a descriptor");
        others_go_on(&server);
        // The server still knows its sandboxes after the floods.
        for id in made {
            let answer = server.call("close_sandbox", json!({"sandbox_id": id}));
            assert!(!answer.is_error(), "{answer:?}\n{}", server.log());
        }
    }
}

#[test]
fn programs_that_pass_descriptors_on_are_left_alone() {
    let _turn = begin!();
    let (_place, server) = start();
    let code = r#"
import multiprocessing, os, socket, sys
from multiprocessing import reduction

def add(one, two):
    return one + two

context = multiprocessing.get_context("forkserver")
with context.Pool(2) as pool:
    print(pool.starmap(pow, [(2, 3), (3, 2)]))
near, far = multiprocessing.Pipe()
reader, writer = os.pipe()
os.write(writer, b"passed")
if os.fork() == 0:
    handle = reduction.recv_handle(far)
    far.send(os.read(handle, 6))
    os._exit(0)
reduction.send_handle(near, reader, os.getpid())
print(near.recv())
"#;
    let answer = server.call("create_run_close", json!({"code": code, "timeout_s": 20}));
    assert_eq!(answer.output().trim(), "[8, 9]\nb'passed'", "{answer:?}");
}
