"""Values as text: containers broken over lines when they do not fit, as notebooks do it, and never without bound.

A value becomes a tree of strings, BREAKs and groups; a group is put on one line if that fits, else all its BREAKs become
line feeds. Containers are cut after a thousand items, the whole text after `NODES`.
"""

import sys

WIDTH = 79
ITEMS = 1000
NODES = 20000
BREAK = object()


class Group(list):
    """Items that are broken together, `indent` columns further in than what is around them."""

    def __init__(self, indent, items=()):
        list.__init__(self, items)
        self.indent = indent


class Builder:
    def __init__(self):
        self.nodes = 0
        self.inside = []

    def build(self, value):
        """The tree of a value."""
        self.nodes += 1
        if self.nodes > NODES:
            return "..."
        kind = type(value)
        own = kind.__repr__
        for base, printer in PRINTERS:
            if isinstance(value, base) and own is base.__repr__ and kind.__module__ == base.__module__:
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
        if kind.__name__ == "defaultdict" and kind.__module__ == "collections":
            return self.default_dict(value)
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

    def default_dict(self, value):
        if id(value) in self.inside:
            return "defaultdict(...)"
        self.inside.append(id(value))
        try:
            return self.call("defaultdict", (value.default_factory, dict(value)))
        finally:
            self.inside.pop()

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

    def call(self, name, arguments):
        group = Group(len(name) + 1, [name + "("])
        group.single = False
        return self.items(group, arguments, ")", len(arguments))

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
    """The width of a tree on one line; more than `room` as soon as that is certain."""
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
        """Writes a tree; `trailing` is the width of what follows it up to the next place to break."""
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


def text_of(value):
    """The text of any value. Runs user code (`__repr__`), which may do anything."""
    tree = Builder().build(value)
    if isinstance(tree, str):
        return tree
    layout = Layout()
    layout.put(tree, 0, 0)
    return "".join(layout.out)
