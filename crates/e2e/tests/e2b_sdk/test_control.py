"""Creating, finding and ending sandboxes."""

import os
import threading
import time
from datetime import datetime, timezone

import httpx
import pytest
from e2b_code_interpreter import Sandbox
from e2b import NotFoundException, SandboxException


def listed(**filters):
    pages = Sandbox.list(**filters)
    found = []
    while pages.has_next:
        found += pages.next_items()
    return found


def test_a_sandbox_has_its_metadata_variables_and_end():
    sandbox = Sandbox.create(timeout=90, metadata={"user": "ann b", "app": "x"}, envs={"GREETING": "hé"})
    try:
        info = sandbox.get_info()
        assert info.metadata == {"user": "ann b", "app": "x"}
        left = (info.end_at - datetime.now(timezone.utc)).total_seconds()
        assert 80 < left <= 91, left
        assert info.sandbox_id == sandbox.sandbox_id
        assert sandbox.commands.run("echo $GREETING").stdout == "hé\n"
        assert sandbox.run_code("import os; os.environ['GREETING']").text == "hé"
    finally:
        sandbox.kill()


def test_a_killed_sandbox_is_gone_everywhere():
    sandbox = Sandbox.create(timeout=60)
    assert sandbox.is_running()
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert sandbox.kill() is False
    assert sandbox.sandbox_id not in [one.sandbox_id for one in listed()]
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(SandboxException):
        sandbox.commands.run("true")
    with pytest.raises(SandboxException):
        sandbox.run_code("1")
    with pytest.raises(SandboxException):
        sandbox.files.read("/home/user/x")


def test_a_list_is_filtered_and_paged(fresh):
    more = [Sandbox.create(timeout=60, metadata={"batch": "seven & 8"}) for _ in range(3)]
    try:
        from e2b import SandboxQuery

        found = listed(query=SandboxQuery(metadata={"batch": "seven & 8"}))
        assert {one.sandbox_id for one in found} == {one.sandbox_id for one in more}
        assert all(one.metadata == {"batch": "seven & 8"} for one in found)
        paged = listed(query=SandboxQuery(metadata={"batch": "seven & 8"}), limit=1)
        assert [one.sandbox_id for one in paged] == [one.sandbox_id for one in found]
        assert fresh.sandbox_id in [one.sandbox_id for one in listed()]
    finally:
        for one in more:
            one.kill()


def test_the_end_can_be_moved(fresh):
    fresh.set_timeout(30)
    left = (fresh.get_info().end_at - datetime.now(timezone.utc)).total_seconds()
    assert 20 < left <= 31, left
    fresh.set_timeout(1)
    # Well before the server's own search for ended sandboxes.
    deadline = time.time() + 6
    while fresh.is_running() and time.time() < deadline:
        time.sleep(0.1)
    assert fresh.is_running() is False


def test_connecting_reaches_the_same_sandbox(fresh):
    fresh.run_code("x = 41")
    fresh.files.write("note.txt", "kept")
    again = Sandbox.connect(fresh.sandbox_id)
    assert again.run_code("x + 1").text == "42"
    assert again.files.read("note.txt") == "kept"


def fork(sandbox, **body):
    """Forks a sandbox. Older SDKs have no method for it."""
    if hasattr(sandbox, "fork"):
        return sandbox.fork(**body)
    key, address = sandbox.connection_config.api_key, sandbox.connection_config.api_url
    answer = httpx.post(f"{address}/sandboxes/{sandbox.sandbox_id}/fork", headers={"X-API-Key": key}, json=body)
    assert answer.status_code == 201, answer.text
    return [Sandbox.connect(one["sandbox"]["sandboxID"]) for one in answer.json()]


def test_forks_go_on_from_the_state_of_their_source():
    source = Sandbox.create(timeout=60, metadata={"app": "x"}, envs={"GREETING": "hi"})
    forks = []
    try:
        source.run_code("rows = [1]")
        source.files.write("note.txt", "old")
        forks = fork(source, count=2, timeout=90)
        assert len({source.sandbox_id, *(one.sandbox_id for one in forks)}) == 3
        for number, one in enumerate(forks):
            assert one.run_code(f"rows.append({number + 10}); rows").text == f"[1, {number + 10}]"
            assert one.files.read("note.txt") == "old"
            one.files.write("note.txt", str(number))
            assert one.commands.run("cat note.txt; echo $GREETING").stdout == f"{number}hi\n"
        source.run_code("rows.append(2)")
        assert source.run_code("rows").text == "[1, 2]"
        assert source.files.read("note.txt") == "old"
        assert forks[0].run_code("rows").text == "[1, 10]"
        info = forks[0].get_info()
        assert info.metadata == {"app": "x"}
        left = (info.end_at - datetime.now(timezone.utc)).total_seconds()
        assert 60 < left <= 91, left
        source.kill()
        assert forks[1].run_code("rows").text == "[1, 11]"
    finally:
        for one in [source, *forks]:
            one.kill()


