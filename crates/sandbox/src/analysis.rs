//! Advice on code before it runs. Advice is not protection: the sandbox protects.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Facts about the environment in which the code will run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// True if the code can reach anything outside the sandbox.
    pub network: bool,
    /// True if standard input is not empty.
    pub stdin: bool,
    /// Modules that can be imported, in addition to the standard library. None if unknown.
    pub modules: Option<BTreeSet<String>>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Information only.
    Info,
    /// The code most likely does not do what its author meant.
    Warn,
    /// The strict profile does not run this code.
    Deny,
}

/// One finding about a piece of code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule's name, such as `missing-import`.
    pub rule: String,
    /// The severity.
    pub severity: Severity,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, in characters.
    pub column: u32,
    /// The observation and the recommended change.
    pub message: String,
}
