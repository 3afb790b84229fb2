//! Programs next to sessions, and their standard input: tools for programs that use the server, not for models
//! ([`unlisted_sandbox_tools`](super::unlisted_sandbox_tools)). The result is that of `execute_code`, so
//! `get_execution` and `cancel_execution` work on it.

use bytes::Bytes;
use futures::FutureExt as _;
use sandcell_engine::{CommandInput, CommandLine, CommandRequest, StdinPart};
use sandcell_sandbox::{Failure, HOME};
use serde_json::json;

use super::code::{timeout_field, wait_field};
use super::host_file::base64;
use super::{Call, Effect, Tool, ToolFacts, sandbox_field};
use crate::answer::Answer;
use crate::arguments::{Arguments, sandbox_path};
use crate::content::execution;
use crate::schema::{Field, Kind, ListOf, MapOf};

pub(super) fn run_command(facts: &ToolFacts) -> Tool {
    Tool {
        name: "run_command",
        description: "Run a program in a sandbox, in parallel with sessions and programs. command is a line for \
                      Bash (sh where there is no Bash); argv is a program with its arguments, without a shell. The \
                      result is that of execute_code."
            .into(),
        fields: vec![
            Field::new("command", Kind::Text, json!("ls -l")),
            Field::new("argv", Kind::Texts(ListOf::Words), json!(["ls", "-l"])).about("Instead of command"),
            sandbox_field().about("Leave out for your default sandbox"),
            Field::new("cwd", Kind::Text, json!("project"))
                .about("The working folder, which must exist")
                .default(json!(HOME)),
            Field::new("env", Kind::TextMap(MapOf::Variables), json!({"MODE": "test"})),
            Field::new("stdin", Kind::Content, json!("yes\n")).about("Standard input; at most 1 MiB"),
            Field::new("stdin_base64", Kind::Content, json!("eWVzCg==")).about("Instead of stdin: bytes"),
            Field::new("keep_stdin", Kind::Flag, json!(true)).about("Leave standard input open for write_stdin"),
            timeout_field(facts).about("The program is stopped after this"),
            wait_field(facts).about("Answer after this at the latest"),
        ],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| run(call).boxed(),
    }
}

async fn run(mut call: Call) -> Result<Answer, Failure> {
    let arguments = &mut call.arguments;
    let waits = call.wait_limits.of(arguments);
    let given_argv = arguments.has("argv");
    let command = match (arguments.text("command"), arguments.texts("argv")) {
        (Some(line), _) if !given_argv => CommandLine::Shell(line),
        (None, argv) if given_argv => CommandLine::Argv(argv),
        _ => {
            return Err(Failure::invalid(
                "run_command needs either `command` or `argv`, and not both",
                "a valid example is \"command\": \"ls -l\", and another \"argv\": [\"ls\", \"-l\"]",
            ));
        }
    };
    let cwd = arguments.text("cwd");
    let request = CommandRequest {
        command,
        cwd: sandbox_path("cwd", cwd.as_deref().unwrap_or(HOME))?,
        env: arguments.text_map("env"),
        sandbox_id: arguments.text("sandbox_id"),
        timeout: arguments.seconds("timeout_s"),
        terminal: None,
        wait: Some(waits.time),
        watch: call.watch.clone(),
    };
    let input = CommandInput {
        first: bytes(arguments, "stdin", "stdin_base64")?.unwrap_or_default(),
        open: arguments.flag("keep_stdin"),
    };
    let view = call
        .engine
        .start_command(&call.caller, request, input, call.cancel)
        .await?;
    let notes = Vec::from_iter(waits.notes(&view));
    Ok(execution::answer(&view, call.engine.config().output_inline, &notes, &call.room).await)
}

pub(super) fn write_stdin(facts: &ToolFacts) -> Tool {
    Tool {
        name: "write_stdin",
        description: "Write to the standard input of a program that run_command started with keep_stdin. All of the \
                      data is accepted, or none if the answer is busy: the program has not read earlier data."
            .into(),
        fields: vec![
            Field::new("execution_id", Kind::Text, json!("ex7d…")).required(),
            Field::new("data", Kind::Content, json!("yes\n")).about("At most 1 MiB"),
            Field::new("data_base64", Kind::Content, json!("eWVzCg==")).about("Instead of data: bytes"),
            Field::new("close", Kind::Flag, json!(true)).about("End the input after this"),
            wait_field(facts).about("Wait for the program to read at most this long"),
        ],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| write(call).boxed(),
    }
}

async fn write(mut call: Call) -> Result<Answer, Failure> {
    let arguments = &mut call.arguments;
    let waits = call.wait_limits.of(arguments);
    let id = arguments.required_text("execution_id")?;
    let given = bytes(arguments, "data", "data_base64")?;
    let close = arguments.flag("close");
    if given.is_none() && !close {
        return Err(Failure::invalid(
            "write_stdin has nothing to do without `data`, `data_base64` or `close`",
            "a valid example is \"data\": \"yes\\n\"",
        ));
    }
    let part = StdinPart {
        bytes: given.unwrap_or_default(),
        close,
    };
    let written = part.bytes.len();
    let id = call
        .engine
        .write_stdin(&call.caller, &id, part, waits.time, call.cancel)
        .await?;
    let end = if close { " and closed it" } else { "" };
    let text = format!("wrote {written} bytes to the standard input of {id}{end}");
    let facts = json!({"execution_id": id.as_str(), "written": written, "closed": close});
    Ok(Answer::text(text).with_meta("sandcell/stdin", facts))
}

/// Reads bytes that are text or base64.
fn bytes(arguments: &mut Arguments, text: &str, base64_name: &str) -> Result<Option<Bytes>, Failure> {
    match (arguments.text(text), arguments.text(base64_name)) {
        (Some(_), Some(_)) => Err(Failure::invalid(
            format!("`{text}` and `{base64_name}` cannot both be given"),
            format!("put all of it into `{base64_name}`"),
        )),
        (Some(given), None) => Ok(Some(Bytes::from(given))),
        (None, Some(given)) => base64(base64_name, &given, &format!("`{text}`")).map(Some),
        (None, None) => Ok(None),
    }
}
