"""Calls of the host's tools: from arguments to JSON, over the tools port, and from the answer to a value or an error.

A call costs one write and one read on a raw socket. Idle connections are in a pool, and each call takes one for itself,
so threads never share a connection. A connection goes back only after a complete answer: an interrupted call closes its
own. A fork has a pool of its own. The names are bound here, because programs replace functions of `socket` and `json`.

Nothing here is a security boundary: a program can send any bytes to the port itself.

"""

__name__ = "tools"  # the module of these classes for programs: `tools.ToolError`

import sys

import _thread

_socket = core.standard("_socket")

try:
    from _json import encode_basestring, make_encoder

    encode = make_encoder(None, lambda value: as_json(value), encode_basestring, None, ":", ",", False, False, False)
except ImportError:  # an interpreter without the accelerator
    from json.encoder import JSONEncoder

    encode = JSONEncoder(
        separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=lambda value: as_json(value)
    ).iterencode

Socket, scan, getpid = _socket.socket, core.scan, core.getpid
from_base64 = core.standard("binascii").a2b_base64
PEEK = _socket.MSG_PEEK | _socket.MSG_DONTWAIT
HOST, _, PORT = core.part("tooloffer").ADDRESS.partition("://")[2].strip("/").rpartition(":")

MAX_ANSWER = 64 << 20
MAX_HEAD = 64 << 10
MAX_IDLE = 16
# The maximum number of `acall`s at once. Further ones wait.
MAX_AT_ONCE = 16
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1
# Finds runs of digits in JSON fast: digits become 0, other bytes become blanks. Shorter integers fit in 64 bits.
DIGITS = bytes([48 if 48 <= byte < 58 else 32 for byte in range(256)])
MANY_DIGITS = b"0" * 19


# ---------------------------------------------------------------- errors


class ToolError(Exception):
    """A call of a tool failed. `code` names the kind, `message` and `remedy` explain it, `tool` is "server.tool"."""

    # TimeoutError would take these for an error number and a file name, so no other __init__ is called.
    def __init__(self, message="", code="tool_failed", remedy="", tool=None):
        self.args = message, code, remedy, tool
        self.message, self.code, self.remedy, self.tool = self.args

    def __str__(self):
        return "%s; %s" % (self.message, self.remedy) if self.remedy else str(self.message)


class ToolDenied(ToolError):
    """The operator's rules, or a person, refused the call."""


class ToolTimeout(ToolError, TimeoutError):
    """The tool did not answer in time."""


class ToolUnavailable(ToolError):
    """The server of the tool cannot be reached."""


class ToolLimit(ToolError):
    """The call would exceed a limit."""


class ToolArgumentError(ToolError, TypeError):
    """The arguments do not fit the tool."""


class ToolNotFound(ToolError, LookupError):
    """There is no such server or tool."""


ERRORS = {
    "tool_denied": ToolDenied,
    "timeout": ToolTimeout,
    "tool_unavailable": ToolUnavailable,
    "limit_reached": ToolLimit,
    "invalid_argument": ToolArgumentError,
    "not_found": ToolNotFound,
}


def failure(code, message, remedy="", tool=None):
    return ERRORS.get(code, ToolError)(message, code, remedy, tool)


# ---------------------------------------------------------------- connections


class State:
    """The connections and the waiting `acall`s of one process."""

    def __init__(self):
        self.pid = getpid()
        self.idle = []
        self.lock = _thread.allocate_lock()
        self.jobs, self.threads = [], 0


state = State()


def own_state():
    """Returns the state of this process. Snapshots call no fork handlers, so the process id decides."""
    global state
    found = state
    if found.pid != getpid():
        found = state = State()
    return found


def close(link):
    try:
        link.close()
    except OSError:
        pass  # the program has closed the descriptor


def connect():
    link = Socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        link.settimeout(None)  # the program may have set another default
        link.connect((HOST, int(PORT)))
        link.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    except BaseException:
        close(link)
        raise
    return link


def take(own):
    """Returns (a connection, True if it is new). Drops those that the host has closed, or that have unread bytes."""
    while True:
        try:
            link = own.idle.pop()
        except IndexError:
            return connect(), True
        try:
            link.recv(1, PEEK)
        except BlockingIOError:
            return link, False
        except OSError:
            pass
        close(link)


def ask(request, repeatable, tool=None, job=None):
    """Sends a request and returns (status, body) of the answer. A call is never sent twice: the host may have made
    it."""
    own = own_state()
    while True:
        try:
            link, is_new = take(own)
        except OSError as error:
            raise failure("tool_unavailable", "the tools port does not answer (%s)" % error.strerror, "", tool) from None
        try:
            if job is not None:
                job.begin(link)
            try:
                link.sendall(request)
                status, body, reusable = receive(link, tool)
            finally:
                if job is not None:
                    job.end()
        except OSError as error:
            close(link)
            if repeatable and not is_new:
                continue
            message = "the connection to the tools port broke (%s)" % (error.strerror or error)
            remedy = "" if repeatable else "the call may have been made all the same"
            raise failure("tool_unavailable", message, remedy, tool) from None
        except BaseException:
            close(link)
            raise
        if reusable and len(own.idle) < MAX_IDLE:
            own.idle.append(link)
        else:
            close(link)
        return status, body


