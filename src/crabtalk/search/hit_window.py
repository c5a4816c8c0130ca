"""The window of a hit: the matching message and those around it, each as a bounded snippet."""

import re
from collections.abc import Sequence

from crabtalk.model.messages import Message
from crabtalk.storage import MessageRecord

from .results import MAX_SNIPPET_BYTES, WindowItem
from .searchable_text import extract_text
from .terms import SearchQuery, extract_terms, split_pieces

# Bytes shown before the match in a snippet from the middle of a message.
LEAD_BYTES = MAX_SNIPPET_BYTES // 4
WORD_PATTERN = re.compile(r"\S{1,64}")


def build_window(
    messages: Sequence[MessageRecord], matched: int, query: SearchQuery, *, tool_results: bool
) -> tuple[WindowItem, ...]:
    """Build the items of a window. The snippet of the matched message shows the match."""
    return tuple(
        build_item(record, query if record.id == matched else None, tool_results=tool_results)
        for record in messages
    )


def build_item(
    record: MessageRecord, query: SearchQuery | None, *, tool_results: bool
) -> WindowItem:
    message = record.message
    texts = render_texts(message, tool_results=tool_results)
    text, start = texts[0], 0
    if query is not None:
        matches = ((candidate, find_match(candidate, query)) for candidate in texts)
        text, start = next(((t, at) for t, at in matches if at is not None), (text, 0))
    snippet = cut_snippet(text, start)
    is_hidden = message.role == "tool" and not tool_results and bool(message.text)
    return WindowItem(
        record.id,
        message.role,
        snippet,
        is_hidden or len(snippet) < len(text),
        message.name or (message.tool_calls[0].name if message.tool_calls else ""),
        message.agent,
    )


def render_texts(message: Message, *, tool_results: bool) -> list[str]:
    """Render a message as texts: the first one is shown, unless the match is in another.

    Tool results may hold secrets: where they may not be searched, they are not shown either.
    """
    if message.role == "tool" and not tool_results:
        return [""]
    if not message.tool_calls:
        return [message.text]
    calls = " ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
    return [text for text in (message.text, calls) if text] or [""]


def matches_query(message: Message, query: SearchQuery, *, tool_results: bool) -> bool:
    """Whether the message contains any of the query's terms."""
    text, _ = extract_text(message, tool_results=tool_results)
    lowered = text.lower()
    if any(find_term(lowered, term) >= 0 for term in query.terms):
        return True  # usually spelt as in the query
    return any(contains_any_term(piece, query.terms) for piece in split_pieces(text))


def contains_any_term(text: str, wanted: set[str]) -> bool:
    terms = extract_terms(text)
    return not (wanted.isdisjoint(terms.words) and wanted.isdisjoint(terms.bigrams))


def find_match(text: str, query: SearchQuery) -> int | None:
    """The position of the first match; None when there is none."""
    wanted = query.terms
    lowered = text.lower()
    is_aligned = len(lowered) == len(text)
    if is_aligned:  # so that positions are the same in both texts
        positions = [at for term in wanted if (at := find_term(lowered, term)) >= 0]
        if positions or text.isascii():
            return min(positions, default=None)
    # Spelt differently in the index: accents, ligatures, two scripts in one word.
    start = 0
    for piece in split_pieces(text):
        if contains_any_term(piece, wanted):
            # An ASCII word would have been found above.
            words = (
                w for w in WORD_PATTERN.finditer(piece) if not (is_aligned and w.group().isascii())
            )
            return start + next(
                (w.start() for w in words if contains_any_term(w.group(), wanted)), 0
            )
        start += len(piece)
    return None


def find_term(text: str, term: str) -> int:
    """The position of `term` as a whole word; -1 when there is none."""
    at = text.find(term)
    while at >= 0:
        end = at + len(term)
        if not (at and text[at - 1].isalnum()) and not text[end : end + 1].isalnum():
            return at
        at = text.find(term, at + 1)
    return -1


def cut_snippet(text: str, start: int) -> str:
    """Cut a snippet of bounded size that shows the text at `start`. Cuts between characters."""
    head = encode_text(text[: MAX_SNIPPET_BYTES + 1])
    if len(text) <= MAX_SNIPPET_BYTES and len(head) <= MAX_SNIPPET_BYTES:
        return text
    before = encode_text(text[max(0, start - MAX_SNIPPET_BYTES) : start])
    if start > MAX_SNIPPET_BYTES or len(before) > MAX_SNIPPET_BYTES - LEAD_BYTES:
        lead = before[-LEAD_BYTES:].decode(errors="ignore")
        head = encode_text(lead + text[start : start + MAX_SNIPPET_BYTES])
    return head[:MAX_SNIPPET_BYTES].decode(errors="ignore")


def encode_text(text: str) -> bytes:
    return text.encode(errors="replace")
