//! The control plane: creates, lists, describes and ends sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use sandcell_engine::{BranchFrom, CreateFrom, CreateRequest, MAX_LIFETIME, Principal, SandboxView, SavedFrom};
use sandcell_mcp::{EndpointBody, EndpointRequest};
use sandcell_sandbox::{Consent, parse_rfc3339, rfc3339_millis};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::InSandbox;
use crate::contexts::with_id;
use crate::limits::{CLIENT_ID, DEFAULT_TIMEOUT, ENVD_VERSION, OLD_DEFAULT_TIMEOUT};
use crate::problem::Problem;
use crate::registry::{Sandbox, Terms};
use crate::routes::Operation;
use crate::{State, answer, logs, ports, process, snapshots};

/// The states of a sandbox.
const RUNNING_STATE: &str = "running";
const PAUSED_STATE: &str = "paused";
/// The maximum number of sandboxes on one page of the list.
const MAX_PAGE: usize = 100;
/// The maximum time until the program of a template has started.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of forks in one request.
const MAX_FORKS: u32 = 20;
/// The maximum length of an idempotency key.
const MAX_KEY_BYTES: usize = 80;
/// The prefix of keys of sandboxes, so that they differ from those of other interfaces.
const KEY_PREFIX: &str = "e2b-";
/// The maximum number of metadata entries, and the maximum length of each name and value.
const MAX_METADATA: usize = 64;
const MAX_METADATA_BYTES: usize = 4096;
/// Hosts that mean the whole internet.
const ALL_TRAFFIC: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The body of a request for a sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NewSandbox {
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<NetworkRules>,
    volume_mounts: Option<Vec<Value>>,
    mcp: Option<Value>,
    iam: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AutoResume {
    enabled: bool,
}

/// A request to pause a sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PauseRequest {
    memory: Option<bool>,
}

/// A request for forks of a sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ForkRequest {
    timeout: Option<u64>,
    count: Option<u32>,
}

/// Network rules of a new sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NetworkRules {
    allow_public_traffic: Option<bool>,
    mask_request_host: Option<String>,
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// New network rules of a sandbox. They replace the old ones.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NetworkUpdate {
    allow_internet_access: Option<bool>,
    #[serde(flatten)]
    rules: NetworkRules,
}

impl NetworkRules {
    fn has_hosts(&self) -> bool {
        self.allow_out.is_some() || self.deny_out.is_some() || self.others.values().any(|value| !value.is_null())
    }
}

/// A number of seconds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Seconds {
    timeout: Option<u64>,
    duration: Option<u64>,
}

