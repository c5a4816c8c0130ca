"""Byte layouts of sealed values.

A session or machine with its own key uses AES-256-GCM behind a version byte; one without uses
NaCl's secretbox under the master secret. Files are secretboxes of their bytes in both cases.
"""

import json
import secrets
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from .base64_encoding import from_base64, to_base64

VERSION = b"\0"
NONCE_SIZE = 12
TAG_SIZE = 16
BLOB_OVERHEAD = SecretBox.NONCE_SIZE + SecretBox.MACBYTES


class Sealer(Protocol):
    """Seals and opens the values of one record. Sealed texts are base64, as on the wire."""

    def seal_bytes(self, plain: bytes) -> str: ...

    def open_bytes(self, text: str) -> bytes | None: ...

    def seal(self, value: object) -> str:
        """Seal a JSON value. Raises ValueError for values that JSON cannot express."""
        return self.seal_bytes(encode_json(value))

    def open(self, text: str) -> Any:
        """Return the value; None if it cannot be opened, is not JSON, or is empty."""
        plain = self.open_bytes(text)
        return decode_json(plain) if plain else None

    def seal_nothing(self) -> str:
        """Seal the empty result of a call."""
        return self.seal_bytes(b"")


class DataSealer(Sealer):
    """Layout: 00, nonce, ciphertext, tag; under the record's own key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal_bytes(self, plain: bytes) -> str:
        nonce = secrets.token_bytes(NONCE_SIZE)
        return to_base64(VERSION + nonce + self._cipher.encrypt(nonce, plain, None))

    def open_bytes(self, text: str) -> bytes | None:
        data = from_base64(text)
        if data is None or len(data) < 1 + NONCE_SIZE + TAG_SIZE or data[:1] != VERSION:
            return None
        try:
            return self._cipher.decrypt(data[1 : 1 + NONCE_SIZE], data[1 + NONCE_SIZE :], None)
        except InvalidTag:
            return None


class LegacySealer(Sealer):
    """Layout: nonce, secretbox; under the master secret itself."""

    def __init__(self, secret: bytes) -> None:
        self._box = SecretBox(secret)

    def seal_bytes(self, plain: bytes) -> str:
        return to_base64(self._box.encrypt(plain))

    def open_bytes(self, text: str) -> bytes | None:
        data = from_base64(text)
        return None if data is None else open_secretbox(self._box, data)


def seal_blob(key: bytes, plain: bytes) -> bytes:
    return bytes(SecretBox(key).encrypt(plain))


def open_blob(key: bytes, data: bytes) -> bytes | None:
    return open_secretbox(SecretBox(key), data)


def open_secretbox(box: SecretBox, data: bytes) -> bytes | None:
    if len(data) < BLOB_OVERHEAD:
        return None
    try:
        return bytes(box.decrypt(data))
    except CryptoError:
        return None


def encode_json(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # JavaScript strings may contain half a surrogate pair, which UTF-8 cannot encode.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def decode_json(plain: bytes) -> Any:
    try:
        return json.loads(plain.decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None


def refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
