//! The resource limits of a sandbox. Every limit always has a value.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Makes a size from bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Makes a size from mebibytes; saturates.
    #[must_use]
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Makes a size from kibibytes; saturates.
    #[must_use]
    pub const fn kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn as_bytes(self) -> u64 {
        self.0
    }

    /// Returns the size in whole mebibytes, rounded down.
    #[must_use]
    pub const fn as_mib(self) -> u64 {
        self.0 >> 20
    }
}

/// The processor time that a sandbox may use, in thousandths of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cpus(u32);

impl Cpus {
    /// Makes a value from thousandths of a core.
    #[must_use]
    pub const fn milli(milli: u32) -> Self {
        Self(milli)
    }

    /// Makes a value from a number of cores, such as 0.5. None: it is no number of cores.
    #[must_use]
    pub fn from_cores(cores: f64) -> Option<Self> {
        let cores = Some(cores).filter(|cores| (0.001..=4096.0).contains(cores))?;
        format!("{:.0}", cores * 1000.0).parse().ok().map(Self)
    }

    /// Returns the value in thousandths of a core.
    #[must_use]
    pub const fn as_milli(self) -> u32 {
        self.0
    }
}

/// The resource limits of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all its processes together. Files are counted separately.
    pub memory: ByteSize,
    /// Processor time.
    pub cpus: Cpus,
    /// Processes and threads together.
    pub processes: u32,
    /// Private writable files: home, /tmp and /dev/shm together. They do not count towards `memory`.
    pub disk: ByteSize,
    /// Files and folders in the private writable part.
    pub inodes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: ByteSize::mib(512),
            cpus: Cpus::milli(1000),
            processes: 128,
            disk: ByteSize::mib(512),
            inodes: 50_000,
        }
    }
}

/// The longest time limit that a caller may request for one execution.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
