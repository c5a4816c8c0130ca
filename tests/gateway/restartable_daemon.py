"""The daemon of a kill scenario: a process that is killed and restarted, with slow tools.

python -m tests.gateway.restartable_daemon HOME

`dig` finds sand. `send_file` writes the file it names; for a name that begins with `bad` it writes
the file and fails.
"""

import asyncio
import json
import os
import zlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

from crabtalk.client import Client, ServerError, connect
from crabtalk.gateway.errors import DAEMON_UNAVAILABLE_ERRORS
from crabtalk.model import Tool
from crabtalk.protocol import wire
from crabtalk.runtime import Hook, ToolDispatch, ToolError
from tests.crash import launcher
from tests.crash.launched_daemon import LaunchedDaemon
from tests.daemon.in_process_daemon import AGENTS, CONFIG, prepare_home
from tests.forked_programs import PIPE, ForkedProcess, ForkedProgram
from tests.model_server import ROOT, ModelServer

LAUNCHER = ForkedProgram(
    *(Path(__file__), "tests.gateway.restartable_daemon:main"),
    *("crabtalk.model.openai", "aiohttp", "tantivy", "uvloop"),
)
# Failures that do not begin like one.
FAILURES = (
    "the disk is full",
    "bash failed: exit status 1",
    "timed out after 30 s",
    "sent",
    "Fehler: kein Platz",
)


class SlowToolsHook(Hook):
    def schema(self) -> list[Tool]:
        return [Tool("dig", "Finds sand."), Tool("send_file", "Sends a file.")]

    def dispatch(self, call: ToolDispatch) -> Awaitable[str] | None:
        match call.name:
            case "dig":
                return self._dig()
            case "send_file":
                return self._send_file(call)
        return None

    async def _dig(self) -> str:
        """Slow, so that it can be killed or steered meanwhile."""
        await asyncio.sleep(0.1)
        return "sand"

    async def _send_file(self, call: ToolDispatch) -> str:
        path: str = json.loads(call.arguments)["path"]
        (call.cwd / path).write_text(path)
        await asyncio.sleep(0.02)
        if path.startswith("bad"):
            raise ToolError(FAILURES[zlib.crc32(path.encode()) % len(FAILURES)])
        return "permission denied: not at all"  # a success that sounds like a failure


class RestartableDaemon(LaunchedDaemon):
    """A daemon that can be away at any moment. Its conversations are read when it is back."""

    def __init__(self, path: Path, model: ModelServer) -> None:
        super().__init__(path / "home")
        prepare_home(self.home, AGENTS, CONFIG.replace("{url}", model.url))

    def fork_process(self) -> ForkedProcess:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return LAUNCHER.start(self.home, stderr=PIPE, env=environment)

    def client(self) -> Client:
        return connect(home=self.home)

    async def list_user_messages(self, sender: str) -> list[str]:
        """The messages of people to crab; empty while the daemon is away."""
        try:
            return [
                record.message.content
                for record in await self.list_records(sender)
                if record.message.role == "user"
            ]
        except (ServerError, *DAEMON_UNAVAILABLE_ERRORS):
            return []

    async def list_records(self, sender: str) -> list[wire.ConversationRecord]:
        records: list[wire.ConversationRecord] = []
        position: int | None = None
        async with self.client() as client:
            while True:
                try:
                    page = await client.list_records("crab", sender=sender, position=position)
                except ServerError as error:
                    if error.code != 404:
                        raise
                    return records  # the conversation has not begun
                records += page.records
                position = page.next_position
                if not page.has_more:
                    return records


@asynccontextmanager
async def run_restartable_daemon(
    path: Path, model: ModelServer
) -> AsyncIterator[RestartableDaemon]:
    """Starts a daemon, and returns when it answers."""
    daemon = RestartableDaemon(path, model)
    try:
        await daemon.start()
        yield daemon
    finally:
        await daemon.kill()


def main() -> None:
    launcher.main(SlowToolsHook())


if __name__ == "__main__":
    main()
