"""The sandbox provider for Deep Agents Code, found and used by its own registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepagents_code", reason="needs deepagents-code")


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps the settings of this machine's user out."""
    from deepagents_code.integrations import sandbox_config

    path = tmp_path / "config.toml"
    path.write_text("")
    monkeypatch.setattr(sandbox_config, "DEFAULT_CONFIG_PATH", path)
    return path


def test_the_registry_finds_the_provider(settings: Path) -> None:
    from deepagents_code.integrations.sandbox_registry import SandboxRegistry

    registry = SandboxRegistry.load(settings)
    assert "sandcell" in registry.available_providers()
    metadata = registry.get_metadata("sandcell")
    assert (metadata.name, metadata.working_dir, metadata.supports_sandbox_id) == ("sandcell", "/home/user", False)


def test_the_command_line_accepts_the_provider() -> None:
    from deepagents_code.integrations.sandbox_factory import get_default_working_dir, verify_sandbox_deps

    verify_sandbox_deps("sandcell")
    assert get_default_working_dir("sandcell") == "/home/user"


def test_a_sandbox_is_set_up_and_ended_by_the_factory(tmp_path: Path) -> None:
    from deepagents_code.integrations.sandbox_factory import create_sandbox

    from sandcell import ExpiredError

    script = tmp_path / "setup.sh"
    script.write_text("echo ready > /home/user/state\n")
    with create_sandbox("sandcell", setup_script_path=str(script), params={"memory_mb": 256}) as backend:
        assert backend.execute("cat state").output == "ready\n"
        assert backend.sandbox.status()["limits"]["memory_mb"] == 256
    with pytest.raises(ExpiredError):
        backend.execute("true")


def test_the_configuration_gives_the_arguments(settings: Path) -> None:
    from deepagents_code.integrations.sandbox_registry import SandboxRegistry

    settings.write_text(
        "[sandboxes.providers.sandcell]\n"
        'class_path = "sandcell.deepagents_code:SandcellProvider"\n'
        'working_dir = "/home/user"\n'
        "supports_sandbox_id = false\n"
        "[sandboxes.providers.sandcell.params]\n"
        "memory_mb = 256\n"
    )
    registry = SandboxRegistry.load(settings)
    provider = registry.create_provider("sandcell")
    parameters: dict[str, Any] = registry.get_params("sandcell")
    backend = provider.get_or_create(**parameters)
    try:
        assert backend.sandbox.status()["limits"]["memory_mb"] == 256
        assert provider.get_or_create(sandbox_id=backend.id) is backend
    finally:
        provider.delete(sandbox_id=backend.id)
    provider.delete(sandbox_id=backend.id)


def test_the_id_of_another_process_is_not_found() -> None:
    from deepagents_code.integrations.sandbox_provider import SandboxNotFoundError

    from sandcell.deepagents_code import SandcellProvider

    with pytest.raises(SandboxNotFoundError):
        SandcellProvider().get_or_create(sandbox_id="sb-other")
