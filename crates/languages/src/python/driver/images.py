"""Images: the state of a session and its files, from which a driver in another sandbox continues.

**Making an image.** The agent sends a signal to a kept snapshot. The snapshot forks a child, lists the child's mapped
regions and reports the size of the image. The child runs machine code that stores its registers and waits. At the second
signal the machine code writes the pages of the memory to the image. The child runs no Python meanwhile, so registers and
memory in the image are those of the same moment. The agent makes the image of the files (`agent/src/server/files/saved/image.rs`).

**Loading an image.** The driver in the new sandbox first writes the files. Then it prepares a list of system calls: they
unmap the driver's memory, and map the memory in the image at its former addresses. Machine code makes these calls and
loads the registers. The process then continues as the session, at the place where the child stored its registers.
Programs in sandboxes may make all of these calls.

Large parts of the memory are mapped, not read, so that branches share them until they write to them. Such a part grows
into a hole of the file, and contents that are given back (`MADV_DONTNEED`) return as they were in the image. The C
library and the libraries in SHARING do not rely on zeros there; with others, everything is read.

Programs of one caller, and nobody else's, produce and load an image. Its bytes are as trusted as the program itself.

"""

import sys

import _signal
import posix

ctypes = core.standard("ctypes")
LIBRARY = ctypes.PyDLL(None, use_errno=True)
PAGE = 4096
RESTORED = 0x5CE
# The numbers of the descriptors of an image.
FILES, MEMORY = 5, 6
# Runs of pages from this size on are mapped.
MAPPED = 1 << 17
# Libraries that do not expect zeros in memory that they have given back.
SHARING = ("numpy", "numpy.libs", "pandas", "scipy", "scipy.libs", "matplotlib", "PIL", "pillow.libs", "kiwisolver", "contourpy")
NOT_SHARING = ("jemalloc", "mimalloc", "tcmalloc", "arrow")
CALLS = {"read": 0, "close": 3, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "pread64": 17, "pwrite64": 18}
CALLS.update(mremap=25, dup2=33, sigaltstack=131, prctl=157, arch_prctl=158, gettid=186, rseq=334)
RSEQ_SIGNATURE = 0x53053053
# The machine code for x86-64, assembled from driver/images.s: `save` at 0, `restore` at RESTORE.
MACHINE = bytes.fromhex(
    "48891f48896f084c8967104c896f184c8977204c897f28488d44240848894730488b0424488947380fae5f40d97f444989d5"
    "4989ce4889cd4a8d1c014889f7488d3531000000ba01000000b8010000000f054c89ef4889ee4889da4829ea31c00f054801"
    "c54885c07fe878694d89f44989ed4531ffeb120a0f1f8400000000004989ff4989f44989d54d39ec7353498b0424498b7c24"
    "08498b742410498b5424184d8b5424204d8b4424284d8b4c24300f05498b4c24384983c4404883f90174c84885c974074839"
    "c174beeb08483d00f0ffff76b4bf47000000b8e70000000f0531ff4d85ff74f2498b4748498b4f50488908498b1f498b6f08"
    "4d8b67104d8b6f184d8b7720498b6730410fae574041d96f44498b4f384d8b7f28b8ce050000ffe1"
)
RESTORE = 0x80
# For the highest byte of a page's state: 1 if the process has the page alone, in memory (0x80) and not of a file (0x20), or
# swapped out (0x40).
OWN_PAGE = bytes([bool(flags & 0xA0 == 0x80 or flags & 0x40) for flags in range(256)])
# Pages with fewer others in between are one run.
GAP = bytes(9)
MAX_REGIONS = 20000
# The pages whose state is read at once.
STATES = 1 << 18
# The room for the calls that write an image, and for those that load one.
ROOM, SCRATCH = 1 << 22, 1 << 25
# The size of the registers, in bytes. In a loaded process, the address of the calls that have loaded it follows.
REGISTERS = 72
# Folders whose files are in the image.
PRIVATE = ("/home/user/", "/tmp/", "/var/tmp/")
MIN_ADDRESS, MAX_ADDRESS = 1 << 28, 0x7FFFFFFFF000


class image:
    """The image of this snapshot, and one that is not written yet."""

    fd, begun = -1, None
    # The address where the registers are, and the one where the C library keeps the id of the thread.
    registers, thread = 0, []
    mask = 0o022


class Refused(Exception):
    """An image cannot be made or loaded, for this reason."""


