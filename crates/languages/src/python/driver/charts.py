"""A matplotlib back end that turns figures into pictures, and into chart data for language models."""

import sys

NAME = "sandcell_matplotlib"
LONGEST_SIDE = 4000
PICTURE_LIMIT = 4 << 20
MIME = "application/vnd.sandcell.chart+json"


# ---------------------------------------------------------------- back end


def install():
    """Makes the back end importable. Returns its name for matplotlib."""
    if NAME not in sys.modules:
        module = type(sys)(NAME)
        from matplotlib.backends.backend_agg import FigureCanvasAgg, FigureManagerBase

        class FigureManager(FigureManagerBase):
            """The manager of a figure: showing it sends the picture."""

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
    """Sends a figure and closes it. A drawing error is the caller's error, as in a notebook."""
    figure = manager.canvas.figure
    helpers = sys.modules["matplotlib._pylab_helpers"]
    try:
        undrawn.error = None
        blobs = core.part("rich").bundle(figure)
        failure, undrawn.error = undrawn.error, None
        if failure is not None:
            raise failure
        core.show(blobs)
    finally:
        helpers.Gcf.destroy(manager.num)


class undrawn:
    """The error of the last figure that could not be drawn."""

    error = None


def show_all():
    """Shows and closes every open figure, in creation order."""
    for manager in managers():
        show_one(manager)


def flush():
    """Shows figures that a cell left open."""
    show_all()


def warm():
    """Draws an invisible figure unknown to pyplot, so that fonts and libraries are loaded before the first figure of
    a cell."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([0, 1])
    core.part("rich").bundle(figure)


def picture(figure):
    """Returns {mime: data} of a figure. An open figure is closed: showing it again would only repeat it."""
    found = {"text/plain": "Figure"}
    if not figure.axes and not figure.lines and not getattr(figure, "texts", None) and not getattr(figure, "subfigs", None):
        # An empty figure has no useful picture.
        close(figure)
        return {"text/plain": "<Figure size %dx%d with 0 Axes>" % tuple(figure.get_size_inches() * figure.dpi)}
    try:
        with quietly():
            found["image/png"] = png(figure)
    except Exception as error:
        undrawn.error = error
        found["text/plain"] = "Figure that could not be drawn: %s: %s" % (type(error).__name__, str(error)[:500])
    try:
        with core.standard("warnings").catch_warnings():
            core.standard("warnings").simplefilter("ignore")
            data = core.part("chartdata").of_figure(figure)
        found[MIME] = data
        if "image/png" in found:
            found["text/plain"] = summary(figure, data)
    except Exception:
        pass
    close(figure)
    return found


def close(figure):
    for manager in managers():
        if manager.canvas.figure is figure:
            sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(manager.num)


def png(figure):
    """Returns the picture. The resolution is lowered if the picture would be too large."""
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


class quietly:
    """Prints each drawing warning once, in one line and without a location in our code."""

    told = set()

    def __enter__(self):
        self.catcher = core.standard("warnings").catch_warnings(record=True)
        self.caught = self.catcher.__enter__()
        core.standard("warnings").simplefilter("default")

    def __exit__(self, *details):
        self.catcher.__exit__(*details)
        for item in self.caught:
            words = "%s: %s" % (item.category.__name__, str(item.message)[:500])
            if words not in self.told and len(self.told) < 1000:
                self.told.add(words)
                print(words, file=sys.stderr)


def fits_tight(figure, width, height):
    """Ignores text far outside the axes when the picture size is computed."""
    try:
        box = figure.get_tightbbox()
    except Exception:
        return False
    return box is not None and box.width <= 3 * width + 2 and box.height <= 3 * height + 2


def summary(figure, data):
    """Returns one line for `text/plain` with size and content."""
    width, height = figure.get_size_inches() * figure.dpi
    parts = []
    for chart in data["charts"]:
        names = [item["name"] for item in chart["series"] if item["name"]]
        title = ' "%s"' % chart["title"] if chart["title"] else ""
        parts.append(chart["type"] + title + (" of " + ", ".join(names[:6]) if names else ""))
    return "Figure %dx%d: %s" % (width, height, "; ".join(parts) or "empty")
