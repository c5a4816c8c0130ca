"""Kin: which runs of the feed belong to the chat's own turns, and which others share its talk."""

from crabtalk.protocol import wire

MAX_RUNS = 4096  # runs remembered; tasks in the background outlive their turn


class OwnRuns:
    """The runs the chat began, those they set off, and those, and so on."""

    def __init__(self) -> None:
        self._roots: dict[str, None] = {}  # began here, oldest first
        self._descendants: dict[str, None] = {}  # by one of ours

    def add_run(self, run_id: str) -> None:
        add_bounded(self._roots, run_id)

    def is_own(self, run_id: str) -> bool:
        return run_id in self._roots

    def is_descendant(self, event: wire.AgentEventMsg) -> bool:
        """Whether its run was set off by one of ours. Learns from what it is shown."""
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