def test_a_snapshot_outlives_its_sandbox(fresh):
    key, address = fresh.connection_config.api_key, fresh.connection_config.api_url

    def call(method, path, **options):
        answer = httpx.request(method, f"{address}{path}", headers={"X-API-Key": key}, **options)
        return answer.status_code, answer.json() if answer.content else None

    source = Sandbox.create(timeout=60, envs={"MORE": "0", "KEPT": "2"})
    source.run_code("rows = [1]")
    source.files.write("note.txt", "old")
    path = f"/sandboxes/{source.sandbox_id}/snapshots"
    status, named = call("POST", path, json={"name": "loaded"})
    assert (status, named) == (201, {"snapshotID": "loaded:default", "names": ["loaded:default"]})
    status, files_only = call("POST", path, json={"memory": False})
    assert status == 201, files_only
    assert files_only["names"] == []
    source.kill()
    made = []
    try:
        for _ in range(2):
            made.append(Sandbox.create(named["snapshotID"], timeout=60, envs={"MORE": "1"}))
            assert made[-1].run_code("rows.append(2); rows").text == "[1, 2]"
            assert made[-1].commands.run("cat note.txt; echo $MORE $KEPT").stdout == "old1 2\n"
            secret = {"X-Access-Token": made[-1]._envd_access_token}
            place = {"E2b-Sandbox-Id": made[-1].sandbox_id, "E2b-Sandbox-Port": "49983"}
            envs = httpx.get(f"{os.environ['E2B_SANDBOX_URL']}/envs", headers={**secret, **place})
            assert {"MORE": "1", "KEPT": "2", "E2B_SANDBOX": "true"}.items() <= envs.json().items()
        made.append(Sandbox.create(files_only["snapshotID"], timeout=60))
        assert made[-1].files.read("note.txt") == "old"
        assert made[-1].run_code("'rows' in dir()").text == "False"
        listed = {one["snapshotID"] for one in call("GET", "/snapshots")[1]}
        assert listed >= {named["snapshotID"], files_only["snapshotID"]}
        assert call("GET", "/snapshots?name=loaded") == (200, [named])
        assert call("GET", f"/snapshots?sandboxID={fresh.sandbox_id}") == (200, [])
        assert len(call("GET", "/snapshots?limit=1")[1]) == 1
    finally:
        for one in made:
            one.kill()
        for one in (named, files_only):
            assert call("DELETE", f"/templates/{one['snapshotID'].replace(':', '%3A')}")[0] == 204
    assert call("DELETE", "/templates/loaded:default")[0] == 404
    with pytest.raises((NotFoundException, SandboxException), match="template"):
        Sandbox.create("loaded:default")


def test_what_cannot_be_forked_is_an_error(fresh):
    key, address = fresh.connection_config.api_key, fresh.connection_config.api_url

    def answered(path, body):
        answer = httpx.post(f"{address}/sandboxes/{path}/fork", headers={"X-API-Key": key}, json=body)
        return answer.status_code, answer.json().get("error_code"), answer.text

    for body in ({"count": 0}, {"count": 21}, {"timeout": 0}):
        assert answered(fresh.sandbox_id, body)[0] == 400, body
    assert answered("sb" + "a" * 26, {})[0] == 404
    fresh.run_code("import threading\nend = threading.Event()\nthread = threading.Thread(target=end.wait)\nthread.start()")
    status, code, text = answered(fresh.sandbox_id, {})
    assert (status, code) == (409, "checkpoint_unavailable"), text
    assert "threads" in text
    assert fresh.run_code("end.set(); thread.is_alive()").text is not None


def test_an_unknown_sandbox_is_not_found():
    with pytest.raises(NotFoundException):
        Sandbox.connect("sb" + "a" * 26)
    assert Sandbox.kill("sb" + "a" * 26) is False


def test_an_unknown_template_is_an_error():
    with pytest.raises((NotFoundException, SandboxException), match="template"):
        Sandbox.create("no-such-template")


def test_missing_features_are_named(fresh):
    with pytest.raises(SandboxException, match="(?i)does not support"):
        Sandbox.create(timeout=60, network={"deny_out": ["192.0.2.1"]})
    key, address = fresh.connection_config.api_key, fresh.connection_config.api_url
    answer = httpx.put(
        f"{address}/sandboxes/{fresh.sandbox_id}/network", headers={"X-API-Key": key}, json={"denyOut": ["192.0.2.1"]}
    )
    assert (answer.status_code, answer.json()["error_code"]) == (501, "unimplemented"), answer.text


