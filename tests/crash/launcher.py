"""Runs the daemon as `crabtalkd run --tcp off` does, with a tool that is slow on demand.

python -m tests.crash.launcher HOME
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable
from pathlib import Path

from crabtalk.daemon.cli import new_event_loop
from crabtalk.daemon.config.settings import Config, load_config
from crabtalk.daemon.daemon import Daemon
from crabtalk.daemon.handlers.daemon_server import DaemonServer
from crabtalk.daemon.process.home import Home
from crabtalk.daemon.process.log_handler import LogHandler, start_logging
from crabtalk.daemon.process.main_loop import serve
from crabtalk.model import Tool
from crabtalk.runtime import Hook, ToolDispatch
from crabtalk.storage import FileStorage


class SlowToolHook(Hook):
    """`slow {"ms": 20, "say": "x"}` answers `slowly: x` after 20 milliseconds."""

    def schema(self) -> list[Tool]:
        return [Tool("slow", "Takes its time.")]

    def dispatch(self, call: ToolDispatch) -> Awaitable[str] | None:
        return self._run_slow(json.loads(call.arguments)) if call.name == "slow" else None

    async def _run_slow(self, arguments: dict[str, object]) -> str:
        await asyncio.sleep(float(str(arguments["ms"])) / 1000)
        return f"slowly: {arguments['say']}"


async def run_daemon(home: Home, config: Config, logs: LogHandler, hook: Hook) -> None:
    daemon = Daemon(
        home.path,
        FileStorage(home.path, flush=config.flush),
        config.document,
        limits=config.runtime_limits,
        feed_limits=config.feed_limits,
        hook=hook,
        keep_secret=logs.add_secrets,
    )
    await serve(home, config, DaemonServer(daemon), print_ready, daemon)


def print_ready(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def main(hook: Hook | None = None) -> None:
    home = Home(Path(sys.argv[1]))
    config = load_config(home.config, tcp="off")
    with (
        home,
        start_logging(
            directory=home.path / "logs", form="text", level=logging.INFO, stderr=sys.stderr
        ) as logs,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(run_daemon(home, config, logs, hook or SlowToolHook()))


if __name__ == "__main__":
    main()
