"""Lists the variables of a session without running user code: only exact, well-known types are inspected."""

import sys

LIMIT = 200
PREVIEW = 80


def listing(names, every=False):
    """Returns [{name, type, shape, bytes, preview}] of the names that cells defined, without modules, functions and
    dunders."""
    found = []
    for name, value in list(names.items()):
        if type(name) is not str or name.startswith("_") or len(found) >= LIMIT:
            continue
        kind = type(value)
        if value is core.session.inputs or value is core.session.outputs:
            continue
        if is_code(kind) and not every:
            continue
        found.append(
            {
                "name": name[:100],
                "type": type.__getattribute__(kind, "__name__")[:100],
                "shape": shape_of(value, kind),
                "bytes": size_of(value, kind),
                "preview": preview_of(value, kind),
            }
        )
    return found


def is_code(kind):
    """Returns True for the types of modules, functions and classes, and of the host's tools."""
    if kind in (type(sys), type(listing), type(len), type):
        return True
    offer = core.PARTS.get("tooloffer")
    return offer is not None and issubclass(kind, offer.Named)


def known(kind):
    """Returns 'numpy.ndarray', 'pandas.DataFrame', … if the type is exactly that library's class."""
    for module, name in (
        ("numpy", "ndarray"),
        ("pandas", "DataFrame"),
        ("pandas", "Series"),
        ("polars", "DataFrame"),
        ("polars", "Series"),
        ("torch", "Tensor"),
    ):
        loaded = sys.modules.get(module)
        if loaded is not None and vars(loaded).get(name) is kind:
            return "%s.%s" % (module, name)
    return ""


def shape_of(value, kind):
    if kind in (str, bytes, bytearray, list, tuple, dict, set, frozenset, range):
        return str(len(value))
    return "x".join([str(side) for side in value.shape]) if known(kind) else ""


def size_of(value, kind):
    if kind in (int, float, bool, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range):
        return sys.getsizeof(value)
    name = known(kind)
    if name == "numpy.ndarray":
        return int(value.nbytes)
    if name == "pandas.DataFrame":
        return int(value.memory_usage(index=True).sum())
    if name == "pandas.Series":
        return int(value.memory_usage())
    if name.startswith("polars"):
        return int(value.estimated_size())
    return 0


def columns_of(frame):
    """Returns the columns of a pandas data frame with their types, within the length of one line."""
    text = "%d rows x %d columns: " % frame.shape
    for number, (name, kind) in enumerate(zip(list(frame.columns)[:40], frame.dtypes)):
        one = "%s %s" % (preview_of(name, type(name), 2), str(kind)[:30])
        if len(text) + len(one) > 4 * PREVIEW:
            return text + ", ..."
        text += ", " * (number > 0) + one
    return text


def preview_of(value, kind, depth=0):
    """Returns a short text of plain values; other values are represented by their type."""
    if kind in (int, bool, float, complex, type(None)):
        if kind is int and value.bit_length() > 2000:
            return "int of %d bits" % value.bit_length()
        return repr(value)[:PREVIEW]
    if kind in (str, bytes):
        return repr(value[:PREVIEW])[:PREVIEW]
    if kind in (list, tuple, set, frozenset) and depth < 2:
        items = []
        for item in value:
            items.append(preview_of(item, type(item), depth + 1))
            if len(items) == 8:
                break
        text = ", ".join(items) + (", ..." if len(value) > 8 else "")
        return ("%s(%s)" % (kind.__name__, text) if kind is not list else "[%s]" % text)[:PREVIEW]
    if kind is dict and depth < 2:
        items = []
        for key, item in value.items():
            items.append(preview_of(key, type(key), 2) + ": " + preview_of(item, type(item), depth + 1))
            if len(items) == 5:
                break
        return ("{%s}" % (", ".join(items) + (", ..." if len(value) > 5 else "")))[:PREVIEW]
    name = known(kind)
    if name in ("pandas.DataFrame", "polars.DataFrame") and depth == 0:
        sides = "%d rows x %d columns: " % value.shape
        columns = [preview_of(item, type(item), 2) for item in list(value.columns)[:20]]
        return (sides + ", ".join(columns))[: 3 * PREVIEW]
    if name and depth == 0:
        return "%s of %s" % (name.partition(".")[2], "x".join([str(side) for side in value.shape]) + " " + str(value.dtype)[:40])
    return "<%s>" % type.__getattribute__(kind, "__name__")[:PREVIEW]
