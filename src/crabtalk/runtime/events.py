"""The events of a run. Plain values; protocols convert them to their own messages.

A run is `Started`, any number of steps, `Done`. Segments (text, thinking) never nest.
"""

from enum import Enum

import msgspec

from crabtalk.model.messages import Image, ToolCall, Usage, Value
from crabtalk.storage import Archive


class StopReason(Enum):
    COMPLETED = "completed"  # the agent finished its answer
    CANCELLED = "cancelled"  # a client killed the run, or left
    MAX_ITERATIONS = "max_iterations"
    NO_ACTION = "no_action"  # the model returned neither text nor a call
    ERROR = "error"
    LENGTH = "length"  # the model's limit cut its answer off


class Started(Value, frozen=True):
    """The turn is accepted and its message is stored; it may still wait for an earlier turn."""

    agent: str  # the agent that will answer
    run_id: str = ""
    mode: str = ""  # the run's permission mode
    is_stored: bool = False  # the run is over: the events that follow come from the log


class UserMessageReceived(Value, frozen=True):
    """The user's message is stored, and the turn begins. Only for hooks, not for clients."""

    text: str  # as the user typed it, not as a skill expanded it


class TextStart(Value, frozen=True):
    agent: str


class TextDelta(Value, frozen=True):
    text: str


class TextEnd(Value, frozen=True):
    agent: str


class ThinkingStart(Value, frozen=True):
    agent: str


class ThinkingDelta(Value, frozen=True):
    text: str


class ThinkingEnd(Value, frozen=True):
    agent: str


class ToolStart(Value, frozen=True):
    """Sent with `early` when the first names are known, and again with the complete calls."""

    calls: tuple[ToolCall, ...]
    early: bool = False


class ToolResult(Value, frozen=True):
    """A call has finished. Results come as calls finish, not in the order of the calls."""

    call_id: str
    output: str
    duration_ms: int
    is_error: bool = False
    images: tuple[Image, ...] = ()


class ToolsComplete(Value, frozen=True):
    pass


class AskOption(Value, frozen=True):
    label: str
    description: str = ""


class ApprovalRequest(Value, frozen=True):
    """A call that waits for a person's approval, with everything the person needs to decide."""

    agent: str
    tool: str
    call: str  # the whole call as a person reads it
    cwd: str
    env: dict[str, str] = msgspec.field(default_factory=dict)
    always: str = ""  # what "Always" would allow, in words; empty: "Always" is not offered
    digest: str = ""
    requested_by: str = ""
    for_owner: bool = False
    reason: str = ""


class AskQuestion(Value, frozen=True):
    """A question for a person. Any text is an answer, whatever the options."""

    question: str
    header: str = ""  # a word or two
    options: tuple[AskOption, ...] = ()
    multi_select: bool = False
    approval: ApprovalRequest | None = None


class AskUser(Value, frozen=True):
    """The run waits until all of these questions are answered. Comes right after the calls that
    ask."""

    ask_id: str
    questions: tuple[AskQuestion, ...]
    for_owner: bool = False  # only the owner may answer


class ToolRefused(Value, frozen=True):
    """A call the agent may not make. Its result tells the agent; this event tells hooks and
    clients."""

    call_id: str
    tool: str
    reason: str


class ToolProgress(Value, frozen=True):
    """Progress of a call that is still running. It is not stored.

    The sender limits it: a few per second, one line each, finite numbers.
    """

    call_id: str
    text: str
    progress: float | None = None
    total: float | None = None


class UserSteered(Value, frozen=True):
    """A steering message, at the moment the agent reads it."""

    text: str


class ContextUsage(Value, frozen=True):
    """The usage of one model call."""

    usage: Usage


class Compacted(Value, frozen=True):
    archive: Archive


class Done(Value, frozen=True):
    """The run is over, and all of it is stored. `text` is the agent's last text."""

    agent: str
    reason: StopReason
    text: str = ""
    error: str = ""
    model: str = ""
    usage: Usage | None = None
    steps: int = 0
    is_passing: bool = False  # the failure is temporary: the same may succeed later
    is_conflict: bool = False  # its key was used for another message; nothing was done


Event = (
    Started
    | UserMessageReceived
    | TextStart
    | TextDelta
    | TextEnd
    | ThinkingStart
    | ThinkingDelta
    | ThinkingEnd
    | ToolStart
    | ToolResult
    | ToolsComplete
    | AskUser
    | ToolRefused
    | ToolProgress
    | UserSteered
    | ContextUsage
    | Compacted
    | Done
)
