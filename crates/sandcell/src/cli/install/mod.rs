//! `sandcell install CLIENT`: writes the server into the settings of an MCP client, and removes it again.
//!
//! Everything else in the file stays as it is, comments and spacing included. The original file is kept next to it, so
//! that `--undo` can restore the exact bytes.

mod client;
mod configured;
mod edit;
mod edit_toml;
#[cfg(feature = "tools")]
mod import;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use sandcell_sandbox::{Code, Failure, System, plain_path};

use super::output;
use super::replace::replace;
use client::{Client, Home};
pub(super) use configured::{Configured, configured};
use edit::Entry;

/// Writes the server into the settings of an MCP client
///
/// Everything else in the file stays as it is. The original file is kept next to it, with `.before-sandcell` at the
/// end of its name. Restart the client afterwards.
#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    /// The client
    #[arg(value_enum)]
    client: Client,

    /// Writes into this folder's project instead of the user's own settings
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = ".")]
    project: Option<PathBuf>,

    /// The server's name in the client
    #[arg(long, value_name = "NAME", default_value = "sandcell", value_parser = name)]
    name: String,

    /// Only prints the resulting file; changes nothing
    #[arg(long, conflicts_with = "undo")]
    print: bool,

    /// Removes the entry again, or restores the entry that it replaced
    #[arg(long)]
    undo: bool,

    /// Makes the client use a server in the background (`serve --shared`): sandboxes and variables outlive the client
    #[arg(long)]
    shared: bool,

    /// Also makes the client's other MCP servers callable by code in sandboxes: copies them as [tools.NAME] into
    /// sandcell's own settings. Each call needs approval. With --print only these tables are printed
    #[cfg(feature = "tools")]
    #[arg(long, conflicts_with_all = ["undo", "project"])]
    tools: bool,

    /// Arguments for `sandcell serve`, such as `--mount /data`
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// Accepts names that are valid in every client: clients put the name in front of the tools' names.
fn name(text: &str) -> Result<String, String> {
    let good =
        !text.is_empty() && text.len() <= 32 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    good.then(|| text.to_owned())
        .ok_or_else(|| "a name has 1 to 32 letters, digits, - and _".to_owned())
}

pub(super) fn run(args: &InstallArgs, config: Option<&Path>) -> Result<ExitCode, Failure> {
    let path = args.client.file(
        System::of_this_machine(),
        &Home::of_this_process(),
        args.project.as_deref(),
    )?;
    // A symbolic link (settings kept in a separate repository) stays a link: its target is changed.
    let path = std::fs::canonicalize(&path).map_or(path, plain_path);
    let edit = Edit {
        before: read(&path)?,
        backup: read(&backup_of(&path))?,
        entry: args.entry(config)?,
        path,
    };
    // Everything is checked before anything is written.
    #[cfg(feature = "tools")]
    let tools = match args.tools {
        true => {
            let text = edit.before.as_deref().unwrap_or_default();
            let imported = import::read(args.client, text, &args.name).map_err(|error| edit.unreadable(&error))?;
            Some(imported.prepare(config)?)
        }
        false => None,
    };
    #[cfg(feature = "tools")]
    if let Some(tools) = tools.as_ref().filter(|_| args.print) {
        return tools.print().map(|()| ExitCode::SUCCESS);
    }
    if args.print {
        eprintln_path("would be written to", &edit.path);
        return super::printed(output::text(&edit.installed()?).map(|()| ExitCode::SUCCESS));
    }
    if args.undo {
        edit.undo()
    } else {
        let installed = edit.install(args.client)?;
        #[cfg(feature = "tools")]
        if let Some(tools) = tools {
            tools.write()?;
        }
        if !args.shared {
            say("Sandboxes end with the client; with --shared they stay for the next one.");
        }
        Ok(installed)
    }
}

impl InstallArgs {
    fn entry(&self, config: Option<&Path>) -> Result<Entry, Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("this program's own path is unknown: {error}"),
                "write the entry by hand; `--print` shows nothing else",
            )
        })?;
        let text = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| {
                Failure::new(
                    Code::InvalidArgument,
                    format!(
                        "the path {} is not Unicode, so the settings cannot hold it",
                        path.display()
                    ),
                    "put it somewhere with a plain name",
                )
            })
        };
        let mut arguments = vec!["serve".to_owned()];
        if let Some(config) = config {
            let whole = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
            arguments.extend(["--config".to_owned(), text(&whole)?]);
        }
        arguments.extend(self.shared.then(|| "--shared".to_owned()));
        let mut before = "";
        for argument in &self.arguments {
            arguments.push(from_here(before, argument));
            before = argument;
        }
        Ok(Entry {
            table: self.client.table(),
            format: self.client.format(),
            name: self.name.clone(),
            says: self.client.says(),
            program: text(&program)?,
            arguments,
        })
    }
}

