//! Code that breaks its own interpreter, and inside ends that are no driver at all.

use std::time::{Duration, Instant};

use sandcell_sandbox::{CellStatus, Exit, SessionError};

use crate::python;
use crate::support::Python;

#[tokio::test]
async fn a_crash_is_seen_at_once_and_named() {
    for (code, expected) in [
        ("import os\nprint('last words', flush=True)\nos._exit(3)", Exit::Code(3)),
        (
            "print('last words', flush=True)\nimport ctypes\nctypes.string_at(0)",
            Exit::Signal(11),
        ),
        (
            "print('last words', flush=True)\nimport os; os.abort()",
            Exit::Signal(6),
        ),
        (
            "print('last words', flush=True)\nimport os; os.kill(os.getpid(), 9)",
            Exit::Signal(9),
        ),
    ] {
        let mut python = python!();
        let begun = Instant::now();
        let ran = python.run(code).await;
        assert!(
            matches!(ran.status, Ok(CellStatus::Died(exit)) if exit == expected),
            "{ran:?}"
        );
        assert_eq!(ran.stdout, "last words\n");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

#[tokio::test]
async fn a_daemon_that_holds_the_output_open_does_not_delay_a_crash_report() {
    let mut python = python!();
    let ran = python
        .run("import os, subprocess\nsubprocess.Popen(['sleep', '20'])\nos._exit(1)")
        .await;
    assert!(matches!(ran.status, Ok(CellStatus::Died(Exit::Code(1)))), "{ran:?}");
}

#[tokio::test]
async fn damage_by_a_thread_after_its_cell_is_repaired_for_the_next_one() {
    let mut python = python!();
    for late in [
        "with open('log', 'w') as f: sys.stdout = f; time.sleep(0.3)",
        "time.sleep(0.3); os.close(1); os.close(2)",
        "time.sleep(0.3); sys.stderr.close(); sys.stdout.close()",
    ] {
        let code =
            format!("import os, sys, threading, time\ndef late():\n    {late}\nthreading.Thread(target=late).start()");
        python.run(&code).await.ok();
        tokio::time::sleep(Duration::from_millis(600)).await;
        let ran = python
            .run("print('seen', file=sys.stderr); print('heard'); os.system('echo said')")
            .await
            .ok();
        assert_eq!(
            (ran.stdout.as_str(), ran.stderr.as_str()),
            ("heard\nsaid\n", "seen\n"),
            "{late}"
        );
    }
}

#[tokio::test]
async fn broken_streams_and_descriptors_are_repaired_for_the_next_cell() {
    let mut python = python!();
    for code in [
        "import sys, os, io, builtins; sys.stdout = None",
        "sys.stdout = sys.stderr = 5",
        "sys.stdout.close()",
        "sys.__stdout__.close(); sys.stdout.close()",
        "os.close(1); os.close(2)",
        "os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "os.close(0)",
        "os.closerange(0, 40)",
        "sys.stdin = None",
        "sys.stdin.close()",
        "sys.setrecursionlimit(60)",
        "sys.stdout = io.StringIO(); sys.stdout.close()",
        "del sys.stdout",
    ] {
        let ran = python.run(code).await;
        assert!(matches!(ran.status, Ok(CellStatus::Ok)), "{code}: {ran:?}");
        let ran = python.run("print('out'); print('err', file=sys.stderr); 7").await.ok();
        assert_eq!(
            (ran.stdout.as_str(), ran.stderr.as_str(), ran.text().as_str()),
            ("out\n", "err\n", "7"),
            "{code}"
        );
        let ran = python.run_stdin("input(); os.system('cat');", "a\n").await.ok();
        assert_eq!(ran.stdout, "", "{code}");
    }
}

#[tokio::test]
async fn broken_builtins_and_modules_do_not_break_the_session() {
    let mut python = python!();
    python
        .run("import builtins, sys, os, json, traceback, linecache, posix")
        .await
        .ok();
    for code in [
        "builtins.repr = builtins.len = builtins.isinstance = builtins.type = None",
        "json.dumps = json.loads = traceback.TracebackException = linecache.getline = None",
        "posix.write = posix.read = os.write = os.read = None",
        "sys.modules['json'] = sys.modules['traceback'] = sys.modules['io'] = None",
        "sys.modules.clear",
        "builtins.compile = builtins.exec = builtins.eval = builtins.BaseException = None",
        "builtins.__import__ = lambda *a, **k: 1/0",
    ] {
        python.run(code).await.ok();
        let ran = python.run("print('still here')\n[1, 'two']").await.ok();
        assert_eq!(
            (ran.stdout.as_str(), ran.text().as_str()),
            ("still here\n", "[1, 'two']"),
            "{code}"
        );
        let ran = python.run("1/0").await;
        assert_eq!(ran.error().name, "ZeroDivisionError", "{code}");
    }
}

#[tokio::test]
async fn files_named_like_modules_of_the_driver_do_not_break_it() {
    let mut python = python!();
    for name in [
        "traceback",
        "linecache",
        "json",
        "base64",
        "inspect",
        "asyncio",
        "difflib",
        "re",
        "tokenize",
    ] {
        std::fs::write(
            python.sandbox.home().join(format!("{name}.py")),
            "raise RuntimeError('mine')\n",
        )
        .unwrap();
    }
    let ran = python.run("undefined_name").await;
    assert!(ran.error().traceback.contains("undefined_name"), "{ran:?}");
    assert_eq!(python.run("!echo {1 + 1}").await.ok().stdout, "2\n");
}

#[tokio::test]
async fn values_with_a_failing_repr_do_no_harm() {
    let mut python = python!();
    python
        .run("class Raises:\n    def __repr__(self): raise ValueError('no text')\n    _repr_html_ = __repr__")
        .await
        .ok();
    // An error in the last value's text is the cell's error; in a displayed value it is printed. Both match a notebook.
    let ran = python.run("Raises()").await;
    let error = ran.error();
    assert!(error.traceback.ends_with("ValueError: no text"), "{}", error.traceback);
    assert!(error.traceback.contains("line 2, in __repr__"), "{}", error.traceback);
    let ran = python.run("display(Raises())\nprint('goes on')").await.ok();
    assert_eq!(ran.stdout, "goes on\n");
    assert!(ran.stderr.contains("ValueError: no text"), "{}", ran.stderr);
    let ran = python
        .run("class Half:\n    def __repr__(self): return 'the text'\n    def _repr_html_(self): raise KeyError('page')\nHalf()")
        .await;
    assert_eq!(ran.text(), "the text", "what can be shown is");
    assert!(ran.error().traceback.ends_with("KeyError: 'page'"), "{ran:?}");
    let ran = python
        .run("class Wrong:\n    def __repr__(self): return 5\nWrong()")
        .await;
    assert!(
        ran.error().traceback.contains("__repr__ returned non-string"),
        "{ran:?}"
    );
    let ran = python
        .run("class Number:\n    def __repr__(self): return 'n'\n    def _repr_html_(self): return 5\nNumber()")
        .await
        .ok();
    assert!(
        ran.stderr.contains("_repr_html_ gave no text but int"),
        "{}",
        ran.stderr
    );
    let ran = python
        .run("class Huge:\n    def __repr__(self): return 'x' * 200_000_000\nHuge()")
        .await
        .ok();
    assert!(ran.text().len() <= 65536);
    assert!(ran.text().contains("characters in all"), "{}", &ran.text()[60_000..]);
    let ran = python.run("class Liar(str):\n    def __len__(self): return 1\n    def encode(self, *a): return b'forged'\nclass L:\n    def __repr__(self): return Liar('z' * 100_000)\nL()").await.ok();
    assert!(ran.text().starts_with("zzz"));
    let ran = python
        .run("class Everything:\n    def __getattr__(self, name): return lambda *a, **k: 'x'\nEverything()")
        .await
        .ok();
    assert!(ran.text().starts_with("<__main__.Everything at 0x"), "{}", ran.text());
    let ran = python
        .run("class E(Exception):\n    def __str__(self): raise ValueError\nraise E")
        .await;
    assert_eq!(ran.error().name, "E");
    let ran = python.run("'y' * 100_000_000").await.ok();
    assert!(ran.text().len() <= 65536);
    let ran = python.run("x = 10 ** 10_000\nx").await.ok();
    assert!(!ran.text().is_empty());
    let ran = python
        .run("class Exits:\n    def __repr__(self): raise SystemExit(7)\nExits()")
        .await;
    assert!(matches!(ran.status, Ok(CellStatus::Exit(7))), "{ran:?}");
}

#[tokio::test]
async fn a_million_displays_are_cut_to_sixty_five() {
    let mut python = python!();
    let ran = python.run("for i in range(100_000): display(i)").await.ok();
    assert_eq!(ran.displays.len(), 65);
    assert_eq!(
        ran.displays[64].text(),
        "99936 more displays were left out (at most 64 a cell)"
    );
}

#[tokio::test]
async fn forks_of_the_code_do_not_become_a_second_session() {
    let mut python = python!();
    let ran = python
        .run("import os\nprint('before ', end='')\npid = os.fork()\nif pid == 0:\n    print('child')\n    display('in the child')\nelse:\n    os.waitpid(pid, 0)\n    print('parent')\n'value'")
        .await
        .ok();
    assert_eq!(ran.stdout, "before child\n'in the child'\nparent\n");
    assert_eq!((ran.text().as_str(), ran.displays.len()), ("'value'", 0));
    let ran = python
        .run("pid = os.fork()\nif pid == 0: 1/0\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])")
        .await
        .ok();
    assert_eq!(ran.text(), "1");
    assert!(ran.stderr.contains("ZeroDivisionError"), "{}", ran.stderr);
    let ran = python
        .run("pid = os.fork()\nif pid == 0: raise SystemExit(9)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])")
        .await
        .ok();
    assert_eq!(ran.text(), "9");
}

#[tokio::test]
async fn closing_every_descriptor_ends_the_session_with_a_reason() {
    let mut python = python!();
    let ran = python.run("import os\nos.closerange(3, 65536)\n1").await;
    assert!(matches!(ran.status, Ok(CellStatus::Died(Exit::Code(71)))), "{ran:?}");
}

/// Finds the driver's sending end by its kind: a pipe that is open for writing and is neither 1 nor 2.
const FORGE_CODE: &str = "import os, json, struct, fcntl, sys
def send(header, blob=b'', raw=None):
    text = json.dumps(header).encode()
    frame = struct.pack('<I', len(text)) + text + blob
    for fd in range(900, 1100):
        try:
            mode = fcntl.fcntl(fd, fcntl.F_GETFL) & 3
            kind = os.readlink('/proc/self/fd/%d' % fd)
        except OSError: continue
        if mode == 1 and os.stat(fd).st_ino not in (os.stat(1).st_ino, os.stat(2).st_ino):
            os.write(fd, raw if raw is not None else struct.pack('<I', len(frame)) + frame)
            return True
";

#[tokio::test]
async fn frames_forged_for_another_cell_are_dropped() {
    let mut python = python!();
    python.run(FORGE_CODE).await.ok();
    let ran = python
        .run("send({'type': 'done', 'nonce': 'guess', 'status': 'ok'})\nsend({'type': 'result', 'nonce': 'guess', 'blobs': [{'mime': 'text/plain', 'bytes': 3}]}, b'bad')\nsend({'type': 'ready', 'version': '9', 'pid': 1})\n'real'")
        .await
        .ok();
    assert_eq!(ran.text(), "'real'");
}

#[tokio::test]
async fn invalid_frames_end_the_session() {
    for forged in [
        "send({'type': 'root'})",
        "send({'type': 'done'})",
        "send(None, raw=b'\\xff\\xff\\xff\\xff')",
        "send(None, raw=struct.pack('<II', 8, 4) + b'\\xff\\xfe{}')",
        "send({'type': 'display', 'nonce': 'n', 'blobs': [{'mime': 'text/plain', 'bytes': -1}]})",
        "send({'type': 'display', 'nonce': 'n', 'blobs': [{'mime': 'a', 'bytes': 0}]})",
    ] {
        let mut python = python!();
        python.run(FORGE_CODE).await.ok();
        let ran = python.run(&format!("{forged}\nimport time; time.sleep(600)")).await;
        assert!(
            matches!(ran.status, Err(SessionError::Protocol(_))),
            "{forged}: {ran:?}"
        );
        assert!(matches!(python.run("1").await.status, Ok(CellStatus::Died(_))));
    }
}

#[tokio::test]
async fn a_flood_of_forged_frames_is_read_and_dropped() {
    let mut python = python!();
    python.run(FORGE_CODE).await.ok();
    let ran = python
        .run("for i in range(20_000): send({'type': 'display', 'nonce': 'x', 'blobs': [{'mime': 'text/plain', 'bytes': 1}]}, b'a') or i\n'end'")
        .await;
    assert_eq!(ran.ok().text(), "'end'");
}

#[tokio::test]
async fn a_process_that_is_not_the_driver_is_refused() {
    for (script, part) in [
        ("exit 3", "status 3"),
        ("echo no such module >&2; exit 1", "no such module"),
        ("kill -9 $$", "signal 9"),
        ("printf 'garbage that is longer than a prefix' >&4; sleep 60", "at most"),
        (
            "printf '\\x08\\0\\0\\0\\x04\\0\\0\\0null' >&4; sleep 60",
            "not in the protocol",
        ),
    ] {
        match Python::pretender(script).await {
            Err(SessionError::Start { reason, .. }) => assert!(reason.contains(part), "{script}: {reason}"),
            other => panic!("{script}: {:?}", other.map(|_| ())),
        }
    }
}

const READY_CODE: &str =
    r#"header='{"type":"ready","version":"3","pid":1}'; printf "\\x2a\\0\\0\\0\\x26\\0\\0\\0$header" >&4; "#;

#[tokio::test]
async fn a_driver_that_closes_its_channel_ends_the_session() {
    let mut python = Python::pretender(&format!("{READY_CODE} exec 3<&- 4>&-; sleep 60"))
        .await
        .unwrap();
    let ran = python.run("1").await;
    assert!(matches!(ran.status, Err(SessionError::Protocol(_))), "{ran:?}");
}

#[tokio::test]
async fn a_driver_that_never_reads_can_be_killed() {
    let mut python = Python::pretender(&format!("{READY_CODE} head -c5 <&3 >/dev/null; echo on; sleep 600"))
        .await
        .unwrap();
    let interrupter = python.interrupter();
    let ran = python
        .run_with(&"x".repeat(900_000), None, |_| {
            tokio::spawn(async move {
                interrupter.interrupt().await.unwrap();
                interrupter.kill().await.unwrap();
            });
        })
        .await;
    assert!(matches!(ran.status, Ok(CellStatus::Died(_))), "{ran:?}");
}
