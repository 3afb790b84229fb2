//! `cargo xtask check`: everything that can be known without running the product.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::command::{cargo, must, nothing_may_be_skipped, output};
use crate::test::SPECIAL_FEATURES;
use crate::{arch, audit};

/// Targets checked in addition to this machine's, with the packages that are checked. All but the native back end must at
/// least compile without Linux. Code for one processor, and all that depends on the size of C's types, is in `jail`.
const FOREIGN_TARGETS: [(&str, &[&str]); 3] = [
    ("aarch64-unknown-linux-gnu", &["--package", "sandcell-jail"]),
    ("aarch64-apple-darwin", &["--workspace"]),
    ("x86_64-pc-windows-msvc", &["--workspace"]),
];

pub fn run() -> Result<()> {
    step("format");
    must(cargo().args(["fmt", "--all", "--check"]))?;
    step("architecture");
    arch::run()?;
    step("dependencies");
    audit::run()?;
    step("lints");
    // Code that exists only in builds that are never shipped must be as clean as the rest, and the tests run on such a
    // build. The whole workspace is checked: a part of it would recompile shared crates with other features.
    for more in [
        &["--workspace"][..],
        &["--workspace", "--all-targets", "--features", SPECIAL_FEATURES],
        // Alone, since the program has all its features on, and it must do without.
        &[
            "--package",
            "sandcell-mcp",
            "--all-targets",
            "--features",
            "conformance,otel",
        ],
        // Not among all targets.
        &["--workspace", "--features", SPECIAL_FEATURES, "--test", "groups"],
    ] {
        let mut command = cargo();
        command.args(["clippy", "--quiet"]).args(more);
        must(command.args(["--", "-D", "warnings"]))?;
    }
    step("documentation");
    must(
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"),
    )?;
    for (target, packages) in FOREIGN_TARGETS {
        foreign(target, packages)?;
    }
    println!("check: all is well");
    Ok(())
}

fn foreign(target: &str, packages: &[&str]) -> Result<()> {
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
    // All that users get there; linted, since the code of other systems is seen nowhere else.
    command.args(["clippy", "--quiet", "--target", target]).args(packages);
    for (tool, path) in [("CC", stand_in("cc")?), ("AR", stand_in("ar")?)] {
        let variable = format!("{tool}_{}", target.replace('-', "_"));
        if std::env::var_os(&variable).is_none() {
            command.env(variable, path);
        }
    }
    must(command.args(["--", "-D", "warnings"]))
}

/// In place of a compiler or archiver for C (cryptography and SQLite are partly C): a check links nothing, so it is enough that
/// the files are there which they would have made. A real one is taken where `CC_<target>` and `AR_<target>` name it.
fn stand_in(name: &str) -> Result<PathBuf> {
    const STAND_IN_SCRIPT: &str = r#"#!/bin/sh
for word; do
  case $made in next) : >"$word" ;; esac
  made=
  case $word in
    -o) made=next ;;
    -Fo*) : >"${word#-Fo}" ;;
    -out:*) : >"${word#-out:}" ;;
    *.a | *.lib) : >"$word" ;;
  esac
done
"#;
    // A fixed location: a change of the compiler's path causes a rebuild.
    let own = std::env::current_exe()?;
    let folder = own.parent().unwrap_or(&own).join("stand-ins");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(name);
    if !std::fs::read(&path).is_ok_and(|there| there == STAND_IN_SCRIPT.as_bytes()) {
        std::fs::write(&path, STAND_IN_SCRIPT)?;
        #[cfg(unix)]
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    Ok(path)
}

fn has_std(target: &str) -> Result<bool> {
    let folder = output(std::process::Command::new("rustc").args(["--print", "target-libdir", "--target", target]))?;
    Ok(std::path::Path::new(folder.trim()).is_dir())
}

fn step(name: &str) {
    println!("check: {name}");
}
