//! Memory behind sockets. The kernel counts a socket's buffers by their bytes. But a piece of data is in a page
//! fragment of 32 KiB and pins all of it while the piece is queued, even if the rest was sent elsewhere and is gone.
//!
//! The sizes of the queues show how much they *can* pin. This is far more than the queues of honest programs do pin. So
//! the watchdog uses it only as a bound of another number: the memory that the machine has lost since the queues could
//! last pin little.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::{FREE_DESCRIPTORS, MAX_CHECK_INTERVAL, MAX_PROCESSES, MIN_CHECK_INTERVAL, descriptors, diag, lost};
use crate::kernel_files::small_file;
use crate::paths;
use crate::plan::SOCKET_BUFFER_BYTES;

/// The maximum memory that a piece of data in a queue pins, in bytes: a fragment's page, or the machine's page if that
/// is larger.
const FRAGMENT_BYTES: u64 = 32 << 10;
/// The maximum number of pieces in one packet.
const MAX_PIECES: u64 = 17;
/// The minimum size of a packet in addition to its data.
const MIN_PACKET_BYTES: u64 = 576;
/// The charge for an unlisted socket: the maximum that any socket can pin.
const UNLISTED_SOCKET_BYTES: u64 = SOCKET_BUFFER_BYTES / MIN_PACKET_BYTES * MAX_PIECES * FRAGMENT_BYTES;
/// The divisor of the limit for memory of sockets that needs no closer check.
const LIMIT_DIVISOR: u64 = 8;
/// The bound of the queues is computed again after this time, or when the lost memory has grown by this part of the
/// limit.
const MAX_BOUND_AGE: Duration = Duration::from_millis(20);
const LOST_GROWTH_DIVISOR: u64 = 16;
/// Represents an unknown amount, which may be everything.
const UNKNOWN_BYTES: u64 = 1 << 46;
/// The check interval with connections, and the interval once the machine has lost memory since.
const CONNECTED_INTERVAL: Duration = Duration::from_millis(10);
const LOST_MEMORY_INTERVAL: Duration = Duration::from_millis(3);
/// The maximum age of a reading of the machine while a sandbox has no connections.
const MAX_READING_AGE: Duration = Duration::from_millis(200);

/// The number of sockets in a network namespace, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All sockets, including those in flight that no process has open.
    pub(super) all: u64,
    pub(super) tcp: u64,
    pub(super) udp: u64,
    /// Unix sockets for messages. Zero if there are few sockets. A kernel that lists all Unix sockets together includes
    /// the others.
    pub(super) messages: u64,
}

impl Counts {
    pub(super) fn of(first: Pid) -> Self {
        let mut counts = Self::parse(&(net_file(first, "sockstat") + &net_file(first, "sockstat6")));
        if counts.all > FREE_DESCRIPTORS {
            counts.messages = unix_in(&net_file(first, "protocols"), |name| name == "UNIX");
        }
        counts
    }

