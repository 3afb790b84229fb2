//! The entry of a worker into a finished jail as plain data: system calls by number, with their arguments.
//!
//! A worker, a fork of the zygote, is an interpreter that has run library code, so it decides nothing. The launcher
//! translates the plan [`enter`](crate::plan::enter) to a list of calls. The worker makes these calls in order. The
//! first call that fails ends the worker.

use std::collections::BTreeMap;
use std::io;

use landlock::{ABI, Access, AccessFs};
use serde::{Serialize, Serializer};

use crate::plan::{Resource, Signals, Step};
use crate::seccomp::{self, Filter};
use crate::spec::INSIDE_ID;

/// One argument of a call, or the call's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Argument {
    /// A number.
    Number(i64),
    /// The address of these bytes.
    Bytes(Vec<u8>),
    /// The address of a length and an address, for a program of these instructions.
    Program(Vec<u8>),
    /// The result of the call before.
    Previous,
    /// The address where the kernel keeps the thread's id for the C library.
    ThreadId,
    /// The address of the `msghdr` by which a message is received.
    Message(Message),
    /// A descriptor that was received with a message, by its index there.
    Descriptor(Message, usize),
    /// The number that sessions reserve for one of four descriptors, as an index of [`SESSION_FDS`].
    SessionDescriptor(usize),
}

/// The messages with descriptors that zygotes and workers receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// A request for a worker. Carries the namespaces pid, user and the others, and a socket for the permission to go
    /// on.
    Order,
    /// The permission to go on. Carries the mount namespace, the entry socket, and the files by which the worker
    /// joins the cgroup, and the files that it keeps.
    Go,
    /// The far ends of the direct pipes.
    Lane,
}

/// The number of descriptors that a worker receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptorCounts {
    /// The number of namespaces that are entered first, including those for processes and users.
    pub(crate) namespaces: usize,
    /// The number of files by which the worker joins the cgroup.
    pub(crate) groups: usize,
    /// The number of files that it keeps.
    pub(crate) files: usize,
}

/// JSON forms: a number is a number; a string is bytes in hexadecimal; a list with one string is a program; null is the
/// previous result; true is the thread's id. An object with a message's name is that message, or one of its descriptors
/// if it has an index. An object with `own` is a number that sessions reserve.
impl Serialize for Argument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::Bytes(bytes) => serializer.serialize_str(&hexadecimal(bytes)),
            Self::Program(bytes) => [hexadecimal(bytes)].serialize(serializer),
            Self::Previous => serializer.serialize_none(),
            Self::ThreadId => serializer.serialize_bool(true),
            Self::Message(message) => NamedMessage {
                message: *message,
                descriptor: None,
            }
            .serialize(serializer),
            Self::Descriptor(message, index) => NamedMessage {
                message: *message,
                descriptor: Some(*index),
            }
            .serialize(serializer),
            Self::SessionDescriptor(index) => BTreeMap::from([("own", index)]).serialize(serializer),
        }
    }
}

/// A message, or one of its descriptors.
#[derive(Serialize)]
struct NamedMessage {
    message: Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptor: Option<usize>,
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a text cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// A call: its number and arguments.
pub(crate) type Call = Vec<Argument>;

/// All calls of a zygote and its worker, in four stretches. The interpreter runs its own code in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct EnterProgram {
    /// The id that the worker takes.
    pub(crate) user: u32,
    /// In the zygote: forks the worker. The last call returns twice.
    pub(crate) fork: Vec<Call>,
    /// In the zygote, afterwards: closes the received descriptors.
    pub(crate) let_go: Vec<Call>,
    /// In the worker: enters the sandbox and waits for the direct pipes. Sets its identity and limits.
    pub(crate) enter: Vec<Call>,
    /// In the worker, with the direct pipes: places its descriptors, closes all others, and locks it. Later calls need
    /// no more rights than a sandbox's program has.
    pub(crate) lock: Vec<Call>,
}

/// The numbers of descriptors that are kept between two calls. They are above those that a zygote uses, and below a
/// server's limit of open files even if that is low.
const RULESET_FD: i64 = 100;
const FOLDER_FD: i64 = 101;
const PERMISSION_FD: i64 = 102;
const ENTRY_SOCKET_FD: i64 = 103;
/// The first of the kept files.
const FILES_FD: i64 = 104;
/// The maximum time that a sandbox waits for its session, in seconds. The worker ends with the agent in any case.
const SESSION_WAIT_SECONDS: i64 = 86_400;
/// The first descriptor that is not needed once the worker is locked. If it keeps files, this is the number of the first.
const FIRST_FREE: i64 = 5;
/// The descriptors that sessions keep under other numbers: both pipes for frames, and copies of both outputs.
const SESSION_FDS: [i64; 4] = [3, 4, 1, 2];
const CLONE_PARENT: i64 = 0x8000;
const CLONE_CHILD_CLEARTID: i64 = 0x20_0000;
const CLONE_CHILD_SETTID: i64 = 0x100_0000;
const SIGCHLD: i64 = 17;
const CAPABILITIES_VERSION: u32 = 0x2008_0522;

