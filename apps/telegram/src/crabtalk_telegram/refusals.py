"""Refusals: what the Bot API and the network say no with, as a gateway knows it."""

from collections.abc import Iterator
from contextlib import contextmanager

from telegram.error import TelegramError

from crabtalk.component.gateway import Away, Blocked, Refused, ServiceError, TooLong, TryLater

from .line import RefusalError, has_left

# Seconds until the next try, where nobody says how many.
SOON = 1.0
TOKEN_REFUSED = "Telegram does not know this token; run `crabtalk-telegram setup`"  # noqa: S105
UNAUTHORISED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_LARGE, TOO_MANY = 401, 403, 404, 409, 413, 429

# In the words of the Bot API, which has no numbers for them.
LONG = ("too long", "too_long", "too_big")
GONE = (
    "chat not found",
    "peer_id_invalid",
    "user is deactivated",
    "group chat was deactivated",
    "have no rights to send",
    "not enough rights",
    "chat_write_forbidden",
    "chat_restricted",
    "topic_closed",
    "topic_deleted",
    "message thread not found",
)
# Who may write may still not be allowed to send these.
MEDIA = ("photo", "document", "video", "audio", "media")
UNCHANGED = "message is not modified"
UNPARSED = "can't parse"


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except TelegramError as error:
        raise meaning(error) from None


def meaning(error: TelegramError) -> ServiceError:
    if not isinstance(error, RefusalError):
        return Away(error.message) if has_left(error) else TryLater(SOON, error.message)
    words = error.description.lower()
    if error.status == TOO_MANY or error.retry_after:
        return TryLater(max(error.retry_after, SOON), error.description)
    if error.status in (UNAUTHORISED, NOT_FOUND, CONFLICT):
        # The token's, and nothing was done. Who asks for updates finds out whether it is for good.
        return TryLater(SOON, error.description)
    if error.status == FORBIDDEN or is_gone(words):
        return Blocked(error.description)
    if error.status == TOO_LARGE:
        return Refused(error.description)
    if error.status >= 500:
        return Away(error.description)
    if any(said in words for said in LONG):
        return TooLong(error.description)
    return Refused(error.description)


def is_gone(words: str) -> bool:
    return any(said in words for said in GONE) and not any(said in words for said in MEDIA)


def is_token(error: TelegramError) -> bool:
    """Whether there is no such bot. A path that is not there has the same status."""
    return isinstance(error, RefusalError) and error.status in (UNAUTHORISED, NOT_FOUND)


def says(error: TelegramError, words: str) -> bool:
    return isinstance(error, RefusalError) and words in error.description.lower()
