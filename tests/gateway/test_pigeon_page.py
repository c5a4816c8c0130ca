"""The page of the manual: a whole gateway, run as a program by its commands."""

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


def test_the_page_is_a_page() -> None:
    assert len(read_source().splitlines()) < 160
    assert "A third gateway in a page" in PAGE.read_text("utf-8")


async def test_it_is_set_up_paired_and_talked_to(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        home, where = ("--home", w.home), ("--base-url", w.server.url)
        path = w.home / "config" / "pigeon.toml"

        said = await PIGEON_COMMAND.run_command("run", *home)
        assert (said.code, "run `crabtalk-pigeon setup`" in said.err) == (1, True), said
        said = await PIGEON_COMMAND.run_command("setup", *home, *where)
        assert (said.code, "--token-stdin" in said.err) == (2, True), said
        said = await PIGEON_COMMAND.run_command(
            "setup", *home, *where, "--token-stdin", typed="wrong\n"
        )
        assert (said.code, "who are you?" in said.err) == (1, True), said
        assert not path.exists(), "only a token that works is written"

        said = await PIGEON_COMMAND.run_command(
            "setup", *home, *where, "--token-stdin", typed="coo\n"
        )
        assert (said.code, "knows us as pigeon" in said.out) == (0, True), said
        assert path.stat().st_mode & 0o777 == 0o600
        assert load_settings(path).token == "coo"
        said = await PIGEON_COMMAND.run_command("check", *home, "--json")
        assert json.loads(said.out) == {"name": "pigeon", "allowed_users": []}

        async with PIGEON_COMMAND.run_gateway(w.home) as process:
            said = await PIGEON_COMMAND.run_command("pair", *home, "--json")
            w.server.add_message(json.loads(said.out)["code"])
            await w.server.wait_until(lambda: w.server.texts_in())
            assert "Welcome" in w.server.texts_in()[0]
            w.server.add_message("hello")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == "heard: hello")
            said = await PIGEON_COMMAND.run_command("run", *home)
            assert (said.code, "already runs" in said.err) == (1, True), said
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        log = (w.home / "logs" / "pigeon.log").read_text()
        assert "coo" not in log


def test_it_is_a_program_as_it_stands(tmp_path: Path) -> None:
    program = tmp_path / "pigeon.py"
    program.write_text(read_source())
    done = subprocess.run(
        [sys.executable, program, "--help"], capture_output=True, check=True, text=True
    )
    assert [name in done.stdout for name in ("run", "setup", "pair", "check")] == [True] * 4


def test_the_command_line_loads_nothing_of_the_gateway() -> None:
    program = (
        "import sys, crabtalk.gateway.cli\n"
        "print([m for m in ('google.protobuf', 'asyncio', 'msgspec', 'tomlkit', 'crabtalk.client')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
