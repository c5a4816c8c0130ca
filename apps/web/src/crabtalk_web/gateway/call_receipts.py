"""Receipts: which calls were carried out, so that nobody can have one carried out again.

A relay sees every call, sealed, and could show an old one a second time, also to the process after
this one: so they are on disk before they are carried out. The last so many are remembered.
"""

import asyncio
import hashlib
import os
from collections import OrderedDict
from pathlib import Path

from crabtalk.transport import replace_file

RECEIPT_SIZE = 16
MAX_RECEIPTS = 10_000


class CallReceipts:
    """Of all calls to one machine."""

    def __init__(self, path: Path, *, most: int = MAX_RECEIPTS) -> None:
        self._path = path
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._written = 0  # on disk, forgotten ones included
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Raises OSError. What a crash left half written was not carried out."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        whole = data[: len(data) // RECEIPT_SIZE * RECEIPT_SIZE]
        for start in range(0, len(whole), RECEIPT_SIZE):
            self._remember(whole[start : start + RECEIPT_SIZE])
        if len(whole) != len(data):
            os.truncate(self._path, len(whole))
        self._written = len(whole) // RECEIPT_SIZE

    async def add_if_new(self, sealed: str) -> bool:
        """True once for each text, and on disk by then. Raises OSError; the text may then count as
        seen. Cancelled, the same."""
        receipt = hashlib.sha256(sealed.encode(errors="replace")).digest()[:RECEIPT_SIZE]
        if receipt in self._seen:
            return False
        self._remember(receipt)
        async with self._lock:
            if self._written < 2 * self._most:
                await asyncio.to_thread(append_receipt, self._path, receipt)
                self._written += 1
            else:
                kept = list(self._seen)
                await asyncio.to_thread(replace_file, self._path, b"".join(kept))
                self._written = len(kept)
        return True

    def _remember(self, receipt: bytes) -> None:
        self._seen[receipt] = None
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)


def append_receipt(path: Path, receipt: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, receipt)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
