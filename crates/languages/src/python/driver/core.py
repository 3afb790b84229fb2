"""The driver of a Python session: reads cells from one descriptor, runs them in `__main__` and answers on another.

This is not a security boundary. The code of a cell shares this process and can read, break or imitate everything
here, so the host trusts none of its output. For well-meaning code, ordinary accidents (a closed or replaced stdout, a
shadowed builtin, a repr that raises, an interrupt at any moment) leave the session usable.

Methods: builtins are looked up in a private copy, which the boot code put into `__builtins__`. Names that are needed
later are bound at the start. Only modules that the interpreter has already loaded are imported, because a cold start
must cost little more than a bare interpreter. Everything that a plain cell does not need is in the other files, which
`part` loads at first use.

"""

import sys
import posix
import builtins
import io
import _codecs
import _signal
import _thread
from posix import _exit, close, dup2, fork, fstat, getcwd, getpid, kill, pipe, read, readv, set_blocking, setpgid
from posix import setsid, waitpid, write

import _ast

try:
    from _json import encode_basestring, make_encoder, make_scanner

    encode = make_encoder(None, list, encode_basestring, None, ":", ",", False, False, False)
except ImportError:  # an interpreter without the accelerator
    from json.encoder import JSONEncoder
    from json.scanner import py_make_scanner as make_scanner

    encode = JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).iterencode

HOME = "/home/user"
TEXT_LIMIT = 64 << 10
DISPLAY_LIMIT = 64
SOURCES_LIMIT = 16 << 20
KEPT = 100
HEAVY = 1 << 20
ONLY_AST = 0x400
TOP_LEVEL_AWAIT = 0x2000
FUTURE_FLAGS = 0x1FE0000
COROUTINE = 0x80

PID = getpid()
USER = posix.getuid()
SHIMS = "/tmp/.sandcell-bin-%d"  # the stand-in programs for commands of cells, by user
MAIN_THREAD = _thread.get_ident()
STANDARD_PATH, SITE = list(sys.path), []  # the second is the end of the first: the site folders
NOTHING = object()
SYSTEM = posix.system


class Session:
    """The mutable state of the session. It is an instance, because each change of a class attribute invalidates
    Python's lookup caches."""

    nonce = None  # of the running cell
    last_nonce = ""
    cell = 0
    armed = False  # an interrupt becomes KeyboardInterrupt
    pending = False  # one arrived while the cell ran driver code
    early = True  # one arrived while no cell ran, perhaps for the next one
    sending = False  # the main thread writes a frame: an interrupt waits until it is whole
    late = False  # an interrupt was deferred
    child = False  # this process is a fork made by user code
    is_zygote = False  # this process is a zygote, whose forks become sessions
    is_snapshotting = False  # a snapshot is being forked, or this process is one: no fork handlers run
    copy_below = 0  # the largest memory of a session that takes snapshots; 0 disables them
    copy_after = 0  # the idle time before a snapshot, in milliseconds
    answers = True  # the host acknowledges displays
    whole = False  # the state that a cell can break was checked after the last one
    snapshot_due = False  # a cell has run since the last snapshot
    future = 0  # `from __future__` flags of earlier cells
    loop = None  # for top-level await
    syntax_error = None  # raised by the cell's own text, not by code it ran
    stdin_text = False  # the cell has standard input
    packages = False  # the host installs packages on request
    shown = 0
    dropped = 0
    waiting = []  # displays made while no cell ran
    captured = None  # receives displays while output is captured
    failed = None  # the errors of display methods of the last value, while they are called
    exact = False  # values of the cell also have their complete data, for programs
    execution = None  # the host's id of the running cell, for calls of its tools
    formatted = False  # display functions are registered
    reloads = False  # modules that have changed are loaded again before each cell
    inputs = []  # `In`
    outputs = {}  # `Out`
    last = ("", "", "")  # `_`, `__` and `___`
    reserve = None  # reserved memory: the driver, and code that frees variables, needs some after a cell used up the rest
    watched = False  # code that used up all memory gets an error and continues
    flush_c = None  # flushes the buffers of the C library, where that is possible


