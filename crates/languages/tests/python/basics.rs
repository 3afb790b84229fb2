//! Values, state, output and its order.

use sandcell_sandbox::CellStatus;

use crate::python;

#[tokio::test]
async fn the_last_expression_is_the_value_unless_a_semicolon_ends_it() {
    let mut python = python!();
    for (code, expected) in [
        ("1 + 1", "2"),
        ("x = 5\nx", "5"),
        ("x;", ""),
        ("x; # not ; this", ""),
        ("x # ; only a comment", "5"),
        ("(x\n)", "5"),
        ("(x\n);", ""),
        ("';'", "';'"),
        ("x = 1", ""),
        ("None", ""),
        ("", ""),
        ("# nothing", ""),
        ("'a\\n'", "'a\\n'"),
        ("b'a'", "b'a'"),
        ("1.5", "1.5"),
        ("True", "True"),
        ("for i in range(3): i", ""),
        ("x: int = 7\nx", "7"),
        ("int", "int"),
        (
            "from collections import defaultdict\ndefaultdict(list, {'a': [1]})",
            "defaultdict(list, {'a': [1]})",
        ),
        ("[1, 'a', (2,), {3}, {'k': None}]", "[1, 'a', (2,), {3}, {'k': None}]"),
        ("set(), frozenset([2, 1]), ()", "(set(), frozenset({1, 2}), ())"),
    ] {
        let ran = python.run(code).await.ok();
        assert_eq!(ran.text(), expected, "{code}");
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""), "{code}");
    }
}

/// Lines that need no syntax tree to classify, and similar lines that do.
#[tokio::test]
async fn a_single_line_behaves_as_it_would_among_others() {
    let mut python = python!();
    python
        .run("class C: pass\nc, n, d = C(), 0, {}\nasync def later(v): return v\nf = lambda v=3: v")
        .await
        .ok();
    for (code, expected) in [
        ("f()", "3"),
        ("f(1) + f(2)", "3"),
        ("f(v=5)", "5"),
        ("f(4); f(5)", "5"),
        ("f(4);", ""),
        ("f(6) # )", "6"),
        ("f('=')", "'='"),
        ("f(1)if 1 else f(2)", "1"),
        ("await later(7)", "7"),
        ("await(later(8))", "8"),
        ("x = await later(9)", ""),
        ("x == 9", "True"),
        ("n += 2", ""),
        ("n != 2", "False"),
        ("n <= f(2)", "True"),
        ("n -= f(1)", ""),
        ("f(n)", "1"),
        ("x = y = f(2)", ""),
        ("f(x).__class__ is (int)", "True"),
        ("d.setdefault('a', C()).b = (1)", ""),
        ("d.get('a').b + f(1)", "2"),
        ("del(n)", ""),
        ("not(x)", "False"),
        ("(z := f(4))", "4"),
        ("print(end='')", ""),
        ("é = f(1)", ""),
        ("f(é)", "1"),
        ("x = 1\rf(2)", "2"),
        ("x = !echo a", ""),
        ("f(x[0])", "'a'"),
    ] {
        let ran = python.run(code).await.ok();
        assert_eq!(ran.text(), expected, "{code}");
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""), "{code}");
    }
    for (code, name, line) in [
        ("f(1)) + (2)", "SyntaxError", "f(1)) + (2)"),
        ("x = = (1)", "SyntaxError", "x = = (1)"),
        ("None = 1", "SyntaxError", "None = 1"),
        ("return(1)", "SyntaxError", "outside function"),
        ("x = 1 / 0", "ZeroDivisionError", "x = 1 / 0"),
        ("f(1 / 0)", "ZeroDivisionError", "f(1 / 0)"),
    ] {
        let ran = python.run(code).await;
        let error = ran.error();
        assert!(
            error.name == name && error.traceback.contains(line),
            "{code}: {error:?}"
        );
    }
    python
        .run("import warnings\nwarnings.simplefilter('always')")
        .await
        .ok();
    let ran = python.run("f((1) is 1)").await.ok();
    assert_eq!(ran.stderr.matches("SyntaxWarning").count(), 1, "{}", ran.stderr);
    python
        .run("%config InteractiveShell.ast_node_interactivity = 'none'")
        .await
        .ok();
    assert_eq!(python.run("f(2)").await.ok().text(), "");
}

#[tokio::test]
async fn long_containers_break_into_lines_as_in_a_notebook() {
    let mut python = python!();
    let ran = python.run("{'first': list(range(30)), 'second': 'x' * 60}").await.ok();
    let numbers: Vec<_> = (1..30).map(|n| format!("  {n}")).collect();
    assert_eq!(
        ran.text(),
        format!(
            "{{'first': [0,\n{}],\n 'second': '{}'}}",
            numbers.join(",\n"),
            "x".repeat(60)
        )
    );
    let ran = python.run("list(range(5000))").await.ok();
    assert!(ran.text().ends_with(" 999,\n ...]"));
    let ran = python.run("a = []; a.append(a); a").await.ok();
    assert_eq!(ran.text(), "[[...]]");
}

