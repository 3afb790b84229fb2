"""Changes of the environment variables before the first cell of a session."""

import sys

import posix


def add(header):
    """Adds variables on request."""
    _, failure = core.guarded(change, header["env"], ())
    core.send({"type": "environment", "nonce": header["nonce"], "set": failure is None})


def change(variables, without):
    """Sets `variables` and removes those named in `without`, and does again what depends on them."""
    set_variables(variables, without)
    if "PATH" in variables or "PATH" in without:
        core.set_up_commands()
    if "PYTHONPATH" in variables or "PYTHONPATH" in without:
        core.set_up_paths()
        sys.path_importer_cache.clear()
    if "TZ" in variables or "TZ" in without:
        core.standard("time").tzset()


def set_variables(variables, without):
    for name in without:
        posix.unsetenv(name)
        posix.environ.pop(as_bytes(name), None)
    for name, value in variables.items():
        name, value = as_bytes(name), as_bytes(value)
        # `os.environ` shows this dictionary.
        posix.environ[name] = value
        posix.putenv(name, value)


def as_bytes(text):
    return text.encode("utf-8", "surrogateescape")
