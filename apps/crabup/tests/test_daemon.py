"""crabup daemon: the real crabtalkd, its first start, and what it needs to know."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apps.crabup.tests.machine import Machine, until
from crabtalk.client import connect_sync
from tests.warm import PATIENCE

CONFIG = '[llm]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "none"\n[daemon]\ntcp = "off"\n'


def configure(home: Path, text: str = CONFIG) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(text)


@pytest.mark.req("crabup.service.start")
@pytest.mark.req("crabup.ps")
@pytest.mark.req("crabup.log.once")
def test_the_daemon_is_started_pinged_killed_and_stopped(machine: Machine) -> None:
    configure(machine.home, CONFIG.replace('"off"', '"127.0.0.1:0"'))
    said = machine.crabup("daemon", "start").said
    row = machine.ps()["daemon"]
    assert said == f"daemon runs (pid {row['pid']}), kept by crabup until the next reboot"
    assert row["port"] == int((machine.home / "run" / "crabtalk.port").read_text())
    assert (row["status"], row["managed_by"]) == ("running", "supervised")
    with connect_sync(home=machine.home) as client:
        client.ping()
    record = machine.record("daemon")
    assert record.child is not None
    assert record.child.pid == row["pid"]
    assert machine.log("crabtalkd").count("crabtalkd is ready") == 1
    assert not (machine.home / "logs" / "daemon.log").exists()
    record.child.send(signal.SIGKILL)
    until(lambda: machine.ps()["daemon"]["pid"] not in (None, row["pid"]))
    assert "crabtalkd is ready" in machine.crabup("daemon", "logs").answer
    assert machine.crabup("daemon", "restart").code == 0
    assert machine.crabup("daemon", "stop").said == "daemon is stopped"
    assert machine.ps() == {}
    assert not (machine.home / "run" / "crabtalk.port").exists()
    assert not (machine.home / "run" / "crabtalk.sock").exists()


@pytest.mark.req("crabup.service.by_hand")
def test_a_daemon_that_was_killed_in_the_foreground_is_stale(machine: Machine) -> None:
    configure(machine.home, CONFIG.replace('"off"', '"127.0.0.1:0"'))
    crabtalkd = Path(sys.executable).with_name("crabtalkd")
    process = subprocess.Popen(
        [crabtalkd, "run"], env=machine.environment, stderr=subprocess.DEVNULL
    )
    until(lambda: machine.ps().get("daemon", {}).get("status") == "running")
    assert machine.ps()["daemon"]["managed_by"] is None
    assert "end it with `crabtalkd stop` first" in machine.crabup("daemon", "start").complaint
    assert f"still runs (pid {process.pid})" in machine.crabup("daemon", "stop").complaint
    assert "crabtalkd is ready" in machine.crabup("daemon", "logs").answer
    process.kill()
    process.wait()
    assert machine.ps()["daemon"]["status"] == "stale"
    machine.crabup("daemon", "stop")
    assert not (machine.home / "run" / "crabtalk.port").exists()


@pytest.mark.req("crabup.service.by_hand")
def test_a_daemon_that_a_question_started_is_ended_as_it_is_told(
    machine: Machine, tmp_path: Path
) -> None:
    home = tmp_path / "another home"
    configure(home)
    run(machine, "crabtalk", "agents", "list", "--home", str(home))
    stops = ["crabtalkd", "stop", "--home", str(home)]
    try:
        for verb in ("start", "restart", "stop"):
            complaint = machine.crabup("daemon", verb, "--home", str(home)).complaint
            assert f"end it with `{shlex.join(stops)}`" in complaint
    finally:
        run(machine, *stops)
    assert machine.crabup("daemon", "stop", "--home", str(home)).said == "daemon was not started"


def run(machine: Machine, program: str, *words: str) -> None:
    command = [str(Path(sys.executable).with_name(program)), *words]
    subprocess.run(command, env=machine.environment, check=True, capture_output=True)


@pytest.mark.req("crabup.service.start")
def test_a_daemon_that_cannot_start_says_why(machine: Machine) -> None:
    configure(machine.home, "[daemon\n")
    said = machine.crabup("daemon", "start").complaint
    assert said.startswith("daemon ended with status 1: crabtalkd: ")
    assert "config.toml" in said
    assert "config.toml" in machine.log("crabtalkd")
    machine.crabup("daemon", "stop")


@pytest.mark.req("crabup.first_start")
def test_without_a_terminal_nothing_is_asked_and_the_daemon_runs(machine: Machine) -> None:
    said = machine.crabup("daemon", "start").said.splitlines()
    assert said[0] == "no model is configured; `crabtalkd setup` chooses one"
    assert "daemon runs" in said[1]
    machine.crabup("daemon", "stop")


@pytest.mark.req("crabup.first_start")
def test_an_input_that_never_comes_is_not_waited_for(machine: Machine) -> None:
    pipe = subprocess.PIPE
    with machine.start("daemon", "start", stdin=pipe, stderr=pipe) as process:
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert "no model is configured" in process.stderr.readline()
    assert machine.ps()["daemon"]["status"] == "running"
    machine.crabup("daemon", "stop")


@pytest.mark.req("crabup.first_start")
def test_the_first_start_at_a_terminal_runs_the_set_up(machine: Machine) -> None:
    machine.stub("crabtalkd", '[ "$1" = setup ] && echo "Which model?" && read x && exit "$x"')
    code, screen = machine.at_terminal("daemon", "start", typed="4\n", when="Which model?")
    assert (code, machine.asked) == (1, [f"crabtalkd setup --home {machine.home}"])
    assert "the daemon was not started" in screen
    assert not (machine.home / "run" / "daemon.pid").exists()


@pytest.mark.req("crabup.first_start")
@pytest.mark.parametrize("config", [CONFIG, '[[providers]]\nname = "x"\nkind = "openai"\n'])
def test_what_is_configured_is_not_asked_for(machine: Machine, config: str) -> None:
    configure(machine.home, config)
    machine.stub("crabtalkd", "exit 9")
    machine.at_terminal("daemon", "start")
    assert "crabtalkd setup" not in " ".join(machine.asked)
    assert "crabtalkd run" in machine.asked
    machine.crabup("daemon", "stop")


@pytest.mark.req("crabup.pkg.daemon")
def test_a_daemon_that_runs_takes_a_package_up_and_refuses_what_it_cannot_use(
    machine: Machine, tmp_path: Path
) -> None:
    configure(machine.home)
    machine.crabup("daemon", "start")
    manifest = tmp_path / "owls" / "owls.toml"
    manifest.parent.mkdir()
    manifest.write_text('[package]\nname = "owls"\n[agents.owl]\nprompt = "You are owl."\n')
    assert machine.crabup("pkg", "add", "owls", "--path", tmp_path / "owls", "-y").code == 0
    with connect_sync(home=machine.home) as client:
        assert client.get_agent("owl").name == "owl"
    machine.crabup("pkg", "remove", "owls")
    with connect_sync(home=machine.home) as client:
        assert "owl" not in {agent.name for agent in client.list_agents().agents}
    # A URL is the daemon's to judge.
    bad = '[mcps.m]\nurl = "gopher://x"\n'
    manifest.write_text(f'[package]\nname = "owls"\n[agents.owl]\nprompt = "Hoo."\n{bad}')
    said = machine.crabup("pkg", "add", "owls", "--path", tmp_path / "owls", "-y")
    assert said.code == 1
    assert "the daemon cannot use it, and it was taken back" in said.err
    assert not (machine.home / "agents" / "owl.toml").exists()
    assert json.loads(machine.crabup("pkg", "list", "--json").answer) == {"packages": []}
    machine.crabup("daemon", "stop")