#[tokio::test]
async fn state_survives_fifty_cells() {
    let mut python = python!();
    python
        .run("total = 0\ndef add(n):\n    global total\n    total += n")
        .await
        .ok();
    for number in 1..=50 {
        let ran = python.run(&format!("add({number})\ntotal")).await.ok();
        assert_eq!(ran.text(), (number * (number + 1) / 2).to_string());
    }
    assert_eq!(python.run("_ + 1").await.ok().text(), "1276");
}

#[tokio::test]
async fn output_arrives_in_order_and_before_the_end() {
    let mut python = python!();
    let ran = python
        .run("import sys\nfor i in range(2000): print(i)\nprint('e', file=sys.stderr)\ndisplay(1)\nprint('after', end='')\n7")
        .await
        .ok();
    assert_eq!(ran.stdout.lines().count(), 2001);
    assert!(ran.stdout.ends_with("1999\nafter"));
    assert_eq!(ran.stderr, "e\n");
    let order = ran.order.replace('e', "").replace("oo", "o");
    // Neither stream overtakes the other.
    assert_eq!(order, "odor");
    assert_eq!(ran.text(), "7");
}

#[tokio::test]
async fn output_of_child_processes_belongs_to_the_cell() {
    let mut python = python!();
    let ran = python
        .run("import os, subprocess\nprint('a')\nos.system('echo b')\nsubprocess.run(['sh', '-c', 'echo c >&2'])\nprint('d');")
        .await
        .ok();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("a\nb\nd\n", "c\n"));
}

#[tokio::test]
async fn output_of_background_threads_is_delivered_with_a_later_cell() {
    let mut python = python!();
    python
        .run("import threading\ngo = threading.Event()\ndone = threading.Event()\ndef work():\n    go.wait()\n    print('late')\n    display('shown')\n    done.set()\nthreading.Thread(target=work, daemon=True).start()")
        .await
        .ok();
    let ran = python.run("go.set(); done.wait(); print('now')").await.ok();
    assert_eq!(ran.stdout, "late\nnow\n");
    assert_eq!(ran.displays.len(), 1);
}

#[tokio::test]
async fn displays_and_prints_keep_their_order_across_threads_and_without_an_answer() {
    let mut python = python!();
    let ran = python
        .run("for i in range(20):\n    print(i)\n    display(i)")
        .await
        .ok();
    assert_eq!(ran.order, "od".repeat(20));
    let ran = python
        .run("import threading\nfor i in range(9):\n    t = threading.Thread(target=display, args=(i,)); t.start(); t.join()\n    \
              print(i)\n    display(i)\n    print(i)")
        .await
        .ok();
    assert_eq!(ran.displays.len(), 18);
    // Each display from the main thread is between its two lines.
    assert!(ran.order.ends_with("odo"), "{}", ran.order);
}

