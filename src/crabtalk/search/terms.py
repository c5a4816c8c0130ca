"""Terms: what the index stores of a text, and parsed queries.

Words are in the order of the text, so that a phrase is a sequence of them. Bigrams, for scripts
without spaces, are kept apart: they would interrupt the sequences.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import filterfalse, pairwise
from unicodedata import normalize

import msgspec

from crabtalk.memory import tokenize_text
from crabtalk.memory.tokenizer import DROPPED_TOKENS

# Longer queries are cut: more words make a search slower and no clearer.
MAX_QUERY_TERMS = 64
MAX_QUERY_LENGTH = 4096
# A longer term is data, not a word; it is never searched for and would only take up space.
MAX_TERM_LENGTH = 256
# Text is tokenized in pieces of this many characters, so that no step blocks other threads long.
PIECE_LENGTH = 32 * 1024
# Words up to this length are likely to occur again.
MAX_CACHED_LENGTH = 24
# For UTF-8: capitals become lower case, other ASCII except digits and letters becomes spaces, and
# the rest stays.
ASCII_SPLIT_TABLE = bytes(
    code if code >= 128 else ord(chr(code).lower()) if chr(code).isalnum() else 0x20
    for code in range(256)
)
HAN_PATTERN = re.compile("[\u4e00-\u9fff]+")
Phrase = tuple[str, ...]
QUOTED_PATTERN = re.compile(r'"([^"]*)"')


class TextTerms(msgspec.Struct, frozen=True):
    """The terms of a text."""

    words: list[str]
    bigrams: list[str]

    def __len__(self) -> int:
        return len(self.words) + len(self.bigrams)

    def body(self, mark: str = "") -> str:
        """The text for an index that splits at spaces; each term ends in the mark."""
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
    """Takes time in proportion to the text; other threads run between its pieces."""
    words: list[str] = []
    bigrams: list[str] = []
    for piece in split_pieces(text):
        if piece.isascii():
            words += tokenize_text(piece)
        else:
            split_mixed_text(piece, words, bigrams)
    # A text shorter than the limit has no longer terms.
    if len(text) > MAX_TERM_LENGTH and max(map(len, words), default=0) > MAX_TERM_LENGTH:
        words = [term for term in words if len(term) <= MAX_TERM_LENGTH]
    return TextTerms(words, bigrams)


def split_mixed_text(text: str, words: list[str], bigrams: list[str]) -> None:
    """Split a text of several scripts, keeping its order.

    `tokenize_text` groups tokens by script, so ASCII is split here and the rest word by word.
    """
    dropped = DROPPED_TOKENS
    data = normalize("NFKC", text).encode(errors="surrogatepass").translate(ASCII_SPLIT_TABLE)
    tokens = data.decode(errors="surrogatepass").split()
    filtered = [token for token in tokens if token not in dropped]
    start = 0
    for token in filterfalse(str.isascii, filtered):
        position = filtered.index(token, start)
        split = split_word_cached if len(token) <= MAX_CACHED_LENGTH else split_word
        token_words, token_bigrams = split(token)
        words += filtered[start:position]
        words += token_words
        bigrams += token_bigrams
        start = position + 1
    words += filtered[start:]


def split_word(word: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return words and single characters, and bigrams. Only characters in bigrams stand alone."""
    if HAN_PATTERN.fullmatch(word):
        return tuple(word), tuple(map("".join, pairwise(word)))
    tokens = tokenize_text(word)
    singles = {term for term in tokens if len(term) == 1}
    if not singles:
        return tokens, ()
    is_pair = [len(term) == 2 and term[0] in singles for term in tokens]
    words = [term for term, pair in zip(tokens, is_pair, strict=True) if not pair]
    return words, [term for term, pair in zip(tokens, is_pair, strict=True) if pair]


# Words occur again and again, and splitting one that is not ASCII is expensive.
split_word_cached = lru_cache(maxsize=16_384)(split_word)


def split_pieces(text: str) -> Iterator[str]:
    """Split a text, between words if there is a space or line end nearby."""
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
    """Parse words, and phrases in double quotes. An unclosed quote starts no phrase."""
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
