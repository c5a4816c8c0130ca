"""The identity of a conversation as a session. Tag, key and sealer are all derived.

A gateway that has lost everything but its credentials still finds its sessions and can read them.
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
    data_key: str  # only the account's devices can open it
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
    """A relay can read tags, so they contain no names."""
    joined = "\0".join((agent, sender, str(generation)))
    return hmac.digest(tag_key, joined.encode(errors="replace"), "sha256").hex()
