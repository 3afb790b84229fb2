//! Images of containers, for back ends that make sandboxes of them without a container daemon.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Backend, Preparing, SandboxError};

/// Finds images by their names.
#[async_trait]
pub trait Images: Send + Sync + std::fmt::Debug {
    /// The image of this name, brought here if that is allowed and needed. `maker` makes the sandboxes in which it is unpacked.
    ///
    /// # Errors
    /// The name is none, or not allowed; the image cannot be had, or is still on its way.
    async fn find(self: Arc<Self>, name: &str, maker: Arc<dyn Backend>) -> Result<Image, SandboxError>;

    /// How far an image is that is being brought here.
    fn preparing(&self, name: &str) -> Option<Preparing>;

    /// Ends the bringing of an image, unless somebody waits for it.
    fn abandon(&self, name: &str);
}

/// An image that sandboxes can be made of.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its full name with the digest of what it is.
    pub name: String,
    /// Its files, all layers together: a folder that never changes, with no symbolic link in its path.
    pub root: PathBuf,
    /// The variables that its programs start with.
    pub env: BTreeMap<String, String>,
    /// The files stay as long as this is held.
    pub held: Arc<dyn Any + Send + Sync>,
}
