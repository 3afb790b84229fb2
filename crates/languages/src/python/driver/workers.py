"""Worker processes that begin as fresh interpreters (`spawn` and `forkserver` of multiprocessing).

Such a worker imports the file of `__main__`, which a session does not have. So one is written for it, with what a script's
file would have: imports, functions and classes of the cells, and the values that those use. The rest of the cells is not
run again. What the file lacks is an error at its first use: a worker that cannot find a function would end without a
word, and its pool would wait for it for ever.
"""

import sys

import _ast as ast
import posix

# Bytes of values that are handed to workers, all together, as pickles.
VALUES_LIMIT = 64 << 20
KEPT = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
PATH = "/tmp/.sandcell-main-%d.py"
# What the file does: values first, since decorators and defaults want them; then definitions; then what needs those.
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
    """Names the file in what workers are told."""
    original = spawn.get_preparation_data

    def get_preparation_data(name):
        data = original(name)
        main = sys.modules.get("__main__")
        if not {"init_main_from_name", "init_main_from_path"} & set(data) and getattr(main, "__dict__", None) is core.NAMES:
            data["init_main_from_path"] = write_main()
        return data

    spawn.get_preparation_data = get_preparation_data


def write_main():
    """Writes the file as the session is now; returns its path."""
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
    """The code of each statement of the cells that defines something, in their order."""
    found, kept = [], core.session.syntax_error
    for name, text in list(core.SOURCES.items()):
        if text.lstrip().startswith("%%"):
            # The rest of a timed cell, say; what is no Python is left out below.
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
    """Statements that define something, also below conditions; not what a script does when it is run."""
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
    """All names that code may look up, with those of the functions in it."""
    names.update(code.co_names)
    for constant in code.co_consts:
        if type(constant) is type(code):
            collect(constant, names)


def defined_here(value):
    """Whether it is a module, or a function or class of the session: those are made anew."""
    kind = type(value)
    if kind is type(sys):
        return True
    return (isinstance(value, type) or kind.__name__ == "function") and getattr(value, "__module__", None) == "__main__"


def picked(names):
    """Pickles of these values, as far as they can be had and are not too large together."""
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
