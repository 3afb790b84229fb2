"""Extracts the data of figures as text for language models: axes, labels, series and points, all bounded."""

import sys

SERIES = 24
POINTS = 200
FIGURE_POINTS = 2000
TEXT = 200


# ---------------------------------------------------------------- matplotlib


def text(value):
    value = value.get_text() if hasattr(value, "get_text") else value
    return str(value or "")[:TEXT]


def number(value):
    """Returns a JSON number, or text for other values."""
    try:
        plain = float(value)
    except (TypeError, ValueError):
        return str(value)[:40]
    if plain != plain or plain in (float("inf"), float("-inf")):
        return None
    short = float("%.6g" % plain)
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def thin(values, limit=POINTS):
    """Returns at most `limit` items, evenly spaced, including the first and the last."""
    if len(values) <= limit:
        return list(values)
    return [values[round(index * (len(values) - 1) / (limit - 1))] for index in range(limit)]


def converter(axis):
    """Returns the formatter of this axis: dates, category names, or plain numbers."""
    kind = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
    if "Date" in kind or kind == "ConciseDateConverter":
        from matplotlib.dates import num2date

        def as_date(value):
            moment = num2date(value).replace(tzinfo=None)
            return moment.isoformat(timespec="seconds").replace("T00:00:00", "")

        return as_date
    names = {}
    units = getattr(axis, "units", None)
    if kind == "StrCategoryConverter" and hasattr(units, "_mapping"):
        names = {place: str(name)[:80] for name, place in units._mapping.items()}
    else:
        names = fixed_labels(axis)
    return lambda value: names.get(round(float(value), 6), None) or number(value)


def fixed_labels(axis):
    """Returns tick labels that the code has set explicitly, as for bars."""
    formatter = axis.get_major_formatter()
    if type(formatter).__name__ not in ("FixedFormatter", "FuncFormatter"):
        return {}
    labels = [text(tick) for tick in axis.get_ticklabels()]
    return {round(float(place), 6): label for place, label in zip(axis.get_ticklocs(), labels) if label}


def series(kind, name, xs, ys, as_x=number, as_y=number):
    pairs = thin(list(zip(xs, ys)))
    name = text(name)
    return {
        "type": kind,
        "name": "" if name.startswith("_") else name,
        "total": len(xs),
        "points": [[as_x(x), as_y(y)] for x, y in pairs],
    }


def of_axes(axes):
    """Returns the series of one pair of axes, by drawing primitive."""
    as_x, as_y = converter(axes.xaxis), converter(axes.yaxis)
    found = []
    taken = set()
    for container in axes.containers:
        name = type(container).__name__
        if name == "BarContainer":
            taken.update(id(bar) for bar in container.patches)
            found.append(bars(container, as_x, as_y, axes))
        elif name == "ErrorbarContainer" and container.lines[0] is not None:
            taken.add(id(container.lines[0]))
            taken.update(id(cap) for cap in container.lines[1])
            found.append(error_bars(container, as_x, as_y))
    found += boxes(axes, taken, as_x)
    for line in axes.lines:
        xs, ys = line.get_data(orig=False)
        across = flat_line(line, axes) if id(line) not in taken and len(xs) == 2 else None
        if across is not None:
            at = across["at"]
            found.append(series(across["type"], line.get_label(), [at], [at], as_x, as_y))
            found[-1]["points"] = [[as_y(at) if across["type"] == "hline" else as_x(at)]]
        elif id(line) not in taken and any(y == y for y in ys):
            kind = "scatter" if line.get_linestyle() in ("None", "", " ") else "line"
            found.append(series(kind, line.get_label(), xs, ys, as_x, as_y))
    for collection in axes.collections:
        name = type(collection).__name__
        if name == "PathCollection":
            found.append(spots(collection, as_x, as_y))
        elif name == "QuadMesh":
            found.append(grid("heatmap", collection.get_array()))
        elif name in ("PolyCollection", "FillBetweenPolyCollection") and collection.get_paths():
            found.append(area(collection, as_x, as_y))
        elif name == "QuadContourSet":
            found.append(contour(collection, collection.filled))
        elif name == "Quiver":
            found.append(arrows(collection, as_x, as_y))
    wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    if wedges:
        labels = [text(wedge.get_label()) for wedge in wedges]
        shares = [abs(wedge.theta2 - wedge.theta1) / 3.6 for wedge in wedges]
        found.append(series("pie", "", labels, shares, str))
    for image in axes.images:
        found.append(grid("image", image.get_array()))
    steps = [patch for patch in axes.patches if type(patch).__name__ in ("Polygon", "StepPatch")]
    for patch in steps[:4]:
        corners = patch.get_path().vertices
        found.append(series("outline", patch.get_label(), corners[:, 0], corners[:, 1], as_x, as_y))
    return found


