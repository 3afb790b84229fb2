//! The contexts of the code interpreter. A context is a session: it keeps its variables.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::secrets::secret;

/// The folder in which contexts begin.
pub(crate) const DEFAULT_CWD: &str = "/home/user";
/// The maximum number of contexts of a sandbox.
const MAX_CONTEXTS: usize = 64;

/// The contexts of a sandbox.
#[derive(Default)]
pub(crate) struct Contexts(Mutex<Vec<Arc<Context>>>);

/// A session of the code interpreter.
pub(crate) struct Context {
    pub(crate) id: String,
    pub(crate) language: String,
    pub(crate) cwd: String,
    /// True for the context of requests that name only this language.
    is_default: bool,
    /// The number of executions since its last start.
    pub(crate) count: AtomicU64,
    /// Held during an execution, so that its environment variables are not seen by another one.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Context {
    /// Returns the name of its session in the engine.
    pub(crate) fn session(&self) -> Option<String> {
        (!self.is_default).then(|| self.id.clone())
    }

    pub(crate) fn view(&self) -> Value {
        json!({"id": self.id, "language": self.language, "cwd": self.cwd})
    }
}

impl Contexts {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Context>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes all contexts: the default ones first.
    pub(crate) fn views(&self) -> Vec<Value> {
        let all = self.all();
        let (default, made): (Vec<_>, Vec<_>) = all.iter().partition(|context| context.is_default);
        default.into_iter().chain(made).map(|context| context.view()).collect()
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<Context>, Problem> {
        let all = self.all();
        let found = all.iter().find(|context| context.id == id);
        found.cloned().ok_or_else(|| {
            let shown: String = id.chars().take(64).collect();
            Problem::not_found(format!("Context {shown} not found"))
        })
    }

    /// Returns the default context of a language.
    pub(crate) fn default_of(&self, language: &str) -> Result<Arc<Context>, Problem> {
        let mut all = self.all();
        let known = all
            .iter()
            .find(|context| context.is_default && context.language == language);
        if let Some(known) = known {
            return Ok(Arc::clone(known));
        }
        let context = new_context(language, DEFAULT_CWD, true)?;
        all.push(Arc::clone(&context));
        Ok(context)
    }

    pub(crate) fn add(&self, context: &Arc<Context>) -> Result<(), Problem> {
        let mut all = self.all();
        if all.len() >= MAX_CONTEXTS {
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!("the sandbox has {MAX_CONTEXTS} contexts, which is the maximum: remove some"),
            ));
        }
        all.push(Arc::clone(context));
        Ok(())
    }

    /// Returns the same contexts for a sandbox that goes on from the state of this one.
    pub(crate) fn copy(&self) -> Self {
        let all = self.all();
        let copies = all.iter().map(|context| {
            Arc::new(Context {
                id: context.id.clone(),
                language: context.language.clone(),
                cwd: context.cwd.clone(),
                is_default: context.is_default,
                count: AtomicU64::new(context.count.load(Ordering::Relaxed)),
                turn: Arc::default(),
            })
        });
        Self(Mutex::new(copies.collect()))
    }

    pub(crate) fn remove(&self, id: &str) {
        self.all().retain(|context| context.id != id);
    }
}

/// Returns a context of Python that has this id already: the session of this name.
pub(crate) fn with_id(id: String) -> Arc<Context> {
    Arc::new(Context {
        id,
        language: "python".to_owned(),
        cwd: DEFAULT_CWD.to_owned(),
        is_default: false,
        count: AtomicU64::new(0),
        turn: Arc::default(),
    })
}

pub(crate) fn new_context(language: &str, cwd: &str, is_default: bool) -> Result<Arc<Context>, Problem> {
    Ok(Arc::new(Context {
        id: secret()?,
        language: language.to_owned(),
        cwd: cwd.to_owned(),
        is_default,
        count: AtomicU64::new(0),
        turn: Arc::default(),
    }))
}
