//! The back ends of this build: each is a name and how it is made.

use super::select::Maker;

/// All of them. The order has no meaning; the setting `backend` says which are wanted, and which first.
pub(super) const BACKENDS: &[Maker] = &[
    #[cfg(all(target_os = "linux", feature = "native"))]
    Maker {
        name: sandcell_backends::native::NAME,
        make: |ground| Box::pin(super::native::make(ground)),
    },
];
