"""Speech: what a lane says, from its pieces to envelopes."""

from collections.abc import Iterable
from typing import NamedTuple

from crabtalk_web.stream import Text

from .happenings import Piece
from .lane import Lane
from .segment import Segment
from .sheet import Sheet
from .words import RESULT, excerpt


class Spoken(NamedTuple):
    """A segment that is growing, and whose it is: `guest` is empty for the conversation's own."""

    segment: Segment
    turn: str
    guest: str
    subagent: str


def say(sheet: Sheet, lane: Lane, piece: Piece, at: int) -> None:
    if lane.segment is not None and lane.segment.thinking != piece.thinking:
        flush(sheet, lane, at)
    if lane.segment is None:
        lane.segment = Segment(thinking=piece.thinking)
    tell(sheet, lane, lane.segment, lane.segment.add(piece.text), at)


def flush(sheet: Sheet, lane: Lane, at: int) -> None:
    """All it has said and nobody was told yet."""
    segment, lane.segment = lane.segment, None
    if segment is not None:
        tell(sheet, lane, segment, segment.rest(), at)


def flush_paragraphs(sheet: Sheet, lane: Lane, at: int) -> None:
    """Of a segment that goes on, what can stand alone."""
    if lane.segment is not None and lane.segment.is_over:
        flush(sheet, lane, at)
    elif lane.segment is not None:
        tell(sheet, lane, lane.segment, lane.segment.paragraphs(), at)


def tell(sheet: Sheet, lane: Lane, segment: Segment, texts: Iterable[str], at: int) -> None:
    for text in texts:
        if not segment.thinking:
            lane.last_text = excerpt(text, RESULT)
        sheet.write(Text(text=text, thinking=segment.thinking), at, lane.subagent)
