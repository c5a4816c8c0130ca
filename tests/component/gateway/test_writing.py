"""Writing: whenever the clock is looked at, what there is to show is shown."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from crabtalk.client import connect
from crabtalk.component.gateway import Button, Chat, Person, Rich, Settings, Update
from crabtalk.component.gateway.desk import Desk
from crabtalk.component.gateway.entries import Came
from crabtalk.component.gateway.files import Files
from crabtalk.component.gateway.journal import Journal
from crabtalk.component.gateway.link import Link
from crabtalk.component.gateway.writing import Writing
from tests.component.gateway.world import PIGEON

EVERY = 0.01
# More looks than it takes until the first words are shown.
LOOKS = 40


class Jumping(asyncio.SelectorEventLoop):
    """Its clock jumps over the next moment at one of the looks at it, as when a machine is busy."""

    def __init__(self, look: int) -> None:
        self._left = look
        super().__init__()

    def time(self) -> float:
        self._left -= 1
        return super().time() + (EVERY if self._left < 0 else 0.0)


class Wall(PIGEON.Pigeon):  # type: ignore[name-defined,misc]
    """A service on which messages can be seen, and nothing else."""

    def __init__(self) -> None:
        self.limits = replace(PIGEON.Pigeon.limits, edit_every=EVERY)
        self.seen = asyncio.Event()

    async def send(
        self,
        chat: Chat,
        text: Rich,
        *,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
        is_literal: bool = False,
    ) -> str:
        self.seen.set()
        return "m1"


async def shown(path: Path) -> None:
    """Until the first words of an answer that pauses then."""
    service = Wall()
    journal = Journal(path / "journal")
    journal.open()
    journal.note(Came(Update("u1", Chat("7"), Person("7", "Ann"), "hello")))
    link = Link(connect(home=path))
    desk = Desk(journal, service, link, Files(path, service), Settings(), asyncio.Semaphore())
    writing = Writing(desk, journal.book.items["u1"], "pg:7")
    working = asyncio.ensure_future(writing.work())
    await asyncio.sleep(0)
    writing.add("So far.")
    async with asyncio.timeout(5):
        await service.seen.wait()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    journal.close()


@pytest.mark.req("gateways.streaming")
def test_an_answer_that_pauses_is_shown_at_whatever_look_at_the_clock_its_time_comes(
    tmp_path: Path,
) -> None:
    for look in range(LOOKS):
        directory = tmp_path / str(look)
        directory.mkdir()
        with asyncio.Runner(loop_factory=lambda look=look: Jumping(look)) as runner:  # type: ignore[misc]
            runner.run(shown(directory))
