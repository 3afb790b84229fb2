"""Starts a command behind a seccomp filter that answers system calls with an error, as filters of container engines do.

filter.py ERRNO CALL... -- COMMAND...
CALL is a name, or NAME:ARGUMENT:MASK for a call with one of these bits in that argument.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# x86_64, aarch64
NUMBERS = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "mount": (165, 40),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "keyctl": (250, 219),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "close_range": (436, 436),
    "openat2": (437, 437),
    "seccomp": (317, 277),
    "setns": (308, 268),
    "memfd_create": (319, 279),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
}
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 38, 22


def instruction(code, value, yes=0, no=0):
    return struct.pack("=HBBI", code, yes, no, value)


def main():
    split = sys.argv.index("--")
    answer = ERROR | getattr(errno, sys.argv[1])
    column = 0 if platform.machine() == "x86_64" else 1
    program = b""
    for call in sys.argv[2:split]:
        name, *condition = call.split(":")
        program += instruction(LOAD, 0)
        if condition:
            argument, mask = (int(part, 0) for part in condition)
            program += instruction(JUMP_EQUAL, NUMBERS[name][column], 0, 3)
            program += instruction(LOAD, 16 + 8 * argument)
            program += instruction(JUMP_SET, mask, 0, 1)
        else:
            program += instruction(JUMP_EQUAL, NUMBERS[name][column], 0, 1)
        program += instruction(RETURN, answer)
    program += instruction(RETURN, ALLOW)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    # As container engines do, root installs it without `no_new_privs`.
    if libc.prctl(PR_SET_SECCOMP, 2, description, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    command = sys.argv[split + 1 :]
    os.execvp(command[0], command)


main()
