"""Line: requests to the Bot API, by the client library's own, with what was answered kept whole.

The library sorts refusals by their words; whether a message may have arrived cannot be told from
that. It can from the status, and from where a connection broke.
"""

import json
from typing import Any

import httpx
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

BAD_GATEWAY = 502
EMPTY_RESULT = b'{"ok": true, "result": []}'
# Where a request has not left yet.
NOT_SENT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class BotApiError(TelegramError):
    """What the Bot API said no with."""

    def __init__(self, status: int, description: str, retry_after: float, moved_to: str) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.retry_after = retry_after
        self.moved_to = moved_to  # the id that a group has now


class BotApiRequest(HTTPXRequest):
    async def do_request(self, *args: Any, **more: Any) -> tuple[int, bytes]:
        status, payload = await super().do_request(*args, **more)
        answer = parse_answer(payload)
        if answer is None:  # of a proxy, or a page to log in at
            raise BotApiError(BAD_GATEWAY, f"{status}, and not from the Bot API", 0.0, "")
        if status >= 300 or answer["ok"] is not True:
            raise parse_error(status, answer)
        return status, payload


class UpdatesRequest(BotApiRequest):
    """For getUpdates alone. The library reads all that came or none of it, so that what it cannot
    read would hold up the rest: it is told that nothing came, and `found` has what did."""

    updates: tuple[dict[str, Any], ...] = ()

    async def do_request(self, *args: Any, **more: Any) -> tuple[int, bytes]:
        self.updates = ()
        status, payload = await super().do_request(*args, **more)
        result = json.loads(payload).get("result")
        if isinstance(result, list):
            self.updates = tuple(one for one in result if isinstance(one, dict))
        return status, EMPTY_RESULT


def parse_answer(payload: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(payload)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and "ok" in answer else None


def parse_error(status: int, answer: dict[str, Any]) -> BotApiError:
    found = answer.get("parameters")
    parameters = found if isinstance(found, dict) else {}
    seconds = parameters.get("retry_after", 0)
    return BotApiError(
        status if status >= 300 else int(answer.get("error_code", BAD_GATEWAY)),
        str(answer.get("description", "")) or f"status {status}",
        float(seconds) if isinstance(seconds, int | float) else 0.0,
        str(parameters.get("migrate_to_chat_id", "")),
    )


def may_have_been_sent(error: BaseException) -> bool:
    """Whether the request of a failure may have reached anybody."""
    return not isinstance(error.__cause__, NOT_SENT_ERRORS)
