"""crabup with a service manager: what systemd and launchd are asked, and what they are handed."""

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

from apps.crabup.tests.machine import COMPONENT, Machine, until
from crabtalk.client import connect_sync
from crabup.keeping import label_of, platform_manager, to_be_kept
from crabup.processes import Process
from tests.component.parsers import read_systemd

# Remembers which units are enabled, as files; their processes are not its business.
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
def systemd(machine: Machine) -> Machine:
    """The machine, with a systemd of the user."""
    machine.stub("systemctl", SYSTEMCTL.format(state=f"'{machine.bin.parent}/state'"))
    return machine


def units(machine: Machine) -> list[Path]:
    return sorted((machine.user / ".config" / "systemd" / "user").glob("*"))


@pytest.mark.req("crabup.units.systemd")
def test_where_systemd_runs_it_keeps_the_service(systemd: Machine) -> None:
    program = systemd.component()
    said = systemd.crabup("dice", "start").said
    assert said == "dice runs (pid 77), kept by systemd"
    label = label_of("dice", systemd.home)
    (path,) = units(systemd)
    assert path.name == f"{label}.service"
    unit = read_systemd(path.read_text())
    assert unit.command == (str(program), "run")
    assert unit.environment["CRABTALK_HOME"] == str(systemd.home)
    assert unit.environment["PATH"] == systemd.environment["PATH"]
    assert unit.values["StandardError"] == f"append:{systemd.home}/logs/dice.log"
    assert (systemd.home / "logs").is_dir()
    changes = [line for line in systemd.asked if " show" not in line]
    assert changes == [
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {label}.service",
    ]
    assert not (systemd.home / "run" / "dice.pid").exists()


@pytest.fixture
def living(machine: Machine) -> Iterator[Machine]:
    """The machine, with a systemd of the user that starts and ends processes."""
    state = machine.bin.parent / "state"
    state.mkdir()
    script = Path(__file__).with_name("tiny_systemctl.py")
    words = " ".join(shlex.quote(str(word)) for word in (sys.executable, script, state))
    machine.stub("systemctl", f'exec {words} "$@"')
    yield machine
    for path in state.iterdir():
        if (process := Process.at(int(path.read_text()))) is not None:
            process.end(1)


@pytest.mark.req("crabup.units.systemd")
@pytest.mark.req("crabup.ps")
def test_a_service_of_systemd_is_started_seen_read_restarted_and_stopped(living: Machine) -> None:
    living.component()
    (living.home / "run").mkdir(mode=0o700, parents=True)
    said = living.crabup("dice", "start").said
    row = living.ps()["dice"]
    assert said == f"dice runs (pid {row['pid']}), kept by systemd"
    assert (row["status"], row["managed_by"]) == ("running", "systemd")
    until(lambda: living.ps()["dice"]["port"] is not None)
    assert living.crabup("dice", "logs").answer == f"dice runs as run in {living.home}\n"
    assert living.crabup("dice", "restart").code == 0
    assert living.ps()["dice"]["pid"] != row["pid"]
    assert living.crabup("dice", "stop").said == "dice is stopped"
    assert living.ps() == {}
    lines = living.crabup("dice", "logs").answer.splitlines()
    assert lines == [f"dice runs as run in {living.home}", "dice says goodbye"] * 2
    assert units(living) == []


@pytest.mark.req("crabup.units.systemd")
@pytest.mark.req("crabup.log.once")
def test_a_daemon_of_systemd_is_pinged_and_says_everything_once(living: Machine) -> None:
    living.home.mkdir(mode=0o700)
    (living.home / "config.toml").write_text(
        '[llm]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "none"\n[daemon]\ntcp = "off"\n'
    )
    assert living.crabup("daemon", "start").said.endswith("kept by systemd")
    with connect_sync(home=living.home) as client:
        client.ping()
    assert living.ps()["daemon"]["managed_by"] == "systemd"
    assert living.crabup("daemon", "stop").said == "daemon is stopped"
    assert living.crabup("daemon", "logs").answer.count("crabtalkd is ready") == 1
    assert [path.name for path in (living.home / "logs").iterdir()] == ["crabtalkd.log"]


