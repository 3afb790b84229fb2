//! Sessions of Bash: one shell evaluates cell after cell.
//!
//! The driver is written in Bash, so it needs no other program. It is passed as an argument. The loop around it is one
//! line, because Bash counts the lines of evaluated code from the line that evaluates it.

use sandcell_sandbox::{Command, HOME, Sandbox, SessionError, SessionFeatures, StdinMode};

use crate::control::{CodeIn, DriverSession, Snapshots, Start};

const LOOP_SCRIPT: &str = include_str!("driver/loop.sh");
const DRIVER_SCRIPT: &str = include_str!("driver/driver.sh");
/// The prefix of the shell's messages.
const MESSAGE_PREFIX: &str = "bash";

/// Starts a session with this interpreter.
pub(crate) async fn open(program: String, sandbox: &dyn Sandbox) -> Result<DriverSession, SessionError> {
    let argv = [
        program.as_str(),
        "--norc",
        "--noprofile",
        "-c",
        LOOP_SCRIPT.trim_end(),
        MESSAGE_PREFIX,
        DRIVER_SCRIPT,
    ];
    let start = Start {
        snapshots: Snapshots::Unsupported,
        language: "bash".to_owned(),
        command: Command {
            argv: argv.map(str::to_owned).to_vec(),
            env: sandbox.base_env().clone(),
            cwd: HOME.to_owned(),
            stands_alone: false,
            stdin: StdinMode::Null,
            control: true,
            terminal: None,
        },
        boot: bytes::Bytes::new(),
        code: CodeIn::Blobs,
        features: SessionFeatures {
            result_value: false,
            display: false,
            interrupt: true,
            stdin: true,
        },
    };
    DriverSession::open(sandbox, start).await
}
