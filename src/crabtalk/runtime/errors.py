"""Errors with which the engine refuses a request. Their texts say what to do next."""

from crabtalk.storage import Pair


class RuntimeRefusalError(Exception):
    """The engine refuses a request."""


class UnknownAgentError(RuntimeRefusalError):
    """No agent has that name."""


class UnknownToolError(RuntimeRefusalError):
    """The agent has no tool of that name."""


class UnknownConversationError(RuntimeRefusalError):
    """No conversation has that name."""


class NothingInFlightError(RuntimeRefusalError):
    """There is no run to act on."""


class NothingToCompactError(RuntimeRefusalError):
    """The history holds nothing that is not in an archive already."""


class BusyError(RuntimeRefusalError):
    """A limit is reached; the same request may succeed later."""


class KeyConflictError(RuntimeRefusalError):
    """The key was used for another message in the conversation."""


class CompactionError(RuntimeRefusalError):
    """The summary could not be written or stored. Nothing changed."""


def key_conflict_error(key: str) -> KeyConflictError:
    return KeyConflictError(
        f"the key {key[:80]!r} was used for another message in this conversation; "
        "give each message a key of its own"
    )


def unknown_conversation_error(pair: Pair) -> UnknownConversationError:
    agent, sender = pair.agent[:80], pair.sender[:80]
    return UnknownConversationError(f"{agent} has had no conversation with {sender} yet")
