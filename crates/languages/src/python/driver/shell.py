"""The shell returned by `get_ipython()`: the methods that programs and libraries call, formatters for values, and the
bounds of the history. The first cell that uses one of these loads this file."""

import sys

builtins = core.standard("builtins")

Coroutine = core.standard("types").CoroutineType

# The maximum known size of values in `Out`, in bytes: older values are removed first.
HEAVY = 64 << 20


# ---------------------------------------------------------------- history


class kept:
    """The known sizes of values in `Out`."""

    sizes = {}


def weigh(value):
    """Bounds `Out` by the memory of its values, as far as it is known without running their code."""
    outputs, sizes = core.session.outputs, kept.sizes
    kind = type(value)
    sizes[core.session.cell] = core.part("variables").size_of(value, kind)
    for cell in [cell for cell in sizes if cell not in outputs]:
        del sizes[cell]
    for cell in sorted(sizes)[:-1]:
        if sum(sizes.values()) <= HEAVY:
            break
        forget_output(cell)
        del sizes[cell]


def alone():
    """Returns `sys.getrefcount` of a value with a single local reference: Python versions differ."""
    value = object()
    return sys.getrefcount(value)


ALONE = alone()


def forget_output(cell):
    core.NAMES.pop("_%d" % cell, None)
    value = core.session.outputs.pop(cell, None)
    if type(value) is Coroutine and sys.getrefcount(value) == ALONE:
        # The cell that made it is long over. The warning about a coroutine that was never awaited would appear in an
        # unrelated cell.
        value.close()


# ---------------------------------------------------------------- formatters


MIMES = (
    "text/plain", "text/html", "text/markdown", "image/svg+xml", "image/png", "application/pdf", "image/jpeg",
    "text/latex", "application/json", "application/javascript",
)  # fmt: skip


class Formatter:
    """The functions for one representation (a MIME type) of values, by type."""

    enabled = True

    def __init__(self, format_type):
        self.format_type = format_type
        self.type_printers, self.deferred_printers = {}, {}
        self.singleton_printers = {}

    def for_type(self, typ, func=None):
        """Registers a function for a class (or its dotted name) and returns the one before."""
        if isinstance(typ, str):
            module, _, name = typ.rpartition(".")
            return self.for_type_by_name(module, name, func)
        before = self.type_printers.get(typ)
        if func is not None:
            self.type_printers[typ] = func
            core.session.formatted = True
        return before

    def for_type_by_name(self, type_module, type_name, func=None):
        """The same for a class that need not be imported yet."""
        key = type_module, type_name
        before = self.deferred_printers.get(key)
        if func is not None:
            self.deferred_printers[key] = func
            core.session.formatted = True
        return before

    def pop(self, typ, default=KeyError):
        """Removes a function."""
        if isinstance(typ, str):
            module, _, name = typ.rpartition(".")
            table, key = self.deferred_printers, (module, name)
        else:
            table, key = self.type_printers, typ
        found = table.pop(key, default)
        if found is KeyError:
            raise KeyError("No registered value for %r" % (typ,))
        return found

    def found(self, typ):
        """Returns the function for a class or one of its bases, or None."""
        for base in typ.__mro__:
            function = self.type_printers.get(base)
            if function is None and self.deferred_printers:
                function = self.deferred_printers.get((base.__module__, base.__name__))
            if function is not None:
                return function
        return None

    def lookup_by_type(self, typ):
        """Returns the function for a class; KeyError if there is none."""
        function = self.found(typ)
        if function is None:
            raise KeyError("No registered printer for %r" % typ)
        return function

    def lookup(self, obj):
        """Returns the function for a value; KeyError if there is none."""
        return self.lookup_by_type(type(obj))

    def __call__(self, obj):
        for mime, data in core.part("rich").bundle(obj) or ():
            if mime == self.format_type:
                return data if binary(mime) else data.decode("utf-8")
        return None


class PlainFormatter(Formatter):
    """Plain text: its functions are given (value, printer, cycle)."""

    pprint = True
    precision = ""

    @property
    def float_precision(self):
        return self.precision

    @float_precision.setter
    def float_precision(self, wanted):
        set_precision(str(wanted))


def configure(wanted):
    """The option `InteractiveShell.ast_node_interactivity`: which expressions of a cell are shown. Other options of
    notebooks (picture formats, colours) have no effect here."""
    name, _, value = wanted.partition("=")
    if name.strip().endswith("InteractiveShell.ast_node_interactivity") and value:
        SHELL.ast_node_interactivity = core.standard("ast").literal_eval(value.strip())


