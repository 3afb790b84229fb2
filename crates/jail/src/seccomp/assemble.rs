//! Compiles the policy to classic BPF instructions.
//!
//! The crate `seccompiler` cannot express this policy. Its filters have one action for all matches and one for all
//! other calls, while each call here has its own error number and numbers above the newest known call have another. It
//! also compares the number with every entry in turn, while the search tree here needs about nine comparisons.

use super::{Action, Entry, Test};

/// One classic BPF instruction, laid out as the kernel's `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's names for the four parts of an instruction")]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// A finished filter: at most 4,096 instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    pub(crate) instructions: Vec<Instruction>,
}

impl Filter {
    /// Returns the instructions, first to last.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
}

const BPF_LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const BPF_AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const BPF_JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const BPF_JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const BPF_JUMP_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const BPF_RETURN: u16 = 0x06; // BPF_RET | BPF_K

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_KILL_PROCESS: u32 = 0x8000_0000;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGS: u32 = 16;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// The newest call that existed when the policy was written. A higher number gets "no such call", so that libraries
/// fall back. The x32 numbers (bit 30) are higher too.
const NEWEST_KNOWN: u32 = 452;

fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn errno(number: i32) -> u32 {
    RET_ERRNO | u32::try_from(number).unwrap_or(1)
}

/// The action for the numbers from `start` up to the next range's start.
#[derive(Clone, Copy)]
struct Range {
    start: u32,
    action: Action,
}

/// Sorts the entries and builds the filter.
pub(super) fn assemble(entries: &mut [Entry]) -> Filter {
    entries.sort_by_key(|entry| entry.number);
    let mut ranges = ranges(entries, Action::Errno(libc::EPERM));
    ranges.push(Range {
        start: NEWEST_KNOWN + 1,
        action: Action::Errno(libc::ENOSYS),
    });
    finish(&ranges)
}

/// Builds a filter to install on top of another filter, which decides about all other calls.
pub(super) fn assemble_on_top(entries: &mut [Entry]) -> Filter {
    entries.sort_by_key(|entry| entry.number);
    finish(&ranges(entries, Action::Allow))
}

fn finish(ranges: &[Range]) -> Filter {
    let mut instructions = vec![
        plain(BPF_LOAD, OFFSET_ARCH),
        branch(BPF_JUMP_EQUAL, AUDIT_ARCH, 1, 0),
        plain(BPF_RETURN, RET_KILL_PROCESS),
        plain(BPF_LOAD, OFFSET_NUMBER),
    ];
    instructions.extend(tree(ranges));
    Filter { instructions }
}

/// `others` is the action for calls without an entry.
fn ranges(entries: &[Entry], others: Action) -> Vec<Range> {
    let mut all = vec![Range {
        start: 0,
        action: others,
    }];
    let mut push = |start: u32, action: Action| {
        if all.last().is_some_and(|last| last.start == start) {
            all.pop();
        }
        if all
            .last()
            .is_none_or(|last| last.action != action || !matches!(action, Action::Allow | Action::Errno(_)))
        {
            all.push(Range { start, action });
        }
    };
    for entry in entries {
        let Ok(number) = u32::try_from(entry.number) else {
            continue;
        };
        push(number, entry.action);
        push(number + 1, others);
    }
    all
}

/// Builds a search tree: numbers below the middle continue on the left, others jump right. Each leaf returns.
fn tree(ranges: &[Range]) -> Vec<Instruction> {
    let middle = ranges.len() / 2;
    let (left, right) = ranges.split_at(middle);
    match (left.is_empty(), right.first()) {
        (_, None) => vec![plain(BPF_RETURN, errno(libc::EPERM))],
        (true, Some(only)) => leaf(only.action),
        (false, Some(first)) => {
            let left = tree(left);
            // A branch alone reaches this far. Each saved instruction makes the filter cheaper for every process that
            // installs it.
            let mut code = match (u8::try_from(left.len()), u32::try_from(left.len())) {
                (Ok(near), _) => vec![branch(BPF_JUMP_AT_LEAST, first.start, near, 0)],
                (Err(_), far) => {
                    let far = plain(BPF_JUMP, far.unwrap_or(u32::MAX));
                    vec![branch(BPF_JUMP_AT_LEAST, first.start, 0, 1), far]
                }
            };
            code.extend(left);
            code.extend(tree(right));
            code
        }
    }
}

fn leaf(action: Action) -> Vec<Instruction> {
    match action {
        Action::Allow => vec![plain(BPF_RETURN, RET_ALLOW)],
        Action::Errno(number) => vec![plain(BPF_RETURN, errno(number))],
        Action::AllowIf { any, errno: number } => {
            let mut code = Vec::new();
            for tests in any {
                code.extend(conjunction(tests, RET_ALLOW));
            }
            code.push(plain(BPF_RETURN, errno(number)));
            code
        }
        Action::DoneIf { any, otherwise } => {
            let done = any.iter().flat_map(|tests| conjunction(tests, errno(0)));
            done.chain(leaf(*otherwise)).collect()
        }
    }
}

