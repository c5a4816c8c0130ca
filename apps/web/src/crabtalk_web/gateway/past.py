"""Past: what the daemon has kept of a conversation, asked for piece by piece."""

from collections.abc import AsyncGenerator, Sequence

from crabtalk.client import Client, ServerError

from .catching_up import Archive, Message, at
from .identity import Identity

PAGE = 200


class Past:
    """Of one conversation; of one that does not exist yet, nothing. Raises what the client does."""

    def __init__(self, identity: Identity) -> None:
        self._agent = identity.agent
        self._sender = identity.sender

    async def messages(self, client: Client, offset: int) -> list[Message]:
        """All from that one on."""
        return [message async for message in self._pages(client, offset)]

    async def _pages(self, client: Client, offset: int) -> AsyncGenerator[Message, None]:
        following: int | None = offset
        while following is not None:
            try:
                page = await client.list_messages(
                    self._agent, sender=self._sender, offset=following, limit=PAGE
                )
            except ServerError as error:
                if error.code == 404:
                    return
                raise
            for message in page.messages:
                yield message
            following = page.next_offset if page.HasField("next_offset") else None

    async def last(self, client: Client, count: int) -> int:
        """Where the last so many messages begin."""
        try:
            page = await client.list_messages(self._agent, sender=self._sender, limit=1)
        except ServerError as error:
            if error.code == 404:
                return 0
            raise
        return max(0, page.total - count)

    async def first(self, client: Client) -> int:
        """When it began, in milliseconds; 0 for one that has not."""
        try:
            page = await client.list_messages(self._agent, sender=self._sender, offset=0, limit=1)
        except ServerError as error:
            if error.code == 404:
                return 0
            raise
        return at(page.messages[0]) if page.messages else 0

    async def archives(self, client: Client) -> Sequence[Archive]:
        """What was folded away, the oldest first."""
        try:
            found = await client.list_archives(self._agent, sender=self._sender)
        except ServerError as error:
            if error.code == 404:
                return []
            raise
        return found.archives


def before(messages: Sequence[Message], began: int) -> list[Message]:
    """All that was there when a run began at that time: its own first message is the last of a
    person's by then."""
    own = [m.id for m in messages if m.role == "user" and at(m) <= began]
    return [m for m in messages if m.id < own[-1]] if own else list(messages)
