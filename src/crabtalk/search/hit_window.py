"""Window: a match and what was said around it, each message cut to what may be shown."""

import re
from collections.abc import Sequence

from crabtalk.model.messages import Message
from crabtalk.storage import MessageRecord

from .results import MAX_SNIPPET_BYTES, WindowItem
from .searchable_text import extract_text
from .terms import SearchQuery, extract_terms, split_pieces

# What a snippet that is cut out of the middle shows before the match, in bytes.
LEAD_BYTES = MAX_SNIPPET_BYTES // 4
WORD_PATTERN = re.compile(r"\S{1,64}")


def build_window(
    messages: Sequence[MessageRecord], matched: int, query: SearchQuery, *, tool_results: bool
) -> tuple[WindowItem, ...]:
    """Of the matched message, the place that matched."""
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
        places = ((each, find_match(each, query)) for each in texts)
        text, start = next(((t, at) for t, at in places if at is not None), (text, 0))
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
    """What a message reads as: the first is shown, unless the match is in another.

    What a tool answered may hold secrets: where it may not be searched, it is not shown either.
    """
    if message.role == "tool" and not tool_results:
        return [""]
    if not message.tool_calls:
        return [message.text]
    calls = " ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
    return [text for text in (message.text, calls) if text] or [""]


def matches_query(message: Message, query: SearchQuery, *, tool_results: bool) -> bool:
    """Whether it says anything of what was searched for."""
    text, _ = extract_text(message, tool_results=tool_results)
    lowered = text.lower()
    if any(find_term(lowered, term) >= 0 for term in query.terms):
        return True  # spelt as it was asked for, as a rule
    return any(contains_any_term(piece, query.terms) for piece in split_pieces(text))


def contains_any_term(text: str, wanted: set[str]) -> bool:
    terms = extract_terms(text)
    return not (wanted.isdisjoint(terms.words) and wanted.isdisjoint(terms.bigrams))


def find_match(text: str, query: SearchQuery) -> int | None:
    """Where the first thing that was searched for begins; None when there is nothing of it."""
    wanted = query.terms
    lowered = text.lower()
    is_aligned = len(lowered) == len(text)
    if is_aligned:  # so that places are the same in both
        places = [at for term in wanted if (at := find_term(lowered, term)) >= 0]
        if places or text.isascii():
            return min(places, default=None)
    # Not spelt as it is in the index: accents, ligatures, two scripts in one word.
    start = 0
    for piece in split_pieces(text):
        if contains_any_term(piece, wanted):
            # A word of ASCII would have been found.
            words = (
                w for w in WORD_PATTERN.finditer(piece) if not (is_aligned and w.group().isascii())
            )
            return start + next(
                (w.start() for w in words if contains_any_term(w.group(), wanted)), 0
            )
        start += len(piece)
    return None


def find_term(text: str, term: str) -> int:
    """Where it stands as a word of its own; -1 when it does not."""
    at = text.find(term)
    while at >= 0:
        end = at + len(term)
        if not (at and text[at - 1].isalnum()) and not text[end : end + 1].isalnum():
            return at
        at = text.find(term, at + 1)
    return -1


def cut_snippet(text: str, start: int) -> str:
    """As much as may be shown, with what begins at `start` in sight. Cut between characters."""
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
