//! Sessions of Bash: one shell evaluates cell after cell.
//!
//! The driver is written in Bash, so it needs no other program. It is passed as an argument. The loop around it is one
//! line, because Bash counts the lines of evaluated code from the line that evaluates it.

use std::path::{Path, PathBuf};

use sandcell_sandbox::{
    Command, HOME, Sandbox, SessionError, SessionFeatures, StdinMode, TOOLS_PROGRAMS, TOOLS_VARIABLE,
};

use crate::control::{CodeIn, DriverSession, Snapshots, Start};

const LOOP_SCRIPT: &str = include_str!("driver/loop.sh");
const DRIVER_SCRIPT: &str = include_str!("driver/driver.sh");
/// The function `tools` of sessions that can call tools of the host.
const TOOLS_SCRIPT: &str = include_str!("driver/tools.sh");
/// The prefix of the shell's messages.
const MESSAGE_PREFIX: &str = "bash";

/// Returns the program `tools` for all other code of sandboxes that can call tools of the host, and its path. Only their
/// search path has its folder. None if no line can name the interpreter.
pub(crate) fn tools_program(bash: &Path) -> Option<(PathBuf, String)> {
    let bash = bash.to_str().filter(|path| !path.contains(char::is_whitespace))?;
    Some((
        PathBuf::from(format!("{TOOLS_PROGRAMS}/tools")),
        // Functions and the start script of the caller's environment are ignored.
        format!("#!{bash} -p\n{TOOLS_SCRIPT}tools \"$@\"\n"),
    ))
}

/// Starts a session with this interpreter.
pub(crate) async fn open(program: String, sandbox: &dyn Sandbox) -> Result<DriverSession, SessionError> {
    // A function of the code with the name `tools` wins: the driver restores it after this one is defined.
    let driver = match sandbox.base_env().contains_key(TOOLS_VARIABLE) {
        true => format!("{TOOLS_SCRIPT}{DRIVER_SCRIPT}"),
        false => DRIVER_SCRIPT.to_owned(),
    };
    let argv = [
        program.as_str(),
        "--norc",
        "--noprofile",
        "-c",
        LOOP_SCRIPT.trim_end(),
        MESSAGE_PREFIX,
        driver.as_str(),
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
