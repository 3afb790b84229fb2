"""What happens at and after imports: the site folders that `-S` left out, and small changes to well-known modules."""

import _signal
import posix
import sys

# In bytes: what is set aside while a cell runs. Loading a part of the driver and telling of an error takes some two MiB.
RESERVE = 4 << 20
PRIVATE = 0x22  # and of no file
SHOWN_WAIT = 1000  # for the host's word that it has a display, in milliseconds
LINE_BUFFERED = 1  # `_IOLBF`


# ---------------------------------------------------------------- site folders


class done:
    folders = set()
    user_site = False


def find_site():
    """The site folders of an interpreter that the host knows nothing about (a container's, say)."""
    import site

    folder = sys.executable.rpartition("/")[0]
    for root in (folder.rpartition("/")[0], folder):
        try:
            with open(root + "/pyvenv.cfg", encoding="utf-8") as config:
                text = config.read().lower().replace(" ", "")
        except OSError:
            continue
        base = [] if "include-system-site-packages=true" not in text else site.getsitepackages()
        sys.prefix = sys.exec_prefix = root
        return existing(site.getsitepackages([root]) + base)
    return existing(site.getsitepackages())


def existing(folders):
    return [folder for folder in folders if posix.access(folder, 0)]


def filled(folder):
    """Whether packages have appeared there by now."""
    try:
        return bool(posix.listdir(folder))
    except OSError:
        return False


def late_site():
    """Before an import fails: what .pth files of the site folders add, and the user's own site folder.

    They are not read at the start because most sessions never need them and some cost more than the interpreter itself.
    Returns whether something was added.
    """
    import os

    before = len(sys.path), len(sys.meta_path)
    if not done.user_site:
        folder = os.path.expanduser("~/.local/lib/python%d.%d/site-packages" % sys.version_info[:2])
        if os.path.isdir(folder):
            done.user_site = True
            if folder not in sys.path:
                sys.path.append(folder)
    fresh = [item for item in sys.path if item and "-packages" in item and item not in done.folders]
    fresh += [item for item in core.BOOT.get("layers", ()) if item not in done.folders and filled(item)]
    if not fresh:
        return (len(sys.path), len(sys.meta_path)) != before
    site = core.standard("site")
    for folder in fresh:
        done.folders.add(folder)
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        known = {os.path.abspath(item) for item in sys.path if item}
        for name in names:
            if name.endswith(".pth"):
                try:
                    site.addpackage(folder, name, known)
                except Exception:
                    pass
    return True


# ---------------------------------------------------------------- standard input


def stdin_file(data):
    """Standard input too large for a pipe: an unlinked file, read from its start."""
    import os

    for folder in ("/tmp", "/dev/shm", "."):
        path = "%s/.stdin-%d" % (folder, os.getpid())
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        os.unlink(path)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        return fd
    raise OSError("there is nowhere to put the %d bytes of standard input" % len(data))


def give_text(text):
    """Makes the text standard input, or takes the last one's away."""
    core.session.stdin_text = text is not None
    if text is None:
        replace_fd0(posix.open("/dev/null", posix.O_RDONLY))
        return
    data = text.encode("utf-8", "backslashreplace")
    source, sink = core.pipe()
    core.set_blocking(sink, False)
    try:
        fits = not data or core.write(sink, data) == len(data)
    except BlockingIOError:
        fits = False
    core.close(sink)
    if not fits:
        core.close(source)
        source = stdin_file(data)
    replace_fd0(source)
    io = core.io
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8", "backslashreplace")


def replace_fd0(fd):
    if fd != 0:
        core.dup2(fd, 0)
        core.close(fd)


# ---------------------------------------------------------------- awaiting


def run_awaitable(coroutine):
    """Top-level await: on a loop of the session's own that does not run between cells, so asyncio.run works too."""
    task, contexts = None, []
    outer = keeping_context(coroutine, contexts)
    try:
        asyncio = core.standard("asyncio")
        loop = session_loop(asyncio)
        task = loop.create_task(outer)
        return loop.run_until_complete(task)
    except BaseException:
        if task is None:
            outer.close()
        elif not task.done():
            task.cancel()
            loop.run_until_complete(asyncio.wait({task}, timeout=1))
        if task is None or task.done():
            coroutine.close()  # it may not have begun
        raise
    finally:
        for context in contexts:
            take_over(context)


async def keeping_context(coroutine, contexts):
    """A task has a context of its own: the one that it leaves is kept."""
    try:
        return await coroutine
    finally:
        contexts.append(core.standard("contextvars").copy_context())


