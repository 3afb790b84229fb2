"""The object `tools`: code of a session calls tools of the host's MCP servers as functions.

`tools.github.search_issues(query="x")` becomes one HTTP request to the tools port on the sandbox's loopback address. The
host checks the arguments and the operator's rules, and makes the call.

The list of tools of a server is fetched when a tool of it is first used. Then servers and tools are plain attributes.

"""

__name__ = "tools"  # the module of these classes for programs

import sys

calls = core.part("toolcalls")
TOOLS, Named = core.part("tooloffer").TOOLS, core.part("tooloffer").Named

# Bounds of texts: lines of a list, characters of a signature, of a description's first line and of a whole description.
MAX_LINES = 50
MAX_SIGNATURE = 200
MAX_LINE = 120
MAX_DESCRIPTION = 20000


# ---------------------------------------------------------------- schemas


def resolved(schema, root):
    """Returns a schema, without references and single alternatives. Unknown forms are empty."""
    for _ in range(8):
        if type(schema) is not dict:
            return {}
        if type(schema.get("$ref")) is str:
            target, rest = root, schema["$ref"].split("/")
            for step in rest[1:] if rest[0] == "#" else ("",):
                target = target.get(step.replace("~1", "/").replace("~0", "~")) if type(target) is dict else None
            schema = target
        elif type(schema.get("allOf")) is list and len(schema["allOf"]) == 1 and "type" not in schema:
            schema = schema["allOf"][0]
        else:
            return schema
    return {}


TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict", "null": "None"}


def type_text(schema, root, depth=0):
    """Returns the Python type of a schema as text; empty if it can be anything."""
    schema = resolved(schema, root)
    if depth > 4:
        return ""
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if type(values) is list and all([type(value) in (str, int, bool, type(None)) for value in values]):
        text = "Literal[%s]" % ", ".join([repr(value) for value in values])
        if len(text) <= 80:
            return text
    kind = schema.get("type")
    others = schema.get("anyOf") or schema.get("oneOf")
    if kind is None and type(others) is list:
        return union([type_text(other, root, depth + 1) for other in others])
    if type(kind) is list:
        return union([type_text({**schema, "type": each}, root, depth + 1) for each in kind])
    if kind == "array":
        item = type_text(schema.get("items"), root, depth + 1)
        return "list[%s]" % item if item else "list"
    return TYPES.get(kind, "") if type(kind) is str else ""


def union(texts):
    """Returns a union of types, None last."""
    if "" in texts:
        return ""
    return " | ".join(sorted(dict.fromkeys(texts), key=lambda text: text == "None"))


class Parameter:
    """An argument of a tool, from its schema."""

    def __init__(self, name, schema, required, root):
        found = resolved(schema, root)
        schema = schema if type(schema) is dict else {}
        self.name, self.required, self.schema, self.root = name, required, found, root
        self.type = type_text(found, root)
        self.default = schema.get("default", found.get("default"))
        self.description = str(schema.get("description") or found.get("description") or "")
        self.is_name = name.isidentifier() and not core.standard("keyword").iskeyword(name)

    def __str__(self):
        text = (self.name if self.is_name else repr(self.name)) + (": " + self.type if self.type else "")
        if self.required:
            return text
        default = repr(self.default)
        return text + (" = " if self.type else "=") + (default if len(default) <= 40 else "...")

    def key(self, marks):
        """Returns it as a key of a dict. `marks`: whether optional ones are marked."""
        text = repr(self.name) + (": " + self.type if self.type else "")
        return text + " (optional)" if marks and not self.required else text

    def takes_null(self):
        return not self.type or "None" in self.type

    def line(self):
        """Returns the lines that describe it."""
        facts = [self.type] if self.type else []
        facts.append("required" if self.required else "optional")
        if self.default is not None:
            facts.append("default %s" % repr(self.default)[:MAX_LINE])
        text = "  %s (%s)" % (self.name, ", ".join(facts))
        if self.description:
            text += ": " + " ".join(self.description[:MAX_DESCRIPTION].split())
        values = self.schema.get("enum")
        if type(values) is list and not self.type.startswith("Literal"):
            text += "; one of %s" % ", ".join([repr(value) for value in values[:50]]) + ", ..." * (len(values) > 50)
        return text + keys_line(self.schema, self.root, True)


