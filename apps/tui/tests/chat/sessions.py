"""A session as the chat has it, without the chat: what it is told is written down."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from crabtalk.client import Client
from crabtalk.protocol import wire
from crabtalk.transport import RunFiles
from crabtalk_tui.chat.session import Kind, Session
from tests.daemon.served import PATIENCE

T = TypeVar("T")


class Heard:
    """A Listener that remembers."""

    def __init__(self) -> None:
        self.events: list[wire.StreamEvent] = []
        self.feed: list[wire.AgentEventMsg] = []
        self.notices: list[tuple[str, Kind]] = []
        self.news = asyncio.Event()

    def streamed(self, event: wire.StreamEvent) -> None:
        self.events.append(event)
        self.news.set()

    def followed(self, event: wire.AgentEventMsg) -> None:
        self.feed.append(event)
        self.news.set()

    def noticed(self, text: str, kind: Kind) -> None:
        self.notices.append((text, kind))
        self.news.set()

    def changed(self) -> None:
        self.news.set()

    @property
    def text(self) -> str:
        return "".join(event.chunk.content for event in self.events)

    @property
    def ends(self) -> list[wire.StreamEnd]:
        return [event.end for event in self.events if event.HasField("end")]

    @property
    def sentences(self) -> str:
        return "\n".join(text for text, _ in self.notices)

    async def until(self, claim: Callable[[], bool]) -> None:
        """Until what it was told makes it so."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not claim():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            raise AssertionError(f"told: {self.text!r}, {self.sentences!r}") from None


@asynccontextmanager
async def talking(home: Path, **options: Any) -> AsyncIterator[tuple[Session, Heard]]:
    """A session with the daemon of `home`. One that it started itself is ended with it."""
    heard = Heard()
    before = holder(home)
    try:
        async with Session(heard, home=home, **options) as session:
            yield session, heard
    finally:
        if (pid := holder(home)) != before:
            await ended(pid)


def holder(home: Path) -> int:
    """The process that serves a home, or did; 0 for none."""
    with suppress(OSError, ValueError):
        return int(RunFiles.of(home).lock.read_text())
    return 0


async def ended(pid: int) -> None:
    """Kills a daemon that is nobody's child here."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def soon(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.ensure_future(work)


async def kept(client: Client, agent: str = "crab", sender: str = "") -> list[tuple[str, str]]:
    page = await client.list_messages(agent, sender=sender)
    return [(message.role, message.content) for message in page.messages]
