"""Live: text while it is being written, for devices that ask for it.

Envelopes carry text in whole pieces. A device that wants to see it grow asks what there is beyond
what it has, and is answered as soon as there is more: over the relay as it is, sealed as all else,
and kept nowhere. Each piece that grows here becomes one envelope, and a device is told which, so
that it can put the one in place of the other.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from crabtalk_web.adapter import GrowingText
from crabtalk_web.stream import Envelope, TextEvent

# How long an answer may wait for something to say. A relay gives up a call after 30 seconds.
WATCH_TIMEOUT = 20.0
# Pieces of which it is remembered what became of them.
MAX_FINISHED = 64


class LiveText:
    """The piece that is being written, by its number. Numbers only ever grow, also from one
    process to the next, so no device takes one piece for another."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._number = time.time_ns() // 1_000_000
        self._growing: GrowingText | None = None
        self._finished: dict[int, str] = {}  # the envelopes of those that are over
        self._changed = asyncio.Event()

    def update(self, envelopes: Sequence[Envelope], spoken: GrowingText | None) -> None:
        """What was said just now, and what is being said."""
        main = self._growing or spoken
        finished = [e.id for e in envelopes if main is not None and is_envelope_of(e, main)]
        was_dropped = (
            self._growing is not None
            and not finished
            and not is_same_segment(self._growing, spoken)
        )
        for became in [""] if was_dropped else finished:
            self._finished[self._number] = became
            self._number += 1
        while len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        if spoken is None and self._growing is None and not finished:
            return
        self._growing = spoken
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, segment: int, offset: int) -> dict[str, Any]:
        """What there is beyond `offset` of that piece, or of the one that is written now; after a
        while without any, nothing. Cancelled, nothing has changed."""
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
        spoken = self._growing
        return {
            "segment": self._number,
            "offset": start,
            "text": text[start:],
            "next": max(start, len(text)),
            "thinking": spoken is not None and spoken.segment.thinking,
            "over": spoken is None,
            "turn": spoken.turn if spoken is not None else "",
            "speaker": (spoken.guest if spoken is not None else "") or self._agent,
            "subagent": spoken.subagent if spoken is not None else "",
            "became": {
                str(number): envelope
                for number, envelope in self._finished.items()
                if number >= segment > 0
            },
        }


def is_envelope_of(envelope: Envelope, spoken: GrowingText) -> bool:
    is_text = isinstance(envelope.ev, TextEvent) and envelope.role == "agent"
    return is_text and (envelope.turn, envelope.subagent) == (spoken.turn, spoken.subagent)


def is_same_segment(one: GrowingText, other: GrowingText | None) -> bool:
    return other is not None and one.segment is other.segment
