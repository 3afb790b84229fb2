"""Snapshots: frozen forks of a session, from which it is restored when its process is killed.

The session forks a snapshot between two cells: in the idle time after one, or before the next one if that cell could
end the interpreter. The snapshot sleeps until the sandbox's first process wakes it, after the original process has ended.
Then it becomes the session. The program does not see it:

- It is not a child of the session's process, because `os.wait()` would wait for it: an intermediate process forks it
  and exits.
- It has a separate process group, so that signals to the program's group do not reach it. It is in the same kernel
  session, by which the sandbox's first process knows its owner.
- Every descriptor of the program is replaced by one without any function. A number that is never reused cannot be
  mistaken for another file; code that still uses it gets the error of a closed one.
- No fork handlers are called. Random states stay unchanged for the same reason.

Threads do not survive a fork, so a session with threads has no snapshot. Child processes do not survive either, but
the restored session reports them as killed, which is true.

A *checkpoint* is a snapshot that the host keeps: later snapshots do not replace it. When it is woken, it forks another
snapshot of the same state first, so the session can return to that state again.

Time: the host sets how long the idle time must be for a snapshot. A cell that could end the interpreter always waits
for its snapshot, so a crash loses no more than the cell that crashed. Memory: no snapshot is made above a share of
the limit. The launcher, which knows snapshots by their process name, limits their cost while a cell runs.

"""

import _signal
import sys

import _io
import _thread
import posix

select = core.standard("select")
NAME = b"sandcell-copy"
# The name of a snapshot that the launcher must not end when memory runs short.
KEPT_NAME = b"sandcell-kept"
PAGE = posix.sysconf("SC_PAGESIZE")
# The shortest idle time before a snapshot, in milliseconds.
MIN_IDLE_MS = 3
# Signals of the sandbox's first process. Those of other processes are ignored.
WAKE_SIGNAL, KEEP_SIGNAL = _signal.SIGUSR1, _signal.SIGUSR2
IMAGE_SIGNAL, DROP_SIGNAL = _signal.SIGHUP, _signal.SIGQUIT
# The warm-up cell as a frame, and the name of its text.
WARM_UP_FRAME = b'{"type":"run","nonce":"sandcell-0","cell":1,"code":"x = 1\\nx","stdin":null}'
WARM_UP_FRAME = (len(WARM_UP_FRAME) + 4).to_bytes(4, "little") + len(WARM_UP_FRAME).to_bytes(4, "little") + WARM_UP_FRAME
WARM_UP_NAME = "<sandcell warm-up>"
SIGNALS = _signal.valid_signals()
# The folders that a rewind brings back.
PRIVATE_FOLDERS = (core.HOME + "/", "/tmp/", "/var/tmp/")
# Functions, statements and operators that a harmless cell may contain. Others can make large values of small ones.
ast = core._ast
HARMLESS_FUNCTIONS = {"print": print, "str": str, "repr": repr, "len": len, "abs": abs}
HARMLESS_STATEMENTS, HARMLESS_OPERATORS = (ast.Assign, ast.AugAssign, ast.Expr), (ast.Add, ast.Sub, ast.Div, ast.FloorDiv)

session = core.session
POLL = core.POLL = select.poll()
POLL.register(core.CONTROL_IN, select.POLLIN)


class snapshot:
    """The current snapshot."""

    pid = 0
    started = b""
    cell = 0
    # True if the host keeps it: it is not replaced.
    kept = False
    # The last reason reported to the host for the lack of a snapshot.
    why = None
    # With this many threads, some are not the program's own to end. A fork sets this.
    threads = 1 << 30


# ---------------------------------------------------------------- when


def snapshot_when_idle():
    """Takes a snapshot in the idle time after a cell. Returns True if a frame arrived first."""
    try:
        if core.inbox.buffer:
            return True
        if POLL.poll(max(MIN_IDLE_MS, session.copy_after)):
            return True
        if not take_or_report() and snapshot.pid and not POLL.poll(0):
            warm_up()
    except Exception:
        return True  # caused by the program's replacements; the snapshot is taken before the next cell, or never
    return False


