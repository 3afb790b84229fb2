//! Checks where sandboxes' v2 cgroups are created, and that no foreign process is moved for it. The tests create
//! cgroups as systemd and containers do, so they need a separate machine, as root: `.ci/vm` gives one.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
const ENABLED_CONTROLLERS: &str = "+memory +pids +cpu";
/// An unused id.
const UNUSED_ID: u32 = 61_234;

/// A cgroup. Drop removes it with its contents.
struct Group(PathBuf);

impl Group {
    fn new(path: &str) -> Self {
        fs::write(format!("{CGROUP_ROOT}/cgroup.subtree_control"), ENABLED_CONTROLLERS).unwrap();
        let group = Self(Path::new(CGROUP_ROOT).join(path));
        fs::create_dir_all(&group.0).unwrap();
        group
    }

    /// Creates a group that passes its controllers on, as slices do.
    fn slice(path: &str) -> Self {
        let group = Self::new(path);
        fs::write(group.0.join("cgroup.subtree_control"), ENABLED_CONTROLLERS).unwrap();
        group
    }

    /// Makes this user the owner, as systemd does for a user's own groups.
    fn owned(self) -> Self {
        for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            std::os::unix::fs::chown(self.0.join(name), Some(UNUSED_ID), Some(UNUSED_ID)).unwrap();
        }
        self
    }

    /// Returns a command that starts in the group.
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        let enter = format!("echo 0 > {}/cgroup.procs && {script}", self.0.display());
        command.arg("-c").arg(enter).stdin(Stdio::null());
        command
    }

    /// Starts another program's process in the group.
    fn occupied(self) -> (Self, Sleeper) {
        let sleeper = Sleeper(self.command("exec sleep 1000").spawn().unwrap());
        wait("somebody is in the group", || !self.processes().is_empty());
        (self, sleeper)
    }

    fn processes(&self) -> BTreeSet<u32> {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).unwrap();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let folders = || folders(&self.0);
        for _ in 0..100 {
            for folder in folders().iter().rev().chain([&self.0]) {
                let _ = fs::remove_dir(folder);
            }
            if !self.0.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn wait(what: &str, mut seen: impl FnMut() -> bool) {
    for _ in 0..1200 {
        if seen() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("never: {what}");
}

/// Returns all groups below one, outer ones first.
fn folders(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![below.to_owned()];
    while let Some(folder) = next.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let inner: Vec<PathBuf> = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        found.extend(inner.iter().cloned());
        next.extend(inner);
    }
    found
}

/// Returns the parent groups of existing sandboxes' groups.
fn in_use() -> BTreeSet<PathBuf> {
    let of_a_sandbox = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let parts = name
            .strip_prefix("sandcell-")
            .into_iter()
            .flat_map(|rest| rest.split('-'));
        // The parts are the launcher's process id, a random text, and the sandbox's number.
        parts.clone().count() == 3 && parts.step_by(2).all(|part| part.parse::<u64>().is_ok())
    };
    let all = folders(Path::new(CGROUP_ROOT)).into_iter().filter(of_a_sandbox);
    all.map(|folder| folder.parent().unwrap().to_owned()).collect()
}

/// A server's program that every user can read, and a script that its sandboxes run.
struct GroupTestDir(tempfile::TempDir);

