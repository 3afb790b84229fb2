//! The toolsets: each tool is a name, a description for a model, its arguments, and a function. They are a list, so
//! that adding one takes one line here and one file or function next to it.

mod alternatives;
mod checkpoints;
mod code;
mod commit;
mod container;
mod executions;
mod files;
mod functions;
mod host_file;
mod packages;
mod programs;
mod read_file;
mod sandboxes;
mod saved;
mod script;
mod toolset;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use sandcell_engine::{Engine, MIN_MEMORY, Principal, Watch};
use sandcell_sandbox::{Code, Consent, ConsentRequired, Failure};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::in_flight::AnswerRoom;
use crate::schema::{Field, Kind, ListOf};

pub(crate) use code::{WaitLimits, create_run_close, execute_code, execute_request, once_request};
pub(crate) use commit::changes_to_commit;
pub(crate) use files::list_data;
pub(crate) use sandboxes::{create_request, create_sandbox, data as sandbox_data};
pub use toolset::{Interpreters, Toolset};

/// A tool call in progress.
pub(crate) struct Call {
    pub(crate) engine: Arc<Engine>,
    pub(crate) caller: Principal,
    pub(crate) arguments: Arguments,
    /// Fires when the client cancels the call or is gone.
    pub(crate) cancel: CancellationToken,
    /// Bound to the execution that the call waits for, so that its progress can be reported.
    pub(crate) watch: Watch,
    /// The user's consent for the call.
    pub(crate) consent: Consent,
    /// Reserves room for a large answer, before it is made.
    pub(crate) room: AnswerRoom,
    /// The waits that it may use.
    pub(crate) wait_limits: WaitLimits,
}

/// Ends a wait when the call is cancelled.
async fn unless_cancelled<T>(
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        done = work => done,
        () = cancel.cancelled() => Err(Failure::new(
            Code::Cancelled,
            "the client cancelled the call, and nothing was made",
            "call again",
        )),
    }
}

/// The failure of a cancelled call.
pub(crate) fn cancelled_by_client() -> Failure {
    Failure::new(
        Code::Cancelled,
        "the client cancelled the call",
        "call again if it is still wanted",
    )
}

/// The result of a tool's function.
pub(crate) type Outcome = BoxFuture<'static, Result<Answer, Failure>>;

/// The behaviour of a tool, as MCP's hints state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes nothing.
    Reads,
    /// Changes things inside a sandbox only.
    ChangesSandbox,
    /// Irreversibly removes something (a sandbox, variables).
    Removes,
}

/// A tool of the server.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) description: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) output: Option<Value>,
    pub(crate) effect: Effect,
    pub(crate) run: fn(Call) -> Outcome,
}

impl Tool {
    /// The same tool without one of its arguments.
    fn without(mut self, name: &str) -> Self {
        self.fields.retain(|field| field.name != name);
        self
    }

    /// The same tool with another function.
    fn with_run(mut self, run: fn(Call) -> Outcome) -> Self {
        self.run = run;
        self
    }

    /// Returns true if the tool has this argument.
    pub(crate) fn takes(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }

    /// Returns the parts of a call that need the user's consent. Returns nothing for invalid arguments, which the call
    /// reports.
    pub(crate) fn consent_required(&self, engine: &Arc<Engine>, given: &Map<String, Value>) -> ConsentRequired {
        // Most calls need no consent: then nothing is copied and checked a second time.
        let is_plain = |name: &String| !["package", "packages", "network"].contains(&name.as_str()) && self.takes(name);
        if given.keys().all(is_plain) {
            return ConsentRequired::default();
        }
        let Ok(mut arguments) = Arguments::check(self.name, &self.fields, given.clone()) else {
            return ConsentRequired::default();
        };
        let mut packages = arguments.texts("packages");
        packages.extend(arguments.text("package"));
        let hosts = arguments.texts("network");
        let of_code = || self.takes("code").then(|| engine.default_language().to_owned());
        let language = arguments.text("language").or_else(of_code);
        engine.consent_required(language.as_deref(), &packages, &hosts)
    }

    /// Checks the arguments and runs the tool.
    pub(crate) async fn call(
        &self,
        engine: Arc<Engine>,
        caller: Principal,
        given: Map<String, Value>,
        cancel: CancellationToken,
        watch: Watch,
        (consent, room, wait_limits): (Consent, AnswerRoom, WaitLimits),
    ) -> Answer {
        let checked = Arguments::check(self.name, &self.fields, given);
        let outcome = match checked {
            Ok(arguments) => {
                (self.run)(Call {
                    engine,
                    caller,
                    arguments,
                    cancel,
                    watch,
                    consent,
                    room,
                    wait_limits,
                })
                .await
            }
            Err(failure) => Err(failure),
        };
        outcome.unwrap_or_else(|failure| Answer::failure(&failure))
    }
}