def set_precision(wanted):
    """Sets `%precision`, the format of floats. Empty: as Python does."""
    plain = DISPLAY.formatters["text/plain"]
    form = "%%.%sf" % wanted if wanted.isdigit() else wanted
    if form:
        form % 3.14159
        plain.for_type(float, lambda value, printer, cycle: printer.text(form % value))
    else:
        plain.type_printers.pop(float, None)
    numpy = sys.modules.get("numpy")
    if numpy is not None and (not wanted or wanted.isdigit()):
        numpy.set_printoptions(precision=int(wanted or 8))
    plain.precision = form
    return form or "%r"


def binary(mime):
    return mime.startswith("image/") and mime != "image/svg+xml" or mime == "application/pdf"


class DisplayFormatter:
    """All formatters; `format` returns the representations that a display of the value would have."""

    def __init__(self):
        self.formatters = {mime: (PlainFormatter if mime == "text/plain" else Formatter)(mime) for mime in MIMES}
        self.active_types = list(MIMES)
        self.mimebundle_formatter = Formatter("mimebundle")
        self.ipython_display_formatter = Formatter("display")

    @property
    def format_types(self):
        return list(self.formatters)

    def format(self, obj, include=None, exclude=None):
        """Returns (representations by MIME type, metadata)."""
        blobs = core.part("rich").bundle(obj) or ()
        found = {mime: data if binary(mime) else data.decode("utf-8") for mime, data in blobs}
        found = {mime: data for mime, data in found.items() if not mime.startswith(("application/vnd.sandcell", "text/vnd.sandcell"))}
        wanted = [mime for mime in found if not include or mime in include]
        return {mime: found[mime] for mime in wanted if not exclude or mime not in exclude}, {}


DISPLAY = DisplayFormatter()


def registered(value):
    """Returns the representations made by registered functions, by MIME type. The pretty printer makes the plain
    text."""
    found, kind = {}, type(value)
    for mime, formatter in DISPLAY.formatters.items():
        function = formatter.found(kind) if mime != "text/plain" and formatter.enabled else None
        if function is not None:
            data = attempt(function, value)
            if data is not None:
                found[mime] = data[0] if isinstance(data, tuple) else data
    function = DISPLAY.mimebundle_formatter.found(kind)
    data = attempt(function, value) if function is not None else None
    if data is not None:
        found.update(data[0] if isinstance(data, tuple) else data)
    return found


def attempt(function, *values):
    """Calls a display function of the caller. An error is printed, and it makes no representation."""
    try:
        return function(*values)
    except NotImplementedError:
        return None
    except Exception as error:
        core.part("rich").tell(error)
        return None


def shown_itself(value):
    """Returns True if the value was displayed by its `_ipython_display_` or a registered function."""
    kind = type(value)
    function = DISPLAY.ipython_display_formatter.found(kind)
    if function is None:
        method = getattr(kind, "_ipython_display_", None)
        if not callable(method):
            return False
        function = method
    gone = object()

    def call():
        function(value)
        return gone

    return attempt(call) is gone


# ---------------------------------------------------------------- the shell


class Events:
    """Callbacks that libraries register with a notebook's shell. They are ignored, since nothing here redraws."""

    callbacks = {}

    def register(self, _event, _function):
        pass

    unregister = trigger = register


class ExecutionResult:
    """The result of `run_cell`."""

    execution_count = error_before_exec = error_in_exec = info = result = None

    @property
    def success(self):
        return self.error_before_exec is None and self.error_in_exec is None

    def raise_error(self):
        if not self.success:
            raise self.error_before_exec or self.error_in_exec

    def __repr__(self):
        return "<ExecutionResult execution_count=%s error_before_exec=%r error_in_exec=%r result=%r>" % (
            self.execution_count, self.error_before_exec, self.error_in_exec, self.result,
        )


