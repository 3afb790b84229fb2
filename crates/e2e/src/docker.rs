//! The Docker daemon for tests that `.ci/docker` starts, for users with access to it.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use super::{is_root, skip};

/// Returns the value of an environment variable, if it is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the address of the daemon for tests; skips the test if there is none.
pub fn host(test: &str) -> Option<String> {
    let host = variable("SANDCELL_TEST_DOCKER_HOST");
    if host.is_none() {
        skip(test, "no Docker daemon for tests (eval \"$(.ci/docker)\")");
    }
    host
}

/// Returns true when this user may talk to the daemon at this address.
pub fn is_open(host: &str) -> bool {
    UnixStream::connect(host.strip_prefix("unix://").expect("a socket")).is_ok()
}

/// A daemon, and one of its images with Python.
pub struct Daemon {
    pub host: String,
    pub image: String,
}

impl Daemon {
    /// Returns the daemon for tests; skips the test if there is none. A separate test covers users without access to
    /// it.
    pub fn find(test: &str) -> Option<Self> {
        let host = host(test)?;
        if !is_open(&host) {
            assert!(!is_root(), "root may talk to every daemon");
            println!("{test}: not for a user who may not talk to the daemon");
            return None;
        }
        let image = variable("SANDCELL_TEST_IMAGE").expect(".ci/docker names the image");
        Some(Self { host, image })
    }

    /// Returns a command of the daemon's command line.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command
            .env("DOCKER_HOST", &self.host)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Returns the output of the daemon's command line.
    pub fn say(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Returns the containers of a server's sandboxes.
    pub fn containers(&self, server: u32) -> Vec<String> {
        let format = "{{.Names}} {{.Label \"dev.sandcell.server\"}}";
        let kind = "label=dev.sandcell=sandbox";
        let all = self.say(&["ps", "--all", "--filter", kind, "--format", format]);
        let of = format!("/{server}/");
        let own = all.lines().filter(|line| line.contains(&of));
        own.filter_map(|line| line.split(' ').next())
            .map(str::to_owned)
            .collect()
    }
}