def bars(container, as_x, as_y, axes):
    """Returns bars and histograms as [position, height], with the start of a bar if it is not 0. The position of a
    histogram bar is the range of its bin."""
    lying = getattr(container, "orientation", "vertical") == "horizontal"
    patches = container.patches
    if lying:
        rows = [(bar.get_y(), bar.get_height(), bar.get_x(), bar.get_width()) for bar in patches]
        as_x, as_y = as_y, as_x
    else:
        rows = [(bar.get_x(), bar.get_width(), bar.get_y(), bar.get_height()) for bar in patches]
    touching = len(rows) > 2 and all(abs(a[0] + a[1] - b[0]) < 1e-6 * (abs(a[1]) or 1) for a, b in zip(rows, rows[1:]))
    name = container.get_label()
    if touching and not fixed_labels(axes.yaxis if lying else axes.xaxis):
        found = series("histogram", name, [row[0] for row in rows], [row[3] for row in rows], as_x, as_y)
        found["fields"] = ["from", "to", "height"]
        found["points"] = [[as_x(row[0]), as_x(row[0] + row[1]), as_y(row[3])] for row in thin(rows)]
        return found
    places = [row[0] + row[1] / 2 for row in rows]
    found = series("barh" if lying else "bar", name, places, [row[3] for row in rows], as_x, as_y)
    if any(row[2] for row in rows):
        found["fields"] = ["place", "length", "start"]
        found["points"] = [[*point, as_y(row[2])] for point, row in zip(found["points"], thin(rows))]
    return found


def flat_line(line, axes):
    """Returns a line across the axes (axhline, axvline), or None."""
    transform = line.get_transform()
    # Equal transforms can be those of ordinary lines.
    if transform is axes.get_yaxis_transform(which="grid"):
        return {"type": "hline", "at": line.get_ydata(orig=False)[0]}
    if transform is axes.get_xaxis_transform(which="grid"):
        return {"type": "vline", "at": line.get_xdata(orig=False)[0]}
    return None


def error_bars(container, as_x, as_y):
    """Returns points with error bars: [x, y, low, high] (of x, if only x has some)."""
    line = container.lines[0]
    xs, ys = line.get_data(orig=False)
    found = series("errorbar", container.get_label(), xs, ys, as_x, as_y)
    sideways = container.has_xerr and not container.has_yerr
    side = 0 if sideways else 1
    if container.lines[2]:
        ends = container.lines[2][0 if sideways else -1].get_segments()
        if len(ends) == len(xs):
            found["fields"] = ["x", "y", "x from", "x to"] if sideways else ["x", "y", "y from", "y to"]
            spans = [[number(end[0][side]), number(end[-1][side])] for end in thin(ends)]
            found["points"] = [[*point, *span] for point, span in zip(found["points"], spans)]
    return found


def spots(collection, as_x, as_y):
    """Returns a scatter plot: [x, y], with colour and size where they differ between points."""
    places = collection.get_offsets()
    found = series("scatter", collection.get_label(), places[:, 0], places[:, 1], as_x, as_y)
    values, sizes = collection.get_array(), collection.get_sizes()
    for name, more in (("colour value", values), ("size", sizes)):
        if more is not None and getattr(more, "ndim", 0) == 1 and len(more) == len(places) > 1 and more.min() != more.max():
            found.setdefault("fields", ["x", "y"]).append(name)
            found["points"] = [[*point, number(value)] for point, value in zip(found["points"], thin(more))]
    return found


def area(collection, as_x, as_y):
    """Returns a filled area: [x, from, to]. Its outline follows one border and returns along the other."""
    corners = collection.get_paths()[0].vertices
    columns = {}
    for x, y in corners[:20000]:
        low, high = columns.get(float(x), (y, y))
        columns[float(x)] = min(low, y), max(high, y)
    rows = sorted(columns.items())
    found = series("area", collection.get_label(), [x for x, _ in rows], [high for _, (_, high) in rows], as_x, as_y)
    found["fields"] = ["x", "from", "to"]
    found["points"] = [[as_x(x), as_y(low), as_y(high)] for x, (low, high) in thin(rows)]
    return found


