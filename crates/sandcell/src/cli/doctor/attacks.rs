//! The attacks that `doctor` makes on a sandbox of this machine: the quick ones of the escape suite, from the suite's
//! own files, and a few floods. The suite is larger, and it proves each layer by removing it. This is a quick check.
//!
//! No attack does harm if it succeeds: files are opened for writing but not written, and nothing is named on the host.
//! The last line of an attack's output is `HELD`, or `BREACH: ` and the attack's reach. Code inside is not trusted in
//! general, but these attacks are our own code. Where the outcome shows outside (a listener of the host, the end of a
//! call), it is judged outside.

use std::sync::LazyLock;

use sandcell_sandbox::Code;

/// The expected result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedResult {
    /// The last line of stdout begins with `HELD`.
    Held,
    /// The execution is ended with one of these causes, or the last line begins with `HELD`.
    HeldOrCause(&'static [Code]),
}

/// One attack.
#[derive(Debug)]
pub(super) struct Attack {
    /// The attack's description, for people.
    pub(super) name: &'static str,
    /// The layer that must hold.
    pub(super) layer: &'static str,
    /// The Python code. It may use the canaries of [`super::canary`] as `CANARIES`.
    pub(super) code: &'static str,
    /// The expected result.
    pub(super) expect: ExpectedResult,
    /// True when the attack is also valid in a container, where the image and the daemon's mounts are visible.
    pub(super) everywhere: bool,
    /// True when the report of a weakened layer already states the attack's finding.
    pub(super) reported_when_weaker: bool,
}

/// Helpers for every attack.
pub(super) const PRELUDE: &str = include_str!("../../../tests/escapes/attacks/prelude.py");

macro_rules! files {
    ($($name:literal,)*) => {
        /// The names and files of the escape suite's attacks with `# quick: yes`.
        const ATTACK_FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../tests/escapes/attacks/", $name, ".py")))),*];
    };
}

files! {
    "agent/kill_first",
    "agent/limit_first",
    "agent/read_memory_of_first",
    "agent/slow_first",
    "agent/trace_first",
    "devices/make_a_disk_node",
    "devices/memory_and_disks",
    "devices/tty_injection",
    "environment/first_process",
    "environment/open_descriptors",
    "environment/variables_of_the_server",
    "kernel/add_a_key",
    "kernel/bpf",
    "kernel/chroot",
    "kernel/copy_a_tree",
    "kernel/enter_namespace_of_first",
    "kernel/io_uring",
    "kernel/kernel_log",
    "kernel/key_rings",
    "kernel/load_kernel",
    "kernel/load_module",
    "kernel/make_user_namespace",
    "kernel/make_user_namespace_by_clone3",
    "kernel/mount_tmpfs",
    "kernel/new_mount_calls",
    "kernel/perf_events",
    "kernel/pivot_root",
    "kernel/trace_a_child",
    "kernel/userfaultfd",
    "network/abstract_socket",
    "network/host_loopback",
    "network/host_loopback_by_ipv6",
    "network/internet",
    "network/metadata",
    "network/name_server",
    "privileges/become_root",
    "privileges/capabilities_left",
    "proc/change_core_pattern",
    "proc/kernel_memory",
    "proc/memory_of_first_process",
    "proc/processes_of_the_host",
    "proc/sysrq",
    "root/list_run",
    "root/mount_table_tells_paths",
    "root/other_homes",
    "root/read_shadow",
    "root/sys_is_absent",
    "root/who_runs_the_machine",
    "root/write_etc",
    "root/write_usr",
    "sockets/alg",
    "sockets/netlink",
    "sockets/packet",
    "sockets/raw_ip",
    "sockets/vsock",
}

/// The attacks, by layer.
pub(super) static ATTACKS: LazyLock<Vec<Attack>> = LazyLock::new(|| {
    let mut attacks: Vec<Attack> = ATTACK_FILES.iter().map(|(name, text)| read(name, text)).collect();
    attacks.sort_by_key(|attack| attack.layer);
    attacks
});

