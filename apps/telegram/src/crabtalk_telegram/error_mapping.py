"""Maps errors of the Bot API and the network to those of the gateway."""

from collections.abc import Iterator
from contextlib import contextmanager

from telegram.error import TelegramError

from crabtalk.gateway import (
    ChatBlockedError,
    ChatServiceError,
    DeliveryUnknownError,
    MessageTooLongError,
    RejectedError,
    RetryLaterError,
)

from .bot_requests import BotApiError, may_have_been_sent

# Seconds until the next try, if the server does not say how many.
RETRY_SECONDS = 1.0
TOKEN_REFUSED = "Telegram does not know this token; run `crabtalk-telegram setup`"  # noqa: S105
UNAUTHORISED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_LARGE, TOO_MANY = 401, 403, 404, 409, 413, 429

# Phrases in the Bot API's error texts, which have no codes.
TOO_LONG_PHRASES = ("too long", "too_long", "too_big")
CHAT_GONE_PHRASES = (
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
# A bot that may write to a chat may still not be allowed to send these.
MEDIA_PHRASES = ("photo", "document", "video", "audio", "media")
UNCHANGED_PHRASE = "message is not modified"
UNPARSED_PHRASE = "can't parse"


@contextmanager
def translate_errors() -> Iterator[None]:
    try:
        yield
    except TelegramError as error:
        raise to_service_error(error) from None


def to_service_error(error: TelegramError) -> ChatServiceError:
    if not isinstance(error, BotApiError):
        return (
            DeliveryUnknownError(error.message)
            if may_have_been_sent(error)
            else RetryLaterError(RETRY_SECONDS, error.message)
        )
    words = error.description.lower()
    if error.status == TOO_MANY or error.retry_after:
        return RetryLaterError(max(error.retry_after, RETRY_SECONDS), error.description)
    if error.status in (UNAUTHORISED, NOT_FOUND, CONFLICT):
        # A wrong token; nothing was done. Polling finds out whether that is permanent.
        return RetryLaterError(RETRY_SECONDS, error.description)
    if error.status == FORBIDDEN or is_chat_gone(words):
        return ChatBlockedError(error.description)
    if error.status == TOO_LARGE:
        return RejectedError(error.description)
    if error.status >= 500:
        return DeliveryUnknownError(error.description)
    if any(phrase in words for phrase in TOO_LONG_PHRASES):
        return MessageTooLongError(error.description)
    return RejectedError(error.description)


def is_chat_gone(words: str) -> bool:
    return any(phrase in words for phrase in CHAT_GONE_PHRASES) and not any(
        phrase in words for phrase in MEDIA_PHRASES
    )


def is_token_error(error: TelegramError) -> bool:
    """Whether the token is unknown. A URL path that does not exist has the same status."""
    return isinstance(error, BotApiError) and error.status in (UNAUTHORISED, NOT_FOUND)


def has_phrase(error: TelegramError, phrase: str) -> bool:
    return isinstance(error, BotApiError) and phrase in error.description.lower()
