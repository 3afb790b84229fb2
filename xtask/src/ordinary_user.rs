//! Runs the end-to-end tests as a user who is not root.
//!
//! No account is created. The tests use an unassigned user id, no groups, and a copy of their files in a folder that
//! this id can read (the workspace may be readable by root only).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{must, root, works};

/// Above every account that systems hand out by themselves, below the ranges for containers.
const UNUSED_ID: u32 = 61_234;

/// A stage for tests as an ordinary user; removed when dropped.
pub struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    /// Copies the binary, the tests and their data.
    pub fn new(binary: &Path, tests: &Path) -> Result<Self> {
        // Not below $TMPDIR, which may be private to root as well.
        let folder = tempfile::Builder::new().prefix("cell-stage-").tempdir_in("/var/tmp")?;
        let stage = Self { folder };
        std::fs::copy(binary, stage.binary()).context("could not copy the binary")?;
        std::fs::copy(tests, stage.tests()).context("could not copy the tests")?;
        for part in ["crates/e2e/tests", "docs/reference", "examples", "packaging"] {
            let target = stage.root().join(part);
            std::fs::create_dir_all(target.parent().unwrap_or(&target))?;
            must(Command::new("cp").arg("-r").arg(root().join(part)).arg(&target))?;
        }
        std::fs::create_dir(stage.home())?;
        must(Command::new("chmod").args(["-R", "a+rX"]).arg(stage.root()))?;
        must(
            Command::new("chown")
                .arg(format!("{UNUSED_ID}:{UNUSED_ID}"))
                .arg(stage.home()),
        )?;
        Ok(stage)
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn binary(&self) -> PathBuf {
        self.root().join("sandcell")
    }

    fn tests(&self) -> PathBuf {
        self.root().join("e2e")
    }

    pub fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    /// The test program, to be run as the ordinary user.
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={UNUSED_ID}"))
            .arg(format!("--regid={UNUSED_ID}"))
            .arg("--clear-groups")
            .arg(self.tests())
            .current_dir(self.root())
            .env("HOME", self.home())
            .env("USER", "ordinary")
            .env("TMPDIR", self.home())
            .env_remove("XDG_RUNTIME_DIR");
        command
    }
}

/// Returns the reason that the tests cannot run here as an ordinary user; none when they can.
pub fn impossible() -> Option<String> {
    if !works(Command::new("setpriv").arg("--version")) {
        return Some("setpriv is missing (apt-get install util-linux)".to_owned());
    }
    None
}

/// Returns true when this process runs as root.
pub fn is_root() -> Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status").context("no /proc")?;
    let Some(line) = status.lines().find_map(|line| line.strip_prefix("Uid:")) else {
        bail!("/proc/self/status names no user id");
    };
    Ok(line.split_whitespace().nth(1) == Some("0"))
}
