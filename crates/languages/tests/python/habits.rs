//! Habits of code written for notebooks.

use crate::python;

#[tokio::test]
async fn await_works_at_the_top_and_asyncio_run_too() {
    let mut python = python!();
    let ran = python
        .run("import asyncio\nasync def f(): \n    await asyncio.sleep(0)\n    return 7\nawait f()")
        .await
        .ok();
    assert_eq!(ran.text(), "7");
    assert_eq!(python.run("asyncio.run(f())").await.ok().text(), "7");
    python.run("task = asyncio.ensure_future(f()) if False else asyncio.get_event_loop_policy and None\nq = await asyncio.gather(f(), f())").await.ok();
    assert_eq!(python.run("q").await.ok().text(), "[7, 7]");
    python.run("async def later(): return 'from the task'\nt = asyncio.create_task(later()) if False else None\nawait asyncio.sleep(0)\nt = asyncio.create_task(later())").await.ok();
    assert_eq!(python.run("await t").await.ok().text(), "'from the task'");
    let ran = python
        .run("[x async for x in (await f() for _ in [1])] if False else [await f() for _ in range(2)]")
        .await
        .ok();
    assert_eq!(ran.text(), "[7, 7]");
    let ran = python.run("async def g():\n    return 1 / 0\nawait g()").await;
    let lines: Vec<_> = ran.error().traceback.lines().collect();
    assert_eq!(
        lines[1],
        format!("  File \"<cell {}>\", line 3, in <module>", 8),
        "{lines:?}"
    );
}

#[tokio::test]
async fn definitions_of_cells_can_be_pickled_and_sent_to_workers() {
    let mut python = python!();
    python
        .run("import pickle, multiprocessing, dataclasses\nfrom concurrent.futures import ProcessPoolExecutor\n@dataclasses.dataclass\nclass P:\n    x: int\n    y: int = 2\ndef double(p): return P(p.x * 2, p.y)")
        .await
        .ok();
    assert_eq!(
        python
            .run("pickle.loads(pickle.dumps(P(1))), __name__")
            .await
            .ok()
            .text(),
        "(P(x=1, y=2), '__main__')"
    );
    let ran = python
        .run("with multiprocessing.Pool(2) as pool: r = pool.map(double, [P(1), P(2)])\nr")
        .await
        .ok();
    assert_eq!(ran.text(), "[P(x=2, y=2), P(x=4, y=2)]");
    let ran = python
        .run("with ProcessPoolExecutor(2) as pool: r = list(pool.map(double, [P(3)]))\nr")
        .await
        .ok();
    assert_eq!(ran.text(), "[P(x=6, y=2)]");
    let ran = python.run("if __name__ == '__main__':\n    print('main')").await.ok();
    assert_eq!(ran.stdout, "main\n");
}

#[tokio::test]
async fn spawned_workers_find_the_definitions_of_cells() {
    let mut python = python!();
    python
        .run("import math, multiprocessing as mp, functools\nfrom concurrent.futures import ProcessPoolExecutor\nSCALE = 3\n\
              class P:\n    def __init__(self, v): self.v = v\np = P(7)\nprint('once')\ncount = 0\n\
              def f(x, more=SCALE): return x * more + p.v + math.floor(1.5)\ndef g(x): return P(x)\n\
              def main_name(_): return __name__\ncount += 1")
        .await
        .ok();
    python.run("%%time\ndef timed(x): return x + count").await.ok();
    python
        .run("import functools\nif True:\n    @functools.lru_cache\n    def below(x): return g(x).v")
        .await
        .ok();
    for (call, value) in [
        ("mp.get_context('spawn').Pool(2).map_async(f, [2]).get(60)", "[14]"),
        ("mp.get_context('forkserver').Pool(2).map(f, [2, 3])", "[14, 17]"),
        ("[p.v for p in mp.get_context('spawn').Pool(1).map(g, [4])]", "[4]"),
        ("mp.get_context('spawn').Pool(1).map(timed, [4])", "[5]"),
        ("mp.get_context('spawn').Pool(1).map(below, [4])", "[4]"),
        ("mp.get_context('spawn').Pool(1).map(main_name, [4])", "['__mp_main__']"),
        (
            "list(ProcessPoolExecutor(1, mp_context=mp.get_context('spawn')).map(f, [1]))",
            "[11]",
        ),
    ] {
        let ran = python.run(call).await.ok();
        assert_eq!((ran.text().as_str(), ran.stdout.as_str()), (value, ""), "{call}");
    }
    // A function that a worker cannot find is an error at once, not a pool that waits forever.
    for (code, says) in [
        (
            "exec('def hidden(x): return x')\nmp.get_context('spawn').Pool(2).map(hidden, [1])",
            "define it by def or class",
        ),
        (
            "lock = mp.Lock()\ndef locked(x): return lock\nmp.get_context('spawn').Pool(2).map(locked, [1])",
            "'lock' is not defined",
        ),
        ("mp.get_context('spawn').Pool(2).map(lambda x: x, [1])", "pickle"),
    ] {
        let ran = python.run(code).await;
        assert!(ran.error().message.contains(says), "{code}: {ran:?}");
    }
}

