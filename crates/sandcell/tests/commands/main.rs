//! Programs next to sessions, in real sandboxes of the native back end: the guarantees of `Engine::run_command` for
//! its callers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on may panic"
)]

#[cfg(not(all(target_os = "linux", feature = "native")))]
fn main() {}

#[cfg(all(target_os = "linux", feature = "native"))]
fn main() -> std::process::ExitCode {
    sandcell_backends::native::become_launcher_if_asked();
    let arguments = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&arguments, native::trials()).exit_code()
}

#[cfg(all(target_os = "linux", feature = "native"))]
mod native {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use libtest_mimic::Trial;
    use sandcell_backends::native::{NativeBackend, NativeConfig, SPARE_COUNT, start_launcher};
    use sandcell_engine::{
        CommandLine, CommandRequest, Engine, EngineConfig, ExecuteRequest, ExecutionView, Principal, Status, Watch,
    };
    use sandcell_sandbox::{Backend, Code, Degree, Failure, Level, SandboxPath, SessionEvent};
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    /// A time limit longer than any operation here.
    const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

    pub(super) fn trials() -> Vec<Trial> {
        vec![
            trial(
                "commands_run_beside_each_other_and_a_busy_session",
                programs_run_concurrently,
            ),
            trial("arguments_folder_variables_and_input_arrive_as_they_are", as_given),
            trial("a_command_is_ended_with_its_group_and_sessions_live_on", ended),
            trial("output_is_streamed_while_the_command_runs", streamed),
            trial("what_cannot_be_started_is_told", not_started),
        ]
    }