def take_over(context):
    """Makes context variables what they are in this context: cells are one after the other, whether they await or not."""
    for variable, value in context.items():
        if variable.get(core.NOTHING) is not value:
            variable.set(value)


def session_loop(asyncio):
    """The session's own loop, made when it is first needed, and current. An interrupt waits until it is whole: half a
    loop would complain when it goes, in some later cell."""
    if core.session.loop is None or core.session.loop.is_closed():
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGINT])
        try:
            core.session.loop = asyncio.new_event_loop()
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    asyncio.set_event_loop(core.session.loop)
    return core.session.loop


# ---------------------------------------------------------------- interrupts


def in_hook(frame):
    """Whether an interrupt hit the hook for what cannot be raised, and must not come out. Whatever comes out below it is
    lost, so another one is sent."""
    below = frame
    while below is not None and below.f_code is not core.UNRAISABLE:
        below = below.f_back
    if below is not None:
        interrupt_soon()
    return below is not None and below is frame


def interrupt_soon():
    core._thread.start_new_thread(interrupt_again, (core.session.nonce,))


def interrupt_again(nonce):
    core.standard("time").sleep(0.001)
    if core.session.armed and core.session.nonce == nonce:
        _signal.pthread_kill(core.MAIN_THREAD, _signal.SIGINT)


# ---------------------------------------------------------------- modules loaded ahead

REHEARSED, PLAIN = "x = 1\nprint(end='')\nx", "print(end='')"


def preload(header):
    """Imports modules before the first cell. What they print is nobody's, and their names are in `sys.modules` only."""
    missing = []
    null = posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC)
    for fd in (1, 2):
        core.dup2(null, fd)
    core.close(null)
    try:
        for name in header["modules"]:
            _, failure = core.guarded(__import__, name)
            if failure is not None:
                why, _ = core.guarded(str, failure)
                missing.append({"name": name, "why": ("%s: %s" % (type(failure).__name__, why))[:300]})
        if "matplotlib.pyplot" in sys.modules:
            core.guarded(core.part("charts").warm)
        settle()
        core.flush_streams()
    finally:
        core.dup2(core.OUT_COPY, 1)
        core.dup2(core.ERR_COPY, 2)
    machine = getattr(sys, "stdlib_module_names", ())
    loaded = {name.partition(".")[0] for name in list(sys.modules)}.difference(machine)
    return {"type": "preloaded", "nonce": header["nonce"], "missing": missing, "loaded": sorted(loaded)}


def get_ready(header):
    """Loads modules, if any, and rehearses."""
    told = {"type": "preloaded", "nonce": header["nonce"], "missing": [], "loaded": []}
    if header["modules"]:
        told = preload(header)
    core.guarded(rehearse)
    return told


class mapping:
    """What maps memory, bound before any code of a cell has run."""

    make = None


def reserve():
    """Memory that nobody writes to: it costs nothing but the right to have it. None if there is no more."""
    try:
        if mapping.make is None:
            mapping.make = core.standard("mmap").mmap
        return mapping.make(-1, RESERVE, PRIVATE)
    except Exception:
        return None


def rehearse():
    """Runs a cell that nobody hears of and that leaves nothing: memory that every cell writes to is this process' own afterwards."""
    session, told, names = core.session, core.CONTROL_OUT, dict(core.NAMES)
    core.CONTROL_OUT = posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC)
    session.nonce, session.cell = "sandcell-0", 1
    try:
        go_through({"code": REHEARSED, "stdin": None}, PLAIN, "<cell 1>")
    finally:
        core.close(core.CONTROL_OUT)
        core.CONTROL_OUT = told
        forget(names)


def go_through(header, line, name):
    """Takes all steps of a cell and of another one of one line, each as it is taken for a caller."""
    step(core.begin, header)
    step(core.publish, step(core.execute, header["code"], name))
    step(core.run_text, line, name)
    step(core.finish_output)
    core.send({"type": "done", "nonce": core.session.nonce, "status": "ok"})
    step(core.heal)


def step(function, *arguments):
    value, error = core.guarded(function, *arguments)
    if error is not None:
        raise error
    return value


def forget(names):
    """Leaves nothing of a cell that was rehearsed but the names that were there before it."""
    session = core.session
    name = "<cell %d>" % session.cell
    session.nonce, session.last_nonce, session.cell, session.last = None, "", 0, ("", "", "")
    core.NAMES.clear()
    core.NAMES.update(names)
    session.inputs.clear()
    session.outputs.clear()
    core.remember.size -= len(core.SOURCES.pop(name, ""))
    if "linecache" in sys.modules:
        sys.modules["linecache"].cache.pop(name, None)