#[tokio::test]
async fn inspect_finds_the_source_of_nested_definitions() {
    let mut python = python!();
    python
        .run("import inspect, dataclasses\nclass Outer:\n    class Inner:\n        class Deep: x = 1\n        def m(self): pass\n\
              def make():\n    class Local:\n        y = 1\n    def nested(a):\n        return a\n    return Local, nested\n\
              if True:\n    class Below: z = 2\n@dataclasses.dataclass\nclass D:\n    a: int\n    @property\n    def q(self): return 1")
        .await
        .ok();
    python.run("class Other: pass").await.ok();
    for (thing, source) in [
        ("Outer.Inner.Deep", "        class Deep: x = 1\n"),
        ("Outer.Inner.m", "        def m(self): pass\n"),
        ("make()[0]", "    class Local:\n        y = 1\n"),
        ("make()[1]", "    def nested(a):\n        return a\n"),
        ("Below", "    class Below: z = 2\n"),
        ("D.q.fget", "    @property\n    def q(self): return 1\n"),
    ] {
        let ran = python
            .run(&format!("print(inspect.getsource({thing}), end='')"))
            .await
            .ok();
        assert_eq!(ran.stdout, source, "{thing}");
    }
}

#[tokio::test]
async fn objects_without_a_repr_are_shown_by_their_attributes() {
    let mut python = python!();
    python
        .run("class L:\n    def _repr_latex_(self): return '$x^2$'\nclass J:\n    def _repr_json_(self): return {'a': [1, None]}\n\
              class T:\n    def _repr_json_(self): return {'a': 1}, {'expanded': True}\n\
              class B:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/markdown': '# T', 'text/html': '<h1>T</h1>'}\n\
              class H:\n    def _repr_html_(self): return '<b>b</b>'\nclass Own(H):\n    def __repr__(self): return 'own'\n\
              class Much:\n    def _repr_json_(self): return list(range(5000))\nclass Bare: pass")
        .await
        .ok();
    for (value, text) in [
        ("L()", "$x^2$"),
        ("J()", "{\"a\": [1, null]}"),
        ("T()", "{\"a\": 1}"),
        ("B()", "# T"),
        ("H()", "<b>b</b>"),
        ("Own()", "own"),
    ] {
        assert_eq!(python.run(value).await.ok().text(), text, "{value}");
        let shown = python.run(&format!("display({value})")).await.ok();
        assert_eq!(shown.displays[0].text(), text, "{value}");
    }
    let much = python.run("Much()").await.ok().text();
    assert!(
        much.starts_with("<JSON, 28890 characters> [0, 1, 2") && much.len() < 600,
        "{much}"
    );
    assert!(
        python
            .run("Bare()")
            .await
            .ok()
            .text()
            .starts_with("<__main__.Bare at 0x")
    );
    let raw = python
        .run("display({'application/json': {'x': 1}}, raw=True)\ndisplay({'text/latex': '$y$'}, raw=True)\n\
              display({'application/vnd.a+json': {}, 'text/plain': 'p'}, raw=True)\ndisplay({'image/png': b'p'}, raw=True)")
        .await
        .ok();
    let texts: Vec<_> = raw.displays.iter().map(|bundle| bundle.text()).collect();
    assert_eq!(texts, ["{\"x\": 1}", "$y$", "p", "<image/png>"]);
}

