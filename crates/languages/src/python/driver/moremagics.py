"""Less common magics, loaded at first use: session history, introspection, files, and profiling."""

import os
import sys

magics = core.part("magics")


# ---------------------------------------------------------------- history


def cells_named(words):
    """Returns the texts of cells: `3`, `1-4`, or all but the running one."""
    inputs = core.session.inputs
    numbers = []
    for word in words:
        first, dash, last = word.lstrip("~/").partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise magics.UsageError("%s is no cell's number or range of them (3, or 1-4)" % word[:50])
        numbers += range(int(first), int(last if dash else first) + 1)[: core.KEPT * 100]
    if not words:
        numbers = range(max(1, len(inputs) - core.KEPT), len(inputs))
    return [(number, inputs[number]) for number in numbers if 0 < number < len(inputs) and inputs[number]]


def magic_history(arguments, _frame):
    words = arguments.split()
    numbered, shows = "-n" in words, "-o" in words
    limit = int(words[words.index("-l") + 1]) if "-l" in words[:-1] else 0
    rest = [word for at, word in enumerate(words) if not word.startswith("-") and (not at or words[at - 1] not in ("-l", "-g", "-f"))]
    found = cells_named(rest)
    if limit:  # not the one that asks
        found = found[:-1][-limit:]
    for number, text in found:
        print(("%4d: " % number if numbered else "") + text)
        if shows and number in core.session.outputs:
            print(core.part("rich").plain(core.session.outputs[number]))


def magic_rerun(arguments, frame):
    """Runs earlier cells again; by default the previous one."""
    words = [word for word in arguments.split() if not word.startswith("-")]
    for _number, text in cells_named(words) if words else cells_named([])[-2:-1]:
        value = core.run_text(text, "<cell %d>" % core.session.cell)
        if value is not core.NOTHING and value is not None:
            core.display(value)


def magic_macro(arguments, _frame):
    words = arguments.split()
    if len(words) < 2:
        raise magics.UsageError("%macro needs a name and cells: %macro again 1-3")
    core.NAMES[words[0]] = Macro("\n".join([text for _, text in cells_named(words[1:])]))
    print("Macro `%s` created. To execute, type its name (without quotes)." % words[0])


class Macro:
    """Defines a macro: cells that run again when a line is its name."""

    def __init__(self, value):
        self.value = value

    def _ipython_display_(self):
        value = core.run_text(self.value, "<macro>")
        if value is not core.NOTHING and value is not None:
            core.display(value)


# ---------------------------------------------------------------- looking into things


def magic_lsmagic(_arguments, _frame):
    nothing = magics.nothing
    lines = sorted({name for table in (magics.LINE, LINE) for name in table if table[name] is not nothing})
    cells = sorted({*magics.CELL, *CELL})
    print("Available line magics:\n%s\n\nAvailable cell magics:\n%s" % (
        "  ".join(["%" + name for name in lines]), "  ".join(["%%" + name for name in cells])))


def thing(name, frame):
    try:
        return eval(name, magics.names_of(frame))
    except NameError:
        raise magics.UsageError("Object `%s` not found." % name[:100]) from None


def magic_pinfo(arguments, frame):
    magics.describe(arguments, False, frame)


def magic_pinfo2(arguments, frame):
    magics.describe(arguments, True, frame)


def magic_psource(arguments, frame):
    print(core.standard("inspect").getsource(thing(arguments, frame)).rstrip("\n"))


def magic_pdoc(arguments, frame):
    print(core.standard("inspect").getdoc(thing(arguments, frame)) or "No documentation found for " + arguments)


def magic_pdef(arguments, frame):
    print("%s%s" % (arguments, core.standard("inspect").signature(thing(arguments, frame))))


def magic_pycat(arguments, _frame):
    with open(os.path.expanduser(arguments.strip("'\"")), encoding="utf-8", errors="replace") as file:
        print(file.read())


def magic_load(arguments, _frame):
    """Prints the text of the file, where a front end would insert it."""
    print("# %load " + arguments)
    magic_pycat(arguments.split()[-1] if arguments else "", None)


def magic_tb(_arguments, _frame):
    error = getattr(sys, "last_value", None)
    print(core.part("errors").format_error(error) if error is not None else "No traceback available to show.")


def magic_debug(_arguments, _frame):
    raise magics.UsageError("an interactive debugger is not available here: print the values of interest, or see %tb")


def magic_psearch(arguments, frame):
    """Returns names that match a pattern with `*`, of the session or of a module or value."""
    fnmatch = core.standard("fnmatch")
    holder, dot, pattern = arguments.strip().rpartition(".")
    names = dir(thing(holder, frame)) if dot else {**vars(magics.builtins), **magics.names_of(frame)}
    hidden = pattern.startswith("_")
    found = sorted([name for name in names if fnmatch.fnmatchcase(name, pattern) and (hidden or name[0] != "_")])
    print("\n".join([holder + dot + name for name in found[:500]]))


# ---------------------------------------------------------------- time


