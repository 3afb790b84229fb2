//! The packages, each a function from the release to a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::archive::{Member, tar_gz, zip};
use super::{Release, digest};

const SUMMARY: &str = "Runs code that AI agents write in a strict sandbox: an MCP server and a command line";
/// The C libraries whose systems a static binary runs on: all of them.
const PLATFORMS: &str = "py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64";
/// The licences of what is inside.
const NOTICES: &str = "THIRD-PARTY-NOTICES.txt";
const KEYWORDS: [&str; 5] = ["mcp", "sandbox", "code-execution", "agents", "isolation"];

pub(super) fn make(release: &Release, out: &Path) -> Result<Vec<PathBuf>> {
    let bundle = mcpb(release)?;
    let files = [
        (
            format!("sandcell-{}-x86_64-linux.tar.gz", release.version),
            tarball(release)?,
        ),
        (format!("sandcell-{}-{PLATFORMS}.whl", release.version), wheel(release)?),
        (format!("sandcell-{}.tgz", release.version), npm(release)?),
        ("server.json".to_owned(), server_json(release, &bundle)?),
        (bundle_name(release), bundle),
    ];
    let mut paths = Vec::new();
    for (name, bytes) in files {
        let path = out.join(name);
        fs::write(&path, bytes).with_context(|| format!("{} cannot be written", path.display()))?;
        paths.push(path);
    }
    Ok(paths)
}

fn bundle_name(release: &Release) -> String {
    format!("sandcell-mcp-{}-x86_64-linux.mcpb", release.version)
}

/// The readme, with the line by which registries of MCP servers see that a package is the server's own.
fn readme(release: &Release) -> String {
    format!("{}\n<!-- mcp-name: {} -->\n", release.readme, release.name)
}

fn tarball(release: &Release) -> Result<Vec<u8>> {
    let folder = format!("sandcell-{}", release.version);
    tar_gz(&[
        Member::program(format!("{folder}/sandcell"), &release.binary),
        Member::text(format!("{folder}/sandcell.1"), release.manual.clone()),
        Member::text(format!("{folder}/LICENSE"), release.licence.clone()),
        Member::text(format!("{folder}/{NOTICES}"), release.notices.clone()),
        Member::text(format!("{folder}/README.md"), release.readme.clone()),
    ])
}

/// A wheel whose only content is the program: `pip install` and `uvx` put it on PATH.
fn wheel(release: &Release) -> Result<Vec<u8>> {
    let version = &release.version;
    let info = format!("sandcell-{version}.dist-info");
    let metadata = format!(
        "Metadata-Version: 2.4\nName: sandcell\nVersion: {version}\nSummary: {SUMMARY}\nLicense-Expression: MIT\n\
         License-File: LICENSE\nLicense-File: {NOTICES}\nKeywords: {}\nRequires-Python: >=3.8\nClassifier: Operating System :: POSIX :: Linux\n\
         Description-Content-Type: text/markdown\n\n{}",
        KEYWORDS.join(","),
        readme(release)
    );
    let tags: String = platform_tags().map(|tag| format!("Tag: {tag}\n")).collect();
    let mut members = vec![
        Member::program(format!("sandcell-{version}.data/scripts/sandcell"), &release.binary),
        Member::text(format!("{info}/licenses/LICENSE"), release.licence.clone()),
        Member::text(format!("{info}/licenses/{NOTICES}"), release.notices.clone()),
        Member::text(format!("{info}/METADATA"), metadata),
        Member::text(
            format!("{info}/WHEEL"),
            format!("Wheel-Version: 1.0\nGenerator: sandcell-xtask\nRoot-Is-Purelib: false\n{tags}"),
        ),
    ];
    let line = |member: &Member| {
        let hash = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(&member.bytes));
        format!("{},sha256={hash},{}\n", member.path, member.bytes.len())
    };
    let record: String = members.iter().map(line).collect();
    let own = format!("{info}/RECORD");
    members.push(Member::text(own.clone(), format!("{record}{own},,\n")));
    zip(&members)
}

/// Each platform of the file's name, as the list inside has them.
fn platform_tags() -> impl Iterator<Item = String> {
    let platforms = PLATFORMS.rsplit('-').next().unwrap_or_default();
    platforms.split('.').map(|platform| format!("py3-none-{platform}"))
}

fn npm(release: &Release) -> Result<Vec<u8>> {
    let package = json!({
        "name": "sandcell",
        "version": release.version,
        "description": SUMMARY,
        "license": "MIT",
        "keywords": KEYWORDS,
        "mcpName": release.name,
        "os": ["linux"],
        "cpu": ["x64"],
        "bin": {"sandcell": "bin/sandcell"},
        "files": ["bin/sandcell", NOTICES],
    });
    tar_gz(&[
        Member::text("package/package.json", pretty(&package)?),
        Member::program("package/bin/sandcell", &release.binary),
        Member::text("package/LICENSE", release.licence.clone()),
        Member::text(format!("package/{NOTICES}"), release.notices.clone()),
        Member::text("package/README.md", readme(release)),
    ])
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
        "description": SUMMARY,
        "author": {"name": "The sandcell authors"},
        "license": "MIT",
        "keywords": KEYWORDS,
        "server": {
            "type": "binary",
            "entry_point": "server/sandcell",
            "mcp_config": {"command": "${__dirname}/server/sandcell", "args": ["serve"], "env": {}},
        },
        "tools": tools,
        "compatibility": {"platforms": ["linux"]},
    })
}

fn mcpb(release: &Release) -> Result<Vec<u8>> {
    zip(&[
        Member::text("manifest.json", pretty(&manifest(release))?),
        Member::program("server/sandcell", &release.binary),
        Member::text("LICENSE", release.licence.clone()),
        Member::text(NOTICES, release.notices.clone()),
        Member::text("README.md", release.readme.clone()),
    ])
}

/// What registries of MCP servers are told.
fn server_json(release: &Release, bundle: &[u8]) -> Result<Vec<u8>> {
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
        packages.push(json!({
            "registryType": "mcpb",
            "identifier": format!("{}/{}", url.trim_end_matches('/'), bundle_name(release)),
            "fileSha256": digest(bundle),
            "transport": {"type": "stdio"},
        }));
    }
    pretty(&json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": release.name,
        "description": SUMMARY,
        "version": release.version,
        "packages": packages,
    }))
}

fn pretty(value: &Value) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value)?;
    bytes.push(b'\n');
    Ok(bytes)
}
