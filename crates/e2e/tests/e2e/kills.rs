//! Kills at random moments, repeated: sandboxes with hostile programs in them, their processes, the launcher and the
//! server itself. Afterwards the machine is as it was before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use sandcell_e2e::client::Client;
use sandcell_e2e::machine::{self, ProcessIdentity};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, is_root, settled, until};

/// The number of kills that a server survives before the test starts another one.
const MAX_KILLS_OF_A_SERVER: u32 = 24;
/// The number of sandboxes that are recreated while they are killed.
const SANDBOX_COUNT: usize = 4;
/// The time limit for all processes of a dead server to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for the kernel to free the memory of namespaces.
const SLAB_TIMEOUT: Duration = Duration::from_secs(30);

/// Detaches itself, ignores every signal that can be ignored, holds files, memory, pipes, sockets and threads, and
/// stays.
const HOSTILE_PROGRAM: &str = "import ctypes, os, signal, socket, threading, time\n\
    ctypes.CDLL(None).prctl(15, b'NAME', 0, 0, 0)\n\
    for depth in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        for s in (1, 2, 3, 13, 15): signal.signal(s, signal.SIG_IGN)\n\
    \x20       if os.fork() == 0:\n            held = [os.pipe() for n in range(50)]\n            pair = socket.socketpair()\n\
    \x20           time.sleep(600)\n        while True:\n            if os.fork() == 0: time.sleep(0.05); os._exit(0)\n            os.wait()\n\
    open_files = [open(f'f{n}', 'w+b') for n in range(100)]\n\
    for f in open_files: f.write(bytes(10000)); f.flush()\n\
    for n in range(50): os.unlink(f'f{n}')\n\
    os.makedirs('d/' * 40)\nb = bytearray(20 << 20)\n\
    for n in range(4): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n\
    while True: time.sleep(0.01); os.write(1, b'x' * 100)\n";

/// Pseudo-random numbers from a printed seed, so that a failure can be reproduced.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed: u64 =
            std::env::var("SANDCELL_TEST_SEED").map_or(now.subsec_nanos().into(), |text| text.parse().unwrap());
        println!("SANDCELL_TEST_SEED={seed}");
        Self(seed | 1)
    }

    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % most.max(1)
    }
}

/// The state that must be unchanged at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Machine {
    mounts: BTreeSet<String>,
    folders: BTreeSet<PathBuf>,
    descriptors: usize,
}

impl Machine {
    fn look(place: &TestDir) -> Self {
        Self {
            mounts: machine::mounts(),
            folders: machine::abandoned_folders()
                .into_iter()
                .chain(place.temporary_files())
                .collect(),
            descriptors: machine::descriptors(std::process::id()),
        }
    }
}

/// Returns the number of kernel objects for namespaces, mounts and processes; only root can read them.
fn slabs() -> BTreeMap<String, u64> {
    let kinds = [
        "net_namespace",
        "user_namespace",
        "pid_namespace",
        "uts_namespace",
        "nsproxy",
        "mnt_cache",
        "ovl_inode",
        "task_struct",
        "mm_struct",
        "signal_cache",
    ];
    let text = std::fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            kinds
                .contains(&name)
                .then(|| Some((name.to_owned(), words.next()?.parse().ok()?)))?
        })
        .collect()
}

/// Returns the kinds that have grown by more than a twentieth, and by more than other programs of a machine cause.
fn grown(before: &BTreeMap<String, u64>) -> Vec<String> {
    // The kernel also counts free objects of partly used pages, for every core; a leaked sandbox has far more.
    let slack = |count: u64| count / 20 + 256;
    slabs()
        .into_iter()
        .filter_map(|(name, now)| {
            let was = before.get(&name).copied().unwrap_or(0);
            (now > was + slack(was)).then(|| format!("{name}: {was} -> {now}"))
        })
        .collect()
}

/// Counts launchers on this machine; ours have all ended at the time of the call.
fn other_launchers() -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_launcher = |line: Vec<u8>| line.starts_with(b"sandcell-launcher\0");
    processes
        .filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(is_launcher))
        .count()
}