/// The facts about this machine that descriptions depend on.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolFacts {
    /// The names of the installed languages, the default one first.
    pub(crate) languages: Vec<String>,
    /// The names of the back ends.
    pub(crate) backends: Vec<String>,
    /// True if one of them makes sandboxes of images.
    pub(crate) images: bool,
    /// True if the operator allows reading host files.
    pub(crate) uploads: bool,
    /// The default execution time, in seconds.
    pub(crate) timeout_s: u64,
    /// The languages that packages can be installed for.
    pub(crate) package_languages: Vec<String>,
    /// True if sandboxes can reach hosts.
    pub(crate) network: bool,
    /// The default wait of a call.
    pub(crate) wait: Duration,
    /// The servers whose tools the caller's code may use.
    pub(crate) tool_servers: Vec<String>,
}

impl ToolFacts {
    pub(crate) fn of(engine: &Arc<Engine>, wait: Duration) -> Self {
        let mut languages: Vec<String> = engine.languages().into_iter().map(|language| language.name).collect();
        if let Some(default) = languages.iter().position(|name| name == engine.default_language()) {
            languages.swap(0, default);
        }
        Self {
            languages,
            backends: engine
                .backends()
                .iter()
                .map(|backend| backend.name.to_owned())
                .collect(),
            images: engine.backends().iter().any(|backend| backend.supports_images),
            uploads: !engine.config().upload_from.is_empty(),
            timeout_s: engine.config().timeout.as_secs(),
            package_languages: engine.package_languages(),
            network: !engine.network_allowed().is_empty(),
            wait,
            tool_servers: Vec::new(),
        }
    }

    /// The default language of a call.
    pub(crate) fn default_language(&self) -> &str {
        self.languages.first().map_or("python", String::as_str)
    }
}

/// The tools of the toolset `sandbox`, in the order of the contract.
pub(crate) fn sandbox_toolset(facts: &ToolFacts) -> Vec<Tool> {
    vec![
        code::execute_code(facts),
        code::create_run_close(facts),
        sandboxes::create_sandbox(facts),
        sandboxes::close_sandbox(),
        sandboxes::get_sandbox_status(),
        executions::get_execution(facts),
        executions::cancel_execution(),
        packages::install_package(facts),
        files::list_files(),
        read_file::read_file(),
        files::write_file(),
        host_file::upload_file(facts),
        executions::get_execution_history(),
        executions::reset_session_state(facts),
    ]
}

/// Tools of the toolset `sandbox` for programs such as the Python package. They can be called and are not listed:
/// `execute_code` is enough for a model, and each listed tool adds its description to every conversation.
pub(crate) fn unlisted_sandbox_tools(facts: &ToolFacts) -> Vec<Tool> {
    vec![
        programs::run_command(facts),
        programs::write_stdin(facts),
        functions::create_sandbox_with_functions(facts),
        functions::exchange_tool_calls(),
        checkpoints::create_checkpoint(),
        checkpoints::drop_checkpoint(),
        checkpoints::file_changes(),
        saved::save_sandbox(),
        saved::list_saved(),
        saved::drop_saved(),
        commit::commit_changes(),
    ]
}

/// The sandbox that a call is about.
fn sandbox_field() -> Field {
    Field::new("sandbox_id", Kind::Text, json!("sb4k…"))
}

/// A time in seconds.
fn seconds_field(name: &'static str, min: f64, max: f64, example: u64) -> Field {
    Field::new(name, Kind::Number { min, max }, json!(example))
}

/// Memory of a sandbox.
fn memory_field() -> Field {
    count_field(
        "memory_mb",
        i64::try_from(MIN_MEMORY.as_mib()).unwrap_or(i64::MAX),
        1024,
    )
}

/// Hosts that a new sandbox may reach.
fn network_field(facts: &ToolFacts) -> Field {
    Field::new(
        "network",
        Kind::Texts(ListOf::Hosts),
        json!(["api.example.com", "*.example.org"]),
    )
    .about("Hosts it may reach by HTTP(S) through its proxy variables; default none")
    .hidden_if(!facts.network)
}

/// A whole number of at least this.
fn count_field(name: &'static str, min: i64, example: u64) -> Field {
    let max = i64::MAX;
    Field::new(name, Kind::Integer { min, max }, json!(example))
}
