"""Speech: what a lane says, from its pieces to envelopes."""

from collections.abc import Iterable
from typing import NamedTuple

from crabtalk_web.stream import TextEvent

from .envelope_builder import EnvelopeBuilder
from .run_events import TextPiece
from .run_state import RunState
from .text_segment import TextSegment
from .tool_text import MAX_RESULT, excerpt_text


class GrowingText(NamedTuple):
    """A segment that is growing, and whose it is: `guest` is empty for the conversation's own."""

    segment: TextSegment
    turn: str
    guest: str
    subagent: str


def add_text(sheet: EnvelopeBuilder, lane: RunState, piece: TextPiece, at: int) -> None:
    if lane.segment is not None and lane.segment.thinking != piece.thinking:
        flush_text(sheet, lane, at)
    if lane.segment is None:
        lane.segment = TextSegment(thinking=piece.thinking)
    write_texts(sheet, lane, lane.segment, lane.segment.add(piece.text), at)


def flush_text(sheet: EnvelopeBuilder, lane: RunState, at: int) -> None:
    """All it has said and nobody was told yet."""
    segment, lane.segment = lane.segment, None
    if segment is not None:
        write_texts(sheet, lane, segment, segment.take_rest(), at)


def flush_paragraphs(sheet: EnvelopeBuilder, lane: RunState, at: int) -> None:
    """Of a segment that goes on, what can stand alone."""
    if lane.segment is not None and lane.segment.is_ended:
        flush_text(sheet, lane, at)
    elif lane.segment is not None:
        write_texts(sheet, lane, lane.segment, lane.segment.take_paragraphs(), at)


def write_texts(
    sheet: EnvelopeBuilder, lane: RunState, segment: TextSegment, texts: Iterable[str], at: int
) -> None:
    for text in texts:
        if not segment.thinking:
            lane.last_text = excerpt_text(text, MAX_RESULT)
        sheet.write(TextEvent(text=text, thinking=segment.thinking), at, lane.subagent)