/// Answers a call of the control plane.
pub(crate) async fn answer(
    state: &Arc<State>,
    operation: Operation,
    id: Option<String>,
    request: EndpointRequest<'_>,
) -> Result<Response<EndpointBody>, Problem> {
    let caller = &request.caller;
    let find = || {
        let id = id.as_deref().unwrap_or_default();
        let found = state.sandboxes.of(caller, id);
        found
            .filter(|sandbox| state.engine.has_sandbox(&sandbox.owner, &sandbox.id))
            .ok_or_else(|| no_sandbox(id))
    };
    match operation {
        Operation::Create => {
            let key = match request.parts.headers.get("idempotency-key") {
                Some(key) => Some(idempotency_key(key)?),
                None => None,
            };
            let default = match request.parts.uri.path() {
                "/sandboxes" => OLD_DEFAULT_TIMEOUT,
                _ => DEFAULT_TIMEOUT,
            };
            create(state, caller, answer::read(&request.body)?, key, default).await
        }
        Operation::List => list(state, caller, request.parts.uri.query().unwrap_or_default()).await,
        Operation::Info => {
            let sandbox = find()?;
            let view = view(state, &sandbox).await?;
            Ok(answer::json(StatusCode::OK, &details(state, &sandbox, &view)))
        }
        Operation::Kill => {
            let sandbox = find()?;
            state.engine.close(&sandbox.owner, &sandbox.id).await?;
            state.sandboxes.forget(&sandbox.id);
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        Operation::Connect => {
            let sandbox = find()?;
            let asked: Seconds = answer::read(&request.body)?;
            let timeout = checked(asked.timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs))?;
            let engine = &state.engine;
            let status = if engine.resume(&sandbox.owner, &sandbox.id, Some(timeout)).await? {
                StatusCode::CREATED
            } else {
                extend(state, &sandbox, timeout).await?;
                StatusCode::OK
            };
            Ok(answer::json(status, &created(state, &sandbox)))
        }
        Operation::Pause => {
            let sandbox = find()?;
            let asked: PauseRequest = answer::read(&request.body)?;
            if asked.memory == Some(false) {
                return Err(Problem::unimplemented("pausing a sandbox without its processes"));
            }
            if !state.engine.pause(&sandbox.owner, &sandbox.id).await? {
                return Err(Problem::new(
                    StatusCode::CONFLICT,
                    format!("sandbox \"{}\" is paused already", sandbox.id),
                ));
            }
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        Operation::Snapshot => snapshots::create(state, &*find()?, answer::read(&request.body)?).await,
        Operation::Snapshots => snapshots::list(state, caller, request.parts.uri.query().unwrap_or_default()).await,
        Operation::DropSnapshot => {
            snapshots::remove(state, caller, &unescaped(id.as_deref().unwrap_or_default())).await
        }
        Operation::Fork => fork(state, &*find()?, answer::read(&request.body)?).await,
        Operation::Network => {
            let sandbox = find()?;
            let asked: NetworkUpdate = answer::read(&request.body)?;
            if asked.rules.allow_public_traffic.is_some() || asked.rules.mask_request_host.is_some() {
                return Err(Problem::unimplemented("changing the rules for ports of a live sandbox"));
            }
            let hosts = network(state, asked.allow_internet_access, asked.rules)?;
            state.engine.set_network(&sandbox.owner, &sandbox.id, &hosts).await?;
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        Operation::Timeout => {
            let sandbox = find()?;
            let asked: Seconds = answer::read(&request.body)?;
            let timeout = asked.timeout.ok_or_else(|| Problem::invalid("`timeout` is missing"))?;
            if timeout == 0 && sandbox.terms.pauses_at_end {
                state.engine.pause(&sandbox.owner, &sandbox.id).await?;
            } else if timeout == 0 {
                // The sandbox is to end now.
                state.engine.close(&sandbox.owner, &sandbox.id).await?;
                state.sandboxes.forget(&sandbox.id);
            } else {
                let timeout = checked(Duration::from_secs(timeout))?;
                state.engine.set_lifetime(&sandbox.owner, &sandbox.id, timeout)?;
            }
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        Operation::Refreshes => {
            let sandbox = find()?;
            let asked: Seconds = answer::read(&request.body)?;
            extend(
                state,
                &sandbox,
                asked.duration.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
            )
            .await?;
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        Operation::Metrics => {
            let sandbox = find()?;
            let view = view(state, &sandbox).await?;
            let now = unix_seconds(SystemTime::now());
            let asked = TimeRange::parse(request.parts.uri.query().unwrap_or_default());
            let metrics: Vec<Value> = asked.has(now).then(|| metrics(&view)).into_iter().collect();
            Ok(answer::json(StatusCode::OK, &metrics))
        }
        Operation::Logs(form) => {
            let sandbox = find()?;
            let view = view(state, &sandbox).await?;
            let query = request.parts.uri.query().unwrap_or_default();
            logs::answer(state, &sandbox, &view, query, form).await
        }
        Operation::Missing(what) => {
            if id.is_some() {
                find()?;
            }
            Err(Problem::unimplemented(what))
        }
    }
}

fn no_sandbox(id: &str) -> Problem {
    let id: String = id.chars().take(64).filter(char::is_ascii_graphic).collect();
    Problem::not_found(format!("sandbox \"{id}\" doesn't exist or you don't have access to it"))
}

/// Reads an idempotency key: letters, digits and dashes.
fn idempotency_key(key: &HeaderValue) -> Result<String, Problem> {
    let key = key.to_str().unwrap_or_default();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(fits) {
        return Err(Problem::invalid(format!(
            "the idempotency key has 1 to {MAX_KEY_BYTES} letters, digits, - and _"
        )));
    }
    Ok(format!("{KEY_PREFIX}{key}"))
}

async fn create(
    state: &Arc<State>,
    caller: &Principal,
    asked: NewSandbox,
    key: Option<String>,
    default_timeout: Duration,
) -> Result<Response<EndpointBody>, Problem> {
    let template = asked.template_id.unwrap_or_else(|| "base".to_owned());
    let name = snapshots::name_of(&template);
    let templates = &state.options.templates;
    let kind = templates.find(name);
    let snapshot = match kind {
        Some(_) => None,
        None => snapshots::find(state, caller, name).await?,
    };
    if snapshot.is_none() && kind.is_none() {
        let shown: String = template.chars().take(64).collect();
        return Err(Problem::not_found(format!(
            "template '{shown}' not found: this server has {}, and the snapshots of its sandboxes",
            templates.names().join(", ")
        )));
    }
    let kind = kind.unwrap_or_default();
    let pauses_at_end = asked.auto_pause == Some(true);
    if pauses_at_end && asked.auto_pause_memory == Some(false) {
        return Err(Problem::unimplemented("pausing a sandbox without its processes"));
    }
    if asked.volume_mounts.is_some_and(|mounts| !mounts.is_empty()) {
        return Err(Problem::unimplemented("volumes"));
    }
    if asked.mcp.is_some_and(|mcp| !mcp.is_null()) {
        return Err(Problem::unimplemented("MCP servers inside a sandbox"));
    }
    if asked.iam.is_some_and(|iam| !iam.is_null()) {
        return Err(Problem::unimplemented("identities of a sandbox"));
    }
    let metadata = asked.metadata.unwrap_or_default();
    let long = |text: &String| text.len() > MAX_METADATA_BYTES;
    if metadata.len() > MAX_METADATA || metadata.iter().any(|(name, value)| long(name) || long(value)) {
        return Err(Problem::invalid(format!(
            "the metadata has at most {MAX_METADATA} entries of {MAX_METADATA_BYTES} bytes"
        )));
    }
    let rules = asked.network.unwrap_or_default();
    let public = rules.allow_public_traffic.unwrap_or(state.options.public_ports);
    let host = rules.mask_request_host.clone();
    if host.as_deref().is_some_and(|host| ports::shown_host(host, 1).is_none()) {
        return Err(Problem::invalid("`maskRequestHost` is not a host"));
    }
    // A snapshot has the hosts of its sandbox unless the request has rules.
    let has_rules = asked.allow_internet_access == Some(false) || rules.has_hosts();
    let network = match network(state, asked.allow_internet_access, rules)? {
        _ if snapshot.is_some() && !has_rules => Vec::new(),
        hosts if snapshot.is_some() && hosts.is_empty() => vec!["none".to_owned()],
        hosts => hosts,
    };
    let mut env = kind.env.clone();
    env.extend(asked.env_vars.unwrap_or_default());
    let env = env_of_all(&template, env);
    let request = CreateRequest {
        key,
        env: env.clone(),
        lifetime: Some(checked(asked.timeout.map_or(default_timeout, Duration::from_secs))?),
        pauses_at_end,
        // Only the lifetime ends it, as with E2B.
        idle: Some(MAX_LIFETIME),
        network,
        from: snapshot.as_ref().map(|saved| {
            CreateFrom::Saved(SavedFrom {
                name: saved.name.clone(),
                only_files: false,
            })
        }),
        consent: Consent::CannotAsk,
        ..kind.request()
    };
    // The requested variables replace those of the snapshot, as in the engine.
    let saved_env = { snapshot.iter() }.flat_map(|saved| saved.env.clone());
    let terms = Terms {
        template,
        metadata,
        env: saved_env.chain(env).collect(),
        public,
        host,
        pauses_at_end,
        resumes: asked.auto_resume.is_some_and(|resume| resume.enabled),
    };
    let made = state.engine.create(caller, request).await?;
    let view = made.first().ok_or_else(|| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the engine made no sandbox and gave no reason",
        )
    })?;
    let sandbox = Sandbox::new(view, caller.clone(), terms)?;
    if let Some(session) = snapshot.and_then(|saved| saved.session_name) {
        sandbox.contexts.add(&with_id(session))?;
    }
    let sandbox = state.sandboxes.add(sandbox);
    if let Some(line) = kind.start.as_deref() {
        start(state, &sandbox, line).await?;
    }
    Ok(answer::json(StatusCode::CREATED, &created(state, &sandbox)))
}

/// Starts the program of a template, once for all requests with the same key. Without the program it is not a sandbox of this
/// kind, so the sandbox ends then.
async fn start(state: &Arc<State>, sandbox: &Arc<Sandbox>, line: &str) -> Result<(), Problem> {
    let call = InSandbox {
        state: Arc::clone(state),
        sandbox: Arc::clone(sandbox),
    };
    let starting = sandbox.start.get_or_try_init(|| process::start_line(&call, line));
    let started = tokio::time::timeout(START_TIMEOUT, starting).await.unwrap_or_else(|_| {
        let message = "the program of the template was not started in time: too many programs run";
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message))
    });
    if let Err(problem) = started {
        let _closed = state.engine.close(&sandbox.owner, &sandbox.id).await;
        state.sandboxes.forget(&sandbox.id);
        return Err(problem);
    }
    Ok(())
}

