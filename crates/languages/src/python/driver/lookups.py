"""Hints for failed lookups: existing keys, rows, columns and positions."""

errors = core.part("errors")


def close_to(asked, names):
    """Returns similar names: first those that differ in case or blanks only."""
    low = [name for name in names if name.strip().lower() == asked.strip().lower()]
    return low or core.standard("difflib").get_close_matches(asked, names, 3, 0.6)


def key_hint(error):
    """Returns a hint for a missing key: the columns or rows of a data frame, or the keys of a plain dict."""
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
    for mark in (";", "\t", "|"):
        if not rows and total == 1 and mark in str(labels[0]):
            return text + "; the file seems to be separated by %r: read it again with sep=%r" % (mark, mark)
    return text + ("; did you mean %r?" % near[0] if near else "")


def dict_hint(error, asked):
    """Returns similar keys of the plain dict on the failing line, or of a dict nested in it."""
    last = errors.innermost(error)
    if last is None or type(asked) not in (str, int, float, bool):
        return ""
    line = core.standard("linecache").getline(last.f_code.co_filename, last.f_lineno)
    for name in errors.names_in(line):
        place, value = without(line, name, last, asked)
        if value is None:
            continue
        if not value:
            return "%s is empty" % place
        keys = [key for key in list(value)[:1000] if type(key) in (str, int, float, bool)]
        other = [key for key in keys if str(key) == str(asked)]
        if other:
            return "%s has the key %r (%s), not %r" % (place, other[0], type(other[0]).__name__, asked)
        near = close_to(str(asked), [key for key in keys if type(key) is str])
        listed = ", ".join([repr(key)[:40] for key in keys[:10]]) + (" and %d more" % (len(value) - 10) if len(value) > 10 else "")
        hint = ("did you mean %r? " % near[0] if near else "") + "the keys of %s are %s" % (place, listed)
        deeper = inside(place, value, asked)
        return hint + ("; there is %s: %s" % (deeper[0], outline(deeper[1], 3)[:400]) if deeper else "")
    return ""


def picked(value, asked):
    """Returns [the item] of a plain key of a plain dict, or []. Keys of other types could run user code when
    compared."""
    return [item for key, item in list(value.items())[:1000] if type(key) is type(asked) and key == asked][:1]


def without(line, name, frame, asked):
    """Returns (expression, dict) of the plain dict that lacks the key; (name, None) if `name` leads to none."""
    whole = value = frame.f_locals.get(name, frame.f_globals.get(name))
    place = name
    found = core.standard("re").search(r"\b%s((?:\[(?:'[^']*'|\"[^\"]*\"|\w+)\])+)" % name, line)
    for step in found.group(1)[1:-1].split("][") if found else ():
        key = step[1:-1] if step[0] in "'\"" else int(step) if step.isdecimal() else frame.f_locals.get(step, frame.f_globals.get(step))
        if type(value) is dict and type(key) in (str, int, bool):
            items = picked(value, key)
            if not items and type(key) is type(asked) and key == asked:
                return place, value
        elif type(value) in (list, tuple) and type(key) is int:
            items = value[key : key + 1]
        else:
            break
        if not items:
            break
        value = items[0]
        place += "[%r]" % (key,)
    return name, whole if type(whole) is dict and whole and not picked(whole, asked) else None


def inside(place, value, asked):
    """Returns (expression, value) of the nearest nested dict that has the key, within a bounded search."""
    waiting = [(place, value)]
    for place, value in waiting:
        for key, item in list(value.items())[:50]:
            if type(key) not in (str, int) or type(item) is not dict or len(waiting) > 200:
                continue
            here = "%s[%r]" % (place, key)
            found = picked(item, asked)
            if found:
                return "%s[%r]" % (here, asked), found[0]
            waiting.append((here, item))
    return None


def outline(value, depth):
    """Returns the structure of plain data in one line."""
    kind = type(value)
    if kind is dict:
        items = ["%s: %s" % (repr(key)[:40], outline(item, depth - 1) if depth else "...") for key, item in list(value.items())[:8]]
        return "{%s}" % ", ".join(items + ["..."] * (len(value) > 8))
    if kind in (list, tuple):
        first = ", the first " + outline(value[0], depth - 1) if value and depth else ""
        return "%s of %d%s" % (kind.__name__, len(value), first)
    return core.part("variables").preview_of(value, kind, 2)


def index_hint(error):
    """Returns a hint with the length of the value indexed on the failing line."""
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
