"""The fleet: daemons that share a database, as one of them tells of it, in rows and findings."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crabtalk.component.command import one_line

from .checks import Finding
from .moments import age

if TYPE_CHECKING:
    from crabtalk.protocol import wire

# Seconds that clocks may differ by before anybody should know.
DIFFERENCE = 1.0


def rows(fleet: "wire.FleetInfo") -> list[tuple[str, str]]:
    """A line for the database, and one for each daemon."""
    found = [("database", one_line(fleet.trouble) or one_line(fleet.database))]
    return [*found, *(("daemon", line(member)) for member in fleet.members)]


def line(member: "wire.FleetMember") -> str:
    """One that died is there for an hour; when it did so, nobody knows."""
    who = f"{one_line(member.name)}{' (this one)' if member.is_self else ''}"
    if not member.is_alive:
        return f"{who}, {one_line(member.version)}, is dead"
    return (
        f"{who}, {one_line(member.version)}, since {age(member.uptime_secs)}, {member.runs} turns"
    )


def about_fleet(fleet: "wire.FleetInfo") -> Iterator[Finding]:
    if fleet.trouble:
        mend = "check that it runs, and url in [storage] of config.toml"
        yield Finding("fail", "database", one_line(fleet.trouble), mend)
        return
    text = (
        f"{one_line(fleet.database)} answers, schema {fleet.schema_version}, leases of "
        f"{fleet.lease_secs:g} seconds"
    )
    yield Finding("ok", "database", text)
    if abs(fleet.clock_ahead) > DIFFERENCE:
        where = "ahead of" if fleet.clock_ahead > 0 else "behind"
        text = (
            f"its clock is {abs(fleet.clock_ahead):.1f} seconds {where} this machine's; that does "
            "no harm, as only the database's decides"
        )
        yield Finding("warn", "clock", text, "have both set by NTP")
    if not fleet.is_listening:
        text = "this daemon does not hear at once what others tell it; it looks every second"
        yield Finding("warn", "listening", text, "let sessions LISTEN: no pooler by transaction")
    yield from about_members(fleet)


def about_members(fleet: "wire.FleetInfo") -> Iterator[Finding]:
    dead = [member for member in fleet.members if not member.is_alive]
    for member in fleet.members:
        if member.is_alive:
            yield Finding("ok", "fleet", line(member))
    for member in dead:
        text = f"{line(member)}; what it left is seen to by the others"
        yield Finding("warn", "fleet", text, "start it again, or leave it: in an hour it is gone")
    versions = {one_line(member.version) for member in fleet.members if member.is_alive}
    if len(versions) > 1:
        text = f"daemons of several versions share the database: {', '.join(sorted(versions))}"
        yield Finding("warn", "fleet", text, "upgrade those that are behind")