def renumber():
    """After a fork without Python's own round of it: the number that the system has for this thread is another one."""
    threading = sys.modules.get("threading")
    if threading:
        threading.main_thread()._set_native_id()


def await_shown():
    """Waits until the host has a display: what is printed next would overtake it. An interrupt ends the waiting."""
    session = core.session
    if core._thread.get_ident() != core.MAIN_THREAD:
        return
    armed, session.armed = session.armed, False  # not out of the middle of reading, which would lose a frame
    poll = core.POLL
    try:
        if poll is None:
            select = core.standard("select")
            poll = select.poll()
            poll.register(core.CONTROL_IN, select.POLLIN)
        while session.answers:
            frame = core.inbox.ready()
            if frame is not None:
                if frame.get("type") == "shown" and frame["nonce"] == session.nonce and frame["count"] >= session.shown:
                    break
            elif poll.poll(SHOWN_WAIT):
                core.inbox.read()
            else:
                session.answers = session.pending
                break
    finally:
        session.armed = armed
    if armed and session.pending:
        session.pending = False
        raise KeyboardInterrupt


def ends_silently(text, last):
    """Whether a `;` follows the last expression. Behind it only brackets, comments and blanks are possible."""
    lines = text.encode("utf-8", "surrogatepass").split(b"\n")[last.end_lineno - 1 :]
    if lines:
        lines[0] = lines[0][last.end_col_offset :]
    return any([b";" in line.partition(b"#")[0] for line in lines])


def leave_folder():
    posix.chdir(core.HOME if posix.access(core.HOME, 0) else "/")
    print("sandcell: the working folder was deleted; it is now " + posix.getcwd(), file=sys.stderr)


def spell_out(error):
    """Half a character becomes the words of its escape sequence, as `backslashreplace` has them, within JSON."""
    return "".join(["\\\\u%04x" % ord(half) for half in error.object[error.start : error.end]]), error.end


def settle():
    """What was loaded stays: it is not looked through for garbage again and again, and copies share its pages."""
    gc = core.standard("gc")
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------- known modules


def on_linecache(linecache, names=None):
    """The cells' lines for tracebacks. An entry without a time stays when files are checked for changes."""
    for name in names or core.SOURCES:
        text = core.SOURCES[name]
        # Each line with its line feed, the last one too: without it the marks below a line would be shifted.
        linecache.cache[name] = (len(text), None, [line + "\n" for line in text.split("\n")], name)


def on_inspect(inspect):
    """getsource of classes made in cells: their module has no file, but the cell that made them can be found."""
    original = inspect.getfile

    def getfile(thing):
        if isinstance(thing, type) and getattr(thing, "__module__", None) == "__main__":
            cell = cell_of(thing)
            if cell is not None:
                return cell
        return original(thing)

    inspect.getfile = getfile


def cell_of(kind):
    """The cell that a class was made in: that of its methods, else the last one with a class of its name."""
    head = core.standard("re").compile(r"\bclass\s+%s\b" % kind.__name__)
    methods = [getattr(getattr(part, "fget", None) or part, "__code__", None) for part in vars(kind).values()]
    cells = [code.co_filename for code in methods if code is not None]
    for cell in [*cells, *reversed(core.SOURCES)]:
        if head.search(core.SOURCES.get(cell, "")):
            return cell
    return None


def on_spawn(spawn):
    """Workers that begin as fresh interpreters find the functions of cells."""
    core.part("workers").on_spawn(spawn)


def on_numba(caching):
    """`cache=True`: a cell's functions are known by their text, as those of a notebook's are."""
    import os

    class CellCacheLocator(getattr(caching, "IPythonCacheLocator", None) or caching._IPythonCacheLocator):
        @classmethod
        def from_function(cls, function, file):
            if not file.startswith("<cell "):
                return None
            found = cls(function, file)
            found.ensure_cache_path()
            return found

        def get_cache_path(self):
            return os.path.expanduser("~/.cache/numba")

    caching.CacheImpl._locator_classes = [CellCacheLocator, *caching.CacheImpl._locator_classes]


def on_rich(console):
    """It would show pages and widgets, again with each step of a bar. Its text says the same once."""
    console._is_jupyter = lambda: False


