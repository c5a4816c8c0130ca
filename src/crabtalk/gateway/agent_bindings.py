"""Agent bindings: the sender a chat speaks as, and the agents it may talk to. Pure.

The daemon gives rights by sender, so two people must never get the same sender, and no other person
the sender of an owner. Ids are therefore taken as the service gives them or not at all: an id that
is not plain ASCII is refused, never cut or rewritten. The owner's settings say which agents a chat
can choose:

agents = ["guarded"]                    # for every chat; absent: `agent` alone
owners = [123]                          # their own chats may talk to every agent

[chats."456"]
agents = ["guarded", "crab"]            # for this chat

The daemon alone decides what a run may do.
"""

import re
from dataclasses import dataclass

from .chat_service import Update
from .errors import GatewayError
from .settings import ChatSettings, GatewaySettings

AGENT_NOT_ALLOWED = "You cannot talk to {name} in this chat; /agents lists who answers here."
AGENT_WITHDRAWN = "This chat cannot talk to {name} any more. {answering} answers now."
GROUP_PREFIX = "group:"
# Visible ASCII: no space, no control character, no letter that looks like another one.
ID_PATTERN = re.compile(r"[!-~]{1,128}")
PREFIX_PATTERN = re.compile(r"[a-z][a-z0-9]{0,15}")
# Prefixes of senders that the daemon and other programs use.
RESERVED_PREFIXES = frozenset({"agent", "cron", "event", "user"})


@dataclass(frozen=True, slots=True)
class AgentBindings:
    settings: GatewaySettings

    def is_owner(self, update: Update) -> bool:
        """Whether this chat is the owner's own. A group counts only if it is listed itself: an
        owner who writes in a group does not unlock it for its other members."""
        if update.chat.is_group:
            return f"{GROUP_PREFIX}{update.chat.id}" in self.settings.owners
        return update.person.id in self.settings.owners

    def may_approve(self, update: Update) -> bool:
        """Whether this person may answer an approval that the daemon sent to this chat.

        In a chat of one person, yes: the daemon sends approvals only to owners and to senders that
        an agent's file trusts. In a group, everyone can press a button, so the person must be an
        owner. Listing the group as an owner is not enough: that only unlocks agents for it.
        """
        return not update.chat.is_group or update.person.id in self.settings.owners

    def may_set_mode(self, update: Update) -> bool:
        """Mode auto allows everything that approvals ask about, so it needs the same person."""
        return self.is_owner(update) and self.may_approve(update)

    def choose_default_agent(self, update: Update) -> str:
        """The agent of a chat that has not chosen one."""
        names, settings = self._list_allowed_agents(update), self.settings
        chosen = self._find_chat_settings(update).agent or settings.agent
        return chosen if chosen in names else names[0]

    def is_allowed(self, update: Update, agent: str) -> bool:
        return self.is_owner(update) or agent in self._list_allowed_agents(update)

    def _list_allowed_agents(self, update: Update) -> tuple[str, ...]:
        return (
            self._find_chat_settings(update).agents
            or self.settings.agents
            or (self.settings.agent,)
        )

    def _find_chat_settings(self, update: Update) -> ChatSettings:
        """The table of a chat. A group's topic without a table uses the table of its group."""
        chat = update.chat.id
        keys = [chat, update.person.id]
        if update.chat.is_group:
            group = chat.rpartition("/")[0] or chat
            keys = [f"{GROUP_PREFIX}{chat}", chat, f"{GROUP_PREFIX}{group}", group]
        tables = (self.settings.chats.get(key) for key in keys)
        return next((table for table in tables if table is not None), ChatSettings())


def check_prefix(prefix: str) -> None:
    """Raises GatewayError for a prefix that is malformed or that the daemon uses."""
    if not PREFIX_PATTERN.fullmatch(prefix):
        raise GatewayError(
            f"the prefix {prefix!r} is not made of lower-case letters and digits; choose another"
        )
    if prefix in RESERVED_PREFIXES:
        raise GatewayError(f"the prefix {prefix!r} belongs to the daemon; choose another")


def has_valid_ids(update: Update) -> bool:
    """Whether a sender can be built from the ids of this person and chat."""
    person, chat = update.person.id, update.chat.id
    # `tg:group:5` is the group 5; a person called `group:5` would be taken for it.
    if not ID_PATTERN.fullmatch(person) or person.startswith(GROUP_PREFIX):
        return False
    return ID_PATTERN.fullmatch(chat) is not None


def build_sender(prefix: str, update: Update) -> str:
    """`tg:<person>`, or `tg:group:<chat>`: a group is one sender. Raises GatewayError."""
    if not has_valid_ids(update):
        raise GatewayError(
            f"{update.person.id!r} in the chat {update.chat.id!r} is not an id that can be served"
        )
    if update.chat.is_group:
        return f"{prefix}:{GROUP_PREFIX}{update.chat.id}"
    return f"{prefix}:{update.person.id}"
