//! A back end to run the suite on.

use std::cell::OnceCell;
use std::os::unix::net::UnixStream;
use std::process::Command;

use crate::e2b_service::{Fake, KEY};
use crate::packages;
use crate::support::client::Client;
use crate::support::index::Index;
use crate::support::is_root;
use crate::support::place::Place;

pub(super) struct Ground {
    pub(super) name: &'static str,
    place: Place,
    index: Index,
    fake: Option<Fake>,
    server: OnceCell<Client>,
    /// Lines of `config.toml`: those at the top, and tables.
    top: String,
    tables: String,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Ground {
    fn new(name: &'static str, fake: Option<Fake>, tables: String) -> Self {
        let top = format!("backend = \"{name}\"\n");
        Self {
            name,
            place: Place::with_settings(&format!("{top}{tables}")),
            index: packages::stocked(),
            fake,
            server: OnceCell::new(),
            top,
            tables,
        }
    }

    pub(super) fn native() -> Self {
        Self::new("native", None, String::new())
    }

    pub(super) fn e2b() -> Self {
        Self::new("e2b", Some(Fake::start()), String::new())
    }

    pub(super) fn docker() -> Option<Self> {
        let (host, image) = (variable("SANDCELL_TEST_DOCKER_HOST")?, variable("SANDCELL_TEST_IMAGE")?);
        let tables = format!("[docker]\nhost = \"{host}\"\nimage = \"{image}\"\npull = \"never\"\n");
        Some(Self::new("docker", None, tables))
    }

    /// Whether there is a daemon, and it is not this user's to talk to.
    pub(super) fn docker_is_closed() -> bool {
        let host = variable("SANDCELL_TEST_DOCKER_HOST");
        let socket = host.as_deref().and_then(|host| host.strip_prefix("unix://"));
        !is_root() && socket.is_some_and(|socket| UnixStream::connect(socket).is_err())
    }

    fn serve(&self, place: &Place) -> Client {
        let mut command: Command = packages::command(place, &self.index.url(), &["serve"]);
        if let Some(fake) = &self.fake {
            command
                .env("E2B_API_KEY", KEY)
                .env("E2B_API_URL", &fake.url)
                .env("E2B_SANDBOX_URL", &fake.url);
        }
        Client::start(&mut command)
    }

    /// The server that most rows share.
    pub(super) fn server(&self) -> &Client {
        self.server.get_or_init(|| self.serve(&self.place))
    }

    /// A server of a row's own.
    pub(super) fn server_of_its_own(&self) -> Client {
        self.serve(&self.place)
    }

    /// The same with more settings at the top, and its folder `work`.
    pub(super) fn server_with(&self, top: impl Fn(&Place) -> String) -> (Place, Client) {
        let bare = Place::new();
        let settings = format!("{}{}{}", self.top, top(&bare), self.tables);
        let place = bare.with(&settings);
        let server = self.serve(&place);
        (place, server)
    }

    /// An image other than the usual one.
    pub(super) fn other_image() -> String {
        variable("SANDCELL_TEST_IMAGE").unwrap_or_else(|| "python:3.13-slim".to_owned())
    }

    /// How many sandboxes there are, as the machine or the service sees it.
    pub(super) fn left(&self, server: u32) -> usize {
        match (&self.fake, self.name) {
            (Some(fake), _) => fake.ids().len(),
            (None, "docker") => {
                let host = variable("SANDCELL_TEST_DOCKER_HOST").unwrap();
                let format = "{{.Label \"dev.sandcell.server\"}}";
                let filter = "label=dev.sandcell=sandbox";
                let output = Command::new("docker")
                    .env("DOCKER_HOST", host)
                    .args(["ps", "--all", "--filter", filter, "--format", format])
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{output:?}");
                let all = String::from_utf8(output.stdout).unwrap();
                all.lines().filter(|line| line.contains(&format!("/{server}/"))).count()
            }
            (None, _) => crate::support::machine::descendants(server).len(),
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(fake) = self.fake.as_ref().filter(|_| !std::thread::panicking()) {
            fake.had_no_faults();
        }
    }
}
