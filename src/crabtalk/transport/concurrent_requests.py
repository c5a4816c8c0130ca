"""SideRequests: the requests of one connection that run beside all others, such as turns and feeds.

Requests that name the same conversation begin in the order they came: one begins when the one
before it has got its first answer. Nothing here reads, writes or cancels; Connection does.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from crabtalk.protocol import ReplyShape, Route

AgentAndSender = tuple[str, str]


class ConcurrentRequest:
    """One request that runs beside the others. `has_begun` is false while it waits to begin."""

    __slots__ = ("_first_answer", "conversation", "has_answered", "has_started", "shape", "task")

    def __init__(
        self, task: asyncio.Task[None], shape: ReplyShape, conversation: AgentAndSender | None
    ) -> None:
        self.task = task
        self.shape = shape
        self.conversation = conversation
        self.has_started = False
        self.has_answered = False
        self._first_answer: asyncio.Future[None] | None = None

    def mark_answered(self) -> None:
        """Its first answer is there, or none will come: the next one may begin."""
        self.has_answered = True
        if self._first_answer is not None and not self._first_answer.done():
            self._first_answer.set_result(None)

    async def wait_for_answer(self) -> None:
        """Returns when `note_answer` was called. Cancelled, it changes nothing for other waiters.

        It has no deadline: a turn takes as long as it takes, and `stop` cancels whoever waits.
        """
        if not self.has_answered:
            if self._first_answer is None:
                self._first_answer = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._first_answer)


class ConcurrentRequests:
    """All of them on one connection, at most as many as its limits allow."""

    __slots__ = ("_latest", "_requests")

    def __init__(self) -> None:
        self._requests: dict[asyncio.Task[None], ConcurrentRequest] = {}
        # The latest request of each conversation.
        self._latest: dict[AgentAndSender, ConcurrentRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ConcurrentRequest]:
        return iter(list(self._requests.values()))

    def add(
        self, task: asyncio.Task[None], shape: ReplyShape, conversation: AgentAndSender | None
    ) -> tuple[ConcurrentRequest, ConcurrentRequest | None]:
        """The new request, and the one it has to wait for."""
        request = ConcurrentRequest(task, shape, conversation)
        self._requests[task] = request
        before = None
        if conversation is not None:
            before = self._latest.get(conversation)
            self._latest[conversation] = request
        return request, None if before is None or before.has_answered else before

    def remove(self, request: ConcurrentRequest) -> None:
        request.mark_answered()
        self._requests.pop(request.task, None)
        if request.conversation is not None and self._latest.get(request.conversation) is request:
            del self._latest[request.conversation]


def get_conversation_key(route: Route, payload: Any) -> AgentAndSender | None:
    """The conversation whose line a request joins. Who only follows or lists joins none."""
    return (payload.agent, payload.sender or "user") if route.is_turn else None
