//! Watched folders: their changes go to the host as lines of JSON, on the stream of each watch.
//!
//! All watches share one inotify instance, since the kernel allows few. A watch that is not read loses changes and then
//! reports `overflow`.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;
use sandcell_sandbox::{ChangeKind, FileChange};

use super::errors;
use super::files::{REPLACING_PREFIX, Root, TEMPORARY_PREFIX, folder_to_watch};
use crate::protocol::{
    BODY_CHANNEL, EmptyReply, ErrorCode, Frame, Kind, OutBuffer, ProtocolError, SendWindow, WireError,
};

/// The maximum number of watches.
const MAX_WATCHES: usize = 64;
/// The maximum number of folders of one watch.
const MAX_FOLDERS: usize = 512;
/// The maximum depth of folders of one watch.
const MAX_DEPTH: usize = 16;
/// The maximum number of entries that are inspected when a folder and its folders are added.
const MAX_INSPECTED: usize = 20_000;
/// The maximum bytes of changes that wait for the host, for one watch.
const MAX_WAITING_BYTES: usize = 64 << 10;
/// The maximum number of events that are read before the rest of the agent has a turn.
const EVENT_BATCH: usize = 256;
/// Room for one event with the longest name, and for several usual ones.
const BUFFER_BYTES: usize = 4096;

const WATCHED_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::ONLYDIR);

/// All watches.
#[derive(Default)]
pub(super) struct Watches {
    /// Made for the first watch.
    inotify: Option<OwnedFd>,
    watches: BTreeMap<u32, Watch>,
    /// The kernel's numbers of watched folders, and the watches that they belong to.
    folders: BTreeMap<i32, Vec<Folder>>,
    /// The number of the last move of a file that the agent has written, and true if it replaced another file.
    written: Option<(u32, bool)>,
    /// Streams that this side has reset and the host has not confirmed.
    resetting: BTreeSet<u32>,
}

struct Watch {
    path: String,
    recursive: bool,
    window: SendWindow,
    /// Lines that the window has no room for.
    waiting: Vec<u8>,
    /// True if changes were lost.
    lost: bool,
}

/// A folder of a watch.
struct Folder {
    watch: u32,
    /// Its path relative to that of the watch. Empty for the watched folder itself.
    name: String,
}

impl Watches {
    /// Begins a watch for the host's stream.
    pub(super) fn begin(
        &mut self,
        root: &Root,
        stream: u32,
        path: &str,
        recursive: bool,
    ) -> Result<EmptyReply, WireError> {
        if self.watches.len() >= MAX_WATCHES {
            return Err(WireError::new(
                ErrorCode::Limit,
                format!("{MAX_WATCHES} folders are watched already"),
            ));
        }
        let watch = Watch {
            path: path.trim_end_matches('/').to_owned(),
            recursive,
            window: SendWindow::default(),
            waiting: Vec::new(),
            lost: false,
        };
        self.watches.insert(stream, watch);
        let added = self.add(root, stream, String::new());
        let added = added.and_then(|()| {
            if recursive {
                self.add_below(root, stream, "", false)
            } else {
                Ok(())
            }
        });
        match added {
            Ok(()) => Ok(EmptyReply {}),
            Err(error) => {
                self.remove(stream);
                Err(error)
            }
        }
    }

    /// Returns true if this stream is a watch.
    pub(super) fn has(&self, stream: u32) -> bool {
        self.watches.contains_key(&stream) || self.resetting.contains(&stream)
    }

    /// Returns the source of changes.
    pub(super) fn polled(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Handles a frame of the host on the stream of a watch.
    pub(super) fn frame(&mut self, frame: &Frame<'_>, out: &mut OutBuffer) -> Result<(), ProtocolError> {
        let stream = frame.stream;
        if frame.kind == Kind::Reset {
            // The host either gives the stream up or confirms this side's RESET.
            if !self.resetting.remove(&stream) {
                self.remove(stream);
                out.reset(stream);
            }
            return Ok(());
        }
        let Some(watch) = self.watches.get_mut(&stream) else {
            // The host sent it before it learned of the stream's end.
            return Ok(());
        };
        match frame.kind {
            Kind::Credit => {
                let (channel, amount) = frame.credit()?;
                if channel != BODY_CHANNEL {
                    return Err(ProtocolError::new("credit for another channel than the watch's"));
                }
                watch.window.refund(amount)?;
                watch.send(stream, out);
                Ok(())
            }
            // The host takes no more changes.
            Kind::Close => {
                self.end(stream, out);
                Ok(())
            }
            kind => Err(ProtocolError::new(format!("the host may not send {kind:?} here"))),
        }
    }

    /// Reads changes and sends them to the host.
    pub(super) fn ready(&mut self, root: &Root, out: &mut OutBuffer) {
        let mut found = Vec::new();
        if let Some(inotify) = &self.inotify {
            let mut buffer = [const { MaybeUninit::uninit() }; BUFFER_BYTES];
            let mut reader = Reader::new(inotify, &mut buffer);
            while found.len() < EVENT_BATCH || !reader.is_buffer_empty() {
                let Ok(event) = reader.next() else { break };
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                found.push((event.wd(), event.events(), event.cookie(), name));
            }
        }
        let mut touched = BTreeSet::new();
        for (number, events, cookie, name) in found {
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                for (stream, watch) in &mut self.watches {
                    watch.lost = true;
                    touched.insert(*stream);
                }
                continue;
            }
            if events.contains(ReadFlags::IGNORED) {
                // The folder is gone.
                for folder in self.folders.remove(&number).unwrap_or_default() {
                    if folder.name.is_empty() {
                        self.end(folder.watch, out);
                    }
                }
                continue;
            }
            let Some(name) = name else { continue };
            for kind in self.kinds_of(events, cookie, &name) {
                self.changed(root, number, *kind, events, &name, &mut touched);
            }
        }
        for stream in touched {
            if let Some(watch) = self.watches.get_mut(&stream) {
                watch.send(stream, out);
            }
        }
    }

