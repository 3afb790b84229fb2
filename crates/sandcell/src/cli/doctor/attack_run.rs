//! Runs the attacks in real sandboxes and judges the result of each.

use std::time::{Duration, Instant};

use sandcell_attacks::PRELUDE;
use sandcell_engine::{CreateRequest, Engine, ExecuteRequest, ExecutionView, Principal, Status};
use sandcell_sandbox::{ByteSize, Code, Failure};
use serde::Serialize;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use super::attacks::{Attack, ExpectedResult, FLOOD_ATTACKS, QUICK_ATTACKS};
use super::canary::Canaries;

/// The time limit of one attack: much longer than an attack takes, for slow machines.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit of a flood that never ends by itself.
const FLOOD_TIMEOUT: Duration = Duration::from_millis(400);

/// The result of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// The layer held.
    Held,
    /// The layer did not hold.
    Breached,
    /// The attack did not finish, for a reason other than the layer. It shows nothing.
    NotTried,
}

/// The report of one attack.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    /// The attack's description.
    pub(super) name: &'static str,
    /// The layer that must hold.
    pub(super) layer: &'static str,
    /// True when the layer held.
    pub(super) held: bool,
    /// The result as a state, which also covers an attack that shows nothing.
    pub(super) state: State,
    /// The finding, or the reason that there is none.
    pub(super) detail: String,
}

/// The results of all attacks.
#[derive(Debug, Default)]
pub(super) struct AttackRun {
    pub(super) results: Vec<Outcome>,
    pub(super) took: Duration,
}

impl AttackRun {
    /// Returns true when at least one attack was made and every attack was held.
    pub(super) fn held(&self) -> bool {
        !self.results.is_empty() && self.count(State::Held) == self.results.len()
    }

    /// Returns the number of attacks with this state.
    pub(super) fn count(&self, state: State) -> usize {
        self.results.iter().filter(|result| result.state == state).count()
    }

    /// Returns the reason that an attack could not be tried, if there is one.
    pub(super) fn skip_reason(&self) -> Option<&str> {
        let mut results = self.results.iter();
        results.find_map(|result| (result.state == State::NotTried).then_some(result.detail.as_str()))
    }
}

/// After this many consecutive attacks that could not be tried, the rest are skipped.
const MAX_FAILED_ATTACKS: usize = 3;

/// The name of the native back end.
pub(super) const NATIVE_BACKEND: &str = "native";
/// The layers that hold in place of a layer that this machine cannot provide.
const SUBSTITUTE_LAYERS: &str = "landlock, seccomp";

/// Attacks two sandboxes: a default one, and a small one for floods. `absent` lists the layers that this machine cannot
/// provide. Without them a flood may end the sandbox, so each flood gets a separate sandbox. `weaker` lists the layers
/// in a weaker form: an attack whose finding their reports already state is left out. Returns the failure if the first
/// sandbox cannot be made, since then nothing was attacked.
pub(super) async fn run(engine: &Arc<Engine>, absent: &[String], weaker: &[String]) -> Result<AttackRun, Failure> {
    let started = Instant::now();
    let mut results = Vec::new();
    let usual = CreateRequest {
        count: 1,
        label: Some("doctor".to_owned()),
        ..CreateRequest::default()
    };
    let small = CreateRequest {
        memory: Some(ByteSize::mib(128)),
        disk: Some(ByteSize::mib(32)),
        ..usual.clone()
    };
    let floods = FLOOD_ATTACKS.chunks(if absent.is_empty() { FLOOD_ATTACKS.len() } else { 1 });
    let rounds = std::iter::once((usual, QUICK_ATTACKS.as_slice())).chain(floods.map(|floods| (small.clone(), floods)));
    for (request, attacks) in rounds {
        match AttackedSandbox::open(engine, request).await {
            Ok(attacked) => results.extend(attacked.make_attacks(attacks, !absent.is_empty(), weaker).await),
            Err(failure) if results.is_empty() => return Err(failure),
            Err(failure) => results.extend(attacks.iter().map(|attack| not_tried(attack, &reason_of(&failure)))),
        }
    }
    for result in &mut results {
        if absent.iter().any(|layer| layer == result.layer) {
            result.layer = SUBSTITUTE_LAYERS;
        }
    }
    Ok(AttackRun {
        results,
        took: started.elapsed(),
    })
}

/// Returns the outcome of an attack that could not be made.
fn not_tried(attack: &Attack, reason: &str) -> Outcome {
    outcome(attack, State::NotTried, reason.to_owned())
}

fn reason_of(failure: &Failure) -> String {
    format!("{} ({})", failure.message, super::without_doctor(&failure.remedy))
}

fn outcome(attack: &Attack, state: State, detail: String) -> Outcome {
    Outcome {
        name: attack.name,
        layer: attack.layer,
        held: state == State::Held,
        state,
        detail,
    }
}