@pytest.mark.req("crabup.units.systemd")
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_nothing_to_say_against_the_unit(systemd: Machine) -> None:
    systemd.component()
    systemd.crabup("dice", "start")
    (path,) = units(systemd)
    # Sockets of the machine's own units are in it, and the path of a socket is short.
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
def test_what_is_in_a_path_survives_the_unit(tmp_path: Path) -> None:
    odd = tmp_path / "a b%h$HOME&é'\""
    odd.mkdir()
    with Machine(odd, odd / "home") as machine:
        machine.stub("systemctl", SYSTEMCTL.format(state=f"'{tmp_path}/state'"))
        # systemd takes no quotes in the path of a program.
        plain = tmp_path / "a b%h$HOME&é"
        plain.mkdir()
        machine.component().rename(plain / "crabtalk-dice")
        path = f"{plain}:{machine.environment['PATH']}"
        assert machine.crabup("dice", "start", PATH=path).code == 0
        (file,) = units(machine)
        unit = read_systemd(file.read_text())
        assert unit.command == (str(plain / "crabtalk-dice"), "run")
        assert unit.environment == {"PATH": path, "CRABTALK_HOME": str(machine.home)}
        assert unit.values["WorkingDirectory"] == str(machine.home)


@pytest.mark.req("crabup.names")
def test_a_path_that_no_unit_can_hold_is_refused_rather_than_bent(tmp_path: Path) -> None:
    odd = tmp_path / "quo'te"
    odd.mkdir()
    with Machine(odd, odd / "home") as machine:
        machine.stub("systemctl", SYSTEMCTL.format(state=f"'{tmp_path}/state'"))
        machine.component()
        assert "install it elsewhere" in machine.crabup("dice", "start").complaint
        assert units(machine) == []


@pytest.mark.req("crabup.units.systemd")
@pytest.mark.req("crabup.ps")
def test_what_systemd_says_is_in_the_table_and_goes_with_a_stop(systemd: Machine) -> None:
    systemd.component()
    systemd.crabup("dice", "start")
    assert systemd.ps()["dice"] == {
        "name": "dice",
        "port": None,
        "status": "running",
        "pid": 77,
        "managed_by": "systemd",
    }
    assert systemd.crabup("dice", "restart").said.endswith("kept by systemd")
    assert (
        systemd.asked.count(f"systemctl --user restart {label_of('dice', systemd.home)}.service")
        == 1
    )
    assert systemd.crabup("dice", "stop").said == "dice is stopped"
    assert units(systemd) == []
    assert systemd.ps() == {}


@pytest.mark.req("crabup.units.homes")
def test_services_of_two_homes_are_two_services(systemd: Machine) -> None:
    systemd.component()
    usual = systemd.user / ".crabtalk"
    systemd.crabup("dice", "start")
    systemd.crabup("dice", "start", "--home", usual)
    names = [path.name for path in units(systemd)]
    assert "ai.crabtalk.dice.service" in names
    assert len(names) == 2
    assert list(systemd.ps()) == ["dice"]
    systemd.crabup("dice", "stop")
    assert [path.name for path in units(systemd)] == ["ai.crabtalk.dice.service"]
    assert systemd.ps() == {}


@pytest.mark.req("crabup.units.systemd")
def test_what_crabup_kept_is_handed_to_a_service_manager_that_came_later(
    machine: Machine,
) -> None:
    machine.component()
    machine.crabup("dice", "start")
    child = machine.record().child
    assert child is not None
    machine.stub("systemctl", SYSTEMCTL.format(state=f"'{machine.bin.parent}/state'"))
    assert machine.crabup("dice", "start").complaint == (
        "dice is kept by crabup; `crabup dice restart` hands it to systemd"
    )
    assert machine.crabup("dice", "restart").code == 0
    assert not child.is_alive()
    assert machine.ps()["dice"]["managed_by"] == "systemd"


