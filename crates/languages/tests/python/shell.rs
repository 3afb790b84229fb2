//! Features that programs expect of a notebook's shell: history, formatters, the session's own programs, hints.

use crate::python;

#[tokio::test]
async fn inputs_and_outputs_of_earlier_cells_are_available() {
    let mut python = python!();
    python.run("40 + 2").await.ok();
    python.run("'two'").await.ok();
    assert_eq!(
        python.run("[_, __, _1, _2, Out[1]]").await.ok().text(),
        "['two', 42, 42, 'two', 42]"
    );
    assert_eq!(
        python.run("In[1:3], _i2, _i").await.ok().text(),
        "(['40 + 2', \"'two'\"], \"'two'\", '[_, __, _1, _2, Out[1]]')"
    );
    python.run("_ = 'mine'").await.ok();
    python.run("1").await.ok();
    assert_eq!(python.run("_").await.ok().text(), "'mine'");
    assert_eq!(
        python.run("'In' in dir(), 'Out' in globals()").await.ok().text(),
        "(True, True)"
    );
}

#[tokio::test]
async fn the_history_is_bounded() {
    let mut python = python!();
    python.run("import weakref\nclass C: pass\nc = C(); c").await.ok();
    python.run("w = weakref.ref(c); del c").await.ok();
    // One coroutine that is still needed, and one that only `Out` holds.
    let coroutines = "async def f(): return 7\nh = f(); h";
    python.run(coroutines).await.ok();
    python.run("[f()][0]").await.ok();
    for number in 0..108 {
        assert_eq!(python.run(&format!("{number}")).await.ok().stderr, "");
    }
    assert_eq!(python.run("await h").await.ok().text(), "7");
    assert_eq!(
        python
            .run("w() is None, len(Out) <= 100, '_1' in globals()")
            .await
            .ok()
            .text(),
        "(True, True, False)"
    );
    assert_eq!(
        python
            .run("print(*[name for name in ('_i1', '_i114') if name in globals()])")
            .await
            .ok()
            .stdout,
        "_i114\n"
    );
}

#[tokio::test]
async fn values_with_their_own_display_method_use_it() {
    let mut python = python!();
    let ran = python
        .run("class D:\n    def _ipython_display_(self): print('shown')\nD()")
        .await
        .ok();
    assert_eq!((ran.stdout.as_str(), ran.result.is_none()), ("shown\n", true));
    let ran = python.run("display(D())").await.ok();
    assert_eq!((ran.stdout.as_str(), ran.displays.len()), ("shown\n", 0));
    let ran = python
        .run("class E:\n    def _ipython_display_(self): raise ValueError('no')\n    def __repr__(self): return 'E!'\nE()")
        .await;
    assert_eq!(ran.text(), "E!");
    assert!(ran.error().traceback.ends_with("ValueError: no"), "{ran:?}");
}

#[tokio::test]
async fn formatters_can_be_registered() {
    let mut python = python!();
    python
        .run("class P:\n    pass\nf = get_ipython().display_formatter\nf.formatters['text/html'].for_type(P, lambda value: '<b>P</b>')\nf.formatters['text/plain'].for_type_by_name('__main__', 'P', lambda value, printer, cycle: printer.text('a P'))")
        .await
        .ok();
    let ran = python.run("P()").await.ok().result.unwrap();
    assert_eq!(
        (ran.text().as_str(), ran.get("text/html").map(|html| &html[..])),
        ("a P", Some(&b"<b>P</b>"[..]))
    );
    assert_eq!(python.run("[P(), 1]").await.ok().text(), "[a P, 1]");
    assert_eq!(
        python.run("f.format(P())[0]['text/html']").await.ok().text(),
        "'<b>P</b>'"
    );
    assert_eq!(
        python
            .run("f.formatters['text/html'].lookup(P()) is f.formatters['text/html'].pop(P)")
            .await
            .ok()
            .text(),
        "True"
    );
    assert!(python.run("P()").await.ok().result.unwrap().get("text/html").is_none());
    python.run("%precision 3").await.ok();
    assert_eq!(
        python.run("[3.14159, {'a': 2.71828}]").await.ok().text(),
        "[3.142, {'a': 2.718}]"
    );
    assert_eq!(python.run("3.14159").await.ok().text(), "3.142");
    python.run("%precision").await.ok();
    assert_eq!(python.run("3.14159").await.ok().text(), "3.14159");
}

