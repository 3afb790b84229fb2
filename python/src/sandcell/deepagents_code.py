"""Makes `dcode --sandbox sandcell` run the commands of Deep Agents Code in a sandbox.

The entry point `sandcell` of the group `deepagents_code.sandbox_providers` names the class below. deepagents_code is
imported here, and nowhere else in the package. Tested with deepagents-code 0.1.57.
"""

from __future__ import annotations

from typing import Any

from deepagents_code.integrations.sandbox_provider import (
    SandboxInstallHint,
    SandboxNotFoundError,
    SandboxProvider,
    SandboxProviderMetadata,
)

from .deepagents import SandcellSandbox


class SandcellProvider(SandboxProvider):  # type: ignore[misc]
    """Makes and ends the sandboxes of one process. A sandbox ends with its process, so none is found again later."""

    def __init__(self) -> None:
        self._made: dict[str, SandcellSandbox] = {}

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """What `dcode` says about sandcell and asks of it."""
        return SandboxProviderMetadata(
            name="sandcell",
            working_dir="/home/user",
            install=SandboxInstallHint(kind="package", name="sandcell[deepagents]"),
            supports_sandbox_id=False,
        )

    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandcellSandbox:
        """Makes a sandbox; ``kwargs`` are the arguments of ``Sandbox``, from `params` of the configuration."""
        if sandbox_id is not None:
            if sandbox_id not in self._made:
                raise SandboxNotFoundError(f"no sandbox {sandbox_id} was made by this process; start without an id")
            return self._made[sandbox_id]
        backend = SandcellSandbox(**kwargs)
        self._made[backend.id] = backend
        return backend

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Ends a sandbox. One that is gone already is no error."""
        backend = self._made.pop(sandbox_id, None)
        if backend is not None:
            backend.close()
