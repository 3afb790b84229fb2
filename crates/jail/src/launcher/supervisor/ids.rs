//! Hands out host ids: as root, each sandbox and each zygote has a unique one.
//!
//! A launcher owns a block of ids. A name in the abstract socket namespace tells other launchers of the machine: the
//! kernel gives a name to one process and frees it when the process ends. Launchers in other network namespaces are not
//! visible. They choose the same block with a probability of 1 in 16,384.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::launcher::base::host_ids::{BLOCK_COUNT, FIRST_HOST_ID, IDS_PER_LAUNCHER};

/// The maximum number of blocks to try that another launcher owns.
const MAX_ATTEMPTS: u32 = 64;

/// A block of host ids.
#[derive(Debug)]
pub(super) struct HostIds {
    first: u32,
    /// The index of the next id in the block.
    next: u32,
    /// True once every id of the block was handed out.
    all_used: bool,
    /// Holds the block's name. None if the kernel has no such names.
    _claim: Option<OwnedFd>,
}

impl HostIds {
    /// Claims a block that no other launcher has.
    pub(super) fn claim() -> io::Result<Self> {
        let mut attempts = 0;
        loop {
            let mut random = [0_u8; 4];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let block = u32::from_le_bytes(random) % BLOCK_COUNT;
            attempts += 1;
            match name_of_block(block) {
                Err(Errno::ADDRINUSE) if attempts < MAX_ATTEMPTS => {}
                claim => {
                    return Ok(Self {
                        first: FIRST_HOST_ID + block * IDS_PER_LAUNCHER,
                        next: 0,
                        all_used: false,
                        _claim: claim.ok(),
                    });
                }
            }
        }
    }

    /// Returns the first id of the block.
    pub(super) const fn first(&self) -> u32 {
        self.first
    }

    /// Returns an id that is not in use. It cycles through the block, so that an id is reused late.
    ///
    /// # Errors
    /// All ids of the block are in use.
    pub(super) fn next(&mut self, in_use: impl Fn(u32) -> bool) -> io::Result<u32> {
        for _ in 0..IDS_PER_LAUNCHER {
            let id = self.first + self.next;
            let fresh = !self.all_used;
            self.next = (self.next + 1) % IDS_PER_LAUNCHER;
            self.all_used |= self.next == 0;
            if fresh || !in_use(id) {
                return Ok(id);
            }
        }
        Err(Errno::USERS.into())
    }
}

fn name_of_block(block: u32) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(format!("sandcell-host-ids-{block}").as_bytes())?,
    )?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_in_use_is_not_handed_out_again() {
        let mut ids = HostIds::claim().unwrap();
        let first = ids.next(|_| false).unwrap();
        let second = ids.next(|_| false).unwrap();
        for _ in 2..IDS_PER_LAUNCHER {
            ids.next(|_| false).unwrap();
        }
        // All were handed out once; the first one is still in use.
        assert_eq!(ids.next(|id| id == first).unwrap(), second);
        assert!(ids.next(|_| true).is_err());
    }

    #[test]
    fn no_two_launchers_have_the_same_block() {
        let taken = HostIds::claim().unwrap();
        let block = (taken.first() - FIRST_HOST_ID) / IDS_PER_LAUNCHER;
        assert_eq!(name_of_block(block).err(), Some(Errno::ADDRINUSE));
        drop(taken);
        assert!(name_of_block(block).is_ok());
    }
}
