"""Receipts of handled RPC calls, so that no call can be replayed.

A relay sees every sealed call and could send an old one again, even to the next process. So a
receipt is on disk before its call is handled. The most recent ones are remembered.
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
    """The receipts of all calls to one machine."""

    def __init__(self, path: Path, *, limit: int = MAX_RECEIPTS) -> None:
        self._path = path
        self._limit = limit
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._written = 0  # receipts on disk, forgotten ones included
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Raises OSError. The call of a half-written receipt was not handled."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        complete = data[: len(data) // RECEIPT_SIZE * RECEIPT_SIZE]
        for start in range(0, len(complete), RECEIPT_SIZE):
            self._remember(complete[start : start + RECEIPT_SIZE])
        if len(complete) != len(data):
            os.truncate(self._path, len(complete))
        self._written = len(complete) // RECEIPT_SIZE

    async def add_if_new(self, sealed: str) -> bool:
        """Return True once for each text, with its receipt on disk. Raises OSError; the text may
        then count as seen. The same holds after cancellation."""
        receipt = hashlib.sha256(sealed.encode(errors="replace")).digest()[:RECEIPT_SIZE]
        if receipt in self._seen:
            return False
        self._remember(receipt)
        async with self._lock:
            if self._written < 2 * self._limit:
                await asyncio.to_thread(append_receipt, self._path, receipt)
                self._written += 1
            else:
                receipts = list(self._seen)
                await asyncio.to_thread(replace_file, self._path, b"".join(receipts))
                self._written = len(receipts)
        return True

    def _remember(self, receipt: bytes) -> None:
        self._seen[receipt] = None
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)


def append_receipt(path: Path, receipt: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, receipt)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
