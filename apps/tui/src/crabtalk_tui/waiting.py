"""Waiting: a turn that does not begin because its conversation is busy. A person is told so, once.

A daemon keeps what is said as the turn begins: what is not the last thing said waits.
"""

import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from crabtalk.component.command import say

from .options import typed

if TYPE_CHECKING:
    from crabtalk.protocol import wire

SOON = 3.0  # seconds: most turns before it are over by then
PAGE = 100  # messages; a turn before it that has more is no matter of seconds
BEYOND = 2**62  # any message: a page from there says how many there are


class Waiting:
    """From entering it until it is `over`. Looks from a thread, for the stream has this one."""

    def __init__(self, home: Path | None, request: "wire.StreamMsg") -> None:
        self._home = home
        self._request = request
        self._is_over = not sys.stderr.isatty()
        self._timer = Timer(SOON, self._look)
        self._timer.daemon = True

    def __enter__(self) -> "Waiting":
        if not self._is_over:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over()

    def over(self) -> None:
        self._is_over = True
        self._timer.cancel()

    def _look(self) -> None:
        from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError

        with suppress(OSError, ConnectionClosedError, ServerError, UnexpectedReplyError):
            if not self._is_last() and not self._is_over:
                say(self._sentence())

    def _is_last(self) -> bool:
        """Whether it is what the conversation was told last; the words of a skill may be."""
        from crabtalk.client import connect_sync

        asked = self._request
        with connect_sync(home=self._home, client="crabtalk") as client:
            total = client.list_messages(asked.agent, sender=asked.sender, offset=BEYOND).total
            start = max(0, total - PAGE)
            page = client.list_messages(
                asked.agent, sender=asked.sender, offset=start, limit=PAGE
            ).messages
        texts = [message.content for message in page if message.role == "user"]
        return texts[-1:] == [asked.content] or asked.content.lstrip().startswith("/")

    def _sentence(self) -> str:
        asked = self._request
        kill = typed("kill", asked.agent, asked.sender, self._home)
        return (
            f"{asked.agent} is busy in this conversation, and this waits until it is done; "
            f"`{kill}` stops what it does"
        )
