"""What the daemon says of its fleet to whoever asks how it is: the others, and the database.

A database that is away is part of the answer, and does not hold it up.
"""

import asyncio
import time
from typing import TYPE_CHECKING

from crabtalk.protocol import wire
from crabtalk.storage import StorageError

if TYPE_CHECKING:
    from crabtalk.storage.postgres import Member, PostgresStorage

# How long whoever asks waits for the database, in seconds.
PATIENCE = 2.0

LOOK = """
SELECT (SELECT max(version) FROM crabtalk_schema) AS version,
    extract(epoch FROM clock_timestamp())::float8 AS now
"""


async def fleet_info(storage: "PostgresStorage") -> wire.FleetInfo:
    found = wire.FleetInfo(
        database=storage.database.name,
        lease_secs=storage.claims.seconds,
        is_listening=storage.mail.is_listening,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await look(storage, found)
    except StorageError as error:
        found.trouble = str(error)
    except TimeoutError:
        found.trouble = (
            f"the database {found.database} has not answered for {PATIENCE:g} seconds; "
            "it is tried again by itself"
        )
    return found


async def look(storage: "PostgresStorage", found: wire.FleetInfo) -> None:
    members = await storage.members.list()
    began = time.time()
    row = (await storage.database.fetch(LOOK))[0]
    # As if the database had looked at its clock halfway through.
    found.clock_ahead = row["now"] - (began + time.time()) / 2
    found.schema_version = row["version"]
    found.members.extend(told(member, is_self=member.id == storage.id) for member in members)


def told(member: "Member", *, is_self: bool) -> wire.FleetMember:
    return wire.FleetMember(
        name=member.name,
        version=member.version,
        uptime_secs=int(max(0, member.age)),
        runs=member.runs,
        is_alive=member.is_alive,
        is_self=is_self,
    )
