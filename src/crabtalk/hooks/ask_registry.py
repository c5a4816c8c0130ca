"""Asks: questions put to people, and the runs that wait for the answer.

A step asks once: the questions of all its calls together, answered by one reply. What only the
owner may answer is an ask of its own. The reply reaches every call that waits as it was given.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from crabtalk.runtime import AskQuestion, AskUser, Run
from crabtalk.storage import Pair


class RegisteredAsk(msgspec.Struct, eq=False):
    run: Run
    ask: AskUser
    reply: asyncio.Future[str]
    claimed: set[str] = msgspec.field(default_factory=set)  # digests of calls that wait for it


class AskRegistry:
    """At most one for a run and who it is for: its steps come one after the other."""

    def __init__(self, deadline: float = 300.0) -> None:
        self.deadline = deadline
        self._pending: dict[
            tuple[str, bool], RegisteredAsk
        ] = {}  # by run and for_owner, oldest first
        self._ask_count = 0

    def open_ask(
        self, run: Run, questions: Sequence[AskQuestion], *, for_owner: bool = False
    ) -> AskUser:
        self._ask_count += 1
        ask = AskUser(f"{run.id}-{self._ask_count}", tuple(questions), for_owner)
        reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending[run.id, for_owner] = RegisteredAsk(run, ask, reply)
        return ask

    def find_unanswered(self, pair: Pair, besides: Run | None = None) -> AskUser | None:
        """What a conversation waits for, for whoever comes to it anew; `besides` that run."""
        return next(
            (
                ask
                for run, ask in self.list_unanswered()
                if run.pair == pair and run is not besides and not ask.for_owner
            ),
            None,
        )

    def list_unanswered(self) -> list[tuple[Run, AskUser]]:
        """All that nobody has answered yet, the oldest first."""
        return [(p.run, p.ask) for p in self._pending.values() if not p.reply.done()]

    def submit_reply(
        self, pair: Pair, content: str, ask_id: str = "", *, as_owner: bool = False
    ) -> bool:
        """Answers the oldest ask of a conversation, or the one with that id; False without one.

        One that is for the owner wants its id and the owner's word.
        """
        for pending in self._pending.values():
            ask = pending.ask
            is_meant = pending.run.pair == pair and ask_id in ("", ask.ask_id)
            if ask.for_owner and not (as_owner and ask_id == ask.ask_id):
                continue
            if is_meant and not pending.reply.done():
                pending.reply.set_result(content)
                return True
        return False

    def question_count(self, run: Run, *, for_owner: bool) -> int:
        """How many questions the run's ask has; 0 without one."""
        pending = self._pending.get((run.id, for_owner))
        return len(pending.ask.questions) if pending is not None else 0

    def claim(self, run: Run, digest: str, *, for_owner: bool) -> bool:
        """Whether the run's ask is about the call with this digest: not about another one that
        reads the same, and not about the same call made twice, of which people saw one."""
        pending = self._pending.get((run.id, for_owner))
        if pending is None or digest in pending.claimed:
            return False
        pending.claimed.add(digest)
        approvals = [question.approval for question in pending.ask.questions]
        return any(one is not None and one.digest == digest for one in approvals)

    async def wait_for_reply(self, run: Run, *, for_owner: bool = False) -> str | None:
        """The reply; None when nobody gave one in time. Cancelled, others still wait for it."""
        pending = self._pending.get((run.id, for_owner))
        if pending is None:
            return None
        done, _ = await asyncio.wait([pending.reply], timeout=self.deadline)
        return pending.reply.result() if done else None

    def close(self, run: Run) -> None:
        """The step is over, whether anybody answered or not."""
        for for_owner in (False, True):
            if (pending := self._pending.pop((run.id, for_owner), None)) is not None:
                pending.reply.cancel()
