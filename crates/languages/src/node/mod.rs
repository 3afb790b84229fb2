//! Sessions of JavaScript with Node.
//!
//! The driver evaluates cells with V8's own console mode, by way of the inspector inside the process (no port is
//! opened): `await` at the top level, `const` and `let` again in a later cell, and the last expression's value are V8's.

use std::collections::BTreeMap;

use sandcell_sandbox::{Command, HOME, Sandbox, SessionError, SessionFeatures, StdinMode};

use crate::control::{CodeIn, DriverSession, Start};

const DRIVER: &str = include_str!("driver/driver.js");

/// Starts a session with this interpreter; `env` is added to the sandbox's own.
pub(crate) async fn open(
    program: String,
    env: &BTreeMap<String, String>,
    sandbox: &dyn Sandbox,
) -> Result<DriverSession, SessionError> {
    let mut all = sandbox.base_env().clone();
    all.extend(env.clone());
    let start = Start {
        copies: false,
        language: "javascript".to_owned(),
        command: Command {
            argv: [program.as_str(), "--no-warnings", "-e", DRIVER]
                .map(str::to_owned)
                .to_vec(),
            env: all,
            cwd: HOME.to_owned(),
            stdin: StdinMode::Null,
            control: true,
        },
        boot: bytes::Bytes::new(),
        code: CodeIn::Header,
        features: SessionFeatures {
            result_value: true,
            display: false,
            interrupt: true,
            stdin: true,
        },
    };
    DriverSession::open(sandbox, start).await
}
