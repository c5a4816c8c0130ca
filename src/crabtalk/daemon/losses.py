"""Losses: how many events came to nothing for want of room, counted and told, none of them alone.

Thousands may in a second; a line in the log for each would be a second flood.
"""

import asyncio
import logging

log = logging.getLogger(__name__)

# Seconds between two lines of the log about it.
PAUSE = 10.0


class Losses:
    """`refused` were answered with an error; of those `lost` nobody else was told."""

    def __init__(self) -> None:
        self.refused = 0
        self.lost = 0
        self._told_at: float | None = None

    def refuse(self, reason: object) -> None:
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if self._told_at is None or now - self._told_at >= PAUSE:
            self._told_at = now
            log.warning("%d events were refused by now: %s", self.refused, reason)

    def lose(self, source: str, reason: object) -> None:
        self.lost += 1
        log.error("the event %.80r is lost: %s", source, reason)

    @property
    def problem(self) -> str:
        """Empty when there were none."""
        counts = [(self.refused, "refused"), (self.lost, "lost")]
        told = " and ".join(f"{count} were {how}" for count, how in counts if count)
        return told and (
            f"of the events, {told}, because too many runs waited; publish fewer, or raise "
            "event_runs and events_waiting in [limits] of config.toml"
        )

    def forget(self) -> None:
        """Begins to count anew. The log keeps how many there were."""
        if self.problem:
            log.warning("%s", self.problem)
        self.refused = self.lost = 0
        self._told_at = None
