"""A frozen copy of the session: what is left when the session's process is killed.

The copy is a fork, made between two cells and never while a request waits. It sleeps until a signal calls it, and becomes
the session if the process that it was made of is gone by then. How it keeps out of the program's sight:

- It is no child of the session's process (`os.wait()` would wait for it): a process in the middle makes it and ends.
- It is in a process group of its own, so that signals to the program's group do not reach it, but in the same session
  (of the system's), by which the sandbox's first process knows whose it is.
- It has every descriptor of the program replaced by one that can do nothing. A number that is never handed out again
  cannot be taken for the file that it stood for; whoever still uses it gets the error of a closed one.
- Nobody's fork handlers are called, for the same reason and so that random states stay what they were.

Threads do not survive a fork, so a session that has some keeps no copy. Child processes do not either, but there the
restored session can say so: they are reported as killed, which they were.

Time: making copies takes at most three hundredths of the session's time, counted as processor time (on a machine that is busy
with something else a copy is not dearer, it only waits), and where many others want the processors it waits for as long as
the host says. Whoever sends cells faster than that loses what the last few did. Memory: no copy is made above a share of
the limit; what a copy costs while a cell runs is the launcher's matter, which knows it by its name.
"""

import _signal
import sys
import time

import _io
import _thread
import posix

select = core.standard("select")
NAME = b"sandcell-copy"
SHARE = 0.03
# What may be spent before there was time to earn it, in seconds. It is paid back: nothing is earned until then.
ADVANCE = 0.05
PAGE = posix.sysconf("SC_PAGESIZE")
# Cells that come faster than this come from a loop, in seconds. So many of one have a copy each.
PAUSE = 0.003
LOOP = 4
# A page that is written after a copy was made is copied then. This is what that costs, in seconds.
PAGE_COST = 0.5e-6
# What a copy of nothing costs, in seconds; the rest grows with the session.
FIXED_COST = 0.001
CALL = _signal.SIGCONT
# The cell that is rehearsed, as a frame, and the name of its text.
REHEARSED = b'{"type":"run","nonce":"sandcell-0","cell":1,"code":"x = 1\\nx","stdin":null}'
REHEARSED = (len(REHEARSED) + 4).to_bytes(4, "little") + len(REHEARSED).to_bytes(4, "little") + REHEARSED
REHEARSAL = "<sandcell rehearsal>"
# How often a copy looks whether the process that it was made of is still there, in seconds.
LOOK = 10
SIGNALS = _signal.valid_signals()
# Of the system: a process' clock of its processor time, and waiting also for children that nobody is told of.
PROCESS_CLOCK = 2
WAIT_ALL = 0x40000000

session = core.session
POLL = core.POLL = select.poll()
POLL.register(core.CONTROL_IN, select.POLLIN)


class loop:
    """Cells that come right after one another."""

    ended = 0.0  # when the last one did
    cells = 0


class purse:
    """What copies have cost, and what they may."""

    earned = ADVANCE
    since = time.monotonic() + ADVANCE / SHARE
    # The last copy: its cost in seconds and the session's pages and page faults when it was made.
    cost = 0.0015
    # What the next one is thought to cost.
    expected = 0.0015
    pages = 4096
    faults = None


class copy:
    """The copy that there is."""

    pid = 0
    started = b""
    # Why there is none, as far as the host knows.
    why = None
    # With so many threads at once some are not the program's own to end: a fork showed it.
    threads = 1 << 30


# ---------------------------------------------------------------- when


def tend():
    """Makes a copy as soon as it may be made. Returns whether a frame has come before."""
    try:
        if core.inbox.buffer:
            return True
        if _thread._count():
            session.copy_owed = False
            drop("threads")
            return False
        # The host may wait for this very processor to pass the answer on.
        posix.sched_yield()
        # Whoever sends cells one right after the other is not held up by more than the first copies.
        now = time.monotonic()
        loop.cells = loop.cells + 1 if now - loop.ended < 2 * PAUSE else 0
        loop.ended = now
        held_up = loop.cells > LOOP or purse.earned < ADVANCE / 2
        if POLL.poll(max(PAUSE * 1000 if held_up else 0, session.copy_after)):
            return True
        wait = due()
        why = obstacle()
        while why is None and wait > 0:
            if POLL.poll(wait * 1000):
                return True
            wait = due()
        session.copy_owed = False
        if why is None:
            make()
        else:
            drop(why)
    except Exception:
        session.copy_owed = False
    return False


