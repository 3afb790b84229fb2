//! The part of a base from one installer: its Python packages, or its npm packages.

use sandcell_sandbox::{Code, Failure, Installed};

use crate::coordinator::broken;
use crate::lock;
use crate::store::{Answer, Part, Store};

/// The owner of bases.
pub(crate) const OPERATOR_OWNER: &str = "operator's bases";

/// Returns the part of a base from the operator's installed packages.
pub(crate) fn part(store: &Store, answer: Answer) -> Result<Part, Failure> {
    let key = answer.key.unwrap_or_default();
    let (layer, _) = store.layer(OPERATOR_OWNER, &key).ok_or_else(broken)?;
    Ok(Part {
        key,
        platform: layer.python,
        packages: answer.locked.iter().map(lock::Locked::held).collect(),
        bytes: layer.bytes,
    })
}

/// Returns the packages of this part for the start of a sandbox, if the platform can use them.
pub(crate) fn start_with(store: &Store, name: &str, part: Part, platform: &str) -> Result<Installed, Failure> {
    let unusable = |reason: String| {
        Failure::new(
            Code::PackageFailed,
            format!("the base {name} cannot be used: {reason}"),
            format!("sandcell base build {name} … on the host"),
        )
    };
    if part.platform != platform {
        let theirs = &part.platform;
        return Err(unusable(format!("it is for {theirs}, and this is {platform}")));
    }
    let (_, site) = store
        .layer(OPERATOR_OWNER, &part.key)
        .ok_or_else(|| unusable("its files are gone".to_owned()))?;
    Ok(Installed {
        folder: Some(site),
        added: part.packages,
        reused: true,
        ..Installed::default()
    })
}
