"""Formats values in several representations (MIME bundles), by notebook methods and by support for the most common
types.

Every method of a value is user code: each runs in its own `try`, and its result is checked and bounded.

"""

import sys

# The limit for pictures and HTML pages, including animations.
PICTURE_LIMIT = 4 << 20
OTHER_LIMIT = 1 << 20
TOTAL_LIMIT = 7 << 20
# The maximum number of markup characters shown unchanged, and of text characters shown of longer markup.
MARKUP_SHOWN = 4000
WORDS_SHOWN = 500
MARKUP = {"text/html": "HTML", "application/javascript": "JavaScript"}
# Elements of a page without readable text.
UNREAD = ("script", "style", "svg", "head")
PNG_URI = "data:image/png;base64,"

JSON = "application/json"
#: Marks a displayed mapping whose text this module has made.
MADE_TEXT = "text/vnd.sandcell.made-text"
METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/latex", "_repr_latex_"),
    (JSON, "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
    ("application/pdf", "_repr_pdf_"),
)


def bundle(value):
    """Returns [(mime, bytes)] of a value, `text/plain` first. None if the value has displayed itself. Raises the
    error of its `__repr__`, unless another representation exists."""
    if type(value) is str and not core.session.formatted:
        if len(value) > MARKUP_SHOWN and is_page(value):
            return checked({"text/html": value, "text/plain": value})
        return [("text/plain", core.clip(repr(value[: core.TEXT_LIMIT + 1])))]
    if type(value) is int and not core.session.formatted:
        return [("text/plain", number_text(value).encode("ascii"))]
    found = {}
    if not isinstance(value, type):
        special(value, found)
        if not found and shows_itself(value):
            return None
        if core.session.formatted:
            found.update(core.part("shell").registered(value))
        asked(value, found)
        if core.session.exact:
            core.part("exact").add(value, found)
    if not isinstance(found.get("text/plain"), str):
        try:
            found["text/plain"] = plain(value)
        except Exception as error:
            if not [mime for mime in found if mime in dict(METHODS)]:
                raise
            tell(error)
            kind = type(value)
            found["text/plain"] = "<%s.%s object>" % (kind.__module__, kind.__qualname__)
    return checked(found)


def displayed(value):
    """Returns the same for a displayed value: an error of its `__repr__` is printed and ends nothing."""
    try:
        return bundle(value)
    except Exception as error:
        tell(error)
        return None


def result(value):
    """Returns (the same for a cell's value, errors of its display methods)."""
    core.session.failed = failed = []
    try:
        return bundle(value), failed
    finally:
        core.session.failed = None


def tell(error):
    """Records a failed display method. For the value of a cell it is the cell's error, reported after the best
    possible display; for others it is printed on stderr."""
    if core.session.failed is not None:
        core.session.failed.append(error)
        return
    core.flush_streams()
    core.say(core.part("errors").describe(error)["traceback"] + "\n")


def number_text(value):
    try:
        return repr(value)
    except ValueError:  # more digits than Python converts
        return "an integer of %d bits; str() of it needs sys.set_int_max_str_digits(0)" % value.bit_length()


def shows_itself(value):
    """Returns True if the value displayed itself, by `_ipython_display_` or a registered function."""
    if not core.session.formatted and getattr(type(value), "_ipython_display_", None) is None:
        return False
    return core.part("shell").shown_itself(value)


def bundle_of_raw(data):
    """Returns the same for a mapping from MIME type to str, bytes or JSON."""
    found = dict(data)
    if not isinstance(found.get("text/plain"), str):
        found["text/plain"] = attempt(lambda: readable(found)) or "<%s>" % ", ".join([str(mime) for mime in found])
        if core.session.exact:
            found[MADE_TEXT] = "true"
    return checked(found)


def plain(value):
    try:
        shell = core.PARTS.get("shell")
        if shell is not None and not shell.DISPLAY.formatters["text/plain"].pprint:
            return repr(value)
        return core.part("pretty").text_of(value)
    except ValueError:
        if type(value) is int:
            return number_text(value)
        raise


def asked(value, found):
    """Returns the results of the value's own methods. They are looked up on the class, so objects with dynamic
    attributes have none."""
    kind = type(value)
    method = getattr(kind, "_repr_mimebundle_", None)
    if method is not None:
        data = ask(lambda: method(value, include=None, exclude=None))
        if isinstance(data, tuple):
            data = data[0] if data else None
        if isinstance(data, dict):
            for mime, item in data.items():
                found.setdefault(mime, item)
    for mime, name in METHODS:
        if mime not in found:
            method = getattr(kind, name, None)
            if callable(method):
                data = ask(lambda: method(value))
                if isinstance(data, tuple):
                    data = data[0] if data else None
                if data is None:
                    continue
                if isinstance(data, (str, bytes) if mime.startswith(("image/", "application/pdf")) else str) or mime == JSON:
                    found[mime] = data
                else:
                    core.say("FormatterWarning: %s gave no text but %s, which is not shown\n" % (name, type(data).__name__))


