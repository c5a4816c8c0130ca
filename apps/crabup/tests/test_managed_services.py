"""crabup with a service manager: the commands and units that systemd and launchd get."""

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from apps.crabup.tests.machine import COMPONENT_SCRIPT, CrabupMachine, wait_until
from crabtalk.client import connect_sync
from crabup.managed_services import find_platform_manager, make_label, plan_service
from crabup.processes import TrackedProcess
from tests.service.unit_parsers import parse_systemd_unit

# A stub that records enabled units as files. It runs no processes.
SYSTEMCTL = """
state={state}
mkdir -p "$state"
for last; do :; done
case "$2" in
  enable|restart) : > "$state/$last" ;;
  disable) rm -f "$state/$last" ;;
  show)
    if [ -e "$state/$last" ]; then printf 'LoadState=loaded\\nActiveState=active\\nMainPID=77\\n'
    else printf 'LoadState=not-found\\nActiveState=inactive\\nMainPID=0\\n'; fi ;;
esac
"""


@pytest.fixture
def systemd(machine: CrabupMachine) -> CrabupMachine:
    """The machine, with a stub for the user's systemd."""
    machine.add_stub("systemctl", SYSTEMCTL.format(state=f"'{machine.bin.parent}/state'"))
    return machine


def list_units(machine: CrabupMachine) -> list[Path]:
    return sorted((machine.user / ".config" / "systemd" / "user").glob("*"))


@pytest.mark.req("crabup.units.systemd")
def test_systemd_runs_the_service_where_it_is_available(systemd: CrabupMachine) -> None:
    program = systemd.add_component()
    notice = systemd.run_crabup("dice", "start").notice
    assert notice == "dice runs (pid 77), kept by systemd"
    label = make_label("dice", systemd.home)
    (path,) = list_units(systemd)
    assert path.name == f"{label}.service"
    unit = parse_systemd_unit(path.read_text())
    assert unit.command == (str(program), "run")
    assert unit.environment["CRABTALK_HOME"] == str(systemd.home)
    assert unit.environment["PATH"] == systemd.environment["PATH"]
    assert unit.values["StandardError"] == f"append:{systemd.home}/logs/dice.log"
    assert (systemd.home / "logs").is_dir()
    changes = [line for line in systemd.list_calls if " show" not in line]
    assert changes == [
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {label}.service",
    ]
    assert not (systemd.home / "run" / "dice.pid").exists()


@pytest.fixture
def running_systemd(machine: CrabupMachine) -> Iterator[CrabupMachine]:
    """The machine, with a small systemd of the user that runs processes."""
    state = machine.bin.parent / "state"
    state.mkdir()
    script = Path(__file__).with_name("tiny_systemctl.py")
    command_line = " ".join(shlex.quote(str(word)) for word in (sys.executable, script, state))
    machine.add_stub("systemctl", f'exec {command_line} "$@"')
    yield machine
    for path in state.iterdir():
        if (process := TrackedProcess.find_by_pid(int(path.read_text()))) is not None:
            process.terminate(1)


@pytest.mark.req("crabup.units.systemd")
@pytest.mark.req("crabup.ps")
def test_a_systemd_service_is_started_listed_read_restarted_and_stopped(
    running_systemd: CrabupMachine,
) -> None:
    running_systemd.add_component()
    (running_systemd.home / "run").mkdir(mode=0o700, parents=True)
    notice = running_systemd.run_crabup("dice", "start").notice
    row = running_systemd.list_services()["dice"]
    assert notice == f"dice runs (pid {row['pid']}), kept by systemd"
    assert (row["status"], row["managed_by"]) == ("running", "systemd")
    wait_until(lambda: running_systemd.list_services()["dice"]["port"] is not None)
    assert (
        running_systemd.run_crabup("dice", "logs").output
        == f"dice runs as run in {running_systemd.home}\n"
    )
    assert running_systemd.run_crabup("dice", "restart").code == 0
    assert running_systemd.list_services()["dice"]["pid"] != row["pid"]
    assert running_systemd.run_crabup("dice", "stop").notice == "dice is stopped"
    assert running_systemd.list_services() == {}
    lines = running_systemd.run_crabup("dice", "logs").output.splitlines()
    assert lines == [f"dice runs as run in {running_systemd.home}", "dice says goodbye"] * 2
    assert list_units(running_systemd) == []


