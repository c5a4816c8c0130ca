"""A tab with the page's modules and without its views: tests call the modules directly."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, Route, WebSocketRoute

import crabtalk_web
from apps.web.tests.browser.chromium import BrowserWatch, open_browser_page
from apps.web.tests.gateway.device_client import DeviceClient
from crabtalk_web.sealing import to_backup_text

PAGE = Path(crabtalk_web.__file__).with_name("page")
PATIENCE = 25
# Same origin and policy, and nothing in it runs by itself.
BLANK = "/trusted.js"
ICON = "favicon.ico"
DEVICE = """async () => {
  const { Device } = await import("/device/device.js");
  window.device = await Device.open();
}"""
# The rows as a tree of their visible properties.
TREE = """
const tree = (rows) => rows.map(({ revision, children, files, ...row }) => ({
  ...row,
  ...(children ? { children: tree(children) } : {}),
  ...(files ? { files: tree(files) } : {}),
}));
"""


class PageTab:
    def __init__(self, page: Page, watch: BrowserWatch, url: str) -> None:
        self.page = page
        self.watch = watch
        self.url = url
        self.is_offline = False
        self._sockets: list[WebSocketRoute] = []

    async def open(self) -> None:
        await self.page.goto(self.url + BLANK)

    async def evaluate(self, script: str, given: Any = None) -> Any:
        """Return the result of an async function with this body, which can use `given` and
        `tree`."""
        # As one text: passing ten thousand objects one by one takes a minute.
        lines = f"async (text) => {{ const given = JSON.parse(text); {TREE} {script} }}"
        return await self.page.evaluate(lines, json.dumps(given))

    async def wait_for(self, condition: str, given: Any = None) -> Any:
        """Return the result once it is truthy."""
        async with asyncio.timeout(PATIENCE):
            while True:
                if found := await self.evaluate(f"return {condition};", given):
                    return found
                await asyncio.sleep(0.02)

    # ── A device ────────────────────────────────────────────────────────────────────────────

    async def start_device(self) -> str:
        """Start the device of this browser, and return its stage."""
        await self.page.evaluate(DEVICE)
        return str(await self.evaluate("return device.stage;"))

    async def log_in(self, person: DeviceClient) -> None:
        """Log in as another device of the person."""
        await self.start_device()
        await self.evaluate(
            "await device.restore(given);",
            to_backup_text(person.secret.secret),
        )
        await self.wait_for("device.connection.state === 'online'")

    async def reload(self) -> str:
        await self.page.reload()
        return await self.start_device()

    async def open_session(self, session: str) -> None:
        """Open a session, and wait until it is up to date."""
        await self.wait_for("device.session(given)", session)
        await self.evaluate("await device.session(given).open();", session)

    async def read_texts(self, session: str) -> list[str]:
        """The texts of its rows, from top to bottom."""
        found: list[str] = await self.evaluate(
            "return device.session(given).story.rows.map(({ text }) => text).filter(Boolean);",
            session,
        )
        return found

    async def go_offline(self) -> None:
        """Block all requests but those for the page's files."""
        self.is_offline = True
        self.watch.allow_faults("ERR_", "WebSocket", "Failed to load")
        for socket in self._sockets:
            await socket.close()
        self._sockets = []
        await self.wait_for("device.connection.state === 'offline'")

    async def go_online(self) -> None:
        self.is_offline = False
        await self.evaluate("device.socket.hurry();")
        await self.wait_for("device.connection.state === 'online'")

    async def _route_request(self, route: Route) -> None:
        if self.is_offline:
            await route.abort()
        else:
            await route.fallback()

    async def _route_socket(self, route: WebSocketRoute) -> None:
        if self.is_offline:
            await route.close()
            return
        route.connect_to_server()
        self._sockets.append(route)

    async def intercept_network(self) -> None:
        await self.page.route(re.compile("/v[123]/"), self._route_request)
        await self.page.route_web_socket(lambda url: "/v1/updates" in url, self._route_socket)


@asynccontextmanager
async def open_page_tab(
    browser: Browser, url: str, *, can_go_offline: bool = False
) -> AsyncIterator[PageTab]:
    """Asserts at the end that there were no faults. `can_go_offline` lets a test block requests."""
    async with open_browser_page(browser, url) as (page, watch):
        tab = PageTab(page, watch, url)
        watch.allow_faults(ICON)
        if can_go_offline:
            await tab.intercept_network()
        await tab.open()
        yield tab
        watch.check()


def read_json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
