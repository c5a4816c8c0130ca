"""Collects the fleet's part of the daemon's statistics: the other daemons and the database.

If the database does not answer, the statistics say so without waiting for it.
"""

import asyncio
import time
from typing import TYPE_CHECKING

from crabtalk.protocol import wire
from crabtalk.storage import StorageError

if TYPE_CHECKING:
    from crabtalk.storage.postgres import MemberInfo, PostgresStorage

# Seconds that a request for statistics waits for the database.
DATABASE_TIMEOUT_SECONDS = 2.0

VERSION_AND_TIME = """
SELECT (SELECT max(version) FROM crabtalk_schema) AS version,
    extract(epoch FROM clock_timestamp())::float8 AS now
"""


async def collect_fleet_info(storage: "PostgresStorage") -> wire.FleetInfo:
    info = wire.FleetInfo(
        database=storage.database.name,
        lease_secs=storage.turn_claims.seconds,
        is_listening=storage.mailbox.is_listening,
    )
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_SECONDS):
            await fill_fleet_info(storage, info)
    except StorageError as error:
        info.trouble = str(error)
    except TimeoutError:
        info.trouble = (
            f"the database {info.database} has not answered for "
            f"{DATABASE_TIMEOUT_SECONDS:g} seconds; it is tried again by itself"
        )
    return info


async def fill_fleet_info(storage: "PostgresStorage", info: wire.FleetInfo) -> None:
    members = await storage.membership.list_members()
    started_at = time.time()
    row = (await storage.database.fetch(VERSION_AND_TIME))[0]
    # Assumes that the database read its clock halfway through the query.
    info.clock_ahead = row["now"] - (started_at + time.time()) / 2
    info.schema_version = row["version"]
    info.members.extend(
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
