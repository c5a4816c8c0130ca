"""Desk: what every chat works with, and the bounds that hold for all of them."""

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

# Bytes of a key, as the protocol has it.
MAX_KEY_BYTES = 128


@dataclass(frozen=True, slots=True)
class GatewayBounds:
    turns: int = 256  # at once; others wait for one to end
    waiting_in_chat: int = 64  # messages; the next one is refused, and its sender told
    waiting: int = 4096  # of all chats; then the service is not asked for more
    waiting_characters: int = 16 * 1024 * 1024
    text: int = 64 * 1024  # characters of one message
    notices: int = 256  # to strangers and the like, under way at once; others are not sent
    notice_after: float = 3.0  # seconds without the daemon before anybody is told
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
        """A person, or a group as one. Raises GatewayError."""
        return build_sender(self.service.prefix, update)

    def message_key(self, update: Update) -> str:
        """What the daemon knows this message by, in whatever process it is sent: it is made of the
        service's own ids."""
        key = f"{self.service.prefix}:{update.chat.id}:{update.id}"
        if len(key.encode()) <= MAX_KEY_BYTES:
            return key
        return f"{self.service.prefix}:{hashlib.sha256(key.encode()).hexdigest()}"

    def agent_for(self, update: Update) -> str:
        """Who answers: the agent the chat has chosen, as long as the settings allow it there."""
        chosen = self.journal.state.get_chat(update.chat.id).agent
        if chosen and self.bindings.is_allowed(update, chosen):
            return chosen
        return self.bindings.choose_default_agent(update)

    def withdrawn_agent(self, update: Update) -> str:
        """The agent that the chat has chosen and may not talk to any more; else empty."""
        chosen = self.journal.state.get_chat(update.chat.id).agent
        return "" if not chosen or self.bindings.is_allowed(update, chosen) else chosen


def format_for_agent(update: Update, text: str) -> str:
    """As the agent reads it: in a group, with who said it."""
    if not update.chat.is_group:
        return text
    name = " ".join(update.person.name.split()) or update.person.id
    return f"{name}: {text}"
