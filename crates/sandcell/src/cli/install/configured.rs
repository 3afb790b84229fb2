//! The sandcell entries in this user's clients, and their problems: for the doctor.

use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use sandcell_sandbox::System;

use super::client::{Client, Home};
use super::{edit, read};

/// An entry for sandcell in a client's settings, or settings that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Configured {
    /// The client.
    pub(in crate::cli) client: &'static str,
    /// Its settings.
    pub(in crate::cli) file: PathBuf,
    /// The program that the client starts.
    pub(in crate::cli) program: Option<String>,
    /// The problem that prevents the start, and its remedy.
    pub(in crate::cli) trouble: Option<(String, String)>,
}

/// Returns the sandcell entries in this user's client settings.
pub(in crate::cli) fn configured() -> Vec<Configured> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = sandcell_languages::search_path::answering(std::env::split_paths(&path).collect());
    let (system, home) = (System::of_this_machine(), Home::of_this_process());
    let here = std::env::current_dir().ok();
    let files = |client: &Client| {
        let own = client.file(system, &home, None).ok();
        // Project settings in the working folder count, too.
        let project = here
            .as_deref()
            .and_then(|here| client.file(system, &home, Some(here)).ok());
        let project = project.filter(|project| own.as_ref() != Some(project));
        own.into_iter()
            .chain(project)
            .map(|file| (*client, file))
            .collect::<Vec<_>>()
    };
    Client::value_variants()
        .iter()
        .flat_map(files)
        .flat_map(|(client, file)| of_client(client, &file, &folders))
        .collect()
}

fn of_client(client: Client, file: &Path, folders: &[PathBuf]) -> Vec<Configured> {
    let row = |program, trouble| Configured {
        client: client.title(),
        file: file.to_owned(),
        program,
        trouble,
    };
    let text = match read(file) {
        Ok(Some(text)) => text,
        Ok(None) => return Vec::new(),
        Err(failure) => return vec![row(None, Some((failure.message, failure.remedy)))],
    };
    let programs = match edit::programs(&text, client.table(), client.format()) {
        Ok(programs) => programs,
        Err(error) => {
            let remedy = "correct the file: the client reads none of its servers until then";
            return vec![row(None, Some((error.to_string(), remedy.to_owned())))];
        }
    };
    programs
        .into_iter()
        .filter(|(name, program)| name == "sandcell" || is_sandcell(program))
        .map(|(name, program)| {
            let trouble = missing(&program, folders).map(|reason| {
                let option = if name == "sandcell" {
                    String::new()
                } else {
                    format!(" --name {name}")
                };
                let remedy = format!(
                    "run `sandcell install {}{option}` with the program at its permanent path; then restart the client",
                    client.argument()
                );
                (reason, remedy)
            });
            row(Some(program), trouble)
        })
        .collect()
}

pub(super) fn is_sandcell(program: &str) -> bool {
    Path::new(program).file_stem().is_some_and(|stem| stem == "sandcell")
}

/// Returns the reason that a client cannot start this program. Clients search their own PATH, which is this one or a
/// shorter one.
fn missing(program: &str, folders: &[PathBuf]) -> Option<String> {
    let path = Path::new(program);
    if path.is_absolute() {
        return (!is_program(path)).then(|| format!("it starts {program}, which is no program that is there"));
    }
    if path.components().count() > 1 {
        return Some(format!("it starts {program}, which is not an absolute path"));
    }
    let name = format!("{program}{}", std::env::consts::EXE_SUFFIX);
    let found = folders
        .iter()
        .any(|folder| is_program(&folder.join(program)) || is_program(&folder.join(&name)));
    (!found).then(|| format!("it starts {program}, which is not on PATH"))
}

fn is_program(path: &Path) -> bool {
    let Ok(found) = path.metadata() else { return false };
    #[cfg(unix)]
    let executable = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o111 != 0;
    #[cfg(not(unix))]
    let executable = true;
    found.is_file() && executable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients_in(settings: &str) -> Vec<Configured> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mcp.json");
        std::fs::write(&file, settings).unwrap();
        of_client(Client::Cursor, &file, &[folder.path().to_owned()])
    }

    #[test]
    fn a_missing_program_is_reported_and_a_present_one_is_not() {
        let own = std::env::current_exe().unwrap();
        let good = serde_json::json!({"mcpServers": {"sandcell": {"command": own, "args": ["serve"]}, "other": {"command": "x"}}});
        let rows = clients_in(&good.to_string());
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!(rows[0].trouble, None);
        for (program, reason) in [
            ("/dev/null/sandcell", "no program that is there"),
            ("./sandcell", "not an absolute path"),
            ("sandcell", "not on PATH"),
            ("/", "no program"),
        ] {
            let entry = serde_json::json!({"mcpServers": {"sandcell": {"command": program}}});
            let (said, remedy) = clients_in(&entry.to_string())[0].trouble.clone().unwrap();
            assert!(said.contains(reason), "{program}: {said}");
            assert!(remedy.contains("sandcell install cursor"), "{remedy}");
        }
        let renamed = clients_in(r#"{"mcpServers": {"code": {"command": "/dev/null/sandcell"}}}"#);
        assert!(
            renamed[0].trouble.as_ref().unwrap().1.contains("--name code"),
            "{renamed:?}"
        );
    }

    #[test]
    fn unreadable_settings_are_reported_and_those_of_other_servers_are_not() {
        let broken = clients_in("{\"mcpServers\": {");
        assert!(broken[0].trouble.as_ref().unwrap().0.contains("not JSON"), "{broken:?}");
        assert_eq!(clients_in("{}"), []);
        assert_eq!(clients_in(r#"{"mcpServers": {"x": {"command": "y"}}}"#), []);
        assert_eq!(of_client(Client::Cursor, Path::new("/no/such"), &[]), []);
    }
}
