//! The JSON payloads.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use sandcell_sandbox::{
    Channel, Exit, Listing, SavedChanges, SavedSize, Signal, SignalScope, StdinMode, TerminalSize, WriteMode,
};
use serde::{Deserialize, Serialize};

use super::{PROTOCOL_NAME, PROTOCOL_VERSION, ProtocolError};

/// The feature of an agent that can replace an ended program by another process.
pub const HEIRS_FEATURE: &str = "heirs";

/// The feature of direct pipes: a program's output and control bypass the agent.
pub const DIRECT_PIPES_FEATURE: &str = "lane";
/// The feature of an agent that can adopt a process which enters the sandbox from outside.
pub const ADOPT_FEATURE: &str = "adopt";

/// The feature of an agent that can forward a port inside to the host.
pub const FORWARD_FEATURE: &str = "forward";

/// The feature of an agent that can connect to a port inside.
pub const OPEN_FEATURE: &str = "open";

/// The feature of an agent that can start a program in a terminal.
pub const TERMINAL_FEATURE: &str = "terminal";

/// The feature of an agent that can stop all processes of its sandbox.
pub const PAUSE_FEATURE: &str = "pause";

/// The feature of an agent that can watch folders.
pub const WATCH_FEATURE: &str = "watch";

/// The feature of an agent that can keep heirs of a program.
pub const KEPT_HEIRS_FEATURE: &str = "kept_heirs";

/// The feature of an agent that can save the private files.
pub const SAVED_FILES_FEATURE: &str = "saved_files";

/// The feature of an agent that can list the private layers of copy-on-write mounts.
pub const MOUNT_LAYERS_FEATURE: &str = "mount_layers";

/// HELLO.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Always [`PROTOCOL_NAME`].
    pub protocol: String,
    /// The only version that the sender speaks.
    pub version: u32,
    /// The additions to the protocol that the sender supports.
    #[serde(default)]
    pub features: Vec<String>,
    /// The environment variables of the agent's image. Only an agent in a Pod sends them: the host cannot inspect its image.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl Hello {
    /// Returns this program's HELLO.
    #[must_use]
    pub fn ours() -> Self {
        Self {
            protocol: PROTOCOL_NAME.to_owned(),
            version: PROTOCOL_VERSION,
            features: [
                "spawn",
                "files",
                "usage",
                FORWARD_FEATURE,
                OPEN_FEATURE,
                TERMINAL_FEATURE,
                WATCH_FEATURE,
                SAVED_FILES_FEATURE,
                MOUNT_LAYERS_FEATURE,
            ]
            .map(str::to_owned)
            .to_vec(),
            env: BTreeMap::new(),
        }
    }

    /// Returns the HELLO of an agent that is the first process. Orphans are its children, so it can report the end of
    /// an heir.
    #[must_use]
    pub fn of_first_process() -> Self {
        let mut hello = Self::ours();
        let features = [HEIRS_FEATURE, KEPT_HEIRS_FEATURE, PAUSE_FEATURE];
        hello.features.extend(features.map(str::to_owned));
        hello
    }

    /// Parses the other side's HELLO and checks its protocol and version.
    ///
    /// # Errors
    /// The payload is not a HELLO, or its protocol or version differs.
    pub fn check(payload: &[u8]) -> Result<Self, ProtocolError> {
        let hello: Self =
            serde_json::from_slice(payload).map_err(|error| ProtocolError::new(format!("a bad HELLO: {error}")))?;
        if hello.protocol != PROTOCOL_NAME || hello.version != PROTOCOL_VERSION {
            let theirs: String = hello.protocol.chars().take(40).collect();
            return Err(ProtocolError::new(format!(
                "the other side speaks {theirs:?} version {}, this program speaks {PROTOCOL_NAME:?} version \
                 {PROTOCOL_VERSION}",
                hello.version
            )));
        }
        Ok(hello)
    }
}

/// GOODBYE.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goodbye {
    /// The reason.
    pub reason: String,
}