/// Makes sandboxes that go on from the files and variables of another one, all or none.
async fn fork(state: &Arc<State>, source: &Sandbox, asked: ForkRequest) -> Result<Response<EndpointBody>, Problem> {
    let count = asked.count.unwrap_or(1);
    if !(1..=MAX_FORKS).contains(&count) {
        return Err(Problem::invalid(format!("`count` is 1 to {MAX_FORKS}")));
    }
    let request = CreateRequest {
        count,
        from: Some(CreateFrom::Sandbox(BranchFrom {
            sandbox_id: Some(source.id.clone()),
            checkpoint: None,
        })),
        lifetime: Some(checked(asked.timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs))?),
        pauses_at_end: source.terms.pauses_at_end,
        idle: Some(MAX_LIFETIME),
        consent: Consent::CannotAsk,
        ..CreateRequest::default()
    };
    let made = state.engine.create(&source.owner, request).await?;
    let mut forks = Vec::with_capacity(made.len());
    for view in &made {
        let mut sandbox = Sandbox::new(view, source.owner.clone(), source.terms.clone())?;
        sandbox.contexts = source.contexts.copy();
        sandbox.file_metadata = source.file_metadata.copy();
        let sandbox = state.sandboxes.add(sandbox);
        forks.push(json!({"sandbox": created(state, &sandbox)}));
    }
    Ok(answer::json(StatusCode::CREATED, &forks))
}

