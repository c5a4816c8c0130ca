"""Waiting: a turn that does not begin because its conversation is busy. A person is told so, once.

A daemon puts what is said into the conversation as the turn begins: while the last message there is
of another run, this one waits.
"""

import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from crabtalk.service.command_line import print_to_stderr

from .options import format_command

if TYPE_CHECKING:
    from crabtalk.protocol import wire

DELAY = 3.0  # seconds: most turns before it are over by then
PAST_LAST_MESSAGE = 2**62  # any message: a page from there says how many there are


class BusyNotice:
    """From entering it until it is `over`. Looks from a thread, for the stream has this one."""

    def __init__(self, home: Path | None, request: "wire.StreamMsg") -> None:
        self._home = home
        self._request = request
        self._is_cancelled = not sys.stderr.isatty()
        self._run_id = ""
        self._timer = Timer(DELAY, self._check)
        self._timer.daemon = True

    def __enter__(self) -> "BusyNotice":
        if not self._is_cancelled:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def set_run_id(self, run_id: str) -> None:
        """The daemon has accepted it."""
        self._run_id = run_id

    def cancel(self) -> None:
        self._is_cancelled = True
        self._timer.cancel()

    def _check(self) -> None:
        from crabtalk.client import ConnectionClosedError, ServerError, UnexpectedReplyError

        with suppress(OSError, ConnectionClosedError, ServerError, UnexpectedReplyError):
            if self._has_earlier_run() and not self._is_cancelled:
                print_to_stderr(self._format_notice())

    def _has_earlier_run(self) -> bool:
        """Whether another run goes on before it. False where the daemon does not say."""
        from crabtalk.client import connect_sync

        agent, sender = self._request.agent, self._request.sender
        with connect_sync(home=self._home, client="crabtalk") as client:
            total = client.list_messages(agent, sender=sender, offset=PAST_LAST_MESSAGE).total
            page = client.list_messages(
                agent, sender=sender, offset=max(0, total - 1), limit=1, with_runs=True
            )
        return any(last.run_id not in ("", self._run_id) for last in page.messages)

    def _format_notice(self) -> str:
        asked = self._request
        kill = format_command("kill", asked.agent, asked.sender, self._home)
        return (
            f"{asked.agent} is busy in this conversation, and this waits until it is done; "
            f"`{kill}` stops what it does"
        )
