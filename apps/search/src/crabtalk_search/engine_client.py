"""The HTTP client for search engines: one session, a browser's headers, bounded answers.

It only gets URLs that we or the configuration chose; URLs from a model go through `fetcher`.
"""

import json
import random
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import aiohttp

from .errors import EngineError

# A page of results has a few hundred kilobytes.
MAX_ANSWER_BYTES = 2 * 1024 * 1024
WINDOWS = "Windows NT 10.0; Win64; x64"
MAC = "Macintosh; Intel Mac OS X 10_15_7"
LINUX = "X11; Linux x86_64"
WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko)"
SAFARI = "AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.1 Safari/605.1.15"
CHROME = f"{WEBKIT} Chrome/142.0.0.0 Safari/537.36"
DESKTOP_USER_AGENTS = (
    f"Mozilla/5.0 ({WINDOWS}) {CHROME}",
    f"Mozilla/5.0 ({WINDOWS}) {CHROME} Edg/142.0.0.0",
    f"Mozilla/5.0 ({WINDOWS}; rv:145.0) Gecko/20100101 Firefox/145.0",
    f"Mozilla/5.0 ({MAC}) {CHROME}",
    f"Mozilla/5.0 ({MAC}) {SAFARI}",
    f"Mozilla/5.0 ({MAC.replace('_', '.')}; rv:145.0) Gecko/20100101 Firefox/145.0",
    f"Mozilla/5.0 ({LINUX}) {CHROME}",
    f"Mozilla/5.0 ({LINUX}; rv:145.0) Gecko/20100101 Firefox/145.0",
)


class EngineClient:
    """A context manager with one HTTP session. Honours HTTPS_PROXY and similar variables."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    async def __aenter__(self) -> "EngineClient":
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            cookie_jar=aiohttp.DummyCookieJar(),  # one query must not influence the next
            trust_env=True,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def get_page(self, url: str, **query: str | int) -> str:
        """An HTML page, requested like a browser does."""
        headers = {
            "User-Agent": random.choice(DESKTOP_USER_AGENTS),  # noqa: S311
            "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8",
            "Accept-Language": "en-US,en;q=0.9",
        }
        data, charset = await self._request_data("GET", url, params=query, headers=headers)
        return data.decode(charset, "replace")

    async def get_json(
        self, url: str, *, headers: Mapping[str, str] | None = None, **query: str | int
    ) -> Any:
        return await self._request_json("GET", url, params=query, headers=headers)

    async def post_json(self, url: str, body: object, *, headers: Mapping[str, str]) -> Any:
        return await self._request_json("POST", url, json=body, headers=headers)

    async def _request_json(self, method: str, url: str, **options: Any) -> Any:
        data, _ = await self._request_data(method, url, **options)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise EngineError("it did not answer in JSON; is the address right?") from None

    async def _request_data(self, method: str, url: str, **options: Any) -> tuple[bytes, str]:
        try:
            async with self._session.request(method, url, **options) as response:
                if response.status != 200:
                    raise EngineError(describe_refusal(response.status, response.reason or ""))
                data = await read_at_most(response, MAX_ANSWER_BYTES)
                return bytes(data[:MAX_ANSWER_BYTES]), check_charset(response.charset)
        except TimeoutError:
            raise EngineError(f"no answer in {self._timeout:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise EngineError(f"cannot connect: {error.strerror or error}") from None
        except aiohttp.ClientError as error:
            raise EngineError(str(error) or type(error).__name__) from None


async def read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytearray:
    """Read the body, but at most one chunk more than `limit` bytes of it."""
    data = bytearray()
    async for piece in response.content.iter_chunked(64 * 1024):
        data += piece
        if len(data) > limit:
            break
    return data


def describe_refusal(status: int, reason: str) -> str:
    match status:
        case 401 | 403:
            return f"it refuses us ({status}); check its key, or leave it out of `engines`"
        case 202 | 429:
            return f"it wants us to slow down ({status}); try again in a while"
    return f"it answered {status} {reason}".rstrip()


def check_charset(name: str | None) -> str:
    try:
        "".encode(name or "utf-8")
    except (LookupError, ValueError):
        return "utf-8"
    return name or "utf-8"
