//! A private place for one test: home, temporary folder, data folder and settings, removed when dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A folder with everything that a server of one test may write to.
pub struct TestDir {
    folder: TempDir,
    settings: String,
}

/// A variable that every server has and no code inside may ever see.
pub const SECRET_NAME: &str = "CELL_E2E_SECRET";
pub const SECRET_VALUE: &str = "hush-4f1c0e5d9a7b";

impl TestDir {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("cell-e2e-").tempdir().unwrap();
        for name in ["home", "tmp", "data", "work"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self {
            folder,
            settings: String::new(),
        }
    }

    /// Creates a place with these lines of `config.toml`.
    pub fn with_settings(settings: &str) -> Self {
        Self {
            settings: settings.to_owned(),
            ..Self::new()
        }
    }

    /// Returns the same folder with other settings.
    pub fn with(self, settings: &str) -> Self {
        Self {
            settings: settings.to_owned(),
            ..self
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the folder of the operator's own files.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// Writes a file into the work folder and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Returns a command with an environment of this place only.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(super::binary());
        command.args(arguments).current_dir(self.work()).env_clear();
        command.envs([
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C"),
            (SECRET_NAME, SECRET_VALUE),
        ]);
        command.env("HOME", self.path("home"));
        command.env("TMPDIR", self.path("tmp"));
        command.env("SANDCELL_DATA_DIR", self.path("data"));
        if !self.settings.is_empty() {
            let file = self.path("config.toml");
            std::fs::write(&file, &self.settings).unwrap();
            // A subcommand comes first; its own options may follow.
            command.arg("--config").arg(file);
        }
        command
    }

    /// Returns every file and folder in the temporary folder, by path.
    pub fn temporary_files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.path("tmp"), &mut found);
        found
    }
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&path, found);
        }
        found.push(path);
    }
}
