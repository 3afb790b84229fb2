//! The packages, each a function from the release to a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::archive::{Member, tar_gz, zip};
use super::{Build, Machine, Release, digest, wheel};

pub(super) const PACKAGE_SUMMARY: &str =
    "Runs code that AI agents write in a strict sandbox: an MCP server and a command line";
/// Starts the binary for the machine's processor, from the same folder.
const CHOOSER_SCRIPT: &str = "#!/bin/sh\nexec \"$(dirname \"$(readlink -f \"$0\")\")/sandcell-$(uname -m)\" \"$@\"\n";
/// The licences of the included software.
pub(super) const NOTICES_FILE: &str = "THIRD-PARTY-NOTICES.txt";
pub(super) const PACKAGE_KEYWORDS: [&str; 5] = ["mcp", "sandbox", "code-execution", "agents", "isolation"];

pub(super) fn make(release: &Release, out: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut bundles = Vec::new();
    for build in &release.builds {
        let machine = build.machine;
        let contents = format!("sandcell-{}-{}-linux.cdx.json", release.version, machine.name);
        files.push((contents, build.contents.clone()));
        files.push((tarball_name(release, machine), tarball(release, build)?));
        files.push((wheel::name(release, machine), wheel::make(release, build)?));
        bundles.push((bundle_name(release, machine), mcpb(release, build)?));
    }
    files.push((npm_name(release), npm(release)?));
    files.push(("server.json".to_owned(), server_json(release, &bundles)?));
    files.extend(bundles);
    let mut paths = Vec::new();
    for (name, bytes) in files {
        let path = out.join(name);
        fs::write(&path, bytes).with_context(|| format!("{} cannot be written", path.display()))?;
        paths.push(path);
    }
    Ok(paths)
}

pub(super) fn tarball_name(release: &Release, machine: &Machine) -> String {
    format!("sandcell-{}-{}-linux.tar.gz", release.version, machine.name)
}

pub(super) fn npm_name(release: &Release) -> String {
    format!("sandcell-{}.tgz", release.version)
}

pub(super) fn bundle_name(release: &Release, machine: &Machine) -> String {
    format!("sandcell-mcp-{}-{}-linux.mcpb", release.version, machine.name)
}

/// The readme, with the line by which registries of MCP servers see that a package is the server's own.
pub(super) fn readme(release: &Release) -> String {
    format!("{}\n<!-- mcp-name: {} -->\n", release.readme, release.name)
}

fn tarball(release: &Release, build: &Build) -> Result<Vec<u8>> {
    let folder = format!("sandcell-{}", release.version);
    tar_gz(&[
        Member::program(format!("{folder}/sandcell"), &build.binary),
        Member::text(format!("{folder}/sandcell.1"), release.manual.clone()),
        Member::text(format!("{folder}/LICENSE"), release.licence.clone()),
        Member::text(format!("{folder}/{NOTICES_FILE}"), build.notices.clone()),
        Member::text(format!("{folder}/README.md"), release.readme.clone()),
    ])
}

/// One package with the binaries for all processors: a second name for each would be one more to look after.
fn npm(release: &Release) -> Result<Vec<u8>> {
    let package = json!({
        "name": "sandcell",
        "version": release.version,
        "description": PACKAGE_SUMMARY,
        "license": "MIT",
        "keywords": PACKAGE_KEYWORDS,
        "mcpName": release.name,
        "os": ["linux"],
        "cpu": release.builds.iter().map(|build| build.machine.node).collect::<Vec<_>>(),
        "bin": {"sandcell": "bin/sandcell"},
        "files": ["bin", NOTICES_FILE],
    });
    let mut members = vec![
        Member::text("package/package.json", pretty(&package)?),
        Member::program("package/bin/sandcell", CHOOSER_SCRIPT.as_bytes()),
        Member::text("package/LICENSE", release.licence.clone()),
        Member::text("package/README.md", readme(release)),
    ];
    for build in &release.builds {
        let name = build.machine.name;
        members.push(Member::program(format!("package/bin/sandcell-{name}"), &build.binary));
        members.push(Member::text(
            format!("package/{name}-{NOTICES_FILE}"),
            build.notices.clone(),
        ));
    }
    tar_gz(&members)
}

/// The manifest of an MCP bundle.
pub(super) fn manifest(release: &Release) -> Value {
    let tools: Vec<Value> = release
        .tools
        .iter()
        .map(|(name, description)| json!({"name": name, "description": description}))
        .collect();
    json!({
        "manifest_version": "0.3",
        "name": "sandcell",
        "display_name": "sandcell",
        "version": release.version,
        "description": PACKAGE_SUMMARY,
        "author": {"name": "The sandcell authors"},
        "license": "MIT",
        "keywords": PACKAGE_KEYWORDS,
        "server": {
            "type": "binary",
            "entry_point": "server/sandcell",
            "mcp_config": {"command": "${__dirname}/server/sandcell", "args": ["serve"], "env": {}},
        },
        "tools": tools,
        "compatibility": {"platforms": ["linux"]},
    })
}

fn mcpb(release: &Release, build: &Build) -> Result<Vec<u8>> {
    zip(&[
        Member::text("manifest.json", pretty(&manifest(release))?),
        Member::program("server/sandcell", &build.binary),
        Member::text("LICENSE", release.licence.clone()),
        Member::text(NOTICES_FILE, build.notices.clone()),
        Member::text("README.md", release.readme.clone()),
    ])
}

/// Returns `server.json` for registries of MCP servers.
fn server_json(release: &Release, bundles: &[(String, Vec<u8>)]) -> Result<Vec<u8>> {
    let serve = json!([{"type": "positional", "value": "serve"}]);
    let mut packages = vec![
        json!({
            "registryType": "pypi",
            "identifier": "sandcell",
            "version": release.version,
            "runtimeHint": "uvx",
            "transport": {"type": "stdio"},
            "packageArguments": serve,
        }),
        json!({
            "registryType": "npm",
            "identifier": "sandcell",
            "version": release.version,
            "runtimeHint": "npx",
            "transport": {"type": "stdio"},
            "packageArguments": serve,
        }),
    ];
    if let Some(url) = &release.url {
        packages.extend(bundles.iter().map(|(file, bytes)| {
            json!({
                "registryType": "mcpb",
                "identifier": format!("{}/{file}", url.trim_end_matches('/')),
                "fileSha256": digest(bytes),
                "transport": {"type": "stdio"},
            })
        }));
    }
    pretty(&json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": release.name,
        "description": PACKAGE_SUMMARY,
        "version": release.version,
        "packages": packages,
    }))
}

fn pretty(value: &Value) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value)?;
    bytes.push(b'\n');
    Ok(bytes)
}
