"""Service managers: the commands they are given, and how their answers are read."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from crabtalk.service import (
    ComponentPaths,
    McpService,
    Service,
    ServiceManager,
    Unit,
    UnitError,
    UnitStatus,
    get_service_manager,
    read_last_lines,
    stop_component,
)
from crabtalk.service.launchd import Launchd
from crabtalk.service.schtasks import TaskScheduler
from crabtalk.service.service_managers import run_command
from crabtalk.service.systemd import Systemd


class FakePlatform:
    """Answers commands as scripted, else with success, and records them."""

    def __init__(self, answers: dict[str, tuple[int, str]] | None = None) -> None:
        self.answers = answers or {}
        self.commands: list[str] = []

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        line = " ".join(command)
        self.commands.append(line)
        for start, (code, text) in self.answers.items():
            if line.startswith(start):
                return subprocess.CompletedProcess(list(command), code, text, "")
        return subprocess.CompletedProcess(list(command), 0, "", "")


@pytest.fixture
def unit(home: Path) -> Unit:
    return Unit.for_service(
        Service("dice", "Dice for agents"), Path("/opt/dice"), home, path="/bin"
    )


@pytest.mark.req("component.manager.start")
def test_systemd_reloads_its_units_before_it_starts_one(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform()
    manager = Systemd(platform, tmp_path / "systemd" / "user")
    manager.start(unit)
    assert manager.path(unit).read_bytes() == manager.render(unit)
    assert platform.commands == [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now ai.crabtalk.dice.service",
    ]


@pytest.mark.req("component.manager.stop")
def test_a_stopped_unit_is_uninstalled(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform()
    manager = Systemd(platform, tmp_path)
    manager.stop(unit)
    assert platform.commands == []  # it was not installed
    manager.start(unit)
    platform.commands.clear()
    manager.stop(unit)
    assert not manager.path(unit).exists()
    assert platform.commands == [
        "systemctl --user disable --now ai.crabtalk.dice.service",
        "systemctl --user daemon-reload",
    ]


@pytest.mark.req("component.manager.stop")
def test_a_stopped_component_leaves_no_port_file(tmp_path: Path, home: Path, unit: Unit) -> None:
    paths = ComponentPaths(home, "dice")
    paths.port_file.path.parent.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        paths.port_file.path.write_text(f"{server.getsockname()[1]}\n")
        stop_component(unit, paths, Systemd(FakePlatform(), tmp_path))
        assert paths.port_file.path.exists()  # a person runs it in the foreground
    stop_component(unit, paths, Systemd(FakePlatform(), tmp_path))
    assert not paths.port_file.path.exists()


@pytest.mark.req("component.manager.restart")
def test_a_restart_installs_the_new_unit(tmp_path: Path, home: Path, unit: Unit) -> None:
    platform = FakePlatform()
    manager = Systemd(platform, tmp_path)
    manager.start(unit)
    newer = Unit.for_service(Service("dice", "Better dice"), Path("/opt/dice2"), home, path="/bin")
    manager.restart(newer)
    assert b"/opt/dice2" in manager.path(unit).read_bytes()
    assert platform.commands[-3:] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable ai.crabtalk.dice.service",
        "systemctl --user restart ai.crabtalk.dice.service",
    ]


@pytest.mark.req("component.manager.status")
@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("LoadState=loaded\nActiveState=active\nMainPID=77\n", UnitStatus("running", 77)),
        ("LoadState=loaded\nActiveState=activating\nMainPID=0\n", UnitStatus("running")),
        ("LoadState=loaded\nActiveState=failed\nMainPID=0\n", UnitStatus("failed")),
        ("LoadState=loaded\nActiveState=inactive\nMainPID=0\n", UnitStatus("stopped")),
        ("LoadState=not-found\nActiveState=inactive\nMainPID=0\n", UnitStatus("absent")),
    ],
)
def test_the_status_of_a_systemd_unit_is_parsed(
    tmp_path: Path, unit: Unit, output: str, status: UnitStatus
) -> None:
    manager = Systemd(FakePlatform({"systemctl --user show": (0, output)}), tmp_path)
    assert manager.status(unit) == status


@pytest.mark.req("component.manager.start")
def test_launchd_loads_a_unit_from_its_file(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform({"launchctl print": (113, "")})
    manager = Launchd(platform, tmp_path, 501)
    manager.start(unit)
    path = tmp_path / "ai.crabtalk.dice.plist"
    assert path.read_bytes() == manager.render(unit)
    assert platform.commands[-1] == f"launchctl bootstrap gui/501 {path}"


@pytest.mark.req("component.manager.stop")
def test_a_stopped_launchd_agent_is_uninstalled(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform({"launchctl print": (0, "\tpid = 77\n")})
    manager = Launchd(platform, tmp_path, 501)
    manager.restart(unit)
    manager.stop(unit)
    assert platform.commands[-1] == "launchctl bootout gui/501/ai.crabtalk.dice"
    assert not manager.path(unit).exists()


@pytest.mark.req("component.manager.status")
@pytest.mark.parametrize(
    ("code", "output", "status"),
    [
        (0, "\tstate = running\n\tpid = 77\n", UnitStatus("running", 77)),
        (0, "\tstate = waiting\n\tlast exit code = 1\n", UnitStatus("failed")),
        (0, "\tstate = waiting\n\tlast exit code = 0\n", UnitStatus("stopped")),
        (113, "", UnitStatus("absent")),
    ],
)
def test_the_status_of_a_launchd_agent_is_parsed(
    tmp_path: Path, unit: Unit, code: int, output: str, status: UnitStatus
) -> None:
    assert Launchd(FakePlatform({"launchctl print": (code, output)}), tmp_path, 501).status(
        unit
    ) == (status)


@pytest.mark.req("component.manager.start")
def test_a_scheduled_task_is_created_from_its_file_and_run(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform({"schtasks /query": (1, "")})
    manager = TaskScheduler(platform, tmp_path)
    manager.start(unit)
    path = tmp_path / "ai.crabtalk.dice.xml"
    assert path.read_bytes() == manager.render(unit)
    assert platform.commands[1:] == [
        f"schtasks /create /tn ai.crabtalk.dice /xml {path} /f",
        "schtasks /run /tn ai.crabtalk.dice",
    ]


@pytest.mark.req("component.manager.stop")
def test_a_stopped_scheduled_task_is_deleted(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform({"schtasks /query": (0, '"\\ai.crabtalk.dice","N/A","Running"\n')})
    manager = TaskScheduler(platform, tmp_path)
    assert manager.status(unit) == UnitStatus("running")
    manager.restart(unit)
    manager.stop(unit)
    assert platform.commands[-2:] == [
        "schtasks /end /tn ai.crabtalk.dice",
        "schtasks /delete /tn ai.crabtalk.dice /f",
    ]
    assert not manager.path(unit).exists()


@pytest.mark.req("component.manager.refused")
@pytest.mark.parametrize(
    "make",
    [
        lambda run, path: Systemd(run, path),
        lambda run, path: Launchd(run, path, 501),
        lambda run, path: TaskScheduler(run, path),
    ],
)
def test_the_error_of_a_service_manager_is_reported(
    tmp_path: Path, unit: Unit, make: Callable[[object, Path], ServiceManager]
) -> None:
    refusals = dict.fromkeys(
        ("systemctl", "launchctl", "schtasks"), (1, "a first line\nno such luck\n")
    )
    with pytest.raises(UnitError, match=r"(systemctl|launchctl|schtasks) .* failed: no such luck$"):
        make(FakePlatform(refusals), tmp_path).restart(unit)


@pytest.mark.req("component.manager.refused")
def test_a_missing_service_manager_is_reported(
    tmp_path: Path, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnitError, match="systemctl is not installed; start the program yourself"):
        Systemd(run_command, tmp_path).start(unit)


@pytest.mark.req("component.manager.start")
def test_commands_run_as_processes_of_their_own(
    tmp_path: Path, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    systemctl.chmod(systemctl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    get_service_manager(platform="linux").start(unit)
    assert (tmp_path / "config/systemd/user/ai.crabtalk.dice.service").exists()
    commands = (tmp_path / "asked").read_text().splitlines()
    assert commands == ["--user daemon-reload", "--user enable --now ai.crabtalk.dice.service"]


@pytest.mark.req("component.units.platforms")
@pytest.mark.parametrize(
    ("platform", "kind"), [("linux", Systemd), ("darwin", Launchd), ("win32", TaskScheduler)]
)
def test_each_platform_has_its_manager(platform: str, kind: type[object]) -> None:
    assert isinstance(get_service_manager(platform=platform), kind)


@pytest.mark.req("component.units.platforms")
def test_an_unsupported_platform_is_reported() -> None:
    with pytest.raises(UnitError, match="start the program yourself"):
        get_service_manager(platform="plan9")


@pytest.mark.req("component.log")
def test_the_end_of_a_log_is_its_last_lines(home: Path) -> None:
    paths = ComponentPaths(home, "dice")
    assert read_last_lines(paths) == []
    paths.log_path.parent.mkdir(parents=True)
    paths.log_path.write_bytes(b"".join(b"line %d\n" % n for n in range(100)) + b"\xff\n")
    assert read_last_lines(paths, 2) == ["line 99", "\N{REPLACEMENT CHARACTER}"]
    assert len(read_last_lines(paths)) == 50


@pytest.mark.req("component.service")
def test_a_service_knows_its_label_without_the_sdk() -> None:
    code = (
        "import sys; from crabtalk.service import McpService\n"
        "s = McpService('dice', 'Dice', lambda: __import__('mcp.server'))\n"
        "print(s.label, s.name, s.description, 'mcp' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "ai.crabtalk.dice dice Dice False\n"


@pytest.mark.req("component.service")
def test_a_service_can_have_another_label() -> None:
    service = McpService("dice", "Dice", lambda: pytest.fail("it is not run"), label="org.dice")
    assert service.label == "org.dice"
