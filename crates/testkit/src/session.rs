//! The scripted language and its sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Cell, CellError, CellOutcome, CellStatus, Command, EndReason, Exit, Failure, Interrupter, Language, LanguageInfo,
    MimeBundle, NotLoaded, OutputStream, Pictures, Program, Sandbox, SandboxError, SandboxPath, Session, SessionError,
    SessionEvent, SessionFeatures, StdinMode, Variable,
};
use tokio::sync::{mpsc, watch};

use super::backend::{Inside, World};

#[derive(Debug)]
pub struct FakeLanguage {
    info: LanguageInfo,
    world: Arc<World>,
}

impl FakeLanguage {
    pub fn new(name: &str, aliases: &[&str], world: Arc<World>) -> Arc<Self> {
        let info = LanguageInfo {
            name: name.to_owned(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            version: "1.0".to_owned(),
            libraries: Vec::new(),
            session: true,
            extensions: vec!["script".to_owned()],
        };
        Self::named(info, world)
    }

    pub fn named(info: LanguageInfo, world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { info, world })
    }
}

#[async_trait]
impl Language for FakeLanguage {
    fn info(&self) -> &LanguageInfo {
        &self.info
    }

    fn program(&self, code: &str, args: &[String], env: &BTreeMap<String, String>) -> Result<Program, Failure> {
        let path = SandboxPath::parse("main.script").unwrap();
        let argv = ["script".to_owned(), path.to_string()].into_iter();
        Ok(Program {
            files: vec![(path, code.to_owned().into())],
            compile: None,
            run: Command {
                argv: argv.chain(args.iter().cloned()).collect(),
                env: env.clone(),
                cwd: sandcell_sandbox::HOME.to_owned(),
                stands_alone: false,
                stdin: StdinMode::Null,
                control: false,
                terminal: None,
            },
            pictures: Some(Pictures {
                folder: SandboxPath::parse("shown").unwrap(),
                prefix: String::new(),
            }),
        })
    }

    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError> {
        self.world.opened.fetch_add(1, Ordering::SeqCst);
        let delay = *self.world.open_delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        if self.world.open_fails.load(Ordering::SeqCst) {
            return Err(SessionError::Start {
                language: self.info.name.clone(),
                reason: "it exploded".to_owned(),
            });
        }
        let number: usize = sandbox.base_env()["FAKE_NUMBER"].parse().unwrap();
        let inside = self.world.sandboxes.lock().unwrap()[number].clone();
        inside.check()?;
        self.world.interpreters.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(FakeSession {
            inside,
            _sandbox: sandbox,
            variables: BTreeMap::new(),
            signals: watch::Sender::new(Signals::default()),
            dead: false,
        }))
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Signals {
    interrupts: u32,
    killed: bool,
}

#[derive(Debug)]
struct FakeSession {
    inside: Arc<Inside>,
    _sandbox: Arc<dyn Sandbox>,
    variables: BTreeMap<String, String>,
    signals: watch::Sender<Signals>,
    dead: bool,
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.inside.world.interpreters.fetch_sub(1, Ordering::SeqCst);
    }
}

struct FakeInterrupter(watch::Sender<Signals>);

#[async_trait]
impl Interrupter for FakeInterrupter {
    async fn interrupt(&self) -> Result<(), SandboxError> {
        self.0.send_modify(|signals| signals.interrupts += 1);
        Ok(())
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.0.send_modify(|signals| signals.killed = true);
        Ok(())
    }
}

fn bundle(parts: &[(&str, &str)]) -> MimeBundle {
    MimeBundle(
        parts
            .iter()
            .map(|(mime, text)| ((*mime).to_owned(), Bytes::copy_from_slice(text.as_bytes())))
            .collect(),
    )
}

fn error(name: &str, class: &str) -> CellError {
    CellError {
        name: name.to_owned(),
        message: "boom".to_owned(),
        traceback: format!("line 1\n{name}: boom"),
        hint: String::new(),
        class: class.to_owned(),
    }
}

