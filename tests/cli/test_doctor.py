"""crabtalk doctor finds problems and names their fixes; it changes and starts nothing."""

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import crabtalk as package
from crabtalk.cli.home_checks import MIB, Finding, run_home_checks
from crabtalk.client import connect
from crabtalk.memory import AddEntry, Memory
from crabtalk.protocol import PROTOCOL_VERSION, Server, wire
from tests.cli.canned_daemon import serve_daemon
from tests.cli.cli_process import run_at_terminal, run_crabtalk, strip_colours
from tests.daemon.in_process_daemon import CONFIG, PATIENCE, prepare_home
from tests.daemon.test_process import SpawnedDaemon
from tests.daemon.test_process import spawn_daemon as process
from tests.model_server import model_server

UNPRIVILEGED_UID = 65534
CRAB = {"crab": 'prompt = "You are crab."\n'}


async def run_doctor(home: Path, **env: Any) -> tuple[int | None, list[dict[str, str]]]:
    """Run the doctor; return its exit status and its findings."""
    outcome = await run_crabtalk("doctor", "--home", home, "--json", **env)
    assert outcome.err == ""
    found = json.loads(outcome.out)
    assert found["home"] == str(home)
    assert found["ok"] is (outcome.code == 0)
    return outcome.code, found["findings"]


def select_findings(findings: list[dict[str, str]], what: str) -> list[tuple[str, str, str]]:
    return [(f["level"], f["text"], f["mend"]) for f in findings if f["what"] == what]


def find_in_home(home: Path, what: str) -> list[Finding]:
    return [finding for finding in run_home_checks(home) if finding.what == what]


@asynccontextmanager
async def run_daemon(home: Path, agents: dict[str, str] = CRAB) -> AsyncIterator[SpawnedDaemon]:
    """Run a daemon process with a model."""
    async with model_server() as model:
        prepare_home(home, agents, CONFIG.replace("{url}", model.url))
        home.joinpath("config.toml").chmod(0o600)
        async with process(home, "--tcp", "off") as daemon, connect(home=home) as client:
            await client.list_agents()  # answered when it is ready
            yield daemon


@pytest.mark.req("cli.doctor")
async def test_a_healthy_home_has_only_ok_findings(home: Path) -> None:
    async with run_daemon(home):
        outcome = await run_crabtalk("doctor", "--home", home)
        lines = [line.split(maxsplit=2) for line in outcome.output.splitlines()]
        assert {line[0] for line in lines} == {"ok"}
        found = {what: text for _, what, text in lines}
        assert found["home"] == str(home)
        assert found["daemon"].startswith(f"crabtalkd {package.__version__} answers, started ")
        assert found["models"] == "scripted answers, of 1 there are"
        assert found["config"] == f"{home}/config.toml can be read"


@pytest.mark.req("cli.doctor.no_daemon")
async def test_without_home_and_daemon_nothing_is_created(home: Path) -> None:
    code, found = await run_doctor(home)
    assert code == 0
    assert select_findings(found, "home") == [
        ("warn", f"{home} is not there yet", f"crabtalkd run --home {home}")
    ]
    (daemon_finding,) = select_findings(found, "daemon")
    assert daemon_finding == ("warn", f"none runs in {home}", f"crabtalkd run --home {home}")
    assert not home.exists()


@pytest.mark.req("cli.doctor.no_daemon")
async def test_a_killed_daemon_and_a_hanging_one_are_told_apart(home: Path) -> None:
    async with run_daemon(home) as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            code, found = await run_doctor(home)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        assert code == 1
        ((level, text, mend),) = select_findings(found, "daemon")
        assert (level, mend) == ("fail", f"kill {daemon.process.pid}")
        assert "did not answer in time" in text
        await daemon.stop(signal.SIGKILL)
        code, found = await run_doctor(home)
        assert code == 0
        ((level, text, _),) = select_findings(found, "daemon")
        assert (level, "one was killed" in text) == ("warn", True)


@pytest.mark.req("cli.doctor.home")
async def test_a_home_that_is_a_file_is_a_finding(home: Path) -> None:
    home.write_text("not a directory")
    code, found = await run_doctor(home)
    assert code == 1
    assert select_findings(found, "home") == [
        ("fail", f"{home} is not a directory", f"mv {home} {home}.old")
    ]


