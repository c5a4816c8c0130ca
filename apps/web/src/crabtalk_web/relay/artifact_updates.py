"""Artifacts made, changed and deleted, and the account's devices told of it."""

from typing import Any

from . import artifacts, shapes
from .accounts import within_quota
from .core import Core
from .versions import Swap, versioned


async def make(core: Core, account: str, new: shapes.NewArtifact) -> dict[str, Any]:
    made, update = await core.database.write(
        within_quota,
        core.limits,
        artifacts.create,
        account,
        new.id,
        new.header,
        new.body,
        new.data_encryption_key,
    )
    if update:
        told = {name: value for name, value in made.items() if name != "id"}
        core.hub.update(account, update, {"t": "new-artifact", "artifactId": new.id, **told})
    return made


async def alter(
    core: Core,
    account: str,
    artifact: str,
    header: tuple[bytes, int] | None,
    body: tuple[bytes, int] | None,
) -> tuple[dict[str, Swap], bool]:
    """What is there now, and whether it is what was wanted."""
    now, update = await core.database.write(
        within_quota, core.limits, artifacts.change, account, artifact, header, body
    )
    if update:
        told = {name: versioned(each) for name, each in now.items()}
        core.hub.update(account, update, {"t": "update-artifact", "artifactId": artifact, **told})
    return now, update > 0


async def remove(core: Core, account: str, artifact: str) -> None:
    update = await core.database.write(artifacts.delete, account, artifact)
    core.hub.update(account, update, {"t": "delete-artifact", "artifactId": artifact})