#[tokio::test]
async fn inspect_finds_the_source_of_definitions_in_cells() {
    let mut python = python!();
    python
        .run("# first\ndef f(x):\n    return x\n\nclass C:\n    a = 1")
        .await
        .ok();
    python.run("import inspect").await.ok();
    assert_eq!(
        python.run("print(inspect.getsource(f))").await.ok().stdout,
        "def f(x):\n    return x\n\n"
    );
    assert_eq!(
        python.run("print(inspect.getsource(C).rstrip())").await.ok().stdout,
        "class C:\n    a = 1\n"
    );
}

#[tokio::test]
async fn shell_lines_run_and_their_output_can_be_assigned() {
    let mut python = python!();
    python.run("name = 'Ada'").await.ok();
    assert_eq!(
        python
            .run("!echo hello {name} $name {1+1} {name[:2]} '$name' $$HOME_IS_NOT")
            .await
            .ok()
            .stdout,
        "hello Ada Ada 2 Ad $name\n"
    );
    // One placeholder that is not a variable leaves all of them to the shell, as in a notebook.
    assert_eq!(python.run("!echo {name} $? {1+1} $#").await.ok().stdout, "Ada 0 2 0\n");
    assert_eq!(
        python.run("!echo {name} ${UNSET} {1+1}").await.ok().stdout,
        "{name} {1+1}\n"
    );
    assert_eq!(
        python.run("!ls /dev/null/absent; echo after").await.ok().stdout,
        "ls: cannot access '/dev/null/absent': Not a directory\nafter\n"
    );
    assert_eq!(
        python.run("!echo '{print $1}' $$ | awk '{print $1}'").await.ok().stdout,
        "{print\n"
    );
    assert_eq!(
        python.run("out = !printf 'a\\nb\\n'\nout").await.ok().text(),
        "['a', 'b']"
    );
    assert_eq!(
        python
            .run("if True:\n    !echo indented\nfor i in range(2):\n    !echo {i}")
            .await
            .ok()
            .stdout,
        "indented\n0\n1\n"
    );
    assert_eq!(
        python.run("!echo one \\\n   two\nprint('three')").await.ok().stdout,
        "one two\nthree\n"
    );
    let ran = python.run("!exit 3").await.ok();
    assert_eq!(ran.stderr, "[exit status 3]\n");
    assert_eq!(python.run("_exit_code").await.ok().text(), "3");
    let ran = python.run("print('before')\n!echo middle\nprint('after')").await.ok();
    assert_eq!(ran.stdout, "before\nmiddle\nafter\n");
}

#[tokio::test]
async fn lookalikes_of_magics_are_left_alone() {
    let mut python = python!();
    for (code, expected) in [
        ("a, b = 7, 4\na % b", "3"),
        ("a\\\n% b", "3"),
        ("(a\n% b\n)", "3"),
        ("'''\n!ls\n%cd /\n'''", "'\\n!ls\\n%cd /\\n'"),
        ("!true\nx = '''\n!ls\n%pwd\n'''\nx", "'\\n!ls\\n%pwd\\n'"),
        ("!true\ny = [a\n% b,\n\"#'\"]\ny", "[3, \"#'\"]"),
        ("!true\nz = (a  # don't\n% b)\nz", "3"),
    ] {
        assert_eq!(python.run(code).await.ok().text(), expected, "{code}");
    }
}

#[tokio::test]
async fn line_magics_work() {
    let mut python = python!();
    let home = python.sandbox.home();
    assert_eq!(python.run("%pwd").await.ok().text(), format!("'{}'", home.display()));
    assert_eq!(python.run("%cd /tmp").await.ok().stdout, "/tmp\n");
    python.run("%cd ~").await.ok();
    assert_eq!(
        python
            .run("%env SHADE=blue\nimport os\nos.environ['SHADE']")
            .await
            .ok()
            .text(),
        "'blue'"
    );
    assert_eq!(python.run("%env SHADE").await.ok().text(), "'blue'");
    let ran = python.run("def f(n): return n + 1\n%time f(1)").await.ok();
    assert_eq!(ran.text(), "2");
    assert!(ran.stdout.contains("Wall time: "), "{}", ran.stdout);
    let ran = python.run("%timeit -n 5 -r 2 f(1)").await.ok();
    assert!(
        ran.stdout
            .contains("per loop (mean ± std. dev. of 2 runs, 5 loops each)"),
        "{}",
        ran.stdout
    );
    let ran = python.run("%matplotlib inline\n%load_ext autoreload\n%autoreload 2\n%config InlineBackend.figure_format = 'retina'\n1").await.ok();
    assert_eq!((ran.text().as_str(), ran.stdout.as_str()), ("1", ""));
    let ran = python.run("%who").await.ok();
    assert!(ran.stdout.is_empty() || !ran.stdout.contains("__"), "{}", ran.stdout);
    std::fs::write(home.join("script.py"), "import sys\nmade_by_script = sys.argv[1:]\n").unwrap();
    assert_eq!(
        python.run("%run script.py a b\nmade_by_script").await.ok().text(),
        "['a', 'b']"
    );
    let ran = python.run("%nothing_like_this").await;
    assert!(
        ran.error()
            .message
            .contains("there are %alias_magic, %autoreload, %cat, %cd"),
        "{}",
        ran.error().message
    );
}

