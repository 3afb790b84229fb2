"""Returns complete data of figures, data frames, dicts and lists, for programs that continue to work with it.

The shapes are those of E2B's results (docs/design/e2b-protocol.md, section 7). Data is complete or absent: a value
over a limit, or one that JSON cannot hold, has none. `chartdata` has samples for language models instead.

"""

import sys

# The maximum numbers of points in a figure, cells in a data frame and items in a dict or list.
ITEMS = 50000
# The maximum size as JSON. It is also the limit for such a representation in a bundle.
BYTES = 1 << 20
# The maximum depth of a dict or list. Readers have limits: the one of serde_json is 128.
DEPTH = 100
BOX_CORNERS = (5, 11)  # without and with a notch

FIGURE = "application/vnd.sandcell.figure+json"
DATA = "application/vnd.sandcell.data+json"
JSON = "application/json"


def add(value, found):
    """Adds the exact representation of a value, if it has one, to {mime: data}. Never fails."""
    try:
        if isinstance(value, (dict, list)):
            mime, data = JSON, of_value(value)
        elif isinstance(value, loaded("pandas", "DataFrame")):
            mime, data = DATA, of_table(value)
        elif isinstance(value, loaded("matplotlib.figure", "Figure")):
            with core.standard("warnings").catch_warnings():
                core.standard("warnings").simplefilter("ignore")
                mime, data = FIGURE, of_figure(value)
        else:
            return
        text = encoded(data) if data is not None and found.get(mime) is None else None
        if text is not None:
            found[mime] = text
    except Exception:
        pass  # the other representations stay


def encoded(data):
    """Returns data as JSON, or None over the limit. It stops there: one long text can occur many times."""
    encoder = core.standard("json").JSONEncoder(allow_nan=False, ensure_ascii=False)
    size, parts = 0, []
    for piece in encoder.iterencode(data):
        size += len(piece)
        if size > BYTES:
            return None
        parts.append(piece)
    text = "".join(parts).encode("utf-8")
    return text if len(text) <= BYTES else None


def loaded(module, name):
    """Returns a class of a library as a tuple for isinstance. It is empty if no code has imported the library."""
    kind = getattr(sys.modules.get(module), name, None)
    return (kind,) if isinstance(kind, type) else ()


# ---------------------------------------------------------------- dicts, lists and data frames


class Inexact(Exception):
    """JSON cannot hold the value, or the value is too large."""


def of_value(value):
    """Returns a dict or list as JSON, or None if JSON cannot hold it exactly: tuples, keys other than text, NaN."""
    try:
        return copied(value, [ITEMS], DEPTH)
    except Inexact:
        return None


def copied(value, left, depth):
    """Returns a copy of plain types. No method of a user's class runs. `left` counts the items that may follow."""
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise Inexact
    if isinstance(value, dict):
        if not all([type(key) is str for key in dict.keys(value)]):
            raise Inexact
        return {key: copied(item, left, depth - 1) for key, item in dict.items(value)}
    if isinstance(value, list):
        return [copied(item, left, depth - 1) for item in list.__iter__(value)]
    return scalar(value)


def scalar(value):
    """Returns a single value of JSON. Numbers of numpy become numbers of Python."""
    if type(value).__module__ == "numpy" and isinstance(value, loaded("numpy", "generic")):
        value = value.item()
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    # Readers store integers in 64 bits.
    if kind is int and -(1 << 63) <= value < 1 << 64 or kind is float and value - value == 0:
        return value
    raise Inexact


def of_table(frame):
    """Returns {column: [values]} of a pandas data frame, or None if it is too large or two columns share a name."""
    rows, columns = frame.shape
    names = [str(name) for name in frame.columns]
    if rows * columns > ITEMS or len(set(names)) < len(names):
        return None
    return {name: [cell(item) for item in frame.iloc[:, at].tolist()] for at, name in enumerate(names)}


def cell(value):
    """Returns a cell as JSON. Missing values and infinity are null, times are ISO text, other objects their text."""
    if isinstance(value, float) and value - value != 0 or type(value).__name__ in ("NaTType", "NAType"):
        return None
    try:
        return copied(value, [ITEMS], DEPTH)
    except Inexact:
        return value.isoformat() if hasattr(value, "isoformat") else str(value)


# ---------------------------------------------------------------- figures


def of_figure(figure):
    """Returns the chart of a matplotlib figure. None if the figure shows no data or has too many points."""
    every = [axes for axes in figure.axes if getattr(axes, "_colorbar", None) is None]
    if not any([axes.has_data() for axes in every]) or sum([size_of(axes) for axes in every]) > ITEMS:
        return None
    charts = [of_axes(axes) for axes in every]
    if len(charts) == 1:
        return charts[0]
    title = getattr(figure, "_suptitle", None)
    return {"type": "superchart", "title": title.get_text() if title is not None else "", "elements": charts}


