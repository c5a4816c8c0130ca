"""Firing: an entry's turn at the daemon. Says StreamMsg, and nothing else (RFC 0080)."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import connect
from crabtalk.protocol import wire

from .entry import CronEntry


async def run_turn(home: Path, entry: CronEntry, begun: Callable[[], Awaitable[None]]) -> str:
    """Has the agent told, and reads its answer to the end: it is kept in the conversation.

    `begun` is called once, when the daemon has taken the turn on. Returns the error the turn ended
    with, or nothing. Raises what a client's stream raises; CannotConnectError means that the
    daemon has heard nothing. Cancelled, the turn goes on without us.
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
                # Nobody is there to say yes: a call that needs it is refused at once.
                unattended=True,
                origin=entry.created_by,
            )
        ) as events,
    ):
        async for event in events:
            if not has_begun:
                has_begun = True
                await begun()
            if isinstance(event, wire.StreamEnd):
                error = event.error
    return error
