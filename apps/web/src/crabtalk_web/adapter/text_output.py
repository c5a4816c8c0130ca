"""Writes the text of a run as envelopes."""

from collections.abc import Iterable
from typing import NamedTuple

from crabtalk_web.stream import TextEvent

from .envelope_builder import EnvelopeBuilder
from .run_events import TextPiece
from .run_state import RunState
from .text_segment import TextSegment
from .tool_text import MAX_RESULT, excerpt_text


class GrowingText(NamedTuple):
    """A segment that is being written, and its speaker: `guest` is empty for the conversation's own
    agent."""

    segment: TextSegment
    turn: str
    guest: str
    subagent: str


def add_text(builder: EnvelopeBuilder, run_state: RunState, piece: TextPiece, at: int) -> None:
    if run_state.segment is not None and run_state.segment.thinking != piece.thinking:
        flush_text(builder, run_state, at)
    if run_state.segment is None:
        run_state.segment = TextSegment(thinking=piece.thinking)
    write_texts(builder, run_state, run_state.segment, run_state.segment.add(piece.text), at)


def flush_text(builder: EnvelopeBuilder, run_state: RunState, at: int) -> None:
    """Write all text that is in no envelope yet."""
    segment, run_state.segment = run_state.segment, None
    if segment is not None:
        write_texts(builder, run_state, segment, segment.take_rest(), at)


def flush_paragraphs(builder: EnvelopeBuilder, run_state: RunState, at: int) -> None:
    """Write the complete paragraphs of a segment that continues."""
    if run_state.segment is not None and run_state.segment.is_ended:
        flush_text(builder, run_state, at)
    elif run_state.segment is not None:
        write_texts(builder, run_state, run_state.segment, run_state.segment.take_paragraphs(), at)


def write_texts(
    builder: EnvelopeBuilder,
    run_state: RunState,
    segment: TextSegment,
    texts: Iterable[str],
    at: int,
) -> None:
    for text in texts:
        if not segment.thinking:
            run_state.last_text = excerpt_text(text, MAX_RESULT)
        builder.write(TextEvent(text=text, thinking=segment.thinking), at, run_state.subagent)
