"""Waiting: a turn that does not begin because its conversation is busy. A person is told so, once.

A daemon puts what is said into the conversation as the turn begins: while the last message there is
of another run, this one waits.
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
BEYOND = 2**62  # any message: a page from there says how many there are


class Waiting:
    """From entering it until it is `over`. Looks from a thread, for the stream has this one."""

    def __init__(self, home: Path | None, request: "wire.StreamMsg") -> None:
        self._home = home
        self._request = request
        self._is_over = not sys.stderr.isatty()
        self._run_id = ""
        self._timer = Timer(SOON, self._look)
        self._timer.daemon = True

    def __enter__(self) -> "Waiting":
        if not self._is_over:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over()

    def begin(self, run_id: str) -> None:
        """The daemon has accepted it."""
        self._run_id = run_id

    def over(self) -> None:
        self._is_over = True
        self._timer.cancel()

    def _look(self) -> None:
        from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError

        with suppress(OSError, ConnectionClosedError, ServerError, UnexpectedReplyError):
            if self._is_behind() and not self._is_over:
                say(self._sentence())

    def _is_behind(self) -> bool:
        """Whether another run goes on before it. False where the daemon does not say."""
        from crabtalk.client import connect_sync

        agent, sender = self._request.agent, self._request.sender
        with connect_sync(home=self._home, client="crabtalk") as client:
            total = client.list_messages(agent, sender=sender, offset=BEYOND).total
            page = client.list_messages(
                agent, sender=sender, offset=max(0, total - 1), limit=1, with_runs=True
            )
        return any(last.run_id not in ("", self._run_id) for last in page.messages)

    def _sentence(self) -> str:
        asked = self._request
        kill = typed("kill", asked.agent, asked.sender, self._home)
        return (
            f"{asked.agent} is busy in this conversation, and this waits until it is done; "
            f"`{kill}` stops what it does"
        )