def on_warnings(warnings):
    """A place in a cell warns once in the whole session. The registry of `__main__` knows line numbers only, so it is
    emptied for each cell (else line 1 of a new cell would be silent), and this remembers the cell too."""
    seen = set()
    original = warnings._showwarnmsg_impl

    def show(message):
        if message.filename.startswith("<cell "):
            place = (message.filename, message.lineno, message.category, str(message.message))
            registry = core.NAMES.get("__warningregistry__") or {}
            if (str(message.message), message.category, message.lineno) in registry:
                if place in seen:
                    return
                if len(seen) < 10000:
                    seen.add(place)
        original(message)

    warnings._showwarnmsg_impl = show


def on_pandas(pandas):
    """pandas takes us for an 80 column terminal and would hide columns; a notebook shows up to 20."""
    pandas.set_option("display.max_columns", 20)
    # What pandas.reset_option goes back to.
    options = core.standard("importlib").import_module("pandas._config.config")._registered_options
    options["display.max_columns"] = options["display.max_columns"]._replace(defval=20)


def on_matplotlib(matplotlib):
    """Figures go through our back end, whichever interactive one the code asks for."""
    load_fonts()
    charts = core.part("charts")
    ours = charts.install()
    original = matplotlib.use

    def use(backend, *, force=True):
        files_only = str(backend).lower() in ("pdf", "svg", "ps", "pgf", "cairo", "template")
        return original(backend if files_only else ours, force=force)

    matplotlib.use = use
    if not posix.environ.get(b"MPLBACKEND"):
        matplotlib.rcParams["backend"] = ours


def load_fonts():
    """Makes matplotlib's list of fonts, which a fresh sandbox does not have yet, in less than half the time.

    Without programs to be found it does not ask fc-list, which would only complain that it has no settings here; the
    folders of fonts are searched all the same. And of the PostScript fonts only the heads are needed for the list.
    """
    import os

    afm = core.standard("importlib").import_module("matplotlib._afm")
    kept = os.environ.get("PATH"), afm._parse_char_metrics, afm._parse_optional
    os.environ["PATH"] = "/nowhere"
    afm._parse_char_metrics = afm._parse_optional = lambda file: ({}, {})
    try:
        __import__("matplotlib.font_manager")
    finally:
        path, afm._parse_char_metrics, afm._parse_optional = kept
        if path is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = path


def on_plotly(module):
    """fig.show() has no browser to open here."""
    module.BaseFigure.show = lambda figure, *_arguments, **_options: core.display(figure)


def on_ipython(module):
    """IPython as a library has no shell: what acts on one acts on this session."""
    if "__file__" not in module.__dict__:
        return  # the stand-in
    stand_ins = core.part("notebook").MODULES
    displays = ("display", "clear_output", "update_display", "DisplayHandle")
    for name, names in (
        ("IPython", ("get_ipython", "display", "InteractiveShell")),
        ("IPython.core.getipython", ("get_ipython",)),
        ("IPython.core.interactiveshell", ("InteractiveShell",)),
        ("IPython.core.magic", tuple(stand_ins["IPython.core.magic"])),
        ("IPython.core.display_functions", displays),
        ("IPython.display", displays),
        ("IPython.utils.capture", ("capture_output",)),
    ):
        ours = {key: stand_ins[name][key] for key in names}
        core.when_imported(name, lambda module, ours=ours: module.__dict__.update(ours))


def on_multiprocessing(module):
    """Functions of cells cannot be found by a fresh interpreter: fork stays the default where that has changed."""
    default = module._default_context
    if sys.platform == "linux" and default._default_context.get_start_method() != "fork":
        default._default_context = module._concrete_contexts["fork"]


def on_subprocess(subprocess):
    """A `pip install` is the host's to do, whoever starts it; and workers are started as plain interpreters, which find packages:
    the session's own has none of `site`."""
    packages = core.part("packages")
    subprocess._args_from_interpreter_flags = lambda: ["-B"]
    original = subprocess.Popen._execute_child

    def _execute_child(self, args, *rest, **options):
        other = packages.instead(args)
        if other is not args:
            # Neither a shell nor another executable has a part in it.
            rest = (None, *rest[1:])
            names = original.__code__.co_varnames
            place = names.index("shell") - 2 if "shell" in names else len(rest)
            rest = (*rest[:place], False, *rest[place + 1 :]) if place < len(rest) else rest
        return original(self, other, *rest, **options)

    subprocess.Popen._execute_child = _execute_child


def on_tqdm(module):
    """Its monitor is a thread that never ends, and a session with threads keeps no copy of itself. What it is for (bars
    that stand still for long) is not worth that."""
    module.tqdm.monitor_interval = 0


