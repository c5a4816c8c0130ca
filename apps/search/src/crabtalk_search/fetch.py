"""Fetch: one page of the web as text. The address may come from anybody, and is not trusted.

Only http and https, only machines the guard lets through, each redirect judged like the first
address, and bounds on time, size and detours.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType

import aiohttp
from yarl import URL

from . import __version__
from .config import FetchConfig
from .content import Kind, decoded, kind_of
from .errors import FetchError
from .guard import Guard, RefusedError
from .reader import Reader, ReadError
from .web import read_up_to

REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = {
    "User-Agent": f"Mozilla/5.0 (compatible; crabtalk-search/{__version__})",
    "Accept": "text/html,application/xhtml+xml,text/*;q=0.9,*/*;q=0.5",
    "Accept-Language": "en-US,en;q=0.9,*;q=0.5",
}
# Of addresses, in characters. Few servers take more.
LONGEST = 8000
SHOWN = 200
# How much of a body is looked at to learn what it is.
START = 1024


@dataclass(frozen=True, slots=True)
class Page:
    """What an address leads to. `url` is where it was found in the end."""

    url: str
    title: str
    content: str
    content_length: int


@dataclass(frozen=True, slots=True)
class Body:
    url: URL
    kind: Kind
    data: bytes
    charset: str | None
    is_cut: bool


class Fetcher:
    """As a context: fetches until it is left. No proxy: it would resolve names by itself."""

    def __init__(self, config: FetchConfig, guard: Guard | None = None) -> None:
        self._config = config
        self._guard = guard or Guard(config.allow)
        self._reader = Reader()

    async def __aenter__(self) -> "Fetcher":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=self._guard, use_dns_cache=False, socket_factory=self._guard.socket
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def fetch(self, address: str) -> Page:
        """Raises FetchError. Cancelled, nothing stays open and no process stays behind."""
        try:
            async with asyncio.timeout(self._config.timeout):
                body = await self._follow(parsed(address))
                title, content = await self._read(body)
        except TimeoutError:
            raise FetchError(
                f"{short(address)} took longer than {self._config.timeout:g} s; try another page"
            ) from None
        return Page(str(body.url), title, content, len(content))

    async def _follow(self, url: URL) -> Body:
        for _ in range(self._config.max_redirects + 1):
            found = await self._ask(url)
            if isinstance(found, Body):
                return found
            url = found
        most = self._config.max_redirects
        raise FetchError(f"more than {most} redirects, the last to {short(url)}; fetch that")

    async def _ask(self, url: URL) -> Body | URL:
        """What is there, or where to look instead."""
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in REDIRECTS and "Location" in response.headers:
                    return parsed(response.headers["Location"], url)
                if response.status >= 400:
                    raise FetchError(
                        f"{short(url)} answered {response.status} {response.reason}".rstrip()
                    )
                return await self._body(response)
        except aiohttp.ClientConnectorCertificateError as error:
            why = error.certificate_error
            raise FetchError(f"the certificate of {url.host} is not valid: {why}") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, RefusedError):
                raise FetchError(str(error.os_error)) from None
            raise FetchError(f"cannot connect to {url.host}: {error.os_error}") from None
        except aiohttp.InvalidURL as error:
            raise FetchError(f"{short(url)} is no address that can be fetched: {error}") from None
        except aiohttp.ClientError as error:
            raise FetchError(
                f"{short(url)} broke off: {str(error) or type(error).__name__}"
            ) from None

    async def _body(self, response: aiohttp.ClientResponse) -> Body:
        stated = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind_of(stated, b"") is None:
            raise FetchError(
                f"{short(response.url)} is {stated}, not text; look for a page about it"
            )
        most = self._config.max_bytes
        data = await read_up_to(response, most)
        kind = kind_of(stated, bytes(data[:START]))
        if kind is None:
            raise FetchError(f"{short(response.url)} is no text; look for a page about it")
        return Body(response.url, kind, bytes(data[:most]), response.charset, len(data) > most)

    async def _read(self, body: Body) -> tuple[str, str]:
        most = self._config.max_chars
        if body.kind == "html":
            try:
                title, content, length = await self._reader.read(
                    body.data, str(body.url), body.charset, most
                )
            except ReadError:
                raise FetchError(
                    f"{short(body.url)} is too deep or too large to read; try another page"
                ) from None
        else:
            title, content = "", decoded(body.data, body.charset)
            length = len(content)
        if length > most:
            content = f"{content[:most]}\n\n[cut: the first {most} characters of {length}]"
        elif body.is_cut:
            content += f"\n\n[cut: only the first {self._config.max_bytes} bytes were read]"
        return title, content


def parsed(text: str, base: URL | None = None) -> URL:
    """Raises FetchError for what is no address of the web."""
    if len(text) > LONGEST:
        raise FetchError(f"the address is longer than {LONGEST} characters: shorten it")
    try:
        url = URL(text.strip())
        if base is not None:
            url = base.join(url)
        is_web = url.scheme in ("http", "https") and bool(url.host)
    except ValueError as error:
        raise FetchError(f"{short(text)!r} is no address: {error}") from None
    if not is_web:
        raise FetchError(f"{short(text)!r} is no address of the web: it has to start with https://")
    if url.user is not None or url.password is not None:
        raise FetchError("the address holds a user or a password: leave them out")
    return url.with_fragment(None)


def short(url: URL | str) -> str:
    """As errors show it."""
    text = str(url)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