def size_of(axes):
    """Returns the number of points that the elements of a chart can have."""
    lines = sum([len(line.get_xdata(orig=False)) for line in axes.lines])
    return lines + sum([len(spots.get_offsets()) for spots in axes.collections]) + len(axes.patches)


def of_axes(axes):
    """Returns the chart of one pair of axes. Its type is `unknown` if the shape of E2B has no place for the content."""
    if hasattr(axes, "get_zlabel") or axes.images or axes.tables:
        return of_unknown(axes)
    bars = [item for item in axes.containers if type(item).__name__ == "ErrorbarContainer"]
    extra = {id(part) for item in bars for part in (*item.lines[1], *item.lines[2])}
    extra.update([id(item) for item in (*axes.lines, *axes.patches) if is_guide(item, axes)])
    lines, patches, spots = [
        [item for item in items if id(item) not in extra] for items in (axes.lines, axes.patches, axes.collections)
    ]
    if not spots and is_all(patches, "PathPatch"):
        for across in (0, 1):
            boxes = box_plots(axes, lines, patches, across)
            if boxes:
                return {"type": "box_and_whisker", **of_plane(axes, swapped=across == 1), "elements": boxes}
    if not spots and not patches and (lines or not bars):
        labels = {id(item.lines[0]): item.get_label() for item in bars}
        found = [(line_name(labels.get(id(line), line.get_label())), *points_of(line, axes)) for line in lines]
        return of_points("line", axes, found)
    if not all([is_flat(line) for line in lines]):
        return of_unknown(axes)
    # The levels of a contour plot, which old versions store in the same class, have no sizes.
    if spots and not patches and is_all(spots, "PathCollection") and all([len(item.get_sizes()) for item in spots]):
        return of_points("scatter", axes, [(item.get_label(), *spots_of(item, axes)) for item in spots])
    if spots or not patches:
        return of_unknown(axes)
    if is_all(patches, "Wedge"):
        return {**of_unknown(axes), "type": "pie", "elements": [wedge_of(wedge) for wedge in patches]}
    return of_bars(axes, patches)


def is_all(items, name):
    return all([type(item).__name__ == name for item in items])


def is_guide(item, axes):
    """Returns True for a line or band across the axes: axhline, axvline, axline, axhspan, axvspan."""
    transform = item.get_data_transform() if hasattr(item, "get_data_transform") else item.get_transform()
    # Transforms are equal where the limits of the axes are 0 and 1, so only identity counts.
    across = [axes.get_yaxis_transform(which="grid"), axes.get_xaxis_transform(which="grid")]
    return type(item).__name__ in ("AxLine", "_AxLine") or any([transform is known for known in across])


def is_flat(line):
    """Returns True for two points at one height or one place, which mark something in a chart of another type."""
    xs, ys = line.get_data(orig=False)
    return len(xs) == 2 and (xs[0] == xs[1] or ys[0] == ys[1])


def of_unknown(axes):
    return {"type": "unknown", "title": axes.get_title() or None, "elements": []}


def of_plane(axes, swapped=False):
    """Returns the title, labels and units. A chart that lies on its side has the labels of the other axis."""
    labels = [axes.get_xlabel(), axes.get_ylabel()]
    x, y = reversed(labels) if swapped else labels
    title = axes.get_title() or None
    return {"title": title, "x_label": x or None, "y_label": y or None, "x_unit": unit(x), "y_unit": unit(y)}


def unit(label):
    """Returns the unit in a label: the text in parentheses behind a space, or in brackets. The first one counts."""
    found = []
    for opening, closing in ((" (", ")"), ("[", "]")):
        before, _, rest = label.replace("\n", " ").partition(opening)
        inside, end, _ = rest.partition(closing)
        if end:
            found.append((len(before), inside))
    return min(found)[1] or None if found else None


# ---------------------------------------------------------------- axes and their values


def kind_of(axis):
    """Returns the kind of values on an axis: `datetime`, `period` (time series of pandas), `categorical`, `number`."""
    kind = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
    if kind == "PeriodConverter" and getattr(axis.axes, "freq", None) is not None:
        return "period"
    if kind == "StrCategoryConverter":
        return "categorical"
    return "datetime" if "Date" in kind else "number"


