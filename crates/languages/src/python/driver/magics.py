"""The notebook syntax: `!cmd`, `%magic`, `%%cell`, `name?`, indented cells.

It is tried only for text that is not valid Python. It changes only lines that start a statement, so `a % b` and the
content of strings are never changed. Every rewrite keeps the line numbers.

"""

import builtins
import os
import sys

re = core.standard("re")

ASSIGNED = re.compile(r"^(\s*)([A-Za-z_][\w.\[\]'\", ]*?)\s*=\s*(!|%(?=[A-Za-z]))\s*(.+)$", re.S)
ASKED = re.compile(r"^\s*(?:(\?\??)\s*(%{0,2}[\w.*]+)|(%{0,2}[A-Za-z_*][\w.*]*)\s*(\?\??))\s*$")
MAGIC = re.compile(r"^(\s*)%([A-Za-z_]\w*)\s?(.*)$", re.S)


class UsageError(Exception):
    """The error for an unknown or misused magic."""


UsageError.__module__ = "builtins"


# ---------------------------------------------------------------- rewriting


def rewrite(text, failure):
    """Returns the cell as Python, or None if there is nothing to rewrite."""
    lines = text.split("\n")
    changed = dedent(lines)
    changed = escapes(lines) or changed
    return "\n".join(lines) if changed else None


def dedent(lines):
    """Removes the common indentation of a cell."""
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    indent = first[: len(first) - len(first.lstrip())]
    if not indent:
        return False
    for number, line in enumerate(lines):
        if line.startswith(indent):
            lines[number] = line[len(indent) :]
    return True


def escapes(lines):
    """Rewrites magic lines in place. Returns True if there were any."""
    changed = False
    state = Scanner()
    number = 0
    while number < len(lines):
        start = number
        if state.neutral():
            while lines[number].endswith("\\") and number + 1 < len(lines) and is_magic(lines[start]):
                number += 1
            whole = " ".join([line.rstrip("\\").strip() if at else line.rstrip("\\").rstrip()
                              for at, line in enumerate(lines[start : number + 1])])
            other = rewritten(whole)
            if other is not None:
                lines[start : number + 1] = [other] + [""] * (number - start)
                changed = True
                number += 1
                continue
            number = start
        state.feed(lines[number])
        number += 1
    return changed


def is_magic(line):
    return rewritten(line.rstrip("\\")) is not None


def rewritten(line):
    """Returns a magic line as a call, or None."""
    bare = line.lstrip()
    indent = line[: len(line) - len(bare)]
    if bare.startswith("!!"):
        return "%s__sandcell__.capture(%r)" % (indent, bare[2:])
    if bare.startswith("!"):
        return "%s__sandcell__.shell(%r)" % (indent, bare.lstrip("!"))
    match = MAGIC.match(line) if not ASKED.match(line) else None
    if match:
        return "%s__sandcell__.line(%r, %r)" % match.groups()
    match = ASSIGNED.match(line)
    if match:
        space, target, mark, rest = match.groups()
        if mark == "!":
            return "%s%s = __sandcell__.capture(%r)" % (space, target, rest)
        name, _, arguments = rest.partition(" ")
        return "%s%s = __sandcell__.line(%r, %r)" % (space, target, name, arguments)
    match = ASKED.match(line)
    if match:
        before, name, other, after = match.groups()
        return "%s__sandcell__.ask(%r, %r)" % (indent, name or other, (before or after) == "??")
    return None


class Scanner:
    """Tracks whether a new statement starts on the next line: brackets, triple quotes and backslashes continue one."""

    def __init__(self):
        self.depth = 0
        self.quote = ""
        self.joined = False

    def neutral(self):
        return self.depth == 0 and not self.quote and not self.joined

    def feed(self, line):
        self.joined = False
        at = 0
        while at < len(line):
            if self.quote:
                at = self.inside(line, at)
                continue
            character = line[at]
            if character == "#":
                return
            if character in "\"'":
                self.quote = character * 3 if line.startswith(character * 3, at) else character
                at += len(self.quote)
                continue
            if character in "([{":
                self.depth += 1
            elif character in ")]}":
                self.depth = max(0, self.depth - 1)
            at += 1
        if len(self.quote) == 1:
            self.quote = ""
        self.joined = line.endswith("\\")

    def inside(self, line, at):
        """Skips to the end of the string or of the line."""
        while at < len(line):
            if line[at] == "\\":
                at += 2
            elif line.startswith(self.quote, at):
                at += len(self.quote)
                self.quote = ""
                return at
            else:
                at += 1
        return at


