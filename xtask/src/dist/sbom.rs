//! The contents of the binary, as CycloneDX 1.5: every crate with its version, licence, checksum and dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Machine;
use crate::command::{cargo, output, root};

/// Returns cargo's metadata of the crates, for the target of the binary.
pub(super) fn metadata(machine: &Machine) -> Result<Value> {
    let text = output(cargo().args([
        "metadata",
        "--format-version",
        "1",
        "--quiet",
        "--filter-platform",
        machine.target,
    ]))?;
    Ok(serde_json::from_str(&text)?)
}

/// Checksums of the lock file, by name and version.
fn checksums() -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = fs::read_to_string(root().join("Cargo.lock"))?.parse()?;
    let packages = lock["package"].as_array().context("the lock file has no packages")?;
    let field = |package: &toml::Value, name: &str| Some(package.get(name)?.as_str()?.to_owned());
    Ok(packages
        .iter()
        .filter_map(|one| Some(((field(one, "name")?, field(one, "version")?), field(one, "checksum")?)))
        .collect())
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Returns each crate's dependencies, by id. Dev dependencies are not in the binary; build scripts make some of it.
fn needs(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let linked = |one: &Value| list(&one["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev");
    list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let needs = list(&node["deps"]).into_iter().filter(linked);
            let ids = needs.filter_map(|one| one["pkg"].as_str().map(str::to_owned)).collect();
            (node["id"].as_str().unwrap_or_default().to_owned(), ids)
        })
        .collect()
}

/// The crates that the binary is made of, our own included.
fn inside(metadata: &Value) -> Result<Vec<Value>> {
    let packages = list(&metadata["packages"]);
    let ours = packages
        .iter()
        .find(|one| one["name"] == "sandcell")
        .context("no package sandcell")?;
    let nodes = needs(metadata);
    let mut inside = BTreeSet::new();
    let mut open = vec![ours["id"].as_str().unwrap_or_default().to_owned()];
    while let Some(id) = open.pop() {
        if inside.insert(id.clone()) {
            open.extend(nodes.get(&id).into_iter().flatten().cloned());
        }
    }
    let is_inside = |one: &Value| one["id"].as_str().is_some_and(|id| inside.contains(id));
    Ok(packages.into_iter().filter(is_inside).collect())
}

/// The licences of everything that is inside, each text once with the crates that it is of.
pub(super) fn notices(metadata: &Value) -> Result<Vec<u8>> {
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without = BTreeSet::new();
    for one in inside(metadata)?.iter().filter(|one| !one["source"].is_null()) {
        let name = format!("{} {} ({})", one["name"], one["version"], one["license"]).replace('"', "");
        let manifest = PathBuf::from(one["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().context("a crate without a folder")?;
        let mut found = false;
        for entry in fs::read_dir(folder)?.flatten() {
            let file = entry.file_name().to_string_lossy().to_uppercase();
            let is_notice = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
                .iter()
                .any(|word| file.starts_with(word));
            if is_notice && entry.path().is_file() {
                let text = String::from_utf8_lossy(&fs::read(entry.path())?).trim().to_owned();
                texts.entry(text).or_default().insert(name.clone());
                found = true;
            }
        }
        if !found {
            without.insert(name);
        }
    }
    let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
    let mut document = String::from(
        "sandcell is made with the following software. Where a licence asks for it: the source of each is at crates.io,\n\
         unchanged. SQLite, in libsqlite3-sys, is in the public domain; the C library is musl (MIT).\n",
    );
    for (text, of) in &texts {
        document.push_str(&format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), names(of)));
    }
    if !without.is_empty() {
        document.push_str(&format!(
            "\n{}\nWithout a file of their own: {}\n",
            "=".repeat(80),
            names(&without)
        ));
    }
    Ok(document.into_bytes())
}

pub(super) fn document(metadata: &Value) -> Result<Vec<u8>> {
    let checksums = checksums()?;
    let packages = inside(metadata)?;
    let nodes = needs(metadata);
    let ours = packages
        .iter()
        .find(|one| one["name"] == "sandcell")
        .context("no package sandcell")?;
    let start = ours["id"].as_str().unwrap_or_default().to_owned();
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let reference = |one: &Value| format!("pkg:cargo/{}@{}", text(one, "name"), text(one, "version"));
    let by_id: BTreeMap<String, String> = packages.iter().map(|one| (text(one, "id"), reference(one))).collect();
    let mut components = Vec::new();
    let mut edges = Vec::new();
    for one in &packages {
        let id = text(one, "id");
        let reference = reference(one);
        let of: BTreeSet<&String> = nodes[&id].iter().filter_map(|need| by_id.get(need)).collect();
        edges.push(json!({"ref": reference, "dependsOn": of}));
        if id == start {
            continue;
        }
        let hashes: Vec<Value> = checksums
            .get(&(text(one, "name"), text(one, "version")))
            .map(|sum| json!({"alg": "SHA-256", "content": sum}))
            .into_iter()
            .collect();
        components.push(json!({
            "type": "library",
            "bom-ref": reference,
            "name": one["name"],
            "version": one["version"],
            "purl": reference,
            "licenses": [{"expression": text(one, "license").replace('/', " OR ")}],
            "hashes": hashes,
        }));
    }
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "bom-ref": reference(ours),
            "name": "sandcell",
            "version": ours["version"],
            "licenses": [{"expression": "MIT"}],
        }},
        "components": components,
        "dependencies": edges,
    });
    Ok(serde_json::to_vec_pretty(&document)?)
}