#[tokio::test]
async fn output_between_two_cells_is_bounded_and_marked() {
    let mut python = python!();
    python
        .run("import os, threading, time\nline = b'x' * 99 + b'\\n'\ndef work():\n    while not os.path.exists('go'): time.sleep(0.001)\n    \
              for n in range(10000):\n        os.write(1, line)\n        if n == 100: open('begun', 'w').close()\n    \
              open('done', 'w').close()\nthreading.Thread(target=work).start()")
        .await
        .ok();
    let home = python.sandbox.home().to_owned();
    std::fs::write(home.join("go"), "").unwrap();
    // Much more than the host buffers while no cell runs: the thread blocks at some point, and the next cell unblocks
    // it. The reader of the pipe gets a few turns to see its content: output not seen when a cell begins belongs to the
    // cell.
    let mut turns = 0;
    while turns < 10 {
        turns += u32::from(home.join("begun").exists());
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let ran = python
        .run("while not os.path.exists('done'): time.sleep(0.001)\nprint('now')")
        .await
        .ok();
    assert!(ran.background.len() <= (256 << 10) + 100, "{}", ran.background.len());
    assert!(
        ran.background.starts_with("xxx") && ran.order.starts_with('b'),
        "{}",
        ran.order
    );
    assert!(ran.stdout.ends_with("now\n"));
}

#[tokio::test]
async fn text_of_any_kind_arrives_as_valid_unicode() {
    let mut python = python!();
    let ran = python.run("print('é漢🎉', '\\ud800')\n'\\ud800é'").await.ok();
    assert_eq!(ran.stdout, "é漢🎉 \\ud800\n");
    assert_eq!(ran.text(), "'\\ud800é'");
    let ran = python
        .run("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe'); sys.stdout.flush()")
        .await
        .ok();
    assert_eq!(ran.stdout, "\u{fffd}\u{fffd}");
}

#[tokio::test]
async fn ten_megabytes_of_output_arrive_complete() {
    let mut python = python!();
    let ran = python.run("for _ in range(10): print('x' * (1 << 20))").await.ok();
    assert_eq!(ran.stdout.len(), 10 * ((1 << 20) + 1));
}

#[tokio::test]
async fn a_megabyte_of_code_runs() {
    let mut python = python!();
    let ran = python
        .run(&format!("x = '''{}'''\nlen(x)", "é".repeat(500_000)))
        .await
        .ok();
    assert_eq!(ran.text(), "500000");
}

#[tokio::test]
async fn sys_exit_ends_the_cell_and_keeps_the_session() {
    let mut python = python!();
    python.run("x = 1").await.ok();
    for (code, expected) in [
        ("import sys; sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("exit()", 0),
        ("quit(4)", 4),
        ("raise SystemExit(-1)", -1),
        ("sys.exit(10**30)", i32::MAX),
    ] {
        let ran = python.run(code).await;
        assert!(
            matches!(ran.status, Ok(CellStatus::Exit(code)) if code == expected),
            "{code}: {ran:?}"
        );
    }
    let ran = python.run("sys.exit('what went wrong')").await;
    assert!(matches!(ran.status, Ok(CellStatus::Exit(1))));
    assert_eq!(ran.stderr, "what went wrong\n");
    assert_eq!(python.run("x").await.ok().text(), "1");
}

#[tokio::test]
async fn standard_input_is_served_to_the_code_and_to_its_children() {
    let mut python = python!();
    let ran = python
        .run_stdin("name = input('Name? ')\nname, input()", "Ada\n36\n")
        .await
        .ok();
    assert_eq!((ran.stdout.as_str(), ran.text().as_str()), ("Name? ", "('Ada', '36')"));
    let ran = python
        .run_stdin("import os; os.system('cat');", "for the child")
        .await
        .ok();
    assert_eq!(ran.stdout, "for the child");
    let large = "zeile\n".repeat(200_000);
    let ran = python.run_stdin("import sys\nlen(sys.stdin.read())", &large).await.ok();
    assert_eq!(ran.text(), "1200000");
    let ran = python
        .run_stdin("[line.strip() for line in sys.stdin]", "a\nb")
        .await
        .ok();
    assert_eq!(ran.text(), "['a', 'b']");
}

#[tokio::test]
async fn reading_absent_standard_input_is_an_immediate_error() {
    let mut python = python!();
    for code in [
        "input('x')",
        "import sys; sys.stdin.read()",
        "sys.stdin.readline()",
        "next(sys.stdin)",
    ] {
        let ran = python.run(code).await;
        assert_eq!(
            (ran.error().name.as_str(), ran.error().class.as_str()),
            ("EOFError", "stdin"),
            "{code}"
        );
        assert!(ran.error().message.contains("`stdin`"), "{}", ran.error().message);
    }
    let ran = python.run_stdin("input()\ninput()", "one\n").await;
    assert_eq!(ran.error().class, "stdin");
    assert!(ran.error().hint.contains("more lines"), "{}", ran.error().hint);
    let ran = python.run("import os; os.system('cat; echo end');").await.ok();
    assert_eq!(ran.stdout, "end\n");
}

#[tokio::test]
async fn starting_from_code_objects_works_like_starting_from_source() {
    let Some(language) = crate::support::language() else {
        return;
    };
    language.prepare();
    for _ in 0..20 {
        let mut python = crate::support::Python::with(&language).await;
        assert_eq!(python.run("import json\njson.dumps([1])").await.ok().text(), "'[1]'");
        let ran = python.run("1/0").await;
        assert_eq!(ran.error().name, "ZeroDivisionError");
    }
}

#[tokio::test]
async fn sessions_do_not_see_each_other() {
    let (mut one, mut two) = (python!(), python!());
    one.run("secret = 1").await.ok();
    assert_eq!(two.run("secret").await.error().name, "NameError");
}

#[tokio::test]
async fn files_of_the_user_can_be_imported_from_the_working_folder() {
    let mut python = python!();
    std::fs::write(python.sandbox.home().join("mine.py"), "def f():\n    return 42\n").unwrap();
    assert_eq!(python.run("import mine\nmine.f()").await.ok().text(), "42");
    assert!(!python.sandbox.home().join("__pycache__").exists());
}

#[tokio::test]
async fn variables_are_listed_without_running_their_code() {
    let Some(language) = crate::support::language() else {
        return;
    };
    let sandbox = crate::support::HostSandbox::new();
    let mut session = language.open_session(sandbox.as_ref()).await.unwrap();
    let (sender, mut events) = tokio::sync::mpsc::channel(16);
    let cell = sandcell_sandbox::Cell {
        code: "import os\nn = 7\nwords = ['a', 'b']\nclass Trap:\n    def __repr__(self): os._exit(1)\n    __len__ = __repr__\ntrap = Trap()\n_hidden = 1".to_owned(),
        stdin: None,
        number: 1,
        packages: false,
        exact: false,
        execution: None,
    };
    sandcell_sandbox::Session::execute(&mut session, cell, &sender)
        .await
        .unwrap();
    drop(sender);
    while events.recv().await.is_some() {}
    let listed = sandcell_sandbox::Session::variables(&mut session).await.unwrap();
    let seen: Vec<_> = listed
        .iter()
        .map(|item| {
            (
                item.name.as_str(),
                item.kind.as_str(),
                item.shape.as_str(),
                item.preview.as_str(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("n", "int", "", "7"),
            ("words", "list", "2", "['a', 'b']"),
            ("trap", "Trap", "", "<Trap>")
        ]
    );
}