# ---------------------------------------------------------------- shell


def shell_program():
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"


# `$name` or `$name.attribute` outside of single quotes; `$$name` is for the shell.
DOLLAR = re.compile(r"\$(\$?[\w.]+)(?=(?:[^']*'[^']*')*[^']*$)")


def expand(command, frame):
    """Expands `{expression}` and `$name` of the caller's variables. As in a notebook, the text stays unchanged if one
    of them fails: `$HOME` and the braces of `awk` belong to the shell."""
    if "{" not in command and "$" not in command:
        return command
    names = {**frame.f_globals, **frame.f_locals}
    forms = core.standard("string").Formatter()

    def dollar(match):
        name = match.group(1)
        return name if name.startswith("$") else format(eval(name, names), "")

    try:
        parts = []
        for literal, field, rest, conversion in forms.parse(command):
            parts.append(DOLLAR.sub(dollar, literal))
            if field is not None:
                value = eval(field + ":" + rest if rest else field, names)
                parts.append(format(forms.convert_field(value, conversion), ""))
        return "".join(parts)
    except Exception:
        return command


class SList(list):
    """The output of a command, line by line; `.s` and `.n` join it."""

    @property
    def s(self):
        return " ".join(self)

    @property
    def n(self):
        return "\n".join(self)

    @property
    def l(self):
        return list(self)

    @property
    def p(self):
        return [core.standard("pathlib").Path(line) for line in self]

    def grep(self, pattern, prune=False, field=None):
        """Returns the lines that match a pattern (or for which a function is true); with `prune`, the others."""
        fits = pattern if callable(pattern) else lambda text: re.search(pattern, text, re.I)

        def part(line):
            words = line.split()
            return line if field is None else words[field] if field < len(words) else ""

        return SList([line for line in self if bool(fits(part(line))) != prune])

    def fields(self, *numbers):
        """Returns words of each line, by index."""
        rows = [line.split() for line in self]
        if not numbers:
            return rows
        return SList([" ".join([row[number] for number in numbers if -len(row) <= number < len(row)]) for row in rows])

    def sort(self, field=None, nums=False):
        """Returns the lines sorted by the word at an index, or by its number."""

        def key(line):
            words = line.split()
            word = line if field is None else words[field] if field < len(words) else ""
            digits = "".join([character for character in word if character.isdigit()])
            return (int(digits) if digits else 0) if nums else word

        return SList(sorted(self, key=key))


SList.__module__ = "IPython.utils.text"


def run_shell(command, **options):
    subprocess = core.standard("subprocess")
    core.flush_streams()
    return subprocess.run([shell_program(), "-c", command], **options)


def shell(command, frame=None):
    """Runs `!command`. Its output goes to ours, and its stderr is in order with the rest, as in a notebook."""
    command = expand(command, frame or sys._getframe(1))
    command = packages().done(command)
    if command is None:
        return None
    code = run_shell(command, stderr=1).returncode
    core.NAMES["_exit_code"] = code
    if code:
        print("[exit status %d%s]" % (code, core.part("advice").of_command(command, code)), file=sys.stderr)
    return None


def packages():
    return core.part("packages")


