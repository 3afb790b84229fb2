"""The inside of a warmed parent: an interpreter that has loaded modules once, and whose children become sessions.

A child enters a sandbox by system calls that the launcher has written down, as numbers and bytes. They are carried out here
blindly and in order, and the first that fails ends the child: nothing is decided in a process that has run library code.
What is decided here is only what a session must not share with its siblings: random states, identities, what folders
looked like, the environment.

Nothing of a caller's ever comes into the parent itself.
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
# Looking a function up anew in each child would cost it some forty pages.
system, receive = LIBRARY.syscall, ctypes.PyDLL(None, use_errno=True).recvmsg
system.restype = ctypes.c_long
BEFORE, IN_PARENT, IN_CHILD = PYTHON.PyOS_BeforeFork, PYTHON.PyOS_AfterFork_Parent, PYTHON.PyOS_AfterFork_Child
for function in (BEFORE, IN_PARENT, IN_CHILD):
    function.restype, function.argtypes = None, []
PR_GET_TID_ADDRESS = 40
# Files of the driver that sessions are likely to need, loaded here once for all of them.
LIKELY = ("imports", "errors", "lookups", "pretty", "rich", "charts", "shell", "notebook", "packages", "magics", "variables")
MESSAGE = 1 << 17
# How long it may take until somebody wants a session, in seconds. With the agent all of the sandbox ends.
DOOR = 86400.0
DESCRIPTORS = 16
EINTR = 4
REHEARSALS = 20
# The state of numpy's old generator without its place in that, in bytes and in numbers.
KEY, NUMBERS = 2496, 624

session = core.session
previous = ctypes.c_long(0)


class way:
    """How children enter, as the launcher said last."""

    user = None
    enter = 0
    fork = ()
    become_one = ()
    lock = ()
    kept = []
    numpy = 0  # where the state of numpy's old generator lies; 0: not known


def live():
    """What a parent does. Only its children come back from here, each as a session."""
    usual, while_loading = core.BOOT["env"], core.BOOT["env_loading"]
    change_environment({**usual, **while_loading}, [os_text(name) for name in posix.environ])
    try:
        core.standard("_locale").setlocale(0, "C.UTF-8")
    except Exception:
        pass  # only what the C library says in words
    of_site = core.find_site()
    core.set_up_paths(of_site)
    core.set_up()
    new_streams()
    # What every child runs lies close together if it is there before the modules.
    for name in LIKELY:
        core.part(name)
    core.keep_code("copies")
    core.standard("select")
    core.standard("time")
    loaded = core.part("imports").preload(core.inbox.next())
    change_environment(usual, while_loading)
    launcher = _socket.socket(fileno=LAUNCHER)
    # What modules let go of in every fork (matplotlib its fonts) goes now, unless some thread uses it.
    if not core._thread._count():
        for function in core.AFTER_FORK:
            if not core.part("imports").of_locks(function):
                core.guarded(function)
    # What children would change of what they share costs each of them a page: functions settle when they are called often,
    # and what folders looked like nobody needs.
    for _ in range(REHEARSALS):
        core.part("imports").rehearse()
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    core.guarded(give_back)
    core.send(loaded)
    # The numbers stay taken: what children are handed lies above them.
    null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
    for fd in (3, 4):
        core.dup2(null, fd)
    core.close(null)
    # What children would do all alike is done here: only what they are handed differs.
    session.parent = True
    core.find_places()
    for fd in core.COPIES:
        core.close(fd)
    _signal.signal(_signal.SIGINT, core.on_interrupt)
    for each in (going, entered):
        each.make_room()
    core.guarded(find_numpy)
    while True:
        data, ancillary, _flags, _from = launcher.recvmsg(MESSAGE, _socket.CMSG_SPACE(4 * DESCRIPTORS))
        if not data:
            core._exit(0)
        header, _ = core.scan(data.decode("ascii"), 0)
        if "way" in header:
            learn(header["way"])
        elif "enter" in header:
            handed = descriptors(ancillary)
            child = make(handed)
            if child == 0:
                launcher.detach()
                become(of_site)
                return
            for fd in handed:
                core.close(fd)
            launcher.send(core.dump({"forked": {"id": header["enter"]["id"], "child": child}}).encode("ascii"))


def give_back():
    """Returns memory that loading has left unused to the system, where the C library can: each child would have its share of it."""
    LIBRARY.malloc_trim(0)


def descriptors(ancillary):
    found = []
    for level, kind, data in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            found += memoryview(data[: len(data) - len(data) % 4]).cast("i").tolist()
    return found


# ---------------------------------------------------------------- system calls


def learn(told):
    """Makes the calls ready, so that children have nothing to prepare."""
    way.kept = []
    if way.user != told["user"]:
        way.user = core.USER = told["user"]
        core.set_up_commands()
    way.enter, way.fork = told["enter"], ready(told["fork"])
    way.become_one = [ready(call) for call in told["become_one"]]
    way.lock = [ready(call) for call in told["lock"]]


def ready(call):
    return tuple([argument(value) for value in call])


def argument(value):
    if value is None:
        return previous
    if value is True:
        return ctypes.c_long(thread_id())
    if isinstance(value, str):
        return ctypes.c_long(address(bytes.fromhex(value)))
    if isinstance(value, list):
        data = bytes.fromhex(value[0])
        return ctypes.c_long(address((len(data) // 8).to_bytes(8, sys.byteorder) + address(data).to_bytes(8, sys.byteorder)))
    return ctypes.c_long(value)


def address(data):
    kept = ctypes.create_string_buffer(data, len(data))
    way.kept.append(kept)
    return ctypes.addressof(kept)


def thread_id():
    """Where the C library keeps the number of this thread."""
    found = ctypes.c_long(0)
    if LIBRARY.prctl(PR_GET_TID_ADDRESS, ctypes.c_long(ctypes.addressof(found)), 0, 0, 0):
        core._exit(70)
    return found.value


def carry_out(calls):
    for call in calls:
        previous.value = system(*call)
        if previous.value < 0:
            core._exit(70)


def make(handed):
    """Makes a child in the sandbox's process namespace; in the child it has entered when this returns."""
    if len(handed) < 7 or system(way.enter, handed[0], 0) < 0:
        return -1
    BEFORE()
    child = system(*way.fork)
    if child:
        IN_PARENT()
        return child
    try:
        IN_CHILD()
        enter(handed)
    except BaseException:
        core._exit(70)
    return 0


