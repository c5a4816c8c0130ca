"""What servers say about the progress of calls, in the host: as often as anybody can follow."""

import asyncio
import math
from collections.abc import Callable

from crabtalk.mcp.messages import McpProgress

INTERVAL = 0.1  # between two words about one call
MAX_TEXT_LENGTH = 2000
MAX_WRITTEN_OUT = 1e15  # written out


class ProgressThrottle:
    """Those about one call. Of what comes too fast the latest is told, and never too late: `close`
    tells what was held back. Nothing is told after it."""

    def __init__(self, call: int, tell: Callable[[McpProgress], None]) -> None:
        self._call = call
        self._send = tell
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
        """Tells the latest, and then nothing for a while."""
        self._pause = None
        if self._held is not None:
            self._send(self._held)
            self._held = None
            self._pause = asyncio.get_running_loop().call_later(INTERVAL, self._send_held)


def build_progress(
    call: int, progress: float, total: float | None, message: str | None
) -> McpProgress:
    """Numbers that mean nothing are left out: servers send any."""
    done = progress if math.isfinite(progress) and progress >= 0 else None
    end = total if total is not None and math.isfinite(total) and total > 0 else None
    if done is None or (end is not None and done > end):
        end = None
    said = " ".join((message or "")[:MAX_TEXT_LENGTH].split())
    text = said.encode(errors="replace").decode() or format_progress(done, end)
    return McpProgress(call, text, done, end)


def format_progress(done: float | None, end: float | None) -> str:
    """`3/10`, or `3` when there is no telling of how many."""
    return "/".join(format_number(one) for one in (done, end) if one is not None)


def format_number(value: float) -> str:
    return f"{value:.0f}" if value % 1 == 0 and value < MAX_WRITTEN_OUT else f"{value:g}"