session = Session()


# ---------------------------------------------------------------- frames


class _scanner_rules:
    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo = {}


scan = make_scanner(_scanner_rules)


def dump(value):
    """Returns the JSON of a frame header. Importing the json module would take longer than the whole start."""
    return "".join(encode(value, 0)).encode("utf-8", "sandcell")


_codecs.register_error("sandcell", lambda error: part("imports").spell_out(error))


class Inbox:
    """Frames from the host, read ahead where that does not block."""

    def __init__(self):
        self.buffer = bytearray()
        # Allocated once, because large allocations are slow.
        self.room = bytearray(1 << 16)

    def next(self):
        while True:
            frame = self.ready()
            if frame is not None:
                return frame
            self.read()

    def read(self):
        """Reads the next bytes from the host. The session ends when the host has closed the channel."""
        size = readv(CONTROL_IN, (self.room,))
        if not size:
            _exit(0)
        self.buffer += memoryview(self.room)[:size]

    def ready(self):
        """Returns the header of the first complete frame, or None. Bytes after the header are its `rest`."""
        have = len(self.buffer)
        if have < 8:
            return None
        size = int.from_bytes(self.buffer[:4], "little")
        if have < 4 + size:
            return None
        with memoryview(self.buffer) as view:
            end = 8 + int.from_bytes(view[4:8], "little")
            header, _ = scan(str(view[8:end], "utf-8"), 0)
            header["rest"] = bytes(view[end : 4 + size])
        del self.buffer[: 4 + size]
        return header

    def interrupt_waits(self, nonce):
        """Returns True if the host requested an interrupt of this cell before its code could be interrupted."""
        # Bytes already read may contain the request as well.
        self.read_ahead()
        found = False
        frame = self.ready()
        while frame is not None:
            found = found or (frame.get("type") == "interrupt" and frame.get("nonce") == nonce)
            frame = self.ready()
        return found

    def read_ahead(self):
        """Reads the bytes that have already arrived."""
        if POLL is not None:
            if POLL.poll(0):
                self.read()
            return
        set_blocking(CONTROL_IN, False)
        try:
            self.read()
        except BlockingIOError:
            pass
        finally:
            set_blocking(CONTROL_IN, True)


POLL = None  # for frames from the host, where `select` is loaded
inbox = Inbox()
out_lock = _thread.allocate_lock()


def send(header, blobs=()):
    """Sends one frame, whole, from any thread. In a forked child it does nothing."""
    if session.child:
        return
    if blobs:
        header["blobs"] = [{"mime": mime, "bytes": len(data)} for mime, data in blobs]
    text = dump(header)
    size = 4 + len(text) + sum([len(data) for _, data in blobs])
    frame = b"".join(
        [size.to_bytes(4, "little"), len(text).to_bytes(4, "little"), text, *[data for _, data in blobs]]
    )
    main = _thread.get_ident() == MAIN_THREAD
    if main:
        if session.sending:
            return  # a signal handler of user code in the middle of a frame
        session.sending = True
    out_lock.acquire()
    try:
        view = memoryview(frame)
        while view:
            view = view[write(CONTROL_OUT, view) :]
    except OSError:
        say("sandcell: the session's control channel is gone (was its descriptor closed?); the session ends\n")
        posix._exit(71)
    finally:
        out_lock.release()
        if main:
            session.sending = False
            if session.late:
                session.late = False
                if session.armed:
                    raise KeyboardInterrupt