def snapshot_before(header):
    """Takes the pending snapshot before a cell that could end the interpreter. Returns True if this process is the
    snapshot and has become the session: then the cell is not its own."""
    try:
        return not is_harmless(header["code"]) and take_or_report()
    except Exception:
        session.snapshot_due = False
    return False


def take_or_report():
    """Takes a snapshot, or reports why there is none. Returns True in the snapshot."""
    session.snapshot_due = False
    why = snapshot_obstacle()
    if why is None:
        return make()
    drop(why)
    return False


def is_harmless(text):
    """Returns True if a cell only computes with a few numbers and texts. It runs no other code, so it needs no
    snapshot."""
    if len(text) > 200 or session.reloads or session.formatted or session.loop is not None or is_watched():
        return False
    if core.shows_more() or not is_plain(session.outputs.get(session.cell + 1 - core.KEPT)):
        return False
    try:
        body = compile(text, "<sandcell>", "exec", core.ONLY_AST | session.future, True).body
    except Exception:
        return False  # it is not Python, or the program hooks compilation
    return all([type(line) in HARMLESS_STATEMENTS and is_plain_line(line) for line in body])


def is_plain_line(line):
    """Returns True if an assignment to names, or an expression, involves only plain values, including the replaced
    ones."""
    targets = getattr(line, "targets", None) or [target for target in [getattr(line, "target", None)] if target]
    return is_plain_expression(line.value) and all([type(target) is ast.Name and is_plain(value_of(target)) for target in targets])


def is_plain_expression(node):
    kind = type(node)
    if kind is ast.BinOp:
        return type(node.op) in HARMLESS_OPERATORS and is_plain_expression(node.left) and is_plain_expression(node.right)
    if kind is ast.Compare:
        return all(map(is_plain_expression, [node.left, *node.comparators]))
    if kind is ast.UnaryOp:
        return is_plain_expression(node.operand)
    if kind is ast.Call:
        return is_harmless_function(node.func) and not node.keywords and all(map(is_plain_expression, node.args))
    return kind is ast.Constant and is_plain(node.value) or kind is ast.Name and is_plain(value_of(node))


def is_harmless_function(node):
    """Returns True for a built-in function that makes no large value and calls no code of the program."""
    name = getattr(node, "id", None)
    return name in HARMLESS_FUNCTIONS and name not in core.NAMES and vars(core.builtins)[name] is HARMLESS_FUNCTIONS[name]


def value_of(name):
    return core.NAMES.get(name.id)


def is_plain(value):
    kind = type(value)
    if kind is str:
        return len(value) < 10000
    return value is None or kind in (float, bool) or kind is int and value.bit_length() < 10000


def snapshot_obstacle():
    """Returns the reason why no snapshot is possible now, or None."""
    if _thread._count() or tasks() >= snapshot.threads:
        return "threads"
    if memory() * PAGE > session.copy_below:
        return "memory"
    return None


def memory():
    """Returns the anonymous memory, in pages."""
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
    """Makes a crash in compiled code write its line to a memory file, which the snapshot reads. On stderr,
    faulthandler would also print our frames and the names of all libraries."""
    notes.fd = -1
    try:
        faulthandler = core.standard("faulthandler")
        if faulthandler.is_enabled():
            return  # the program has its own setting
        fd = posix.memfd_create("sandcell-fault", 1)
        notes.fd = core.move_up(fd)
        core.close(fd)
        faulthandler.enable(notes.fd, False)
    except Exception:
        pass  # not supported here: the result names only the signal


class notes:
    """The descriptor of the memory file; None before the first snapshot."""

    fd = None


def forget_faults():
    """Forgets the memory file for crashes: another sandbox does not have it. The next snapshot makes another one."""
    if notes.fd is not None and notes.fd >= 0:
        core.standard("faulthandler").disable()
        core.COPIES.remove(notes.fd)
    notes.fd = None