    fn parse(text: &str) -> Self {
        let number = |line: &str, word: &str| {
            let line = text.lines().find_map(|found| found.strip_prefix(line));
            let mut words = line.unwrap_or("").split_whitespace();
            words.find(|found| *found == word);
            words.next().and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        Self {
            all: number("sockets:", "used"),
            tcp: number("TCP:", "inuse") + number("TCP6:", "inuse"),
            udp: number("UDP:", "inuse") + number("UDP6:", "inuse"),
            messages: 0,
        }
    }

    /// Returns the maximum memory of the buffers by the kernel's count, in bytes.
    pub(super) fn buffers(self) -> u64 {
        // A TCP socket holds received data as well as sent data.
        (self.all.saturating_sub(FREE_DESCRIPTORS) + self.tcp.saturating_sub(FREE_DESCRIPTORS) + self.many_messages())
            * SOCKET_BUFFER_BYTES
    }

    /// Returns the maximum that Unix sockets for messages hold, in bytes. A few such sockets count as nothing.
    pub(super) fn message_bytes(self) -> u64 {
        self.many_messages() * 2 * SOCKET_BUFFER_BYTES
    }

    /// Returns the number of Unix sockets for messages, or 0 if they are few. Each accepts one more whole message while
    /// it has any room, so it can hold two buffers.
    fn many_messages(self) -> u64 {
        if self.messages > FREE_DESCRIPTORS {
            self.messages
        } else {
            0
        }
    }
}

/// The state of one sandbox's socket account.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// The machine's lost memory when the queues could last hold little.
    base: Option<u64>,
    /// The last bound of the queues, with the memory lost since `base` at that time.
    last_bound: Option<QueueBound>,
    /// The socket-diagnosis socket.
    diag: Option<OwnedFd>,
    /// The last answer.
    last_answer: u64,
    /// True if any socket can hold data in fragments.
    connected: bool,
    /// True for the network namespace of this process. Its diagnosis socket cannot be opened a second time.
    own: bool,
}

#[derive(Debug, Clone, Copy)]
struct QueueBound {
    at: Instant,
    bound: u64,
    lost: u64,
}

/// The network namespace and the sandbox's limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    pub(super) first: Pid,
    pub(super) counts: Counts,
    pub(super) limit: u64,
}

impl Scope {
    pub(super) fn of(first: Pid, limit: u64) -> Self {
        let counts = Counts::of(first);
        Self { first, counts, limit }
    }

    /// A scope that can have no sockets.
    pub(super) fn without_sockets(first: Pid, limit: u64) -> Self {
        let counts = Counts::default();
        Self { first, counts, limit }
    }
}

impl Sockets {
    /// Returns the validity of the last answer. It is short if sockets may hold much. While nothing is known, it is
    /// shorter than for memory of processes, since the kernel clears no pages for sockets.
    pub(super) fn valid_for(&self) -> Duration {
        match (self.last_bound, self.connected) {
            (Some(_), _) => LOST_MEMORY_INTERVAL,
            (None, true) => CONNECTED_INTERVAL,
            (None, false) => MAX_CHECK_INTERVAL,
        }
    }

    /// Starts an account of this process's network namespace. Opens the diagnosis socket, which a later system-call
    /// filter forbids.
    pub(super) fn open_own() -> Self {
        Self {
            base: lost::lost_now(),
            diag: diag::open_own().ok(),
            own: true,
            ..Self::default()
        }
    }

    /// Starts the account at the machine's last reading.
    pub(super) fn begin(&mut self) {
        self.base = lost::last();
    }

    /// Returns the last answer.
    pub(super) fn last_answer(&self) -> u64 {
        self.last_answer
    }

    /// Returns their uncharged memory in bytes, from cheap readings.
    pub(super) fn bytes(&mut self, scope: Scope, processes: impl Fn() -> Vec<Pid>) -> u64 {
        self.last_answer = self.quick(scope, processes);
        self.last_answer
    }

    fn quick(&mut self, scope: Scope, processes: impl Fn() -> Vec<Pid>) -> u64 {
        self.connected = has_connections(scope);
        if !self.connected {
            self.base = lost::lost_within(MAX_READING_AGE);
            self.last_bound = None;
            return 0;
        }
        let lost = self.lost_since(lost::lost_within(MIN_CHECK_INTERVAL));
        if lost <= scope.limit / LIMIT_DIVISOR {
            self.last_bound = None;
            return 0;
        }
        if let Some(last_bound) = self.last_bound
            && last_bound.at.elapsed() < MAX_BOUND_AGE
            && lost < last_bound.lost + scope.limit / LOST_GROWTH_DIVISOR
        {
            return lost.min(last_bound.bound + lost.saturating_sub(last_bound.lost));
        }
        self.bytes_now(scope, processes)
    }