def test_the_logs_of_a_sandbox_name_what_has_run(fresh):
    from e2b.api.client.models import SandboxLogs

    fresh.run_code("secret = 1; 1 / 0")
    fresh.commands.run("echo output")
    key, address = fresh.connection_config.api_key, fresh.connection_config.api_url
    url = f"{address}/sandboxes/{fresh.sandbox_id}/logs"
    for _ in range(100):
        answer = httpx.get(url, headers={"X-API-Key": key}, params={"limit": 100})
        assert answer.status_code == 200, answer.text
        logs = SandboxLogs.from_dict(answer.json())
        if len(logs.logs) == 3:
            break
        time.sleep(0.1)
    first, code, command = logs.log_entries
    assert (first.message, first.level.value) == ("sandbox created", "info")
    assert "ZeroDivisionError" in code.message and code.level.value == "error"
    assert "echo output" in command.message and command.fields["status"] == "ok"
    assert [line.line for line in logs.logs] == [entry.message for entry in logs.log_entries]
    new = httpx.get(url.replace("/sandboxes/", "/v2/sandboxes/"), headers={"X-API-Key": key}, params={
        "direction": "backward", "level": "info", "search": "after", "limit": 1,
    })
    assert [entry["message"] for entry in new.json()["logs"]] == [command.message], new.text
    other = httpx.get(url, headers={"X-API-Key": os.environ["SANDCELL_TEST_E2B_OTHER_KEY"]})
    assert other.status_code == 404


def test_the_network_of_a_live_sandbox_is_within_the_operators_rules(fresh):
    if not hasattr(fresh, "update_network"):
        return  # The SDK of spring.
    fresh.update_network({"allow_internet_access": False})
    fresh.update_network({"deny_out": lambda context: [context.all_traffic]})
    with pytest.raises(SandboxException, match="(?i)network"):
        fresh.update_network({"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})
    with pytest.raises(NotFoundException):
        Sandbox.update_network("sb" + "a" * 26, {"allow_internet_access": False})


def test_a_request_without_the_sandboxs_secret_is_refused(fresh):
    headers = {"E2b-Sandbox-Id": fresh.sandbox_id}
    base = fresh.connection_config.sandbox_url if hasattr(fresh.connection_config, "sandbox_url") else None
    base = base or os.environ["E2B_SANDBOX_URL"]
    for port, method, path in [
        ("49983", "POST", "/process.Process/List"),
        ("49983", "GET", "/files?path=/etc/passwd"),
        ("49983", "GET", "/envs"),
        ("49999", "POST", "/execute"),
        ("49999", "GET", "/contexts"),
        ("49999", "POST", "/contexts"),
        ("8000", "GET", "/"),
    ]:
        head = {**headers, "E2b-Sandbox-Port": port}
        plain = httpx.request(method, base + path, headers=head, json={} if method == "POST" else None)
        assert plain.status_code == (403 if port == "8000" else 401), (path, plain.text)
        wrong = {**head, "X-Access-Token": "0" * 48}
        refused = httpx.request(method, base + path, headers=wrong, json={} if method == "POST" else None)
        assert refused.status_code == 502 and "was not found" in refused.text, (path, refused.text)


def test_another_owner_finds_nothing(fresh, other_key):
    assert fresh.sandbox_id not in [one.sandbox_id for one in listed(api_key=other_key)]
    with pytest.raises(NotFoundException):
        Sandbox.connect(fresh.sandbox_id, api_key=other_key)
    assert Sandbox.kill(fresh.sandbox_id, api_key=other_key) is False
    assert fresh.is_running()


def test_a_wrong_key_is_refused(other_key):
    from e2b import AuthenticationException

    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "f" * 40)


def test_a_sandbox_without_a_timeout_lives_five_minutes():
    sandbox = Sandbox.create()
    try:
        info = sandbox.get_info()
        assert (info.end_at - info.started_at).total_seconds() == 300
    finally:
        sandbox.kill()


def test_the_list_is_ordered_and_filtered(fresh):
    later = Sandbox.create(timeout=60)
    try:
        key, address = later.connection_config.api_key, later.connection_config.api_url
        get = lambda **query: [
            one["sandboxID"]
            for one in httpx.get(f"{address}/v2/sandboxes", params=query, headers={"X-API-Key": key}).json()
            if one["sandboxID"] in (fresh.sandbox_id, later.sandbox_id)
        ]
        assert get() == get(order="desc") == [later.sandbox_id, fresh.sandbox_id]
        assert get(order="asc") == [fresh.sandbox_id, later.sandbox_id]
        assert get(template="none-such") == get(startedAfter="2090-01-01T00:00:00Z") == get(state="paused") == []
        assert get(state="running", startedAfter="2020-01-01T00:00:00+01:00") != []
    finally:
        later.kill()


def test_a_call_breaks_off_when_its_sandbox_is_killed():
    for call in (
        lambda sandbox: sandbox.run_code("import time; time.sleep(60)"),
        lambda sandbox: sandbox.commands.run("sleep 60"),
    ):
        sandbox = Sandbox.create(timeout=60)
        threading.Timer(1.0, sandbox.kill).start()
        with pytest.raises(SandboxException) as broken:
            call(sandbox)
        assert not hasattr(broken.value, "exit_code"), broken.value
