"""ProgressThrottle: limits how often the progress of a call is sent to the daemon."""

import asyncio
import math
from collections.abc import Callable

from crabtalk.mcp.messages import McpProgress

INTERVAL = 0.1  # seconds between two messages about one call
MAX_TEXT_LENGTH = 2000
MAX_WRITTEN_OUT = 1e15  # larger numbers are written with an exponent


class ProgressThrottle:
    """Throttles the progress messages of one call.

    Of messages in quick succession the latest is sent. `close` sends a message that is still held
    back; nothing is sent after it.
    """

    def __init__(self, call: int, send: Callable[[McpProgress], None]) -> None:
        self._call = call
        self._send = send
        self._held: McpProgress | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        if self._is_closed:
            return
        self._held = build_progress(self._call, progress, total, message)
        if self._pause is None:
            self._send_held()

    def close(self) -> None:
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        if self._held is not None:
            self._send(self._held)
            self._held = None

    def _send_held(self) -> None:
        """Send the latest message, and pause for INTERVAL."""
        self._pause = None
        if self._held is not None:
            self._send(self._held)
            self._held = None
            self._pause = asyncio.get_running_loop().call_later(INTERVAL, self._send_held)


def build_progress(
    call: int, progress: float, total: float | None, message: str | None
) -> McpProgress:
    """Build a message. Servers send any numbers; those that make no sense are left out."""
    done = progress if math.isfinite(progress) and progress >= 0 else None
    end = total if total is not None and math.isfinite(total) and total > 0 else None
    if done is None or (end is not None and done > end):
        end = None
    line = " ".join((message or "")[:MAX_TEXT_LENGTH].split())
    text = line.encode(errors="replace").decode() or format_progress(done, end)
    return McpProgress(call, text, done, end)


def format_progress(done: float | None, end: float | None) -> str:
    """Format as `3/10`, or as `3` if the total is unknown."""
    return "/".join(format_number(number) for number in (done, end) if number is not None)


def format_number(value: float) -> str:
    return f"{value:.0f}" if value % 1 == 0 and value < MAX_WRITTEN_OUT else f"{value:g}"
