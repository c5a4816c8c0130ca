"""Senders: the names under which people and groups of a chat service speak to the daemon.

The daemon gives rights by sender, so two people must never get the same one, and nobody the one of
an owner. Ids are therefore taken as the service gives them or not at all: what is not plain ASCII
is refused, never cut or rewritten.
"""

import re

from .errors import GatewayError
from .service import Update

GROUP = "group:"
# Visible ASCII: no space, no control character, no letter that looks like another one.
ID = re.compile(r"[!-~]{1,128}")
PREFIX = re.compile(r"[a-z][a-z0-9]{0,15}")
# What senders of the daemon and of other programs begin with.
RESERVED = frozenset({"agent", "cron", "event", "user"})


def check_prefix(prefix: str) -> None:
    """Raises GatewayError for a prefix that senders of somebody else begin with."""
    if not PREFIX.fullmatch(prefix):
        raise GatewayError(
            f"the prefix {prefix!r} is not made of lower-case letters and digits; choose another"
        )
    if prefix in RESERVED:
        raise GatewayError(f"the prefix {prefix!r} belongs to the daemon; choose another")


def has_valid_ids(update: Update) -> bool:
    """Whether a sender can be built for whoever wrote this, and for the chat it came from."""
    person, chat = update.person.id, update.chat.id
    # `tg:group:5` is the group 5; a person called `group:5` would be taken for it.
    if not ID.fullmatch(person) or person.startswith(GROUP):
        return False
    return ID.fullmatch(chat) is not None


def build_sender(prefix: str, update: Update) -> str:
    """`tg:<person>`, or `tg:group:<chat>`: a group is one sender. Raises GatewayError."""
    if not has_valid_ids(update):
        raise GatewayError(
            f"{update.person.id!r} in the chat {update.chat.id!r} is not an id that can be served"
        )
    if update.chat.is_group:
        return f"{prefix}:{GROUP}{update.chat.id}"
    return f"{prefix}:{update.person.id}"
