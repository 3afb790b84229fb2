//! Starting programs: where the workspace is, and output that is shown and read at the same time.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// Returns true when a missing prerequisite is a failure instead of a skipped chore.
pub fn nothing_may_be_skipped() -> bool {
    std::env::var("SANDCELL_TEST_REQUIRE").is_ok_and(|value| value == "1")
}

/// The cargo that runs us, in the workspace's root.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // `cargo run` sets these for us; a nested cargo that sees them rebuilds what depends on them, such as ring and all above it.
    for (name, _) in std::env::vars_os() {
        let said = name.to_string_lossy();
        if said.starts_with("CARGO_PKG_") || said.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs it with our own output and fails unless it succeeds.
pub fn must(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("could not start {command:?}"))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Its standard output, when it succeeds.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not start {command:?}"))?;
    if !output.status.success() {
        bail!("{} ended with {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).context("the output is not UTF-8")
}

/// Returns true when the program starts and succeeds; its output is discarded.
pub fn works(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs it, shows both its streams as they come, and hands each line to `see`. Returns whether it succeeded.
pub fn watched(command: &mut Command, see: impl FnMut(&str) + Send) -> Result<bool> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start {command:?}"))?;
    let out = child.stdout.take().context("no stdout")?;
    let err = child.stderr.take().context("no stderr")?;
    let see = Mutex::new(see);
    std::thread::scope(|scope| {
        scope.spawn(|| copy_lines(out, std::io::stdout(), &see));
        scope.spawn(|| copy_lines(err, std::io::stderr(), &see));
    });
    Ok(child.wait().context("could not wait for it")?.success())
}

fn copy_lines(from: impl Read, mut to: impl Write, see: &Mutex<impl FnMut(&str)>) {
    let mut lines = BufReader::new(from);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // A closed terminal is no reason to stop counting.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        if let Ok(mut see) = see.lock() {
            (*see)(String::from_utf8_lossy(&line).trim_end());
        }
        line.clear();
    }
}

/// The command as a person would type it.
fn shown(command: &Command) -> String {
    let mut words = vec![
        Path::new(command.get_program())
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    ];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}
