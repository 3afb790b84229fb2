//! Bases: named sets of prepared packages that sandboxes start with. A base may contain Python packages and npm
//! packages.

use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{Consent, Failure, PackageVersion, Packages as _, of_registry};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::coordinator::too_long;
use crate::lock;
use crate::npm::NpmPackages;
use crate::service::PythonPackages;
use crate::spec::{self, Spec};
use crate::store::{Base, Store, base_name};

/// The time limit for building a base.
const BUILD_TIMEOUT: Duration = Duration::from_secs(3600);

/// Builds, lists and removes bases.
#[derive(Debug)]
pub struct Bases {
    python: Arc<PythonPackages>,
    npm: Option<Arc<NpmPackages>>,
}

/// A base, for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseInfo {
    /// The name.
    pub name: String,
    /// The version of Python that its Python packages need. Empty if it has none.
    pub python: String,
    /// The Python packages.
    pub packages: Vec<PackageVersion>,
    /// The npm packages.
    pub npm: Vec<PackageVersion>,
    /// The size in bytes.
    pub bytes: u64,
    /// True if it works with the Python and the Node of this machine.
    pub usable: bool,
}

impl Bases {
    /// Creates the service from the installers. `npm` is None where npm is not available.
    #[must_use]
    pub fn new(python: Arc<PythonPackages>, npm: Option<Arc<NpmPackages>>) -> Self {
        Self { python, npm }
    }

    fn store(&self) -> Result<&Store, Failure> {
        self.python.coordinator.store()
    }

    /// Builds a base from these packages (`npm:NAME` is an npm package), or from the exact Python versions of a lock
    /// file.
    ///
    /// # Errors
    /// The reason that the base cannot be built.
    pub async fn build(
        &self,
        name: &str,
        packages: &[String],
        lock_file: Option<&str>,
        progress: &watch::Sender<String>,
    ) -> Result<BaseInfo, Failure> {
        let name = base_name(name).ok_or_else(|| {
            Failure::invalid(
                "the name of the base is invalid",
                "use lower-case letters, digits, - and _, at most 40 of them",
            )
        })?;
        let exact = lock_file.map(lock::parse).transpose()?;
        if exact.is_some() && !packages.is_empty() {
            return Err(Failure::invalid(
                "a lock file and package names cannot be used together",
                "put everything into the lock file, or leave it out",
            ));
        }
        let npm = self.npm.as_ref();
        let of_npm = |text: &String| Some(of_registry(text, npm?.registry())?.to_owned());
        let for_npm: Vec<String> = packages.iter().filter_map(of_npm).collect();
        let for_python: Vec<String> = packages
            .iter()
            .filter(|text| of_npm(text).is_none())
            .map(|text| of_registry(text, self.python.registry()).unwrap_or(text).to_owned())
            .collect();
        let work = async {
            // Nothing is fetched if one of the two parts is not allowed.
            if let (Some(npm), false) = (npm, for_npm.is_empty()) {
                // The operator runs this command, so the operator's consent is implied.
                npm.check(&for_npm, &Consent::Given(npm.consent_required(&for_npm)))?;
            }
            let python = match (&exact, for_python.is_empty() && !for_npm.is_empty()) {
                (None, true) => None,
                (exact, _) => Some(self.python.part(&for_python, exact.as_deref(), progress).await?),
            };
            let npm = match npm {
                Some(npm) if !for_npm.is_empty() => Some(npm.part(&for_npm, progress).await?),
                _ => None,
            };
            Ok::<Base, Failure>(Base { python, npm })
        };
        let base = timeout(BUILD_TIMEOUT, work)
            .await
            .map_err(|_| too_long(BUILD_TIMEOUT))??;
        self.store()?.put_base(name, &base)?;
        Ok(self.info(name, base))
    }

    fn info(&self, name: &str, base: Base) -> BaseInfo {
        let python = base.python.as_ref();
        let node = base.npm.as_ref();
        BaseInfo {
            name: name.to_owned(),
            usable: python.is_none_or(|part| part.platform == self.python.platform())
                && node.is_none_or(|part| self.npm.as_ref().is_some_and(|npm| npm.platform() == part.platform)),
            python: python
                .and_then(|part| part.platform.split(' ').next())
                .unwrap_or_default()
                .to_owned(),
            bytes: base.parts().map(|part| part.bytes).sum(),
            packages: base.python.map(|part| part.packages).unwrap_or_default(),
            npm: base.npm.map(|part| part.packages).unwrap_or_default(),
        }
    }

    /// Returns all bases.
    ///
    /// # Errors
    /// There is no data folder.
    pub fn list(&self) -> Result<Vec<BaseInfo>, Failure> {
        let bases = self.store()?.bases();
        Ok(bases.into_iter().map(|(name, base)| self.info(&name, base)).collect())
    }

    /// Returns the first usable base with all of these Python packages, in matching versions. Returns None if one of
    /// them is an npm package.
    ///
    /// # Errors
    /// There is no data folder, or a name is not a valid package name.
    pub fn having(&self, packages: &[String]) -> Result<Option<String>, Failure> {
        if packages.iter().any(|text| of_registry(text, "npm").is_some()) {
            return Ok(None);
        }
        let specs = spec::parse_all(packages)?;
        let has_all = |base: &BaseInfo| {
            let has = |spec: &Spec| base.packages.iter().any(|held| spec.is_satisfied_by(held));
            base.usable && specs.iter().all(has)
        };
        Ok(self.list()?.into_iter().find(has_all).map(|base| base.name))
    }

    /// Removes a base. Its files are deleted when no other base has them and the store needs room. Sandboxes that use
    /// the base keep it.
    ///
    /// # Errors
    /// There is no base of that name.
    pub fn remove(&self, name: &str) -> Result<(), Failure> {
        let store = self.store()?;
        if store.base(name).is_none() {
            return Err(store.no_base(name));
        }
        store.remove_base(name)?;
        Ok(())
    }
}
