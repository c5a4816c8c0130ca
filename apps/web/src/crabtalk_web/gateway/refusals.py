"""Refusals: what people are told when a message was not acted on, and how often."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from crabtalk_web.adapter.words import code

from .replay import Mark, Reason

# A relay of ill will could have thousands of messages refused.
NOTICES_AN_HOUR = 20
HOUR = 3600.0
EXCERPT = 80

SENTENCES: dict[Reason, str] = {
    "repeat": (
        "The relay delivered {said} a second time. It was not acted on again. If this happens"
        " more than once, do not trust this relay: `crabtalk-web pair` moves to another one."
    ),
    "old": (
        "The relay delivered {said}, which is older than what came before it. It was not acted"
        " on. If you have just written it, send it again: the browser's data may have been put"
        " back to an earlier state. If not, do not trust this relay."
    ),
    "gap": (
        "The relay delivered {said}, and a message before it is missing. It was not acted on."
        " Look which of your messages have no answer and send them again. If this happens more"
        " than once, do not trust this relay."
    ),
    "fork": (
        "The relay delivered {said}, which does not follow the message before it. It was not"
        " acted on. Send it again if it is yours. If this browser's data was copied to another"
        " one, log out on one of them."
    ),
    "closed": (
        "{said} comes after a message that was refused, and was not acted on either. Send it"
        " again if it is yours."
    ),
    "session": (
        "The relay delivered {said} here, but it was written for another conversation. It was not"
        " acted on. Do not trust this relay: `crabtalk-web pair` moves to another one."
    ),
    "full": (
        "{said} was not acted on: too many devices have written here. Begin a fresh session with"
        " `crabtalk-web renew` and send it again there."
    ),
}
MANY = (
    "**Not delivered:** more messages were refused, and no more is said about it for an hour."
    " `crabtalk-web status` counts them. Do not trust this relay."
)

log = logging.getLogger(__name__)


class Refusals:
    """`say` puts a line of service into the session."""

    def __init__(self, say: Callable[[str, dict[str, Any]], None]) -> None:
        self._say = say
        self._said: deque[float] = deque()

    def tell(self, mark: Mark, reason: Reason, text: str) -> None:
        """Tells people about a message that was refused; `text` is what it says."""
        now = time.monotonic()
        while self._said and self._said[0] < now - HOUR:
            self._said.popleft()
        if len(self._said) > NOTICES_AN_HOUR:
            return
        self._said.append(now)
        log.warning("a message of a device was refused (%s)", reason)
        refused: dict[str, Any] = {"reason": reason, "localId": mark.local}
        if mark.chain is not None:
            refused |= {"chain": mark.chain.chain, "counter": mark.chain.counter}
        if len(self._said) > NOTICES_AN_HOUR:
            self._say(MANY, refused)
        else:
            self._say(f"**Not delivered:** {describe_refusal(reason, text)}", refused)


def describe_refusal(reason: Reason, text: str) -> str:
    said = f"the message {code(text, EXCERPT)}" if text.strip() else "a file"
    told = SENTENCES[reason].format(said=said)
    return told[0].upper() + told[1:]
