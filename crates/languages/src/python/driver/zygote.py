"""The zygote: an interpreter that has loaded modules once, and whose forks become sessions.

A fork enters a sandbox by system calls that the launcher has encoded as numbers and bytes. The fork makes the calls
in order. The first failure ends it: nothing is decided in a process that has run library code. This module handles
only the state that a session must not share with its siblings: random states, identities, folder caches and the
environment.

No data of a caller ever enters the zygote.

"""

import ctypes
import gc
import sys

import _signal
import _socket
import posix

LAUNCHER = 5
LIBRARY = ctypes.PyDLL(None)
PYTHON = ctypes.pythonapi
receive = ctypes.PyDLL(None, use_errno=True).recvmsg
receive.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
system_call = ctypes.PyDLL(None, use_errno=True).syscall
system_call.restype, system_call.argtypes = ctypes.c_long, [ctypes.c_long] * 7
BEFORE, IN_PARENT, IN_CHILD = PYTHON.PyOS_BeforeFork, PYTHON.PyOS_AfterFork_Parent, PYTHON.PyOS_AfterFork_Child
for function in (BEFORE, IN_PARENT, IN_CHILD):
    function.restype, function.argtypes = None, []
PR_GET_TID_ADDRESS = 40
# Files of the driver that sessions are likely to need, loaded here once for all of them.
SHARED_PARTS = ("environment", "imports", "errors", "lookups", "pretty", "rich", "charts", "shell", "notebook", "packages", "magics", "variables", "images")
MESSAGE = 1 << 17
DESCRIPTORS = 16
EINTR = 4

session = core.session
previous = ctypes.c_long(0)


class entry:
    """The latest system call lists of the launcher, by which forks enter a sandbox."""

    thread = 0  # the address where the C library keeps the number of this thread
    user = None
    fork = let_go = enter = lock = ()
    kept = []


def run_zygote():
    """Runs the zygote. Only its forks return from here, each as a session."""
    usual, while_loading = core.BOOT["env"], core.BOOT["env_loading"]
    environment = core.part("environment")
    inherited = [name.decode("utf-8", "surrogateescape") for name in posix.environ]
    environment.set_variables({**usual, **while_loading}, inherited)
    try:
        core.standard("_locale").setlocale(0, "C.UTF-8")
    except Exception:
        pass  # this affects only the messages of the C library
    core.find_site()
    core.set_up_paths()
    core.set_up()
    new_streams()
    # Loaded before the modules, the code that every fork runs is contiguous in memory.
    for name in SHARED_PARTS:
        core.part(name)
    core.keep_code("snapshots")
    core.standard("time")
    core.part("imports").reserve()
    loaded = core.part("imports").preload(core.inbox.next())
    environment.set_variables(usual, while_loading)
    entry.thread = thread_id()
    if not entry.thread:
        core.say("sandcell: no GNU C library: no zygote\n")
        core._exit(70)
    # These numbers stay in use, so that descriptors passed to forks get higher ones.
    null, told = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC), posix.dup(core.CONTROL_OUT)
    for fd in (core.CONTROL_IN, core.CONTROL_OUT):
        core.dup2(null, fd)
    core.close(null)
    # Work that is the same for all forks is done here: forks differ only in the descriptors passed to them.
    core.reserve_descriptors()
    core.POLL = core.standard("select").poll()
    core.POLL.register(core.CONTROL_IN, 1)
    _signal.signal(_signal.SIGINT, core.on_interrupt)
    warm_up()
    for fd in core.COPIES:
        core.close(fd)
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    core.guarded(trim_heap)
    place, core.CONTROL_OUT = core.CONTROL_OUT, told
    core.send(loaded)
    core.CONTROL_OUT = place
    core.close(told)
    session.is_zygote = True
    while True:
        size = order.receive(LAUNCHER)
        if not size:
            core._exit(0)
        header, _ = core.scan(order.data[:size].decode("ascii"), 0)
        if "entry_program" in header:
            set_calls(header["entry_program"])
        elif "enter" in header:
            child = make()
            if child == 0:
                become()
                return
            run_calls(entry.let_go)
            core.write(LAUNCHER, b'{"forked":{"child":%d}}' % child)


