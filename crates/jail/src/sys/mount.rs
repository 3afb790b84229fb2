//! Changes of mounts by descriptor.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The kernel's `struct mount_attr`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Attributes to set on a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes(u64);

impl Attributes {
    pub(crate) const READ_ONLY: Self = Self(0x1);
    pub(crate) const NO_SUID: Self = Self(0x2);
    pub(crate) const NO_DEV: Self = Self(0x4);
    pub(crate) const NO_EXEC: Self = Self(0x8);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

fn set(mount: BorrowedFd<'_>, attr: MountAttr, flags: libc::c_int) -> io::Result<()> {
    set_at(mount.as_raw_fd(), c"", attr, libc::AT_EMPTY_PATH | flags)
}

fn set_at(folder: libc::c_int, path: &CStr, mut attr: MountAttr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the path is NUL-terminated, `attr` is valid for its size, and both outlive the call.
    super::check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            folder,
            path.as_ptr(),
            flags,
            std::ptr::addr_of_mut!(attr),
            std::mem::size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Adds attributes to a mount and to all mounts below it.
pub(crate) fn restrict_tree(mount: BorrowedFd<'_>, attributes: Attributes) -> io::Result<()> {
    set(
        mount,
        MountAttr {
            attr_set: attributes.0,
            ..MountAttr::default()
        },
        libc::AT_RECURSIVE,
    )
}

/// Adds attributes to one mount.
pub(crate) fn restrict(mount: BorrowedFd<'_>, attributes: Attributes) -> io::Result<()> {
    set(
        mount,
        MountAttr {
            attr_set: attributes.0,
            ..MountAttr::default()
        },
        0,
    )
}

/// Adds attributes to the mount at a path.
pub(crate) fn restrict_at(path: &str, attributes: Attributes) -> io::Result<()> {
    let attr = MountAttr {
        attr_set: attributes.0,
        ..MountAttr::default()
    };
    set_at(libc::AT_FDCWD, &CString::new(path)?, attr, libc::AT_SYMLINK_NOFOLLOW)
}

/// Maps the ids of a detached mount's files by a user namespace.
pub(crate) fn map_ids(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let userns_fd = u64::try_from(user_namespace.as_raw_fd()).map_err(io::Error::other)?;
    set(
        mount,
        MountAttr {
            attr_set: MOUNT_ATTR_IDMAP,
            userns_fd,
            ..MountAttr::default()
        },
        0,
    )
}
