//! Sessions of JavaScript with Node.
//!
//! The driver evaluates cells with V8's own console mode, by way of the inspector inside the process (no port is
//! opened): `await` at the top level, `const` and `let` again in a later cell, and the last expression's value are V8's.

use std::collections::BTreeMap;

use sandcell_sandbox::{Command, HOME, Sandbox, SessionError, SessionFeatures, StdinMode};

use crate::control::{CodeIn, DriverSession, Start};

const DRIVER: &str = include_str!("driver/driver.js");
/// What makes `fetch` of older Nodes use a proxy of the environment; it needs no session.
const PROXY: &str = include_str!("driver/proxy.js");
/// The variable by which Node is told to use the proxies of the environment.
const USE_PROXY: &str = "NODE_USE_ENV_PROXY";
/// Where it is for programs that are no sessions.
const PROXY_FILE: &str = "/tmp/.sandcell-node/proxy.cjs";
/// The variable with Node's own options.
const OPTIONS: &str = "NODE_OPTIONS";

/// Makes a program of Node use the proxy of its environment, if it has one: the file that it needs for that.
pub(crate) fn with_proxy(env: &mut BTreeMap<String, String>) -> Option<(&'static str, &'static str)> {
    env.get(USE_PROXY)?;
    let options = env.entry(OPTIONS.to_owned()).or_default();
    *options = format!("--require {PROXY_FILE} {options}").trim_end().to_owned();
    Some((PROXY_FILE, PROXY))
}

/// Starts a session with this interpreter; `env` is added to the sandbox's own.
pub(crate) async fn open(
    program: String,
    env: &BTreeMap<String, String>,
    sandbox: &dyn Sandbox,
) -> Result<DriverSession, SessionError> {
    let mut all = sandbox.base_env().clone();
    all.extend(env.clone());
    let driver = match all.contains_key(USE_PROXY) {
        true => format!("{DRIVER}{PROXY}"),
        false => DRIVER.to_owned(),
    };
    let start = Start {
        copies: false,
        language: "javascript".to_owned(),
        command: Command {
            argv: [program.as_str(), "--no-warnings", "-e", driver.as_str()]
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