def keys_line(schema, root, marks):
    """Returns a line with the keys of a dict, or of the dicts in a list; empty if they are not known."""
    if schema.get("type") == "array":
        schema = resolved(schema.get("items"), root)
    keys = parameters(schema, root)
    if not keys:
        return ""
    return "\n    keys: " + ", ".join([key.key(marks) for key in keys[:30]]) + ", ..." * (len(keys) > 30)


def parameters(schema, root):
    """Returns the arguments of an object schema, required ones first."""
    known = schema.get("properties")
    known = known if type(known) is dict else {}
    required = schema.get("required")
    required = [name for name in required if type(name) is str] if type(required) is list else []
    return [Parameter(name, known.get(name), name in required, root) for name in dict.fromkeys([*required, *known])]


def first_line(text):
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= MAX_LINE else line[:MAX_LINE].rstrip() + " ..."


def with_line(text, description):
    line = first_line(description)
    return "%s \u2014 %s" % (text, line) if line else text


# ---------------------------------------------------------------- names


def spelling(name):
    """Returns a name as an identifier: `search-issues` becomes `search_issues`."""
    return "".join([letter if letter.isalnum() or letter == "_" else "_" for letter in name])


def by_attribute(things, owner):
    """Returns {attribute: thing} for {name: thing}. A name that is an identifier wins over others of its spelling, and
    a spelling of several names is no attribute. Methods of the owner and private names stay: `owner[name]` has all."""
    spelled = {}
    for name in things:
        spelled.setdefault(spelling(name), []).append(name)
    found = {}
    for attribute, names in spelled.items():
        name = attribute if attribute in names else names[0] if len(names) == 1 else None
        if name is not None and attribute.isidentifier() and attribute[0] != "_" and attribute not in vars(owner):
            found[attribute] = things[name]
    return found


def near(name, names):
    """Returns the names most similar to a name, in any spelling."""
    known = {spelling(each).lower(): each for each in names}
    found = core.standard("difflib").get_close_matches(spelling(name).lower(), known, 3, 0.5)
    parts = [part for part in spelling(name).lower().split("_") if len(part) > 2]
    found += [each for each in known if each not in found and any([part in each for part in parts])]
    return [known[each] for each in found[:3]]


def named(name, things, what, where):
    """Returns a thing by its exact name or its spelling; ToolNotFound names similar ones."""
    found = things.get(name)
    if found is None:
        same = [each for each in things if spelling(each) == name]
        if len(same) != 1:
            raise calls.failure("not_found", missing(name, things, what, where))
        found = things[same[0]]
    return found


def missing(name, things, what, where):
    same = [each for each in things if spelling(each) == name]
    if len(same) > 1:
        return "%s is ambiguous: several %ss have this name in Python. Write %s" % (name, what, " or ".join(["%s[%r]" % (where, each) for each in same[:5]]))
    similar = near(str(name), list(things)[:5000])
    text = "%s has no %s %s" % (where, what, str(name)[:100])
    if similar:
        text += "; similar: " + ", ".join([things[each]._path() for each in similar])
    elif what == "server":
        text += "; it has " + (", ".join([thing._path() for thing in list(things.values())[:20]]) or "none")
    return text + '; tools.list() lists all tools, tools.search("words") finds some'


def path_of(owner, where, name, thing):
    """Returns the expression for a thing, such as `tools.github` or `tools["git hub"]`."""
    other = spelling(name)
    plain = vars(owner).get(other) is thing or other == name and name.isidentifier() and name[0] != "_"
    if plain and other not in vars(type(owner)) and not core.standard("keyword").iskeyword(other):
        return "%s.%s" % (where, other)
    return '%s["%s"]' % (where, name)


def no_attribute(name, message):
    error = AttributeError(message)
    # Otherwise the interpreter sets both, and tracebacks repeat the similar names.
    error.name, error.obj = name, None
    return error


# ---------------------------------------------------------------- tools