def function(address, *arguments):
    return ctypes.PYFUNCTYPE(ctypes.c_long, *[ctypes.c_void_p] * len(arguments))(address)(*arguments)


memory_map, any_call = LIBRARY["mmap"], LIBRARY["syscall"]
memory_map.restype, memory_map.argtypes = ctypes.c_long, [ctypes.c_long] * 6
any_call.restype, any_call.argtypes = ctypes.c_long, [ctypes.c_long] * 7


def system_call(name, *arguments):
    return any_call(CALLS[name], *arguments, *[0] * (6 - len(arguments)))


def encoded(rows):
    return b"".join([(value & (1 << 64) - 1).to_bytes(8, "little") for row in rows for value in row])


# ---------------------------------------------------------------- making one


def advance():
    """Begins an image of this process and reports its size, or writes the one that was begun. Returns True in the process
    that continues from the image."""
    report = {"type": "imaged", "pid": core.getpid(), "descriptor": -1, "position": 0, "bytes": 0, "size": 0, "why": ""}
    try:
        if image.begun is None:
            if begin():
                return True
            report["size"] = image.begun.total
        else:
            report["position"], report["bytes"] = write()
            report["descriptor"] = image.fd
    except BaseException as error:
        report["why"] = str(error) if type(error) is Refused else "it cannot be copied: %s: %s" % (type(error).__name__, error)
        drop()
    core.send(report)
    return False


def drop():
    """Drops the image, also one that was only begun."""
    begun, image.begun = image.begun, None
    if begun:
        try:
            if begun.child > 0:
                core.kill(begun.child, _signal.SIGKILL)  # code in the sandbox may have stopped it
        except OSError:
            pass
        begun.end()
    if image.fd >= 0:
        core.close(image.fd)
        image.fd = -1


class Begun:
    """An image that is not written yet: a child of this process stands still with the same memory."""

    child, status, ready, calls, total = -1, -1, -1, -1, 0

    def __init__(self):
        self.code, self.room = allocate(PAGE, 7), allocate(ROOM, 3)
        ctypes.memmove(self.code, MACHINE, len(MACHINE))
        self.is_ignored = _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN

    def end(self):
        """Waits for the child, which ends when the calls end."""
        if self.calls >= 0:
            core.close(self.calls)
        try:
            if self.child > 0:
                _, self.status = core.waitpid(self.child, 0)
        except OSError:
            pass  # it ended while its end was ignored: it has written nothing
        if self.ready >= 0:
            core.close(self.ready)
        if self.is_ignored:
            _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        system_call("munmap", self.code, PAGE)
        system_call("munmap", self.room, ROOM)


def begin():
    """Makes the child and lists what the image needs. Returns True in the process that continues from the image."""
    drop()
    if posix.uname().machine != "x86_64" or sys.maxsize >> 32 == 0:
        raise Refused("only sessions on x86-64 can be copied to other sandboxes")
    image.fd = memory_file()
    image.begun = begun = Begun()
    begun.ready, told = core.pipe()
    table, begun.calls = core.pipe()
    try:
        begun.child = core.fork()
        if not begun.child:
            stand_still(begun, told, table, {begun.ready, told, table, begun.calls, image.fd})
            return True
    finally:
        if begun.child:
            core.close(told)
            core.close(table)
    # Where the program ignores the signal, the end of a child cannot be waited for.
    if begun.is_ignored:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    begun.state, _ = core.scan(read_line(begun.ready).decode("ascii"), 0)
    begun.regions, begun.total = regions_of(begun.child)
    return False


def write():
    """Writes the image. Returns the position and size of its table of contents."""
    begun = image.begun
    write_calls(begun.calls, begun.regions)
    image.begun = None
    begun.end()
    if begun.status:
        raise Refused("there is not enough memory for a copy of it")
    index = core.dump({"regions": begun.regions, "state": begun.state})
    posix.pwrite(image.fd, index, begun.total)
    return begun.total, len(index)


def memory_file():
    """Makes a file without a name: in memory, or on the private file system where nothing would charge memory files to the
    sandbox."""
    try:
        return posix.memfd_create("sandcell-image", posix.MFD_CLOEXEC | posix.MFD_ALLOW_SEALING)
    except OSError:
        return posix.open("/tmp", posix.O_TMPFILE | posix.O_RDWR | posix.O_CLOEXEC, 0o600)


