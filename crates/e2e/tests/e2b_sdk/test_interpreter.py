"""The code interpreter."""

import time

import pytest
from e2b import NotFoundException, SandboxException, TimeoutException


def test_variables_are_kept_and_values_returned(sandbox):
    ran = sandbox.run_code("x = 20\nx + 1")
    assert (ran.text, ran.error) == ("21", None)
    assert sandbox.run_code("x * 2").text == "40"
    assert sandbox.run_code("'a string'").text == "a string"
    nothing = sandbox.run_code("None")
    assert (nothing.text, nothing.results) == (None, [])


def test_executions_are_counted(fresh):
    assert [fresh.run_code("1").execution_count for _ in range(3)] == [1, 2, 3]


def test_output_comes_in_its_order_and_while_the_code_runs(sandbox):
    seen = []
    began = time.time()
    code = "import sys, time\nprint('one', flush=True)\ntime.sleep(1)\nprint('two', file=sys.stderr, flush=True)"
    ran = sandbox.run_code(
        code,
        on_stdout=lambda message: seen.append((message.line, message.error, time.time() - began)),
        on_stderr=lambda message: seen.append((message.line, message.error, time.time() - began)),
    )
    assert [(line, error) for line, error, _ in seen] == [("one\n", False), ("two\n", True)]
    assert seen[1][2] - seen[0][2] > 0.3, seen
    assert ("".join(ran.logs.stdout), "".join(ran.logs.stderr)) == ("one\n", "two\n")


def test_an_error_has_its_name_value_and_traceback(sandbox):
    ran = sandbox.run_code("print('before')\n1 / 0")
    assert (ran.error.name, ran.error.value) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in ran.error.traceback
    assert "".join(ran.logs.stdout) == "before\n"
    assert sandbox.run_code("1 + 1").text == "2"


def test_every_representation_of_a_value_arrives(sandbox):
    code = """
class Rich:
    def __repr__(self): return 'rich'
    def _repr_html_(self): return '<b>rich</b>'
    def _repr_markdown_(self): return '**rich**'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_jpeg_(self): return b'\\xff\\xd8'
    def _repr_pdf_(self): return b'%PDF'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': [1, 2]}
    def _repr_javascript_(self): return 'alert(1)'
Rich()
"""
    [result] = sandbox.run_code(code).results
    assert (result.text, result.html, result.markdown) == ("rich", "<b>rich</b>", "**rich**")
    assert (result.svg, result.latex, result.javascript) == ("<svg/>", "$x$", "alert(1)")
    raw = sandbox.run_code("display({'text/latex': '$x$'}, raw=True)").results[0]
    assert list(raw.formats()) == ["latex"]
    assert (result.png, result.jpeg, result.pdf) == ("iVBORw==", "/9g=", "JVBERg==")
    assert result.json == {"a": [1, 2]} and result.is_main_result


def test_displayed_values_are_results_too_and_not_output(sandbox):
    code = "from IPython.display import display, HTML\nprint('a')\ndisplay(HTML('<i>x</i>'))\nprint('b')\n42"
    got = []
    ran = sandbox.run_code(
        code,
        on_stdout=lambda message: got.append(message.line),
        on_result=lambda result: got.append(result.html or result.text),
    )
    assert [result.is_main_result for result in ran.results] == [False, True]
    assert (ran.results[0].html, ran.results[1].text) == ("<i>x</i>", "42")
    assert "".join(part for part in got) == "a\n<i>x</i>b\n42", got


def test_contexts_have_variables_of_their_own(fresh):
    fresh.run_code("x = 1")
    context = fresh.create_code_context(cwd="/tmp")
    assert context.language == "python" and context.cwd == "/tmp"
    assert fresh.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert fresh.run_code("x", context=context).error.name == "NameError"
    fresh.run_code("x = 2", context=context)
    assert (fresh.run_code("x").text, fresh.run_code("x", context=context).text) == ("1", "2")
    assert context.id in [one.id for one in fresh.list_code_contexts()]
    fresh.restart_code_context(context)
    assert fresh.run_code("x", context=context).error.name == "NameError"
    assert fresh.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    fresh.remove_code_context(context)
    assert context.id not in [one.id for one in fresh.list_code_contexts()]
    with pytest.raises((NotFoundException, SandboxException)):
        fresh.run_code("x", context=context)
    assert fresh.run_code("x").text == "1"


def test_other_languages_run(sandbox):
    ran = sandbox.run_code("echo hello from $0; exit_code=3", language="bash")
    assert "".join(ran.logs.stdout).startswith("hello")
    assert sandbox.run_code("const y = 20; y * 2", language="js").text == "40"
    assert sandbox.run_code("y + 1", language="javascript").text == "21"
    with pytest.raises(SandboxException):
        sandbox.run_code("1", language="cobol-85")


def test_variables_of_one_run_are_gone_after_it(sandbox):
    for language, read in [("python", "import os\nprint(os.environ.get('ONCE', 'none'))"), ("bash", "echo \"${ONCE:-none}\"")]:
        ran = sandbox.run_code(read, language=language, envs={"ONCE": "it's \"€\"\n$x"})
        assert "".join(ran.logs.stdout) == "it's \"€\"\n$x\n"
        assert "".join(sandbox.run_code(read, language=language).logs.stdout) == "none\n"


def test_slow_code_is_interrupted_and_the_session_lives_on(fresh):
    fresh.run_code("kept = 7")
    with pytest.raises(TimeoutException):
        fresh.run_code("while True: pass", timeout=1)
    assert fresh.run_code("kept").text == "7"


def test_any_character_and_no_code_are_taken(sandbox):
    text = "a\u0085b\u2028c\u2029d\U0001f600"
    assert sandbox.run_code(f"print({text!a})").logs.stdout == [text + "\n"]
    empty = sandbox.run_code("")
    assert (empty.error, empty.results) == (None, [])


def test_top_level_await_works(sandbox):
    assert sandbox.run_code("import asyncio\nawait asyncio.sleep(0)\n'awaited'").text == "awaited"


def test_code_and_commands_see_the_same_files(sandbox):
    sandbox.run_code("open('shared.txt', 'w').write('from code')")
    assert sandbox.commands.run("cat shared.txt").stdout == "from code"
    assert sandbox.files.read("shared.txt") == "from code"


def test_a_run_that_needs_too_much_memory_says_so(fresh):
    ran = fresh.run_code("data = bytearray(10 ** 10)")
    assert ran.error is not None and ran.error.name in ("MemoryError", "OutOfMemory"), ran.error
    assert fresh.run_code("1 + 1").text == "2"


def test_default_contexts_are_listed_first(fresh):
    made = fresh.create_code_context()
    listed = fresh.list_code_contexts()
    assert [one.language for one in listed][:2] == ["python", "javascript"]
    assert listed[-1].id == made.id