    fn trial<T>(name: &str, test: fn(Bench) -> T) -> Trial
    where
        T: Future<Output = ()> + 'static,
    {
        Trial::test(name, move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(async {
                let bench = Bench::start().await;
                let engine = bench.engine.clone();
                tokio::time::timeout(OPERATION_TIMEOUT, test(bench))
                    .await
                    .expect("it hangs");
                engine.shutdown().await;
            });
            Ok(())
        })
    }

    struct Bench {
        engine: Arc<Engine>,
        me: Principal,
    }

    impl Bench {
        async fn start() -> Self {
            let found = sandcell_languages::detect(&sandcell_languages::Settings::default());
            let config = NativeConfig {
                zygotes: false,
                spares: SPARE_COUNT,
                trees: found.trees.clone(),
                added: vec![],
                programs: vec![],
                config: found.config.clone(),
                mounts: vec![],
                isolation_min: Level::Namespace,
                limits_min: Degree::Watched,
                images: None,
                disabled_layer: None,
                skipped_layer: None,
                fault_file: None,
            };
            let backend = NativeBackend::start(start_launcher().unwrap(), config).await.unwrap();
            let backend: Arc<dyn Backend> = backend;
            Self {
                engine: Engine::new(EngineConfig::default(), vec![backend], found.languages()),
                me: Principal::new("me"),
            }
        }

        async fn run(&self, req: CommandRequest, input: &'static str) -> Result<ExecutionView, Failure> {
            let (feed, stdin) = mpsc::channel(1);
            let (output, mut events) = mpsc::channel(4);
            let reading = tokio::spawn(async move { while events.recv().await.is_some() {} });
            if !input.is_empty() {
                feed.send(Bytes::from_static(input.as_bytes())).await.unwrap();
            }
            drop(feed);
            let cancel = CancellationToken::new();
            let view = self.engine.run_command(&self.me, req, stdin, output, cancel).await;
            reading.await.unwrap();
            view
        }

        async fn session(&self, code: &str, wait: Option<Duration>) -> ExecutionView {
            let req = ExecuteRequest {
                code: code.to_owned(),
                language: "python".to_owned(),
                sandbox_id: None,
                stdin: None,
                timeout: None,
                wait,
                watch: Watch::default(),
                ..ExecuteRequest::default()
            };
            let ran = self.engine.execute(&self.me, req, CancellationToken::new());
            ran.await.unwrap()
        }
    }

    fn command(words: &[&str]) -> CommandRequest {
        CommandRequest {
            command: CommandLine::Argv(words.iter().map(|&word| word.to_owned()).collect()),
            cwd: SandboxPath::parse("/home/user").unwrap(),
            env: BTreeMap::new(),
            sandbox_id: None,
            timeout: Some(Duration::from_secs(30)),
            terminal: None,
            wait: None,
            watch: Watch::default(),
        }
    }

    /// Each program waits for the others, so none ends unless all run at the same time.
    async fn programs_run_concurrently(bench: Bench) {
        let busy = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.01)\nprint('stopped')";
        let busy = bench.session(busy, Some(Duration::ZERO)).await;
        let meet = "touch $1; while ! [ -e a -a -e b -a -e c ]; do sleep 0.01; done; echo $1";
        let one = |name| bench.run(command(&["sh", "-c", meet, "sh", name]), "");
        let (a, b, c) = tokio::join!(one("a"), one("b"), one("c"));
        for (view, name) in [(a, "a\n"), (b, "b\n"), (c, "c\n")] {
            let view = view.unwrap();
            assert_eq!((view.status, view.stdout.text.as_str()), (Status::Ok, name), "{view:?}");
            assert_eq!(view.sandbox_id, busy.sandbox_id);
        }
        bench.run(command(&["touch", "stop"]), "").await.unwrap();
        let ended = bench
            .engine
            .execution(&bench.me, busy.id.as_str(), OPERATION_TIMEOUT)
            .await
            .unwrap();
        assert_eq!(ended.stdout.text, "stopped\n", "{ended:?}");
    }

    async fn as_given(bench: Bench) {
        let script =
            "import os, sys\nprint(sys.argv[1:], os.getcwd(), os.environ['OWN'], os.environ['HOME'], sys.stdin.read())";
        let req = CommandRequest {
            cwd: SandboxPath::parse("/tmp").unwrap(),
            env: BTreeMap::from([("OWN".to_owned(), "$HOME `x`".to_owned())]),
            ..command(&["python3", "-c", script, "a b", "", "*", "--", "it's"])
        };
        let view = bench.run(req, "typed").await.unwrap();
        let expected = "['a b', '', '*', '--', \"it's\"] /tmp $HOME `x` /home/user typed\n";
        assert_eq!(
            (view.stdout.text.as_str(), view.exit_code),
            (expected, Some(0)),
            "{view:?}"
        );
        let failed = bench
            .run(command(&["sh", "-c", "echo out; echo err >&2; exit 7"]), "")
            .await
            .unwrap();
        assert_eq!((failed.status, failed.exit_code), (Status::Error, Some(7)));
        assert_eq!(
            (failed.stdout.text.as_str(), failed.stderr.text.as_str()),
            ("out\n", "err\n")
        );
    }

    async fn ended(bench: Bench) {
        bench.session("kept = 41", None).await;
        let req = CommandRequest {
            timeout: Some(Duration::from_secs(1)),
            ..command(&[
                "sh",
                "-c",
                "trap '' INT; sleep 1000 & echo $!; while :; do sleep 0.1; done",
            ])
        };
        let view = bench.run(req, "").await.unwrap();
        assert_eq!(view.status, Status::Timeout, "{view:?}");
        let child = view.stdout.text.trim().to_owned();
        let gone = format!("import os, time\nwhile os.path.exists('/proc/{child}'): time.sleep(0.01)\nprint(kept + 1)");
        let seen = bench.session(&gone, None).await;
        assert_eq!(seen.stdout.text, "42\n", "{seen:?}");
    }

    async fn streamed(bench: Bench) {
        let (feed, stdin) = mpsc::channel(1);
        let (output, mut events) = mpsc::channel(4);
        let (engine, me) = (bench.engine.clone(), bench.me.clone());
        let running = tokio::spawn(async move {
            let cancel = CancellationToken::new();
            engine.run_command(&me, command(&["cat"]), stdin, output, cancel).await
        });
        for word in ["one", "two"] {
            feed.send(Bytes::from_static(word.as_bytes())).await.unwrap();
            let Some(SessionEvent::Output { bytes, .. }) = events.recv().await else {
                panic!("no output while it runs")
            };
            assert_eq!(bytes, word);
        }
        drop(feed);
        assert!(events.recv().await.is_none());
        assert_eq!(running.await.unwrap().unwrap().stdout.text, "onetwo");
    }

    async fn not_started(bench: Bench) {
        for (words, exit_code) in [
            (&["no-such-program"][..], 127),
            (&["/etc/passwd"], 126),
            (&["/home/user"], 126),
        ] {
            let view = bench.run(command(words), "").await.unwrap();
            assert_eq!(
                (view.status, view.exit_code),
                (Status::Error, Some(exit_code)),
                "{view:?}"
            );
            let cause = view.cause.unwrap();
            assert!(
                cause.message.contains(words[0]) && !cause.remedy.is_empty(),
                "{cause:?}"
            );
        }
        let elsewhere = CommandRequest {
            cwd: SandboxPath::parse("/no/such/folder").unwrap(),
            ..command(&["true"])
        };
        let refused = bench.run(elsewhere, "").await.unwrap_err();
        assert_eq!(refused.code, Code::NotFound, "{refused}");
        let unnamed = bench.run(command(&[]), "").await.unwrap_err();
        assert_eq!(unnamed.code, Code::InvalidArgument);
        // The sandbox still works.
        assert_eq!(
            bench.run(command(&["echo", "fine"]), "").await.unwrap().stdout.text,
            "fine\n"
        );
    }
}
