"""A service elsewhere: the same requests as HTTP, each one complete in itself.

Redirections are not followed, so the token reaches the named host only. Large files move as raw bytes over the service's
REST calls, where it has them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ._call import EXCHANGE, MAX_ANSWER, PROTOCOL, Call, encode
from ._errors import (
    BackendUnavailableError,
    InternalError,
    InvalidArgumentError,
    LimitReachedError,
    SandcellError,
    UnauthorizedError,
    error_for,
)
from ._pool import MAX_EXCHANGE_THREADS, MAX_REST_THREADS, MAX_THREADS, HttpPool, Outcome, Rest, RestCall, rest_error
from ._stdio import outcome_of
from ._version import VERSION

if TYPE_CHECKING:
    import http.client

#: Seconds to connect.
_CONNECT_TIMEOUT = 10.0


class HttpChannel(HttpPool):
    """A service at an address."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
            raise InvalidArgumentError(f"{url!r} is no address of a service", 'pass one like "https://box.example:8123"')
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise InvalidArgumentError(
                "the token holds characters that no token has", "pass what `sandcell token create` printed"
            )
        self._secure = parts.scheme == "https"
        self._host = host
        self._port = port or (443 if self._secure else 80)
        self._path = parts.path if parts.path not in ("", "/") else "/mcp"
        self._token = token
        #: The address of the REST calls; None where they cannot be, or the service has none.
        self._rest_base = f"{self._path[:-4]}/v1" if self._path.endswith("/mcp") else None
        self._numbers = itertools.count(1)
        super().__init__(f"{parts.scheme}://{parts.netloc}{self._path}", MAX_THREADS)
        self._rest_pool = _Connections(self, MAX_REST_THREADS)
        # An exchange of each sandbox with functions waits at the service; other requests must not wait for those.
        self._exchanges = _Connections(self, MAX_EXCHANGE_THREADS)

    def start(self, method: str, params: dict[str, Any], call: Call | None = None) -> Call:
        self.check()
        call = call or Call()
        call.id = next(self._numbers)
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL,
            "Mcp-Method": method,
            "User-Agent": f"sandcell-python/{VERSION}",
        }
        name = params.get("name", params.get("uri"))
        if isinstance(name, str):
            headers["Mcp-Name"] = name
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        body = encode(call.id, method, params, VERSION)
        number = call.id
        pool: HttpPool = self
        if name == EXCHANGE:
            pool = self._exchanges
            pool.check()
        pool.submit(call, lambda connection: self._exchange(connection, number, body, headers))
        return call

    def rest(self, rest_call: RestCall, call: Call) -> bool:
        self.check()
        if self._rest_base is None:
            return False
        headers = {"User-Agent": f"sandcell-python/{VERSION}"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        rest = Rest(self._rest_base, headers, self._rest_refusal)

        def exchange(connection: http.client.HTTPConnection) -> Outcome:
            value, error = rest_call(connection, rest)
            if value is None and error is None:
                self._rest_base = None
            return value, error

        self._rest_pool.check()
        self._rest_pool.submit(call, exchange)
        return True

    def cancel(self, call: Call) -> None:
        super().cancel(call)
        self._rest_pool.cancel(call)
        self._exchanges.cancel(call)

    def post(self, method: str, params: dict[str, Any]) -> None:
        try:
            self.start(method, params)
        except SandcellError:
            return

    # Everything below runs in the threads.

    def connect(self) -> http.client.HTTPConnection:
        import http.client

        if self._secure:
            import ssl

            context = ssl.create_default_context()
            secure = http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT, context=context)
            secure.connect()
            return secure
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT)
        connection.connect()
        return connection

    def _exchange(
        self, connection: http.client.HTTPConnection, number: int, body: bytes, headers: dict[str, str]
    ) -> Outcome:
        connection.request("POST", self._path, body, headers)
        response = connection.getresponse()
        if response.status != 200:
            return None, self._refusal(response.status, response.read(64 << 10))
        kind = (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()
        if kind == "application/json":
            answer = response.read(MAX_ANSWER + 1)
            if len(answer) > MAX_ANSWER:
                raise InternalError(f"the service sent more than {MAX_ANSWER:,} bytes", "check the address")
            found = _answer(answer, number)
            if found is None:
                raise InternalError("the service answered another request than the one that was sent", "check the address")
            return found
        if kind == "text/event-stream":
            outcome = _read_events(response, number)
            response.read(MAX_ANSWER)  # The end of the stream, so that the connection can be used again.
            return outcome
        raise InternalError(f"the service answered with {kind or 'no type'}, not JSON", "check the address")

    def _rest_refusal(self, status: int, body: bytes) -> SandcellError | None:
        """Returns the error of a REST call; None if the service, or a proxy in front of it, has no such call."""
        found = rest_error(status, body)
        return found or (None if status in (404, 405, 501) else self._refusal(status, body))

    def _refusal(self, status: int, body: bytes) -> SandcellError:
        import json

        code, said, remedy = "", "", ""
        try:
            error = json.loads(body)["error"]
            data = error.get("data")
            detail = data if isinstance(data, dict) else error
            said = str(detail.get("message") or error.get("message") or "")
            remedy = str(detail.get("remedy") or "")
            code = detail["code"] if isinstance(detail.get("code"), str) else ""
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            pass
        said = said or f"HTTP status {status}"
        if code:
            return error_for(code, said, remedy)
        if status in (401, 403):
            return UnauthorizedError(f"{self.url}: {said}", remedy or "pass a token: `sandcell token create NAME` makes one")
        if status in (413, 429):
            return LimitReachedError(f"{self.url}: {said}", remedy or "send less, or try again later")
        if status == 404 or 300 <= status < 400:
            return InvalidArgumentError(f"{self.url}: {said}", "check the address: it is the one of `sandcell serve --http`")
        return BackendUnavailableError(f"{self.url}: {said}", remedy or "try again later")

    def fault(self, fault: Exception) -> SandcellError:
        import ssl

        if isinstance(fault, ssl.SSLCertVerificationError):
            return BackendUnavailableError(
                f"the certificate of {self.url} is not trusted: {fault.verify_message}",
                "name the certificate of its authority with the variable SSL_CERT_FILE",
            )
        if isinstance(fault, OSError):
            return BackendUnavailableError(
                f"{self.url} cannot be reached: {fault}", "check the address, and that `sandcell serve --http` runs there"
            )
        return BackendUnavailableError(
            f"{self.url} does not answer as a sandcell service: {type(fault).__name__}: {fault}", "check the address"
        )


class _Connections(HttpPool):
    """More connections to a service, for requests of one kind."""

    def __init__(self, channel: HttpChannel, max_threads: int) -> None:
        super().__init__(channel.url, max_threads)
        self._channel = channel

    def connect(self) -> http.client.HTTPConnection:
        return self._channel.connect()

    def fault(self, fault: Exception) -> SandcellError:
        return self._channel.fault(fault)


def _read_events(response: http.client.HTTPResponse, number: int) -> tuple[Any, SandcellError | None]:
    """Reads a stream of events up to the answer to a request."""
    data: list[bytes] = []
    size = 0
    while True:
        line = response.readline(MAX_ANSWER + 1)
        size += len(line)
        if size > MAX_ANSWER:
            raise InternalError(f"the service sent more than {MAX_ANSWER:,} bytes", "check the address")
        if not line:
            raise BackendUnavailableError("the service closed the stream before its answer", "call again")
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            data.append(line[5:].lstrip(b" "))
        elif not line and data:
            body = b"\n".join(data)
            data = []
            if body.strip() and (found := _answer(body, number)) is not None:
                return found


def _answer(body: bytes, number: int) -> tuple[Any, SandcellError | None] | None:
    """Returns what a message says about a request; None when it is about something else."""
    import json

    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise InternalError("the service sent something that is no JSON", "check the address") from None
    if isinstance(message, dict) and message.get("id") == number and "method" not in message:
        return outcome_of(message)
    return None


_channels: dict[tuple[str, str | None], HttpChannel] = {}


def http_channel(url: str, token: str | None) -> HttpChannel:
    """Returns the channel to a service; sandboxes of the same address and token share it."""
    key = (url, token)
    channel = _channels.get(key)
    if channel is None:
        if len(_channels) >= 64:
            _channels.clear()  # Channels in use stay with their sandboxes.
        channel = _channels.setdefault(key, HttpChannel(url, token))
    return channel