def capture(command, frame=None):
    """Runs `x = !command` and returns its output as lines."""
    command = expand(command, frame or sys._getframe(1))
    subprocess = core.standard("subprocess")
    done = run_shell(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    core.NAMES["_exit_code"] = done.returncode
    return SList(done.stdout.decode("utf-8", "replace").splitlines())


# ---------------------------------------------------------------- line magics


def line(name, arguments, frame=None):
    """Runs `%name arguments`."""
    function = LINE.get(name) or core.part("moremagics").LINE.get(name)
    if function is None:
        every = {**LINE, **core.part("moremagics").LINE}
        known = ", ".join(["%" + item for item in sorted(every) if every[item] is not nothing])
        raise UsageError("there is no magic %%%s here; there are %s" % (name, known))
    frame = frame or sys._getframe(1)
    return function((arguments if name in AS_WRITTEN else expand(arguments, frame)).strip(), frame)


# Magics whose line is code, or is expanded where it is run.
# Cell magics whose body is text, not code with numbers of lines.
AS_TEXT = {"writefile", "file"}
AS_WRITTEN = {"time", "timeit", "prun", "debug", "sx", "system", "macro", "alias"}


def nothing(_arguments, _frame):
    return None


def names_of(frame):
    return frame.f_globals if frame.f_globals is frame.f_locals else {**frame.f_globals, **frame.f_locals}


def magic_cd(arguments, _frame):
    quiet = arguments.startswith("-q")
    target = arguments[2:].strip() if quiet else arguments
    target = target.strip("'\"") or "~"
    before = os.getcwd()
    os.chdir(visited[-1] if target == "-" and visited else os.path.expanduser(target))
    visited[:] = [before]
    folders.extend([os.getcwd()] if folders else [before, os.getcwd()])
    del folders[:-100]
    if not quiet:
        print(os.getcwd())


# The working folder before the last %cd.
visited = []
# All earlier working folders, for %dhist.
folders = []


def magic_env(arguments, _frame):
    if not arguments:
        return dict(os.environ)
    name, mark, value = arguments.partition("=")
    if not mark:
        name, _, value = arguments.partition(" ")
    name, value = name.strip(), value.strip()
    if not value and not mark:
        return os.environ.get(name)
    os.environ[name] = value
    print("env: %s=%s" % (name, value))
    return None


def magic_pip(arguments, frame):
    words = arguments.split()
    if words[:1] == ["install"]:
        return packages().install(words[1:])
    return run_module_pip(arguments)


def run_module_pip(arguments):
    run_shell("PYTHONWARNINGS=ignore %s -m pip --disable-pip-version-check %s" % (sys.executable, arguments))


def alias(program):
    def run(arguments, frame):
        run_shell(program + " " + arguments, stderr=1)

    return run


def seconds(value):
    for unit, size in (("s", 1), ("ms", 1e-3), ("μs", 1e-6), ("ns", 1e-9)):
        if value >= size or unit == "ns":
            return "%.3g %s" % (value / size, unit)
    return ""


def timed(function):
    """Calls the function and prints its times, as notebooks do."""
    import time

    wall, before = time.perf_counter(), os.times()
    try:
        return function()
    finally:
        wall, after = time.perf_counter() - wall, os.times()
        user, system = after.user - before.user, after.system - before.system
        print("CPU times: user %s, sys: %s, total: %s" % (seconds(user), seconds(system), seconds(user + system)))
        print("Wall time: " + seconds(wall))


def magic_time(arguments, frame):
    try:
        code = compile(arguments, "<magic>", "eval", 0, True)
    except SyntaxError:
        code = compile(arguments, "<magic>", "exec", 0, True)
    return timed(lambda: eval(code, frame.f_globals, frame.f_locals))


def magic_timeit(arguments, frame, setup="pass", statement=None):
    """Runs the code often enough to measure it, for about two seconds in total."""
    import timeit

    loops, runs, quiet, wanted = 0, 7, False, False
    words = arguments.split(" ")
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word[:2] in ("-n", "-r"):
            value = word[2:] or words.pop(0)
            loops, runs = (int(value), runs) if word[1] == "n" else (loops, max(1, int(value)))
        else:
            quiet, wanted = quiet or "q" in word, wanted or "o" in word
    if statement is None:
        statement = " ".join(words)
    elif " ".join(words).strip():
        setup = " ".join(words)
    timer = timeit.Timer(statement, setup, globals=names_of(frame))
    if not loops:
        loops, taken = timer.autorange()
        runs = max(1, min(runs, int(2.0 / max(taken, 1e-9))))
    values = [value / loops for value in timer.repeat(runs, loops)]
    mean = sum(values) / len(values)
    spread = (sum([(value - mean) ** 2 for value in values]) / len(values)) ** 0.5
    report = "%s ± %s per loop (mean ± std. dev. of %d run%s, %s loop%s each)" % (
        seconds(mean), seconds(spread), runs, "s" * (runs > 1), format(loops, ","), "s" * (loops > 1),
    )
    if not quiet:
        print(report)
    return TimeitResult(report, loops, runs, values, mean, spread) if wanted else None


class TimeitResult:
    """The result of `%timeit -o`: the times of each run, in seconds per loop."""

    def __init__(self, report, loops, repeat, timings, average, stdev):
        self.report, self.loops, self.repeat, self.timings = report, loops, repeat, timings
        self.average, self.stdev, self.best, self.worst = average, stdev, min(timings), max(timings)
        self.all_runs, self.compile_time = [value * loops for value in timings], 0.0

    def __str__(self):
        return self.report

    def __repr__(self):
        return "<TimeitResult : %s>" % self.report


TimeitResult.__module__ = "IPython.core.magics.execution"


def magic_run(arguments, _frame):
    words = core.standard("shlex").split(arguments)
    while words and words[0].startswith("-"):
        words.pop(0)
    if not words:
        raise UsageError("%run needs the name of a file")
    path = os.path.expanduser(words[0])
    with open(path, "rb") as source:
        code = compile(source.read(), path, "exec", 0, True)
    before, sys.argv = sys.argv, words
    names = {"__name__": "__main__", "__file__": path, "__builtins__": builtins}
    try:
        exec(code, names)
    finally:
        sys.argv = before
        core.NAMES.update({key: value for key, value in names.items() if not key.startswith("__")})


def those(arguments):
    """Returns the names that cells defined, including modules and functions, restricted to the named types."""
    listed = core.part("variables").listing(core.NAMES, True)
    listed.sort(key=lambda item: item["name"])
    return [item for item in listed if not arguments or item["type"] in arguments.split()]


def magic_who(arguments, _frame):
    print("".join([item["name"] + "\t " for item in those(arguments)]) or "Interactive namespace is empty.")


def magic_whos(arguments, _frame):
    for item in those(arguments):
        print("%-20s %-12s %-10s %s" % (item["name"], item["type"], item["shape"], item["preview"]))


def magic_xdel(arguments, _frame):
    words = [word for word in arguments.split() if not word.startswith("-")]
    if len(words) != 1 or words[0] not in core.NAMES:
        raise UsageError("%xdel needs the name of one variable")
    del core.NAMES[words[0]]


def magic_reset(arguments, _frame):
    """Deletes all names; with `in`, `out` or `dhist` only that part of the history, as in a notebook."""
    only = [word for word in arguments.split() if not word.startswith("-")]
    for word in only:
        if word not in ("in", "out", "dhist", "array"):
            raise UsageError("%%reset knows in, out, dhist and array, not %r" % word)
        if word == "in":
            core.session.inputs[:] = [""] * len(core.session.inputs)
        elif word == "out":
            for number in list(core.session.outputs):
                core.part("shell").forget_output(number)
        elif word == "dhist":
            folders.clear()
        elif word == "array":
            for item in those("ndarray numpy.ndarray"):
                core.NAMES.pop(item["name"], None)
    if only:
        return
    for name in [name for name in core.NAMES if not name.startswith("__")]:
        del core.NAMES[name]


LINE = {
    "cd": magic_cd,
    "pwd": lambda arguments, frame: os.getcwd(),
    "env": magic_env,
    "set_env": magic_env,
    "pip": magic_pip,
    "uv": lambda arguments, frame: magic_pip(arguments.replace("pip ", "", 1), frame),
    "conda": magic_pip,
    "mamba": magic_pip,
    "time": magic_time,
    "timeit": magic_timeit,
    "run": magic_run,
    "who": magic_who,
    "who_ls": lambda arguments, frame: sorted([item["name"] for item in those(arguments)]),
    "whos": magic_whos,
    "reset": magic_reset,
    "precision": lambda arguments, frame: core.part("shell").set_precision(arguments),
    "sx": lambda arguments, frame: capture(arguments, frame),
    "system": lambda arguments, frame: capture(arguments, frame),
    "xdel": magic_xdel,
    "config": lambda arguments, frame: core.part("shell").configure(arguments),
}
LINE.update({name: alias(name) for name in ("ls", "cat", "mkdir", "rm", "cp", "mv", "rmdir", "head", "tail")})
LINE.update(
    {
        name: nothing
        for name in (
            "matplotlib", "unload_ext",
            "colors", "automagic", "aimport", "pdb", "logstart", "logstop", "alias", "gui", "autosave",
        )
    }
)


# ---------------------------------------------------------------- cell magics


def cell(text, name):
    """Runs `%%magic` of the first line. The body keeps its line numbers."""
    before, _, rest = text.partition("%%")
    head, _, tail = rest.partition("\n")
    magic, _, arguments = head.strip().partition(" ")
    body = tail if magic in AS_TEXT else "\n" * (before.count("\n") + 1) + tail
    function = CELL.get(magic) or core.part("moremagics").CELL.get(magic)
    if function is None:
        known = ", ".join(["%%" + item for item in sorted(CELL)])
        raise UsageError("there is no cell magic %%%%%s here; there are %s" % (magic, known))
    if magic not in AS_WRITTEN:
        arguments = expand(arguments, Main)
    return function(arguments.strip(), body, name)


def program(*words):
    """Runs a cell that is the input of another program."""

    def run(arguments, body, _name):
        subprocess = core.standard("subprocess")
        core.flush_streams()
        given, kept = options_of(core.standard("shlex").split(arguments))
        argv = [*words, *given]
        body = body.lstrip("\n")
        pipes = {name: subprocess.PIPE for name in ("stdout", "stderr") if name in kept}
        if words and not given and len(body) < 100000:
            done = subprocess.run([*argv, "-c", body], **pipes)
        else:
            done = subprocess.run(argv, input=body.encode("utf-8", "surrogateescape"), **pipes)
        code = done.returncode
        for name in pipes:
            core.NAMES[kept[name]] = getattr(done, name).decode("utf-8", "replace")
        core.NAMES["_exit_code"] = code
        if code and "no-raise" not in kept:
            # Named after its text, as in a notebook; a long one after its beginning.
            named = body if body.endswith("\n") or len(body) >= 500 else body + "\n"
            error = subprocess.CalledProcessError(code, named[:500].encode("utf-8", "surrogateescape"))
            error.script = body[:10000]
            raise error
        return core.NOTHING

    return run


def options_of(words):
    """Returns (the program's arguments, what to do with its output) of a cell magic's first line."""
    given, kept = [], {}
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("--out", "--err") and words:
            kept["stdout" if word == "--out" else "stderr"] = words.pop(0)
        elif word == "--no-raise-error":
            kept["no-raise"] = word
        elif word not in ("--bg", "--proc"):
            given.append(word)
    return given, kept


def cell_writefile(arguments, body, _name):
    words = core.standard("shlex").split(arguments)
    append = bool({"-a", "--append"} & set(words))
    words = [word for word in words if not word.startswith("-")]
    if len(words) != 1:
        raise UsageError("%%writefile needs the name of one file")
    path = os.path.expanduser(words[0])
    verb = "Appending to" if append else ("Overwriting" if os.path.exists(path) else "Writing")
    with open(path, "a" if append else "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(body if body.endswith("\n") else body + "\n")
    print(verb, path)
    return core.NOTHING


def cell_time(_arguments, body, name):
    return timed(lambda: core.run_text(body, name))


def cell_timeit(arguments, body, _name):
    return magic_timeit(arguments, Main, statement=body.strip("\n")) or core.NOTHING


class Main:
    """Returns the frame of a cell, for magics that are not called from one."""

    f_globals = f_locals = core.NAMES


class Output:
    """A display that was captured."""

    def __init__(self, blobs):
        self.blobs = blobs
        self.data = {mime: data.decode("utf-8", "replace") if mime.startswith("text/") else data for mime, data in blobs}
        self.metadata = {}

    def _repr_mimebundle_(self, include=None, exclude=None):
        return dict(self.blobs)

    def display(self):
        core.show(self.blobs)

    def __repr__(self):
        return self.data["text/plain"]


class Captured:
    """The output captured by `%%capture name`."""

    def __init__(self, stdout, stderr, outputs):
        self._stdout, self._stderr, self._outputs = stdout, stderr, outputs

    @property
    def stdout(self):
        return self._stdout.getvalue()

    @property
    def stderr(self):
        return self._stderr.getvalue()

    @property
    def outputs(self):
        return [Output(blobs) for blobs in self._outputs]

    def show(self):
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for output in self.outputs:
            output.display()

    __call__ = show

    def __str__(self):
        return self.stdout


class Recorder:
    """Captures printed and displayed output between `start` and `stop`."""

    def __init__(self, stdout=True, stderr=True, display=True):
        io = core.standard("io")
        self.out, self.err = io.StringIO() if stdout else None, io.StringIO() if stderr else None
        self.outputs = [] if display else None

    def start(self):
        self.before = sys.stdout, sys.stderr, core.session.captured
        sys.stdout, sys.stderr = self.out or sys.stdout, self.err or sys.stderr
        if self.outputs is not None:
            core.session.captured = self.outputs
        io = core.standard("io")
        return Captured(self.out or io.StringIO(), self.err or io.StringIO(), self.outputs if self.outputs is not None else [])

    def stop(self):
        try:
            if self.outputs is not None and "matplotlib.pyplot" in sys.modules:
                core.part("charts").flush()
        finally:
            sys.stdout, sys.stderr, core.session.captured = self.before


def cell_capture(arguments, body, name):
    words = arguments.split()
    recorder = Recorder("--no-stdout" not in words, "--no-stderr" not in words, "--no-display" not in words)
    captured = recorder.start()
    try:
        value = core.run_text(body, name)
        if value is not core.NOTHING and value is not None:
            core.display(value)
    finally:
        recorder.stop()
        for word in [word for word in words if not word.startswith("-")][:1]:
            core.NAMES[word] = captured
    return core.NOTHING


def shown_as(mime):
    def show(_arguments, body, _name):
        core.display({mime: body.lstrip("\n"), "text/plain": body.strip()}, raw=True)
        return core.NOTHING

    return show


CELL = {
    "bash": program("bash"),
    "sh": program("sh"),
    "python": program(sys.executable),
    "python3": program(sys.executable),
    "script": program(),
    "writefile": cell_writefile,
    "file": cell_writefile,
    "time": cell_time,
    "timeit": cell_timeit,
    "capture": cell_capture,
    "html": shown_as("text/html"),
    "HTML": shown_as("text/html"),
    "markdown": shown_as("text/markdown"),
    "latex": shown_as("text/latex"),
    "svg": shown_as("image/svg+xml"),
    "SVG": shown_as("image/svg+xml"),
    "javascript": shown_as("application/javascript"),
    "js": shown_as("application/javascript"),
}


# ---------------------------------------------------------------- ?name


def ask(name, with_source):
    """Shows `name?`: signature and documentation; `name??` adds the source."""
    if name.startswith("%"):
        table = CELL if name.startswith("%%") else LINE
        function = table.get(name.strip("%"))
        said = (function.__doc__ or "").strip() if function else ""
        print(said or ("%s is a magic of notebooks" % name if function else "Object `%s` not found." % name))
    elif "*" in name:
        core.part("moremagics").magic_psearch(name, sys._getframe(1))
    else:
        describe(name, with_source, sys._getframe(1))


def describe(name, with_source, frame):
    inspect = core.standard("inspect")
    try:
        thing = eval(name, names_of(frame))
    except Exception:
        print("Object `%s` not found." % name)
        return
    lines = []
    try:
        lines.append("Signature: %s%s" % (name, inspect.signature(thing)))
    except (ValueError, TypeError):
        pass
    lines.append("Type:      " + type(thing).__name__)
    if with_source:
        try:
            lines.append("Source:\n" + inspect.getsource(thing))
        except (OSError, TypeError):
            pass
    lines.append("Docstring:\n" + (inspect.getdoc(thing) or "<no docstring>"))
    print(core.clip("\n".join(lines), 8000).decode("utf-8"))


def shown(value):
    """Displays the value of an expression that is not the last one."""
    if value is not None:
        core.display(value)


class calls:
    """The functions that rewritten lines call."""

    shell = staticmethod(shell)
    capture = staticmethod(capture)
    line = staticmethod(line)
    ask = staticmethod(ask)
    shown = staticmethod(shown)


builtins.__sandcell__ = calls