def ask(method):
    """Returns the result of a method of a value; one that raises gives None, and the error is reported."""
    try:
        return method()
    except NotImplementedError:
        return None  # how a method says that it has nothing to show
    except Exception as error:
        tell(error)
        return None


def attempt(function):
    try:
        return function()
    except Exception:
        return None


def checked(found):
    """Returns bytes within the limits; dropped parts are stated in the text."""
    notes, ready = [], []
    total = 0
    if attempt(lambda: is_address(found["text/plain"])):
        found["text/plain"] = attempt(lambda: readable(found)) or found["text/plain"]
    attempt(lambda: describe_markup(found))
    for mime, data in found.items():
        if mime == "text/plain" or data is None or not good_mime(mime):
            continue
        data = attempt(lambda: as_bytes(mime, data))
        if data is None:
            continue
        limit = PICTURE_LIMIT if mime.startswith(("image/", "text/html")) else OTHER_LIMIT
        if len(data) > limit or total + len(data) > TOTAL_LIMIT:
            notes.append("(%s of %d bytes left out: too large)" % (mime, len(data)))
            continue
        total += len(data)
        ready.append((mime, data))
    text = core.clip(found["text/plain"], core.TEXT_LIMIT - 512)
    for note in notes[:5]:
        text += b"\n" + note.encode("ascii")
    return [("text/plain", text), *ready[:15]]


def is_address(text):
    """Returns True for a default repr of Python or IPython."""
    words = text[1:-1].split(" ") if text[:1] == "<" and text[-1:] == ">" else []
    return words[1:] == ["object"] or words[1:-1] in (["at"], ["object", "at"]) and words[-1][:2] == "0x"


def readable(found):
    """Returns the most readable form of an object without a repr, or None."""
    for mime in ("text/markdown", "text/latex", *[mime for mime in found if is_json(mime)], "text/html"):
        data = found.get(mime)
        if is_json(mime) and data is not None:
            text = data if isinstance(data, str) else as_bytes(mime, data).decode("utf-8", "replace")
            if len(text) <= MARKUP_SHOWN:
                return text
            return "<JSON, %d characters> %s ..." % (len(text), text[:WORDS_SHOWN])
        if isinstance(data, str):
            return data
    return None


def is_json(mime):
    return type(mime) is str and (mime == JSON or mime.endswith("+json")) and "vnd." not in mime


def is_page(text):
    """Returns True for an HTML page with embedded pictures and scripts, as animations are."""
    return text.lstrip()[:1] == "<" and "<script" in text and PNG_URI in text


def describe_markup(found):
    """Replaces long markup without another text by its words, and by its picture."""
    for mime, name in MARKUP.items():
        data = found.get(mime)
        if type(data) is str and len(data) > MARKUP_SHOWN and found["text/plain"] == data:
            text = words(data) if mime == "text/html" else ""
            more = "" if len(text) <= WORDS_SHOWN else " ..."
            found["text/plain"] = ("<%s, %d characters> %s%s" % (name, len(data), text[:WORDS_SHOWN], more)).rstrip()
            at = data.find(PNG_URI)
            if at >= 0 and not any([kind.startswith("image/") for kind in found]):
                # Generators break long text with a backslash.
                picture = data[at + len(PNG_URI) :].partition('"')[0].partition("'")[0]
                found["image/png"] = picture.replace("\\\n", "")


def words(page):
    """Returns the text of a page on one line, a little longer than the shown part."""
    small, found, at, size = page.lower(), [], 0, 0
    while at < len(page) and size <= 2 * WORDS_SHOWN:
        tag = page.find("<", at)
        piece = page[at : tag if tag >= 0 else len(page)].split()
        found += piece
        size += sum([len(word) + 1 for word in piece])
        if tag < 0:
            break
        for name in UNREAD:
            if small.startswith(name, tag + 1):
                tag = small.find("</" + name, tag)
                break
        end = page.find(">", tag) if tag >= 0 else -1
        at = end + 1 if end >= 0 else len(page)
    return core.standard("html").unescape(" ".join(found))


def good_mime(mime):
    return type(mime) is str and 3 <= len(mime) <= 100 and "/" in mime and mime.isascii() and mime.isprintable()


