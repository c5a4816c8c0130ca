"""Identity: a conversation as a session. Its tag, its key and its sealer, all of them derived.

A gateway that loses everything but its credentials finds its sessions again, and can read them.
"""

import hmac
from dataclasses import dataclass

from crabtalk_web.sealing import (
    DataSealer,
    derive_blob_key,
    derive_session_key,
    to_base64,
    wrap_key,
)

from .credentials import RelayCredentials


@dataclass(frozen=True, slots=True)
class SessionIdentity:
    agent: str
    sender: str
    generation: int
    tag: str
    data_key: str  # for the account's devices alone
    sealer: DataSealer
    blob_key: bytes


def derive_identity(
    credentials: RelayCredentials, agent: str, sender: str, generation: int = 0
) -> SessionIdentity:
    key = derive_session_key(credentials.machine_key, agent, sender, generation)
    return SessionIdentity(
        agent=agent,
        sender=sender,
        generation=generation,
        tag=derive_tag(credentials.tag_key, agent, sender, generation),
        data_key=to_base64(wrap_key(credentials.content_key, key)),
        sealer=DataSealer(key),
        blob_key=derive_blob_key(key),
    )


def derive_tag(tag_key: bytes, agent: str, sender: str, generation: int) -> str:
    """A relay reads tags, so nobody's name is in them."""
    named = "\0".join((agent, sender, str(generation)))
    return hmac.digest(tag_key, named.encode(errors="replace"), "sha256").hex()