class Room:
    """Room for one message that comes with descriptors, made ahead: an object for a socket would ask the system three
    questions whose answers are known."""

    def make_room(self):
        beside = bytearray(16 + 4 * DESCRIPTORS)
        self.kept = (ctypes.c_char * 64)(), (ctypes.c_char * len(beside)).from_buffer(beside)
        data, control = [ctypes.addressof(each) for each in self.kept]
        self.part = (ctypes.c_long * 2)(data, 64)
        self.header = (ctypes.c_long * 7)(0, 0, ctypes.addressof(self.part), 1, control, len(beside), 0)
        self.address = ctypes.c_long(ctypes.addressof(self.header))
        self.length, self.kind = memoryview(beside)[:8].cast("l"), memoryview(beside)[8:16].cast("i")
        self.numbers = memoryview(beside)[16:].cast("i")

    def receive(self, fd):
        """The descriptors that come with the next message; None if none comes any more, or not as it should."""
        size = receive(fd, self.address, 0)
        while size < 0 and ctypes.get_errno() == EINTR:
            size = receive(fd, self.address, 0)
        if size <= 0 or self.header[6] & _socket.MSG_CTRUNC:
            return None
        if not self.header[5]:
            return []
        if self.kind.tolist() != [_socket.SOL_SOCKET, _socket.SCM_RIGHTS]:
            return None
        # The length has 16 bytes more than the descriptors.
        return self.numbers[: (self.length[0] - 16) // 4].tolist()


going, entered = Room(), Room()


def enter(handed):
    """In the child: enters the sandbox, waits until that is made and the launcher has taken it in, locks itself."""
    *namespaces, go = handed[1:]
    for namespace in namespaces:
        if system(way.enter, namespace, 0) < 0:
            core._exit(70)
    came = going.receive(go)
    if not came:
        core._exit(0)
    files, door, *groups = came
    if system(way.enter, files, 0) < 0:
        core._exit(70)
    for group in groups:
        core.write(group, b"0")
        core.close(group)
    if groups:
        core.write(go, b"1")
    core.close(go)
    carry_out(way.become_one)
    core.setsid()
    null = posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC)
    # The launcher's end, which this is, does not block.
    waiting = core.standard("select").poll()
    waiting.register(door, 1)
    if not waiting.poll(DOOR * 1000):
        core._exit(0)
    lane = entered.receive(door)
    if lane is None:
        core._exit(0)
    if lane:
        stdout, stderr, control, answers = lane
    else:
        (output, stdout), (errors, stderr), (control, into), (out_of, answers) = [core.pipe() for _ in range(4)]
        rights = bytes((ctypes.c_int * 4)(output, errors, into, out_of))
        agent = _socket.socket(fileno=posix.dup(door))
        agent.sendmsg([b'{"pipes":{}}'], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        agent.close()
    core.close(door)
    for fd, number in ((null, 0), (stdout, 1), (stderr, 2), (control, 3), (answers, 4)):
        core.dup2(fd, number)
    carry_out(way.lock)


# ---------------------------------------------------------------- becoming a session


def become(of_site):
    """Takes what is this session's own, and lets go of what its siblings have as well."""
    try:
        session.parent = False
        core.be_at_places()
        header = core.inbox.next()
        if header.get("type") != "begin":
            core._exit(70)
        other = header["env"]
        change_environment(other, header["without"])
        posix.chdir(header["cwd"])
        if "PATH" in other or "PATH" in header["without"]:
            core.set_up_commands()
        if "PYTHONPATH" in other:
            core.set_up_paths(of_site)
        sys.path_importer_cache.clear()
        if "TZ" in other or "TZ" in header["without"]:
            core.standard("time").tzset()
        for library in (new_numpy, new_identities, new_keys, new_thread):
            core.guarded(library)
        version = "%d.%d.%d" % sys.version_info[:3]
        core.send({"type": "ready", "version": version, "pid": core.PID})
    except BaseException:
        core._exit(70)


def change_environment(variables, without):
    """Sets these variables, and removes the others."""
    for name in without:
        posix.unsetenv(name)
        posix.environ.pop(os_bytes(name), None)
    for name, value in variables.items():
        name, value = os_bytes(name), os_bytes(value)
        posix.environ[name] = value
        posix.putenv(name, value)


def os_bytes(text):
    return text.encode("utf-8", "surrogateescape")


def os_text(data):
    return data.decode("utf-8", "surrogateescape")


def new_streams():
    """Those that children will have, made once. What they ask of their descriptors when they are made a pipe answers, as
    children's are; the parent's own lead nowhere."""
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
        core.IDENTITIES[fd] = core.identity(fd)
    core.close(source)
    core.close(sink)


def find_numpy():
    """Where a child can put a new state: going through numpy costs each a hundred pages. Believed if the old one stands there."""
    generator = sys.modules["numpy.random.mtrand"]._rand
    if type(generator._bit_generator).__name__ != "MT19937":
        return
    address, (name, key, *_rest) = generator._bit_generator.ctypes.state_address, generator.get_state()
    # The first number that is asked for then comes of a state that is made of all of this.
    generator.set_state((name, key, NUMBERS))
    if ctypes.string_at(address, KEY) == key.tobytes() and generator.get_state()[2:4] == (NUMBERS, 0):
        way.numpy = address


def new_numpy():
    """The old generator's state is one for the process; new ones are seeded when they are made. `random` sees to itself, by a
    handler of forks."""
    if way.numpy:
        ctypes.memmove(way.numpy, posix.urandom(KEY), KEY)
    elif "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def new_thread():
    """What a handler of forks would have done that is not about locks."""
    threading = sys.modules.get("threading")
    if threading:
        threading.main_thread()._set_native_id()


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

