"""Programs next to the code interpreter."""

import time

import pytest
from e2b_code_interpreter import Sandbox
from e2b import AuthenticationException, CommandExitException, InvalidArgumentException, NotFoundException, TimeoutException, SandboxException


def test_output_and_status_are_returned(sandbox):
    ran = sandbox.commands.run("echo out; echo err >&2")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("out\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo before; exit 3")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "before\n")


def test_a_command_runs_as_user_at_home(sandbox):
    ran = sandbox.commands.run("whoami; pwd; echo $HOME; echo $0")
    assert ran.stdout == "user\n/home/user\n/home/user\n/bin/bash\n"


def test_folder_and_variables_are_those_of_the_call(sandbox):
    ran = sandbox.commands.run("pwd; echo $A-$B", cwd="/tmp", envs={"A": "1", "B": "ü x"})
    assert ran.stdout == "/tmp\n1-ü x\n"
    with pytest.raises(InvalidArgumentException, match="/no/such/folder"):
        sandbox.commands.run("true", cwd="/no/such/folder")


def test_unknown_users_are_refused(sandbox):
    with pytest.raises(AuthenticationException):
        sandbox.commands.run("true", user="nobody-here")
    with pytest.raises(SandboxException, match="(?i)does not support"):
        sandbox.commands.run("true", user="root")


def test_output_arrives_while_the_command_runs(sandbox):
    seen = []
    began = time.time()
    ran = sandbox.commands.run(
        "echo first; sleep 1; echo second", on_stdout=lambda text: seen.append((text, time.time() - began))
    )
    assert [text for text, _ in seen] == ["first\n", "second\n"]
    assert seen[1][1] - seen[0][1] > 0.3, seen
    assert ran.stdout == "first\nsecond\n"


def test_much_output_is_complete(sandbox):
    ran = sandbox.commands.run("python3 -c \"for i in range(600000): print(i)\"")
    assert ran.stdout == "".join(f"{i}\n" for i in range(600000))


def test_a_background_command_is_listed_and_killed(sandbox):
    handle = sandbox.commands.run("sleep 1000", background=True)
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    assert handle.kill() is True
    with pytest.raises(CommandExitException):
        handle.wait()
    assert handle.pid not in [process.pid for process in sandbox.commands.list()]
    assert sandbox.commands.kill(handle.pid) is False


def test_standard_input_reaches_a_running_command(sandbox):
    handle = sandbox.commands.run("read line; echo got $line; cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "hello\n")
    sandbox.commands.send_stdin(handle.pid, "rest")
    if hasattr(sandbox.commands, "close_stdin"):
        sandbox.commands.close_stdin(handle.pid)
        assert handle.wait().stdout == "got hello\nrest"
    else:
        assert handle.kill() is True


def test_another_client_follows_a_running_command(sandbox):
    handle = sandbox.commands.run("sleep 1; echo done; exit 4", background=True)
    follower = Sandbox.connect(sandbox.sandbox_id).commands.connect(handle.pid)
    handle.disconnect()
    with pytest.raises(CommandExitException) as ended:
        follower.wait()
    assert (ended.value.exit_code, ended.value.stdout) == (4, "done\n")


def test_a_disconnected_command_goes_on(sandbox):
    handle = sandbox.commands.run("sleep 1; touch went-on", background=True)
    handle.disconnect()
    deadline = time.time() + 10
    while not sandbox.files.exists("went-on") and time.time() < deadline:
        time.sleep(0.1)
    assert sandbox.files.exists("went-on")


def test_a_slow_command_times_out(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 30", timeout=1)


def test_an_unknown_process_is_not_found(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999999)
    with pytest.raises((NotFoundException, SandboxException)):
        sandbox.commands.send_stdin(999999, "x")


def test_bytes_that_are_no_text_do_not_break_the_stream(sandbox):
    ran = sandbox.commands.run("printf 'a\\377b'; echo ok >&2")
    assert ran.stdout.startswith("a") and ran.stdout.endswith("b") and ran.stderr == "ok\n"
