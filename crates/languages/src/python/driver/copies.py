"""A frozen copy of the session: what is left when the session's process is killed.

The copy is a fork, made between two cells: in the pause after one, or else before the next one if that could end the
interpreter. It sleeps until a signal calls it, and becomes the session if the process that it was made of is gone by then.
How it keeps out of the program's sight:

- It is no child of the session's process (`os.wait()` would wait for it): a process in the middle makes it and ends.
- It is in a process group of its own, so that signals to the program's group do not reach it, but in the same session
  (of the system's), by which the sandbox's first process knows whose it is.
- It has every descriptor of the program replaced by one that can do nothing. A number that is never handed out again
  cannot be taken for the file that it stood for; whoever still uses it gets the error of a closed one.
- Nobody's fork handlers are called, for the same reason and so that random states stay what they were.

Threads do not survive a fork, so a session that has some keeps no copy. Child processes do not either, but there the
restored session can say so: they are reported as killed, which they were.

Time: the host says how long a pause must be to end in a snapshot. A cell that could end the interpreter waits for its snapshot
in any case, so a crash costs no more than the cell that crashed. Memory: no copy is made above a share of the limit; what a copy costs while a cell runs is
the launcher's matter, which knows it by its name.
"""

import _signal
import sys

import _io
import _thread
import posix

select = core.standard("select")
NAME = b"sandcell-copy"
PAGE = posix.sysconf("SC_PAGESIZE")
# The shortest pause that ends in a snapshot, in milliseconds.
PAUSE_MS = 3
CALL = _signal.SIGCONT
# The cell that is rehearsed, as a frame, and the name of its text.
REHEARSED = b'{"type":"run","nonce":"sandcell-0","cell":1,"code":"x = 1\\nx","stdin":null}'
REHEARSED = (len(REHEARSED) + 4).to_bytes(4, "little") + len(REHEARSED).to_bytes(4, "little") + REHEARSED
REHEARSAL = "<sandcell rehearsal>"
# How often a copy looks whether the process that it was made of is still there, in seconds.
LOOK = 10
SIGNALS = _signal.valid_signals()
# Functions, lines and operators that a harmless cell may have. Others make large values of small ones.
ast = core._ast
TOOLS = {"print": print, "str": str, "repr": repr, "len": len, "abs": abs}
LINES, SUMS = (ast.Assign, ast.AugAssign, ast.Expr), (ast.Add, ast.Sub, ast.Div, ast.FloorDiv)

session = core.session
POLL = core.POLL = select.poll()
POLL.register(core.CONTROL_IN, select.POLLIN)


class copy:
    """The copy that there is."""

    pid = 0
    started = b""
    cell = 0
    # Why there is none, as far as the host knows.
    why = None
    # With so many threads at once some are not the program's own to end: a fork showed it.
    threads = 1 << 30


# ---------------------------------------------------------------- when


def tend():
    """Makes a copy in the pause after a cell. Returns whether a frame has come before."""
    try:
        if core.inbox.buffer:
            return True
        if POLL.poll(max(PAUSE_MS, session.copy_after)):
            return True
        if not keep() and copy.pid and not POLL.poll(0):
            rehearse()
    except Exception:
        return True  # of what the program has replaced; the copy is made before the next cell, or never
    return False


def before(header):
    """Makes the copy that is owed, before a cell that could end the interpreter. Returns whether this process is that copy,
    and has become the session: the cell is not its own."""
    try:
        return not is_harmless(header["code"]) and keep()
    except Exception:
        session.copy_owed = False
    return False


def keep():
    """Makes a copy, or says why there is none. Returns whether this process is the copy."""
    session.copy_owed = False
    why = obstacle()
    if why is None:
        return make()
    drop(why)
    return False


def is_harmless(text):
    """Whether a cell only reckons with a few numbers and texts. It runs no code but ours, so it needs no copy."""
    if len(text) > 200 or session.reloads or session.formatted or session.loop is not None or is_watched():
        return False
    if core.shows_more() or not is_plain(session.outputs.get(session.cell + 1 - core.KEPT)):
        return False
    try:
        body = compile(text, "<sandcell>", "exec", core.ONLY_AST | session.future, True).body
    except Exception:
        return False  # it is no Python, or the program watches what is compiled
    return all([type(line) in LINES and is_plain_line(line) for line in body])


def is_plain_line(line):
    """Whether an assignment to names, or an expression, has to do with plain values only: those that go, too."""
    targets = getattr(line, "targets", None) or [target for target in [getattr(line, "target", None)] if target]
    return is_reckoned(line.value) and all([type(target) is ast.Name and is_plain(value_of(target)) for target in targets])


