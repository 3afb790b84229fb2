//! Tools of the tasks extension: the answer to the call is a task, and the client polls for the result.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, CreateTaskResult,
    ErrorData,
};
use rmcp::service::RequestContext;
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use serde_json::Value;

use super::{asks, of, tools};

/// The names and descriptions of these tools.
pub(super) const TASK_TOOLS: [(&str, &str); 6] = [
    ("slow_compute", "Takes as many seconds as it is told"),
    ("failing_job", "Ends with an error of the tool"),
    ("protocol_error_job", "Ends with an error of the protocol"),
    ("confirm_delete", "Asks the user while it runs"),
    ("multi_input", "Asks the user two things while it runs"),
    ("test_tool_with_task", "Wants a name first, and becomes a task then"),
];

/// Tools that run only as a task.
const ONLY_AS_TASK: [&str; 4] = ["failing_job", "confirm_delete", "multi_input", "test_tool_with_task"];

/// The maximum number of concurrent tasks.
const MAX_TASKS: usize = 256;
const SHORT_DELAY: Duration = Duration::from_millis(100);

type Outcome = Result<CallToolResult, TaskExit>;

/// Returns true if a tool of this name is in this group.
pub(super) fn has(name: &str) -> bool {
    TASK_TOOLS.iter().any(|(tool, _)| *tool == name)
}

/// Runs one of them: as a task if the client knows tasks.
pub(super) async fn call(
    jobs: &TaskManager,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let name = request.name.as_ref();
    let knows = context.client_capabilities().is_some_and(|all| all.supports_tasks());
    if !knows && ONLY_AS_TASK.contains(&name) {
        let needed = ClientCapabilities::builder().enable_tasks().build();
        return Err(ErrorData::missing_required_client_capability(needed));
    }
    if jobs.running_task_count() >= MAX_TASKS {
        return Err(ErrorData::internal_error("too many tasks", None));
    }
    let argument = |name: &str| request.arguments.as_ref().and_then(|given| given.get(name));
    let task = match name {
        "slow_compute" => {
            let seconds = argument("seconds")
                .and_then(Value::as_f64)
                .unwrap_or(1.0)
                .clamp(0.0, 60.0);
            let time = Duration::from_secs_f64(seconds);
            if !knows {
                tokio::time::sleep(time).await;
                return Ok(tools::text("computed"));
            }
            jobs.spawn(TaskOptions::default(), move |task| {
                Box::pin(async move {
                    tokio::select! {
                        () = task.cancelled() => Err(TaskExit::Cancelled),
                        () = tokio::time::sleep(time) => said("computed"),
                    }
                })
            })
        }
        "protocol_error_job" => {
            let error = || ErrorData::internal_error("this job fails always", None);
            if !knows {
                return Err(error());
            }
            jobs.spawn(TaskOptions::default(), move |_| {
                Box::pin(async move {
                    tokio::time::sleep(SHORT_DELAY).await;
                    Err(TaskExit::Error(error()))
                })
            })
        }
        "failing_job" => jobs.spawn(TaskOptions::default(), |_| {
            Box::pin(async {
                tokio::time::sleep(SHORT_DELAY).await;
                Ok(CallToolResult::error(vec![ContentBlock::text("this job fails always")]))
            })
        }),
        "confirm_delete" => jobs.spawn(TaskOptions::default(), |task| Box::pin(confirm(task))),
        "multi_input" => jobs.spawn(TaskOptions::default(), |task| Box::pin(two(task))),
        _ => match asks::response(request.input_responses.as_ref(), "user_name") {
            None => return asks::asking([("user_name", asks::question("What is your name?", "name"))]),
            Some(answer) => {
                let greeting = format!("Hello, {}!", asks::content(answer, "name"));
                jobs.spawn(TaskOptions::default(), |_| Box::pin(async move { said(&greeting) }))
            }
        },
    };
    Ok(CreateTaskResult::new(task).into())
}

fn said(text: &str) -> Outcome {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]))
}

async fn confirm(task: TaskContext) -> Outcome {
    let asked = of(asks::flag("Delete the file?", "confirm")).map_err(TaskExit::Error)?;
    let answer = task.request_input("confirm", asked).await?;
    said(&format!("The user says: {answer}"))
}

async fn two(task: TaskContext) -> Outcome {
    let ask = |letter: &str| of(asks::question(&format!("Value {letter}?"), "value")).map_err(TaskExit::Error);
    let first = task.request_input("input-a", ask("A")?);
    let second = task.request_input("input-b", ask("B")?);
    let (first, second) = tokio::join!(first, second);
    said(&format!("The user says: {} and {}", first?, second?))
}
