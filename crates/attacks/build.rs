//! Lists the files of `catalogue/`, so that a new file is a new attack without another change.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a build script fails by panicking and talks to cargo on stdout"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The line of an attack that `sandcell doctor` makes as well.
const QUICK_LINE: &str = "# quick: yes";

fn main() {
    println!("cargo::rerun-if-changed=catalogue");
    let folder = std::env::current_dir()
        .expect("cargo runs this in the package's folder")
        .join("catalogue");
    let mut files = String::new();
    let mut quick = String::new();
    for (name, path) in attacks(&folder) {
        let text = std::fs::read_to_string(&path).expect("an attack is readable");
        let entry = format!(
            "    AttackFile {{ name: {name:?}, text: include_str!({:?}) }},\n",
            path.display().to_string()
        );
        let is_quick = text
            .lines()
            .take_while(|line| line.starts_with("# "))
            .any(|line| line == QUICK_LINE);
        if is_quick {
            quick.push_str(&entry);
        }
        files.push_str(&entry);
    }
    let mut table = String::new();
    write!(
        table,
        "/// Every attack, by name.\npub static FILES: &[AttackFile] = &[\n{files}];\n\n\
         /// The attacks with `{QUICK_LINE}`, by name.\npub static QUICK_FILES: &[AttackFile] = &[\n{quick}];\n"
    )
    .expect("writing to a string");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo names the output folder"));
    std::fs::write(out.join("files.rs"), table).expect("the output folder is writable");
}

/// Returns `class/attack` and the path of each attack, by name.
fn attacks(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a folder of the catalogue is readable");
        entries.map(|entry| entry.expect("an entry of the catalogue is readable").path())
    };
    let mut found = Vec::new();
    for class in entries(folder).filter(|path| path.is_dir()) {
        for path in entries(&class).filter(|path| path.extension().is_some_and(|extension| extension == "py")) {
            let name = |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned());
            if let (Some(class), Some(attack)) = (name(&class), name(&path)) {
                found.push((format!("{class}/{attack}"), path));
            }
        }
    }
    found.sort();
    found
}
