"""Read the messages of a conversation from the daemon, in pages."""

from collections.abc import AsyncGenerator, Sequence

from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire

DEFAULT_SENDER = "user"  # the daemon's default
# Beyond any message: a page from there is empty but has the total.
PAST_LAST_MESSAGE = 2**62
PAGE_SIZE = 500  # messages; the daemon's maximum


class ConversationReader:
    """A conversation of an agent and a sender. One that does not exist yet reads as empty."""

    def __init__(self, client: Client, agent: str, sender: str) -> None:
        self.agent = agent
        self.sender = sender
        self._client = client

    def matches(self, agent: str, sender: str) -> bool:
        own = self.sender or DEFAULT_SENDER
        return agent == self.agent and (sender or DEFAULT_SENDER) == own

    async def count_messages(self) -> int:
        page = await self._load_page(PAST_LAST_MESSAGE, 1)
        return page.total

    async def load_last(self, count: int) -> list[wire.ConversationMessage]:
        """Load the last messages, oldest first. Earlier ones are not read."""
        return await self.load_since(max(0, await self.count_messages() - count))

    async def load_since(self, offset: int) -> list[wire.ConversationMessage]:
        return [message async for page in self.iter_pages(offset) for message in page]

    async def iter_pages(
        self, offset: int = 0
    ) -> AsyncGenerator[Sequence[wire.ConversationMessage], None]:
        next_offset: int | None = offset
        while next_offset is not None:
            page = await self._load_page(next_offset, PAGE_SIZE)
            yield page.messages
            next_offset = page.next_offset if page.HasField("next_offset") else None

    async def load_title(self) -> str:
        sender = self.sender or DEFAULT_SENDER
        reply = await self._client.list_conversations(self.agent, sender)
        return reply.conversations[0].title if reply.conversations else ""

    async def _load_page(self, offset: int, limit: int) -> wire.MessagePage:
        try:
            return await self._client.list_messages(
                self.agent,
                sender=self.sender or None,
                offset=offset,
                limit=limit,
                with_runs=True,
            )
        except ServerError as error:
            if error.code == 404:
                return wire.MessagePage()
            raise
