//! Each package, tried the way its user would: installed from its file, without a network, in an environment with nothing
//! of the developer's in it; then the demo.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::{Release, packages, wheel};
use crate::command::{must, nothing_may_be_skipped, output, works};

/// The maximum time from a cold start to the output of the first call.
const FIRST_PRINT: Duration = Duration::from_secs(5);

/// From the start of `pip install` to a plot, in an environment with the data libraries.
const FIRST_PLOT: Duration = Duration::from_secs(5);
/// Names a Python that has them.
const DATA_PYTHON: &str = "SANDCELL_TEST_DATA_PYTHON";
const FIRST_PLOT_CODE: &str = "
import sys, sandcell
sandcell.configure(python=sys.executable)
with sandcell.Sandbox() as sandbox:
    run = sandbox.run('''
import numpy, pandas
pandas.DataFrame({'month': numpy.arange(12), 'amount': numpy.arange(12) ** 2}).plot(x='month')
''').check()
    assert run.images[0].data.startswith(b'\\x89PNG'), run
";

/// The manual page, as the binary prints it.
pub(super) fn manual(binary: &Path) -> Result<Vec<u8>> {
    let output = Command::new(binary).arg("manual").stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the manual page cannot be made");
    Ok(output.stdout)
}

/// The tools that the server offers, as it tells them to a client: name, and the first sentence of the description.
pub(super) fn tools(binary: &Path) -> Result<Vec<(String, String)>> {
    let home = tempfile::Builder::new().prefix("cell-dist-").tempdir()?;
    let mut server = Server::start(bare(binary.as_os_str(), home.path()).arg("serve"))?;
    let answer = server.ask("tools/list", &json!({}))?;
    let tools = answer["tools"].as_array().context("the server has no tools")?;
    let text = |tool: &Value, name: &str| tool[name].as_str().unwrap_or_default().to_owned();
    let first = |text: String| text.split_inclusive(". ").next().unwrap_or_default().trim().to_owned();
    Ok(tools
        .iter()
        .map(|tool| (text(tool, "name"), first(text(tool, "description"))))
        .collect())
}

pub(super) fn all(release: &Release, out: &Path) -> Result<()> {
    let mut machines = release.builds.iter().map(|build| build.machine);
    let machine = machines
        .find(|machine| machine.is_this())
        .context("no build for this machine")?;
    let wheel = out.join(wheel::name(release, machine));
    must(
        Command::new("sha256sum")
            .args(["--check", "--quiet", "SHA256SUMS"])
            .current_dir(out),
    )?;
    trial("the archive", |folder| {
        must(
            Command::new("tar")
                .arg("xzf")
                .arg(out.join(packages::tarball_name(release, machine)))
                .arg("-C")
                .arg(folder),
        )?;
        Ok(vec![folder.join(format!("sandcell-{}/sandcell", release.version))])
    })?;
    trial("the wheel", |folder| {
        let python = environment(OsStr::new("python3"), folder)?;
        install_wheel(&python, folder, &wheel)?;
        first_run(&python, folder, &release.version)?;
        Ok(vec![folder.join("venv/bin/sandcell")])
    })?;
    first_plot(&wheel)?;
    let uvx = std::env::var_os("SANDCELL_TEST_UV").map(|uv| PathBuf::from(uv).with_file_name("uvx"));
    let uvx = uvx.unwrap_or_else(|| PathBuf::from("uvx"));
    if present("uvx", Command::new(&uvx).arg("--version"))? {
        trial("the wheel by uvx", |_| {
            let mut words = vec![uvx.clone()];
            words.extend(["--offline", "--from"].map(PathBuf::from));
            words.extend([wheel.clone(), PathBuf::from("sandcell")]);
            Ok(words)
        })?;
    }
    if present("npm", Command::new("npm").arg("--version"))? {
        trial("the npm package", |folder| {
            let mut install = bare(OsStr::new("npm"), folder);
            install.args([
                "install",
                "--offline",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
                "--prefix",
            ]);
            must(install.arg(folder).arg(out.join(packages::npm_name(release))))?;
            Ok(vec![folder.join("node_modules/.bin/sandcell")])
        })?;
    }
    trial("the MCP bundle", |folder| {
        // As a client does: unpack, then start what the manifest says.
        must(
            Command::new("python3")
                .args(["-m", "zipfile", "-e"])
                .arg(out.join(packages::bundle_name(release, machine)))
                .arg(folder),
        )?;
        let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("manifest.json"))?)?;
        let command = manifest["server"]["mcp_config"]["command"].as_str().unwrap_or_default();
        let program = PathBuf::from(command.replace("${__dirname}", &folder.to_string_lossy()));
        // Python's unpacker drops the rights, which clients keep or set.
        must(Command::new("chmod").arg("755").arg(&program))?;
        Ok(vec![program])
    })
}

/// Makes an empty virtual environment, and returns its Python.
fn environment(python: &OsStr, folder: &Path) -> Result<PathBuf> {
    must(Command::new(python).args(["-m", "venv"]).arg(folder.join("venv")))?;
    Ok(folder.join("venv/bin/python"))
}

fn install_wheel(python: &Path, folder: &Path, wheel: &Path) -> Result<()> {
    let mut install = bare(python.as_os_str(), folder);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--disable-pip-version-check",
    ]);
    must(install.arg(wheel))
}

