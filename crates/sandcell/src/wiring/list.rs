//! The back ends of this build: each is a name and a constructor.

#[allow(unused_imports, reason = "a build without back ends has none inside")]
use super::select::{Inside, Maker};

/// All back ends. The order has no meaning; the setting `backend` selects and orders them.
pub(super) const BACKEND_MAKERS: &[Maker] = &[
    #[cfg(all(target_os = "linux", feature = "native"))]
    Maker {
        name: sandcell_backends::native::NAME,
        make: |context| Box::pin(super::native::make(context)),
        inside: Inside::ThisMachine,
    },
    #[cfg(feature = "docker")]
    Maker {
        name: super::docker::NAME,
        make: |context| Box::pin(super::docker::backend(context.settings)),
        inside: Inside::ThisMachine,
    },
    #[cfg(feature = "e2b")]
    Maker {
        name: sandcell_backends::e2b::NAME,
        make: |context| Box::pin(super::e2b::make(context)),
        inside: Inside::Own {
            languages: super::e2b::languages,
        },
    },
];
