"""A chat session without the chat: its listener records everything."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from crabtalk.chat.session import ChatSession, NoticeKind
from crabtalk.client import Client
from crabtalk.protocol import wire
from crabtalk.transport import RunFiles
from tests.daemon.in_process_daemon import PATIENCE

T = TypeVar("T")


class RecordingListener:
    """A SessionListener that records events, notices and changes."""

    def __init__(self) -> None:
        self.events: list[wire.StreamEvent] = []
        self.feed_events: list[wire.AgentEventMsg] = []
        self.notices: list[tuple[str, NoticeKind]] = []
        self.changes = asyncio.Event()

    def on_stream_event(self, event: wire.StreamEvent) -> None:
        self.events.append(event)
        self.changes.set()

    def on_feed_event(self, event: wire.AgentEventMsg) -> None:
        self.feed_events.append(event)
        self.changes.set()

    def show_notice(self, text: str, kind: NoticeKind) -> None:
        self.notices.append((text, kind))
        self.changes.set()

    def on_change(self) -> None:
        self.changes.set()

    @property
    def text(self) -> str:
        return "".join(event.chunk.content for event in self.events)

    @property
    def ends(self) -> list[wire.StreamEnd]:
        return [event.end for event in self.events if event.HasField("end")]

    @property
    def notice_text(self) -> str:
        return "\n".join(text for text, _ in self.notices)

    async def wait_until(self, claim: Callable[[], bool]) -> None:
        """Wait until the recorded events make the claim true."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not claim():
                    self.changes.clear()
                    await self.changes.wait()
        except TimeoutError:
            raise AssertionError(f"told: {self.text!r}, {self.notice_text!r}") from None


@asynccontextmanager
async def open_session(
    home: Path, **options: Any
) -> AsyncIterator[tuple[ChatSession, RecordingListener]]:
    """Open a session with the daemon of `home`. A daemon that it started is killed at the end."""
    listener = RecordingListener()
    before = get_daemon_pid(home)
    try:
        async with ChatSession(listener, home=home, **options) as session:
            yield session, listener
    finally:
        if (pid := get_daemon_pid(home)) != before:
            await kill_daemon(pid)


def get_daemon_pid(home: Path) -> int:
    """Return the pid of the process that serves a home, or served it; 0 if there is none."""
    with suppress(OSError, ValueError):
        return int(RunFiles.for_home(home).lock_path.read_text())
    return 0


async def kill_daemon(pid: int) -> None:
    """Kill a daemon that is not a child of this process."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def start_task(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.ensure_future(work)


async def load_messages(
    client: Client, agent: str = "crab", sender: str = ""
) -> list[tuple[str, str]]:
    page = await client.list_messages(agent, sender=sender)
    return [(message.role, message.content) for message in page.messages]
