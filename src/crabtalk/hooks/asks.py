"""Asks: questions put to people, and the runs that wait for the answer.

A step asks once: the questions of all its calls together, answered by one reply. The reply reaches
every call that waits as it was given.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from crabtalk.runtime import AskQuestion, AskUser, Run
from crabtalk.storage import Pair


class Pending(msgspec.Struct, eq=False):
    run: Run
    ask: AskUser
    reply: asyncio.Future[str]


class Asks:
    """At most one for a run: its steps come one after the other."""

    def __init__(self, deadline: float = 300.0) -> None:
        self.deadline = deadline
        self._pending: dict[str, Pending] = {}  # by run, oldest first
        self._count = 0

    def open(self, run: Run, questions: Sequence[AskQuestion]) -> AskUser:
        self._count += 1
        ask = AskUser(f"{run.id}-{self._count}", tuple(questions))
        reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending[run.id] = Pending(run, ask, reply)
        return ask

    def pending(self, pair: Pair) -> AskUser | None:
        """What a conversation waits for, for whoever comes to it anew."""
        return next((ask for run, ask in self.waiting() if run.pair == pair), None)

    def waiting(self) -> list[tuple[Run, AskUser]]:
        """All that nobody has answered yet, the oldest first."""
        return [(p.run, p.ask) for p in self._pending.values() if not p.reply.done()]

    def reply(self, pair: Pair, content: str, ask_id: str = "") -> bool:
        """Answers the oldest ask of a conversation, or the one with that id; False without one."""
        for pending in self._pending.values():
            is_meant = pending.run.pair == pair and ask_id in ("", pending.ask.ask_id)
            if is_meant and not pending.reply.done():
                pending.reply.set_result(content)
                return True
        return False

    async def answer(self, run: Run) -> str | None:
        """The reply; None when nobody gave one in time. Cancelled, others still wait for it."""
        pending = self._pending.get(run.id)
        if pending is None:
            return None
        done, _ = await asyncio.wait([pending.reply], timeout=self.deadline)
        return pending.reply.result() if done else None

    def close(self, run: Run) -> None:
        """The step is over, whether anybody answered or not."""
        if (pending := self._pending.pop(run.id, None)) is not None:
            pending.reply.cancel()
