//! A separate device folder for each sandbox, if the server is root.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode};
use rustix::mount::MountAttrFlags;

use super::prepared::Prepared;
use crate::plan::Zeros;
use crate::steps::{DEVICE_NODES, device_folder, memory};
use crate::sys;

/// Makes the device folder of one sandbox, with separate nodes, as a detached mount. Only root can make nodes. An overlay
/// of nodes that were made once takes fewer calls, but its end waits for all processors.
pub(in crate::launcher) fn private_devices(zeros: Zeros) -> io::Result<OwnedFd> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let folder = memory(64 << 10, 64, "0755", flags)?;
    device_folder(&folder)?;
    for (name, major, minor) in DEVICE_NODES {
        let minor = if name == "zero" { zeros.minor() } else { minor };
        let (kind, mode) = (rustix::fs::FileType::CharacterDevice, Mode::from_raw_mode(0o666));
        rustix::fs::mknodat(&folder, name, kind, mode, rustix::fs::makedev(major, minor))?;
        rustix::fs::chmodat(&folder, name, mode, AtFlags::empty())?;
    }
    sys::mount::restrict(folder.as_fd(), sys::mount::Attributes::READ_ONLY)?;
    Ok(folder)
}

/// Makes the device folder of one sandbox, if sandboxes have separate ones.
pub(in crate::launcher) fn own_devices(prepared: &Prepared) -> io::Result<Option<OwnedFd>> {
    let own = prepared.host.root && prepared.private_folders.is_none();
    own.then(|| private_devices(Zeros::on(prepared.host.memory_is_charged)))
        .transpose()
}