def is_reckoned(node):
    kind = type(node)
    if kind is ast.BinOp:
        return type(node.op) in SUMS and is_reckoned(node.left) and is_reckoned(node.right)
    if kind is ast.Compare:
        return all(map(is_reckoned, [node.left, *node.comparators]))
    if kind is ast.UnaryOp:
        return is_reckoned(node.operand)
    if kind is ast.Call:
        return is_tool(node.func) and not node.keywords and all(map(is_reckoned, node.args))
    return kind is ast.Constant and is_plain(node.value) or kind is ast.Name and is_plain(value_of(node))


def is_tool(node):
    """Whether it is one of Python's own functions that make nothing large and call nothing of the program's."""
    name = getattr(node, "id", None)
    return name in TOOLS and name not in core.NAMES and vars(core.builtins)[name] is TOOLS[name]


def value_of(name):
    return core.NAMES.get(name.id)


def is_plain(value):
    kind = type(value)
    if kind is str:
        return len(value) < 10000
    return value is None or kind in (float, bool) or kind is int and value.bit_length() < 10000


def obstacle():
    """Why no copy can be made now, or None."""
    if _thread._count() or tasks() >= copy.threads:
        return "threads"
    if memory() * PAGE > session.copy_below:
        return "memory"
    return None


def memory():
    """Memory that belongs to no file, in pages."""
    fields = read_file("/proc/self/statm").split()
    return int(fields[1]) - int(fields[2])


def tasks():
    return posix.stat("/proc/self/task").st_nlink - 2


def read_file(path):
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return core.read(fd, 4096)
    finally:
        core.close(fd)


def write_file(path, data):
    try:
        fd = posix.open(path, posix.O_WRONLY | posix.O_CLOEXEC)
    except OSError:
        return
    try:
        core.write(fd, data)
    except OSError:
        pass
    finally:
        core.close(fd)


# ---------------------------------------------------------------- making one


def note_faults():
    """From now on a crash in compiled code leaves a note which line it came from, for the copy that goes on: stderr
    would get it with our frames and the names of every library."""
    notes.fd = -1
    try:
        faulthandler = core.standard("faulthandler")
        if faulthandler.is_enabled():
            return  # the program wants them elsewhere
        fd = posix.memfd_create("sandcell-fault", 1)
        notes.fd = core.move_up(fd)
        core.close(fd)
        faulthandler.enable(notes.fd, False)
    except Exception:
        pass  # an interpreter or a kernel without it: the result names the signal


class notes:
    """Where they are written; None before the first copy."""

    fd = None


def make():
    """Makes a copy in place of the one before. Returns whether this process is the copy: when it has become the session."""
    if notes.fd is None:
        note_faults()
    old = copy.pid, copy.started
    origin, name = core.PID, read_file("/proc/self/comm")
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    pid = -1
    try:
        # A handler of the program's that has waited may raise here.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
        session.copying = True
        pid = fork_twice()
        if not pid:
            freeze(origin)
            become(name.strip(), mask)
            return True
        if pid > 0:
            # Before handlers of the program's run again, which may raise.
            copy.pid, copy.started, copy.cell = pid, start_of(pid), session.cell
            end(*old)
    except BaseException:
        if core.getpid() != origin:
            core._exit(70)
        raise
    finally:
        if pid:
            session.copying = False
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    if pid > 0 and tasks() > 1:
        # Not those that end before a fork and begin again after it, as those of OpenBLAS do.
        copy.threads = tasks()
        drop("threads")
    elif pid > 0:
        tell(None)
    elif copy.pid:
        tell("processes")  # the one before is better than none
    else:
        drop("processes")
    return False


def tell(why):
    """Says which copy there is, and why none or no newer one."""
    copy.why = why
    header = {"type": "copy", "pid": copy.pid, "cell": copy.cell}
    if why:
        header["why"] = why
    core.send(header)


def fork_twice():
    """Makes the snapshot and the process between. Returns the snapshot's id: 0 in the snapshot, negative if there is none."""
    source, sink = core.pipe()
    pid, middle = -1, -1
    try:
        try:
            middle = core.fork()
        except OSError:
            pass  # no process is to be had
        if middle == 0:
            return in_the_middle(sink)
        core.close(sink)
        sink = -1
        if middle > 0:
            pid = int.from_bytes(core.read(source, 4), "little") or -1
            try:
                core.waitpid(middle, 0)
            except ChildProcessError:
                pass  # where SIGCHLD is ignored the system reaps
            forget_end(middle)
    finally:
        for fd in (source, sink):
            if fd >= 0:
                core.close(fd)
    return pid