def make():
    """Takes a snapshot and replaces the one before. Returns True in the snapshot, after it has become the session."""
    if notes.fd is None:
        note_faults()
    old = (0, b"") if snapshot.kept else (snapshot.pid, snapshot.started)
    files, folder = open_files(), working_folder()
    origin, name = core.PID, read_file("/proc/self/comm")
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    pid = -1
    try:
        # A pending signal handler of the program may raise here.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
        session.is_snapshotting = True
        pid = fork_twice()
        if not pid:
            become(name.strip(), mask, files, folder, *sleep())
            return True
        if pid > 0:
            # Before the program's signal handlers run again, because they may raise.
            snapshot.pid, snapshot.started, snapshot.cell = pid, start_of(pid), session.cell
            snapshot.kept = False
            end(*old)
    except BaseException:
        if core.getpid() != origin:
            core._exit(70)
        raise
    finally:
        if pid:
            session.is_snapshotting = False
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    if pid > 0 and tasks() > 1:
        # Threads that end before a fork and restart after it, such as OpenBLAS's, are not counted.
        snapshot.threads = tasks()
        drop("threads")
    elif pid > 0:
        report_snapshot(None)
    elif snapshot.pid:
        report_snapshot("processes")  # the previous snapshot is better than none
    else:
        drop("processes")
    return False


def keep(header):
    """Makes a checkpoint of the current state and answers the host. Returns silently in the process that has become the
    session from it."""
    try:
        pid = take_to_keep()
    except BaseException:
        pid = 0  # the program replaced a function, used up all descriptors, or has a signal handler that raises
    if pid is not None:
        core.send({"type": "kept", "nonce": header.get("nonce"), "pid": pid, "cell": session.cell, "why": snapshot.why or ""})


def take_to_keep():
    """Returns the id of a snapshot of the current state that no checkpoint has: 0 if there is none. Returns None in the
    process that has become the session from it."""
    current = not session.snapshot_due and not snapshot.kept and snapshot.pid
    if not current:
        before = snapshot.pid
        if take_or_report():
            return None
        current = snapshot.pid != before and snapshot.pid
    if current:
        snapshot.kept = True
    return current or 0


def measure(header):
    """Answers with the memory that would be freed by the end of each of these processes, in bytes."""
    try:
        sizes = [own_memory(pid) for pid in header["pids"]]
    except BaseException:
        sizes = []  # as in `keep`
    core.send({"type": "measured", "nonce": header.get("nonce"), "bytes": sizes})


def own_memory(pid):
    try:
        lines = read_file("/proc/%d/smaps_rollup" % pid).split(b"\n")
        return 1024 * sum([int(line.split()[1]) for line in lines if line.startswith((b"Private_Clean", b"Private_Dirty", b"Swap:"))])
    except (OSError, IndexError, ValueError):
        return 0


def report_snapshot(why):
    """Reports the current snapshot, and why there is none or no newer one."""
    snapshot.why = why
    header = {"type": "copy", "pid": snapshot.pid, "cell": snapshot.cell}
    if why:
        header["why"] = why
    core.send(header)


def fork_twice():
    """Forks the intermediate process, which forks the snapshot. Returns the snapshot's id: 0 in the snapshot,
    negative on failure."""
    source, sink = core.pipe()
    pid, middle = -1, -1
    try:
        try:
            middle = core.fork()
        except OSError:
            pass  # the process limit is reached
        if middle == 0:
            return run_intermediate(sink)
        core.close(sink)
        sink = -1
        if middle > 0:
            pid = int.from_bytes(core.read(source, 4), "little") or -1
            try:
                core.waitpid(middle, 0)
            except ChildProcessError:
                pass  # with SIGCHLD ignored, the kernel reaps it
            forget_end(middle)
    finally:
        for fd in (source, sink):
            if fd >= 0:
                core.close(fd)
    return pid


def forget_end(middle):
    """Drops the SIGCHLD of the intermediate process, so that no handler of the program is called for it. All signals
    are blocked here."""
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


