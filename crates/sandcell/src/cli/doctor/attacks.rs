//! The attacks that `doctor` makes on a sandbox of this machine: data, each a few lines of Python and the layer that
//! it tries. The escape suite is larger and proves each layer by taking it away; this is its quick look.
//!
//! None would do harm if it came through: files are opened for writing but not written, and nothing is named on the
//! host. An attack prints `held` and why, or `broke` and how far it came, as its last line. Code inside is not trusted, but
//! this code is ours; where the outcome shows outside (a listener of the host, the end of a call), it is judged there.

use sandcell_sandbox::Code;

/// What must come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    /// The last line of stdout begins with `held`.
    Held,
    /// The execution is ended with one of these causes, or the last line begins with `held`.
    HeldOr(&'static [Code]),
}

/// One attack.
#[derive(Debug)]
pub(super) struct Attack {
    /// What it tries, for people.
    pub(super) name: &'static str,
    /// The layer that must hold.
    pub(super) layer: &'static str,
    /// The Python. `{tcp}`, `{abstract}`, `{names}` and `{paths}` are filled in by [`super::lure`].
    pub(super) code: &'static str,
    /// What must come back.
    pub(super) expect: Expect,
}

const fn attack(layer: &'static str, name: &'static str, code: &'static str) -> Attack {
    Attack {
        name,
        layer,
        code,
        expect: Expect::Held,
    }
}

/// What every attack may use. `call` makes a system call by name; `refused` says whether it was refused by a rule,
/// which is more than that it failed.
pub(super) const PRELUDE: &str = r#"
import ctypes, errno, os, platform, resource, signal, socket, struct, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {
    "x86_64": dict(mount=165, pivot_root=155, chroot=161, unshare=272, setns=308, clone3=435, ptrace=101,
        process_vm_readv=310, keyctl=250, add_key=248, bpf=321, perf_event_open=298, io_uring_setup=425,
        userfaultfd=323, open_by_handle_at=304, syslog=103, init_module=175, kexec_load=246, fsopen=430,
        open_tree=428, move_mount=429, quotactl=179, kcmp=312, pidfd_getfd=438, name_to_handle_at=303),
    "aarch64": dict(mount=40, pivot_root=41, chroot=51, unshare=97, setns=268, clone3=435, ptrace=117,
        process_vm_readv=270, keyctl=219, add_key=217, bpf=280, perf_event_open=241, io_uring_setup=425,
        userfaultfd=282, open_by_handle_at=265, syslog=116, init_module=105, kexec_load=104, fsopen=430,
        open_tree=428, move_mount=429, quotactl=60, kcmp=272, pidfd_getfd=438, name_to_handle_at=264),
}[platform.machine()]

def call(name, *args):
    ctypes.set_errno(0)
    args = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *args)
    return result, ctypes.get_errno()

RULES = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT}

def refused(name, *args):
    result, error = call(name, *args)
    if result < 0 and error in RULES:
        print("held", errno.errorcode[error])
    else:
        print("broke", name, "gave", result, errno.errorcode.get(error, error))

def family(number, kind=socket.SOCK_RAW, protocol=0):
    try:
        socket.socket(number, kind, protocol).close()
        print("broke: the socket was made")
    except OSError as error:
        print("held" if error.errno in RULES else "broke", errno.errorcode.get(error.errno))

def fails(action):
    try:
        got = action()
    except OSError as error:
        print("held", errno.errorcode.get(error.errno, error))
    else:
        print("broke:", repr(got)[:60])

def connect(host, port, what=socket.SOCK_STREAM):
    def go():
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, what) as s:
            s.settimeout(0.5)
            s.connect((host, port))
            s.send(b"x")
    fails(go)
"#;

