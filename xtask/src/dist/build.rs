//! The static binaries. `zig cc` compiles their C code (cryptography, SQLite): it has the headers of musl for any
//! machine, while the system's compiler would use those of another C library. Rust brings musl itself and a linker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Machine;
use crate::command::{cargo, must, output, root, works};

/// Names the Python that has `ziglang`.
const PYTHON_VARIABLE: &str = "SANDCELL_DIST_PYTHON";
/// Bytes that a binary may have.
const MAX_BINARY_BYTES: usize = 15_000_000;
/// Rust's own linker, for any machine: equal functions once, and places that move with the program as bits instead of 24
/// bytes each. With frame pointers the tables for unwinding are a quarter smaller, and the code is no larger.
const SIZE_FLAGS: [&str; 5] = [
    "-Clinker=rust-lld",
    "-Clinker-flavor=ld.lld",
    "-Clink-arg=--icf=all",
    "-Clink-arg=-zpack-relative-relocs",
    "-Cforce-frame-pointers=yes",
];
/// Parts of SQLite that sandcell does not use.
const SQLITE_FLAGS: &str = "-USQLITE_ENABLE_FTS3 -USQLITE_ENABLE_FTS3_PARENTHESIS -USQLITE_ENABLE_FTS5 -USQLITE_ENABLE_RTREE \
                       -USQLITE_ENABLE_DBSTAT_VTAB -USQLITE_ENABLE_STAT4 -USQLITE_SOUNDEX -DSQLITE_OMIT_JSON \
                       -USQLITE_ENABLE_LOAD_EXTENSION -DSQLITE_OMIT_LOAD_EXTENSION";

pub(super) fn static_binary(machine: &Machine) -> Result<PathBuf> {
    let target = machine.target;
    let folder = output(Command::new("rustc").args(["--print", "target-libdir", "--target", target]))?;
    if !Path::new(folder.trim()).is_dir() {
        bail!("the standard library for {target} is missing: rustup target add {target}");
    }
    let python = std::env::var(PYTHON_VARIABLE).unwrap_or_else(|_| "python3".to_owned());
    if !works(Command::new(&python).args(["-m", "ziglang", "version"])) {
        bail!(
            "there is no `zig cc`: python3 -m venv V && V/bin/pip install ziglang==0.17.1, then {PYTHON_VARIABLE}=V/bin/python"
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
             exec '{python}' -m ziglang cc -target {}-linux-musl -fno-sanitize=undefined \"$@\"\n",
            machine.name
        ),
    )?;
    let archiver = tool(tools.path(), "ar", &format!("exec '{python}' -m ziglang ar \"$@\"\n"))?;
    let variable = target.replace('-', "_");
    let text = output(
        cargo()
            .args([
                "build",
                "--profile",
                "dist",
                "--target",
                target,
                "--package",
                "sandcell",
            ])
            .args(["--bin", "sandcell", "--no-default-features", "--features", "release"])
            .args(["--message-format", "json-render-diagnostics"])
            .env(format!("CC_{variable}"), compiler)
            .env(format!("AR_{variable}"), archiver)
            .env("LIBSQLITE3_FLAGS", SQLITE_FLAGS)
            .env("CARGO_ENCODED_RUSTFLAGS", flags()),
    )?;
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let made = lines
        .filter_map(|line| line["executable"].as_str().map(PathBuf::from))
        .next_back();
    let made = made.context("cargo made no binary")?;
    let bytes = fs::metadata(&made)?.len();
    ensure!(
        usize::try_from(bytes)? <= MAX_BINARY_BYTES,
        "{} has {bytes} bytes, and {MAX_BINARY_BYTES} are what it may have",
        made.display()
    );
    is_static(&made, machine)?;
    Ok(made)
}

/// Flags for a small binary, and flags that remove the paths of this machine from it.
fn flags() -> String {
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let mut flags = SIZE_FLAGS.map(str::to_owned).to_vec();
    flags.push(format!("--remap-path-prefix={}=/sandcell", root().display()));
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

/// A static binary names no interpreter that loads libraries for it. It is run where this machine, or `qemu-user`, can.
fn is_static(path: &Path, machine: &Machine) -> Result<()> {
    let text = output(
        Command::new("readelf")
            .args(["--wide", "--file-header", "--program-headers"])
            .arg(path),
    )?;
    ensure!(!text.contains("INTERP"), "{} is not static", path.display());
    ensure!(
        text.contains(machine.elf),
        "{} is not for {}",
        path.display(),
        machine.name
    );
    let emulator = format!("qemu-{}-static", machine.name);
    if machine.is_this() {
        must(Command::new(path).arg("--version"))
    } else if works(Command::new(&emulator).arg("--version")) {
        must(Command::new(&emulator).arg(path).arg("--version"))
    } else {
        println!(
            "dist: there is no {emulator}, so the binary for {} was not run",
            machine.name
        );
        Ok(())
    }
}
