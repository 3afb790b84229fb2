//! Mounts: folders of the host that sandboxes see, as in `--mount` and `[[mount]]`.

use std::path::{Path, PathBuf};

use sandcell_sandbox::{CommitRule, HOME, Mount, MountMode, SandboxPath, System, plain_path};

use crate::shown;

/// Folders inside that belong to the sandbox itself: no mount may cover them or lie below them.
const SYSTEM_FOLDERS: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin", "/sys",
    "/usr", "/var",
];
/// Folders inside that cannot be covered as a whole, but may hold mounts.
const SHARED_FOLDERS: &[&str] = &["/", "/home", HOME, "/tmp", "/mnt", "/opt", "/srv"];
/// Folders of the host that can never be mounted, even if the operator names them.
const FORBIDDEN_SOURCES: &[&str] = &["/", "/dev", "/proc", "/sys"];

/// The maximum number of mounts of a server; each costs time in every sandbox.
const MAX_MOUNTS: usize = 32;

/// The rule for commits in a flag, after the mode.
const COMMIT_FLAG: &str = ",commit=";

/// Reads `HOST[:SANDBOX][:ro|:cow[,commit=ask|,commit=never]]`. A relative host path starts at the working folder.
///
/// # Errors
/// The reason to refuse it, for people.
pub fn from_flag(text: &str) -> Result<Mount, String> {
    let (rest, mode, commit) = match text.rsplit_once(':') {
        Some((rest, "ro")) => (rest, MountMode::Ro, CommitRule::Never),
        Some((rest, "cow")) => (rest, MountMode::Cow, CommitRule::Never),
        Some((rest, mode))
            if mode
                .strip_prefix("cow")
                .is_some_and(|rule| rule.starts_with(COMMIT_FLAG)) =>
        {
            let rule = mode.trim_start_matches("cow").trim_start_matches(COMMIT_FLAG);
            (rest, MountMode::Cow, commit_rule(rule)?)
        }
        _ => (text, MountMode::Ro, CommitRule::Never),
    };
    let (host, sandbox) = match split(rest, drive(System::of_this_machine(), rest)) {
        Some((_, sandbox)) if !sandbox.starts_with('/') => {
            return Err(format!(
                "{}: after the host's folder comes an absolute path inside the sandbox, then `ro` or `cow`",
                shown(text)
            ));
        }
        Some((host, sandbox)) => (host, Some(sandbox)),
        None => (rest, None),
    };
    make(Path::new(host), sandbox, (mode, commit))
}

fn commit_rule(text: &str) -> Result<CommitRule, String> {
    match text {
        "never" => Ok(CommitRule::Never),
        "ask" => Ok(CommitRule::Ask),
        other => Err(format!("commit must be \"never\" or \"ask\", not {}", shown(other))),
    }
}

