//! Functions of the caller's program that code in its sandbox calls. The program fetches the calls and returns the
//! results; a request of the program waits for the next call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandcell_sandbox::{Code, Failure, FunctionSpec, Functions};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::api::sync::lock;
use crate::sandbox::sandboxes::Sandboxes;
use crate::{FunctionCall, FunctionResult, Principal};

/// The maximum number of functions of a sandbox.
const MAX_FUNCTIONS: usize = 128;
/// The maximum length of a name, a description and a schema.
const MAX_NAME_BYTES: usize = 64;
const MAX_DESCRIPTION_BYTES: usize = 8 << 10;
const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// The maximum number of calls that wait for the program or are in progress there.
const MAX_PENDING_CALLS: usize = 256;
/// The maximum number of calls in one answer to the program.
const MAX_CALLS_AT_ONCE: usize = 64;
/// The maximum length of an error's text.
const MAX_ERROR_CHARS: usize = 4000;

/// Checks the functions of a request.
pub(crate) fn check(functions: &[FunctionSpec]) -> Result<(), Failure> {
    let refuse = |why: String| {
        Err(Failure::invalid(
            format!("functions: {why}"),
            "give each function a name that is an identifier, a description and the JSON Schema of its arguments",
        ))
    };
    if functions.len() > MAX_FUNCTIONS {
        return refuse(format!("{} are more than {MAX_FUNCTIONS}", functions.len()));
    }
    for (number, function) in functions.iter().enumerate() {
        let name = &function.name;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let begins = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !begins || !name.chars().all(plain) || name.len() > MAX_NAME_BYTES {
            return refuse(format!("the name of number {} is not an identifier", number + 1));
        }
        if functions.iter().take(number).any(|other| other.name == *name) {
            return refuse(format!("{name} occurs twice"));
        }
        if function.description.len() > MAX_DESCRIPTION_BYTES || function.input_schema.len() > MAX_SCHEMA_BYTES {
            return refuse(format!("the description or the schema of {name} is too long"));
        }
    }
    Ok(())
}

/// The functions of one sandbox, and their calls.
#[derive(Debug)]
pub(crate) struct SandboxFunctions {
    specs: Vec<FunctionSpec>,
    state: Mutex<State>,
    /// Signals a new call.
    called: Notify,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    queue: VecDeque<FunctionCall>,
    pending: BTreeMap<u64, oneshot::Sender<Result<String, String>>>,
}

impl SandboxFunctions {
    pub(crate) fn new(specs: Vec<FunctionSpec>) -> Arc<Self> {
        Arc::new(Self {
            specs,
            state: Mutex::default(),
            called: Notify::new(),
        })
    }

    /// Delivers results. Those of calls that were given up are ignored.
    fn deliver(&self, results: Vec<FunctionResult>) {
        let mut state = lock(&self.state);
        for result in results {
            if let Some(waiting) = state.pending.remove(&result.id) {
                // The call may have been given up just now.
                let _ = waiting.send(result.value);
            }
        }
    }

    /// Waits for calls that were not handed out yet.
    async fn next(&self) -> Vec<FunctionCall> {
        loop {
            let mut called = std::pin::pin!(self.called.notified());
            called.as_mut().enable();
            let calls: Vec<FunctionCall> = {
                let mut state = lock(&self.state);
                let count = state.queue.len().min(MAX_CALLS_AT_ONCE);
                state.queue.drain(..count).collect()
            };
            if !calls.is_empty() {
                return calls;
            }
            called.await;
        }
    }
}

#[async_trait]
impl Functions for SandboxFunctions {
    fn list(&self) -> &[FunctionSpec] {
        &self.specs
    }