/// REQUEST.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the protocol page defines each")]
pub enum Request {
    Spawn {
        argv: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stands_alone: bool,
        stdin: StdinMode,
        control: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lane: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        terminal: Option<TerminalSize>,
    },
    Resize {
        process: u32,
        size: TerminalSize,
    },
    Signal {
        process: u32,
        signal: Signal,
        scope: SignalScope,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spare: Option<i32>,
    },
    Succeed {
        process: u32,
        heir: i32,
    },
    Keep {
        process: u32,
        pid: i32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        expendable: bool,
    },
    Kept {
        process: u32,
    },
    Release {
        process: u32,
        pid: i32,
    },
    SaveFiles {
        number: u32,
        folders: Vec<String>,
        max_bytes: u64,
    },
    RestoreFiles {
        number: u32,
    },
    ForgetFiles {
        number: u32,
    },
    FileChanges {
        number: u32,
        max: usize,
    },
    Image {
        process: u32,
        pid: i32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        drop: bool,
    },
    ImageFiles {
        number: u32,
        max_bytes: u64,
    },
    ReadImage {
        offset: u64,
        len: u64,
    },
    DropImage,
    MountLayers {
        max: usize,
    },
    ReadSaved {
        number: u32,
        path: String,
        offset: u64,
        len: u64,
    },
    Adopt {
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lane: bool,
    },
    List {
        path: String,
        recursive: bool,
        max: usize,
    },
    Read {
        path: String,
        offset: u64,
        len: u64,
    },
    Write {
        path: String,
        mode: WriteMode,
    },
    Entry {
        path: String,
    },
    MakeFolder {
        path: String,
    },
    Rename {
        path: String,
        to: String,
    },
    Remove {
        path: String,
    },
    Watch {
        path: String,
        recursive: bool,
    },
    Pause,
    Resume,
    Usage,
    Ping,
    Forward {
        address: Ipv4Addr,
        port: u16,
        target: String,
    },
    Open {
        address: Ipv4Addr,
        port: u16,
    },
}

/// REQUEST of the agent for a new connection to a forwarded port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename = "open")]
pub struct Connected {
    /// The stream of the `forward`.
    pub forward: u32,
    /// The target's name in that request.
    pub target: String,
}

/// The operations of this version.
const OPERATION_NAMES: [&str; 32] = [
    "spawn",
    "signal",
    "succeed",
    "keep",
    "kept",
    "release",
    "save_files",
    "restore_files",
    "forget_files",
    "file_changes",
    "image",
    "image_files",
    "read_image",
    "drop_image",
    "mount_layers",
    "read_saved",
    "adopt",
    "list",
    "read",
    "write",
    "entry",
    "make_folder",
    "rename",
    "remove",
    "usage",
    "ping",
    "forward",
    "open",
    "pause",
    "resume",
    "resize",
    "watch",
];

/// The reason why a REQUEST's payload is not a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// The payload is not a JSON object with an `op`: the sender does not speak the protocol.
    ProtocolError(ProtocolError),
    /// The error to answer with.
    Answer(WireError),
}

/// Parses a REQUEST's payload.
///
/// # Errors
/// [`RequestError`] distinguishes an error to answer with from a protocol violation.
pub fn parse_request(payload: &[u8]) -> Result<Request, RequestError> {
    #[derive(Deserialize)]
    struct Operation {
        op: String,
    }
    let operation: Operation = serde_json::from_slice(payload)
        .map_err(|error| RequestError::ProtocolError(ProtocolError::new(format!("an invalid REQUEST: {error}"))))?;
    if !OPERATION_NAMES.contains(&operation.op.as_str()) {
        let op: String = operation.op.chars().take(40).collect();
        return Err(RequestError::Answer(WireError::new(
            ErrorCode::Unsupported,
            format!("this agent does not support {op:?}"),
        )));
    }
    serde_json::from_slice(payload)
        .map_err(|error| RequestError::Answer(WireError::new(ErrorCode::Invalid, error.to_string())))
}

/// REPLY.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// The request succeeded.
    Ok(T),
    /// The request failed.
    Error(WireError),
}

/// An empty answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyReply {}

/// The answer to `spawn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnReply {
    /// The program's process id inside.
    pub pid: i32,
}

/// The answer to `forward`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardReply {
    /// The port inside.
    pub port: u16,
}

/// The answer to `list`.
pub type ListReply = Listing;

/// The answer to `read`, after the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReply {
    /// The size of the whole file.
    pub total: u64,
}

/// The answer to `write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReply {
    /// The size of the file afterwards.
    pub size: u64,
}

/// The answer to `kept`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptReply {
    /// The process ids inside.
    pub pids: Vec<i32>,
}

/// The answer to `save_files`.
pub type SaveFilesReply = SavedSize;

/// The answer to `restore_files`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreFilesReply {
    /// The number of entries that were written or removed.
    pub changed: u64,
}

/// The answer to `forget_files`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ForgetFilesReply {
    /// The bytes that each of the other saved states holds, by its number. Contents of several states count for the
    /// first of them.
    pub held: BTreeMap<u32, u64>,
}

/// The answer to `file_changes`.
pub type FileChangesReply = SavedChanges;

/// The answer to `image_files`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageReply {
    /// The position of its table of contents.
    pub position: u64,
    /// The size of the table, in bytes. It ends the image.
    pub bytes: u64,
}

/// The last line of the answer to `mount_layers`. The lines before it are the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountLayersEnd {
    /// The number of further entries, and of folders that could not be read.
    pub omitted: u64,
}

/// The answer to `make_folder`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeFolderReply {
    /// False if the folder was there already.
    pub made: bool,
}

/// The answer to `usage`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReply {
    /// Processes and threads inside, the agent included.
    pub processes: u32,
    /// Bytes used in the sandbox's private file systems.
    pub disk: u64,
    /// Files and folders used in them.
    pub inodes: u64,
    /// The usage of the sandbox's control group, if the agent is in a separate one and can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupUsage>,
}