def allocate(size, access):
    # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    address = memory_map(0, size, access, 0x4022, -1, 0)
    if address == -1:
        raise Refused("there is not enough memory for a copy of it")
    return address


def stand_still(begun, told, table, own):
    """Runs in the child: reports what the kernel knows about the process, and stands still until all memory is written.
    Returns only in the process that continues from the image."""
    try:
        for fd in own - {told, table, image.fd}:
            core.close(fd)
        # It ends with the snapshot (PR_SET_PDEATHSIG), even if code in the sandbox has stopped it.
        system_call("prctl", 1, int(_signal.SIGKILL))
        # If memory runs short, this process ends, and neither the session nor the snapshot.
        core.part("snapshots").write_file("/proc/self/oom_score_adj", b"1000")
        registers = ctypes.create_string_buffer(128)
        image.registers = ctypes.addressof(registers)
        core.write(told, core.dump(state_of_process(own)))
        result = function(begun.code, image.registers, told, table, begun.room, ROOM)
    except BaseException:
        core._exit(70)
    if result != RESTORED:
        core._exit(70)
    image.fd, image.begun = -1, None
    scratch = ctypes.c_uint64.from_address(image.registers + REGISTERS).value
    for address, size in ((begun.code, PAGE), (begun.room, ROOM), (scratch, SCRATCH)):
        system_call("munmap", address, size)


def read_line(fd):
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = core.read(fd, 1 << 16)
        if not piece:
            raise Refused("the copy of it has ended")
        data += piece
    return bytes(data)


def state_of_process(own):
    """Returns what the kernel knows about this process. Descriptors in `own` do not count."""
    base = ctypes.c_long(0)
    system_call("arch_prctl", 0x1003, ctypes.addressof(base))
    base = base.value
    buffer = ctypes.create_string_buffer(64)
    address = ctypes.addressof(buffer)
    actions = {}
    for number in range(1, 65):
        if system_call("rt_sigaction", number, 0, address, 8) == 0:
            actions[str(number)] = buffer.raw[:32].hex()
    system_call("sigaltstack", 0, address)
    stack = buffer.raw[:24].hex()
    system_call("rt_sigprocmask", 0, 0, address, 8)
    image.thread = thread_ids(base)
    image.mask = posix.umask(0o077)
    posix.umask(image.mask)
    numbers = [int(number) for number in posix.listdir("/proc/self/fd")]
    return {
        "release": posix.uname().release,
        "base": base,
        "registers": image.registers,
        "rseq": rseq(base),
        "heap": heap(),
        "actions": actions,
        "stack": stack,
        "blocked": buffer.raw[:8].hex(),
        "copies": core.COPIES[:4],
        "plugs": [number for number in numbers if number not in own and number not in core.COPIES],
    }


def rseq(base):
    """Returns the address that the C library has registered for restartable sequences; 0 if none."""
    try:
        return base + ctypes.c_long.in_dll(LIBRARY, "__rseq_offset").value
    except ValueError:
        return 0


def heap():
    """Returns the address where the C library keeps the end of its heap; 0 if unknown."""
    try:
        return ctypes.addressof(ctypes.c_long.in_dll(LIBRARY, "__curbrk"))
    except ValueError:
        return 0


def thread_ids(base):
    """Returns the address where the C library keeps the id of this thread, if it can be found."""
    me = system_call("gettid")
    found = [base + at for at in range(0, 0x900, 4) if ctypes.c_uint32.from_address(base + at).value == me]
    return found if len(found) == 1 else []


