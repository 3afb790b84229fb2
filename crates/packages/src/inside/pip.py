# Runs inside the installer's sandbox where there is no uv: pip, of the interpreter or of the wheel that comes with it.
import glob, os, runpy, sys, sysconfig

try:
    import pip
except ImportError:
    folders = [os.path.join(sysconfig.get_path("stdlib"), "ensurepip", "_bundled"), "/usr/share/python-wheels"]
    wheels = [wheel for folder in folders for wheel in sorted(glob.glob(folder + "/pip-*.whl"))]
    if not wheels:
        sys.exit("neither uv nor pip is there")
    sys.path.insert(0, wheels[-1])
    os.environ["PYTHONPATH"] = wheels[-1]
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