/// Runs code with the package, which has the wheel's version and finds the wheel's program although that is not on PATH.
fn first_run(python: &Path, folder: &Path, version: &str) -> Result<()> {
    let code = "import importlib.metadata, sandcell, sandcell._stdio as stdio\n\
        print(sandcell.__version__, importlib.metadata.version('sandcell'), stdio.find_program())\n\
        print(sandcell.run('print(6 * 7)').check().stdout)";
    let output = bare(python.as_os_str(), folder).args(["-I", "-c", code]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let program = folder.join("venv/bin/sandcell");
    let wanted = format!("{version} {version} {}\n42\n", program.display());
    ensure!(
        output.status.success() && said.trim() == wanted.trim(),
        "the package gave {said:?}, not {wanted:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Installs the wheel where the data libraries are, and has the first plot come within its time, installation included.
fn first_plot(wheel: &Path) -> Result<()> {
    let Some(data) = std::env::var_os(DATA_PYTHON) else {
        if nothing_may_be_skipped() {
            bail!("{DATA_PYTHON} names no Python with numpy, pandas and matplotlib");
        }
        println!("skipped: {DATA_PYTHON} names no Python with numpy, pandas and matplotlib, for a plot");
        return Ok(());
    };
    let folder = tempfile::Builder::new().prefix("cell-dist-").tempdir()?;
    let folder = folder.path();
    let python = environment(&data, folder)?;
    let site = |python: &Path| {
        let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
        output(Command::new(python).args(["-I", "-c", code]))
    };
    // Sandboxes see one environment only, so the libraries have to lie in it.
    let libraries = Path::new(site(Path::new(&data))?.trim()).join(".");
    must(Command::new("cp").arg("-a").arg(libraries).arg(site(&python)?.trim()))?;
    let began = Instant::now();
    install_wheel(&python, folder, wheel)?;
    let installed = began.elapsed();
    let output = bare(python.as_os_str(), folder)
        .args(["-I", "-c", FIRST_PLOT_CODE])
        .output()?;
    let took = began.elapsed();
    ensure!(
        output.status.success(),
        "there was no plot: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(
        took < FIRST_PLOT,
        "the first plot came {took:.1?} after `pip install` began"
    );
    println!(
        "dist: the wheel: installed in {installed:.1?}, and the first plot {took:.1?} after the installation began"
    );
    Ok(())
}

fn present(name: &str, command: &mut Command) -> Result<bool> {
    if works(command) {
        return Ok(true);
    }
    if nothing_may_be_skipped() {
        bail!("{name} is missing");
    }
    println!("skipped: there is no {name} to try the package with");
    Ok(false)
}

/// Installs with `install`, which returns the program. The first call must print within its time, and the demo succeed.
fn trial(name: &str, install: impl FnOnce(&Path) -> Result<Vec<PathBuf>>) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("cell-dist-").tempdir()?;
    let began = Instant::now();
    let words = install(folder.path()).with_context(|| format!("{name} cannot be installed"))?;
    let installed = began.elapsed();
    let command = || {
        let mut command = bare(words[0].as_os_str(), folder.path());
        command.args(&words[1..]);
        command
    };
    let started = Instant::now();
    let mut server = Server::start(command().arg("serve"))?;
    let call = json!({"name": "execute_code", "arguments": {"code": "print('it runs')"}});
    let answer = server.ask("tools/call", &call)?;
    let text = answer["content"][0]["text"].as_str().unwrap_or_default();
    ensure!(text == "it runs\n", "{name}: the first call gave {answer}");
    let first = started.elapsed();
    drop(server);
    ensure!(first < FIRST_PRINT, "{name}: the first print took {first:?}");
    let demo = command().arg("demo").output()?;
    ensure!(
        demo.status.success(),
        "{name}: the demo failed: {}{}",
        String::from_utf8_lossy(&demo.stdout),
        String::from_utf8_lossy(&demo.stderr)
    );
    println!("dist: {name}: installed in {installed:.1?}, first print after {first:.2?}, and the demo succeeds");
    Ok(())
}

/// Returns a command for the program with a separate home and a minimal environment.
fn bare(program: &OsStr, home: &Path) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("HOME", home).env("LANG", "C");
    command.env("SANDCELL_DATA_DIR", home.join("data")).current_dir(home);
    command
}

/// A server, spoken to as a client does.
struct Server {
    child: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    next: u64,
}

impl Server {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("could not start {command:?}"))?;
        let out = child.stdout.take().context("no stdout")?;
        let mut server = Self {
            child,
            lines: BufReader::new(out).lines(),
            next: 1,
        };
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "dist", "version": "1"},
        });
        server.ask("initialize", &hello)?;
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(server)
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("no stdin")?;
        writeln!(stdin, "{message}")?;
        Ok(stdin.flush()?)
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        let id = self.next;
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        for line in self.lines.by_ref() {
            let message: Value = serde_json::from_str(&line?)?;
            if message["id"] == id {
                ensure!(message.get("error").is_none(), "{method}: {message}");
                return Ok(message["result"].clone());
            }
        }
        bail!("{method}: the server ended without an answer")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // End of file ends it; it has sandboxes to clear away.
        drop(self.child.stdin.take());
        let _nothing_else_to_do = self.child.wait();
    }
}