/// Returns `outcome` if all tests hold; otherwise continues behind these instructions.
fn conjunction(tests: &[Test], outcome: u32) -> Vec<Instruction> {
    let mut code = vec![plain(BPF_RETURN, outcome)];
    for test in tests.iter().rev() {
        let behind = code.len();
        let mut checks = check(*test, behind);
        checks.extend(code);
        code = checks;
    }
    code
}

/// Falls through if the test holds; otherwise skips `behind` instructions after itself.
fn check(test: Test, behind: usize) -> Vec<Instruction> {
    let offset = OFFSET_ARGS + 8 * u32::from(test.argument);
    let halves = [
        (offset, low(test.mask), low(test.value)),
        (offset + 4, high(test.mask), high(test.value)),
    ];
    let wanted: Vec<_> = halves.into_iter().filter(|(_, mask, _)| *mask != 0).collect();
    let mut code: Vec<Instruction> = Vec::new();
    let count = wanted.len();
    for (index, (offset, mask, value)) in wanted.into_iter().enumerate().rev() {
        // Equal: every half must match. Unequal: one different half is enough, so all but the last may jump to the end
        // of the check if they differ.
        let to_fail = u8::try_from(behind + code.len()).unwrap_or(u8::MAX);
        let to_end = u8::try_from(code.len()).unwrap_or(u8::MAX);
        let last = index + 1 == count;
        let jump = match (test.equal, last) {
            (true, _) => branch(BPF_JUMP_EQUAL, value, 0, to_fail),
            (false, true) => branch(BPF_JUMP_EQUAL, value, to_fail, 0),
            (false, false) => branch(BPF_JUMP_EQUAL, value, 0, to_end),
        };
        let mut half = vec![plain(BPF_LOAD, offset)];
        if mask != u32::MAX {
            half.push(plain(BPF_AND, mask));
        }
        half.push(jump);
        half.extend(code);
        code = half;
    }
    code
}

fn low(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0)
}

