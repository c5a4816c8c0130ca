"""Live: text while it is being written, for devices that ask for it.

Envelopes carry text in whole pieces. A device that wants to see it grow asks what there is beyond
what it has, and is answered as soon as there is more: over the relay as it is, sealed as all else,
and kept nowhere.
"""

import asyncio
from typing import Any

from crabtalk_web.adapter import Heard
from crabtalk_web.adapter.happenings import Began, Called, Ended, Piece, SegmentOver, StepOver

# How long an answer may wait for something to say. A relay gives up a call after 30 seconds.
PATIENCE = 20.0
MOST = 65_536


class Live:
    """The segment that is being written: its number, its kind and its text."""

    def __init__(self) -> None:
        self._number = 0
        self._text = ""
        self._thinking = False
        self._is_over = True
        self._news = asyncio.Event()

    def hear(self, heard: Heard) -> None:
        """Only of the conversation's own runs."""
        match heard.what:
            case Piece(text=text, thinking=thinking):
                if self._is_over or thinking != self._thinking or len(self._text) > MOST:
                    self._number += 1
                    self._text, self._thinking, self._is_over = "", thinking, False
                self._text += text
            case SegmentOver() | Called() | StepOver() | Ended() | Began():
                if self._is_over:
                    return
                self._is_over = True
            case _:
                return
        self._news.set()
        self._news = asyncio.Event()

    async def watch(self, segment: int, offset: int) -> dict[str, Any]:
        """What there is beyond `offset` of that segment, or of the one that is written now; after a
        while without any, nothing. Cancelled, nothing has changed."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._has_more(segment, offset):
                    await self._news.wait()
        except TimeoutError:
            pass
        start = offset if segment == self._number else 0
        return {
            "segment": self._number,
            "offset": start,
            "text": self._text[start:],
            "thinking": self._thinking,
            "over": self._is_over,
        }

    def _has_more(self, segment: int, offset: int) -> bool:
        if segment != self._number:
            return not self._is_over
        return len(self._text) > offset
