"""The machine's identity at a relay, and the keys that never leave the machine."""

import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from crabtalk.transport import replace_file
from crabtalk_web.sealing import KEY_SIZE, MasterSecret, PairingApproval, new_key

from .errors import WebGatewayError


class StoredCredentials(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file format."""

    relay: str
    token: str
    machine_id: str
    machine_key: bytes
    tag_key: bytes
    content_key: bytes


@dataclass(frozen=True, slots=True)
class RelayCredentials:
    """`content_key` is the public key of the account's devices: values wrapped for it can be opened
    by all of them, and not by this machine."""

    relay: str
    token: str = field(repr=False)
    content_key: bytes
    machine_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    machine_key: bytes = field(default_factory=new_key, repr=False)
    tag_key: bytes = field(default_factory=new_key, repr=False)

    @classmethod
    def from_approval(cls, relay: str, token: str, approval: PairingApproval) -> "RelayCredentials":
        """Create credentials for a new machine of the account that approved it."""
        content_key = approval.content_public_key
        if content_key is None:
            secret = MasterSecret(approval.master_secret or b"")
            # The older form of approval contains the master secret; only this public key of it is
            # stored.
            content_key = secret.content_keys.public
        return cls(relay, token, content_key)

    def save(self, path: Path) -> None:
        stored = StoredCredentials(
            self.relay,
            self.token,
            self.machine_id,
            self.machine_key,
            self.tag_key,
            self.content_key,
        )
        replace_file(path, msgspec.json.encode(stored) + b"\n")


def load_credentials(path: Path) -> RelayCredentials | None:
    """Return None if there is no file. Raises WebGatewayError."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=StoredCredentials)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise WebGatewayError(
            f"cannot use {path}: {error}; move it away and run `crabtalk-web pair`"
        ) from None
    if any(
        len(key) != KEY_SIZE for key in (stored.machine_key, stored.tag_key, stored.content_key)
    ):
        raise WebGatewayError(f"{path} has a key of a wrong size; move it away and pair again")
    return RelayCredentials(
        relay=stored.relay,
        token=stored.token,
        content_key=stored.content_key,
        machine_id=stored.machine_id,
        machine_key=stored.machine_key,
        tag_key=stored.tag_key,
    )
