//! The static binary. What is C in it (cryptography, SQLite) is compiled by `zig cc`, which has the headers and the C
//! library of musl for any machine; the system's own compiler would take the headers of another C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::TARGET;
use crate::command::{cargo, must, output, root, works};

/// Names the Python that has `ziglang`.
const PYTHON: &str = "SANDCELL_DIST_PYTHON";

pub(super) fn static_binary() -> Result<PathBuf> {
    let folder = output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]))?;
    if !Path::new(folder.trim()).is_dir() {
        bail!("the standard library for {TARGET} is missing: rustup target add {TARGET}");
    }
    let python = std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned());
    if !works(Command::new(&python).args(["-m", "ziglang", "version"])) {
        bail!(
            "there is no `zig cc`: python3 -m venv V && V/bin/pip install ziglang==0.17.1, then {PYTHON}=V/bin/python"
        );
    }
    let tools = tempfile::Builder::new().prefix("cell-zig-").tempdir()?;
    // Zig knows the target by another name, so what others say about it is left out.
    let compiler = tool(
        tools.path(),
        "cc",
        &format!(
            "n=$#\nwhile [ \"$n\" -gt 0 ]; do\n  case $1 in --target=*) ;; *) set -- \"$@\" \"$1\" ;; esac\n  \
             shift\n  n=$((n - 1))\ndone\n\
             exec '{python}' -m ziglang cc -target x86_64-linux-musl -fno-sanitize=undefined \"$@\"\n"
        ),
    )?;
    let archiver = tool(tools.path(), "ar", &format!("exec '{python}' -m ziglang ar \"$@\"\n"))?;
    let text = output(
        cargo()
            .args([
                "build",
                "--profile",
                "dist",
                "--target",
                TARGET,
                "--package",
                "sandcell",
            ])
            .args(["--bin", "sandcell", "--message-format", "json-render-diagnostics"])
            .env("CC_x86_64_unknown_linux_musl", compiler)
            .env("AR_x86_64_unknown_linux_musl", archiver)
            // Paths of this machine are nobody's business.
            .env("CARGO_ENCODED_RUSTFLAGS", remapped()),
    )?;
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let made = lines
        .filter_map(|line| line["executable"].as_str().map(PathBuf::from))
        .next_back();
    made.context("cargo made no binary")
}

/// Flags that take the paths of this machine out of the binary.
fn remapped() -> String {
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let mut flags = vec![format!("--remap-path-prefix={}=/sandcell", root().display())];
    flags.extend(home.map(|home| format!("--remap-path-prefix={home}=/cargo")));
    flags.join("\u{1f}")
}

fn tool(folder: &Path, name: &str, script: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}"))?;
    #[cfg(unix)]
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

/// A static binary names no interpreter that loads libraries for it.
pub(super) fn is_static(path: &Path) -> Result<()> {
    let text = output(Command::new("readelf").args(["--wide", "--program-headers"]).arg(path))?;
    if text.contains("INTERP") {
        bail!("{} is not static", path.display());
    }
    must(Command::new(path).arg("--version"))
}
