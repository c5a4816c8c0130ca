"""Recognise the runs of the chat's own turns, and the runs those started, in the feed."""

from crabtalk.protocol import wire

MAX_RUNS = 4096  # runs remembered; background tasks outlive their turn


class OwnRuns:
    """The runs the chat began, and all runs that descend from them."""

    def __init__(self) -> None:
        self._roots: dict[str, None] = {}  # began here, oldest first
        self._descendants: dict[str, None] = {}  # started by one of ours

    def add_run(self, run_id: str) -> None:
        add_bounded(self._roots, run_id)

    def is_own(self, run_id: str) -> bool:
        return run_id in self._roots

    def is_descendant(self, event: wire.AgentEventMsg) -> bool:
        """Whether the event's run descends from one of ours; if so, the run is remembered."""
        if event.run_id in self._descendants:
            return True
        if not event.HasField("parent"):
            return False
        parent = event.parent.run_id
        if parent not in self._roots and parent not in self._descendants:
            return False
        add_bounded(self._descendants, event.run_id)
        return True


def add_bounded(runs: dict[str, None], run_id: str) -> None:
    runs[run_id] = None
    if len(runs) > MAX_RUNS:
        del runs[next(iter(runs))]
