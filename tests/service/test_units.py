"""Units: the platform reads paths, PATHs and arguments exactly as they were given."""

import os
import plistlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from crabtalk.service import Service, Unit, UnitError
from crabtalk.service.launchd import Launchd
from crabtalk.service.schtasks import NAMESPACE, TaskScheduler
from crabtalk.service.systemd import Systemd
from tests.service.unit_parsers import (
    parse_shown_words,
    parse_systemd_unit,
    split_windows_command_line,
)

NOWHERE = Path("/nowhere")


def forbid_commands(_: object) -> subprocess.CompletedProcess[str]:
    raise AssertionError("rendering starts nothing")


SYSTEMD = Systemd(forbid_commands, NOWHERE)
LAUNCHD = Launchd(forbid_commands, NOWHERE, 501)
SCHTASKS = TaskScheduler(forbid_commands, NOWHERE)

# Characters with a meaning in quoting rules are drawn more often than by chance.
WORDS = ["%h", "%%", "$HOME", "${HOME}", "$$", "\\n", "]]>", "é", "日本", "\N{ZERO WIDTH SPACE}"]
WORDS += ["\x85", "\N{LINE SEPARATOR}", "\N{NO-BREAK SPACE}"]
pieces = st.sampled_from([*"%$\"'\\;#\n\t &<>=~@-\x01\x7f\r`", *WORDS])
texts = (
    st.lists(st.one_of(pieces, st.text(max_size=3)), max_size=6)
    .map("".join)
    .filter(lambda text: "\0" not in text)
)
paths = texts.map(lambda text: os.path.normpath(f"/p{text}"))
units = st.builds(
    lambda program, arguments, directory, path: Unit(
        "ai.crabtalk.x",
        "Some component",
        (program, *arguments),
        Path(directory),
        {"PATH": path, "CRABTALK_HOME": str(Path(directory))},
        Path(directory) / "logs" / "x.log",
    ),
    paths,
    st.lists(texts, max_size=4),
    paths,
    texts,
)


def render_unit(manager: Systemd | Launchd | TaskScheduler, unit: Unit) -> bytes:
    """Skip units that the platform cannot express; a test below shows that those are few."""
    try:
        return manager.render(unit)
    except UnitError:
        assume(False)
        raise


@pytest.mark.req("component.units.escaping")
@settings(max_examples=40)
@given(units)
def test_systemd_syntax_preserves_every_text(unit: Unit) -> None:
    read = parse_systemd_unit(render_unit(SYSTEMD, unit).decode())
    assert read.command == unit.command
    assert read.environment == unit.environment
    assert read.values["WorkingDirectory"] == str(unit.directory)
    assert read.values["StandardOutput"] == f"append:{unit.log}"


@pytest.mark.req("component.units.escaping")
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@settings(max_examples=20)
@given(units)
@example(
    Unit(
        "ai.crabtalk.x",
        "100% crab",
        ("/opt/$HOME %h/é x", "a b", "", ";", "x\ny", "$HOME", "${X}", "50%", "\"'\\", "\x01\x7f"),
        Path("/srv/a b%c\\d$e"),
        {"PATH": "/a b:/%h:$PATH:\"q\":'s':\\n:\n", "X": ""},
        Path("/srv/l%o g"),
    )
)
def test_systemd_itself_reads_every_text_unchanged(unit: Unit) -> None:
    text = render_unit(SYSTEMD, unit)
    with make_scratch_directory() as directory:
        dump = verify_unit(directory, unit, text)
    assert f"\n\t\tWorkingDirectory: {unit.directory}\n" in dump
    for name, value in unit.environment.items():
        assert f"\n\t\tEnvironment: {name}={value}\n" in dump
    line = dump.split("\n\t\t\tCommand Line: ")[1].split("\n")[0]
    program, *arguments = parse_shown_words(line)
    assert program == unit.command[0]
    # Variables are expanded at the start of the unit, where `$$` stands for `$`.
    assert [word.replace("$$", "$") for word in arguments] == list(unit.command[1:])