#[tokio::test]
async fn writefile_writes_the_cell_unchanged() {
    let mut python = python!();
    python.run("%%writefile w.txt\n\nx\n\ny\n").await.ok();
    python.run("%%writefile -a w.txt\n\nz").await.ok();
    let text = std::fs::read_to_string(python.sandbox.home().join("w.txt")).unwrap();
    assert_eq!(text, "\nx\n\ny\n\nz\n");
}

#[tokio::test]
async fn clearing_the_history_keeps_variables() {
    let mut python = python!();
    python.run("kept = 'v'").await.ok();
    python.run("%reset -f in").await.ok();
    python.run("%reset -f out").await.ok();
    assert_eq!(python.run("kept, len(Out)").await.ok().text(), "('v', 0)");
    python.run("%reset -f").await.ok();
    assert_eq!(python.run("kept").await.error().name, "NameError");
}

#[tokio::test]
async fn commands_see_the_names_of_the_function_that_runs_them() {
    let mut python = python!();
    let code =
        "def f():\n    loc = 'inner'\n    r = %sx echo $loc\n    return r, get_ipython().getoutput('echo {loc}')\nf()";
    assert_eq!(python.run(code).await.ok().text(), "(['inner'], ['inner'])");
    // No code of the value runs.
    python
        .run("class V:\n    def __bool__(self): raise ValueError\ngone = V()\n%xdel gone")
        .await
        .ok();
    assert_eq!(python.run("%xdel").await.error().name, "UsageError");
    python.run("%reset -f dhist").await.ok();
    assert_eq!(python.run("gone").await.error().name, "NameError");
}

#[tokio::test]
async fn every_expression_is_shown_if_requested() {
    let mut python = python!();
    python
        .run("%config InteractiveShell.ast_node_interactivity = 'all'")
        .await
        .ok();
    let ran = python.run("1\n2").await.ok();
    assert_eq!((ran.displays.len(), ran.text().as_str()), (1, "2"));
}

#[tokio::test]
async fn subclasses_of_library_classes_are_shown_like_their_base() {
    let mut python = python!();
    python
        .run("from collections import *\nfrom types import SimpleNamespace")
        .await
        .ok();
    for (made, shown) in [
        (
            "class D(Counter): pass\nD({(i, i): 0.123456 for i in range(8)})",
            "D({(0, 0): 0.123456,\n   (1, 1): 0.123456,",
        ),
        ("class E(defaultdict): pass\nE(list)", "E(list, {})"),
        ("class F(SimpleNamespace): pass\nF(a=1)", "F(a=1)"),
        ("class G(deque):\n    def __repr__(self): return 'own'\nG()", "own"),
    ] {
        let text = python.run(made).await.ok().text();
        assert!(text.starts_with(shown), "{text}");
    }
}

#[tokio::test]
async fn a_missing_picture_file_is_an_error() {
    let mut python = python!();
    let ran = python
        .run("from IPython.display import Image, Audio\nImage('nosuch.png')")
        .await;
    assert_eq!(ran.error().name, "FileNotFoundError");
    // The real IPython searches the text for samples.
    let real = python.run("import IPython\nhasattr(IPython, '__file__')").await.ok();
    let missing = match real.text().as_str() {
        "True" => "ValueError",
        _ => "FileNotFoundError",
    };
    assert_eq!(python.run("Audio('nosuch.wav')").await.error().name, missing);
}

