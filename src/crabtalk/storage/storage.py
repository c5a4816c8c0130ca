"""Storage: where state lives, as the engine sees it. No paths, no fsync: promises only.

An implementation promises that what `append` was given is kept when it returns, in order, whole or
not at all; that reading sees all that was appended before; and that nothing else is changed.
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

ConversationVersion = tuple[int, int] | None  # which conversation, and how far it goes


class TurnClaim(Protocol):
    """A turn's place in the line of all processes that share a storage."""

    async def is_free(self) -> bool:
        """Whether its turn has come without waiting for another process. Raises nothing of
        storage: `reach` does."""
        ...

    async def acquire(self) -> ConversationVersion:
        """Waits for its turn. Raises StorageError."""
        ...

    def release(self) -> ConversationVersion:
        """Its turn is over, or it does not want it any more."""
        ...


class Storage(Protocol):
    """Every method raises StorageError when it cannot do what it says."""

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def claim_turn(self, pair: Pair, run: str = "", *, first: bool = False) -> TurnClaim | None:
        """A place in line for a turn, at once; None where nobody else can have one.

        It is the last one, or with `first` the one after whoever has their turn now. Another stamp
        than when it was last left: what is known of the conversation is old.
        """
        ...

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
        """What follows the last marker; None when there is no such conversation.

        Mends what a crash left, so only the conversation's owner may call it, while it appends
        nothing; others `read`. Accepted texts that no run will append any more are put into the
        log first, closed as interrupted, each exactly once.
        """
        ...

    async def read_conversation(self, pair: Pair) -> StoredConversation | None:
        """The same, for anybody at any time."""
        ...

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        """Kept for good when it returns. Cancelled, it may or may not have been.

        With `create` the first record is the meta of a conversation that is not there yet; without
        it, a conversation that is gone is an error. A user's message settles the accepted text of
        its run and steer.
        """
        ...

    async def read_meta(self, pair: Pair) -> ConversationMeta | None: ...

    async def read_page(self, pair: Pair, offset: int, limit: int) -> MessagePage | None:
        """Messages from the one with id `offset` on, compacted ones too, at most `limit`."""
        ...

    async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
        """The messages and events of a run, by its id or by the key of a message of it, wherever
        it is in the log. Empty when there is none."""
        ...

    async def read_records(self, pair: Pair, position: int, limit: int) -> RecordSlice | None:
        """As `follow` for one conversation, with traces."""
        ...

    async def list_archives(self, pair: Pair) -> list[Archive] | None:
        """What was compacted, oldest first."""
        ...

    async def list_conversations(
        self, agent: str = "", sender: str = ""
    ) -> list[tuple[str, ConversationMeta]]:
        """Handle and meta of all, or of those that match exactly."""
        ...

    async def resolve_handle(self, handle: str) -> Pair | None:
        """Whose conversation a handle stands for. Any text may be asked about."""
        ...

    async def delete_conversation(self, pair: Pair) -> bool:
        """Removes all of it; False when there was none."""
        ...

    # ── Accepted texts ──────────────────────────────────────────────────────────────────────

    async def accept_message(self, entry: AcceptedMessage) -> None:
        """Keeps a text that may be acknowledged before it is in its log. Kept for good when it
        returns. Cancelled, it may or may not have been."""
        ...

    async def withdraw_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        """They are not to come into the log any more: whoever said it took it back."""
        ...

    def abandon_messages(self, entries: Sequence[AcceptedMessage]) -> None:
        """Their runs are over without having appended them: the next `load` does."""
        ...

    async def list_unsettled(self) -> list[Pair]:
        """Conversations with accepted texts that only `load` can settle now: their process died,
        or they were abandoned."""
        ...

    # ── Following the logs ──────────────────────────────────────────────────────────────────

    async def read_versions(self) -> dict[str, int]:
        """By handle, of the log of every conversation: a number that is another one as soon as the
        log is."""
        ...

    async def read_changes(self, since: str) -> LogChanges | None:
        """What was changed since, by whomever. None where only `versions` can tell."""
        ...

    async def read_new_records(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[RecordSlice | StorageError | None]:
        """Of each log, by handle, what was appended after its position, traces left out, in about
        `limit` bytes. One that cannot be read does not keep the others from it.

        Positions mean something to `follow` and `windows` only; 0 is where every log begins.
        None when there is no such conversation, or nobody knows whose it is. Where a position is
        none of its log, because that was changed from outside, it is read from the beginning.
        """
        ...

    async def read_windows(
        self, places: Sequence[WindowRequest]
    ) -> list[tuple[MessageRecord, ...]]:
        """Of each place its message and those around it, as far as they are not too large.

        Without the message itself, if it is not there any more, there is nothing around it.
        """
        ...

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    async def list_agents(self) -> tuple[list[Agent], dict[str, str]]:
        """All that can be used, and for each that cannot, by name, a sentence why."""
        ...

    async def load_agent(self, name: str) -> Agent | None:
        """Raises AgentError when it is there and cannot be used."""
        ...

    async def save_agent(self, agent: Agent) -> None: ...

    async def delete_agent(self, name: str) -> bool: ...

    async def rename_agent(self, old: str, new: str) -> None: ...

    # ── Configuration ───────────────────────────────────────────────────────────────────────

    async def read_config(self) -> dict[str, Any]:
        """The configuration as a document, read anew."""
        ...

    async def set_config_value(self, section: str, key: str, value: Any) -> None:
        """Changes one key and nothing else."""
        ...

    async def close(self) -> None:
        """What was appended is kept; nothing is accepted afterwards."""
        ...


@runtime_checkable
class OpenRuns(Protocol):
    """A storage that one process has to itself and that outlives it. `load` ends on the record the
    run that a dead process left open; this tells whether a conversation needs that. Storages that
    processes share close such runs when a lease ends, and have no need of it."""

    async def has_open_run(self, pair: Pair) -> bool:
        """Whether the last run has no end on the record: it is in flight, or was cut off."""
        ...