def contour(collection, filled):
    """Returns the levels of a contour plot, with the extent of each."""
    levels = [number(level) for level in list(collection.levels)[:POINTS]]
    found = {"type": "contourf" if filled else "contour", "name": "", "total": len(levels), "fields": ["level"]}
    found["points"] = [[level] for level in levels]
    found["range"] = [number(collection.zmin), number(collection.zmax)]
    return found


def arrows(collection, as_x, as_y):
    """Returns an arrow field: [x, y, dx, dy]."""
    rows = thin(list(zip(collection.X, collection.Y, collection.U, collection.V)))
    found = {"type": "quiver", "name": "", "total": len(collection.X), "fields": ["x", "y", "dx", "dy"]}
    found["points"] = [[as_x(x), as_y(y), number(u), number(v)] for x, y, u, v in rows]
    return found


def of_space(axes):
    """Returns the series of 3D axes: [x, y, z]. A surface is represented by a sample of its vertices."""
    found = []
    for line in axes.lines:
        if hasattr(line, "get_data_3d"):
            found.append(in_space("line3d", line.get_label(), *line.get_data_3d()))
    for collection in axes.collections:
        name = type(collection).__name__
        if name == "Path3DCollection":
            found.append(in_space("scatter3d", collection.get_label(), *collection._offsets3d))
        elif name in ("Poly3DCollection", "Line3DCollection"):
            corners = facets(collection)
            if len(corners):
                kind = "surface" if name == "Poly3DCollection" else "wireframe"
                found.append(in_space(kind, collection.get_label(), *zip(*corners)))
    return found


def facets(collection):
    """Returns the distinct vertices of a surface or wire frame."""
    if hasattr(collection, "_faces") and len(collection._faces):
        rows = [tuple(corner[:3]) for face in list(collection._faces)[:20000] for corner in face[:8]]
    elif hasattr(collection, "_vec"):
        rows = [tuple(row) for row in collection._vec[:3].T[:100000]]
    else:
        rows = [tuple(corner[:3]) for part in list(getattr(collection, "_segments3d", ()))[:2000] for corner in part[:200]]
    return list(dict.fromkeys([tuple(map(float, row)) for row in rows]))


def in_space(kind, name, xs, ys, zs):
    name = text(name)
    rows = thin([[number(value) for value in row] for row in zip(xs, ys, zs)])
    found = {"type": kind, "name": "" if name.startswith("_") else name, "total": len(list(xs))}
    return {**found, "fields": ["x", "y", "z"], "points": rows, "range": [number(min(zs)), number(max(zs))]}


def boxes(axes, taken, as_x):
    """Reconstructs box plots from their lines: [position, low, first quartile, median, third quartile, high]."""
    lines = [(line, *[list(map(float, part)) for part in line.get_data(orig=False)]) for line in axes.lines[:600]]
    rows = []
    for box, xs, ys in lines:
        if len(xs) != 5 or (xs[0], ys[0]) != (xs[4], ys[4]) or len(set(xs)) != 2 or len(set(ys)) != 2:
            continue
        left, right, place = min(xs), max(xs), (min(xs) + max(xs)) / 2
        low, middle, high = min(ys), None, max(ys)
        parts = [box]
        for line, others, heights in lines:
            if line is box or not others or abs(sum(others) / len(others) - place) > 1e-6:
                continue
            if len(others) == 2 and others[0] == others[1]:
                low, high = min(low, *heights), max(high, *heights)
            elif len(others) == 2 and sorted(others) == [left, right]:
                middle = heights[0]
            elif len(others) != 2 and line.get_linestyle() not in ("None", "", " "):
                continue
            parts.append(line)
        if middle is not None:
            taken.update(id(line) for line in parts)
            rows.append([as_x(place), *[number(value) for value in (low, min(ys), middle, max(ys), high)]])
    if not rows:
        return []
    fields = ["place", "low", "first quartile", "median", "third quartile", "high"]
    return [{"type": "box", "name": "", "fields": fields, "total": len(rows), "points": rows[:POINTS]}]


