//! The contract between the parts of sandcell: what a sandbox is, what it may use, and how it fails.
//!
//! Back ends implement [`Backend`] and [`Sandbox`], languages implement [`Language`] and [`Session`],
//! and everything above works with those traits only. Nothing here does I/O or needs a running
//! async runtime: the channels are plain data structures.
#![forbid(unsafe_code)]

mod backend;
mod error;
mod files;
mod isolation;
mod limits;
mod process;
mod session;

pub use backend::{Backend, EndReason, Ended, Mount, MountMode, NetworkRule, Sandbox, SandboxSpec, Usage};
pub use error::{Code, Failure, FileError, SandboxError, SessionError};
pub use files::{Entry, EntryKind, FileChunk, Files, HOME, Listing, PathError, SandboxPath, WriteMode};
pub use isolation::{Degree, Isolation, LayerReport, LayerState, Level};
pub use limits::{ByteSize, Cpus, Limits, MAX_TIMEOUT};
pub use process::{Channel, Command, Exit, Process, ProcessEvent, ProcessHandle, Signal, SignalScope, StdinMode};
pub use session::{
    Cell, CellError, CellOutcome, CellStatus, Interrupter, Language, LanguageInfo, MimeBundle, OutputStream, Session,
    SessionEvent, SessionFeatures,
};
