//! Lines of JSON as rmcp's messages. This transport is in front of rmcp's own, which drops lines that it cannot parse.
//! Here every line that could be a request gets an answer, no input of a client ends the session, and memory stays
//! bounded when a client sends too much or does not read.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, GetMeta as _, JsonRpcMessage, RequestId,
    ServerJsonRpcMessage,
};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::scanner::Scanner;
use crate::in_flight::{InFlight, RequestAdmission, UnwrittenAnswer};
use crate::limits::{
    ABOUT_BYTES, FLUSH_TIMEOUT, GRACE_AFTER_EOF, MESSAGE_BYTES, MESSAGE_DEPTH, MESSAGE_MARKS, PLAIN_MESSAGE_BYTES,
    REQUESTS_IN_FLIGHT,
};
use crate::priority::Priority;

/// The maximum number of answers that wait for the writer.
const WRITER_QUEUE: usize = 4;
/// Bytes read from the pipe at once.
const READ_BYTES: usize = 64 << 10;
/// A line buffer larger than this is freed after its message.
const MAX_KEPT_BUFFER_BYTES: usize = 1 << 20;

const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
/// The JSON-RPC error code of a busy server. Servers may define codes in this range; the text states the meaning.
pub(crate) const BUSY_ERROR: i32 = -32000;

/// An encoded message that waits for the writer.
struct Outgoing {
    line: Vec<u8>,
    _ticket: UnwrittenAnswer,
}

/// Messages over a pair of byte streams, one a line.
pub(crate) struct LineTransport<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    scanner: Scanner,
    /// The number of dropped bytes of a line that is too long.
    dropped: usize,
    at_end: bool,
    /// True once a request was seen. Earlier messages are not for a server, and rmcp would end the session over them.
    opened: bool,
    /// The transport's refusals that wait for the writer.
    refusals: VecDeque<Vec<u8>>,
    out: Option<mpsc::Sender<Outgoing>>,
    writer: Option<JoinHandle<()>>,
    in_flight: Arc<InFlight>,
    gone: CancellationToken,
}

