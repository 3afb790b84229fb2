//! A file that is written under a temporary name and then takes its place at once.

use std::fs::File;
use std::io::Write as _;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, openat, unlinkat};
use rustix::process::geteuid;

use crate::place::{Place, failed, of_stat, put, temporary_name};
use crate::{HostError, HostStatus, SET_ID_BITS};

/// A file without its name yet. Dropping it removes it.
#[derive(Debug)]
pub struct NewFile {
    place: Place,
    temporary: String,
    file: File,
    finished: bool,
}

impl NewFile {
    pub(crate) fn begin(place: Place) -> Result<Self, HostError> {
        let temporary = temporary_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&place.folder, temporary.as_str(), flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        Ok(Self {
            place,
            temporary,
            file: File::from(file),
            finished: false,
        })
    }

    /// Adds content.
    ///
    /// # Errors
    /// The disk is full, or the system cannot write.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.file.write_all(bytes).map_err(of_write)
    }

    /// Stores the content permanently and gives the file its name, in place of the entry `replaces`. The new file has the
    /// owner and mode of a replaced file, else the owner of its folder and the mode `mode`. It never has set-uid and set-gid
    /// bits.
    ///
    /// # Errors
    /// The host's entry is another one, the owner cannot be kept, or the system cannot write.
    pub fn finish(mut self, replaces: Option<&HostStatus>, mode: u32) -> Result<HostStatus, HostError> {
        let kept = replaces.filter(|old| old.kind == crate::HostKind::File);
        let owner = match kept {
            Some(old) => Some((old.identity.2, old.identity.3)),
            None if geteuid().is_root() => {
                let above = fstat(&self.place.folder).map_err(failed)?;
                Some((above.st_uid, above.st_gid))
            }
            None => None,
        };
        let own = fstat(&self.file).map_err(failed)?;
        if let Some((user, group)) = owner.filter(|owner| *owner != (own.st_uid, own.st_gid)) {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
            fchown(&self.file, Some(user), Some(group)).map_err(|_| HostError::Owner)?;
        }
        let mode = kept.map_or(mode, |old| old.mode) & 0o1777 & !SET_ID_BITS;
        fchmod(&self.file, Mode::from_raw_mode(mode)).map_err(failed)?;
        self.file.sync_all().map_err(of_write)?;
        put(&self.place, &self.temporary, replaces)?;
        self.finished = true;
        Ok(of_stat(&fstat(&self.file).map_err(failed)?, None))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.finished {
            let _gone = unlinkat(&self.place.folder, self.temporary.as_str(), AtFlags::empty());
        }
    }
}

fn of_write(error: std::io::Error) -> HostError {
    match error.raw_os_error() {
        Some(number) => failed(rustix::io::Errno::from_raw_os_error(number)),
        None => HostError::Other(error.to_string()),
    }
}
