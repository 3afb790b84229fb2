//! The folder on Linux.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, fchmod, fgetxattr, fstat, fsync, mkdirat, openat2, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::new_file::NewFile;
use crate::place::{
    Place, READ_RIGHT, SEARCH_RIGHT, check, failed, give, may, modified, of_stat, put, retry, status_at,
    temporary_name, within,
};
use crate::{HostError, HostKind, HostStatus};

/// The attribute of an entry with an access list.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// A folder of the host. It stays the same one if its path is given to another folder.
#[derive(Debug)]
pub struct HostFolder {
    folder: OwnedFd,
    /// The user and group whose rights code in sandboxes has here.
    code: (u32, u32),
}

impl HostFolder {
    /// Opens a folder.
    ///
    /// # Errors
    /// There is no such folder, or the server's user may not search it.
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        let status = fstat(&folder).map_err(failed)?;
        // As root, the sandboxes' user is the owner of the folder. Otherwise it is the server's.
        let code = match geteuid() {
            user if user.is_root() => (status.st_uid, status.st_gid),
            user => (user.as_raw(), getegid().as_raw()),
        };
        Ok(Self { folder, code })
    }

    /// Returns true if the folder is the one at this path.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(there)) = (fstat(&self.folder), rustix::fs::stat(path)) else {
            return false;
        };
        (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
    }

    /// Returns true if code in sandboxes has these rights to an entry.
    fn may(&self, status: &HostStatus, rights: u32) -> bool {
        may(status, rights, self.code)
    }

    /// Returns the state of an entry. None: there is none.
    ///
    /// # Errors
    /// The path leads through a link or into another file system, or it cannot be read.
    pub fn status(&self, path: &str) -> Result<Option<HostStatus>, HostError> {
        let place = match self.place(path) {
            Err(HostError::NoParent) => return Ok(None),
            place => place?,
        };
        status_at(&place)
    }

    /// Returns the time of the last change of the folder that an entry is in, in nanoseconds since 1970. None: there is no
    /// such folder.
    ///
    /// # Errors
    /// As [`HostFolder::status`].
    pub fn parent_modified_ns(&self, path: &str) -> Result<Option<i128>, HostError> {
        match self.place(path) {
            Err(HostError::NoParent) => Ok(None),
            place => Ok(Some(modified(&fstat(place?.folder).map_err(failed)?))),
        }
    }

    /// Returns the state of an entry that code in sandboxes can find: it may search all folders above. None: there is none.
    ///
    /// # Errors
    /// As [`HostFolder::status`].
    pub fn status_inside(&self, path: &str) -> Result<Option<HostStatus>, HostError> {
        for (end, _) in path.match_indices('/') {
            match self.status(path.get(..end).unwrap_or_default())? {
                Some(above) if self.may(&above, SEARCH_RIGHT) => {}
                _ => return Ok(None),
            }
        }
        self.status(path)
    }

    /// Opens a regular file that code in sandboxes may read.
    ///
    /// # Errors
    /// It is not a regular file, or code may not read it.
    pub fn read_inside(&self, path: &str) -> Result<File, HostError> {
        match self.status_inside(path)? {
            Some(status) if status.kind == HostKind::File && self.may(&status, READ_RIGHT) => {}
            _ => return Err(HostError::Denied),
        }
        let place = self.place(path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = within(&place.folder, &place.name, flags).map_err(failed)?;
        let status = of_stat(&fstat(&file).map_err(failed)?, None);
        // An access list can give less than the mode says, but not to the owner.
        let is_owner = status.identity.2 == self.code.0;
        let has_list = fgetxattr(&file, ACCESS_LIST, &mut [0_u8; 0]).is_ok();
        match status.kind == HostKind::File && self.may(&status, READ_RIGHT) && (is_owner || !has_list) {
            true => Ok(File::from(file)),
            false => Err(HostError::Denied),
        }
    }

    /// Returns the names in a folder that code in sandboxes may list and search, at most `max`, and the number of further
    /// names. A name that is not UTF-8 is a further one.
    ///
    /// # Errors
    /// It is no folder, or code may not list it.
    pub fn list_inside(&self, path: &str, max: usize) -> Result<(Vec<String>, u64), HostError> {
        match self.status_inside(path)? {
            Some(status) if status.kind == HostKind::Folder && self.may(&status, READ_RIGHT | SEARCH_RIGHT) => {}
            _ => return Err(HostError::Denied),
        }
        let folder = within(&self.folder, path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        let (mut names, mut more) = (Vec::new(), 0);
        for entry in Dir::new(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(name) if names.len() < max => names.push(name.to_owned()),
                _ => more += 1,
            }
        }
        Ok((names, more))
    }

    /// Returns true if a relative link at `path` would lead out of the folder, with the links that the host has now.
    ///
    /// # Errors
    /// The path of the link cannot be opened.
    pub fn link_leads_out(&self, path: &str, target: &str) -> Result<bool, HostError> {
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        let whole = match above {
            "" => target.to_owned(),
            above => format!("{above}/{target}"),
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match retry(|| {
            openat2(
                &self.folder,
                whole.as_str(),
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
                resolve,
            )
        }) {
            // A missing target leads nowhere.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            // A loop, or a way out.
            Err(Errno::XDEV | Errno::LOOP) => Ok(true),
            Err(error) => Err(failed(error)),
        }
    }

    /// Begins to write a file. It has no name until [`NewFile::finish`].
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn begin_file(&self, path: &str) -> Result<NewFile, HostError> {
        NewFile::begin(self.place(path)?)
    }

    /// Makes a folder. Nothing may be there.
    ///
    /// # Errors
    /// There is an entry of this name, or the folder cannot be made.
    pub fn make_folder(&self, path: &str, mode: u32) -> Result<HostStatus, HostError> {
        let place = self.place(path)?;
        let above = fstat(&place.folder).map_err(failed)?;
        mkdirat(&place.folder, place.name.as_str(), Mode::RWXU).map_err(failed)?;
        let folder = within(&place.folder, &place.name, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        give(&folder, &above)?;
        // The mask of the server does not count.
        fchmod(&folder, Mode::from_raw_mode(mode & 0o777)).map_err(failed)?;
        Ok(of_stat(&fstat(&folder).map_err(failed)?, None))
    }

    /// Makes a link, or replaces the entry `replaces` by one.
    ///
    /// # Errors
    /// The host's entry is another one, or the link cannot be made.
    pub fn make_link(&self, path: &str, target: &str, replaces: Option<&HostStatus>) -> Result<HostStatus, HostError> {
        let place = self.place(path)?;
        // Its folder perhaps did not exist when the link was checked before.
        if self.link_leads_out(path, target)? {
            return Err(HostError::Link);
        }
        let above = fstat(&place.folder).map_err(failed)?;
        let temporary = Place {
            name: temporary_name()?,
            folder: rustix::io::fcntl_dupfd_cloexec(&place.folder, 0).map_err(failed)?,
        };
        symlinkat(target, &place.folder, temporary.name.as_str()).map_err(failed)?;
        let moved = within(&temporary.folder, &temporary.name, OFlags::PATH | OFlags::NOFOLLOW)
            .map_err(failed)
            .and_then(|link| {
                let own = of_stat(&fstat(&link).map_err(failed)?, None);
                if own.kind != HostKind::Link {
                    // Another program has put it there.
                    return Err(HostError::Changed);
                }
                give(&link, &above)?;
                put(&place, &temporary.name, replaces)?;
                Ok(of_stat(
                    &fstat(&link).map_err(failed)?,
                    Some(target.as_bytes().to_vec()),
                ))
            });
        if moved.is_err() {
            let _ = unlinkat(&place.folder, temporary.name.as_str(), AtFlags::empty());
        }
        moved
    }

    /// Removes an entry. A folder must be empty.
    ///
    /// # Errors
    /// The host's entry is another one, or cannot be removed.
    pub fn remove(&self, path: &str, expected: &HostStatus) -> Result<(), HostError> {
        let place = self.place(path)?;
        let flags = match expected.kind {
            HostKind::Folder => AtFlags::REMOVEDIR,
            HostKind::File | HostKind::Link | HostKind::Other => AtFlags::empty(),
        };
        check(&place, Some(expected))?;
        unlinkat(&place.folder, place.name.as_str(), flags).map_err(failed)
    }

    /// Stores the names in the folder of an entry permanently. The changes before it survive a loss of power then.
    ///
    /// # Errors
    /// There is no such folder any more, or the system cannot write.
    pub fn sync_parent(&self, path: &str) -> Result<(), HostError> {
        match fsync(self.place(path)?.folder) {
            // A folder that may only be searched, and file systems without this call.
            Ok(()) | Err(Errno::BADF | Errno::INVAL) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Opens the folder of an entry.
    fn place(&self, path: &str) -> Result<Place, HostError> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        // The path comes from a sandbox.
        if matches!(name, "" | "." | "..") || path.contains('\0') {
            return Err(HostError::Link);
        }
        let above = if above.is_empty() { "." } else { above };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = match within(&self.folder, above, flags) {
            // A folder that may only be searched.
            Err(Errno::ACCESS) => within(&self.folder, above, OFlags::PATH | OFlags::DIRECTORY),
            opened => opened,
        };
        let folder = folder.map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR => HostError::NoParent,
            error => failed(error),
        })?;
        Ok(Place {
            folder,
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
