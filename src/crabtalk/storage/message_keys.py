"""Idempotency keys: a client names a message with a key, so that the message runs only once.

A key is stored in the record of its message. Messages before a compaction marker are not loaded any
more, so each marker has fingerprints of the newest 10,000 keys before it, eight bytes each. A
matching fingerprint, or a marker whose oldest fingerprints were dropped, means that the log must be
searched. So no key is ever forgotten, and markers stay small.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable

from crabtalk.model.messages import Value

from .records import MarkerRecord, MessageRecord

FINGERPRINT_BYTES = 8
MAX_FINGERPRINTS = 10_000


class KeyUse(Value, frozen=True):
    """The message that used a key."""

    run: str
    steer: int  # which steering message of the run it was; 0: the turn's own message
    content_hash: str

    @classmethod
    def from_record(cls, record: MessageRecord) -> "KeyUse":
        return cls(record.run, record.steer, record.content_hash)


def hash_content(content: str, guest: str = "", *, is_steer: bool = False) -> str:
    """A hash that tells whether two messages with the same key are the same."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (content, guest, "steer" if is_steer else "turn"):
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def fingerprint_key(key: str) -> bytes:
    return hashlib.blake2b(
        key.encode(errors="surrogatepass"), digest_size=FINGERPRINT_BYTES
    ).digest()


class ArchivedKeys:
    """The keys that were used before a marker, as fingerprints."""

    def __init__(self, marker: MarkerRecord | None = None) -> None:
        data = b64decode(marker.keys) if marker is not None else b""
        self._fingerprints = [
            data[at : at + FINGERPRINT_BYTES] for at in range(0, len(data), FINGERPRINT_BYTES)
        ]
        self._known = frozenset(self._fingerprints)
        self._dropped = marker.dropped_keys if marker is not None else 0

    def may_have(self, key: str) -> bool:
        """False: the key was not used before the marker. True: the log must be searched for it."""
        return self._dropped > 0 or fingerprint_key(key) in self._known

    def pack_with(self, keys: Iterable[str]) -> tuple[str, int]:
        """For the next marker: the fingerprints with those of these keys added, and how many keys
        were dropped so far."""
        fingerprints = [*self._fingerprints, *map(fingerprint_key, keys)]
        newest = fingerprints[-MAX_FINGERPRINTS:]
        dropped = self._dropped + len(fingerprints) - len(newest)
        return b64encode(b"".join(newest)).decode(), dropped
