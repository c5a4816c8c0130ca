"""The interface a gateway needs of a chat service. Each service (Telegram, WeChat) implements it.

An implementation moves messages. It knows nothing of agents, turns or journals: Gateway does that.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

# The markdown that agents write. Each service renders what it can, or sends it as it is.
Markdown: TypeAlias = str

# Bytes of a button's payload: Telegram, the strictest service, allows no more.
MAX_PAYLOAD_BYTES = 64


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What the service allows."""

    text: int  # the longest message, in the service's own units: see `measure`
    edits: bool  # whether a message can be changed after it was sent
    edit_every: float  # seconds between two edits in one chat
    typing_every: float  # seconds after which "is typing" fades; 0: the service has no such status
    buttons: bool
    upload: int  # bytes of the largest file
    # For services without edits: send the text before each tool call at once. False sends the
    # whole answer at its end, which takes the fewest messages.
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
    """A file that a person sent. `id` is what `fetch` needs to get it."""

    id: str
    name: str
    size: int  # bytes; 0: the service does not say
    kind: str  # MIME


@dataclass(frozen=True, slots=True)
class Update:
    """An event in a chat. `id` is unique for ever, so an update that comes twice is recognised.

    If the service cannot parse an event, it makes an `unreadable` update: the event is stored in
    the journal as it came, so that the service may forget it, and gets no answer.
    """

    id: str
    chat: Chat
    person: Person
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    is_to_us: bool = True  # in groups: a mention of us, a reply to us, a command or a button
    press: str = ""  # the payload of the button that was pressed
    message_id: str = ""  # of the message; for a press, of the message with the buttons
    at: float = 0.0  # seconds since 1970
    unread: str = ""  # the raw event, if it could not be parsed

    @classmethod
    def unreadable(cls, key: str, raw: str) -> "Update":
        """An update for an event that could not be parsed."""
        return cls(key, Chat(""), Person("", ""), unread=raw or "?")


class Button(NamedTuple):
    label: str
    payload: str  # at most MAX_PAYLOAD_BYTES bytes of ASCII


class ChatService(Protocol):
    """A chat service. All methods may be called from several tasks at once, for different chats.

    The caller opens it before it gives it to Gateway, and closes it afterwards. Each call has a
    deadline of its own, and raises one of the errors below when something is wrong.
    """

    @property
    def name(self) -> str:
        """The name of the program, its settings, its log and its journal: `telegram`."""

    @property
    def prefix(self) -> str:
        """The prefix of senders: `tg` gives `tg:<person>` and `tg:group:<chat>`."""

    @property
    def limits(self) -> ServiceLimits: ...

    def updates(self) -> AsyncIterator[Update]:
        """Yield updates, each at least once, until the iterator is closed.

        An async generator. Reconnects by itself, with a growing pause. Raises RejectedError when
        a retry cannot help. Updates that were not acknowledged may come again, and must come
        again after a crash.
        """

    async def acknowledge(self, update: Update) -> None:
        """The update is in the journal: the service may forget it. Called in order of updates."""

    async def send(
        self,
        chat: Chat,
        text: Markdown,
        *,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
        is_literal: bool = False,
    ) -> str:
        """Send one message and return its id.

        Literal text is shown exactly as it is, monospaced if possible: it is a command that a
        person is about to allow, and a rendered mark that vanishes would hide what it does.
        Raises DeliveryUnknownError only if the message may have arrived, RetryLaterError if it
        did not.
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
        """Change a message of ours, buttons included. An edit without a change is no error."""

    async def send_typing(self, chat: Chat) -> None: ...

    async def fetch(self, attachment: Attachment, path: Path) -> None:
        """Write the attachment to `path`, which does not exist yet."""

    async def upload(self, chat: Chat, path: Path, caption: str) -> str:
        """Send a file and return the id of its message. Raises as `send` does."""

    def measure(self, text: Markdown) -> int:
        """The length of a text in the units of `ServiceLimits.text`."""


class ChatServiceError(Exception):
    """An error of the chat service. The text is for people."""


class MessageTooLongError(ChatServiceError):
    """The message is longer than the service takes. Split the text into smaller messages."""


class RetryLaterError(ChatServiceError):
    """Nothing was done; retry after `seconds`: the rate limit is reached, or no server answered."""

    def __init__(self, seconds: float, reason: str = "the service asks to wait") -> None:
        super().__init__(reason)
        self.seconds = seconds


class ChatBlockedError(ChatServiceError):
    """This chat has blocked us, or is gone. Other chats are not affected."""


class DeliveryUnknownError(ChatServiceError):
    """The connection broke during the call: the message may have arrived or not."""


class RejectedError(ChatServiceError):
    """A retry cannot help: a wrong token, a message that is not allowed.

    Raised by `updates`, it ends the gateway; raised by other calls, it ends that message alone.
    """
