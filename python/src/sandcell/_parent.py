"""HTTP connections to the server of this process: pairs of sockets, of which the server is sent one end."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ._call import Call
from ._errors import SandcellError, error_for
from ._pool import MAX_REST_THREADS, HttpPool, Rest, RestCall, is_readable, rest_error

if TYPE_CHECKING:
    import http.client


class ParentPool(HttpPool):
    """Connections that are made by sending sockets over ``control``."""

    def __init__(self, control: socket.socket) -> None:
        super().__init__("the sandcell server of this process", MAX_REST_THREADS)
        self._control = control

    def connect(self) -> http.client.HTTPConnection:
        import http.client

        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        connection = http.client.HTTPConnection("localhost")
        connection.auto_open = 0  # It cannot be opened again by its name.
        connection.sock = ours
        return connection

    def start(self, rest_call: RestCall, call: Call) -> bool:
        """Starts a REST call; returns False if the server takes none: one that passes calls on closes its end."""
        if is_readable(self._control):
            return False
        rest = Rest("/v1", {}, self._refusal)
        self.submit(call, lambda connection: rest_call(connection, rest))
        return True

    def _refusal(self, status: int, body: bytes) -> SandcellError | None:
        return rest_error(status, body) or error_for(
            "internal", f"the server answered with HTTP status {status}", "try again"
        )
