//! The native back end: its launcher, and the parts of the host that its sandboxes see.

use std::sync::Arc;

use sandcell_backends::native::{self, NativeBackend, NativeConfig, SPARE_COUNT};
use sandcell_sandbox::{Backend, Code, Failure};

use super::select::BackendContext;

/// A launcher, or the error that prevented its start.
pub(super) type LauncherResult = Result<sandcell_jail::launcher::Launcher, std::io::Error>;

pub(super) fn become_launcher_if_asked() {
    native::become_launcher_if_asked();
}

pub(super) fn start() -> LauncherResult {
    native::start_launcher()
}

/// Starts the back end.
pub(super) async fn make(context: BackendContext<'_>) -> Result<Arc<dyn Backend>, Failure> {
    let BackendContext {
        settings,
        found,
        launcher,
    } = context;
    let launcher = launcher.take().ok_or_else(|| {
        Failure::new(
            Code::Internal,
            "back end native is not available: its launcher serves another one",
            "name it once only",
        )
    })?;
    let spares = if launcher.for_few { 0 } else { SPARE_COUNT };
    let launcher = launcher.started.map_err(|error| {
        Failure::new(
            Code::BackendUnavailable,
            format!("back end native is not available: the launcher of sandboxes could not be started: {error}"),
            "check that /proc is mounted, and that more processes are allowed (`ulimit -u`, systemd TasksMax=, Docker --pids-limit)",
        )
    })?;
    let images = super::images::of(settings)?;
    let images = images.map(|images| -> Arc<dyn sandcell_sandbox::Images> { images });
    let config = NativeConfig {
        images,
        trees: found.trees.clone(),
        config: found.config.clone(),
        added: found.added.clone(),
        programs: found.programs.clone(),
        mounts: settings.mounts.clone(),
        isolation_min: settings.isolation_min,
        limits_min: settings.limits_min,
        zygotes: settings.engine.pool.warm,
        spares,
        disabled_layer: for_tests("SANDCELL_TEST_DISABLE"),
        skipped_layer: for_tests("SANDCELL_TEST_SKIP"),
        fault_file: for_tests("SANDCELL_TEST_FAULT").map(Into::into),
    };
    Ok(NativeBackend::start(launcher, config).await?)
}

/// Reads a variable of a test: a layer that fails or is left out, or the file of injected errors. Only builds for
/// tests read it.
fn for_tests(variable: &str) -> Option<String> {
    if cfg!(feature = "fault-injection") {
        std::env::var(variable).ok()
    } else {
        None
    }
}