/// A sandbox under attack.
struct AttackedSandbox<'a> {
    engine: &'a Arc<Engine>,
    caller: Principal,
    sandbox: String,
    /// True when another back end than the native one made the sandbox.
    foreign: bool,
    canary: Canaries,
}

impl<'a> AttackedSandbox<'a> {
    async fn open(engine: &'a Arc<Engine>, request: CreateRequest) -> Result<Self, Failure> {
        let canary = Canaries::new().map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("no listener could be set up: {error}"),
                "allow local sockets and try again",
            )
        })?;
        let caller = Principal("doctor".into());
        let made = engine.create(&caller, request).await?;
        let first = made.first();
        let first = first.ok_or_else(|| Failure::new(Code::Internal, "no sandbox was made", "try again"))?;
        Ok(Self {
            engine,
            caller,
            sandbox: first.id.as_str().to_owned(),
            foreign: first.isolation.backend != NATIVE_BACKEND,
            canary,
        })
    }

    async fn make_attacks(&self, attacks: &'static [Attack], fenced: bool, weaker: &[String]) -> Vec<Outcome> {
        let mut results = Vec::new();
        let mut ready = false;
        let mut lost_on_end = 0;
        let already_reported =
            |attack: &&Attack| attack.reported_when_weaker && weaker.iter().any(|layer| layer == attack.layer);
        let tried = attacks.iter().filter(|attack| attack.everywhere || !self.foreign);
        for attack in tried.filter(|attack| !already_reported(attack)) {
            if lost_on_end >= MAX_FAILED_ATTACKS {
                results.push(not_tried(attack, "those before it could not be tried either"));
                continue;
            }
            // An earlier attack may have ended the session.
            if !ready
                && let Err(failure) = self
                    .execute(&format!("{}{PRELUDE}", self.canary.words()), ATTACK_TIMEOUT)
                    .await
            {
                results.push(not_tried(attack, &reason_of(&failure)));
                lost_on_end += 1;
                continue;
            }
            let limit = if attack.code.starts_with("while True") {
                FLOOD_TIMEOUT
            } else {
                ATTACK_TIMEOUT
            };
            let outcome = match self.execute(attack.code, limit).await {
                Ok(view) => {
                    ready = view.status == Status::Ok && !view.state_lost;
                    judge(attack, &view, self.canary.was_touched(), fenced)
                }
                Err(failure) => {
                    ready = false;
                    not_tried(attack, &reason_of(&failure))
                }
            };
            lost_on_end = if outcome.state == State::NotTried {
                lost_on_end + 1
            } else {
                0
            };
            results.push(outcome);
        }
        // The engine's end closes a sandbox that this leaves.
        let _already_gone = self.engine.close(&self.caller, &self.sandbox).await;
        results
    }

    async fn execute(&self, code: &str, timeout: Duration) -> Result<ExecutionView, Failure> {
        let request = ExecuteRequest {
            code: code.to_owned(),
            language: "python".to_owned(),
            sandbox_id: Some(self.sandbox.clone()),
            stdin: None,
            timeout: Some(timeout),
            wait: None,
            watch: sandcell_engine::Watch::default(),
            ..ExecuteRequest::default()
        };
        self.engine
            .execute(&self.caller, request, CancellationToken::new())
            .await
    }
}

/// Judges an attack by its output. `fenced`: there is no private root. A refused access to a host file is then the
/// promise of the level, and not an error of the attack.
fn judge(attack: &Attack, view: &ExecutionView, touched: bool, fenced: bool) -> Outcome {
    let last = view.stdout.text.lines().last().unwrap_or("").trim();
    let cause = view.cause.as_ref().map(|cause| cause.code);
    let ended_as_wanted = match attack.expect {
        ExpectedResult::Held => false,
        ExpectedResult::HeldOrCause(codes) => cause.is_some_and(|cause| codes.contains(&cause)),
    };
    let said_held = view.status == Status::Ok && last.starts_with("HELD");
    let detail = match (touched, &view.error, &view.cause) {
        (true, _, _) => "a listener of this machine was reached".to_owned(),
        (_, Some(error), _) => error.traceback.lines().last().unwrap_or("").to_owned(),
        (_, None, Some(cause)) => cause.message.clone(),
        (_, None, None) => last.to_owned(),
    };
    let state = if touched || last.starts_with("BREACH") {
        State::Breached
    } else if said_held || ended_as_wanted || (fenced && detail.starts_with("PermissionError: ")) {
        State::Held
    } else {
        // Something else ended it: a time limit too short for this machine, an outside event, or an error of the
        // attack.
        State::NotTried
    };
    let detail = match (state, detail.as_str()) {
        (State::NotTried, "") => "the attack reached no result".to_owned(),
        _ => detail,
    };
    outcome(attack, state, detail)
}
