"""Boxes: values sealed for one reader, by any sender who knows that reader's public key.

A bundle is the public half of a key made for this box alone, a nonce, and NaCl's box. A wrapped
data key is a bundle behind a version byte.
"""

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from .keys import KEY_SIZE

WRAPPED_KEY_VERSION = b"\0"
BOX_OVERHEAD = KEY_SIZE + Box.NONCE_SIZE + 16


def seal_box(public_key: bytes, plain: bytes) -> bytes:
    ephemeral_key = PrivateKey.generate()
    return bytes(ephemeral_key.public_key) + bytes(
        Box(ephemeral_key, PublicKey(public_key)).encrypt(plain)
    )


def open_box(secret_key: bytes, bundle: bytes) -> bytes | None:
    if len(bundle) < BOX_OVERHEAD:
        return None
    try:
        box = Box(PrivateKey(secret_key), PublicKey(bundle[:KEY_SIZE]))
        return bytes(box.decrypt(bundle[KEY_SIZE:]))
    except CryptoError:
        return None


def wrap_key(content_public_key: bytes, data_key: bytes) -> bytes:
    """Seal a record's key for its owner's devices."""
    return WRAPPED_KEY_VERSION + seal_box(content_public_key, data_key)


def unwrap_key(content_secret_key: bytes, wrapped: bytes) -> bytes | None:
    if wrapped[:1] != WRAPPED_KEY_VERSION:
        return None
    key = open_box(content_secret_key, wrapped[1:])
    return key if key is not None and len(key) == KEY_SIZE else None