#[tokio::test]
async fn autoreload_reloads_changed_modules() {
    let mut python = python!();
    python.run("%load_ext autoreload\n%autoreload 2").await.ok();
    let first = "def v():\n    return 1\nclass C:\n    def m(self):\n        return 'old'\n";
    python.run(&format!("%%writefile armod.py\n{first}")).await.ok();
    let ran = python
        .run("import armod\nfrom armod import v\nc = armod.C()\nv(), c.m()")
        .await;
    assert_eq!(ran.ok().text(), "(1, 'old')");
    let second = first.replace("return 1", "return 2222").replace("old", "new");
    python.run(&format!("%%writefile armod.py\n{second}")).await.ok();
    assert_eq!(
        python.run("armod.v(), v(), c.m()").await.ok().text(),
        "(2222, 2222, 'new')"
    );
    python.run("%%writefile armod.py\ndef v(:").await.ok();
    let ran = python.run("v()").await.ok();
    assert!(ran.stderr.contains("autoreload of armod failed"), "{}", ran.stderr);
    assert_eq!(ran.text(), "2222");
    python.run("%autoreload 0").await.ok();
    python.run(&format!("%%writefile armod.py\n{first}")).await.ok();
    assert_eq!(python.run("v()").await.ok().text(), "2222");
}

#[tokio::test]
async fn cell_magics_work() {
    let mut python = python!();
    let ran = python.run("%%bash\nx=1\necho $x $((1+1))").await.ok();
    assert_eq!(ran.stdout, "1 2\n");
    let ran = python.run("%%bash\necho before\nexit 4").await;
    assert_eq!(ran.stdout, "before\n");
    assert_eq!(ran.error().name, "CalledProcessError");
    let ran = python.run("%%writefile notes.txt\nline one\n  line two").await.ok();
    assert_eq!(ran.stdout, "Writing notes.txt\n");
    assert_eq!(
        std::fs::read_to_string(python.sandbox.home().join("notes.txt")).unwrap(),
        "line one\n  line two\n"
    );
    let ran = python.run("%%time\nx = 20\nx + 1").await.ok();
    assert_eq!(ran.text(), "21");
    assert!(ran.stdout.contains("CPU times"), "{}", ran.stdout);
    let ran = python.run("%%capture kept\nprint('hidden')").await.ok();
    assert_eq!(ran.stdout, "");
    assert_eq!(python.run("kept.stdout").await.ok().text(), "'hidden\\n'");
    let ran = python.run("%%html\n<b>x</b>").await.ok();
    assert_eq!(
        ran.displays[0].get("text/html").map(AsRef::as_ref),
        Some(&b"<b>x</b>"[..])
    );
    let ran = python.run("%%python\nprint(1 + 1)").await.ok();
    assert_eq!(ran.stdout, "2\n");
    let ran = python.run("%%time\n1/0").await;
    assert!(
        ran.error().traceback.contains("line 2, in <module>"),
        "{}",
        ran.error().traceback
    );
    let ran = python.run("%%cobol\nx").await;
    assert!(ran.error().message.contains("%%bash"), "{}", ran.error().message);
}

#[tokio::test]
async fn installing_reports_present_and_missing_packages() {
    let mut python = python!();
    for code in [
        "%pip install nothing-like-this",
        "!pip install -q nothing-like-this",
        "!python -m pip install nothing-like-this==1.0",
    ] {
        let ran = python.run(code).await;
        assert!(
            ran.error().message.contains("not in this sandbox: nothing-like-this"),
            "{}",
            ran.error().message
        );
    }
}

#[tokio::test]
async fn help_questions_are_answered() {
    let mut python = python!();
    python
        .run("def area(r):\n    '''Of a circle.'''\n    return 3 * r * r")
        .await
        .ok();
    for code in ["area?", "?area"] {
        let ran = python.run(code).await.ok();
        assert!(
            ran.stdout.contains("area(r)") && ran.stdout.contains("Of a circle."),
            "{}",
            ran.stdout
        );
    }
    assert!(python.run("area??").await.ok().stdout.contains("return 3 * r * r"));
    assert!(python.run("help(area)").await.ok().stdout.contains("Of a circle."));
    assert_eq!(
        python.run("nonsense?").await.ok().stdout,
        "Object `nonsense` not found.\n"
    );
}

#[tokio::test]
async fn indented_cells_run() {
    let mut python = python!();
    let ran = python
        .run("    x = 1\n    if x:\n        print('in')\n    x + 1")
        .await
        .ok();
    assert_eq!((ran.stdout.as_str(), ran.text().as_str()), ("in\n", "2"));
    let ran = python.run("    x = 1\n    1/0").await;
    assert!(ran.error().traceback.contains("line 2"), "{}", ran.error().traceback);
}