def regions_of(pid):
    """Returns the mapped regions of a process with the runs of pages that an image must have, and the size of the runs."""
    found, total, stamps = [], 0, {}
    states = posix.open("/proc/%d/pagemap" % pid, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        for start, end, permissions, offset, inode, name in maps(pid):
            if name == "[vsyscall]":
                continue
            if len(found) >= MAX_REGIONS:
                raise Refused("its memory has more than %d regions" % MAX_REGIONS)
            kept = kept_pages(permissions, name)
            if kept is ALL:
                runs = [(start, end)]
            elif kept is OWN:
                runs = own_pages(states, start, end)
            else:
                runs = []
            placed = []
            for first, last in runs:
                placed.append([first, last, total])
                total += last - first
            region = {"start": start, "end": end, "permissions": permissions, "offset": offset, "inode": inode, "name": name}
            found.append({**region, "runs": placed, "stamp": stamp(name, stamps)})
    finally:
        core.close(states)
    return found, total


def own_pages(states, start, end):
    """Returns the runs of pages that a process has alone."""
    runs = []
    for first in range(start, end, STATES * PAGE):
        size = min(end - first, STATES * PAGE) // PAGE * 8
        flags = posix.pread(states, size, first // PAGE * 8)[7::8].translate(OWN_PAGE)
        begin = flags.find(1)
        while begin >= 0:
            end_of_run = flags.find(GAP, begin)
            end_of_run = len(flags) if end_of_run < 0 else end_of_run
            # A gap at the end may be shorter.
            end_of_run = flags.rfind(1, begin, end_of_run) + 1
            runs.append((first + begin * PAGE, first + end_of_run * PAGE))
            begin = flags.find(1, end_of_run)
    return runs


# The pages of a region that an image has: all, those that the process has written, none.
ALL, OWN, NONE = "all", "own", "none"


def kept_pages(permissions, name):
    is_shared = permissions.endswith("s")
    if is_kernels(name):
        return NONE
    if not name.startswith("/"):
        if is_shared or name and not name.startswith(("[heap]", "[stack", "[anon")):
            raise Refused("it has mapped %s, which another sandbox cannot have" % name)
        return OWN
    if not is_file(name):
        return ALL
    if name.startswith("/dev/"):
        raise Refused("it has mapped %s, which another sandbox cannot have" % name)
    return NONE if is_shared else OWN


def stamp(name, known):
    """Returns the size and the time of the last change of a file outside the private folders; None for others."""
    if not is_file(name) or name.startswith(PRIVATE):
        return None
    if name not in known:
        try:
            status = posix.stat(name)
            known[name] = [status.st_size, status.st_mtime_ns]
        except OSError:
            known[name] = None
    return known[name]


def is_kernels(name):
    return name.startswith("[v") or name == "[uprobes]"


def is_file(name):
    """Returns True for a file that another sandbox has, too."""
    return name.startswith("/") and not name.endswith(" (deleted)") and not name.startswith(("/dev/shm/", "/SYSV"))


def write_calls(fd, regions):
    """Writes the calls that write the image."""
    rows = []
    for region in regions:
        for start, end, position in region["runs"]:
            while start < end:
                piece = min(end - start, 1 << 30)
                rows.append((CALLS["pwrite64"], image.fd, start, piece, position, 0, 0, piece))
                start, position = start + piece, position + piece
    data = encoded(rows)
    if len(data) > ROOM // 2:
        raise Refused("its memory is in too many pieces")
    while data:
        data = data[core.write(fd, data) :]


def maps(pid):
    """Yields the mapped regions of a process: start, end, permissions, offset, inode and name."""
    data = bytearray()
    fd = posix.open("/proc/%s/maps" % pid, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        while True:
            piece = core.read(fd, 1 << 16)
            if not piece:
                break
            data += piece
    finally:
        core.close(fd)
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        fields = line.split(None, 5)
        if fields:
            start, end = [int(number, 16) for number in fields[0].split("-")]
            yield start, end, fields[1], int(fields[2], 16), int(fields[4]), fields[5] if len(fields) > 5 else ""


# ---------------------------------------------------------------- becoming one


def load(header):
    """Becomes the process of the image. Returns only if that is impossible."""
    answer = {"type": "loading", "nonce": header.get("nonce"), "why": ""}
    try:
        calls = None
        write_files(FILES, table_of(FILES, header["files"]))
        if header["memory"]:
            calls = Calls(MEMORY, table_of(MEMORY, header["memory"]), header["memory"]["share"])
            calls.make()
        else:
            core.close(FILES)
    except BaseException as error:
        answer["why"] = "%s: %s" % (type(error).__name__, error) if type(error) is not Refused else str(error)
        core.send(answer)
        return
    core.send(answer)
    if calls:
        calls.run()


def table_of(fd, part):
    table, _ = core.scan(read_all(fd, part["position"], part["bytes"]).decode("utf-8", "surrogateescape"), 0)
    return table


def read_all(fd, offset, size):
    data = bytearray()
    while len(data) < size:
        piece = posix.pread(fd, min(size - len(data), 1 << 20), offset + len(data))
        if not piece:
            raise Refused("the image is cut off")
        data += piece
    return bytes(data)


def write_files(image, index):
    """Replaces the private files by those of the image."""
    folders = index["folders"]
    entries = [(path_of(folders, entry), entry) for entry in index["files"]]
    wanted = {path: entry["kind"] for path, entry in entries}
    for top in folders:
        remove_others(top.encode(), wanted)
    for path, entry in entries:
        write_entry(image, path, entry)
    # Innermost first: writing into a folder changes its time.
    for path, entry in sorted(entries, reverse=True):
        if entry["kind"] != "link":
            posix.chmod(path, entry["mode"])
        seconds, nanoseconds = entry["modified"]
        time = seconds * 10**9 + nanoseconds
        posix.utime(path, ns=(time, time), follow_symlinks=False)


def path_of(folders, entry):
    top, path = folders[entry["folder"]].encode(), bytes(entry["path"])
    return top + b"/" + path if path else top


def remove_others(folder, wanted):
    """Removes all files, and the folders that the image does not have. Enters no other file system."""
    device = posix.lstat(folder).st_dev
    with posix.scandir(folder) as entries:
        entries = list(entries)
    for entry in entries:
        if entry.stat(follow_symlinks=False).st_dev != device:
            continue
        if not entry.is_dir(follow_symlinks=False):
            posix.unlink(entry.path)
            continue
        remove_others(entry.path, wanted)
        if wanted.get(entry.path) != "folder":
            try:
                posix.rmdir(entry.path)
            except OSError:
                pass  # another file system is in it


def write_entry(image, path, entry):
    kind = entry["kind"]
    if kind == "folder":
        try:
            posix.mkdir(path, 0o700)
        except FileExistsError:
            pass
    elif kind == "link":
        posix.symlink(bytes(entry["target"]), path)
    elif kind == "fifo":
        posix.mkfifo(path, 0o600)
    else:
        out = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC | posix.O_NOFOLLOW, 0o600)
        try:
            posix.ftruncate(out, entry["size"])
            at = 0
            while at < entry["size"]:
                piece = posix.pread(image, min(1 << 20, entry["size"] - at), entry["offset"] + at)
                if piece.count(0) < len(piece):
                    posix.pwrite(out, piece, at)
                at += len(piece) or entry["size"]
        finally:
            core.close(out)


class Calls:
    """The system calls that replace the memory of this process."""

    def __init__(self, image, index, share):
        self.image, self.regions, self.rows, self.data = image, index["regions"], [], []
        self.own = [(start, end, name) for start, end, _, _, _, name in maps("self") if name != "[vsyscall]"]
        self.scratch = free_range(self.own, self.regions)
        self.room = self.scratch + PAGE
        # The kernel's pages are here on the way to their places.
        self.between = self.scratch + SCRATCH - (1 << 20)
        self.state = state = index["state"]
        slot = state["registers"] + REGISTERS
        words = slot.to_bytes(8, "little") + self.scratch.to_bytes(8, "little")
        self.registers = self.read(state["registers"], REGISTERS) + words
        self.share = share and is_sharing(self.regions)
        if state["release"] != posix.uname().release:
            raise Refused("the state was made under another release of the kernel")

    def read(self, address, size):
        """Returns bytes of the image's memory."""
        for region in self.regions:
            for start, end, position in region["runs"]:
                if start <= address and address + size <= end:
                    return read_all(self.image, position + address - start, size)
        raise Refused("the image is damaged")

    def call(self, name, *arguments, result=0):
        """Adds a call. `result` is the only allowed one; 0: any but an error; 1: any."""
        self.rows.append((CALLS[name], *arguments, *[0] * (6 - len(arguments)), result))

    def keep(self, data):
        """Returns the address at which these bytes will be."""
        address = self.room
        self.data.append((address, data))
        self.room += len(data) + 15 & ~15
        return address

    def make(self):
        self.move_descriptors()
        files = self.open_files()
        self.leave_threads()
        self.unmap()
        for region in self.regions:
            if not is_kernels(region["name"]):
                self.map(region, files)
        for fd in {*files.values(), self.image, FILES}:
            self.call("close", fd, result=1)
        self.enter_process()
        for number in self.state["plugs"]:
            self.call("dup2", self.plug, number)
        self.call("close", self.plug)
        rows = encoded(self.rows)
        self.loaded, self.table = self.keep(self.registers), self.keep(rows)
        self.end = self.table + len(rows)
        if self.room > self.between:
            raise Refused("its memory is in too many pieces")

    def move_descriptors(self):
        """Gives the session's descriptors the numbers that they have in the image, and all others numbers that the
        image does not use."""
        self.used = {*self.state["copies"], *self.state["plugs"]}
        if self.state["copies"] != core.COPIES[:4]:
            raise Refused("the descriptors of the session have other numbers")
        self.image = self.outside(self.image)
        self.plug = self.outside(posix.open("/", posix.O_PATH | posix.O_CLOEXEC))

    def outside(self, fd):
        """Moves a descriptor to a number that the image does not use."""
        tried = []
        while fd in self.used:
            tried.append(fd)
            fd = posix.dup(fd)
        for each in tried:
            core.close(each)
        return fd

    def open_files(self):
        """Opens the mapped files, and checks that they are those of the image."""
        files = {}
        written = {region["name"] for region in self.regions if region["permissions"][1:] in ("w-s", "wxs")}
        for region in self.regions:
            name = region["name"]
            if not is_file(name) or name in files:
                continue
            if "/../" in name or name.startswith("/proc/"):
                raise Refused("the image is damaged")
            try:
                fd = posix.open(name, (posix.O_RDWR if name in written else posix.O_RDONLY) | posix.O_CLOEXEC)
            except OSError as error:
                raise Refused("%s, which the session has mapped, is not there: %s" % (name, error.strerror)) from None
            files[name] = self.outside(fd)
            status = posix.fstat(files[name])
            if name.startswith(PRIVATE):
                continue
            is_same = region["stamp"] in (None, [status.st_size, status.st_mtime_ns])
            if status.st_ino != region["inode"] or not is_same:
                raise Refused("%s, which the session has mapped, is another file here" % name)
        return files

    def leave_threads(self):
        base = ctypes.c_long(0)
        system_call("arch_prctl", 0x1003, ctypes.addressof(base))
        mine = rseq(base.value)
        if mine:
            # The kernel writes there at any time. The size depends on the C library.
            for size in (32, 64, 20, 28, 33):
                self.call("rseq", mine, size, 1, RSEQ_SIGNATURE, result=1)

    def unmap(self):
        """Unmaps everything but the kernel's pages, which move to their places."""
        # The heap of this process gets its least size, with something in its way, and the C library learns where it is. Then
        # the kernel refuses to let it grow, and the C library takes memory elsewhere.
        fields = posix.open("/proc/self/stat", posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            start = int(core.read(fields, 4096).rpartition(b")")[2].split()[44])
        finally:
            core.close(fields)
        self.call("brk", start, result=start)
        self.heap = start
        kept = [(start, end) for start, end, name in self.own if is_kernels(name)]
        kept = sorted([*kept, (self.scratch, self.scratch + SCRATCH)])
        at = 0
        for start, end in [*kept, (MAX_ADDRESS, MAX_ADDRESS)]:
            if at < min(start, MAX_ADDRESS):
                self.call("munmap", at, min(start, MAX_ADDRESS) - at)
            at = end
        here = {name: (start, end - start) for start, end, name in self.own if is_kernels(name)}
        there = {region["name"]: (region["start"], region["end"] - region["start"]) for region in self.regions if is_kernels(region["name"])}
        if {name: size for name, (_, size) in here.items()} != {name: size for name, (_, size) in there.items()}:
            raise Refused("the kernel's own pages differ")
        moved = [name for name in here if here[name] != there[name]]
        between = self.between
        for name in moved:
            start, size = here[name]
            self.call("mremap", start, size, size, 3, between, result=between)
            here[name] = between, size
            between += size
        for name in moved:
            start, size = here[name]
            self.call("mremap", start, size, size, 3, there[name][0], result=there[name][0])

    def map(self, region, files):
        start, size = region["start"], region["end"] - region["start"]
        permissions = region["permissions"]
        access = sum([bit for bit, letter in ((1, "r"), (2, "w"), (4, "x")) if letter in permissions])
        first = access | 3 if region["runs"] else access
        # MAP_FIXED, with MAP_SHARED or MAP_PRIVATE
        flags = 0x11 if permissions.endswith("s") else 0x12
        is_stack = region["name"] == "[stack]"
        if flags == 0x11 and not is_file(region["name"]) and not may_share():
            flags = 0x12
        if is_file(region["name"]):
            self.call("mmap", start, size, first, flags, files[region["name"]], region["offset"], result=start)
        else:
            # MAP_ANONYMOUS and MAP_NORESERVE; MAP_GROWSDOWN for the stack
            self.call("mmap", start, size, first, flags | 0x4020 | (0x100 if is_stack else 0), -1, 0, result=start)
        for begin, end, position in region["runs"]:
            length = end - begin
            if self.share and length >= MAPPED and flags == 0x12 and not is_stack:
                self.call("mmap", begin, length, first, 0x12, self.image, position, result=begin)
            else:
                while length:
                    piece = min(length, 1 << 30)
                    self.call("pread64", self.image, begin, piece, position, result=piece)
                    begin, position, length = begin + piece, position + piece, length - piece
        if first != access:
            self.call("mprotect", start, size, access)

    def enter_process(self):
        state = self.state
        # MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE: perhaps a region of the image is there already.
        self.call("mmap", -(-self.heap // PAGE) * PAGE, PAGE, 0, 0x100022, -1, 0, result=1)
        if state["heap"]:
            source, sink = core.pipe()
            source, sink = self.outside(source), self.outside(sink)
            core.write(sink, self.heap.to_bytes(8, "little"))
            self.call("read", source, state["heap"], 8, result=8)
            for fd in (source, sink):
                self.call("close", fd)
        self.call("arch_prctl", 0x1002, state["base"])
        if state["rseq"]:
            for size in (32, 64, 33):
                self.call("rseq", state["rseq"], size, 0, RSEQ_SIGNATURE, result=1)
        for number, action in state["actions"].items():
            self.call("rt_sigaction", int(number), self.keep(bytes.fromhex(action)), 0, 8, result=1)
        self.call("sigaltstack", self.keep(bytes.fromhex(state["stack"])), 0, result=1)
        self.call("rt_sigprocmask", 2, self.keep(bytes.fromhex(state["blocked"])), 0, 8)

    def run(self):
        """Makes the calls. Does not return."""
        # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_FIXED_NOREPLACE
        if memory_map(self.scratch, SCRATCH, 7, 0x104022, -1, 0) != self.scratch:
            core._exit(71)
        ctypes.memmove(self.scratch, MACHINE, len(MACHINE))
        for address, data in self.data:
            ctypes.memmove(address, data, len(data))
        function(self.scratch + RESTORE, self.loaded, self.table, self.end)


def may_share():
    """Returns True if memory can be shared with child processes here."""
    address = memory_map(0, PAGE, 3, 0x21, -1, 0)
    if address != -1:
        system_call("munmap", address, PAGE)
    return address != -1


def is_sharing(regions):
    """Returns True if all mapped libraries allow parts of the memory to be mapped from the image."""
    for region in regions:
        name = region["name"]
        if "x" not in region["permissions"] or not name.startswith("/"):
            continue
        _, of_packages, rest = name.rpartition("-packages/")
        if of_packages and rest.partition("/")[0] not in SHARING or any([part in name for part in NOT_SHARING]):
            return False
    return True


def free_range(own, regions):
    """Returns the address of a range that neither memory uses, with a distance to both."""
    distance = 1 << 26
    used = [(start, end) for start, end, _ in own] + [(region["start"], region["end"]) for region in regions]
    at = MIN_ADDRESS
    for start, end in sorted(used):
        if start - at >= SCRATCH + 2 * distance:
            break
        at = max(at, end)
    return at + distance + PAGE - 1 & -PAGE


# ---------------------------------------------------------------- going on


def arrive():
    """Runs in the process of an image, first of all: waits for the host's order, and renews what two sandboxes must not
    share. Returns the number by which the host knows the order."""
    me = system_call("gettid")
    for address in image.thread:
        ctypes.c_uint32.from_address(address).value = me
    core.PID = core.getpid()
    posix.umask(image.mask)
    order = bytearray()
    while not order.endswith(b"\n") or len(order) < 2:
        data = core.read(core.CONTROL_IN, 1)
        if not data:
            core._exit(0)
        order += data
    return order.split()[-1].decode("ascii")


def renew():
    """Reseeds random generators, and renews identities, keys and temporary names, so that branches do not share them."""
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module:
            core.guarded(module.seed)
    tempfile, uuid, ssl = [sys.modules.get(name) for name in ("tempfile", "uuid", "_ssl")]
    process = sys.modules.get("multiprocessing.process")
    if tempfile:
        tempfile._name_sequence = None
    if uuid:
        uuid._node = uuid._last_timestamp = None
    if ssl:
        ssl.RAND_add(posix.urandom(32), 32.0)
    if process:
        process.current_process().authkey = posix.urandom(32)
