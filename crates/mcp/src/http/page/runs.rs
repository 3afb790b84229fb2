//! Makes sandboxes, runs code and decides about tool calls for the page. Bodies have the arguments of the tools `create_sandbox`, `execute_code`
//! and `create_run_close`, checked the same way. Answers do not wait for the code: the page polls the execution as it
//! does any other.
//!
//! Requests that need the user's consent are refused here: a program with the token could consent as well as a person.
//! Decisions about tool calls are accepted: REST accepts them from programs, too.

use std::time::Duration;

use sandcell_engine::{ExecuteRequest, ExecutionView, RunRequest, StreamName, StreamPart, ToolDecision, Watch};
use sandcell_sandbox::{Code, Consent, Failure};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::api::ApiRequest;
use crate::arguments::Arguments;
use crate::limits::{MESSAGE_DEPTH, MESSAGE_MARKS};
use crate::stdio::scanner::Scanner;
use crate::tools::{
    ToolFacts, create_request, create_run_close, create_sandbox, execute_code, execute_request, once_request,
    sandbox_data,
};

/// The maximum bytes of code per engine query.
const CODE_PART: u64 = 256 << 10;
/// The first words of an installation's code.
const INSTALL_CODE_PREFIX: &str = "install_package(packages=";

/// The fields of a JSON body. A body that would take much memory to parse is refused first.
fn fields(body: &[u8]) -> Result<Map<String, Value>, Failure> {
    if body.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    let mut scanner = Scanner::default();
    scanner.feed(body);
    if scanner.deepest() > MESSAGE_DEPTH || scanner.marks() > MESSAGE_MARKS {
        let remedy = format!("send at most {MESSAGE_MARKS} values and {MESSAGE_DEPTH} levels of brackets");
        return Err(Failure::invalid("the body has too many values", remedy));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Failure::invalid("the body is not an object", "send one JSON object")),
        Err(error) => Err(Failure::invalid(
            format!("the body is not JSON: {error}"),
            "send one JSON object",
        )),
    }
}

fn started(view: &ExecutionView, note: Option<&str>) -> Value {
    json!({
        "execution_id": view.id, "sandbox_id": view.sandbox_id, "status": view.status, "new_sandbox": view.new_sandbox,
        "note": note,
    })
}

/// Runs code in a session of a sandbox.
pub(super) async fn execute(ask: &ApiRequest<'_>) -> Result<Value, Failure> {
    let tool = execute_code(&ToolFacts::of(ask.engine, Duration::ZERO));
    let mut arguments = Arguments::check(tool.name, &tool.fields, fields(&ask.body)?)?;
    let request = ExecuteRequest {
        wait: Some(Duration::ZERO),
        ..execute_request(&mut arguments, ask.engine, Watch::default())?
    };
    let view = ask
        .engine
        .execute(ask.caller, request, CancellationToken::new())
        .await?;
    Ok(started(&view, None))
}

/// Runs code once in a fresh sandbox.
pub(super) async fn once(ask: &ApiRequest<'_>) -> Result<Value, Failure> {
    let tool = create_run_close(&ToolFacts::of(ask.engine, Duration::ZERO));
    let mut arguments = Arguments::check(tool.name, &tool.fields, fields(&ask.body)?)?;
    let (request, _) = once_request(&mut arguments, ask.engine, Watch::default(), Consent::default())?;
    let request = RunRequest {
        wait: Some(Duration::ZERO),
        ..request
    };
    let view = ask
        .engine
        .run_once(ask.caller, request, CancellationToken::new())
        .await?;
    Ok(started(&view, None))
}

/// Decides about a tool call that waits for approval.
pub(super) fn decide(ask: &ApiRequest<'_>, execution: &str, number: u32) -> Result<Value, Failure> {
    let fields = fields(&ask.body)?;
    let word = fields.get("decision").and_then(Value::as_str).unwrap_or_default();
    // 0 stands for anything that is not a number in the range.
    let count = |calls: &Value| calls.as_u64().and_then(|calls| u32::try_from(calls).ok());
    let calls = fields.get("calls").map(|calls| count(calls).unwrap_or(0));
    if let Some(field) = fields.keys().find(|field| *field != "decision" && *field != "calls") {
        return Err(Failure::invalid(
            format!("there is no field {field:?}"),
            "send decision, and calls with the decision once",
        ));
    }
    let decision = ToolDecision::read(word, calls)?;
    ask.engine.answer_tool_call(ask.caller, execution, number, decision)?;
    Ok(json!({"execution_id": execution, "number": number}))
}