    /// Returns the uncharged memory in bytes. It is exact if it exceeds the limit together with `used` bytes of charged
    /// memory.
    pub(super) fn uncharged(
        &mut self,
        scope: Scope,
        used: impl FnOnce() -> u64,
        processes: impl Fn() -> Vec<Pid>,
    ) -> u64 {
        let datagrams = many_datagram_bytes(scope);
        let pinned = self.bytes(scope, &processes).max(datagrams);
        if pinned > 0 && used().saturating_add(pinned) > scope.limit {
            return self.bytes_now(scope, &processes).max(datagrams);
        }
        pinned
    }

    /// Returns the true size of the data in all TCP and UDP queues, in bytes, or none if socket diagnosis fails.
    pub(super) fn queued(&mut self, scope: Scope) -> Option<u64> {
        if scope.counts.tcp + scope.counts.udp == 0 {
            return Some(0);
        }
        let connections = self.connections(scope, Vec::new)?;
        let datagrams = net_file(scope.first, "udp") + &net_file(scope.first, "udp6");
        let datagrams: u64 = sizes_of_datagrams(&datagrams)
            .map(|(send, receive)| send + receive)
            .sum();
        let connections = connections
            .iter()
            .map(|connection| connection.receive + connection.send);
        Some(connections.sum::<u64>() + datagrams)
    }

    /// Returns the same from fresh readings, for the decision to end processes.
    pub(super) fn bytes_now(&mut self, scope: Scope, processes: impl Fn() -> Vec<Pid>) -> u64 {
        self.last_answer = self.exact(scope, processes);
        self.last_answer
    }

    fn exact(&mut self, scope: Scope, processes: impl Fn() -> Vec<Pid>) -> u64 {
        let bound = self.bound(scope, processes);
        // Memory that processes free belongs to nobody for a moment. Memory of sockets stays.
        let before = self.lost_since(lost::lost_within(Duration::ZERO));
        let machine = lost::lost_now();
        let lost = self.lost_since(machine).min(before);
        if bound <= scope.limit / LIMIT_DIVISOR {
            self.base = machine;
            self.last_bound = None;
            return 0;
        }
        let at = Instant::now();
        self.last_bound = Some(QueueBound { at, bound, lost });
        bound.min(lost)
    }

    /// Handles an idle sandbox. Its sockets, if any, keep their charge.
    pub(super) fn mark_idle(&mut self) {
        if !self.connected {
            self.base = lost::lost_within(Duration::from_secs(1)).or(self.base);
            self.diag = None;
        }
    }

    /// Discards the last reading after a kill.
    pub(super) fn discard(&mut self) {
        self.last_bound = None;
    }

    /// Returns the memory that the machine has lost since the sockets could last pin little. Returns `UNKNOWN_BYTES` if
    /// the machine does not report it.
    fn lost_since(&mut self, machine: Option<u64>) -> u64 {
        let Some(machine) = machine else {
            return UNKNOWN_BYTES;
        };
        // Without an earlier reading, all of it may belong to the sockets.
        self.base = self.base.map(|base| base.min(machine));
        machine - self.base.unwrap_or(0)
    }

    /// Returns the maximum that the sockets can pin, in bytes.
    fn bound(&mut self, scope: Scope, processes: impl Fn() -> Vec<Pid>) -> u64 {
        let before = paths(scope.first);
        let datagrams = net_file(scope.first, "udp") + &net_file(scope.first, "udp6");
        let Some(connections) = self.connections(scope, processes) else {
            // Unknown connections may hold any amount.
            return UNKNOWN_BYTES;
        };
        let after = Counts::of(scope.first);
        // Sockets that appear or disappear meanwhile hide no socket that stays.
        let listed = count(connections.len()) + after.udp.min(scope.counts.udp) + paths(scope.first).min(before) + 1;
        let unlisted = after.all.max(scope.counts.all).saturating_sub(listed);
        let each = connections.iter().map(connection_bytes);
        (each.sum::<u64>() + datagram_bytes(&datagrams) + unlisted * UNLISTED_SOCKET_BYTES).min(UNKNOWN_BYTES)
    }

