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
NOTHING = b'{"ok": true, "result": []}'
# Where a request has not left yet.
NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class RefusalError(TelegramError):
    """What the Bot API said no with."""

    def __init__(self, status: int, description: str, retry_after: float, moved_to: str) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.retry_after = retry_after
        self.moved_to = moved_to  # the id that a group has now


class Line(HTTPXRequest):
    async def do_request(self, *args: Any, **more: Any) -> tuple[int, bytes]:
        status, payload = await super().do_request(*args, **more)
        answer = read(payload)
        if answer is None:  # of a proxy, or a page to log in at
            raise RefusalError(BAD_GATEWAY, f"{status}, and not from the Bot API", 0.0, "")
        if status >= 300 or answer["ok"] is not True:
            raise refusal(status, answer)
        return status, payload


class Asking(Line):
    """For getUpdates alone. The library reads all that came or none of it, so that what it cannot
    read would hold up the rest: it is told that nothing came, and `found` has what did."""

    found: tuple[dict[str, Any], ...] = ()

    async def do_request(self, *args: Any, **more: Any) -> tuple[int, bytes]:
        self.found = ()
        status, payload = await super().do_request(*args, **more)
        result = json.loads(payload).get("result")
        if isinstance(result, list):
            self.found = tuple(one for one in result if isinstance(one, dict))
        return status, NOTHING


def read(payload: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(payload)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and "ok" in answer else None


def refusal(status: int, answer: dict[str, Any]) -> RefusalError:
    found = answer.get("parameters")
    parameters = found if isinstance(found, dict) else {}
    seconds = parameters.get("retry_after", 0)
    return RefusalError(
        status if status >= 300 else int(answer.get("error_code", BAD_GATEWAY)),
        str(answer.get("description", "")) or f"status {status}",
        float(seconds) if isinstance(seconds, int | float) else 0.0,
        str(parameters.get("migrate_to_chat_id", "")),
    )


def has_left(error: BaseException) -> bool:
    """Whether the request of a failure may have reached anybody."""
    return not isinstance(error.__cause__, NOT_SENT)
