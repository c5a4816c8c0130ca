"""Service: what a gateway needs of a chat service. A third gateway is one implementation of this.

It moves messages and knows nothing of agents, turns or journals: all of that is done by Gateway.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

# The markdown that agents write. Each service renders it as it can, or leaves it as it is.
Markdown: TypeAlias = str

# Bytes of a button's payload; the narrowest service allows no more.
MAX_PAYLOAD_BYTES = 64


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What the service allows."""

    text: int  # the longest message, in the service's own units: see `measure`
    edits: bool  # whether a message can be changed after it was sent
    edit_every: float  # seconds between two edits in one chat
    typing_every: float  # seconds after which "is typing" fades; 0: there is no such thing
    buttons: bool
    upload: int  # bytes of the largest file
    # Without edits: whether what is said before a tool is used comes at once. Else an answer comes
    # at its end, all of it, which takes the fewest messages.
    parts: bool = False


@dataclass(frozen=True, slots=True)
class Person:
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Chat:
    id: str
    is_group: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file somebody sent. `id` is whatever `fetch` needs to get it."""

    id: str
    name: str
    size: int  # bytes; 0: the service does not say
    kind: str  # MIME


@dataclass(frozen=True, slots=True)
class Update:
    """Something somebody did. `id` is unique for ever: what comes twice is known by it.

    What a service cannot make sense of is an `unread` one: it is in the journal as it came, so that
    the service may forget it, and answered by nobody.
    """

    id: str
    chat: Chat
    person: Person
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    is_to_us: bool = True  # in groups: a mention of us, a reply to us, a command or a button
    press: str = ""  # the payload of the button that was pressed
    message_id: str = ""  # of the message; of the one with the buttons, for a press
    at: float = 0.0  # seconds since 1970
    unread: str = ""  # what came, if it could not be read

    @classmethod
    def unreadable(cls, key: str, raw: str) -> "Update":
        """One that could not be read."""
        return cls(key, Chat(""), Person("", ""), unread=raw or "?")


class Button(NamedTuple):
    label: str
    payload: str  # at most PAYLOAD bytes of ASCII


class ChatService(Protocol):
    """A chat service. All of it may be called from several tasks at once, for different chats.

    Opened before Gateway has it and closed afterwards, by whoever made it. Each call has a deadline
    of its own, and says what is wrong by raising one of the errors below.
    """

    @property
    def name(self) -> str:
        """`telegram`: of the program, its settings, its log and its journal."""

    @property
    def prefix(self) -> str:
        """`tg`: senders are `tg:<person>` and `tg:group:<chat>`."""

    @property
    def limits(self) -> ServiceLimits: ...

    def updates(self) -> AsyncIterator[Update]:
        """What happens, each thing at least once, until the iterator is closed.

        An async generator. Reconnects by itself, with a growing pause. Raises Refused when it is no
        use to try again. What `taken` was not called for may come again, and must after a crash.
        """

    async def acknowledge(self, update: Update) -> None:
        """It is in the journal now: the service may forget it. Called in the order of updates."""

    async def send(
        self,
        chat: Chat,
        text: Markdown,
        *,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
        is_literal: bool = False,
    ) -> str:
        """Sends one message and returns its id.

        A literal text is shown exactly as it is, monospaced if possible: it is a command somebody
        is about to allow, and marks that vanish in it would hide what it does.
        Raises Away only when nobody can know whether it arrived, TryLater when it did not.
        """

    async def edit(
        self,
        chat: Chat,
        message_id: str,
        text: Markdown,
        *,
        buttons: Sequence[Button] = (),
        is_literal: bool = False,
    ) -> None:
        """Changes a message of ours, buttons included. That nothing changed is no error."""

    async def send_typing(self, chat: Chat) -> None: ...

    async def fetch(self, attachment: Attachment, path: Path) -> None:
        """Writes what somebody sent to `path`, which does not exist yet."""

    async def upload(self, chat: Chat, path: Path, caption: str) -> str:
        """Sends a file and returns the id of its message. Raises as `send` does."""

    def measure(self, text: Markdown) -> int:
        """How long the service thinks a text is, as `Limits.text` counts."""


class ChatServiceError(Exception):
    """What a service says no with. The text is for people."""


class MessageTooLongError(ChatServiceError):
    """The message is longer than the service takes. The text is split again, smaller."""


class RetryLaterError(ChatServiceError):
    """Nothing was done; it may be tried again after `seconds`: too fast, or nobody answered."""

    def __init__(self, seconds: float, reason: str = "the service asks to wait") -> None:
        super().__init__(reason)
        self.seconds = seconds


class ChatBlockedError(ChatServiceError):
    """This chat does not want us any more, or is gone. The others are not touched."""


class DeliveryUnknownError(ChatServiceError):
    """The service broke off in the middle: whether the message arrived is not known."""


class RejectedError(ChatServiceError):
    """It is no use to try again: a wrong token, a message that is not allowed.

    From `updates` it ends the gateway; from the others it ends that message alone.
    """
