"""Formats values as text. Containers are broken over lines when they do not fit, as in notebooks, and the length is
always bounded.

A value becomes a tree of strings, BREAKs and groups. A group is put on one line if it fits, else all its BREAKs
become line feeds. Containers are cut after a thousand items, the whole text after `NODES`.

"""

import sys

WIDTH = 79
ITEMS = 1000
NODES = 20000
BREAK = object()


class Group(list):
    """Items that are broken together, `indent` columns deeper than their surroundings."""

    def __init__(self, indent, items=()):
        list.__init__(self, items)
        self.indent = indent


class Builder:
    def __init__(self, registered):
        self.nodes = 0
        self.registered = core.part("shell").DISPLAY.formatters["text/plain"] if registered else None
        self.inside = []

    def build(self, value):
        """Returns the tree of a value."""
        self.nodes += 1
        if self.nodes > NODES:
            return "..."
        kind = type(value)
        own = kind.__repr__
        if self.registered is not None:
            function = self.registered.found(kind)
            if function is not None:
                return self.asked(value, function)
        method = getattr(kind, "_repr_pretty_", None)
        if method is not None and callable(method):
            return self.asked(value, method)
        for base, printer in PRINTERS:
            if isinstance(value, base) and own is base.__repr__:
                break
        else:
            return self.other(value)
        if id(value) in self.inside or len(self.inside) > 60:
            return RECURSION.get(base, "...")
        self.inside.append(id(value))
        try:
            return printer(self, value)
        finally:
            self.inside.pop()

    def other(self, value):
        kind = type(value)
        if kind.__repr__ is type.__repr__ and isinstance(value, type):
            return dotted(value)
        if kind.__name__ in ("function", "builtin_function_or_method") and kind.__module__ == "builtins":
            return function_text(value)
        if isinstance(value, BaseException) and kind.__repr__ is BaseException.__repr__:
            return self.call(kind.__qualname__ if kind.__module__ == "builtins" else dotted(kind), value.args)
        for base in kind.__mro__:
            known = CALLS.get((base.__module__, base.__name__))
            if known is not None:
                return self.known(value, kind, known, base is kind)
            if "__repr__" in base.__dict__:
                break
        if kind.__repr__ is object.__repr__:
            return "<%s at %#x>" % (dotted(kind), id(value))
        if kind is str:
            return repr(value if len(value) <= core.TEXT_LIMIT else value[: core.TEXT_LIMIT])
        if kind is bytes:
            return repr(value if len(value) <= core.TEXT_LIMIT // 4 else value[: core.TEXT_LIMIT // 4])
        text = repr(value)
        text = str.__getitem__(text, slice(0, 2 * core.TEXT_LIMIT)) if len(text) > core.TEXT_LIMIT else text
        lines = text.split("\n")
        if len(lines) == 1:
            return text
        group = Group(0)
        for number, line in enumerate(lines):
            if number:
                group.append("\n")
            group.append(line)
        return group

    def known(self, value, kind, known, itself):
        """Formats an instance of a standard library class, or of a subclass, as the call that creates it."""
        name = known[0] if itself and known[0] else kind.__name__
        if id(value) in self.inside:
            return name + "(...)"
        self.inside.append(id(value))
        try:
            arguments, named = known[1](value)
            return self.call(name, arguments, named)
        finally:
            self.inside.pop()

    def asked(self, value, method):
        """Returns the output of the value's own `_repr_pretty_`."""
        if len(self.inside) > 60:
            return "..."
        cycle = id(value) in self.inside
        self.inside.append(id(value))
        printer = Printer(self)
        try:
            method(value, printer, cycle)
        finally:
            self.inside.pop()
        return printer.groups[0]

    def items(self, group, values, closing, total):
        number = -1
        for number, value in enumerate(values):
            if number:
                group += [",", BREAK]
            if number >= ITEMS:
                group.append("...")
                break
            group.append(self.build(value))
        if closing == ")" and total == 1 and group.single:
            group.append(",")
        group.append(closing)
        return group

    def sequence(self, value, opening, closing, single=False):
        group = Group(len(opening), [opening])
        group.single = single
        return self.items(group, value, closing, len(value))

    def call(self, name, arguments, named=()):
        group = Group(len(name) + 1, [name + "("])
        for argument in arguments:
            group += [",", BREAK] if len(group) > 1 else []
            group.append(self.build(argument))
        for word, argument in dict(named).items():
            group += [",", BREAK] if len(group) > 1 else []
            group.append(Group(len(word) + 1, [word + "=", self.build(argument)]))
        group.append(")")
        return group

    def mapping(self, value):
        group = Group(1, ["{"])
        for number, (key, item) in enumerate(value.items()):
            if number:
                group += [",", BREAK]
            if number >= ITEMS:
                group.append("...")
                break
            group += [self.build(key), ": ", self.build(item)]
        group.append("}")
        return group

    def set_of(self, value, opening, closing, empty):
        if not value:
            return empty
        values = value
        if len(value) <= ITEMS:
            try:
                values = sorted(value)
            except Exception:
                pass
        return self.sequence_like(values, opening, closing)

    def sequence_like(self, values, opening, closing):
        group = Group(len(opening), [opening])
        group.single = False
        return self.items(group, values, closing, len(values))


PRINTERS = (
    (list, lambda self, value: self.sequence(value, "[", "]")),
    (tuple, lambda self, value: self.sequence(value, "(", ")", True)),
    (dict, lambda self, value: self.mapping(value)),
    (set, lambda self, value: self.set_of(value, "{", "}", "set()")),
    (frozenset, lambda self, value: self.set_of(value, "frozenset({", "})", "frozenset()")),
)
class Raw(str):
    """Text that is shown unchanged."""

    def _repr_pretty_(self, printer, cycle):
        printer.text(str(self))


def pattern(value):
    import re

    text = value.pattern
    quote = "'" if "'" not in text else '"'
    shown = Raw("r" + quote + text + quote) if isinstance(text, str) and quote not in text else text
    flags = [name for name in FLAGS if value.flags & getattr(re, name)]
    return [shown, *([Raw("|".join(["re." + name for name in flags]))] if flags else [])], {}


FLAGS = ("DEBUG", "DOTALL", "IGNORECASE", "LOCALE", "MULTILINE", "UNICODE", "VERBOSE")
# (module, class): (displayed name or None for the class's own, value -> (arguments, named arguments))
CALLS = {
    ("collections", "defaultdict"): (None, lambda value: ([value.default_factory, dict(value)], {})),
    ("collections", "OrderedDict"): (None, lambda value: ([list(value.items())] if value else [], {})),
    ("collections", "Counter"): (None, lambda value: ([dict(value.most_common())] if value else [], {})),
    ("collections", "UserList"): (None, lambda value: ([value.data], {})),
    ("collections", "deque"): (
        None,
        lambda value: ([list(value)], {} if value.maxlen is None else {"maxlen": value.maxlen}),
    ),
    ("types", "SimpleNamespace"): ("namespace", lambda value: ([], vars(value))),
    ("re", "Pattern"): ("re.compile", pattern),
}


class Printer:
    """The printer that `_repr_pretty_` methods write to, with the calls of notebooks."""

    def __init__(self, builder):
        self.builder = builder
        self.groups = [Group(0)]
        self.stack = builder.inside

    def add(self, item):
        self.builder.nodes += 1
        if self.builder.nodes <= NODES:
            self.groups[-1].append(item)

    def text(self, text):
        self.add(str(text)[: 2 * core.TEXT_LIMIT])

    def breakable(self, sep=" "):
        self.add(BREAK if sep == " " else str(sep))

    def break_(self):
        self.add("\n")

    def pretty(self, value):
        self.add(self.builder.build(value))

    def begin_group(self, indent=0, open=""):
        self.groups.append(Group(indent, [open] if open else []))

    def end_group(self, dedent=0, close=""):
        if close:
            self.text(close)
        if len(self.groups) > 1:
            done = self.groups.pop()
            self.add(done)

    def group(self, indent=0, open="", close=""):
        return Inside(self, indent, open, close)

    def indent(self, indent):
        return Inside(self, indent, "", "")


class Inside:
    def __init__(self, printer, indent, opening, closing):
        self.printer, self.indent, self.opening, self.closing = printer, indent, opening, closing

    def __enter__(self):
        self.printer.begin_group(self.indent, self.opening)

    def __exit__(self, *_details):
        self.printer.end_group(self.indent, self.closing)


RECURSION = {list: "[...]", tuple: "(...)", dict: "{...}", set: "{...}", frozenset: "{...}"}


def dotted(kind):
    module = kind.__module__
    name = kind.__qualname__
    return name if module in (None, "builtins", "exceptions") else "%s.%s" % (module, name)


def function_text(value):
    module = getattr(value, "__module__", None)
    name = value.__qualname__
    if module and module not in ("builtins", "exceptions"):
        name = "%s.%s" % (module, name)
    try:
        return "<function %s%s>" % (name, core.standard("inspect").signature(value))
    except (ValueError, TypeError):
        return "<function %s>" % name


# ---------------------------------------------------------------- layout


def flat_width(tree, room):
    """Returns the width of a tree on one line; more than `room` as soon as that is certain."""
    if tree is BREAK:
        return 1
    if isinstance(tree, str):
        return room + 1 if tree == "\n" else len(tree)
    width = 0
    for item in tree:
        width += flat_width(item, room - width)
        if width > room:
            break
    return width


class Layout:
    def __init__(self):
        self.out = []
        self.column = 0
        self.written = 0

    def text(self, text):
        self.out.append(text)
        self.column += len(text)
        self.written += len(text)

    def newline(self, indent):
        self.out.append("\n" + " " * indent)
        self.column = indent

    def put(self, tree, indent, trailing):
        """Writes a tree; `trailing` is the width of the text after it, up to the next BREAK."""
        if isinstance(tree, str):
            self.text(tree)
            return
        room = WIDTH - self.column - trailing
        if flat_width(tree, room) <= room:
            self.flat(tree)
            return
        inner = indent + tree.indent
        for number, item in enumerate(tree):
            if self.written > 2 * core.TEXT_LIMIT:
                return
            if item is BREAK or item == "\n":
                self.newline(inner)
            else:
                self.put(item, inner, self.after(tree, number, trailing))

    def after(self, tree, number, trailing):
        width = 0
        for item in tree[number + 1 :]:
            if item is BREAK or not isinstance(item, str):
                return width
            width += len(item)
        return width + trailing

    def flat(self, tree):
        if tree is BREAK:
            self.text(" ")
        elif isinstance(tree, str):
            self.text(tree)
        else:
            for item in tree:
                self.flat(item)


def text_of(value, registered=True):
    """Returns the text of any value, with or without functions registered for types. Runs user code (`__repr__`),
    which may do anything."""
    tree = Builder(registered and core.session.formatted).build(value)
    if isinstance(tree, str):
        return tree
    layout = Layout()
    layout.put(tree, 0, 0)
    return "".join(layout.out)
