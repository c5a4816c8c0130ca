"""Redaction: removes keys from the answers and errors of model servers.

Servers quote a key they reject: whole, truncated, or with its middle starred out. All three forms
are removed from errors. From streamed text the whole key is removed, even if it is split between
chunks.
"""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote, urlsplit

import msgspec

from crabtalk.masking import MASK, SHORTEST_SECRET, mask_secrets

from .errors import ApiError
from .messages import Chunk

# A key is recognised by this many of its characters in a row. A stream may show fewer of them
# before the key is recognised.
MIN_FRAGMENT = 8
# People configure a plain word such as "ollama" for servers without keys, which is no secret.
PLAIN_WORD = re.compile(r"[a-z]{1,11}\Z")
# A word of which a part may be replaced by stars, dots or similar.
MASKED_WORD = re.compile(r"[\w\-*•●…#.]+")
MASKED_GAP = re.compile(r"\*+|[•●…]+|#{2,}|\.{2,}|[xX]{3,}")
# Characters of a starred word that must agree with the key at either end.
MIN_MATCHING_END = 3


class Redactor:
    """Knows the secrets of one provider."""

    def __init__(self, secrets: Iterable[str]) -> None:
        maskable = {secret for secret in secrets if is_maskable(secret)}
        escaped = {
            form for secret in maskable for form in (quote(secret, safe=""), repr(secret)[1:-1])
        }
        self.secrets = tuple(sorted(maskable | escaped, key=len, reverse=True))

    def redact_error(self, error: ApiError) -> None:
        """Redact the error's message in place, so that its type and traceback stay."""
        error.message = self.redact_text(error.message)
        error.args = (error.message,)

    def redact_text(self, text: str) -> str:
        for secret in self.secrets:
            text = redact_pieces(text.replace(secret, MASK), secret)
        if self.secrets:
            text = MASKED_WORD.sub(self._redact_word, text)
        return mask_secrets(text, ())

    def open_stream(self) -> "StreamRedactor | None":
        """Return a redactor for one answer, or None if there are no secrets."""
        return StreamRedactor(self.secrets) if self.secrets else None

    def _redact_word(self, match: re.Match[str]) -> str:
        word = match[0]
        stop = "." if word.endswith(".") and not word.endswith("..") else ""  # ends the sentence
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
    """Redacts one streamed answer. Text that may be the start of a key is held back until that is
    known."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._text = FieldRedactor(secrets)
        self._reasoning = FieldRedactor(secrets)

    def redact(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks that may be shown now, in nearly all cases `chunks` itself."""
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
        """Return the text still held back at the end of the answer."""
        text = self._text.add("", is_last=True)
        reasoning = self._reasoning.add("", is_last=True)
        return [Chunk(text=text, reasoning=reasoning)] if text or reasoning else []

    def _redact_chunk(self, chunk: Chunk) -> Chunk:
        is_last = chunk.finish != ""
        text = self._text.add(chunk.text, is_last=is_last)
        reasoning = self._reasoning.add(chunk.reasoning, is_last=is_last)
        return msgspec.structs.replace(chunk, text=text, reasoning=reasoning)


class FieldRedactor:
    """Redacts one text field of an answer."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._starts = tuple({secret[:MIN_FRAGMENT] for secret in secrets})
        self._shown = ""  # the last characters shown, fewer than MIN_FRAGMENT
        self.held = ""  # text that may be the start of a secret

    def try_show(self, text: str) -> bool:
        """Return whether `text` may be shown unchanged; if so, it counts as shown."""
        if self.held:
            return False
        window = self._shown + text
        for start in self._starts:
            if start in window:
                return False
        self._shown = window[1 - MIN_FRAGMENT :]
        return True

    def add(self, text: str, *, is_last: bool) -> str:
        """Add text. Returns what may be shown now and was not shown yet."""
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
            if not is_whole:  # the next text may complete the secret
                self._shown = window[max(replaced, start + 1 - MIN_FRAGMENT) : start]
                self.held = window[start:]
                return "".join(shown)
            shown.append(MASK)
            done = replaced = begin + len(secret)
        shown.append(window[done:])
        self._shown, self.held = window[max(replaced, len(window) + 1 - MIN_FRAGMENT) :], ""
        return "".join(shown)

    def _find(self, window: str) -> list[tuple[int, str]]:
        """Find secrets in the window, and a start of one at its end, ordered by position."""
        matches = []
        for secret in self._secrets:
            begin = window.find(secret[:MIN_FRAGMENT])
            while begin >= 0:
                if secret.startswith(window[begin : begin + len(secret)]):
                    matches.append((begin, secret))
                begin = window.find(secret[:MIN_FRAGMENT], begin + 1)
        return sorted(matches, key=lambda match: (match[0], -len(match[1])))


def is_maskable(secret: str) -> bool:
    return len(secret) >= SHORTEST_SECRET and not PLAIN_WORD.match(secret)


def redact_pieces(text: str, secret: str) -> str:
    """Mask every part of the secret that is at least MIN_FRAGMENT long."""
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
    """Return the password and the query values in the URL of a server."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    values = [pair.partition("=")[2] for pair in parts.query.split("&")]
    secrets = [parts.password or "", *values]
    return [form for secret in secrets for form in {secret, unquote(secret)} if secret]