class Tool(Named):
    def __init__(self, server, found):
        self.server, self.name = server._name, found["name"]
        self._server = server
        self._full = "%s.%s" % (self.server, self.name)
        self._prefix = calls.prefix_for(self.server, self.name)
        self.title = found.get("title")
        self.description = str(found.get("description") or found.get("title") or "")
        self.input_schema, self.output_schema = found.get("input_schema") or {}, found.get("output_schema")
        self.read_only, self.asks = bool(found.get("read_only")), bool(found.get("asks"))
        self.__name__ = spelling(self.name)
        self.__qualname__ = "%s.%s" % (spelling(self.server), self.__name__)

    def __call__(self, /, *extra, **arguments):
        return calls.call(self._request(extra, arguments), self._full)

    async def acall(self, /, *extra, **arguments):
        job = calls.Job(self._request(extra, arguments), self._full)
        job.start()
        try:
            return await job.outcome
        finally:
            if not job.outcome.done() or job.outcome.cancelled():
                job.cancel()

    acall.__doc__ = """Makes the call without blocking the event loop."""

    def _request(self, extra, arguments):
        if extra:
            message = "%s takes keyword arguments only: %s" % (self._full, self._text())
            raise calls.failure("invalid_argument", message, "", self._full)
        for value in arguments.values():
            if value is None:
                # The signature has None for an argument that is left out.
                out = [each.name for each in self._parameters() if not each.required and not each.takes_null()]
                arguments = {name: value for name, value in arguments.items() if value is not None or name not in out}
                break
        return calls.request_for(self._prefix, arguments, self._full)

    def _parameters(self):
        found = vars(self).get("_known")
        if found is None:
            found = self._known = parameters(resolved(self.input_schema, self.input_schema), self.input_schema)
        return found

    def _text(self, limit=MAX_SIGNATURE):
        """Returns the name with the arguments, which are cut at the limit."""
        texts = [str(each) for each in self._parameters() if each.is_name]
        others = [str(each) for each in self._parameters() if not each.is_name]
        if others:
            texts.append("**{%s}" % ", ".join(others))
        kept, size = [], 0
        for text in texts:
            size += len(text)
            if size > limit and kept:
                kept.append("...")
                break
            kept.append(text)
        return "%s(%s)" % (self.__name__, "*, " * (texts[:1] != [] and not texts[0].startswith("**")) + ", ".join(kept))

    def _path(self):
        return path_of(self._server, self._server._path(), self.name, self)

    def __repr__(self):
        text = self._text()
        return with_line(self._path() + text[text.index("(") :], self.description)

    @property
    def __signature__(self):
        inspect = core.standard("inspect")
        kind, given = inspect.Parameter.KEYWORD_ONLY, self._parameters()
        found = [
            inspect.Parameter(
                each.name, kind,
                default=inspect.Parameter.empty if each.required else each.default,
                annotation=annotation(each.type, inspect.Parameter.empty),
            )
            for each in given
            if each.is_name
        ]  # fmt: skip
        if len(found) < len(given):
            others = "others"
            while any([each.name == others for each in found]):
                others += "_"
            found.append(inspect.Parameter(others, inspect.Parameter.VAR_KEYWORD))
        return inspect.Signature(found)

    @property
    def __doc__(self):
        lines = [self._text(MAX_DESCRIPTION), "", self.description[:MAX_DESCRIPTION].strip()]
        if self._parameters():
            lines += ["", "Arguments:", *[each.line() for each in self._parameters()]]
        if type(self.output_schema) is dict:
            root = self.output_schema
            lines += ["", "Returns: %s" % (type_text(root, root) or "a value") + keys_line(resolved(root, root), root, False)]
        if self.read_only:
            lines += ["", "It only reads."]
        if self.asks:
            lines += ["", "A person is asked before each call."]
        return "\n".join(lines)

    def __reduce__(self):
        return self._server.__getitem__, (self.name,)


def annotation(text, empty):
    """Returns the type that the text of a type names. The text has only type names and literals of plain values."""
    if not text:
        return empty
    try:
        return eval(text, {"Literal": core.standard("typing").Literal, "__builtins__": core.builtins})
    except TypeError:  # Python 3.9 has no unions by `|`
        return text


class ToolList(list):
    """Tools, as a readable list. `total` counts those that match, `failed` has {server: reason}."""

    def __init__(self, tools=(), total=0, failed=None):
        list.__init__(self, tools)
        self.total, self.failed = max(total, len(self)), failed or {}

    def __repr__(self):
        lines = [repr(tool) for tool in self[:MAX_LINES]]
        if self.total > len(lines):
            lines.append('\u2026 %d more; tools.search("words") finds tools' % (self.total - len(lines)))
        lines += ["%s is not available: %s" % (name, first_line(why)) for name, why in list(self.failed.items())[:20]]
        return "\n".join(lines) or "no tools"


