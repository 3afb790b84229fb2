//! Sessions of JavaScript with Node.
//!
//! The driver evaluates cells with V8's console mode, through the inspector inside the process (no port is opened). V8
//! provides `await` at the top level, `const` and `let` again in a later cell, and the last expression's value.

use std::collections::BTreeMap;

use sandcell_sandbox::{Command, HOME, Sandbox, SessionError, SessionFeatures, StdinMode, TOOLS_VARIABLE};

use crate::control::{CodeIn, DriverSession, Snapshots, Start};

const DRIVER_SCRIPT: &str = include_str!("driver/driver.js");
/// The script that makes `fetch` of older Node versions use the environment's proxy; needs no session.
const PROXY_SCRIPT: &str = include_str!("driver/proxy.js");
/// The variable that makes Node use the environment's proxies.
const USE_PROXY: &str = "NODE_USE_ENV_PROXY";
/// The script that makes Node write all output of a program before the program ends.
const OUTPUT_SCRIPT: &str = include_str!("driver/output.js");
/// The script that makes Node count the processors that the sandbox may use.
const PROCESSORS_SCRIPT: &str = include_str!("driver/processors.js");
/// The script that defines the global `tools`, for code that can call tools of the host.
const TOOLS_SCRIPT: &str = include_str!("driver/tools.js");
/// The folder of scripts that programs load first. A session's driver contains them.
const SCRIPT_FOLDER: &str = "/tmp/.sandcell-node";
/// The variable with Node's own options.
const OPTIONS_VARIABLE: &str = "NODE_OPTIONS";

/// Returns the scripts that code in this environment needs, in a session as well as in a program, and a name for them.
fn scripts_for(env: &BTreeMap<String, String>) -> (&'static str, String) {
    let (proxy, tools) = (env.contains_key(USE_PROXY), env.contains_key(TOOLS_VARIABLE));
    let name = match (proxy, tools) {
        (false, false) => "output",
        (true, false) => "proxy",
        (false, true) => "tools",
        (true, true) => "proxy-tools",
    };
    let mut text = PROCESSORS_SCRIPT.to_owned();
    if proxy {
        text.push_str(PROXY_SCRIPT);
    }
    if tools {
        text.push_str(TOOLS_SCRIPT);
    }
    (name, text)
}

/// Makes a Node program load a script first, which completes its output, uses its environment's proxy and offers the
/// host's tools, if there are any. Returns the path and the text of that script.
pub(crate) fn with_preload(env: &mut BTreeMap<String, String>) -> (String, String) {
    let (name, scripts) = scripts_for(env);
    let (path, text) = (
        format!("{SCRIPT_FOLDER}/{name}.cjs"),
        format!("{OUTPUT_SCRIPT}{scripts}"),
    );
    let options = env.entry(OPTIONS_VARIABLE.to_owned()).or_default();
    *options = format!("--require {path} {options}").trim_end().to_owned();
    (path, text)
}

/// Starts a session with this interpreter; `env` is added to the sandbox's environment.
pub(crate) async fn open(
    program: String,
    env: &BTreeMap<String, String>,
    sandbox: &dyn Sandbox,
) -> Result<DriverSession, SessionError> {
    let mut all = sandbox.base_env().clone();
    all.extend(env.clone());
    let driver = format!("{DRIVER_SCRIPT}{}", scripts_for(&all).1);
    let start = Start {
        snapshots: Snapshots::Unsupported,
        language: "javascript".to_owned(),
        command: Command {
            argv: [program.as_str(), "--no-warnings", "-e", driver.as_str()]
                .map(str::to_owned)
                .to_vec(),
            env: all,
            cwd: HOME.to_owned(),
            stands_alone: false,
            stdin: StdinMode::Null,
            control: true,
            terminal: None,
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
