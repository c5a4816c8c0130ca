"""The journal of one conversation on disk. It stays small, because it is compacted often."""

from pathlib import Path

import msgspec

from crabtalk.service import RecordJournal as AnyJournal

from .conversation_state import ConversationState
from .errors import WebGatewayError
from .journal_entries import AnyJournalEntry

# A journal is compacted when it is larger than this and four times the size of its state.
MIN_COMPACT_SIZE = 256 * 1024
COMPACT_RATIO = 4

entry_decoder = msgspec.json.Decoder(AnyJournalEntry)


class ConversationJournal(AnyJournal[ConversationState]):
    def __init__(self, path: Path) -> None:
        super().__init__(
            path, ConversationState(), entry_decoder, worth_shortening=MIN_COMPACT_SIZE
        )

    def open(self) -> None:
        """Raises WebGatewayError."""
        try:
            super().open()
        except OSError as error:
            raise WebGatewayError(
                f"cannot use {self.path}: {error.strerror}; see to its permissions"
            ) from None

    @classmethod
    def read_state(cls, path: Path) -> ConversationState:
        """Read the state on disk without changing it. Raises OSError."""
        journal = cls(path)
        journal.replay(path.read_bytes())
        return journal.state

    def _needs_compaction(self, size: int) -> bool:
        return size > MIN_COMPACT_SIZE and size > COMPACT_RATIO * self.state.size
