"""A notice, printed once, that a turn waits because its conversation is busy.

The daemon stores a message when its turn begins. While the last stored message belongs to another
run, this turn waits.
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

DELAY = 3.0  # seconds; most earlier turns are over by then
PAST_LAST_MESSAGE = 2**62  # beyond any message: a page from there is empty but has the total


class BusyNotice:
    """Prints the notice after DELAY unless `cancel` is called or the context is left.

    It looks from a thread, because the stream blocks the main one.
    """

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
        """Whether another run goes on before this one. False if the daemon does not say."""
        from crabtalk.client import connect_sync

        agent, sender = self._request.agent, self._request.sender
        with connect_sync(home=self._home, client="crabtalk") as client:
            total = client.list_messages(agent, sender=sender, offset=PAST_LAST_MESSAGE).total
            page = client.list_messages(
                agent, sender=sender, offset=max(0, total - 1), limit=1, with_runs=True
            )
        return any(message.run_id not in ("", self._run_id) for message in page.messages)

    def _format_notice(self) -> str:
        request = self._request
        kill_command = format_command("kill", request.agent, request.sender, self._home)
        return (
            f"{request.agent} is busy in this conversation, and this waits until it is done; "
            f"`{kill_command}` stops what it does"
        )
