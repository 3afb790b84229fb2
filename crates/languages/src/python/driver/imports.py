"""Work at and after imports: the site folders that `-S` skipped, and small changes to well-known modules."""

import _signal
import posix
import sys

# Reserved while a cell runs, in bytes. Loading a driver file and reporting an error takes about two MiB.
RESERVE = 4 << 20
PRIVATE = 0x22  # and of no file
DISPLAY_ACK_TIMEOUT_MS = 1000  # the timeout for the host's acknowledgement of a display, in milliseconds
LINE_BUFFERED = 1  # `_IOLBF`


# ---------------------------------------------------------------- site folders


class done:
    folders = set()
    user_site = False


def find_site():
    """Returns the site folders of an interpreter unknown to the host, such as a container's."""
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
    """Returns True if packages have been installed there."""
    try:
        return bool(posix.listdir(folder))
    except OSError:
        return False


def late_site():
    """Adds the paths of .pth files and the user's site folder before an import fails.

    They are not read at the start, because most sessions never need them and some cost more than the interpreter
    itself. Returns True if a path was added.

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
    """Returns standard input too large for a pipe: an unlinked file, read from its start."""
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
    """Sets the text as standard input, or removes the previous one."""
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
    """Runs top-level await on the session's loop. The loop does not run between cells, so asyncio.run works too."""
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
    """Runs a coroutine and keeps the context in which it ended, because a task has a separate context."""
    try:
        return await coroutine
    finally:
        contexts.append(core.standard("contextvars").copy_context())


def take_over(context):
    """Copies context variables from this context, so that they persist from cell to cell with and without await."""
    for variable, value in context.items():
        if variable.get(core.NOTHING) is not value:
            variable.set(value)


def session_loop(asyncio):
    """Returns the session's loop, and makes it at the first use. Interrupts wait meanwhile: a half-made loop would
    warn when it is collected in a later cell."""
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
    """Returns True if an interrupt hit the unraisable hook, and must not be raised. An interrupt raised in a callee
    of the hook is lost, so it is sent again."""
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

WARM_UP_CELL, PLAIN_CELL = "x = 1\nprint(end='')\nx", "print(end='')"


def preload(header):
    """Imports modules before the first cell. Their output is dropped, and their names are only in `sys.modules`."""
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
    """Loads modules, if any, and runs the warm-up cell."""
    told = {"type": "preloaded", "nonce": header["nonce"], "missing": [], "loaded": []}
    if header["modules"]:
        told = preload(header)
    core.guarded(warm_up)
    return told


class mapping:
    """The mmap function, bound before any code of a cell has run."""

    make = None


def reserve():
    """Returns reserved memory that is never written to, so it uses only address space. None if there is none left."""
    try:
        if mapping.make is None:
            mapping.make = core.standard("mmap").mmap
        return mapping.make(-1, RESERVE, PRIVATE)
    except Exception:
        return None


def warm_up():
    """Runs a warm-up cell without any visible effect. Afterwards this process has private copies of the memory that
    every cell writes to."""
    session, told, names = core.session, core.CONTROL_OUT, dict(core.NAMES)
    core.CONTROL_OUT = posix.open("/dev/null", posix.O_WRONLY | posix.O_CLOEXEC)
    session.nonce, session.cell = "sandcell-0", 1
    try:
        go_through({"code": WARM_UP_CELL, "stdin": None}, PLAIN_CELL, "<cell 1>")
    finally:
        core.close(core.CONTROL_OUT)
        core.CONTROL_OUT = told
        forget(names)


def go_through(header, line, name):
    """Runs all steps of a cell, and of another one-line cell, as for a caller."""
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
    """Removes all traces of a warm-up cell, and restores the names that existed before it."""
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
    """Updates the native id of this thread after a fork that bypassed Python's fork hooks."""
    threading = sys.modules.get("threading")
    if threading:
        threading.main_thread()._set_native_id()


