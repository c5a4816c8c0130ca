"""Finds Chromium, and watches what a page must not do.

CRABTALK_CHROMIUM names a binary that is not on the PATH. Without Chromium these tests are skipped
with a hint what to install; if CI is set they fail instead.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    WebError,
    async_playwright,
    expect,
)

# The headless shell first: the same engine, and a page in it costs two thirds of the time.
EXECUTABLES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MISSING = (
    "needs Chromium: install Debian's package with `apt-get install chromium`, or name one in"
    " CRABTALK_CHROMIUM"
)
# Fonts, colours and times are the same on every machine.
OPTIONS = ["--font-render-hinting=none", "--force-color-profile=srgb", "--disable-gpu"]
REPORTS = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy: ${event.violatedDirective} forbids ${event.blockedURI}`);
});
"""
# Enough for a busy machine.
PATIENCE_MS = 20_000
# Playwright's message about a page that registers a service worker where that is blocked.
BLOCKED = "Service Worker registration blocked by Playwright"
# A page that is closed, or gives up a socket, while it still connects logs this. It is no fault.
CLOSED_EARLY = "WebSocket is closed before the connection is established"
WIDTHS = {360: 740, 768: 1024, 1440: 900}


def find_chromium() -> Path | None:
    configured = os.environ.get("CRABTALK_CHROMIUM")
    if configured:
        return Path(configured)
    found = next(filter(None, map(shutil.which, EXECUTABLES)), None)
    return Path(found) if found else None


def require_chromium() -> Path:
    """Skip the test, or fail it if CI is set."""
    found = find_chromium()
    if found is not None:
        return found
    if os.environ.get("CI"):
        pytest.fail(MISSING)
    pytest.skip(MISSING)


@asynccontextmanager
async def launch_browser(path: Path, *options: str) -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    # Chromium's sandbox does not work for root; it only loads our own page here.
    is_root = os.geteuid() == 0
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=path, args=[*OPTIONS, *options], chromium_sandbox=not is_root
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class BrowserWatch:
    """Collects a browser's faults: console errors, and requests to any server but the relay."""

    origins: set[str]
    faults: list[str] = field(default_factory=list)
    # addresses, with the page that requested them
    requested: list[str] = field(default_factory=list)
    _expected: list[str] = field(default_factory=list)

    def watch_context(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", self._error)
        context.on("request", self._request)

    def allow_faults(self, *parts: str) -> None:
        """Allow faults that contain any of these texts, because the test causes them."""
        self._expected += parts

    def reset(self) -> None:
        """Forget the faults of an earlier test."""
        self.faults.clear()
        self.requested.clear()
        self._expected.clear()

    def check(self) -> None:
        found = [f for f in self.faults if not any(part in f for part in self._expected)]
        assert found == [], found

    def _console(self, message: ConsoleMessage) -> None:
        is_harmless = BLOCKED in message.text or CLOSED_EARLY in message.text
        if message.type in ("error", "warning") and not is_harmless:
            where = message.location.get("url", "")
            self.faults.append(f"console {message.type}: {message.text} ({where})")

    def _error(self, error: WebError) -> None:
        where = (error.error.stack or "").split("\n")[1:4]
        self.faults.append(f"page error: {error.error.message} ({' '.join(where)})")

    def _request(self, request: Request) -> None:
        self.requested += [urldefrag(request.url).url, request.headers.get("referer", "")]
        parts = urlsplit(request.url)
        if parts.scheme in ("data", "blob"):
            return
        if f"{parts.scheme}://{parts.netloc}" not in self.origins:
            self.faults.append(f"request: {request.method} {request.url}")


@asynccontextmanager
async def open_browser_page(
    browser: Browser,
    url: str,
    *,
    width: int = 1440,
    theme: str = "light",
    keeps: bool = False,
) -> AsyncIterator[tuple[Page, BrowserWatch]]:
    """A page of a new browser. Unless it `keeps` the page with a service worker, its files are
    loaded only once."""
    context = await browser.new_context(
        viewport={"width": width, "height": WIDTHS.get(width, 900)},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
        service_workers="allow" if keeps else "block",
    )
    context.set_default_timeout(PATIENCE_MS)
    watch = BrowserWatch({url})
    watch.watch_context(context)
    await context.add_init_script(REPORTS)
    try:
        yield await context.new_page(), watch
    finally:
        await context.close()
