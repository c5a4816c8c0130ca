"""Requests to the Bot API. Wraps the client library's HTTP class, and keeps error replies whole.

The library sorts errors by their text, which does not say whether a message may have arrived. The
HTTP status and the point where a connection broke do.
"""

import json
from typing import Any

import httpx
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

BAD_GATEWAY = 502
EMPTY_RESULT = b'{"ok": true, "result": []}'
# Errors before the request was sent.
NOT_SENT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class BotApiError(TelegramError):
    """An error reply of the Bot API."""

    def __init__(self, status: int, description: str, retry_after: float, moved_to: str) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.retry_after = retry_after
        self.moved_to = moved_to  # the new id of a group that became a supergroup


class BotApiRequest(HTTPXRequest):
    async def do_request(self, *args: Any, **options: Any) -> tuple[int, bytes]:
        status, payload = await super().do_request(*args, **options)
        answer = parse_answer(payload)
        if answer is None:  # a page of a proxy or a login portal
            raise BotApiError(BAD_GATEWAY, f"{status}, and not from the Bot API", 0.0, "")
        if status >= 300 or answer["ok"] is not True:
            raise parse_error(status, answer)
        return status, payload


class UpdatesRequest(BotApiRequest):
    """For getUpdates alone. The library parses all updates of a reply or none, so one bad update
    would hold up the rest: it is given an empty list, and `updates` has the raw ones."""

    updates: tuple[dict[str, Any], ...] = ()

    async def do_request(self, *args: Any, **options: Any) -> tuple[int, bytes]:
        self.updates = ()
        status, payload = await super().do_request(*args, **options)
        result = json.loads(payload).get("result")
        if isinstance(result, list):
            self.updates = tuple(update for update in result if isinstance(update, dict))
        return status, EMPTY_RESULT


def parse_answer(payload: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(payload)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and "ok" in answer else None


def parse_error(status: int, answer: dict[str, Any]) -> BotApiError:
    raw_parameters = answer.get("parameters")
    parameters = raw_parameters if isinstance(raw_parameters, dict) else {}
    seconds = parameters.get("retry_after", 0)
    return BotApiError(
        status if status >= 300 else int(answer.get("error_code", BAD_GATEWAY)),
        str(answer.get("description", "")) or f"status {status}",
        float(seconds) if isinstance(seconds, int | float) else 0.0,
        str(parameters.get("migrate_to_chat_id", "")),
    )


def may_have_been_sent(error: BaseException) -> bool:
    """Whether a failed request may have reached the server."""
    return not isinstance(error.__cause__, NOT_SENT_ERRORS)
