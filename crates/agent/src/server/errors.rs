//! Translates the system's errors into the protocol's.

use rustix::io::Errno;
use sandcell_jail::spawn::SpawnError;

use crate::protocol::{ErrorCode, WireError};

/// Returns the error of a file operation.
pub(super) fn of_file(errno: Errno) -> WireError {
    let code = match errno {
        Errno::NOENT => ErrorCode::NotFound,
        Errno::ISDIR => ErrorCode::IsDirectory,
        Errno::NOTDIR => ErrorCode::NotDirectory,
        Errno::ACCESS | Errno::PERM => ErrorCode::Denied,
        Errno::ROFS => ErrorCode::ReadOnly,
        Errno::NOSPC | Errno::DQUOT => ErrorCode::DiskFull,
        Errno::LOOP => ErrorCode::LinkLoop,
        Errno::FBIG => ErrorCode::TooLarge,
        Errno::EXIST => ErrorCode::Exists,
        Errno::XDEV => ErrorCode::OtherFileSystem,
        Errno::NXIO | Errno::NODEV => return not_regular("FIFO, socket or device"),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => ErrorCode::Limit,
        _ => ErrorCode::Failed,
    };
    let message = match errno {
        // Only a lease makes the opening of a regular file wait, and this agent does not wait.
        Errno::AGAIN => "a process in the sandbox holds a lease on it".to_owned(),
        Errno::NAMETOOLONG => "a name in the path is too long".to_owned(),
        _ => std::io::Error::from(errno).to_string(),
    };
    WireError {
        errno: Some(errno.raw_os_error()),
        ..WireError::new(code, message)
    }
}

/// Returns the error for a path that does not name a regular file.
pub(super) fn not_regular(kind: &str) -> WireError {
    WireError {
        kind: Some(kind.to_owned()),
        ..WireError::new(ErrorCode::NotRegular, format!("it is a {kind}"))
    }
}

/// Returns the error of a connection to a port inside.
pub(super) fn of_connect(errno: Errno) -> WireError {
    let (code, message) = match errno {
        Errno::CONNREFUSED => (ErrorCode::NotFound, "no program listens on this port".to_owned()),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => {
            (ErrorCode::Limit, std::io::Error::from(errno).to_string())
        }
        _ => (ErrorCode::Failed, std::io::Error::from(errno).to_string()),
    };
    WireError {
        errno: Some(errno.raw_os_error()),
        ..WireError::new(code, message)
    }
}

/// Returns the error for a program that was not started.
pub(super) fn of_spawn(error: &SpawnError) -> WireError {
    WireError {
        code: ErrorCode::Spawn,
        message: format!("{error}: {}", error.source),
        errno: error.source.raw_os_error(),
        kind: Some(error.step.as_str().to_owned()),
    }
}
