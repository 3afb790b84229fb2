//! Canaries of the host that must stay out of reach, at places where a successful attack would find them: listeners
//! that must never be reached, files, IPC objects, names.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::target::ServerUser;
use sandcell_e2e::{machine, test_dir};

static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);

/// The canaries of one server; removed when dropped.
pub struct Canaries {
    folder: PathBuf,
    tcp: TcpListener,
    udp: UdpSocket,
    unix: UnixListener,
    abstract_socket: UnixListener,
    abstract_name: String,
    helper: Child,
    key: u32,
    queue: String,
    /// The argument of a `sleep` that the test looks for outside.
    pub marker: String,
}

/// Objects of the host that live as long as this program.
const HELPER_SCRIPT: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
key, queue = int(sys.argv[1]), sys.argv[2].encode()
made = [libc.msgget(key, 0o1666), libc.semget(key, 1, 0o1666), libc.shmget(key, 4096, 0o1666)]
mq = libc.mq_open(b"/" + queue, os.O_CREAT | os.O_RDWR, 0o666, None)
print("ready" if min(made) >= 0 and mq >= 0 else f"failed {made} {mq}", flush=True)
sys.stdin.read()
libc.msgctl(made[0], 0, None), libc.semctl(made[1], 0, 0), libc.shmctl(made[2], 0, None), libc.mq_unlink(b"/" + queue)
"#;

/// Returns the size of the file system of a host folder, as the system's own program reports it.
fn blocks_of(folder: &str) -> u64 {
    let output = Command::new("stat").args(["-f", "-c", "%b", folder]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

impl Canaries {
    pub fn new(user: ServerUser) -> Self {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let own = format!("{}-{number}", std::process::id());
        // The host's /run is visible when a test leaves the private root out. The temporary folder is used if /run is
        // not writable.
        let folder = [PathBuf::from("/run"), std::env::temp_dir()]
            .into_iter()
            .map(|base| base.join(format!("sandcell-lure-{own}")))
            .find(|folder| std::fs::create_dir(folder).is_ok())
            .expect("a folder for lures");
        set_mode(&folder, 0o755);
        for (name, mode) in [("secret", 0o644), ("private", 0o600), ("open", 0o666)] {
            let path = folder.join(name);
            std::fs::write(&path, test_dir::SECRET_VALUE).unwrap();
            set_mode(&path, mode);
            user.give(&path);
        }
        let unix = UnixListener::bind(folder.join("socket")).unwrap();
        set_mode(&folder.join("socket"), 0o777);
        let abstract_name = format!("sandcell-lure-{own}");
        let abstract_socket =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        for result in [
            unix.set_nonblocking(true),
            abstract_socket.set_nonblocking(true),
            tcp.set_nonblocking(true),
            udp.set_nonblocking(true),
        ] {
            result.unwrap();
        }
        let key = 0x5a00_0000 | (std::process::id() << 8 & 0x00ff_ff00) | (number & 0xff);
        let queue = format!("sandcell-lure-{own}");
        Self {
            helper: start_helper(user, key, &queue),
            marker: format!("{}.{}", 86_400 + number, std::process::id()),
            folder,
            tcp,
            udp,
            unix,
            abstract_socket,
            abstract_name,
            key,
            queue,
        }
    }

    /// Returns the canaries for the attacks.
    pub fn words(&self, server: u32, place: &test_dir::TestDir) -> Value {
        let file = |name: &str| self.folder.join(name).display().to_string();
        json!({
            "tcp": self.tcp.local_addr().unwrap().port(),
            "udp": self.udp.local_addr().unwrap().port(),
            "abstract": self.abstract_name,
            "unix": file("socket"),
            "secret_file": file("secret"),
            "private_file": file("private"),
            "open_file": file("open"),
            "secret": test_dir::SECRET_VALUE,
            "names": [test_dir::SECRET_NAME, "SANDCELL_DATA_DIR", "SANDCELL_TEST_SKIP"],
            "paths": [place.path("work").parent().unwrap().display().to_string(), self.folder.display().to_string()],
            "pid": server,
            "program": "sandcell",
            "ns": machine::namespaces(std::process::id()),
            "hostname": std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim(),
            "boot_id": std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim(),
            "disk_blocks": blocks_of("/usr"),
            "ipc_key": self.key,
            "mq": self.queue,
            "marker": self.marker,
        })
    }

    /// Returns the canary that was touched, regardless of the output of the code inside.
    pub fn touched(&self) -> Option<&'static str> {
        if self.tcp.accept().is_ok() {
            return Some("the TCP listener outside was reached");
        }
        if self.udp.recv(&mut [0; 8]).is_ok() {
            return Some("the UDP socket outside was reached");
        }
        if self.unix.accept().is_ok() {
            return Some("the socket's path outside was reached");
        }
        if self.abstract_socket.accept().is_ok() {
            return Some("the abstract socket outside was reached");
        }
        let changed = ["secret", "private", "open"]
            .iter()
            .any(|name| std::fs::read_to_string(self.folder.join(name)).unwrap() != test_dir::SECRET_VALUE);
        changed.then_some("a file outside was changed")
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        drop(self.helper.stdin.take());
        let _ = self.helper.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn set_mode(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn start_helper(user: ServerUser, key: u32, queue: &str) -> Child {
    let mut helper = user
        .command(&PathBuf::from("/usr/bin/python3"))
        .args(["-I", "-S", "-c", HELPER_SCRIPT, &key.to_string(), queue])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(helper.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n", "the host's own IPC objects could not be made");
    helper
}

/// Checks that the server's user still gets the resources shared by all its processes: watches, queues, pipes,
/// terminals, signals.
pub fn room(user: ServerUser) -> Result<(), String> {
    const ROOM_SCRIPT: &str = r#"
import ctypes, os, pty, resource, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
lacks = []
if libc.inotify_init1(0) < 0:
    lacks.append("inotify instances")
name = b"/sandcell-room-%d" % os.getpid()
if libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None) < 0:
    lacks.append("message queues")
libc.mq_unlink(name)
try:
    os.openpty()
except OSError:
    lacks.append("terminals")
r, w = os.pipe()
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
if libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) < 0:
    lacks.append("queued signals")
# Half of what programs may have on the way as a rule.
resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
ours, theirs = socket.socketpair()
try:
    socket.send_fds(ours, [b"x"], [0])
except OSError:
    lacks.append("descriptors in flight")
print(", ".join(lacks))
"#;
    let mut child = user
        .command(&PathBuf::from("/usr/bin/python3"))
        .args(["-I", "-S", "-c", ROOM_SCRIPT])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    if text.trim().is_empty() {
        Ok(())
    } else {
        Err(format!("outside there is no room for {}", text.trim()))
    }
}

impl ServerUser {
    /// Returns a command that runs as this user.
    pub fn command(self, program: &std::path::Path) -> Command {
        match self {
            Self::Current => Command::new(program),
            Self::Ordinary => {
                let mut command = Command::new("setpriv");
                command
                    .args([format!("--reuid={ORDINARY_UID}"), format!("--regid={ORDINARY_UID}")])
                    .arg("--clear-groups")
                    .arg(program);
                command
            }
        }
    }

    /// Makes this user the owner of a file.
    pub fn give(self, path: &std::path::Path) {
        if self == Self::Ordinary {
            chown(path, Some(ORDINARY_UID), Some(ORDINARY_UID)).unwrap();
        }
    }
}

/// An unused id: above accounts, below the ranges for containers.
const ORDINARY_UID: u32 = 61_235;