class Server(Named):
    def __init__(self, name, description=""):
        self._name, self._description = name, description
        self._tools = None  # by name; None before they are fetched
        self._met = {}  # tools by name that a search found

    def _load(self):
        """Returns the tools by name, fetched at first use."""
        tools = self._tools
        if tools is not None:
            return tools
        found = calls.get("/v1/tools", server=self._name)
        if not found.get("tools"):
            for name, why in failed_of(found).items():
                raise calls.failure("tool_unavailable", "%s is not available: %s" % (name, why))
        return self._take(found["tools"])

    def _take(self, found):
        """Makes the tools of this server attributes, and returns them by name."""
        tools = {each["name"]: self._meet(each) for each in found}
        vars(self).update(by_attribute(tools, type(self)))
        self._tools = tools
        return tools

    def _meet(self, found):
        """Returns the tool of a description. Each tool is one object, however it is found."""
        tool = self._met.get(found["name"])
        return tool if tool is not None else self._met.setdefault(found["name"], Tool(self, found))

    def _forget(self):
        for name in [name for name, thing in vars(self).items() if isinstance(thing, Tool)]:
            vars(self).pop(name, None)
        self._tools, self._met = None, {}

    def _path(self):
        return path_of(TOOLS, "tools", self._name, self)

    def __getattr__(self, name):
        if name[:1] == "_":
            raise no_attribute(name, "a server has no attribute %s" % name)
        tools = self._load()
        found = vars(self).get(name, vars(self).get(name[:-1]) if name[-1:] == "_" else None)
        if found is None:
            raise no_attribute(name, missing(name, tools, "tool", self._path()))
        return found

    def __getitem__(self, name):
        return named(name, self._load(), "tool", self._path())

    def __iter__(self):
        return iter(list(self._load().values()))

    def __dir__(self):
        try:
            self._load()
        except calls.ToolError:
            pass
        return sorted([name for name in vars(self) if name[0] != "_"])

    def __repr__(self):
        try:
            tools = list(self._load().values())
        except calls.ToolError as error:
            return "%s (%s)" % (self._path(), error)
        head = with_line("%s: %d tool%s" % (self._path(), len(tools), "s" * (len(tools) != 1)), self._description)
        lines = ["  " + with_line(path_of(self, "", each.name, each).lstrip("."), each.description) for each in tools[:MAX_LINES]]
        if len(tools) > MAX_LINES:
            lines.append('  \u2026 %d more; tools.search("words") finds tools' % (len(tools) - MAX_LINES))
        return "\n".join([head, *lines])

    @property
    def __doc__(self):
        return repr(self)

    def __reduce__(self):
        return TOOLS.__getitem__, (self._name,)


def failed_of(found):
    return {str(each.get("server")): str(each.get("message")) for each in found.get("failed") or ()}


HELP = """Each tool is a function with keyword arguments: tools.SERVER.TOOL(name=value).
help(tools.SERVER.TOOL) describes it. tools.search("words") finds tools. tools.list("SERVER") lists them.
await tools.SERVER.TOOL.acall(name=value) does not block, so asyncio.gather makes several calls at once.
tools.call("SERVER.TOOL", {"name": value}) calls a tool by its name. A call that fails raises tools.ToolError."""


