"""Creates, changes and deletes artifacts, and sends the updates to the account's devices."""

from typing import Any

from . import artifacts, request_types
from .accounts import run_within_quota
from .context import RelayContext
from .versioned_values import VersionedValue, build_update_value


async def create_and_announce(
    context: RelayContext, account: str, new: request_types.NewArtifact
) -> dict[str, Any]:
    artifact, update = await context.database.write(
        run_within_quota,
        context.limits,
        artifacts.create_artifact,
        account,
        new.id,
        new.header,
        new.body,
        new.data_encryption_key,
    )
    if update:
        announced = {name: value for name, value in artifact.items() if name != "id"}
        context.hub.send_update(
            account, update, {"t": "new-artifact", "artifactId": new.id, **announced}
        )
    return artifact


async def change_and_announce(
    context: RelayContext,
    account: str,
    artifact: str,
    header: tuple[bytes, int] | None,
    body: tuple[bytes, int] | None,
) -> tuple[dict[str, VersionedValue], bool]:
    """Return the current values, and whether the change was applied."""
    now, update = await context.database.write(
        run_within_quota, context.limits, artifacts.change_artifact, account, artifact, header, body
    )
    if update:
        announced = {name: build_update_value(value) for name, value in now.items()}
        context.hub.send_update(
            account, update, {"t": "update-artifact", "artifactId": artifact, **announced}
        )
    return now, update > 0


async def delete_and_announce(context: RelayContext, account: str, artifact: str) -> None:
    update = await context.database.write(artifacts.delete_artifact, account, artifact)
    context.hub.send_update(account, update, {"t": "delete-artifact", "artifactId": artifact})
