"""A stand-in for `IPython` in interpreters without it: the names that notebook code imports."""

import importlib.machinery
import sys


class Loader:
    """Fills the stand-in modules."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__dict__.update(MODULES[module.__name__])


def ipython_spec(name):
    """Returns the spec of a stand-in module; None if the real IPython exists or the name is not supported."""
    if name not in MODULES:
        return None
    spec = importlib.machinery.ModuleSpec(name, Loader(), is_package="__getattr__" in MODULES[name])
    return spec


def display(*values, raw=False, display_id=None, **_options):
    core.display(*values, raw=raw)
    return DisplayHandle(display_id) if display_id else None


class DisplayHandle:
    """Displays the new value; a notebook would replace the old one."""

    def __init__(self, display_id=None):
        self.display_id = display_id if isinstance(display_id, str) else "%x" % id(self)

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, *values, **_options):
        core.display(*values)

    update = display


def update_display(value, *, display_id, raw=False, **_options):
    """Displays the value again: output cannot be replaced."""
    core.display(value, raw=raw)


def clear_output(wait=False):
    """Does nothing: printed output cannot be cleared."""


class capture_output:
    """Captures the printed and displayed output of a `with` block."""

    def __init__(self, stdout=True, stderr=True, display=True):
        self.wanted = stdout, stderr, display

    def __enter__(self):
        self.recorder = magics().Recorder(*self.wanted)
        return self.recorder.start()

    def __exit__(self, *_details):
        self.recorder.stop()


class Shown:
    """Data with one MIME type, given as text or bytes, or read from a file."""

    mime = "text/plain"

    def __init__(self, data=None, url=None, filename=None, **_options):
        import os

        self.url = url
        if filename is None and isinstance(data, str) and self.reads_files:
            named = os.path.splitext(data[:1000])[1].lower() in self.endings and not data.startswith(("http://", "https://"))
            filename = data if named or os.path.exists(data[:1000]) else None
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        self.data = data

    reads_files = False
    endings = ()  # those of names of files

    def __repr__(self):
        return "<IPython.core.display.%s object>" % type(self).__name__

    def _repr_mimebundle_(self, include=None, exclude=None):
        text = self.data if isinstance(self.data, str) else repr(self)
        return {self.mime: self.data, "text/plain": text if self.data is not None else "<%s>" % self.url}


class HTML(Shown):
    mime = "text/html"


class Markdown(Shown):
    mime = "text/markdown"


class Latex(Shown):
    mime = "text/latex"


class Math(Shown):
    mime = "text/latex"

    def __init__(self, data=None, **options):
        Shown.__init__(self, "$\\displaystyle %s$" % str(data).strip("$"), **options)


class SVG(Shown):
    mime = "image/svg+xml"
    reads_files = True


class JSON(Shown):
    mime = "application/json"

    def _repr_mimebundle_(self, include=None, exclude=None):
        json = core.standard("json")
        data = self.data
        if isinstance(data, (str, bytes)):
            data = json.loads(data)
        return {self.mime: data, "text/plain": json.dumps(data, default=str)}


class GeoJSON(JSON):
    mime = "application/geo+json"


class Code(Shown):
    """Source text."""

    reads_files = True

    def __init__(self, data=None, url=None, filename=None, language=None):
        Shown.__init__(self, data, url, filename)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": self.data.decode("utf-8", "replace") if isinstance(self.data, bytes) else self.data}


class IFrame:
    """An external page: only its address can be shown."""

    def __init__(self, src="", width=None, height=None, **_options):
        self.src = src

    def __repr__(self):
        return "<%s %s>" % (type(self).__name__, self.src)


class YouTubeVideo(IFrame):
    pass


class FileLink(IFrame):
    def __repr__(self):
        import os

        return os.path.abspath(str(self.src))


class FileLinks(FileLink):
    pass


class ProgressBar:
    """A progress bar that prints its state."""

    def __init__(self, total):
        self.total, self.progress = total, 0

    def display(self):
        print("\r%d/%d" % (self.progress, self.total), end="" if self.progress < self.total else "\n")

    update = display

    def __repr__(self):
        filled = int(60 * self.progress / self.total) if self.total else 60
        return "[%s] %d/%d" % (("=" * filled).ljust(60), self.progress, self.total)

    def __iter__(self):
        for number in range(self.total):
            self.progress = number + 1
            self.display()
            yield number


class Javascript(Shown):
    mime = "application/javascript"


class Pretty(Shown):
    mime = "text/plain"

    def _repr_pretty_(self, printer, cycle):
        printer.text(self.data)


class Image(Shown):
    """A picture from bytes or a file."""

    reads_files = True
    endings = (".png", ".jpg", ".jpeg", ".gif")

    @property
    def mime(self):
        data = self.data if isinstance(self.data, bytes) else b""
        if data[:2] == b"\xff\xd8":
            return "image/jpeg"
        return "image/gif" if data[:3] == b"GIF" else "image/png"


class Video(Shown):
    """A video: it is named, not shown."""

    mime = "video/mp4"

    def __init__(self, data=None, url=None, filename=None, **_options):
        self.source = filename or url or (data if isinstance(data, str) else "in memory")

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "<video %s>" % self.source}


class Audio(Shown):
    """An audio clip: the bytes of a file, or samples with a rate."""

    mime = "audio/wav"
    reads_files = True
    endings = (".wav", ".mp3", ".ogg", ".flac")

    def __init__(self, data=None, filename=None, url=None, rate=None, **_options):
        if data is not None and not isinstance(data, (str, bytes)) and rate:
            data = samples(data, rate)
        Shown.__init__(self, data, url, filename)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.mime: self.data, "text/plain": "<sound of %d bytes>" % len(self.data or b"")}


def samples(values, rate):
    import array
    import io
    import wave

    values = [float(value) for value in values]
    loudest = max([abs(value) for value in values] or [0]) or 1.0
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(int(rate))
        file.writeframes(array.array("h", [int(value / loudest * 32767) for value in values]).tobytes())
    return target.getvalue()


def shower(mime):
    def show(*values, raw=False, **_options):
        for value in values:
            core.display({mime: value} if raw else value, raw=raw)

    return show


DISPLAY = {
    item.__name__: item
    for item in (
        display, clear_output, update_display, HTML, Markdown, Latex, Math, SVG, JSON, GeoJSON, Javascript, Pretty, Image, Audio, Code,
        IFrame, YouTubeVideo, FileLink, FileLinks, ProgressBar, Video,
    )
}
for known in ("HTML", "Markdown", "Latex", "SVG", "JSON", "Javascript", "PNG", "JPEG", "Pretty"):
    kind = "image/" + known.lower() if known in ("PNG", "JPEG") else DISPLAY[known].mime
    DISPLAY["display_" + known.lower()] = shower(kind)


# ---------------------------------------------------------------- magics of the caller's own


def get_ipython():
    return shell.SHELL


def add_line(name, function):
    """Registers a function for `%name`. It gets the rest of the line."""
    magics().LINE[name] = lambda arguments, frame: function(arguments)


def add_cell(name, function):
    """Registers a function for `%%name`. It gets the rest of the line and the cell."""

    def run(arguments, body, _name):
        value = function(arguments, body.strip("\n") + "\n")
        return core.NOTHING if value is None else value

    magics().CELL[name] = run


def add_both(name, function):
    """Registers a function for both: `%name` passes the rest of the line, `%%name` also the cell."""
    magics().LINE[name] = lambda arguments, frame: function(arguments, None)
    add_cell(name, function)


def registering(*adders):
    """Returns a decorator, used directly or with the name of the magic."""

    def register(function_or_name):
        if isinstance(function_or_name, str):
            return lambda function: [add(function_or_name, function) for add in adders] and function
        for add in adders:
            add(function_or_name.__name__, function_or_name)
        return function_or_name

    return register


class Magics:
    """The base class for classes of magics."""

    def __init__(self, shell=None, **_options):
        self.shell = shell


def magics_class(cls):
    return cls


def marking(*kinds):
    """A decorator for methods of a class of magics."""

    def mark(function_or_name):
        def marked(function, name=None):
            function.__magic__ = (kinds, name or function.__name__)
            return function

        if isinstance(function_or_name, str):
            return lambda function: marked(function, function_or_name)
        return marked(function_or_name)

    return mark


def add_magics(maker, owner):
    """Returns the magics of a class or of its instance."""
    made = maker(owner) if isinstance(maker, type) else maker
    for base in type(made).__mro__:
        for name, function in vars(base).items():
            for kind in getattr(function, "__magic__", ((), ""))[0]:
                ADDERS[kind](function.__magic__[1], getattr(made, name))


ADDERS = {"line": add_line, "cell": add_cell, "both": add_both}


def pretty(value, *_arguments, **_options):
    """Returns the plain text of a value, ignoring registered display functions."""
    return core.part("pretty").text_of(value, False)


def pprint(value, *_arguments, **_options):
    print(pretty(value))


def magics():
    return core.part("magics")


def submodule(package):
    """Loads a submodule at first use, such as `IPython.lib` after `import IPython`."""

    def find(name):
        if "%s.%s" % (package, name) not in MODULES:
            raise AttributeError("module %r has no attribute %r" % (package, name))
        return core.standard("importlib").import_module("%s.%s" % (package, name))

    return find


def latex_to_png(text, encode=False, backend=None, wrap=False, color="Black", scale=1.0):
    """Returns a formula as a picture; None without matplotlib, or if it is not valid mathtext."""
    try:
        mathtext = core.standard("importlib").import_module("matplotlib.mathtext")
        picture = core.standard("io").BytesIO()
        text = text.replace("$$", "$")
        mathtext.math_to_image("$%s$" % text if wrap else text, picture, dpi=120 * scale, format="png", color=color)
    except (ImportError, ValueError, RuntimeError):
        return None
    data = picture.getvalue()
    return core.standard("base64").encodebytes(data) if encode else data


class TerminalInteractiveShell:
    """The class of a shell in a terminal."""


shell = core.part("shell")
plain = shell.DISPLAY.formatters["text/plain"]
MODULES = {
    "IPython": {
        "get_ipython": get_ipython, "version_info": (9, 0, 0, ""), "__version__": "9.0.0", "display": display,
        "InteractiveShell": shell.InteractiveShell,
    },
    "IPython.display": {**DISPLAY, "DisplayHandle": DisplayHandle, "DisplayObject": Shown},
    "IPython.core": {},
    "IPython.core.display": {**DISPLAY, "DisplayObject": Shown},
    "IPython.core.display_functions": {
        "display": display, "clear_output": clear_output, "update_display": update_display,
        "DisplayHandle": DisplayHandle,
    },
    "IPython.core.getipython": {"get_ipython": get_ipython},
    "IPython.core.magic": {
        "register_line_magic": registering(add_line), "register_cell_magic": registering(add_cell),
        "register_line_cell_magic": registering(add_both), "Magics": Magics, "magics_class": magics_class,
        "line_magic": marking("line"), "cell_magic": marking("cell"), "line_cell_magic": marking("both"),
        "needs_local_scope": magics_class,
    },
    "IPython.core.interactiveshell": {
        "InteractiveShell": shell.InteractiveShell, "ExecutionResult": shell.ExecutionResult,
    },
    "IPython.core.formatters": {
        "DisplayFormatter": shell.DisplayFormatter, "BaseFormatter": shell.Formatter,
        "PlainTextFormatter": shell.PlainFormatter,
    },
    # A terminal shell is a different class: libraries ask whether pictures can be shown, and here they can.
    "IPython.terminal": {},
    "IPython.terminal.interactiveshell": {"TerminalInteractiveShell": TerminalInteractiveShell},
    "IPython.lib": {},
    "IPython.lib.latextools": {"latex_to_png": latex_to_png},
    "IPython.lib.pretty": {
        "pretty": pretty, "pprint": pprint, "for_type": plain.for_type, "for_type_by_name": plain.for_type_by_name,
    },
    "IPython.utils": {},
    "IPython.utils.capture": {"capture_output": capture_output},
}
for _name in ("IPython", "IPython.core", "IPython.lib", "IPython.terminal", "IPython.utils"):
    MODULES[_name]["__getattr__"] = submodule(_name)