#[tokio::test]
async fn display_shows_every_representation() {
    let mut python = python!();
    let ran = python
        .run("class R:\n    def __repr__(self): return 'plain'\n    def _repr_html_(self): return '<i>h</i>'\n    def _repr_svg_(self): return '<svg/>'\n    def _repr_json_(self): return {'a': float('nan')}\n    def _repr_png_(self): return b'png'\n    def _repr_latex_(self): raise NotImplementedError\nR()")
        .await
        .ok();
    let bundle = ran.result.as_ref().unwrap();
    let types: Vec<_> = bundle.0.keys().map(String::as_str).collect();
    assert_eq!(
        types,
        [
            "application/json",
            "image/png",
            "image/svg+xml",
            "text/html",
            "text/plain"
        ]
    );
    assert_eq!(
        bundle.get("application/json").map(AsRef::as_ref),
        Some(&b"{\"a\": null}"[..])
    );
    let ran = python
        .run("class M:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'm', 'text/x': 'y'}, {}\ndisplay(M(), 'text', [1])\ndisplay({'text/html': '<p>'}, raw=True)")
        .await
        .ok();
    let texts: Vec<_> = ran.displays.iter().map(|bundle| bundle.text()).collect();
    assert_eq!(texts, ["m", "'text'", "[1]", "<p>"]);
    let ran = python
        .run("class Big:\n    def _repr_png_(self): return b'x' * (5 << 20)\nBig()")
        .await
        .ok();
    assert!(
        ran.text().contains("(image/png of 5242880 bytes left out: too large)"),
        "{}",
        ran.text()
    );
}

#[tokio::test]
async fn notebook_imports_work_without_ipython() {
    let mut python = python!();
    let ran = python.run("from IPython.display import display, HTML, Markdown, Image, clear_output\ndisplay(HTML('<b>b</b>'))\nclear_output(wait=True)\nMarkdown('# t')").await;
    if ran.stderr.contains("jedi") {
        println!("skipped: this Python has IPython");
        return;
    }
    let ran = ran.ok();
    assert_eq!(
        ran.displays[0].get("text/html").map(AsRef::as_ref),
        Some(&b"<b>b</b>"[..])
    );
    assert_eq!(
        ran.result.unwrap().get("text/markdown").map(AsRef::as_ref),
        Some(&b"# t"[..])
    );
}

#[tokio::test]
async fn future_imports_apply_to_later_cells() {
    let mut python = python!();
    python.run("from __future__ import annotations").await.ok();
    assert_eq!(
        python
            .run("def f(a: Unknown): pass\nf.__annotations__")
            .await
            .ok()
            .text(),
        "{'a': 'Unknown'}"
    );
}

#[tokio::test]
async fn a_deleted_working_folder_is_replaced() {
    let mut python = python!();
    python
        .run("import os, shutil\nos.makedirs('gone'); os.chdir('gone'); os.rmdir('../gone')")
        .await
        .ok();
    let ran = python.run("os.getcwd()").await.ok();
    assert!(ran.stderr.contains("the working folder was deleted"), "{}", ran.stderr);
    assert!(ran.text().starts_with("'/"), "{}", ran.text());
}

#[tokio::test]
async fn path_files_of_a_virtual_environment_are_honoured() {
    let Some(system) = crate::support::language() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let venv = folder.path().canonicalize().unwrap().join("env");
    let made = std::process::Command::new(&system.runtime().executable)
        .args(["-m", "venv", "--without-pip"])
        .arg(&venv)
        .output()
        .unwrap();
    if !made.status.success() {
        println!("skipped: this Python cannot make virtual environments");
        return;
    }
    let runtime = sandcell_languages::python::locate(Some(&venv)).unwrap();
    let site = runtime.site[0].clone();
    std::fs::create_dir_all(venv.join("extra")).unwrap();
    std::fs::write(venv.join("extra/linked.py"), "where = 'linked'\n").unwrap();
    std::fs::write(site.join("direct.py"), "where = 'direct'\n").unwrap();
    std::fs::write(site.join("extra.pth"), format!("{}\n", venv.join("extra").display())).unwrap();
    std::fs::write(site.join("broken.pth"), "import no_such_module_here\n").unwrap();
    let language = sandcell_languages::python::PythonLanguage::new(runtime);
    let mut python = crate::support::Python::with(&language).await;
    assert_eq!(
        python.run("import direct, sys\ndirect.where").await.ok().text(),
        "'direct'"
    );
    assert_eq!(python.run("import linked\nlinked.where").await.ok().text(), "'linked'");
    assert_eq!(
        python.run("sys.prefix").await.ok().text(),
        format!("'{}'", venv.display())
    );
    assert_eq!(python.run("import nowhere").await.error().name, "ModuleNotFoundError");
    let ran = python
        .run("import subprocess\nsubprocess.run([sys.executable, '-c', 'import linked; print(linked.where)']);")
        .await
        .ok();
    assert_eq!(ran.stdout, "linked\n");
}

