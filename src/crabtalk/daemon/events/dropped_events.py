"""DroppedEvents: counts and reports the events that were dropped for lack of room.

There can be thousands in a second, so the log gets a total now and then, not a line for each.
"""

import asyncio
import logging

log = logging.getLogger(__name__)

# Minimum seconds between two log lines about refused events.
LOG_INTERVAL_SECONDS = 10.0


class DroppedEvents:
    """`refused` events were answered with an error; the publishers of `lost` ones got none."""

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
        """One sentence about the dropped events; empty if there were none."""
        counts = [(self.refused, "refused"), (self.lost, "lost")]
        summary = " and ".join(f"{count} were {outcome}" for count, outcome in counts if count)
        return summary and (
            f"of the events, {summary}, because too many runs waited; publish fewer, or raise "
            "event_runs and events_waiting in [limits] of config.toml"
        )

    def reset(self) -> None:
        """Log the counts and set them to zero."""
        if self.problem:
            log.warning("%s", self.problem)
        self.refused = self.lost = 0
        self._logged_at = None
