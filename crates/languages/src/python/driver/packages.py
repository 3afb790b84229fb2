"""Packages from within code: `pip install`, however it is started, is handed to the host, which installs what it may."""

import os
import posix
import sys

re = core.standard("re")

PIP = """#!/bin/sh
# pip has no network of its own here, so only its other commands are run.
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
    """`pip` (and `python`, where only `python3` is installed), which commands of a cell expect; made when the first one is
    about to start."""
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
    """The arguments of a package manager's call, or None if the command is something else."""
    try:
        words = core.standard("shlex").split(command)
    except ValueError:  # a quote that is not closed
        words = command.split()
    while words and (words[0] in ("sudo", "uv", "python", "python3", "-m") or words[0] == sys.executable):
        words = words[1:]
    if words and words[0] in ("pip", "pip3", "conda", "mamba") and words[1:2] == ["install"]:
        return words[2:]
    return None


# Options of pip that make no difference here; all others are passed on, to be refused with the reason.
HARMLESS = ("-q", "-qq", "-qqq", "--quiet", "-v", "--verbose", "-U", "--upgrade", "--user", "-y", "--yes",
            "--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check", "--no-input", "--only-binary=:all:",
            "--break-system-packages", "--prefer-binary", "--system")  # fmt: skip


def install(words):
    """`pip install`: the host installs what it may. Without such a host: a clear error for what is not there."""
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
    """Has the host install packages while the cell waits; an interrupt ends the waiting."""
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
            # Not out of the middle of reading, which would lose a frame.
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


# Quoted text, or what ends the first command of a line; and where its output is to go.
ENDS = re.compile(r"""("[^"]*"|'[^']*')|(&&|;|\n|\|)""")
GOES = re.compile(r"""("[^"]*"|'[^']*')|\s\d?>>?\s*(?!=)\S+|\s\d?>&\d""")


def first_of(command):
    """(the first command of a line, what stands between it and the rest, the rest)"""
    for match in ENDS.finditer(command):
        if match.group(2):
            return command[: match.start()], match.group(2), command[match.end() :]
    return command, "", ""


def done(command):
    """Installs what a command line begins with; returns what is left of it to run, or None."""
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
    """The arguments of `pip install` if that is what a program's arguments (a list, or a command line) are."""
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
    # An argument may hold blanks: taken from the list, not from the line.
    return None if found is None else words[words.index("install") + 1 :]


def instead(arguments):
    """The arguments of a program to start: those given, or if they are a `pip install` those of one that tells what came
    of it, since the host has done it by then."""
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
    """`os.system`: packages are installed by the host, all else is run."""
    core.flush_streams()
    other = instead(command) if isinstance(command, str) else command
    if isinstance(other, list):
        other = core.standard("shlex").join(other)
    return core.SYSTEM(other)
