//! Direct pipes on systems other than Linux, where no sandbox has them. Only sandboxes of this machine's kernel can
//! have direct pipes.

use bytes::Bytes;
use sandcell_sandbox::{ProcessEvent, SandboxError};
use tokio::sync::mpsc;

use super::link::Link;

/// Never made.
#[derive(Debug)]
pub(super) enum Near {}

/// Never made.
pub(super) enum Past {}

impl Near {
    pub(super) fn carry(self, _: &mut mpsc::Receiver<ProcessEvent>) -> Past {
        match self {}
    }
}

impl Past {
    pub(super) async fn write(&self, _: &Link, _: &Bytes) -> Result<(), SandboxError> {
        match *self {}
    }

    pub(super) async fn close(&self) {
        match *self {}
    }
}
