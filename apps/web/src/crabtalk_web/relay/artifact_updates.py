"""Artifacts made, changed and deleted, and the account's devices told of it."""

from typing import Any

from . import artifacts, request_types
from .accounts import run_within_quota
from .context import RelayContext
from .versioned_values import VersionedValue, build_update_value


async def create_and_announce(
    core: RelayContext, account: str, new: request_types.NewArtifact
) -> dict[str, Any]:
    made, update = await core.database.write(
        run_within_quota,
        core.limits,
        artifacts.create_artifact,
        account,
        new.id,
        new.header,
        new.body,
        new.data_encryption_key,
    )
    if update:
        told = {name: value for name, value in made.items() if name != "id"}
        core.hub.send_update(account, update, {"t": "new-artifact", "artifactId": new.id, **told})
    return made


async def change_and_announce(
    core: RelayContext,
    account: str,
    artifact: str,
    header: tuple[bytes, int] | None,
    body: tuple[bytes, int] | None,
) -> tuple[dict[str, VersionedValue], bool]:
    """What is there now, and whether it is what was wanted."""
    now, update = await core.database.write(
        run_within_quota, core.limits, artifacts.change_artifact, account, artifact, header, body
    )
    if update:
        told = {name: build_update_value(each) for name, each in now.items()}
        core.hub.send_update(
            account, update, {"t": "update-artifact", "artifactId": artifact, **told}
        )
    return now, update > 0


async def delete_and_announce(core: RelayContext, account: str, artifact: str) -> None:
    update = await core.database.write(artifacts.delete_artifact, account, artifact)
    core.hub.send_update(account, update, {"t": "delete-artifact", "artifactId": artifact})