    fn connections(&mut self, scope: Scope, processes: impl Fn() -> Vec<Pid>) -> Option<Vec<diag::Connection>> {
        if self.diag.is_none() && !self.own {
            let mut candidates = vec![scope.first];
            candidates.extend(processes());
            self.diag = diag::open(&candidates).ok();
        }
        let found = diag::connections(self.diag.as_ref()?);
        if found.is_err() && !self.own {
            self.diag = None;
        }
        found.ok()
    }
}

/// Returns true if a socket exists whose kind keeps data in fragments.
fn has_connections(Scope { first, counts, .. }: Scope) -> bool {
    // A socket that is no longer listed has sent something before.
    counts.tcp + counts.udp > 0 || counts.all > 0 && packets(&net_file(first, "dev")) > 0
}

/// Returns the number of packets sent within the sandbox.
fn packets(text: &str) -> u64 {
    let loopback = text.lines().find_map(|line| line.trim_start().strip_prefix("lo:"));
    let number = loopback.and_then(|numbers| numbers.split_whitespace().nth(1)?.parse().ok());
    number.unwrap_or(UNKNOWN_BYTES)
}

/// Returns the number of Unix sockets, whose memory is fully charged. Taken from the kernel's counters: names in
/// `/proc/net_file/unix` may contain line feeds, so a count of its lines would let code hide other sockets.
fn paths(first: Pid) -> u64 {
    unix_in(&net_file(first, "protocols"), |name| name.starts_with("UNIX"))
}

/// Returns the number of sockets in the rows with these names.
fn unix_in(protocols: &str, is_meant: impl Fn(&str) -> bool) -> u64 {
    let number = |line: &str| {
        let mut words = line.split_whitespace();
        let meant = words.next().is_some_and(&is_meant);
        let number = words.nth(1).and_then(|number| number.parse::<u64>().ok());
        number.filter(|_| meant)
    };
    protocols.lines().filter_map(number).sum()
}

fn connection_bytes(connection: &diag::Connection) -> u64 {
    packet_bytes(connection.receive, connection.received) + packet_bytes(connection.send, connection.unsent)
}

/// Returns the maximum that a queue of this true size and data can pin, in bytes.
fn packet_bytes(size: u64, data: u64) -> u64 {
    if size == 0 {
        return 0;
    }
    (size.saturating_sub(data) / MIN_PACKET_BYTES).max(1) * MAX_PIECES * fragment()
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(UNKNOWN_BYTES)
}

fn fragment() -> u64 {
    FRAGMENT_BYTES.max(count(crate::sys::misc::page_size()))
}

/// Returns the maximum that the listed datagram sockets can pin, in bytes. The list has the true size of their queues.
fn datagram_bytes(text: &str) -> u64 {
    let sizes = sizes_of_datagrams(text);
    sizes
        .map(|(send, receive)| packet_bytes(send, 0) + packet_bytes(receive, 0))
        .sum()
}

/// Returns the true sizes of each socket's send and receive queues, in bytes.
fn sizes_of_datagrams(text: &str) -> impl Iterator<Item = (u64, u64)> {
    text.lines().filter_map(|line| {
        let (send, receive) = line.split_whitespace().nth(4)?.split_once(':')?;
        let size = |digits: &str| u64::from_str_radix(digits, 16).ok();
        Some((size(send)?, size(receive)?))
    })
}

/// Returns the memory of datagrams if there are many UDP sockets, by their true sizes. No cgroup is charged for
/// datagrams that wait to be sent, or for queued errors.
pub(super) fn many_datagram_bytes(scope: Scope) -> u64 {
    if scope.counts.udp <= FREE_DESCRIPTORS {
        return 0;
    }
    let text = net_file(scope.first, "udp") + &net_file(scope.first, "udp6");
    if text.is_empty() {
        // The table is unreadable: each socket counts as full.
        return scope.counts.udp * SOCKET_BUFFER_BYTES;
    }
    sizes_of_datagrams(&text).map(|(send, receive)| send + receive).sum()
}

