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
use super::limits_handle::LimitsHandle;
use super::pipeline::{ConnectionInfo, Pipeline};
use super::tls::Tls;

/// The maximum time for the head of a request, and for a connection to wait for its next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The time without progress after which a client counts as gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEADERS: usize = 64;
const HEAD_BYTES: usize = 32 << 10;
const BUFFER_BYTES: usize = 256 << 10;

/// The slots for connections.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    open: Mutex<ConnectionTable>,
    limits: Arc<LimitsHandle>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    all: BTreeMap<u64, ConnectionEntry>,
}

#[derive(Debug)]
struct ConnectionEntry {
    occupant: Arc<Occupant>,
    end: CancellationToken,
}

/// The holder of a connection's slot, and its open requests.
#[derive(Debug, Default)]
pub(crate) struct Occupant {
    /// The caller of the first admitted request. None before that.
    caller: OnceLock<Arc<str>>,
    /// Requests that are being answered.
    busy: AtomicUsize,
}

impl Occupant {
    /// Records that a request of this caller was admitted.
    pub(crate) fn let_in(&self, caller: &Principal) {
        self.caller.get_or_init(|| Arc::clone(&caller.0));
    }

    /// Counts a request as being answered until the guard is dropped.
    fn begin(self: &Arc<Self>) -> BusyGuard {
        self.busy.fetch_add(1, Ordering::Relaxed);
        BusyGuard(Arc::clone(self))
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }
}

struct BusyGuard(Arc<Occupant>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionTable {
    /// Returns the connection to evict when all slots are taken: the oldest without an admitted request; else the
    /// oldest idle one of the caller with the most connections. So no caller keeps others out by opening connections.
    fn connection_to_evict(&self) -> Option<u64> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, entry) in &self.all {
            match entry.occupant.caller.get() {
                None => return Some(*number),
                Some(caller) => *counts.entry(caller).or_default() += 1,
            }
        }
        let idle = self.all.iter().rev().filter(|(_, entry)| entry.occupant.is_idle());
        let places = |entry: &ConnectionEntry| Some(counts.get(entry.occupant.caller.get()?.as_ref()).copied());
        idle.max_by_key(|(_, entry)| places(entry)).map(|(number, _)| *number)
    }
}

/// A slot that is taken.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    occupant: Arc<Occupant>,
    end: CancellationToken,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table().all.remove(&self.number);
    }
}

impl ConnectionSlots {
    pub(crate) fn new(limits: Arc<LimitsHandle>) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            limits,
        })
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.table().all.len()
    }

    /// Takes a slot. If all are taken, first evicts a connection where that is possible. Returns the slot, and true
    /// after an eviction.
    pub(crate) fn take(self: &Arc<Self>) -> (Option<ConnectionSlot>, bool) {
        let most = self.limits.get().connections;
        let mut table = self.table();
        let mut evicted = false;
        if table.all.len() >= most {
            let Some(number) = table.connection_to_evict() else {
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
        let entry = ConnectionEntry {
            occupant: Arc::clone(&occupant),
            end: end.clone(),
        };
        table.all.insert(number, entry);
        let slot = ConnectionSlot {
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
    slot: ConnectionSlot,
    pipeline: Arc<Pipeline>,
    tls: Option<Arc<Tls>>,
    drain: CancellationToken,
) {
    let Ok(here) = stream.local_addr() else { return };
    let from = ConnectionInfo {
        peer: peer.ip().to_canonical(),
        here,
        secure: tls.is_some(),
        local: false,
        occupant: Arc::clone(&slot.occupant),
    };
    // Without these options the connection is slower or outlives its peer longer, which is no reason to refuse it.
    let _as_it_is = stream.set_nodelay(true);
    notice_when_gone(&stream);
    let stream = WriteTimeoutStream::new(stream);
    let end = slot.end.clone();
    let served = async {
        match tls {
            None => speak(stream, &pipeline, &from, drain).await,
            Some(tls) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => speak(stream, &pipeline, &from, drain).await,
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
pub(crate) async fn serve_local(
    stream: tokio::net::UnixStream,
    slot: ConnectionSlot,
    pipeline: Arc<Pipeline>,
    drain: CancellationToken,
) {
    let here = std::net::Ipv4Addr::LOCALHOST;
    let from = ConnectionInfo {
        peer: here.into(),
        // Such a program addresses the server as `localhost`.
        here: (here, 80).into(),
        secure: false,
        local: true,
        occupant: Arc::clone(&slot.occupant),
    };
    let end = slot.end.clone();
    tokio::select! {
        () = speak(WriteTimeoutStream::new(stream), &pipeline, &from, drain) => {}
        () = end.cancelled() => {}
    }
}

async fn speak<S>(stream: S, pipeline: &Arc<Pipeline>, from: &ConnectionInfo, drain: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| async {
        let busy = from.occupant.begin();
        let response = pipeline.answer(request, from).await;
        Ok::<_, std::convert::Infallible>(response.map(|body| body::holding(body, busy)))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
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

/// A stream that fails when its other end takes nothing for [`WRITE_TIMEOUT`].
struct WriteTimeoutStream<S> {
    stream: S,
    deadline_timer: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> WriteTimeoutStream<S> {
    const fn new(stream: S) -> Self {
        Self {
            stream,
            deadline_timer: None,
        }
    }

    fn check_progress<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.deadline_timer = None;
            return outcome;
        }
        let deadline = || Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_TIMEOUT));
        let deadline_timer = self.deadline_timer.get_or_insert_with(deadline);
        deadline_timer
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_progress(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.check_progress(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check_progress(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_progress(cx, outcome)
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
    fn unauthenticated_connections_are_closed_first_then_those_of_the_largest_caller() {
        let slots = ConnectionSlots::new(LimitsHandle::new(HttpLimits {
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
    async fn a_client_that_reads_nothing_is_disconnected() {
        let (ours, _theirs) = tokio::io::duplex(1024);
        let mut stream = WriteTimeoutStream::new(ours);
        stream.write_all(&[0; 1024]).await.unwrap();
        let started = Instant::now();
        let error = stream.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), WRITE_TIMEOUT.as_secs());
    }
}
