"""The name `tools` of a session whose sandbox has tools of the host. Only such sessions load this file.

As a builtin, `tools` is no variable of the session, and a variable or a file of the same name wins. Its first use loads
the code of the object.

"""

import builtins
import posix
import sys

ADDRESS = posix.environ[b"SANDCELL_TOOLS_URL"].decode("ascii")


class Named:
    """A base of the object `tools`, of its servers and of its tools. A copy is the same object."""

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


class Tools(Named):
    """The object before its first use, which changes its class."""

    def __getattribute__(self, name):
        object.__setattr__(self, "__class__", core.part("hosttools").Tools)
        return getattr(self, name)


# The interpreter looks these up in the class.
for method in ("__repr__", "__dir__", "__iter__", "__getitem__", "__reduce__"):
    setattr(Tools, method, lambda self, *more, method=method: getattr(self, method)(*more))


class Finder:
    """The last entry of `sys.meta_path`. It makes `import tools` and `from tools.github import search_issues` work."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return core.part("hosttools").spec_of(name) if name.partition(".")[0] == "tools" else None


TOOLS = builtins.tools = Tools()
sys.meta_path.append(Finder)
