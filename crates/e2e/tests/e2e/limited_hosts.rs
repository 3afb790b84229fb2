//! Hosts with missing features, made by changing the namespaces, filters or limits of the program alone: the reports
//! of `run` and `doctor`, and the cases that work nevertheless.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, is_root, python};

/// Answers these system calls with these error numbers and executes the rest of its arguments.
const FILTER_SCRIPT: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
steps = [(0x20, 0, 0, 0)]
for pair in sys.argv[1].split(","):
    number, error = map(int, pair.split(":"))
    steps += [(0x15, 0, 1, number), (6, 0, 0, 0x00050000 | error)]
steps.append((6, 0, 0, 0x7FFF0000))
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(Program(len(steps), ctypes.addressof(text)))):
    sys.exit("seccomp: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// These system call numbers are the same on every architecture.
const CLONE3: &str = "435:38";
const LANDLOCK: &str = "444:1,445:1,446:1";
const MOUNT_SETATTR: &str = "442:38";

/// Returns the command as an argument of another program.
fn through(program: &str, arguments: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(program);
    outer.args(arguments);
    outer.arg(command.get_program()).args(command.get_args()).env_clear();
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    outer
}

fn filtered(calls: &str, command: &Command) -> Command {
    through(
        python().unwrap().to_str().unwrap(),
        &["-I", "-S", "-c", FILTER_SCRIPT, calls],
        command,
    )
}

/// Returns the command in a new mount namespace, after this script.
pub(crate) fn after(script: &str, command: &Command) -> Command {
    let namespaces = if is_root() { "-m" } else { "-Urm" };
    through(
        "unshare",
        &[namespaces, "sh", "-ec", &format!("{script}\nexec \"$@\""), "sh"],
        command,
    )
}

/// Returns the command as the root of a new user namespace, after this script.
fn as_its_root(script: &str, command: &Command) -> Command {
    through(
        "unshare",
        &["-Ur", "sh", "-ec", &format!("{script}\nexec \"$@\""), "sh"],
        command,
    )
}

fn output(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// `sandcell run` of one line.
fn run(place: &TestDir) -> Command {
    let file = place.write("program.py", "print(6 * 7)").display().to_string();
    place.command(&["run", &file])
}

#[track_caller]
fn works(output: &Output) {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n");
}

/// Checks that the program did not run, that the reason was reported, and that nothing crashed.
#[track_caller]
fn refuses(output: &Output, cause: &str, remedy: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(
        said.contains(cause) && said.contains(remedy),
        "{cause} / {remedy}: {said}"
    );
    for accident in ["panicked", "overflowed", "sandcell doctor", "or newer"] {
        assert!(!said.contains(accident), "{accident}: {said}");
    }
}

/// Returns the doctor's JSON report, and its overall result.
fn doctor(change: impl Fn(&Command) -> Command, place: &TestDir) -> (Value, bool) {
    let output = output(change(&place.command(&["doctor", "--json"])));
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (report, output.status.success())
}

fn layer<'a>(report: &'a Value, name: &str) -> &'a Value {
    let layers = report["layers"].as_array().unwrap();
    layers
        .iter()
        .find(|layer| layer["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {report}"))
}

/// Checks the report when no sandbox can be made: no layer is active, no attack counts as a breach, and the failed
/// layer states the reason.
#[track_caller]
fn is_ill((report, well): &(Value, bool), failed: &str, cause: &str, remedy: &str) {
    assert!(!well, "{report}");
    assert_eq!(report["ok"], false, "{report}");
    let own = layer(report, failed);
    assert_eq!(own["state"], "missing", "{own}");
    assert!(own["reason"].as_str().unwrap().contains(cause), "{cause}: {own}");
    assert!(own["remedy"].as_str().unwrap().contains(remedy), "{remedy}: {own}");
    for layer in report["layers"].as_array().unwrap() {
        assert_ne!(layer["state"], "active", "{layer}");
    }
    let attacks = &report["attacks"];
    assert_eq!(
        (&attacks["tried"], &attacks["breached"]),
        (&json!(0), &json!(0)),
        "{attacks}"
    );
    assert_eq!(report["backends"][0]["available"], false, "{report}");
    let told = report.to_string();
    assert!(!told.contains("sandcell doctor"), "{told}");
}

#[test]
fn clone_replaces_clone3_behind_an_old_filter() {
    let _turn = begin!();
    let place = TestDir::new();
    works(&output(filtered(CLONE3, &run(&place))));
}

#[test]
fn a_covered_proc_is_named_and_no_layer_is_reported_active() {
    let _turn = begin!();
    let place = TestDir::new();
    let file = place.write("uptime", "1.00 1.00").display().to_string();
    let cover = format!("mount --bind '{file}' /proc/uptime");
    refuses(&output(after(&cover, &run(&place))), "(/proc/uptime)", "/proc");
    let told = doctor(|command| after(&cover, command), &place);
    is_ill(&told, "private_proc", "parts of /proc are covered (/proc/uptime)", "");
    let people = output(after(&cover, &place.command(&["doctor"])));
    let said = String::from_utf8_lossy(&people.stdout);
    assert!(said.contains("Not ready: no sandbox can be made here"), "{said}");
    assert!(
        !said.contains("✓ private_proc") && !said.contains("attack was not held"),
        "{said}"
    );
}