def receive(link, tool):
    """Reads one answer. Returns (status, body, True if the connection can be used again)."""
    data = link.recv(1 << 14)
    end = data.find(b"\r\n\r\n")
    while end < 0:
        more = link.recv(1 << 14)
        if not more or len(data) > MAX_HEAD:
            raise ConnectionError("it was closed" if not more else "not HTTP")
        data += more
        end = data.find(b"\r\n\r\n")
    head = data[: end + 2].lower()
    try:
        status = int(head[9:12])
        size = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
    except ValueError:
        raise ConnectionError("not HTTP") from None
    if size > MAX_ANSWER:
        message = "the answer has %d bytes, more than %d" % (size, MAX_ANSWER)
        raise failure("limit_reached", message, "ask the tool for less: a page, a filter, fewer fields", tool)
    body = data[end + 4 :]
    if len(body) < size:
        whole = bytearray(size)
        whole[: len(body)] = body
        at, view, body = len(body), memoryview(whole), whole
        while at < size:
            count = link.recv_into(view[at:])
            if not count:
                raise ConnectionError("it was closed")
            at += count
    return status, body, len(body) == size and b"\r\nconnection: close\r\n" not in head


def answer(status, body, tool=None):
    """Returns the object of an answer, or raises the error that it describes."""
    try:
        found, _ = scan(str(body, "utf-8").lstrip(), 0)
    except (ValueError, StopIteration, RecursionError):
        found = None
    if type(found) is dict:
        if status < 400:
            return found
        error = found.get("error")
        if type(error) is dict and "code" in error:
            raise failure(error["code"], error.get("message") or error["code"], error.get("remedy") or "", tool)
    raise failure("tool_unavailable", "the tools port sent no answer of its protocol (HTTP status %d)" % status, "", tool)


def head(line, *more):
    return "\r\n".join([line + " HTTP/1.1", "Host: %s:%s" % (HOST, PORT), *more, ""])


def get(path, **query):
    """Fetches a list. Parameters that are None are left out."""
    pairs = ["%s=%s" % (name, quoted(str(value))) for name, value in query.items() if value is not None]
    return answer(*ask((head("GET " + path + "?" * bool(pairs) + "&".join(pairs)) + "\r\n").encode("ascii"), True))


def quoted(text):
    safe = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
    return "".join([chr(byte) if byte in safe else "%%%02X" % byte for byte in text.encode("utf-8", "replace")])


POST = head("POST /v1/call", "Content-Type: application/json", "").encode("ascii")[:-2]


def request_for(prefix, arguments, tool):
    """Returns the bytes of a call. `prefix` is the start of its body, up to the arguments."""
    data = encoded(arguments, tool)
    execution = core.session.execution
    more = b"Sandcell-Execution: %s\r\n" % execution.encode("ascii") if execution else b""
    return b"%s%sContent-Length: %d\r\n\r\n%s%s}" % (POST, more, len(prefix) + len(data) + 1, prefix, data)


def prefix_for(server, name):
    text = "".join(encode({"server": server, "tool": name}, 0))
    return (text[:-1] + ',"arguments":').encode("utf-8", "replace")


# ---------------------------------------------------------------- arguments


class Unfit(TypeError):
    """A value without a JSON form. The text continues "the argument … "."""


def encoded(arguments, tool):
    """Returns the arguments as JSON."""
    try:
        data = "".join(encode(arguments, 0)).encode("utf-8")
        if MANY_DIGITS in data.translate(DIGITS):
            check_integers(arguments)
        return data
    except (TypeError, ValueError, RecursionError):
        pass
    for name, value in arguments.items():
        why = unfit(value)
        if why:
            raise failure("invalid_argument", "the argument %s %s" % (name, why), "", tool)
    raise failure("invalid_argument", "the names of arguments must be text", "", tool)


def unfit(value):
    """Returns why a value has no JSON form, or nothing."""
    try:
        "".join(encode(value, 0)).encode("utf-8")
        check_integers(value)
    except Unfit as error:
        return str(error)
    except RecursionError:
        return "is nested too deeply, or contains itself"
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is no valid text: decode the bytes with another encoding"
    except TypeError as error:
        return "has no JSON form: %s" % error
    except ValueError as error:
        if "float" in str(error):
            return "contains nan or infinity, which JSON does not have: pass None or text"
        return "has no JSON form: %s" % error
    return ""


def check_integers(value):
    """Refuses integers of more than 64 bits. JSON readers round them without an error."""
    if isinstance(value, dict):
        for item in value.values():
            check_integers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            check_integers(item)
    elif isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
        raise Unfit("contains an integer of more than 64 bits: pass it as text")