def await_shown():
    """Waits until the host acknowledges a display, because later output would overtake it. An interrupt ends the
    wait."""
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
            elif poll.poll(DISPLAY_ACK_TIMEOUT_MS):
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
    """Returns True if a `;` follows the last expression, with only brackets, comments and blanks after it."""
    lines = text.encode("utf-8", "surrogatepass").split(b"\n")[last.end_lineno - 1 :]
    if lines:
        lines[0] = lines[0][last.end_col_offset :]
    return any([b";" in line.partition(b"#")[0] for line in lines])


def leave_folder():
    posix.chdir(core.HOME if posix.access(core.HOME, 0) else "/")
    print("sandcell: the working folder was deleted; it is now " + posix.getcwd(), file=sys.stderr)


def spell_out(error):
    """Encodes a lone surrogate as its escape sequence, like `backslashreplace`, within JSON."""
    return "".join(["\\\\u%04x" % ord(half) for half in error.object[error.start : error.end]]), error.end


def settle():
    """Excludes loaded objects from garbage collection. They are not scanned again, and snapshots share their pages."""
    gc = core.standard("gc")
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------- known modules


def on_linecache(linecache, names=None):
    """Adds the lines of cells for tracebacks. An entry without a time stays when linecache checks files for changes."""
    for name in names or core.SOURCES:
        text = core.SOURCES[name]
        # Each line has its line feed, even the last one: otherwise the marks below a line would be misaligned.
        linecache.cache[name] = (len(text), None, [line + "\n" for line in text.split("\n")], name)


def on_inspect(inspect):
    """Makes inspect.getsource work for classes made in cells: their module has no file, but the cell can be found."""
    original = inspect.getfile

    def getfile(thing):
        if isinstance(thing, type) and getattr(thing, "__module__", None) == "__main__":
            cell = cell_of(thing)
            if cell is not None:
                return cell
        return original(thing)

    inspect.getfile = getfile


def cell_of(kind):
    """Returns the cell that defined a class: that of its methods, or the last one with a class of its name."""
    head = core.standard("re").compile(r"\bclass\s+%s\b" % kind.__name__)
    methods = [getattr(getattr(part, "fget", None) or part, "__code__", None) for part in vars(kind).values()]
    cells = [code.co_filename for code in methods if code is not None]
    for cell in [*cells, *reversed(core.SOURCES)]:
        if head.search(core.SOURCES.get(cell, "")):
            return cell
    return None


def on_spawn(spawn):
    """Makes functions of cells available in workers that are fresh interpreters."""
    core.part("workers").on_spawn(spawn)


def on_numba(caching):
    """Supports `cache=True`: functions of cells are identified by their text, as in a notebook."""
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
    """Makes rich print plain text. It would display pages and widgets, and repeat them for each step of a bar."""
    console._is_jupyter = lambda: False


def on_warnings(warnings):
    """Shows a warning once for each line of a cell in the whole session. The registry of `__main__` knows line
    numbers only. It is emptied for each cell, otherwise line 1 of a new cell would be silent. This table also has
    the cell."""
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
    """Sets the column limit of pandas. It would assume an 80 column terminal and hide columns; a notebook shows up to
    20."""
    pandas.set_option("display.max_columns", 20)
    # The defaults of pandas.reset_option.
    options = core.standard("importlib").import_module("pandas._config.config")._registered_options
    options["display.max_columns"] = options["display.max_columns"]._replace(defval=20)


def on_matplotlib(matplotlib):
    """Makes matplotlib use our back end, even if the code requests another interactive one."""
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
    """Builds matplotlib's font list, which a new sandbox lacks, in less than half the time.

    With an empty PATH matplotlib does not call fc-list, which would only warn about missing settings; it still
    searches the font folders. For the list, it needs only the headers of PostScript fonts.

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
    """Makes fig.show() display the figure, because there is no browser."""
    module.BaseFigure.show = lambda figure, *_arguments, **_options: core.display(figure)


def on_ipython(module):
    """Connects IPython, used as a library, to this session's shell."""
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
    """Keeps fork as the default start method: a fresh interpreter cannot find functions of cells."""
    default = module._default_context
    if sys.platform == "linux" and default._default_context.get_start_method() != "fork":
        default._default_context = module._concrete_contexts["fork"]