@pytest.mark.req("cli.doctor.home")
def test_open_permissions_are_found_and_fixed_by_the_command(home: Path) -> None:
    prepare_home(home, CRAB, "")
    home.chmod(0o777)
    (finding,) = find_in_home(home, "home")
    assert (finding.level, finding.text) == ("fail", f"others can write to {home}")
    home.chmod(0o755)
    (finding,) = find_in_home(home, "home")
    assert (finding.level, finding.text) == ("warn", f"others can look into {home}")
    agent = home / "agents" / "crab.toml"
    agent.chmod(0o644)
    (home / "config.toml").chmod(0o600)
    (secrets,) = find_in_home(home, "permissions")
    assert secrets.level == "warn"
    assert secrets.text.startswith(f"{agent} can be read by others")
    subprocess.run(shlex.split(secrets.mend), check=True)
    assert [f.level for f in find_in_home(home, "permissions")] == ["ok"]
    subprocess.run(shlex.split(finding.mend), check=True)
    assert [f.level for f in find_in_home(home, "home")] == ["ok"]


@pytest.mark.req("cli.doctor.home")
def test_many_files_are_fixed_by_one_command(home: Path) -> None:
    prepare_home(home, {f"a{n}": 'prompt = "a"\n' for n in range(5)}, "")
    for path in (home, *home.glob("agents/*.toml")):
        path.chmod(0o755)
    (secrets,) = find_in_home(home, "permissions")
    assert " and " in secrets.text
    subprocess.run(shlex.split(secrets.mend), check=True)
    assert [f.level for f in find_in_home(home, "permissions")] == ["ok"]
    assert (home / "agents").stat().st_mode & 0o700 == 0o700


@contextmanager
def as_other_user() -> Iterator[Path]:
    """Yield an own directory while running as an unprivileged user: root can open everything."""
    with TemporaryDirectory() as directory:
        if os.geteuid() != 0:
            yield Path(directory)
            return
        os.chown(directory, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        os.setresuid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, 0)
        try:
            yield Path(directory)
        finally:
            os.setresuid(0, 0, 0)


@pytest.mark.req("cli.doctor.home")
def test_a_home_that_cannot_be_created_is_a_failure(home: Path) -> None:
    home.write_text("no directory")
    (found,) = find_in_home(home / "deep" / "home", "home")
    assert (found.level, found.mend) == ("fail", f"mv {home} {home}.old")
    assert found.text.endswith(f" cannot be made: {home} is not a directory")
    with as_other_user() as directory:
        directory.chmod(0o500)
        (found,) = find_in_home(directory / "home", "home")
        directory.chmod(0o700)
    assert found.level == "fail"
    assert found.text.endswith(f" cannot be made: {directory} is closed to you")


@pytest.mark.req("cli.doctor.home")
def test_unreadable_files_and_homes_are_found(home: Path) -> None:
    list(run_home_checks(home))  # late imports must happen before the privileges are dropped
    with as_other_user() as directory:
        home = directory / "home"
        prepare_home(home, CRAB, "")
        (home / "agents" / "crab.toml").chmod(0)
        (secrets,) = find_in_home(home, "permissions")
        assert (secrets.level, "cannot be read" in secrets.text) == ("fail", True)
        subprocess.run(shlex.split(secrets.mend), check=True)
        assert [f.level for f in find_in_home(home, "permissions")] == ["ok"]
        home.chmod(0)
        (closed,) = find_in_home(home, "home")
        assert (closed.level, closed.text) == ("fail", f"{home} is closed to you")
        assert {f.level for f in find_in_home(home, "config")} == {"fail"}
        subprocess.run(shlex.split(closed.mend), check=True)
        assert [f.level for f in find_in_home(home, "home")] == ["ok"]


@pytest.mark.req("cli.doctor.config")
async def test_invalid_toml_files_are_found_without_a_daemon(home: Path) -> None:
    prepare_home(home, {**CRAB, "owl": "prompt = "}, "[llm")
    code, found = await run_doctor(home)
    assert code == 1
    ((level, text, mend),) = select_findings(found, "config")
    assert level == "fail"
    assert text.startswith(f"{home}/config.toml is not valid TOML: ")
    assert mend == f"${{EDITOR:-vi}} {home}/config.toml"
    ((level, text, _),) = select_findings(found, "agents")
    assert (level, text.startswith(f"{home}/agents/owl.toml is not valid TOML: ")) == ("fail", True)


@pytest.mark.req("cli.doctor.config")
async def test_an_unusable_config_is_found_without_a_daemon(home: Path) -> None:
    prepare_home(home, CRAB, '[limits]\nmcp_wait_seconds = "a"\n')
    code, found = await run_doctor(home)
    assert code == 1
    ((level, text, mend),) = select_findings(found, "config")
    assert (level, mend) == ("fail", f"${{EDITOR:-vi}} {home}/config.toml")
    assert text.startswith(f"[limits] in {home}/config.toml: mcp_wait_seconds must be ")


