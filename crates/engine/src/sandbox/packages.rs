//! Packages for sandboxes. Each sandbox has one installation at a time.
//!
//! [`Packages`] decides what is installed and how. This module attaches the result to the sandbox and records it, so
//! that the next request builds on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{
    Code, Command, Consent, ConsentRequired, Exit, Failure, HOME, Installed, PackageRequest, Packages, Sandbox,
    SandboxError, StdinMode, gather, of_registry,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::api::sync::lock;
use crate::output::{plain_line, preview};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;

/// The default time limit of an installation.
pub(crate) const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The maximum time to arrange packages in a sandbox.
const ARRANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum stored output of the arranging program, in bytes.
const MAX_ARRANGE_BYTES: usize = 16 << 10;

/// The maximum size of an installation's report, in bytes.
const MAX_REPORT_BYTES: usize = 4 << 20;
/// The number of characters of its error in a message.
const MAX_ERROR_CHARS: usize = 300;

/// The part of a package list that belongs to one installer.
struct Order {
    installer: Arc<dyn Packages>,
    packages: Vec<String>,
}

/// An installer, and the base packages that every sandbox starts with.
pub(crate) type BasePackages = (Arc<dyn Packages>, Installed);

impl Sandboxes {
    /// Returns the installer of a language.
    pub(crate) fn installer(&self, language: &str) -> Result<Arc<dyn Packages>, Failure> {
        let packages = self.packages.get();
        let installer = packages.iter().find(|packages| packages.serves(language));
        installer.cloned().ok_or_else(|| {
            Failure::new(
                Code::InvalidArgument,
                format!("packages of {language} cannot be installed here"),
                "use the standard library, or write the files that you need",
            )
        })
    }

    /// Assigns each package to an installer: that of the registry that it names (`npm:zod`), else the language's.
    fn orders(&self, language: &str, packages: &[String]) -> Result<Vec<Order>, Failure> {
        let all = self.packages.get();
        let mut orders: Vec<Order> = Vec::new();
        for text in packages {
            let named = all
                .iter()
                .find_map(|installer| Some((installer, of_registry(text, installer.registry())?)));
            let (installer, text) = match named {
                Some((installer, text)) => (installer.clone(), text),
                None => (self.installer(language)?, text.as_str()),
            };
            let same = |order: &&mut Order| order.installer.language() == installer.language();
            match orders.iter_mut().find(same) {
                Some(order) => order.packages.push(text.to_owned()),
                None => orders.push(Order {
                    installer,
                    packages: vec![text.to_owned()],
                }),
            }
        }
        Ok(orders)
    }

    /// Checks a list of packages before anything is made for it.
    pub(crate) fn check_packages(&self, language: &str, packages: &[String], consent: &Consent) -> Result<(), Failure> {
        let orders = self.orders(language, packages)?;
        orders
            .iter()
            .try_for_each(|order| order.installer.check(&order.packages, consent))
    }

    /// Returns the parts of a call that need the user's consent. Without a language, the packages belong to the first
    /// installer's language.
    pub(crate) fn consent_required(
        &self,
        language: Option<&str>,
        packages: &[String],
        hosts: &[String],
    ) -> ConsentRequired {
        let first = || {
            let all = self.packages.get();
            all.first().map(|installer| installer.language().to_owned())
        };
        let language = match language {
            Some(name) => self.language(name).ok().map(|found| found.info().name.clone()),
            None => first(),
        };
        let orders = language.and_then(|language| self.orders(&language, packages).ok());
        let of_packages = orders.into_iter().flatten();
        let network = self.network.get();
        ConsentRequired {
            packages: of_packages
                .flat_map(|order| order.installer.consent_required(&order.packages))
                .collect(),
            hosts: network
                .as_ref()
                .as_ref()
                .map_or_else(Vec::new, |network| network.consent_required(hosts)),
            changes: None,
        }
    }

    /// Installs packages in a sandbox. An empty list does nothing. Requests for one sandbox wait for each other.
    pub(crate) async fn provide(
        &self,
        record: &Record,
        sandbox: &dyn Sandbox,
        language: &str,
        (packages, consent): (&[String], &Consent),
        timeout: Duration,
        progress: &watch::Sender<String>,
    ) -> Result<Option<Installed>, Failure> {
        let orders = self.orders(language, packages)?;
        if orders.is_empty() {
            return Ok(None);
        }
        if sandbox.attachments().is_none() && !sandbox.installs_inside() {
            if sandbox.image().is_none() {
                return Err(SandboxError::Unsupported("installing packages".to_owned()).into());
            }
            return Err(Failure::invalid(
                "packages cannot be installed in a sandbox of an image: they are made for this machine's interpreter",
                "choose an image that has them, or a sandbox without an image",
            ));
        }
        let (deadline, mut left) = (Instant::now() + timeout, timeout);
        let _turn = record.installing.lock().await;
        let mut all = Installed::default();
        for Order { installer, packages } in orders {
            let wanted = PackageRequest {
                owner: record.owner.0.to_string(),
                packages,
                held: record.packages(installer.language()),
                timeout: left,
                consent: consent.clone(),
            };
            let mut installed = if sandbox.installs_inside() {
                install_inside(sandbox, installer.as_ref(), &wanted).await?
            } else {
                installer.install(wanted, progress).await?
            };
            if let Some(folder) = &installed.folder {
                installed
                    .notes
                    .extend(attach_packages(sandbox, installer.as_ref(), folder).await?);
                let slot = lock(&record.slots)
                    .get(&(installer.language().to_owned(), None))
                    .cloned();
                if let Some(slot) = slot {
                    slot.drop_stale(folder);
                }
            }
            record.add_packages(installer.language(), &installed.added);
            lock(&self.records.history).installed(&record.owner, &installed.added);
            all.added.append(&mut installed.added);
            all.present.append(&mut installed.present);
            all.notes.append(&mut installed.notes);
            left = deadline.saturating_duration_since(Instant::now());
        }
        Ok(Some(all))
    }