def warm_up():
    """Runs a warm-up cell without any visible effect. Every cell writes to some pages that are shared with the
    snapshot. They are copied now, and not while a caller waits for the next cell."""
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        # Neither signal handlers nor destructors may run in the substitute session.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
        posix.getcwd()
        if not (is_watched() or _thread._count()):
            gc = core.standard("gc")
            collects = gc.isenabled()
            gc.disable()
            try:
                run_warm_up_cell()
            finally:
                if collects:
                    gc.enable()
    except BaseException:
        pass  # a replaced module, a raising hook of the program, or a removed working folder
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def is_watched():
    """Returns True if the program traces execution, or has replaced the output streams."""
    monitoring = getattr(sys, "monitoring", None)
    if sys.gettrace() or sys.getprofile() or (monitoring and any(map(monitoring.get_tool, range(6)))):
        return True
    return sys.stdout is not core.streams[1] or sys.stderr is not core.streams[2]


def run_warm_up_cell():
    """Runs the warm-up cell completely, in a substitute session with separate names, and discards its frames."""
    inbox, names, write, stdin = core.inbox, core.NAMES, core.write, getattr(sys, "stdin", core.NO_STDIN)
    try:
        # No file is opened to discard the frames: the program may watch even /dev/null.
        core.session, core.NAMES, core.write = core.Session(), {"x": 0}, discard_frame
        inbox.room[: len(WARM_UP_FRAME)] = WARM_UP_FRAME
        inbox.buffer += memoryview(inbox.room)[: len(WARM_UP_FRAME)]
        header = inbox.ready()
        vars(core.session).update(
            nonce=header["nonce"], cell=header["cell"], future=session.future, whole=True, waiting=[], inputs=[], outputs={}
        )
        core.part("imports").go_through(header, "x += 1", WARM_UP_NAME)
    finally:
        core.session, core.NAMES, core.write, sys.stdin = session, names, write, stdin
        inbox.buffer.clear()
        core.remember.size -= len(core.SOURCES.pop(WARM_UP_NAME, ""))
        cache = getattr(sys.modules.get("linecache"), "cache", None)
        if type(cache) is dict:
            cache.pop(WARM_UP_NAME, None)


def discard_frame(_fd, data):
    return len(data)


def drop(why):
    """Ends the snapshot, and reports the reason if it changed."""
    news = snapshot.pid or snapshot.why != why
    if not snapshot.kept:
        end(snapshot.pid, snapshot.started)
    snapshot.pid, snapshot.kept = 0, False
    if news:
        report_snapshot(why)


def end(pid, started):
    """Kills a snapshot, unless its process id has been reused."""
    if pid and started and start_of(pid) == started:
        try:
            core.kill(pid, _signal.SIGKILL)
        except OSError:
            pass


def start_of(pid):
    """Returns the start time of the process; empty if there is none."""
    try:
        return read_file("/proc/%d/stat" % pid).rpartition(b")")[2].split()[19]
    except (OSError, IndexError):
        return b""


def run_intermediate(sink):
    """Runs the intermediate process between the session and its snapshot. Only the snapshot returns."""
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


def sleep():
    """Sleeps until the host orders this snapshot to become the session. Returns the order, and the id of another
    snapshot of the same state: 0 unless the host keeps it. In another sandbox, which continues from an image of this
    snapshot, the order is `branch`."""
    while True:
        if freeze():
            return b"branch", 0
        core.PID = core.getpid()
        word, kept = skip_to_order(session.last_nonce.rpartition("-")[0].encode("ascii"))
        if not kept:
            return word, 0
        pid = fork_twice()
        if pid:
            return word, max(0, pid)


def freeze():
    """Releases everything, and waits for the signal of the sandbox's first process. Returns True in the process of an
    image."""
    write_file("/proc/self/comm", NAME)
    # The OOM killer prefers a growing process to a sleeping snapshot.
    write_file("/proc/self/oom_score_adj", b"200")
    plug = posix.open("/", posix.O_PATH | posix.O_CLOEXEC)
    kept = {plug, *core.COPIES}
    for fd in [int(number) for number in posix.listdir("/proc/self/fd")]:
        if fd not in kept:
            try:
                core.fstat(fd)  # the descriptor of the listing itself is closed
                core.dup2(plug, fd, False)
            except OSError:
                pass
    core.close(plug)
    while True:
        received = _signal.sigwaitinfo({WAKE_SIGNAL, KEEP_SIGNAL, IMAGE_SIGNAL, DROP_SIGNAL})
        # The first process adopts orphans.
        if received.si_code or received.si_pid != posix.getppid():
            continue
        if received.si_signo in (WAKE_SIGNAL, DROP_SIGNAL) and "images" in core.PARTS:
            core.part("images").drop()
        if received.si_signo == WAKE_SIGNAL:
            return False
        write_file("/proc/self/comm", KEPT_NAME)
        if received.si_signo == DROP_SIGNAL:
            report_image("dropped")
        elif received.si_signo == IMAGE_SIGNAL and advance_image():
            return True


