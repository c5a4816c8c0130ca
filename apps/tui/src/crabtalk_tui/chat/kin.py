"""Kin: which runs of the feed belong to the chat's own turns, and which others share its talk."""

from crabtalk.protocol import wire

MOST = 4096  # runs remembered; tasks in the background outlive their turn


class Kin:
    """The runs the chat began, those they set off, and those, and so on."""

    def __init__(self) -> None:
        self._own: dict[str, None] = {}  # began here, oldest first
        self._set_off: dict[str, None] = {}  # by one of ours

    def begin(self, run_id: str) -> None:
        remember(self._own, run_id)

    def is_own(self, run_id: str) -> bool:
        return run_id in self._own

    def has(self, event: wire.AgentEventMsg) -> bool:
        """Whether its run was set off by one of ours. Learns from what it is shown."""
        if event.run_id in self._set_off:
            return True
        if not event.HasField("parent"):
            return False
        parent = event.parent.run_id
        if parent not in self._own and parent not in self._set_off:
            return False
        remember(self._set_off, event.run_id)
        return True


def remember(runs: dict[str, None], run_id: str) -> None:
    runs[run_id] = None
    if len(runs) > MOST:
        del runs[next(iter(runs))]