impl<R: AsyncRead + Send + Unpin> LineTransport<R> {
    /// Makes a transport. It fires `gone` when the client disconnects.
    pub(crate) fn new<W>(read: R, write: W, gone: CancellationToken, in_flight: Arc<InFlight>) -> Self
    where
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (out, queue) = mpsc::channel(WRITER_QUEUE);
        let writer = tokio::spawn(write_all(write, queue, gone.clone()));
        Self {
            reader: BufReader::with_capacity(READ_BYTES, read),
            line: Vec::new(),
            scanner: Scanner::default(),
            dropped: 0,
            at_end: false,
            opened: false,
            refusals: VecDeque::new(),
            out: Some(out),
            writer: Some(writer),
            in_flight,
            gone,
        }
    }

    /// The next message. May be dropped at any await and called again: all state is in `self`.
    async fn next(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            self.send_refusals().await?;
            self.in_flight.readable().await;
            if self.at_end {
                return None;
            }
            self.read_line().await;
            if let Some(message) = self.take_line() {
                return Some(message);
            }
        }
    }

    async fn send_refusals(&mut self) -> Option<()> {
        while !self.refusals.is_empty() {
            let state = self.out.as_ref()?.reserve().await.ok()?;
            if let Some(line) = self.refusals.pop_front() {
                state.send(Outgoing {
                    line,
                    _ticket: self.in_flight.answer(None),
                });
            }
        }
        Some(())
    }

    /// Reads to the end of a line or of the stream, keeping at most [`MESSAGE_BYTES`]. A partial line stays in `line`.
    async fn read_line(&mut self) {
        loop {
            let available = match self.reader.fill_buf().await {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::debug!(%error, "reading from the client failed");
                    &[]
                }
            };
            if available.is_empty() {
                self.end_of_stream();
                return;
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let piece = available.get(..newline.unwrap_or(available.len())).unwrap_or_default();
            self.scanner.feed(piece);
            if self.dropped > 0 || self.line.len() + piece.len() > MESSAGE_BYTES {
                self.dropped += self.line.len() + piece.len();
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(piece);
            }
            let consumed = piece.len() + usize::from(newline.is_some());
            self.reader.consume(consumed);
            if newline.is_some() {
                return;
            }
        }
    }

    /// Lets quick calls that were already sent finish, then stops what still runs.
    fn end_of_stream(&mut self) {
        self.at_end = true;
        let gone = self.gone.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(GRACE_AFTER_EOF) => gone.cancel(),
                () = gone.cancelled() => {}
            }
        });
    }

    /// Converts the line that was read into a message, or refuses it.
    fn take_line(&mut self) -> Option<ClientJsonRpcMessage> {
        let scanner = std::mem::take(&mut self.scanner);
        let dropped = std::mem::take(&mut self.dropped);
        let line = std::mem::take(&mut self.line);
        let bytes = line.len();
        let message = if dropped > 0 {
            Err(too_long(dropped))
        } else {
            parse(&line, &scanner)
        };
        if line.capacity() <= MAX_KEPT_BUFFER_BYTES {
            self.line = line;
            self.line.clear();
        }
        match message {
            Ok(message) => message.and_then(|message| self.admit(message, bytes)),
            Err(_) if scanner.is_notification() => None,
            Err((code, text)) => {
                self.refuse(scanner.id(), code, &text);
                None
            }
        }
    }

    /// Updates the requests in flight, and passes on messages for rmcp.
    fn admit(&mut self, message: ClientJsonRpcMessage, bytes: usize) -> Option<ClientJsonRpcMessage> {
        match &message {
            JsonRpcMessage::Request(request) => {
                let id = request.id.clone().into_json_value();
                match self.in_flight.begin(&request.id, Priority::of(&message, bytes)) {
                    RequestAdmission::Accepted => self.opened = true,
                    RequestAdmission::Duplicate => {
                        let text = format!("a request with the id {id} is still being answered; use a new id");
                        self.refuse(Some(&id), INVALID_REQUEST, &text);
                        return None;
                    }
                    RequestAdmission::Full => {
                        let text =
                            format!("busy: {REQUESTS_IN_FLIGHT} requests are being answered; wait for some of them");
                        self.refuse(Some(&id), BUSY_ERROR, &text);
                        return None;
                    }
                }
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    // rmcp sends no answer to a cancelled request.
                    self.in_flight.forget(id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
        self.opened.then_some(message)
    }

    fn refuse(&mut self, id: Option<&Value>, code: i32, text: &str) {
        let error = json!({"code": code, "message": text});
        // Without an id the field is left out, as MCP demands. Clients would take null for an id.
        let message = match id {
            Some(id) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
            None => json!({"jsonrpc": "2.0", "error": error}),
        };
        self.refusals.push_back(format!("{message}\n").into_bytes());
    }
}

pub(crate) type RpcRejection = (i32, String);

fn too_long(bytes: usize) -> RpcRejection {
    let text = format!(
        "the message has {bytes} bytes; at most {MESSAGE_BYTES} are taken. Send files in parts with append=true"
    );
    (INVALID_REQUEST, text)
}

/// Parses a line. Returns `Ok(None)` for empty lines and unknown notifications.
pub(crate) fn parse(line: &[u8], scanner: &Scanner) -> Result<Option<ClientJsonRpcMessage>, RpcRejection> {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    if scanner.deepest() > MESSAGE_DEPTH {
        let text = format!(
            "the message has {} levels of brackets; at most {MESSAGE_DEPTH} are taken",
            scanner.deepest()
        );
        return Err((INVALID_REQUEST, text));
    }
    if let Err(error) = std::str::from_utf8(line) {
        return Err((PARSE_ERROR, format!("the message is not UTF-8: {error}")));
    }
    if scanner.is_list() {
        return Err((
            INVALID_REQUEST,
            "lists of messages are not taken; send one message a line".into(),
        ));
    }
    if scanner.marks() > MESSAGE_MARKS {
        let text = format!(
            "the message has more than {MESSAGE_MARKS} values; send large data as text, or as a file by write_file"
        );
        return Err((INVALID_REQUEST, text));
    }
    match serde_json::from_slice::<ClientJsonRpcMessage>(line) {
        Ok(message) => within_bounds(&message, line.len()).map(|()| Some(message)),
        Err(error) if matches!(error.classify(), serde_json::error::Category::Data) => Err((
            INVALID_REQUEST,
            "this is not a message of MCP: jsonrpc, method or id is missing or wrong".into(),
        )),
        Err(error) => Err((PARSE_ERROR, format!("the message is not JSON: {error}"))),
    }
}

/// Refuses oversized parts that would be kept, or copied into answers.
fn within_bounds(message: &ClientJsonRpcMessage, bytes: usize) -> Result<(), RpcRejection> {
    if bytes <= ABOUT_BYTES {
        return Ok(());
    }
    let JsonRpcMessage::Request(request) = message else {
        return plain_size(bytes);
    };
    if !matches!(request.request, ClientRequest::CallToolRequest(_)) {
        plain_size(bytes)?;
    }
    let id = match &request.id {
        RequestId::String(id) => id.len(),
        RequestId::Number(_) => 0,
    };
    let about = id.max(serde_json::to_string(request.request.get_meta()).map_or(0, |text| text.len()));
    if about > ABOUT_BYTES {
        let text = format!("the request's id or _meta has {about} bytes; at most {ABOUT_BYTES} are taken");
        return Err((INVALID_REQUEST, text));
    }
    Ok(())
}

fn plain_size(bytes: usize) -> Result<(), RpcRejection> {
    if bytes <= PLAIN_MESSAGE_BYTES {
        return Ok(());
    }
    let text = format!(
        "the message has {bytes} bytes; at most {PLAIN_MESSAGE_BYTES} are taken of one that is no call of a tool"
    );
    Err((INVALID_REQUEST, text))
}

/// Writes until the channel closes. A client that cannot be written to is gone.
async fn write_all<W: AsyncWrite + Unpin>(mut write: W, mut queue: mpsc::Receiver<Outgoing>, gone: CancellationToken) {
    while let Some(outgoing) = queue.recv().await {
        let written = async {
            write.write_all(&outgoing.line).await?;
            write.flush().await
        };
        if let Err(error) = written.await {
            tracing::debug!(%error, "the client does not take answers any more");
            gone.cancel();
            return;
        }
    }
    let _ = write.shutdown().await;
}

fn answered(message: &ServerJsonRpcMessage) -> Option<&RequestId> {
    match message {
        JsonRpcMessage::Response(response) => Some(&response.id),
        JsonRpcMessage::Error(error) => error.id.as_ref(),
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
    }
}

impl<R: AsyncRead + Send + Unpin + 'static> Transport<RoleServer> for LineTransport<R> {
    type Error = io::Error;

    fn send(&mut self, item: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let unwritten_answer = self.in_flight.answer(answered(&item));
        let out = self.out.clone();
        async move {
            // Encoded before waiting, so that a waiting message has the size that it is counted with.
            let mut line = serde_json::to_vec(&item)?;
            drop(item);
            line.push(b'\n');
            let outgoing = Outgoing {
                line,
                _ticket: unwritten_answer,
            };
            let out = out.ok_or(io::ErrorKind::NotConnected)?;
            out.send(outgoing).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        let gone = self.gone.clone();
        tokio::select! {
            biased;
            () = gone.cancelled() => None,
            message = self.next() => message,
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.gone.cancel();
        drop(self.out.take());
        if let Some(mut writer) = self.writer.take()
            && tokio::time::timeout(FLUSH_TIMEOUT, &mut writer).await.is_err()
        {
            writer.abort();
        }
        Ok(())
    }
}

impl<R> Drop for LineTransport<R> {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}