#[async_trait]
impl Session for FakeSession {
    async fn execute(&mut self, cell: Cell, events: &mpsc::Sender<SessionEvent>) -> Result<CellOutcome, SessionError> {
        assert!(!self.dead, "a dead session was used again");
        self.inside.check().map_err(SessionError::Sandbox)?;
        for line in cell.code.lines() {
            let ended = tokio::select! {
                reason = self.inside.gone() => return Err(SandboxError::Gone(reason).into()),
                ended = run_line(line, &cell, events, &self.inside, &mut self.variables, &self.signals) => ended?,
            };
            if let Some(status) = ended {
                self.dead = matches!(status, CellStatus::Died(_));
                return Ok(CellOutcome { status });
            }
        }
        Ok(CellOutcome { status: CellStatus::Ok })
    }

    fn set_snapshot_delay(&mut self, time: Duration) {
        self.inside.world.waits.lock().unwrap().push(time);
    }

    fn takes_snapshots(&self) -> bool {
        true
    }

    fn interrupter(&self) -> Arc<dyn Interrupter> {
        Arc::new(FakeInterrupter(self.signals.clone()))
    }

    async fn variables(&mut self) -> Result<Vec<Variable>, SessionError> {
        let time = *self.inside.world.listing_takes.lock().unwrap();
        tokio::time::sleep(time).await;
        if self.inside.paused.load(Ordering::SeqCst) {
            self.dead = true;
            return Err(SessionError::Protocol("it did not answer".to_owned()));
        }
        let variable = |(name, value): (&String, &String)| Variable {
            name: name.clone(),
            kind: "str".to_owned(),
            shape: String::new(),
            bytes: 0,
            preview: value.clone(),
        };
        Ok(self.variables.iter().map(variable).collect())
    }

    async fn preload(&mut self, modules: &[String]) -> Result<Vec<NotLoaded>, SessionError> {
        let world = &self.inside.world;
        if modules.is_empty() {
            world.warm_up_cells.fetch_add(1, Ordering::SeqCst);
            return Ok(Vec::new());
        }
        world.preloaded.fetch_add(1, Ordering::SeqCst);
        if world.preload_fails.load(Ordering::SeqCst) {
            self.dead = true;
            return Err(SessionError::Protocol("it exploded".to_owned()));
        }
        self.inside.usage.lock().unwrap().memory = world.weight.load(Ordering::SeqCst);
        let absent = modules.iter().filter(|name| name.starts_with("no_"));
        Ok(absent
            .map(|name| NotLoaded {
                name: name.clone(),
                why: "not here".to_owned(),
            })
            .collect())
    }

    async fn add_env(&mut self, _env: &BTreeMap<String, String>) -> Result<bool, SessionError> {
        if self.inside.world.env_fails.load(Ordering::SeqCst) {
            self.dead = true;
            return Err(SessionError::Protocol("it exploded".to_owned()));
        }
        Ok(true)
    }

    fn features(&self) -> SessionFeatures {
        SessionFeatures {
            result_value: true,
            display: true,
            interrupt: true,
            stdin: true,
        }
    }
}

