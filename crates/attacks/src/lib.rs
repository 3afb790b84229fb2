//! The attacks on sandboxes, for the escape suite and for `sandcell doctor`.
//!
//! Each attack is one Python file in `catalogue/CLASS/`. Its head states what it tries, the layer that holds it and the
//! expected result; [`Attack`] has the grammar. This crate only describes attacks: its users run and judge them. The
//! texts are part of the program, so that `doctor` needs no files.
#![forbid(unsafe_code)]

mod attack;

pub use attack::{Attack, AttackError, ExpectedResult, Needs, Step};

use std::collections::BTreeSet;

/// The code placed before every attack.
pub const PRELUDE: &str = include_str!("../catalogue/prelude.py");

/// Layers that limit amounts or are outside of the plan, by their names in the files.
pub const OTHER_LAYERS: [&str; 8] = [
    "memory_limit",
    "cpu_limit",
    "process_limit",
    "disk_limit",
    "time_limit",
    "output_limit",
    "file_tools",
    "protocol",
];

/// The file of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttackFile {
    /// `class/file`, without the extension.
    pub name: &'static str,
    /// The whole text: the head and the code.
    pub text: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/files.rs"));

impl AttackFile {
    /// Returns the value of a line `# key: value` of the head.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&'static str> {
        self.head().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
    }

    /// Returns the lines of the head, without `# `.
    fn head(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().map_while(|line| line.strip_prefix("# "))
    }
}

/// Reads every attack, by name.
///
/// # Errors
///
/// A file does not follow the grammar of [`Attack`].
pub fn all() -> Result<Vec<Attack>, AttackError> {
    FILES.iter().map(Attack::parse).collect()
}

/// Returns the names of all classes: the folders of the catalogue.
#[must_use]
pub fn classes() -> BTreeSet<&'static str> {
    let names = FILES.iter().map(|file| file.name.split_once('/'));
    names.flatten().map(|(class, _)| class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_an_attack_of_the_class_of_its_folder() {
        let attacks = all().unwrap();
        assert!(attacks.len() >= 160, "{}", attacks.len());
        for attack in attacks {
            assert_eq!(attack.name.split_once('/').unwrap().0, attack.class, "{}", attack.name);
        }
    }

    #[test]
    fn every_file_of_the_catalogue_is_listed_once_and_quick_ones_again() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("catalogue");
        let mut found = Vec::new();
        let mut quick = Vec::new();
        for class in classes() {
            for entry in std::fs::read_dir(folder.join(class)).unwrap() {
                let path = entry.unwrap().path();
                let name = format!("{class}/{}", path.file_stem().unwrap().display());
                if std::fs::read_to_string(&path).unwrap().contains("# quick: yes\n") {
                    quick.push(name.clone());
                }
                found.push(name);
            }
        }
        found.sort();
        quick.sort();
        assert_eq!(FILES.iter().map(|file| file.name).collect::<Vec<_>>(), found);
        assert_eq!(QUICK_FILES.iter().map(|file| file.name).collect::<Vec<_>>(), quick);
        let folders = std::fs::read_dir(&folder).unwrap();
        let folders = folders.filter(|entry| entry.as_ref().unwrap().path().is_dir());
        assert_eq!(folders.count(), classes().len());
    }

    #[test]
    fn a_value_is_read_from_the_head_only() {
        let file = AttackFile {
            name: "a/b",
            text: "# attack: try it\n# layer: seccomp\n\n# class: x\n",
        };
        assert_eq!(file.value("layer"), Some("seccomp"));
        assert_eq!(file.value("class"), None);
        assert_eq!(file.value("lay"), None);
    }
}
