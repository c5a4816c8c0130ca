"""The gateway's journal: its state on disk, in `<home>/<name>/journal`."""

from pathlib import Path

import msgspec

from crabtalk.service.journal import MIN_COMPACT_SIZE, RecordJournal

from .errors import GatewayError
from .gateway_state import GatewayState
from .journal_records import AnyGatewayRecord

record_decoder = msgspec.json.Decoder(AnyGatewayRecord)


class GatewayJournal(RecordJournal[GatewayState]):
    def __init__(
        self,
        path: Path,
        state: GatewayState | None = None,
        *,
        min_compact_size: int = MIN_COMPACT_SIZE,
    ) -> None:
        super().__init__(
            path, state or GatewayState(), record_decoder, worth_shortening=min_compact_size
        )

    def open(self) -> None:
        """Raises GatewayError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            super().open()
        except OSError as error:
            raise GatewayError(
                f"cannot use {self.path}: {error.strerror}; see to its permissions"
            ) from None

    @classmethod
    def read_state(cls, path: Path) -> GatewayState:
        """Read the state from disk without changing anything. Raises OSError."""
        journal = cls(path)
        journal.replay(path.read_bytes())
        return journal.state
