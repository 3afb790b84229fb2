//! The attacks that `doctor` makes on a sandbox of this machine: the quick ones of the escape suite, from the same
//! files (`crates/attacks`), and a few floods. The suite is larger, and it proves each layer by removing it. This is a
//! quick check.
//!
//! No attack does harm if it succeeds: files are opened for writing but not written, and nothing is named on the host.
//! The last line of an attack's output is `HELD`, or `BREACH: ` and the attack's reach. Code inside is not trusted in
//! general, but these attacks are our own code. Where the outcome shows outside (a listener of the host, the end of a
//! call), it is judged outside.

use std::sync::LazyLock;

use sandcell_attacks::{AttackFile, QUICK_FILES};
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

/// The attacks, by layer.
pub(super) static QUICK_ATTACKS: LazyLock<Vec<Attack>> = LazyLock::new(|| {
    let mut attacks: Vec<Attack> = QUICK_FILES.iter().map(read).collect();
    attacks.sort_by_key(|attack| attack.layer);
    attacks
});

/// Reads a file's head. The attack runs without this description, so a file without it is still an attack, under its
/// file name.
fn read(file: &AttackFile) -> Attack {
    Attack {
        name: file.value("attack").unwrap_or(file.name),
        layer: file.value("layer").unwrap_or("unknown"),
        code: file.text,
        expect: ExpectedResult::Held,
        everywhere: file.value("containers").is_none(),
        reported_when_weaker: file.value("weaker").is_some(),
    }
}

/// Attacks that a separate small sandbox must survive, in this order. The session may be new for each.
pub(super) const FLOOD_ATTACKS: &[Attack] = &[
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
    use super::*;

    #[test]
    fn every_attack_is_listed_once_with_a_description() {
        let mut names: Vec<&str> = QUICK_ATTACKS
            .iter()
            .chain(FLOOD_ATTACKS)
            .map(|attack| attack.name)
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(all >= 50, "{all}");
        assert!(QUICK_ATTACKS.iter().all(|attack| attack.layer != "unknown"));
    }
}
