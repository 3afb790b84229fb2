"""Hints for errors whose message does not state the remedy: those that model-written code raises most often, with
their cause in a sandbox. Only plain values and well-known tables are inspected. The only code of the caller that
runs is a trace callback of a database connection."""

import sys

errors = core.part("errors")

FUNCTION = type(errors.explain)
COROUTINE = core.standard("types").CoroutineType


def failing(error):
    """Returns (frame, source line) of the caller's failing line, or (None, "")."""
    frame, number, entry = None, 0, error.__traceback__
    for _ in range(1000):
        if entry is None:
            break
        name = entry.tb_frame.f_code.co_filename
        if errors.is_own(name) and not name.startswith("<sandcell "):
            frame, number = entry.tb_frame, entry.tb_lineno
        entry = entry.tb_next
    if frame is None:
        return None, ""
    return frame, core.standard("linecache").getline(frame.f_code.co_filename, number)


def named(error):
    """Returns [(name, value)] of the names on the failing line."""
    frame, line = failing(error)
    if frame is None:
        return []
    every = {**frame.f_globals, **frame.f_locals}
    return [(name, every[name]) for name in errors.names_in(line) if name in every]


def quoted(text):
    return text.split("'")[1] if text.count("'") > 1 else ""


# ---------------------------------------------------------------- syntax


def syntax(error):
    line = "line %d" % error.lineno if error.lineno else "it"
    text = "correct %s and send the code again: nothing of it has run" % line
    if (error.msg or "").startswith("f-string: ") and sys.version_info < (3, 12):
        text += ". In Python %d.%d an f-string's braces cannot hold its own kind of quotes: use the other kind" % sys.version_info[:2]
    return text


# ---------------------------------------------------------------- types


def of_type_error(error):
    text = str(error)
    if "coroutine" in text:
        return awaited(error)
    if "positional argument" in text or "keyword argument" in text or "keyword-only argument" in text:
        return signature(error, text)
    if "is not callable" in text:
        return not_callable(error)
    if "indices must be integers" in text or "string indices" in text:
        return indexed(error)
    if text.startswith("can only concatenate str") or "must be str, not" in text or (
        text.startswith("unsupported operand") and "'str'" in text
    ):
        return table_text(error) or "text and numbers do not mix: str(number) makes text of one, int(text) or float(text) a number"
    if "offset-naive and offset-aware" in text:
        return "give both a time zone (datetime.now(timezone.utc)) or neither (.replace(tzinfo=None))"
    if "decimal.Decimal" in text and "'float'" in text:
        return "make a Decimal of the float by its text: Decimal(str(x)), or calculate with float(d)"
    if "is not JSON serializable" in text:
        return "json.dumps(value, default=str) writes what it does not know as text; list(...) makes a list of a set"
    if any([word in text for word in ("string dtype", "dtype 'str'", "multiply sequence by non-int", "dtype 'object'")]):
        return table_text(error)
    return ""


def awaited(error):
    for name, value in named(error):
        if type(value) is COROUTINE:
            made = value.__qualname__.partition("(")[0]
            return "an await is missing: %s is what %s() gave, which has not run; write %s = await %s(...)" % (name, made, name, made)
        if type(value) is FUNCTION and value.__code__.co_flags & core.COROUTINE:
            return "an await is missing: write await %s(...), which works here at the top level, too" % name
    return "an await is missing in front of the call: a coroutine runs only when it is awaited, which works at the top level, too"


def signature(error, text):
    """Returns the expected arguments of the called function."""
    name = text.partition("(")[0].strip()
    frame, _ = failing(error)
    if frame is None or not name.replace(".", "").isidentifier():
        return ""
    every = {**frame.f_globals, **frame.f_locals}
    parts = [part for part in name.split(".") if part != "<locals>"]
    value, owner = every.get(parts[0]), None
    for part in parts[1:]:
        owner, value = value, vars(value).get(part) if issubclass(type(value), type) else None
    if issubclass(type(value), type):
        value = vars(value).get("__init__")
    if type(value) is not FUNCTION:
        return ""
    code, spare = value.__code__, len(value.__defaults__ or ())
    count = code.co_argcount
    words = [word + ("=..." if at >= count - spare else "") for at, word in enumerate(code.co_varnames[:count])]
    rest = code.co_varnames[count:]
    flags = code.co_flags
    only = rest[: code.co_kwonlyargcount]
    rest = list(rest[code.co_kwonlyargcount :])
    if flags & 4:
        words.append("*" + rest.pop(0))
    elif only:
        words.append("*")
    words += [word + ("=..." if word in (value.__kwdefaults__ or {}) else "") for word in only]
    if flags & 8:
        words.append("**" + rest.pop(0))
    if owner is not None and words:
        words.pop(0)
    called = name[: -len(".__init__")] if name.endswith(".__init__") else name
    hint = errors.self_hint(error)
    return (hint + "; " if hint else "") + "it is %s(%s)" % (called, ", ".join(words)[:300])


