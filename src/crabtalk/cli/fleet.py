"""The fleet, the daemons that share a database, as rows for `stats` and findings for `doctor`.

One of them reports on all.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crabtalk.service.command_line import to_one_line

from .home_checks import Finding
from .times import format_age

if TYPE_CHECKING:
    from crabtalk.protocol import wire

# Seconds that clocks may differ by without a warning.
MAX_CLOCK_DIFFERENCE = 1.0


def format_fleet(fleet: "wire.FleetInfo") -> list[tuple[str, str]]:
    """Return a row for the database, and one for each daemon."""
    rows = [("database", to_one_line(fleet.trouble) or to_one_line(fleet.database))]
    return [*rows, *(("daemon", format_member(member)) for member in fleet.members)]


def format_member(member: "wire.FleetMember") -> str:
    """Describe one daemon. A dead one stays listed for an hour; when it died is not known."""
    name = f"{to_one_line(member.name)}{' (this one)' if member.is_self else ''}"
    if not member.is_alive:
        return f"{name}, {to_one_line(member.version)}, is dead"
    return (
        f"{name}, {to_one_line(member.version)}, since {format_age(member.uptime_secs)}, "
        f"{member.runs} turns"
    )


def check_fleet(fleet: "wire.FleetInfo") -> Iterator[Finding]:
    if fleet.trouble:
        mend = "check that it runs, and url in [storage] of config.toml"
        yield Finding("fail", "database", to_one_line(fleet.trouble), mend)
        return
    text = (
        f"{to_one_line(fleet.database)} answers, schema {fleet.schema_version}, leases of "
        f"{fleet.lease_secs:g} seconds"
    )
    yield Finding("ok", "database", text)
    if abs(fleet.clock_ahead) > MAX_CLOCK_DIFFERENCE:
        where = "ahead of" if fleet.clock_ahead > 0 else "behind"
        text = (
            f"its clock is {abs(fleet.clock_ahead):.1f} seconds {where} this machine's; that does "
            "no harm, as only the database's decides"
        )
        yield Finding("warn", "clock", text, "have both set by NTP")
    if not fleet.is_listening:
        text = "this daemon does not hear at once what others tell it; it looks every second"
        yield Finding("warn", "listening", text, "let sessions LISTEN: no pooler by transaction")
    yield from check_members(fleet)


def check_members(fleet: "wire.FleetInfo") -> Iterator[Finding]:
    dead = [member for member in fleet.members if not member.is_alive]
    for member in fleet.members:
        if member.is_alive:
            yield Finding("ok", "fleet", format_member(member))
    for member in dead:
        text = f"{format_member(member)}; what it left is seen to by the others"
        yield Finding("warn", "fleet", text, "start it again, or leave it: in an hour it is gone")
    versions = {to_one_line(member.version) for member in fleet.members if member.is_alive}
    if len(versions) > 1:
        text = f"daemons of several versions share the database: {', '.join(sorted(versions))}"
        yield Finding("warn", "fleet", text, "upgrade those that are behind")
