//! For the feature `docker`: builds the agent as a program that needs nothing of the image it is put into, so that it can
//! be embedded.
//!
//! The agent is a program of this workspace; cargo has no stable way to embed one in another, so it is called again, with
//! a target folder of its own below the outer one's. Where the agent cannot be built (a foreign target without a linker)
//! nothing is embedded, cargo says so, and the back end refuses to work. `SANDCELL_AGENT` names one that was built
//! elsewhere.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a build script fails by panicking and talks to cargo on stdout"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "sandcell-agent";

fn main() {
    println!("cargo::rerun-if-env-changed=SANDCELL_AGENT");
    if std::env::var_os("CARGO_FEATURE_DOCKER").is_none() {
        println!("cargo::rerun-if-changed=build.rs");
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let embedded = out.join("agent");
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    for watched in [
        "agent/src",
        "agent/Cargo.toml",
        "jail/src",
        "jail/policy",
        "sandbox/src",
    ] {
        println!("cargo::rerun-if-changed={}", crates.join(watched).display());
    }
    match std::env::var_os("SANDCELL_AGENT") {
        Some(built) => {
            println!("cargo::rerun-if-changed={}", Path::new(&built).display());
            std::fs::copy(&built, &embedded).expect("SANDCELL_AGENT names a file that can be read");
        }
        None => match build(&crates, &out) {
            Ok(built) => {
                std::fs::copy(built, &embedded).expect("the agent that was built can be copied");
            }
            Err(reason) => {
                println!("cargo::warning=no agent for containers in this build: {reason}");
                std::fs::write(&embedded, []).expect("the output folder is writable");
            }
        },
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("cargo sets its variables")
}

/// Builds the agent for the target's architecture, linked statically, and returns where it is.
fn build(crates: &Path, out: &Path) -> Result<PathBuf, String> {
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    // Rust brings its own C library for musl; the distribution's is enough where the target is the machine itself.
    let musl = format!("{arch}-unknown-linux-musl");
    let gnu = format!("{arch}-unknown-linux-gnu");
    let target = if installed(&musl) {
        musl
    } else if variable("HOST") == gnu {
        gnu
    } else {
        return Err(format!("the target {musl} is not installed (rustup target add {musl})"));
    };
    // One folder for all profiles: `target/[triple/]debug/build/<crate>/out` is below it.
    let outer = out.ancestors().nth(4).unwrap_or(out);
    let folder = outer.join("agent");
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(crates)
        .args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            NAME,
            "--bin",
            NAME,
        ])
        .args(["--no-default-features", "--target", &target, "--target-dir"])
        .arg(&folder);
    // What the outer cargo, a linter or a coverage tool wants of its own build is not for this one.
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
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
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
    Ok(folder.join(target).join("release").join(NAME))
}

/// Whether the standard library for this target is here.
fn installed(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let asked = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .output();
    asked.is_ok_and(|output| {
        output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    })
}
