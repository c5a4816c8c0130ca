"""Service managers: what is asked of them, in which order, and what is made of their answers."""

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
    """Answers commands as scripted, else with success, and keeps what it was asked."""

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
def test_systemd_learns_of_a_unit_before_it_starts_it(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform()
    manager = Systemd(platform, tmp_path / "systemd" / "user")
    manager.start(unit)
    assert manager.path(unit).read_bytes() == manager.render(unit)
    assert platform.commands == [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now ai.crabtalk.dice.service",
    ]


@pytest.mark.req("component.manager.stop")
def test_a_unit_that_is_stopped_is_forgotten(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform()
    manager = Systemd(platform, tmp_path)
    manager.stop(unit)
    assert platform.commands == []  # it was never there
    manager.start(unit)
    platform.commands.clear()
    manager.stop(unit)
    assert not manager.path(unit).exists()
    assert platform.commands == [
        "systemctl --user disable --now ai.crabtalk.dice.service",
        "systemctl --user daemon-reload",
    ]


@pytest.mark.req("component.manager.stop")
def test_a_component_that_is_stopped_leaves_no_port_file(
    tmp_path: Path, home: Path, unit: Unit
) -> None:
    place = ComponentPaths(home, "dice")
    place.port_file.path.parent.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place.port_file.path.write_text(f"{server.getsockname()[1]}\n")
        stop_component(unit, place, Systemd(FakePlatform(), tmp_path))
        assert place.port_file.path.exists()  # somebody runs it in the foreground
    stop_component(unit, place, Systemd(FakePlatform(), tmp_path))
    assert not place.port_file.path.exists()


@pytest.mark.req("component.manager.restart")
def test_a_restart_takes_up_what_is_new(tmp_path: Path, home: Path, unit: Unit) -> None:
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
    ("shown", "status"),
    [
        ("LoadState=loaded\nActiveState=active\nMainPID=77\n", UnitStatus("running", 77)),
        ("LoadState=loaded\nActiveState=activating\nMainPID=0\n", UnitStatus("running")),
        ("LoadState=loaded\nActiveState=failed\nMainPID=0\n", UnitStatus("failed")),
        ("LoadState=loaded\nActiveState=inactive\nMainPID=0\n", UnitStatus("stopped")),
        ("LoadState=not-found\nActiveState=inactive\nMainPID=0\n", UnitStatus("absent")),
    ],
)
def test_systemd_says_how_a_unit_is(
    tmp_path: Path, unit: Unit, shown: str, status: UnitStatus
) -> None:
    manager = Systemd(FakePlatform({"systemctl --user show": (0, shown)}), tmp_path)
    assert manager.status(unit) == status


@pytest.mark.req("component.manager.start")
def test_launchd_takes_a_unit_from_its_file(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform({"launchctl print": (113, "")})
    manager = Launchd(platform, tmp_path, 501)
    manager.start(unit)
    path = tmp_path / "ai.crabtalk.dice.plist"
    assert path.read_bytes() == manager.render(unit)
    assert platform.commands[-1] == f"launchctl bootstrap gui/501 {path}"


@pytest.mark.req("component.manager.stop")
def test_launchd_forgets_a_unit_that_is_stopped(tmp_path: Path, unit: Unit) -> None:
    platform = FakePlatform({"launchctl print": (0, "\tpid = 77\n")})
    manager = Launchd(platform, tmp_path, 501)
    manager.restart(unit)
    manager.stop(unit)
    assert platform.commands[-1] == "launchctl bootout gui/501/ai.crabtalk.dice"
    assert not manager.path(unit).exists()


@pytest.mark.req("component.manager.status")
@pytest.mark.parametrize(
    ("code", "shown", "status"),
    [
        (0, "\tstate = running\n\tpid = 77\n", UnitStatus("running", 77)),
        (0, "\tstate = waiting\n\tlast exit code = 1\n", UnitStatus("failed")),
        (0, "\tstate = waiting\n\tlast exit code = 0\n", UnitStatus("stopped")),
        (113, "", UnitStatus("absent")),
    ],
)
def test_launchd_says_how_a_unit_is(
    tmp_path: Path, unit: Unit, code: int, shown: str, status: UnitStatus
) -> None:
    assert Launchd(FakePlatform({"launchctl print": (code, shown)}), tmp_path, 501).status(
        unit
    ) == (status)


@pytest.mark.req("component.manager.start")
def test_the_task_scheduler_takes_a_unit_from_its_file_and_runs_it(
    tmp_path: Path, unit: Unit
) -> None:
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
def test_the_task_scheduler_forgets_a_unit_that_is_stopped(tmp_path: Path, unit: Unit) -> None:
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
def test_what_a_manager_refuses_is_said_in_its_words(
    tmp_path: Path, unit: Unit, make: Callable[[object, Path], ServiceManager]
) -> None:
    refusals = dict.fromkeys(
        ("systemctl", "launchctl", "schtasks"), (1, "a first line\nno such luck\n")
    )
    with pytest.raises(UnitError, match=r"(systemctl|launchctl|schtasks) .* failed: no such luck$"):
        make(FakePlatform(refusals), tmp_path).restart(unit)


@pytest.mark.req("component.manager.refused")
def test_a_manager_that_is_not_there_is_a_sentence(
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
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["--user daemon-reload", "--user enable --now ai.crabtalk.dice.service"]


@pytest.mark.req("component.units.platforms")
@pytest.mark.parametrize(
    ("platform", "kind"), [("linux", Systemd), ("darwin", Launchd), ("win32", TaskScheduler)]
)
def test_each_platform_has_its_manager(platform: str, kind: type[object]) -> None:
    assert isinstance(get_service_manager(platform=platform), kind)


@pytest.mark.req("component.units.platforms")
def test_a_platform_without_one_is_told_so() -> None:
    with pytest.raises(UnitError, match="start the program yourself"):
        get_service_manager(platform="plan9")


@pytest.mark.req("component.log")
def test_the_end_of_a_log_is_its_last_lines(home: Path) -> None:
    place = ComponentPaths(home, "dice")
    assert read_last_lines(place) == []
    place.log_path.parent.mkdir(parents=True)
    place.log_path.write_bytes(b"".join(b"line %d\n" % n for n in range(100)) + b"\xff\n")
    assert read_last_lines(place, 2) == ["line 99", "\N{REPLACEMENT CHARACTER}"]
    assert len(read_last_lines(place)) == 50


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
    service = McpService("dice", "Dice", lambda: pytest.fail("nobody runs it"), label="org.dice")
    assert service.label == "org.dice"