/// Returns the environment variables of a new sandbox: the requested ones, and those by which programs know E2B.
fn env_of_all(template: &str, requested: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([
        ("E2B_SANDBOX".to_owned(), "true".to_owned()),
        ("E2B_TEMPLATE_ID".to_owned(), template.to_owned()),
    ]);
    env.extend(requested);
    env
}

/// Returns the hosts that a sandbox can reach: those that the operator allows, or the requested ones of them.
fn network(state: &State, internet: Option<bool>, rules: NetworkRules) -> Result<Vec<String>, Problem> {
    if let Some((name, _)) = rules.others.iter().find(|(_, value)| !value.is_null()) {
        return Err(Problem::unimplemented(&format!("the network rule `{name}`")));
    }
    let is_all = |host: &String| ALL_TRAFFIC.contains(&host.as_str());
    let denied = rules.deny_out.unwrap_or_default();
    let requested = rules.allow_out.unwrap_or_default();
    if denied.iter().any(|host| !is_all(host)) {
        return Err(Problem::unimplemented(
            "denying single hosts: deny all traffic and allow hosts",
        ));
    }
    if internet == Some(false) && requested.is_empty() {
        return Ok(Vec::new());
    }
    if !requested.is_empty() && !requested.iter().any(is_all) {
        return Ok(requested);
    }
    if !denied.is_empty() {
        return Ok(Vec::new());
    }
    let allowed = state.engine.network_allowed();
    let asks = state.engine.consent_required(None, &[], &allowed);
    Ok(if asks.is_empty() { allowed } else { Vec::new() })
}

