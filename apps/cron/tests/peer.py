"""A daemon that takes turns on when the test lets it, and remembers what it was asked.

Its socket, frames and errors are real; what it does with a turn is the test's to choose.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from crabtalk.protocol import NotFoundError, Reply, Server, wire
from crabtalk.transport import Limits, RunFiles
from tests.scripted import listening

PATIENCE = 20


class Peer(Server):
    def __init__(self) -> None:
        self.asked: list[wire.StreamMsg] = []
        self.kinds: set[str | None] = set()  # of all requests that came
        self.ended: list[str] = []  # the content of turns that were heard to the end
        self.at_once = 0
        self.most_at_once = 0
        self.begin = asyncio.Event()  # turns wait for it before they begin
        self.finish = asyncio.Event()  # and for this one before they end
        self.begin.set()
        self.finish.set()
        self._changed = asyncio.Condition()

    def answer(self, message: wire.ClientMessage) -> AsyncGenerator[Reply, None]:
        self.kinds.add(message.WhichOneof("msg"))
        return super().answer(message)

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        self.asked.append(request)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await self._tell()
        try:
            await self.begin.wait()
            if request.agent == "nobody":
                raise NotFoundError("no agent is called 'nobody'; make one")
            yield wire.StreamEvent(start=wire.StreamStart(agent=request.agent))
            for number in range(3):
                yield wire.StreamEvent(chunk=wire.StreamChunk(content=str(number)))
            await self.finish.wait()
            error = "it broke" if request.content == "break" else ""
            yield wire.StreamEvent(end=wire.StreamEnd(agent=request.agent, error=error))
            self.ended.append(request.content)
        finally:
            self.at_once -= 1
            await self._tell()

    @property
    def contents(self) -> list[str]:
        return [request.content for request in self.asked]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(is_so)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serving(peer: Server, home: Path) -> AsyncIterator[None]:
    """Where the daemon of `home` would answer."""
    (home / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    # A turn that never ends does not hold up the end.
    async with listening(peer, RunFiles.of(home).socket, limits=Limits(drain_timeout=0.1)):
        yield


def write(home: Path, text: str) -> Path:
    """The file of crons in `home`."""
    path = home / "config" / "crons.toml"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    return path


def cron(number: int, schedule: str = "0 * * * * *", **rest: object) -> str:
    """An entry, as a person writes one."""
    said = {"agent": "crab", **({} if "message" in rest else {"skill": f"s{number}"}), **rest}
    lines = [f"{key} = {written(value)}" for key, value in said.items()]
    return "\n".join(["[[cron]]", f"id = {number}", f'schedule = "{schedule}"', *lines, "", ""])


def written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | int | float) else f'"{value}"'
