"""Losses: how many events came to nothing for want of room, counted and told, none of them alone.

Thousands may in a second; a line in the log for each would be a second flood.
"""

import asyncio
import logging

log = logging.getLogger(__name__)

# Seconds between two lines of the log about it.
LOG_INTERVAL_SECONDS = 10.0


class DroppedEvents:
    """`refused` were answered with an error; of those `lost` nobody else was told."""

    def __init__(self) -> None:
        self.refused = 0
        self.lost = 0
        self._logged_at: float | None = None

    def count_refused(self, reason: object) -> None:
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = now
            log.warning("%d events were refused by now: %s", self.refused, reason)

    def count_lost(self, source: str, reason: object) -> None:
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

    def reset(self) -> None:
        """Begins to count anew. The log keeps how many there were."""
        if self.problem:
            log.warning("%s", self.problem)
        self.refused = self.lost = 0
        self._logged_at = None