    /// Returns the base packages of every sandbox, with their installers.
    pub(crate) fn bases(&self) -> Result<Vec<BasePackages>, Failure> {
        let mut bases = Vec::new();
        for installer in self.packages.get().iter() {
            bases.extend(installer.base()?.map(|base| (installer.clone(), base)));
        }
        Ok(bases)
    }
}

/// Installs packages with the sandbox's programs.
async fn install_inside(
    sandbox: &dyn Sandbox,
    installer: &dyn Packages,
    wanted: &PackageRequest,
) -> Result<Installed, Failure> {
    let both = async {
        let resolve = installer.resolve_inside(&wanted.packages, &wanted.consent)?;
        let printed = run_inside(sandbox, resolve).await?;
        let (install, mut installed) = installer.install_inside(&wanted.packages, &wanted.consent, &printed)?;
        if let Some(argv) = install {
            installed.notes.extend(skipped_note(&run_inside(sandbox, argv).await?));
        }
        Ok(installed)
    };
    timeout(wanted.timeout, both).await.unwrap_or_else(|_| {
        Err(Failure::new(
            Code::Timeout,
            format!(
                "the installation took longer than {} s and was stopped",
                wanted.timeout.as_secs()
            ),
            "raise timeout_s, or install fewer packages at once",
        ))
    })
}

/// Returns the command of an installer's program in the home folder, without input.
fn installer_command(sandbox: &dyn Sandbox, argv: Vec<String>) -> Command {
    Command {
        argv,
        env: sandbox.base_env().clone(),
        cwd: HOME.to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: false,
        terminal: None,
    }
}

/// Returns the output of an installer that ran inside the sandbox.
async fn run_inside(sandbox: &dyn Sandbox, argv: Vec<String>) -> Result<Vec<u8>, Failure> {
    let process = sandbox.spawn(installer_command(sandbox, argv)).await?;
    let done = gather(process, MAX_REPORT_BYTES).await;
    if done.exit == Some(Exit::Code(0)) {
        return Ok(done.stdout);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("nothing");
    Err(Failure::new(
        Code::PackageFailed,
        format!(
            "the installation failed in the sandbox: {}",
            plain_line(preview(last, MAX_ERROR_CHARS).as_bytes())
        ),
        "check the names and versions; the sandbox needs a network and its own pip or npm",
    ))
}

/// Returns their folders, in the order in which they are attached.
pub(crate) fn folders(bases: &[BasePackages]) -> Vec<PathBuf> {
    bases.iter().filter_map(|(_, base)| base.folder.clone()).collect()
}

/// Attaches a package folder to a sandbox and arranges the packages there. Returns a note about skipped names.
pub(crate) async fn attach_packages(
    sandbox: &dyn Sandbox,
    installer: &dyn Packages,
    folder: &Path,
) -> Result<Option<String>, Failure> {
    let place = sandbox.attach(folder).await?;
    match installer.arrange(&place) {
        Some(argv) => arrange(sandbox, argv).await,
        None => Ok(None),
    }
}

/// Runs the program that arranges packages in a sandbox. Returns a note about skipped names. Code in the sandbox
/// controls its effects and output, but can only spoil its own packages.
async fn arrange(sandbox: &dyn Sandbox, argv: Vec<String>) -> Result<Option<String>, Failure> {
    let process = sandbox.spawn(installer_command(sandbox, argv)).await?;
    let done = timeout(ARRANGE_TIMEOUT, gather(process, MAX_ARRANGE_BYTES)).await.ok();
    let done = done.filter(|done| done.exit == Some(Exit::Code(0))).ok_or_else(|| {
        Failure::new(
            Code::PackageFailed,
            "the packages are installed, but could not be linked into node_modules of the home folder",
            "check that node_modules is writable and the disk is not full, and install them again",
        )
    })?;
    Ok(skipped_note(&done.stdout))
}

/// Returns a note that lists the skipped names, given one name a line.
fn skipped_note(printed: &[u8]) -> Option<String> {
    let names: Vec<String> = printed
        .split(|&byte| byte == b'\n')
        .filter(|name| !name.is_empty())
        .take(20)
        .map(plain_line)
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "not linked, because node_modules of the home folder already has this name: {}",
            names.join(", ")
        )
    })
}
