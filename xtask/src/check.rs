//! `cargo xtask check`: everything that can be known without running the product.

use anyhow::{Result, bail};

use crate::command::{cargo, must, nothing_may_be_skipped, output};
use crate::{arch, audit};

/// Besides this machine's own: everything but the native back end must at least compile there.
const FOREIGN: [&str; 3] = [
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
];

pub fn run() -> Result<()> {
    step("format");
    must(cargo().args(["fmt", "--all", "--check"]))?;
    step("architecture");
    arch::run()?;
    step("dependencies");
    audit::run()?;
    step("lints");
    // What is only there in builds that are never shipped must be as clean as the rest.
    for more in [
        &["--workspace"][..],
        &[
            "--package",
            "sandcell",
            "--features",
            "fault-injection,conformance,otel",
        ],
        &["--package", "sandcell-mcp", "--features", "conformance,otel"],
    ] {
        let mut command = cargo();
        command.args(["clippy", "--all-targets", "--quiet"]).args(more);
        must(command.args(["--", "-D", "warnings"]))?;
    }
    step("documentation");
    must(
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"),
    )?;
    for target in FOREIGN {
        foreign(target)?;
    }
    println!("check: all is well");
    Ok(())
}

fn foreign(target: &str) -> Result<()> {
    step(&format!("compiles for {target}"));
    if !has_std(target)? {
        let remedy = format!("rustup target add {target}");
        if nothing_may_be_skipped() {
            bail!("the standard library for {target} is missing: {remedy}");
        }
        println!("skipped: check for {target}: its standard library is missing ({remedy})");
        return Ok(());
    }
    let mut command = cargo();
    command.args(["check", "--workspace", "--quiet", "--target", target]);
    // Without TLS for the server, whose cryptography is partly C.
    command.args(["--no-default-features", "--features", "sandcell/native"]);
    // A check links nothing, so the C code of what is left of it (the broker's, on Linux) needs no compiler for that target: one that does
    // nothing will do, unless a real one is named.
    for tool in ["CC", "AR"] {
        let variable = format!("{tool}_{}", target.replace('-', "_"));
        if std::env::var_os(&variable).is_none() {
            command.env(variable, "true");
        }
    }
    must(&mut command)
}

fn has_std(target: &str) -> Result<bool> {
    let folder = output(std::process::Command::new("rustc").args(["--print", "target-libdir", "--target", target]))?;
    Ok(std::path::Path::new(folder.trim()).is_dir())
}

fn step(name: &str) {
    println!("check: {name}");
}
