//! Checks our dependencies: only crates.io, only compatible licences, and no known advisory where a tool can check.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{cargo, must, output, works};

/// Licences whose terms are met by shipping their text; for MPL-2.0 also by saying where the source is, which is crates.io,
/// since no dependency is changed (`version-ranges`, which pep508_rs needs for markers).
const ALLOWED_LICENCES: [&str; 16] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

pub fn run() -> Result<()> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--quiet"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?;
    let mut faults = BTreeSet::new();
    for package in packages {
        faults.extend(faults_of(package));
    }
    if !faults.is_empty() {
        bail!(
            "dependencies:\n  {}",
            faults.into_iter().collect::<Vec<_>>().join("\n  ")
        );
    }
    println!("  {} packages: sources and licences are fine", packages.len());
    advisories()
}

fn faults_of(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let mut faults = Vec::new();
    // Our own packages have no source.
    if let Some(source) = package["source"].as_str()
        && source != "registry+https://github.com/rust-lang/crates.io-index"
    {
        faults.push(format!("{name} comes from {source}, not from crates.io"));
    }
    match package["license"].as_str() {
        Some(expression) if allowed(expression) => {}
        Some(expression) => faults.push(format!("{name} is licensed as {expression}")),
        None => faults.push(format!("{name} names no licence")),
    }
    faults
}

/// Returns true when the expression can be met: every `AND` part needs one allowed `OR` choice. Old crates write `/`
/// for `OR`.
fn allowed(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|part| {
        part.split(" OR ")
            .any(|choice| ALLOWED_LICENCES.contains(&choice.split_whitespace().collect::<Vec<_>>().join(" ").as_str()))
    })
}

fn advisories() -> Result<()> {
    if works(cargo().args(["deny", "--version"])) {
        return must(cargo().args(["deny", "check", "advisories"]));
    }
    if works(cargo().args(["audit", "--version"])) {
        return must(cargo().args(["audit", "--deny", "warnings"]));
    }
    // Never required: neither tool is part of a toolchain, and both need the advisory database from the network.
    println!("skipped: advisories: neither cargo-deny nor cargo-audit is installed (cargo install cargo-audit)");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn licence_expressions_are_parsed() {
        assert!(allowed("MIT OR Apache-2.0"));
        assert!(allowed("MIT/Apache-2.0"));
        assert!(allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(allowed("GPL-3.0 OR MIT"));
        assert!(!allowed("GPL-3.0-only"));
        assert!(!allowed("MIT AND GPL-3.0"));
    }
}