/// The usage of a control group. Counters only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupUsage {
    /// The memory of its processes, in bytes. Files in memory are not counted.
    pub memory: u64,
    /// The highest memory so far, in bytes.
    pub memory_peak: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// The number of processes that were killed for memory.
    pub memory_events: u64,
    /// The number of new processes that were refused.
    pub process_events: u64,
}

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireError {
    /// The kind of error.
    pub code: ErrorCode,
    /// For people; one sentence without a full stop.
    pub message: String,
    /// The system's error number, if that was the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// The kind of the unsuitable file, or the failed step of a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

impl WireError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            errno: None,
            kind: None,
        }
    }
}

/// The kinds of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum ErrorCode {
    NotFound,
    IsDirectory,
    NotDirectory,
    NotRegular,
    Denied,
    ReadOnly,
    DiskFull,
    TooLarge,
    LinkLoop,
    Exists,
    OtherFileSystem,
    Spawn,
    Limit,
    Unsupported,
    Invalid,
    #[serde(other)]
    Failed,
}

/// EVENT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The program itself has ended.
    Exited {
        /// The status or the signal.
        exit: Exit,
    },
    /// The program has closed its reading end of this channel.
    Refused {
        /// The channel's number.
        channel: u8,
    },
}

/// Returns the number of a program's channel.
#[must_use]
pub const fn channel_number(channel: Channel) -> u8 {
    match channel {
        Channel::Stdin => 0,
        Channel::Stdout => 1,
        Channel::Stderr => 2,
        Channel::Control => 3,
    }
}

/// Returns the program's channel with this number.
#[must_use]
pub const fn channel_from_number(number: u8) -> Option<Channel> {
    Some(match number {
        0 => Channel::Stdin,
        1 => Channel::Stdout,
        2 => Channel::Stderr,
        3 => Channel::Control,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_look_like_the_protocol_page_says() {
        let request = Request::Signal {
            process: 5,
            signal: Signal::Kill,
            scope: SignalScope::Tree,
            spare: None,
        };
        assert_eq!(
            serde_json::to_string(&request).unwrap(),
            r#"{"op":"signal","process":5,"signal":"kill","scope":"tree"}"#
        );
        let request = Request::Succeed { process: 5, heir: 7 };
        assert_eq!(
            serde_json::to_string(&request).unwrap(),
            r#"{"op":"succeed","process":5,"heir":7}"#
        );
        assert_eq!(serde_json::to_string(&Request::Usage).unwrap(), r#"{"op":"usage"}"#);
        let exited = Event::Exited { exit: Exit::Signal(9) };
        assert_eq!(
            serde_json::to_string(&exited).unwrap(),
            r#"{"event":"exited","exit":{"signal":9}}"#
        );
        assert_eq!(
            serde_json::to_string(&Reply::Ok(EmptyReply {})).unwrap(),
            r#"{"ok":{}}"#
        );
        let error = Reply::<EmptyReply>::Error(WireError::new(ErrorCode::NotFound, "gone"));
        assert_eq!(
            serde_json::to_string(&error).unwrap(),
            r#"{"error":{"code":"not_found","message":"gone"}}"#
        );
    }

    #[test]
    fn an_unknown_operation_is_answered_and_a_missing_one_is_a_protocol_error() {
        for op in ["suspend", "no such thing"] {
            let payload = format!(r#"{{"op":"{op}","port":0}}"#);
            let Err(RequestError::Answer(error)) = parse_request(payload.as_bytes()) else {
                panic!("{op}")
            };
            assert_eq!(error.code, ErrorCode::Unsupported);
        }
        let Err(RequestError::Answer(error)) = parse_request(br#"{"op":"read","path":5}"#) else {
            panic!()
        };
        assert_eq!(error.code, ErrorCode::Invalid);
        for bytes in [b"".as_slice(), b"[]", b"{}", b"\xff", b"{\"op\":1}"] {
            assert!(matches!(parse_request(bytes), Err(RequestError::ProtocolError(_))));
        }
    }

    #[test]
    fn an_unsupported_version_is_named_in_the_error() {
        let ours = serde_json::to_vec(&Hello::ours()).unwrap();
        assert_eq!(Hello::check(&ours), Ok(Hello::ours()));
        let error = Hello::check(br#"{"protocol":"sandcell-agent","version":2}"#).unwrap_err();
        assert!(error.to_string().contains("version 2") && error.to_string().contains("version 1"));
        assert!(Hello::check(b"SSH-2.0").is_err());
    }

    #[test]
    fn an_unknown_error_code_from_a_newer_agent_is_a_plain_failure() {
        let error: WireError = serde_json::from_str(r#"{"code":"brand_new","message":"m"}"#).unwrap();
        assert_eq!(error.code, ErrorCode::Failed);
    }
}
