"""`crabtalkd run` as a child process of a test, and a client that reconnects to it."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import CannotConnectError, ConnectionClosedError, ServerError, connect
from crabtalk.protocol import wire
from tests.crash.launched_daemon import LaunchedDaemon
from tests.daemon.crabtalkd_program import CRABTALKD_PROGRAM
from tests.daemon.in_process_daemon import PATIENCE
from tests.forked_programs import PIPE, ForkedProcess


class CrabtalkdProcess(LaunchedDaemon):
    def fork_process(self) -> ForkedProcess:
        return CRABTALKD_PROGRAM.start("run", "--home", self.home, "--tcp", "off", stderr=PIPE)


class NotificationListener:
    """A client that collects what an agent says, and reconnects when the daemon restarts.

    `received` has the sender and the text of each completed turn.
    """

    def __init__(self, home: Path, agent: str) -> None:
        self.received: list[tuple[str, str]] = []
        self.disconnects = 0  # lost connections
        self._home = home
        self._agent = agent
        self._texts: dict[str, str] = {}

    async def listen(self) -> None:
        while True:
            try:
                async with (
                    connect(home=self._home) as client,
                    aclosing(client.subscribe_events(agent=self._agent)) as feed,
                ):
                    async for event in feed:
                        self._receive(event)
            except CannotConnectError:
                await asyncio.sleep(0.01)
            except (ConnectionClosedError, ServerError):
                self.disconnects += 1

    def _receive(self, event: wire.AgentEventMsg) -> None:
        if event.kind == wire.TEXT_DELTA:
            self._texts[event.run_id] = self._texts.get(event.run_id, "") + event.content
        elif event.kind == wire.DONE:
            self.received.append((event.sender, self._texts.pop(event.run_id, "")))

    async def wait_until_listening(self) -> None:
        """Send messages until one is received, so that later ones certainly are."""
        knocks = self._count("knock")
        async with asyncio.timeout(PATIENCE), connect(home=self._home) as client:
            while self._count("knock") == knocks:
                await client.send(self._agent, "!say here", sender="knock")

    async def wait_for_notifications(self, *expected: tuple[str, str]) -> None:
        """Wait for exactly these, apart from the messages of `wait_until_listening`."""
        async with asyncio.timeout(PATIENCE):
            while len(self.notifications) < len(expected):
                await asyncio.sleep(0.005)
        assert self.notifications == list(expected)

    @property
    def notifications(self) -> list[tuple[str, str]]:
        return [notification for notification in self.received if notification[0] != "knock"]

    def _count(self, sender: str) -> int:
        return sum(notification[0] == sender for notification in self.received)
