"""Real sites on loopback, each made from one function. They record their requests."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

PAGES = Path(__file__).with_name("pages")


@dataclass
class LocalSite:
    port: int = 0
    requests: list[web.Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def serve_site(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[LocalSite]:
    site = LocalSite()

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        site.requests.append(request)
        return await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0, ssl_context=tls).start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()


def write_config(home: Path, site: LocalSite) -> None:
    """Configure one engine, `site`, whose pages may be fetched."""
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "search.toml").write_text(
        f'engines = ["searxng"]\n[searxng]\nurl = "{site.url}"\n[fetch]\nallow = ["127.0.0.1"]\n'
    )


def read_saved_page(name: str) -> str:
    return (PAGES / name).read_text("utf-8")


def make_handler(
    text: str, status: int = 200, content_type: str = "text/html"
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text, status=status, content_type=content_type)

    return answer