    async fn call(&self, name: &str, arguments: String) -> Result<String, Failure> {
        let (id, answer) = {
            let mut state = lock(&self.state);
            if state.pending.len() >= MAX_PENDING_CALLS {
                return Err(Failure::new(
                    Code::LimitReached,
                    format!("{MAX_PENDING_CALLS} calls of functions are in progress in this sandbox"),
                    "wait for some of them first",
                ));
            }
            state.last_id += 1;
            let id = state.last_id;
            let (send, answer) = oneshot::channel();
            state.pending.insert(id, send);
            state.queue.push_back(FunctionCall {
                id,
                name: name.to_owned(),
                arguments,
            });
            (id, answer)
        };
        let _given_up = GiveUp { of: self, id };
        self.called.notify_waiters();
        match answer.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Failure::new(
                Code::ToolFailed,
                error.chars().take(MAX_ERROR_CHARS).collect::<String>(),
                "correct the call according to the message, or continue without it",
            )),
            Err(_) => Err(Failure::new(
                Code::ToolUnavailable,
                format!("the program that made the sandbox gave no result of {name}"),
                "continue without it",
            )),
        }
    }
}

/// Removes a call that nobody waits for any more.
struct GiveUp<'a> {
    of: &'a SandboxFunctions,
    id: u64,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.of.state);
        state.pending.remove(&self.id);
        state.queue.retain(|call| call.id != self.id);
    }
}

impl Sandboxes {
    /// Delivers results of functions, and waits for the next calls: at most `wait`, and until the sandbox ends. It does
    /// not count as using the sandbox.
    pub(crate) async fn exchange_function_calls(
        &self,
        principal: &Principal,
        id: &str,
        results: Vec<FunctionResult>,
        wait: Duration,
    ) -> Result<Vec<FunctionCall>, Failure> {
        let Some(record) = self.registry.record(principal, id) else {
            // The reason why there is none.
            return match self.registry.find(principal, id) {
                Ok(_) => Err(crate::sandbox::state::no_sandbox(id)),
                Err(failure) => Err(failure),
            };
        };
        let functions = record.tools.functions().ok_or_else(|| {
            Failure::invalid(
                format!("sandbox {id} was made without functions"),
                "make it with create_sandbox_with_functions",
            )
        })?;
        functions.deliver(results);
        tokio::select! {
            biased;
            terminated = record.wait_closing() => Err(terminated.failure(&record.id)),
            calls = timeout(wait, functions.next()) => Ok(calls.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> FunctionSpec {
        FunctionSpec {
            name: name.to_owned(),
            description: String::new(),
            input_schema: "{}".to_owned(),
            read_only: false,
        }
    }

    #[test]
    fn functions_have_identifiers_as_names_and_each_name_once() {
        check(&[spec("add"), spec("_x1")]).unwrap();
        for wrong in ["", "1x", "a-b", "a b", "é", "__proto__\u{0}"] {
            assert!(check(&[spec(wrong)]).is_err(), "{wrong:?}");
        }
        assert!(
            check(&[spec("add"), spec("add")])
                .unwrap_err()
                .message
                .contains("twice")
        );
        let many: Vec<FunctionSpec> = (0..129).map(|n| spec(&format!("f{n}"))).collect();
        assert!(check(&many).is_err());
    }

    #[tokio::test]
    async fn a_call_waits_for_the_program_and_gets_its_result() {
        let functions = SandboxFunctions::new(vec![spec("add")]);
        let program = async {
            let calls = functions.next().await;
            assert_eq!((calls[0].id, calls[0].name.as_str()), (1, "add"));
            functions.deliver(vec![
                FunctionResult {
                    id: 99,
                    value: Ok("0".to_owned()),
                },
                FunctionResult {
                    id: 1,
                    value: Ok("3".to_owned()),
                },
            ]);
        };
        let (value, ()) = tokio::join!(functions.call("add", "{}".to_owned()), program);
        assert_eq!(value.unwrap(), "3");
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_is_not_handed_out() {
        let functions = SandboxFunctions::new(vec![spec("add")]);
        let short = Duration::from_millis(1);
        assert!(timeout(short, functions.call("add", "{}".to_owned())).await.is_err());
        assert!(timeout(short, functions.next()).await.is_err());
        assert!(lock(&functions.state).pending.is_empty());
    }
}
