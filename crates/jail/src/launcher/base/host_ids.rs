//! The range of host ids for sandboxes and zygotes, if the server is root.

/// The first host id for sandboxes, above the ids of distributions and container managers.
pub(in crate::launcher) const FIRST_HOST_ID: u32 = 0x7000_0000;
pub(in crate::launcher) const BLOCK_COUNT: u32 = 1 << 14;
/// The number of host ids that one launcher hands out.
pub(in crate::launcher) const IDS_PER_LAUNCHER: u32 = 1 << 14;
/// The first and last id that any launcher hands out.
pub(in crate::launcher) const HOST_IDS: (u32, u32) = (FIRST_HOST_ID, FIRST_HOST_ID + BLOCK_COUNT * IDS_PER_LAUNCHER);