def warm_up():
    """Runs the first steps of a fork once, so that the code that they need is loaded, and the C library has resolved
    its symbols."""
    source, sink = core.pipe()
    core.dup2(source, core.CONTROL_IN, False)
    place = core.CONTROL_OUT
    names, nonce = dict(core.NAMES), "sandcell-0"
    begin = {"type": "begin", "env": {}, "without": [], "cwd": "/"}
    ready = {"type": "preload", "nonce": nonce, "modules": []}
    cell = {"type": "run", "nonce": nonce, "cell": 1, "code": core.part("imports").WARM_UP_CELL}
    for header in (begin, ready, cell):
        core.CONTROL_OUT = sink
        core.send(header)
        core.CONTROL_OUT = place
        if header is begin:
            become()
        else:
            core.answer(core.inbox.next())
    core.part("imports").forget(names)
    for fd in (source, sink):
        core.close(fd)


def trim_heap():
    """Returns memory that imports have left unused to the system, where the C library can. Otherwise each fork would
    be charged for it."""
    LIBRARY.malloc_trim(0)


# ---------------------------------------------------------------- system calls


class Room:
    """A buffer for one message with descriptors. Encoded calls refer to its address."""

    def __init__(self, size):
        self.data, self.beside = bytearray(size), bytearray(16 + 4 * DESCRIPTORS)
        data, control = [address_of(each) for each in (self.data, self.beside)]
        self.part = (ctypes.c_long * 2)(data, size)
        self.header = (ctypes.c_long * 7)(0, 0, ctypes.addressof(self.part), 1, control, len(self.beside), 0)
        self.address, self.descriptors = ctypes.addressof(self.header), control + 16
        self.numbers = memoryview(self.beside)[16:].cast("i")
        # A missing descriptor is -1.
        self.numbers[:] = memoryview(b"\xff" * 4 * DESCRIPTORS).cast("i")

    def receive(self, fd):
        """Receives the next message and returns its length; 0 at the end of the channel."""
        self.header[5] = len(self.beside)
        size = receive(fd, self.address, 0)
        while size < 0 and ctypes.get_errno() == EINTR:
            size = receive(fd, self.address, 0)
        return max(0, size)

    def is_whole(self):
        return not self.header[6] & _socket.MSG_CTRUNC

    def is_alone(self):
        """Returns True if the message has no descriptors."""
        return not self.header[5]


def address_of(data):
    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))


ROOMS = {"order": Room(MESSAGE), "go": Room(64), "lane": Room(64)}
order, go, lane = ROOMS.values()


def set_calls(told):
    """Prepares the call lists, so that forks have nothing to prepare."""
    entry.kept = []
    if entry.user != told["user"]:
        entry.user = core.USER = told["user"]
        core.set_up_commands()
    entry.fork, entry.let_go, entry.enter, entry.lock = [ready(told[name]) for name in ("fork", "let_go", "enter", "lock")]


def ready(calls):
    """Prepares calls: for each, whether an argument is read from an address, and the number with six arguments."""
    prepared = []
    for number, *arguments in calls:
        found = [(number, False), *[argument(value) for value in arguments]]
        found += [(0, False)] * (7 - len(found))
        values = [value for value, _ in found]
        at_address = [place for place, (_, there) in enumerate(found) if there]
        prepared.append((at_address, values))
    return prepared


def run_calls(calls):
    """Makes the calls in order. Stops at the first failed call. Repeats a call that a signal interrupted. Returns the
    last result, or a negative error number."""
    result = 0
    for at_address, values in calls:
        if at_address:
            values = [ctypes.c_int.from_address(value).value if place in at_address else value for place, value in enumerate(values)]
        result = system_call(*values)
        while result == -1 and ctypes.get_errno() == EINTR:
            result = system_call(*values)
        if result == -1:
            return -ctypes.get_errno()
        previous.value = result
    return result