#[test]
fn a_read_only_proc_is_named() {
    let _turn = begin!();
    let place = TestDir::new();
    let script = "mount --bind /proc /proc\nmount -o remount,bind,ro /proc";
    refuses(&output(after(script, &run(&place))), "/proc is read-only", "");
}

#[test]
fn a_filter_that_blocks_landlock_or_mounts_is_named_instead_of_the_kernel() {
    let _turn = begin!();
    let place = TestDir::new();
    let cause = "a filter of system calls stands in front of Landlock";
    refuses(&output(filtered(LANDLOCK, &run(&place))), cause, "");
    let told = doctor(|command| filtered(LANDLOCK, command), &place);
    is_ill(&told, "landlock", cause, "");
    refuses(
        &output(filtered(MOUNT_SETATTR, &run(&place))),
        "filter of system calls (seccomp)",
        "",
    );
}

#[test]
fn refused_namespaces_are_named_with_their_kernel_setting() {
    let _turn = begin!();
    let place = TestDir::new();
    for (kind, name) in [
        ("net", "network_namespace"),
        ("mnt", "mount_namespace"),
        ("ipc", "ipc_namespace"),
    ] {
        let setting = format!("user.max_{kind}_namespaces");
        let script = format!("echo 0 > /proc/sys/user/max_{kind}_namespaces");
        let cause = format!("{setting} is 0");
        let remedy = format!("sysctl -w {setting}=");
        refuses(&output(as_its_root(&script, &run(&place))), &cause, &remedy);
        let told = doctor(|command| as_its_root(&script, command), &place);
        is_ill(&told, name, &cause, &remedy);
    }
}

#[test]
fn root_without_a_capability_is_reported_and_every_attack_still_fails() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let (report, well) = doctor(|command| as_its_root("", command), &place);
    assert!(well, "{report}");
    let own = layer(&report, "user_namespace");
    assert!(
        own["reason"].as_str().unwrap().contains("that of a user namespace"),
        "{own}"
    );
    if !is_root() {
        return;
    }
    let without = |command: &Command| {
        let set = ["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"];
        through("setpriv", &set, command)
    };
    let (report, well) = doctor(without, &place);
    assert!(well, "{report}");
    assert_eq!(report["attacks"]["held"], report["attacks"]["tried"], "{report}");
    let own = layer(&report, "user_namespace");
    assert!(own["reason"].as_str().unwrap().contains("CAP_SYS_ADMIN"), "{own}");
    let remedy = own["remedy"].as_str().unwrap();
    assert!(
        remedy.contains("--cap-add SYS_ADMIN") && !remedy.contains("as root"),
        "{own}"
    );
}

#[test]
fn proc_files_of_the_first_process_are_closed_even_to_root() {
    let _turn = begin!();
    let place = TestDir::new();
    let code = "import os\nfor name in 'clear_refs', 'oom_score_adj', 'coredump_filter', 'autogroup':\n\
                \x20   for folder in '/proc/1', '/proc/1/task/1':\n        try:\n            os.open(f'{folder}/{name}', os.O_WRONLY)\n\
                \x20           print('opened', folder, name)\n        except OSError:\n            pass\nprint('end')";
    let file = place.write("look.py", code).display().to_string();
    let output = output(as_its_root("", &place.command(&["run", &file])));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "end\n", "{output:?}");
}

#[test]
fn outer_limits_are_named_and_end_no_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    for (option, cause, remedy) in [
        ("--stack=65536:65536", "(ulimit -Hs) is 64 KiB", "LimitSTACK="),
        ("--nofile=20:20", "(ulimit -Hn) is 20", "LimitNOFILE="),
        ("--fsize=0:0", "(ulimit -f) is 0 bytes", "LimitFSIZE="),
    ] {
        let limited = output(through("prlimit", &[option], &run(&place)));
        // A user with the right to raise the limit raises it.
        if option.contains("stack") && limited.status.success() {
            works(&limited);
            continue;
        }
        refuses(&limited, cause, remedy);
    }
    // Low but sufficient limits.
    for option in ["--stack=524288:524288", "--fsize=1024000:1024000", "--nofile=64:64"] {
        works(&output(through("prlimit", &[option], &run(&place))));
    }
}

#[test]
fn doctor_compares_outer_limits_with_those_of_a_sandbox() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let limits = ["--nofile=256:256", "--fsize=1048576:1048576"];
    let (report, _) = doctor(|command| through("prlimit", &limits, command), &place);
    let rows = report["host"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter()
            .find(|row| row["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {report}"))
    };
    assert_eq!(row("open files (ulimit -Hn)")["now"], "256");
    assert_eq!(row("a file's size (ulimit -f)")["now"], "1 MiB");
    let people = output(through("prlimit", &limits, &place.command(&["doctor"])));
    let said = String::from_utf8_lossy(&people.stdout);
    assert!(
        said.contains("Limits from outside") && said.contains("LimitNOFILE="),
        "{said}"
    );
}
