"""crabup NAME start, stop, restart, logs and crabup ps, without a service manager."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from apps.crabup.tests.machine import CrabupMachine, wait_until

REAL_COMPONENT = """\
from mcp.server import MCPServer
from crabtalk.service import run_mcp
run_mcp(MCPServer({name!r}))
"""


@pytest.mark.req("crabup.service.start")
@pytest.mark.req("crabup.service.stop")
@pytest.mark.req("crabup.ps")
def test_a_component_is_started_listed_and_stopped(machine: CrabupMachine) -> None:
    machine.add_component(script=REAL_COMPONENT)
    notice = machine.run_crabup("dice", "start").notice
    wait_until((machine.home / "run" / "dice.port").exists)
    row = machine.list_services()["dice"]
    assert notice == f"dice runs (pid {row['pid']}), kept by crabup until the next reboot"
    assert row == {
        "name": "dice",
        "port": int((machine.home / "run" / "dice.port").read_text()),
        "status": "running",
        "pid": machine.read_record().child.pid,  # type: ignore[union-attr]
        "managed_by": "supervised",
    }
    assert "dice is ready" in machine.read_log()
    assert machine.run_crabup("dice", "stop").notice == "dice is stopped"
    assert machine.list_services() == {}
    assert not (machine.home / "run" / "dice.port").exists()
    assert not (machine.home / "run" / "dice.pid").exists()


@pytest.mark.req("crabup.service.start")
def test_a_component_runs_in_its_home_with_the_word_run(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    wait_until(lambda: f"dice runs as run in {machine.home}\n" in machine.read_log())


@pytest.mark.req("crabup.service.start")
def test_a_program_is_found_where_installers_put_it(machine: CrabupMachine) -> None:
    for directory in (machine.user / ".local" / "bin", machine.home / "bin"):
        directory.mkdir(parents=True)
        machine.add_component().rename(directory / "crabtalk-dice")
        assert machine.run_crabup("dice", "start").code == 0
        assert machine.run_crabup("dice", "stop").code == 0
        (directory / "crabtalk-dice").unlink()
    assert "no program crabtalk-dice or dice" in machine.run_crabup("dice", "start").error


@pytest.mark.req("crabup.service.start")
def test_a_running_service_is_left_alone_by_start(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    before = machine.read_record()
    assert machine.run_crabup("dice", "start").code == 0
    assert machine.read_record() == before


@pytest.mark.req("crabup.service.restart")
def test_a_restart_uses_the_newly_installed_program(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    before = machine.read_record().child
    program = machine.add_component()
    program.write_text(program.read_text().replace("runs as", "now runs as"))
    machine.run_crabup("dice", "restart")
    after = machine.read_record().child
    assert before is not None
    assert after is not None
    assert before != after
    assert not before.is_alive()
    wait_until(lambda: "dice now runs as" in machine.read_log())


@pytest.mark.req("crabup.service.restart")
def test_a_restart_starts_a_stopped_service(machine: CrabupMachine) -> None:
    machine.add_component()
    assert machine.run_crabup("dice", "restart").notice.endswith(
        "kept by crabup until the next reboot"
    )
    assert machine.list_services()["dice"]["status"] == "running"


@pytest.mark.req("crabup.service.stop")
def test_stopping_a_service_that_was_never_started_is_no_error(machine: CrabupMachine) -> None:
    assert machine.run_crabup("dice", "stop").notice == "dice was not started"


@pytest.mark.req("crabup.service.stop")
def test_a_service_that_ignores_sigterm_is_killed(
    machine: CrabupMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in this process, so that the grace period can be shortened."""
    from crabup.supervisor_manager import SupervisorManager

    machine.add_program("deaf", "trap '' TERM; echo deaf; while :; do sleep 0.05; done")
    assert machine.run_crabup("deaf", "start").code == 0
    record = machine.read_record("deaf")
    assert record.supervisor is not None
    assert record.child is not None
    record.supervisor.send_signal(signal.SIGKILL)
    from crabup import supervisor_manager

    monkeypatch.setattr(supervisor_manager, "GRACE", 0.1)
    SupervisorManager(machine.home, "deaf").stop(machine.make_unit("deaf"))
    assert not record.child.is_alive()


@pytest.mark.req("crabup.service.by_hand")
def test_a_service_in_the_foreground_is_listed_and_not_started_twice(
    machine: CrabupMachine,
) -> None:
    program = machine.add_component()
    (machine.home / "run").mkdir(parents=True)
    process = subprocess.Popen([program], env=machine.environment)
    try:
        wait_until((machine.home / "run" / "dice.port").exists)
        row = machine.list_services()["dice"]
        assert (row["status"], row["pid"], row["managed_by"]) == ("running", process.pid, None)
        for verb in ("start", "restart"):
            assert "started by hand" in machine.run_crabup("dice", verb).error
        assert f"still runs (pid {process.pid})" in machine.run_crabup("dice", "stop").error
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.req("crabup.service.start")
def test_a_service_that_ends_at_once_is_reported_with_its_last_log_line(
    machine: CrabupMachine,
) -> None:
    machine.add_program("crabtalk-dice", "echo 'no dice today' >&2; exit 7")
    error = machine.run_crabup("dice", "start").error
    assert error == (
        "dice ended with status 7: no dice today; it is tried again until `crabup dice stop`"
    )
    assert machine.run_crabup("dice", "stop").code == 0


