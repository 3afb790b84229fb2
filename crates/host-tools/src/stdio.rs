//! The program of a server that speaks MCP on its standard input and output.

use std::collections::{BTreeMap, VecDeque};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use sandcell_sandbox::Secret;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Variables of sandcell that programs inherit. Everything else in its environment may be a secret.
const INHERITED_VARIABLES: [&str; 14] = [
    "HOME",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "APPDATA",
    "SYSTEMROOT",
    "TEMP",
    "USERPROFILE",
];
/// The maximum size of the kept end of a program's error output.
const STDERR_TAIL_BYTES: usize = 4 << 10;

/// The end of a program's error output.
#[derive(Debug, Clone, Default)]
pub(crate) struct StderrTail(Arc<Mutex<VecDeque<u8>>>);

impl StderrTail {
    /// Returns the last lines.
    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = lock(&self.0).iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    async fn follow(self, mut stderr: impl AsyncRead + Unpin) {
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
            let mut tail = lock(&self.0);
            tail.extend(buffer.iter().take(read));
            let excess = tail.len().saturating_sub(STDERR_TAIL_BYTES);
            tail.drain(..excess);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running program. Dropping it kills its process group.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    pub(crate) stderr: StderrTail,
}

impl Program {
    /// Starts the program of a server.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn start(
        program: &str,
        args: &[String],
        env: &BTreeMap<String, Secret>,
        cwd: Option<&str>,
    ) -> std::io::Result<(Self, ChildStdout, ChildStdin)> {
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .envs(
                INHERITED_VARIABLES
                    .iter()
                    .filter_map(|name| Some((*name, std::env::var_os(name)?))),
            )
            .envs(env.iter().map(|(name, value)| (name, value.expose())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(folder) = cwd {
            command.current_dir(folder);
        }
        // A separate group: an interrupt from the terminal does not reach it, and its end includes its children.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn()?;
        let (Some(stdout), Some(stdin), Some(errors)) = (child.stdout.take(), child.stdin.take(), child.stderr.take())
        else {
            return Err(std::io::Error::other("the program has no pipes"));
        };
        let stderr = StderrTail::default();
        tokio::spawn(stderr.clone().follow(errors));
        Ok((Self { child, stderr }, stdout, stdin))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A group whose leader was reaped may have another owner by now: no number, no signal.
        #[cfg(unix)]
        if let Some(group) = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(rustix::process::Pid::from_raw)
        {
            // It may have ended already.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        #[cfg(not(unix))]
        let _best_effort = self.child.start_kill();
    }
}
