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
    return Handle() if display_id else None


class Handle:
    """Shows again where a notebook would replace."""

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


DISPLAY = {
    item.__name__: item
    for item in (
        display, clear_output, HTML, Markdown, Latex, Math, SVG, JSON, Javascript, Pretty, Image, Audio,
    )
}
MODULES = {
    "IPython": {"get_ipython": lambda: None, "version_info": (8, 0, 0), "__version__": "8.0.0"},
    "IPython.display": {**DISPLAY, "DisplayHandle": Handle, "DisplayObject": Shown},
    "IPython.core": {},
    "IPython.core.display": {**DISPLAY, "DisplayObject": Shown},
}
