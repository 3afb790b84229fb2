"""Formats exceptions for the caller: short tracebacks that point at the caller's own lines, and the next step."""

import sys

MESSAGE_LIMIT = 4000
OWN_FOLDERS = ("/home/user/", "/tmp/")
DEEPEST = 400

# Import names that differ from the package name.
PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "PyYAML",
    "bs4": "beautifulsoup4",
    "dotenv": "python-dotenv",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "pptx": "python-pptx",
    "fitz": "PyMuPDF",
    "Crypto": "pycryptodome",
    "Cryptodome": "pycryptodomex",
    "OpenSSL": "pyOpenSSL",
    "jwt": "PyJWT",
    "serial": "pyserial",
    "usb": "pyusb",
    "magic": "python-magic",
    "git": "GitPython",
    "github": "PyGithub",
    "gitlab": "python-gitlab",
    "slugify": "python-slugify",
    "telegram": "python-telegram-bot",
    "discord": "discord.py",
    "attr": "attrs",
    "MySQLdb": "mysqlclient",
    "psycopg2": "psycopg2-binary",
    "ldap": "python-ldap",
    "zmq": "pyzmq",
    "wx": "wxPython",
    "gi": "PyGObject",
    "Bio": "biopython",
    "osgeo": "GDAL",
    "shapefile": "pyshp",
    "mpl_toolkits": "matplotlib",
    "pylab": "matplotlib",
    "pkg_resources": "setuptools",
    "faiss": "faiss-cpu",
    "umap": "umap-learn",
    "community": "python-louvain",
    "jose": "python-jose",
    "googleapiclient": "google-api-python-client",
    "genai": "google-genai",
    "imblearn": "imbalanced-learn",
    "talib": "TA-Lib",
    "speech_recognition": "SpeechRecognition",
    "Xlib": "python-xlib",
    "ruamel": "ruamel.yaml",
    "websocket": "websocket-client",
    "socks": "PySocks",
    "nacl": "PyNaCl",
    "past": "future",
    "win32api": "pywin32",
    "pdfminer": "pdfminer.six",
    "absl": "absl-py",
    "google.protobuf": "protobuf",
}

LED = "which led to\n\n"
INNER_LIMIT = 300

def install_advice(packages):
    """Returns how to get packages in this session. No other code states it."""
    import importlib.util

    if core.session.packages:
        return "not in this sandbox: install_package(packages=[%s]) makes it work" % (
            ", ".join(['"%s"' % package for package in packages])
        )
    what = "the package to install is %s" if len(packages) == 1 else "the packages to install are %s"
    here = [name for name in KNOWN if importlib.util.find_spec(name) is not None]
    return what % ", ".join(packages) + " (not in this sandbox, and pip has no network here); until it is, use %s" % (
        ", ".join(here + ["the standard library"])
    )


NO_PACKAGE = {
    "google": "there is no google package here; this is not Colab: read files from the working folder instead",
    "ipywidgets": "there are no widgets here: call the function with plain values instead",
}
KNOWN = ("numpy", "pandas", "matplotlib", "seaborn", "scipy", "sklearn", "requests", "polars", "plotly", "sympy", "torch")

CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def outcome(error):
    """Returns the fields of `done` for a cell that raised."""
    if isinstance(error, SystemExit):
        code, failure = core.guarded(core.part("imports").exit_code, error)
        return {"status": "exit", "exit_code": 1 if failure else code}
    described, failure = core.guarded(describe, error)
    if failure is not None:
        name = type(error).__name__
        described = {"name": name, "message": "", "traceback": name, "hint": "", "class": ""}
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
    return {"status": status, "error": described}


def describe(error):
    """Returns the fields of `CellError` for an exception."""
    kind, hint = explain(error)
    if error is not core.session.syntax_error and not isinstance(error, MemoryError):
        sys.last_value, sys.last_type, sys.last_traceback = error, type(error), error.__traceback__
    return {
        "name": type.__getattribute__(type(error), "__name__"),
        "message": message_of(error),
        "traceback": format_error(error),
        "hint": hint,
        "class": kind,
    }


def message_of(error):
    try:
        text = str(error)
    except Exception:
        text = "(its message could not be had: __str__ raised)"
    return core.clip(text, MESSAGE_LIMIT).decode("utf-8")


