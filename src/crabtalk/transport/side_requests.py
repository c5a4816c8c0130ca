"""SideRequests: the requests of one connection that run beside all others, such as turns and feeds.

Requests that name the same conversation begin in the order they came: one begins when the one
before it has got its first answer. Nothing here reads, writes or cancels; Connection does.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from crabtalk.protocol import Route, Shape

Conversation = tuple[str, str]


class SideRequest:
    """One request that runs beside the others. `has_begun` is false while it waits to begin."""

    __slots__ = ("_answered", "conversation", "has_answered", "has_begun", "shape", "task")

    def __init__(
        self, task: asyncio.Task[None], shape: Shape, conversation: Conversation | None
    ) -> None:
        self.task = task
        self.shape = shape
        self.conversation = conversation
        self.has_begun = False
        self.has_answered = False
        self._answered: asyncio.Future[None] | None = None

    def note_answer(self) -> None:
        """Its first answer is there, or none will come: the next one may begin."""
        self.has_answered = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def wait_for_answer(self) -> None:
        """Returns when `note_answer` was called. Cancelled, it changes nothing for other waiters.

        It has no deadline: a turn takes as long as it takes, and `stop` cancels whoever waits.
        """
        if not self.has_answered:
            if self._answered is None:
                self._answered = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._answered)


class SideRequests:
    """All of them on one connection, at most as many as its limits allow."""

    __slots__ = ("_last", "_requests")

    def __init__(self) -> None:
        self._requests: dict[asyncio.Task[None], SideRequest] = {}
        # The latest request of each conversation.
        self._last: dict[Conversation, SideRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[SideRequest]:
        return iter(list(self._requests.values()))

    def add(
        self, task: asyncio.Task[None], shape: Shape, conversation: Conversation | None
    ) -> tuple[SideRequest, SideRequest | None]:
        """The new request, and the one it has to wait for."""
        request = SideRequest(task, shape, conversation)
        self._requests[task] = request
        before = None
        if conversation is not None:
            before = self._last.get(conversation)
            self._last[conversation] = request
        return request, None if before is None or before.has_answered else before

    def remove(self, request: SideRequest) -> None:
        request.note_answer()
        self._requests.pop(request.task, None)
        if request.conversation is not None and self._last.get(request.conversation) is request:
            del self._last[request.conversation]


def find_conversation(route: Route, payload: Any) -> Conversation | None:
    """The conversation whose line a request joins. Who only follows or lists joins none."""
    return (payload.agent, payload.sender or "user") if route.is_turn else None
