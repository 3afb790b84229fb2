//! The known clients and the location of their settings on each system.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use sandcell_sandbox::{Code, Failure, System};

use super::edit::Format;

/// An MCP client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Client {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    Vscode,
    Codex,
    #[value(alias = "gemini-cli")]
    Gemini,
    Windsurf,
    Zed,
    /// Junie, the agent in JetBrains IDEs and on the command line
    #[value(alias = "junie")]
    Jetbrains,
    /// The extension for VS Code
    Cline,
    /// Cline on the command line
    ClineCli,
}

/// The user's folders.
#[derive(Debug, Clone, Default)]
pub(super) struct Home {
    /// `HOME`, or `USERPROFILE` on Windows.
    pub(super) folder: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`, or `APPDATA` on Windows, where set.
    pub(super) settings: Option<PathBuf>,
    /// `CODEX_HOME`, where set.
    pub(super) codex: Option<PathBuf>,
}

/// The variables for the home folder and the settings folder.
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
            codex: absolute("CODEX_HOME"),
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

    /// Returns the folder where programs keep their settings.
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

/// Returns a path below a folder, with this machine's separator.
fn below(folder: &Path, names: &[&str]) -> PathBuf {
    names.iter().fold(folder.to_owned(), |path, name| path.join(name))
}

impl Client {
    /// Returns the file that the client reads, for the user or for a project.
    pub(super) fn file(self, system: System, home: &Home, project: Option<&Path>) -> Result<PathBuf, Failure> {
        if let Some(project) = project {
            if !project.is_dir() {
                return Err(Failure::new(
                    Code::InvalidArgument,
                    format!("{} is not a folder", project.display()),
                    "name the project's folder",
                ));
            }
            let names = self.project_file().ok_or_else(|| {
                Failure::new(
                    Code::InvalidArgument,
                    format!("{} knows no projects", self.title()),
                    "leave --project out",
                )
            })?;
            return Ok(below(project, names));
        }
        Ok(match self {
            Self::ClaudeDesktop => below(&home.settings(system)?, &["Claude", "claude_desktop_config.json"]),
            Self::ClaudeCode => home.folder()?.join(".claude.json"),
            Self::Cursor => below(home.folder()?, &[".cursor", "mcp.json"]),
            Self::Vscode => below(&home.settings(system)?, &["Code", "User", "mcp.json"]),
            Self::Codex => match &home.codex {
                Some(folder) => folder.join("config.toml"),
                None => below(home.folder()?, &[".codex", "config.toml"]),
            },
            Self::Gemini => below(home.folder()?, &[".gemini", "settings.json"]),
            Self::Windsurf => below(home.folder()?, &[".codeium", "windsurf", "mcp_config.json"]),
            Self::Zed => match system {
                System::Windows => below(&home.settings(system)?, &["Zed", "settings.json"]),
                System::MacOs => below(home.folder()?, &[".config", "zed", "settings.json"]),
                System::Linux => below(&home.settings(system)?, &["zed", "settings.json"]),
            },
            Self::Jetbrains => below(home.folder()?, &[".junie", "mcp", "mcp.json"]),
            Self::Cline => {
                let extension = ["Code", "User", "globalStorage", "saoudrizwan.claude-dev", "settings"];
                below(&home.settings(system)?, &extension).join("cline_mcp_settings.json")
            }
            Self::ClineCli => {
                let settings = [".cline", "data", "settings", "cline_mcp_settings.json"];
                below(home.folder()?, &settings)
            }
        })
    }

    /// Returns the file of a project's own servers, for clients that read one.
    const fn project_file(self) -> Option<&'static [&'static str]> {
        match self {
            Self::ClaudeDesktop | Self::Windsurf | Self::Cline | Self::ClineCli => None,
            Self::ClaudeCode => Some(&[".mcp.json"]),
            Self::Cursor => Some(&[".cursor", "mcp.json"]),
            Self::Vscode => Some(&[".vscode", "mcp.json"]),
            Self::Codex => Some(&[".codex", "config.toml"]),
            Self::Gemini => Some(&[".gemini", "settings.json"]),
            Self::Zed => Some(&[".zed", "settings.json"]),
            Self::Jetbrains => Some(&[".junie", "mcp", "mcp.json"]),
        }
    }

    /// Returns the client's product name.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "Claude Desktop",
            Self::ClaudeCode => "Claude Code",
            Self::Cursor => "Cursor",
            Self::Vscode => "VS Code",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini CLI",
            Self::Windsurf => "Windsurf",
            Self::Zed => "Zed",
            Self::Jetbrains => "JetBrains Junie",
            Self::Cline => "Cline",
            Self::ClineCli => "Cline CLI",
        }
    }

    /// Returns the client's name as an argument of `sandcell install`.
    pub(super) fn argument(self) -> String {
        let word = self.to_possible_value();
        word.map(|word| word.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns the name of the object or table that holds the servers.
    pub(super) const fn table(self) -> &'static str {
        match self {
            Self::Vscode => "servers",
            Self::Codex => "mcp_servers",
            Self::Zed => "context_servers",
            Self::ClaudeDesktop
            | Self::ClaudeCode
            | Self::Cursor
            | Self::Gemini
            | Self::Windsurf
            | Self::Jetbrains
            | Self::Cline
            | Self::ClineCli => "mcpServers",
        }
    }

    /// Returns the format of the client's settings.
    pub(super) const fn format(self) -> Format {
        match self {
            Self::Codex => Format::Toml,
            _ => Format::Json,
        }
    }

    /// Returns an entry's extra key and value, next to the program and its arguments. Zed before 2026 ignores an entry
    /// without `source`.
    pub(super) const fn says(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::ClaudeCode | Self::Vscode => Some(("type", "stdio")),
            Self::Zed => Some(("source", "custom")),
            _ => None,
        }
    }

    /// Returns the step by which the user makes the client load the change.
    pub(super) const fn how_to_reload(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "quit Claude Desktop and start it again, then ask it to run some Python.",
            Self::ClaudeCode => "restart `claude` (`/mcp` shows the server), then ask it to run some Python.",
            Self::Cursor => "open Settings, MCP and switch the server on, then ask the agent to run some Python.",
            Self::Vscode => "run the command `MCP: List Servers` and start it, then ask the agent to run some Python.",
            Self::Codex => "restart `codex` (`/mcp` shows the server), then ask it to run some Python.",
            Self::Gemini => "restart `gemini` (`/mcp` shows the server), then ask it to run some Python.",
            Self::Windsurf => "refresh the MCP servers in Cascade's settings, then ask Cascade to run some Python.",
            Self::Zed => {
                "open the agent panel's settings (the server has a green dot), then ask it to run some Python."
            }
            Self::Jetbrains => {
                "open Settings, Tools, Junie, MCP Settings, switch the server on, then ask Junie to run some Python."
            }
            Self::Cline => "open Cline's MCP Servers (the server has a green dot), then ask it to run some Python.",
            Self::ClineCli => "restart `cline` (`cline mcp` shows the server), then ask it to run some Python.",
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
            codex: None,
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
            (
                Client::Codex,
                ".codex/config.toml",
                ".codex/config.toml",
                ".codex/config.toml",
            ),
            (
                Client::Gemini,
                ".gemini/settings.json",
                ".gemini/settings.json",
                ".gemini/settings.json",
            ),
            (
                Client::Windsurf,
                ".codeium/windsurf/mcp_config.json",
                ".codeium/windsurf/mcp_config.json",
                ".codeium/windsurf/mcp_config.json",
            ),
            (
                Client::Zed,
                ".config/zed/settings.json",
                ".config/zed/settings.json",
                "AppData/Roaming/Zed/settings.json",
            ),
            (
                Client::Jetbrains,
                ".junie/mcp/mcp.json",
                ".junie/mcp/mcp.json",
                ".junie/mcp/mcp.json",
            ),
            (
                Client::Cline,
                ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                "Library/Application Support/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                "AppData/Roaming/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
            ),
            (
                Client::ClineCli,
                ".cline/data/settings/cline_mcp_settings.json",
                ".cline/data/settings/cline_mcp_settings.json",
                ".cline/data/settings/cline_mcp_settings.json",
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
    fn a_project_has_separate_files_and_claude_desktop_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let of = |client: Client| client.file(System::Linux, &Home::default(), Some(folder.path()));
        assert_eq!(of(Client::Vscode).unwrap(), folder.path().join(".vscode/mcp.json"));
        assert_eq!(of(Client::ClaudeCode).unwrap(), folder.path().join(".mcp.json"));
        assert_eq!(of(Client::ClaudeDesktop).unwrap_err().code, Code::InvalidArgument);
        let missing = Client::Cursor.file(System::Linux, &Home::default(), Some(Path::new("/no/such")));
        assert!(missing.unwrap_err().message.contains("/no/such"));
    }
}
