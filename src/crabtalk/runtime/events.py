"""What happens in a run, in the order it happens. Pure values; a wire makes its own of them.

A run is `Started`, any number of steps, `Done`. Segments (text, thinking) never nest.
"""

from enum import Enum

import msgspec

from crabtalk.model.messages import Image, ToolCall, Usage, Value
from crabtalk.storage import Archive


class StopReason(Enum):
    COMPLETED = "completed"  # the agent said what it had to say
    CANCELLED = "cancelled"  # somebody killed the run, or left
    MAX_ITERATIONS = "max_iterations"
    NO_ACTION = "no_action"  # neither text nor a call
    ERROR = "error"
    LENGTH = "length"  # the model's limit cut its answer off


class Started(Value, frozen=True):
    """The turn is accepted and what was said is kept; it may still wait for an earlier one."""

    agent: str  # who will speak
    run_id: str = ""
    mode: str = ""  # the permission mode it has
    is_stored: bool = False  # the run is over: what follows is what the log has of it


class UserMessageReceived(Value, frozen=True):
    """What was said is kept, and the turn begins. For those who watch: who said it knows."""

    text: str  # as it was said, whatever a skill made of it


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
    """`early`: the first names are known, their arguments not yet. Then again, with all of it."""

    calls: tuple[ToolCall, ...]
    early: bool = False


class ToolResult(Value, frozen=True):
    """A call has finished. They come as they finish, not in the order of the calls."""

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
    """A call that waits for a person's yes, and all there is to know about it."""

    agent: str
    tool: str
    call: str  # the whole call as a person reads it
    cwd: str
    env: dict[str, str] = msgspec.field(default_factory=dict)
    always: str = ""  # what "Always" would allow, in words; empty: it is not offered
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
    """The run waits until these are answered, all at once. Right after the calls that ask."""

    ask_id: str
    questions: tuple[AskQuestion, ...]
    for_owner: bool = False  # only the owner may answer


class ToolRefused(Value, frozen=True):
    """A call the agent may not make. Its result says so to the agent; this, to those who watch."""

    call_id: str
    tool: str
    reason: str


class ToolProgress(Value, frozen=True):
    """What a tool says of a call that goes on. For those who watch; it is kept nowhere.

    Whoever tells it bounds it: a few in a second, in a line each, with numbers that are finite.
    """

    call_id: str
    text: str
    progress: float | None = None
    total: float | None = None


class UserSteered(Value, frozen=True):
    """What was said into the run, at the moment the agent reads it."""

    text: str


class ContextUsage(Value, frozen=True):
    """Of one model call."""

    usage: Usage


class Compacted(Value, frozen=True):
    archive: Archive


class Done(Value, frozen=True):
    """The run is over, and all of it is kept. `text` is what was said last."""

    agent: str
    reason: StopReason
    text: str = ""
    error: str = ""
    model: str = ""
    usage: Usage | None = None
    steps: int = 0
    is_passing: bool = False  # what failed goes by: the same may succeed later
    is_conflict: bool = False  # its key was used for something else; nothing was done


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
