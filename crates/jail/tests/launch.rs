//! Tests of real jails on this machine, with a plain shell or Python inside.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test program"
)]

#[cfg(target_os = "linux")]
fn main() {
    sandcell_jail::launcher::become_launcher_if_asked(linux::entry);
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::process::{Command, Stdio};

    use libtest_mimic::{Arguments, Failed, Trial};
    use sandcell_jail::launcher::{Launcher, start};
    use sandcell_jail::spec::{Fault, Request, Site, Template};
    use sandcell_jail::wire::{FromLauncher, ToLauncher, receive, send};

    /// The entry of the jails: a shell that reads its program from the first descriptor.
    pub(super) fn entry(
        input: OwnedFd,
        output: OwnedFd,
        _direct_pipes: Option<sandcell_jail::direct_pipes::DirectPipes>,
        _folder: Option<&str>,
        _entry_socket: Option<OwnedFd>,
    ) -> i32 {
        let errors = output.try_clone().unwrap();
        let status = Command::new("/usr/bin/python3")
            .args(["-I", "-S", "-"])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .stderr(Stdio::from(errors))
            .status();
        status.ok().and_then(|status| status.code()).unwrap_or(99)
    }

    pub(super) fn main() {
        let arguments = Arguments::from_args();
        let mut trials = vec![Trial::test(
            "nothing_is_left_of_a_launcher_that_is_killed_while_it_prepares",
            killed_early,
        )];
        // Faults need a build with fault injection; `cargo xtask test` makes one.
        let faults = cfg!(feature = "fault-injection");
        if faults {
            trials.push(Trial::test(
                "without_namespaces_a_failed_step_leaves_nothing_and_a_missing_layer_refuses",
                fault_loop_without_namespaces,
            ));
        }
        // Spares clone first processes. The fork server does so if sandboxes can be entered.
        for (enterable, kind) in [(false, "jail"), (true, "jail_that_can_be_entered")] {
            let mut add = |name: &str, test: fn(bool) -> Result<(), Failed>| {
                let name = name.replace("jail", kind);
                trials.push(Trial::test(name, move || test(enterable)));
            };
            add("a_jail_runs_a_program_and_goes", runs);
            add("a_jail_is_locked_by_every_layer", locked);
            add("a_jail_is_as_it_was_asked_for_after_others", as_asked);
            add("a_jail_comes_also_when_its_maker_is_gone_or_stuck", without_nursery);
            add("nothing_is_left_of_a_jail_when_the_launcher_is_killed", killed);
            if faults {
                add("a_failed_step_of_a_jail_leaves_nothing_and_the_next_works", fault_loop);
                add("whatever_is_used_up_costs_one_jail_and_is_named", lacks);
                add("each_layer_that_is_missing_refuses_the_jail", missing_layers);
            }
        }
        libtest_mimic::run(&arguments, trials).exit();
    }

    struct Session {
        launcher: Launcher,
        /// The cgroup version of the sandboxes.
        groups: Option<String>,
        buffer: Vec<u8>,
        /// The launcher's reports of killed helper processes, with the signal.
        killed: Vec<(String, i32)>,
        next: u64,
    }

    impl Session {
        fn new(enterable: bool) -> Self {
            Self::without(None, enterable)
        }

        fn without(layer: Option<&str>, enterable: bool) -> Self {
            Self::with(Template {
                enterable,
                disabled: layer.map(str::to_owned),
                ..template()
            })
        }

        /// Starts a session without user namespaces, and without these layers.
        fn process_level(layers: &str) -> Self {
            Self::with(Template {
                process_level: true,
                disabled: Some(format!("user_namespace,{layers}")),
                ..template()
            })
        }

        fn with(template: Template) -> Self {
            let launcher = start().unwrap();
            send(launcher.socket.as_fd(), &ToLauncher::Configure(template), &[]).unwrap();
            let mut session = Self {
                launcher,
                groups: None,
                buffer: Vec::new(),
                killed: Vec::new(),
                next: 0,
            };
            match session.hear() {
                FromLauncher::Configured(report) => {
                    println!("{report:?}");
                    session.groups = report.cgroups;
                }
                other => panic!("{other:?}"),
            }
            session
        }

        fn hear(&mut self) -> FromLauncher {
            loop {
                let heard = receive(self.launcher.socket.as_fd(), &mut self.buffer);
                match heard.unwrap().expect("the launcher lives").0 {
                    FromLauncher::HelperKilled { what, signal } => self.killed.push((what, signal)),
                    other => return other,
                }
            }
        }

        fn python(&mut self, program: &str) -> String {
            self.python_in(request(), program)
        }

        fn python_in(&mut self, request: Request, program: &str) -> String {
            let (theirs_in, ours_in) = std::io::pipe().unwrap();
            let (mut ours_out, theirs_out) = std::io::pipe().unwrap();
            self.next += 1;
            let before = std::time::Instant::now();
            send(
                self.launcher.socket.as_fd(),
                &ToLauncher::Make {
                    id: self.next,
                    request,
                    image: None,
                    entered_by: None,
                },
                &[theirs_in.as_fd(), theirs_out.as_fd()],
            )
            .unwrap();
            drop((theirs_in, theirs_out));
            match self.hear() {
                FromLauncher::Made { .. } => {}
                other => panic!("{other:?}"),
            }
            println!("made in {:?}", before.elapsed());
            let mut ours_in = ours_in;
            ours_in.write_all(program.as_bytes()).unwrap();
            drop(ours_in);
            let mut text = String::new();
            ours_out.read_to_string(&mut text).unwrap();
            match self.hear() {
                FromLauncher::Gone { asked: false, .. } => {}
                other => panic!("{other:?}"),
            }
            println!("done in {:?}", before.elapsed());
            text
        }
    }

    fn runs(enterable: bool) -> Result<(), Failed> {
        let mut session = Session::new(enterable);
        for number in 0..5 {
            let text = session.python(&format!("print({number} + 1)"));
            assert_eq!(text, format!("{}\n", number + 1));
        }
        Ok(())
    }

    fn locked(enterable: bool) -> Result<(), Failed> {
        let mut session = Session::new(enterable);
        // The last ones have taken most steps before the request.
        for _ in 0..4 {
            let text = session.python(LOOK_SCRIPT);
            println!("{text}");
            is_locked(&text);
            std::thread::sleep(LONG_ENOUGH);
        }
        Ok(())
    }

    /// The time in which the next first process becomes ready with its steps taken.
    const LONG_ENOUGH: std::time::Duration = std::time::Duration::from_millis(40);

    fn is_locked(text: &str) {
        for wanted in [
            "uid 1000",
            "env ['LC_CTYPE', 'PATH']",
            "pids 2",
            "CapEff 0000000000000000",
            "CapBnd 0000000000000000",
            "Seccomp 2",
            "NoNewPrivs 1",
            "/root no",
            "/sys/kernel no",
            "/etc/shadow no",
            "/usr/x read-only",
            "home writable",
            "hostname sandcell",
            "interfaces ['lo']",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
        }
    }

    /// A process that prepares for one kind of sandbox never becomes another kind.
    fn as_asked(enterable: bool) -> Result<(), Failed> {
        const SIZES_SCRIPT: &str = "import os, resource\nfound = os.statvfs('/tmp')\n\
            print(found.f_blocks * found.f_frsize >> 20, found.f_files, resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)";
        let mut session = Session::new(enterable);
        let small = request();
        let (large, other) = (
            Request {
                disk: 96 << 20,
                ..small
            },
            Request {
                memory: 512 << 20,
                inodes: 3000,
                ..small
            },
        );
        let all = [
            small, small, small, large, small, large, large, large, large, other, other, small, other, other, other,
        ];
        for (number, asked) in all.into_iter().enumerate() {
            let told = session.python_in(asked, SIZES_SCRIPT);
            let numbers: Vec<u64> = told.split_whitespace().map(|number| number.parse().unwrap()).collect();
            let [disk, inodes, memory] = numbers[..] else {
                panic!("{told}")
            };
            assert_eq!(disk, asked.disk >> 20, "run {number}");
            // The sandbox itself uses a few.
            assert!(
                (asked.inodes..asked.inodes + 50).contains(&inodes),
                "run {number}: {inodes}"
            );
            // Without cgroups it is a little less than the limit, for memory outside the program.
            let watched = (asked.memory - asked.memory / 64 - (1 << 20)) >> 20;
            assert!(
                [asked.memory >> 19, watched].contains(&memory),
                "run {number}: {memory}"
            );
            std::thread::sleep(LONG_ENOUGH);
        }
        // There is not one left of each kind.
        assert!(session.children() <= 3, "{} processes are left", session.children());
        Ok(())
    }

    const LOOK_SCRIPT: &str = r#"
import os, socket
print("uid", os.getuid())
print("env", sorted(os.environ))
print("pids", len([p for p in os.listdir("/proc") if p.isdigit()]))
for line in open("/proc/self/status"):
    if line.split(":")[0] in ("CapEff", "CapBnd", "CapPrm", "Seccomp", "NoNewPrivs"):
        print(line.split(":")[0], line.split()[1])
for path in ("/root", "/sys/kernel", "/etc/shadow", "/home/other"):
    print(path, "yes" if os.path.exists(path) else "no")
try:
    open("/usr/x", "w")
except OSError as error:
    print("/usr/x", "read-only" if error.errno in (30, 13) else error)
open("/home/user/x", "w").write("x"); print("home writable")
open("/dev/null", "w").write("x")
print("hostname", socket.gethostname())
print("interfaces", [l.split(":")[0].strip() for l in open("/proc/net/dev").readlines()[2:]])
print(open("/proc/self/mountinfo").read())
print(os.listdir("/"), os.listdir("/dev"))
"#;

    fn template() -> Template {
        Template {
            trees: vec![],
            config: vec![],
            added: vec![],
            mounts: vec![],
            process_level: false,
            spares: 1,
            enterable: false,
            disabled: None,
            skipped: None,
        }
    }

    fn request() -> Request {
        Request {
            memory: 256 << 20,
            cpu_milli: 1000,
            processes: 32,
            disk: 64 << 20,
            inodes: 1000,
            fault: None,
        }
    }

    impl Session {
        /// Requests a jail. Returns the answer, and a stream that ends with the jail.
        fn ask(&mut self, request: Request) -> (FromLauncher, std::io::PipeReader) {
            let (theirs_in, _ours_in) = std::io::pipe().unwrap();
            let (ours_out, theirs_out) = std::io::pipe().unwrap();
            self.next += 1;
            let message = ToLauncher::Make {
                id: self.next,
                request,
                image: None,
                entered_by: None,
            };
            send(
                self.launcher.socket.as_fd(),
                &message,
                &[theirs_in.as_fd(), theirs_out.as_fd()],
            )
            .unwrap();
            drop((theirs_in, theirs_out));
            (self.hear(), ours_out)
        }

        /// Makes a jail that stays. Returns its number and its stream.
        fn hold(&mut self) -> (u64, std::io::PipeReader) {
            let (theirs_in, mut ours_in) = std::io::pipe().unwrap();
            let (mut ours_out, theirs_out) = std::io::pipe().unwrap();
            self.next += 1;
            let message = ToLauncher::Make {
                id: self.next,
                request: request(),
                image: None,
                entered_by: None,
            };
            let ends = [theirs_in.as_fd(), theirs_out.as_fd()];
            send(self.launcher.socket.as_fd(), &message, &ends).unwrap();
            drop((theirs_in, theirs_out));
            assert!(matches!(self.hear(), FromLauncher::Made { .. }));
            let program = "import time\nprint('here', flush=True)\ntime.sleep(1000)\n";
            ours_in.write_all(program.as_bytes()).unwrap();
            drop(ours_in);
            let mut said = [0; 5];
            ours_out.read_exact(&mut said).unwrap();
            assert_eq!(&said, b"here\n");
            (self.next, ours_out)
        }

        /// Returns the number of descriptors of the launcher.
        fn descriptors(&self) -> usize {
            let pid = self.launcher.process.id();
            std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
        }

        /// Returns the number of the launcher's children.
        fn children(&self) -> usize {
            let pid = self.launcher.process.id();
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
                .unwrap()
                .split_whitespace()
                .count()
        }
    }

    /// Returns the number of private folders without a living launcher. Folders of other servers of this machine are
    /// locked.
    fn folders() -> usize {
        use std::os::unix::fs::MetadataExt;

        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let entries = std::fs::read_dir("/tmp").unwrap().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("sandcell-"))
            .filter(|entry| {
                entry
                    .metadata()
                    .is_ok_and(|found| !locks.contains(&format!(":{} 0 EOF", found.ino())))
            })
            .count()
    }

    fn fault_loop_without_namespaces() -> Result<(), Failed> {
        if sandcell_jail::landlock::available() < sandcell_jail::landlock::WITH_SCOPES {
            println!("skipped: this kernel's Landlock cannot hold signals");
            return Ok(());
        }
        let before = folders();
        let mut session = Session::process_level("");
        fail_each(&mut session, 10);
        drop(session);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while folders() > before {
            assert!(
                std::time::Instant::now() < deadline,
                "a folder for private files is left"
            );
            std::thread::yield_now();
        }
        for layer in sandcell_jail::plan::without_namespaces::PROCESS_LEVEL_LAYERS {
            if layer == "empty_environment" {
                continue;
            }
            let (answer, _) = Session::process_level(layer).ask(request());
            match answer {
                FromLauncher::Failed { error, .. } => assert_eq!(error.layer.as_deref(), Some(layer)),
                other => panic!("without {layer}: {other:?}"),
            }
        }
        Ok(())
    }

    fn fault_loop(enterable: bool) -> Result<(), Failed> {
        let mut session = Session::new(enterable);
        fail_each(&mut session, 50);
        assert_eq!(session.python("print(7)"), "7\n");
        // Also in processes that prepare in advance: the second and later ones of a kind.
        for step in [0, 2, 9, 40] {
            for _ in 0..3 {
                std::thread::sleep(LONG_ENOUGH);
                match session.ask(failing(Site::Step(step), EIO)).0 {
                    FromLauncher::Failed { error, .. } => assert_eq!(error.errno, 5, "{error}"),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(session.python("print(8)"), "8\n");
        // Only the spares and the fork server are left.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while session.children() > 2 {
            assert!(
                std::time::Instant::now() < deadline,
                "{} processes are left",
                session.children()
            );
            std::thread::yield_now();
        }
        Ok(())
    }

    const EIO: i32 = 5;
    /// The errors for exhausted resources: ENOMEM, EAGAIN, ENFILE, EMFILE, ENOSPC.
    const EXHAUSTED_ERRORS: [i32; 5] = [12, 11, 23, 24, 28];

    fn failing(at: Site, errno: i32) -> Request {
        Request {
            fault: Some(Fault { at, errno }),
            ..request()
        }
    }

    /// If a resource is exhausted during a sandbox's creation, only that sandbox fails, with an error that names the
    /// resource.
    fn lacks(enterable: bool) -> Result<(), Failed> {
        let mut session = Session::new(enterable);
        let (first, bystander) = session.hold();
        assert_eq!(session.python("print(1)"), "1\n");
        let before = session.descriptors();
        let sites = Site::ALL.into_iter().chain((0..60).step_by(6).map(Site::Step));
        for site in sites {
            for errno in EXHAUSTED_ERRORS {
                let (answer, mut stream) = session.ask(failing(site, errno));
                match (answer, site) {
                    (FromLauncher::Failed { error, .. }, _) => {
                        assert_eq!(error.errno, errno, "{site:?}: {error}");
                        let mut text = String::new();
                        stream.read_to_string(&mut text).unwrap();
                        assert_eq!(text, "", "nothing ran after {site:?} failed");
                    }
                    // Without direct pipes all data passes through the agent. Some steps may not exist.
                    (FromLauncher::Made { .. }, Site::DirectPipes | Site::Step(_)) => {
                        assert!(matches!(session.hear(), FromLauncher::Gone { .. }));
                    }
                    // Not every machine has cgroups, and only root has private device folders.
                    (FromLauncher::Made { .. }, Site::Files) if session.groups.is_none() => {
                        assert!(matches!(session.hear(), FromLauncher::Gone { .. }));
                    }
                    (other, _) => panic!("{site:?} with {errno}: {other:?}"),
                }
            }
            assert_eq!(session.python("print(2)"), "2\n", "after {site:?}");
        }
        // Other sandboxes are unaffected.
        send(session.launcher.socket.as_fd(), &ToLauncher::Usage { id: first }, &[]).unwrap();
        match session.hear() {
            FromLauncher::Usage { id, usage: Some(usage) } => assert!(id == first && usage.cpu_us > 0),
            other => panic!("{other:?}"),
        }
        send(session.launcher.socket.as_fd(), &ToLauncher::Kill { id: first }, &[]).unwrap();
        assert!(matches!(session.hear(), FromLauncher::Gone { asked: true, .. }));
        drop(bystander);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while session.children() > 2 || session.descriptors() > before {
            assert!(
                std::time::Instant::now() < deadline,
                "{} processes and {} of {before} descriptors are left",
                session.children(),
                session.descriptors()
            );
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Fails the n-th step for every n. There are more than `least` steps.
    fn fail_each(session: &mut Session, least: usize) {
        let mut step = 0;
        loop {
            let (answer, mut stream) = session.ask(failing(Site::Step(step), EIO));
            match answer {
                FromLauncher::Failed { error, .. } => assert_eq!(error.errno, 5, "{error}"),
                FromLauncher::Made { .. } => break,
                other => panic!("{other:?}"),
            }
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert_eq!(text, "", "nothing ran after step {step} failed");
            step += 1;
        }
        assert!(step > least, "{step} steps");
        assert!(matches!(session.hear(), FromLauncher::Gone { .. }));
    }

    /// Returns the processes of the session that this launcher leads. Ended ones may wait for the machine's first
    /// process.
    fn of_session(launcher: u32) -> Vec<String> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let of_it = stats.filter(|stat| {
            let fields = stat.rsplit(')').next().unwrap_or_default();
            let mut fields = fields.split_whitespace();
            fields.next() != Some("Z") && fields.nth(2) == Some(&launcher.to_string())
        });
        of_it.collect()
    }

    fn killed_early() -> Result<(), Failed> {
        for pause in (0..40).map(|number| number * 50) {
            let session = Session::with(Template {
                enterable: true,
                ..template()
            });
            std::thread::sleep(std::time::Duration::from_micros(pause));
            let launcher = session.launcher.process.id();
            session.launcher.process.kill().unwrap();
            session.launcher.process.wait().unwrap();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
            while let Some(left) = of_session(launcher).pop() {
                assert!(std::time::Instant::now() < deadline, "after {pause} µs: {left}");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Returns the launcher's children that are in its namespaces: the fork server and spares.
    fn makers(launcher: u32) -> Vec<rustix::process::Pid> {
        let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
        let outside = |pid: &&str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            ids.is_some_and(|ids| ids.split_whitespace().count() == 1)
        };
        let found = children.split_whitespace().filter(outside);
        found
            .filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().unwrap()))
            .collect()
    }

    fn without_nursery(enterable: bool) -> Result<(), Failed> {
        use rustix::process::{Signal, kill_process};
        for signal in [Signal::KILL, Signal::STOP] {
            let mut session = Session::new(enterable);
            assert_eq!(session.python("print(1)"), "1\n");
            // The launcher's first child.
            let fork_server = makers(session.launcher.process.id())[0];
            kill_process(fork_server, signal).unwrap();
            for number in 2..6 {
                assert_eq!(session.python(&format!("print({number})")), format!("{number}\n"));
            }
            assert!(
                !makers(session.launcher.process.id()).contains(&fork_server),
                "it is still there"
            );
            let told: Vec<i32> = session.killed.iter().map(|(_, signal)| *signal).collect();
            // The launcher itself has killed a stopped one.
            let expected: &[i32] = if signal == Signal::KILL { &[9] } else { &[] };
            assert_eq!(told, expected, "{:?}", session.killed);
            // If the fork server makes first processes, no other process is left outside their namespaces.
            if enterable {
                let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
                let is_replaced = || {
                    let makers = makers(session.launcher.process.id());
                    makers.len() == 1 && !makers.contains(&fork_server)
                };
                while !is_replaced() {
                    assert!(std::time::Instant::now() < deadline, "no other one is started");
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                assert_eq!(session.python("print(7)"), "7\n");
            }
        }
        Ok(())
    }

    fn missing_layers(enterable: bool) -> Result<(), Failed> {
        for layer in sandcell_jail::plan::NAMESPACE_LEVEL_LAYERS {
            // The environment is empty because the launcher's is. There is no step that could fail.
            if layer == "empty_environment" {
                continue;
            }
            let (answer, _) = Session::without(Some(layer), enterable).ask(request());
            match answer {
                FromLauncher::Failed { error, .. } => assert_eq!(error.layer.as_deref(), Some(layer)),
                other => panic!("without {layer}: {other:?}"),
            }
        }
        Ok(())
    }

    fn killed(enterable: bool) -> Result<(), Failed> {
        let mut session = Session::new(enterable);
        let (theirs_in, _ours_in) = std::io::pipe().unwrap();
        let (mut ours_out, theirs_out) = std::io::pipe().unwrap();
        let request = Request {
            memory: 256 << 20,
            cpu_milli: 1000,
            processes: 32,
            disk: 64 << 20,
            inodes: 1000,
            fault: None,
        };
        send(
            session.launcher.socket.as_fd(),
            &ToLauncher::Make {
                id: 1,
                request,
                image: None,
                entered_by: None,
            },
            &[theirs_in.as_fd(), theirs_out.as_fd()],
        )
        .unwrap();
        drop((theirs_in, theirs_out));
        assert_eq!(session.hear(), FromLauncher::Made { id: 1, folder: None });
        session.launcher.process.kill().unwrap();
        session.launcher.process.wait().unwrap();
        // The program inside holds the other end, so the end of the stream is its end.
        let mut text = String::new();
        ours_out.read_to_string(&mut text).unwrap();
        Ok(())
    }
}
