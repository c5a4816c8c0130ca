"""Runs an entry's turn at the daemon. Sends StreamMsg, and nothing else (RFC 0080)."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import connect
from crabtalk.protocol import wire

from .entry import CronEntry


async def run_turn(home: Path, entry: CronEntry, on_begin: Callable[[], Awaitable[None]]) -> str:
    """Send the message and read the answer to its end. The conversation stores the answer.

    `on_begin` is called once, when the daemon has accepted the turn. Returns the error the turn
    ended with, or an empty text. Raises what a client's stream raises; CannotConnectError means
    that the daemon did not get the message. Cancelled, the turn goes on at the daemon.
    """
    has_begun = False
    error = ""
    async with (
        connect(home=home, client="crabtalk-cron") as client,
        aclosing(
            client.stream(
                entry.agent,
                entry.content,
                sender=entry.sender,
                detach=True,
                mode=entry.mode or None,
                # No person is there to approve: a call that needs it is refused at once.
                unattended=True,
                origin=entry.created_by,
            )
        ) as events,
    ):
        async for event in events:
            if not has_begun:
                has_begun = True
                await on_begin()
            if isinstance(event, wire.StreamEnd):
                error = event.error
    return error
