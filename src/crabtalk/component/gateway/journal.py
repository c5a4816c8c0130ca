"""Journal: the book of a gateway on disk, `<home>/<name>/journal`."""

from pathlib import Path

import msgspec

from crabtalk.component.journal import WORTH_SHORTENING
from crabtalk.component.journal import Journal as AnyJournal

from .book import Book
from .entries import AnyRecord
from .errors import GatewayError

reader = msgspec.json.Decoder(AnyRecord)


class Journal(AnyJournal[Book]):
    def __init__(
        self, path: Path, book: Book | None = None, *, worth_shortening: int = WORTH_SHORTENING
    ) -> None:
        super().__init__(path, book or Book(), reader, worth_shortening=worth_shortening)

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
    def peek(cls, path: Path) -> Book:
        """What is on disk, for one who changes nothing. Raises OSError."""
        found = cls(path)
        found.replay(path.read_bytes())
        return found.book
