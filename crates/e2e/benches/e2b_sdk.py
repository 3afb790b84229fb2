"""Measures the E2B server with E2B's own SDK: `e2b_sdk.py`, with the server in E2B's variables.

The floor is the same SDK against a server that answers at once and runs nothing, in the same run.
"""

import concurrent.futures
import contextlib
import http.server
import json
import os
import statistics
import threading
import time

from e2b_code_interpreter import Sandbox

CREATED = {
    "templateID": "base",
    "sandboxID": "sbempty",
    "clientID": "empty",
    "envdVersion": "0.5.7",
    "envdAccessToken": "x",
    "trafficAccessToken": "x",
    "domain": "localhost",
}
LINES = [
    {"type": "number_of_executions", "execution_count": 1},
    {"type": "result", "text": "2", "extra": {}, "is_main_result": True},
    {"type": "end_of_execution"},
]


class Empty(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body in one write: otherwise the kernel delays the second one.
    wbufsize = 1 << 16

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while int(self.rfile.readline(), 16):
                self.rfile.readline()
                break
        else:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/execute":
            self.answer(200, "".join(json.dumps(line) + "\n" for line in LINES).encode())
        else:
            self.answer(201, json.dumps(CREATED).encode())

    def do_DELETE(self):
        self.answer(204)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def empty_server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    before = {name: os.environ[name] for name in ("E2B_API_URL", "E2B_SANDBOX_URL")}
    origin = f"http://127.0.0.1:{server.server_port}"
    os.environ.update(E2B_API_URL=origin, E2B_SANDBOX_URL=origin)
    yield
    os.environ.update(before)
    server.shutdown()


def first_answer():
    began = time.perf_counter()
    sandbox = Sandbox.create(timeout=60)
    assert sandbox.run_code("1 + 1").text == "2"
    took = time.perf_counter() - began
    sandbox.kill()
    return took * 1000


def main():
    for _ in range(5):
        first_answer()
    rounds = []
    for _ in range(5):
        with empty_server():
            floor = statistics.median(first_answer() for _ in range(20))
        rounds.append((floor, statistics.median(first_answer() for _ in range(20))))
    floor, ours = (statistics.median(column) for column in zip(*rounds))
    print(f"create and run_code: {ours:.1f} ms, with a server that runs nothing {floor:.1f} ms: {ours - floor:.1f} ms above")

    sandbox = Sandbox.create(timeout=300)
    times = []
    for _ in range(1000):
        began = time.perf_counter()
        assert sandbox.run_code("1 + 1").text == "2"
        times.append((time.perf_counter() - began) * 1000)
    print(f"run_code, 1,000 times: median {statistics.median(times):.1f} ms, the last 100 {statistics.median(times[-100:]):.1f} ms")

    data = os.urandom(1 << 20) * 64
    began = time.perf_counter()
    sandbox.files.write("/tmp/large", data)
    written = time.perf_counter() - began
    began = time.perf_counter()
    assert len(sandbox.files.read("/tmp/large", format="bytes")) == len(data)
    read = time.perf_counter() - began
    print(f"64 MiB: written at {64 / written:.0f} MiB/s, read at {64 / read:.0f} MiB/s")
    sandbox.kill()

    count = int(os.environ.get("SANDBOXES", "16"))
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        began = time.perf_counter()
        made = list(pool.map(lambda _: Sandbox.create(timeout=60), range(count)))
        took = time.perf_counter() - began
        print(f"{count} sandboxes at once: {took:.2f} s")
        list(pool.map(lambda one: one.kill(), made))


if __name__ == "__main__":
    main()
