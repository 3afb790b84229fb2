//! Shell completions and the manual page, made from the same definitions as `--help`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;
use sandcell_sandbox::{Code, Failure};

use super::output::{self, Printed};

/// Prints completions for a shell
///
/// bash: `sandcell completions bash > ~/.local/share/bash-completion/completions/sandcell`; fish:
/// `sandcell completions fish > ~/.config/fish/completions/sandcell.fish`; zsh: into a folder of `$fpath`, as `_sandcell`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn completions(args: &CompletionsArgs, mut cli: clap::Command) -> Printed {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "sandcell", &mut text);
    output::text(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page, or writes one for each command into a folder
///
/// `sandcell manual | man -l -` displays it.
#[derive(Debug, Args)]
pub(super) struct ManualArgs {
    /// The folder, such as ~/.local/share/man/man1
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub(super) fn manual(args: &ManualArgs, cli: clap::Command) -> Result<Printed, Failure> {
    let Some(folder) = &args.out else {
        let mut page = Vec::new();
        return Ok(clap_mangen::Man::new(cli)
            .render(&mut page)
            .and_then(|()| output::text(&String::from_utf8_lossy(&page)))
            .map(|()| ExitCode::SUCCESS));
    };
    write_pages(cli, folder).map_err(|error| {
        Failure::new(
            Code::InvalidArgument,
            format!("manual pages cannot be written to {}: {error}", folder.display()),
            "name a folder that you may write",
        )
    })?;
    Ok(Ok(ExitCode::SUCCESS))
}

fn write_pages(cli: clap::Command, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(cli, folder)
}