def due():
    """In how many seconds the next copy can be afforded."""
    now = time.monotonic()
    if now > purse.since:
        purse.earned += (now - purse.since) * SHARE
        purse.since = now
    short = purse.expected * 0.7 - purse.earned
    if short > 0:
        # Not worth a look at how much memory there is by now.
        return PAUSE + short / SHARE
    pages, _ = memory()
    if purse.faults is not None:
        # Pages that were shared until the cells since then wrote to them.
        written = min(faults() - purse.faults, purse.pages)
        purse.faults = None
        purse.earned -= written * PAGE_COST
    expected = FIXED_COST + max(0.0, purse.cost - FIXED_COST) * pages / purse.pages
    purse.expected = expected
    purse.earned = min(purse.earned, max(ADVANCE, expected))
    if purse.earned >= expected:
        return 0
    return PAUSE + (expected - purse.earned) / SHARE


def obstacle():
    """Why no copy can be made now, or None."""
    if _thread._count() or tasks() >= copy.threads:
        return "threads"
    if memory()[1] * PAGE > session.copy_below:
        return "memory"
    if not has_machine_code() and _signal.getsignal(_signal.SIGCHLD) not in (_signal.SIG_DFL, _signal.SIG_IGN):
        # It would be called for the process in the middle.
        return "signals"
    return None


def memory():
    """Resident pages: all, and those of no file."""
    fields = read_file("/proc/self/statm").split()
    return int(fields[1]), int(fields[1]) - int(fields[2])


def faults():
    return int(read_file("/proc/self/stat").rpartition(b")")[2].split()[7])


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
    """Makes a copy in place of the one before. In the copy this returns when it has become the session."""
    if notes.fd is None:
        note_faults()
    began = time.process_time()
    purse.pages, purse.faults = memory()[0], None
    old = copy.pid, copy.started
    origin, name = core.PID, read_file("/proc/self/comm")
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    pid, elsewhere = -1, 0
    try:
        # A handler of the program's that has waited may raise here.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
        session.copying = True
        pid, elsewhere = by_machine_code() if has_machine_code() else by_forks()
        if not pid:
            freeze(origin)
            become(name.strip(), mask)
            return
        if pid > 0:
            # Before handlers of the program's run again, which may raise.
            copy.pid, copy.started = pid, start_of(pid)
            end(*old)
    except BaseException:
        if core.getpid() != origin:
            core._exit(70)
        raise
    finally:
        if pid:
            session.copying = False
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    try:
        if pid > 0:
            announce()
        elif not copy.pid:
            drop("processes")
    finally:
        # What the process in the middle takes to end, and the copy to begin, is about as much as it took to fork.
        purse.cost = time.process_time() - began + 2 * elsewhere
        purse.earned -= purse.cost
        purse.faults = faults()


def announce():
    """Says that there is a copy, unless it shows that there should be none."""
    if tasks() > 1:
        # Not those that end before a fork and begin again after it, as those of OpenBLAS do.
        copy.threads = tasks()
        drop("threads")
        return
    copy.why = None
    core.send({"type": "copy", "pid": copy.pid, "cell": session.cell})
    if not POLL.poll(0):
        rehearse()


def has_machine_code():
    """Whether the session is itself a copy, of a warmed interpreter: that had machine code for this. It knows nothing of threads
    that libraries end before a fork."""
    return "parent" in core.PARTS and tasks() == 1


def by_machine_code():
    """Makes the copy and the process in the middle, where only the copy costs a fork. Returns its id (0 in the copy, negative if there
    is none), and what that cost in seconds."""
    pid, middle = core.PARTS["parent"].set_aside()
    if middle <= 0:
        return pid, 0
    elsewhere = FIXED_COST
    try:
        # The clock of a process that has ended stands, until it was waited for.
        elsewhere = time.clock_gettime((~middle << 3) | PROCESS_CLOCK)
    except Exception:
        pass  # a clock of the program's own
    finally:
        core.waitpid(middle, WAIT_ALL)
    return pid, elsewhere


def by_forks():
    """The same by the interpreter's own means."""
    source, sink = core.pipe()
    pid, middle, elsewhere = -1, -1, 0
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
            word = core.read(source, 8)
            pid, elsewhere = int.from_bytes(word[:4], "little") or -1, int.from_bytes(word[4:], "little") / 1e6
            try:
                core.waitpid(middle, 0)
            except ChildProcessError:
                pass  # where SIGCHLD is ignored the system reaps
    finally:
        for fd in (source, sink):
            if fd >= 0:
                core.close(fd)
    return pid, elsewhere


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
    end(copy.pid, copy.started)
    copy.pid = 0
    if copy.why != why:
        copy.why = why
        core.send({"type": "copy", "pid": 0, "cell": session.cell, "why": why})


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
            micros = min(int(time.process_time() * 1e6), (1 << 32) - 1)
            core.write(sink, pid.to_bytes(4, "little") + micros.to_bytes(4, "little"))
            core._exit(0)
        return 0, 0
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
    purse.faults = None
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