def is_named(axis):
    """Returns True if the code has set the labels of the ticks."""
    kind = type(axis.get_major_formatter()).__name__
    if kind == "FuncFormatter":
        return type(axis.get_major_locator()).__name__ == "FixedLocator"
    return kind == "FixedFormatter"


def scale_of(axis, ticks, labels):
    """Returns the scale. Named places 0, 1, 2 ... are categories, as the axes of bar charts are."""
    kind = kind_of(axis)
    if kind in ("datetime", "period"):
        return "datetime"
    scale = axis.get_scale()
    if kind == "number" and is_named(axis) and ticks:
        named = [tick == at != number(label) for at, (tick, label) in enumerate(zip(ticks, labels))]
        kind = "categorical" if all(named) else kind
    return kind if kind == "categorical" and scale == "linear" else scale


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def plain_numbers(values):
    """Returns floats; those that JSON cannot hold are None. A missing item of a masked array is NaN."""
    values = sys.modules["numpy"].ma.asarray(values, float).filled(float("nan"))
    return [value if value - value == 0 else None for value in values.tolist()]


def values_of(axis, places, original=None):
    """Returns the values at these places: numbers, names of categories, or times as ISO text."""
    kind, places = kind_of(axis), plain_numbers(places)
    if kind == "categorical":
        names = {place: str(name) for name, place in axis.units._mapping.items()}
        return [names.get(place, place) for place in places]
    if kind == "datetime":
        moments = moments_of(original, len(places))
        if moments is not None:
            return moments
        read = core.standard("matplotlib.dates").num2date
        return [None if place is None else read(place).replace(tzinfo=None).isoformat() for place in places]
    if kind == "period":
        read, freq = sys.modules["pandas"].Period, axis.axes.freq
        starts = [None if place is None else read(ordinal=round(place), freq=freq).to_timestamp() for place in places]
        return [None if start is None else start.isoformat() for start in starts]
    return places


def moments_of(original, count):
    """Returns ISO text of the dates that the code has plotted. None if it has plotted numbers."""
    if getattr(getattr(original, "dtype", None), "kind", "") == "M":
        original = original.astype("datetime64[us]").tolist()  # as objects of datetime
    if original is None or len(original) != count:
        return None
    if not all([item is None or hasattr(item, "isoformat") for item in original]):
        return None
    moments = [None if item is None else item.isoformat() for item in original]
    return [None if moment == "NaT" else moment for moment in moments]


def ticks_of(axis):
    """Returns (positions, labels, scale) of the ticks."""
    ticks, labels = axis.get_ticklocs(), [label.get_text() for label in axis.get_ticklabels()]
    scale = scale_of(axis, list(ticks), labels)
    kind = kind_of(axis)
    if kind == "datetime":
        places = [moment.isoformat() for moment in core.standard("matplotlib.dates").num2date(ticks)]
    elif kind == "period":
        places = values_of(axis, ticks)
    else:
        places = plain_numbers(ticks)
    return places, labels, scale


def namer(axis):
    """Returns a function from a place to the text for it: the next name on the axis, or else the value."""
    names = {}
    if kind_of(axis) == "categorical":
        names = {float(place): str(name) for name, place in axis.units._mapping.items()}
    elif is_named(axis):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        names = {float(place): label for place, label in zip(axis.get_ticklocs(), labels) if label}
    if not names:
        read = core.part("chartdata").converter(axis)
        return lambda place: str(read(place))
    # Bars of several groups are left and right of the place with the name.
    places = sorted(names)
    middles = [(low + high) / 2 for low, high in zip(places, places[1:])]
    find = core.standard("bisect").bisect
    return lambda place: names[places[find(middles, place)]]


# ---------------------------------------------------------------- lines and scatter plots


def of_points(kind, axes, series):
    """Returns a chart of points from (label, xs, ys) of each series."""
    found = {"type": kind, **of_plane(axes)}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        found[name + "_ticks"], found[name + "_tick_labels"], found[name + "_scale"] = ticks_of(axis)
    found["elements"] = [{"label": label, "points": list(zip(xs, ys))} for label, xs, ys in series]
    return found


def line_name(label):
    """Returns the label of a line. One without a label has `_child3`, which E2B reports as `Line 3`."""
    for start in ("_child", "_container"):  # the second one is for lines with error bars
        if label.startswith(start):
            return "Line " + label[len(start) :]
    return label


def points_of(line, axes):
    (xs, ys), (x, y) = line.get_data(orig=False), line.get_data(orig=True)
    return values_of(axes.xaxis, xs, x), values_of(axes.yaxis, ys, y)


def spots_of(collection, axes):
    places = collection.get_offsets()
    return values_of(axes.xaxis, places[:, 0]), values_of(axes.yaxis, places[:, 1])


