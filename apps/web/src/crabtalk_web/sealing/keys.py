"""Keys: a person's master secret, and everything derived from it or from a record's key.

The tree is HMAC-SHA512: a root for each usage, then one step for each word of a path. A key reveals
nothing about its siblings or its parents.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from nacl.bindings import crypto_scalarmult_base, crypto_sign_seed_keypair
from nacl.signing import SigningKey

KEY_SIZE = 32


def new_key() -> bytes:
    return secrets.token_bytes(KEY_SIZE)


def derive_key(seed: bytes, usage: str, *path: str) -> bytes:
    """Return the key at the end of `path` in the tree of `seed` for `usage`."""
    node = hmac.digest(f"{usage} Master Seed".encode(), seed, "sha512")
    for word in path:
        node = hmac.digest(node[KEY_SIZE:], b"\0" + word.encode(), "sha512")
    return node[:KEY_SIZE]


def derive_session_key(machine_key: bytes, agent: str, sender: str, generation: int) -> bytes:
    """Return the key of a conversation's session. It is never stored, because its machine can
    always derive it.

    Each generation of a conversation has its own key.
    """
    return derive_key(machine_key, "Crabtalk Session", agent, sender, str(generation))


def derive_blob_key(session_data_key: bytes) -> bytes:
    """Return the key that seals the files of a session that has its own key."""
    return derive_key(session_data_key, "Happy Blobs", "session")


@dataclass(frozen=True, slots=True)
class ContentKeys:
    """The key pair for which data keys are wrapped. A machine knows only the public one."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MasterSecret:
    """The secret that all devices of a person share. It gives access to everything."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_SIZE:
            raise ValueError(f"a master secret has {KEY_SIZE} bytes, not {len(self.secret)}")

    @property
    def content_keys(self) -> ContentKeys:
        seed = derive_key(self.secret, "Happy EnCoder", "content")
        secret = hashlib.sha512(seed).digest()[:KEY_SIZE]
        return ContentKeys(crypto_scalarmult_base(secret), secret)

    @property
    def account_key(self) -> bytes:
        """The public key that identifies the account to a relay."""
        return crypto_sign_seed_keypair(self.secret)[0]

    @property
    def blob_key(self) -> bytes:
        """The key that seals the files of sessions without a key of their own."""
        return derive_key(self.secret, "Happy Blobs", "master")

    @property
    def anonymous_id(self) -> str:
        return derive_key(self.secret, "Happy Coder", "analytics", "id").hex()[:16]

    def sign(self, challenge: bytes) -> bytes:
        """Sign a relay's challenge, which proves ownership of the account."""
        return SigningKey(self.secret).sign(challenge).signature
