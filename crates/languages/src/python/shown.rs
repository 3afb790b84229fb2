//! Pictures that a Python program shows. A session's driver sends them as events; a program without a driver gets a
//! `sitecustomize` module that saves each as a file, which the engine collects when the program ends. If the
//! interpreter's folders are shown unchanged, without the file that [`layers`] adds, that module also makes packages
//! available.

use bytes::Bytes;
use sandcell_sandbox::{Failure, SandboxPath};

use super::layers;
use crate::own_path;

/// The folder of the module. It comes first on the module search path.
pub(super) const MODULE_FOLDER: &str = "/tmp/.sandcell";
/// The folder of the pictures.
pub(super) const PICTURE_FOLDER: &str = "/tmp/.sandcell/pictures";

/// The module and its path.
pub(super) fn module() -> Result<(SandboxPath, Bytes), Failure> {
    let path = own_path(&format!("{MODULE_FOLDER}/sitecustomize.py"))?;
    let pictures = include_str!("program/sitecustomize.py");
    Ok((
        path,
        Bytes::from(format!("{pictures}\nimport os, site{}", layers::code())),
    ))
}
