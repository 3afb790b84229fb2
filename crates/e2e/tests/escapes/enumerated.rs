//! Checks every entry of the policy table from inside: every system call, every socket family and type, every flag of
//! clone that makes a namespace.

use sandcell_jail::seccomp::{Action, Entry, policy};
use serde_json::{Value, json};

use crate::target::{ServerUser, Target};
use sandcell_e2e::begin;

/// The newest system call in the policy; later ones return ENOSYS.
const NEWEST_KNOWN_CALL: i64 = 452;
/// uretprobe and uprobe of x86-64: the kernel lets them pass every filter, since its own trampolines call them. Other
/// callers are killed (SIGILL).
const PROBE_CALLS: [i64; 2] = [335, 336];
/// One question: the system call's number, its six arguments, and the expected error number.
type Question = (i64, [u64; 6], i32);

/// Returns the errno of the table; `None` if the call is allowed.
fn refusal(policy: &[Entry], number: i64, args: [u64; 6]) -> Option<i32> {
    let Some(entry) = policy.iter().find(|entry| entry.number == number) else {
        return Some(if number > NEWEST_KNOWN_CALL {
            libc::ENOSYS
        } else {
            libc::EPERM
        });
    };
    entry.action.answer(args)
}

/// Returns the policy in force on this server.
fn in_force(target: &Target) -> Vec<Entry> {
    let sandbox = target.client.run("1").sandbox();
    let status = { &target.client }.call("get_sandbox_status", json!({"sandbox_id": sandbox}));
    let degraded = status.data()["sandboxes"][0]["isolation"]["degraded"].clone();
    let watched = degraded
        .as_array()
        .unwrap()
        .iter()
        .any(|text| text.as_str().unwrap().starts_with("memory_limit"));
    policy(!watched)
}

/// Makes all these calls. Returns those with an unexpected result.
fn ask(target: &Target, questions: &[Question]) -> Vec<Value> {
    const ASK_SCRIPT: &str = r#"
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.syscall.argtypes = [ctypes.c_long] + [ctypes.c_ulong] * 6
wrong = []
for number, args, expected in json.loads(QUESTIONS):
    ctypes.set_errno(0)
    result = libc.syscall(number, *args)
    got = ctypes.get_errno()
    if (result != -1 or got != expected) and not (expected == 0 and result == 0):
        wrong.append([number, args, expected, result, got])
print(json.dumps(wrong))
"#;
    let mut wrong = Vec::new();
    for some in questions.chunks(2000) {
        let answer = target
            .client
            .run(&format!("QUESTIONS = {:?}\n{ASK_SCRIPT}", json!(some).to_string()));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        let found: Value = serde_json::from_str(answer.output().trim()).unwrap();
        wrong.extend(found.as_array().unwrap().clone());
    }
    wrong
}

fn all_hold(what: &str, questions: impl Fn(&[Entry]) -> Vec<Question>) {
    for user in ServerUser::all() {
        let target = Target::open(user, "", &[]);
        let questions = questions(&in_force(&target));
        let wrong = ask(&target, &questions);
        println!(
            "{what} as {}: {} asked, {} not as the policy says",
            user.name(),
            questions.len(),
            wrong.len()
        );
        assert!(
            wrong.is_empty(),
            "[number, arguments, expected, result, error]: {wrong:?}"
        );
    }
}

#[test]
fn every_call_that_the_policy_refuses_is_refused_with_its_error() {
    let _turn = begin!();
    all_hold("calls", |policy| {
        let nothing = [u64::MAX; 6];
        (0..=460)
            .filter(|number| !(cfg!(target_arch = "x86_64") && PROBE_CALLS.contains(number)))
            .filter_map(|number| refusal(policy, number, nothing).map(|errno| (number, nothing, errno)))
            // Calls whose answer depends on an argument: one question for each refused kind of argument.
            .chain(conditional(policy))
            .collect()
    });
}

/// Returns arguments for each conditional call that fail every alternative's tests.
fn conditional(policy: &[Entry]) -> Vec<Question> {
    let mut questions = Vec::new();
    for entry in policy {
        let any = match entry.action {
            Action::AllowIf { any, .. } => any.to_vec(),
            Action::DoneIf { any, otherwise } => match otherwise {
                Action::AllowIf { any: others, .. } => [any, *others].concat(),
                _ => any.to_vec(),
            },
            Action::Allow | Action::Errno(_) => continue,
        };
        let values: Vec<u64> = any
            .iter()
            .flat_map(|tests| tests.iter())
            .flat_map(|test| {
                [
                    test.value,
                    test.value ^ 1,
                    test.value.wrapping_add(1 << 33),
                    !test.value & test.mask,
                    u64::MAX,
                ]
            })
            .collect();
        for argument in 0..3 {
            for value in &values {
                for other in [0, 1, 0x7fff_ffff] {
                    let mut args = [other; 6];
                    args[argument] = *value;
                    if let Some(errno) = refusal(policy, entry.number, args) {
                        questions.push((entry.number, args, errno));
                    }
                }
            }
        }
    }
    questions
}