@pytest.mark.req("crabup.service.start")
@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("dice", "start"), "`crabup pull dice` installs it"),
        (("dice", "restart"), "`crabup pull dice` installs it"),
        (("tui", "start"), "run `crabtalk`"),
        (("../dice", "start"), "take lower-case letters, digits, - and _"),
        (("crabtalk", "start"), "take another"),
        (("../../dice", "logs"), "take lower-case letters, digits, - and _"),
    ],
)
def test_a_service_that_cannot_be_started_is_reported_with_advice(
    machine: CrabupMachine, words: tuple[str, ...], advice: str
) -> None:
    assert machine.run_crabup(*words).error.endswith(advice)


@pytest.mark.req("crabup.names")
@pytest.mark.parametrize("odd", ["a b", "quo'te\"s", "per%cent %h", "dol$lar $HOME", "am&per;sand"])
def test_unusual_characters_in_directory_names_work(tmp_path: Path, odd: str) -> None:
    (tmp_path / odd).mkdir()
    with CrabupMachine(tmp_path / odd, tmp_path / odd / "home") as machine:
        machine.add_component()
        assert machine.run_crabup("dice", "start").code == 0
        wait_until(lambda: f"dice runs as run in {machine.home}\n" in machine.read_log())
        assert machine.list_services()["dice"]["status"] == "running"
        assert machine.run_crabup("dice", "stop").notice == "dice is stopped"


# ── ps ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("crabup.ps")
def test_ps_is_one_table(machine: CrabupMachine) -> None:
    assert (
        machine.run_crabup("ps").notice
        == "no service runs here; `crabup daemon start` starts the daemon"
    )
    machine.add_component()
    machine.run_crabup("dice", "start")
    head, row = machine.run_crabup("ps").output.splitlines()
    assert head.split() == ["NAME", "PORT", "STATUS", "PID", "MANAGED-BY"]
    name, port, status, pid, managed_by = row.split()
    assert (name, status, managed_by) == ("dice", "running", "supervised")
    assert port.isdigit()
    assert pid.isdigit()


@pytest.mark.req("crabup.ps.stale")
def test_a_port_file_without_a_listener_is_stale(machine: CrabupMachine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (machine.home / "run").mkdir(parents=True)
    (machine.home / "run" / "dice.port").write_text(f"{port}\n")
    (machine.home / "run" / "odd name.port").write_text("nonsense")
    (machine.home / "run" / "tui.pid").write_text("{}")
    rows = machine.list_services()
    assert (rows["dice"]["status"], rows["dice"]["port"]) == ("stale", port)
    assert rows["odd name"]["status"] == rows["tui"]["status"] == "stale"
    machine.run_crabup("dice", "stop")
    assert not (machine.home / "run" / "dice.port").exists()


@pytest.mark.req("crabup.ps.stale")
def test_a_port_that_another_component_has_by_now_is_stale(machine: CrabupMachine) -> None:
    machine.add_component("cards")
    machine.run_crabup("cards", "start")
    run = machine.home / "run"
    (run / "dice.port").write_bytes((run / "cards.port").read_bytes())
    rows = machine.list_services()
    assert (rows["dice"]["status"], rows["cards"]["status"]) == ("stale", "running")


@pytest.mark.req("crabup.ps")
def test_a_listener_without_health_endpoint_counts_as_running(machine: CrabupMachine) -> None:
    (machine.home / "run").mkdir(parents=True)
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True)\n"
        "while True: c, _ = s.accept(); c.close()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        (machine.home / "run" / "dice.port").write_text(process.stdout.readline())
        assert machine.list_services()["dice"]["status"] == "running"
    finally:
        process.kill()
        process.communicate()


# ── logs ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("crabup.service.logs")
def test_logs_are_the_end_of_the_log(machine: CrabupMachine) -> None:
    path = machine.home / "logs" / "dice.log"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert machine.run_crabup("dice", "logs").output.splitlines()[0] == "line 50"
    assert machine.run_crabup("dice", "logs", "-n", "2").output == "line 98\nline 99\n"
    path.write_bytes(b"\x1b[2Jgone \xff\n")
    assert machine.run_crabup("dice", "logs").output == "\\x1b[2Jgone \N{REPLACEMENT CHARACTER}\n"


@pytest.mark.req("crabup.service.logs")
def test_without_a_log_it_says_how_to_get_one(machine: CrabupMachine) -> None:
    assert machine.run_crabup("dice", "logs").error.endswith("`crabup dice start` starts it")


@pytest.mark.req("crabup.service.logs")
def test_logs_are_followed_across_a_rotation(machine: CrabupMachine) -> None:
    path = machine.home / "logs" / "dice.log"
    path.parent.mkdir(parents=True)
    path.write_text("one\n")
    process = machine.start_crabup("dice", "logs", "-f")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        with path.open("a") as file:
            file.write("two\nhalf")
            file.flush()
            assert process.stdout.readline() == "two\n"
            file.write(" a line\n")
        assert process.stdout.readline() == "half a line\n"
        path.rename(path.with_suffix(".log.1"))
        path.write_text("three\n")
        assert process.stdout.readline() == "three\n"
        os.truncate(path, 0)
        wait_until(lambda: is_at_start(process.pid, path))
        with path.open("a") as file:
            file.write("4\n")
        assert process.stdout.readline() == "4\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


def is_at_start(pid: int, path: Path) -> bool:
    """Whether a process has the file open and has read nothing of it."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.path.realpath(link) == str(path):
            return "pos:\t0\n" in Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
    return False
