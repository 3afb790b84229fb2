//! Tools that make, end and inspect sandboxes.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::FutureExt as _;
use sandcell_engine::{
    BranchFrom, CreateFrom, CreateRequest, MAX_LIFETIME, MemoryGrowth, SandboxView, SavedFrom, SessionView, Watch,
};
use sandcell_sandbox::{Code, Consent, Cpus, Failure, FunctionSpec, rfc3339};
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::checkpoints;
use super::code::wait_field;
use super::executions::one_line;
use super::packages::packages_field;
use super::{
    Call, Effect, Tool, ToolFacts, count_field, memory_field, network_field, sandbox_field, seconds_field,
    unless_cancelled,
};
use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::content::execution;
use crate::content::text::shorten;
use crate::schema::{self, Field, Kind, MapOf};
use crate::time::rough;

/// A number that exceeds every server's limit. Larger numbers are mistakes.
const MAX_SANDBOXES: i64 = 1000;
/// The maximum bytes of variables in a status.
const VARIABLES_BYTES: usize = 6000;

pub(crate) fn create_sandbox(facts: &ToolFacts) -> Tool {
    let mut fields = vec![
        Field::new(
            "count",
            Kind::Integer {
                min: 1,
                max: MAX_SANDBOXES,
            },
            json!(1),
        )
        .default(json!(1)),
        packages_field(facts),
        Field::new("env", Kind::TextMap(MapOf::Variables), json!({"MODE": "test"})).about("Environment variables"),
        memory_field(),
        Field::new(
            "cpus",
            Kind::Number {
                min: 0.001,
                max: 4096.0,
            },
            json!(1),
        ),
        count_field("disk_mb", 1, 1024),
        seconds_field("lifetime_s", 1.0, MAX_LIFETIME.as_secs_f64(), 3600).about("Ends after this even when in use"),
        Field::new("label", Kind::Text, json!("analysis")),
        Field::new("key", Kind::Text, json!("task-7"))
            .about("Your name for it: the same key and arguments return the same live sandbox"),
        network_field(facts),
    ];
    if facts.backends.len() > 1 {
        fields.push(Field::new(
            "backend",
            Kind::Choice(facts.backends.clone()),
            json!(facts.backends.first()),
        ));
    }
    if facts.images {
        fields.push(
            Field::new("image", Kind::Text, json!("python:3.13-slim"))
                .about("Container image; its programs are used (python needs python3)"),
        );
    }
    fields.push(
        Field::new("from_sandbox", Kind::Text, json!("sb_…"))
            .about("Copy the variables and files of this sandbox; with count, branch it several times"),
    );
    fields.push(Field::new("from_checkpoint", Kind::Text, json!("before-merge")).about("Copy this checkpoint of it"));
    fields.extend(saved_fields());
    fields.push(wait_field(facts));
    Tool {
        name: "create_sandbox",
        description: "Make one or more sandboxes with your own limits, or to separate tasks. Not needed for \
                      execute_code. Each ends after a time without calls (idle_expires_at). If \
                      there is no room for all, none is made."
            .into(),
        fields,
        output: Some(schema::output(&[
            ("sandbox_id", "string"),
            ("sandbox_ids", "array"),
            ("limits", "object"),
            ("isolation", "object"),
            ("idle_expires_at", "string"),
            ("ends_at?", ""),
            ("created", "boolean"),
        ])),
        effect: Effect::ChangesSandbox,
        run: |call| create(call).boxed(),
    }
}

