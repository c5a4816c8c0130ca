"""ILink: calls of the iLink bot API, one method each. It remembers nothing but its token.

What goes wrong is raised as a gateway knows it; refusals that WeChat has a number for, as
RefusalError, since what they mean depends on the call.
"""

import base64
import json
import secrets
from typing import Any

import aiohttp

from crabtalk.component.gateway import Away, Refused, ServiceError, TooLong, TryLater

from . import __version__

BASE_URL = "https://ilinkai.weixin.qq.com"
# Seconds. WeChat takes up to 35 to say that there is nothing.
ASK, CALL, CONNECT = 45.0, 15.0, 10.0
# Of one answer; a hundred messages are a fraction of that.
MOST_ANSWER = 16 * 1024 * 1024
# Seconds until the next try, where nobody says how many.
SOON = 1.0
# The session is over; and this person gets nothing until they write again.
EXPIRED, SPENT = -14, -2
UNAUTHORISED, FORBIDDEN, TOO_LARGE, TOO_MANY = 401, 403, 413, 429

NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


class RefusalError(Exception):
    """What iLink said no with, in its own number."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words or 'no reason given'} ({code})")
        self.code = code


class ILink:
    """`base_url` and `token` may be changed between calls, when somebody has logged in anew."""

    def __init__(self, http: aiohttp.ClientSession, base_url: str, token: str = "") -> None:
        self._http = http
        self.base_url = base_url
        self.token = token

    def elsewhere(self, base_url: str) -> "ILink":
        """Another one, whose address may change without that of this one."""
        return ILink(self._http, base_url, self.token)

    async def updates(self, cursor: str) -> dict[str, Any]:
        return await self._post("getupdates", {"get_updates_buf": cursor}, ASK)

    async def send(self, message: dict[str, Any]) -> None:
        await self._post("sendmessage", {"msg": message})

    async def config(self, person: str, context: str) -> dict[str, Any]:
        return await self._post("getconfig", {"ilink_user_id": person, "context_token": context})

    async def typing(self, person: str, ticket: str) -> None:
        body = {"ilink_user_id": person, "typing_ticket": ticket, "status": 1}
        await self._post("sendtyping", body)

    async def upload_url(self, file: dict[str, Any]) -> dict[str, Any]:
        return await self._post("getuploadurl", file)

    async def qr_code(self) -> dict[str, Any]:
        return await self._get("get_bot_qrcode", {"bot_type": "3"}, CALL)

    async def qr_status(self, code: str, digits: str = "") -> dict[str, Any]:
        """`digits` are those that the phone shows, where WeChat asks for them."""
        more = {"verify_code": digits} if digits else {}
        return await self._get("get_qrcode_status", {"qrcode": code, **more}, ASK)

    async def _post(
        self, name: str, body: dict[str, Any], patience: float = CALL
    ) -> dict[str, Any]:
        headers = {
            "AuthorizationType": "ilink_bot_token",
            "Authorization": f"Bearer {self.token}",
            "X-WECHAT-UIN": random_uin(),
        }
        body = {**body, "base_info": {"channel_version": __version__}}
        return await self._call("POST", name, patience, headers=headers, json=body)

    async def _get(self, name: str, query: dict[str, str], patience: float) -> dict[str, Any]:
        return await self._call("GET", name, patience, params=query)

    async def _call(self, method: str, name: str, patience: float, **more: Any) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=patience, sock_connect=CONNECT)
        url = f"{self.base_url}/ilink/bot/{name}"
        try:
            async with self._http.request(method, url, timeout=timeout, **more) as reply:
                data = await bounded(reply)
                status, wait = reply.status, reply.headers.get("Retry-After", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise broken(error, name) from None
        return understood(name, status, wait, data)


def random_uin() -> str:
    """A number of no meaning, another one in each request."""
    return base64.b64encode(str(secrets.randbits(32)).encode()).decode()


async def bounded(reply: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for block in reply.content.iter_any():
        data += block
        if len(data) > MOST_ANSWER:
            raise Away("WeChat answers without an end")
    return bytes(data)


def broken(error: Exception, name: str) -> ServiceError:
    """Of a call that was not answered: whether it may have been heard."""
    words = f"{name}: {type(error).__name__}"
    return TryLater(SOON, words) if isinstance(error, NOT_SENT) else Away(words)


def understood(name: str, status: int, wait: str, data: bytes) -> dict[str, Any]:
    """The answer, unless it says no."""
    answer = read(data)
    words = str((answer or {}).get("errmsg") or "")
    code = code_in(answer or {})
    if status in (UNAUTHORISED, FORBIDDEN) and answer is not None:
        raise RefusalError(EXPIRED, words or f"status {status}")
    if status == TOO_MANY:
        raise TryLater(float(wait) if wait.isdecimal() else SOON, f"{name}: too fast")
    if status == TOO_LARGE:
        raise TooLong(f"{name}: too large")
    if status >= 500 or answer is None:  # of a proxy as well, or a page to log in at
        raise Away(f"{name}: status {status}")
    if code:
        raise RefusalError(code, words)
    if status >= 300:
        raise Refused(f"{name}: {words or f'status {status}'}")
    return answer


def read(data: bytes) -> dict[str, Any] | None:
    if not data.strip():
        return {}
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def code_in(answer: dict[str, Any]) -> int:
    """0 is as good as none."""
    codes = (answer.get("errcode"), answer.get("ret"))
    return next((code for code in codes if isinstance(code, int) and code), 0)