def profiled(arguments, code, names):
    profile, pstats = core.standard("cProfile"), core.standard("pstats")
    words = arguments.split()
    order = words[words.index("-s") + 1] if "-s" in words[:-1] else "tottime"
    profiler = profile.Profile()
    try:
        profiler.runctx(code, names, names)
    finally:
        pstats.Stats(profiler, stream=sys.stdout).strip_dirs().sort_stats(order).print_stats(40)


def magic_prun(arguments, frame):
    words, options = arguments.split(), []
    while words and words[0].startswith("-"):
        options.append(words.pop(0))
        if options[-1] in ("-s", "-l", "-D", "-T") and words:
            options.append(words.pop(0))
    profiled(" ".join(options), compile(" ".join(words), "<magic>", "exec", 0, True), frame.f_globals)


def cell_prun(arguments, body, name):
    profiled(arguments, compile(body, name, "exec", 0, True), core.NAMES)
    return core.NOTHING


# ---------------------------------------------------------------- the shell itself


def magic_load_ext(arguments, _frame):
    """Imports an extension and calls its registration function."""
    if arguments in BUILT_IN:
        return
    module = core.standard("importlib").import_module(arguments)
    load = getattr(module, "load_ipython_extension", None)
    if load is None:
        print("The %s module is not an IPython extension." % arguments)
    else:
        load(core.part("shell").SHELL)


# Extensions that are built in here, or have no meaning.
BUILT_IN = ("autoreload", "storemagic", "IPython.extensions.autoreload", "IPython.extensions.storemagic")


def magic_alias_magic(arguments, _frame):
    words = [word.lstrip("%") for word in arguments.split() if not word.startswith("-")]
    if len(words) != 2:
        raise magics.UsageError("%alias_magic needs a new name and an old one")
    new, old = words
    made = []
    for table, more, mark in ((magics.LINE, LINE, "%"), (magics.CELL, CELL, "%%")):
        if old in table or old in more:
            table[new] = table.get(old) or more[old]
            made.append("Created `%s%s` as an alias for `%s%s`." % (mark, new, mark, old))
    if not made:
        raise magics.UsageError("there is no magic %s" % old[:50])
    print("\n".join(made))


def magic_pylab(_arguments, _frame):
    """Imports the names of numpy and pyplot, as old scripts expect."""
    numpy = core.standard("importlib").import_module("numpy")
    pyplot = core.standard("importlib").import_module("matplotlib.pyplot")
    names = {name: value for module in (numpy, pyplot) for name, value in vars(module).items() if name[0] != "_"}
    for name in [name for name in names if name in vars(magics.builtins)]:
        del names[name]
    core.NAMES.update(names, np=numpy, numpy=numpy, plt=pyplot, pyplot=pyplot)


def cell_sx(_arguments, body, _name):
    return magics.capture(body.strip("\n"), magics.Main)


def magic_pprint(_arguments, _frame):
    plain = core.part("shell").DISPLAY.formatters["text/plain"]
    plain.pprint = not plain.pprint
    print("Pretty printing has been turned " + ("ON" if plain.pprint else "OFF"))


def magic_xmode(arguments, _frame):
    """Accepts any traceback mode; tracebacks have one form here."""
    print("Exception reporting mode: " + (arguments.strip() or "Context").capitalize())


def magic_dhist(_arguments, _frame):
    print("Directory history (kept in _dh)")
    for number, folder in enumerate(magics.folders or [os.getcwd()]):
        print("%d: %s" % (number, folder))


def magic_reset_selective(arguments, _frame):
    """Deletes variables that match a pattern. It never asks for confirmation, because there is no terminal."""
    patterns = [word for word in arguments.split() if word != "-f"]
    if not patterns:
        raise magics.UsageError("%reset_selective needs a pattern: %reset_selective -f ^data")
    pattern = core.standard("re").compile(patterns[0])
    for item in magics.those(""):
        if pattern.search(item["name"]):
            core.NAMES.pop(item["name"], None)


LINE = {
    "history": magic_history, "hist": magic_history, "rerun": magic_rerun, "macro": magic_macro,
    "lsmagic": magic_lsmagic, "pinfo": magic_pinfo, "pinfo2": magic_pinfo2, "psource": magic_psource,
    "pdoc": magic_pdoc, "pdef": magic_pdef, "pycat": magic_pycat, "pfile": magic_psource, "load": magic_load,
    "tb": magic_tb, "debug": magic_debug, "psearch": magic_psearch, "prun": magic_prun, "load_ext": magic_load_ext,
    "reload_ext": magic_load_ext, "alias_magic": magic_alias_magic, "pylab": magic_pylab, "pprint": magic_pprint,
    "xmode": magic_xmode, "dhist": magic_dhist, "autoreload": lambda arguments, frame: core.part("reloads").magic_autoreload(arguments, frame),
    "reset_selective": magic_reset_selective,
}
CELL = {"prun": cell_prun, "sx": cell_sx, "system": cell_sx, "!": cell_sx}
