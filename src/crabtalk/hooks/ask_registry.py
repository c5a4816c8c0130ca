"""AskRegistry: questions put to people, and the runs that wait for an answer.

A step opens one ask with the questions of all its calls, and one reply answers it. Questions that
only the owner may answer go into a second ask. Every waiting call gets the unchanged reply.
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
    claimed: set[str] = msgspec.field(default_factory=set)  # digests of the waiting calls


class AskRegistry:
    """Holds at most two asks of a run, one for the owner and one for the sender.

    The steps of a run come one after the other, so a run never needs more.
    """

    def __init__(self, deadline: float = 300.0) -> None:
        self.deadline = deadline
        self._pending: dict[
            tuple[str, bool], RegisteredAsk
        ] = {}  # by run and for_owner, oldest first
        self._ask_count = 0

    def open_ask(
        self, run: Run, questions: Sequence[AskQuestion], *, for_owner: bool = False
    ) -> AskUser:
        """Register an ask. An earlier one of the same run and audience is replaced."""
        self._ask_count += 1
        ask = AskUser(f"{run.id}-{self._ask_count}", tuple(questions), for_owner)
        reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending[run.id, for_owner] = RegisteredAsk(run, ask, reply)
        return ask

    def find_unanswered(self, pair: Pair, besides: Run | None = None) -> AskUser | None:
        """Return the ask a conversation waits for, so that a new client can show it.

        Asks of the run `besides` and asks for the owner are left out.
        """
        return next(
            (
                ask
                for run, ask in self.list_unanswered()
                if run.pair == pair and run is not besides and not ask.for_owner
            ),
            None,
        )

    def list_unanswered(self) -> list[tuple[Run, AskUser]]:
        """Return all unanswered asks with their runs, oldest first."""
        return [(p.run, p.ask) for p in self._pending.values() if not p.reply.done()]

    def submit_reply(
        self, pair: Pair, content: str, ask_id: str = "", *, as_owner: bool = False
    ) -> bool:
        """Answer the oldest ask of a conversation, or the ask with `ask_id`.

        Returns False if there is no such ask. An ask for the owner is only answered by its id and
        with `as_owner`.
        """
        for pending in self._pending.values():
            ask = pending.ask
            matches = pending.run.pair == pair and ask_id in ("", ask.ask_id)
            if ask.for_owner and not (as_owner and ask_id == ask.ask_id):
                continue
            if matches and not pending.reply.done():
                pending.reply.set_result(content)
                return True
        return False

    def question_count(self, run: Run, *, for_owner: bool) -> int:
        """Return how many questions the run's ask has; 0 without an ask."""
        pending = self._pending.get((run.id, for_owner))
        return len(pending.ask.questions) if pending is not None else 0

    def claim(self, run: Run, digest: str, *, for_owner: bool) -> bool:
        """Claim the run's ask for the call with this digest. Returns False if that is not possible.

        The ask must show exactly this call, not another one with the same text. A call that was
        made twice is shown once, so only the first of the two can claim it.
        """
        pending = self._pending.get((run.id, for_owner))
        if pending is None or digest in pending.claimed:
            return False
        pending.claimed.add(digest)
        approvals = [question.approval for question in pending.ask.questions]
        return any(approval is not None and approval.digest == digest for approval in approvals)

    async def wait_for_reply(self, run: Run, *, for_owner: bool = False) -> str | None:
        """Return the reply, or None after the deadline.

        Cancelling this call does not affect other calls that wait for the same reply.
        """
        pending = self._pending.get((run.id, for_owner))
        if pending is None:
            return None
        done, _ = await asyncio.wait([pending.reply], timeout=self.deadline)
        return pending.reply.result() if done else None

    def close(self, run: Run) -> None:
        """Drop the run's asks at the end of a step, answered or not."""
        for for_owner in (False, True):
            if (pending := self._pending.pop((run.id, for_owner), None)) is not None:
                pending.reply.cancel()
