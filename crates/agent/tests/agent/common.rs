//! A server in a thread, and helpers for requests to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use sandcell_agent::client::AgentClient;
use sandcell_agent::server::{ServeEnd, ServerConfig, serve};
use sandcell_sandbox::{Channel, Command, Exit, Process, ProcessEvent, SandboxPath, StdinMode};
use tokio::net::unix::pipe;

/// Longer than any test takes. A test that waits this long fails.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        root: PathBuf::from("/"),
        home: "/".to_owned(),
        private: vec![PathBuf::from("/tmp")],
        ..ServerConfig::default()
    }
}

/// A server with bare streams.
pub(crate) fn raw() -> (std::io::PipeWriter, std::io::PipeReader, JoinHandle<ServeEnd>) {
    raw_with(config())
}

fn raw_with(config: ServerConfig) -> (std::io::PipeWriter, std::io::PipeReader, JoinHandle<ServeEnd>) {
    let (server_input, host_output) = std::io::pipe().unwrap();
    let (host_input, server_output) = std::io::pipe().unwrap();
    let server = std::thread::spawn(move || serve(server_input.into(), server_output.into(), config));
    (host_output, host_input, server)
}

/// A server in a thread. It is dropped last (so declared first). Its drop waits until the server has killed every
/// program, since a test that ends sooner would leave processes behind.
pub(crate) struct Server(Option<JoinHandle<ServeEnd>>);

impl Server {
    pub(crate) fn join(mut self) -> ServeEnd {
        self.0.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(server) = self.0.take() else { return };
        let start = std::time::Instant::now();
        while !server.is_finished() && !std::thread::panicking() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(
            server.is_finished() || std::thread::panicking(),
            "the server outlives its host"
        );
    }
}

pub(crate) async fn connect() -> (Server, AgentClient) {
    connect_to(config()).await
}

pub(crate) async fn connect_to(config: ServerConfig) -> (Server, AgentClient) {
    let (output, input, server) = raw_with(config);
    let reader = pipe::Receiver::from_owned_fd(input.into()).unwrap();
    let writer = pipe::Sender::from_owned_fd(output.into()).unwrap();
    let server = Server(Some(server));
    (server, AgentClient::connect(reader, writer).await.unwrap())
}

pub(crate) fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())]),
        cwd: "/tmp".to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: false,
        terminal: None,
    }
}

pub(crate) fn shell(script: &str) -> Command {
    command(&["sh", "-c", script])
}

/// The output and the end of a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) control: Vec<u8>,
    pub(crate) exit: Option<Exit>,
}

impl Said {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Receives all events until the program has ended and its channels are closed.
pub(crate) async fn all(process: &mut Process) -> Said {
    let mut said = Said::default();
    let mut open = 2;
    while open > 0 || said.exit.is_none() {
        let Some(event) = tokio::time::timeout(TEST_TIMEOUT, process.events.recv())
            .await
            .expect("an event in time")
        else {
            break;
        };
        match event {
            ProcessEvent::Output {
                channel: Channel::Stdout,
                bytes,
            } => said.stdout.extend_from_slice(&bytes),
            ProcessEvent::Output {
                channel: Channel::Stderr,
                bytes,
            } => said.stderr.extend_from_slice(&bytes),
            ProcessEvent::Output { bytes, .. } => said.control.extend_from_slice(&bytes),
            ProcessEvent::Closed {
                channel: Channel::Control,
            } => {}
            ProcessEvent::Closed { .. } => open -= 1,
            ProcessEvent::Exited { exit } => assert_eq!(said.exit.replace(exit), None),
        }
    }
    said
}

pub(crate) async fn run(client: &AgentClient, command: Command) -> Said {
    all(&mut client.spawn(command).await.unwrap()).await
}

/// The next event.
pub(crate) async fn next(process: &mut Process) -> ProcessEvent {
    tokio::time::timeout(TEST_TIMEOUT, process.events.recv())
        .await
        .expect("an event in time")
        .expect("a live program")
}

/// Receives the output of a channel until it ends with this text.
pub(crate) async fn until(process: &mut Process, wanted: Channel, end: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    while !seen.ends_with(end) {
        if let ProcessEvent::Output { channel, bytes } = next(process).await
            && channel == wanted
        {
            seen.extend_from_slice(&bytes);
        }
    }
    seen
}

pub(crate) fn path(path: impl AsRef<std::path::Path>) -> SandboxPath {
    SandboxPath::parse(path.as_ref().to_str().unwrap()).unwrap()
}

/// Waits until a condition is true.
pub(crate) async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !check() {
        assert!(start.elapsed() < TEST_TIMEOUT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns true if a process lives (a zombie does not).
pub(crate) fn lives(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}
