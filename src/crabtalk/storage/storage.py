"""Storage: persistent state as the engine sees it. No paths, no fsync: guarantees only.

An implementation guarantees that the records given to `append` are stored when it returns, in
order, all or none; that reads see everything appended before; and that nothing else changes.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from .accepted_messages import AcceptedMessage
from .agent import Agent
from .errors import StorageError
from .record_slices import LogChanges, RecordSlice, WindowRequest
from .records import (
    Archive,
    ConversationMeta,
    MessagePage,
    MessageRecord,
    Pair,
    Record,
    StoredConversation,
)

# Which conversation of that name, and how many records it has.
ConversationVersion = tuple[int, int] | None


class TurnClaim(Protocol):
    """A turn's place in the queue of all processes that share a storage."""

    async def is_free(self) -> bool:
        """Whether the turn can be had without waiting for another process. Never raises
        StorageError; `acquire` does."""
        ...

    async def acquire(self) -> ConversationVersion:
        """Waits for the turn. Raises StorageError."""
        ...

    def release(self) -> ConversationVersion:
        """Ends the turn, or leaves the queue."""
        ...


class Storage(Protocol):
    """Every method raises StorageError when it fails."""

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def claim_turn(self, pair: Pair, run: str = "", *, first: bool = False) -> TurnClaim | None:
        """Enters the queue for a turn, without waiting; None when no other process can use the
        conversation.

        The place is the last one, or with `first` the one right after the current holder. When
        `acquire` returns another version than the last `release`, everything in memory about the
        conversation is stale.
        """
        ...

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
        """The records after the last marker; None when there is no such conversation.

        It repairs the damage of a crash, so only the holder of the turn may call it, and not during
        an append; others use `read_conversation`. Accepted messages that no run will append are put
        into the log first, closed as interrupted, each exactly once.
        """
        ...

    async def read_conversation(self, pair: Pair) -> StoredConversation | None:
        """The same without repair, for any caller at any time."""
        ...

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        """Appends records. They are durable when it returns; when cancelled, they may be stored or
        not.

        With `create` the first record is the meta of a new conversation; without it, a missing
        conversation is an error. A user's message settles the accepted message of the same run and
        steer number.
        """
        ...

    async def read_meta(self, pair: Pair) -> ConversationMeta | None: ...

    async def read_page(self, pair: Pair, offset: int, limit: int) -> MessagePage | None:
        """At most `limit` messages from id `offset` on, compacted ones included."""
        ...

    async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
        """The messages and events of a run anywhere in the log, by its id or by the key of one of
        its messages. Empty when there is no such run."""
        ...

    async def read_records(self, pair: Pair, position: int, limit: int) -> RecordSlice | None:
        """Like `read_new_records` for one conversation, with event records."""
        ...

    async def list_archives(self, pair: Pair) -> list[Archive] | None:
        """The archives of a conversation, oldest first."""
        ...

    async def list_conversations(
        self, agent: str = "", sender: str = ""
    ) -> list[tuple[str, ConversationMeta]]:
        """Handle and meta of all conversations, or of those that match exactly."""
        ...

    async def resolve_handle(self, handle: str) -> Pair | None:
        """The pair that a handle stands for; None for any other text."""
        ...

    async def delete_conversation(self, pair: Pair) -> bool:
        """Removes a conversation completely; False when there was none."""
        ...

    # ── Accepted messages ───────────────────────────────────────────────────────────────────

    async def accept_message(self, entry: AcceptedMessage) -> None:
        """Stores a message that is acknowledged before it is in its log. It is durable when this
        returns; when cancelled, it may be stored or not."""
        ...

    async def withdraw_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        """Removes messages that must not come into the log: their client withdrew them."""
        ...

    def abandon_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        """Marks messages whose runs ended without appending them: the next `load_and_repair` puts
        them into the log."""
        ...

    async def list_unsettled(self) -> list[Pair]:
        """Conversations with accepted messages that only `load_and_repair` can settle now: their
        process died, or they were abandoned."""
        ...

    # ── Following the logs ──────────────────────────────────────────────────────────────────

    async def read_versions(self) -> dict[str, int]:
        """A version number for the log of every conversation, by handle. It differs whenever the
        log has changed."""
        ...

    async def read_changes(self, since: str) -> LogChanges | None:
        """The changes since a cursor, by any process. None when the backend has only
        `read_versions`."""
        ...

    async def read_new_records(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[RecordSlice | StorageError | None]:
        """For each log, by handle, about `limit` bytes of the records after a position, without
        event records. A log that cannot be read does not affect the others.

        Positions have a meaning only for this method, `read_records` and `read_windows`; 0 is the
        beginning of every log. The result is None when there is no such conversation, or its log
        does not say whose it is. When a position does not fit the log, because another program
        changed it, the log is read from the beginning.
        """
        ...

    async def read_windows(
        self, requests: Sequence[WindowRequest]
    ) -> list[tuple[MessageRecord, ...]]:
        """For each request its message and those around it, unless these are too large.

        Empty when the message itself does not exist any more.
        """
        ...

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    async def list_agents(self) -> tuple[list[Agent], dict[str, str]]:
        """All usable agents, and by name the reason for each that cannot be used."""
        ...

    async def load_agent(self, name: str) -> Agent | None:
        """Raises AgentError when the agent exists and cannot be used."""
        ...

    async def save_agent(self, agent: Agent) -> None: ...

    async def delete_agent(self, name: str) -> bool: ...

    async def rename_agent(self, old: str, new: str) -> None: ...

    # ── Configuration ───────────────────────────────────────────────────────────────────────

    async def read_config(self) -> dict[str, Any]:
        """The configuration as a document, read again at each call."""
        ...

    async def set_config_value(self, section: str, key: str, value: Any) -> None:
        """Changes one key and nothing else."""
        ...

    async def close(self) -> None:
        """Finishes pending appends; later ones are refused."""
        ...


@runtime_checkable
class OpenRuns(Protocol):
    """A persistent storage that only one process uses. Its `load_and_repair` writes the end of a
    run that a dead process left open; `has_open_run` tells whether a conversation needs that.
    Shared storages close such runs when a lease ends, and do not need it."""

    async def has_open_run(self, pair: Pair) -> bool:
        """Whether the last run has no end in the log: it is in flight, or was interrupted."""
        ...
