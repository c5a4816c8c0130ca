"""Tokenizer: turns text into terms, the same way for entries, sessions and queries.

`split_words` splits as all CRMEM stores do: runs of two or more alphabetic characters and digits,
in lower case, without stop words. `tokenize_text` turns each word into index terms, so that it is
found however it is spelt: accents, case, widths and ligatures are folded, and scripts without
spaces yield every character and every pair of neighbours. No stemming.
"""

import re
from functools import cache
from itertools import pairwise
from unicodedata import normalize

from .character_sets import ACCENTS, ALPHABETIC

STOP_WORD_LIST = """
    a an the is it in of to and or for on at by with as be was are been has had have do does did but
    not no if so from that this then than into its my me we he she they you your our his her
"""
STOP_WORDS = frozenset(STOP_WORD_LIST.split())

# Han, kana, bopomofo, Hangul; Thai, Lao, Burmese and Khmer.
UNSPACED = (
    "\u3005-\u3007\u3021-\u3029\u3038-\u303c\u3041-\u3096\u3099-\u309a\u309d-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"
    "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff"
)

# ASCII in one pass: capitals become lower case, anything but letters and digits a space.
ASCII_TABLE = bytes(
    ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 0x20 for code in range(256)
)
DROPPED_TOKENS = STOP_WORDS | {chr(code) for code in range(128)}


def tokenize_text(text: str) -> list[str]:
    """The terms of a text, with repetitions, in no particular order.

    A single letter or digit is no term; a single character of a script without spaces is one.
    """
    if text.isascii():
        return tokenize_ascii(text)
    chunks = normalize("NFKC", text).split()
    terms = tokenize_ascii(" ".join(chunk for chunk in chunks if chunk.isascii()))
    return terms + tokenize_unicode(" ".join(chunk for chunk in chunks if not chunk.isascii()))


def split_words(text: str) -> list[str]:
    """Split a text as any CRMEM store does: accents are kept, runs of CJK stay whole."""
    words = (word.lower() for word in word_pattern().findall(text.replace("_", " ")))
    return [word for word in words if word not in STOP_WORDS]


def tokenize_ascii(text: str) -> list[str]:
    """The terms of an ASCII text."""
    dropped = DROPPED_TOKENS
    pieces = text.encode().translate(ASCII_TABLE).decode().split()
    return [piece for piece in pieces if piece not in dropped]


def tokenize_unicode(text: str) -> list[str]:
    """The terms of a text with characters beyond ASCII."""
    pieces = piece_pattern().findall(text.casefold().replace("_", " "))
    # Stop words are dropped before accents are: "thé" is not a stop word.
    filtered = " ".join(piece for piece in pieces if piece not in DROPPED_TOKENS)
    terms: list[str] = []
    for number, part in enumerate(run_pattern().split(fold_accents(filtered))):
        if number % 2:
            terms += part
            terms += map("".join, pairwise(part))
        else:
            terms += (piece for piece in part.split() if len(piece) > 1)
    return terms


def fold_accents(text: str) -> str:
    """Remove accents. NFC recomposes what NFD took apart besides: Hangul, kana."""
    return normalize("NFC", accent_pattern().sub("", normalize("NFD", text)))


# Compiled when first needed: most text is ASCII, and the character sets are large.


@cache
def word_pattern() -> re.Pattern[str]:
    return re.compile(f"[\\w{ALPHABETIC}]{{2,}}")


@cache
def piece_pattern() -> re.Pattern[str]:
    return re.compile(f"[\\w{ALPHABETIC}{ACCENTS}]+")


@cache
def run_pattern() -> re.Pattern[str]:
    return re.compile(f"([{UNSPACED}]+)")


@cache
def accent_pattern() -> re.Pattern[str]:
    return re.compile(f"[{ACCENTS}]+")
