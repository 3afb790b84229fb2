//! Tools of the host: functions outside the sandboxes that code inside may call.
//!
//! A sandbox with tools has a port on its loopback address ([`Ports::forward`](crate::Ports::forward)). The
//! implementation of [`HostTools`] speaks HTTP on its connections, finds the tool of a request, checks its arguments and
//! the operator's rules, and makes the call from the server. The engine attributes each call to the execution that makes
//! it ([`ToolCaller`]), counts it, and asks a person where the rules demand that. Code inside can send any bytes on the
//! port.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{ByteSize, Failure, Forward};

/// The port inside on which code calls tools.
pub const TOOLS_PORT: u16 = 3129;
/// The variable that tells programs inside the address of the port.
pub const TOOLS_VARIABLE: &str = "SANDCELL_TOOLS_URL";

/// The folder with the program `tools`. Only sandboxes with tools have it in their search path.
pub const TOOLS_PROGRAMS: &str = "/opt/sandcell/tools";

/// The bounds of the tool calls of one execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolLimits {
    /// The maximum number of calls.
    pub calls: u32,
    /// The maximum number of calls at once; further ones wait.
    pub calls_at_once: usize,
    /// The maximum size of one call's arguments, and of its result.
    pub call_size: ByteSize,
    /// The maximum size of all arguments and results together.
    pub total_size: ByteSize,
    /// The maximum time for a person to answer a question.
    pub approval: Duration,
    /// True if a question can be answered by other ways than the client of the call, such as REST.
    pub answered_elsewhere: bool,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self {
            calls: 10_000,
            calls_at_once: 16,
            call_size: ByteSize::mib(8),
            total_size: ByteSize::mib(256),
            approval: Duration::from_secs(120),
            answered_elsewhere: false,
        }
    }
}

/// The tools of the host.
pub trait HostTools: Send + Sync + std::fmt::Debug {
    /// Returns true if there are servers.
    fn has_servers(&self) -> bool;

    /// Returns the servers whose tools this caller may use, in the operator's order. Cheap: starts nothing.
    fn servers(&self, caller: &str) -> Vec<String>;

    /// Serves the port of one sandbox until the result is dropped. `functions` are those of the program that made the
    /// sandbox. Call this inside a tokio runtime.
    fn open(
        &self,
        forward: Forward,
        caller: Arc<dyn ToolCaller>,
        functions: Option<Arc<dyn Functions>>,
    ) -> Box<dyn ToolPort>;
}

/// The name under which code calls the functions of the program that made its sandbox.
pub const FUNCTIONS_SERVER: &str = "functions";

/// A function of the program that made a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSpec {
    /// The name, by which code calls the function.
    pub name: String,
    /// The description, for people and models.
    pub description: String,
    /// The JSON Schema of its arguments, as JSON text of an object.
    pub input_schema: String,
    /// True if the function changes nothing.
    pub read_only: bool,
}

/// The functions of the program that made a sandbox. Code inside may call them without approval.
#[async_trait]
pub trait Functions: Send + Sync + std::fmt::Debug {
    /// Returns the functions.
    fn list(&self) -> &[FunctionSpec];

    /// Calls a function with arguments as JSON text. Returns its result as JSON text.
    ///
    /// # Errors
    /// The function raised an error, or the program does not answer.
    async fn call(&self, name: &str, arguments: String) -> Result<String, Failure>;
}

/// The served port of one sandbox. Dropping it closes the port and cancels its calls.
pub trait ToolPort: Send + Sync + std::fmt::Debug {}

/// A call that code inside wants to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolRequest {
    /// The server of the tool, as the operator named it.
    pub server: String,
    /// The name of the tool.
    pub tool: String,
    /// The size of its arguments in bytes.
    pub bytes: u64,
    /// The SHA-256 of its arguments as compact JSON, in hexadecimal.
    pub digest: String,
}

/// The sandbox whose code calls tools.
#[async_trait]
pub trait ToolCaller: Send + Sync + std::fmt::Debug {
    /// Returns the caller that owns the sandbox.
    fn owner(&self) -> &str;

    /// Checks that an execution runs that may make one more call: the named one, or the newest one if none is named.
    ///
    /// # Errors
    /// No such execution runs, or its budget is used up.
    fn may_call(&self, execution: Option<&str>) -> Result<(), Failure>;

    /// Admits a list of tools. An execution may ask for as many lists as it may make calls.
    ///
    /// # Errors
    /// As [`ToolCaller::may_call`].
    fn admit_list(&self, execution: Option<&str>) -> Result<(), Failure>;

    /// Admits a call for the running execution that code names, or for the newest one if it names none. Waits while too
    /// many calls of it are in progress.
    ///
    /// # Errors
    /// No such execution runs, or its budget is used up.
    async fn begin(&self, execution: Option<&str>, request: &ToolRequest) -> Result<Box<dyn ToolCall>, Failure>;

    /// Records a call that was refused before it could begin: an unknown tool, or arguments that do not fit.
    fn refused(&self, execution: Option<&str>, request: &ToolRequest, failure: &Failure);
}

/// A question to a person: may this call be made?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolQuestion {
    /// The server of the tool.
    pub server: String,
    /// The name of the tool.
    pub tool: String,
    /// The arguments as JSON: control and invisible characters are escaped, and a long text is cut.
    pub arguments: String,
    /// True if the server describes the tool as one that changes nothing.
    pub read_only: bool,
}

/// A call in progress. Dropping it ends it as cancelled.
#[async_trait]
pub trait ToolCall: Send + Sync {
    /// States that the tool exists. Results name only such tools: other names are text of the code.
    fn found(&self);

    /// Records that the request is about to be sent. A later failure counts as a failed call, not as a refused one.
    fn made(&self);

    /// Asks a person. The time limit of the execution does not count this time.
    ///
    /// # Errors
    /// The person refused, did not answer in time, or nobody can be asked.
    async fn ask(&self, question: ToolQuestion) -> Result<(), Failure>;

    /// Waits until the execution is stopped, or has ended.
    async fn stopped(&self);

    /// Counts the bytes of the result.
    ///
    /// # Errors
    /// The budget of the execution is used up.
    fn received(&self, bytes: u64) -> Result<(), Failure>;

    /// Records the end of the call.
    fn end(self: Box<Self>, failure: Option<&Failure>);
}
