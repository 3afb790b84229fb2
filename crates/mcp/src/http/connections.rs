//! Connections: their maximum number, the timeouts for slow clients, and their end.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sandcell_engine::Principal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::body;
use super::door::{Door, From};
use super::live::LiveLimits;
use super::tls::Tls;

/// The head of a request must be there in this time; it is also how long a connection may wait for its next one.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// The time without progress after which a client counts as gone.
const WRITE_WITHIN: Duration = Duration::from_secs(30);
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const HEADERS: usize = 64;
const HEAD_BYTES: usize = 32 << 10;
const BUFFER_BYTES: usize = 256 << 10;

/// The places for connections.
#[derive(Debug)]
pub(crate) struct Slots {
    open: Mutex<Table>,
    limits: Arc<LiveLimits>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    all: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    occupant: Arc<Occupant>,
    end: CancellationToken,
}

/// The holder of a connection's place, and its open requests.
#[derive(Debug, Default)]
pub(crate) struct Occupant {
    /// The caller whose request was let in first; none for strangers.
    caller: OnceLock<Arc<str>>,
    /// Requests that are being answered.
    busy: AtomicUsize,
}

impl Occupant {
    /// A request of this caller was let in.
    pub(crate) fn let_in(&self, who: &Principal) {
        self.caller.get_or_init(|| Arc::clone(&who.0));
    }

    /// Until the guard goes, a request is being answered.
    fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }
}

struct Busy(Arc<Occupant>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Table {
    /// Returns the connection to evict when all places are taken: the oldest without an admitted request; else the
    /// oldest idle one of the caller with the most connections. So nobody keeps others out by connecting.
    fn to_give_up(&self) -> Option<u64> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, entry) in &self.all {
            match entry.occupant.caller.get() {
                None => return Some(*number),
                Some(caller) => *counts.entry(caller).or_default() += 1,
            }
        }
        let idle = self.all.iter().rev().filter(|(_, entry)| entry.occupant.is_idle());
        let places = |entry: &Entry| Some(counts.get(entry.occupant.caller.get()?.as_ref()).copied());
        idle.max_by_key(|(_, entry)| places(entry)).map(|(number, _)| *number)
    }
}

/// A place that is taken.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    number: u64,
    occupant: Arc<Occupant>,
    end: CancellationToken,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.table().all.remove(&self.number);
    }
}

impl Slots {
    pub(crate) fn new(limits: Arc<LiveLimits>) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            limits,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.table().all.len()
    }

    /// Takes a place, of another connection when all are taken and one can be given up.
    pub(crate) fn take(self: &Arc<Self>) -> (Option<Slot>, bool) {
        let most = self.limits.get().connections;
        let mut table = self.table();
        let mut evicted = false;
        if table.all.len() >= most {
            let Some(number) = table.to_give_up() else {
                return (None, false);
            };
            if let Some(entry) = table.all.remove(&number) {
                entry.end.cancel();
                evicted = true;
            }
        }
        let number = table.next;
        table.next += 1;
        let (occupant, end) = (Arc::<Occupant>::default(), CancellationToken::new());
        let entry = Entry {
            occupant: Arc::clone(&occupant),
            end: end.clone(),
        };
        table.all.insert(number, entry);
        let slot = Slot {
            slots: Arc::clone(self),
            number,
            occupant,
            end,
        };
        (Some(slot), evicted)
    }
}

