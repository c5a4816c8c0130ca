"""ConcurrentRequests: requests of one connection that run beside others, such as turns and feeds.

Requests for the same conversation begin in the order they came: each begins when the previous
one has got its first answer. This module does not read, write or cancel; Connection does.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from crabtalk.protocol import ReplyShape, Route

AgentAndSender = tuple[str, str]


class ConcurrentRequest:
    """A request that runs beside others. `has_started` is false while it waits for its turn."""

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
        """Its first answer arrived, or none will come: the next request may begin."""
        self.has_answered = True
        if self._first_answer is not None and not self._first_answer.done():
            self._first_answer.set_result(None)

    async def wait_for_answer(self) -> None:
        """Wait until `mark_answered` is called. Cancelling one waiter does not affect the others.

        There is no deadline, because a turn may take any time; `Connection.stop` cancels the
        waiters.
        """
        if not self.has_answered:
            if self._first_answer is None:
                self._first_answer = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._first_answer)


class ConcurrentRequests:
    """All concurrent requests of a connection. Connection keeps their number within its limits."""

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
        """Add a request; return it and the one it must wait for, if any."""
        request = ConcurrentRequest(task, shape, conversation)
        self._requests[task] = request
        predecessor = None
        if conversation is not None:
            predecessor = self._latest.get(conversation)
            self._latest[conversation] = request
        return request, None if predecessor is None or predecessor.has_answered else predecessor

    def remove(self, request: ConcurrentRequest) -> None:
        request.mark_answered()
        self._requests.pop(request.task, None)
        if request.conversation is not None and self._latest.get(request.conversation) is request:
            del self._latest[request.conversation]


def get_conversation_key(route: Route, payload: Any) -> AgentAndSender | None:
    """The conversation whose queue a request joins, or None if it is not a turn."""
    return (payload.agent, payload.sender or "user") if route.is_turn else None
