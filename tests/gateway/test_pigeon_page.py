"""The gateway in the manual's page, run as a program with its commands."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.gateway import load_settings
from tests.gateway.gateway_command import PIGEON_COMMAND
from tests.gateway.gateway_world import open_gateway_world
from tests.gateway.pigeon_page import PAGE, read_source

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.page")]


def test_the_gateway_on_the_page_is_short() -> None:
    assert len(read_source().splitlines()) < 160
    assert "A third gateway in a page" in PAGE.read_text("utf-8")


async def test_it_is_set_up_paired_and_talked_to(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        home, where = ("--home", w.home), ("--base-url", w.server.url)
        path = w.home / "config" / "pigeon.toml"

        outcome = await PIGEON_COMMAND.run_command("run", *home)
        assert (outcome.code, "run `crabtalk-pigeon setup`" in outcome.err) == (1, True), outcome
        outcome = await PIGEON_COMMAND.run_command("setup", *home, *where)
        assert (outcome.code, "--token-stdin" in outcome.err) == (2, True), outcome
        outcome = await PIGEON_COMMAND.run_command(
            "setup", *home, *where, "--token-stdin", typed="wrong\n"
        )
        assert (outcome.code, "who are you?" in outcome.err) == (1, True), outcome
        assert not path.exists(), "only a token that works is written"

        outcome = await PIGEON_COMMAND.run_command(
            "setup", *home, *where, "--token-stdin", typed="coo\n"
        )
        assert (outcome.code, "knows us as pigeon" in outcome.out) == (0, True), outcome
        assert path.stat().st_mode & 0o777 == 0o600
        assert load_settings(path).token == "coo"
        outcome = await PIGEON_COMMAND.run_command("check", *home, "--json")
        assert json.loads(outcome.out) == {"name": "pigeon", "allowed_users": []}

        async with PIGEON_COMMAND.run_gateway(w.home) as process:
            outcome = await PIGEON_COMMAND.run_command("pair", *home, "--json")
            w.server.add_message(json.loads(outcome.out)["code"])
            await w.server.wait_until(lambda: w.server.texts_in())
            assert "Welcome" in w.server.texts_in()[0]
            w.server.add_message("hello")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == "heard: hello")
            outcome = await PIGEON_COMMAND.run_command("run", *home)
            assert (outcome.code, "already runs" in outcome.err) == (1, True), outcome
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        log = (w.home / "logs" / "pigeon.log").read_text()
        assert "coo" not in log


def test_the_code_on_the_page_runs_as_a_program(tmp_path: Path) -> None:
    program = tmp_path / "pigeon.py"
    program.write_text(read_source())
    result = subprocess.run(
        [sys.executable, program, "--help"], capture_output=True, check=True, text=True
    )
    assert [name in result.stdout for name in ("run", "setup", "pair", "check")] == [True] * 4


def test_the_command_line_loads_nothing_of_the_gateway() -> None:
    program = (
        "import sys, crabtalk.gateway.cli\n"
        "print([m for m in ('google.protobuf', 'asyncio', 'msgspec', 'tomlkit', 'crabtalk.client')"
        " if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout == b"[]\n"
