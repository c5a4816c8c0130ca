"""The turn view shows its text, whenever the clock is read."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from crabtalk.client import connect
from crabtalk.gateway import Button, Chat, GatewaySettings, Markdown, Person, Update
from crabtalk.gateway.daemon_monitor import DaemonMonitor
from crabtalk.gateway.gateway_context import GatewayContext
from crabtalk.gateway.journal import GatewayJournal
from crabtalk.gateway.journal_records import UpdateReceived
from crabtalk.gateway.sender_files import SenderFiles
from crabtalk.gateway.turn_view import TurnView
from tests.gateway.gateway_world import PIGEON_MODULE

EDIT_INTERVAL = 0.01
# More clock reads than it takes until the first words are shown.
CLOCK_READS = 40


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps ahead at one of its reads, as on a busy machine."""

    def __init__(self, look: int) -> None:
        self._reads_left = look
        super().__init__()

    def time(self) -> float:
        self._reads_left -= 1
        return super().time() + (EDIT_INTERVAL if self._reads_left < 0 else 0.0)


class SendOnlyService(PIGEON_MODULE.Pigeon):  # type: ignore[name-defined,misc]
    """A service that can only send messages."""

    def __init__(self) -> None:
        self.limits = replace(PIGEON_MODULE.Pigeon.limits, edit_every=EDIT_INTERVAL)
        self.sent = asyncio.Event()

    async def send(
        self,
        chat: Chat,
        text: Markdown,
        *,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
        is_literal: bool = False,
    ) -> str:
        self.sent.set()
        return "m1"


async def show_first_words(path: Path) -> None:
    """Run until the first words of an answer that pauses are shown."""
    service = SendOnlyService()
    journal = GatewayJournal(path / "journal")
    journal.open()
    journal.append(UpdateReceived(Update("u1", Chat("7"), Person("7", "Ann"), "hello")))
    link = DaemonMonitor(connect(home=path))
    context = GatewayContext(
        journal, service, link, SenderFiles(path, service), GatewaySettings(), asyncio.Semaphore()
    )
    view = TurnView(context, journal.state.pending["u1"], "pg:7")
    working = asyncio.ensure_future(view.run())
    await asyncio.sleep(0)
    view.add_text("So far.")
    async with asyncio.timeout(5):
        await service.sent.wait()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    journal.close()


@pytest.mark.req("gateways.streaming")
def test_an_answer_that_pauses_is_shown_at_whichever_clock_read_its_time_comes(
    tmp_path: Path,
) -> None:
    for look in range(CLOCK_READS):
        directory = tmp_path / str(look)
        directory.mkdir()
        with asyncio.Runner(loop_factory=lambda look=look: JumpingLoop(look)) as runner:  # type: ignore[misc]
            runner.run(show_first_words(directory))