fn call(number: i64, arguments: &[i64]) -> Call {
    let arguments = arguments.iter().copied().map(Argument::Number);
    std::iter::once(Argument::Number(number)).chain(arguments).collect()
}

/// Translates steps to calls. `limit_for` returns the hard limit of a resource that this process may pass on.
/// `is_known` returns true for an existing capability.
pub(crate) fn translate(
    steps: &[Step],
    counts: DescriptorCounts,
    limit_for: impl Fn(Resource) -> u64,
    is_known: impl Fn(u32) -> bool,
) -> io::Result<EnterProgram> {
    let (mut user, mut become_user, mut lock) = (INSIDE_ID, Vec::new(), place_descriptors()?);
    for step in steps {
        match step {
            Step::Identity { id, drop_groups } => {
                user = *id;
                become_user.extend(identity(i64::from(*id), *drop_groups));
            }
            Step::DieWithLauncher => {
                become_user.push(call(libc::SYS_prctl, &[i64::from(libc::PR_SET_PDEATHSIG), 9, 0, 0, 0]));
            }
            Step::ResourceLimit { resource, soft, hard } => {
                let hard_limit = (*hard).min(limit_for(*resource));
                let mut bytes = (*soft).min(hard_limit).to_le_bytes().to_vec();
                bytes.extend(hard_limit.to_le_bytes());
                become_user.push(vec![
                    Argument::Number(libc::SYS_prlimit64),
                    Argument::Number(0),
                    Argument::Number(number_of(*resource)),
                    Argument::Bytes(bytes),
                    Argument::Number(0),
                ]);
            }
            // The launcher gives the worker the cores of the first process.
            Step::Cores { .. } => {}
            Step::Capabilities => lock.extend(no_capabilities(&is_known)),
            Step::NoNewPrivileges => {
                lock.push(call(
                    libc::SYS_prctl,
                    &[i64::from(libc::PR_SET_NO_NEW_PRIVS), 1, 0, 0, 0],
                ));
            }
            Step::Landlock {
                writable,
                readable,
                signals: Signals::Inside,
            } => lock.extend(landlock(writable, readable)?),
            Step::SystemCalls { memory_is_charged } => {
                let files = i64::try_from(counts.files).map_err(io::Error::other)?;
                let not_executed = i64::from(libc::O_CLOEXEC);
                lock.extend(
                    (0..files).map(|index| call(libc::SYS_dup3, &[FILES_FD + index, FIRST_FREE + index, not_executed])),
                );
                let first_free = FIRST_FREE + files;
                lock.push(call(libc::SYS_close_range, &[first_free, i64::from(u32::MAX), 0]));
                lock.extend(place_session_descriptors());
                lock.push(install(&seccomp::filter_of_worker(*memory_is_charged)));
            }
            // The plan has no other steps. A step without a translation is an error.
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
    }
    let mut enter = enter_namespaces(counts);
    enter.extend(become_user);
    enter.extend(receive_direct_pipes());
    Ok(EnterProgram {
        user,
        fork: vec![with_descriptor(libc::SYS_setns, (Message::Order, 0), &[0]), fork()],
        let_go: (0..=counts.namespaces)
            .map(|index| with_descriptor(libc::SYS_close, (Message::Order, index), &[]))
            .collect(),
        enter,
        lock,
    })
}

/// Moves the session's descriptors out of the way of loops that close low numbers.
fn place_session_descriptors() -> Vec<Call> {
    let mut calls: Vec<Call> = SESSION_FDS
        .iter()
        .zip(0..)
        .map(|(descriptor, index)| {
            vec![
                Argument::Number(libc::SYS_dup3),
                Argument::Number(*descriptor),
                Argument::SessionDescriptor(index),
                Argument::Number(i64::from(libc::O_CLOEXEC)),
            ]
        })
        .collect();
    let [input, output, ..] = SESSION_FDS;
    calls.push(call(libc::SYS_close_range, &[input, output, 0]));
    calls
}

fn with_descriptor(number: i64, (message, index): (Message, usize), others: &[i64]) -> Call {
    let mut made = call(number, &[]);
    made.push(Argument::Descriptor(message, index));
    made.extend(others.iter().copied().map(Argument::Number));
    made
}

fn receive(socket: i64, message: Message) -> Call {
    let mut made = call(libc::SYS_recvmsg, &[socket]);
    made.extend([Argument::Message(message), Argument::Number(0)]);
    made
}

fn one_byte(byte: u8) -> [Argument; 2] {
    [Argument::Bytes(vec![byte]), Argument::Number(1)]
}

/// Enters all namespaces except the mount namespace. Enters that, and the cgroup, after the launcher's permission.
fn enter_namespaces(counts: DescriptorCounts) -> Vec<Call> {
    let not_executed = i64::from(libc::O_CLOEXEC);
    let mut calls: Vec<Call> = (1..counts.namespaces)
        .map(|index| with_descriptor(libc::SYS_setns, (Message::Order, index), &[0]))
        .collect();
    calls.extend([
        with_descriptor(
            libc::SYS_dup3,
            (Message::Order, counts.namespaces),
            &[PERMISSION_FD, not_executed],
        ),
        with_descriptor(libc::SYS_close, (Message::Order, counts.namespaces), &[]),
        receive(PERMISSION_FD, Message::Go),
        with_descriptor(libc::SYS_setns, (Message::Go, 0), &[0]),
        with_descriptor(libc::SYS_dup3, (Message::Go, 1), &[ENTRY_SOCKET_FD, not_executed]),
    ]);
    for (index, number) in (0..counts.files).zip(FILES_FD..) {
        let file = (Message::Go, 2 + counts.groups + index);
        calls.extend([
            with_descriptor(libc::SYS_dup3, file, &[number, not_executed]),
            with_descriptor(libc::SYS_close, file, &[]),
        ]);
    }
    for index in 2..2 + counts.groups {
        let mut join = with_descriptor(libc::SYS_write, (Message::Go, index), &[]);
        join.extend(one_byte(b'0'));
        calls.extend([join, with_descriptor(libc::SYS_close, (Message::Go, index), &[])]);
    }
    if counts.groups > 0 {
        let mut joined = call(libc::SYS_write, &[PERMISSION_FD]);
        joined.extend(one_byte(b'1'));
        calls.push(joined);
    }
    calls.push(call(libc::SYS_close, &[PERMISSION_FD]));
    calls
}

/// Waits for a session request, and receives the direct pipes. The entry socket does not block, since the launcher
/// uses it too.
fn receive_direct_pipes() -> Vec<Call> {
    const POLLIN: i16 = 1;
    let mut asked = ENTRY_SOCKET_FD.to_le_bytes()[..4].to_vec();
    asked.extend(POLLIN.to_le_bytes());
    asked.extend([0; 2]);
    let mut time = SESSION_WAIT_SECONDS.to_le_bytes().to_vec();
    time.extend([0; 8]);
    vec![
        call(libc::SYS_setsid, &[]),
        vec![
            Argument::Number(libc::SYS_ppoll),
            Argument::Bytes(asked),
            Argument::Number(1),
            Argument::Bytes(time),
            Argument::Number(0),
            Argument::Number(0),
        ],
        receive(ENTRY_SOCKET_FD, Message::Lane),
    ]
}

/// Places the descriptors of a session: `/dev/null` as stdin, and the four direct pipes.
fn place_descriptors() -> io::Result<Vec<Call>> {
    let mut calls = vec![vec![
        Argument::Number(libc::SYS_openat),
        Argument::Number(i64::from(libc::AT_FDCWD)),
        Argument::Bytes(b"/dev/null\0".to_vec()),
        Argument::Number(i64::from(libc::O_RDONLY | libc::O_CLOEXEC)),
        Argument::Number(0),
    ]];
    calls.push(vec![
        Argument::Number(libc::SYS_dup3),
        Argument::Previous,
        Argument::Number(0),
        Argument::Number(0),
    ]);
    for index in 0..4 {
        let number = i64::try_from(index + 1).map_err(io::Error::other)?;
        calls.push(with_descriptor(libc::SYS_dup3, (Message::Lane, index), &[number, 0]));
    }
    Ok(calls)
}

/// Forks a child of the launcher, so that no process with library code can report the worker's end.
fn fork() -> Call {
    let flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
    let mut made = call(libc::SYS_clone, &[flags, 0, 0]);
    made.extend(if cfg!(target_arch = "x86_64") {
        [Argument::ThreadId, Argument::Number(0)]
    } else {
        [Argument::Number(0), Argument::ThreadId]
    });
    made
}

fn identity(id: i64, drop_groups: bool) -> Vec<Call> {
    let mut calls = Vec::new();
    if drop_groups {
        calls.push(call(libc::SYS_setgroups, &[0, 0]));
    }
    calls.push(call(libc::SYS_setresgid, &[id, id, id]));
    calls.push(call(libc::SYS_setresuid, &[id, id, id]));
    // A process that changes its id becomes undumpable. An executed program is dumpable, so a worker is too.
    calls.push(call(libc::SYS_prctl, &[i64::from(libc::PR_SET_DUMPABLE), 1, 0, 0, 0]));
    calls
}

fn number_of(resource: Resource) -> i64 {
    i64::from(match resource {
        Resource::Core => libc::RLIMIT_CORE,
        Resource::Data => libc::RLIMIT_DATA,
        Resource::FileSize => libc::RLIMIT_FSIZE,
        Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
        Resource::MessageQueues => libc::RLIMIT_MSGQUEUE,
        Resource::Nice => libc::RLIMIT_NICE,
        Resource::OpenFiles => libc::RLIMIT_NOFILE,
        Resource::Processes => libc::RLIMIT_NPROC,
        Resource::RealTimePriority => libc::RLIMIT_RTPRIO,
        Resource::PendingSignals => libc::RLIMIT_SIGPENDING,
        Resource::Stack => libc::RLIMIT_STACK,
    })
}

fn no_capabilities(is_known: &impl Fn(u32) -> bool) -> Vec<Call> {
    const PR_CAP_AMBIENT: i64 = 47;
    const PR_CAP_AMBIENT_CLEAR_ALL: i64 = 4;
    let mut calls = vec![call(
        libc::SYS_prctl,
        &[PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0],
    )];
    let bounding = (0..64_u32).take_while(|number| is_known(*number));
    calls.extend(bounding.map(|number| {
        let drop = i64::from(libc::PR_CAPBSET_DROP);
        call(libc::SYS_prctl, &[drop, i64::from(number), 0, 0, 0])
    }));
    let mut header = CAPABILITIES_VERSION.to_le_bytes().to_vec();
    header.extend([0; 4]);
    calls.push(vec![
        Argument::Number(libc::SYS_capset),
        Argument::Bytes(header),
        Argument::Bytes(vec![0; 24]),
    ]);
    calls
}

/// The Landlock rules of [`landlock`](crate::landlock). A worker can enter only with signal scopes, so the kernel has
/// everything that this version has.
fn landlock(writable: &[String], readable: &[String]) -> io::Result<Vec<Call>> {
    const ABSTRACT_SOCKETS_AND_SIGNALS: u64 = 3;
    const PATH_BENEATH: i64 = 1;
    let abi = ABI::V6;
    let mut attributes = AccessFs::from_all(abi).bits().to_le_bytes().to_vec();
    attributes.extend(0_u64.to_le_bytes());
    attributes.extend(ABSTRACT_SOCKETS_AND_SIGNALS.to_le_bytes());
    let size = i64::try_from(attributes.len()).map_err(io::Error::other)?;
    let keep = |number: i64| {
        vec![
            Argument::Number(libc::SYS_dup3),
            Argument::Previous,
            Argument::Number(number),
            Argument::Number(i64::from(libc::O_CLOEXEC)),
        ]
    };
    let mut calls = vec![
        vec![
            Argument::Number(libc::SYS_landlock_create_ruleset),
            Argument::Bytes(attributes),
            Argument::Number(size),
            Argument::Number(0),
        ],
        keep(RULESET_FD),
    ];
    let all = writable.iter().map(|path| (path.as_str(), AccessFs::from_all(abi)));
    let read = readable.iter().map(|path| (path.as_str(), AccessFs::from_read(abi)));
    let root = std::iter::once(("/", AccessFs::ReadDir.into()));
    for (path, access) in read.chain(all).chain(root) {
        let mut path = path.as_bytes().to_vec();
        path.push(0);
        let mut rule = access.bits().to_le_bytes().to_vec();
        rule.extend(i32::try_from(FOLDER_FD).map_err(io::Error::other)?.to_le_bytes());
        calls.push(vec![
            Argument::Number(libc::SYS_openat),
            Argument::Number(i64::from(libc::AT_FDCWD)),
            Argument::Bytes(path),
            Argument::Number(i64::from(libc::O_PATH | libc::O_CLOEXEC)),
            Argument::Number(0),
        ]);
        calls.push(keep(FOLDER_FD));
        calls.push(vec![
            Argument::Number(libc::SYS_landlock_add_rule),
            Argument::Number(RULESET_FD),
            Argument::Number(PATH_BENEATH),
            Argument::Bytes(rule),
            Argument::Number(0),
        ]);
    }
    calls.push(call(libc::SYS_landlock_restrict_self, &[RULESET_FD, 0]));
    Ok(calls)
}

fn install(filter: &Filter) -> Call {
    const SET_MODE_FILTER: i64 = 1;
    let mut bytes = Vec::new();
    for instruction in filter.instructions() {
        bytes.extend(instruction.code.to_le_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_le_bytes());
    }
    vec![
        Argument::Number(libc::SYS_seccomp),
        Argument::Number(SET_MODE_FILTER),
        Argument::Number(0),
        Argument::Program(bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Host};
    use crate::spec::{Request, Template};

    const DESCRIPTOR_COUNTS: DescriptorCounts = DescriptorCounts {
        namespaces: 7,
        groups: 4,
        files: 0,
    };

    fn made() -> EnterProgram {
        made_with(DESCRIPTOR_COUNTS)
    }

    fn made_with(counts: DescriptorCounts) -> EnterProgram {
        let request = Request {
            memory: 512 << 20,
            cpu_milli: 1000,
            processes: 128,
            disk: 512 << 20,
            inodes: 50_000,
            fault: None,
        };
        let template = Template {
            trees: vec![],
            config: vec![],
            added: vec![],
            mounts: vec![],
            process_level: false,
            spares: 1,
            enterable: true,
            disabled: None,
            skipped: None,
        };
        let host = Host {
            root: true,
            ..Host::default()
        };
        let steps = plan::enter(&host, &template, &request);
        translate(&steps, counts, |_| 1000, |number| number < 41).unwrap()
    }

    fn position(calls: &[Call], number: i64) -> usize {
        calls
            .iter()
            .position(|call| call[0] == Argument::Number(number))
            .unwrap()
    }

    #[test]
    fn the_enter_program_ends_with_the_filter_and_closes_descriptors_before_it() {
        let EnterProgram { lock, .. } = made();
        let order = [
            libc::SYS_capset,
            libc::SYS_landlock_create_ruleset,
            libc::SYS_landlock_restrict_self,
            libc::SYS_close_range,
            libc::SYS_seccomp,
        ];
        let positions: Vec<usize> = order.iter().map(|number| position(&lock, *number)).collect();
        assert!(positions.is_sorted(), "{positions:?}");
        assert_eq!(positions.last(), Some(&(lock.len() - 1)));
    }

    #[test]
    fn kept_files_are_the_only_other_descriptors() {
        let first_closed = |counts| {
            let EnterProgram { lock, .. } = made_with(counts);
            lock[position(&lock, libc::SYS_close_range)][1].clone()
        };
        let files = 2;
        assert_eq!(first_closed(DESCRIPTOR_COUNTS), Argument::Number(5));
        assert_eq!(
            first_closed(DescriptorCounts {
                files,
                ..DESCRIPTOR_COUNTS
            }),
            Argument::Number(7)
        );
    }

    #[test]
    fn every_capability_is_dropped_and_limits_are_only_lowered() {
        let EnterProgram { lock, enter, .. } = made();
        let dropped = lock
            .iter()
            .filter(|call| call[..2] == [Argument::Number(libc::SYS_prctl), Argument::Number(24)]);
        assert_eq!(dropped.count(), 41);
        let mut data = 1000_u64.to_le_bytes().to_vec();
        data.extend(1000_u64.to_le_bytes());
        assert!(
            enter
                .iter()
                .any(|call| call.get(3) == Some(&Argument::Bytes(data.clone())))
        );
    }

    #[test]
    fn a_plan_that_cannot_be_encoded_is_refused() {
        assert!(translate(&[Step::Root], DESCRIPTOR_COUNTS, |_| 0, |_| false).is_err());
    }

    #[test]
    fn each_kind_of_argument_is_distinct_in_json() {
        let arguments = [
            Argument::Number(5),
            Argument::Bytes(vec![1, 255]),
            Argument::Program(vec![2]),
            Argument::Previous,
            Argument::ThreadId,
            Argument::Message(Message::Go),
            Argument::Descriptor(Message::Lane, 3),
            Argument::SessionDescriptor(2),
        ];
        assert_eq!(
            serde_json::to_string(&arguments).unwrap(),
            r#"[5,"01ff",["02"],null,true,{"message":"go"},{"message":"lane","descriptor":3},{"own":2}]"#
        );
    }
}
