"""Live text: text as it is being written, for devices that ask for it.

Envelopes carry text in whole pieces. A device that wants to see it grow asks for the text beyond
what it has, and gets an answer as soon as there is more. The answers pass through the relay sealed
and are not stored. Each growing piece becomes one envelope, and the device learns its id, so that
it can replace the piece.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from crabtalk_web.adapter import GrowingText
from crabtalk_web.stream import Envelope, TextEvent

# How long an answer may wait for new text. A relay gives up a call after 30 seconds.
WATCH_TIMEOUT = 20.0
# Finished pieces whose envelope ids are remembered.
MAX_FINISHED = 64


class LiveText:
    """The piece that is being written, with its number. Numbers only ever grow, also across
    processes, so that no device confuses two pieces."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._number = time.time_ns() // 1_000_000
        self._growing: GrowingText | None = None
        self._finished: dict[int, str] = {}  # the envelope ids of finished pieces
        self._changed = asyncio.Event()

    def update(self, envelopes: Sequence[Envelope], growing: GrowingText | None) -> None:
        """Take over the envelopes that were just written, and the text in progress."""
        current = self._growing or growing
        finished = [e.id for e in envelopes if current is not None and is_envelope_of(e, current)]
        was_dropped = (
            self._growing is not None
            and not finished
            and not is_same_segment(self._growing, growing)
        )
        for envelope in [""] if was_dropped else finished:
            self._finished[self._number] = envelope
            self._number += 1
        while len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        if growing is None and self._growing is None and not finished:
            return
        self._growing = growing
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, segment: int, offset: int) -> dict[str, Any]:
        """Return the text beyond `offset` of that segment, or of the current one; an empty part
        after a timeout. Cancellation changes nothing."""
        try:
            async with asyncio.timeout(WATCH_TIMEOUT):
                while not self._has_more(segment, offset):
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._build_part(segment, offset)

    def _has_more(self, segment: int, offset: int) -> bool:
        if segment in self._finished:
            return True
        return len(self._text) > (offset if segment == self._number else 0)

    @property
    def _text(self) -> str:
        return self._growing.segment.text if self._growing is not None else ""

    def _build_part(self, segment: int, offset: int) -> dict[str, Any]:
        start = offset if segment == self._number else 0
        text = self._text
        growing = self._growing
        return {
            "segment": self._number,
            "offset": start,
            "text": text[start:],
            "next": max(start, len(text)),
            "thinking": growing is not None and growing.segment.thinking,
            "over": growing is None,
            "turn": growing.turn if growing is not None else "",
            "speaker": (growing.guest if growing is not None else "") or self._agent,
            "subagent": growing.subagent if growing is not None else "",
            "became": {
                str(number): envelope
                for number, envelope in self._finished.items()
                if number >= segment > 0
            },
        }


def is_envelope_of(envelope: Envelope, growing: GrowingText) -> bool:
    is_text = isinstance(envelope.ev, TextEvent) and envelope.role == "agent"
    return is_text and (envelope.turn, envelope.subagent) == (growing.turn, growing.subagent)


def is_same_segment(first: GrowingText, second: GrowingText | None) -> bool:
    return second is not None and first.segment is second.segment
