"""Redaction: answers and errors of a model server without the key that was sent to it.

Servers quote the key they refuse, whole, cut or with its middle starred out. Errors lose all three
forms. Streamed text loses the whole key, also when it is split between chunks.
"""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote, urlsplit

import msgspec

from crabtalk.masking import MASK, SHORTEST_SECRET, mask_secrets

from .errors import ApiError
from .messages import Chunk

# A key is recognised by this many of its characters in a row. It is also what a stream may show of
# a key before it is recognised as one.
MIN_FRAGMENT = 8
# Servers without keys are given a plain word such as "ollama", which is no secret.
PLAIN_WORD = re.compile(r"[a-z]{1,11}\Z")
# A word in which somebody has put something else for a part of it.
MASKED_WORD = re.compile(r"[\w\-*•●…#.]+")
MASKED_GAP = re.compile(r"\*+|[•●…]+|#{2,}|\.{2,}|[xX]{3,}")
# Characters of a starred word that must agree with the key at either end.
MIN_MATCHING_END = 3


class Redactor:
    """Knows the secrets of one provider."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {secret for secret in secrets if is_maskable(secret)}
        written = {
            form for secret in found for form in (quote(secret, safe=""), repr(secret)[1:-1])
        }
        self.secrets = tuple(sorted(found | written, key=len, reverse=True))

    def redact_error(self, error: ApiError) -> None:
        """Replaces what the error says, in place, so that its type and origin stay."""
        error.message = self.redact_text(error.message)
        error.args = (error.message,)

    def redact_text(self, text: str) -> str:
        for secret in self.secrets:
            text = redact_pieces(text.replace(secret, MASK), secret)
        if self.secrets:
            text = MASKED_WORD.sub(self._redact_word, text)
        return mask_secrets(text, ())

    def open_stream(self) -> "StreamRedactor | None":
        """For one answer; None where there is nothing to look for."""
        return StreamRedactor(self.secrets) if self.secrets else None

    def _redact_word(self, match: re.Match[str]) -> str:
        word = match[0]
        stop = "." if word.endswith(".") and not word.endswith("..") else ""  # of the sentence
        start, *between = MASKED_GAP.split(word.removesuffix(stop))
        if not between:
            return word
        end = between[-1]
        for secret in self.secrets:
            is_start = len(start) >= MIN_MATCHING_END and secret.startswith(start)
            is_end = len(end) >= MIN_MATCHING_END and secret.endswith(end)
            if is_start or is_end:
                return MASK + stop
        return word


class StreamRedactor:
    """Redacts one streamed answer. Text that may become the key is held until that is known."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._text = FieldRedactor(secrets)
        self._reasoning = FieldRedactor(secrets)

    def redact(self, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks that may be shown now; in nearly all cases `chunks` itself."""
        if len(chunks) == 1:  # as chunks of most models arrive
            text, reasoning = chunks[0].text, chunks[0].reasoning
        else:
            text = "".join([chunk.text for chunk in chunks])
            reasoning = "".join([chunk.reasoning for chunk in chunks])
        if not (reasoning or self._reasoning.held) and self._text.try_show(text):
            return chunks
        if not (text or self._text.held) and self._reasoning.try_show(reasoning):
            return chunks
        shown = [self._redact_chunk(chunk) for chunk in chunks]
        return [chunk for chunk in shown if chunk != Chunk()]

    def end(self) -> list[Chunk]:
        """Text still held, once the answer is over."""
        text = self._text.add("", is_last=True)
        reasoning = self._reasoning.add("", is_last=True)
        return [Chunk(text=text, reasoning=reasoning)] if text or reasoning else []

    def _redact_chunk(self, chunk: Chunk) -> Chunk:
        is_last = chunk.finish != ""
        text = self._text.add(chunk.text, is_last=is_last)
        reasoning = self._reasoning.add(chunk.reasoning, is_last=is_last)
        return msgspec.structs.replace(chunk, text=text, reasoning=reasoning)


class FieldRedactor:
    """Redacts one kind of text of an answer."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._starts = tuple({secret[:MIN_FRAGMENT] for secret in secrets})
        self._shown = ""  # the last characters that were shown, fewer than PIECE
        self.held = ""  # text that may become a secret

    def try_show(self, text: str) -> bool:
        """Whether `text` may be shown as it is; if so, it counts as shown."""
        if self.held:
            return False
        window = self._shown + text
        for start in self._starts:
            if start in window:
                return False
        self._shown = window[1 - MIN_FRAGMENT :]
        return True

    def add(self, text: str, *, is_last: bool) -> str:
        """What may be shown of the text so far and was not shown yet."""
        window = self._shown + self.held + text
        done = len(self._shown)  # characters of the window that are shown or replaced
        replaced = 0
        shown = []
        for begin, secret in self._find(window):
            if begin < replaced or begin + len(secret) <= done:
                continue
            start = max(begin, done)
            is_whole = window.startswith(secret, begin)
            if not is_whole and is_last:
                continue
            shown.append(window[done:start])
            if not is_whole:  # what follows may make it the secret
                self._shown = window[max(replaced, start + 1 - MIN_FRAGMENT) : start]
                self.held = window[start:]
                return "".join(shown)
            shown.append(MASK)
            done = replaced = begin + len(secret)
        shown.append(window[done:])
        self._shown, self.held = window[max(replaced, len(window) + 1 - MIN_FRAGMENT) :], ""
        return "".join(shown)

    def _find(self, window: str) -> list[tuple[int, str]]:
        """Where a secret is, or where the window ends in the beginning of one; in order."""
        found = []
        for secret in self._secrets:
            begin = window.find(secret[:MIN_FRAGMENT])
            while begin >= 0:
                if secret.startswith(window[begin : begin + len(secret)]):
                    found.append((begin, secret))
                begin = window.find(secret[:MIN_FRAGMENT], begin + 1)
        return sorted(found, key=lambda each: (each[0], -len(each[1])))


def is_maskable(secret: str) -> bool:
    return len(secret) >= SHORTEST_SECRET and not PLAIN_WORD.match(secret)


def redact_pieces(text: str, secret: str) -> str:
    """Without any part of the secret that is long enough to be recognised."""
    begin = 0
    while begin <= len(secret) - MIN_FRAGMENT:
        length = MIN_FRAGMENT
        piece = secret[begin : begin + length]
        if piece not in text or piece == MASK:
            begin += 1
            continue
        while begin + length < len(secret) and secret[begin : begin + length + 1] in text:
            length += 1
        text = text.replace(secret[begin : begin + length], MASK)
    return text


def find_url_secrets(url: str) -> list[str]:
    """The password, and values of the query, in the address of a server."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    values = [pair.partition("=")[2] for pair in parts.query.split("&")]
    found = [parts.password or "", *values]
    return [form for value in found for form in {value, unquote(value)} if value]