def on_ctypes(ctypes):
    """What compiled code prints by the C library stands in a buffer of its own: it is written line by line, and after each cell."""
    try:
        library = ctypes.CDLL(None)
        out, flush = ctypes.c_void_p.in_dll(library, "stdout"), library.fflush
        library.setvbuf(out, None, LINE_BUFFERED, ctypes.c_size_t(0))
    except (AttributeError, OSError, ValueError):
        return  # a C library that has it elsewhere
    core.session.flush_c = lambda: flush(out)


def on_pillow(module):
    """image.show() has no viewer to open here: the picture is displayed."""

    class Shower(module.Viewer):
        def show(self, image, **_options):
            core.display(image)
            return True

    module._viewers[:] = [Shower()]


def on_asyncio(asyncio):
    """Tasks that a cell makes outside of any coroutine belong to the session's loop, as in a notebook. They run
    whenever a cell awaits, and a first step at the end of the cell that made them."""

    def of_the_session(function):
        def call(*arguments, **options):
            here = core._thread.get_ident() == core.MAIN_THREAD and not core.session.child
            if here and "loop" not in options and asyncio._get_running_loop() is None:
                loop = session_loop(asyncio)
                if function is make:
                    return loop.create_task(*arguments, **options)
            return function(*arguments, **options)

        call.__name__ = call.__qualname__ = function.__name__
        call.__module__, call.__doc__, call.__wrapped__ = function.__module__, function.__doc__, function
        return call

    make = asyncio.create_task
    # Only what cells call: asyncio's own modules go on using theirs.
    for name in ("create_task", "ensure_future", "gather"):
        setattr(asyncio, name, of_the_session(getattr(asyncio, name)))


def end_idle_threads():
    """The threads of the session's loop (those of `asyncio.to_thread`) that have nothing to do: the loop makes others
    when it needs some."""
    loop = core.session.loop
    executor = getattr(loop, "_default_executor", None)
    threads = getattr(executor, "_threads", None)
    if not threads or loop.is_running() or not executor._work_queue.empty():
        return
    if executor._idle_semaphore._value == len(threads):
        loop._default_executor = None
        executor.shutdown(wait=True)


def start_tasks():
    """A first step for tasks that wait on the session's loop."""
    asyncio, loop = sys.modules.get("asyncio"), core.session.loop
    if asyncio is None or loop.is_closed() or loop.is_running() or not asyncio.all_tasks(loop):
        return
    loop.run_until_complete(asyncio.sleep(0))


# ---------------------------------------------------------------- forks

LOCKS = type(core._thread.allocate_lock()), core._thread.RLock
OF_LOCKS = (
    ("threading", "_after_fork"), ("logging", "_acquireLock"), ("logging", "_releaseLock"),
    ("logging", "_after_at_fork_child_reinit_locks"),
)  # fmt: skip


def register_at_fork(*, before=None, after_in_child=None, after_in_parent=None):
    """What is registered is not called when it is the session that copies itself: the copy has the state of before (of
    `random`, say), and nobody sees that it was made. A warmed parent has one thread, which holds no locks when it forks:
    those need not be made anew, which takes long where many modules are loaded."""

    given = {"before": before, "after_in_child": after_in_child, "after_in_parent": after_in_parent}
    # What belongs together is called, or not called, together.
    locks = all([of_locks(function) for function in given.values() if callable(function)])

    def unless_copying(function):
        def handler():
            if not (core.session.copying or locks and core.session.parent):
                function()

        return handler if callable(function) else function

    core.really_register({name: unless_copying(function) for name, function in given.items() if function is not None})
    core.AT_FORK.append((before, after_in_parent, after_in_child, locks))


def of_locks(function):
    """Whether this only takes, releases or makes anew a lock, or those of the standard library."""
    name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return type(getattr(function, "__self__", None)) in LOCKS or name in OF_LOCKS



def exit_code(error):
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return max(-(1 << 31), min(int(code), (1 << 31) - 1))
    print(code, file=sys.stderr)
    return 1


def end_child(error):
    """A fork made by the cell has come to the end of its program, as a script's fork would."""
    code = 0
    if isinstance(error, SystemExit):
        code, failure = core.guarded(exit_code, error)
        code = 1 if failure else code & 0xFF
    elif error is not None:
        described, _ = core.guarded(core.part("errors").describe, error)
        core.say((described or {}).get("traceback", type(error).__name__) + "\n")
        code = 1
    core.guarded(core.finish_output)
    posix._exit(code)