/// Makes sandboxes. Creation continues in the background after the call's wait; a cancelled call makes nothing.
async fn make(call: &Call, request: CreateRequest, wait: Duration) -> Result<Vec<SandboxView>, Failure> {
    let (engine, caller) = (Arc::clone(&call.engine), call.caller.clone());
    let making = async move { engine.create(&caller, request).await };
    let mut making = tokio::spawn(making.in_current_span());
    let waiting = async {
        tokio::select! {
            biased;
            made = &mut making => Ok(made),
            () = tokio::time::sleep(wait) => Err(Failure::new(
                Code::Busy,
                format!("the sandbox is still being created after {} s; creation continues", wait.as_secs_f64()),
                "get_sandbox_status lists it; its state is starting until it can be used",
            )),
        }
    };
    match unless_cancelled(&call.cancel, waiting).await {
        Ok(Ok(made)) => made,
        // Resumes a panic as if it had happened in this task.
        Ok(Err(broken)) => match broken.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(super::cancelled_by_client()),
        },
        Err(failure) => {
            if call.cancel.is_cancelled() {
                making.abort();
            }
            Err(failure)
        }
    }
}

/// Returns the engine's request for a call of `create_sandbox`.
pub(crate) fn create_request(
    arguments: &mut Arguments,
    watch: Watch,
    consent: Consent,
) -> Result<CreateRequest, Failure> {
    Ok(CreateRequest {
        count: arguments
            .count("count")
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(1),
        key: arguments.text("key"),
        packages: arguments.texts("packages"),
        env: arguments.text_map("env"),
        memory: arguments.mebibytes("memory_mb"),
        cpus: arguments.number("cpus").map(milli),
        disk: arguments.mebibytes("disk_mb"),
        pauses_at_end: false,
        lifetime: arguments.seconds("lifetime_s"),
        idle: None,
        label: arguments.text("label"),
        backend: arguments.text("backend"),
        image: arguments.text("image"),
        network: arguments.texts("network"),
        watch,
        consent,
        from: from_of(arguments)?,
        functions: Vec::new(),
    })
}

/// The fields of a saved state, for programs.
fn saved_fields() -> [Field; 2] {
    [
        Field::new("from_saved", Kind::Text, json!("analysis")).hidden_if(true),
        Field::new("only_files", Kind::Flag, json!(true)).hidden_if(true),
    ]
}

/// Returns the state that new sandboxes go on from. An empty name is the default sandbox.
fn from_of(arguments: &mut Arguments) -> Result<Option<CreateFrom>, Failure> {
    let (from, checkpoint) = (arguments.text("from_sandbox"), arguments.text("from_checkpoint"));
    let (saved, only_files) = (arguments.text("from_saved"), arguments.flag("only_files"));
    if saved.is_some() && (from.is_some() || checkpoint.is_some()) {
        return Err(Failure::invalid(
            "from_saved cannot be combined with from_sandbox or from_checkpoint",
            "leave one of them out",
        ));
    }
    if only_files && saved.is_none() {
        return Err(Failure::invalid("only_files is for from_saved", "leave only_files out"));
    }
    if let Some(name) = saved {
        return Ok(Some(CreateFrom::Saved(SavedFrom { name, only_files })));
    }
    let from = (from.is_some() || checkpoint.is_some()).then_some(CreateFrom::Sandbox(BranchFrom {
        sandbox_id: from,
        checkpoint,
    }));
    Ok(from)
}

async fn create(call: Call) -> Result<Answer, Failure> {
    create_with(call, Vec::new()).await
}