def on_subprocess(subprocess):
    """Hands a `pip install` to the host, whatever starts it. Starts workers as plain interpreters, which find
    packages: the session's own interpreter skips `site`."""
    packages = core.part("packages")
    subprocess._args_from_interpreter_flags = lambda: ["-B"]
    original = subprocess.Popen._execute_child

    def _execute_child(self, args, *rest, **options):
        other = packages.instead(args)
        if other is not args:
            # Not for a shell or another executable.
            rest = (None, *rest[1:])
            names = original.__code__.co_varnames
            place = names.index("shell") - 2 if "shell" in names else len(rest)
            rest = (*rest[:place], False, *rest[place + 1 :]) if place < len(rest) else rest
        return original(self, other, *rest, **options)

    subprocess.Popen._execute_child = _execute_child


def on_tqdm(module):
    """Disables tqdm's monitor thread. It never ends, and a session with threads has no snapshot. It only refreshes
    bars that stand still for long."""
    module.tqdm.monitor_interval = 0


def on_ctypes(ctypes):
    """Flushes the buffers of the C library: compiled code's output is written line by line, and after each cell."""
    try:
        library = ctypes.CDLL(None)
        out, flush = ctypes.c_void_p.in_dll(library, "stdout"), library.fflush
        library.setvbuf(out, None, LINE_BUFFERED, ctypes.c_size_t(0))
    except (AttributeError, OSError, ValueError):
        return  # a C library that has it elsewhere
    core.session.flush_c = lambda: flush(out)


def on_pillow(module):
    """Makes image.show() display the picture, because there is no viewer."""

    class Shower(module.Viewer):
        def show(self, image, **_options):
            core.display(image)
            return True

    module._viewers[:] = [Shower()]


def on_asyncio(asyncio):
    """Runs tasks that a cell makes outside any coroutine on the session's loop, as in a notebook. They run whenever a
    cell awaits, and take a first step at the end of the cell that made them."""

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
    # Only for callers in cells: asyncio itself keeps its own functions.
    for name in ("create_task", "ensure_future", "gather"):
        setattr(asyncio, name, of_the_session(getattr(asyncio, name)))


def end_idle_threads():
    """Ends idle threads of the session's loop (those of `asyncio.to_thread`). The loop starts new ones when it needs
    them."""
    loop = core.session.loop
    executor = getattr(loop, "_default_executor", None)
    threads = getattr(executor, "_threads", None)
    if not threads or loop.is_running() or not executor._work_queue.empty():
        return
    if executor._idle_semaphore._value == len(threads):
        loop._default_executor = None
        executor.shutdown(wait=True)


def start_tasks():
    """Runs a first step of tasks that wait on the session's loop."""
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
    """Registers fork handlers that are skipped for snapshots: a snapshot keeps the earlier state (of `random`, say),
    and the program does not see it. A zygote has one thread, which holds no locks when it forks. Its locks need
    not be made again, which is slow with many loaded modules."""

    given = {"before": before, "after_in_child": after_in_child, "after_in_parent": after_in_parent}
    # Handlers registered together are called, or skipped, together.
    locks = all([of_locks(function) for function in given.values() if callable(function)])

    def unless_snapshotting(function):
        def handler():
            if not (core.session.is_snapshotting or locks and core.session.is_zygote):
                function()

        return handler if callable(function) else function

    core.really_register({name: unless_snapshotting(function) for name, function in given.items() if function is not None})
    core.AT_FORK.append((before, after_in_parent, after_in_child, locks))


def of_locks(function):
    """Returns True if the function only acquires, releases or replaces locks, its own or the standard library's."""
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
    """Ends a fork made by the cell, as a script's fork would end."""
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