/// The attacks, by layer.
pub(super) const ATTACKS: &[Attack] = &[
    attack(
        "private root",
        "read /etc/shadow",
        "fails(lambda: open('/etc/shadow').read())",
    ),
    attack(
        "private root",
        "list /root",
        "fails(lambda: os.listdir('/root') or open('/nothing'))",
    ),
    attack(
        "private root",
        "find other homes",
        "homes = os.listdir('/home')\nprint('held' if homes == ['user'] else 'broke', homes)",
    ),
    attack(
        "private root",
        "write below /usr",
        "fails(lambda: os.open('/usr', os.O_TMPFILE | os.O_WRONLY))",
    ),
    attack(
        "private root",
        "write below /etc",
        "fails(lambda: os.open('/etc', os.O_TMPFILE | os.O_WRONLY))",
    ),
    attack(
        "private root",
        "find /sys",
        "names = os.listdir('/sys') if os.path.isdir('/sys') else []\nprint('broke' if names else 'held', names)",
    ),
    attack(
        "private root",
        "find host paths among the mounts",
        r#"text = open('/proc/self/mountinfo').read()
found = [word for word in {paths} if word in text]
print('broke' if found else 'held', found)"#,
    ),
    attack(
        "devices",
        "open /dev/mem and its like",
        r#"found = [n for n in ('mem', 'kmem', 'port', 'kmsg', 'kvm', 'fuse', 'sda', 'vda', 'loop0', 'uinput', 'vsock') if os.path.exists('/dev/' + n)]
print('broke' if found else 'held', found)"#,
    ),
    attack(
        "devices",
        "make a device node",
        "import stat\nfails(lambda: os.mknod('/tmp/disk', stat.S_IFBLK | 0o600, os.makedev(8, 0)))",
    ),
    attack(
        "proc",
        "read the first process's environment",
        "fails(lambda: open('/proc/1/environ').read() or open('/nothing'))",
    ),
    attack(
        "proc",
        "see processes of the host",
        "pids = [int(n) for n in os.listdir('/proc') if n.isdigit()]\nprint('held' if len(pids) < 16 else 'broke', len(pids))",
    ),
    attack(
        "proc",
        "change a setting of the kernel",
        "fails(lambda: os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))",
    ),
    attack(
        "proc",
        "read the kernel's memory and trigger its keys",
        r#"got = []
for path, mode in (('/proc/kcore', 'rb'), ('/proc/sysrq-trigger', 'ab'), ('/proc/kmsg', 'rb')):
    try:
        with open(path, mode) as f:
            if mode == 'rb' and not os.read(f.fileno(), 1):
                continue
        got.append(path)
    except OSError:
        pass
print('broke' if got else 'held', got)"#,
    ),
    attack(
        "environment",
        "find variables of the server",
        "found = [n for n in {names} if n in os.environ]\nprint('broke' if found else 'held', found)",
    ),
    attack(
        "environment",
        "find open files of the server",
        r#"links = []
for fd in os.listdir('/proc/self/fd'):
    try:
        links.append(os.readlink('/proc/self/fd/' + fd))
    except OSError:
        pass
odd = [l for l in links if not l.startswith(('pipe:', '/dev/null', '/dev/urandom', '/proc/', 'anon_inode:[event', '/home/user', '/tmp'))]
print('broke' if odd else 'held', odd)"#,
    ),
    attack(
        "namespaces",
        "mount a file system",
        "refused('mount', b'none', b'/tmp', b'tmpfs', 0, 0)",
    ),
    attack(
        "namespaces",
        "open a file system by the new calls",
        "refused('fsopen', b'tmpfs', 0)",
    ),
    attack(
        "namespaces",
        "copy a part of the tree",
        "refused('open_tree', -100, b'/', 1)",
    ),
    attack("namespaces", "make a user namespace", "refused('unshare', 0x10000000)"),
    attack("namespaces", "make one by clone3", "refused('clone3', 0, 0)"),
    attack(
        "namespaces",
        "enter the first process's namespace",
        r#"try:
    fd = os.open('/proc/1/ns/net', os.O_RDONLY)
except OSError as error:
    print('held', errno.errorcode[error.errno])
else:
    refused('setns', fd, 0)"#,
    ),
    attack("namespaces", "change the root", "refused('chroot', b'/tmp')"),
    attack("namespaces", "turn the root", "refused('pivot_root', b'/', b'/')"),
    attack(
        "privileges",
        "become root",
        r#"try:
    os.setuid(0)
    print('broke: uid', os.getuid())
except OSError as error:
    print('held', errno.errorcode[error.errno])"#,
    ),
    attack(
        "privileges",
        "find a capability left, or a lock missing",
        r#"status = dict(line.split(':\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\t' in line)
caps = [k for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb') if int(status[k], 16)]
locks = status['NoNewPrivs'].strip() == '1' and status['Seccomp'].strip() == '2'
print('held' if locks and not caps else 'broke', caps, status['NoNewPrivs'], status['Seccomp'])"#,
    ),
    attack(
        "agent",
        "kill the first process",
        r#"for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
    try:
        os.kill(1, number)
    except OSError:
        pass
time.sleep(0.02)
print('held' if os.path.exists('/proc/1') else 'broke')"#,
    ),
    attack(
        "agent",
        "limit the first process",
        "fails(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)))",
    ),
    attack(
        "agent",
        "slow the first process",
        "fails(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))",
    ),
    attack("agent", "trace the first process", "refused('ptrace', 16, 1, 0, 0)"),
    attack(
        "agent",
        "read the first process's memory",
        "refused('process_vm_readv', 1, 0, 0, 0, 0, 0)",
    ),
    attack(
        "agent",
        "write the first process's memory",
        "fails(lambda: open('/proc/1/mem', 'r+b'))",
    ),
    attack("seccomp", "trace a process", "refused('ptrace', 0, 0, 0, 0)"),
    attack("seccomp", "use the key rings", "refused('keyctl', 0, -3, 1)"),
    attack(
        "seccomp",
        "add a key",
        "refused('add_key', b'user', b'doctor', b'x', 1, -3)",
    ),
    attack("seccomp", "load a program into the kernel", "refused('bpf', 0, 0, 0)"),
    attack(
        "seccomp",
        "count the kernel's events",
        "refused('perf_event_open', 0, 0, -1, -1, 0)",
    ),
    attack("seccomp", "set up io_uring", "refused('io_uring_setup', 1, 0)"),
    attack("seccomp", "handle page faults", "refused('userfaultfd', 1)"),
    attack(
        "seccomp",
        "open a file by its handle",
        "refused('open_by_handle_at', -100, 0, 0)",
    ),
    attack("seccomp", "read the kernel's log", "refused('syslog', 10, 0, 0)"),
    attack("seccomp", "load a module", "refused('init_module', 0, 0, 0)"),
    attack("seccomp", "load another kernel", "refused('kexec_load', 0, 0, 0, 0)"),
    attack(
        "sockets",
        "AF_ALG (the kernel's ciphers)",
        "family(38, socket.SOCK_SEQPACKET)",
    ),
    attack("sockets", "AF_VSOCK (the hypervisor)", "family(40, socket.SOCK_STREAM)"),
    attack("sockets", "AF_NETLINK", "family(16, socket.SOCK_RAW)"),
    attack("sockets", "AF_PACKET", "family(17, socket.SOCK_RAW)"),
    attack(
        "sockets",
        "a raw IP socket",
        "fails(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    ),
    attack("network", "connect to the Internet", "connect('1.1.1.1', 443)"),
    attack(
        "network",
        "ask a name server",
        "connect('8.8.8.8', 53, socket.SOCK_DGRAM)",
    ),
    attack(
        "network",
        "connect to the cloud's metadata",
        "connect('169.254.169.254', 80)",
    ),
    attack(
        "network",
        "connect to a service of this machine",
        "connect('127.0.0.1', {tcp})",
    ),
    attack("network", "connect to one over IPv6", "connect('::1', {tcp})"),
    attack(
        "network",
        "connect to an abstract socket of this machine",
        r#"def go():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.connect('\0{abstract}')
        s.send(b'x')
fails(go)"#,
    ),
];

/// What a small sandbox of its own must survive, in this order; the session may be new for each.
pub(super) const FLOODS: &[Attack] = &[
    Attack {
        name: "set off a fork bomb",
        layer: "process limit",
        code: r#"children = []
try:
    while len(children) < 4096:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        children.append(child)
    verdict = 'broke: 4096 children'
except OSError as error:
    verdict = f'held after {len(children)} children'
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(verdict)"#,
        // Where memory is watched from outside, that may be over first.
        expect: Expect::HeldOr(&[Code::ProcessLimit, Code::OutOfMemory]),
    },
    Attack {
        name: "fill the disk",
        layer: "disk limit",
        code: r#"written = 0
try:
    with open('/tmp/fill', 'wb', buffering=0) as file:
        while written < 256 << 20:
            written += file.write(bytes(1 << 20))
    print('broke:', written, 'bytes')
except OSError as error:
    print('held after', written >> 20, 'MiB', errno.errorcode[error.errno])
os.unlink('/tmp/fill')"#,
        expect: Expect::HeldOr(&[Code::DiskFull]),
    },
    Attack {
        name: "loop for ever",
        layer: "time limit",
        code: "while True: pass",
        expect: Expect::HeldOr(&[Code::Timeout]),
    },
    Attack {
        name: "take all memory",
        layer: "memory limit",
        code: r#"blocks = []
try:
    while len(blocks) < 512:
        blocks.append(b'x' * (1 << 20))
    print('broke:', len(blocks), 'MiB')
except MemoryError:
    taken = len(blocks)
    blocks.clear()
    print('held after', taken, 'MiB')"#,
        expect: Expect::HeldOr(&[Code::OutOfMemory]),
    },
    Attack {
        name: "print without end",
        layer: "output limit",
        code: "for _ in range(64):\n    print('x' * (1 << 18))\nprint('held')",
        expect: Expect::HeldOr(&[Code::OutputLimit]),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attack_is_there_once_and_says_what_it_tries() {
        let mut names: Vec<&str> = ATTACKS.iter().chain(FLOODS).map(|attack| attack.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(all >= 50, "{all}");
    }
}