/// Makes sandboxes whose code may call these functions of the caller's program.
pub(super) async fn create_with(mut call: Call, functions: Vec<FunctionSpec>) -> Result<Answer, Failure> {
    let wait = call.wait_limits.of(&mut call.arguments).time;
    let request = CreateRequest {
        functions,
        ..create_request(&mut call.arguments, call.watch.clone(), call.consent.clone())?
    };
    let views = make(&call, request, wait).await?;
    let Some(first) = views.first() else {
        return Err(Failure::new(
            Code::Internal,
            "the engine made no sandbox and gave no reason",
            "try again; tell the operator if it happens again",
        ));
    };
    let ids: Vec<&str> = views.iter().map(|view| view.id.as_str()).collect();
    let text = format!(
        "{} {}\nlimits: {}\nisolation: {} (back end {}){}\nends after {} without a call{}",
        if first.made_now {
            "created"
        } else {
            "nothing created; the sandbox with this key is"
        },
        ids.join(" "),
        limits_text(first),
        first.isolation.level,
        first.isolation.backend,
        degraded_text(first),
        rough(until(first.idle_expires)),
        first
            .ends
            .map_or_else(String::new, |ends| format!(", and at {} in any case", rfc3339(ends))),
    );
    let text = text + &execution::passed_over_lines(&first.skipped_backends);
    let data = json!({
        "sandbox_id": first.id,
        "sandbox_ids": ids,
        "limits": limits_data(first),
        "isolation": execution::isolation(&first.isolation, &first.skipped_backends),
        "idle_expires_at": rfc3339(first.idle_expires),
        "ends_at": first.ends.map(rfc3339),
        "created": first.made_now,
    });
    Ok(Answer::data(text, data))
}

/// Cores to thousandths of a core. The field's bounds keep it within the type.
fn milli(cpus: f64) -> Cpus {
    Cpus::milli(format!("{:.0}", cpus * 1000.0).parse().unwrap_or(u32::MAX))
}

fn until(time: SystemTime) -> Duration {
    // Rounded up, so that "30 min" stays "30 min" when a millisecond has passed.
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
}

fn limits_text(view: &SandboxView) -> String {
    let limits = &view.limits;
    format!(
        "{} MB memory, {} CPU, {} processes, {} MB disk",
        limits.memory.as_mib(),
        cores(limits.cpus),
        limits.processes,
        limits.disk.as_mib()
    )
}

fn cores(cpus: Cpus) -> f64 {
    f64::from(cpus.as_milli()) / 1000.0
}

fn limits_data(view: &SandboxView) -> Value {
    json!({
        "memory_mb": view.limits.memory.as_mib(),
        "cpus": cores(view.limits.cpus),
        "processes": view.limits.processes,
        "disk_mb": view.limits.disk.as_mib(),
        "inodes": view.limits.inodes,
    })
}

fn degraded_text(view: &SandboxView) -> String {
    if view.isolation.degraded.is_empty() {
        return String::new();
    }
    format!(", degraded: {}", shorten(&view.isolation.degraded.join("; "), 500))
}

pub(super) fn close_sandbox() -> Tool {
    Tool {
        name: "close_sandbox",
        description: "End a sandbox: its programs, variables and files are gone. Frees room for others.".into(),
        fields: vec![sandbox_field().required()],
        output: None,
        effect: Effect::Removes,
        run: |call| close(call).boxed(),
    }
}

async fn close(mut call: Call) -> Result<Answer, Failure> {
    let id = call.arguments.required_text("sandbox_id")?;
    let closed = call.engine.close(&call.caller, &id).await?;
    Ok(Answer::text(format!("closed {closed}")).with_meta("sandcell/sandbox", json!({"closed": closed})))
}

pub(super) fn get_sandbox_status() -> Tool {
    Tool {
        name: "get_sandbox_status",
        description:
            "Status of a sandbox: state, expiry, memory, CPU, disk and processes against their limits, what the \
                      last executions added to memory, live sessions with their variables, checkpoints, and isolation. Without \
                      sandbox_id: all of yours, one per line."
                .into(),
        fields: vec![sandbox_field()],
        output: Some(schema::output_list(
            &[],
            "sandboxes",
            &[
                ("sandbox_id", "string"),
                ("state", "string"),
                ("idle_expires_at", "string"),
            ],
        )),
        effect: Effect::Reads,
        run: |call| status(call).boxed(),
    }
}

async fn status(mut call: Call) -> Result<Answer, Failure> {
    let id = call.arguments.text("sandbox_id");
    let views = call.engine.status(&call.caller, id.as_deref()).await?;
    let text = match (&id, views.as_slice()) {
        (_, []) => "you have no sandbox; execute_code makes one".to_owned(),
        (Some(_), [one]) => details(one),
        _ => views.iter().map(line).collect::<Vec<_>>().join("\n"),
    };
    let data: Vec<Value> = views.iter().map(data).collect();
    Ok(Answer::data(text, json!({"sandboxes": data})))
}