#[tokio::test]
async fn cells_run_by_the_shell_give_a_result_object() {
    let mut python = python!();
    let ran = python
        .run("r = get_ipython().run_cell('x = 5; x + 1', store_history=False)\nr.result, r.success, x")
        .await
        .ok();
    assert_eq!(
        (ran.text().as_str(), ran.displays[0].text().as_str()),
        ("(6, True, 5)", "6")
    );
    let ran = python
        .run("r = get_ipython().run_cell('1 / 0')\nr.success, type(r.error_in_exec)")
        .await
        .ok();
    assert_eq!(ran.text(), "(False, ZeroDivisionError)");
    assert!(ran.stderr.contains("ZeroDivisionError: division by zero"));
    let ran = python
        .run("r = get_ipython().run_cell('1 +')\ntype(r.error_before_exec)")
        .await
        .ok();
    assert_eq!(ran.text(), "SyntaxError");
}

#[tokio::test]
async fn every_expression_is_shown_if_the_shell_option_is_set() {
    let mut python = python!();
    python.run("from IPython.core.interactiveshell import InteractiveShell\nInteractiveShell.ast_node_interactivity = 'all'").await.ok();
    let ran = python.run("1\n'a'; 2\nx = 3\nx").await.ok();
    let shown: Vec<_> = ran.displays.iter().map(sandcell_sandbox::MimeBundle::text).collect();
    assert_eq!((shown.join(" "), ran.text()), ("1 'a' 2".to_owned(), "3".to_owned()));
    python
        .run("InteractiveShell.ast_node_interactivity = 'last_expr_or_assign'")
        .await
        .ok();
    assert_eq!(python.run("y = 7").await.ok().text(), "7");
    python
        .run("InteractiveShell.ast_node_interactivity = 'none'")
        .await
        .ok();
    assert!(python.run("y").await.ok().result.is_none());
}

#[tokio::test]
async fn capture_includes_displays() {
    let mut python = python!();
    let ran = python.run("%%capture out\nprint('t'); display(5)\n7").await.ok();
    assert_eq!(
        (ran.stdout.as_str(), ran.displays.len(), ran.result.is_none()),
        ("", 0, true)
    );
    let ran = python
        .run("out()\nout.stdout, len(out.outputs), out.outputs[1].data['text/plain']")
        .await
        .ok();
    assert_eq!((ran.stdout.as_str(), ran.displays.len()), ("t\n", 2));
    assert_eq!(ran.text(), "('t\\n', 2, '7')");
    let ran = python.run("from IPython.utils.capture import capture_output\nwith capture_output() as c:\n    print('in'); display(1)\nc.stdout, len(c.outputs)").await.ok();
    assert_eq!((ran.text().as_str(), ran.displays.len()), ("('in\\n', 1)", 0));
    let ran = python.run("with capture_output() as c:\n    1 / 0").await;
    assert_eq!(ran.error().name, "ZeroDivisionError");
    assert_eq!(python.run("display(3)").await.ok().displays.len(), 1);
}