/// Reads a file's `# key: value` lines. The attack runs without this description, so a file without the lines is still
/// an attack, under its file name.
fn read(name: &'static str, text: &'static str) -> Attack {
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": "))
    };
    Attack {
        name: value("attack").unwrap_or(name),
        layer: value("layer").unwrap_or("unknown"),
        code: text,
        expect: ExpectedResult::Held,
        everywhere: value("containers").is_none(),
        reported_when_weaker: value("weaker").is_some(),
    }
}

/// Attacks that a separate small sandbox must survive, in this order. The session may be new for each.
pub(super) const FLOODS: &[Attack] = &[
    Attack {
        name: "set off a fork bomb",
        layer: "process_limit",
        code: r#"children = []
try:
    while len(children) < 4096:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        children.append(child)
    verdict = 'BREACH: 4096 children'
except OSError as error:
    verdict = f'HELD after {len(children)} children'
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(verdict)"#,
        // A watchdog that limits memory may end the sandbox first.
        expect: ExpectedResult::HeldOrCause(&[Code::ProcessLimit, Code::OutOfMemory]),
        everywhere: true,
        reported_when_weaker: false,
    },
    Attack {
        name: "fill the disk",
        layer: "disk_limit",
        code: r#"written = 0
fill = os.environ.get('TMPDIR', '/tmp') + '/fill'
try:
    with open(fill, 'wb', buffering=0) as file:
        while written < 256 << 20:
            written += file.write(bytes(1 << 20))
    print('BREACH:', written, 'bytes')
except OSError as error:
    print('HELD after', written >> 20, 'MiB', errno.errorcode[error.errno])
os.unlink(fill)"#,
        expect: ExpectedResult::HeldOrCause(&[Code::DiskFull]),
        everywhere: true,
        reported_when_weaker: false,
    },
    Attack {
        name: "loop for ever",
        layer: "time_limit",
        code: "while True: pass",
        expect: ExpectedResult::HeldOrCause(&[Code::Timeout]),
        everywhere: true,
        reported_when_weaker: false,
    },
    Attack {
        name: "take all memory",
        layer: "memory_limit",
        code: r#"blocks = []
try:
    while len(blocks) < 512:
        blocks.append(b'x' * (1 << 20))
    print('BREACH:', len(blocks), 'MiB')
except MemoryError:
    taken = len(blocks)
    blocks.clear()
    print('HELD after', taken, 'MiB')"#,
        expect: ExpectedResult::HeldOrCause(&[Code::OutOfMemory]),
        everywhere: true,
        reported_when_weaker: false,
    },
    Attack {
        name: "print without end",
        layer: "output_limit",
        code: "for _ in range(64):\n    print('x' * (1 << 18))\nprint('HELD')",
        expect: ExpectedResult::HeldOrCause(&[Code::OutputLimit]),
        everywhere: true,
        reported_when_weaker: false,
    },
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_attack_is_there_once_and_says_what_it_tries() {
        let mut names: Vec<&str> = ATTACKS.iter().chain(FLOODS).map(|attack| attack.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(all >= 50, "{all}");
        assert!(ATTACKS.iter().all(|attack| attack.layer != "unknown"));
    }

    #[test]
    fn they_are_those_that_the_suite_calls_quick() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escapes/attacks");
        let mut quick = Vec::new();
        for class in std::fs::read_dir(&folder)
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir())
        {
            for file in std::fs::read_dir(class.path()).unwrap().flatten() {
                let path = file.path();
                if std::fs::read_to_string(&path).unwrap().contains("# quick: yes\n") {
                    quick.push(
                        path.strip_prefix(&folder)
                            .unwrap()
                            .with_extension("")
                            .display()
                            .to_string(),
                    );
                }
            }
        }
        quick.sort();
        let ours: Vec<&str> = ATTACK_FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(ours, quick);
    }
}