def say(text):
    """Writes to the real stderr, bypassing the current `sys.stderr`."""
    try:
        write(ERR_COPY, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


# ---------------------------------------------------------------- interrupts


def on_interrupt(_signal_number, frame):
    """Handles SIGINT: ignored between cells, one KeyboardInterrupt in the code of a cell. An interrupt inside
    `guarded` itself also disarms, because its handlers must run undisturbed: a second one cannot be raised."""
    if session.nonce is None:
        session.early = True
        return
    if not session.armed:
        session.pending = True
        return
    if session.sending and _thread.get_ident() == MAIN_THREAD:
        session.late = True
        return
    if frame is not None and frame.f_code is GUARDED:
        session.armed = False
    if not part("imports").in_hook(frame):
        raise KeyboardInterrupt


def on_nudge(_signal_number, _frame):
    """Handles SIGURG: interrupts a blocking call, so that Python processes pending signals."""


def on_unraisable(unraisable, tell=sys.unraisablehook):
    """Resends an interrupt that hit a destructor, a callback or this function, because it would be lost."""
    try:
        if unraisable.exc_type is KeyboardInterrupt and session.armed:
            part("imports").interrupt_soon()
        else:
            tell(unraisable)
    except KeyboardInterrupt:
        pass


def guarded(function, *arguments):
    """Calls a function that runs user code. Always returns (value, None) or (None, exception)."""
    try:
        try:
            session.armed = True
            if session.pending:
                session.pending = False
                raise KeyboardInterrupt
            return function(*arguments), None
        finally:
            session.armed = False
    except BaseException as error:
        return None, error


GUARDED, UNRAISABLE = guarded.__code__, on_unraisable.__code__


# ---------------------------------------------------------------- parts and imports


PARTS = {}
CODES = {}


def part(name):
    """Returns another file of the driver, loaded at first use. It sees this module as `core`."""
    found = PARTS.get(name)
    if found is None:
        found = type(sys)("sandcell_" + name)
        found.__dict__.update(__builtins__=__builtins__, core=CORE)
        exec(CODES.pop(name, None) or code_of(name), found.__dict__)
        found = PARTS.setdefault(name, found)  # another thread may have been faster
    return found


def keep_code(name):
    """Loads the code of a part that cannot be loaded later."""
    CODES[name] = code_of(name)


def standard(name):
    """Returns a module of the standard library, even if a user file has the same name."""
    found = sys.modules.get(name)
    if found is None:
        path = sys.path
        if path is STANDARD_PATH:
            __import__(name)  # another call, perhaps of another thread, restores the path
        else:
            sys.path = STANDARD_PATH
            try:
                __import__(name)
            finally:
                sys.path = path
        found = sys.modules[name]
    return found


class Hooks:
    """The first and the last entry of `sys.meta_path`. The first runs code after certain modules were imported. The
    last adds the .pth files of the site folders, and the user site folder, when an import would otherwise fail."""

    wanted = {}
    site_done = False

    def __init__(self, last):
        self.last = last

    def find_spec(self, name, path=None, target=None):
        if self.last:
            return self.last_resort(name, path, target)
        if name not in self.wanted:
            return None
        for finder in sys.meta_path:
            if not isinstance(finder, Hooks):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        else:
            return None
        if isinstance(spec.loader, type) or not hasattr(spec.loader, "exec_module"):
            return spec  # the loader of frozen modules is one shared class
        original = spec.loader.exec_module

        def exec_module(module):
            original(module)
            try:
                self.wanted.pop(name, id)(module)  # not in find_spec, which many callers use without importing
            except Exception:
                pass  # the library has changed: it works unadapted

        spec.loader.exec_module = exec_module
        return spec

    def last_resort(self, name, path, target):
        if path is not None:
            return part("notebook").ipython_spec(name) if name.startswith("IPython.") else None
        if part("imports").late_site():
            for finder in sys.meta_path:
                if not isinstance(finder, Hooks):
                    spec = finder.find_spec(name, None, target)
                    if spec is not None:
                        return spec
        return part("notebook").ipython_spec(name) if name == "IPython" else None


def when_imported(name, action):
    """Calls `action(module)` after the module is imported, or now if it is already loaded."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        Hooks.wanted[name] = action


def find_site():
    site = BOOT.get("site")
    if site is None:
        site = part("imports").find_site()
    elif BOOT.get("prefix"):
        sys.prefix = sys.exec_prefix = BOOT["prefix"]
    STANDARD_PATH.extend(site)
    SITE.extend(site)


def set_up_paths():
    """Sets the module search path."""
    asked = posix.environ.get(b"PYTHONPATH", b"").decode("utf-8", "surrogateescape")
    # Packages appear in the layer folders while the session runs. They win over packages of the machine.
    layers = BOOT.get("layers", [])
    own = STANDARD_PATH[: len(STANDARD_PATH) - len(SITE)]
    sys.path[:] = ["", *[item for item in asked.split(":") if item], *own, *layers, *SITE]


def set_up_commands():
    """Puts the session's interpreter and the pip stand-in first on the PATH of commands."""
    path = posix.environ.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").decode("utf-8", "surrogateescape")
    own = [folder for folder in [sys.executable.rpartition("/")[0]] if folder not in path.split(":")]
    path = ":".join([SHIMS % USER] + own + [path])
    posix.environ[b"PATH"] = whole = path.encode("utf-8", "surrogateescape")
    posix.putenv(b"PATH", whole)
    if "os" in sys.modules:
        sys.modules["os"].environ["PATH"] = path


def set_up_imports():
    sys.meta_path.insert(0, Hooks(False))
    sys.meta_path.append(Hooks(True))
    sys.argv = ["ipykernel_launcher.py"]  # argparse uses it in messages
    posix.system = lambda command: part("packages").system(command)
    if "os" in sys.modules:
        sys.modules["os"].system = posix.system
    for name, action in (
        ("linecache", "linecache"), ("inspect", "inspect"), ("warnings", "warnings"), ("pandas", "pandas"), ("matplotlib", "matplotlib"),
        ("plotly.basedatatypes", "plotly"), ("IPython", "ipython"), ("asyncio", "asyncio"),
        ("multiprocessing.context", "multiprocessing"), ("multiprocessing.spawn", "spawn"), ("numba.core.caching", "numba"), ("rich.console", "rich"), ("subprocess", "subprocess"), ("tqdm.std", "tqdm"),
        ("PIL.ImageShow", "pillow"), ("ctypes", "ctypes"),
    ):
        when_imported(name, lambda module, action=action: getattr(part("imports"), "on_" + action)(module))


SOURCES = {}


def remember(name, text):
    """Stores the text of a cell for tracebacks and inspect.getsource. The oldest texts are dropped beyond the limit."""
    SOURCES[name] = text
    remember.size += len(text)
    while remember.size > SOURCES_LIMIT and len(SOURCES) > 1:
        oldest = next(iter(SOURCES))
        remember.size -= len(SOURCES.pop(oldest))
        module = sys.modules.get("linecache")
        if module is not None:
            module.cache.pop(oldest, None)
    module = sys.modules.get("linecache")
    if module is not None:
        part("imports").on_linecache(module, (name,))


remember.size = 0


# ---------------------------------------------------------------- running code


def parse(text, name):
    """Returns the syntax tree of the cell. Notebook syntax is tried only if the text is not valid Python."""
    flags = ONLY_AST | TOP_LEVEL_AWAIT | session.future
    try:
        return compile(text, name, "exec", flags, True)
    except SyntaxError as error:
        failure = error
    other = part("magics").rewrite(text, failure)
    if other is not None:
        try:
            return compile(other, name, "exec", flags, True)
        except SyntaxError as error:
            failure = error
    session.syntax_error = failure
    raise failure from None


def shows_more():
    """Returns True if a cell shows other values than that of its last expression."""
    return "shell" in PARTS and PARTS["shell"].SHELL.ast_node_interactivity != "last_expr"


def prepare(text, name):
    """Compiles a cell and returns (code of the statements or None, code of the last expression or None)."""
    own_way = shows_more()
    tree = parse(text, name)
    last = None
    tree, shows = part("shell").interactive(tree) if own_way else (tree, True)
    if shows and tree.body and type(tree.body[-1]) is _ast.Expr and not part("imports").ends_silently(text, tree.body[-1]):
        last = tree.body.pop().value
    flags = TOP_LEVEL_AWAIT | session.future
    body = None
    try:
        if tree.body:
            body = compile(tree, name, "exec", flags, True)
            session.future |= body.co_flags & FUTURE_FLAGS
            flags |= session.future
        if last is not None:
            last = compile(_ast.Expression(last), name, "eval", flags, True)
    except SyntaxError as error:
        session.syntax_error = error
        raise
    return body, last


def run_code(code):
    value = eval(code, NAMES)
    if code.co_flags & COROUTINE:
        value = part("imports").run_awaitable(value)
    return value


def execute(text, name):
    """Runs the text of a cell. Returns the value of the last expression, or NOTHING."""
    try:
        remember(name, text)
        if session.reloads:
            part("reloads").load_changed()
        if text.lstrip().startswith("%%"):
            return part("magics").cell(text, name)
        return run_text(text, name)
    finally:
        session.reserve = None  # freed before any allocation


def run_text(text, name):
    body, last = prepare(text, name)
    if session.watched:
        session.reserve = part("imports").reserve()
    if body is not None:
        run_code(body)
    return NOTHING if last is None else run_code(last)


def begin(header):
    """Prepares a cell. This part is already interruptible."""
    if not session.whole or sys.stdout is not streams[1] or sys.stderr is not streams[2]:
        heal()
    session.whole = False
    try:
        getcwd()
    except OSError:  # another process may have removed the folder
        part("imports").leave_folder()
    keep_input(header["code"])
    give_stdin(header.get("stdin"))
    NAMES.pop("__warningregistry__", None)
    if session.loop is not None and not session.loop.is_closed():
        standard("asyncio").set_event_loop(session.loop)
    waiting, session.waiting = session.waiting, []
    for blobs in waiting:
        show(blobs)


def run_cell(header):
    session.pending = False
    session.nonce = session.last_nonce = header["nonce"]
    session.cell, session.packages = header["cell"], header.get("packages")
    session.watched, session.exact = header.get("watched"), header.get("exact")
    session.execution = header.get("execution")
    session.copy_below, session.copy_after = header.get("copy_below", 0), header.get("copy_after", 0)
    session.shown, session.dropped, session.captured, session.failed = 0, 0, None, None
    session.syntax_error = None
    value, error = guarded(begin, header)
    if error is None and session.early:
        session.early = False
        if inbox.interrupt_waits(session.nonce):
            session.pending = True  # raised in the code: raising it while reading could lose half a frame
    if error is None:
        value, error = guarded(execute, header["code"], "<cell %d>" % header["cell"])
    if session.child or getpid() != PID:
        part("imports").end_child(error)
    if error is None and value is not NOTHING and value is not None:
        _, error = guarded(publish, value)
    value = None
    if error is None and session.loop is not None:
        _, error = guarded(part("imports").start_tasks)
        guarded(part("imports").end_idle_threads)
    if "matplotlib.pyplot" in sys.modules:
        _, failure = guarded(part("charts").flush)
        error = error or failure
    _, failure = guarded(finish_output)
    error = error or failure
    report = {"type": "done", "nonce": session.nonce, "status": "ok"}
    if error is not None:
        if sys.getrecursionlimit() < 400:
            sys.setrecursionlimit(1000)
        report.update(part("errors").outcome(error))
        _, _ = guarded(finish_output)
    send(report)
    session.nonce = None
    if session.pending:
        session.early = True  # the cell has been reported as done: the interrupt may be for the next one
    session.snapshot_due = session.copy_below > 0
    guarded(heal)


# ---------------------------------------------------------------- values


def clip(text, limit=TEXT_LIMIT):
    """Returns at most `limit` bytes of UTF-8, with a note about the total length."""
    total = str.__len__(text)
    data = str.__getitem__(text, slice(0, limit)).encode("utf-8", "backslashreplace")
    if total <= limit and len(data) <= limit:
        return data
    note = "\n... (%d characters in all)" % total
    return data[: limit - 64].decode("utf-8", "ignore").encode("utf-8") + note.encode("ascii")


def keep_input(text):
    """Sets `In`, `_i` and `_iN`. Entries older than KEPT cells are removed, as in `Out`."""
    inputs, cell = session.inputs, session.cell
    del inputs[cell:]
    inputs.extend([""] * (cell - len(inputs)))
    inputs.append(text if len(text) < 100000 else text[:100000])
    if cell > KEPT:
        inputs[cell - KEPT] = ""
        NAMES.pop("_i%d" % (cell - KEPT), None)
        part("shell").forget_output(cell - KEPT)
    before = ["", "", *inputs[max(0, cell - 3) : cell]]
    NAMES["_i%d" % cell] = inputs[cell]
    NAMES.update(_ih=inputs, _oh=session.outputs, _i=before[-1], _ii=before[-2], _iii=before[-3])
    for name, value in (("In", inputs), ("Out", session.outputs)):
        NAMES.setdefault(name, value)


def keep_output(value):
    """Sets `_`, `__`, `___`, `_N` and `Out`. Variables of the caller with these names stay, as in a notebook."""
    if value is session.outputs:
        return
    session.outputs[session.cell] = NAMES["_%d" % session.cell] = value
    names, last = ("_", "__", "___"), session.last
    if not hasattr(builtins, "_") and all([NAMES.get(name, kept) is kept for name, kept in zip(names, last)]):
        session.last = value, last[0], last[1]
        NAMES.update(zip(names, session.last))


def publish(value):
    """Stores the value of the last expression as `_` and sends it."""
    keep_output(value)
    kind, failed = type(value), []
    if kind.__module__ != "builtins" or (kind is str and len(value) > HEAVY):
        part("shell").weigh(value)
    if (kind is float or kind is bool or kind is int and -HEAVY < value < HEAVY) and not session.formatted:
        blobs = [("text/plain", repr(value).encode("ascii"))]
    else:
        blobs, failed = part("rich").result(value)
    if blobs:  # otherwise the value has displayed itself
        flush_streams()
        send({"type": "result", "nonce": session.nonce}, blobs)
    if failed:
        raise failed[-1]


def show(blobs):
    """Sends a display, up to the limit of the cell. Between cells it is queued for the next one."""
    if not blobs:
        return  # the value has displayed itself
    if session.captured is not None:
        session.captured.append(blobs)
        return
    if session.child:
        for mime, data in blobs:
            if mime == "text/plain":
                print(data.decode("utf-8", "replace"))
        return
    if session.nonce is None:
        if len(session.waiting) < 16:
            session.waiting.append(blobs)
        return
    if session.shown >= DISPLAY_LIMIT:
        session.dropped += 1
        return
    session.shown += 1
    flush_streams()
    send({"type": "display", "nonce": session.nonce}, blobs)
    part("imports").await_shown()


def display(*values, raw=False, **_options):
    """Displays values in all their representations. With `raw`, each value is a mapping of MIME types."""
    for value in values:
        show(part("rich").bundle_of_raw(value) if raw else part("rich").displayed(value))


def finish_output():
    """Ends the output of a cell: adds the note about dropped displays and flushes all buffers."""
    if session.dropped:
        text = "%d more displays were left out (at most %d a cell)" % (session.dropped, DISPLAY_LIMIT)
        session.dropped = 0
        send({"type": "display", "nonce": session.nonce}, [("text/plain", text.encode("ascii"))])
    flush_streams()


def flush_streams():
    if session.flush_c is not None:
        session.flush_c()
    now, out, err = (getattr(sys, "stdout", None), getattr(sys, "stderr", None)), streams[1], streams[2]
    for stream in (*[stream for stream in now if stream is not out and stream is not err], out, err):
        try:
            stream.flush()
        except Exception:
            pass


# ---------------------------------------------------------------- descriptors and streams


COPIES = []


def move_up(fd):
    """Returns a duplicate of `fd` at a high number, which loops that close low descriptors do not reach. Programs do
    not inherit it."""
    for base in (1000, 500, 200, 50):
        try:
            copy = dup2(fd, base + len(COPIES), False)
        except OSError:
            continue
        COPIES.append(copy)
        return copy
    COPIES.append(posix.dup(fd))
    return COPIES[-1]


def identity(fd):
    status = fstat(fd)
    return status.st_dev, status.st_ino


def open_stream(fd):
    raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return io.TextIOWrapper(raw, "UTF-8", "backslashreplace", line_buffering=True)


def record_outputs():
    IDENTITIES.update([(fd, identity(fd)) for fd in (1, 2)])
    session.whole = True


def heal():
    """Repairs what a cell can break: the interrupt handler, descriptors 1 and 2, and sys.stdout."""
    if _signal.getsignal(_signal.SIGINT) is not on_interrupt:
        _signal.signal(_signal.SIGINT, on_interrupt)
        session.early = True
    for fd, copy in ((1, OUT_COPY), (2, ERR_COPY)):
        try:
            whole = identity(fd) == IDENTITIES.get(fd)
        except OSError:
            whole = False
        if not whole:
            dup2(copy, fd)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        if streams[fd].closed:
            streams[fd] = open_stream(fd)
        stream = getattr(sys, name, None)
        kind = type(stream)
        usable = hasattr(kind, "write") and not (kind.__module__ == "_io" and stream.closed)
        if not usable:
            setattr(sys, name, streams[fd])
    session.whole = not _thread._count()  # threads can break it again at any time


class StdinMissing(EOFError):
    """The error for reading the standard input of a cell that has none."""


StdinMissing.__name__ = StdinMissing.__qualname__ = "EOFError"
StdinMissing.__module__ = "builtins"


class NoStdin(io.TextIOBase):
    """The standard input of a cell without input: reading it raises an error with the remedy."""

    encoding = "utf-8"
    errors = "strict"
    name = "<stdin>"
    mode = "r"

    def _missing(self, *_arguments):
        raise StdinMissing("no standard input: pass `stdin` with the call (one line for each input())")

    read = readline = readlines = readinto = read1 = __iter__ = __next__ = _missing

    @property
    def buffer(self):
        return self

    def readable(self):
        return True

    def fileno(self):
        return 0

    def close(self):
        pass


NO_STDIN = NoStdin()


def give_stdin(text):
    """Sets `text` (or nothing) as standard input of this process and its child processes."""
    sys.stdin = NO_STDIN
    if text is not None or session.stdin_text:
        part("imports").give_text(text)


# ---------------------------------------------------------------- start


class Leaver:
    """Implements `exit` and `quit`: they end the cell and keep the session."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return "%s() ends this cell; the session and its variables stay" % self.name

    def __call__(self, code=None):
        raise SystemExit(code)


class Helper:
    """Implements `help(thing)` without the interactive mode."""

    def __repr__(self):
        return "help(thing) describes it"

    def __call__(self, *things, **named):
        if not things and not named:
            print(self)
            return None
        return standard("pydoc").help(*things, **named)


class Notice(Leaver):
    """Implements `copyright`, `credits` and `license`."""

    def __repr__(self):
        return self.name

    def __call__(self):
        print(self.name)


AT_FORK = []  # registered handlers: (before, in the parent, in the child, True if they only handle locks)


def register_at_fork(**handlers):
    """Replaces `os.register_at_fork`, because snapshots of the session must not call the handlers."""
    part("imports").register_at_fork(**handlers)


def really_register(handlers, register=posix.register_at_fork):
    register(**handlers)


def before_fork():
    if not (session.is_zygote or session.is_snapshotting):
        flush_streams()


def in_child():
    """Detaches a fork made by user code from the session."""
    if session.is_zygote or session.is_snapshotting:
        return
    session.child = True
    session.loop = None
    for copy in COPIES:
        if copy not in (OUT_COPY, ERR_COPY):
            try:
                close(copy)
            except OSError:
                pass
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def make_main():
    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __spec__=None, __loader__=None, __package__=None, __doc__=None)
    sys.modules["__main__"] = main
    builtins.display = display
    builtins.get_ipython = lambda: part("shell").SHELL
    builtins.exit, builtins.quit, builtins.help = Leaver("exit"), Leaver("quit"), Helper()
    builtins.copyright = Notice(sys.copyright)
    builtins.credits = builtins.license = Notice("see https://docs.python.org/3/license.html")
    return main


def raise_oom_score():
    """Makes the OOM killer prefer the interpreter to the first process of the sandbox."""
    try:
        with io.FileIO("/proc/self/oom_score_adj", "w") as file:
            file.write(b"300")
    except OSError:
        pass


def serve():
    """Serves frames until the host closes its end."""
    while True:
        while session.snapshot_due and not part("snapshots").snapshot_when_idle():
            pass
        header = inbox.next()
        if session.snapshot_due and header.get("type") == "run" and part("snapshots").snapshot_before(header):
            continue
        answer(header)


# Requests that a part handles: its name, and the function.
HANDLERS = {"checkpoint": ("snapshots", "keep"), "released": ("snapshots", "released"), "measure": ("snapshots", "measure")}
HANDLERS.update({"load": ("images", "load"), "environment": ("environment", "add")})


def answer(header):
    kind = header.get("type")
    if kind == "run":
        run_cell(header)
    elif kind == "variables":
        listed, failure = guarded(part("variables").listing, NAMES)
        send({"type": "variables", "nonce": header.get("nonce"), "variables": [] if failure else listed})
    elif kind in HANDLERS:
        getattr(part(HANDLERS[kind][0]), HANDLERS[kind][1])(header)
    elif kind == "preload":
        send(part("imports").get_ready(header))
    elif kind == "parts":
        unpack(header["blobs"], header["rest"])


def set_up():
    """Sets up everything that does not depend on the caller of the session."""
    global NAMES
    _signal.signal(_signal.SIGINT, on_interrupt)
    _signal.signal(_signal.SIGURG, on_nudge)
    sys.unraisablehook = on_unraisable
    sys.stdin = NO_STDIN
    posix.register_at_fork = register_at_fork
    if "os" in sys.modules:
        sys.modules["os"].register_at_fork = register_at_fork
    NAMES = make_main().__dict__
    set_up_imports()


def place_descriptors():
    """Moves the descriptors of this session to their reserved numbers."""
    global PID
    PID = getpid()
    for fd, place in zip(INITIAL_DESCRIPTORS, COPIES):
        dup2(fd, place, False)
    close(3)
    close(4)


def reserve_descriptors():
    """Reserves the descriptor numbers of a session and registers the handlers for forks."""
    global CONTROL_IN, CONTROL_OUT, OUT_COPY, ERR_COPY
    CONTROL_IN, CONTROL_OUT, OUT_COPY, ERR_COPY = [move_up(fd) for fd in INITIAL_DESCRIPTORS]
    really_register({"before": before_fork, "after_in_child": in_child})


INITIAL_DESCRIPTORS = CONTROL_IN, CONTROL_OUT, OUT_COPY, ERR_COPY = 3, 4, 1, 2
NAMES, IDENTITIES, streams = {}, {}, {1: sys.stdout, 2: sys.stderr}
if BOOT.get("zygote"):
    rest = inbox.next()
    unpack(rest["blobs"], rest["rest"])
    part("zygote").run_zygote()
else:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="UTF-8", errors="backslashreplace", line_buffering=True)
    reserve_descriptors()
    place_descriptors()
    raise_oom_score()
    find_site()
    set_up_paths()
    set_up_commands()
    set_up()
    record_outputs()
if posix.environ.get(b"SANDCELL_TOOLS_URL"):
    part("tooloffer")
serve()
