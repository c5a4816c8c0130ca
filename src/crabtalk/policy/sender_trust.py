"""Sender trust: how far the origin of a run, the sender in whose name it acts, is trusted.

The origin is set when a run starts, and delegated runs inherit it. Owners are known by their exact
sender names. A sender that is not known is a stranger.
"""

import os
from collections.abc import Iterable, Sequence
from enum import IntEnum

from crabtalk.runtime import DEFAULT_SENDER
from crabtalk.storage import Agent

# One person can have several conversations with one agent: `user~work`, `user~home`.
BRANCH_SEPARATOR = "~"


class TrustLevel(IntEnum):
    """How far a sender is trusted, lowest first."""

    STRANGER = 0
    TRUSTED = 1  # named in the agent's file
    OWNER = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class Owners:
    """The senders that are the owner of this daemon."""

    def __init__(self, named: Iterable[str] = (), account: str | None = None) -> None:
        """`named` are [daemon] owners. `account` is the user that runs the daemon; terminals of
        earlier versions send its name."""
        self.account = read_account_name() if account is None else account
        self.named = frozenset(named)
        self._known = self.named | {DEFAULT_SENDER} | ({self.account} if self.account else set())

    def is_owner(self, sender: str) -> bool:
        return sender in self._known or sender.partition(BRANCH_SEPARATOR)[0] == DEFAULT_SENDER

    def find_trust_level(self, sender: str, agents: Sequence[Agent]) -> TrustLevel:
        """Return the lowest trust level that a sender has with any of these agents."""
        if self.is_owner(sender):
            return TrustLevel.OWNER
        if agents and all(is_trusted(sender, agent) for agent in agents):
            return TrustLevel.TRUSTED
        return TrustLevel.STRANGER

    def explain_trust_level(self, sender: str, agent: Agent) -> str:
        """Return why a sender has its trust level."""
        if sender in self.named:
            return "listed in [daemon] owners of config.toml"
        if self.account and sender == self.account:
            return "the account that runs the daemon"
        if self.is_owner(sender):
            return "the owner's own sender"
        if is_trusted(sender, agent):
            return "listed in allow_senders of [hooks.bash] in the agent's file"
        return "neither in [daemon] owners nor in the agent's file"


def is_trusted(sender: str, agent: Agent) -> bool:
    """Whether the agent's file names the sender, exactly or by a prefix such as `tg:*`."""
    listed = agent.hooks.get("bash", {}).get("allow_senders", ())
    return any(
        sender.startswith(entry[:-1]) if entry.endswith("*") else sender == entry
        for entry in listed
        if isinstance(entry, str)
    )


def read_account_name() -> str:
    """Return the user that runs this process, from the user database: environment variables are
    not trustworthy."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError, AttributeError):  # no user database, or no entry in it
        return ""
