"""Desk: what every chat works with, and the bounds that hold for all of them."""

import asyncio
from dataclasses import dataclass, field

from .files import Files
from .journal import Journal
from .link import Link
from .reply import LATE_AFTER
from .service import Chat, Service, Update
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Bounds:
    turns: int = 256  # at once; others wait for one to end
    waiting_in_chat: int = 64  # messages; the next one is refused, and its sender told
    waiting: int = 4096  # of all chats; then the service is not asked for more
    waiting_characters: int = 16 * 1024 * 1024
    text: int = 64 * 1024  # characters of one message
    notices: int = 256  # to strangers and the like, under way at once; others are not sent
    notice_after: float = 3.0  # seconds without the daemon before anybody is told
    late_after: float = LATE_AFTER


@dataclass(frozen=True, slots=True)
class Desk:
    journal: Journal
    service: Service
    link: Link
    files: Files
    settings: Settings
    turns: asyncio.Semaphore  # one for each turn that may be at the daemon at once
    bounds: Bounds = field(default_factory=Bounds)

    def sender(self, update: Update) -> str:
        """A person, or a group as one."""
        if update.chat.is_group:
            return f"{self.service.prefix}:group:{update.chat.id}"
        return f"{self.service.prefix}:{update.person.id}"

    def agent(self, chat: Chat) -> str:
        return self.journal.book.chat(chat.id).agent or self.settings.agent


def spoken(update: Update, text: str) -> str:
    """As the agent reads it: in a group, with who said it."""
    if not update.chat.is_group:
        return text
    name = " ".join(update.person.name.split()) or update.person.id
    return f"{name}: {text}"