/// Returns the length in bytes of a Windows path's prefix up to its drive's colon (`C:`, `\\?\C:`).
fn drive(system: System, path: &str) -> usize {
    let before = if path.starts_with(r"\\?\") { 4 } else { 0 };
    match path.as_bytes().get(before..) {
        Some([letter, b':', b'\\' | b'/', ..]) if system == System::Windows && letter.is_ascii_alphabetic() => {
            before + 2
        }
        _ => 0,
    }
}

/// Splits at the first colon at or after `from`.
fn split(text: &str, from: usize) -> Option<(&str, &str)> {
    let at = from + text.get(from..)?.find(':')?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// Reads one `[[mount]]` table.
///
/// # Errors
/// The reason to refuse it, for people.
pub fn from_toml(value: &toml::Value) -> Result<Mount, String> {
    let table = value.as_table().ok_or("must be `[[mount]]` tables")?;
    for key in table.keys() {
        if !["host", "sandbox", "mode", "commit"].contains(&key.as_str()) {
            return Err(format!(
                "has no key {}; it takes host, sandbox, mode and commit",
                shown(key)
            ));
        }
    }
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(toml::Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("{key} must be a text")),
    };
    let host = text("host")?.ok_or("needs a host folder")?;
    if !Path::new(host).is_absolute() {
        return Err(format!("host must be an absolute path, not {}", shown(host)));
    }
    let mode = match text("mode")? {
        None | Some("ro") => MountMode::Ro,
        Some("cow") => MountMode::Cow,
        Some(other) => return Err(format!("mode must be \"ro\" or \"cow\", not {}", shown(other))),
    };
    let commit = text("commit")?.map_or(Ok(CommitRule::Never), commit_rule)?;
    if mode == MountMode::Ro && commit != CommitRule::Never {
        return Err("commit needs mode = \"cow\": a sandbox cannot change a read-only folder".to_owned());
    }
    make(Path::new(host), text("sandbox")?, (mode, commit))
}

/// Checks mounts against each other: none may lie in another one.
///
/// # Errors
/// The reason to refuse them, for people.
pub fn all(mounts: Vec<Mount>) -> Result<Vec<Mount>, String> {
    if mounts.len() > MAX_MOUNTS {
        return Err(format!(
            "{} mounts are more than the {MAX_MOUNTS} that are possible",
            mounts.len()
        ));
    }
    for (index, mount) in mounts.iter().enumerate() {
        for other in mounts.iter().skip(index + 1) {
            let (one, two) = (Path::new(&mount.sandbox), Path::new(&other.sandbox));
            if one.starts_with(two) || two.starts_with(one) {
                return Err(format!(
                    "{} and {} overlap; give each mount a separate path",
                    mount.sandbox, other.sandbox
                ));
            }
        }
    }
    Ok(mounts)
}

fn make(host: &Path, sandbox: Option<&str>, (mode, commit): (MountMode, CommitRule)) -> Result<Mount, String> {
    let host = existing_folder(host)?;
    let sandbox = match sandbox {
        Some(text) => text.to_owned(),
        None => match host.file_name().and_then(|name| name.to_str()) {
            Some(name) => format!("/mnt/{name}"),
            None => {
                return Err(format!(
                    "{}: add the path in the sandbox, as HOST:/mnt/NAME",
                    host.display()
                ));
            }
        },
    };
    Ok(Mount {
        host,
        sandbox: place(&sandbox)?,
        mode,
        commit,
    })
}

fn existing_folder(host: &Path) -> Result<PathBuf, String> {
    if host.as_os_str().is_empty() {
        return Err("the host's folder is missing".to_owned());
    }
    let real = host
        .canonicalize()
        .map(plain_path)
        .map_err(|error| format!("{}: the host's folder cannot be opened: {error}", host.display()))?;
    if !real.is_dir() {
        return Err(format!("{} is not a folder", host.display()));
    }
    // The root of a Windows drive is refused, as `/` is.
    if real.parent().is_none()
        || FORBIDDEN_SOURCES.iter().any(|path| real == Path::new(path))
        || ["/dev", "/proc", "/sys"].iter().any(|p| real.starts_with(p))
    {
        return Err(format!(
            "{} of the host is not shown to sandboxes; name a project folder",
            real.display()
        ));
    }
    Ok(real)
}

fn place(text: &str) -> Result<String, String> {
    if !text.starts_with('/') {
        return Err(format!(
            "sandbox must be an absolute path inside the sandbox, not {}",
            shown(text)
        ));
    }
    let path = SandboxPath::parse(text).map_err(|error| format!("{}: {error}", shown(text)))?;
    let path = path.as_str();
    if SHARED_FOLDERS.contains(&path) || SYSTEM_FOLDERS.iter().any(|folder| Path::new(path).starts_with(folder)) {
        return Err(format!(
            "{path} belongs to the sandbox itself; mount below /mnt or /home/user instead"
        ));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("project").tempdir().unwrap()
    }

    #[test]
    fn a_mount_flag_may_omit_target_and_mode() {
        let folder = folder();
        let host = folder.path().to_str().unwrap();
        let name = folder.path().file_name().unwrap().to_str().unwrap();
        for (text, sandbox, mode) in [
            (host.to_owned(), format!("/mnt/{name}"), MountMode::Ro),
            (format!("{host}:cow"), format!("/mnt/{name}"), MountMode::Cow),
            (format!("{host}:ro"), format!("/mnt/{name}"), MountMode::Ro),
            (format!("{host}:/data//in/"), "/data/in".to_owned(), MountMode::Ro),
            (
                format!("{host}:/home/user/p:cow"),
                "/home/user/p".to_owned(),
                MountMode::Cow,
            ),
        ] {
            let mount = from_flag(&text).unwrap();
            assert_eq!((mount.sandbox, mount.mode), (sandbox, mode), "{text}");
        }
    }

    #[test]
    fn commits_are_forbidden_unless_the_mount_says_otherwise() {
        let folder = folder();
        let host = folder.path().to_str().unwrap();
        for (mode, rule) in [
            ("cow", CommitRule::Never),
            ("cow,commit=never", CommitRule::Never),
            ("cow,commit=ask", CommitRule::Ask),
        ] {
            let mount = from_flag(&format!("{host}:/mnt/p:{mode}")).unwrap();
            assert_eq!((mount.mode, mount.commit), (MountMode::Cow, rule), "{mode}");
        }
        let error = from_flag(&format!("{host}:/mnt/p:cow,commit=always")).unwrap_err();
        assert!(error.contains("always"), "{error}");
        let text = format!("host = \"{host}\"\nsandbox = \"/mnt/p\"\nmode = \"cow\"\ncommit = \"ask\"");
        let table = toml::Value::Table(toml::from_str(&text).unwrap());
        assert_eq!(from_toml(&table).unwrap().commit, CommitRule::Ask);
    }

    #[test]
    fn the_colon_of_a_drive_is_not_a_separator() {
        for (text, bytes) in [
            (r"C:\data:/mnt/d:ro", 2),
            ("C:/data:cow", 2),
            (r"\\?\C:\data:/mnt/d", 6),
            (r"\\server\share:/mnt/d", 0),
            (r"data:/mnt/d", 0),
        ] {
            assert_eq!(drive(System::Windows, text), bytes, "{text}");
            assert_eq!(drive(System::Linux, text), 0, "{text}");
        }
    }

    #[test]
    fn mounts_over_folders_of_the_sandbox_are_refused() {
        let folder = folder();
        for place in [
            "/",
            "/usr",
            "/usr/lib/python3",
            "/proc",
            "/proc/self",
            "/dev",
            "/dev/shm",
            "/etc",
            "/etc/passwd",
            "/home/user",
            "/home/user/",
            "/home",
            "/tmp",
            "/lib64",
            "/mnt",
            "/home/user/../x",
            "relative",
        ] {
            let text = format!("{}:{place}", folder.path().display());
            assert!(from_flag(&text).is_err(), "{place}");
        }
    }

    #[test]
    fn the_host_side_must_be_a_folder_that_exists() {
        let folder = folder();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(from_flag("/no/such/folder").unwrap_err().contains("/no/such/folder"));
        assert!(from_flag(file.to_str().unwrap()).unwrap_err().contains("not a folder"));
        assert!(from_flag("/proc:/mnt/p").unwrap_err().contains("not shown"));
        assert!(from_flag("").is_err());
        assert!(from_flag(":/mnt/x").is_err());
    }

    #[test]
    fn nested_mounts_are_refused() {
        let folder = folder();
        let at = |place: &str| from_flag(&format!("{}:{place}", folder.path().display())).unwrap();
        assert!(all(vec![at("/mnt/a"), at("/mnt/a/b")]).is_err());
        assert!(all(vec![at("/mnt/a"), at("/mnt/a")]).is_err());
        assert!(all(vec![at("/mnt/a"), at("/mnt/ab")]).is_ok());
        assert!(all((0..40).map(|n| at(&format!("/mnt/{n}"))).collect()).is_err());
    }

    #[test]
    fn an_invalid_mount_table_is_refused_with_the_reason() {
        for (text, part) in [
            ("hots = \"/\"", "hots"),
            ("sandbox = \"/mnt/x\"", "host"),
            ("host = \"x\"", "absolute"),
            ("host = 1", "host must be a text"),
            ("host = \"/tmp\"\nmode = \"rw\"", "rw"),
            ("host = \"/tmp\"\nmode = \"cow\"\ncommit = \"always\"", "always"),
            ("host = \"/tmp\"\ncommit = \"ask\"", "cow"),
        ] {
            let table = toml::Value::Table(toml::from_str(text).unwrap());
            let error = from_toml(&table).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