def forget_end(middle):
    """Drops the SIGCHLD of the process between, so that no handler of the program is called for it. All signals are blocked here."""
    signal = _signal.sigtimedwait({_signal.SIGCHLD}, 0)
    if signal is None:
        return
    try:
        others = posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
    except ChildProcessError:
        others = None
    if signal.si_pid != middle or others:
        # The kernel merges pending signals of one number: this one stood for a child of the program, too.
        core.kill(core.PID, _signal.SIGCHLD)


def rehearse():
    """Runs a cell that nobody hears of and that leaves nothing: the pages that every cell writes to are the copy's, too, and had
    better be copied now than while somebody waits for the next one."""
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        # Neither handlers of signals nor destructors may run in the session that stands in for this one.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
        posix.getcwd()
        if not (is_watched() or _thread._count()):
            gc = core.standard("gc")
            collects = gc.isenabled()
            gc.disable()
            try:
                stand_in()
            finally:
                if collects:
                    gc.enable()
    except BaseException:
        pass  # what the program has put in place of a module, or a hook of its own that raises; or its working folder is gone
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def is_watched():
    """Whether the program watches what runs, or what is written."""
    monitoring = getattr(sys, "monitoring", None)
    if sys.gettrace() or sys.getprofile() or (monitoring and any(map(monitoring.get_tool, range(6)))):
        return True
    return sys.stdout is not core.streams[1] or sys.stderr is not core.streams[2]


def stand_in():
    """The rehearsal itself: all that a cell does, in another session with other names, to a host that does not listen."""
    inbox, names, write, stdin = core.inbox, core.NAMES, core.write, getattr(sys, "stdin", core.NO_STDIN)
    try:
        # Nothing is opened for what is said: the program may watch even /dev/null.
        core.session, core.NAMES, core.write = core.Session(), {"x": 0}, swallow
        inbox.room[: len(REHEARSED)] = REHEARSED
        inbox.buffer += memoryview(inbox.room)[: len(REHEARSED)]
        header = inbox.ready()
        vars(core.session).update(
            nonce=header["nonce"], cell=header["cell"], future=session.future, whole=True, waiting=[], inputs=[], outputs={}
        )
        core.part("imports").go_through(header, "x += 1", REHEARSAL)
    finally:
        core.session, core.NAMES, core.write, sys.stdin = session, names, write, stdin
        inbox.buffer.clear()
        core.remember.size -= len(core.SOURCES.pop(REHEARSAL, ""))
        cache = getattr(sys.modules.get("linecache"), "cache", None)
        if type(cache) is dict:
            cache.pop(REHEARSAL, None)


def swallow(_fd, data):
    return len(data)


def drop(why):
    """Does without a copy, and says why if that is news."""
    news = copy.pid or copy.why != why
    end(copy.pid, copy.started)
    copy.pid = 0
    if news:
        tell(why)


def end(pid, started):
    """Ends a copy, unless somebody else has its number by now."""
    if pid and started and start_of(pid) == started:
        try:
            core.kill(pid, _signal.SIGKILL)
        except OSError:
            pass


def start_of(pid):
    """When the process was started; empty if there is none."""
    try:
        return read_file("/proc/%d/stat" % pid).rpartition(b")")[2].split()[19]
    except (OSError, IndexError):
        return b""


def in_the_middle(sink):
    """The process between the session and its copy. Only the copy comes back from here."""
    try:
        core.setpgid(0, 0)
        pid = core.fork()
        if pid:
            core.write(sink, pid.to_bytes(4, "little"))
            core._exit(0)
        return 0
    except BaseException:
        core._exit(70)


# ---------------------------------------------------------------- being one


def freeze(origin):
    """Lets go of everything, and sleeps until it is called and the process that it was made of is gone."""
    write_file("/proc/self/comm", NAME)
    # What grows is ended before what only waits.
    write_file("/proc/self/oom_score_adj", b"200")
    plug = posix.open("/", posix.O_PATH | posix.O_CLOEXEC)
    kept = {plug, *core.COPIES}
    for fd in [int(number) for number in posix.listdir("/proc/self/fd")]:
        if fd not in kept:
            try:
                core.dup2(plug, fd, False)
            except OSError:
                pass
    core.close(plug)
    alone = 0
    while True:
        called = _signal.sigtimedwait({CALL}, LOOK)
        if there(origin):
            alone = 0
        elif called:
            return
        else:
            # It ended, and nobody called: the sandbox has no use for a copy.
            alone += 1
            if alone > 1:
                core._exit(0)


