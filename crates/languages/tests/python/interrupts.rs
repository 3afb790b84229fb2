//! Interrupts, and the state after them.

use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{CellStatus, Exit};

use crate::python;

const READY_CODE: &str = "print('on', flush=True)\n";

#[tokio::test]
async fn blocking_code_is_interrupted_and_variables_stay() {
    let mut python = python!();
    python
        .run("x = 42\nimport asyncio, subprocess, time, threading")
        .await
        .ok();
    for code in [
        "while True: pass",
        "time.sleep(600)",
        "await asyncio.sleep(600)",
        "asyncio.run(asyncio.sleep(600))",
        "subprocess.run(['sleep', '600'])",
        "threading.Event().wait()",
        "threading.Lock().acquire() and (l := threading.Lock()).acquire() and l.acquire()",
        "sum(iter(lambda: 1, 2))",
        "class R:\n    def __repr__(self):\n        while True: pass\nR()",
        "!sleep 600",
    ] {
        let ran = python.run_interrupted(&format!("{READY_CODE}{code}")).await;
        assert_eq!(ran.interrupted().name, "KeyboardInterrupt", "{code}");
        assert_eq!(ran.stdout, "on\n", "{code}: {}", ran.stderr);
        // asyncio's message about a loop that the interrupt left half made belongs to no later cell.
        assert_eq!(
            python.run("import gc; gc.collect(); x").await.ok().text(),
            "42",
            "{code}"
        );
    }
}

#[tokio::test]
async fn an_interrupt_before_the_event_loop_exists_leaves_no_warning() {
    for _ in 0..20 {
        let mut python = python!();
        let code = format!("{READY_CODE}await __import__('asyncio').sleep(600)");
        assert_eq!(
            python.run_interrupted(&code).await.interrupted().name,
            "KeyboardInterrupt"
        );
        let after = python.run("import gc; gc.collect(); 1").await.ok();
        assert_eq!((after.stdout.as_str(), after.stderr.as_str()), ("", ""));
    }
}

#[tokio::test]
async fn an_interrupt_that_hits_a_finalizer_is_not_lost() {
    let mut python = python!();
    let code = format!(
        "class F:\n    def __del__(self):\n        {READY_CODE}        for i in range(10 ** 7): pass\nx = 42\nf = F()\ndel f\nwhile True: pass"
    );
    let ran = python.run_interrupted(&code).await;
    assert_eq!(ran.interrupted().name, "KeyboardInterrupt");
    assert_eq!(python.run("x").await.ok().text(), "42");
}

#[tokio::test]
async fn interrupted_code_may_clean_up() {
    let mut python = python!();
    let ran = python
        .run_interrupted(&format!(
            "import time\ntry:\n    {READY_CODE}    time.sleep(600)\nfinally:\n    print('cleaned')"
        ))
        .await;
    ran.interrupted();
    assert_eq!(ran.stdout, "on\ncleaned\n");
}

#[tokio::test]
async fn a_swallowed_interrupt_is_not_repeated() {
    let mut python = python!();
    let code = format!(
        "import time\ncaught = 0\ntry:\n    {READY_CODE}    time.sleep(600)\nexcept KeyboardInterrupt:\n    caught += 1\ntime.sleep(0.6)\ncaught"
    );
    assert_eq!(python.run_interrupted(&code).await.ok().text(), "1");
}

/// Simulates a signal just before the call: Python records it, and the call does not notice.
#[tokio::test]
async fn a_pending_interrupt_ends_a_blocking_call() {
    let mut python = python!();
    let code = format!(
        "import _thread, signal, threading, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n\
         threading.Timer(0.05, _thread.interrupt_main).start()\n{READY_CODE}time.sleep(600)"
    );
    python.run_interrupted(&code).await.interrupted();
}

#[tokio::test]
async fn code_that_handles_interrupts_itself_gets_one() {
    let mut python = python!();
    let code = format!(
        "import signal, subprocess, time\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append('mine'))\n\
         shell = subprocess.Popen(['sh', '-c', 'trap \"echo seen\" INT; sleep 0.1; sleep 0.3; sleep 0.3'], stdout=-1, text=True)\n\
         time.sleep(0.1)\n{READY_CODE}time.sleep(0.6)\nseen + shell.communicate()[0].split()"
    );
    assert_eq!(python.run_interrupted(&code).await.ok().text(), "['mine', 'seen']");
    assert_eq!(python.run("1 + 1").await.ok().text(), "2");
}