/// Returns the maximum memory of unaccepted connections that have received data. No group is charged for it, even with
/// cgroups.
pub(super) fn unaccepted_bytes(first: Pid) -> u64 {
    (unaccepted(&net_file(first, "tcp")) + unaccepted(&net_file(first, "tcp6"))) * SOCKET_BUFFER_BYTES
}

fn unaccepted(text: &str) -> u64 {
    let valid_for = |line: &&str| {
        let mut words = line.split_whitespace();
        let queues = words.nth(4).unwrap_or_default();
        let received = queues.split_once(':').map_or("", |(_, received)| received);
        words.nth(4) == Some("0") && received.contains(|digit| digit != '0')
    };
    count(text.lines().skip(1).filter(valid_for).count())
}

/// Reads a report about a process's network namespace.
pub(super) fn net_file(pid: Pid, name: &str) -> String {
    small_file(&format!("{}/proc/{}/net/{name}", paths::host(), pid.as_raw_nonzero()))
}

/// Returns the maximum memory of a process's sockets, by its descriptors, if the sandbox has no network namespace. In
/// such a sandbox no socket can be in flight to another process.
pub(super) fn open_socket_bytes(pid: Pid) -> u64 {
    if descriptors(pid) <= FREE_DESCRIPTORS {
        return 0;
    }
    let folder = format!("{}/proc/{}/fd", paths::host(), pid.as_raw_nonzero());
    let is_socket = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let entries = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .take(MAX_PROCESSES);
    let sockets = count(entries.filter(is_socket).count());
    sockets.saturating_sub(FREE_DESCRIPTORS) * SOCKET_BUFFER_BYTES
}