/// Preloads modules of every shape; the session must stay intact.
#[tokio::test]
async fn misbehaving_modules_are_preloaded_or_named_and_the_session_works() {
    let mut python = python!();
    python
        .run(
            "for name, text in {\n\
             'well': 'x = 1',\n\
             'loud': 'import sys; print(1); sys.stderr.write(chr(50)); import os; os.write(1, b\"3\"); os.system(\"echo 4\")',\n\
             'leaves': 'import sys; sys.exit(3)',\n\
             'interrupts': 'raise KeyboardInterrupt',\n\
             'closes': 'import os, sys; sys.stdout.close(); os.close(1)',\n\
             'signals': 'import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)',\n\
             'wordy': 'raise ValueError(chr(0xd800) * 100000)',\n\
             'worse': 'class E(Exception):\\n    def __str__(self): raise self\\nraise E()',\n\
             }.items():\n    open(name + '.py', 'w').write(text)\ndel name, text",
        )
        .await
        .ok();
    let names = [
        "well",
        "loud",
        "leaves",
        "interrupts",
        "closes",
        "signals",
        "wordy",
        "worse",
        "nowhere",
        "json.nowhere",
    ];
    let missing = python.session.preload(&names.map(str::to_owned)).await.unwrap();
    let why: Vec<_> = missing
        .iter()
        .map(|module| (module.name.as_str(), module.why.split(':').next().unwrap_or_default()))
        .collect();
    assert_eq!(
        why,
        [
            ("leaves", "SystemExit"),
            ("interrupts", "KeyboardInterrupt"),
            ("wordy", "ValueError"),
            ("worse", "E"),
            ("nowhere", "ModuleNotFoundError"),
            ("json.nowhere", "ModuleNotFoundError"),
        ]
    );
    let ran = python
        .run("print(sorted(name for name in dir() if name[0] != '_'))")
        .await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("['In', 'Out']\n", ""));
    assert_eq!(python.run("import well\nwell.x").await.ok().text(), "1");
    let ran = python
        .run_interrupted("print('on', flush=True)\nwhile True: pass")
        .await;
    assert_eq!(ran.interrupted().name, "KeyboardInterrupt");
}

#[tokio::test]
async fn environment_variables_can_be_added_before_the_first_cell() {
    let mut python = python!();
    let modules = [String::from("os"), String::from("time")];
    assert_eq!(python.session.preload(&modules).await.unwrap(), []);
    let added = [
        ("GREETING", "grüße"),
        ("EMPTY", ""),
        ("TZ", "UTC+3"),
        ("PATH", "/usr/bin"),
        ("PYTHONPATH", "/first:/second"),
    ];
    let added = added.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert!(python.session.add_env(&added.into()).await.unwrap());
    let ran = python
        .run(
            "import os, subprocess, sys, time\n\
             shown = subprocess.run(['/usr/bin/env'], capture_output=True, text=True).stdout.splitlines()\n\
             print([os.environ['GREETING'], os.environ['EMPTY'], time.timezone, os.environ['PATH'].split(':')[-1], \
             sys.path[:3], 'GREETING=grüße' in shown, 'TZ=UTC+3' in shown])",
        )
        .await
        .ok();
    assert_eq!(
        ran.stdout,
        "['grüße', '', 10800, '/usr/bin', ['', '/first', '/second'], True, True]\n"
    );
    // Nothing of the request is left in the session.
    assert_eq!(python.run("print(len(In), Out)").await.ok().stdout, "3 {}\n");
}