/// `sb… (default) idle, memory 40/512 MB, python session (3 cells), 5 min old, ends in 29 min without a call`
fn line(view: &SandboxView) -> String {
    let mut text = name(view);
    let _ = write!(text, " {}", view.state);
    if let Some(usage) = &view.usage {
        let _ = write!(
            text,
            ", memory {}/{} MB",
            usage.memory >> 20,
            view.limits.memory.as_mib()
        );
    }
    let sessions = sessions(view);
    if !sessions.is_empty() {
        let _ = write!(text, ", {sessions}");
    }
    let _ = write!(
        text,
        ", {} old, ends in {} without a call",
        rough(age(view)),
        rough(until(view.idle_expires))
    );
    if let Some(ends) = view.ends {
        let _ = write!(text, ", in {} in any case", rough(until(ends)));
    }
    text
}

fn age(view: &SandboxView) -> Duration {
    SystemTime::now().duration_since(view.created).unwrap_or_default()
}

fn name(view: &SandboxView) -> String {
    let mut text = view.id.to_string();
    if let Some(label) = &view.label {
        let _ = write!(text, " {label:?}");
    }
    if let Some(key) = &view.key {
        let _ = write!(text, " key {key:?}");
    }
    if view.is_default {
        text.push_str(" (default)");
    }
    text
}

fn sessions(view: &SandboxView) -> String {
    let sessions: Vec<String> = view
        .sessions
        .iter()
        .map(|session| {
            let busy = if session.busy { ", busy" } else { "" };
            format!("{} session ({} cells{busy})", session.language, session.cells)
        })
        .collect();
    sessions.join(", ")
}

/// A line for each variable, the largest number of them that fits; the previews are text from inside, on one line each.
fn variables_text(session: &SessionView) -> String {
    let Some(variables) = &session.variables else {
        return if session.busy {
            format!("\nvariables of {}: not read while it is busy", session.language)
        } else {
            String::new()
        };
    };
    let mut text = format!("\nvariables of {}: {}", session.language, variables.len());
    for (number, variable) in variables.iter().enumerate() {
        if text.len() > VARIABLES_BYTES {
            let _ = write!(text, "\n  and {} more", variables.len() - number);
            break;
        }
        let _ = write!(text, "\n  {}: {}", one_line(&variable.name), one_line(&variable.kind));
        if !variable.shape.is_empty() {
            let _ = write!(text, " [{}]", one_line(&variable.shape));
        }
        if variable.bytes >= 1 << 20 {
            let _ = write!(text, ", {} MB", variable.bytes >> 20);
        } else if variable.bytes >= 10_000 {
            let _ = write!(text, ", {} KB", variable.bytes >> 10);
        }
        if !variable.preview.is_empty() && !variable.preview.starts_with('<') {
            let _ = write!(text, " = {}", one_line(&variable.preview));
        }
    }
    text
}

/// A line for each of the last executions: the memory added, and the peak.
fn growth_text(growth: &[MemoryGrowth]) -> String {
    let mut text = String::new();
    for (number, one) in growth.iter().enumerate() {
        if number == 0 {
            text.push_str("\nmemory added by the last executions:");
        }
        let _ = write!(text, "\n  {}: ", one.execution_id);
        match one.memory.map(execution::growth_mb) {
            Some(added) => {
                let _ = write!(text, "{added:+.1} MB");
            }
            None => text.push_str("under 5 ms, counted with the next"),
        }
        if let Some(peak) = one.peak {
            let _ = write!(text, " (peak {} MB)", peak.as_mib());
        }
    }
    text
}