@pytest.mark.req("component.units.systemd")
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_verifies_a_components_unit_without_complaint(home: Path) -> None:
    unit = Unit.for_service(Service("dice", "Dice for agents"), Path("/bin/true"), home)
    with make_scratch_directory() as directory:
        dump = verify_unit(directory, unit, SYSTEMD.render(unit), log_level="info")
    assert dump == ""


@pytest.mark.req("component.units.systemd")
def test_a_systemd_unit_restarts_its_program_and_starts_it_at_login(home: Path) -> None:
    unit = Unit.for_service(
        Service("dice", "Dice for agents"), Path("/opt/dice"), home, path="/bin"
    )
    values = parse_systemd_unit(SYSTEMD.render(unit).decode()).values
    assert values["Description"] == "Dice for agents"
    assert values["After"] == "network-online.target"
    assert values["Type"] == "simple"
    assert values["Restart"] == "always"
    assert values["RestartSec"] == "3"
    assert values["WantedBy"] == "default.target"


@pytest.mark.req("component.units.escaping")
@settings(max_examples=40)
@given(units)
def test_launchd_syntax_preserves_every_text(unit: Unit) -> None:
    read = plistlib.loads(render_unit(LAUNCHD, unit))
    assert tuple(read["ProgramArguments"]) == unit.command
    assert read["EnvironmentVariables"] == unit.environment
    assert read["WorkingDirectory"] == str(unit.directory)
    assert read["StandardOutPath"] == read["StandardErrorPath"] == str(unit.log)


@pytest.mark.req("component.units.launchd")
def test_a_launchd_agent_restarts_its_program_and_starts_it_at_login(home: Path) -> None:
    unit = Unit.for_service(
        Service("dice", "Dice for agents"), Path("/opt/dice"), home, path="/bin"
    )
    read = plistlib.loads(LAUNCHD.render(unit))
    assert read["Label"] == "ai.crabtalk.dice"
    assert read["RunAtLoad"] is True
    assert read["KeepAlive"] is True


@pytest.mark.req("component.units.escaping")
@settings(max_examples=40)
@given(units)
def test_task_scheduler_syntax_preserves_every_text(unit: Unit) -> None:
    task = ElementTree.fromstring(render_unit(SCHTASKS, unit))  # noqa: S314
    elements = {
        name: find_text(task, name) for name in ("Command", "Arguments", "WorkingDirectory")
    }
    assert elements["Command"] == unit.command[0]
    assert elements["WorkingDirectory"] == str(unit.directory)
    assert split_windows_command_line(elements["Arguments"]) == list(unit.command[1:])


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=1000)
@given(units)
def test_every_platform_preserves_a_thousand_random_units(unit: Unit) -> None:
    for check in (
        test_systemd_syntax_preserves_every_text,
        test_launchd_syntax_preserves_every_text,
        test_task_scheduler_syntax_preserves_every_text,
    ):
        check.hypothesis.inner_test(unit)


def find_text(task: ElementTree.Element, name: str) -> str:
    return task.findtext(f".//{{{NAMESPACE}}}{name}") or ""


@pytest.mark.req("component.units.schtasks")
def test_a_task_starts_at_logon_with_least_privilege_once_and_without_a_time_limit(
    home: Path,
) -> None:
    unit = Unit.for_service(Service("dice", "Dice & more"), Path("/opt/dice"), home, path="/bin")
    data = SCHTASKS.render(unit)
    assert data.startswith(b"\xff\xfe")
    task = ElementTree.fromstring(data)  # noqa: S314
    assert task.get("version") == "1.2"
    expected = {
        "Description": "Dice & more",
        "LogonType": "InteractiveToken",
        "RunLevel": "LeastPrivilege",
        "MultipleInstancesPolicy": "IgnoreNew",
        "ExecutionTimeLimit": "PT0S",
        "Interval": "PT1M",
        "Count": "3",
        "Arguments": "run",
    }
    assert {name: find_text(task, name) for name in expected} == expected
    assert task.find(f"{{{NAMESPACE}}}Triggers/{{{NAMESPACE}}}LogonTrigger") is not None