#[test]
fn every_socket_family_and_type_is_as_the_policy_says() {
    let _turn = begin!();
    all_hold("sockets", |policy| {
        let mut questions = Vec::new();
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            for family in (0..=46).chain([255, 1 << 32, (1 << 32) + 38]) {
                for kind in [0, 1, 2, 3, 4, 5, 6, 10, 0x80000 | 3, 0x800 | 1, 0x80800 | 2] {
                    for protocol in [0, 1, 6, 17, 132, 255, 262] {
                        let args = [family, kind, protocol, 0, 0, 0];
                        if let Some(errno) = refusal(policy, call, args) {
                            questions.push((call, args, errno));
                        }
                    }
                }
            }
        }
        assert!(questions.len() > 3000, "{}", questions.len());
        questions
    });
}

#[test]
fn no_flag_of_clone_makes_a_namespace() {
    const NAMESPACE_FLAGS: [u64; 8] = [
        0x80,
        0x20000,
        0x0200_0000,
        0x0400_0000,
        0x0800_0000,
        0x1000_0000,
        0x2000_0000,
        0x4000_0000,
    ];
    let _turn = begin!();
    all_hold("flags of clone", |policy| {
        let mut questions = Vec::new();
        for one in NAMESPACE_FLAGS.into_iter().chain([0x2000, 0x8000]) {
            for other in NAMESPACE_FLAGS
                .into_iter()
                .chain([0, 17, 0x100, 0x10f00, 1 << 32, 1 << 63])
            {
                for call in [libc::SYS_clone, libc::SYS_unshare, libc::SYS_clone3] {
                    let args = [one | other, 0, 0, 0, 0, 0];
                    // NEWTIME is bit 7, which for clone is part of the signal's number: the kernel accepts it from
                    // clone3 and unshare only.
                    match refusal(policy, call, args) {
                        Some(errno) => questions.push((call, args, errno)),
                        None => assert!(call == libc::SYS_clone && one == 0x80, "{call} {args:x?} goes through"),
                    }
                }
            }
        }
        questions
    });
}

/// A filter that refuses everything would pass the tests above.
#[test]
fn calls_of_ordinary_programs_are_allowed() {
    const NEEDED_CALLS_SCRIPT: &str = r#"
import asyncio, concurrent.futures, ctypes, fcntl, multiprocessing, os, select, signal, socket, sqlite3, subprocess, tempfile, threading
done = []
def check(name, value):
    done.append(name if value else "FAILED " + name)
check("fork", os.waitpid(os.fork() or os._exit(7), 0)[1] == 7 << 8)
check("threads", [t.start() or t.join() or True for t in [threading.Thread(target=int)]] == [True])
check("subprocess", subprocess.run(["/bin/echo", "x"], capture_output=True).stdout == b"x\n")
check("shell", subprocess.run("echo $((6*7))", shell=True, capture_output=True).stdout == b"42\n")
with tempfile.NamedTemporaryFile() as f:
    f.write(b"x"), f.flush()
    check("tempfile", os.stat(f.name).st_size == 1)
    check("flock", fcntl.flock(f, fcntl.LOCK_EX) is None)
db = sqlite3.connect("/tmp/x.db")
db.execute("create table if not exists t(a)"), db.execute("insert into t values (1)"), db.commit()
check("sqlite3", db.execute("select count(*) from t").fetchone()[0] >= 1)
async def two():
    p = await asyncio.create_subprocess_exec("/bin/echo", "y", stdout=-1)
    return (await p.communicate())[0]
check("asyncio", asyncio.run(two()) == b"y\n")
a, b = socket.socketpair()
a.send(b"z")
check("socketpair", b.recv(1) == b"z")
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
check("loopback", client.send(b"q") == 1)
client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
check("setsockopt", client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 0)
check("epoll", select.epoll().poll(0) == [])
check("signals", signal.signal(signal.SIGUSR1, signal.SIG_IGN) is not None)
queue = multiprocessing.get_context("fork").Queue()
process = multiprocessing.get_context("fork").Process(target=queue.put, args=(5,))
process.start()
check("multiprocessing", queue.get(timeout=10) == 5 and process.join() is None)
check("inotify", ctypes.CDLL(None).inotify_init1(0) >= 0)
master, slave = os.openpty()
check("pty", os.isatty(slave))
import mmap
check("mmap", len(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)) == 4096)
with tempfile.TemporaryFile() as f:
    f.truncate(4096)
    check("shared file", len(mmap.mmap(f.fileno(), 4096)) == 4096)
check("priority", os.nice(1) >= 0)
check("pidfd", os.pidfd_open(os.getpid()) > 0)
print(len(done), [name for name in done if name.startswith("FAILED")])
"#;
    let _turn = begin!();
    for user in ServerUser::all() {
        let target = Target::open(user, "", &[]);
        assert_eq!(
            target.client.text(NEEDED_CALLS_SCRIPT).trim(),
            "20 []",
            "as {}",
            user.name()
        );
    }
}
