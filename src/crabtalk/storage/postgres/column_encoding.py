"""A pair as PostgreSQL has it: a key of its own, and text without what no column can hold."""

import hashlib

from crabtalk.storage.records import Pair


def make_pair_key(pair: Pair) -> str:
    """Of the exact pair: two that differ have two, be they as long as they like."""
    exact = f"{len(pair.agent)}:{pair.agent}{pair.sender}".encode(errors="surrogatepass")
    return hashlib.blake2b(exact, digest_size=16).hexdigest()


def encode_column(text: str) -> str:
    """NUL, and halves of surrogate pairs, are in no column."""
    if not text.isprintable() or "\\" in text:
        text = text.replace("\\", "\\\\").replace("\0", "\\0")
        text = text.encode(errors="replace").decode()
    return text


def decode_column(text: str) -> str:
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))