def as_bytes(mime, data):
    if isinstance(data, (bytes, bytearray)):
        return bytes(data)
    if isinstance(data, str):
        if mime.startswith("image/") and not mime.startswith("image/svg"):
            return core.standard("base64").b64decode(data)
        return data.encode("utf-8", "backslashreplace")
    json = core.standard("json")
    try:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError):
        plain = json.loads(json.dumps(data, default=str), parse_constant=lambda name: None)
        text = json.dumps(plain, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")


# ---------------------------------------------------------------- types that get more


def special(value, found):
    """Adds representations that a type's own methods do not give, or not within bounds."""
    module = type(value).__module__ or ""
    top = module.partition(".")[0]
    if top == "matplotlib" and "matplotlib.figure" in sys.modules:
        if isinstance(value, sys.modules["matplotlib.figure"].Figure):
            found.update(core.part("charts").picture(value))
    elif top == "PIL" and "PIL.Image" in sys.modules:
        if isinstance(value, sys.modules["PIL.Image"].Image):
            attempt(lambda: found.update(pil_picture(value)))
    elif top in ("pandas", "polars"):
        if type(value).__name__ == "LazyFrame":
            return  # its columns are only known once it has worked
        if type(value).__name__ == "Styler":
            # The underlying data frame is readable as text; its styling exists only as a page.
            attempt(lambda: found.update({"text/plain": plain(value.data)}))
            attempt(lambda: frame(value.data, found))
            found.pop("application/vnd.sandcell.table+json", None)
            return
        attempt(lambda: frame(value, found))
    elif top == "plotly" and "plotly.basedatatypes" in sys.modules:
        if isinstance(value, sys.modules["plotly.basedatatypes"].BaseFigure):
            attempt(lambda: found.update(plotly(value)))
    elif top == "altair" and hasattr(type(value), "to_dict") and "Chart" in type(value).__name__:
        attempt(lambda: found.update(altair(value)))


def pil_picture(image):
    """Returns a picture of bounded size. A large one is reduced here, not in the caller's variable."""
    import io

    shown = image
    if max(image.size) > 2000:
        shown = image.copy()
        shown.thumbnail((2000, 2000))
    if shown.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        shown = shown.convert("RGB")
    kind = type(image)
    name = "%s.%s" % (kind.__module__, kind.__qualname__)
    text = "<%s image mode=%s size=%dx%d>" % (name, image.mode, *image.size)
    data = io.BytesIO()
    shown.save(data, "PNG")
    mime = "image/png"
    if data.tell() > PICTURE_LIMIT:
        data = io.BytesIO()
        shown.convert("RGB").save(data, "JPEG", quality=80)
        mime = "image/jpeg"
    return {"text/plain": text, mime: data.getvalue(), **({"image/jpeg": None} if mime == "image/png" else {})}


def frame(value, found):
    """Returns the shape and column types of a data frame, which its text omits."""
    shape = getattr(value, "shape", None)
    columns = getattr(value, "columns", None)
    if columns is None or not isinstance(shape, tuple) or len(shape) != 2:
        return
    kinds = list(value.dtypes)
    if len(kinds) == len(columns) and not type(value).__module__.startswith("polars"):  # whose text says all that
        text = "%d rows x %d columns: " % shape + ", ".join(
            ["%s %s" % (str(name)[:60], str(kind)[:30]) for name, kind in zip(list(columns)[:40], kinds)]
        )
        found["text/vnd.sandcell.table"] = text + (", ..." if len(kinds) > 40 else "")
    listed = [{"name": str(name)[:100], "type": str(kind)[:60]} for name, kind in zip(list(columns)[:200], kinds)]
    found["application/vnd.sandcell.table+json"] = {"rows": shape[0], "columns": shape[1], "fields": listed}


def plotly(figure):
    """Returns readable text, the figure's JSON, and a page that loads plotly from the network of the viewer."""
    data = core.part("chartdata").of_plotly(figure)
    title = data.get("title") or "plotly figure"
    series = ", ".join(["%s (%d points)" % (item["name"] or item["type"], item["total"]) for item in data["series"]])
    return {
        "text/plain": "%s: %s" % (title, series or "no data"),
        **drawn(lambda: figure.to_image(format="png"), "kaleido"),
        "application/vnd.plotly.v1+json": figure.to_json(),
        "application/vnd.sandcell.chart+json": data,
        "text/html": figure.to_html(include_plotlyjs="cdn", full_html=False),
    }


def drawn(draw, renderer):
    """Returns a picture, if the renderer that it needs is installed and works here."""
    if core.standard("importlib.util").find_spec(renderer) is None:
        return {}
    data = attempt(draw)
    return {"image/png": data} if isinstance(data, bytes) and data else {}


VEGA_PAGE = """<!doctype html><meta charset="utf-8"><div id="vis"></div>
<script src="https://cdn.jsdelivr.net/npm/vega@5"></script><script src="https://cdn.jsdelivr.net/npm/vega-lite@5"></script>
<script src="https://cdn.jsdelivr.net/npm/vega-embed@6"></script><script>vegaEmbed("#vis", %s)</script>"""


def altair(chart):
    """Returns readable text, the specification, a page that shows it, and a picture if vl-convert is installed."""
    json = core.standard("json")
    spec = chart.to_dict()
    text = json.dumps(spec, allow_nan=False, default=str, ensure_ascii=False)
    data = core.part("chartdata").of_vega(spec)
    title = data["title"] or "altair chart"
    names = ", ".join(["%s (%d points)" % (item["type"], item["total"]) for item in data["series"]])

    def picture():
        convert = core.standard("importlib").import_module("vl_convert")
        return convert.vegalite_to_png(text, scale=1.5)

    return {
        "text/plain": "%s: %s" % (title, names or "no data"),
        **drawn(picture, "vl_convert"),
        "application/vnd.vegalite.v5+json": text,
        "application/vnd.sandcell.chart+json": data,
        "text/html": VEGA_PAGE % text.replace("</", "<\\/"),
    }
