"""Bindings: which agents a chat may talk to, as the owner's settings say. Pure.

agents = ["guarded"]                    # for every chat; absent: `agent` alone
owners = [123]                          # their own chats may talk to every agent

[chats."456"]
agents = ["guarded", "crab"]            # for this chat

This decides what a chat can choose. What a run may do is decided by the daemon alone.
"""

from dataclasses import dataclass

from .senders import GROUP
from .service import Update
from .settings import ChatSettings, Settings

NOT_ALLOWED = "You cannot talk to {name} in this chat; /agents lists who answers here."
WITHDRAWN = "This chat cannot talk to {name} any more. {answering} answers now."


@dataclass(frozen=True, slots=True)
class AgentBindings:
    settings: Settings

    def is_owner(self, update: Update) -> bool:
        """Whether this chat is the owner's own. A group is that only if it is listed itself:
        an owner who writes in a group does not unlock it for everybody else in it."""
        if update.chat.is_group:
            return f"{GROUP}{update.chat.id}" in self.settings.owners
        return update.person.id in self.settings.owners

    def may_approve(self, update: Update) -> bool:
        """Whether this person may answer an approval that the daemon sent to this chat.

        A chat of one person: the daemon asks nobody but owners and senders that an agent's file
        trusts. In a group anybody may press a button, so it takes a person who is an owner.
        """
        if not update.chat.is_group:
            return True
        return self.is_owner(update) or update.person.id in self.settings.owners

    def default_agent(self, update: Update) -> str:
        """Who answers in a chat that has not chosen."""
        names, settings = self._names(update), self.settings
        chosen = self._chat(update).agent or settings.agent
        return chosen if chosen in names else names[0]

    def is_allowed(self, update: Update, agent: str) -> bool:
        return self.is_owner(update) or agent in self._names(update)

    def _names(self, update: Update) -> tuple[str, ...]:
        return self._chat(update).agents or self.settings.agents or (self.settings.agent,)

    def _chat(self, update: Update) -> ChatSettings:
        """The table of a chat; a topic of a group without one has that of its group."""
        chat = update.chat.id
        keys = [chat, update.person.id]
        if update.chat.is_group:
            group = chat.rpartition("/")[0] or chat
            keys = [f"{GROUP}{chat}", chat, f"{GROUP}{group}", group]
        found = (self.settings.chats.get(key) for key in keys)
        return next((one for one in found if one is not None), ChatSettings())