def as_json(value):
    """Returns the JSON form of common values that JSON does not have. Others are refused: a guess could change them."""
    kind = type(value)
    if getattr(value, "ndim", None) == 0 and callable(getattr(kind, "item", None)):
        return value.item()
    if hasattr(kind, "__fspath__"):
        path = kind.__fspath__(value)
        if type(path) is str:
            return path
    times = sys.modules.get("datetime")
    if times is not None and isinstance(value, (times.date, times.time)) and value == value:
        return value.isoformat()
    name = kind.__name__ if kind.__module__ == "builtins" else "%s.%s" % (kind.__module__, kind.__qualname__)
    if isinstance(value, (bytes, bytearray, memoryview)):
        instead = "base64.b64encode(value).decode(), if the tool expects that"
    elif isinstance(value, (set, frozenset)):
        instead = "a list, such as sorted(value)"
    elif callable(getattr(kind, "tolist", None)):
        instead = "value.tolist()"
    elif callable(getattr(kind, "to_dict", None)):
        instead = 'value.to_dict("records")' if kind.__name__ == "DataFrame" else "value.to_dict()"
    else:
        instead = "a list, dict, text or number made from it"
    raise Unfit("contains a value of type %s, which JSON does not have: pass %s" % (name, instead))


# ---------------------------------------------------------------- values


class ToolBytes(bytes):
    """Bytes from a tool, with their MIME type. A picture is displayed as one."""

    def __new__(cls, data, mime=None, uri=None):
        self = bytes.__new__(cls, data)
        self.mime, self.uri = mime, uri
        return self

    def __getnewargs__(self):
        return bytes(self), self.mime, self.uri

    def __repr__(self):
        return "<%s, %d bytes%s>" % (self.mime or "bytes", len(self), " of " + self.uri if self.uri else "")

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.mime: bytes(self)} if str(self.mime).startswith("image/") else None


class ToolText(str):
    """The text of a resource."""

    def __new__(cls, text, uri=None, mime=None):
        self = str.__new__(cls, text)
        self.uri, self.mime = uri, mime
        return self

    def __getnewargs__(self):
        return str(self), self.uri, self.mime


class ToolLink:
    """A link to a resource, whose content the tool did not send."""

    def __init__(self, uri, name=None):
        self.uri, self.name = uri, name

    def __repr__(self):
        return "ToolLink(uri=%r, name=%r)" % (self.uri, self.name)


def value_of(found, tool):
    """Returns the Python value of an answer to a call."""
    kind = found.get("kind")
    try:
        if kind == "json":
            return found["value"]
        if kind == "text":
            return found["text"]
        if kind == "nothing":
            return None
        if kind == "list":
            return [value_of(item, tool) for item in found["items"]]
        if kind in ("image", "audio", "resource") and "data" in found:
            return ToolBytes(from_base64(found["data"]), found.get("mime"), found.get("uri"))
        if kind == "resource":
            return ToolText(found["text"], found.get("uri"), found.get("mime"))
        if kind == "link":
            return ToolLink(found["uri"], found.get("name"))
    except (KeyError, TypeError, ValueError):
        pass
    raise failure("tool_unavailable", "the tools port sent a value of an unknown kind (%r)" % (kind,), "", tool)


# ---------------------------------------------------------------- calls


def call(request, tool, job=None):
    status, body = ask(request, False, tool, job)
    return value_of(answer(status, body, tool), tool)


class Job:
    """An `acall` on its way. A thread makes the call, and the loop of the caller gets the outcome."""

    def __init__(self, request, tool):
        self.loop = core.standard("asyncio").get_running_loop()
        self.outcome = self.loop.create_future()
        self.request, self.tool = request, tool
        self.lock, self.link, self.cancelled = _thread.allocate_lock(), None, False

    def start(self):
        own = own_state()
        with own.lock:
            own.jobs.append(self)
            if own.threads >= MAX_AT_ONCE:
                return
            own.threads += 1
        try:
            _thread.start_new_thread(work, (own,))
        except RuntimeError:
            with own.lock:
                own.threads -= 1
                if not own.threads:
                    own.jobs.remove(self)
                    raise

    def begin(self, link):
        with self.lock:
            if self.cancelled:
                raise ConnectionError("cancelled")
            self.link = link

    def end(self):
        with self.lock:
            self.link = None

    def cancel(self):
        """Ends the call. The host notices the end of its connection."""
        with self.lock:
            self.cancelled = True
            if self.link is not None:
                try:
                    self.link.shutdown(_socket.SHUT_RDWR)
                except OSError:
                    pass  # it is closed already

    def run(self):
        value = error = None
        try:
            value = call(self.request, self.tool, self)
        except BaseException as raised:
            error = raised
        try:
            self.loop.call_soon_threadsafe(self.finish, value, error)
        except RuntimeError:
            pass  # the loop is closed

    def finish(self, value, error):
        if not self.outcome.done():
            if error is None:
                self.outcome.set_result(value)
            else:
                self.outcome.set_exception(error)


def work(own):
    """Makes waiting calls. The thread ends with the last one, because a session with threads has no snapshots."""
    while True:
        with own.lock:
            if not own.jobs:
                own.threads -= 1
                return
            job = own.jobs.pop(0)
        if not job.cancelled:
            job.run()
