//! The private layers of copy-on-write mounts, as sandboxes see them read-only.

use super::{Folder, InnerView, Step, Tree, View};
use crate::paths;

/// The private layer of a copy-on-write mount: the number of the operator's folder, and of a mount within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// The number of the operator's folder.
    pub folder: usize,
    /// The number of the mount within the folder. None: the folder itself.
    pub within: Option<usize>,
}

impl Layer {
    /// Returns its name.
    pub(crate) fn name(self) -> String {
        match self.within {
            None => format!("cow{}", self.folder),
            Some(within) => format!("cow{}.{within}", self.folder),
        }
    }

    /// Returns the folder inside that shows it.
    pub(crate) fn path(self) -> String {
        format!("{}/{}", paths::MOUNT_LAYERS, self.name())
    }
}

/// Returns the private layers of an operator's folder, each with the path of its mount inside. A path that is not UTF-8
/// has none.
pub(super) fn all(tree: &Tree, folder: usize) -> impl Iterator<Item = (Layer, String)> {
    let is_overlay = |view: &View| matches!(view, View::Overlay(_));
    let own = is_overlay(&tree.view).then(|| (Layer { folder, within: None }, tree.path.clone()));
    let inner = tree.inner.iter().enumerate().filter_map(move |(number, inner)| {
        let layer = Layer {
            folder,
            within: Some(number),
        };
        let path = format!("{}/{}", tree.path, inner.path.to_str()?);
        matches!(&inner.view, InnerView::Tree(view) if is_overlay(view)).then_some((layer, path))
    });
    own.into_iter().chain(inner)
}

/// Returns the steps that make the mount points of a copy-on-write folder's layers.
pub(super) fn places(folder: &Folder, number: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    if !folder.copy_on_write {
        return steps;
    }
    for (layer, mount) in all(&folder.tree, number) {
        let path = layer.path();
        steps.push(Step::Folder {
            path: format!("{path}/{}", paths::UPPER_LAYER),
        });
        steps.push(Step::Link {
            path: format!("{path}/{}", paths::LAYER_OF),
            target: mount,
        });
    }
    steps
}
