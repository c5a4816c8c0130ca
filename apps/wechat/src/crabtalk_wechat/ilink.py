"""ILinkClient: the calls of the iLink bot API, one method each. Its only state is URL and token.

Network errors are raised as the gateway's errors. Errors with a code of WeChat's are raised as
ILinkError, because their meaning depends on the call.
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
# Seconds. WeChat takes up to 35 for an empty answer.
POLL_TIMEOUT, CALL_TIMEOUT, CONNECT_TIMEOUT = 45.0, 15.0, 10.0
# Bytes of one answer; a hundred messages are a fraction of that.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
# Seconds until the next try, if the server does not say how many.
RETRY_SECONDS = 1.0
# The session has expired; the person's context is used up until they write again.
EXPIRED_CODE, SPENT_CODE = -14, -2
UNAUTHORISED, FORBIDDEN, TOO_LARGE, TOO_MANY = 401, 403, 413, 429

NOT_SENT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


class ILinkError(Exception):
    """An error of iLink with its code."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words or 'no reason given'} ({code})")
        self.code = code


class ILinkClient:
    """`base_url` and `token` may change between calls, after a new login."""

    def __init__(self, http: aiohttp.ClientSession, base_url: str, token: str = "") -> None:
        self._http = http
        self.base_url = base_url
        self.token = token

    def with_base_url(self, base_url: str) -> "ILinkClient":
        """A copy with another address."""
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
        """The status of a login. `digits` are shown on the phone, if WeChat asks for them."""
        extra_query = {"verify_code": digits} if digits else {}
        return await self._get("get_qrcode_status", {"qrcode": code, **extra_query}, POLL_TIMEOUT)

    async def _post(
        self, name: str, body: dict[str, Any], seconds: float = CALL_TIMEOUT
    ) -> dict[str, Any]:
        headers = {
            "AuthorizationType": "ilink_bot_token",
            "Authorization": f"Bearer {self.token}",
            "X-WECHAT-UIN": make_random_uin(),
        }
        body = {**body, "base_info": {"channel_version": __version__}}
        return await self._call("POST", name, seconds, headers=headers, json=body)

    async def _get(self, name: str, query: dict[str, str], seconds: float) -> dict[str, Any]:
        return await self._call("GET", name, seconds, params=query)

    async def _call(self, method: str, name: str, seconds: float, **options: Any) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_TIMEOUT)
        url = f"{self.base_url}/ilink/bot/{name}"
        try:
            async with self._http.request(method, url, timeout=timeout, **options) as reply:
                data = await read_bounded(reply)
                status, wait = reply.status, reply.headers.get("Retry-After", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise to_service_error(error, name) from None
        return parse_response(name, status, wait, data)


def make_random_uin() -> str:
    """A random number, another one in each request. It has no meaning."""
    return base64.b64encode(str(secrets.randbits(32)).encode()).decode()


async def read_bounded(reply: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for block in reply.content.iter_any():
        data += block
        if len(data) > MAX_ANSWER_BYTES:
            raise DeliveryUnknownError("WeChat answers without an end")
    return bytes(data)


def to_service_error(error: Exception, name: str) -> ChatServiceError:
    """The error for a call without an answer: it may have arrived, unless it was not sent."""
    message = f"{name}: {type(error).__name__}"
    return (
        RetryLaterError(RETRY_SECONDS, message)
        if isinstance(error, NOT_SENT_ERRORS)
        else DeliveryUnknownError(message)
    )


def parse_response(name: str, status: int, wait: str, data: bytes) -> dict[str, Any]:
    """The answer. Raises an error for any other response."""
    answer = parse_json(data)
    message = str((answer or {}).get("errmsg") or "")
    code = get_error_code(answer or {})
    if status in (UNAUTHORISED, FORBIDDEN) and answer is not None:
        raise ILinkError(EXPIRED_CODE, message or f"status {status}")
    if status == TOO_MANY:
        raise RetryLaterError(
            float(wait) if wait.isdecimal() else RETRY_SECONDS, f"{name}: too fast"
        )
    if status == TOO_LARGE:
        raise MessageTooLongError(f"{name}: too large")
    if status >= 500 or answer is None:  # also a page of a proxy or a login portal
        raise DeliveryUnknownError(f"{name}: status {status}")
    if code:
        raise ILinkError(code, message)
    if status >= 300:
        raise RejectedError(f"{name}: {message or f'status {status}'}")
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
    """The error code; 0 for none."""
    codes = (answer.get("errcode"), answer.get("ret"))
    return next((code for code in codes if isinstance(code, int) and code), 0)
