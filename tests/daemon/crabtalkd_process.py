"""`crabtalkd run` as a process of the tests' own, and a client that finds it again and again."""

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
    """The program itself."""

    def fork_process(self) -> ForkedProcess:
        return CRABTALKD_PROGRAM.start("run", "--home", self.home, "--tcp", "off", stderr=PIPE)


class NotificationListener:
    """A client that wants to know what an agent says, whatever becomes of the daemon.

    `heard` is what it was told: the sender and the text of each turn that was over.
    """

    def __init__(self, home: Path, agent: str) -> None:
        self.received: list[tuple[str, str]] = []
        self.disconnects = 0  # it has lost its daemon
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
        """Talks to the agent until that is heard: whatever happens next will be, too."""
        knocks = self._count("knock")
        async with asyncio.timeout(PATIENCE), connect(home=self._home) as client:
            while self._count("knock") == knocks:
                await client.send(self._agent, "!say here", sender="knock")

    async def wait_for_notifications(self, *expected: tuple[str, str]) -> None:
        """Exactly that, but for what it said to be there."""
        async with asyncio.timeout(PATIENCE):
            while len(self.notifications) < len(expected):
                await asyncio.sleep(0.005)
        assert self.notifications == list(expected)

    @property
    def notifications(self) -> list[tuple[str, str]]:
        return [one for one in self.received if one[0] != "knock"]

    def _count(self, sender: str) -> int:
        return sum(one[0] == sender for one in self.received)
