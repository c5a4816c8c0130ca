"""crabup daemon: the real crabtalkd, its first start, and the environment it needs."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apps.crabup.tests.machine import CrabupMachine, wait_until
from crabtalk.client import connect_sync
from tests.forked_programs import PATIENCE

CONFIG = '[llm]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "none"\n[daemon]\ntcp = "off"\n'


def write_config(home: Path, text: str = CONFIG) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(text)


@pytest.mark.req("crabup.service.start")
@pytest.mark.req("crabup.ps")
@pytest.mark.req("crabup.log.once")
def test_the_daemon_is_started_pinged_killed_and_stopped(machine: CrabupMachine) -> None:
    write_config(machine.home, CONFIG.replace('"off"', '"127.0.0.1:0"'))
    notice = machine.run_crabup("daemon", "start").notice
    row = machine.list_services()["daemon"]
    assert notice == f"daemon runs (pid {row['pid']}), kept by crabup until the next reboot"
    assert row["port"] == int((machine.home / "run" / "crabtalk.port").read_text())
    assert (row["status"], row["managed_by"]) == ("running", "supervised")
    with connect_sync(home=machine.home) as client:
        client.ping()
    record = machine.read_record("daemon")
    assert record.child is not None
    assert record.child.pid == row["pid"]
    assert machine.read_log("crabtalkd").count("crabtalkd is ready") == 1
    assert not (machine.home / "logs" / "daemon.log").exists()
    record.child.send_signal(signal.SIGKILL)
    wait_until(lambda: machine.list_services()["daemon"]["pid"] not in (None, row["pid"]))
    assert "crabtalkd is ready" in machine.run_crabup("daemon", "logs").output
    assert machine.run_crabup("daemon", "restart").code == 0
    assert machine.run_crabup("daemon", "stop").notice == "daemon is stopped"
    assert machine.list_services() == {}
    assert not (machine.home / "run" / "crabtalk.port").exists()
    assert not (machine.home / "run" / "crabtalk.sock").exists()


@pytest.mark.req("crabup.service.by_hand")
def test_a_daemon_that_was_killed_in_the_foreground_is_stale(machine: CrabupMachine) -> None:
    write_config(machine.home, CONFIG.replace('"off"', '"127.0.0.1:0"'))
    crabtalkd = Path(sys.executable).with_name("crabtalkd")
    process = subprocess.Popen(
        [crabtalkd, "run"], env=machine.environment, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: machine.list_services().get("daemon", {}).get("status") == "running")
    assert machine.list_services()["daemon"]["managed_by"] is None
    assert "end it with `crabtalkd stop` first" in machine.run_crabup("daemon", "start").error
    assert f"still runs (pid {process.pid})" in machine.run_crabup("daemon", "stop").error
    assert "crabtalkd is ready" in machine.run_crabup("daemon", "logs").output
    process.kill()
    process.wait()
    assert machine.list_services()["daemon"]["status"] == "stale"
    machine.run_crabup("daemon", "stop")
    assert not (machine.home / "run" / "crabtalk.port").exists()


@pytest.mark.req("crabup.service.by_hand")
def test_a_daemon_that_a_command_started_can_be_stopped_as_advised(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    home = tmp_path / "another home"
    write_config(home)
    run_program(machine, "crabtalk", "agents", "list", "--home", str(home))
    stops = ["crabtalkd", "stop", "--home", str(home)]
    try:
        for verb in ("start", "restart", "stop"):
            complaint = machine.run_crabup("daemon", verb, "--home", str(home)).error
            assert f"end it with `{shlex.join(stops)}`" in complaint
    finally:
        run_program(machine, *stops)
    assert (
        machine.run_crabup("daemon", "stop", "--home", str(home)).notice == "daemon was not started"
    )


def run_program(machine: CrabupMachine, program: str, *words: str) -> None:
    command = [str(Path(sys.executable).with_name(program)), *words]
    subprocess.run(command, env=machine.environment, check=True, capture_output=True)


@pytest.mark.req("crabup.service.start")
def test_a_daemon_that_cannot_start_says_why(machine: CrabupMachine) -> None:
    write_config(machine.home, "[daemon\n")
    error = machine.run_crabup("daemon", "start").error
    assert error.startswith("daemon ended with status 1: crabtalkd: ")
    assert "config.toml" in error
    assert "config.toml" in machine.read_log("crabtalkd")
    machine.run_crabup("daemon", "stop")


@pytest.mark.req("crabup.first_start")
def test_without_a_terminal_the_daemon_starts_without_questions(machine: CrabupMachine) -> None:
    lines = machine.run_crabup("daemon", "start").notice.splitlines()
    assert lines[0] == "no model is configured; `crabtalkd setup` chooses one"
    assert "daemon runs" in lines[1]
    machine.run_crabup("daemon", "stop")


@pytest.mark.req("crabup.first_start")
def test_a_start_does_not_wait_for_input_that_never_comes(machine: CrabupMachine) -> None:
    pipe = subprocess.PIPE
    with machine.start_crabup("daemon", "start", stdin=pipe, stderr=pipe) as process:
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert "no model is configured" in process.stderr.readline()
    assert machine.list_services()["daemon"]["status"] == "running"
    machine.run_crabup("daemon", "stop")


@pytest.mark.req("crabup.first_start")
def test_the_first_start_at_a_terminal_runs_the_set_up(machine: CrabupMachine) -> None:
    machine.add_stub("crabtalkd", '[ "$1" = setup ] && echo "Which model?" && read x && exit "$x"')
    code, screen = machine.run_at_terminal("daemon", "start", typed="4\n", when="Which model?")
    assert (code, machine.list_calls) == (1, [f"crabtalkd setup --home {machine.home}"])
    assert "the daemon was not started" in screen
    assert not (machine.home / "run" / "daemon.pid").exists()


@pytest.mark.req("crabup.first_start")
@pytest.mark.parametrize("config", [CONFIG, '[[providers]]\nname = "x"\nkind = "openai"\n'])
def test_a_configured_daemon_needs_no_setup(machine: CrabupMachine, config: str) -> None:
    write_config(machine.home, config)
    machine.add_stub("crabtalkd", "exit 9")
    machine.run_at_terminal("daemon", "start")
    assert "crabtalkd setup" not in " ".join(machine.list_calls)
    assert "crabtalkd run" in machine.list_calls
    machine.run_crabup("daemon", "stop")


@pytest.mark.req("crabup.pkg.daemon")
def test_a_running_daemon_loads_a_package_and_rejects_an_unusable_one(
    machine: CrabupMachine, tmp_path: Path
) -> None:
    write_config(machine.home)
    machine.run_crabup("daemon", "start")
    manifest = tmp_path / "owls" / "owls.toml"
    manifest.parent.mkdir()
    manifest.write_text('[package]\nname = "owls"\n[agents.owl]\nprompt = "You are owl."\n')
    assert machine.run_crabup("pkg", "add", "owls", "--path", tmp_path / "owls", "-y").code == 0
    with connect_sync(home=machine.home) as client:
        assert client.get_agent("owl").name == "owl"
    machine.run_crabup("pkg", "remove", "owls")
    with connect_sync(home=machine.home) as client:
        assert "owl" not in {agent.name for agent in client.list_agents().agents}
        # The daemon, not crabup, checks URLs.
    bad = '[mcps.m]\nurl = "gopher://x"\n'
    manifest.write_text(f'[package]\nname = "owls"\n[agents.owl]\nprompt = "Hoo."\n{bad}')
    outcome = machine.run_crabup("pkg", "add", "owls", "--path", tmp_path / "owls", "-y")
    assert outcome.code == 1
    assert "the daemon cannot use it, and it was taken back" in outcome.err
    assert not (machine.home / "agents" / "owl.toml").exists()
    assert json.loads(machine.run_crabup("pkg", "list", "--json").output) == {"packages": []}
    machine.run_crabup("daemon", "stop")
