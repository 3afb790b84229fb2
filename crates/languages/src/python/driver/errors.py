"""Exceptions as the caller should read them: short tracebacks that point at their own lines, and what to do next."""

import sys

MESSAGE_LIMIT = 4000
OWN_FOLDERS = ("/home/user/", "/tmp/")
DEEPEST = 400

# Import names whose package is called otherwise.
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

CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def describe(error):
    """The fields of `CellError` for an exception."""
    kind, hint = explain(error)
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
    """The traceback as text, without a line feed at the end."""
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
        lines = render(shown, traceback, 0)
    text = "".join([line if len(line) <= MESSAGE_LIMIT else line[:MESSAGE_LIMIT] + " ...\n" for line in lines])
    return core.clip(text, 4 * MESSAGE_LIMIT).decode("utf-8").rstrip("\n")


def render(shown, traceback, depth):
    """One exception of a chain, after those that led to it."""
    lines = []
    before = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    if before is not None and depth < 8:
        lines += render(before, traceback, depth + 1)
        lines.append(CAUSE if shown.__cause__ is not None else CONTEXT)
    stack = stack_lines(shown.stack, traceback)
    if stack:
        lines.append("Traceback (most recent call last):\n")
        lines += stack
    lines += shown.format_exception_only()
    for number, inner in enumerate((getattr(shown, "exceptions", None) or ())[:8], 1):
        lines.append("  -- exception %d of the group --\n" % number)
        lines += ["  " + line.replace("\n", "\n  ").rstrip(" ") for line in render(inner, traceback, depth + 1)]
    return lines


def stack_lines(stack, traceback):
    """The caller's own frames with their source; runs of library frames become one line; ours vanish."""
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
    """The name of the package that a file belongs to."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in filename:
            return filename.rpartition(mark)[2].partition("/")[0].replace(".py", "")
    if filename.startswith("<frozen "):
        return filename[8:-1]
    if not filename.startswith("/"):
        return filename.partition("/")[0]
    parts = filename.rpartition("/lib/python")[2].split("/")
    return parts[1].replace(".py", "") if len(parts) > 1 else filename.rpartition("/")[2]


# ---------------------------------------------------------------- what to do next


def explain(error):
    """(class, hint) of an exception or of what led to it."""
    seen = 0
    while error is not None and seen < 10:
        found = explain_one(error)
        if found != ("", ""):
            return found
        error = error.__cause__ or error.__context__
        seen += 1
    return "", ""


def explain_one(error):
    kind = type(error)
    if isinstance(error, ModuleNotFoundError):
        return "", missing_module(error)
    if isinstance(error, MemoryError):
        return "memory", "the sandbox's memory limit does not allow this; work on smaller pieces or use smaller types"
    if isinstance(error, EOFError):
        return stdin_ended(error)
    if isinstance(error, OSError):
        return explain_os(error)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "processes", "the sandbox's limit of processes and threads is reached; use fewer workers"
    if isinstance(error, SyntaxError) and error is core.session.syntax_error:
        return "", syntax_hint(error)
    if isinstance(error, NameError):
        return "", name_hint(error)
    name = kind.__module__.partition(".")[0] + "." + kind.__name__
    if name in NETWORK_ERRORS:
        return "network", NETWORK_HINT
    if kind.__name__ == "BrokenProcessPool":
        return "", "a worker process died; most often the memory limit, or the worker called os._exit"
    return "", ""


NETWORK_HINT = "this sandbox has no network; bring the data in as a file or in the code instead"
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
        return "network", NETWORK_HINT
    if number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return "network", NETWORK_HINT
    if number in (errno.EPERM, errno.EACCES) and error.filename is None and from_socket(error):
        return "network", NETWORK_HINT
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "disk", "the sandbox's disk is full (bytes or number of files); delete what is not needed"
    if number == errno.EFBIG:
        return "disk", "the file is larger than the sandbox allows"
    if number == errno.ENOMEM:
        return "memory", "the sandbox's memory limit does not allow this"
    if number == errno.EAGAIN and (isinstance(error, BlockingIOError) and from_fork(error)):
        return "processes", "the sandbox's limit of processes and threads is reached; use fewer workers"
    if number == errno.EROFS:
        return "", "this part of the file system is read-only; write below /home/user or /tmp"
    if number == errno.EACCES and error.filename and not str(error.filename).startswith(OWN_FOLDERS):
        return "", "only /home/user and /tmp can be written"
    if isinstance(error, FileNotFoundError) and error.filename:
        return "", file_hint(str(error.filename))
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
    """Whether the refusal came out of a call on a socket."""
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
    return "the package to install is %s (it is not in this sandbox)" % package


def stdin_ended(error):
    if isinstance(error, core.StdinMissing):
        return "stdin", "pass `stdin` with the call: one line for each input(); nobody is there to type"
    last = innermost(error)
    if "EOF when reading a line" in str(error) and last is not None and core.session.stdin_text:
        return "stdin", "the code read more lines than `stdin` of the call has"
    return "", ""


def file_hint(filename):
    """Names like the one that is missing, in the same folder."""
    import os

    folder, name = os.path.split(filename)
    try:
        names = sorted(os.listdir(folder or "."))[:2000]
    except OSError:
        return "the folder does not exist either; the working folder is " + os.getcwd()
    near = core.standard("difflib").get_close_matches(name, names, 3, 0.6)
    if near:
        return "there is " + ", ".join(near)
    return "" if folder else "the working folder is " + os.getcwd()


def name_hint(error):
    """Close names of the session, and modules that code often expects to be imported."""
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
    near = core.standard("difflib").get_close_matches(name, names, 3, 0.75)
    return "did you mean %s?" % ", ".join(near) if near else ""


def is_module(name):
    if not name.isidentifier():
        return False
    try:
        return core.standard("importlib.util").find_spec(name) is not None
    except Exception:
        return False


def syntax_hint(error):
    line = (error.text or "").strip()
    if line.startswith(("pip install", "pip3 install", "python -m pip")):
        return "packages cannot be installed with pip from code"
    if line.startswith(("```", "~~~")):
        return "the code has a Markdown fence in it; send the code alone"
    if line.startswith(("$ ", "sudo ", "apt ", "apt-get ", "cd ", "ls ", "mkdir ", "echo ")):
        return "a shell command needs a ! before it, or %%bash as the cell's first line"
    return ""
