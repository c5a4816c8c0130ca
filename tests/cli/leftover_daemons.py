"""Homes for tests whose commands leave a daemon running; it is stopped at the end."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from crabtalk.transport import RunFiles
from tests.daemon.in_process_daemon import PATIENCE
from tests.model_server import ModelServer, model_server

CONFIG = """\
[daemon]
tcp = "off"
[llm]
base_url = "{url}"
model = "scripted"
max_retries = 0
"""


@asynccontextmanager
async def configure_home(home: Path) -> AsyncIterator[ModelServer]:
    """Prepare a home without a daemon, and a model for it. At the end its daemon is stopped."""
    home.mkdir(0o700)
    async with model_server(summary="We spoke of tides.") as model:
        (home / "config.toml").write_text(CONFIG.replace("{url}", model.url))
        try:
            yield model
        finally:
            await asyncio.to_thread(stop_daemon, home)


def get_daemon_pid(home: Path) -> int:
    pid = RunFiles.for_home(home).read_daemon_pid()
    assert pid is not None, "no daemon runs"
    return pid


def stop_daemon(home: Path) -> None:
    """Stop the daemon of the home and wait until none runs."""
    files = RunFiles.for_home(home)
    deadline = time.monotonic() + PATIENCE
    while (pid := files.read_daemon_pid()) is not None:
        assert time.monotonic() < deadline, f"{pid} does not end"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)