/// Runs one line. Returns a status if the cell ends.
async fn run_line(
    line: &str,
    cell: &Cell,
    events: &mpsc::Sender<SessionEvent>,
    inside: &Inside,
    variables: &mut BTreeMap<String, String>,
    signals: &watch::Sender<Signals>,
) -> Result<Option<CellStatus>, SessionError> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let say = async |stream, text: String| {
        let bytes = text.into();
        events.send(SessionEvent::Output { stream, bytes }).await.unwrap();
    };
    let mut heard = signals.subscribe();
    let before = *heard.borrow_and_update();
    match verb {
        "" => {}
        "print" => say(OutputStream::Stdout, format!("{rest}\n")).await,
        "eprint" => say(OutputStream::Stderr, format!("{rest}\n")).await,
        "bytes" => {
            let count: usize = rest.parse().unwrap();
            for _ in 0..count.div_ceil(60_000) {
                say(OutputStream::Stdout, "0123456789".repeat(6000)).await;
            }
        }
        "cell" => say(OutputStream::Stdout, format!("{}\n", cell.number)).await,
        "stdin" => say(OutputStream::Stdout, format!("{:?}\n", cell.stdin)).await,
        "note" => inside.world.note(rest),
        "await" => inside.world.noted(rest).await,
        "set" => {
            let (name, value) = rest.split_once(' ').unwrap();
            variables.insert(name.to_owned(), value.to_owned());
        }
        "get" => match variables.get(rest) {
            Some(value) => {
                let result = SessionEvent::Result(bundle(&[("text/plain", value)]));
                events.send(result).await.unwrap();
            }
            None => return Ok(Some(CellStatus::Error(error("NameError", "")))),
        },
        "write" => {
            let (path, text) = rest.split_once(' ').unwrap();
            let text = Bytes::copy_from_slice(text.as_bytes());
            inside.files.lock().unwrap().insert(path.to_owned(), text);
        }
        "show" => {
            let file = inside.files.lock().unwrap().get(rest).cloned().unwrap_or_default();
            say(OutputStream::Stdout, format!("{}\n", String::from_utf8_lossy(&file))).await;
        }
        "memory" => inside.usage.lock().unwrap().memory = rest.parse::<u64>().unwrap() << 20,
        "plot" => {
            let plot = bundle(&[("text/plain", "<Figure>"), ("image/png", "PNG")]);
            events.send(SessionEvent::Display(plot)).await.unwrap();
        }
        "display" => {
            let text = SessionEvent::Display(bundle(&[("text/plain", rest)]));
            events.send(text).await.unwrap();
        }
        "sleep" => {
            let sleep = tokio::time::sleep(Duration::from_millis(rest.parse().unwrap()));
            tokio::select! {
                () = sleep => {}
                _ = heard.wait_for(|now| now.interrupts > before.interrupts || now.killed) => {
                    let status = if signals.borrow().killed {
                        CellStatus::Died(Exit::Signal(9))
                    } else {
                        CellStatus::Interrupted(error("KeyboardInterrupt", ""))
                    };
                    return Ok(Some(status));
                }
            }
        }
        "stubborn" => {
            heard.wait_for(|now| now.killed).await.unwrap();
            return Ok(Some(CellStatus::Died(Exit::Signal(9))));
        }
        "undead" => std::future::pending::<()>().await,
        "flood" => loop {
            say(OutputStream::Stdout, "flood\n".repeat(100)).await;
            if heard.borrow().interrupts > before.interrupts {
                return Ok(Some(CellStatus::Interrupted(error("KeyboardInterrupt", ""))));
            }
        },
        other => return end_of_cell(other, rest, inside),
    }
    Ok(None)
}

fn end_of_cell(verb: &str, rest: &str, inside: &Inside) -> Result<Option<CellStatus>, SessionError> {
    Ok(Some(match verb {
        "raise" => {
            let (name, class) = rest.split_once(' ').unwrap_or((rest, ""));
            CellStatus::Error(error(name, class))
        }
        "sysexit" => CellStatus::Exit(rest.parse().unwrap()),
        "die" => CellStatus::Died(Exit::Signal(rest.parse().unwrap())),
        "_exit" => CellStatus::Died(Exit::Code(rest.parse().unwrap())),
        "oom" => {
            let mut usage = inside.usage.lock().unwrap();
            usage.memory_events += 1;
            usage.memory_peak = 512 << 20;
            CellStatus::Died(Exit::Signal(9))
        }
        "forkbomb" => {
            inside.usage.lock().unwrap().process_events += 7;
            CellStatus::Died(Exit::Signal(6))
        }
        "cpu" => {
            inside.usage.lock().unwrap().cpu_us += rest.parse::<u64>().unwrap() * 1000;
            return Ok(None);
        }
        "oomall" => {
            inside.end(EndReason::OutOfMemory);
            return Err(SandboxError::Gone(EndReason::OutOfMemory).into());
        }
        "forge" => return Err(SessionError::Protocol("a frame of 9 GB".to_owned())),
        "panic" => panic!("as the test asked for"),
        other => panic!("the script knows no '{other}'"),
    }))
}
