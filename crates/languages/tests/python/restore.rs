//! Sessions that continue from a snapshot. Further tests run end to end in real sandboxes.

use sandcell_sandbox::{Aftermath, CellStatus, Exit};

use crate::python;
use crate::support::{Python, with_snapshots};

/// Runs code that kills its interpreter; returns the last cell that the restored session includes.
async fn die(python: &mut Python, code: &str) -> u32 {
    let ran = python.run(code).await;
    assert!(matches!(ran.status, Ok(CellStatus::Died(Exit::Signal(_)))), "{ran:?}");
    match python.session.aftermath() {
        Aftermath::Restored { cell, .. } => cell,
        Aftermath::Over { why } => panic!("{why:?}"),
    }
}

/// Waits until the driver has made a snapshot after the last cell: then it sleeps, and so does the snapshot.
async fn settle(python: &mut Python) {
    for _ in 0..200 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        let home = format!("HOME={}", python.sandbox.home().display());
        let mut copies = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
            read("comm") == b"sandcell-copy\n"
                && read("environ")
                    .split(|byte| *byte == 0)
                    .any(|item| item == home.as_bytes())
        });
        if copies.next().is_some() {
            return;
        }
    }
    panic!("no copy was made");
}

#[tokio::test]
async fn a_session_continues_in_its_snapshot() {
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    python.run("x = {'a': 1}\ndef f(): return x").await.ok();
    settle(&mut python).await;
    for turn in 0..3 {
        let cell = die(&mut python, "x['a'] = 2\nimport os\nos.kill(os.getpid(), 9)").await;
        assert_eq!(cell, 1 + 2 * turn, "after the last cell that came to its end");
        let ran = python.run("f(), x is f(), __name__").await.ok();
        assert_eq!(ran.text(), "({'a': 1}, True, '__main__')");
        settle(&mut python).await;
        // One more moment, because the previous snapshot may have been seen.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_crash_in_compiled_code_names_the_line() {
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    python
        .run("import ctypes\ndef crash():\n    ctypes.string_at(0)")
        .await
        .ok();
    for _ in 0..2 {
        settle(&mut python).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let ran = python.run("x = 1\ncrash()").await;
        assert!(matches!(ran.status, Ok(CellStatus::Died(Exit::Signal(_)))), "{ran:?}");
        let said: Vec<_> = ran.stderr.lines().collect();
        assert_eq!(
            said[0], "Fatal Python error: Segmentation fault, at (innermost first)",
            "{said:?}"
        );
        assert!(said[2].starts_with("  File \"<cell 1>\", line 3 in crash"), "{said:?}");
        assert!(said[3].contains(", line 2 in <module>") && said.len() == 4, "{said:?}");
    }
}

#[tokio::test]
async fn without_snapshots_a_dead_session_is_lost() {
    if with_snapshots() {
        return;
    }
    let mut python = python!();
    python.run("x = 1").await.ok();
    python.run("import os; os.kill(os.getpid(), 9)").await;
    assert!(matches!(python.session.aftermath(), Aftermath::Over { why: Some(_) }));
    let ran = python.run("x").await;
    assert!(matches!(ran.status, Ok(CellStatus::Died(Exit::Signal(9)))), "{ran:?}");
}

/// Returns the number of minor page faults of a process so far.
fn faults(pid: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_cell_does_not_wait_for_the_snapshot_before_it() {
    const ROUND_COUNT: u32 = 12;
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    let pid = python.run("import os\nx = 0\nos.getpid()").await.ok().text();
    settle(&mut python).await;
    let mut of_cells = Vec::new();
    for _ in 0..ROUND_COUNT {
        let before = faults(&pid);
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let between = faults(&pid);
        python.run("x += 1").await.ok();
        // A snapshot was made in the pause, so the cell's writes hit shared pages.
        if between - before > 20 {
            of_cells.push(faults(&pid) - between);
        }
    }
    of_cells.sort_unstable();
    assert!(of_cells.len() >= 4, "few copies were made: {of_cells:?}");
    // Without a warm-up cell they are 90; with a warm-up of only the cell's text they are 34.
    assert!(of_cells[of_cells.len() / 2] < 20, "{of_cells:?}");
}

#[tokio::test]
async fn the_warm_up_cell_after_a_snapshot_leaves_no_trace() {
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    python
        .run("from __future__ import annotations\nimport gc, linecache, sys\ndef f(a: int): return a\nx = 'kept'\n5")
        .await
        .ok();
    settle(&mut python).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let state = "print([x, _, __, len(In), In[0], In[1][:9], Out, _i[:9], _ii, _ih is In, _oh is Out,\n\
                 [name for name in dir() if name[:2] == '_i'], gc.isenabled(), f.__annotations__,\n\
                 [name for name in linecache.cache if 'sandcell' in name], sys.stdin.name])";
    let ran = python.run(state).await.ok();
    let first = "from __fu";
    assert_eq!(
        ran.stdout,
        format!(
            "['kept', 5, '', 3, '', '{first}', {{1: 5}}, '{first}', '', True, True, \
             ['_i', '_i1', '_i2', '_ih', '_ii', '_iii'], True, {{'a': 'int'}}, [], '<stdin>']\n"
        )
    );
}

#[tokio::test]
async fn snapshots_tolerate_programs_that_replace_builtins() {
    if !with_snapshots() {
        return;
    }
    for replaces in [
        "sys.modules['linecache'] = None",
        "sys.modules['gc'] = None",
        "sys.stdin = None",
        "os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())",
        "sys.addaudithook(lambda event, of: 1/0 if event == 'compile' and of[1] == '<sandcell warm-up>' else None)",
        "sys.setprofile(lambda *_: None)",
    ] {
        let mut python = python!();
        let code = format!("import gc, os, signal, sys, tempfile\n{replaces}");
        python.run(&code).await.ok();
        settle(&mut python).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let ran = python
            .run("print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), gc.isenabled(), len(In))")
            .await
            .ok();
        assert_eq!(ran.stdout, "set() True 3\n", "{replaces}");
        let said = ran.stderr.contains("the working folder was deleted");
        assert_eq!(
            said,
            replaces.contains("rmdir"),
            "with the cell, not before it: {}",
            ran.stderr
        );
    }
}

#[tokio::test]
async fn output_of_finalizers_between_cells_is_not_lost() {
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    let code = "import io, sys\nclass Input(io.StringIO):\n    def __del__(self): display('gone')\nsys.stdin = Input()";
    assert!(python.run(code).await.ok().displays.is_empty());
    settle(&mut python).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(python.run("1").await.ok().displays.len(), 1);
}

/// A checkpoint of the state between two cells.
async fn keep(python: &mut Python, number: u32) {
    python.session.checkpoint(number, false).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_session_returns_to_a_checkpoint_any_number_of_times() {
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    python
        .run("import random\nx = {'a': [1]}\ny = x\nrandom.seed(1)")
        .await
        .ok();
    keep(&mut python, 1).await;
    let first = python.run("x['a'].append(2); z = 1; random.random()").await.ok().text();
    keep(&mut python, 2).await;
    python.run("del x, y").await.ok();
    for _ in 0..3 {
        python.session.rewind(1).await.unwrap();
        assert_eq!(python.session.existing_checkpoints().await, [1, 2]);
        let ran = python.run("x, x is y, 'z' in globals()").await.ok();
        assert_eq!(ran.text(), "({'a': [1]}, True, False)");
        assert_eq!(
            python.run("random.random()").await.ok().text(),
            first,
            "the sequence goes on where it was"
        );
        python.session.rewind(2).await.unwrap();
        assert_eq!(python.run("x, z").await.ok().text(), "({'a': [1, 2]}, 1)");
    }
    let sizes = python.session.checkpoint_sizes().await.unwrap();
    assert!(sizes.iter().all(|(_, bytes)| *bytes > 10_000), "{sizes:?}");
    python.session.drop_checkpoint(1).await;
    assert_eq!(python.session.existing_checkpoints().await, [2]);
}

#[tokio::test]
async fn a_checkpoint_outlives_crashes_and_the_end_of_its_session() {
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    python.run("x = 1").await.ok();
    keep(&mut python, 1).await;
    // The checkpoint is the newest snapshot, so the session continues from it.
    die(&mut python, "x = 2\nimport os\nos.kill(os.getpid(), 9)").await;
    assert_eq!(python.run("x").await.ok().text(), "1");
    python.session.halt().await;
    python.session.rewind(1).await.unwrap();
    assert_eq!(python.run("x").await.ok().text(), "1");
    // At once after a return, before the checkpoint was made again.
    python.session.rewind(1).await.unwrap();
    python.session.rewind(1).await.unwrap();
    die(&mut python, "import os\nos.kill(os.getpid(), 9)").await;
    assert_eq!(python.session.existing_checkpoints().await, [1]);
}

#[tokio::test]
async fn open_files_and_databases_go_on_where_they_were() {
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    python
        .run(
            "import sqlite3\nopen('f', 'w').write('one two three')\nf = open('f'); f.read(4)\n\
             m = sqlite3.connect(':memory:'); _ = m.execute('create table t(a)'); _ = m.execute('insert into t values(1)')\n\
             d = sqlite3.connect('d.db'); _ = d.execute('create table t(a)'); d.commit()",
        )
        .await
        .ok();
    keep(&mut python, 1).await;
    python.run("f.read(); f.close(); m.close(); d.close()").await.ok();
    python.session.rewind(1).await.unwrap();
    let ran =
        python.run("f.read(), m.execute('select a from t').fetchall(), d.execute('select count(*) from t').fetchone()");
    assert_eq!(ran.await.ok().text(), "('two three', [(1,)], (0,))");
}

#[tokio::test]
async fn a_session_with_threads_is_not_kept() {
    if !with_snapshots() {
        return;
    }
    let mut python = python!();
    python
        .run("import threading, time\ne = threading.Event()\nt = threading.Thread(target=e.wait); t.start()")
        .await
        .ok();
    let why = python.session.checkpoint(1, false).await.unwrap().unwrap_err();
    assert!(why.contains("threads"), "{why}");
    python.run("e.set(); t.join()").await.ok();
    keep(&mut python, 1).await;
}
