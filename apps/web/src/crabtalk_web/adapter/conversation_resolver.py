"""Finds the conversation that an event of the feed belongs to, also for delegated runs."""

from crabtalk.protocol import wire

# Delegated runs tracked at once. Beyond this the oldest is dropped, and its events are no longer
# resolved.
MAX_DELEGATED_RUNS = 4096
# The daemon gives delegated runs senders with this prefix.
DELEGATED_PREFIX = "delegate:"


class ConversationResolver:
    """Pass it every event of the feed, of all agents and senders: it learns the parents from
    them."""

    def __init__(self) -> None:
        self._pairs: dict[str, tuple[str, str]] = {}  # by delegated run

    def find_conversation(self, message: wire.AgentEventMsg) -> tuple[str, str] | None:
        """Return agent and sender; None for a delegated run whose beginning was not seen."""
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