def grid(kind, values):
    """Returns a picture or heat map: its shape and range, and its values if they are few."""
    shape = [int(side) for side in values.shape]
    found = {"type": kind, "name": "", "total": int(values.size), "shape": shape, "points": []}
    found["range"] = [number(values.min()), number(values.max())]
    if len(shape) == 2 and values.size <= POINTS:
        found["points"] = [[number(item) for item in row] for row in values.tolist()]
    return found


def notes_of(axes):
    """Returns the text in the axes, and the colour legend."""
    found = {}
    notes = [text(item) for item in axes.texts[:40]]
    if any(notes):
        found["annotations"] = [note for note in notes if note][:20]
    for drawn in [*axes.collections, *axes.images]:
        bar = getattr(drawn, "colorbar", None)
        if bar is not None:
            label = bar.ax.get_ylabel() or bar.ax.get_xlabel()
            found["colours"] = {"label": text(label), "range": [number(drawn.norm.vmin), number(drawn.norm.vmax)]}
            break
    return found


def of_figure(figure):
    """Returns the charts of a figure: one for each pair of axes with data."""
    charts = []
    for axes in figure.axes[:12]:
        if getattr(axes, "_colorbar", None) is not None:
            continue
        space = hasattr(axes, "get_zlabel")
        found = of_space(axes) if space else of_axes(axes)
        kinds = {item["type"] for item in found}
        charts.append(
            {
                "type": kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else "empty"),
                "title": text(axes.title),
                "x": {"label": text(axes.get_xlabel()), "scale": axes.get_xscale()},
                "y": {"label": text(axes.get_ylabel()), "scale": axes.get_yscale()},
                **({"z": {"label": text(axes.get_zlabel()), "scale": axes.get_zscale()}} if space else {}),
                **notes_of(axes),
                "series": found[:SERIES],
                "omitted_series": max(0, len(found) - SERIES),
            }
        )
    every = [item for chart in charts for item in chart["series"]]
    if sum(len(item["points"]) for item in every) > FIGURE_POINTS:
        for item in every:
            item["points"] = thin(item["points"], max(2, FIGURE_POINTS // len(every)))
    title = text(figure._suptitle) if getattr(figure, "_suptitle", None) is not None else ""
    return {"title": title, "charts": charts}


# ---------------------------------------------------------------- other libraries


def of_plotly(figure):
    """Returns the charts of a plotly figure."""
    found = []
    for trace in list(figure.data)[:SERIES]:
        xs, ys = getattr(trace, "x", None), getattr(trace, "y", None)
        if xs is None and getattr(trace, "labels", None) is not None:
            xs, ys = trace.labels, getattr(trace, "values", None)
        ys = [] if ys is None else list(ys)
        xs = list(range(len(ys))) if xs is None else list(xs)
        found.append(series(trace.type, getattr(trace, "name", "") or "", xs, ys))
    layout = figure.layout
    return {
        "title": text(layout.title.text),
        "x": {"label": text(layout.xaxis.title.text)},
        "y": {"label": text(layout.yaxis.title.text)},
        "series": found,
        "omitted_series": max(0, len(figure.data) - SERIES),
    }


def of_vega(spec):
    """Returns the charts of a Vega-Lite specification with inline data."""
    sets = spec.get("datasets") or {}
    found = []
    for layer in (spec.get("layer") or spec.get("hconcat") or spec.get("vconcat") or [spec])[:SERIES]:
        place = layer.get("data") or spec.get("data") or {}
        rows = place.get("values") or sets.get(place.get("name"), [])
        mark = layer.get("mark", "")
        axes = {**(spec.get("encoding") or {}), **(layer.get("encoding") or {})}
        x, y = [(axes.get(side) or {}).get("field") for side in ("x", "y")]
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        kind = mark.get("type", "") if isinstance(mark, dict) else mark
        as_is = lambda value: number(value) if isinstance(value, (int, float)) else str(value)[:40]
        found.append(
            series(str(kind), "", [row.get(x) for row in rows], [row.get(y) for row in rows], as_is, as_is)
        )
    title = spec.get("title") or ""
    axes = {**(spec.get("encoding") or {})}

    def label(side):
        axis = axes.get(side) or {}
        return {"label": text(axis.get("title") or axis.get("field"))}

    return {
        "title": text(title if isinstance(title, str) else title.get("text")), "x": label("x"), "y": label("y"),
        "series": found, "omitted_series": 0,
    }
