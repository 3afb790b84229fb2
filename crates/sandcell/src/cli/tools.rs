//! `sandcell tools`: the servers of tools that code in sandboxes may call.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use sandcell_host_tools::{ConfiguredTools, Decision, ServerState};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Map, Value, json};

use super::output::{self, Style};
use super::printed;
use crate::config::Settings;
use crate::wiring::tools::configured;

/// The maximum length of a description in the list.
const MAX_LINE_CHARS: usize = 100;

/// Lists, checks and calls the tools that code in sandboxes may call
///
/// `[tools.NAME]` in the settings names their servers (MCP). Code calls them as `tools.NAME.TOOL(argument=value)`.
#[derive(Debug, Args)]
pub(super) struct ToolsArgs {
    #[command(subcommand)]
    command: ToolsCommand,
}

#[derive(Debug, Subcommand)]
enum ToolsCommand {
    /// Starts the servers and lists their tools, with the rule that applies to each: allow, ask or deny
    List {
        /// Prints [{server, tools: [{name, description, decision, read_only, input_schema}], error}]
        #[arg(long)]
        json: bool,
    },
    /// Starts the servers and reports what does not work; exits with 1 if there is something
    Check {
        /// Prints {ok, servers: [{server, ok, tools, left_out, unusable, error}]}
        #[arg(long)]
        json: bool,
    },
    /// Calls a tool once, from here. Needs no approval; a denied tool is not called
    Call {
        /// The tool, as SERVER.TOOL
        name: String,

        /// Its arguments as a JSON object
        #[arg(default_value = "{}")]
        arguments: String,
    },
    /// Lists the calls that wait for approval at a running server, or decides about one of them. SANDCELL_TOKEN is the
    /// token of the caller whose code makes the calls, if the server needs one
    #[cfg(feature = "bridge")]
    Approve(ApproveArgs),
}

#[cfg(feature = "bridge")]
#[derive(Debug, Args)]
struct ApproveArgs {
    /// The execution that makes the call; without it the waiting calls are listed
    #[arg(requires = "number")]
    execution: Option<String>,

    /// The number of the question
    number: Option<u32>,

    /// The server: the address that `sandcell serve --http` prints, or its socket
    #[arg(long, value_name = "URL|unix:PATH")]
    to: String,

    /// Allows this number of calls of the tool, this one included
    #[arg(long, value_name = "N", conflicts_with_all = ["run", "deny"], value_parser = clap::value_parser!(u32).range(1..))]
    calls: Option<u32>,

    /// Allows all calls of the tool by this execution
    #[arg(long, conflicts_with = "deny")]
    run: bool,

    /// Refuses the call
    #[arg(long)]
    deny: bool,
}

pub(super) fn run(args: &ToolsArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let runtime = crate::wiring::runtime()?;
    runtime.block_on(async {
        let tools = || {
            configured(settings)?.ok_or_else(|| {
                Failure::new(
                    Code::NotFound,
                    "the settings name no server of tools",
                    "add a table such as [tools.files] with `command` or `url` to the settings: `sandcell config edit`",
                )
            })
        };
        match &args.command {
            #[cfg(feature = "bridge")]
            ToolsCommand::Approve(args) => approve(args).await,
            ToolsCommand::List { json } => list(&tools()?.states().await, *json),
            ToolsCommand::Check { json } => check(&tools()?.states().await, *json),
            ToolsCommand::Call { name, arguments } => call(&tools()?, name, arguments).await,
        }
    })
}

const fn word(decision: Decision) -> &'static str {
    match decision {
        Decision::Allow => "allow",
        Decision::Ask => "ask",
        Decision::Deny => "deny",
    }
}

