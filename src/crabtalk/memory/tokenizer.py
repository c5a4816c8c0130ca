"""Tokens: the one way text becomes terms, for entries, for sessions and for what is asked of them.

`words` is the split that CRMEM stores agree on: runs of alphabetic characters and digits, two or
more, in lower case, without stop words. `tokens` makes of each word what is indexed, so that a word
is found however it was spelt: accents and cases are folded, widths and ligatures too, and scripts
written without spaces come as every character and every pair of neighbours. No stemming.
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

# ASCII in one pass: capitals to small letters, whatever is no letter or digit to a space.
ASCII_TABLE = bytes(
    ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 0x20 for code in range(256)
)
DROPPED_TOKENS = STOP_WORDS | {chr(code) for code in range(128)}


def tokenize_text(text: str) -> list[str]:
    """The terms of a text, as often as they occur; their order says nothing.

    A letter or digit alone is no term; a character of a script without spaces is.
    """
    if text.isascii():
        return tokenize_ascii(text)
    chunks = normalize("NFKC", text).split()
    found = tokenize_ascii(" ".join(chunk for chunk in chunks if chunk.isascii()))
    return found + tokenize_unicode(" ".join(chunk for chunk in chunks if not chunk.isascii()))


def split_words(text: str) -> list[str]:
    """The words of a text as any CRMEM store splits them: accents kept, runs of CJK whole."""
    found = (word.lower() for word in word_pattern().findall(text.replace("_", " ")))
    return [word for word in found if word not in STOP_WORDS]


def tokenize_ascii(text: str) -> list[str]:
    """Tokens where there is nothing but ASCII."""
    dropped = DROPPED_TOKENS
    pieces = text.encode().translate(ASCII_TABLE).decode().split()
    return [piece for piece in pieces if piece not in dropped]


def tokenize_unicode(text: str) -> list[str]:
    """Tokens where there is more than ASCII."""
    pieces = piece_pattern().findall(text.casefold().replace("_", " "))
    # Stop words go before the accents do: "thé" is none.
    kept = " ".join(piece for piece in pieces if piece not in DROPPED_TOKENS)
    found: list[str] = []
    for number, part in enumerate(run_pattern().split(fold_accents(kept))):
        if number % 2:
            found += part
            found += map("".join, pairwise(part))
        else:
            found += (piece for piece in part.split() if len(piece) > 1)
    return found


def fold_accents(text: str) -> str:
    """Without accents. What was taken apart to find them is put together again: Hangul, kana."""
    return normalize("NFC", accent_pattern().sub("", normalize("NFD", text)))


# Compiled when first needed: most text is ASCII, and the sets are large.


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
