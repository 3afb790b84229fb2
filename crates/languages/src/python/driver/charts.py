"""matplotlib: a back end whose figures become pictures, and the data of a figure for readers without eyes."""

import sys

NAME = "sandcell_matplotlib"
LONGEST_SIDE = 4000
PICTURE_LIMIT = 4 << 20
SERIES = 24
POINTS = 200
FIGURE_POINTS = 2000
TEXT = 200
MIME = "application/vnd.sandcell.chart+json"


# ---------------------------------------------------------------- back end


def install():
    """Makes the back end importable; returns the name that matplotlib knows it by."""
    if NAME not in sys.modules:
        module = type(sys)(NAME)
        from matplotlib.backends.backend_agg import FigureCanvasAgg, FigureManagerBase

        class FigureManager(FigureManagerBase):
            """A figure's manager: showing means sending the picture."""

            def show(self):
                show_one(self)

            @classmethod
            def pyplot_show(cls, *, block=None):
                show_all()

        class FigureCanvas(FigureCanvasAgg):
            """Draws with Agg."""

            manager_class = FigureManager

        module.FigureCanvas = FigureCanvas
        module.FigureManager = FigureManager
        module.show = lambda *_arguments, **_options: show_all()
        sys.modules[NAME] = module
    return "module://" + NAME


def managers():
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    return helpers.Gcf.get_all_fig_managers() if helpers is not None else []


def show_one(manager):
    figure = manager.canvas.figure
    helpers = sys.modules["matplotlib._pylab_helpers"]
    try:
        core.show(core.part("rich").bundle(figure))
    finally:
        helpers.Gcf.destroy(manager.num)


def show_all():
    """Shows and closes every open figure, in the order of their making."""
    for manager in managers():
        show_one(manager)


def flush():
    """At the end of a cell: figures that were left open."""
    show_all()