class InteractiveShell:
    """The methods of a notebook's shell that programs call."""

    config = {}
    events = Events()
    colors = "nocolor"
    ast_node_interactivity = "last_expr"
    display_formatter = DISPLAY
    autoawait = True
    user_module = sys.modules["__main__"]

    @classmethod
    def instance(cls, *_arguments, **_options):
        return SHELL

    @classmethod
    def initialized(cls):
        return True

    @property
    def user_ns(self):
        return core.NAMES

    user_global_ns = user_ns

    @property
    def execution_count(self):
        return core.session.cell

    def run_line_magic(self, magic_name, line="", _stack_depth=1):
        return magics().line(magic_name, line, sys._getframe(_stack_depth))

    def run_cell_magic(self, magic_name, line, cell):
        value = magics().cell("%%%%%s %s\n%s" % (magic_name, line, cell), "<cell>")
        return None if value is core.NOTHING else value

    def magic(self, text):
        name, _, rest = text.lstrip("%").partition(" ")
        return self.run_line_magic(name, rest, 2)

    def system(self, command):
        magics().shell(command, sys._getframe(1))

    system_raw = system_piped = system

    def getoutput(self, command, split=True, depth=0):
        lines = magics().capture(command, sys._getframe(1))
        return lines if split else lines.n

    def run_cell(self, raw_cell, store_history=False, silent=False, shell_futures=True, cell_id=None):
        """Runs a cell's text like a sent cell. An error is printed on stderr and is in the result."""
        done = ExecutionResult()
        done.execution_count = core.session.cell if store_history else None
        try:
            value = core.execute(raw_cell, "<run_cell>")
            if value is not core.NOTHING:
                done.result = value
                if value is not None and not silent:
                    core.display(value)
        except SyntaxError as error:
            done.error_before_exec = error
        except Exception as error:
            done.error_in_exec = error
        error = done.error_before_exec or done.error_in_exec
        if error is not None:
            core.flush_streams()
            core.say(core.part("errors").describe(error)["traceback"] + "\n")
            core.session.syntax_error = None
        return done

    def ev(self, text):
        return eval(text, core.NAMES)

    def ex(self, text):
        exec(text, core.NAMES)

    def push(self, variables, interactive=True):
        if isinstance(variables, (str, list, tuple)):
            names = variables.split() if isinstance(variables, str) else variables
            frame = sys._getframe(1)
            variables = {name: frame.f_locals.get(name, frame.f_globals.get(name)) for name in names}
        core.NAMES.update(variables)

    def drop_by_id(self, variables):
        for name, value in variables.items():
            if core.NAMES.get(name, core.NOTHING) is value:
                del core.NAMES[name]

    def find_line_magic(self, name):
        return magics().LINE.get(name)

    def find_cell_magic(self, name):
        return magics().CELL.get(name)

    def register_magic_function(self, func, magic_kind="line", magic_name=None):
        notebook = core.part("notebook")
        kinds = {"line": (notebook.add_line,), "cell": (notebook.add_cell,)}
        for add in kinds.get(magic_kind, (notebook.add_line, notebook.add_cell)):
            add(magic_name or func.__name__, func)

    def register_magics(self, *makers):
        for maker in makers:
            core.part("notebook").add_magics(maker, self)

    def showtraceback(self, *_arguments, **_options):
        error = sys.exc_info()[1]
        if error is not None:
            core.flush_streams()
            core.say(core.part("errors").describe(error)["traceback"] + "\n")

    def nothing(self, *_arguments, **_options):
        """Accepts a call that has no meaning without a front end."""

    enable_gui = enable_matplotlib = enable_pylab = set_next_input = set_custom_exc = nothing
    register_post_execute = nothing


class ZMQInteractiveShell(InteractiveShell):
    """The class name of a notebook's shell."""


ZMQInteractiveShell.__module__ = "ipykernel.zmqshell"
InteractiveShell.__module__ = "IPython.core.interactiveshell"
SHELL = ZMQInteractiveShell()


def magics():
    return core.part("magics")


# ---------------------------------------------------------------- which expressions are shown


def interactive(tree):
    """Returns (tree, True if the last expression is the value): the statements of a cell, with the expressions
    selected by `ast_node_interactivity` turned into displays."""
    ast = core.standard("ast")
    wish = SHELL.ast_node_interactivity
    if wish == "none" or not tree.body:
        return tree, False
    last = tree.body[-1]
    if wish == "last":
        return tree, True
    if wish == "last_expr_or_assign":
        target = getattr(last, "target", None) or (getattr(last, "targets", None) or [None])[0]
        if isinstance(last, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and isinstance(target, ast.Name):
            shown = ast.Expr(ast.Name(target.id, ast.Load()))
            tree.body.append(ast.fix_missing_locations(ast.copy_location(shown, last)))
        return tree, True
    if wish == "all":
        for node in tree.body[:-1]:
            if isinstance(node, ast.Expr):
                call = ast.Attribute(ast.Name("__sandcell__", ast.Load()), "shown", ast.Load())
                node.value = ast.copy_location(ast.Call(call, [node.value], []), node.value)
                ast.fix_missing_locations(node)
        magics()  # whose calls these are
    return tree, True
