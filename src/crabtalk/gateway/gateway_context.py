"""The objects that all chats of a gateway share, and the bounds that hold for all of them."""

import asyncio
import hashlib
from dataclasses import dataclass, field

from .agent_bindings import AgentBindings, build_sender
from .chat_service import ChatService, Update
from .daemon_monitor import DaemonMonitor
from .journal import GatewayJournal
from .sender_files import SenderFiles
from .settings import GatewaySettings
from .streamed_reply import LATE_AFTER_SECONDS

# Bytes of a key that the protocol allows.
MAX_KEY_BYTES = 128


@dataclass(frozen=True, slots=True)
class GatewayBounds:
    turns: int = 256  # at once; others wait for one to end
    waiting_in_chat: int = 64  # messages; the next one is refused, and its sender is told
    waiting: int = 4096  # messages of all chats; at the limit we stop asking for updates
    waiting_characters: int = 16 * 1024 * 1024
    text: int = 64 * 1024  # characters of one message
    notices: int = 256  # to strangers and the like, under way at once; others are not sent
    notice_after: float = 3.0  # seconds without the daemon before the person is told
    late_after: float = LATE_AFTER_SECONDS


@dataclass(frozen=True, slots=True)
class GatewayContext:
    journal: GatewayJournal
    service: ChatService
    daemon: DaemonMonitor
    files: SenderFiles
    settings: GatewaySettings
    turn_slots: asyncio.Semaphore  # one for each turn that may be at the daemon at once
    bounds: GatewayBounds = field(default_factory=GatewayBounds)

    @property
    def bindings(self) -> AgentBindings:
        return AgentBindings(self.settings)

    def sender_for(self, update: Update) -> str:
        """The sender is a person, or a whole group. Raises GatewayError."""
        return build_sender(self.service.prefix, update)

    def message_key(self, update: Update) -> str:
        """The daemon recognises a repeated message by this key. It is made of the service's own
        ids, so that every process computes the same one."""
        key = f"{self.service.prefix}:{update.chat.id}:{update.id}"
        if len(key.encode()) <= MAX_KEY_BYTES:
            return key
        return f"{self.service.prefix}:{hashlib.sha256(key.encode()).hexdigest()}"

    def agent_for(self, update: Update) -> str:
        """The agent that the chat has chosen, if the settings allow it there; else the default."""
        chosen = self.journal.state.get_chat(update.chat.id).agent
        if chosen and self.bindings.is_allowed(update, chosen):
            return chosen
        return self.bindings.choose_default_agent(update)

    def withdrawn_agent(self, update: Update) -> str:
        """The chosen agent, if this chat may not talk to it any more; else empty."""
        chosen = self.journal.state.get_chat(update.chat.id).agent
        return "" if not chosen or self.bindings.is_allowed(update, chosen) else chosen


def format_for_agent(update: Update, text: str) -> str:
    """The text as the agent reads it. In a group it begins with the author's name."""
    if not update.chat.is_group:
        return text
    name = " ".join(update.person.name.split()) or update.person.id
    return f"{name}: {text}"