fn checked(timeout: Duration) -> Result<Duration, Problem> {
    if timeout.is_zero() || timeout > MAX_LIFETIME {
        return Err(Problem::invalid(format!(
            "Timeout cannot be 0 or greater than {} seconds",
            MAX_LIFETIME.as_secs()
        )));
    }
    Ok(timeout)
}

/// Lets a sandbox live for at least this long from now.
async fn extend(state: &State, sandbox: &Sandbox, timeout: Duration) -> Result<(), Problem> {
    let timeout = checked(timeout)?;
    let ends = view(state, sandbox).await?.ends;
    let wanted = SystemTime::now() + timeout;
    if ends.is_none_or(|ends| ends < wanted) {
        state.engine.set_lifetime(&sandbox.owner, &sandbox.id, timeout)?;
    }
    Ok(())
}

async fn view(state: &State, sandbox: &Sandbox) -> Result<SandboxView, Problem> {
    let views = state.engine.status(&sandbox.owner, Some(&sandbox.id)).await?;
    views.into_iter().next().ok_or_else(|| no_sandbox(&sandbox.id))
}

/// Returns the answer to a creation.
fn created(state: &State, sandbox: &Sandbox) -> Value {
    json!({
        "templateID": sandbox.terms.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": sandbox.access_token,
        "trafficAccessToken": sandbox.traffic_token,
        "domain": state.options.domain,
    })
}

/// Returns the description of a sandbox.
fn details(state: &State, sandbox: &Sandbox, view: &SandboxView) -> Value {
    let mut details = listed(sandbox, view);
    if let Some(object) = details.as_object_mut() {
        object.insert("domain".to_owned(), state.options.domain.clone().into());
        object.insert("envdAccessToken".to_owned(), sandbox.access_token.clone().into());
        let at_end = if sandbox.terms.pauses_at_end { "pause" } else { "kill" };
        let lifecycle = json!({"autoResume": sandbox.terms.resumes, "onTimeout": at_end});
        object.insert("lifecycle".to_owned(), lifecycle);
    }
    details
}

/// Returns the description of a sandbox in a list.
fn listed(sandbox: &Sandbox, view: &SandboxView) -> Value {
    let ends = view.ends.unwrap_or(view.idle_expires);
    json!({
        "templateID": sandbox.terms.template,
        "alias": sandbox.terms.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "startedAt": rfc3339_millis(view.created),
        "endAt": rfc3339_millis(ends),
        "cpuCount": cores(view),
        "memoryMB": view.limits.memory.as_mib(),
        "diskSizeMB": view.limits.disk.as_mib(),
        "metadata": sandbox.terms.metadata,
        "state": if is_paused(view) { PAUSED_STATE } else { RUNNING_STATE },
        "envdVersion": ENVD_VERSION,
    })
}

