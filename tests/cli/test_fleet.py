"""crabtalk stats and doctor for daemons that share a database."""

import json
from pathlib import Path

import pytest

from crabtalk.daemon.fleet.stats import collect_fleet_info
from crabtalk.protocol import PROTOCOL_VERSION, Server, wire
from crabtalk.storage.postgres import PostgresStorage
from tests.cli.canned_daemon import serve_daemon
from tests.cli.cli_process import run_crabtalk
from tests.cli.test_doctor import run_doctor, select_findings
from tests.postgres import execute_sql


class FleetInfoDaemon(Server):
    """A daemon that reports the given fleet."""

    def __init__(self, fleet: wire.FleetInfo | None) -> None:
        self.fleet = fleet

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(protocol_version=PROTOCOL_VERSION, server_version="1")

    async def get_stats(self, request: wire.GetStats) -> wire.DaemonStats:
        return wire.DaemonStats(active_model="m", fleet=self.fleet)

    async def list_mcps(self, request: wire.ListMcpsMsg) -> wire.McpList:
        return wire.McpList()

    async def list_models(self, request: wire.ListModelsMsg) -> wire.ModelList:
        return wire.ModelList(models=[wire.ModelInfo(name="m", active=True)])

    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        return wire.AgentList()


def make_fleet_info() -> wire.FleetInfo:
    return wire.FleetInfo(
        database="postgresql://db/crabtalk",
        schema_version=1,
        lease_secs=10,
        clock_ahead=0.2,
        is_listening=True,
        members=[
            wire.FleetMember(
                name="a:/home", version="1", uptime_secs=7300, runs=2, is_alive=True, is_self=True
            ),
            wire.FleetMember(name="b\x1b[2J:/home", version="1", is_alive=True),
        ],
    )


@pytest.mark.req("fleet.stats")
async def test_stats_name_the_database_and_every_daemon(home: Path) -> None:
    fleet = make_fleet_info()
    fleet.members.append(wire.FleetMember(name="c:/home", version="0", uptime_secs=5))
    async with serve_daemon(FleetInfoDaemon(fleet), home):
        lines = (await run_crabtalk("stats", "--home", home)).output.splitlines()
        assert [line for line in lines if line.startswith("da")] == [
            "database       postgresql://db/crabtalk",
            "daemon         a:/home (this one), 1, since 2 hours, 2 turns",
            "daemon         b\\x1b[2J:/home, 1, since a moment, 0 turns",
            "daemon         c:/home, 0, is dead",
        ]
        outcome = json.loads((await run_crabtalk("stats", "--json", "--home", home)).output)
        assert outcome["fleet"]["lease_secs"] == 10
        assert [each["is_alive"] for each in outcome["fleet"]["members"]] == [True, True, False]


@pytest.mark.req("fleet.stats")
async def test_a_daemon_on_files_reports_no_fleet(home: Path) -> None:
    async with serve_daemon(FleetInfoDaemon(None), home):
        assert "database" not in (await run_crabtalk("stats", "--home", home)).output
        assert "fleet" not in json.loads(
            (await run_crabtalk("stats", "--json", "--home", home)).output
        )
        _, found = await run_doctor(home)
        assert select_findings(found, "database") == select_findings(found, "fleet") == []


@pytest.mark.req("fleet.doctor")
async def test_the_doctor_checks_the_database_and_every_daemon(home: Path) -> None:
    async with serve_daemon(FleetInfoDaemon(make_fleet_info()), home):
        _, found = await run_doctor(home)
        text = "postgresql://db/crabtalk answers, schema 1, leases of 10 seconds"
        assert select_findings(found, "database") == [("ok", text, "")]
        assert [level for level, _, _ in select_findings(found, "fleet")] == ["ok", "ok"]
        assert select_findings(found, "clock") == select_findings(found, "listening") == []


@pytest.mark.req("fleet.doctor")
async def test_problems_of_the_fleet_are_warnings(home: Path) -> None:
    fleet = make_fleet_info()
    fleet.clock_ahead = -90.04
    fleet.is_listening = False
    fleet.members[1].version = "2"
    fleet.members.append(wire.FleetMember(name="c:/home", version="0"))
    async with serve_daemon(FleetInfoDaemon(fleet), home):
        _, found = await run_doctor(home)
        ((level, text, mend),) = select_findings(found, "clock")
        assert (level, bool(mend)) == ("warn", True)
        assert "90.0 seconds behind" in text
        assert "no harm" in text
        ((level, text, _),) = select_findings(found, "listening")
        assert (level, "every second" in text) == ("warn", True)
        fleet_findings = select_findings(found, "fleet")
        assert [level for level, _, _ in fleet_findings] == ["ok", "ok", "warn", "warn"]
        assert "c:/home, 0, is dead" in fleet_findings[2][1]
        assert "several versions share the database: 1, 2" in fleet_findings[3][1]


@pytest.mark.req("fleet.doctor")
async def test_an_unreachable_database_is_a_failure(home: Path) -> None:
    trouble = "the database postgresql://db/crabtalk cannot be used now (it is away)"
    fleet = wire.FleetInfo(database="postgresql://db/crabtalk", trouble=trouble, lease_secs=10)
    async with serve_daemon(FleetInfoDaemon(fleet), home):
        code, found = await run_doctor(home)
        assert code == 1
        ((level, text, mend),) = select_findings(found, "database")
        assert (level, text) == ("fail", trouble)
        assert "config.toml" in mend
        assert select_findings(found, "fleet") == []
        assert trouble in (await run_crabtalk("stats", "--home", home)).output


@pytest.mark.req("fleet.doctor")
async def test_a_real_database_is_healthy(
    tmp_path: Path,
    home: Path,
    postgres_url: str,
) -> None:
    storage = PostgresStorage(tmp_path, postgres_url, name="here")
    try:
        await storage.open()
        execute_sql(postgres_url, "UPDATE daemons SET started_at = started_at - interval '3 hours'")
        async with serve_daemon(FleetInfoDaemon(await collect_fleet_info(storage)), home):
            _, found = await run_doctor(home)
            ((level, text, _),) = select_findings(found, "database")
            assert (level, "answers, schema " in text) == ("ok", True)
            ((level, text, _),) = select_findings(found, "fleet")
            assert (level, text.endswith("since 3 hours, 0 turns")) == ("ok", True)
    finally:
        await storage.close()
