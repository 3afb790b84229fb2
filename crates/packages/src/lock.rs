//! The exact packages of an installation: names, versions and hashes. The list comes from the installer's sandbox, so
//! every line is parsed strictly.

use sandcell_sandbox::{Code, Failure, PackageVersion};
use serde::{Deserialize, Serialize};

/// The maximum number of distributions in one installation.
const ENTRIES_MAX: usize = 1000;

/// One distribution.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Locked {
    /// The normalised name.
    pub(crate) name: String,
    pub(crate) version: String,
    /// The hashes in the form `sha256:…`, sorted.
    pub(crate) hashes: Vec<String>,
}

impl Locked {
    #[cfg(test)]
    pub(crate) fn new(name: &str, version: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            hashes: Vec::new(),
        }
    }

    pub(crate) fn held(&self) -> PackageVersion {
        PackageVersion {
            name: self.name.clone(),
            version: self.version.clone(),
        }
    }
}

/// Parses a list of requirements with hashes: `name==version --hash=sha256:…`, with lines continued by backslashes.
pub(crate) fn parse(text: &str) -> Result<Vec<Locked>, Failure> {
    let mut locked = Vec::new();
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    for line in joined.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let one = entry(line).ok_or_else(|| unreadable(line))?;
        if locked.iter().any(|other: &Locked| other.name == one.name) {
            return Err(unreadable(line));
        }
        locked.push(one);
        if locked.len() > ENTRIES_MAX {
            return Err(Failure::new(
                Code::LimitReached,
                format!("more than {ENTRIES_MAX} packages would be installed"),
                "ask for fewer packages",
            ));
        }
    }
    locked.sort();
    Ok(locked)
}

fn entry(line: &str) -> Option<Locked> {
    let mut words = line.split_whitespace();
    let (name, version) = words.next()?.split_once("==")?;
    let mut hashes = Vec::new();
    for word in words {
        let hash = word.strip_prefix("--hash=")?;
        let digits = hash.strip_prefix("sha256:")?;
        if digits.len() != 64 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        hashes.push(hash.to_ascii_lowercase());
    }
    hashes.sort();
    hashes.dedup();
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name_sound = !name.is_empty() && name.len() <= 100 && name.chars().all(sound) && !name.starts_with('-');
    let version_sound = version.parse::<pep440_rs::Version>().is_ok() && version.len() <= 100;
    (name_sound && version_sound && !hashes.is_empty()).then(|| Locked {
        name: name
            .parse::<pep508_rs::PackageName>()
            .map_or_else(|_| name.to_owned(), |name| name.to_string()),
        version: version.to_owned(),
        hashes,
    })
}

fn unreadable(line: &str) -> Failure {
    let shown: String = line.chars().filter(|c| !c.is_control()).take(80).collect();
    Failure::new(
        Code::PackageFailed,
        format!("the list of exact versions has a line that is no `name==version --hash=sha256:…`: {shown}"),
        "every package needs an exact version and a sha256 hash; the index must give hashes",
    )
}

/// Returns the list in the format that installers read.
pub(crate) fn render(locked: &[Locked]) -> String {
    let mut text = String::new();
    for one in locked {
        text.push_str(&format!("{}=={}", one.name, one.version));
        for hash in &one.hashes {
            text.push_str(&format!(" --hash={hash}"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_HASH: &str = "sha256:73191c47aaa79da394e8fee2dbc2ec827432cab56311122c9e47abf79e390f62";

    #[test]
    fn a_lock_file_is_read_and_written() {
        let text = format!(
            "# made by x\nNumpy==2.1.0 \\\n    --hash={TEST_HASH} \\\n    --hash={TEST_HASH}\nsix==1.16 --hash={TEST_HASH}\n"
        );
        let locked = parse(&text).unwrap();
        assert_eq!(locked.len(), 2);
        assert_eq!((locked[0].name.as_str(), locked[0].hashes.len()), ("numpy", 1));
        assert_eq!(parse(&render(&locked)).unwrap(), locked);
    }

    #[test]
    fn unknown_content_of_a_lock_file_is_an_error() {
        for line in [
            "numpy",
            "numpy==2",
            "numpy>=2 --hash=sha256:00",
            "-r other.txt",
            "--index-url https://x",
            "numpy @ https://x --hash=sha256:00",
            "numpy==1 --hash=md5:00",
            &format!("numpy==1 --hash={TEST_HASH} --global-option=x"),
            &format!("numpy==1 --hash={TEST_HASH}\nnumpy==2 --hash={TEST_HASH}"),
            &format!("../x==1 --hash={TEST_HASH}"),
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