fn list(states: &[ServerState], as_json: bool) -> Result<ExitCode, Failure> {
    let written = if as_json {
        let servers: Vec<Value> = states
            .iter()
            .map(|state| match &state.tools {
                Ok(tools) => {
                    let describe = |(tool, decision): &(std::sync::Arc<sandcell_host_tools::Tool>, Decision)| {
                        json!({
                            "name": tool.name,
                            "description": tool.description,
                            "decision": word(*decision),
                            "read_only": tool.read_only,
                            "input_schema": *tool.input_schema,
                        })
                    };
                    json!({"server": state.name, "tools": tools.iter().map(describe).collect::<Vec<_>>(), "error": null})
                }
                Err(error) => json!({"server": state.name, "tools": [], "error": error}),
            })
            .collect();
        output::json(&json!(servers))
    } else {
        output::text(&list_text(states, Style::of(&std::io::stdout())))
    };
    let works = states.iter().any(|state| state.tools.is_ok());
    printed(written.map(|()| if works { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

fn list_text(states: &[ServerState], style: Style) -> String {
    let mut text = String::new();
    for state in states {
        match &state.tools {
            Ok(tools) => {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{} ({} tools)", style.bold(&state.name), tools.len());
                let width = tools
                    .iter()
                    .map(|(tool, _)| tool.name.chars().count())
                    .max()
                    .unwrap_or(0);
                for (tool, decision) in tools {
                    let first = tool
                        .description
                        .lines()
                        .find(|line| !line.trim().is_empty())
                        .unwrap_or_default();
                    let short: String = first.trim().chars().take(MAX_LINE_CHARS).collect();
                    let name = output::safe(&tool.name);
                    let _ = writeln!(text, "  {:5}  {name:width$}  {}", word(*decision), output::safe(&short));
                }
            }
            Err(error) => {
                let _ = writeln!(text, "{}: {}", style.bold(&state.name), output::safe(error));
            }
        }
    }
    text
}

fn check(states: &[ServerState], as_json: bool) -> Result<ExitCode, Failure> {
    let is_well = |state: &ServerState| state.tools.is_ok() && state.unusable.is_empty() && state.left_out == 0;
    let ok = states.iter().all(is_well);
    let written = if as_json {
        let servers: Vec<Value> = states
            .iter()
            .map(|state| {
                json!({
                    "server": state.name,
                    "ok": is_well(state),
                    "tools": state.tools.as_ref().map_or(0, Vec::len),
                    "left_out": state.left_out,
                    "unusable": state.unusable,
                    "error": state.tools.as_ref().err(),
                })
            })
            .collect();
        output::json(&json!({"ok": ok, "servers": servers}))
    } else {
        let mut text = String::new();
        for state in states {
            let _ = match &state.tools {
                Ok(tools) => {
                    let asks = tools.iter().filter(|(_, decision)| *decision == Decision::Ask).count();
                    writeln!(
                        text,
                        "{}: {} tools, {asks} of them ask a person",
                        state.name,
                        tools.len()
                    )
                }
                Err(error) => writeln!(text, "{}: does not work: {}", state.name, output::safe(error)),
            };
            if state.left_out > 0 {
                let _ = writeln!(
                    text,
                    "{}: {} tools are not offered: names or schemas too long, or too many tools",
                    state.name, state.left_out
                );
            }
            for name in &state.unusable {
                let _ = writeln!(
                    text,
                    "{}: {} cannot be called: its schema is not valid or refers to other documents",
                    state.name,
                    output::safe(name)
                );
            }
        }
        output::text(&text)
    };
    printed(written.map(|()| if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

async fn call(tools: &ConfiguredTools, name: &str, arguments: &str) -> Result<ExitCode, Failure> {
    let (server, tool) = name.split_once('.').ok_or_else(|| {
        Failure::invalid(
            format!("{name:?} does not name a tool"),
            "write SERVER.TOOL, as `sandcell tools list` shows them",
        )
    })?;
    let arguments: Map<String, Value> = serde_json::from_str(arguments).map_err(|error| {
        Failure::invalid(
            format!("the arguments are not a JSON object: {error}"),
            "write them like '{\"query\": \"x\"}'",
        )
    })?;
    let value = tools.call(server, tool, arguments).await?;
    let text = value.get("text").and_then(Value::as_str);
    let written = match (value.get("kind").and_then(Value::as_str), text, value.get("value")) {
        (Some("text"), Some(text), _) => output::text(&format!("{text}\n")),
        (Some("json"), _, Some(value)) => output::json(value),
        _ => output::json(&value),
    };
    printed(written.map(|()| ExitCode::SUCCESS))
}

#[cfg(feature = "bridge")]
async fn approve(args: &ApproveArgs) -> Result<ExitCode, Failure> {
    let token = super::serve::token()?;
    let client = sandcell_mcp::Approvals::new(&args.to, token.as_deref())?;
    let (Some(execution), Some(number)) = (&args.execution, args.number) else {
        let mut text = String::new();
        for one in client.list().await? {
            let effect = if one.read_only {
                " (changes nothing, says its server)"
            } else {
                ""
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{} {}: {}{effect}\n  {}",
                output::safe(&one.execution_id),
                one.number,
                output::safe(&one.tool),
                output::safe(&one.arguments)
            );
        }
        if text.is_empty() {
            text.push_str("no call waits for approval\n");
        }
        return printed(output::text(&text).map(|()| ExitCode::SUCCESS));
    };
    let decision = match (args.run, args.deny) {
        (true, _) => "run",
        (_, true) => "deny",
        _ => "once",
    };
    client.answer(execution, number, decision, args.calls).await?;
    output::note(if args.deny {
        "the call is refused"
    } else {
        "the call is allowed"
    });
    Ok(ExitCode::SUCCESS)
}
