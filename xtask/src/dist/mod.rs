//! `cargo xtask dist`: a static binary for each processor, and the packages that they are handed out in.
//!
//! Everything is made from files of this workspace and of the build, with fixed times and in a fixed order, so the same
//! binary gives the same packages. Each package for this machine is then installed from its file alone, without a network
//! and without anything of the developer's environment, and the demo is run from there.

mod archive;
mod build;
mod packages;
mod sbom;
mod trial;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use sha2::{Digest as _, Sha256};

use crate::command::{cargo, output, root};

/// A kind of machine that binaries are made for.
pub(super) struct Machine {
    /// As Rust, ELF's tools, Python and `uname -m` name its processor.
    pub(super) name: &'static str,
    /// As Node does.
    pub(super) node: &'static str,
    /// The machine's name in the output of `readelf`.
    elf: &'static str,
    pub(super) target: &'static str,
}

const TARGET_MACHINES: [Machine; 2] = [
    Machine {
        name: "x86_64",
        node: "x64",
        elf: "X86-64",
        target: "x86_64-unknown-linux-musl",
    },
    Machine {
        name: "aarch64",
        node: "arm64",
        elf: "AArch64",
        target: "aarch64-unknown-linux-musl",
    },
];

impl Machine {
    fn is_this(&self) -> bool {
        self.name == std::env::consts::ARCH
    }
}

#[derive(Args)]
pub struct DistArguments {
    /// Packs this binary, made for this machine, instead of building one for each processor
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

/// The inputs of the packages.
pub(super) struct Release {
    pub(super) version: String,
    pub(super) name: String,
    pub(super) url: Option<String>,
    pub(super) licence: Vec<u8>,
    pub(super) readme: String,
    pub(super) manual: Vec<u8>,
    pub(super) builds: Vec<Build>,
    /// Name and description of each tool.
    pub(super) tools: Vec<(String, String)>,
}

/// A binary, with its notices and contents list.
pub(super) struct Build {
    pub(super) machine: &'static Machine,
    pub(super) binary: Vec<u8>,
    /// Licences of the included software.
    pub(super) notices: Vec<u8>,
    /// The list of the included software.
    pub(super) contents: Vec<u8>,
}

pub fn run(arguments: &DistArguments) -> Result<()> {
    let out = arguments.out.clone().unwrap_or_else(|| root().join("target/dist"));
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("{} cannot be emptied", out.display()))?;
    }
    fs::create_dir_all(&out)?;
    let mut builds = Vec::new();
    let mut own = None;
    for machine in &TARGET_MACHINES {
        let path = match &arguments.binary {
            Some(_) if !machine.is_this() => continue,
            Some(path) => fs::canonicalize(path)?,
            None => build::static_binary(machine)?,
        };
        let binary = fs::read(&path)?;
        println!("dist: {} ({} bytes)", path.display(), binary.len());
        let metadata = sbom::metadata(machine)?;
        builds.push(Build {
            machine,
            binary,
            notices: sbom::notices(&metadata)?,
            contents: sbom::document(&metadata)?,
        });
        if machine.is_this() {
            own = Some(path);
        }
    }
    let own = own.context("nothing is made for machines such as this one")?;
    let release = Release {
        version: version()?,
        name: arguments.name.clone(),
        url: arguments.url.clone(),
        licence: fs::read(root().join("LICENSE"))?,
        readme: fs::read_to_string(root().join("README.md"))?,
        manual: trial::manual(&own)?,
        builds,
        tools: trial::tools(&own)?,
    };
    let files = packages::make(&release, &out)?;
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
