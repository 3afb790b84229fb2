//! The clients that are known: where their settings are, on each system.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use sandcell_sandbox::{Code, Failure, System};

/// An MCP client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Client {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    Vscode,
}

/// The user's folders.
#[derive(Debug, Clone, Default)]
pub(super) struct Home {
    /// `HOME`, or `USERPROFILE` on Windows.
    pub(super) folder: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`, or `APPDATA` on Windows, where set.
    pub(super) settings: Option<PathBuf>,
}

/// The variables that name the two.
const fn variables(system: System) -> [&'static str; 2] {
    match system {
        System::Windows => ["USERPROFILE", "APPDATA"],
        System::Linux | System::MacOs => ["HOME", "XDG_CONFIG_HOME"],
    }
}

impl Home {
    pub(super) fn of_this_process() -> Self {
        let [folder, settings] = variables(System::of_this_machine());
        let absolute = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        Self {
            folder: absolute(folder),
            settings: absolute(settings),
        }
    }

    fn folder(&self) -> Result<&Path, Failure> {
        let [name, _] = variables(System::of_this_machine());
        self.folder.as_deref().ok_or_else(|| {
            Failure::new(
                Code::InvalidArgument,
                format!("the user's home folder is not known ({name} is not set)"),
                format!("set {name}, or use --project FOLDER"),
            )
        })
    }

    /// Where programs keep their settings.
    fn settings(&self, system: System) -> Result<PathBuf, Failure> {
        Ok(match system {
            System::MacOs => below(self.folder()?, &["Library", "Application Support"]),
            System::Windows => match &self.settings {
                Some(settings) => settings.clone(),
                None => below(self.folder()?, &["AppData", "Roaming"]),
            },
            System::Linux => match &self.settings {
                Some(settings) => settings.clone(),
                None => self.folder()?.join(".config"),
            },
        })
    }
}

/// A place below a folder, written with this machine's separator.
fn below(folder: &Path, names: &[&str]) -> PathBuf {
    names.iter().fold(folder.to_owned(), |path, name| path.join(name))
}

impl Client {
    /// The file that the client reads, for the user or for a project.
    pub(super) fn file(self, system: System, home: &Home, project: Option<&Path>) -> Result<PathBuf, Failure> {
        if let Some(project) = project {
            if !project.is_dir() {
                return Err(Failure::new(
                    Code::InvalidArgument,
                    format!("{} is not a folder", project.display()),
                    "name the project's folder",
                ));
            }
            return match self {
                Self::ClaudeDesktop => Err(Failure::new(
                    Code::InvalidArgument,
                    "Claude Desktop knows no projects",
                    "leave --project out",
                )),
                Self::ClaudeCode => Ok(project.join(".mcp.json")),
                Self::Cursor => Ok(below(project, &[".cursor", "mcp.json"])),
                Self::Vscode => Ok(below(project, &[".vscode", "mcp.json"])),
            };
        }
        Ok(match self {
            Self::ClaudeDesktop => below(&home.settings(system)?, &["Claude", "claude_desktop_config.json"]),
            Self::ClaudeCode => home.folder()?.join(".claude.json"),
            Self::Cursor => below(home.folder()?, &[".cursor", "mcp.json"]),
            Self::Vscode => below(&home.settings(system)?, &["Code", "User", "mcp.json"]),
        })
    }

    /// What its maker calls it.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "Claude Desktop",
            Self::ClaudeCode => "Claude Code",
            Self::Cursor => "Cursor",
            Self::Vscode => "VS Code",
        }
    }

    /// As `sandcell install` takes it.
    pub(super) fn argument(self) -> String {
        let word = self.to_possible_value();
        word.map(|word| word.get_name().to_owned()).unwrap_or_default()
    }

    /// The object that holds the servers.
    pub(super) const fn table(self) -> &'static str {
        match self {
            Self::Vscode => "servers",
            Self::ClaudeDesktop | Self::ClaudeCode | Self::Cursor => "mcpServers",
        }
    }

    /// Whether an entry names its transport.
    pub(super) const fn says_stdio(self) -> bool {
        matches!(self, Self::ClaudeCode | Self::Vscode)
    }

    /// What the user does for the client to notice.
    pub(super) const fn how_to_reload(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "quit Claude Desktop and start it again, then ask it to run some Python.",
            Self::ClaudeCode => "start `claude` anew (`/mcp` shows the server), then ask it to run some Python.",
            Self::Cursor => "open Settings, MCP and switch the server on, then ask the agent to run some Python.",
            Self::Vscode => "run the command `MCP: List Servers` and start it, then ask the agent to run some Python.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(client: Client, system: System) -> String {
        let home = Home {
            folder: Some("/home/me".into()),
            settings: (system == System::Windows).then(|| "/home/me/AppData/Roaming".into()),
        };
        client.file(system, &home, None).unwrap().display().to_string()
    }

    #[test]
    fn every_client_has_its_file_on_every_system() {
        for (client, linux, mac, windows) in [
            (
                Client::ClaudeDesktop,
                ".config/Claude/claude_desktop_config.json",
                "Library/Application Support/Claude/claude_desktop_config.json",
                "AppData/Roaming/Claude/claude_desktop_config.json",
            ),
            (Client::ClaudeCode, ".claude.json", ".claude.json", ".claude.json"),
            (
                Client::Cursor,
                ".cursor/mcp.json",
                ".cursor/mcp.json",
                ".cursor/mcp.json",
            ),
            (
                Client::Vscode,
                ".config/Code/User/mcp.json",
                "Library/Application Support/Code/User/mcp.json",
                "AppData/Roaming/Code/User/mcp.json",
            ),
        ] {
            for (system, path) in [(System::Linux, linux), (System::MacOs, mac), (System::Windows, windows)] {
                assert_eq!(
                    file(client, system),
                    format!("/home/me/{path}"),
                    "{client:?} on {system:?}"
                );
            }
        }
    }

    #[test]
    fn a_project_has_files_of_its_own_and_claude_desktop_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let of = |client: Client| client.file(System::Linux, &Home::default(), Some(folder.path()));
        assert_eq!(of(Client::Vscode).unwrap(), folder.path().join(".vscode/mcp.json"));
        assert_eq!(of(Client::ClaudeCode).unwrap(), folder.path().join(".mcp.json"));
        assert_eq!(of(Client::ClaudeDesktop).unwrap_err().code, Code::InvalidArgument);
        let missing = Client::Cursor.file(System::Linux, &Home::default(), Some(Path::new("/no/such")));
        assert!(missing.unwrap_err().message.contains("/no/such"));
    }
}