# ---------------------------------------------------------------- tracebacks


def format_error(error):
    """Returns the traceback as text, without a trailing line feed."""
    traceback = core.standard("traceback")
    if error is core.session.syntax_error:
        shown = traceback.TracebackException(type(error), error, None)
        lines = list(shown.format_exception_only())
    else:
        depth, entry = 0, error.__traceback__
        while entry is not None and depth <= DEEPEST:
            depth, entry = depth + 1, entry.tb_next
        limit = -DEEPEST if depth > DEEPEST else None
        shown = traceback.TracebackException(
            type(error), error, error.__traceback__, limit=limit, lookup_lines=False
        )
        lines = render(shown, traceback, 0, values_line(error))
    text = "".join([line if len(line) <= MESSAGE_LIMIT else line[:MESSAGE_LIMIT] + " ...\n" for line in lines])
    return core.clip(text, 4 * MESSAGE_LIMIT).decode("utf-8").rstrip("\n")


def render(shown, traceback, depth, values=()):
    """Formats one exception of a chain, after its causes. `values` are printed below its stack."""
    lines = []
    before = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    if before is not None and depth < 8 and not same_words(before, shown):
        lines += render(before, traceback, depth + 1)
        lines.append(LED if inside_only(before) else CAUSE if shown.__cause__ is not None else CONTEXT)
    if depth and inside_only(shown):
        # No frame belongs to the caller, so the message is the only useful part.
        text = "".join(list(shown.format_exception_only())).rstrip("\n")
        return lines + [text if len(text) <= INNER_LIMIT else text[:INNER_LIMIT] + " ...", "\n"]
    stack = stack_lines(shown.stack, traceback)
    if stack:
        lines.append("Traceback (most recent call last):\n")
        lines += stack
        lines += values
    lines += last_lines(shown)
    for number, inner in enumerate((getattr(shown, "exceptions", None) or ())[:8], 1):
        lines.append("  -- exception %d of the group --\n" % number)
        lines += ["  " + line.replace("\n", "\n  ").rstrip(" ") for line in render(inner, traceback, depth + 1)]
    return lines


def last_lines(shown):
    """Returns the message with the public class name: some libraries use another internal name."""
    lines = list(shown.format_exception_only())
    # In newer versions the public name is a property that emits a warning.
    kind = shown.__dict__.get("_exc_type") or shown.__dict__.get("exc_type")
    if kind is None:
        return lines
    name = getattr(kind, "__qualname__", "")
    shown_as = "%s.%s" % (getattr(kind, "__module__", ""), name)
    if lines and name.rpartition(".")[2] != kind.__name__ and lines[-1].startswith(shown_as):
        lines[-1] = shown_as[: len(shown_as) - len(name)] + kind.__name__ + lines[-1][len(shown_as) :]
    return lines


def inside_only(shown):
    return bool(shown.stack) and not any([is_own(frame.filename) for frame in shown.stack])


def same_words(before, shown):
    """Returns True if a library only re-raised the same error, as pandas does for every missing column."""
    return inside_only(before) and list(before.format_exception_only()) == list(shown.format_exception_only())


def stack_lines(stack, traceback):
    """Returns the caller's frames with their source. Runs of library frames become one line, and driver frames are
    removed."""
    lines, own, foreign = [], [], []

    def flush():
        if own:
            lines.extend(traceback.StackSummary.from_list(own).format())
            own.clear()
        if foreign:
            last = foreign[-1]
            many = "%d calls" % len(foreign) if len(foreign) > 1 else "a call"
            lines.append(
                '  ... %s inside %s, the last at File "%s", line %s, in %s\n'
                % (many, library(last.filename), last.filename, last.lineno, last.name)
            )
            foreign.clear()

    for frame in stack:
        if frame.filename.startswith("<sandcell "):
            continue
        mine = is_own(frame.filename)
        if mine and not own and not lines:
            foreign.clear()  # the loop that runs a cell with a top-level await
        if (mine and foreign) or (not mine and own):
            flush()
        (own if mine else foreign).append(frame)
    flush()
    return lines


