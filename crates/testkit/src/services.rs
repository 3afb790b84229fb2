//! Packages and network of the scripted world.

use std::sync::Arc;

use async_trait::async_trait;
use sandcell_sandbox::{
    Code, Consent, Denied, EgressRoute, Failure, Forward, Installed, Network, NetworkRule, PackageRequest,
    PackageVersion, Packages,
};
use tokio::sync::watch;

/// The beginning of the names of packages and hosts that need the user's consent.
const NEEDS_CONSENT: &str = "ask-";

fn need_consent(names: &[String]) -> Vec<String> {
    let need = names.iter().filter(|name| name.starts_with(NEEDS_CONSENT));
    need.cloned().collect()
}

/// Packages of one language: every name can be installed, without a folder. The name `panic` makes the check panic.
#[derive(Debug)]
pub struct FakePackages {
    language: String,
}

impl FakePackages {
    pub fn of(language: &str) -> Self {
        Self {
            language: language.to_owned(),
        }
    }
}

#[async_trait]
impl Packages for FakePackages {
    fn language(&self) -> &str {
        &self.language
    }

    fn registry(&self) -> &str {
        "registry"
    }

    fn check(&self, packages: &[String], consent: &Consent) -> Result<(), Failure> {
        if packages.iter().any(|package| package.starts_with('-')) {
            return Err(Failure::new(
                Code::PackageNotAllowed,
                "options are not taken",
                "pass names",
            ));
        }
        assert!(
            !packages.iter().any(|package| package == "panic"),
            "as the test asked for"
        );
        match need_consent(packages).iter().find(|name| !consent.covers(name)) {
            Some(name) => Err(consent.refusal(Code::PackageNotAllowed, name, "install_package", "packages.allow")),
            None => Ok(()),
        }
    }

    fn consent_required(&self, packages: &[String]) -> Vec<String> {
        need_consent(packages)
    }

    async fn install(&self, wanted: PackageRequest, _progress: &watch::Sender<String>) -> Result<Installed, Failure> {
        let added = wanted.packages.into_iter().map(|name| PackageVersion {
            name,
            version: "1.0".to_owned(),
        });
        Ok(Installed {
            added: added.collect(),
            ..Installed::default()
        })
    }

    fn resolve_inside(&self, packages: &[String], consent: &Consent) -> Result<Vec<String>, Failure> {
        self.check(packages, consent)?;
        Ok(Vec::new())
    }

    fn install_inside(
        &self,
        _packages: &[String],
        _consent: &Consent,
        _printed: &[u8],
    ) -> Result<(Option<Vec<String>>, Installed), Failure> {
        Ok((None, Installed::default()))
    }

    fn base(&self) -> Result<Option<Installed>, Failure> {
        Ok(None)
    }
}

/// A network that lets calls ask for some hosts and carries nothing.
#[derive(Debug)]
pub struct FakeNetwork {
    allowed: Vec<String>,
}

impl FakeNetwork {
    pub fn to(hosts: &[&str]) -> Self {
        Self {
            allowed: hosts.iter().map(|&host| host.to_owned()).collect(),
        }
    }
}

impl Network for FakeNetwork {
    fn allowed(&self) -> &[String] {
        &self.allowed
    }

    fn check(&self, hosts: &[String], _consent: &Consent) -> Result<NetworkRule, Failure> {
        match hosts {
            [] => Ok(NetworkRule::None),
            hosts => Ok(NetworkRule::Hosts(hosts.to_vec())),
        }
    }

    fn consent_required(&self, hosts: &[String]) -> Vec<String> {
        need_consent(hosts)
    }

    fn open(&self, _rule: &NetworkRule, _forward: Forward, _sandbox: &str) -> Result<Arc<dyn EgressRoute>, Failure> {
        Ok(Arc::new(NoTraffic))
    }
}

#[derive(Debug)]
struct NoTraffic;

impl EgressRoute for NoTraffic {
    fn count(&self) -> u64 {
        0
    }

    fn denied_since(&self, _count: u64) -> Vec<Denied> {
        Vec::new()
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn set_rule(&self, _rule: &NetworkRule) -> Result<(), Failure> {
        Ok(())
    }
}
