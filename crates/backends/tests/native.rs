//! The native back end under the contract that every back end keeps.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program"
)]

#[cfg(target_os = "linux")]
mod contract;

#[cfg(target_os = "linux")]
fn main() {
    use sandcell_backends::native::{NativeBackend, NativeConfig, SPARES, become_launcher_if_asked, start_launcher};
    use sandcell_sandbox::{Backend, Degree, Level};
    use std::sync::Arc;

    become_launcher_if_asked();
    contract::run("native", &[], || async {
        let config = NativeConfig {
            warm: true,
            spares: SPARES,
            trees: vec![],
            config: vec![],
            mounts: vec![],
            isolation_min: Level::Namespace,
            limits_min: Degree::Watched,
            images: None,
            disabled_layer: None,
            skipped_layer: None,
            fault_file: None,
        };
        let backend = NativeBackend::start(start_launcher().unwrap(), config).await.unwrap();
        let backend: Arc<dyn Backend> = backend;
        backend
    });
}

#[cfg(not(target_os = "linux"))]
fn main() {}