def is_own(filename):
    if filename.startswith("<"):
        return not filename.startswith("<frozen ")
    if not filename.startswith("/"):
        return filename.endswith(".py")  # compiled libraries name their sources like this: pandas/_libs/index.pyx
    if "/site-packages/" in filename or "/dist-packages/" in filename:
        return False
    return filename.startswith(OWN_FOLDERS)


def library(filename):
    """Returns the name of the package that contains a file."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in filename:
            return filename.rpartition(mark)[2].partition("/")[0].replace(".py", "")
    if filename.startswith("<frozen "):
        return filename[8:-1]
    if not filename.startswith("/"):
        return filename.partition("/")[0]
    parts = filename.rpartition("/lib/python")[2].split("/")
    return parts[1].replace(".py", "") if len(parts) > 1 else filename.rpartition("/")[2]


# ---------------------------------------------------------------- values


def values_line(error):
    """Returns the values of names on the failing line, without running any of their code."""
    last = None
    entry = error.__traceback__
    for _ in range(1000):
        if entry is None:
            break
        if is_own(entry.tb_frame.f_code.co_filename) and not entry.tb_frame.f_code.co_filename.startswith("<sandcell "):
            last = entry
        entry = entry.tb_next
    if last is None or isinstance(error, (RecursionError, ModuleNotFoundError)):
        return []
    frame, number = last.tb_frame, last.tb_lineno
    line = core.standard("linecache").getline(frame.f_code.co_filename, number)
    try:
        names = names_in(line)
        shown = [text for text in [value_text(name, frame) for name in names] if text]
    except Exception:
        return []
    return ["    where " + "; ".join(shown[:5]) + "\n"] if shown else []


def names_in(line):
    """Returns the distinct names of a source line in order, without attributes and string contents."""
    import io

    tokenize = core.standard("tokenize")
    found, before = [], ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline):
            if before is not None and token.string == "=" and found and found[-1] == before:
                found.pop()  # it is only given a value, or names an argument
            if token.type == 1 and before != "." and token.string not in found:
                found.append(token.string)
            before = token.string
    except (tokenize.TokenError, SyntaxError):
        pass  # a part of a statement: what came before it counts
    return found


def value_text(name, frame):
    names = frame.f_locals if name in frame.f_locals else frame.f_globals
    if name not in names or name.startswith("__") or name in ("self", "cls"):
        return ""
    value = names[name]
    kind = type(value)
    variables = core.part("variables")
    if variables.is_code(kind) or issubclass(kind, type):
        return ""
    preview = variables.columns_of(value) if variables.known(kind) == "pandas.DataFrame" else variables.preview_of(value, kind)
    if preview.startswith("<"):
        known = variables.known(kind)
        return "%s = %s" % (name, type.__getattribute__(kind, "__name__")) if known or type.__getattribute__(kind, "__module__") != "builtins" else ""
    shape = variables.shape_of(value, kind)
    long = kind in (list, tuple, dict, set, str, bytes) and len(value) > 8
    return "%s = %s%s" % (name, preview, " (%s %s)" % (shape, "characters" if kind is str else "items") if long else "")


# ---------------------------------------------------------------- what to do next


def explain(error):
    """Returns (class, hint) of an exception or of its cause."""
    seen = 0
    while error is not None and seen < 10:
        found = explain_one(error)
        if found != ("", ""):
            return found
        hint = core.part("advice").of(error)
        if hint:
            return "", hint
        error = error.__cause__ or error.__context__
        seen += 1
    return "", ""


def explain_one(error):
    kind = type(error)
    if isinstance(error, ModuleNotFoundError):
        return "", missing_module(error)
    if isinstance(error, ImportError):
        return "", missing_name(error)
    if isinstance(error, MemoryError):
        return "memory", ""
    if isinstance(error, EOFError):
        return stdin_ended(error)
    if isinstance(error, OSError):
        return explain_os(error)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "processes", ""
    if isinstance(error, SyntaxError) and error is core.session.syntax_error:
        return "", syntax_hint(error) or core.part("advice").syntax(error)
    if isinstance(error, NameError):
        return "", name_hint(error)
    if isinstance(error, AttributeError):
        return "", attribute_hint(error)
    if isinstance(error, KeyError):
        return "", core.part("lookups").key_hint(error)
    if isinstance(error, UnicodeDecodeError) and error.encoding.lower().replace("-", "") == "utf8":
        return "", "the bytes are no UTF-8 text: open with another encoding ('latin-1', 'cp1252', 'utf-16') or in mode 'rb'"
    if isinstance(error, KeyboardInterrupt):
        return "", endless_hint(error)
    name = kind.__module__.partition(".")[0] + "." + kind.__name__
    if name in NETWORK_ERRORS:
        return "network", ""
    if kind.__name__ == "TclError" and "display" in str(error):
        return "", "there is no screen here: draw with matplotlib, its figures come back as pictures"
    if kind is TypeError and "'module' object is not callable" in str(error):
        return "", module_hint(error)
    if kind.__name__ == "UsageError" and getattr(error, "missing", None):
        return "package", install_advice(error.missing)
    if kind.__name__ == "UsageError" and getattr(error, "packages", None):
        return "package", ""
    if kind.__name__ == "CalledProcessError" and kind.__module__ == "subprocess":
        return explain_command(error)
    if isinstance(error, IndexError):
        return "", core.part("lookups").index_hint(error)
    if kind is TypeError:
        return "", self_hint(error)
    if kind.__name__ == "BrokenProcessPool":
        return "", "a worker process died; most often the memory limit, or the worker called os._exit"
    return "", ""


# Exit codes of network programs that could not connect.
NETWORK_CODES = {"curl": (5, 6, 7, 28), "wget": (4,), "git": (1, 128), "apt": (100,), "apt-get": (100,), "ping": (1, 2),
                 "ssh": (255,), "scp": (1, 255), "rsync": (10, 255), "npm": (1, 146), "nslookup": (1,), "host": (1,)}
NETWORK_WORDS = ("could not resolve host", "temporary failure in name resolution", "network is unreachable",
                 "name or service not known", "temporary failure resolving", "eai_again", "getaddrinfo enotfound")


def want_of_network(command, code, said=""):
    """Returns True if a command with this exit code most likely failed for lack of a network: its output states that,
    or there is no network and the program needs one."""
    if any([word in said.lower() for word in NETWORK_WORDS]):
        return True
    words = {word.rpartition("/")[2] for word in command.replace(";", " ").replace("|", " ").split()}
    if not any([code in codes and name in words for name, codes in NETWORK_CODES.items()]):
        return False
    if words & {"git"} and not words & {"clone", "fetch", "pull", "push", "ls-remote", "remote", "submodule"}:
        return False
    try:
        with open("/proc/net/route", encoding="ascii") as file:
            return len(file.readlines()) < 2
    except OSError:
        return True


def explain_command(error):
    """Returns (class, hint) of a failed command."""
    command = error.cmd.decode("utf-8", "replace") if isinstance(error.cmd, bytes) else error.cmd
    command = command if isinstance(command, str) else " ".join([str(word) for word in list(command)[:50]])
    said = ""
    for part in (error.stderr, error.output):
        said += part.decode("utf-8", "replace") if isinstance(part, bytes) else part if isinstance(part, str) else ""
    script = getattr(error, "script", "")
    if core.part("packages").wanted_by(command) is not None or "\npip install" in "\n" + script:
        return "package", ""
    if want_of_network(command + " " + script, error.returncode, said):
        return "network", ""
    lines = [line for line in said.strip().split("\n") if line.strip()]
    return "", "the command said: " + lines[-1].strip()[:300] if lines else ""


NETWORK_ERRORS = {
    "requests.ConnectionError",
    "requests.ConnectTimeout",
    "httpx.ConnectError",
    "httpx.ConnectTimeout",
    "aiohttp.ClientConnectorError",
    "urllib3.NewConnectionError",
    "urllib3.NameResolutionError",
    "urllib3.MaxRetryError",
}


def explain_os(error):
    import errno

    number = error.errno
    kind = type(error)
    if kind.__module__ == "socket" and kind.__name__ in ("gaierror", "herror"):
        return "network", ""
    if number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return "network", ""
    if number in (errno.EPERM, errno.EACCES) and error.filename is None and from_socket(error):
        return "network", ""
    if number == errno.ECONNREFUSED:
        return "", "nothing listens there: a server must be started inside this sandbox, in a thread or a child process"
    if number == errno.EADDRINUSE:
        return "", "an earlier cell still uses this port: stop that server, or take another port (0 lets the system choose)"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "disk", ""
    if number == errno.EFBIG:
        return "disk", "the file is larger than the sandbox allows"
    if number == errno.ENOMEM:
        return "memory", ""
    if number == errno.EAGAIN and (isinstance(error, BlockingIOError) and from_fork(error)):
        return "processes", ""
    if number == errno.EROFS:
        return "", "this part of the file system is read-only; write below /home/user or /tmp"
    if number == errno.EACCES and error.filename and not str(error.filename).startswith(OWN_FOLDERS):
        return "", "only /home/user and /tmp can be written"
    if number == errno.ENOENT and error.filename and from_fork(error):
        return "", "there is no program called %s in this sandbox" % str(error.filename)[:100]
    if isinstance(error, FileNotFoundError) and error.filename:
        return "", file_hint(str(error.filename))
    if "is not a valid package style" in str(error) and "'seaborn" in str(error):
        return "", "the seaborn styles are now called 'seaborn-v0_8', 'seaborn-v0_8-whitegrid' and so on"
    return "", ""


def frames_of(error):
    entry = error.__traceback__
    for _ in range(1000):
        if entry is None:
            return
        yield entry.tb_frame
        entry = entry.tb_next


def innermost(error):
    last = None
    for last in frames_of(error):
        pass
    return last


def from_socket(error):
    """Returns True if a socket call caused the error."""
    last = innermost(error)
    if last is None:
        return False
    if last.f_code.co_filename.endswith(("/socket.py", "/selector_events.py", "/base_events.py")):
        return True
    return any([name in last.f_code.co_names for name in ("connect", "connect_ex", "sendto", "create_connection")])


def from_fork(error):
    last = innermost(error)
    names = last.f_code.co_names if last is not None else ()
    return any([name in names for name in ("fork", "fork_exec", "_fork_exec", "forkpty", "posix_spawn")])


def missing_module(error):
    name = error.name or ""
    top = name.partition(".")[0]
    if not top or name in sys.modules:
        return ""
    if top in getattr(sys, "stdlib_module_names", ()):
        return "%s belongs to Python itself, but this machine's Python was installed without it" % top
    if top != name and top in sys.modules:
        return "%s is here, but has no %s; its version may be another one" % (top, name[len(top) + 1 :])
    package = PACKAGES.get(name) or PACKAGES.get(top) or top.replace("_", "-")
    if name in NO_PACKAGE:
        return NO_PACKAGE[name]
    if top in PACKAGES or top in KNOWN:
        return install_advice([package])
    near = near_modules(top)
    if near:
        return "did you mean %s? If %s is really meant: %s" % (" or ".join(near), top, install_advice([package]))
    if own_looking(top):
        return "there is no file %s.py: write it first (%s). If a package is meant: %s" % (
            top, here().replace(": write the file first, or bring it in", ""), install_advice([package])
        )
    return install_advice([package])


def near_modules(name):
    """Returns modules that a mistyped name may have meant: well-known packages, and standard modules with the same
    letters (many packages have a similar name: lxml, httpx, typer)."""
    near = core.standard("difflib").get_close_matches(name, sorted(KNOWN), 2, 0.8)
    same = [item for item in getattr(sys, "stdlib_module_names", ()) if sorted(item) == sorted(name)]
    return [item for item in near + same if item != name][:2]


def own_looking(name):
    """Returns True for a module name that people usually write themselves instead of installing it."""
    words = name.lower().split("_")
    return name.lower().startswith("my") or bool({"helper", "helpers", "utils", "util", "model", "models", "config",
                                                  "main", "module", "solution", "common", "lib", "test"} & set(words))


def stdin_ended(error):
    if isinstance(error, core.StdinMissing):
        return "stdin", ""
    last = innermost(error)
    if "EOF when reading a line" in str(error) and last is not None and core.session.stdin_text:
        return "stdin", "the code read more lines than `stdin` of the call has"
    return "", ""


def file_hint(filename):
    """Returns where a file of that name is, else similar names in the folder, else its content."""
    import os

    folder, name = os.path.split(filename)
    elsewhere = [path for path in own_files() if os.path.basename(path) == name]
    if elsewhere:
        return "there is " + ", ".join(elsewhere[:3])
    try:
        names = sorted(os.listdir(folder or "."))[:2000]
    except OSError:
        return "there is no folder %s; %s" % (folder[:200], here())
    near = core.standard("difflib").get_close_matches(name, names, 3, 0.6)
    if near:
        return "there is " + ", ".join(near)
    return "there is no %s; %s" % (filename[:200], here())


def own_files():
    """Returns a bounded number of files below the home folder."""
    import os

    found, seen = [], 0
    for folder, folders, names in os.walk(core.HOME):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        seen += 1 + len(names)
        found += [os.path.join(folder, name) for name in names if not name.startswith(".")]
        if seen > 2000:
            break
    return sorted(found, key=len)


def here():
    """Returns the working folder and its content."""
    import os

    try:
        names = sorted([name for name in os.listdir(".") if not name.startswith(".") and name != "__pycache__"])
    except OSError:
        names = []
    listed = ", ".join(names[:10]) + (" and %d more" % (len(names) - 10) if len(names) > 10 else "")
    return "the working folder %s has %s" % (os.getcwd(), listed[:500] or "no files: write the file first, or bring it in")


def self_hint(error):
    """Returns a hint for a method without `self`."""
    text = str(error)
    if "takes 0 positional arguments but 1 was given" in text and "." in text.partition("()")[0]:
        return "is self missing? A method's first parameter is the object: def %s(self)" % (
            text.partition("()")[0].rpartition(".")[2][:80]
        )
    return ""


REMOVED = {
    ("DataFrame", "append"): "pd.concat([df, other])",
    ("Series", "append"): "pd.concat([a, b])",
    ("DataFrame", "iteritems"): "items()",
    ("Series", "iteritems"): "items()",
    ("DataFrame", "ix"): "loc or iloc",
    ("DataFrame", "applymap"): "map()",
    ("DataFrame", "lookup"): "loc",
}


def attribute_hint(error):
    """Returns similar attribute names. The value's own `__dir__` and `__getattr__` are not called."""
    name, value = getattr(error, "name", None), getattr(error, "obj", None)
    if not isinstance(name, str):
        return ""
    if value is None:
        gave = "what should have made it gave nothing back (a search without a match, a function without return)"
        return "the value is None: " + gave if "'NoneType'" in str(error) else ""
    kind = type(value)
    if kind.__name__ == "ndarray" and value.dtype == object and value.size and "Axes" in type(value.flat[0]).__name__:
        first = ", ".join(["0"] * value.ndim)
        return "it is an array of %s axes: take one of them, such as ax[%s].%s(...)" % ("x".join(map(str, value.shape)), first, name)
    other = REMOVED.get((kind.__name__, name)) if kind.__module__.startswith("pandas") else None
    if other:
        return "%s.%s was removed from pandas; use %s" % (kind.__name__, name, other)
    if kind is type(sys):
        names = list(vars(value))
    else:
        names = [item for base in kind.__mro__[:20] for item in vars(base)]
        names += list(getattr(value, "__dict__", {}) if kind.__getattribute__ is object.__getattribute__ else {})
    names = {item for item in names[:5000] if isinstance(item, str) and not item.startswith("_")}
    near = core.standard("difflib").get_close_matches(name, names, 3, 0.7)
    if near:
        return "did you mean %s?" % ", ".join(near)
    return ""


