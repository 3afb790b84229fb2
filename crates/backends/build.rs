//! Builds the agent for the features `docker` and `kubernetes`. The agent is a static program that needs nothing from the image it runs
//! in. It is built for each architecture that a daemon's machine may have, packed with deflate (half the size), and
//! embedded.
//!
//! The agent is a program of this workspace. Cargo has no stable way to embed one program in another, so this script
//! calls cargo again, with a separate target folder. The agent contains no C, and Rust ships musl's C library and a
//! linker for it, so a cross build needs only `rustup target add`. If the agent for the target's own architecture
//! cannot be built, cargo warns. The back end refuses a daemon for whose architecture there is no agent.
//! `SANDCELL_AGENT_X86_64` and `SANDCELL_AGENT_AARCH64` name agents that were built elsewhere. The program
//! `sandcell-loader` must lie in the same folder as each.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a build script fails by panicking and talks to cargo on stdout"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

const AGENT_PROGRAM: &str = "sandcell-agent";
/// The program that starts a compressed agent.
const LOADER_PROGRAM: &str = "sandcell-loader";
/// The architectures of daemons' machines.
const DAEMON_ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
/// Static linking at a fixed address.
const RUST_FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static";

fn main() {
    let wants = |feature| std::env::var_os(feature).is_some();
    if !wants("CARGO_FEATURE_DOCKER") && !wants("CARGO_FEATURE_KUBERNETES") {
        println!("cargo::rerun-if-changed=build.rs");
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    for watched in [
        "agent/src",
        "agent/Cargo.toml",
        "link/src",
        "link/Cargo.toml",
        "jail/src",
        "jail/policy",
        "sandbox/src",
    ] {
        println!("cargo::rerun-if-changed={}", crates.join(watched).display());
    }
    let mut wanted = Vec::new();
    for architecture in DAEMON_ARCHITECTURES {
        let name = format!("SANDCELL_AGENT_{}", architecture.to_uppercase());
        println!("cargo::rerun-if-env-changed={name}");
        match std::env::var_os(&name) {
            Some(built) => {
                println!("cargo::rerun-if-changed={}", Path::new(&built).display());
                embed(&out, architecture, Path::new(&built));
            }
            None => wanted.push((architecture, target(architecture))),
        }
    }
    // One cargo call for several targets is twice as fast as one call after the other.
    let musl: Vec<&str> = wanted
        .iter()
        .filter_map(|(_, target)| target.as_deref().ok())
        .filter(|target| target.ends_with("musl"))
        .collect();
    let folder = folder(&out);
    let all = build(
        &crates,
        &folder,
        &musl,
        &format!(
            "{RUST_FLAGS} -C linker=rust-lld -C linker-flavor=ld.lld -C link-arg=--icf=all -C force-frame-pointers=yes"
        ),
    );
    for (architecture, target) in wanted {
        let built = target.and_then(|target| {
            if target.ends_with("musl") {
                all.clone()?;
            } else {
                build(&crates, &folder, &[&target], RUST_FLAGS)?;
            }
            Ok(folder.join(target).join("release").join(AGENT_PROGRAM))
        });
        match built {
            Ok(built) => embed(&out, architecture, &built),
            Err(reason) => {
                if architecture == variable("CARGO_CFG_TARGET_ARCH") {
                    println!("cargo::warning=no agent for containers in this build: {reason}");
                }
                for program in [AGENT_PROGRAM, LOADER_PROGRAM] {
                    std::fs::write(embedded(&out, program, architecture), []).expect("the output folder is writable");
                }
            }
        }
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("cargo sets its variables")
}

fn embedded(out: &Path, program: &str, architecture: &str) -> PathBuf {
    out.join(format!("{program}-{architecture}"))
}

/// Embeds the agent `built`, and the loader of the same folder.
fn embed(out: &Path, architecture: &str, built: &Path) {
    for (program, path) in [
        (AGENT_PROGRAM, built.to_owned()),
        (LOADER_PROGRAM, built.with_file_name(LOADER_PROGRAM)),
    ] {
        let content = std::fs::read(path).expect("a program that was built can be read");
        let packed = miniz_oxide::deflate::compress_to_vec(&content, 10);
        std::fs::write(embedded(out, program, architecture), packed).expect("the output folder is writable");
    }
}

/// Returns the target folder of the agent builds: one for all profiles and targets.
fn folder(out: &Path) -> PathBuf {
    // `out` is `target/[triple/]debug/build/<crate>/out`.
    let outer = out.ancestors().nth(4).unwrap_or(out);
    let above = outer.parent().filter(|_| outer.ends_with(variable("TARGET")));
    above.unwrap_or(outer).join("agent")
}

/// Returns the target triple with which this machine can build the agent of an architecture.
fn target(architecture: &str) -> Result<String, String> {
    let musl = format!("{architecture}-unknown-linux-musl");
    let gnu = format!("{architecture}-unknown-linux-gnu");
    if installed(&musl) {
        Ok(musl)
    } else if variable("HOST") == gnu {
        // The distribution's C library suffices for the machine's own architecture.
        Ok(gnu)
    } else {
        Err(format!("the target {musl} is not installed (rustup target add {musl})"))
    }
}

/// Builds the agent for `targets`.
fn build(crates: &Path, folder: &Path, targets: &[&str], flags: &str) -> Result<(), String> {
    if targets.is_empty() {
        return Ok(());
    }
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(crates)
        .args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            AGENT_PROGRAM,
            "--bin",
            AGENT_PROGRAM,
            "--bin",
            LOADER_PROGRAM,
        ])
        .args(["--no-default-features", "--target-dir"])
        .arg(folder)
        .args(targets.iter().flat_map(|target| ["--target", target]));
    // Variables of the outer cargo, a linter or a coverage tool must not affect this build.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PROFILE_")
            || text.starts_with("CARGO_ENCODED_RUSTFLAGS")
            || text.starts_with("CARGO_FEATURE_")
            || matches!(
                text.as_ref(),
                "RUSTC_WRAPPER" | "RUSTC_WORKSPACE_WRAPPER" | "RUSTFLAGS" | "CLIPPY_ARGS"
            )
        {
            cargo.env_remove(&name);
        }
    }
    cargo
        .env("RUSTFLAGS", flags)
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "z")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat");
    let output = cargo
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().filter(|line| line.starts_with("error")).take(2).collect();
        return Err(format!("{}: {}", output.status, last.join("; ")));
    }
    Ok(())
}

/// Returns true if the standard library for this target is installed.
fn installed(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let asked = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .output();
    asked.is_ok_and(|output| {
        output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    })
}
