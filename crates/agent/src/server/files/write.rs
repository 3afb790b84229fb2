//! Writes a file as the host's bytes arrive: into a temporary file that replaces the old one at the end, or at the old
//! file's end.

use std::os::fd::OwnedFd;

use rustix::fs::{
    Access, AtFlags, FileType, Mode, OFlags, Stat, accessat, fchmod, fstat, ftruncate, mkdirat, openat, readlinkat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sandcell_sandbox::WriteMode;

use super::open::{Root, refuse_irregular, refuse_kind, refuse_pseudo, retry};
use super::{Step, errors};
use crate::protocol::{
    BODY_CHANNEL, ErrorCode, MAX_TRANSFER, OutBuffer, ProtocolError, ReceiveWindow, WireError, WriteReply,
};

/// The maximum length of a chain of links.
const MAX_LINKS: usize = 40;

/// The longest path, as in the kernel.
const MAX_PATH: usize = 4096;

/// The mode of a new file, and the bits that an old one keeps.
const NEW_MODE: u32 = 0o644;
const KEPT_BITS: u32 = 0o777;

/// The beginning of names of temporary files.
pub(in crate::server) const TEMPORARY_PREFIX: &str = ".sandcell-";
/// The beginning of the name of a temporary file that takes the place of another file.
pub(in crate::server) const REPLACING_PREFIX: &str = ".sandcell-over-";

/// A write in progress. Dropping it before its end undoes it.
pub(in crate::server) struct Write {
    file: OwnedFd,
    target: Target,
    window: ReceiveWindow,
    received: u64,
}

enum Target {
    /// A temporary file that takes the place of `name` at the end.
    Replace {
        folder: OwnedFd,
        temporary: String,
        name: String,
        mode: Mode,
    },
    /// A file that had this size.
    Append {
        size: u64,
    },
    Done,
}

impl Write {
    pub(super) fn new(root: &Root, path: &str, mode: WriteMode) -> Result<Self, WireError> {
        let (file, target) = match mode {
            WriteMode::Replace => begin_replace(root, path)?,
            WriteMode::Append => begin_append(root, path)?,
        };
        Ok(Self {
            file,
            target,
            window: ReceiveWindow::default(),
            received: 0,
        })
    }

    pub(super) fn receive(&mut self, stream: u32, bytes: &[u8], out: &mut OutBuffer) -> Result<Step, ProtocolError> {
        self.window.receive(bytes.len())?;
        self.received = self
            .received
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if self.received > MAX_TRANSFER {
            let message = format!("at most {MAX_TRANSFER} bytes can be written at once");
            return Ok(Step::Failed(WireError::new(ErrorCode::TooLarge, message)));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(&self.file, rest) {
                Ok(0) => return Ok(Step::Failed(errors::of_file(Errno::NOSPC))),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Ok(Step::Failed(errors::of_file(error))),
            }
        }
        if let Some(amount) = self.window.passed(bytes.len()) {
            out.credit(stream, BODY_CHANNEL, amount);
        }
        Ok(Step::Again)
    }

    /// The host has sent everything.
    pub(super) fn finish(&mut self) -> Step {
        match self.put_in_place() {
            Ok(status) => {
                self.target = Target::Done;
                Step::Written(WriteReply {
                    size: u64::try_from(status.st_size).unwrap_or(0),
                })
            }
            Err(error) => Step::Failed(errors::of_file(error)),
        }
    }

    fn put_in_place(&self) -> Result<Stat, Errno> {
        if let Target::Replace {
            folder,
            temporary,
            name,
            mode,
        } = &self.target
        {
            fchmod(&self.file, *mode)?;
            renameat(folder, temporary.as_str(), folder, name.as_str())?;
        }
        fstat(&self.file)
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        match &self.target {
            Target::Replace { folder, temporary, .. } => {
                let _gone = unlinkat(folder, temporary.as_str(), AtFlags::empty());
            }
            // The appended bytes are removed, unless another process has appended too.
            Target::Append { size } => {
                let expected = size.saturating_add(self.received);
                let now = fstat(&self.file)
                    .ok()
                    .and_then(|status| u64::try_from(status.st_size).ok());
                if now.is_some_and(|now| now <= expected) {
                    let _best_effort = ftruncate(&self.file, *size);
                }
            }
            Target::Done => {}
        }
    }
}

fn begin_replace(root: &Root, path: &str) -> Result<(OwnedFd, Target), WireError> {
    let (folder, name) = locate(root, path)?;
    let (mode, prefix) = match statat(&folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(old) => {
            refuse_kind(FileType::from_raw_mode(old.st_mode))?;
            // A rename would replace even a file that its owner has made read-only. A write could not change that file.
            let effective = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
            accessat(&folder, name.as_str(), Access::WRITE_OK, effective).map_err(errors::of_file)?;
            (Mode::from_raw_mode(old.st_mode & KEPT_BITS), REPLACING_PREFIX)
        }
        Err(Errno::NOENT) => (Mode::from_raw_mode(NEW_MODE), TEMPORARY_PREFIX),
        Err(error) => return Err(errors::of_file(error)),
    };
    let temporary = temporary_name(prefix).map_err(errors::of_file)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&folder, temporary.as_str(), flags, Mode::from_raw_mode(0o600)).map_err(errors::of_file)?;
    Ok((
        file,
        Target::Replace {
            folder,
            temporary,
            name,
            mode,
        },
    ))
}