def module_hint(error):
    """Returns a callable of the module with the module's name."""
    last = innermost(error)
    if last is None:
        return ""
    line = core.standard("linecache").getline(last.f_code.co_filename, last.f_lineno)
    for name in names_in(line):
        value = last.f_locals.get(name, last.f_globals.get(name))
        if type(value) is type(sys):
            inner = value.__name__.rpartition(".")[2]
            if inner in vars(value):
                return "%s is the module: call %s.%s(...), or write from %s import %s" % (
                    name, name, inner, value.__name__, inner
                )
            return "%s is a module: call something in it, such as %s" % (
                name, ", ".join(["%s.%s" % (name, item) for item in vars(value) if not item.startswith("_")][:3])
            )
    return ""


# Names added to the standard library later: (module, name) -> version.
NEWER = {
    **{("typing", name): (3, 12) for name in ("override", "TypeAliasType")},
    **{("typing", name): (3, 13) for name in ("ReadOnly", "TypeIs", "NoDefault")},
    **{("typing", name): (3, 11) for name in ("Self", "Never", "LiteralString", "assert_never", "assert_type")},
    ("itertools", "batched"): (3, 12),
    ("itertools", "pairwise"): (3, 10),
    ("warnings", "deprecated"): (3, 13),
    ("enum", "StrEnum"): (3, 11),
    ("datetime", "UTC"): (3, 11),
    ("asyncio", "TaskGroup"): (3, 11),
    ("collections.abc", "Buffer"): (3, 12),
}


