"""The page of the manual: a whole gateway, run as a program by its commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.component.gateway import load_settings
from tests.component.gateway.pigeon import PAGE, source
from tests.component.gateway.world import World, world

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.page")]

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


class Program:
    def __init__(self, w: World) -> None:
        self.w = w
        self.path = w.path / "pigeon.py"
        self.path.write_text(source())

    async def __call__(self, *words: str, given: str = "") -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(self.path),
            *words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate(given.encode())
        return process.returncode or 0, out.decode(), err.decode()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(self.path),
            "run",
            "--home",
            str(self.w.home),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def test_the_page_is_a_page() -> None:
    assert len(source().splitlines()) < 160
    assert "A third gateway in a page" in PAGE.read_text("utf-8")


async def test_it_is_set_up_paired_and_talked_to(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        pigeon, home = Program(w), ("--home", str(w.home))
        where = ("--base-url", w.loft.url)

        code, _, err = await pigeon("run", *home)
        assert (code, "run `crabtalk-pigeon setup`" in err) == (1, True), err
        code, _, err = await pigeon("setup", *home, *where)
        assert (code, "--token-stdin" in err) == (2, True), err
        code, _, err = await pigeon("setup", *home, *where, "--token-stdin", given="wrong\n")
        assert (code, "who are you?" in err) == (1, True), err
        path = w.home / "config" / "pigeon.toml"
        assert not path.exists(), "only a token that works is written"

        code, out, err = await pigeon("setup", *home, *where, "--token-stdin", given="coo\n")
        assert code == 0, err
        assert "knows us as pigeon" in out
        assert path.stat().st_mode & 0o777 == 0o600
        assert load_settings(path).token == "coo"
        code, out, _ = await pigeon("check", *home, "--json")
        assert (code, json.loads(out)) == (0, {"name": "pigeon", "allowed_users": []})

        async with pigeon.running() as process:
            code, out, _ = await pigeon("pair", *home, "--json")
            w.loft.says(json.loads(out)["code"])
            await w.loft.until(lambda: w.loft.texts())
            assert "Welcome" in w.loft.texts()[0]
            w.loft.says("hello")
            await w.loft.until(lambda: w.loft.texts()[-1] == "heard: hello")
            code, _, err = await pigeon("run", *home)
            assert (code, "already runs" in err) == (1, True), err
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        log = (w.home / "logs" / "pigeon.log").read_text()
        assert "coo" not in log


def test_the_command_line_loads_nothing_of_the_gateway() -> None:
    program = (
        "import sys, crabtalk.component.gateway.cli\n"
        "print([m for m in ('google.protobuf', 'msgspec', 'tomlkit', 'crabtalk.client')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
