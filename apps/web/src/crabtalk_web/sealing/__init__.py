"""Sealing: what makes a conversation unreadable to the relay, and readable to its owner's devices.

Keys and the tree they are derived in, the byte layouts of everything that is sealed, boxes for one
reader, the secrets of pairing, and the words a person keeps as a backup. Nothing here opens a file
or a socket. What cannot be opened is None, never an error.
"""

from .backup import from_backup_text, to_backup_text
from .binding import Bound, bind, bound_of
from .boxes import open_box, seal_box, unwrap_key, wrap_key
from .keys import (
    KEY_SIZE,
    ContentKeys,
    MasterSecret,
    blob_key,
    derive,
    new_key,
    session_key,
)
from .layouts import BLOB_OVERHEAD, DataSealer, LegacySealer, Sealer, open_blob, seal_blob
from .pairing import (
    Approval,
    PairingSecret,
    approve_link,
    approve_with_content_key,
    approve_with_secret,
    key_of_link,
)
from .text import from_base64, from_base64url, to_base64, to_base64url

__all__ = [
    "BLOB_OVERHEAD",
    "KEY_SIZE",
    "Approval",
    "Bound",
    "ContentKeys",
    "DataSealer",
    "LegacySealer",
    "MasterSecret",
    "PairingSecret",
    "Sealer",
    "approve_link",
    "approve_with_content_key",
    "approve_with_secret",
    "bind",
    "blob_key",
    "bound_of",
    "derive",
    "from_backup_text",
    "from_base64",
    "from_base64url",
    "key_of_link",
    "new_key",
    "open_blob",
    "open_box",
    "seal_blob",
    "seal_box",
    "session_key",
    "to_backup_text",
    "to_base64",
    "to_base64url",
    "unwrap_key",
    "wrap_key",
]