/// Makes a sandbox.
pub(super) async fn create(ask: &ApiRequest<'_>) -> Result<Value, Failure> {
    let tool = create_sandbox(&ToolFacts::of(ask.engine, Duration::ZERO));
    let mut arguments = Arguments::check(tool.name, &tool.fields, fields(&ask.body)?)?;
    let request = create_request(&mut arguments, Watch::default(), Consent::default())?;
    let views = ask.engine.create(ask.caller, request).await?;
    Ok(json!({"sandboxes": views.iter().map(sandbox_data).collect::<Vec<_>>()}))
}

/// Runs the code of an execution again: in its sandbox if that still exists, else in a fresh one.
pub(super) async fn rerun(ask: &ApiRequest<'_>, id: &str) -> Result<Value, Failure> {
    let (code, language, sandbox) = source(ask, id).await?;
    if code.starts_with(INSTALL_CODE_PREFIX) {
        return Err(Failure::invalid(
            "this execution installed packages; it has no code to run again",
            "make a sandbox with these packages",
        ));
    }
    let live = match &sandbox {
        Some(sandbox) => ask.engine.status(ask.caller, Some(sandbox)).await.is_ok(),
        None => false,
    };
    if live {
        let request = ExecuteRequest {
            code,
            language,
            sandbox_id: sandbox,
            stdin: None,
            timeout: None,
            wait: Some(Duration::ZERO),
            watch: Watch::default(),
            ..ExecuteRequest::default()
        };
        let view = ask
            .engine
            .execute(ask.caller, request, CancellationToken::new())
            .await?;
        return Ok(started(&view, None));
    }
    let request = RunRequest {
        code,
        language,
        stdin: None,
        packages: Vec::new(),
        files: Vec::new(),
        outputs: Vec::new(),
        timeout: None,
        wait: Some(Duration::ZERO),
        watch: Watch::default(),
        memory: None,
        network: Vec::new(),
        consent: Consent::default(),
    };
    let view = ask
        .engine
        .run_once(ask.caller, request, CancellationToken::new())
        .await?;
    let note = "its sandbox is gone, so it runs in a fresh one, without the variables, files and packages of then";
    Ok(started(&view, Some(note)))
}

/// The code of an execution, its language and its sandbox. The lasting history has code as it was given; the streams of
/// an execution that is missing there have control characters escaped.
async fn source(ask: &ApiRequest<'_>, id: &str) -> Result<(String, String, Option<String>), Failure> {
    if let Ok(kept) = ask.engine.stored_execution(ask.caller, id).await {
        let sandbox = kept.record.sandbox_id.map(|sandbox| sandbox.to_string());
        return Ok((kept.code, kept.record.language, sandbox));
    }
    let view = ask.engine.execution(ask.caller, id, Duration::ZERO).await?;
    let most = ask.engine.config().code_bytes.as_bytes();
    let (mut code, mut offset) = (String::new(), 0_u64);
    loop {
        let part = StreamPart {
            stream: StreamName::Code,
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            limit: CODE_PART,
            find: None,
        };
        let part = ask.engine.stream(ask.caller, id, &part).await?;
        code.push_str(&part.text);
        if part.eof || part.next_offset <= offset {
            break;
        }
        offset = part.next_offset;
        if offset > most {
            return Err(Failure::new(
                Code::LimitReached,
                "the code is longer than code may be",
                "run a shorter one",
            ));
        }
    }
    Ok((code, view.language, Some(view.sandbox_id.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_one_object_of_few_values() {
        assert_eq!(fields(b" ").unwrap().len(), 0);
        assert_eq!(fields(b"{\"code\": \"1\"}").unwrap().len(), 1);
        let many = format!("{{\"code\": [{}0]}}", "0,".repeat(20_000));
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        for wrong in ["[]", "1", "{", "{\"a\": \u{1}}", &many, &deep] {
            assert!(fields(wrong.as_bytes()).is_err(), "{wrong:.20}");
        }
    }
}