/// Returns all processes of the machine with the hostile program's name, regardless of their parents.
fn named(name: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == name))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Runs one server and kills its processes, or the server. Returns the number of kills.
fn kill_at_random(place: &TestDir, name: &str, dice: &mut Dice, most: u32, launchers: &mut BTreeSet<u32>) -> u32 {
    let mut server = Client::start(&mut place.command(&["serve"]));
    let code = HOSTILE_PROGRAM.replace("NAME", name);
    let mut everybody: BTreeSet<ProcessIdentity> = BTreeSet::new();
    let before = settled(|| machine::descriptors(server.pid()));
    let mut calls = Vec::new();
    let mut kills = 0;
    let mut ended = false;
    while kills < most && !ended {
        while calls.len() < SANDBOX_COUNT {
            calls.push(server.begin_call("create_run_close", json!({"code": code, "timeout_s": 30, "wait_s": 55})));
        }
        std::thread::sleep(Duration::from_micros(u64::try_from(dice.below(60_000)).unwrap()));
        let seen = machine::descendants(server.pid());
        launchers.extend(seen.iter().map(|seen| seen.pid));
        everybody.extend(seen.iter().cloned());
        let inside: Vec<&ProcessIdentity> = seen.iter().collect();
        let victim = match dice.below(24) {
            0 => server.pid(),
            1 => inside.iter().map(|seen| seen.pid).min().unwrap_or(server.pid()),
            _ => inside
                .get(dice.below(inside.len()))
                .map_or(server.pid(), |seen| seen.pid),
        };
        machine::kill(victim);
        kills += 1;
        // A server without its launcher makes no sandboxes any more. The test ends it as a client would.
        ended = victim == server.pid() || !everybody.iter().any(|seen| seen.name == "exe" && seen.lives());
        calls.retain(|call| call.within(Duration::ZERO).is_none());
    }
    everybody.extend(machine::descendants(server.pid()));
    if !ended {
        // The calls of killed sandboxes are answered; the server frees their resources.
        for call in calls {
            server.notify("notifications/cancelled", json!({"requestId": call.id}));
        }
        until(END_TIMEOUT, "the server's descriptors are as they were", || {
            (machine::descriptors(server.pid()) <= before + 4).then_some(())
        });
    }
    server.hang_up();
    server.wait(END_TIMEOUT);
    until(END_TIMEOUT, "every process of the server has ended", || {
        (!everybody.iter().any(ProcessIdentity::lives)).then_some(())
    });
    kills
}

/// `cargo xtask soak --kill` runs it with ten thousand.
#[test]
fn kills_at_random_moments_leave_nothing() {
    let _turn = begin!(alone);
    let count: u32 = std::env::var("SANDCELL_TEST_KILLS").map_or(150, |text| text.parse().unwrap());
    let place = TestDir::with_settings("[pool]\nparked = 1\n[limits]\nhistory_rows = 20\n");
    let name = format!("hostile{}", std::process::id() % 1_000_000);
    let mut dice = Dice::new();
    let mut launchers = BTreeSet::new();
    // One round first, since resources of the first start stay.
    kill_at_random(&place, &name, &mut dice, 4, &mut launchers);
    let (before, slabs_before) = (settled(|| Machine::look(&place)), slabs());
    let began = Instant::now();
    let (mut done, mut servers) = (0, 0);
    while done < count {
        done += kill_at_random(
            &place,
            &name,
            &mut dice,
            MAX_KILLS_OF_A_SERVER.min(count - done),
            &mut launchers,
        );
        servers += 1;
    }
    // A start sweeps control groups that a killed launcher left.
    drop(Client::start(&mut place.command(&["serve"])));
    println!(
        "{done} kills at {servers} servers in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert_eq!(named(&name), Vec::<u32>::new(), "hostile programs live");
    until(END_TIMEOUT, "mounts, folders and descriptors are as they were", || {
        (Machine::look(&place) == before).then_some(())
    });
    until(END_TIMEOUT, "no control group is left", || {
        let ended = launchers.iter().map(|pid| ProcessIdentity {
            pid: *pid,
            started: 0,
            name: String::new(),
        });
        machine::groups_of(&ended.collect()).is_empty().then_some(())
    });
    let others = other_launchers();
    if others > 0 {
        println!("slabs are not compared: {others} launchers of other servers are at work on this machine");
    } else if is_root() {
        let start = Instant::now();
        let mut left = grown(&slabs_before);
        while !left.is_empty() && start.elapsed() < SLAB_TIMEOUT {
            std::thread::sleep(Duration::from_millis(100));
            left = grown(&slabs_before);
        }
        println!(
            "slabs back after {:.1} s: {:?} -> {:?}",
            start.elapsed().as_secs_f64(),
            slabs_before,
            slabs()
        );
        assert!(left.is_empty(), "{left:?}");
    }
}
