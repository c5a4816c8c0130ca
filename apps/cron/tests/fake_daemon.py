"""A daemon that begins and ends turns when the test allows it, and records all requests.

Its socket, frames and errors are real.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from crabtalk.protocol import NotFoundError, ReplyField, Server, wire
from crabtalk.transport import RunFiles, TransportLimits
from tests.scripted_server import open_listener

PATIENCE = 20


class FakeCronDaemon(Server):
    def __init__(self) -> None:
        self.requests: list[wire.StreamMsg] = []
        self.request_kinds: set[str | None] = set()  # of all requests
        self.ended_contents: list[str] = []  # the contents of turns that were read to the end
        self.running_turns = 0
        self.max_running_turns = 0
        self.may_begin = asyncio.Event()  # turns wait for it before they begin
        self.may_finish = asyncio.Event()  # turns wait for it before they end
        self.may_begin.set()
        self.may_finish.set()
        self._changed = asyncio.Condition()

    def answer(self, message: wire.ClientMessage) -> AsyncGenerator[ReplyField, None]:
        self.request_kinds.add(message.WhichOneof("msg"))
        return super().answer(message)

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        self.requests.append(request)
        self.running_turns += 1
        self.max_running_turns = max(self.running_turns, self.max_running_turns)
        await self._notify()
        try:
            await self.may_begin.wait()
            if request.agent == "ghost":
                raise NotFoundError("no agent is called 'ghost'; make one")
            yield wire.StreamEvent(start=wire.StreamStart(agent=request.agent))
            for number in range(3):
                yield wire.StreamEvent(chunk=wire.StreamChunk(content=str(number)))
            await self.may_finish.wait()
            error = "it broke" if request.content == "break" else ""
            yield wire.StreamEvent(end=wire.StreamEnd(agent=request.agent, error=error))
            self.ended_contents.append(request.content)
        finally:
            self.running_turns -= 1
            await self._notify()

    @property
    def contents(self) -> list[str]:
        return [request.content for request in self.requests]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serve_daemon(peer: Server, home: Path) -> AsyncIterator[None]:
    """Serve at the address of the daemon of `home`."""
    (home / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    # A turn that never ends must not hold up the end of the test.
    async with open_listener(
        peer, RunFiles.for_home(home).socket_path, limits=TransportLimits(drain_timeout=0.1)
    ):
        yield


def write_crons(home: Path, text: str) -> Path:
    """Write config/crons.toml in `home`."""
    path = home / "config" / "crons.toml"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    return path


def make_entry_text(number: int, schedule: str = "0 * * * * *", **rest: object) -> str:
    """An entry as a person would write it."""
    fields = {"agent": "crab", **({} if "message" in rest else {"skill": f"s{number}"}), **rest}
    lines = [f"{key} = {format_value(value)}" for key, value in fields.items()]
    return "\n".join(["[[cron]]", f"id = {number}", f'schedule = "{schedule}"', *lines, "", ""])


def format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | int | float) else f'"{value}"'