@pytest.mark.req("cli.doctor.config")
async def test_ignored_parts_of_the_config_are_reported_once(home: Path) -> None:
    problem = f"{home}/config.toml has [daemn], which means nothing here and is ignored"
    async with run_daemon(home), connect(home=home) as client:
        with (home / "config.toml").open("a") as file:
            file.write("[daemn]\n")
        await client.reload()
        assert list((await client.get_stats()).problems) == [problem]
        code, found = await run_doctor(home)
        assert code == 0
        assert select_findings(found, "config") == [
            ("warn", problem, f"${{EDITOR:-vi}} {home}/config.toml")
        ]
        assert select_findings(found, "problem") == []


@pytest.mark.req("cli.doctor.config")
async def test_a_variable_that_is_not_set_is_named(home: Path) -> None:
    prepare_home(home, CRAB, '[llm]\napi_key = "${NO_SUCH_KEY}"\n[env]\nX = "${ELSE}"\n')
    _, found = await run_doctor(home)
    ((level, text, mend),) = select_findings(found, "models")
    assert (level, mend) == ("warn", "export NO_SUCH_KEY=…")
    assert "takes NO_SUCH_KEY from the environment" in text
    _, found = await run_doctor(home, NO_SUCH_KEY="k")
    assert select_findings(found, "models") == []


@pytest.mark.req("cli.doctor.leftovers")
def test_stale_ports_damaged_lines_large_logs_and_the_index_are_checked(home: Path) -> None:
    prepare_home(home, CRAB, "")
    for name in ("sessions", "logs", "index/sessions"):
        (home / name).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (home / "run" / "live.port").write_text(f"{listener.getsockname()[1]}\n")
        (home / "run" / "dead.port").write_text("1\n")
        dead, live = find_in_home(home, "components")
    assert (live.level, dead.level) == ("ok", "warn")
    assert dead.mend == f"rm {home}/run/dead.port"
    (home / "sessions" / "crab.damaged").write_text("{")
    assert find_in_home(home, "conversations")[0].level == "warn"
    assert find_in_home(home, "logs")[0].level == "ok"
    with (home / "logs" / "crabtalkd.log").open("wb") as log:
        log.truncate(501 * MIB)
    (logs,) = find_in_home(home, "logs")
    assert (logs.level, logs.text) == ("warn", f"{home}/logs has 501 MiB")
    subprocess.run(shlex.split(logs.mend), check=True)
    assert find_in_home(home, "logs")[0].level == "ok"
    assert find_in_home(home, "index")[0].level == "ok"
    (home / "index" / "sessions").rmdir()
    (home / "index" / "sessions").write_text("")
    assert find_in_home(home, "index")[0].level == "fail"


@pytest.mark.req("checksums.doctor")
async def test_each_damaged_record_is_named_with_and_without_a_daemon(home: Path) -> None:
    async with run_daemon(home) as daemon, connect(home=home) as client:
        await client.send("crab", "the tide")
        (log,) = (home / "sessions").glob("*.jsonl")
        log.write_bytes(log.read_bytes().replace(b'"the tide"', b'"the tidy"', 1))
        memory = home / "memory" / "crab.crmem"
        with Memory.open(memory) as entries:
            entries.apply(AddEntry("beach", "north"))
        memory.write_bytes(memory.read_bytes().replace(b"north", b"forth"))
        for is_running in (True, False):
            if not is_running:
                await daemon.stop()
            code, found = await run_doctor(home)
            assert code == 1
            note, record = select_findings(found, "records")
            assert note[0] == "fail"
            assert note[1].startswith(f"{memory}: entry 'beach' is not what was written; ")
            assert note[1].endswith(f"remove {memory}.sums to accept the memory as it is")
            level, text, mend = record
            assert level == "warn"
            assert text.startswith(f"{log}: line 2 (message 0 of ")
            assert "its checksum does not match" in text
            assert mend == f"sed -n 2p {log}"
    Path(f"{memory}.sums").unlink()
    log.unlink()
    code, found = await run_doctor(home)
    assert select_findings(found, "records") == [("ok", "no damage in 1 file", "")]


