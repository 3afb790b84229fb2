"""Implements `%autoreload`: reloads changed modules before the next cell."""

import os
import sys

Function, Module = type(lambda: None), type(sys)
# The attributes of a function that a reload replaces; its name stays.
OF_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__", "__doc__", "__dict__")
OF_CLASS = ("__dict__", "__weakref__", "__module__", "__qualname__")
# Folders whose files do not change.
FIXED = tuple({os.path.join(folder, "") for folder in (sys.prefix, sys.base_prefix, sys.exec_prefix)})


class seen:
    """The last modification time of each module's file, by module name."""

    times = {}


def magic_autoreload(arguments, _frame):
    """Implements `%autoreload 2` (or `1`, `3`): reload before each cell; `%autoreload 0`: stop; `%autoreload`: reload
    once, now."""
    mode = (arguments.split() or ["now"])[0].lower()
    if mode not in ("now", "0", "off", "1", "explicit", "2", "all", "3", "complete"):
        raise core.part("magics").UsageError("%%autoreload takes 0, 1, 2 or 3, not %r" % mode)
    if mode != "now":
        core.session.reloads = mode not in ("0", "off")
    load_changed()


def load_changed():
    for name, module in list(sys.modules.items()):
        path = vars(module).get("__file__") if type(module) is Module else None
        if name == "__main__" or type(path) is not str or path.startswith(FIXED) or not path.endswith(".py"):
            continue
        try:
            time = os.stat(path).st_mtime_ns
        except OSError:
            continue
        before = seen.times.setdefault(name, time)
        if before != time:
            seen.times[name] = time
            load(name, module)


def load(name, module):
    old = dict(vars(module))
    try:
        core.standard("importlib").reload(module)
    except Exception as error:
        print("[autoreload of %s failed: %s: %s]" % (name, type(error).__name__, error), file=sys.stderr)
        return
    for key, value in old.items():
        renew(value, vars(module).get(key), name)


def renew(old, new, name):
    """Updates an old function or class in place, so that existing references behave like the reloaded one."""
    kind = type(old)
    if old is new or kind is not type(new) or kind not in (Function, type) or old.__module__ != name:
        return
    try:
        if kind is Function:
            for part in OF_FUNCTION:
                setattr(old, part, getattr(new, part))
            return
        for key in [key for key in vars(old) if key not in vars(new) and key not in OF_CLASS]:
            delattr(old, key)
        for key, value in list(vars(new).items()):
            if key not in OF_CLASS:
                setattr(old, key, value)
    except (AttributeError, TypeError, ValueError):
        pass  # different closures or slots: old objects keep their old behaviour
