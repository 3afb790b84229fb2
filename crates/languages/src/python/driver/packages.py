"""Package installs from code: every form of `pip install` is handed to the host, which decides what to install."""

import os
import posix
import sys

re = core.standard("re")

PIP = """#!/bin/sh
# pip has no network here, so only its other commands run.
if [ "$1" = install ]; then
    shift
    echo "pip has no network here, so this was not installed: $*" >&2
    echo "%s" >&2
    exit 1
fi
exec %s -m pip --disable-pip-version-check "$@"
"""
ADVICE = "install_package installs packages, and so does !pip install as a line of a Python cell"
NO_ADVICE = "this sandbox has what it has: use that, or the standard library"


class shims:
    made = False


def make_shims():
    """Writes the stand-ins for `pip` (and for `python`, where only `python3` exists), when a command is about to
    start for the first time."""
    if shims.made:
        return
    shims.made = True
    pip = PIP % (ADVICE if core.session.packages else NO_ADVICE, sys.executable)
    programs = {"pip": pip, "pip3": pip}
    folder = os.path.dirname(sys.executable)
    for name in ("python", "python3"):
        if not os.path.exists(os.path.join(folder, name)):
            programs[name] = '#!/bin/sh\nexec %s "$@"\n' % sys.executable
    place = core.SHIMS % core.USER
    try:
        os.makedirs(place, 0o700, exist_ok=True)
        if os.lstat(place).st_uid != posix.getuid():
            return
        for name, text in programs.items():
            path = os.path.join(place, name)
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path + ".new", 0o700)
            os.replace(path + ".new", path)
    except OSError:
        pass  # a full disk: commands find what is there


def pip_words(command):
    """Returns the arguments of a package manager call, or None for any other command."""
    try:
        words = core.standard("shlex").split(command)
    except ValueError:  # a quote that is not closed
        words = command.split()
    while words and (words[0] in ("sudo", "uv", "python", "python3", "-m") or words[0] == sys.executable):
        words = words[1:]
    if words and words[0] in ("pip", "pip3", "conda", "mamba") and words[1:2] == ["install"]:
        return words[2:]
    return None


# Options of pip without effect here. All others are passed on, and the host refuses them with a reason.
HARMLESS = ("-q", "-qq", "-qqq", "--quiet", "-v", "--verbose", "-U", "--upgrade", "--user", "-y", "--yes",
            "--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check", "--no-input", "--only-binary=:all:",
            "--break-system-packages", "--prefer-binary", "--system")  # fmt: skip


def install(words):
    """Runs `pip install` through the host. Without a host that installs, missing packages are a clear error."""
    wanted = [word.strip("'\"") for word in words if word not in HARMLESS]
    if core.session.packages and wanted:
        print(ask_for_packages(wanted))
        return
    metadata = core.standard("importlib.metadata")
    missing = []
    for word in wanted:
        name = re.split(r"[\[<>=!~;@ ]", word)[0]
        try:
            print("Requirement already satisfied: %s (%s)" % (name, metadata.version(name)))
        except Exception:
            missing.append(name)
    if missing:
        error = core.part("magics").UsageError("not in this sandbox: " + ", ".join(missing))
        error.missing = missing
        raise error


def ask_for_packages(wanted):
    """Asks the host to install packages while the cell waits. An interrupt ends the wait."""
    session = core.session
    if core._thread.get_ident() != core.MAIN_THREAD or session.child:
        raise core.part("magics").UsageError("packages can be installed from the main thread of the session only")
    core.flush_streams()
    nonce = session.nonce
    core.send({"type": "install", "nonce": nonce, "packages": wanted})
    poll = core.standard("select").poll()
    poll.register(core.CONTROL_IN, 1)
    while True:
        answer = core.inbox.ready()
        if answer is None:
            poll.poll()  # an interrupt comes out of here
            # Not in the middle of a read, which would lose a frame.
            session.armed = False
            core.inbox.read()
            session.armed = True
            if session.pending:
                session.pending = False
                raise KeyboardInterrupt
        elif answer.get("type") == "installed" and answer.get("nonce") == nonce:
            if not answer["ok"]:
                error = core.part("magics").UsageError(answer["text"])
                error.packages = wanted
                raise error
            core.standard("importlib").invalidate_caches()
            return answer["text"].rstrip()




# ---------------------------------------------------------------- in commands


# Quoted text, or the end of the first command of a line; and its output redirections.
ENDS = re.compile(r"""("[^"]*"|'[^']*')|(&&|;|\n|\|)""")
GOES = re.compile(r"""("[^"]*"|'[^']*')|\s\d?>>?\s*(?!=)\S+|\s\d?>&\d""")


def first_of(command):
    """Returns (the first command of a line, its separator, the rest)."""
    for match in ENDS.finditer(command):
        if match.group(2):
            return command[: match.start()], match.group(2), command[match.end() :]
    return command, "", ""


def done(command):
    """Runs the install at the beginning of a command line. Returns the rest to run, or None."""
    while True:
        first, mark, rest = first_of(command.strip())
        words = pip_words(GOES.sub(lambda match: match.group(1) or "", first))
        if words is None:
            return command
        install(words)
        if mark in ("", "|") or not rest.strip():
            return None
        command = rest


def wanted_by(arguments):
    """Returns the arguments of `pip install` if a program's arguments (a list, or a command line) are one."""
    try:
        if isinstance(arguments, str):
            if first_of(arguments.strip())[1] or "$" in arguments:
                return None
            return pip_words(GOES.sub(lambda match: match.group(1) or "", arguments))
        words = [os.fsdecode(word) for word in arguments]
    except TypeError:
        return None
    if len(words) == 3 and words[1] == "-c" and os.path.basename(words[0]) in ("sh", "bash"):
        return wanted_by(words[2])
    found = pip_words(" ".join(words[:6])) if words else None
    # An argument may contain blanks, so it is taken from the list and not from the line.
    return None if found is None else words[words.index("install") + 1 :]


def instead(arguments):
    """Returns the arguments of a program to start. A `pip install` is replaced by a program that prints its outcome,
    since the host has already run it."""
    make_shims()
    words = wanted_by(arguments)
    if words is None or not core.session.packages or core.session.child:
        return arguments
    if core._thread.get_ident() != core.MAIN_THREAD:
        return arguments
    try:
        text = ask_for_packages([word for word in words if word not in HARMLESS])
        return [sys.executable, "-I", "-S", "-c", "print(%r)" % text]
    except core.part("magics").UsageError as error:
        return [sys.executable, "-I", "-S", "-c", "import sys; sys.exit(%r)" % str(error)]


def system(command):
    """Replaces `os.system`: the host installs packages, all else runs normally."""
    core.flush_streams()
    other = instead(command) if isinstance(command, str) else command
    if isinstance(other, list):
        other = core.standard("shlex").join(other)
    return core.SYSTEM(other)