def not_callable(error):
    builtins = vars(core.standard("builtins"))
    _, line = failing(error)
    for name, value in named(error):
        if name + "(" not in line.replace(" ", "") or callable(value):
            continue
        kind = type(value).__name__
        if name in builtins:
            return "%s is a %s of yours here and hides Python's own: del %s, and give yours another name" % (name, kind, name)
        if kind in ("list", "tuple", "dict", "str", "ndarray", "DataFrame", "Series"):
            return "%s is a %s: take items with square brackets, %s[...]" % (name, kind, name)
        return "%s is a %s, no function" % (name, kind)
    return ""


def indexed(error):
    _, line = failing(error)
    for name, value in named(error):
        if type(value) in (list, tuple) and name + "[" in line:
            if value and type(value[0]) is dict:
                return "%s is a list of dicts: %s[0][...] takes one, [row[...] for row in %s] all of them" % (name, name, name)
            return "%s is a %s: its positions are numbers, 0 to %d" % (name, type(value).__name__, len(value) - 1)
        if type(value) is str and name + "[" in line:
            return "%s is text: if it is JSON, json.loads(%s) makes a dict or list of it" % (name, name)
    return ""


# ---------------------------------------------------------------- tables


def tables(error):
    """Returns [(name, data frame)] of the failing line."""
    variables = core.part("variables")
    return [(name, value) for name, value in named(error) if variables.known(type(value)) == "pandas.DataFrame"]


def table_text(error):
    """Returns the columns of a table that contain text instead of numbers."""
    _, line = failing(error)
    said = str(error)
    for name, frame in tables(error):
        kinds = {str(column): str(kind) for column, kind in zip(list(frame.columns)[:200], frame.dtypes)}
        text = [column for column, kind in kinds.items() if kind in ("str", "object", "string")]
        used = [column for column in text if repr(column) in line or '"%s"' % column in line] or text
        wanted = [column for column in used if used is not text and repr(column) in line.partition("groupby")[2].partition(")")[2]]
        if not wanted and ("groupby" in line or (".mean()" in line and "[" not in line)):
            return "text columns: %s; leave them out with numeric_only=True" % ", ".join(map(repr, text[:10])) if text else ""
        used = wanted or used
        plain = [column for column in used if "float" in said and frame.columns.is_unique and column in frame.columns]
        missing = [column for column in plain if frame[column].isna().any()]
        if missing:
            return "%s[%r] has missing values, which are floats (NaN): fill them with .fillna('') or leave them out with .dropna()" % (
                name, missing[0],
            )
        if used:
            return "%s[%r] holds text: pd.to_numeric(%s[%r].str.replace(',', ''), errors='coerce') makes numbers of it" % (
                name, used[0], name, used[0],
            )
    return ""


def of_value_error(error):
    text = str(error)
    if "truth value of" in text:
        return "put each comparison in parentheses and join them with & or |: df[(df['a'] > 1) & (df['b'] < 5)]; in an if, .any() or .all()"
    if text.startswith("You are trying to merge on"):
        return merged(error)
    if text.startswith("could not convert string to float"):
        return table_text(error)
    if "values to unpack" in text:
        for name, value in named(error):
            if type(value) is dict:
                return "a loop over a dict gives its keys alone: for key, value in %s.items()" % name
        _, line = failing(error)
        if " in {" in line:
            return "a loop over a dict gives its keys alone: use .items()"
    if type(error).__name__ == "JSONDecodeError":
        return json_text(error)
    return ""


def merged(error):
    key = quoted(str(error).partition("key ")[2])
    found = ["%s in %s" % (frame[key].dtype, name) for name, frame in tables(error) if key in frame.columns]
    if len(found) < 2:
        return "make both keys of one type before the merge, with .astype(str) say"
    return "%r is %s: make them alike before the merge, with .astype(str) say" % (key, " and ".join(found[:2]))


def json_text(error):
    text, at = error.doc, error.pos
    if not isinstance(text, str) or not text.strip():
        return "the text is empty"
    near = text[max(0, at - 20) : at + 20]
    hint = "near %r" % near
    if "double quotes" in error.msg and "'" in near:
        hint += ": JSON has double quotes; ast.literal_eval reads what Python's repr wrote"
    elif text.lstrip()[:1] == "<":
        hint += ": it is HTML or XML"
    elif error.msg == "Extra data":
        hint += ": several values behind each other; for one a line, [json.loads(line) for line in text.splitlines()]"
    return hint


# ---------------------------------------------------------------- the rest


USUAL = {
    ("ndarray", "length"): "len(x) or x.size",
    ("ndarray", "append"): "np.append(x, value), or collect in a list first",
    ("str", "append"): "texts are joined with + or ''.join(parts)",
    ("tuple", "append"): "a tuple does not change; use a list",
    ("set", "append"): "add(value)",
    ("list", "add"): "append(value)",
    ("list", "push"): "append(value)",
    ("list", "length"): "len(x)",
    ("str", "length"): "len(x)",
    ("list", "size"): "len(x)",
    ("list", "shape"): "np.array(x).shape",
    ("list", "split"): "[item.split() for item in x]",
    ("list", "items"): "enumerate(x)",
    ("dict", "has_key"): "key in x",
    ("dict", "iteritems"): "items()",
    ("dict", "append"): "x[key] = value",
    ("dict", "add"): "x[key] = value",
    ("str", "decode"): "it is text already; encode() makes bytes",
    ("Series", "columns"): "a series is one column: its name is .name",
}


