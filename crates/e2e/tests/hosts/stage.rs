//! The stage for rows: a copy of the program that every user may run, and a work folder for each trial.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::outcome::CommandResult;
use crate::row::{self, Row, User};

/// The first id of the ordinary users, one a row: a limit of processes counts all of a user's processes.
const FIRST_ID: usize = 61_300;
/// The time limit of a row, in seconds.
const ROW_TIMEOUT_S: &str = "300";
/// The exit status of a script that cannot run here; its last line states the reason.
const SKIPPED_STATUS: i32 = 77;
/// The exit status of a script that needs a feature that no machine is required to have.
const NOT_REQUIRED_STATUS: i32 = 78;

#[derive(Debug)]
pub(crate) struct Stage {
    folder: PathBuf,
}

impl Stage {
    pub(crate) fn new() -> Self {
        // Not below $TMPDIR, which may be private to root.
        let folder = PathBuf::from(format!("/var/tmp/cell-hosts-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        open_up(&folder, 0o755);
        let binary = sandcell_e2e::binary();
        let stage = Self { folder };
        // A hard link if possible: the binary of a debug build is large.
        std::fs::hard_link(&binary, stage.binary())
            .or_else(|_| std::fs::copy(&binary, stage.binary()).map(drop))
            .unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
        for name in ["probe.sh", "common.sh", "filter.py"] {
            std::fs::copy(sources.join(name), stage.folder.join(name)).unwrap();
            open_up(&stage.folder.join(name), 0o644);
        }
        stage
    }

    fn binary(&self) -> PathBuf {
        self.folder.join("sandcell")
    }

    /// Tries a row as this user. Fails with the differences from its head.
    pub(crate) fn judge(&self, row: &Row, number: usize, user: User) -> Result<(), String> {
        let name = format!("{}::{}", row.name, user.name());
        if !rustix::process::geteuid().is_root() {
            return skip(&name, "root is needed to change the host");
        }
        let work = self.folder.join(format!("{}.{}", row.name, user.name()));
        let ended = self.try_out(row, &work, FIRST_ID + number, user);
        let (status, said) = ended?;
        let last = said.lines().last().unwrap_or_default().to_owned();
        match status {
            Some(SKIPPED_STATUS) => return skip(&name, &last),
            Some(NOT_REQUIRED_STATUS) => return count(&name, &format!("not required: {last}")),
            _ => {}
        }
        let mut wrong = Vec::new();
        for command in row::Command::ALL {
            let expected = row.expected(user, command)?;
            wrong.extend(CommandResult::read(&work, command).differs(command, &expected));
        }
        // The row's own checks after the probe.
        if status != Some(0) {
            wrong.push(format!("the script ended with {status:?}: {}", said.trim()));
        }
        let _ = std::fs::remove_dir_all(&work);
        match (row.open(user), wrong.is_empty()) {
            (None, true) => Ok(()),
            (None, false) => Err(wrong.join("\n    ")),
            (Some(reason), false) => {
                println!("open: {name}: {reason}\n    {}", wrong.join("\n    "));
                count(&name, &format!("not required: open: {reason}"))
            }
            (Some(reason), true) => Err(format!(
                "it is right now: take `open: {reason}` out of {}",
                row.script.display()
            )),
        }
    }

    /// Runs the script in a new mount namespace. Returns its status and its output.
    fn try_out(&self, row: &Row, work: &Path, id: usize, user: User) -> Result<(Option<i32>, String), String> {
        std::fs::create_dir(work).map_err(|error| error.to_string())?;
        std::fs::write(work.join("print.py"), "print(1)\n").map_err(|error| error.to_string())?;
        std::fs::create_dir(work.join("home")).map_err(|error| error.to_string())?;
        let become_user = match user {
            User::Root => String::new(),
            User::Ordinary => {
                for path in [work.to_owned(), work.join("home")] {
                    let id = u32::try_from(id).ok();
                    std::os::unix::fs::chown(path, id, id).map_err(|error| error.to_string())?;
                }
                format!("setpriv --reuid={id} --regid={id} --clear-groups")
            }
        };
        let mut command = Command::new("timeout");
        command
            .args([
                "--kill-after=5",
                ROW_TIMEOUT_S,
                "unshare",
                "--mount",
                "--propagation=private",
                "bash",
                "-euo",
                "pipefail",
            ])
            .arg(&row.script)
            .current_dir(work)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .env("HOME", work.join("home"))
            .env("SANDCELL_DATA_DIR", work.join("home/data"))
            .env("W", work)
            .env("BIN", self.binary())
            .env("PROBE", self.folder.join("probe.sh"))
            .env("STAGE", &self.folder)
            .env("COMMON", self.folder.join("common.sh"))
            .env("FILTER", self.folder.join("filter.py"))
            .env("AS", become_user)
            .env(
                "ID",
                if user == User::Root {
                    "0".to_owned()
                } else {
                    id.to_string()
                },
            )
            .env("CACHE", cache());
        for name in [
            "SANDCELL_TEST_DOCKER_HOST",
            "SANDCELL_TEST_VM",
            "SANDCELL_TEST_STATIC_BIN",
        ] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("timeout: {error}"))?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns the cache of other systems' user lands between runs (`.ci/hosts` makes them).
fn cache() -> PathBuf {
    std::env::var_os("SANDCELL_TEST_HOSTS").map_or_else(|| "/var/tmp/sandcell-ci-0/hosts".into(), PathBuf::from)
}

fn open_up(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Reports that a row was skipped; fails it if none may be skipped.
fn skip(name: &str, reason: &str) -> Result<(), String> {
    if std::env::var("SANDCELL_TEST_REQUIRE").as_deref() == Ok("1") {
        return Err(format!(
            "{reason}; SANDCELL_TEST_REQUIRE=1 says that nothing may be skipped"
        ));
    }
    count(name, reason)
}

fn count(name: &str, reason: &str) -> Result<(), String> {
    println!("skipped: hosts::{name}: {reason}");
    if let Some(path) = std::env::var_os("SANDCELL_TEST_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| writeln!(file, "hosts::{name}: {reason}"))
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}