/// Rewrites an argument for a server that is started in another folder: a mount's relative path becomes relative to
/// this folder.
fn from_here(before: &str, argument: &str) -> String {
    let (flag, mount) = match argument.strip_prefix("--mount=") {
        Some(mount) => ("--mount=", mount),
        None if before == "--mount" => ("", argument),
        None => return argument.to_owned(),
    };
    let (host, rest) = mount.find(':').map_or((mount, ""), |at| mount.split_at(at));
    let whole = std::path::absolute(host).ok();
    match whole.as_deref().and_then(Path::to_str) {
        Some(whole) if Path::new(mount).is_relative() => format!("{flag}{whole}{rest}"),
        Some(_) | None => argument.to_owned(),
    }
}

/// A change of one file.
struct Edit {
    path: PathBuf,
    /// The current text of the file; none if there is no file.
    before: Option<String>,
    /// The text before the first change.
    backup: Option<String>,
    entry: Entry,
}

impl Edit {
    /// Returns the file's text with the entry in it.
    fn installed(&self) -> Result<String, Failure> {
        self.entry
            .put_into(self.before.as_deref().unwrap_or_default())
            .map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &edit::Unreadable) -> Failure {
        Failure::new(
            Code::InvalidArgument,
            format!("{} {error}; it was not changed", self.path.display()),
            "correct the file, or use --print and write the entry by hand",
        )
    }

    fn install(&self, client: Client) -> Result<ExitCode, Failure> {
        let text = self.installed()?;
        if self.before.as_ref() == Some(&text) {
            eprintln_path("is already in", &self.path);
            return Ok(ExitCode::SUCCESS);
        }
        if let (Some(before), None) = (&self.before, &self.backup) {
            write(&backup_of(&self.path), before, Some(&self.path))?;
        }
        write(&self.path, &text, None)?;
        eprintln_path("was written to", &self.path);
        let hint = client.how_to_reload();
        say(&format!("Next: {hint}"));
        Ok(ExitCode::SUCCESS)
    }

    /// Restores the original bytes if no other program has changed the file since. Otherwise removes only the entry,
    /// or restores its earlier value.
    fn undo(&self) -> Result<ExitCode, Failure> {
        let Some(now) = &self.before else {
            eprintln_path("is not in", &self.path);
            return Ok(ExitCode::SUCCESS);
        };
        let unreadable = |error: edit::Unreadable| self.unreadable(&error);
        let without = self
            .entry
            .take_out_of(now, self.backup.as_deref())
            .map_err(unreadable)?;
        let Some(text) = without else {
            eprintln_path("is not in", &self.path);
            return Ok(ExitCode::SUCCESS);
        };
        let untouched = |former: &str| self.entry.differs_only_by_entry(former, now);
        match &self.backup {
            Some(former) if untouched(former) => write(&self.path, former, None)?,
            None if untouched("") => remove(&self.path)?,
            _ => write(&self.path, &text, None)?,
        }
        if self.backup.is_some() {
            remove(&backup_of(&self.path))?;
        }
        eprintln_path("was taken out of", &self.path);
        Ok(ExitCode::SUCCESS)
    }
}

fn backup_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".before-sandcell");
    path.with_file_name(name)
}

fn eprintln_path(what: &str, path: &Path) {
    say(&format!("sandcell {what} {}", path.display()));
}

fn say(line: &str) {
    // A closed stderr is ignored: there is no other place for the message.
    let _nobody_listens = io::Write::write_all(&mut io::stderr().lock(), format!("{line}\n").as_bytes());
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        Code::DeniedByPolicy,
        format!("{} cannot be {what}: {error}", path.display()),
        "check the file's and its folder's owner and rights, or use --print and write the entry by hand",
    )
}

/// Returns a file's text, if there is such a file. Settings of clients are small; a file of more than 64 MiB is
/// refused.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    const MAX_SETTINGS_BYTES: u64 = 64 << 20;
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(failed("read", path, &io::Error::other("it is not a file"))),
        Ok(found) if found.len() > MAX_SETTINGS_BYTES => {
            Err(failed("read", path, &io::Error::other("it is larger than 64 MiB")))
        }
        Ok(_) => std::fs::read_to_string(path)
            .map(Some)
            .map_err(|error| failed("read", path, &error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, &error)),
    }
}

fn write(path: &Path, text: &str, like: Option<&Path>) -> Result<(), Failure> {
    replace(path, text, like).map_err(|error| failed("written", path, &error))
}

fn remove(path: &Path) -> Result<(), Failure> {
    std::fs::remove_file(path).map_err(|error| failed("removed", path, &error))
}