@pytest.mark.req("crabup.units.systemd")
def test_what_systemd_refuses_is_said_in_its_words(machine: Machine) -> None:
    machine.component()
    script = 'case "$2" in enable) echo "Unit is masked." >&2; exit 1;; esac'
    machine.stub("systemctl", f"{script}\necho LoadState=not-found")
    assert machine.crabup("dice", "start").complaint.endswith("failed: Unit is masked.")


@pytest.mark.req("crabup.first_start")
def test_a_key_that_a_service_would_not_find_is_named(machine: Machine) -> None:
    machine.home.mkdir()
    (machine.home / "config.toml").write_text(
        '[[providers]]\nname = "x"\nkind = "openai"\napi_key = "${MY_KEY}"\n'
    )
    machine.stub("crabtalkd")
    machine.stub("systemctl", "echo LoadState=loaded; echo ActiveState=failed")
    said = machine.crabup("daemon", "start")
    assert said.code == 1
    advice, complaint = said.err.splitlines()
    assert advice.startswith("config.toml reads MY_KEY from the environment, which systemd does")
    assert complaint.startswith("crabup: daemon ended; it is tried again")


@pytest.mark.req("crabup.units.launchd")
def test_where_launchd_runs_it_keeps_the_service(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: launchd is asked for only on its own platform."""
    program = machine.component()
    state = machine.bin.parent / "loaded"
    domain = f"gui/{os.getuid()}"
    machine.stub(
        "launchctl",
        f"case \"$1 $2\" in 'print {domain}') exit 0;;\n"
        f"bootstrap*) : > '{state}';; bootout*) rm '{state}';;\n"
        f"print*) [ -e '{state}' ] || exit 113; echo '  pid = 77';; esac",
    )
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    kept = to_be_kept("dice", machine.home, platform="darwin")
    assert kept.by == "launchd"
    kept.manager.start(kept.unit)
    assert kept.status().pid == 77
    label = label_of("dice", machine.home)
    path = machine.user / "Library" / "LaunchAgents" / f"{label}.plist"
    entry = plistlib.loads(path.read_bytes())
    assert entry["ProgramArguments"] == [str(program), "run"]
    assert entry["StandardErrorPath"] == str(machine.home / "logs" / "dice.log")
    assert f"launchctl bootstrap {domain} {path}" in machine.asked
    kept.manager.stop(kept.unit)
    assert not path.exists()
    assert machine.asked[-1] == f"launchctl bootout {domain}/{label}"


@pytest.mark.req("crabup.units.schtasks")
def test_where_the_task_scheduler_runs_it_keeps_the_service(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, as for launchd."""
    program = machine.component()
    machine.stub("schtasks", 'case "$*" in *"/tn ai."*/fo*) exit 1;; esac')
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCALAPPDATA", str(machine.user))
    kept = to_be_kept("dice", machine.home, platform="win32")
    assert kept.by == "schtasks"
    kept.manager.start(kept.unit)
    label = label_of("dice", machine.home)
    path = machine.user / "crabtalk" / "tasks" / f"{label}.xml"
    task = ElementTree.fromstring(path.read_bytes().decode("utf-16"))  # noqa: S314 - our own
    command = task.find(".//{*}Exec/{*}Command")
    assert command is not None
    assert command.text == str(program)
    assert machine.asked[-2:] == [
        f"schtasks /create /tn {label} /xml {path} /f",
        f"schtasks /run /tn {label}",
    ]


@pytest.mark.req("crabup.units.none")
@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "plan9"])
def test_where_no_service_manager_answers_crabup_keeps_the_service(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    machine.component(script=COMPONENT)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    assert platform_manager(platform) is None
    assert to_be_kept("dice", machine.home, platform=platform).by == "supervised"
