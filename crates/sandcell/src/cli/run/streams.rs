//! The three streams of `sandcell run`.

use std::future::Future;
use std::io::{self, IsTerminal as _, Read, Write};

use bytes::Bytes;
use sandcell_sandbox::{ByteSize, Failure, OutputStream, SessionEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::wiring;

/// The maximum number of bytes read from stdin at once.
const CHUNK_BYTES: usize = 64 << 10;

/// The destination of the program's output.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sink {
    /// Our own stdout and stderr, without delay.
    Pass,
    /// Memory, up to this size of each stream.
    Collect(ByteSize),
}

/// Collected output.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// True when the program wrote more than was collected.
    pub(super) truncated: bool,
}

/// Returns an empty stdin: immediate end of file.
pub(super) fn no_stdin() -> mpsc::Receiver<Bytes> {
    mpsc::channel(1).1
}

/// Reads our stdin, at most two chunks ahead. Shutdown does not wait for the reading thread: a read from a terminal
/// may block forever.
pub(super) fn stdin() -> Result<mpsc::Receiver<Bytes>, Failure> {
    let (sender, receiver) = mpsc::channel(1);
    let read = move || {
        if in_background() {
            // A read by a background job would stop this whole process. The program gets no input instead, until it
            // ends.
            sender_kept_open(&sender);
            return;
        }
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            match stdin.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    let bytes = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
                    if sender.blocking_send(bytes).is_err() {
                        return;
                    }
                }
            }
        }
    };
    match std::thread::Builder::new().spawn(read) {
        Ok(_) => Ok(receiver),
        Err(error) => Err(wiring::no_thread(&error)),
    }
}

fn sender_kept_open(sender: &mpsc::Sender<Bytes>) {
    while !sender.is_closed() {
        std::thread::park();
    }
}

/// Returns true when stdin is a terminal that belongs to another job of the shell.
fn in_background() -> bool {
    #[cfg(unix)]
    {
        rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|owner| owner != rustix::process::getpgrp())
    }
    #[cfg(not(unix))]
    {
        false
    }
}

/// Starts the thread that writes the output. The thread ends when all senders are dropped. If our output is closed,
/// the thread cancels the program and discards the rest, so that no writer blocks.
pub(super) fn writer(
    sink: Sink,
    cancel: CancellationToken,
) -> (mpsc::Sender<SessionEvent>, impl Future<Output = io::Result<Collected>>) {
    let (sender, mut receiver) = mpsc::channel(64);
    let task = tokio::task::spawn_blocking(move || {
        let mut collected = Collected::default();
        let mut consoles = Consoles::of_this_process();
        let mut fault = None;
        while let Some(event) = receiver.blocking_recv() {
            let SessionEvent::Output { stream, bytes } = event else {
                continue;
            };
            let written = match sink {
                _ if fault.is_some() => Ok(()),
                Sink::Pass => pass(stream, &consoles.take(stream, bytes)),
                Sink::Collect(limit) => {
                    collect(&mut collected, stream, &bytes, limit);
                    Ok(())
                }
            };
            if let Err(error) = written {
                cancel.cancel();
                fault = Some(error);
            }
        }
        fault.map_or(Ok(collected), Err)
    });
    (sender, async {
        task.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
    })
}

/// Output for Windows consoles. Consoles accept text only: an invalid byte would end the program.
#[derive(Debug, Default)]
struct Consoles {
    stdout: Option<Undecoded>,
    stderr: Option<Undecoded>,
}

impl Consoles {
    fn of_this_process() -> Self {
        let console = |is_one: bool| (cfg!(windows) && is_one).then(Undecoded::default);
        Self {
            stdout: console(io::stdout().is_terminal()),
            stderr: console(io::stderr().is_terminal()),
        }
    }

    fn take(&mut self, stream: OutputStream, bytes: Bytes) -> Bytes {
        let console = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        match console {
            Some(undecoded) => undecoded.text(&bytes).into(),
            None => bytes,
        }
    }
}

/// The first bytes of a character whose rest has not arrived yet.
#[derive(Debug, Default)]
struct Undecoded(Vec<u8>);

impl Undecoded {
    /// Returns the complete text; invalid bytes are shown as `U+FFFD`.
    fn text(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.0);
        let mut text = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let is_last = chunks.peek().is_none();
            match std::str::from_utf8(chunk.invalid()) {
                Ok(_) => {}
                Err(error) if is_last && error.error_len().is_none() => self.0 = chunk.invalid().to_vec(),
                Err(_) => text.push(char::REPLACEMENT_CHARACTER),
            }
        }
        text
    }
}

fn pass(stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
    match stream {
        OutputStream::Stdout => {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        OutputStream::Stderr => io::stderr().lock().write_all(bytes),
    }
}

fn collect(collected: &mut Collected, stream: OutputStream, bytes: &[u8], limit: ByteSize) {
    let kept = match stream {
        OutputStream::Stdout => &mut collected.stdout,
        OutputStream::Stderr => &mut collected.stderr,
    };
    let room = usize::try_from(limit.as_bytes())
        .unwrap_or(usize::MAX)
        .saturating_sub(kept.len());
    let fits = bytes.get(..room).unwrap_or(bytes);
    kept.extend_from_slice(fits);
    collected.truncated |= fits.len() < bytes.len();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_output_is_bounded_and_marked_as_cut() {
        let mut collected = Collected::default();
        collect(&mut collected, OutputStream::Stdout, &[b'x'; 700], ByteSize::kib(1));
        assert!(!collected.truncated);
        collect(&mut collected, OutputStream::Stdout, &[b'x'; 700], ByteSize::kib(1));
        collect(&mut collected, OutputStream::Stderr, b"e", ByteSize::kib(1));
        assert_eq!((collected.stdout.len(), collected.stderr.len()), (1024, 1));
        assert!(collected.truncated);
    }

    #[test]
    fn a_console_gets_whole_characters_and_replacement_characters() {
        let mut undecoded = Undecoded::default();
        let parts: [&[u8]; 5] = [b"a\xc3", b"\xa9 \xff.", b"\xf0\x9f", b"\x98\x80", b"\xc3"];
        let texts = parts.map(|part| undecoded.text(part));
        assert_eq!(texts, ["a", "\u{e9} \u{fffd}.", "", "\u{1f600}", ""]);
        assert_eq!(undecoded.text(b"x"), "\u{fffd}x");
    }

    #[tokio::test]
    async fn a_program_without_stdin_reads_end_of_file() {
        assert!(no_stdin().recv().await.is_none());
    }
}
