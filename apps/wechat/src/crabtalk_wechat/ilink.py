"""ILink: calls of the iLink bot API, one method each. It remembers nothing but its token.

What goes wrong is raised as a gateway knows it; refusals that WeChat has a number for, as
RefusalError, since what they mean depends on the call.
"""

import base64
import json
import secrets
from typing import Any

import aiohttp

from crabtalk.gateway import (
    ChatServiceError,
    DeliveryUnknownError,
    MessageTooLongError,
    RejectedError,
    RetryLaterError,
)

from . import __version__

BASE_URL = "https://ilinkai.weixin.qq.com"
# Seconds. WeChat takes up to 35 to say that there is nothing.
POLL_TIMEOUT, CALL_TIMEOUT, CONNECT_TIMEOUT = 45.0, 15.0, 10.0
# Of one answer; a hundred messages are a fraction of that.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
# Seconds until the next try, where nobody says how many.
RETRY_SECONDS = 1.0
# The session is over; and this person gets nothing until they write again.
EXPIRED_CODE, SPENT_CODE = -14, -2
UNAUTHORISED, FORBIDDEN, TOO_LARGE, TOO_MANY = 401, 403, 413, 429

NOT_SENT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


class ILinkError(Exception):
    """What iLink said no with, in its own number."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words or 'no reason given'} ({code})")
        self.code = code


class ILinkClient:
    """`base_url` and `token` may be changed between calls, when somebody has logged in anew."""

    def __init__(self, http: aiohttp.ClientSession, base_url: str, token: str = "") -> None:
        self._http = http
        self.base_url = base_url
        self.token = token

    def with_base_url(self, base_url: str) -> "ILinkClient":
        """Another one, whose address may change without that of this one."""
        return ILinkClient(self._http, base_url, self.token)

    async def get_updates(self, cursor: str) -> dict[str, Any]:
        return await self._post("getupdates", {"get_updates_buf": cursor}, POLL_TIMEOUT)

    async def send_message(self, message: dict[str, Any]) -> None:
        await self._post("sendmessage", {"msg": message})

    async def get_config(self, person: str, context: str) -> dict[str, Any]:
        return await self._post("getconfig", {"ilink_user_id": person, "context_token": context})

    async def send_typing(self, person: str, ticket: str) -> None:
        body = {"ilink_user_id": person, "typing_ticket": ticket, "status": 1}
        await self._post("sendtyping", body)

    async def get_upload_url(self, file: dict[str, Any]) -> dict[str, Any]:
        return await self._post("getuploadurl", file)

    async def get_qr_code(self) -> dict[str, Any]:
        return await self._get("get_bot_qrcode", {"bot_type": "3"}, CALL_TIMEOUT)

    async def get_qr_status(self, code: str, digits: str = "") -> dict[str, Any]:
        """`digits` are those that the phone shows, where WeChat asks for them."""
        more = {"verify_code": digits} if digits else {}
        return await self._get("get_qrcode_status", {"qrcode": code, **more}, POLL_TIMEOUT)

    async def _post(
        self, name: str, body: dict[str, Any], patience: float = CALL_TIMEOUT
    ) -> dict[str, Any]:
        headers = {
            "AuthorizationType": "ilink_bot_token",
            "Authorization": f"Bearer {self.token}",
            "X-WECHAT-UIN": make_random_uin(),
        }
        body = {**body, "base_info": {"channel_version": __version__}}
        return await self._call("POST", name, patience, headers=headers, json=body)

    async def _get(self, name: str, query: dict[str, str], patience: float) -> dict[str, Any]:
        return await self._call("GET", name, patience, params=query)

    async def _call(self, method: str, name: str, patience: float, **more: Any) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=patience, sock_connect=CONNECT_TIMEOUT)
        url = f"{self.base_url}/ilink/bot/{name}"
        try:
            async with self._http.request(method, url, timeout=timeout, **more) as reply:
                data = await read_bounded(reply)
                status, wait = reply.status, reply.headers.get("Retry-After", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise to_service_error(error, name) from None
        return parse_response(name, status, wait, data)


def make_random_uin() -> str:
    """A number of no meaning, another one in each request."""
    return base64.b64encode(str(secrets.randbits(32)).encode()).decode()


async def read_bounded(reply: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for block in reply.content.iter_any():
        data += block
        if len(data) > MAX_ANSWER_BYTES:
            raise DeliveryUnknownError("WeChat answers without an end")
    return bytes(data)


def to_service_error(error: Exception, name: str) -> ChatServiceError:
    """Of a call that was not answered: whether it may have been heard."""
    words = f"{name}: {type(error).__name__}"
    return (
        RetryLaterError(RETRY_SECONDS, words)
        if isinstance(error, NOT_SENT_ERRORS)
        else DeliveryUnknownError(words)
    )


def parse_response(name: str, status: int, wait: str, data: bytes) -> dict[str, Any]:
    """The answer, unless it says no."""
    answer = parse_json(data)
    words = str((answer or {}).get("errmsg") or "")
    code = get_error_code(answer or {})
    if status in (UNAUTHORISED, FORBIDDEN) and answer is not None:
        raise ILinkError(EXPIRED_CODE, words or f"status {status}")
    if status == TOO_MANY:
        raise RetryLaterError(
            float(wait) if wait.isdecimal() else RETRY_SECONDS, f"{name}: too fast"
        )
    if status == TOO_LARGE:
        raise MessageTooLongError(f"{name}: too large")
    if status >= 500 or answer is None:  # of a proxy as well, or a page to log in at
        raise DeliveryUnknownError(f"{name}: status {status}")
    if code:
        raise ILinkError(code, words)
    if status >= 300:
        raise RejectedError(f"{name}: {words or f'status {status}'}")
    return answer


def parse_json(data: bytes) -> dict[str, Any] | None:
    if not data.strip():
        return {}
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def get_error_code(answer: dict[str, Any]) -> int:
    """0 is as good as none."""
    codes = (answer.get("errcode"), answer.get("ret"))
    return next((code for code in codes if isinstance(code, int) and code), 0)
