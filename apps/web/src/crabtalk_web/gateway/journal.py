"""Journal: the book of one conversation on disk. It is small, and soon written anew."""

from pathlib import Path

import msgspec

from crabtalk.component import Journal as AnyJournal

from .book import Book
from .entries import AnyRecord
from .errors import GatewayError

# A journal is shortened when it is larger than this, and four times what it has to say.
WORTH_SHORTENING = 256 * 1024
TIMES = 4

reader = msgspec.json.Decoder(AnyRecord)


class Journal(AnyJournal[Book]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, Book(), reader, worth_shortening=WORTH_SHORTENING)

    def open(self) -> None:
        """Raises GatewayError."""
        try:
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

    def _is_long(self, size: int) -> bool:
        return size > WORTH_SHORTENING and size > TIMES * self.book.weight
