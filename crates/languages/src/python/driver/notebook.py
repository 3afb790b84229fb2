"""`IPython.display` for interpreters that do not have IPython: the names that notebook code imports from it."""

import importlib.machinery
import sys


class Loader:
    """Fills the stand-in modules."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__dict__.update(MODULES[module.__name__])


def ipython_spec(name):
    """The spec of a stand-in module, or None where the real IPython is or the name is not one of ours."""
    if name not in MODULES:
        return None
    spec = importlib.machinery.ModuleSpec(name, Loader(), is_package=name in ("IPython", "IPython.core"))
    return spec


def display(*values, raw=False, display_id=None, **_options):
    core.display(*values, raw=raw)
    return DisplayHandle(display_id) if display_id else None


class DisplayHandle:
    """Shows again where a notebook would replace."""

    def __init__(self, display_id=None):
        self.display_id = display_id if isinstance(display_id, str) else "%x" % id(self)

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, *values, **_options):
        core.display(*values)

    update = display


def clear_output(wait=False):
    """Nothing to clear: what was printed stays."""


class Shown:
    """Data with one MIME type, given as text or bytes, or read from a file."""

    mime = "text/plain"

    def __init__(self, data=None, url=None, filename=None, **_options):
        import os

        self.url = url
        if filename is None and isinstance(data, str) and self.reads_files and os.path.exists(data[:1000]):
            filename = data
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        self.data = data

    reads_files = False

    def __repr__(self):
        return "<%s object>" % type(self).__name__

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
    """A page of elsewhere: only its address can be shown."""

    def __init__(self, src="", width=None, height=None, **_options):
        self.src = src

    def __repr__(self):
        return "<%s %s>" % (type(self).__name__, self.src)


class YouTubeVideo(IFrame):
    pass


class FileLink(IFrame):
    pass


class FileLinks(IFrame):
    pass


class ProgressBar:
    """A bar that prints how far it is."""

    def __init__(self, total):
        self.total, self.progress = total, 0

    def display(self):
        print("\r%d/%d" % (self.progress, self.total), end="" if self.progress < self.total else "\n")

    update = display

    def __repr__(self):
        return "<ProgressBar %d/%d>" % (self.progress, self.total)

    def __iter__(self):
        for number in range(self.total):
            self.progress = number + 1
            self.display()
            yield number


class Javascript(Shown):
    mime = "application/javascript"


class Pretty(Shown):
    mime = "text/plain"


class Image(Shown):
    """A picture from bytes or a file."""

    reads_files = True

    @property
    def mime(self):
        data = self.data if isinstance(self.data, bytes) else b""
        if data[:2] == b"\xff\xd8":
            return "image/jpeg"
        return "image/gif" if data[:3] == b"GIF" else "image/png"


class Video(Shown):
    """A film: named, not shown."""

    mime = "video/mp4"

    def __init__(self, data=None, url=None, filename=None, **_options):
        self.source = filename or url or (data if isinstance(data, str) else "in memory")

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "<video %s>" % self.source}


class Audio(Shown):
    """Sound: a file's bytes, or samples with a rate."""

    mime = "audio/wav"
    reads_files = True

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
        display, clear_output, HTML, Markdown, Latex, Math, SVG, JSON, GeoJSON, Javascript, Pretty, Image, Audio, Code,
        IFrame, YouTubeVideo, FileLink, FileLinks, ProgressBar, Video,
    )
}
for known in ("HTML", "Markdown", "Latex", "SVG", "JSON", "Javascript", "PNG", "JPEG", "Pretty"):
    kind = "image/" + known.lower() if known in ("PNG", "JPEG") else DISPLAY[known].mime
    DISPLAY["display_" + known.lower()] = shower(kind)


# ---------------------------------------------------------------- the shell


class Events:
    """Callbacks that libraries register with a notebook's shell: kept quiet, since nothing here redraws."""

    callbacks = {}

    def register(self, _event, _function):
        pass

    unregister = trigger = register


class ZMQInteractiveShell:
    """What `get_ipython()` gives: the calls of a notebook's shell that programs make."""

    config = {}
    events = Events()
    colors = "nocolor"

    @property
    def user_ns(self):
        return core.NAMES

    @property
    def execution_count(self):
        return core.session.cell

    def run_line_magic(self, magic_name, line="", _stack_depth=1):
        return magics().line(magic_name, line, magics().Main)

    def run_cell_magic(self, magic_name, line, cell):
        value = magics().cell("%%%%%s %s\n%s" % (magic_name, line, cell), "<cell>")
        return None if value is core.NOTHING else value

    def magic(self, text):
        name, _, rest = text.lstrip("%").partition(" ")
        return self.run_line_magic(name, rest)

    def system(self, command):
        magics().shell(command, magics().Main)

    def getoutput(self, command):
        return magics().capture(command, magics().Main)

    def run_cell(self, text, **_options):
        value = core.execute(text, "<run_cell>")
        if value is not core.NOTHING and value is not None:
            core.display(value)

    def ev(self, text):
        return eval(text, core.NAMES)

    def ex(self, text):
        exec(text, core.NAMES)

    def push(self, variables):
        core.NAMES.update(variables)

    def nothing(self, *_arguments, **_options):
        """What has no meaning without a front end."""

    enable_gui = enable_matplotlib = enable_pylab = set_next_input = register_magics = set_custom_exc = nothing
    register_magic_function = register_post_execute = showtraceback = nothing


ZMQInteractiveShell.__module__ = "ipykernel.zmqshell"
SHELL = ZMQInteractiveShell()


def get_ipython():
    return SHELL


def register_line_magic(function):
    """`%name` calls it with the rest of the line."""
    magics().LINE[function.__name__] = lambda arguments, frame: function(arguments)
    return function


def register_cell_magic(function):
    """`%%name` calls it with the rest of the line and the cell."""

    def run(arguments, body, _name):
        value = function(arguments, body.lstrip("\n"))
        return core.NOTHING if value is None else value

    magics().CELL[function.__name__] = run
    return function


def magics():
    return core.part("magics")


MODULES = {
    "IPython": {
        "get_ipython": get_ipython, "version_info": (9, 0, 0, ""), "__version__": "9.0.0",
    },
    "IPython.display": {**DISPLAY, "DisplayHandle": DisplayHandle, "DisplayObject": Shown},
    "IPython.core": {},
    "IPython.core.display": {**DISPLAY, "DisplayObject": Shown},
    "IPython.core.getipython": {"get_ipython": get_ipython},
    "IPython.core.magic": {
        "register_line_magic": register_line_magic, "register_cell_magic": register_cell_magic,
    },
    "IPython.core.interactiveshell": {"InteractiveShell": ZMQInteractiveShell},
}
