//! Advice on code before it runs. Advice, never protection: the sandbox is what holds.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// What is true where the code will run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// Whether anything outside the sandbox can be reached.
    pub network: bool,
    /// Whether standard input holds something.
    pub stdin: bool,
    /// Modules that can be imported beside the language's own; none where that is not known.
    pub modules: Option<BTreeSet<String>>,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Will most likely not do what was meant.
    Warn,
    /// What the strict profile does not run.
    Deny,
}

/// Something that was noticed about code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule's name, such as `missing-import`.
    pub rule: String,
    /// How much it matters.
    pub severity: Severity,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, in characters.
    pub column: u32,
    /// What was noticed and what to do about it.
    pub message: String,
}