@pytest.mark.req("component.units.refused")
@pytest.mark.parametrize(
    ("manager", "unit"),
    [
        (SYSTEMD, Unit("x", "", ("/opt/a'b",), NOWHERE)),
        (SYSTEMD, Unit("x", "", ("/opt/a\\b",), NOWHERE)),
        (SYSTEMD, Unit("x", "", ("/opt/x",), Path("/a\nExecStart=/bin/evil"))),
        (SYSTEMD, Unit("x", "", ("/opt/x",), Path("/a "))),
        (SYSTEMD, Unit("x", "", ("/opt/x",), Path("/a\\"))),
        (SYSTEMD, Unit("x", "", ("/opt/x",), NOWHERE, {"PATH": "\x01"})),
        (SYSTEMD, Unit("x", "", ("/opt/x", "\udcff"), NOWHERE)),
        (LAUNCHD, Unit("x", "", ("/opt/\x01",), NOWHERE)),
        (LAUNCHD, Unit("x", "", ("/opt/x", "\r"), NOWHERE)),
        (SCHTASKS, Unit("x", "", ("/opt/x", "%PATH%"), NOWHERE)),
        (SCHTASKS, Unit("x", "", ("/opt/x", "$(Arg0)"), NOWHERE)),
        (SCHTASKS, Unit("x", "", ("/opt/x",), Path("/\x01"))),
    ],
)
def test_a_text_that_a_platform_cannot_express_is_refused_with_advice(
    manager: Systemd | Launchd | TaskScheduler, unit: Unit
) -> None:
    with pytest.raises(UnitError, match=r"; (leave|choose|install|take) "):
        manager.render(unit)


@pytest.mark.req("component.units.refused")
def test_a_description_is_one_line(home: Path) -> None:
    unit = Unit("x", "Dice\nExecStart=/bin/evil\n 100%", ("/opt/x",), home)
    read = parse_systemd_unit(SYSTEMD.render(unit).decode())
    assert read.command == ("/opt/x",)
    assert read.values["Description"] == "Dice ExecStart=/bin/evil 100%"


@pytest.mark.req("component.units.refused")
@pytest.mark.parametrize(
    ("command", "directory"), [((), "/a"), (("dice",), "/a"), (("/dice",), "a"), (("/\0",), "/a")]
)
def test_a_unit_needs_a_program_and_a_directory(command: tuple[str, ...], directory: str) -> None:
    with pytest.raises(UnitError, match=r": (give|leave) "):
        Unit("x", "", command, Path(directory))


@pytest.mark.req("component.service")
def test_the_unit_of_a_component_runs_it_in_its_home_with_the_path_of_the_installer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/my/bin:/bin")
    unit = Unit.for_service(Service("dice", "Dice for agents"), Path("/opt/dice"), home)
    assert unit.label == "ai.crabtalk.dice"
    assert unit.command == ("/opt/dice", "run")
    assert unit.directory == home
    assert unit.environment == {"PATH": "/my/bin:/bin", "CRABTALK_HOME": str(home)}
    assert unit.log == home / "logs" / "dice.log"


@contextmanager
def make_scratch_directory() -> Iterator[Path]:
    """A temporary directory for one example of a property test."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def verify_unit(directory: Path, unit: Unit, text: bytes, log_level: str = "debug") -> str:
    """The output of `systemd-analyze verify`; at this level it shows all that was read."""
    file = directory / f"{unit.label}.service"
    file.write_bytes(text)
    (directory / "run").mkdir(mode=0o700)
    result = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(file)],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "XDG_RUNTIME_DIR": str(directory / "run"),
            "SYSTEMD_LOG_LEVEL": log_level,
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        check=False,
        timeout=30,
    )
    output = result.stderr + result.stdout
    assert b"Ignoring" not in output, output
    assert b"bad unit file" not in output, output
    return output.decode()
