//! The contract between the parts of sandcell: sandboxes, their limits and their errors.
//!
//! Back ends implement [`Backend`] and [`Sandbox`], languages implement [`Language`] and [`Session`], and all other
//! code works with those traits only. Nothing here does I/O or needs a running async runtime: the channels are plain
//! data structures.
#![forbid(unsafe_code)]

mod abilities;
mod analysis;
mod backend;
mod capacity;
mod consent;
mod error;
mod files;
mod images;
mod isolation;
mod limits;
mod mounts;
mod network;
mod packages;
mod process;
mod python;
mod secret;
mod session;
mod system;
mod time;
mod tools;

pub use abilities::{
    Attachments, BackendImages, Branching, ImageFile, ImageMade, OwnSessions, Ports, Priority, StateImage, ThisMachine,
    Zygote, ZygoteEntry, Zygotes,
};
pub use analysis::{Advice, Finding, Severity};
pub use backend::{
    Backend, BaseEnv, CommitRule, EndReason, Ended, Mount, MountMode, NetworkRule, OuterProcesses, OuterScope,
    Preparing, Sandbox, SandboxSpec, Usage,
};
pub use capacity::{Bound, Capacity};
pub use consent::{ChangesToCommit, Consent, ConsentRequired};
pub use error::{Code, Failure, FileError, SandboxError, SessionError, root_cause, with_sources};
pub use files::{
    ChangeKind, Entry, EntryKind, FileChange, FileChunk, FileWatch, Files, HOME, Listing, PathError, SandboxPath,
    SavedChange, SavedChangeKind, SavedChanges, SavedFiles, SavedSize, WriteMode,
};
pub use images::{Image, Images};
pub use isolation::{Degree, Isolation, LayerReport, LayerState, LeftOut, Level};
pub use limits::{ByteSize, Cpus, Limits, MAX_TIMEOUT};
pub use mounts::{LayerEntries, LayerEntry, MAX_LAYER_ENTRIES, MountEntry, MountEntryKind, MountLayers};
pub use network::{Connection, Denied, EgressRoute, Forward, Network, PROXY_PORT};
pub use packages::{
    Installed, LAYERS, LAYERS_MAX, PackageRequest, PackageVersion, Packages, SYSTEM_PATH, layer_places, of_registry,
    program_places,
};
pub use process::{
    Channel, Command, Compile, Exit, Gathered, Pictures, Process, ProcessEvent, ProcessHandle, Program, Signal,
    SignalScope, StdinMode, TerminalSize, gather,
};
pub use python::{is_named_like_standard_module, is_standard_module};
pub use secret::Secret;
pub use session::{
    Aftermath, Cell, CellError, CellOutcome, CellStatus, Interrupter, Language, LanguageInfo, MimeBundle, NotLoaded,
    OutputStream, Session, SessionEvent, SessionFeatures, Variable,
};
pub use system::{System, plain_path};
pub use time::{from_unix_millis, parse_rfc3339, rfc3339, rfc3339_millis, unix_millis};
pub use tools::{
    FUNCTIONS_SERVER, FunctionSpec, Functions, HostTools, TOOLS_PORT, TOOLS_PROGRAMS, TOOLS_VARIABLE, ToolCall,
    ToolCaller, ToolLimits, ToolPort, ToolQuestion, ToolRequest,
};