class Tools(Named):
    # The driver is compiled without docstrings, so methods for programs get theirs by assignment.
    __name__, __path__ = "tools", []
    _servers = None  # by name; None before they are fetched

    def call(self, name, arguments=None):
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise calls.failure("invalid_argument", 'the form is tools.call("server.tool", {"name": value})')
        # The name of a server may contain a dot, too.
        servers = self._servers if self._servers is not None or name.count(".") < 2 else self._load()
        known = [each for each in servers or () if name.startswith(each + ".")]
        server = max(known, key=len) if known else name.partition(".")[0]
        return calls.call(calls.request_for(calls.prefix_for(server, name[len(server) + 1 :]), arguments, name), name)

    call.__doc__ = """Calls a tool by its full name, such as "github.search-issues", with a dict of arguments."""

    def list(self, server=None):
        if server is not None:
            return ToolList(self[server] if isinstance(server, str) else server)
        return self._found(calls.get("/v1/tools"), True)

    list.__doc__ = """Returns all tools, or those of one server. The text of a long list is cut, the list is not."""

    def search(self, words, limit=10):
        return self._found(calls.get("/v1/tools", query=words, limit=limit), False)

    search.__doc__ = """Returns the tools that match the words best, at most `limit`."""

    def refresh(self):
        for server in (self._servers or {}).values():
            server._forget()
        for name in [name for name, thing in vars(self).items() if isinstance(thing, Server)]:
            vars(self).pop(name, None)
        self._old, self._servers = self._servers or vars(self).get("_old"), None

    refresh.__doc__ = """Forgets servers and tools. The next use fetches them again."""

    def _load(self):
        """Returns the servers by name, fetched at first use. The objects of known servers stay."""
        servers = self._servers
        if servers is None:
            old, servers = vars(self).get("_old") or {}, {}
            for each in calls.get("/v1/servers")["servers"]:
                name = each["name"]
                servers[name] = old.get(name) or Server(name)
                servers[name]._description = each.get("description") or ""
            if self._servers is not None:
                return self._servers  # another thread was faster
            vars(self).update(by_attribute(servers, type(self)))
            self._servers = servers
        return servers

    def _found(self, found, whole):
        servers, by_server, tools = self._load(), {}, []
        for each in found["tools"]:
            server = servers.get(each["server"])
            if server is None:
                server = servers[each["server"]] = Server(each["server"])
            tools.append(server._meet(each))
            by_server.setdefault(each["server"], []).append(each)
        if whole and found.get("total", 0) <= len(tools):
            for name, each in by_server.items():
                if servers[name]._tools is None:
                    servers[name]._take(each)
        return ToolList(tools, found.get("total", 0), failed_of(found))

    def __getattr__(self, name):
        if name[:1] == "_":
            raise no_attribute(name, "tools has no attribute %s" % name)
        servers = self._load()
        found = vars(self).get(name, vars(self).get(name[:-1]) if name[-1:] == "_" else None)
        if found is None:
            message = missing(name, servers, "server", "tools")
            places = [tool._path() for server in servers.values() for tool in server._met.values() if tool.__name__ == name]
            raise no_attribute(name, "%s; a tool of this name is %s" % (message, places[0]) if places else message)
        return found

    def __getitem__(self, name):
        return named(name, self._load(), "server", "tools")

    def __iter__(self):
        return iter(list(self._load().values()))

    def __dir__(self):
        try:
            self._load()
        except calls.ToolError:
            pass
        return sorted({name for names in (vars(self), vars(type(self))) for name in names if name[0] != "_"})

    def __repr__(self):
        try:
            servers = list(self._load().values())
        except calls.ToolError as error:
            return "tools (%s)" % error
        lines = ["  " + with_line(each._path(), each._description) for each in servers[:MAX_LINES]]
        if len(servers) > MAX_LINES:
            lines.append("  \u2026 %d more" % (len(servers) - MAX_LINES))
        return "\n".join(["tools of %d server%s:" % (len(servers), "s" * (len(servers) != 1)), *lines, HELP])

    @property
    def __doc__(self):
        return repr(self)

    def __reduce__(self):
        return core.standard("importlib").import_module, ("tools",)


for public in (calls.ToolError, *calls.ERRORS.values(), calls.ToolBytes, calls.ToolText, calls.ToolLink):
    setattr(Tools, public.__name__, public)


# ---------------------------------------------------------------- imports


class Loader:
    def __init__(self, thing):
        self.thing = thing

    def create_module(self, spec):
        return self.thing

    def exec_module(self, module):
        pass


def spec_of(name):
    """Returns the spec of `tools`, or of a server as its submodule. None if there is no such server, or if a file of
    the program is the module `tools`."""
    thing = TOOLS
    if name != "tools":
        if sys.modules.get("tools") is not TOOLS:
            return None
        thing = getattr(TOOLS, name.partition(".")[2], None)
        if not isinstance(thing, Server):
            return None
    return core.standard("importlib.machinery").ModuleSpec(name, Loader(thing))
