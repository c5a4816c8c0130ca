"""What the daemon says of its fleet to whoever asks how it is: the others, and the database.

A database that is away is part of the answer, and does not hold it up.
"""

import asyncio
import time
from typing import TYPE_CHECKING

from crabtalk.protocol import wire
from crabtalk.storage import StorageError

if TYPE_CHECKING:
    from crabtalk.storage.postgres import MemberInfo, PostgresStorage

# How long whoever asks waits for the database, in seconds.
DATABASE_TIMEOUT_SECONDS = 2.0

VERSION_AND_TIME = """
SELECT (SELECT max(version) FROM crabtalk_schema) AS version,
    extract(epoch FROM clock_timestamp())::float8 AS now
"""


async def collect_fleet_info(storage: "PostgresStorage") -> wire.FleetInfo:
    found = wire.FleetInfo(
        database=storage.database.name,
        lease_secs=storage.turn_claims.seconds,
        is_listening=storage.mailbox.is_listening,
    )
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_SECONDS):
            await fill_fleet_info(storage, found)
    except StorageError as error:
        found.trouble = str(error)
    except TimeoutError:
        found.trouble = (
            f"the database {found.database} has not answered for "
            f"{DATABASE_TIMEOUT_SECONDS:g} seconds; it is tried again by itself"
        )
    return found


async def fill_fleet_info(storage: "PostgresStorage", found: wire.FleetInfo) -> None:
    members = await storage.membership.list_members()
    began = time.time()
    row = (await storage.database.fetch(VERSION_AND_TIME))[0]
    # As if the database had looked at its clock halfway through.
    found.clock_ahead = row["now"] - (began + time.time()) / 2
    found.schema_version = row["version"]
    found.members.extend(
        to_fleet_member(member, is_self=member.id == storage.id) for member in members
    )


def to_fleet_member(member: "MemberInfo", *, is_self: bool) -> wire.FleetMember:
    return wire.FleetMember(
        name=member.name,
        version=member.version,
        uptime_secs=int(max(0, member.age)),
        runs=member.runs,
        is_alive=member.is_alive,
        is_self=is_self,
    )