# ---------------------------------------------------------------- bars, pies and box plots


def of_bars(axes, patches):
    """Returns a bar chart: an element for each bar, with the label of its container as group."""
    containers = [item for item in axes.containers if type(item).__name__ == "BarContainer"]
    known = {id(bar) for item in containers for bar in item.patches}
    lying = {getattr(item, "orientation", "vertical") == "horizontal" for item in containers}
    if len(lying) != 1 or not all([id(patch) in known for patch in patches]):
        return of_unknown(axes)
    lying = lying.pop()
    axis, found = axes.yaxis if lying else axes.xaxis, []
    name = namer(axis)
    for container in containers:
        group = container.get_label()
        group = "Group " + group[10:] if group.startswith("_container") else group
        rows = [(bar.get_y(), bar.get_height(), bar.get_width()) for bar in container.patches]
        if not lying:
            rows = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in container.patches]
        labels = bins(rows) if is_histogram(rows, axis) else [name(start + width / 2) for start, width, _ in rows]
        for label, (_, _, value) in zip(labels, rows):
            value = float(value)
            found.append({"label": label, "group": group, "value": value if value - value == 0 else None})
    return {"type": "bar", **of_plane(axes, swapped=lying), "elements": found}


def is_histogram(rows, axis):
    """Returns True for bars that touch each other, on an axis of numbers without names."""
    if len(rows) < 3 or kind_of(axis) != "number" or is_named(axis):
        return False
    return all([abs(a[0] + a[1] - b[0]) <= 1e-6 * abs(a[1]) for a, b in zip(rows, rows[1:])])


def bins(rows):
    read = core.part("chartdata").number
    return ["%s to %s" % (read(start), read(start + width)) for start, width, _ in rows]


def wedge_of(wedge):
    """Returns a part of a pie. matplotlib computes the angles with some seven digits."""
    angle = round(abs(float(wedge.theta2) - float(wedge.theta1)), 3)
    return {"label": wedge.get_label(), "angle": angle, "radius": float(wedge.r)}


def box_plots(axes, lines, patches, across):
    """Reconstructs box plots, which are patches or lines. `across` is the axis with their names: 0 for x, 1 for y.
    Returns None if a part is missing, or if there are lines that belong to no box."""
    if not patches and not any([len(line.get_xdata(orig=False)) in BOX_CORNERS for line in lines]):
        return None
    shapes, parts = [patch.get_path().vertices[:, (across, 1 - across)].tolist() for patch in patches], {}
    for line in lines:
        columns = [column.tolist() for column in line.get_data(orig=False)]
        rows = [row for row in zip(columns[across], columns[1 - across]) if row[1] == row[1]]
        if not patches and len(rows) in BOX_CORNERS and rows[0] == rows[-1] and len(set(columns[across])) > 1:
            shapes.append(rows)
        elif rows:
            parts.setdefault(round(sum([row[0] for row in rows]) / len(rows), 6), []).append(rows)
    name = namer(axes.yaxis if across else axes.xaxis) if shapes else None
    found = []
    for shape in shapes:
        place = (min(shape)[0] + max(shape)[0]) / 2
        # The first corner and the one opposite: a notch can be higher or lower than the quartiles.
        low, high = sorted((shape[0][1], shape[len(shape) // 2][1]))
        if low != low:
            continue  # a box without values
        box = box_of(low, high, parts.pop(round(place, 6), []))
        if box is None:
            return None
        found.append({"label": name(place), **box})
    return found if not parts else None


def box_of(low, high, parts):
    """Returns the numbers of a box between two quartiles. Its parts are the lines with the same centre."""
    middles, ends, others = [], [low, high], []
    for part in parts:
        heights = [height for _, height in part]
        width = abs(part[0][0] - part[-1][0])
        if len(part) == 2 and width > 0 and heights[0] == heights[1]:
            # The median is wider than the caps of whiskers, and drawn before the mean.
            if low <= heights[0] <= high:
                middles.append((-width, len(middles), heights[0]))
        elif len(part) == 2 and width == 0 and touches(heights, low, high):
            ends += heights
        else:
            others += heights
    if not middles:
        return None
    first, last = min(ends), max(ends)
    return {
        "min": first, "first_quartile": low, "median": min(middles)[2], "third_quartile": high, "max": last,
        # The marker of a mean is inside.
        "outliers": [height for height in others if height < first or height > last],
    }


def touches(heights, low, high):
    """Returns True for a whisker: one end is at the box. Two outliers can be two points as well."""
    return low in heights or high in heights