fn begin_append(root: &Root, path: &str) -> Result<(OwnedFd, Target), WireError> {
    let (folder, name) = locate(root, path)?;
    match statat(&folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => refuse_kind(FileType::from_raw_mode(status.st_mode))?,
        Err(Errno::NOENT) => {}
        Err(error) => return Err(errors::of_file(error)),
    }
    // The last name is not a link, because links were followed above. NOFOLLOW refuses a link that appears in between.
    let common =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(NEW_MODE);
    let open = |flags| retry(|| openat(&folder, name.as_str(), flags, mode));
    let file = match open(common) {
        Err(Errno::NOENT) => open(common | OFlags::CREATE),
        result => result,
    }
    .map_err(errors::of_file)?;
    refuse_pseudo(&file)?;
    let status = refuse_irregular(&file)?;
    let size = u64::try_from(status.st_size).unwrap_or(0);
    Ok((file, Target::Append { size }))
}

/// Returns the folder of a file to write, and the file's name in it. Makes a missing folder. Follows links, including
/// the last name's, with each step below the root.
fn locate(root: &Root, path: &str) -> Result<(OwnedFd, String), WireError> {
    let mut path = path.trim_end_matches('/').to_owned();
    for _ in 0..MAX_LINKS {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path.as_str()));
        if matches!(name, "" | "." | "..") {
            return Err(WireError::new(ErrorCode::IsDirectory, "it is a folder"));
        }
        let folder = make_folder(root, parent)?;
        refuse_pseudo(&folder)?;
        match readlinkat(&folder, name, Vec::new()) {
            Ok(target) => {
                let target = target.into_string().map_err(|_| errors::of_file(Errno::ILSEQ))?;
                let next = if target.starts_with('/') {
                    target
                } else {
                    format!("{parent}/{target}")
                };
                if next.len() > MAX_PATH {
                    return Err(errors::of_file(Errno::NAMETOOLONG));
                }
                path = next.trim_end_matches('/').to_owned();
            }
            // The name is not a link, or does not exist.
            Err(Errno::INVAL | Errno::NOENT) => return Ok((folder, name.to_owned())),
            Err(error) => return Err(errors::of_file(error)),
        }
    }
    Err(errors::of_file(Errno::LOOP))
}

/// Opens a folder below the root and makes its missing parts. It makes one name at a time, each in a folder that was
/// opened below the root.
pub(super) fn make_folder(root: &Root, path: &str) -> Result<OwnedFd, WireError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match root.resolve(path, flags) {
        Err(Errno::NOENT) => {}
        result => return result.map_err(errors::of_file),
    }
    let mut made = String::from("/");
    let mut folder = root.resolve("/", flags).map_err(errors::of_file)?;
    for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
        made.push_str(name);
        let next = match root.resolve(&made, flags) {
            Err(Errno::NOENT) if name != ".." => {
                refuse_pseudo(&folder)?;
                match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(errors::of_file(error)),
                }
                root.resolve(&made, flags)
            }
            result => result,
        };
        folder = next.map_err(errors::of_file)?;
        made.push('/');
    }
    Ok(folder)
}

/// Returns a random name for a temporary file.
pub(super) fn temporary_name(prefix: &str) -> Result<String, Errno> {
    let mut random = [0_u8; 12];
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(format!(
        "{prefix}{}",
        random.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    ))
}