#[tokio::test]
async fn commands_find_the_sessions_own_interpreter() {
    let mut python = python!();
    python.run("import os, sys, subprocess").await.ok();
    let ran = python
        .run("!python -c 'import sys; print(sys.version_info[:2])'\nprint(sys.version_info[:2])")
        .await
        .ok();
    let (theirs, ours) = ran.stdout.split_once('\n').unwrap();
    assert_eq!(theirs, ours.trim_end());
    let ran = python
        .run(
            "x = !python3 -c 'import sys; print(sys.prefix)'\nx[0] == sys.prefix or os.path.samefile(x[0], sys.prefix)",
        )
        .await
        .ok();
    assert_eq!(ran.text(), "True");
    assert_eq!(
        python
            .run("subprocess.run(['python', '-c', '1']).returncode, os.system('python -c 1')")
            .await
            .ok()
            .text(),
        "(0, 0)"
    );
}

#[tokio::test]
async fn pip_in_a_shell_names_the_install_tool() {
    let mut python = python!();
    let ran = python.run("%%bash\necho first\npip install six").await;
    assert!(
        ran.stderr
            .contains("pip has no network here, so this was not installed: six"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.error().class, "package");
    let ran = python.run("import os\nos.system('pip install six')").await.ok();
    assert!(
        ran.stderr.contains("not installed: six") && ran.text() == "256",
        "{ran:?}"
    );
    let ran = python
        .run("!pip install 'nonexistent-package-zzzz >=2; python_version>\"3\"' -q > /dev/null 2>&1")
        .await;
    assert_eq!(ran.error().message, "not in this sandbox: nonexistent-package-zzzz");
    let ran = python.run("!pip install nonexistent-package-zzzz && echo done").await;
    assert_eq!((ran.error().class.as_str(), ran.stdout.as_str()), ("package", ""));
}

#[tokio::test]
async fn idle_threads_of_the_sessions_loop_are_ended() {
    let mut python = python!();
    let ran = python
        .run("import asyncio, threading\nawait asyncio.to_thread(lambda: 5)")
        .await
        .ok();
    assert_eq!(ran.text(), "5");
    assert_eq!(python.run("threading.active_count()").await.ok().text(), "1");
    assert_eq!(
        python
            .run("await asyncio.gather(*[asyncio.to_thread(abs, -n) for n in range(3)])")
            .await
            .ok()
            .text(),
        "[0, 1, 2]"
    );
}

#[tokio::test]
async fn hints_name_existing_alternatives() {
    let mut python = python!();
    for (code, hint) in [
        ("prnit('hi')", "did you mean print?"),
        (
            "d = {'alpha': 1, 'beta': 2}; d['alpa']",
            "did you mean 'alpha'? the keys of d are 'alpha', 'beta'",
        ),
        ("d = {1: 'a'}; d['1']", "d has the key 1 (int), not '1'"),
        (
            "d = {'users': {'Bob': {'age': 4}}}; d['users']['bob']['age']",
            "did you mean 'Bob'? the keys of d['users'] are 'Bob'",
        ),
        (
            "d = {'results': {'users': [{'contact': {'mail': 'a@x'}}, {}]}}; d['users']",
            "the keys of d are 'results'; there is d['results']['users']: list of 2, the first {'contact': {'mail': 'a@x'}}",
        ),
        ("d = [{'a': 1}]\ni = 0\nd[i]['b']", "the keys of d[0] are 'a'"),
        (
            "class K:\n    def __hash__(self): return hash('z')\n    def __eq__(self, other): print('asked'); return False\n\
             l = []; l.append(l)\nd = {K(): 1, 'a': {'b': l}}\nd['b']",
            "the keys of d are 'a'; there is d['a']['b']: list of 1, the first list of 1",
        ),
        ("'abc'.fnd('a')", "did you mean find, "),
        ("l = [1, 2]\nl[7]", "l has 2 items: valid positions are 0 to 1"),
        (
            "class A:\n    def f(): pass\nA().f()",
            "is self missing? A method's first parameter is the object: def f(self)",
        ),
        ("import nmupy", "did you mean numpy?"),
        ("import mymodule", "there is no file mymodule.py: write it first"),
        (
            "import subprocess\nsubprocess.run(['ls', '/dev/null/absent'], check=True, capture_output=True)",
            "the command said: ls: ",
        ),
    ] {
        let ran = python.run(code).await;
        assert!(ran.error().hint.starts_with(hint), "{code}: {}", ran.error().hint);
    }
    let ran = python
        .run(
            "subprocess.run('echo Could not resolve host: x >&2; exit 6', shell=True, check=True, capture_output=True)",
        )
        .await;
    assert_eq!(ran.error().class, "network");
}

#[tokio::test]
async fn less_common_magics_exist() {
    let mut python = python!();
    assert_eq!(python.run("%%bash -s 3 4\necho $1 $2").await.ok().stdout, "3 4\n");
    let ran = python.run("%%bash --out kept\necho hi").await.ok();
    assert_eq!(
        (ran.stdout.as_str(), python.run("kept").await.ok().text()),
        ("", "'hi\\n'".to_owned())
    );
    python.run("x = 1; s = 'a'; import os\ndef f(): 'doc'").await.ok();
    assert_eq!(python.run("%who int").await.ok().stdout, "x\t \n");
    assert_eq!(python.run("%who_ls str").await.ok().text(), "['kept', 's']");
    assert_eq!(python.run("%who").await.ok().stdout, "f\t kept\t os\t s\t x\t \n");
    assert_eq!(
        python
            .run("here = os.getcwd()\n%cd -q /\n%cd -q -\nos.getcwd() == here")
            .await
            .ok()
            .text(),
        "True"
    );
    assert_eq!(python.run("!!echo a b; echo c d").await.ok().text(), "['a b', 'c d']");
    let ran = python
        .run("z = !printf 'b 2\\na 10\\n'\nz.grep('^a'), z.fields(0), z.sort(1, nums=True)")
        .await
        .ok();
    assert_eq!(ran.text(), "(['a 10'], ['b', 'a'], ['b 2', 'a 10'])");
    assert_eq!(python.run("%%sx\necho q").await.ok().text(), "['q']");
    assert_eq!(
        python
            .run("t = %timeit -o -q -n1 -r2 1+1\nlen(t.timings), 0 < t.best <= t.worst")
            .await
            .ok()
            .text(),
        "(2, True)"
    );
    assert!(python.run("%lsmagic").await.ok().stdout.contains("%timeit"));
    assert_eq!(
        python.run("%history -n 2-2").await.ok().stdout,
        "   2: %%bash --out kept\necho hi\n"
    );
    assert!(
        python
            .run("%prun sum(range(10))")
            .await
            .ok()
            .stdout
            .contains("function calls")
    );
    assert_eq!(python.run("%psource f").await.ok().stdout, "def f(): 'doc'\n");
    assert_eq!(python.run("os.path.isf*?").await.ok().stdout, "os.path.isfile\n");
    assert!(python.run("%timeit?").await.ok().stdout.contains("%timeit"));
    assert_eq!(python.run("%load_ext nope").await.error().name, "ModuleNotFoundError");
    python.run("%load_ext autoreload\n%autoreload 2").await.ok();
    python.run("1 / 0").await.error();
    assert_eq!(
        python.run("import sys\nsys.last_value").await.ok().text(),
        "ZeroDivisionError('division by zero')"
    );
    assert!(
        python
            .run("%tb")
            .await
            .ok()
            .stdout
            .ends_with("ZeroDivisionError: division by zero\n")
    );
    let ran = python.run("from IPython.core.magic import Magics, magics_class, line_magic, register_line_cell_magic\n@magics_class\nclass M(Magics):\n    @line_magic\n    def shout(self, line): return line.upper()\nget_ipython().register_magics(M)\n@register_line_cell_magic\ndef both(line, cell=None): return line, cell").await;
    ran.ok();
    assert_eq!(python.run("%shout abc").await.ok().text(), "'ABC'");
    assert_eq!(python.run("%%both a\nbody").await.ok().text(), "('a', 'body\\n')");
}