def advance_image():
    """Begins or writes an image of this snapshot. Returns True in the process that continues from it."""
    try:
        images = core.part("images")
    except BaseException:
        report_image("the module ctypes cannot be imported in it")
        return False
    return images.advance()


def report_image(why):
    """Reports that there is no image."""
    core.send({"type": "imaged", "pid": core.getpid(), "descriptor": -1, "position": 0, "bytes": 0, "size": 0, "why": why})


def released(header):
    """Forgets a checkpoint that the host has ended. If it was the current snapshot, another one follows."""
    if snapshot.pid == header.get("pid"):
        snapshot.pid, snapshot.kept = 0, False
        session.snapshot_due = True


def become(name, mask, files, folder, word, kept):
    """Turns the snapshot into the session. `files` are the files that the program had open, `folder` is the path of its
    working folder."""
    base = session.last_nonce.rpartition("-")[0]
    if word == b"branch":
        base = core.part("images").arrive()
        session.last_nonce = base + "-0"
        forget_faults()
    else:
        core.setsid()
    write_file("/proc/self/comm", name)
    core.raise_oom_score()
    session.stdin_text = False
    session.waiting = []
    sys.stdin = core.NO_STDIN
    null = posix.open("/dev/null", posix.O_RDONLY)
    for fd, source in ((0, null), (1, core.OUT_COPY), (2, core.ERR_COPY)):
        core.dup2(source, fd)
    if null > 2:
        core.close(null)
    if word == b"branch":
        core.record_outputs()
    snapshot.pid, snapshot.why, snapshot.kept = 0, None, False
    # The files of the sandbox are those of the checkpoint again, so the program's descriptors can refer to them again.
    # After a crash they are newer than the snapshot.
    files, others = files
    if word != b"resume" and folder:
        try:
            posix.chdir(folder)  # it may have been removed and made again
        except OSError:
            pass
    reopened = reopen(files) if word != b"resume" else {}
    # Looking at all objects writes to all of them, so it costs their memory once more.
    # A library for databases notices that the files of a branch are not those that it had opened.
    is_moved = word == b"branch" and "sqlite3" in sys.modules
    things = core.standard("gc").get_objects() if others or is_moved or len(files) > len(reopened) else []
    for action in (close_databases, close_files, end_children, end_loops):
        try:
            action(things, {} if is_moved and action is close_databases else reopened)
        except Exception:
            pass  # the library has changed: its objects stay unchanged
    del things
    core.guarded(core.part("imports").renumber)
    call_fork_handlers()
    if word == b"branch":
        core.part("images").renew()
    discard_signals()
    session.is_snapshotting = session.whole = False
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    report_fault(word == b"resume")
    session.snapshot_due = True
    core.send({"type": "resumed", "nonce": base, "cell": session.cell, "kept": kept})


def report_fault(is_news):
    """Removes the note that a process left when it crashed. Prints where it crashed in the program, if that is news."""
    if notes.fd is None or notes.fd < 0:
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
    if is_news and lines[0].startswith("Fatal Python error"):
        core.say("\n".join([lines[0] + ", at (innermost first)"] + places[:20]) + "\n")


def open_files():
    """Returns the regular files that the program has open: for each descriptor its path, flags and offset. Also returns
    True if it has other descriptors, or child processes."""
    found, others = {}, has_children()
    for number in posix.listdir("/proc/self/fd"):
        fd = int(number)
        if fd < 3 or fd in core.COPIES:
            continue
        try:
            if posix.fstat(fd).st_mode & 0o170000 != 0o100000:
                others = True
                continue
            path = posix.readlink("/proc/self/fd/" + number)
            if not path.startswith(PRIVATE_FOLDERS):
                others = True  # a rewind does not bring back its content
                continue
            fields = read_file("/proc/self/fdinfo/" + number).split()
            found[fd] = path, int(fields[3], 8), int(fields[1])
        except (OSError, ValueError, IndexError):
            pass  # the descriptor of the listing itself
    return found, others


