"""Journal: the book of a gateway on disk, `<home>/<name>/journal`."""

from pathlib import Path

import msgspec

from crabtalk.service.journal import MIN_COMPACT_SIZE
from crabtalk.service.journal import RecordJournal as AnyJournal

from .errors import GatewayError
from .gateway_state import GatewayState
from .journal_records import AnyGatewayRecord

record_decoder = msgspec.json.Decoder(AnyGatewayRecord)


class GatewayJournal(AnyJournal[GatewayState]):
    def __init__(
        self,
        path: Path,
        book: GatewayState | None = None,
        *,
        worth_shortening: int = MIN_COMPACT_SIZE,
    ) -> None:
        super().__init__(
            path, book or GatewayState(), record_decoder, worth_shortening=worth_shortening
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
        """What is on disk, for one who changes nothing. Raises OSError."""
        found = cls(path)
        found.replay(path.read_bytes())
        return found.state
