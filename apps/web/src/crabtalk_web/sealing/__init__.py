"""Encryption: makes a conversation unreadable to the relay, and readable to its owner's devices.

Contains the keys and their derivation, the byte layouts of all sealed values, boxes for one reader,
the secrets of pairing, and the backup text of the master secret. Nothing here opens a file or a
socket. Values that cannot be opened are returned as None and never raise.
"""

from .backup_text import from_backup_text, to_backup_text
from .base64_encoding import from_base64, from_base64url, to_base64, to_base64url
from .binding import SealBinding, bind_value, read_binding
from .boxes import open_box, seal_box, unwrap_key, wrap_key
from .keys import (
    KEY_SIZE,
    ContentKeys,
    MasterSecret,
    derive_blob_key,
    derive_key,
    derive_session_key,
    new_key,
)
from .pairing import (
    PairingApproval,
    PairingSecret,
    approve_device_link,
    approve_with_content_key,
    approve_with_secret,
    parse_link_key,
)
from .sealers import BLOB_OVERHEAD, DataSealer, LegacySealer, Sealer, open_blob, seal_blob

__all__ = [
    "BLOB_OVERHEAD",
    "KEY_SIZE",
    "ContentKeys",
    "DataSealer",
    "LegacySealer",
    "MasterSecret",
    "PairingApproval",
    "PairingSecret",
    "SealBinding",
    "Sealer",
    "approve_device_link",
    "approve_with_content_key",
    "approve_with_secret",
    "bind_value",
    "derive_blob_key",
    "derive_key",
    "derive_session_key",
    "from_backup_text",
    "from_base64",
    "from_base64url",
    "new_key",
    "open_blob",
    "open_box",
    "parse_link_key",
    "read_binding",
    "seal_blob",
    "seal_box",
    "to_backup_text",
    "to_base64",
    "to_base64url",
    "unwrap_key",
    "wrap_key",
]