fn is_paused(view: &SandboxView) -> bool {
    view.state == PAUSED_STATE
}

/// Returns the number of processors of a sandbox, rounded up: E2B has whole ones.
fn cores(view: &SandboxView) -> u32 {
    view.limits.cpus.as_milli().div_ceil(1000).max(1)
}

/// A filter and a page of the list.
#[derive(Debug, Default)]
struct ListQuery {
    metadata: BTreeMap<String, String>,
    /// The wanted states. Empty: all.
    states: Vec<String>,
    template: Option<String>,
    started_after: Option<SystemTime>,
    oldest_first: bool,
    limit: Option<usize>,
    after: Option<(u64, String)>,
}

impl ListQuery {
    fn parse(query: &str) -> Result<Self, Problem> {
        let mut parsed = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                // The value is again a query string. Its names and values are percent-encoded twice.
                "metadata" => {
                    let pairs = form_urlencoded::parse(value.as_bytes());
                    let pairs = pairs.map(|(name, value)| (unescaped(&name), unescaped(&value)));
                    parsed.metadata.extend(pairs);
                }
                "state" => {
                    let states = value.split(',').filter(|state| !state.is_empty());
                    parsed.states = states.map(str::to_owned).collect();
                    if parsed
                        .states
                        .iter()
                        .any(|state| ![RUNNING_STATE, PAUSED_STATE].contains(&state.as_str()))
                    {
                        return Err(Problem::invalid("`state` is running or paused"));
                    }
                }
                "template" => parsed.template = Some(value.into_owned()),
                "startedAfter" => {
                    let after = parse_rfc3339(&value);
                    parsed.started_after = Some(after.ok_or_else(|| Problem::invalid("`startedAfter` is not a time"))?);
                }
                "order" => match &*value {
                    "asc" => parsed.oldest_first = true,
                    "desc" => {}
                    _ => return Err(Problem::invalid("`order` is asc or desc")),
                },
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
                    parsed.limit = Some(limit.ok_or_else(|| Problem::invalid(format!("`limit` is 1 to {MAX_PAGE}")))?);
                }
                "nextToken" => {
                    let parts = value.split_once('-');
                    let after = parts.and_then(|(started, id)| Some((started.parse().ok()?, id.to_owned())));
                    parsed.after = Some(after.ok_or_else(|| Problem::invalid("`nextToken` is not one of this list"))?);
                }
                _ => {}
            }
        }
        Ok(parsed)
    }
}

/// Returns a text of a query without escapes.
fn unescaped(text: &str) -> String {
    let mut parsed = form_urlencoded::parse(text.as_bytes());
    parsed.next().map(|(name, _)| name.into_owned()).unwrap_or_default()
}

