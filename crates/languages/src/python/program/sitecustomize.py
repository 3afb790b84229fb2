"""Saves the pictures that a program shows in a folder. The host reads the folder after the program has ended.

Nothing is loaded before the program imports a plotting library.

"""

import sys

FOLDER = "/tmp/.sandcell/pictures"
BACKEND = "sandcell_pictures"
MOST = 16


def say(line):
    try:
        sys.stderr.write("sandcell: " + line + "\n")
    except Exception:
        pass


def save(suffix, write):
    """Calls `write` with the path of a new file; the folder has at most MOST."""
    import os

    os.makedirs(FOLDER, exist_ok=True)
    for number in range(1, MOST + 1):
        path = "%s/%02d%s" % (FOLDER, number, suffix)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        try:
            write(path)
        except BaseException:
            os.unlink(path)
            raise
        return
    if not save.full:
        save.full = True
        say("only the first %d pictures are kept; save the others with savefig() and --out" % MOST)


save.full = False


def backend(module):
    """A matplotlib back end that saves each shown figure."""
    from matplotlib._pylab_helpers import Gcf
    from matplotlib.backends.backend_agg import FigureCanvasAgg, FigureManagerBase

    def show_one(manager):
        figure = manager.canvas.figure
        try:
            if figure.axes or figure.lines or figure.texts or figure.images or getattr(figure, "subfigs", None):
                save(".png", lambda path: figure.savefig(path, format="png", facecolor=figure.get_facecolor()))
        finally:
            Gcf.destroy(manager.num)

    def show_all(*_arguments, **_options):
        for manager in Gcf.get_all_fig_managers():
            show_one(manager)

    class FigureManager(FigureManagerBase):
        def show(self):
            show_one(self)

        @classmethod
        def pyplot_show(cls, *, block=None):
            show_all()

    class FigureCanvas(FigureCanvasAgg):
        manager_class = FigureManager

    module.FigureCanvas = FigureCanvas
    module.FigureManager = FigureManager
    module.show = show_all


def on_matplotlib(matplotlib):
    """Replaces every interactive back end by ours: there is no window here."""
    import os

    ours = "module://" + BACKEND
    original = matplotlib.use

    def use(backend, *, force=True):
        files_only = str(backend).lower() in ("pdf", "svg", "ps", "pgf", "cairo", "template")
        return original(backend if files_only else ours, force=force)

    matplotlib.use = use
    if not os.environ.get("MPLBACKEND"):
        matplotlib.rcParams["backend"] = ours


def on_image_show(module):
    """Saves pictures shown by Pillow's Image.show(), which would look for a viewer with a window."""

    class Saver(module.Viewer):
        def show_image(self, image, **_options):
            if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
                image = image.convert("RGB")
            save(".png", lambda path: image.save(path, "PNG"))
            return 1

    module.register(Saver, -1)


def on_plotly(module):
    def show(_figure, *_arguments, **_options):
        say("a plotly figure needs a browser: use figure.write_html('figure.html') and run with --out figure.html")

    module.BaseFigure.show = show


AFTER = {"matplotlib": on_matplotlib, "PIL.ImageShow": on_image_show, "plotly.basedatatypes": on_plotly}


class Loader:
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        backend(module)


class Finder:
    """Finds our back end, and adapts a few libraries right after their import."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == BACKEND:
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, Loader())
        adapt = AFTER.get(name)
        if adapt is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not Finder else None
            if spec is not None and hasattr(spec.loader, "exec_module"):
                load = spec.loader.exec_module

                def exec_module(module):
                    load(module)
                    try:
                        adapt(module)
                    except Exception as error:
                        say("%s is used as it is: %s" % (name, error))

                spec.loader.exec_module = exec_module
                return spec
        return None


def load_hidden():
    """Loads the host's sitecustomize module, which this file shadows."""
    here = __file__.rpartition("/")[0]
    sys.path[:] = [folder for folder in sys.path if folder != here]
    own = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError:
        pass
    finally:
        sys.modules.setdefault(__name__, own)


sys.meta_path.insert(0, Finder)
load_hidden()
