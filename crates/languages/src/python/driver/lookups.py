"""What there is where something was looked up in vain: keys, rows, columns, positions."""

errors = core.part("errors")


def close_to(asked, names):
    """Names like the one that was asked for: first those that differ in case or blanks only."""
    low = [name for name in names if name.strip().lower() == asked.strip().lower()]
    return low or core.standard("difflib").get_close_matches(asked, names, 3, 0.6)


def key_hint(error):
    """What there is instead of a missing key: columns or rows of a data frame, or keys of a plain dict."""
    asked = error.args[0] if len(error.args) == 1 else None
    holder = missing_in = None
    for frame in errors.frames_of(error):
        value = frame.f_locals.get("self")
        place = frame.f_code.co_filename.rpartition("/pandas/core/")[2]
        value = getattr(value, "obj", value) if place == "indexing.py" else value
        if core.part("variables").known(type(value)) in ("pandas.DataFrame", "pandas.Series"):
            holder = value
        elif place.startswith("indexes/") and hasattr(value, "equals"):
            missing_in = value
    if holder is None:
        return dict_hint(error, asked)
    columns = getattr(holder, "columns", None)
    if missing_in is None:
        missing_in = holder.index if columns is None else columns
    rows = columns is None or not missing_in.equals(columns)
    labels, total = list(missing_in[:200]), len(missing_in)
    near = close_to(str(asked), [str(label) for label in labels])
    text = "the row labels (the index) are " if rows else "the columns are "
    text += ", ".join([repr(label)[:60] for label in labels[:20]]) or "none"
    text += " and %d more" % (total - 20) if total > 20 else ""
    if rows and columns is not None and asked in list(columns):
        return text + "; %r is a column: df[%r]" % (asked, asked)
    return text + ("; did you mean %r?" % near[0] if near else "")


def dict_hint(error, asked):
    """Keys like the one that a plain dict on the failing line does not have."""
    last = errors.innermost(error)
    if last is None:
        return ""
    line = core.standard("linecache").getline(last.f_code.co_filename, last.f_lineno)
    for name in errors.names_in(line):
        value = last.f_locals.get(name, last.f_globals.get(name))
        if type(value) is not dict or not value or asked is None or not isinstance(asked, (str, int, float, tuple)):
            continue
        keys = [key for key in list(value)[:1000] if type(key) in (str, int, float, bool)]
        if any([type(key) is type(asked) and key == asked for key in keys]):
            continue
        other = [key for key in keys if str(key) == str(asked)]
        if other:
            return "%s has the key %r (%s), not %r" % (name, other[0], type(other[0]).__name__, asked)
        near = close_to(str(asked), [key for key in keys if type(key) is str])
        listed = ", ".join([repr(key)[:40] for key in keys[:10]]) + (" and %d more" % (len(value) - 10) if len(value) > 10 else "")
        return ("did you mean %r? " % near[0] if near else "") + "the keys of %s are %s" % (name, listed)
    return ""


def index_hint(error):
    """How long what was indexed on the failing line is."""
    last = None
    for frame in errors.frames_of(error):
        if errors.is_own(frame.f_code.co_filename) and not frame.f_code.co_filename.startswith("<sandcell "):
            last = frame
    if last is None:
        return ""
    entry, number = error.__traceback__, 0
    while entry is not None:
        number = entry.tb_lineno if entry.tb_frame is last else number
        entry = entry.tb_next
    line = core.standard("linecache").getline(last.f_code.co_filename, number)
    for name in errors.names_in(line):
        value = last.f_locals.get(name, last.f_globals.get(name))
        kind = type(value)
        if (name + "[" in line or name + ".iloc[" in line or name + ".iat[" in line or name + ".pop(" in line) and (
            kind in (list, tuple, str) or core.part("variables").known(kind)
        ):
            size = len(value) if len(getattr(value, "shape", (0,))) else 0
            what = "rows" if hasattr(value, "iloc") else "items"
            return "%s has %d %s: valid positions are 0 to %d" % (name, size, what, size - 1) if size else "%s is empty" % name
    return ""
