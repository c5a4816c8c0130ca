"""Switchboard: whose conversation an element of the feed belongs to, delegated runs included."""

from crabtalk.protocol import wire

# Delegated runs at once; of the one that has been at it longest nothing more is told then.
MAX_DELEGATED_RUNS = 4096
# What the daemon has delegated runs sent by.
DELEGATED_PREFIX = "delegate:"


class ConversationResolver:
    """Learns from all it is shown, so show it all: the feed of every agent and sender."""

    def __init__(self) -> None:
        self._pairs: dict[str, tuple[str, str]] = {}  # by delegated run

    def find_conversation(self, message: wire.AgentEventMsg) -> tuple[str, str] | None:
        """Agent and sender; None for a delegated run of which nobody saw the beginning."""
        if not message.HasField("parent"):
            return message.agent, message.sender
        parent = message.parent
        pair = self._pairs.get(message.run_id) or self._pairs.get(parent.run_id)
        if pair is None and not parent.sender.startswith(DELEGATED_PREFIX):
            pair = parent.agent, parent.sender
        if message.kind == wire.DONE:
            self._pairs.pop(message.run_id, None)
        elif pair is not None:
            self._pairs[message.run_id] = pair
            if len(self._pairs) > MAX_DELEGATED_RUNS:
                del self._pairs[next(iter(self._pairs))]
        return pair