def missing_name(error):
    """Returns similar names of a module for a failed `from` import."""
    module = sys.modules.get(error.name or "")
    parts = str(error).split("'")
    if module is None or len(parts) < 2:
        return ""
    path = getattr(module, "__file__", "") or ""
    if path.startswith(OWN_FOLDERS) and error.name in getattr(sys, "stdlib_module_names", ()):
        return "your file %s hides the module %s; give it another name" % (path, error.name)
    since = NEWER.get((error.name, parts[1]))
    if since and sys.version_info < since:
        return "%s came with Python %d.%d, this is %d.%d%s" % (
            parts[1], *since, *sys.version_info[:2],
            ": typing_extensions has it" if error.name == "typing" else "",
        )
    near = core.standard("difflib").get_close_matches(parts[1], [str(name) for name in vars(module)], 3, 0.7)
    return "%s has %s" % (error.name, ", ".join(near)) if near else ""


ENDLESS = {"serve_forever", "run_forever", "mainloop", "run_simple", "run_app", "serve", "accept", "run_until_complete"}


def endless_hint(error):
    """Returns the interrupted call, if it never ends on its own."""
    names = [frame.f_code.co_name for frame in frames_of(error) if not is_own(frame.f_code.co_filename)]
    if any([name in ENDLESS for name in names if name != "run_until_complete"]):
        return "a server or main loop runs until it is stopped: start it in a thread or child process, or leave it out"
    return ""


