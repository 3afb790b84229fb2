# What every attack may use. It stands before the attack's own text, with CANARIES above it: things of the machine outside
# that must stay out of reach. An attack's last line of output is `HELD`, or `BREACH: ` and how far it came.
import ctypes, errno, json, os, platform, resource, select, signal, socket, stat, struct, subprocess, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NAMES = (
    "mount pivot_root chroot unshare setns clone clone3 ptrace process_vm_readv process_vm_writev keyctl add_key request_key bpf"
    " perf_event_open io_uring_setup io_uring_enter io_uring_register userfaultfd open_by_handle_at name_to_handle_at syslog"
    " init_module finit_module delete_module kexec_load fsopen fspick fsmount fsconfig open_tree move_mount mount_setattr umount2"
    " quotactl kcmp pidfd_getfd swapon acct settimeofday clock_settime clock_adjtime adjtimex vmsplice reboot sethostname"
    " setdomainname fanotify_init migrate_pages move_pages personality prctl seccomp memfd_create memfd_secret setgroups"
    " process_madvise process_mrelease vhangup lookup_dcookie io_setup sched_setattr ioprio_set prlimit64 get_robust_list"
    " statmount listmount lsm_list_modules tee msgget semget shmget mq_open"
).split()
NUMBERS = dict(zip(NAMES, {
    "x86_64": [165, 155, 161, 272, 308, 56, 435, 101, 310, 311, 250, 248, 249, 321, 298, 425, 426, 427, 323, 304, 303, 103, 175, 313,
        176, 246, 430, 433, 432, 431, 428, 429, 442, 166, 179, 312, 438, 167, 163, 164, 227, 305, 159, 278, 169, 170, 171, 300, 256,
        279, 135, 157, 317, 319, 447, 116, 440, 448, 153, 212, 206, 314, 251, 302, 274, 457, 458, 461, 276, 68, 64, 29, 240],
    "aarch64": [40, 41, 51, 97, 268, 220, 435, 117, 270, 271, 219, 217, 218, 280, 241, 425, 426, 427, 282, 265, 264, 116, 105, 273,
        106, 104, 430, 433, 432, 431, 428, 429, 442, 39, 60, 272, 438, 224, 89, 170, 112, 266, 171, 75, 142, 161, 162, 262, 238,
        239, 92, 167, 277, 279, 447, 159, 440, 448, 58, 18, 0, 274, 30, 261, 100, 457, 458, 461, 77, 186, 190, 194, 180],
}[platform.machine()]))


def call(what, *args):
    """A system call by name or number: its result and the error number."""
    ctypes.set_errno(0)
    number = what if isinstance(what, int) else NUMBERS[what]
    args = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(number), *args)
    return result, ctypes.get_errno()


def verdict(broken, *details):
    print("BREACH: " + " ".join(map(str, details))[:300].replace("\n", " ") if broken else "HELD")


# A refusal by a rule, which is more than a failure.
RULES = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EOPNOTSUPP}


def refused(name, *args):
    result, error = call(name, *args)
    verdict(not (result < 0 and error in RULES), name, "gave", result, errno.errorcode.get(error, error))


def fails(action, *wanted):
    """Held if the action raises OSError (with one of these error numbers, if any are named)."""
    try:
        got = action()
    except OSError as error:
        verdict(wanted and error.errno not in wanted, error)
    else:
        verdict(True, repr(got))


def finds(items):
    """Held if nothing was found."""
    items = list(items)
    verdict(items, items)


def opens(path, flags=os.O_RDONLY):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
        return True
    except OSError:
        return False


def text_of(path, most=1 << 16):
    """What a file says; nothing if it cannot be read or does not answer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(fd, most).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def family(number, kind, protocol=0):
    try:
        socket.socket(number, kind, protocol).close()
    except OSError as error:
        verdict(error.errno not in RULES, error)
    else:
        verdict(True, "the socket was made")


def connect(host, port, kind=socket.SOCK_STREAM):
    def go():
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as s:
            s.settimeout(1)
            s.connect((host, port))
            s.send(b"x")
        return "connected"
    try:
        go()
    except OSError:
        verdict(False)
    else:
        verdict(True, "connected to", host, port)


def in_child(action, seconds=5):
    """What an action gives in a child of its own; None if it died or took too long."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            os.write(write, json.dumps(action()).encode())
        except BaseException as error:
            os.write(write, json.dumps("raised " + repr(error)).encode())
        finally:
            os._exit(0)
    os.close(write)
    data = b""
    end = time.monotonic() + seconds
    while time.monotonic() < end and select.select([read], [], [], max(0, end - time.monotonic()))[0]:
        piece = os.read(read, 1 << 16)
        if not piece:
            break
        data += piece
    os.close(read)
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
    os.waitpid(pid, 0)
    return json.loads(data) if data else None


def status_of(pid="self"):
    return dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":" in line)