def there(pid):
    """Whether the process runs. One that nobody has reaped yet does not."""
    try:
        return read_file("/proc/%d/stat" % pid).rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def become(name, mask):
    """From here on this is the session."""
    core.setsid()
    write_file("/proc/self/comm", name)
    core.be_killed_first()
    core.PID = core.getpid()
    session.stdin_text = False
    session.waiting = []
    sys.stdin = core.NO_STDIN
    null = posix.open("/dev/null", posix.O_RDONLY)
    for fd, source in ((0, null), (1, core.OUT_COPY), (2, core.ERR_COPY)):
        core.dup2(source, fd)
    if null > 2:
        core.close(null)
    copy.pid, copy.why = 0, None
    things = core.standard("gc").get_objects()
    for action in (close_files, end_children, end_loops):
        try:
            action(things)
        except Exception:
            pass  # a library that is not what it was: its things stay as they are
    del things
    core.guarded(core.part("imports").renumber)
    tell_libraries()
    forget_signals()
    session.copying = session.whole = False
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    base = session.last_nonce.rpartition("-")[0]
    await_word(b"\nsandcell-resume %s\n" % base.encode("ascii"))
    tell_of_fault()
    session.copy_owed = True
    core.send({"type": "resumed", "nonce": base, "cell": session.cell})


def tell_of_fault():
    """Says where the one that died was in the program, if it left a note."""
    if notes.fd < 0:
        return
    try:
        posix.lseek(notes.fd, 0, 0)
        lines = core.read(notes.fd, 1 << 14).decode("utf-8", "replace").split("\n")
        posix.ftruncate(notes.fd, 0)
        posix.lseek(notes.fd, 0, 0)
    except OSError:
        return
    ours = ('  File "<sandcell ', '  File "<string>"')
    places = [line for line in lines if line.startswith("  File ") and not line.startswith(ours)]
    if lines[0].startswith("Fatal Python error"):
        core.say("\n".join([lines[0] + ", at (innermost first)"] + places[:20]) + "\n")


def close_files(things):
    """Files, sockets and databases report that they are closed."""
    file = _io.FileIO
    network = sys.modules.get("_socket")
    socket = network.socket if network else ()
    database = sys.modules.get("sqlite3")
    connection = database.Connection if database else ()
    for thing in things:
        try:
            kind = type(thing)
            if issubclass(kind, file):
                if not thing.closed and thing.fileno() > 2:
                    file.close(thing)
            elif network and issubclass(kind, socket):
                socket.close(thing)
                thing._closed = True
            elif database and issubclass(kind, connection):
                connection.close(thing)
        except Exception:
            pass


def end_children(things):
    """Child processes were killed with the process whose children they were."""
    subprocess = sys.modules.get("subprocess")
    if subprocess:
        for thing in things:
            if issubclass(type(thing), subprocess.Popen) and thing.returncode is None:
                thing.returncode = -9
        subprocess._active = []
    process = sys.modules.get("multiprocessing.process")
    if process:
        for child in list(process._children):
            child._parent_pid = core.PID
            child._popen.returncode = -9
        process._children.clear()
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker:
        tracker._resource_tracker._fd = tracker._resource_tracker._pid = None
    server = sys.modules.get("multiprocessing.forkserver")
    if server:
        server = server._forkserver
        server._forkserver_pid = server._forkserver_address = server._forkserver_alive_fd = None


def end_loops(things):
    """Event loops are closed, with what waited in them. There is a new one for those who ask for the current one."""
    asyncio = sys.modules.get("asyncio")
    if not asyncio:
        return
    loops = [thing for thing in things if issubclass(type(thing), asyncio.BaseEventLoop) and not thing.is_closed()]
    for loop in loops:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop._closed = True
    if loops:
        session.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(session.loop)


def tell_libraries():
    """The fork handlers that were not called when the copy was made. Those of the program itself are not meant for
    this, and `random` is to go on where it was."""
    for _before, _in_parent, function, _locks in core.AT_FORK:
        owner = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
        if callable(function) and owner not in ("__main__", "random"):
            try:
                function()
            except Exception:
                pass


def forget_signals():
    """What was sent to a process that slept was not meant for the program."""
    for number in _signal.sigpending():
        handler = _signal.getsignal(number)
        if handler is not None:
            _signal.signal(number, _signal.SIG_IGN)
            _signal.signal(number, handler)


def await_word(word):
    """Reads past whatever the host had sent to the process that has died."""
    seen = bytearray()
    while True:
        at = seen.find(word)
        if at >= 0:
            core.inbox.buffer[:] = seen[at + len(word) :]
            return
        del seen[: max(0, len(seen) - len(word))]
        data = core.read(core.CONTROL_IN, 1 << 16)
        if not data:
            core._exit(0)
        seen += data