#[tokio::test]
async fn an_interrupt_in_an_unraisable_hook_is_not_lost() {
    let mut python = python!();
    let code = format!(
        "import sys, time\nclass Slow:\n    def write(self, text):\n        {READY_CODE}        time.sleep(600)\n\
         class Bad:\n    def __del__(self): raise ValueError\nerrors, sys.stderr = sys.stderr, Slow()\n\
         try:\n    Bad()\n    time.sleep(600)\nfinally:\n    sys.stderr = errors"
    );
    assert_eq!(
        python.run_interrupted(&code).await.interrupted().name,
        "KeyboardInterrupt"
    );
    assert_eq!(python.run("1 + 1").await.ok().text(), "2");
}

#[tokio::test]
async fn an_interrupt_that_hits_a_destructor_is_not_lost() {
    let mut python = python!();
    let code = format!(
        "import time\nclass Slow:\n    def __del__(self):\n        {READY_CODE}        time.sleep(600)\nSlow()\ntime.sleep(600)"
    );
    assert_eq!(
        python.run_interrupted(&code).await.interrupted().name,
        "KeyboardInterrupt"
    );
}

#[tokio::test]
async fn an_interrupt_between_cells_is_ignored() {
    let mut python = python!();
    python.run("x = 1").await.ok();
    for _ in 0..20 {
        python.interrupter().interrupt().await.unwrap();
        assert_eq!(python.run("import time; time.sleep(0.001); x").await.ok().text(), "1");
    }
}

#[tokio::test]
async fn interrupts_at_any_moment_keep_the_session_intact() {
    let mut python = python!();
    python.run("x = 0\nimport time").await.ok();
    let (mut done, mut stopped) = (0, 0);
    for round in 0..150_u64 {
        let interrupter = python.interrupter();
        let at = Duration::from_micros(round * 7 % 900);
        let send = tokio::spawn(async move {
            tokio::time::sleep(at).await;
            interrupter.interrupt().await
        });
        let ran = python.run("print('a')\ndisplay('shown')\nx += 1\n'value'").await;
        match &ran.status {
            Ok(CellStatus::Ok) => done += 1,
            Ok(CellStatus::Interrupted(_)) => stopped += 1,
            other => panic!("{other:?}: {ran:?}"),
        }
        send.await.unwrap().unwrap();
    }
    assert_eq!(done + stopped, 150);
    python.run("x").await.ok();
}

#[tokio::test]
async fn an_interrupt_right_after_the_call_reaches_the_cell() {
    let mut python = python!();
    for _ in 0..10 {
        let interrupter = python.interrupter();
        let (started, cell) = tokio::join!(
            async move {
                tokio::task::yield_now().await;
                interrupter.interrupt().await
            },
            python.run("import time\ntime.sleep(600)")
        );
        started.unwrap();
        cell.interrupted();
    }
}

/// The driver is still setting itself up at this point.
#[tokio::test]
async fn an_interrupt_right_after_the_first_call_of_a_session_reaches_the_cell() {
    for delay in 0..20 {
        let mut python = python!();
        let interrupter = python.interrupter();
        let (started, cell) = tokio::join!(
            async move {
                tokio::time::sleep(Duration::from_micros(delay * 200)).await;
                interrupter.interrupt().await
            },
            python.run("import time\ntime.sleep(600)")
        );
        started.unwrap();
        cell.interrupted();
        assert_eq!(python.run("1 + 1").await.ok().text(), "2");
    }
}

#[tokio::test]
async fn a_handler_of_an_earlier_cell_does_not_stop_interrupts() {
    let mut python = python!();
    python
        .run("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
        .await
        .ok();
    python
        .run_interrupted(&format!("{READY_CODE}time.sleep(600)"))
        .await
        .interrupted();
}

#[tokio::test]
async fn code_that_ignores_the_interrupt_can_be_killed() {
    let mut python = python!();
    let interrupter = python.interrupter();
    let ran = python
        .run_with(
            "import time\nwhile True:\n    try:\n        print('on', flush=True)\n        time.sleep(600)\n    except KeyboardInterrupt: pass",
            None,
            |_| {
                let interrupter = Arc::clone(&interrupter);
                tokio::spawn(async move {
                    interrupter.interrupt().await.unwrap();
                    interrupter.kill().await.unwrap();
                });
            },
        )
        .await;
    assert!(matches!(ran.status, Ok(CellStatus::Died(Exit::Signal(9)))), "{ran:?}");
    let ran = python.run("1").await;
    assert!(matches!(ran.status, Ok(CellStatus::Died(_))), "{ran:?}");
}
