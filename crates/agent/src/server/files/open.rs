//! Opens files in the sandbox: below the root by openat2, never through a magic link, never for reading or writing
//! before an inspection.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat2};
use rustix::io::Errno;

use super::super::errors;
use super::names;
use crate::protocol::{ErrorCode, WireError};

/// The maximum number of repetitions of openat2, which fails when the tree changes at the same time.
const MAX_OPEN_ATTEMPTS: usize = 16;

/// The pseudo file systems: reading or writing their files talks to the kernel.
const PSEUDO_FILE_SYSTEMS: [u32; 27] = [
    0x0000_9fa0, // proc
    0x6265_6572, // sysfs
    0x0000_1cd1, // devpts
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6165_676c, // pstore
    0x1980_0202, // mqueue
    0x6265_6570, // configfs
    0x6573_5543, // fusectl
    0x4249_4e4d, // binfmt_misc
    0xde5e_81e4, // efivarfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x5049_5045, // pipes
    0x534f_434b, // sockets
    0x0904_1934, // anonymous inodes
    0x6e73_6673, // namespaces
    0x6759_6969, // rpc_pipefs
    0x6c6f_6f70, // binderfs
    0x0765_5821, // resctrl
    0x5345_434d, // secretmem
    0x5049_4446, // processes
    0x454d_444d, // device memory
];

/// The folder below which everything is opened.
pub(in crate::server) struct Root(OwnedFd);

impl Root {
    pub(in crate::server) fn open(path: &Path) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// Opens a path of the host. Every link is followed inside the root. If no file has this name, the path may be a
    /// name as listings show it.
    pub(super) fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let inside = path.trim_start_matches('/');
        let inside = if inside.is_empty() { "." } else { inside };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = |name: &[u8]| retry(|| openat2(&self.0, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve));
        match open(inside.as_bytes()) {
            Err(Errno::NOENT) => names::from_text(inside).map_or(Err(Errno::NOENT), |name| open(&name)),
            result => result,
        }
    }

    /// Opens a path for inspection only, not for reading or writing.
    pub(super) fn inspect(&self, path: &str) -> Result<OwnedFd, WireError> {
        let found = self.resolve(path, OFlags::PATH).map_err(errors::of_file)?;
        refuse_pseudo(&found)?;
        Ok(found)
    }

    /// Opens a regular file for reading or writing. Inspects it again afterwards, since it may have changed in between.
    pub(super) fn regular(&self, path: &str, flags: OFlags) -> Result<(OwnedFd, Stat), WireError> {
        refuse_irregular(&self.inspect(path)?)?;
        let file = self
            .resolve(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)
            .map_err(errors::of_file)?;
        refuse_pseudo(&file)?;
        let status = refuse_irregular(&file)?;
        Ok((file, status))
    }
}

/// Opens a folder whose changes are to be reported.
pub(in crate::server) fn folder_to_watch(root: &Root, path: &str) -> Result<OwnedFd, WireError> {
    refuse_no_folder(&root.inspect(path)?)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let folder = root.resolve(path, flags).map_err(errors::of_file)?;
    refuse_pseudo(&folder)?;
    Ok(folder)
}

/// Opens an entry of a listing below a folder. Follows no link.
pub(super) fn beneath(folder: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    retry(|| {
        openat2(
            &folder,
            name,
            flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        )
    })
}

pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..MAX_OPEN_ATTEMPTS {
        match call() {
            Err(Errno::INTR) => {}
            // openat2 fails so when something was renamed at the same time, and when a lease exists. Repetition does
            // not help against a lease.
            Err(Errno::AGAIN) => {}
            result => return result,
        }
    }
    call()
}

/// Refuses a file on a pseudo file system.
pub(super) fn refuse_pseudo(file: impl AsFd) -> Result<(), WireError> {
    let system = fstatfs(file).map_err(errors::of_file)?;
    // The type of the field differs between architectures; the magic numbers have 32 bits.
    let magic = u32::try_from(u64::try_from(system.f_type).unwrap_or(u64::MAX) & u64::from(u32::MAX));
    match magic {
        Ok(magic) if !PSEUDO_FILE_SYSTEMS.contains(&magic) => Ok(()),
        _ => Err(errors::not_regular("pseudo file")),
    }
}

/// Refuses everything but a regular file, with an error for its kind.
pub(super) fn refuse_irregular(file: impl AsFd) -> Result<Stat, WireError> {
    let status = fstat(file).map_err(errors::of_file)?;
    refuse_kind(FileType::from_raw_mode(status.st_mode))?;
    Ok(status)
}

pub(super) fn refuse_kind(kind: FileType) -> Result<(), WireError> {
    match kind {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(WireError::new(ErrorCode::IsDirectory, "it is a folder")),
        FileType::Fifo => Err(errors::not_regular("FIFO")),
        FileType::Socket => Err(errors::not_regular("socket")),
        FileType::CharacterDevice | FileType::BlockDevice => Err(errors::not_regular("device")),
        FileType::Symlink | FileType::Unknown => Err(errors::not_regular("link")),
    }
}

/// Refuses everything but a folder.
pub(super) fn refuse_no_folder(file: impl AsFd) -> Result<(), WireError> {
    let status = fstat(file).map_err(errors::of_file)?;
    if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
        return Ok(());
    }
    Err(WireError::new(ErrorCode::NotDirectory, "it is not a folder"))
}
