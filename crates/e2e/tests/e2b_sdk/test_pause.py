"""Pausing a sandbox, and resuming it."""

import threading
import time
from datetime import datetime, timezone

import httpx
import pytest
from e2b_code_interpreter import Sandbox
from e2b import NotFoundException, TimeoutException


def state(sandbox):
    return sandbox.get_info().state.value


def test_a_paused_sandbox_stands_still_until_it_is_connected(fresh):
    fresh.run_code("x = 20")
    fresh.files.write("kept", "yes")
    counting = fresh.commands.run("while sleep 0.1; do echo >>count; done", background=True)
    time.sleep(0.5)
    assert fresh.pause() is True
    assert fresh.pause() is False
    assert (state(fresh), fresh.is_running()) == ("paused", False)
    with pytest.raises(TimeoutException):
        fresh.commands.run("true")
    time.sleep(1)
    again = Sandbox.connect(fresh.sandbox_id, timeout=60)
    before = len(again.files.read("count"))
    assert before < 10, "it did not go on while it was paused"
    assert state(again) == "running"
    assert again.run_code("x + 1").text == "21"
    assert again.files.read("kept") == "yes"
    time.sleep(0.5)
    assert len(again.files.read("count")) > before, "its program goes on"
    assert counting.pid in [process.pid for process in again.commands.list()]
    left = (again.get_info().end_at - datetime.now(timezone.utc)).total_seconds()
    assert 50 < left < 61, left


def test_the_time_limit_of_code_does_not_count_a_pause(fresh):
    ran = []
    code = "import time\nfor _ in range(20):\n    time.sleep(0.1)\nprint('done')"
    running = threading.Thread(target=lambda: ran.append(fresh.run_code(code)))
    command = fresh.commands.run("sleep 2; echo done", background=True, timeout=4)
    running.start()
    time.sleep(0.5)
    fresh.pause()
    time.sleep(3)
    Sandbox.connect(fresh.sandbox_id)
    running.join()
    assert ran[0].logs.stdout == ["done\n"], ran
    # The deadline of a stream is that of the client, and it is over.
    with pytest.raises(TimeoutException):
        command.wait()


def test_a_sandbox_is_paused_at_its_end_instead_of_killed():
    made = Sandbox.create(timeout=1, lifecycle={"on_timeout": "pause"})
    try:
        made.run_code("y = 5")
        for _ in range(50):
            if state(made) == "paused":
                break
            time.sleep(0.1)
        assert state(made) == "paused"
        assert [one.state.value for one in Sandbox.list().next_items() if one.sandbox_id == made.sandbox_id] == ["paused"]
        again = Sandbox.connect(made.sandbox_id, timeout=60)
        assert again.run_code("y").text == "5"
        again.set_timeout(0)
        assert state(again) == "paused"
    finally:
        assert made.kill() is True


def test_a_request_resumes_a_sandbox_that_was_made_so():
    made = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        made.run_code("y = 6")
        made.pause()
        assert made.run_code("y").text == "6"
        assert state(made) == "running"
    finally:
        made.kill()


def test_a_paused_sandbox_can_be_killed_and_strangers_cannot_pause(fresh, other_key):
    with pytest.raises(NotFoundException):
        Sandbox.pause(fresh.sandbox_id, api_key=other_key)
    fresh.pause()
    assert fresh.kill() is True
    with pytest.raises(NotFoundException):
        Sandbox.connect(fresh.sandbox_id)


CONTINUES_ITSELF = r"""
import ctypes, signal
signal.signal(signal.SIGCONT, lambda *_: None)  # a timer whose signal is ignored stops
libc = ctypes.CDLL(None, use_errno=True)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("pad", ctypes.c_char * 48)]
class Spec(ctypes.Structure):
    _fields_ = [("interval_s", ctypes.c_long), ("interval_ns", ctypes.c_long), ("value_s", ctypes.c_long), ("value_ns", ctypes.c_long)]
for seconds in range(1, 31):  # the kernel drops a signal that is pending when the process is stopped, with its timer
    timer = ctypes.c_void_p()
    event = Event(signo=signal.SIGCONT, notify=0)
    assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
    assert libc.timer_settime(timer, 0, ctypes.byref(Spec(0, 0, seconds, 0)), None) == 0
open("ready", "w").close()
while True:
    pass
"""


def test_code_that_continues_itself_ends_its_paused_sandbox(fresh):
    fresh.files.write("code.py", CONTINUES_ITSELF)
    fresh.commands.run("python3 code.py", background=True, timeout=0)
    for _ in range(60):
        if fresh.files.exists("ready"):
            break
        time.sleep(0.5)
    fresh.pause()
    for _ in range(60):
        if fresh.sandbox_id not in [one.sandbox_id for one in Sandbox.list().next_items()]:
            return
        time.sleep(0.5)
    raise AssertionError("a paused sandbox that uses the processor lives on")


def test_pauses_amid_other_calls_leave_the_sandbox_whole(fresh):
    fresh.run_code("x = 1")
    done, failed = threading.Event(), []

    def ask(call):
        while not done.is_set():
            try:
                call()
            except (TimeoutException, NotFoundException):
                pass  # the sandbox is paused just now
            except Exception as error:
                failed.append(error)

    calls = [lambda: state(fresh), lambda: Sandbox.list().next_items(), lambda: fresh.files.exists("x")]
    threads = [threading.Thread(target=ask, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            fresh.pause()
            Sandbox.connect(fresh.sandbox_id, timeout=60)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failed, failed
    assert fresh.run_code("x + 1").text == "2"
