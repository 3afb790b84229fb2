//! Runs the contract of every back end on the Docker back end.
//!
//! Needs a daemon (`SANDCELL_TEST_DOCKER_HOST`) and `SANDCELL_TEST_IMAGE`, one of its images with `sh` and `python3`;
//! `.ci/docker` makes both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program"
)]

fn main() {
    use sandcell_backends::docker::{CredentialSource, DockerBackend, DockerConfig, DockerSettings, Pull};
    use sandcell_sandbox::{Backend, Degree, Level};
    use std::sync::Arc;

    if std::env::var_os("SANDCELL_TEST_IMAGE").is_none() {
        assert!(
            std::env::var_os("SANDCELL_TEST_REQUIRE").is_none(),
            "SANDCELL_TEST_IMAGE is needed and not set"
        );
        skip();
    }
    sandcell_contract::run("docker", &[], Vec::new(), || async {
        let config = DockerConfig {
            settings: DockerSettings {
                host: Some(std::env::var("SANDCELL_TEST_DOCKER_HOST").unwrap()),
                certificates: None,
                image: std::env::var("SANDCELL_TEST_IMAGE").unwrap(),
                runtime: None,
                pull: Pull::Never,
                languages: vec![],
                mirrors: vec![],
            },
            credentials: CredentialSource { folder: None },
            runtimes: vec![],
            mirrors: None,
            mounts: vec![],
            isolation_min: Level::Container,
            limits_min: Degree::Enforced,
        };
        let backend: Arc<dyn Backend> = DockerBackend::start(config).await.unwrap();
        backend
    });
}

/// Runs, in place of the suite, one test that prints the reason and counts as skipped. Tools that list tests read no
/// other output.
fn skip() -> ! {
    use libtest_mimic::{Arguments, Trial};
    use std::io::Write;

    const TEST_NAME: &str = "docker::every_case";
    let said = Trial::test(TEST_NAME, || {
        let line = format!("{TEST_NAME}: no SANDCELL_TEST_IMAGE");
        println!("skipped: {line}");
        if let Some(path) = std::env::var_os("SANDCELL_TEST_SKIPS") {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{line}")?;
        }
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![said]).exit()
}