@pytest.mark.req("cli.doctor.daemon")
async def test_problems_of_the_daemon_are_reported_once(home: Path) -> None:
    lost = '[[mcps]]\nname = "lost"\ncommand = "no-such-program"\nauto_restart = false\n'
    agents = {**CRAB, "owl": "prompt = ", "cat": "prompt = 5", "twin": f'prompt = "t"\n{lost}'}
    async with run_daemon(home, agents), connect(home=home) as client:
        async with asyncio.timeout(PATIENCE):
            while (await client.list_mcps()).mcps[0].status != wire.FAILED:
                await asyncio.sleep(0.01)
        code, found = await run_doctor(home)
    assert code == 1
    assert [text.partition(" is ")[0] for _, text, _ in select_findings(found, "agents")] == [
        f"{home}/agents/owl.toml"
    ]
    reload = f"crabtalk reload --home {home}"
    assert select_findings(found, "problem") == [
        (
            "fail",
            f"{home}/agents/cat.toml: prompt must be a string",
            f"crabtalk reload --home {home}",
        )
    ]
    ((level, text, mend),) = select_findings(found, "mcp")
    assert (level, mend) == ("fail", reload)
    assert text.startswith("lost of twin failed: ")


class OtherVersionDaemon(Server):
    """A daemon of another version, without agents that work."""

    def __init__(self, protocol: int = PROTOCOL_VERSION, *models: str, active: str = "") -> None:
        self.protocol = protocol
        self.models = models
        self.active = active

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(protocol_version=self.protocol, server_version="9.9\x1b[2J")

    async def get_stats(self, request: wire.GetStats) -> wire.DaemonStats:
        return wire.DaemonStats(uptime_secs=7200, active_model=self.active)

    async def list_mcps(self, request: wire.ListMcpsMsg) -> wire.McpList:
        waiting = wire.McpInfo(name="web", source="crab", status=wire.CONNECTING, error="open it")
        found = wire.McpInfo(name="search", status=wire.CONNECTED, tool_count=2)
        return wire.McpList(mcps=[waiting, found])

    async def list_models(self, request: wire.ListModelsMsg) -> wire.ModelList:
        return wire.ModelList(models=[wire.ModelInfo(name=name) for name in self.models])

    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        return wire.AgentList(agents=[wire.AgentInfo(name="owl", model="gone")])


@pytest.mark.req("cli.doctor.daemon")
async def test_a_daemon_of_another_version_is_reported(home: Path) -> None:
    async with serve_daemon(OtherVersionDaemon(), home):
        code, found = await run_doctor(home)
        assert code == 1
        assert select_findings(found, "daemon") == [
            ("ok", "crabtalkd 9.9\\x1b[2J answers, started 2 hours ago", "")
        ]
        ((level, text, _),) = select_findings(found, "version")
        assert (level, f"and this is {package.__version__}" in text) == ("warn", True)
        assert select_findings(found, "models") == [
            ("fail", "none can be used, so no agent answers", f"crabtalkd setup --home {home}")
        ]
        assert select_findings(found, "mcp") == [
            ("warn", "web of crab waits for you: open it", ""),
            ("ok", "1 connected, with 2 tools", ""),
        ]


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        (
            "gone",
            ("fail", "gone is to answer, and no provider offers it", "crabtalk models use 'm m'"),
        ),
        ("m m", ("ok", "m m answers, of 1 there are", "")),
    ],
)
@pytest.mark.req("cli.doctor.daemon")
async def test_a_model_no_provider_offers_is_reported(
    active: str, expected: tuple[str, str, str], home: Path
) -> None:
    async with serve_daemon(OtherVersionDaemon(PROTOCOL_VERSION + 1, "m m", active=active), home):
        outcome = await run_crabtalk("doctor", "--json", CRABTALK_HOME=str(home))
    found = json.loads(outcome.out)["findings"]
    assert select_findings(found, "models") == [
        expected,
        ("warn", "owl wants gone, and no provider offers it", "crabtalk agents edit owl"),
    ]
    assert select_findings(found, "version")[0][0] == "fail"


@pytest.mark.req("cli.doctor.daemon")
async def test_a_daemon_that_cannot_answer_is_a_finding(home: Path) -> None:
    async with serve_daemon(Server(), home):
        code, found = await run_doctor(home)
    assert code == 1
    assert select_findings(found, "daemon")[-1][0] == "fail"


@pytest.mark.req("cli.colour")
async def test_only_terminals_get_colour(home: Path) -> None:
    where: tuple[Any, ...] = ("doctor", "--home", home)
    code, screen = await run_at_terminal(*where)
    assert code == 0
    assert "\x1b[33mwarn" in screen
    _, plain = await run_at_terminal(*where, NO_COLOR="1")
    assert plain == strip_colours(screen)
    assert (await run_crabtalk(*where)).output == plain
