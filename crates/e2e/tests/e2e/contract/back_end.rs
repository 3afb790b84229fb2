//! A back end under test.

use std::cell::OnceCell;
use std::process::Command;

use crate::packages;
use sandcell_e2e::client::Client;
use sandcell_e2e::docker::Daemon;
use sandcell_e2e::index::Index;
use sandcell_e2e::machine;
use sandcell_e2e::oci::{Image, Registry, shell};
use sandcell_e2e::test_dir::TestDir;
use sandcell_fake_e2b::{API_KEY, Fake};

/// An image other than the default one, and code that gives `other` only in that image.
pub(super) struct OtherImage {
    pub(super) name: String,
    pub(super) language: &'static str,
    pub(super) code: &'static str,
    /// The registry that serves it, kept alive while the image is needed.
    _from: Option<Registry>,
}

pub(super) struct BackEnd {
    pub(super) name: &'static str,
    place: TestDir,
    index: Index,
    fake: Option<Fake>,
    daemon: Option<Daemon>,
    server: OnceCell<Client>,
    /// Lines of `config.toml`: top-level settings, and tables.
    top: String,
    tables: String,
}

impl BackEnd {
    fn new(name: &'static str, fake: Option<Fake>, tables: String) -> Self {
        let top = format!("backend = \"{name}\"\n");
        Self {
            name,
            place: TestDir::with_settings(&format!("{top}{tables}")),
            index: packages::stocked(),
            fake,
            daemon: None,
            server: OnceCell::new(),
            top,
            tables,
        }
    }

    pub(super) fn native() -> Self {
        Self::new("native", None, "[images]\nallow = [\"*\"]\n".to_owned())
    }

    pub(super) fn e2b() -> Self {
        Self::new("e2b", Some(Fake::start()), String::new())
    }

    pub(super) fn docker(daemon: Daemon) -> Self {
        let (host, image) = (&daemon.host, &daemon.image);
        let tables = format!("[docker]\nhost = \"{host}\"\nimage = \"{image}\"\npull = \"never\"\n");
        let mut back_end = Self::new("docker", None, tables);
        back_end.daemon = Some(daemon);
        back_end
    }

    fn serve(&self, place: &TestDir) -> Client {
        let mut command: Command = packages::command(place, &self.index.url(), &["serve"]);
        if let Some(fake) = &self.fake {
            command
                .env("E2B_API_KEY", API_KEY)
                .env("E2B_API_URL", &fake.url)
                .env("E2B_SANDBOX_URL", &fake.url);
        }
        Client::start(&mut command)
    }

    /// Returns the server that most rows share.
    pub(super) fn server(&self) -> &Client {
        self.server.get_or_init(|| self.serve(&self.place))
    }

    /// Starts a separate server for one row.
    pub(super) fn server_of_its_own(&self) -> Client {
        self.serve(&self.place)
    }

    /// Starts a server with more top-level settings, and returns its folder `work`, too.
    pub(super) fn server_with(&self, top: impl Fn(&TestDir) -> String) -> (TestDir, Client) {
        let bare = TestDir::new();
        let settings = format!("{}{}{}", self.top, top(&bare), self.tables);
        let place = bare.with(&settings);
        let server = self.serve(&place);
        (place, server)
    }

    /// Returns an image other than the default one. A back end without images gets a name that it should refuse.
    pub(super) fn other_image(&self) -> OtherImage {
        match &self.daemon {
            Some(daemon) => {
                let name = Self::name_of_other_image();
                let id = daemon.say(&["create", &daemon.image, "/bin/sh"]);
                daemon.say(&["commit", "--change", "ENV WHICH=other", &id, &name]);
                daemon.say(&["rm", &id]);
                OtherImage {
                    name,
                    language: "python",
                    code: "import os\nprint(os.environ.get('WHICH'))",
                    _from: None,
                }
            }
            None => {
                let registry = Registry::with(&Image::of(&[shell()]));
                OtherImage {
                    name: registry.name(),
                    language: "bash",
                    code: ". /etc/os-release; [ $ID = of-the-image ] && echo other",
                    _from: Some(registry),
                }
            }
        }
    }

    fn name_of_other_image() -> String {
        format!("sandcell-test/other:{}", std::process::id())
    }

    /// Returns the number of sandboxes, as the machine or the service sees it.
    pub(super) fn left(&self, server: u32) -> usize {
        match (&self.fake, &self.daemon) {
            (Some(fake), _) => fake.ids().len(),
            (None, Some(daemon)) => daemon.containers(server).len(),
            (None, None) => machine::descendants(server).len(),
        }
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        if let Some(daemon) = &self.daemon {
            // The image may not exist.
            let _ = daemon
                .command(&["rmi", "--force", &Self::name_of_other_image()])
                .output();
        }
        if let Some(fake) = self.fake.as_ref().filter(|_| !std::thread::panicking()) {
            fake.had_no_faults();
        }
    }
}
