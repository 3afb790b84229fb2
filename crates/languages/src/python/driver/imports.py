"""What happens at and after imports: the site folders that `-S` left out, and small changes to well-known modules."""

import posix
import sys


# ---------------------------------------------------------------- site folders


class done:
    folders = set()
    user_site = False


def find_site():
    """The site folders of an interpreter that the host knows nothing about (a container's, say)."""
    import site

    folder = sys.executable.rpartition("/")[0]
    for root in (folder.rpartition("/")[0], folder):
        try:
            with open(root + "/pyvenv.cfg", encoding="utf-8") as config:
                text = config.read().lower().replace(" ", "")
        except OSError:
            continue
        base = [] if "include-system-site-packages=true" not in text else site.getsitepackages()
        sys.prefix = sys.exec_prefix = root
        return existing(site.getsitepackages([root]) + base)
    return existing(site.getsitepackages())


def existing(folders):
    return [folder for folder in folders if posix.access(folder, 0)]


def late_site():
    """Before an import fails: what .pth files of the site folders add, and the user's own site folder.

    They are not read at the start because most sessions never need them and some cost more than the interpreter itself.
    Returns whether something was added.
    """
    import os

    before = len(sys.path), len(sys.meta_path)
    if not done.user_site:
        folder = os.path.expanduser("~/.local/lib/python%d.%d/site-packages" % sys.version_info[:2])
        if os.path.isdir(folder):
            done.user_site = True
            if folder not in sys.path:
                sys.path.append(folder)
    fresh = [item for item in sys.path if item and "-packages" in item and item not in done.folders]
    if not fresh:
        return (len(sys.path), len(sys.meta_path)) != before
    site = core.standard("site")
    for folder in fresh:
        done.folders.add(folder)
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        known = {os.path.abspath(item) for item in sys.path if item}
        for name in names:
            if name.endswith(".pth"):
                try:
                    site.addpackage(folder, name, known)
                except Exception:
                    pass
    return True


# ---------------------------------------------------------------- standard input


def stdin_file(data):
    """Standard input too large for a pipe: an unlinked file, read from its start."""
    import os

    for folder in ("/tmp", "/dev/shm", "."):
        path = "%s/.stdin-%d" % (folder, os.getpid())
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        os.unlink(path)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        return fd
    raise OSError("there is nowhere to put the %d bytes of standard input" % len(data))


# ---------------------------------------------------------------- known modules


def on_inspect(inspect):
    """getsource of classes made in cells: their module has no file, but the cell that made them is known."""
    original = inspect.getfile

    def getfile(thing):
        if isinstance(thing, type) and getattr(thing, "__module__", None) == "__main__":
            cell = core.CLASS_CELLS.get(thing.__qualname__.partition(".")[0])
            if cell is not None:
                return cell
        return original(thing)

    inspect.getfile = getfile


def on_warnings(warnings):
    """A place in a cell warns once in the whole session. The registry of `__main__` knows line numbers only, so it is
    emptied for each cell (else line 1 of a new cell would be silent), and this remembers the cell too."""
    seen = set()
    original = warnings._showwarnmsg_impl

    def show(message):
        if message.filename.startswith("<cell "):
            place = (message.filename, message.lineno, message.category, str(message.message))
            registry = core.NAMES.get("__warningregistry__") or {}
            if (str(message.message), message.category, message.lineno) in registry:
                if place in seen:
                    return
                if len(seen) < 10000:
                    seen.add(place)
        original(message)

    warnings._showwarnmsg_impl = show


def on_pandas(pandas):
    """pandas takes us for an 80 column terminal and would hide columns; a notebook shows up to 20."""
    pandas.set_option("display.max_columns", 20)


def on_matplotlib(matplotlib):
    """Figures go through our back end, whichever interactive one the code asks for."""
    charts = core.part("charts")
    ours = charts.install()
    original = matplotlib.use

    def use(backend, *, force=True):
        files_only = str(backend).lower() in ("pdf", "svg", "ps", "pgf", "cairo", "template")
        return original(backend if files_only else ours, force=force)

    matplotlib.use = use
    if not posix.environ.get(b"MPLBACKEND"):
        matplotlib.rcParams["backend"] = ours


def on_plotly(module):
    """fig.show() has no browser to open here."""
    module.BaseFigure.show = lambda figure, *_arguments, **_options: core.display(figure)


def on_ipython(module):
    """IPython as a library, without its shell, would only print."""
    notebook = core.part("notebook")
    module.display = notebook.display
    package = sys.modules.get("IPython.display")
    if package is not None:
        package.display = notebook.display


def on_multiprocessing(module):
    """Functions of cells cannot be found by a fresh interpreter: fork stays the default where that has changed."""
    default = module._default_context
    if sys.platform == "linux" and default._default_context.get_start_method() != "fork":
        default._default_context = module._concrete_contexts["fork"]