/// Returns true if a process has a socket open, or if its descriptors are unreadable.
#[must_use]
pub fn holds_sockets(pid: Pid) -> bool {
    let folder = format!("{}/proc/{}/fd", paths::host(), pid.as_raw_nonzero());
    let Ok(entries) = std::fs::read_dir(folder) else {
        return true;
    };
    let mut entries = entries.flatten();
    entries.any(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_for_every_holder() {
        let text = "sockets: used 137\nTCP: inuse 12 orphan 0 tw 0 alloc 15 mem 0\nUDP: inuse 1 mem 0\n";
        let (all, tcp, udp) = (137, 12, 1);
        let messages = 0;
        let counts = |tcp, udp| Counts {
            all,
            tcp,
            udp,
            messages,
        };
        assert_eq!(Counts::parse(text), counts(tcp, udp));
        let both = format!("{text}TCP6: inuse 30\nUDP6: inuse 3\n");
        assert_eq!(Counts::parse(&both), counts(42, 4));
        assert_eq!(Counts::parse(""), Counts::default());
    }

    #[test]
    fn datagram_sockets_without_a_readable_table_count_as_full() {
        paths::host_is_as_it_is();
        let scope = |udp| Scope {
            first: Pid::from_raw(i32::MAX).unwrap(),
            counts: Counts {
                all: udp,
                udp,
                ..Counts::default()
            },
            limit: 1,
        };
        assert_eq!(
            many_datagram_bytes(scope(FREE_DESCRIPTORS + 1)),
            (FREE_DESCRIPTORS + 1) * SOCKET_BUFFER_BYTES
        );
        assert_eq!(many_datagram_bytes(scope(FREE_DESCRIPTORS)), 0);
    }

    #[test]
    fn many_sockets_for_messages_count_twice() {
        let buffers = |messages| {
            let counts = Counts {
                all: messages,
                messages,
                ..Counts::default()
            };
            counts.buffers() / SOCKET_BUFFER_BYTES
        };
        assert_eq!(
            [0, FREE_DESCRIPTORS, FREE_DESCRIPTORS + 1, 2 * FREE_DESCRIPTORS].map(buffers),
            [0, 0, FREE_DESCRIPTORS + 2, 3 * FREE_DESCRIPTORS]
        );
    }

    #[test]
    fn unix_sockets_with_any_name_are_counted() {
        use std::os::linux::net::SocketAddrExt as _;

        let row =
            |name: &str, number: u32| format!("{name} 1152     {number}      -1   NI       0   yes  kernel y n\n");
        let text = format!(
            "protocol  size sockets  memory press\n{}{}{}",
            row("UNIX-STREAM", 20),
            row("TCP", 7),
            row("UNIX", 18)
        );
        assert_eq!(unix_in(&text, |name| name.starts_with("UNIX")), 38);
        assert_eq!(unix_in(&text, |name| name == "UNIX"), 18);
        paths::host_is_as_it_is();
        let own = rustix::process::getpid();
        let before = paths(own);
        let address = std::os::unix::net::SocketAddr::from_abstract_name([b'\n'; 100]);
        let _bound = std::os::unix::net::UnixDatagram::bind_addr(&address.unwrap()).unwrap();
        // Other tests also have sockets, but not a hundred at once.
        assert!(paths(own) < before + 100);
    }

    #[test]
    fn received_packets_are_counted() {
        let text =
            "Inter-|   Receive\n face |bytes    packets errs\n    lo:    1200       7    0    0\n  eth0: 5 6 0\n";
        assert_eq!(packets(text), 7);
        assert_eq!(packets("    lo:       0       0    0    0\n"), 0);
        assert_eq!(packets(""), UNKNOWN_BYTES);
    }

    #[test]
    fn a_packet_is_charged_for_all_its_fragments() {
        let most = MAX_PIECES * fragment();
        assert_eq!(packet_bytes(0, 0), 0);
        assert_eq!(packet_bytes(960 + 17, 17), most);
        assert_eq!(packet_bytes(100 * (960 + 17), 1700), 166 * most);
        // A transfer has much data in few packets.
        assert_eq!(packet_bytes(4 * (65_000 + 960), 4 * 65_000), 6 * most);
        let line = "  36: 0100007F:A1B2 00000000:0000 07 00000300:00000900 00:00000000 00000000     0        0 5 2 0 0";
        let header =
            "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref";
        assert_eq!(datagram_bytes(&format!("{header}\n{line}\n")), 5 * most);
    }

    #[test]
    fn lost_memory_is_counted_from_the_first_reading() {
        let mut sockets = Sockets::default();
        // Without a first reading, all memory belongs to the sockets.
        assert_eq!(sockets.lost_since(Some(500)), 500);
        sockets.base = Some(400);
        assert_eq!(sockets.lost_since(Some(500)), 100);
        assert_eq!(sockets.lost_since(Some(300)), 0);
        assert_eq!(sockets.lost_since(Some(450)), 150);
        assert_eq!(sockets.lost_since(None), UNKNOWN_BYTES);
    }

    #[test]
    fn unaccepted_connections_are_distinguished_from_others() {
        paths::host_is_as_it_is();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let told = || {
            let own = net_file(rustix::process::getpid(), "tcp");
            let end = format!(":{port:04X} ");
            let (head, lines) = own.split_once('\n').unwrap();
            let lines: Vec<&str> = lines.lines().filter(|line| line.contains(&end)).collect();
            unaccepted(&format!("{head}\n{}", lines.join("\n")))
        };
        let mut clients: Vec<_> = (0..3)
            .map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).unwrap())
            .collect();
        assert_eq!(told(), 0);
        for client in &mut clients {
            std::io::Write::write_all(client, b"what nobody reads").unwrap();
        }
        assert_eq!(told(), 3);
        let _accepted = listener.accept().unwrap();
        assert_eq!(told(), 2);
    }
}
