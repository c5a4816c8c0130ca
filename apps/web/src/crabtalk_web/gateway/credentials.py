"""Credentials: who this machine is to a relay, and the keys that never leave it."""

import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from crabtalk.transport import replace_file
from crabtalk_web.sealing import KEY_SIZE, MasterSecret, PairingApproval, new_key

from .errors import WebGatewayError


class StoredCredentials(msgspec.Struct, frozen=True, omit_defaults=True):
    """As it is on disk."""

    relay: str
    token: str
    machine_id: str
    machine_key: bytes
    tag_key: bytes
    content_key: bytes


@dataclass(frozen=True, slots=True)
class RelayCredentials:
    """`content_key` is the public key of the account's devices: what is wrapped for it, all of them
    can open, and this machine cannot."""

    relay: str
    token: str = field(repr=False)
    content_key: bytes
    machine_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    machine_key: bytes = field(default_factory=new_key, repr=False)
    tag_key: bytes = field(default_factory=new_key, repr=False)

    @classmethod
    def from_approval(cls, relay: str, token: str, approval: PairingApproval) -> "RelayCredentials":
        """A new machine of the account that let it in."""
        content_key = approval.content_public_key
        if content_key is None:
            secret = MasterSecret(approval.master_secret or b"")
            # Whoever approves in the old way hands out the one secret; only this is kept of it.
            content_key = secret.content_keys.public
        return cls(relay, token, content_key)

    def save(self, path: Path) -> None:
        kept = StoredCredentials(
            self.relay,
            self.token,
            self.machine_id,
            self.machine_key,
            self.tag_key,
            self.content_key,
        )
        replace_file(path, msgspec.json.encode(kept) + b"\n")


def load_credentials(path: Path) -> RelayCredentials | None:
    """None when there are none yet. Raises GatewayError."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=StoredCredentials)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise WebGatewayError(
            f"cannot use {path}: {error}; move it away and run `crabtalk-web pair`"
        ) from None
    if any(len(key) != KEY_SIZE for key in (kept.machine_key, kept.tag_key, kept.content_key)):
        raise WebGatewayError(f"{path} has a key of a wrong size; move it away and pair again")
    return RelayCredentials(
        relay=kept.relay,
        token=kept.token,
        content_key=kept.content_key,
        machine_id=kept.machine_id,
        machine_key=kept.machine_key,
        tag_key=kept.tag_key,
    )
