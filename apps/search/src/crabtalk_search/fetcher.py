"""Fetches one web page as text. The address may come from a model or a page, and is not trusted.

Only http and https, only hosts that AddressGuard allows, each redirect checked like the first
address, and limits on time, size and the number of redirects.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType

import aiohttp
from yarl import URL

from . import __version__
from .address_guard import AddressGuard, AddressRefusedError
from .config import FetchConfig
from .engine_client import read_at_most
from .errors import FetchError
from .page_reader import PageReader, PageReadError
from .text_decoding import ContentKind, decode_text, detect_content_kind

REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = {
    "User-Agent": f"Mozilla/5.0 (compatible; crabtalk-search/{__version__})",
    "Accept": "text/html,application/xhtml+xml,text/*;q=0.9,*/*;q=0.5",
    "Accept-Language": "en-US,en;q=0.9,*;q=0.5",
}
# Characters of an address. Few servers take more.
MAX_ADDRESS_LENGTH = 8000
MAX_SHOWN_ADDRESS = 200
# Bytes at the start of a body that are used to detect its kind.
SNIFF_BYTES = 1024


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """The page at an address. `url` is the address after all redirects."""

    url: str
    title: str
    content: str
    content_length: int


@dataclass(frozen=True, slots=True)
class ResponseBody:
    url: URL
    kind: ContentKind
    data: bytes
    charset: str | None
    is_truncated: bool


class PageFetcher:
    """A context manager with one session. It uses no proxy, because that would resolve names."""

    def __init__(self, config: FetchConfig, guard: AddressGuard | None = None) -> None:
        self._config = config
        self._guard = guard or AddressGuard(config.allow)
        self._reader = PageReader()

    async def __aenter__(self) -> "PageFetcher":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=self._guard, use_dns_cache=False, socket_factory=self._guard.make_socket
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

    async def fetch(self, address: str) -> FetchedPage:
        """Raises FetchError. Cancelled, nothing stays open and no process stays behind."""
        try:
            async with asyncio.timeout(self._config.timeout):
                body = await self._follow_redirects(parse_address(address))
                title, content = await self._read_page(body)
        except TimeoutError:
            raise FetchError(
                f"{shorten_address(address)} took longer than {self._config.timeout:g} s; "
                "try another page"
            ) from None
        return FetchedPage(str(body.url), title, content, len(content))

    async def _follow_redirects(self, url: URL) -> ResponseBody:
        for _ in range(self._config.max_redirects + 1):
            outcome = await self._request_once(url)
            if isinstance(outcome, ResponseBody):
                return outcome
            url = outcome
        max_redirects = self._config.max_redirects
        raise FetchError(
            f"more than {max_redirects} redirects, the last to {shorten_address(url)}; fetch that"
        )

    async def _request_once(self, url: URL) -> ResponseBody | URL:
        """The body, or the address of a redirect."""
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in REDIRECTS and "Location" in response.headers:
                    return parse_address(response.headers["Location"], url)
                if response.status >= 400:
                    answer = f"{response.status} {response.reason}"
                    raise FetchError(f"{shorten_address(url)} answered {answer}".rstrip())
                return await self._read_body(response)
        except aiohttp.ClientConnectorCertificateError as error:
            reason = error.certificate_error
            raise FetchError(f"the certificate of {url.host} is not valid: {reason}") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, AddressRefusedError):
                raise FetchError(str(error.os_error)) from None
            raise FetchError(f"cannot connect to {url.host}: {error.os_error}") from None
        except aiohttp.InvalidURL as error:
            raise FetchError(
                f"{shorten_address(url)} is no address that can be fetched: {error}"
            ) from None
        except aiohttp.ClientError as error:
            raise FetchError(
                f"{shorten_address(url)} broke off: {str(error) or type(error).__name__}"
            ) from None

    async def _read_body(self, response: aiohttp.ClientResponse) -> ResponseBody:
        content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if detect_content_kind(content_type, b"") is None:
            raise FetchError(
                f"{shorten_address(response.url)} is {content_type}, not text; "
                "look for a page about it"
            )
        max_bytes = self._config.max_bytes
        data = await read_at_most(response, max_bytes)
        kind = detect_content_kind(content_type, bytes(data[:SNIFF_BYTES]))
        if kind is None:
            raise FetchError(
                f"{shorten_address(response.url)} is no text; look for a page about it"
            )
        return ResponseBody(
            response.url, kind, bytes(data[:max_bytes]), response.charset, len(data) > max_bytes
        )

    async def _read_page(self, body: ResponseBody) -> tuple[str, str]:
        max_chars = self._config.max_chars
        if body.kind == "html":
            try:
                title, content, length = await self._reader.read_page(
                    body.data, str(body.url), body.charset, max_chars
                )
            except PageReadError:
                raise FetchError(
                    f"{shorten_address(body.url)} is too deep or too large to read; "
                    "try another page"
                ) from None
        else:
            title, content = "", decode_text(body.data, body.charset)
            length = len(content)
        if length > max_chars:
            content = (
                f"{content[:max_chars]}\n\n[cut: the first {max_chars} characters of {length}]"
            )
        elif body.is_truncated:
            content += f"\n\n[cut: only the first {self._config.max_bytes} bytes were read]"
        return title, content


def parse_address(text: str, base: URL | None = None) -> URL:
    """Raises FetchError if it is not a web address."""
    if len(text) > MAX_ADDRESS_LENGTH:
        raise FetchError(f"the address is longer than {MAX_ADDRESS_LENGTH} characters: shorten it")
    try:
        url = URL(text.strip())
        if base is not None:
            url = base.join(url)
        is_web = url.scheme in ("http", "https") and bool(url.host)
    except ValueError as error:
        raise FetchError(f"{shorten_address(text)!r} is no address: {error}") from None
    if not is_web:
        raise FetchError(
            f"{shorten_address(text)!r} is no address of the web: it has to start with https://"
        )
    if url.user is not None or url.password is not None:
        raise FetchError("the address holds a user or a password: leave them out")
    return url.with_fragment(None)


def shorten_address(url: URL | str) -> str:
    """An address as errors show it."""
    text = str(url)
    return text if len(text) <= MAX_SHOWN_ADDRESS else f"{text[:MAX_SHOWN_ADDRESS]}…"