def warm():
    """Draws a figure that pyplot does not know and nobody sees, so that the first one of a cell finds fonts and
    libraries loaded."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([0, 1])
    core.part("rich").bundle(figure)


def picture(figure):
    """{mime: data} of a figure. If it is open, it is closed: showing it again would only repeat it."""
    found = {"text/plain": "Figure"}
    try:
        found["image/png"] = png(figure)
    except Exception as error:
        found["text/plain"] = "Figure that could not be drawn: %s: %s" % (type(error).__name__, str(error)[:500])
    try:
        data = of_figure(figure)
        found[MIME] = data
        if "image/png" in found:
            found["text/plain"] = summary(figure, data)
    except Exception:
        pass
    for manager in managers():
        if manager.canvas.figure is figure:
            sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(manager.num)
    return found


def png(figure):
    """The picture, at fewer dots per inch where it would be larger than anyone can use."""
    import io

    width, height = figure.get_size_inches()
    dpi = min(figure.dpi, LONGEST_SIDE / max(width, height, 0.01))
    tight = {"bbox_inches": "tight"} if fits_tight(figure, width, height) else {}
    data = b""
    for _ in range(4):
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=dpi, facecolor=figure.get_facecolor(), **tight)
        data = target.getvalue()
        if len(data) <= PICTURE_LIMIT:
            break
        dpi /= 2
    return data


def fits_tight(figure, width, height):
    """Text far outside the axes must not blow the picture up."""
    try:
        box = figure.get_tightbbox()
    except Exception:
        return False
    return box is not None and box.width <= 3 * width + 2 and box.height <= 3 * height + 2


# ---------------------------------------------------------------- data of figures


def text(value):
    value = value.get_text() if hasattr(value, "get_text") else value
    return str(value or "")[:TEXT]


def number(value):
    """A JSON number, or text for what is none."""
    try:
        plain = float(value)
    except (TypeError, ValueError):
        return str(value)[:40]
    if plain != plain or plain in (float("inf"), float("-inf")):
        return None
    short = float("%.6g" % plain)
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def thin(values, limit=POINTS):
    """At most `limit` of them, evenly chosen, with the first and the last."""
    if len(values) <= limit:
        return list(values)
    return [values[round(index * (len(values) - 1) / (limit - 1))] for index in range(limit)]


def converter(axis):
    """How numbers of this axis are written: as dates, as category names, or as they are."""
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
    """Labels that the code gave to ticks by hand (bars usually have them)."""
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
    """The series of one pair of axes, by what they were drawn with."""
    as_x, as_y = converter(axes.xaxis), converter(axes.yaxis)
    found = []
    taken = set()
    for container in axes.containers:
        name = type(container).__name__
        if name == "BarContainer":
            taken.update(id(bar) for bar in container.patches)
            found.append(bars(container, as_x, as_y, axes))
        elif name == "ErrorbarContainer" and container.lines[0] is not None:
            line = container.lines[0]
            taken.add(id(line))
            taken.update(id(cap) for cap in container.lines[1])
            found.append(series("errorbar", container.get_label(), *line.get_data(orig=False), as_x, as_y))
    found += boxes(axes, taken, as_x)
    for line in axes.lines:
        xs, ys = line.get_data(orig=False)
        if id(line) not in taken and any(y == y for y in ys):
            kind = "scatter" if line.get_linestyle() in ("None", "", " ") else "line"
            found.append(series(kind, line.get_label(), xs, ys, as_x, as_y))
    for collection in axes.collections:
        name = type(collection).__name__
        if name == "PathCollection":
            spots = collection.get_offsets()
            found.append(series("scatter", collection.get_label(), spots[:, 0], spots[:, 1], as_x, as_y))
        elif name == "QuadMesh":
            found.append(grid("heatmap", collection.get_array()))
        elif name in ("PolyCollection", "FillBetweenPolyCollection") and collection.get_paths():
            corners = collection.get_paths()[0].vertices
            found.append(series("area", collection.get_label(), corners[:, 0], corners[:, 1], as_x, as_y))
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
    lying = getattr(container, "orientation", "vertical") == "horizontal"
    patches = container.patches
    if lying:
        places = [bar.get_y() + bar.get_height() / 2 for bar in patches]
        return series("barh", container.get_label(), places, [bar.get_width() for bar in patches], as_y, as_x)
    touching = len(patches) > 2 and all(
        abs(a.get_x() + a.get_width() - b.get_x()) < 1e-6 * (abs(a.get_width()) or 1)
        for a, b in zip(patches, patches[1:])
    )
    kind = "histogram" if touching else "bar"
    places = [bar.get_x() + bar.get_width() / 2 for bar in patches]
    return series(kind, container.get_label(), places, [bar.get_height() for bar in patches], as_x, as_y)


def boxes(axes, taken, as_x):
    """Box plots, put together again from their lines: [place, low, first quartile, median, third quartile, high]."""
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
    """A picture or a heat map: its shape and range, and its numbers if they are few."""
    shape = [int(side) for side in values.shape]
    found = {"type": kind, "name": "", "total": int(values.size), "shape": shape, "points": []}
    found["range"] = [number(values.min()), number(values.max())]
    if len(shape) == 2 and values.size <= POINTS:
        found["points"] = [[number(item) for item in row] for row in values.tolist()]
    return found


def of_figure(figure):
    """A figure's charts: one for each pair of axes that shows data."""
    charts = []
    for axes in figure.axes[:12]:
        if getattr(axes, "_colorbar", None) is not None:
            continue
        found = of_axes(axes)
        kinds = {item["type"] for item in found}
        charts.append(
            {
                "type": kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else "empty"),
                "title": text(axes.title),
                "x": {"label": text(axes.get_xlabel()), "scale": axes.get_xscale()},
                "y": {"label": text(axes.get_ylabel()), "scale": axes.get_yscale()},
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


def summary(figure, data):
    """One line for `text/plain`: size and what is in it."""
    width, height = figure.get_size_inches() * figure.dpi
    parts = []
    for chart in data["charts"]:
        names = [item["name"] for item in chart["series"] if item["name"]]
        title = ' "%s"' % chart["title"] if chart["title"] else ""
        parts.append(chart["type"] + title + (" of " + ", ".join(names[:6]) if names else ""))
    return "Figure %dx%d: %s" % (width, height, "; ".join(parts) or "empty")


def of_plotly(figure):
    """The same of a plotly figure."""
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
    """The same of a Vega-Lite specification whose data stands in it."""
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
