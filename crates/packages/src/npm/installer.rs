//! One installation with npm in a separate sandbox: resolve, download, unpack, and stream the files out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use sandcell_broker::NpmIndex;
use sandcell_sandbox::{
    Backend, Code, Command, Failure, Limits, Process, Sandbox, SandboxPath, SandboxSpec, StdinMode, WriteMode,
};
use tokio::sync::watch;

use super::lock::{self, Lock};
use super::spec::Spec;
use crate::index_port::IndexPort;
use crate::installer::{ProgramEnd, failure_of, receive_files, run_to_completion};
use crate::store::Draft;
use crate::unpack::Unpacked;

const PACK_SCRIPT: &str = include_str!("../inside/pack.js");
const SITE_FOLDER: &str = "/tmp/site";
/// The maximum size of npm's lock file in bytes.
const LIST_MAX: u64 = 16 << 20;

/// The settings of an installation.
pub(super) struct Setup {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) node: String,
    pub(super) npm: PathBuf,
    pub(super) limits: Limits,
}

/// A running installer.
pub(super) struct Installer {
    setup: Setup,
    sandbox: Arc<dyn Sandbox>,
    /// The path of npm inside.
    npm: String,
    index_port: IndexPort,
}

impl Installer {
    /// Makes the sandbox.
    pub(super) async fn start(setup: Setup, index: Arc<NpmIndex>) -> Result<Self, Failure> {
        let spec = SandboxSpec {
            limits: setup.limits.clone(),
            ..SandboxSpec::default()
        };
        let sandbox = setup.backend.create(&spec).await?;
        // `/usr` of the host is visible in the sandbox. npm in another folder is attached.
        let npm = match setup.npm.parent().and_then(std::path::Path::parent) {
            Some(folder) if !setup.npm.starts_with("/usr") => {
                format!("{}/bin/npm-cli.js", sandbox.attach(folder).await?)
            }
            _ => setup.npm.display().to_string(),
        };
        let serve = move |connection, port| Arc::clone(&index).serve(connection, port);
        let index_port = IndexPort::open(sandbox.as_ref(), serve).await?;
        Ok(Self {
            setup,
            sandbox,
            npm,
            index_port,
        })
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.sandbox.base_env().clone();
        let registry = format!("http://127.0.0.1:{}/", self.index_port.port);
        let own = [
            ("HOME", "/tmp"),
            ("NO_COLOR", "1"),
            ("npm_config_registry", registry.as_str()),
            ("npm_config_cache", "/tmp/npm-cache"),
            ("npm_config_userconfig", "/dev/null"),
            ("npm_config_globalconfig", "/tmp/no-npmrc"),
            ("npm_config_ignore_scripts", "true"),
            ("npm_config_audit", "false"),
            ("npm_config_fund", "false"),
            ("npm_config_update_notifier", "false"),
            ("npm_config_progress", "false"),
            ("npm_config_loglevel", "error"),
            ("npm_config_logs_max", "0"),
            ("npm_config_fetch_retries", "0"),
            ("npm_config_omit", "dev"),
            // This setting makes the programs of packages executable. The links themselves are omitted.
            ("npm_config_bin_links", "true"),
            ("npm_config_replace_registry_host", "never"),
        ];
        env.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        env
    }

    async fn spawn(&self, argv: &[&str], cwd: &str) -> Result<Process, Failure> {
        let command = Command {
            argv: argv.iter().map(|&text| text.to_owned()).collect(),
            env: self.environment(),
            cwd: cwd.to_owned(),
            stands_alone: false,
            stdin: StdinMode::Null,
            control: false,
            terminal: None,
        };
        Ok(self.sandbox.spawn(command).await?)
    }

    async fn npm(&self, what: &str, arguments: &[&str]) -> Result<(), Failure> {
        let argv = [&[self.setup.node.as_str(), self.npm.as_str()], arguments].concat();
        let ended = run_to_completion(self.spawn(&argv, SITE_FOLDER).await?).await?;
        if ended.ok {
            return Ok(());
        }
        Err(self.failed(what, ended))
    }

    fn failed(&self, what: &str, ended: ProgramEnd) -> Failure {
        let registry = format!("http://127.0.0.1:{}/", self.index_port.port);
        let output = ended.output.replace(&registry, "the npm registry ");
        failure_of(what, &ProgramEnd { output, ..ended }, &self.setup.limits)
    }

    /// Resolves exact versions.
    pub(super) async fn resolve(&self, specs: &[Spec]) -> Result<Lock, Failure> {
        let wanted: BTreeMap<&str, &str> = specs
            .iter()
            .map(|spec| (spec.name.as_str(), spec.range.as_str()))
            .collect();
        // Written to a file, so that no part of a request becomes an argument.
        let file = serde_json::json!({"private": true, "dependencies": wanted}).to_string();
        let files = self.sandbox.files();
        files
            .write(&path("package.json")?, file.into(), WriteMode::Replace)
            .await?;
        self.npm(
            "the packages could not be resolved",
            &["install", "--package-lock-only"],
        )
        .await?;
        let chunk = files.read(&path("package-lock.json")?, 0, LIST_MAX).await?;
        let text = String::from_utf8(chunk.bytes.to_vec()).ok();
        let text = text.filter(|_| chunk.total <= LIST_MAX);
        lock::parse(&text.ok_or_else(|| internal("npm's list of versions is too long or not text"))?)
    }

    /// Downloads and unpacks exactly the resolved versions, and writes the files into the draft.
    pub(super) async fn build(
        &self,
        draft: &Draft,
        limit: u64,
        count: usize,
        progress: &watch::Sender<String>,
    ) -> Result<Unpacked, Failure> {
        progress.send_replace(format!("downloading {count} packages"));
        self.npm("the packages could not be downloaded and unpacked", &["ci"])
            .await?;
        progress.send_replace("storing them".to_owned());
        let process = self
            .spawn(&[&self.setup.node, "-e", PACK_SCRIPT, SITE_FOLDER], "/tmp")
            .await?;
        receive_files(process, draft, limit)
            .await?
            .map_err(|ended| self.failed("the packages could not be read out of the installer's sandbox", ended))
    }

    /// Closes the sandbox and waits for its end.
    pub(super) async fn close(self) {
        drop(self.index_port);
        if let Err(error) = self.sandbox.close().await {
            tracing::debug!(%error, "an installer's sandbox did not close in order");
        }
    }
}

fn path(name: &str) -> Result<SandboxPath, Failure> {
    SandboxPath::parse(&format!("{SITE_FOLDER}/{name}")).map_err(|error| internal(&error.to_string()))
}

fn internal(what: &str) -> Failure {
    Failure::new(
        Code::PackageFailed,
        what,
        "try again; tell the operator if it happens again",
    )
}