impl GroupTestDir {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::copy(sandcell_e2e::binary(), at("sandcell")).unwrap();
        // The group limits the memory, so a larger allocation ends the code.
        let script = "import os, time\ntime.sleep(1)\nprint(os.getpid())\nx = b'x' * (300 << 20)\nprint('took it')\n";
        fs::write(at("script.py"), script).unwrap();
        fs::create_dir(at("home")).unwrap();
        fs::write(
            at("home/settings.toml"),
            "limits_min = \"enforced\"\n[limits]\nmemory_mb = 256\n",
        )
        .unwrap();
        for (name, mode) in [("", 0o755), ("sandcell", 0o755), ("script.py", 0o644), ("home", 0o777)] {
            fs::set_permissions(at(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        Self(folder)
    }

    fn run(&self) -> String {
        let at = self.0.path().display();
        format!(
            "env -i PATH=/usr/bin:/bin HOME={at}/home {at}/sandcell --config {at}/home/settings.toml run {at}/script.py"
        )
    }

    fn run_as_nobody(&self) -> String {
        format!(
            "setpriv --reuid={UNUSED_ID} --regid={UNUSED_ID} --clear-groups {}",
            self.run()
        )
    }
}

/// Runs the command to its end. Returns the parent cgroups of its sandboxes, and its output.
fn watch(command: &mut Command) -> (BTreeSet<PathBuf>, Output) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut seen = BTreeSet::new();
    while child.try_wait().unwrap().is_none() {
        seen.extend(in_use());
        std::thread::sleep(Duration::from_millis(20));
    }
    (seen, child.wait_with_output().unwrap())
}

/// Checks that the command makes its cgroups in `folder`, and that each of `servers` servers passes its checks.
fn made_in(folder: &Path, servers: usize, command: &mut Command) {
    let (seen, output) = watch(command);
    let status = output.status;
    let said = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    assert_eq!(seen, BTreeSet::from([folder.to_owned()]), "{said}");
    assert!(!said.contains("took it"), "{said}");
    assert_eq!(said.matches("[out_of_memory]").count(), servers, "{status} {said}");
    wait("its groups are gone", || in_use().is_empty());
}

#[test]
fn in_a_login_session_cgroups_are_made_next_to_it() {
    let place = GroupTestDir::new();
    let slice = Group::slice("t1.slice");
    let (login, sleeper) = Group::new("t1.slice/login.scope").occupied();
    made_in(&slice.0, 1, &mut login.command(&place.run()));
    assert_eq!(login.processes(), BTreeSet::from([sleeper.0.id()]), "was moved");
}

#[test]
fn in_a_limited_login_session_cgroups_are_made_inside_it() {
    let place = GroupTestDir::new();
    let _slice = Group::slice("t8.slice");
    let (login, _sleeper) = Group::new("t8.slice/login.scope").occupied();
    fs::write(login.0.join("memory.max"), "4G").unwrap();
    made_in(&login.0, 1, &mut login.command(&place.run()));
}

#[test]
fn a_server_alone_in_its_cgroup_makes_cgroups_there() {
    let place = GroupTestDir::new();
    let _slice = Group::slice("t2.slice");
    let scope = Group::new("t2.slice/run.scope");
    made_in(&scope.0, 1, &mut scope.command(&format!("exec {}", place.run())));
}

#[test]
fn a_server_of_an_ordinary_user_makes_cgroups_in_a_cgroup_of_that_user() {
    let place = GroupTestDir::new();
    let _slice = Group::slice("t3.slice");
    let scope = Group::new("t3.slice/run.scope").owned();
    made_in(
        &scope.0,
        1,
        &mut scope.command(&format!("exec {}", place.run_as_nobody())),
    );
}

#[test]
fn a_limited_service_started_by_a_script_makes_cgroups_in_its_own_cgroup() {
    let place = GroupTestDir::new();
    let _slice = Group::slice("t4.slice");
    let service = Group::new("t4.slice/sandcell.service");
    fs::write(service.0.join("cpu.max"), "150000 100000").unwrap();
    let run = place.run();
    made_in(&service.0, 2, &mut service.command(&format!("{{ {run}; {run}; }}")));
    assert!(!service.0.join("sandcell-server/sandcell-server").exists());
}

#[test]
fn for_an_editor_of_a_user_cgroups_are_made_next_to_it() {
    let place = GroupTestDir::new();
    let slice = Group::slice("t5.slice").owned();
    let (editor, sleeper) = Group::new("t5.slice/editor.scope").owned().occupied();
    made_in(&slice.0, 1, &mut editor.command(&place.run_as_nobody()));
    assert_eq!(editor.processes(), BTreeSet::from([sleeper.0.id()]), "was moved");
}

#[test]
fn a_user_without_cgroups_is_refused_enforced_limits_with_each_tried_folder() {
    let place = GroupTestDir::new();
    let _slice = Group::slice("t6.slice");
    let (login, _sleeper) = Group::new("t6.slice/login.scope").occupied();
    let (seen, output) = watch(&mut login.command(&place.run_as_nobody()));
    assert_eq!(seen, BTreeSet::new());
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    for folder in [
        CGROUP_ROOT.to_owned(),
        format!("{CGROUP_ROOT}/t6.slice"),
        format!("{CGROUP_ROOT}/t6.slice/login.scope"),
    ] {
        assert_eq!(said.matches(&format!("{folder}: ")).count(), 1, "{folder} in {said}");
    }
}

#[test]
fn in_a_container_two_servers_share_one_cgroup_folder() {
    let place = GroupTestDir::new();
    let container = Group::new("t7");
    let run = place.run();
    let inside = format!(
        "umount -l {CGROUP_ROOT} && mount -t cgroup2 none {CGROUP_ROOT} && sleep 1000 & sleeper=$!; sleep 1; \
         {run} & first=$!; {run}; second=$?; wait $first; test $? = $second && {run}; status=$?; kill $sleeper; exit $status"
    );
    let inside = inside.replace('\'', "'\\''");
    made_in(
        &container.0,
        3,
        &mut container.command(&format!("exec unshare --cgroup --mount sh -c '{inside}'")),
    );
    assert!(!container.0.join("sandcell-server/sandcell-server").exists());
}