@pytest.mark.req("crabup.units.systemd")
@pytest.mark.req("crabup.log.once")
def test_a_daemon_under_systemd_is_pinged_and_logs_each_line_once(
    running_systemd: CrabupMachine,
) -> None:
    running_systemd.home.mkdir(mode=0o700)
    (running_systemd.home / "config.toml").write_text(
        '[llm]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "none"\n[daemon]\ntcp = "off"\n'
    )
    assert running_systemd.run_crabup("daemon", "start").notice.endswith("kept by systemd")
    with connect_sync(home=running_systemd.home) as client:
        client.ping()
    assert running_systemd.list_services()["daemon"]["managed_by"] == "systemd"
    assert running_systemd.run_crabup("daemon", "stop").notice == "daemon is stopped"
    assert running_systemd.run_crabup("daemon", "logs").output.count("crabtalkd is ready") == 1
    assert [path.name for path in (running_systemd.home / "logs").iterdir()] == ["crabtalkd.log"]


@pytest.mark.req("crabup.units.systemd")
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_verifies_the_unit_without_complaint(systemd: CrabupMachine) -> None:
    systemd.add_component()
    systemd.run_crabup("dice", "start")
    (path,) = list_units(systemd)
    # verify reads the sockets of the machine's own units, and paths of sockets are short.
    with tempfile.TemporaryDirectory() as runtime:
        result = subprocess.run(
            ["systemd-analyze", "--user", "verify", path],
            env={**systemd.environment, "XDG_RUNTIME_DIR": runtime},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.req("crabup.names")
def test_unusual_characters_in_a_path_survive_the_unit(tmp_path: Path) -> None:
    unusual_path = tmp_path / "a b%h$HOME&é'\""
    unusual_path.mkdir()
    with CrabupMachine(unusual_path, unusual_path / "home") as machine:
        machine.add_stub("systemctl", SYSTEMCTL.format(state=f"'{tmp_path}/state'"))
        # systemd accepts no quotes in the path of a program.
        plain = tmp_path / "a b%h$HOME&é"
        plain.mkdir()
        machine.add_component().rename(plain / "crabtalk-dice")
        path = f"{plain}:{machine.environment['PATH']}"
        assert machine.run_crabup("dice", "start", PATH=path).code == 0
        (file,) = list_units(machine)
        unit = parse_systemd_unit(file.read_text())
        assert unit.command == (str(plain / "crabtalk-dice"), "run")
        assert unit.environment == {"PATH": path, "CRABTALK_HOME": str(machine.home)}
        assert unit.values["WorkingDirectory"] == str(machine.home)


@pytest.mark.req("crabup.names")
def test_a_path_that_no_unit_can_express_is_refused(tmp_path: Path) -> None:
    unusual_path = tmp_path / "quo'te"
    unusual_path.mkdir()
    with CrabupMachine(unusual_path, unusual_path / "home") as machine:
        machine.add_stub("systemctl", SYSTEMCTL.format(state=f"'{tmp_path}/state'"))
        machine.add_component()
        assert "install it elsewhere" in machine.run_crabup("dice", "start").error
        assert list_units(machine) == []


@pytest.mark.req("crabup.units.systemd")
@pytest.mark.req("crabup.ps")
def test_the_status_of_systemd_is_in_the_table_until_a_stop(systemd: CrabupMachine) -> None:
    systemd.add_component()
    systemd.run_crabup("dice", "start")
    assert systemd.list_services()["dice"] == {
        "name": "dice",
        "port": None,
        "status": "running",
        "pid": 77,
        "managed_by": "systemd",
    }
    assert systemd.run_crabup("dice", "restart").notice.endswith("kept by systemd")
    assert (
        systemd.list_calls.count(
            f"systemctl --user restart {make_label('dice', systemd.home)}.service"
        )
        == 1
    )
    assert systemd.run_crabup("dice", "stop").notice == "dice is stopped"
    assert list_units(systemd) == []
    assert systemd.list_services() == {}


@pytest.mark.req("crabup.units.homes")
def test_services_of_two_homes_are_two_services(systemd: CrabupMachine) -> None:
    systemd.add_component()
    usual = systemd.user / ".crabtalk"
    systemd.run_crabup("dice", "start")
    systemd.run_crabup("dice", "start", "--home", usual)
    names = [path.name for path in list_units(systemd)]
    assert "ai.crabtalk.dice.service" in names
    assert len(names) == 2
    assert list(systemd.list_services()) == ["dice"]
    systemd.run_crabup("dice", "stop")
    assert [path.name for path in list_units(systemd)] == ["ai.crabtalk.dice.service"]
    assert systemd.list_services() == {}


@pytest.mark.req("crabup.units.systemd")
def test_a_supervised_service_is_moved_to_a_service_manager_that_appeared_later(
    machine: CrabupMachine,
) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    child = machine.read_record().child
    assert child is not None
    machine.add_stub("systemctl", SYSTEMCTL.format(state=f"'{machine.bin.parent}/state'"))
    assert machine.run_crabup("dice", "start").error == (
        "dice is kept by crabup; `crabup dice restart` hands it to systemd"
    )
    assert machine.run_crabup("dice", "restart").code == 0
    assert not child.is_alive()
    assert machine.list_services()["dice"]["managed_by"] == "systemd"


@pytest.mark.req("crabup.units.systemd")
def test_an_error_of_systemd_is_reported(machine: CrabupMachine) -> None:
    machine.add_component()
    script = 'case "$2" in enable) echo "Unit is masked." >&2; exit 1;; esac'
    machine.add_stub("systemctl", f"{script}\necho LoadState=not-found")
    assert machine.run_crabup("dice", "start").error.endswith("failed: Unit is masked.")


@pytest.mark.req("crabup.first_start")
def test_an_environment_variable_that_a_service_would_miss_is_named(machine: CrabupMachine) -> None:
    machine.home.mkdir()
    (machine.home / "config.toml").write_text(
        '[[providers]]\nname = "x"\nkind = "openai"\napi_key = "${MY_KEY}"\n'
    )
    machine.add_stub("crabtalkd")
    machine.add_stub("systemctl", "echo LoadState=loaded; echo ActiveState=failed")
    outcome = machine.run_crabup("daemon", "start")
    assert outcome.code == 1
    advice, complaint = outcome.err.splitlines()
    assert advice.startswith("config.toml reads MY_KEY from the environment, which systemd does")
    assert complaint.startswith("crabup: daemon ended; it is tried again")


@pytest.mark.req("crabup.units.launchd")
def test_launchd_runs_the_service_where_it_is_available(
    machine: CrabupMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in this process, because crabup uses launchd only on macOS."""
    program = machine.add_component()
    state = machine.bin.parent / "loaded"
    domain = f"gui/{os.getuid()}"
    machine.add_stub(
        "launchctl",
        f"case \"$1 $2\" in 'print {domain}') exit 0;;\n"
        f"bootstrap*) : > '{state}';; bootout*) rm '{state}';;\n"
        f"print*) [ -e '{state}' ] || exit 113; echo '  pid = 77';; esac",
    )
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    managed = plan_service("dice", machine.home, platform="darwin")
    assert managed.managed_by == "launchd"
    managed.manager.start(managed.unit)
    assert managed.status().pid == 77
    label = make_label("dice", machine.home)
    path = machine.user / "Library" / "LaunchAgents" / f"{label}.plist"
    entry = plistlib.loads(path.read_bytes())
    assert entry["ProgramArguments"] == [str(program), "run"]
    assert entry["StandardErrorPath"] == str(machine.home / "logs" / "dice.log")
    assert f"launchctl bootstrap {domain} {path}" in machine.list_calls
    managed.manager.stop(managed.unit)
    assert not path.exists()
    assert machine.list_calls[-1] == f"launchctl bootout {domain}/{label}"


@pytest.mark.req("crabup.units.schtasks")
def test_the_task_scheduler_runs_the_service_where_it_is_available(
    machine: CrabupMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in this process, as for launchd."""
    program = machine.add_component()
    machine.add_stub("schtasks", 'case "$*" in *"/tn ai."*/fo*) exit 1;; esac')
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCALAPPDATA", str(machine.user))
    managed = plan_service("dice", machine.home, platform="win32")
    assert managed.managed_by == "schtasks"
    managed.manager.start(managed.unit)
    label = make_label("dice", machine.home)
    path = machine.user / "crabtalk" / "tasks" / f"{label}.xml"
    task = ElementTree.fromstring(path.read_bytes().decode("utf-16"))  # noqa: S314 - our own
    command = task.find(".//{*}Exec/{*}Command")
    assert command is not None
    assert command.text == str(program)
    assert machine.list_calls[-2:] == [
        f"schtasks /create /tn {label} /xml {path} /f",
        f"schtasks /run /tn {label}",
    ]


@pytest.mark.req("crabup.units.none")
@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "plan9"])
def test_crabup_supervises_the_service_where_no_service_manager_answers(
    machine: CrabupMachine, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    machine.add_component(script=COMPONENT_SCRIPT)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    assert find_platform_manager(platform) is None
    assert plan_service("dice", machine.home, platform=platform).managed_by == "supervised"
