"""Support for worker processes that are fresh interpreters (`spawn` and `forkserver` of multiprocessing).

Such a worker imports the file of `__main__`, which a session does not have. This module writes one with the content
of a typical script: imports, functions and classes of the cells, and the values that they use. Other statements of
the cells are not run again. A missing name is an error at its first use: a worker that cannot find a function would
exit silently, and its pool would wait forever.

"""

import sys

import _ast as ast
import posix

# The maximum total size of pickled values passed to workers, in bytes.
VALUES_LIMIT = 64 << 20
KEPT = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
PATH = "/tmp/.sandcell-main-%d.py"
# The program of the file. Values come first, because decorators and defaults need them; then definitions; then values
# that need those definitions.
PROGRAM = '''import marshal, pickle, sys
sys.modules["__main__"] = sys.modules[__name__]
VALUES, CODES = %r, %r
def read():
    for name in list(VALUES):
        try:
            globals()[name] = pickle.loads(VALUES[name])
            del VALUES[name]
        except Exception:
            pass
def define(codes):
    failed = []
    for code in codes:
        try:
            exec(marshal.loads(code), globals())
        except Exception:
            failed.append(code)
    return failed
class Missing:
    def __init__(self, name): self.name = name
    def __getattr__(self, name):
        if name[:2] == "__": raise AttributeError(name)
        return self
    def __call__(self, *_, **__):
        raise RuntimeError("a spawned worker does not know %%r of the session: define it by def or class in a cell, "
                           "or use the default context (fork)" %% self.name)
def __getattr__(name):
    if name[:2] == "__": raise AttributeError(name)
    return Missing(name)
read()
CODES = define(CODES)
read()
define(CODES)
'''


def on_spawn(spawn):
    """Adds the path of the file to the preparation data of workers."""
    original = spawn.get_preparation_data

    def get_preparation_data(name):
        data = original(name)
        main = sys.modules.get("__main__")
        if not {"init_main_from_name", "init_main_from_path"} & set(data) and getattr(main, "__dict__", None) is core.NAMES:
            data["init_main_from_path"] = write_main()
        return data

    spawn.get_preparation_data = get_preparation_data


def write_main():
    """Writes the file for the current state of the session and returns its path."""
    codes = definitions()
    used = set()
    for code in codes:
        collect(code, used)
    values = picked([name for name in used if name in core.NAMES and name[:2] != "__" and not defined_here(core.NAMES[name])])
    marshal = core.standard("marshal")
    text = PROGRAM % (values, [marshal.dumps(code) for code in codes])
    path = PATH % posix.getpid()
    fd = posix.open(path + ".new", posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_CLOEXEC, 0o600)
    try:
        view = memoryview(text.encode("utf-8"))
        while view:
            view = view[core.write(fd, view) :]
    finally:
        core.close(fd)
    posix.rename(path + ".new", path)
    return path


def definitions():
    """Returns the code of each defining statement of the cells, in order."""
    found, kept = [], core.session.syntax_error
    for name, text in list(core.SOURCES.items()):
        if text.lstrip().startswith("%%"):
            # For example the body of a timed cell; text that is not Python is skipped below.
            text = "\n" + text.partition("\n")[2]
        try:
            lines = list(defining(core.parse(text, name).body))
            flags = core.TOP_LEVEL_AWAIT | core.session.future
            found += [compile(ast.Module([line], []), name, "exec", flags, True) for line in lines]
        except (SyntaxError, ValueError):
            pass
    core.session.syntax_error = kept
    return found


def defining(body):
    """Yields statements that define something, also inside conditions, but not the `__main__` block of a script."""
    for line in body:
        lambdas = type(line) is ast.Assign and type(line.value) is ast.Lambda
        if type(line) in KEPT or lambdas:
            yield line
        elif type(line) is not ast.If or "__name__" not in [getattr(part, "id", "") for part in parts(line.test)]:
            for below in ("body", "orelse", "finalbody"):
                yield from defining(getattr(line, below, ()) or ())
            for handler in getattr(line, "handlers", ()):
                yield from defining(handler.body)


def parts(node):
    return [node, getattr(node, "left", None)]


def collect(code, names):
    """Collects all names that the code, and the functions in it, may look up."""
    names.update(code.co_names)
    for constant in code.co_consts:
        if type(constant) is type(code):
            collect(constant, names)


def defined_here(value):
    """Returns True for a module, and for a function or class of the session: the worker defines those itself."""
    kind = type(value)
    if kind is type(sys):
        return True
    return (isinstance(value, type) or kind.__name__ == "function") and getattr(value, "__module__", None) == "__main__"


def picked(names):
    """Returns pickles of these values. Values that cannot be pickled or exceed the total limit are left out."""
    pickle, found, left = core.standard("pickle"), {}, VALUES_LIMIT
    for name in names:
        try:
            data = pickle.dumps(core.NAMES[name], 4)
        except Exception:
            continue
        if len(data) <= left:
            left -= len(data)
            found[name] = data
    return found