fn details(view: &SandboxView) -> String {
    let mut text = format!(
        "{}: {}\ncreated {} ({} ago)",
        name(view),
        view.state,
        rfc3339(view.created),
        rough(age(view))
    );
    let _ = write!(text, ", ends at {} without a call", rfc3339(view.idle_expires));
    if let Some(ends) = view.ends {
        let _ = write!(text, ", at {} in any case", rfc3339(ends));
    }
    match &view.usage {
        Some(usage) => {
            let _ = write!(
                text,
                "\nmemory {} of {} MB (peak {}), disk {} of {} MB, processes {} of {}, CPU time {}.{} s (limit {} cores)",
                usage.memory >> 20,
                view.limits.memory.as_mib(),
                usage.memory_peak >> 20,
                usage.disk >> 20,
                view.limits.disk.as_mib(),
                usage.processes,
                view.limits.processes,
                usage.cpu_us / 1_000_000,
                usage.cpu_us / 100_000 % 10,
                cores(view.limits.cpus),
            );
        }
        None => {
            let _ = write!(text, "\nlimits: {} (use could not be read just now)", limits_text(view));
        }
    }
    let sessions = sessions(view);
    let _ = write!(
        text,
        "\nsessions: {}",
        if sessions.is_empty() { "none" } else { &sessions }
    );
    if !view.packages.is_empty() {
        let _ = write!(text, "\npackages: {}", shorten(&view.packages.join(", "), 2000));
    }
    if !view.network.is_empty() {
        let _ = write!(
            text,
            "\nnetwork: {} ({} KB carried)",
            shorten(&view.network.join(", "), 1000),
            view.network_bytes.div_ceil(1024)
        );
    }
    text.push_str(&checkpoints::lines(&view.checkpoints));
    text.push_str(&growth_text(&view.growth));
    for session in &view.sessions {
        text.push_str(&variables_text(session));
    }
    let _ = write!(
        text,
        "\nisolation: {} (back end {}), layers: {}{}",
        view.isolation.level,
        view.isolation.backend,
        view.isolation.layers.join(" "),
        degraded_text(view)
    );
    text.push_str(&execution::passed_over_lines(&view.skipped_backends));
    text
}

/// All data of a sandbox, for programs.
pub(crate) fn data(view: &SandboxView) -> Value {
    json!({
        "sandbox_id": view.id,
        "is_default": view.is_default,
        "state": view.state,
        "label": view.label,
        "key": view.key,
        "created_at": rfc3339(view.created),
        "age_s": age(view).as_secs(),
        "idle_expires_at": rfc3339(view.idle_expires),
        "idle_expires_in_s": until(view.idle_expires).as_secs(),
        "ends_at": view.ends.map(rfc3339),
        "ends_in_s": view.ends.map(|ends| until(ends).as_secs()),
        "limits": limits_data(view),
        "usage": view.usage.map(|usage| json!({
            "memory_mb": usage.memory >> 20,
            "memory_peak_mb": usage.memory_peak >> 20,
            "cpu_ms": usage.cpu_us / 1000,
            "processes": usage.processes,
            "disk_mb": usage.disk >> 20,
            "inodes": usage.inodes,
        })),
        "sessions": view.sessions.iter().map(|session| json!({
            "language": session.language,
            "cells": session.cells,
            "busy": session.busy,
            "variables": session.variables,
        })).collect::<Vec<_>>(),
        "checkpoints": view.checkpoints.iter().map(checkpoints::data).collect::<Vec<_>>(),
        "memory_growth": view.growth.iter().map(|one| json!({
            "execution_id": one.execution_id,
            "added_mb": one.memory.map(execution::growth_mb),
            "peak_mb": one.peak.map(execution::tenths_of_mib),
        })).collect::<Vec<_>>(),
        "packages": view.packages,
        "network": view.network,
        "network_bytes": view.network_bytes,
        "isolation": execution::isolation(&view.isolation, &view.skipped_backends),
    })
}
