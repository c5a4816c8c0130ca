"""Service lines about refused messages, and their rate limit."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from crabtalk_web.adapter.tool_text import format_inline_code

from .replay_guard import MessageMark, RefusalReason

# A malicious relay could cause thousands of refusals.
NOTICES_AN_HOUR = 20
HOUR = 3600.0
EXCERPT = 80

REASON_TEXTS: dict[RefusalReason, str] = {
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
TOO_MANY_TEXT = (
    "**Not delivered:** more messages were refused, and no more is said about it for an hour."
    " `crabtalk-web status` counts them. Do not trust this relay."
)

log = logging.getLogger(__name__)


class RefusalNotices:
    """`write_notice` writes a service line into the session."""

    def __init__(self, write_notice: Callable[[str, dict[str, Any]], None]) -> None:
        self._write_notice = write_notice
        self._times: deque[float] = deque()

    def report_refusal(self, mark: MessageMark, reason: RefusalReason, text: str) -> None:
        """Write a line about a refused message; `text` is the text of that message."""
        now = time.monotonic()
        while self._times and self._times[0] < now - HOUR:
            self._times.popleft()
        if len(self._times) > NOTICES_AN_HOUR:
            return
        self._times.append(now)
        log.warning("a message of a device was refused (%s)", reason)
        refused: dict[str, Any] = {"reason": reason, "localId": mark.local}
        if mark.chain is not None:
            refused |= {"chain": mark.chain.chain, "counter": mark.chain.counter}
        if len(self._times) > NOTICES_AN_HOUR:
            self._write_notice(TOO_MANY_TEXT, refused)
        else:
            self._write_notice(f"**Not delivered:** {describe_refusal(reason, text)}", refused)


def describe_refusal(reason: RefusalReason, text: str) -> str:
    subject = f"the message {format_inline_code(text, EXCERPT)}" if text.strip() else "a file"
    sentence = REASON_TEXTS[reason].format(said=subject)
    return sentence[0].upper() + sentence[1:]
