//! Container images for back ends that make sandboxes of them without a container daemon.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Backend, Preparing, SandboxError};

/// Finds images by their names.
#[async_trait]
pub trait Images: Send + Sync + std::fmt::Debug {
    /// Returns the image with this name. Pulls it if that is allowed and needed. `maker` makes the sandboxes in which
    /// it is unpacked.
    ///
    /// # Errors
    /// The name is invalid or not allowed, or the image is not available, or its pull is still in progress.
    async fn find(self: Arc<Self>, name: &str, maker: Arc<dyn Backend>) -> Result<Image, SandboxError>;

    /// Returns the progress of the image's pull.
    fn preparing(&self, name: &str) -> Option<Preparing>;

    /// Aborts the pull of an image, unless a call waits for it.
    fn abandon(&self, name: &str);
}

/// An image that sandboxes can be made of.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its full name with its digest.
    pub name: String,
    /// Its files, all layers merged: a folder that never changes, with no symbolic link in its path.
    pub root: PathBuf,
    /// The variables that its programs start with.
    pub env: BTreeMap<String, String>,
    /// A guard: the files stay as long as it is held.
    pub held: Arc<dyn Any + Send + Sync>,
}
