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
        sandcell_contract::skip("docker", "no SANDCELL_TEST_IMAGE");
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
