"""The events of a run, as the adapter understands them.

All of them can be encoded and decoded, so that a run can be replayed.
"""

from enum import Enum

import msgspec


class EndReason(Enum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    MAX_ITERATIONS = "max_iterations"
    NO_ACTION = "no_action"
    ERROR = "error"
    UNKNOWN = "unknown"


class RunEvent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base class of the events below."""


class RunBegan(RunEvent, frozen=True):
    text: str = ""  # empty if it is not known


class TextPiece(RunEvent, frozen=True):
    text: str
    thinking: bool = False


class SegmentEnded(RunEvent, frozen=True):
    pass


class ToolCallRequest(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str


class ToolsCalled(RunEvent, frozen=True):
    calls: tuple[ToolCallRequest, ...]


class ToolReturned(RunEvent, frozen=True):
    call: str
    output: str
    is_error: bool = False
    duration_ms: int | None = None


class StepEnded(RunEvent, frozen=True):
    """Every call of the step has returned."""


class AnswerOption(msgspec.Struct, frozen=True):
    label: str
    description: str = ""


class CallApproval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tool call that a question is about. `call` is the whole call as literal text."""

    tool: str
    call: str
    agent: str = ""
    cwd: str = ""
    env: tuple[tuple[str, str], ...] = ()
    always: str = ""  # what "Always" would allow, in words; empty if it is not offered
    digest: str = ""
    requested_by: str = ""  # the sender whose run asks
    for_owner: bool = False  # the run belongs to another sender, and only the owner may answer
    reason: str = ""


class AgentQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    question: str
    header: str = ""
    options: tuple[AnswerOption, ...] = ()
    multi_select: bool = False
    approval: CallApproval | None = None


class QuestionsAsked(RunEvent, frozen=True):
    ask_id: str
    questions: tuple[AgentQuestion, ...]


class RunSteered(RunEvent, frozen=True):
    text: str


class TokensUsed(RunEvent, frozen=True):
    """Token usage of one model call. `cached` is part of `prompt`."""

    prompt: int
    completion: int
    cached: int = 0


class ConversationCompacted(RunEvent, frozen=True):
    title: str


class RunEnded(RunEvent, frozen=True):
    reason: EndReason
    error: str = ""
    usage: TokensUsed | None = None  # of the whole run, if known


AnyRunEvent = (
    RunBegan
    | TextPiece
    | SegmentEnded
    | ToolsCalled
    | ToolReturned
    | StepEnded
    | QuestionsAsked
    | RunSteered
    | TokensUsed
    | ConversationCompacted
    | RunEnded
)


class ParentCall(msgspec.Struct, frozen=True):
    """The run, the call and the task within that call that started another run."""

    run: str
    call: str
    task: int = 0


class ReceivedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event with its run, its conversation and its time."""

    run: str
    event: AnyRunEvent
    at: int  # milliseconds since 1970
    parent: ParentCall | None = None
    guest: str = ""
    # The conversation the run belongs to; for a delegated run it differs from the one people see.
    agent: str = ""
    sender: str = ""
    # From the stream of the turn rather than from the feed of all conversations.
    is_streamed: bool = False
    # Events that were lost directly before this one.
    missed: int = 0
