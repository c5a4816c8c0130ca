"""Encodes pairs as keys, and text without the characters that no text column can hold."""

import hashlib

from crabtalk.storage.records import Pair


def make_pair_key(pair: Pair) -> str:
    """A key of fixed length; different pairs have different keys."""
    exact = f"{len(pair.agent)}:{pair.agent}{pair.sender}".encode(errors="surrogatepass")
    return hashlib.blake2b(exact, digest_size=16).hexdigest()


def encode_column(text: str) -> str:
    """Escape NUL and replace lone surrogates, which no text column can hold."""
    if not text.isprintable() or "\\" in text:
        text = text.replace("\\", "\\\\").replace("\0", "\\0")
        text = text.encode(errors="replace").decode()
    return text


def decode_column(text: str) -> str:
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))
