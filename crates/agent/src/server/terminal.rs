//! Terminals of programs.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use sandcell_sandbox::TerminalSize;

/// Opens a terminal. Returns the host's end, which does not block, and the program's end.
pub(super) fn open(size: TerminalSize) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    // By descriptor, since code inside can change what a path means.
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    resize(&ours, size)?;
    fcntl_setfl(&ours, OFlags::RDWR | OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// Sets the size of a terminal.
pub(super) fn resize(terminal: impl AsFd, size: TerminalSize) -> rustix::io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size)
}
