//! The folder on other operating systems: it cannot be opened.

use std::convert::Infallible;
use std::fs::File;
use std::path::Path;

use crate::{HostError, HostStatus};

/// A folder of the host. There is none on this operating system.
#[derive(Debug)]
pub struct HostFolder(Infallible);

/// A file that is being written. There is none on this operating system.
#[derive(Debug)]
pub struct NewFile(Infallible);

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "the module for Linux describes them"
)]
impl HostFolder {
    pub const fn open(_: &Path) -> Result<Self, HostError> {
        Err(HostError::Unsupported)
    }

    #[must_use]
    pub const fn is_at(&self, _: &Path) -> bool {
        match self.0 {}
    }

    pub const fn status(&self, _: &str) -> Result<Option<HostStatus>, HostError> {
        match self.0 {}
    }

    pub const fn parent_modified_ns(&self, _: &str) -> Result<Option<i128>, HostError> {
        match self.0 {}
    }

    pub const fn status_inside(&self, _: &str) -> Result<Option<HostStatus>, HostError> {
        match self.0 {}
    }

    pub const fn read_inside(&self, _: &str) -> Result<File, HostError> {
        match self.0 {}
    }

    pub const fn list_inside(&self, _: &str, _: usize) -> Result<(Vec<String>, u64), HostError> {
        match self.0 {}
    }

    pub const fn link_leads_out(&self, _: &str, _: &str) -> Result<bool, HostError> {
        match self.0 {}
    }

    pub const fn begin_file(&self, _: &str) -> Result<NewFile, HostError> {
        match self.0 {}
    }

    pub const fn make_folder(&self, _: &str, _: u32) -> Result<HostStatus, HostError> {
        match self.0 {}
    }

    pub const fn make_link(&self, _: &str, _: &str, _: Option<&HostStatus>) -> Result<HostStatus, HostError> {
        match self.0 {}
    }

    pub const fn sync_parent(&self, _: &str) -> Result<(), HostError> {
        match self.0 {}
    }

    pub const fn remove(&self, _: &str, _: &HostStatus) -> Result<(), HostError> {
        match self.0 {}
    }
}

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "the module for Linux describes them"
)]
impl NewFile {
    pub const fn write(&mut self, _: &[u8]) -> Result<(), HostError> {
        match self.0 {}
    }

    pub const fn finish(self, _: Option<&HostStatus>, _: u32) -> Result<HostStatus, HostError> {
        match self.0 {}
    }
}