async fn list(state: &State, caller: &Principal, query: &str) -> Result<Response<EndpointBody>, Problem> {
    let query = ListQuery::parse(query)?;
    let views = state.engine.status(caller, None).await?;
    let started = |view: &SandboxView| {
        let since = view.created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    };
    let mut found: Vec<((u64, String), Value)> = views
        .iter()
        .filter_map(|view| Some((state.sandboxes.of(caller, view.id.as_str())?, view)))
        .filter(|(_, view)| {
            let word = if is_paused(view) { PAUSED_STATE } else { RUNNING_STATE };
            query.states.is_empty() || query.states.iter().any(|state| state == word)
        })
        .filter(|(_, view)| query.started_after.is_none_or(|after| view.created > after))
        .filter(|(sandbox, _)| {
            let of_template = |wanted: &String| *wanted == sandbox.terms.template;
            query.template.as_ref().is_none_or(of_template)
        })
        .filter(|(sandbox, _)| {
            let mut wanted = query.metadata.iter();
            wanted.all(|(name, value)| sandbox.terms.metadata.get(name) == Some(value))
        })
        .map(|(sandbox, view)| ((started(view), sandbox.id.clone()), listed(&sandbox, view)))
        .collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    if !query.oldest_first {
        found.reverse();
    }
    if let Some(after) = &query.after {
        found.retain(|(place, _)| {
            if query.oldest_first {
                place > after
            } else {
                place < after
            }
        });
    }
    let limit = query.limit.unwrap_or(MAX_PAGE);
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found
        .last()
        .filter(|_| more)
        .map(|((started, id), _)| format!("{started}-{id}"));
    let page: Vec<Value> = found.into_iter().map(|(_, listed)| listed).collect();
    let mut response = answer::json(StatusCode::OK, &page);
    if let Some(Ok(next)) = next.map(HeaderValue::try_from) {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

/// Returns the usage of a sandbox, as `envd` gives it.
pub(crate) async fn sandbox_metrics(state: &State, sandbox: &Sandbox) -> Result<Response<EndpointBody>, Problem> {
    let view = view(state, sandbox).await?;
    Ok(answer::json(StatusCode::OK, &metrics(&view)))
}

fn metrics(view: &SandboxView) -> Value {
    let now = SystemTime::now();
    let usage = view.usage.unwrap_or_default();
    let lived = now.duration_since(view.created).unwrap_or_default();
    let unix = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "timestamp": rfc3339_millis(now),
        "timestampUnix": unix.as_secs(),
        "cpuCount": cores(view),
        "cpuUsedPct": percent(usage.cpu_us, lived),
        "memUsed": usage.memory,
        "memTotal": view.limits.memory.as_bytes(),
        "memCache": 0,
        "diskUsed": usage.disk,
        "diskTotal": view.limits.disk.as_bytes(),
    })
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// A range of times in seconds since 1970. Both ends are optional.
#[derive(Debug, Default)]
struct TimeRange {
    start: Option<u64>,
    end: Option<u64>,
}

impl TimeRange {
    fn parse(query: &str) -> Self {
        let mut range = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "start" => range.start = value.parse().ok(),
                "end" => range.end = value.parse().ok(),
                _ => {}
            }
        }
        range
    }

    fn has(&self, time: u64) -> bool {
        self.start.is_none_or(|start| start <= time) && self.end.is_none_or(|end| time <= end)
    }
}

/// Returns the mean share of a processor since the creation, in percent with two decimals.
fn percent(cpu_us: u64, lived: Duration) -> f64 {
    let lived = lived.as_secs_f64().max(0.001);
    let used = Duration::from_micros(cpu_us).as_secs_f64();
    (used / lived * 10_000.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_filtered_by_metadata_and_state() {
        let query = ListQuery::parse("metadata=user%3Dann%252520b%26app%3Dx&state=running,paused&limit=5").unwrap();
        let metadata: Vec<(&str, &str)> = query.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(metadata, [("app", "x"), ("user", "ann b")]);
        assert_eq!(
            (query.limit, query.states),
            (Some(5), vec!["running".to_owned(), "paused".to_owned()])
        );
        let query = ListQuery::parse("order=asc&template=base&startedAfter=2026-01-01T00%3A00%3A00Z").unwrap();
        assert!(query.oldest_first && query.template.as_deref() == Some("base") && query.started_after.is_some());
        for bad in [
            "state=gone",
            "order=up",
            "startedAfter=x",
            "limit=0",
            "limit=101",
            "limit=x",
            "nextToken=x",
            "nextToken=1",
        ] {
            assert!(ListQuery::parse(bad).is_err(), "{bad}");
        }
        let next = ListQuery::parse("nextToken=17-sb1").unwrap();
        assert_eq!(next.after, Some((17, "sb1".to_owned())));
    }

    #[test]
    fn a_share_of_the_processor_is_a_percentage() {
        assert_eq!(percent(500_000, Duration::from_secs(2)), 25.0);
        assert_eq!(percent(0, Duration::ZERO), 0.0);
    }
}