/// Serves a connection to its end.
pub(crate) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    slot: Slot,
    door: Arc<Door>,
    tls: Option<Arc<Tls>>,
    drain: CancellationToken,
) {
    let Ok(here) = stream.local_addr() else { return };
    let from = From {
        peer: peer.ip().to_canonical(),
        here,
        secure: tls.is_some(),
        local: false,
        occupant: Arc::clone(&slot.occupant),
    };
    // Without these options the connection is slower or outlives its peer longer, which is no reason to refuse it.
    let _as_it_is = stream.set_nodelay(true);
    notice_when_gone(&stream);
    let stream = Patient::new(stream);
    let end = slot.end.clone();
    let served = async {
        match tls {
            None => speak(stream, &door, &from, drain).await,
            Some(tls) => match tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await {
                Ok(Ok(stream)) => speak(stream, &door, &from, drain).await,
                Ok(Err(error)) => tracing::debug!(%error, %peer, "no TLS"),
                Err(_) => tracing::debug!(%peer, "the TLS handshake took too long"),
            },
        }
    };
    tokio::select! {
        () = served => {}
        () = end.cancelled() => {}
    }
}

/// Serves a program of the same user to its end.
#[cfg(unix)]
pub(crate) async fn serve_local(stream: tokio::net::UnixStream, slot: Slot, door: Arc<Door>, drain: CancellationToken) {
    let here = std::net::Ipv4Addr::LOCALHOST;
    let from = From {
        peer: here.into(),
        // What it calls the server by is `localhost`.
        here: (here, 80).into(),
        secure: false,
        local: true,
        occupant: Arc::clone(&slot.occupant),
    };
    let end = slot.end.clone();
    tokio::select! {
        () = speak(Patient::new(stream), &door, &from, drain) => {}
        () = end.cancelled() => {}
    }
}

async fn speak<S>(stream: S, door: &Arc<Door>, from: &From, drain: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| async {
        let busy = from.occupant.begin();
        let response = door.answer(request, from).await;
        Ok::<_, std::convert::Infallible>(response.map(|body| body::holding(body, busy)))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_headers(HEADERS)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, peer = %from.peer, "a connection broke off");
    }
}

/// Lets the system detect a peer that vanished silently.
#[cfg(target_os = "linux")]
fn notice_when_gone(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _as_it_is = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, Duration::from_secs(60)))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15)))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, 4))
        .and_then(|()| sockopt::set_tcp_user_timeout(stream, 60_000));
}

#[cfg(not(target_os = "linux"))]
fn notice_when_gone(_: &TcpStream) {}

/// A stream that fails when its other end takes nothing for [`WRITE_WITHIN`].
struct Patient<S> {
    stream: S,
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    const fn new(stream: S) -> Self {
        Self { stream, stuck: None }
    }

    fn judge<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stuck = None;
            return outcome;
        }
        let deadline = || Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_WITHIN));
        let stuck = self.stuck.get_or_insert_with(deadline);
        stuck.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::http::HttpLimits;

    #[test]
    fn strangers_make_room_and_then_whoever_has_most() {
        let slots = Slots::new(LiveLimits::new(HttpLimits {
            connections: 3,
            ..HttpLimits::for_tests()
        }));
        let [greedy, modest] = ["greedy", "modest"].map(|name| Principal(name.into()));
        let [first, second, stranger] = [(); 3].map(|()| slots.take().0.unwrap());
        first.occupant.let_in(&modest);
        second.occupant.let_in(&greedy);
        let (third, evicted) = slots.take();
        assert!(evicted && stranger.end.is_cancelled());
        let third = third.unwrap();
        third.occupant.let_in(&greedy);
        // The older one of the caller with two has a request under way, so the other one goes.
        let busy = second.occupant.begin();
        let (fourth, evicted) = slots.take();
        assert!(evicted && third.end.is_cancelled() && !first.end.is_cancelled() && !second.end.is_cancelled());
        let fourth = fourth.unwrap();
        fourth.occupant.let_in(&greedy);
        // With requests under way everywhere the new one has to go.
        let _all = [first.occupant.begin(), fourth.occupant.begin()];
        assert!(slots.take().0.is_none());
        drop(busy);
        assert!(slots.take().1 && second.end.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(1024);
        let mut stream = Patient::new(ours);
        stream.write_all(&[0; 1024]).await.unwrap();
        let started = Instant::now();
        let error = stream.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), WRITE_WITHIN.as_secs());
    }
}