fn high(value: u64) -> u32 {
    u32::try_from(value >> 32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::{
        SYSCALL_POLICY, filter, filter_of_first_process, filter_of_fork_server, filter_of_worker, filter_of_zygote,
        policy,
    };

    /// Runs a filter as the kernel does.
    fn run(filter: &Filter, arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_le_bytes());
        data.extend(arch.to_le_bytes());
        data.extend(0_u64.to_le_bytes());
        for arg in args {
            data.extend(arg.to_le_bytes());
        }
        let (mut at, mut register) = (0_usize, 0_u32);
        loop {
            let instruction = filter.instructions[at];
            at += 1;
            let k = instruction.k;
            match instruction.code {
                BPF_LOAD => {
                    let from = usize::try_from(k).unwrap();
                    register = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
                }
                BPF_AND => register &= k,
                BPF_JUMP => at += usize::try_from(k).unwrap(),
                BPF_JUMP_EQUAL => at += usize::from(if register == k { instruction.jt } else { instruction.jf }),
                BPF_JUMP_AT_LEAST => at += usize::from(if register >= k { instruction.jt } else { instruction.jf }),
                BPF_RETURN => return k,
                code => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    /// The policy's answer, computed without the assembler.
    fn expected(number: i64, args: [u64; 6]) -> u32 {
        let Some(entry) = SYSCALL_POLICY.iter().find(|entry| entry.number == number) else {
            return errno(if number > i64::from(NEWEST_KNOWN) {
                libc::ENOSYS
            } else {
                libc::EPERM
            });
        };
        entry.action.answer(args).map_or(RET_ALLOW, errno)
    }

    /// Argument values around the conditions of the policy.
    const TEST_VALUES: [u64; 24] = [
        0,
        1,
        2,
        3,
        5,
        10,
        15,
        16,
        17,
        22,
        38,
        40,
        0x5412,
        0x541c,
        0x1_0000_5412,
        0xffff_ffff_0000_5412,
        0x20000,
        0x1000_0000,
        0x0080_0000,
        0x8000,
        0x6180,
        0x1_0000_0000,
        0xffff_ffff,
        u64::MAX,
    ];

    #[test]
    fn the_filters_of_a_process_and_its_maker_together_allow_exactly_the_policy() {
        let (zygotes, fork_servers) = (filter_of_zygote(), filter_of_fork_server());
        for charged in [true, false] {
            check_both(charged, &zygotes, &filter_of_worker(charged));
            check_both(charged, &fork_servers, filter_of_first_process(charged));
        }
        for filter in [&filter_of_worker(true), filter_of_first_process(true)] {
            assert_eq!(run(filter, 0x4000_0003, 1, [0; 6]), RET_KILL_PROCESS);
        }
    }

    fn check_both(charged: bool, inherited: &Filter, own: &Filter) {
        let whole = filter(charged);
        let clone = [
            0x0001_0000,
            0x0001_8000,
            0x0100_0011,
            0x0001_0400,
            0x3d_0f00,
            0x8011,
            0x120_8011,
        ];
        let check = |number: u32, args: [u64; 6]| {
            let run = |filter| run(filter, AUDIT_ARCH, number, args);
            // The kernel takes the strictest answer. Of equally strict ones it takes the newest filter's.
            let both = match (run(own), run(inherited)) {
                (RET_ALLOW, of_parent) => of_parent,
                (of_child, _) => of_child,
            };
            assert_eq!(both, run(whole), "call {number} {args:x?}, charged: {charged}");
        };
        (0..700).chain([0x4000_0000]).for_each(|number| check(number, [0; 6]));
        let conditional = |entry: &&Entry| !matches!(entry.action, Action::Allow | Action::Errno(_));
        for entry in policy(charged).iter().filter(conditional) {
            let number = u32::try_from(entry.number).unwrap();
            for first in TEST_VALUES.into_iter().chain(clone) {
                for second in TEST_VALUES {
                    for third in [0, 6, 7, 8, 17, 0x8000, 0x2000] {
                        for fourth in [0, 0x21, 0x22, 0x01, 0x02] {
                            check(number, [first, second, third, fourth, 0, 0]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_zygote_enters_namespaces_by_descriptor_and_never_by_process() {
        let setns = u32::try_from(libc::SYS_setns).unwrap();
        let answer = |kind: u64| run(&filter_of_zygote(), AUDIT_ARCH, setns, [7, kind, 0, 0, 0, 0]);
        assert_eq!((answer(0), answer(0xffff_ffff_0000_0000)), (RET_ALLOW, RET_ALLOW));
        for kind in [
            libc::CLONE_NEWNS,
            libc::CLONE_NEWUSER,
            libc::CLONE_NEWUSER | libc::CLONE_NEWNS,
        ] {
            assert_eq!(answer(u64::from(kind.unsigned_abs())), errno(libc::EPERM));
        }
    }

    #[test]
    fn the_filters_for_each_sandbox_are_small() {
        let whole = filter(true).instructions.len();
        for own in [&filter_of_worker(true), filter_of_first_process(true)] {
            let own = own.instructions.len();
            assert!(own * 4 < whole, "{own} of {whole} instructions");
        }
    }

    #[test]
    fn the_filter_agrees_with_the_policy_for_every_number_and_many_arguments() {
        let filter = filter(true);
        for number in 0..700 {
            if !SYSCALL_POLICY
                .iter()
                .any(|entry| entry.number == number && matches!(entry.action, Action::AllowIf { .. }))
            {
                let verdict = run(filter, AUDIT_ARCH, u32::try_from(number).unwrap(), [0; 6]);
                assert_eq!(verdict, expected(number, [0; 6]), "call {number}");
                continue;
            }
            for first in TEST_VALUES {
                for second in TEST_VALUES {
                    for third in [0, 6, 17, 0x8000, 0x2000] {
                        let args = [first, second, third, 0, 0, 0];
                        let verdict = run(filter, AUDIT_ARCH, u32::try_from(number).unwrap(), args);
                        assert_eq!(verdict, expected(number, args), "call {number} {args:x?}");
                    }
                }
            }
        }
    }

    #[test]
    fn another_architecture_is_killed_and_x32_is_unknown() {
        assert_eq!(run(filter(true), 0x4000_0003, 1, [0; 6]), RET_KILL_PROCESS);
        assert_eq!(run(filter(true), AUDIT_ARCH, 0x4000_0000, [0; 6]), errno(libc::ENOSYS));
    }

    #[test]
    fn no_entry_is_above_the_newest_known_call() {
        assert!(
            SYSCALL_POLICY
                .iter()
                .all(|entry| entry.number <= i64::from(NEWEST_KNOWN))
        );
    }

    #[test]
    fn the_filter_fits_the_kernel_limit_and_its_jump_offsets() {
        let count = filter(true).instructions.len();
        assert!(count < 4096, "{count} instructions");
    }

    #[test]
    fn uncharged_memory_is_denied_where_the_watchdog_counts_memory() {
        let number = u32::try_from(libc::SYS_memfd_create).unwrap();
        assert_eq!(run(filter(false), AUDIT_ARCH, number, [0; 6]), errno(libc::ENOSYS));
        assert_eq!(run(filter(true), AUDIT_ARCH, number, [0; 6]), RET_ALLOW);
    }

    #[test]
    fn under_the_watchdog_setting_socket_buffers_is_a_successful_no_op() {
        let number = u32::try_from(libc::SYS_setsockopt).unwrap();
        let set = |level, option| run(filter(false), AUDIT_ARCH, number, [3, level, option, 0, 4, 0]);
        for buffer in [7, 8] {
            assert_eq!(set(1, buffer), errno(0));
            assert_eq!(set(1 | 1 << 32, buffer | 1 << 40), errno(0));
            assert_eq!(set(6, buffer), RET_ALLOW);
        }
        assert_eq!(set(1, 2), RET_ALLOW);
        for (level, option) in [(1, 26), (6, 14), (6, 32), (17, 100), (41, 32)] {
            assert_eq!(set(level, option), errno(libc::EPERM), "{level} {option}");
        }
    }
}