def argument(value):
    """Returns the argument, and True if it is read from that address."""
    if value is None:
        return ctypes.addressof(previous), True
    if value is True:
        return entry.thread, False
    if isinstance(value, str):
        return address(bytes.fromhex(value)), False
    if isinstance(value, list):
        data = bytes.fromhex(value[0])
        return address((len(data) // 8).to_bytes(8, sys.byteorder) + address(data).to_bytes(8, sys.byteorder)), False
    if isinstance(value, dict):
        if "own" in value:
            return core.COPIES[value["own"]], False
        room = ROOMS[value["message"]]
        place = value.get("descriptor")
        return (room.address, False) if place is None else (room.descriptors + 4 * place, True)
    return value, False


def address(data):
    kept = ctypes.create_string_buffer(data, len(data))
    entry.kept.append(kept)
    return ctypes.addressof(kept)


def thread_id():
    """Returns the address where the C library stores the id of this thread; 0 if unknown. Other C libraries than
    GNU's store something else at the address that the kernel clears at the end of a thread."""
    found = ctypes.c_long(0)
    if LIBRARY.prctl(PR_GET_TID_ADDRESS, ctypes.c_long(ctypes.addressof(found)), 0, 0, 0):
        return 0
    known = found.value and ctypes.c_int.from_address(found.value).value == core.getpid()
    return found.value if known else 0


def make():
    """Forks into the PID namespace of the sandbox. In the child it returns after entering the sandbox."""
    if not order.is_whole():
        return -1
    BEFORE()
    try:
        child = run_calls(entry.fork)
    except BaseException:
        core._exit(70)  # in the zygote or in the fork: neither may run on
    if child:
        IN_PARENT()
        return child
    try:
        enter()
    except BaseException:
        core._exit(70)
    return 0


def enter():
    """Runs in the fork: enters the sandbox, waits until the launcher has made it and admitted the fork, and applies
    the lockdown."""
    IN_CHILD()
    if run_calls(entry.enter) <= 0:
        core._exit(70)
    if lane.is_alone():
        (output, stdout), (errors, stderr), (control, into), (out_of, answers) = [core.pipe() for _ in range(4)]
        agent = _socket.socket(fileno=go.numbers[1])
        rights = bytes((ctypes.c_int * 4)(output, errors, into, out_of))
        agent.sendmsg([b'{"pipes":{}}'], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        agent.detach()
        for place, fd in enumerate((stdout, stderr, control, answers)):
            lane.numbers[place] = fd
    if run_calls(entry.lock) < 0:
        core._exit(70)


# ---------------------------------------------------------------- becoming a session


def become():
    """Takes the state of this session, and drops the state shared with its siblings."""
    try:
        session.is_zygote = False
        core.PID = core.getpid()
        core.record_outputs()
        header = core.inbox.next()
        if header.get("type") != "begin":
            core._exit(70)
        core.part("environment").change(header["env"], header["without"])
        posix.chdir(header["cwd"])
        sys.path_importer_cache.clear()
        for library in (new_numpy, new_identities, new_keys, core.part("imports").renumber):
            core.guarded(library)
        version = "%d.%d.%d" % sys.version_info[:3]
        core.send({"type": "ready", "version": version, "pid": core.PID})
    except BaseException:
        core._exit(70)


def new_streams():
    """Makes the standard streams of forks once. A stream inspects its descriptor when it is made. It gets a pipe
    here, as in a session, because the zygote's own descriptors lead nowhere."""
    source, sink = core.pipe()
    for fd, name in ((1, "stdout"), (2, "stderr")):
        kept = posix.dup(fd)
        core.dup2(sink, fd)
        stream = core.open_stream(fd)
        core.dup2(kept, fd)
        core.close(kept)
        stream.buffer.raw.name, stream.mode = "<%s>" % name, "w"
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)
        core.streams[fd] = stream
    core.close(source)
    core.close(sink)


def new_numpy():
    """Reseeds numpy's global generator. The module `random` does that in its own fork handler."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def new_identities():
    tempfile, uuid = sys.modules.get("tempfile"), sys.modules.get("uuid")
    if tempfile:
        tempfile._name_sequence = None
    if uuid:
        uuid._node = uuid._last_timestamp = None


def new_keys():
    ssl, process = sys.modules.get("_ssl"), sys.modules.get("multiprocessing.process")
    if ssl:
        ssl.RAND_add(posix.urandom(32), 32.0)
    if process:
        process.current_process().authkey = posix.urandom(32)

