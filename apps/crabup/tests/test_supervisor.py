"""The supervisor restarts its service, is not deceived by stale files, and leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apps.crabup.tests.machine import CRABUP, CrabupMachine, wait_until
from crabup.processes import TrackedProcess
from crabup.supervisor_manager import SupervisorManager, SupervisorRecord

# A start time longer ago than that of any process here, in the platform's format.
LONG_AGO = "some-boot:1"


@pytest.mark.req("crabup.supervisor_manager.restart")
def test_a_killed_service_is_restarted(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    before = machine.read_record()
    assert before.child is not None
    before.child.send_signal(signal.SIGKILL)
    wait_until(lambda: machine.read_record().exit_count == 1 and machine.read_record().has_child())
    after = machine.read_record()
    assert after.supervisor == before.supervisor
    assert after.child != before.child
    assert "dice was ended by SIGKILL; it is started again in 0.5 s" in machine.read_log()
    wait_until(lambda: machine.list_services()["dice"]["status"] == "running")


@pytest.mark.req("crabup.supervisor_manager.restart")
def test_an_earlier_crash_is_not_reported_by_the_next_start(
    machine: CrabupMachine,
) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    child = machine.read_record().child
    assert child is not None
    child.send_signal(signal.SIGKILL)
    wait_until(lambda: machine.read_record().exit_count == 1 and machine.read_record().has_child())
    assert machine.run_crabup("dice", "start").notice.endswith(
        "kept by crabup until the next reboot"
    )


@pytest.mark.req("crabup.supervisor_manager.restart")
def test_a_service_that_keeps_ending_is_restarted_with_growing_pauses(
    machine: CrabupMachine,
) -> None:
    machine.add_program("crabtalk-dice", "exit 3")
    machine.run_crabup("dice", "start")
    wait_until(lambda: machine.read_record().exit_count >= 3)
    assert machine.list_services()["dice"]["status"] == "failed"
    lines = [
        line.split("again in ")[1] for line in machine.read_log().splitlines() if "again in" in line
    ]
    assert lines[:3] == ["0.5 s", "1 s", "2 s"]


@pytest.mark.req("crabup.supervisor_manager.restart")
def test_a_service_whose_program_is_gone_is_tried_again(machine: CrabupMachine) -> None:
    program = machine.add_component()
    machine.run_crabup("dice", "start")
    text = program.read_text()
    program.unlink()
    child = machine.read_record().child
    assert child is not None
    child.send_signal(signal.SIGKILL)
    wait_until(lambda: "dice cannot be started" in machine.read_log())
    program.write_text(text)
    program.chmod(0o755)
    wait_until(lambda: machine.read_record().has_child())


@pytest.mark.req("crabup.supervisor_manager.takeover")
def test_a_service_outlives_its_supervisor_and_gets_a_new_one(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    before = machine.read_record()
    assert before.supervisor is not None
    before.supervisor.send_signal(signal.SIGKILL)
    wait_until(lambda: not machine.read_record().has_supervisor())
    row = machine.list_services()["dice"]
    assert (row["status"], row["managed_by"]) == ("running", None)
    assert machine.run_crabup("dice", "start").code == 0
    after = machine.read_record()
    assert after.child == before.child
    assert after.supervisor != before.supervisor
    assert machine.list_services()["dice"]["managed_by"] == "supervised"
    assert after.child is not None
    after.child.send_signal(signal.SIGKILL)
    wait_until(lambda: machine.read_record().exit_count == 1 and machine.read_record().has_child())
    assert machine.run_crabup("dice", "stop").notice == "dice is stopped"


@pytest.mark.req("crabup.supervisor_manager.takeover")
def test_a_service_whose_supervisor_was_killed_can_be_stopped(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    before = machine.read_record()
    assert before.supervisor is not None
    before.supervisor.send_signal(signal.SIGKILL)
    wait_until(lambda: not machine.read_record().has_supervisor())
    assert machine.run_crabup("dice", "stop").notice == "dice is stopped"
    assert before.child is not None
    assert not before.child.is_alive()
    assert machine.list_services() == {}


@pytest.mark.req("crabup.supervisor_manager.takeover")
def test_after_both_were_killed_a_start_starts_both(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    before = machine.read_record()
    assert before.supervisor is not None
    assert before.child is not None
    before.supervisor.send_signal(signal.SIGKILL)
    wait_until(lambda: not before.supervisor.is_alive())  # type: ignore[union-attr]
    before.child.send_signal(signal.SIGKILL)
    wait_until(lambda: not before.child.is_alive())  # type: ignore[union-attr]
    assert machine.list_services()["dice"]["status"] == "stopped"
    assert machine.run_crabup("dice", "start").code == 0
    assert machine.list_services()["dice"]["status"] == "running"


@pytest.mark.req("crabup.supervisor_manager.one")
def test_simultaneous_starts_make_one_supervisor(machine: CrabupMachine) -> None:
    machine.add_component()
    processes = [machine.start_crabup("dice", "start", stderr=subprocess.PIPE) for _ in range(4)]
    for process in processes:
        _, output = process.communicate(timeout=40)
        assert process.returncode == 0, output
    assert machine.read_log().count("dice runs as") == 1


@pytest.mark.req("crabup.supervisor_manager.pids")
@pytest.mark.parametrize("role", ["supervisor", "child"])
def test_a_stale_pid_file_never_kills_an_unrelated_process(
    machine: CrabupMachine, role: str
) -> None:
    """The pid is that of an unrelated process."""
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        path = machine.home / "run" / "dice.pid"
        path.parent.mkdir(parents=True)
        claim = {"pid": stranger.pid, "started": LONG_AGO}
        path.write_text(json.dumps({role: claim, "ends": 0, "last": ""}))
        assert machine.list_services()["dice"]["status"] == "stopped"
        assert machine.run_crabup("dice", "stop").notice == "dice is stopped"
        assert not path.exists()
        path.write_text(json.dumps({role: claim}))
        machine.add_component()
        assert machine.run_crabup("dice", "start").code == 0
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")


@pytest.mark.req("crabup.supervisor_manager.pids")
@pytest.mark.parametrize(
    "text",
    ["", "4711", "{", "[]", '{"supervisor": {"pid": 1, "started": "x"}}', '{"child": {"pid": -1}}',
     '{"child": {"pid": "1", "started": 2}, "ends": "many"}', "[" * 5000],
)  # fmt: skip
def test_an_invalid_pid_file_counts_as_empty(machine: CrabupMachine, text: str) -> None:
    path = machine.home / "run" / "dice.pid"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert machine.list_services()["dice"]["status"] == "stopped"
    assert machine.run_crabup("dice", "stop").notice == "dice is stopped"


@pytest.mark.req("crabup.supervisor_manager.pids")
def test_a_process_is_distinguished_from_a_later_one_with_its_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = TrackedProcess.find_by_pid(child.pid)
    assert process is not None
    assert process.is_alive()
    assert not TrackedProcess(child.pid, LONG_AGO).is_alive()
    TrackedProcess(child.pid, LONG_AGO).send_signal(signal.SIGKILL)
    assert TrackedProcess(child.pid, LONG_AGO).wait(0)
    assert not process.wait(0)
    child.kill()
    wait_until(lambda: not process.is_alive())  # although it was not reaped
    assert TrackedProcess.find_by_pid(child.pid) is None
    child.communicate()
    process.send_signal(signal.SIGKILL)


@pytest.mark.req("crabup.supervisor_manager.group")
def test_child_processes_of_a_service_end_with_it(machine: CrabupMachine) -> None:
    machine.add_program("crabtalk-dice", "sleep 600 & echo $! > $CRABTALK_HOME/helper; wait")
    machine.run_crabup("dice", "start")
    wait_until(lambda: (machine.home / "helper").exists() and (machine.home / "helper").read_text())
    helper = TrackedProcess.find_by_pid(int((machine.home / "helper").read_text()))
    assert helper is not None
    machine.run_crabup("dice", "stop")
    wait_until(lambda: not helper.is_alive())


@pytest.mark.req("crabup.supervisor_manager.group")
def test_a_supervisor_reaps_its_children(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    for _ in range(2):
        exits, child = machine.read_record().exit_count, machine.read_record().child
        assert child is not None
        child.send_signal(signal.SIGKILL)
        wait_until(
            lambda: machine.read_record().exit_count > exits and machine.read_record().has_child()  # noqa: B023
        )
        assert not Path(f"/proc/{child.pid}").exists()


@pytest.mark.req("crabup.supervisor_manager.apart")
def test_a_supervisor_is_detached_from_the_process_that_started_it(
    machine: CrabupMachine,
) -> None:
    machine.add_component()
    process = machine.start_crabup("dice", "start", stderr=subprocess.PIPE)
    process.communicate(timeout=30)  # returns, because no process holds its pipes
    supervisor = machine.read_record().supervisor
    assert supervisor is not None
    assert os.getsid(supervisor.pid) == supervisor.pid
    assert Path(f"/proc/{supervisor.pid}/cwd").resolve() == Path("/")


@pytest.mark.req("crabup.supervisor_manager.apart")
def test_modules_in_the_current_directory_are_not_run(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not mine')\n")
    (tmp_path / "crabup").mkdir()
    (tmp_path / "crabup" / "__init__.py").write_text("raise SystemExit('not mine')\n")
    machine.add_component()
    process = machine.start_crabup("dice", "start", cwd=tmp_path, stderr=subprocess.PIPE)
    _, output = process.communicate(timeout=30)
    assert process.returncode == 0, output


@pytest.mark.req("crabup.supervisor_manager.hangup")
def test_a_hangup_reaches_the_service(machine: CrabupMachine) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    supervisor = machine.read_record().supervisor
    assert supervisor is not None
    supervisor.send_signal(signal.SIGHUP)
    wait_until(lambda: "dice heard SIGHUP" in machine.read_log())


@pytest.mark.req("crabup.supervisor_manager.log")
def test_a_large_log_is_rotated_while_it_is_written_to(
    machine: CrabupMachine,
) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    path = machine.home / "logs" / "dice.log"
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("a") as file:
        file.write("x" * (17 << 20) + "\n")
    supervisor = machine.read_record().supervisor
    assert supervisor is not None
    supervisor.send_signal(signal.SIGHUP)
    wait_until(lambda: path.stat().st_size < 1000)
    assert path.with_name("dice.log.1").stat().st_size > 17 << 20
    supervisor.send_signal(signal.SIGHUP)
    wait_until(lambda: machine.read_log().endswith("dice heard SIGHUP\n"))


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = SupervisorRecord(
        TrackedProcess(7, "a"), TrackedProcess(8, "b"), 3, "ended with status 1"
    )
    record.write_file(tmp_path / "x.pid")
    assert SupervisorRecord.read_file(tmp_path / "x.pid") == record
    assert SupervisorRecord.read_file(tmp_path / "y.pid") is None


@pytest.mark.req("crabup.service.start")
def test_a_program_that_cannot_be_run_is_reported(machine: CrabupMachine) -> None:
    (machine.bin / "crabtalk-dice").write_bytes(b"\x7fnot a program")
    (machine.bin / "crabtalk-dice").chmod(0o755)
    assert machine.run_crabup("dice", "start").error.startswith("cannot start dice: ")
    assert not SupervisorManager(machine.home, "dice").path.exists()


@pytest.mark.req("crabup.supervisor_manager.pid_file")
@pytest.mark.parametrize("damage", ["lost", "garbled", "another's"])
@pytest.mark.parametrize("verb", ["stop", "start", "restart"])
def test_a_supervisor_is_found_even_if_its_pid_file_is_damaged(
    machine: CrabupMachine, damage: str, verb: str
) -> None:
    machine.add_component()
    machine.run_crabup("dice", "start")
    before = machine.read_record()
    assert before.supervisor is not None
    assert before.child is not None
    path = SupervisorManager(machine.home, "dice").path
    with subprocess.Popen(["sleep", "60"]) as unrelated:
        if damage == "lost":
            path.unlink()
        elif damage == "garbled":
            path.write_text("{")
        else:
            text = path.read_text().replace(f'"pid": {before.child.pid}', f'"pid": {unrelated.pid}')
            text = text.replace(f'"pid": {before.supervisor.pid}', f'"pid": {unrelated.pid}')
            path.write_text(text)
        if verb == "start":
            assert machine.list_services()["dice"]["managed_by"] == "supervised"
        assert machine.run_crabup("dice", verb).code == 0
        is_kept = verb == "start"
        assert before.child.is_alive() == before.supervisor.is_alive() == is_kept
        assert unrelated.poll() is None
        unrelated.kill()
    if verb == "stop":
        assert machine.list_services() == {}
    else:
        assert machine.list_services()["dice"]["status"] == "running"
        assert machine.read_record().has_supervisor()


@pytest.mark.req("crabup.supervisor_manager.full_disk")
def test_a_full_disk_leaves_no_supervisor_without_a_pid_file(machine: CrabupMachine) -> None:
    machine.add_component()
    (machine.home / "run").mkdir(mode=0o700, parents=True)
    full = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -f 0; exec {CRABUP} dice start"],
        capture_output=True,
        text=True,
        env=machine.environment,
        check=False,
    )
    assert full.returncode == 1
    path = SupervisorManager(machine.home, "dice").path
    assert full.stderr == (
        f"crabup: cannot start dice: cannot write {path}: File too large; make room for it\n"
    )
    assert machine.list_services() == {}
    assert machine.run_crabup("dice", "start").code == 0
    assert machine.read_record().exit_count == 0


@pytest.mark.req("crabup.supervisor_manager.restart")
@pytest.mark.clock
def test_start_retries_a_waiting_service_at_once(
    machine: CrabupMachine,
) -> None:
    machine.add_program("crabtalk-dice", "exit 3")
    machine.run_crabup("dice", "start")
    wait_until(lambda: machine.read_record().exit_count >= 5)  # the next pause is eight seconds
    machine.add_component()
    before = time.monotonic()
    assert machine.run_crabup("dice", "start").notice.endswith(
        "kept by crabup until the next reboot"
    )
    assert machine.read_record().exit_count == 5
    assert time.monotonic() - before < 8
