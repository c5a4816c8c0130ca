"""Journal: the book of one conversation on disk. It is small, and soon written anew."""

from pathlib import Path

import msgspec

from crabtalk.service import RecordJournal as AnyJournal

from .conversation_state import ConversationState
from .errors import WebGatewayError
from .journal_entries import AnyJournalEntry

# A journal is shortened when it is larger than this, and four times what it has to say.
MIN_COMPACT_SIZE = 256 * 1024
COMPACT_RATIO = 4

entry_decoder = msgspec.json.Decoder(AnyJournalEntry)


class ConversationJournal(AnyJournal[ConversationState]):
    def __init__(self, path: Path) -> None:
        super().__init__(
            path, ConversationState(), entry_decoder, worth_shortening=MIN_COMPACT_SIZE
        )

    def open(self) -> None:
        """Raises GatewayError."""
        try:
            super().open()
        except OSError as error:
            raise WebGatewayError(
                f"cannot use {self.path}: {error.strerror}; see to its permissions"
            ) from None

    @classmethod
    def read_state(cls, path: Path) -> ConversationState:
        """What is on disk, for one who changes nothing. Raises OSError."""
        found = cls(path)
        found.replay(path.read_bytes())
        return found.state

    def _needs_compaction(self, size: int) -> bool:
        return size > MIN_COMPACT_SIZE and size > COMPACT_RATIO * self.state.size
