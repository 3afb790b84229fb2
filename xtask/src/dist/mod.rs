//! `cargo xtask dist`: one static binary, and the packages that it is handed out in.
//!
//! Everything is made from files of this workspace and of the build, with fixed times and in a fixed order, so the same
//! binary gives the same packages. Each package is then installed from its file alone, without a network and without
//! anything of the developer's environment, and the demo is run from there.

mod archive;
mod build;
mod packages;
mod sbom;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use sha2::{Digest as _, Sha256};

use crate::command::{cargo, output, root};

/// The target of what is handed out.
pub(super) const TARGET: &str = "x86_64-unknown-linux-musl";
/// Bytes that the binary may have.
const MOST: usize = 15 << 20;

#[derive(Args)]
pub struct DistArguments {
    /// Packs this binary instead of building one
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Where the packages go
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The name in registries of MCP servers, such as io.github.someone/sandcell
    #[arg(long, default_value = "local/sandcell")]
    name: String,
    /// Where the files will be found; server.json then names the bundle, too
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// What the packages are made of.
pub(super) struct Release {
    pub(super) version: String,
    pub(super) name: String,
    pub(super) url: Option<String>,
    pub(super) binary: Vec<u8>,
    pub(super) licence: Vec<u8>,
    pub(super) readme: String,
    pub(super) manual: Vec<u8>,
    /// Licences of what is inside.
    pub(super) notices: Vec<u8>,
    /// Name and description of each tool.
    pub(super) tools: Vec<(String, String)>,
}

pub fn run(arguments: &DistArguments) -> Result<()> {
    let out = arguments.out.clone().unwrap_or_else(|| root().join("target/dist"));
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("{} cannot be emptied", out.display()))?;
    }
    fs::create_dir_all(&out)?;
    let path = match &arguments.binary {
        Some(path) => fs::canonicalize(path)?,
        None => build::static_binary()?,
    };
    println!("dist: {}", path.display());
    let binary = fs::read(&path)?;
    if arguments.binary.is_none() {
        build::is_static(&path)?;
        if binary.len() > MOST {
            bail!("the binary has {} bytes, and {MOST} are what it may have", binary.len());
        }
    }
    println!("dist: {} bytes", binary.len());
    let metadata = sbom::metadata()?;
    let release = Release {
        version: version()?,
        name: arguments.name.clone(),
        url: arguments.url.clone(),
        binary,
        licence: fs::read(root().join("LICENSE"))?,
        readme: fs::read_to_string(root().join("README.md"))?,
        notices: sbom::notices(&metadata)?,
        manual: trial::manual(&path)?,
        tools: trial::tools(&path)?,
    };
    let mut files = packages::make(&release, &out)?;
    files.push(sbom::make(&metadata, &release.version, &out)?);
    sums(&out, &files)?;
    trial::all(&release, &out)?;
    println!("dist: all is in {}", out.display());
    Ok(())
}

fn version() -> Result<String> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps", "--quiet"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?;
    let ours = packages.iter().find(|package| package["name"] == "sandcell");
    let version = ours.and_then(|package| package["version"].as_str());
    Ok(version.context("cargo metadata does not know sandcell")?.to_owned())
}

/// SHA-256 in hexadecimal digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The checksums, as `sha256sum --check` reads them.
fn sums(out: &Path, files: &[PathBuf]) -> Result<()> {
    let mut lines = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let bytes = fs::read(file)?;
        println!("dist: {name} ({} bytes)", bytes.len());
        lines.push(format!("{}  {name}\n", digest(&bytes)));
    }
    lines.sort();
    fs::write(out.join("SHA256SUMS"), lines.concat())?;
    Ok(())
}
