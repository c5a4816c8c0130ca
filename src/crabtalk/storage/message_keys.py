"""Keys: names that clients give to what they say, so that each of it is run once.

A key stands in the record of its message. Compaction leaves messages behind that nobody loads any
more, so each marker carries a fingerprint of every key before it: eight bytes a key, the newest
10,000. A fingerprint only says that the log has to be searched; so does a marker whose oldest
fingerprints were dropped. That way a key is known for good, and a marker stays small.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable

from crabtalk.model.messages import Value

from .records import MarkerRecord, MessageRecord

FINGERPRINT_BYTES = 8
MAX_FINGERPRINTS = 10_000


class KeyUse(Value, frozen=True):
    """What was said with a key."""

    run: str
    steer: int  # which steering message of the run it was; 0: the turn's own message
    content_hash: str

    @classmethod
    def from_record(cls, record: MessageRecord) -> "KeyUse":
        return cls(record.run, record.steer, record.content_hash)


def hash_content(content: str, guest: str = "", *, is_steer: bool = False) -> str:
    """Tells two messages apart that were given the same key."""
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
    """The keys that were used before a marker, as far as the marker knows them."""

    def __init__(self, marker: MarkerRecord | None = None) -> None:
        data = b64decode(marker.keys) if marker is not None else b""
        self._fingerprints = [
            data[at : at + FINGERPRINT_BYTES] for at in range(0, len(data), FINGERPRINT_BYTES)
        ]
        self._known = frozenset(self._fingerprints)
        self._dropped = marker.dropped_keys if marker is not None else 0

    def may_have(self, key: str) -> bool:
        """False: the key was not used before the marker. True: search the log for it."""
        return self._dropped > 0 or fingerprint_key(key) in self._known

    def pack_with(self, keys: Iterable[str]) -> tuple[str, int]:
        """For the next marker: these keys added to those, and how many were dropped so far."""
        prints = [*self._fingerprints, *map(fingerprint_key, keys)]
        kept = prints[-MAX_FINGERPRINTS:]
        return b64encode(b"".join(kept)).decode(), self._dropped + len(prints) - len(kept)
