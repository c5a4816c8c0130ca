"""Blobs: each sealed file is stored completely or not at all. All methods block."""

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from .errors import RelayConfigError

BLOB_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.enc")


class BlobStore:
    """Raises RelayConfigError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            for directory in (folder.parent, folder):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RelayConfigError(
                f"cannot make {folder}: {error.strerror}; move away what is there"
            ) from None

    def path(self, name: str) -> Path:
        """The first two characters of the name are the folder, so that no folder grows too
        large."""
        if not BLOB_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a blob")
        return self._folder / name[:2] / name

    def create_draft(self, name: str) -> "BlobDraft":
        return BlobDraft(self.path(name))

    def remove(self, names: list[str]) -> None:
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def remove_unknown(self, known: set[str], older_than: float) -> int:
        """Remove files without a row and return their number. Recent ones may be uploads in
        progress."""
        removed = 0
        until = time.time() - older_than
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                if path.name not in known and path.stat().st_mtime < until:
                    path.unlink()
                    removed += 1
        return removed


class BlobDraft:
    """As a context manager: deleted at the end unless it was committed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        self.size = 0

    def __enter__(self) -> "BlobDraft":
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._file = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)
        self._draft.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.size += len(data)

    def commit(self) -> None:
        os.fsync(self._file)
        self._draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
