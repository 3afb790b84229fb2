//! Packages that are already installed: in a new sandbox, and by uv in a new virtual environment.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;

use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;

const PACKAGE_NAMES: [&str; 4] = ["numpy", "pandas", "matplotlib", "scikit-learn"];

/// A server and a uv cache that have the packages. Made if `SANDCELL_BENCH_UV` names uv; needs a package index once.
pub struct Packages {
    uv: PathBuf,
    server: Client,
    place: TestDir,
}

impl Packages {
    pub fn here() -> Option<Self> {
        let uv = PathBuf::from(std::env::var_os("SANDCELL_BENCH_UV")?);
        let place = TestDir::new();
        let mut command = place.command(&["serve"]);
        let folder = uv.parent().unwrap().display().to_string();
        command.env("PATH", format!("/usr/local/bin:/usr/bin:/bin:{folder}"));
        // The machine's own settings for its index.
        let own = std::env::vars_os().filter(|(name, _)| {
            let name = name.to_string_lossy();
            ["PIP_", "UV_", "SSL_"].iter().any(|prefix| name.starts_with(prefix)) || name.ends_with("_proxy")
        });
        command.envs(own);
        let packages = Self {
            server: Client::start(&mut command),
            uv,
            place,
        };
        packages.install(&[]);
        packages.by_sandbox();
        Some(packages)
    }

    /// Makes a sandbox with the packages and imports them.
    pub fn by_sandbox(&self) {
        let answer = self.server.call("create_sandbox", json!({"packages": PACKAGE_NAMES}));
        let id = answer.data()["sandbox_id"].clone();
        let code = "import importlib.util as found\nprint(all(map(found.find_spec, ['numpy', 'pandas', 'matplotlib', 'sklearn'])))";
        let answer = self
            .server
            .call("execute_code", json!({"sandbox_id": id, "code": code}));
        assert_eq!(answer.output().trim(), "True", "{answer:?}");
        self.server.call("close_sandbox", json!({"sandbox_id": id}));
    }

    /// Makes a virtual environment with the packages, without a network.
    pub fn by_uv(&self) {
        self.install(&["--offline"]);
    }

    fn install(&self, more: &[&str]) {
        let folder = self.place.path("tmp").join("venv");
        let _ = std::fs::remove_dir_all(&folder);
        let uv = |arguments: &[&str]| {
            let mut command = Command::new(&self.uv);
            command.args(arguments).args(more).stdin(Stdio::null());
            let output = command.env("UV_CACHE_DIR", self.place.path("uv")).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        let python = folder.join("bin/python").display().to_string();
        uv(&["venv", "--quiet", &folder.display().to_string()]);
        uv(&[&["pip", "install", "--quiet", "--python", &python][..], &PACKAGE_NAMES].concat());
    }
}
