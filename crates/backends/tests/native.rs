//! Runs the contract of every back end on the native back end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program"
)]

#[cfg(target_os = "linux")]
fn main() {
    use sandcell_backends::native::{
        NativeBackend, NativeConfig, SPARE_COUNT, become_launcher_if_asked, start_launcher,
    };
    use sandcell_sandbox::{Backend, Degree, Level};
    use std::sync::Arc;

    become_launcher_if_asked();
    let config = || NativeConfig {
        zygotes: true,
        spares: SPARE_COUNT,
        trees: vec![],
        added: vec![],
        programs: vec![],
        config: vec![],
        mounts: vec![],
        isolation_min: Level::Namespace,
        limits_min: Degree::Watched,
        images: None,
        disabled_layer: None,
        skipped_layer: None,
        fault_file: None,
    };
    let hung = libtest_mimic::Trial::test("a_launcher_that_hangs_while_it_is_configured_is_given_up", move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let launcher = start_launcher()?;
            let pid = i32::try_from(launcher.process.id())?;
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
            let refused = NativeBackend::start(launcher, config()).await.unwrap_err();
            assert!(refused.to_string().contains("hangs"), "{refused}");
            // The launcher was killed and reaped.
            assert!(rustix::process::test_kill_process(pid).is_err());
            Ok::<(), libtest_mimic::Failed>(())
        })
    });
    sandcell_contract::run("native", &[], vec![hung], move || async move {
        let backend = NativeBackend::start(start_launcher().unwrap(), config()).await.unwrap();
        let backend: Arc<dyn Backend> = backend;
        backend
    });
}

#[cfg(not(target_os = "linux"))]
fn main() {}