def of_attribute_error(error):
    kind, name = type(getattr(error, "obj", None)).__name__, getattr(error, "name", None)
    if kind == "coroutine":
        return awaited(error)
    return USUAL.get((kind, name), "")


def recursion(error):
    last = errors.innermost(error)
    name = last.f_code.co_name if last is not None else "the function"
    return "%s() calls itself without end: it needs a case that returns without calling itself (deeper than %d calls takes sys.setrecursionlimit)" % (
        name, sys.getrecursionlimit(),
    )


def database(error):
    """Returns the existing tables or columns."""
    text = str(error)
    sqlite = sys.modules.get("sqlite3")
    if sqlite is None or "no such" not in text:
        return ""
    for _, value in named(error):
        value = value.connection if type(value) is sqlite.Cursor else value
        if type(value) is not sqlite.Connection:
            continue
        # Read as bytes with a separate cursor, to bypass the caller's row and text factories.
        cursor = sqlite.Cursor(value)
        listing = "select cast(name as blob) from sqlite_master where type in ('table', 'view') limit 20"
        names = [name.decode("utf-8", "replace") for name, in cursor.execute(listing).fetchall()]
        listed = []
        for name in names[:5]:
            rows = cursor.execute("select cast(name as blob) from pragma_table_info(?)", (name,)).fetchall()
            columns = [column.decode("utf-8", "replace") for column, in rows]
            listed.append("%s (%s)" % (name, ", ".join(columns[:20])))
        return "the tables are " + ", ".join(listed + names[5:]) if names else "the database has no tables yet"
    return ""


def environment(error):
    last = errors.innermost(error)
    if last is None or type(last.f_locals.get("self")).__name__ != "_Environ" or not error.args:
        return ""
    name = str(error.args[0])[:60]
    return "the variable %s is not set in this sandbox: os.environ.get(%r) gives None instead, os.environ[%r] = '...' sets it" % (
        name, name, name
    )


def picture(error):
    """Returns the beginning of a file that is not a picture."""
    path = quoted(str(error))
    try:
        with open(path, "rb") as file:
            head = file.read(24)
    except OSError:
        return ""
    return "%s is no picture: %s" % (path, "it is empty" if not head else "it begins with %r" % head)


def pickled(error):
    if "lambda" in str(error) or "local object" in str(error):
        return "lambdas and functions made inside of functions cannot be pickled: define the function with def at the top level"
    return ""


def waited(error):
    """Returns the child process that an interrupted cell waited for."""
    subprocess = sys.modules.get("subprocess")
    for frame in errors.frames_of(error):
        child = frame.f_locals.get("self")
        if subprocess is None or type(child) is not subprocess.Popen:
            continue
        try:
            with open("/proc/%d/stat" % child.pid, "rb") as file:
                state = file.read(4096).rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            state = b""
        what = "process %d (%s)" % (child.pid, str(child.args)[:100])
        if state in (b"T", b"t"):
            return "the code waited for %s, which is stopped: os.kill(%d, signal.SIGCONT) lets it go on" % (what, child.pid)
        return "the code waited for %s: give it what it waits for, an end (timeout=...), or the call more time" % what
    return ""


INSTALLERS = {"apt", "apt-get", "aptitude", "yum", "dnf", "apk", "pacman", "snap", "brew"}


def of_command(command, code):
    """Returns why a command line failed, if a property of the sandbox is the likely cause; begins with a colon."""
    import os

    words = {word.rpartition("/")[2] for word in command.replace(";", " ").replace("|", " ").replace("&", " ").split()}
    if words & INSTALLERS and "install" in words:
        return ": nothing can be installed into the system of a sandbox; packages of Python come with pip"
    if errors.want_of_network(command, code):
        return ": this sandbox has no network"
    if code == 127:
        return ": there is no such program in this sandbox"
    if code == 137:
        return ": a process was killed, most likely for memory"
    try:
        room = os.statvfs(".")
        if room.f_bavail * room.f_frsize < 1 << 16:
            return ": the sandbox's disk is full, delete files"
    except OSError:
        pass
    return ""


def of(error):
    """Returns the hint for an error without another explanation; empty if there is none."""
    if isinstance(error, RecursionError):
        return recursion(error)
    name = type(error).__name__
    if isinstance(error, AttributeError):
        return of_attribute_error(error)
    if isinstance(error, TypeError):
        return of_type_error(error)
    if isinstance(error, ValueError):
        return of_value_error(error)
    if isinstance(error, KeyError):
        return environment(error)
    if isinstance(error, KeyboardInterrupt):
        return waited(error)
    if name in ("OperationalError", "DatabaseError"):
        return database(error)
    if name == "UnidentifiedImageError":
        return picture(error)
    if name in ("PicklingError", "PickleError"):
        return pickled(error)
    return ""
