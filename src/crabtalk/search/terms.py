"""Terms: a text as the index holds it, and a query as the index is asked.

Words are in the order of the text, so that a phrase is a row of them. Pairs of neighbouring
characters, which scripts without spaces are found by, come apart: they would break up the rows.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import filterfalse, pairwise
from unicodedata import normalize

import msgspec

from crabtalk.memory import tokenize_text
from crabtalk.memory.tokenizer import DROPPED_TOKENS

# A query is cut there: more words make it slower and no clearer.
MAX_QUERY_TERMS = 64
MAX_QUERY_LENGTH = 4096
# What is longer is no word but data; nobody types it, and it would only take up room.
MAX_TERM_LENGTH = 256
# Text is taken apart in pieces of so many characters, so that no step holds up other threads.
PIECE_LENGTH = 32 * 1024
# Up to that many characters, a word is likely to come again.
MAX_CACHED_LENGTH = 24
# Of UTF-8: capitals to small letters, the rest of ASCII to spaces, and what is more as it is.
ASCII_SPLIT_TABLE = bytes(
    code if code >= 128 else ord(chr(code).lower()) if chr(code).isalnum() else 0x20
    for code in range(256)
)
HAN_PATTERN = re.compile("[\u4e00-\u9fff]+")
Phrase = tuple[str, ...]
QUOTED_PATTERN = re.compile(r'"([^"]*)"')


class TextTerms(msgspec.Struct, frozen=True):
    """What a text is found by."""

    words: list[str]
    bigrams: list[str]

    def __len__(self) -> int:
        return len(self.words) + len(self.bigrams)

    def body(self, mark: str = "") -> str:
        """For an index that splits at spaces; each term ends in the mark."""
        return f"{mark} ".join(self.words + self.bigrams) + mark


class SearchQuery(msgspec.Struct, frozen=True):
    """Any of the words may occur, all of the phrases must."""

    words: tuple[str, ...]
    phrases: tuple[Phrase, ...]

    def __bool__(self) -> bool:
        return bool(self.words or self.phrases)

    @property
    def terms(self) -> set[str]:
        return {*self.words, *(term for phrase in self.phrases for term in phrase)}


def extract_terms(text: str) -> TextTerms:
    """Takes as long as the text is; between its pieces other threads get their turn."""
    row: list[str] = []
    pairs: list[str] = []
    for piece in split_pieces(text):
        if piece.isascii():
            row += tokenize_text(piece)
        else:
            split_mixed_text(piece, row, pairs)
    # A short text is no data.
    if len(text) > MAX_TERM_LENGTH and max(map(len, row), default=0) > MAX_TERM_LENGTH:
        row = [term for term in row if len(term) <= MAX_TERM_LENGTH]
    return TextTerms(row, pairs)


def split_mixed_text(text: str, row: list[str], pairs: list[str]) -> None:
    """In order, which tokens of different scripts do not come in: so ASCII is split here, and what
    is more is looked at word by word."""
    dropped = DROPPED_TOKENS
    data = normalize("NFKC", text).encode(errors="surrogatepass").translate(ASCII_SPLIT_TABLE)
    words = data.decode(errors="surrogatepass").split()
    found = [word for word in words if word not in dropped]
    start = 0
    for word in filterfalse(str.isascii, found):
        at = found.index(word, start)
        some, few = split_word_cached(word) if len(word) <= MAX_CACHED_LENGTH else split_word(word)
        row += found[start:at]
        row += some
        pairs += few
        start = at + 1
    row += found[start:]


def split_word(word: str) -> tuple[Sequence[str], Sequence[str]]:
    """Words and single characters, and pairs. Only characters that make pairs stand alone."""
    if HAN_PATTERN.fullmatch(word):
        return tuple(word), tuple(map("".join, pairwise(word)))
    found = tokenize_text(word)
    singles = {term for term in found if len(term) == 1}
    if not singles:
        return found, ()
    is_pair = [len(term) == 2 and term[0] in singles for term in found]
    row = [term for term, pair in zip(found, is_pair, strict=True) if not pair]
    return row, [term for term, pair in zip(found, is_pair, strict=True) if pair]


# Words come again and again, and taking one apart that is not ASCII costs some.
split_word_cached = lru_cache(maxsize=16_384)(split_word)


def split_pieces(text: str) -> Iterator[str]:
    """Cut between words where there is a place for it nearby."""
    start = 0
    while len(text) - start > PIECE_LENGTH:
        end = max(
            text.rfind(" ", start, start + PIECE_LENGTH),
            text.rfind("\n", start, start + PIECE_LENGTH),
        )
        end = end if end > start + PIECE_LENGTH // 2 else start + PIECE_LENGTH
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def parse_query(text: str) -> SearchQuery:
    """Words, and phrases in double quotes. One that is not closed is no phrase."""
    text = text[:MAX_QUERY_LENGTH]
    room = MAX_QUERY_TERMS
    phrases: list[Phrase] = []
    for quoted in QUOTED_PATTERN.findall(text):
        phrase = tuple(extract_terms(quoted).words[:room])
        if phrase and phrase not in phrases:
            phrases.append(phrase)
            room -= len(phrase)
    words = dict.fromkeys(tokenize_text(QUOTED_PATTERN.sub(" ", text)))
    return SearchQuery(tuple(words)[:room], tuple(phrases))