def name_hint(error):
    """Returns similar variables of the session, and modules that code often expects to be imported."""
    name = getattr(error, "name", None)
    if not name:
        parts = str(error).split("'")
        name = parts[1] if len(parts) > 2 else ""
    if not name:
        return ""
    usual = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "sns": "seaborn", "pl": "polars"}
    if name in usual:
        return "import %s as %s first" % (usual[name], name)
    if is_module(name):
        return "import %s first" % name
    if name in ("true", "false", "null"):
        return "in Python it is " + {"true": "True", "false": "False", "null": "None"}[name]
    names = [key for key in list(core.NAMES)[:5000] if isinstance(key, str) and not key.startswith("_")]
    difflib = core.standard("difflib")
    near = difflib.get_close_matches(name, names, 3, 0.75)
    near += difflib.get_close_matches(name, [key for key in vars(core.standard("builtins")) if key[0] != "_"], 1, 0.75)
    if near:
        return "did you mean %s?" % ", ".join(near[:3])
    return "nothing in this session is called %s: run the code that makes it first" % name[:100]


def is_module(name):
    if not name.isidentifier():
        return False
    try:
        return core.standard("importlib.util").find_spec(name) is not None
    except Exception:
        return False


def syntax_hint(error):
    line = (error.text or "").strip()
    marks = [mark for mark in "\u201c\u201d\u2018\u2019\u2013\u2014\u00a0\u2026\u200b\ufeff\u2212" if mark in (error.text or "")]
    if marks and "invalid" in (error.msg or ""):
        return "U+%04X is no character of Python: use plain quotes, hyphens and blanks" % ord(marks[0])
    if line.startswith(("pip install", "pip3 install", "python -m pip")):
        return "this is a shell command; " + install_advice([word for word in line.split()[2:] if word[0] != "-"][:5] or ["NAME"])
    if line.startswith(("```", "~~~")):
        return "the code has a Markdown fence in it; send the code alone"
    if line.startswith(("$ ", "sudo ", "apt ", "apt-get ", "cd ", "ls ", "mkdir ", "echo ")):
        return "a shell command needs a ! before it, or %%bash as the cell's first line"
    return ""