def working_folder():
    """Returns the path of the working folder; None if it was removed."""
    try:
        return posix.getcwd()
    except OSError:
        return None


def has_children():
    """Returns True if this process has children, dead or alive, or if that is unknown."""
    try:
        return read_file("/proc/self/task/%d/children" % core.PID) != b""
    except OSError:
        return True


def reopen(files):
    """Opens files again, each with its number and offset. Returns the paths by descriptor."""
    done = {}
    for fd, (path, flags, offset) in files.items():
        try:
            new = posix.open(path, flags & ~(posix.O_CREAT | posix.O_EXCL | posix.O_TRUNC))
        except OSError:
            continue  # a deleted or an attached file
        try:
            posix.lseek(new, offset, 0)
            if new != fd:
                core.dup2(new, fd, not flags & posix.O_CLOEXEC)
            done[fd] = path
        except OSError:
            pass
        finally:
            if new != fd:
                core.close(new)
    return done


def close_databases(things, reopened):
    """Closes database connections whose descriptors do not refer to their files any more."""
    database = sys.modules.get("sqlite3")
    connection = database.Connection if database else ()
    for thing in things:
        try:
            if database and issubclass(type(thing), connection) and not is_usable(database, thing, reopened.values()):
                connection.close(thing)
        except Exception:
            pass


def close_files(things, reopened):
    """Closes files and sockets whose descriptors do not refer to them any more."""
    file = _io.FileIO
    network = sys.modules.get("_socket")
    socket = network.socket if network else ()
    for thing in things:
        try:
            kind = type(thing)
            if issubclass(kind, file):
                if not thing.closed and thing.fileno() > 2 and thing.fileno() not in reopened:
                    file.close(thing)
            elif network and issubclass(kind, socket):
                socket.close(thing)
                thing._closed = True
        except Exception:
            pass


def is_usable(database, connection, paths):
    """Returns True if a database is in memory, or in files with these paths. Runs no code of the program."""
    cursor = database.Cursor(connection)
    cursor.row_factory = None
    return all([not path or path in paths for _number, _name, path in cursor.execute("PRAGMA database_list")])


def end_children(things, _reopened):
    """Marks child processes as killed: they died with their parent process."""
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


def end_loops(things, _reopened):
    """Closes event loops with their pending tasks, and makes a new current loop."""
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


def call_fork_handlers():
    """Calls the fork handlers that the snapshot skipped. Those of the program itself are not meant for this, and
    `random` must continue its sequence."""
    for _before, _in_parent, function, _locks in core.AT_FORK:
        owner = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
        if callable(function) and owner not in ("__main__", "random"):
            try:
                function()
            except Exception:
                pass


def discard_signals():
    """Discards signals that arrived while the snapshot slept: they were not meant for the program."""
    for number in _signal.sigpending():
        handler = _signal.getsignal(number)
        if handler is not None:
            _signal.signal(number, _signal.SIG_IGN)
            _signal.signal(number, handler)


def skip_to_order(base):
    """Skips the frames that the host had sent to the ended process, until the order to continue. Returns the order:
    `resume` after a crash, or `rewind`; and True if the host keeps this snapshot."""
    orders = {b"\nsandcell-%s %s\n" % (word, base): (word, False) for word in (b"resume", b"rewind")}
    orders.update({b"\nsandcell-%s %s keep\n" % (word, base): (word, True) for word in (b"resume", b"rewind")})
    length = max(map(len, orders))
    seen = bytearray()
    while True:
        for order, meaning in orders.items():
            at = seen.find(order)
            if at >= 0:
                core.inbox.buffer[:] = seen[at + len(order) :]
                return meaning
        del seen[: max(0, len(seen) - length)]
        data = core.read(core.CONTROL_IN, 1 << 16)
        if not data:
            core._exit(0)
        seen += data