    /// Returns the changes that an event means. A file that the agent itself writes appears in its place with one move;
    /// its temporary name is not reported.
    fn kinds_of(&mut self, events: ReadFlags, cookie: u32, name: &str) -> &'static [ChangeKind] {
        if name.starts_with(TEMPORARY_PREFIX) {
            if events.contains(ReadFlags::MOVED_FROM) {
                self.written = Some((cookie, name.starts_with(REPLACING_PREFIX)));
            }
            return &[];
        }
        if events.contains(ReadFlags::MOVED_TO)
            && let Some((_, replaces)) = self.written.take_if(|(written, _)| *written == cookie)
        {
            return if replaces {
                &[ChangeKind::Write]
            } else {
                &[ChangeKind::Create, ChangeKind::Write]
            };
        }
        kind_of(events)
    }

    fn changed(
        &mut self,
        root: &Root,
        number: i32,
        kind: ChangeKind,
        events: ReadFlags,
        name: &str,
        touched: &mut BTreeSet<u32>,
    ) {
        let folders = self.folders.get(&number).into_iter().flatten();
        let changes: Vec<(u32, String)> = folders
            .map(|folder| (folder.watch, joined(&folder.name, name)))
            .collect();
        for (stream, name) in changes {
            let Some(watch) = self.watches.get_mut(&stream) else {
                continue;
            };
            watch.add(kind, &name);
            touched.insert(stream);
            if kind == ChangeKind::Rename && events.contains(ReadFlags::ISDIR) {
                self.forget(stream, &name);
                continue;
            }
            if watch.recursive && kind == ChangeKind::Create && events.contains(ReadFlags::ISDIR) {
                // It may be gone already, or be one too many.
                if self.add(root, stream, name.clone()).is_err() || self.add_below(root, stream, &name, true).is_err() {
                    self.lose(stream);
                }
            }
        }
    }

    /// Stops to watch a folder that was moved away, and the folders in it.
    fn forget(&mut self, stream: u32, name: &str) {
        let moved = |folder: &Folder| {
            let rest = folder.name.strip_prefix(name);
            folder.watch == stream && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.forget_folders(moved);
    }

    /// Stops to watch folders.
    fn forget_folders(&mut self, gone: impl Fn(&Folder) -> bool) {
        let inotify = self.inotify.as_ref();
        self.folders.retain(|number, folders| {
            folders.retain(|folder| !gone(folder));
            if folders.is_empty()
                && let Some(inotify) = inotify
            {
                // The folder may be gone.
                let _gone = inotify::remove_watch(inotify, *number);
            }
            !folders.is_empty()
        });
    }

    fn lose(&mut self, stream: u32) {
        if let Some(watch) = self.watches.get_mut(&stream) {
            watch.lost = true;
        }
    }

    /// Watches one more folder.
    fn add(&mut self, root: &Root, stream: u32, name: String) -> Result<(), WireError> {
        let Some(watch) = self.watches.get(&stream) else {
            return Ok(());
        };
        let own = |folder: &&Folder| folder.watch == stream;
        if self.folders.values().flatten().filter(own).count() >= MAX_FOLDERS {
            return Err(WireError::new(
                ErrorCode::Limit,
                format!("a watch covers at most {MAX_FOLDERS} folders"),
            ));
        }
        let folder = folder_to_watch(root, &joined(&watch.path, &name))?;
        let inotify = match &self.inotify {
            Some(inotify) => inotify,
            None => {
                let made = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(of_inotify)?;
                self.inotify.insert(made)
            }
        };
        let by_number = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let number = inotify::add_watch(inotify, by_number, WATCHED_EVENTS).map_err(of_inotify)?;
        let folders = self.folders.entry(number).or_default();
        if !folders.iter().any(|known| known.watch == stream && known.name == name) {
            folders.push(Folder { watch: stream, name });
        }
        Ok(())
    }

    /// Watches the folders in a folder. With `report`, everything in it counts as made: it was made before the watch.
    fn add_below(&mut self, root: &Root, stream: u32, name: &str, report: bool) -> Result<(), WireError> {
        let Some(base) = self.watches.get(&stream).map(|watch| watch.path.clone()) else {
            return Ok(());
        };
        let mut pending = vec![(name.to_owned(), 1)];
        let mut inspected = 0;
        while let Some((name, depth)) = pending.pop() {
            let Ok(folder) = folder_to_watch(root, &joined(&base, &name)) else {
                continue;
            };
            for entry in Dir::read_from(&folder).map_err(errors::of_file)?.filter_map(Result::ok) {
                let own_name = entry.file_name().to_string_lossy().into_owned();
                if matches!(own_name.as_str(), "." | "..") {
                    continue;
                }
                inspected += 1;
                if inspected > MAX_INSPECTED {
                    return Err(WireError::new(
                        ErrorCode::Limit,
                        format!("a watched folder has at most {MAX_INSPECTED} entries with those of its folders"),
                    ));
                }
                let entry_name = joined(&name, &own_name);
                if report && let Some(watch) = self.watches.get_mut(&stream) {
                    watch.add(ChangeKind::Create, &entry_name);
                }
                if entry.file_type() == FileType::Directory && depth < MAX_DEPTH {
                    match self.add(root, stream, entry_name.clone()) {
                        Ok(()) => pending.push((entry_name, depth + 1)),
                        Err(error) if error.code == ErrorCode::Limit => return Err(error),
                        // A folder that may not be read, or is gone.
                        Err(_) => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends a watch from this side.
    fn end(&mut self, stream: u32, out: &mut OutBuffer) {
        if let Some(mut watch) = self.watches.remove(&stream) {
            watch.send(stream, out);
            self.remove(stream);
            self.resetting.insert(stream);
            out.reset(stream);
        }
    }

    fn remove(&mut self, stream: u32) {
        self.watches.remove(&stream);
        self.forget_folders(|folder| folder.watch == stream);
        if self.watches.is_empty() {
            self.inotify = None;
            self.folders.clear();
        }
    }
}

impl Watch {
    fn add(&mut self, kind: ChangeKind, name: &str) {
        if self.waiting.len() >= MAX_WAITING_BYTES {
            self.lost = true;
            return;
        }
        let change = FileChange {
            kind,
            name: name.to_owned(),
        };
        if let Ok(line) = serde_json::to_vec(&change) {
            self.waiting.extend_from_slice(&line);
            self.waiting.push(b'\n');
        }
    }

    /// Sends waiting lines, as far as the window has room.
    fn send(&mut self, stream: u32, out: &mut OutBuffer) {
        if self.lost && self.waiting.len() < MAX_WAITING_BYTES {
            self.lost = false;
            self.add(ChangeKind::Overflow, "");
        }
        let mut sent = 0;
        while let Some(rest) = self.waiting.get(sent..).filter(|rest| !rest.is_empty()) {
            let count = self.window.room().min(rest.len());
            if count == 0 {
                break;
            }
            out.data(stream, BODY_CHANNEL, rest.get(..count).unwrap_or_default());
            self.window.spend(count);
            sent += count;
        }
        self.waiting.drain(..sent);
    }
}

fn kind_of(events: ReadFlags) -> &'static [ChangeKind] {
    let kinds: [(ReadFlags, &[ChangeKind]); 6] = [
        (ReadFlags::CREATE, &[ChangeKind::Create]),
        (ReadFlags::MOVED_TO, &[ChangeKind::Create]),
        (ReadFlags::MODIFY, &[ChangeKind::Write]),
        (ReadFlags::DELETE, &[ChangeKind::Remove]),
        (ReadFlags::MOVED_FROM, &[ChangeKind::Rename]),
        (ReadFlags::ATTRIB, &[ChangeKind::Chmod]),
    ];
    let found = kinds.into_iter().find(|(flag, _)| events.contains(*flag));
    found.map_or(&[], |(_, kinds)| kinds)
}

fn joined(folder: &str, name: &str) -> String {
    match (folder, name) {
        ("", name) => name.to_owned(),
        (folder, "") => folder.to_owned(),
        (folder, name) => format!("{folder}/{name}"),
    }
}

fn of_inotify(errno: Errno) -> WireError {
    let (code, message) = match errno {
        Errno::NOSPC | Errno::MFILE => (ErrorCode::Limit, "the sandbox watches too many folders already"),
        Errno::NOSYS => (
            ErrorCode::Unsupported,
            "folders cannot be watched at this isolation level",
        ),
        errno => return errors::of_file(errno),
    };
    WireError {
        errno: Some(errno.raw_os_error()),
        ..WireError::new(code, message)
    }
}
