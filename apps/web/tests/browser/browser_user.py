"""A person at a browser, who uses the page by what can be seen and read.

Elements are found by role and name, as a screen reader finds them.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, Locator, Page, expect

from .chromium import WIDTHS, BrowserWatch, open_browser_page

SHOTS = Path(__file__).with_name("shots")
AXE = Axe()
LEFT = "log => log.scrollHeight - log.scrollTop - log.clientHeight"
PATIENCE = 30


def read_script(name: str) -> str:
    """Read JavaScript that inspects the page from inside."""
    return Path(__file__).with_name(f"{name}.js").read_text().partition("\n")[2]


class BrowserUser:
    def __init__(self, page: Page, watch: BrowserWatch, url: str) -> None:
        self.page = page
        self.watch = watch
        self.url = url

    # ── Ways in ─────────────────────────────────────────────────────────────────────────────

    async def open(self, address: str = "/") -> None:
        """Open a path, or a full address."""
        await self.page.goto(address if "://" in address else self.url + address)

    async def create_account(self) -> None:
        await self.button("Start here").click()

    async def approve_machine(self, link: str) -> None:
        """Open the link of this machine with a new account, and approve it."""
        await self.open(link)
        await self.button("Start here").click()
        await self.button("Let it in").click()

    async def restore_account(self, words: str) -> None:
        await self.button(re.compile("already", re.IGNORECASE)).click()
        await self.submit_backup_words(words)

    async def submit_backup_words(self, words: str) -> None:
        await self.page.get_by_role("textbox", name="Backup words").fill(words)
        await self.button("Restore").click()

    # ── What there is ───────────────────────────────────────────────────────────────────────

    def button(self, name: str | re.Pattern[str]) -> Locator:
        return self.page.get_by_role("button", name=name)

    def conversation_link(self, agent: str) -> Locator:
        """The conversation's entry in the list."""
        entries = self.page.get_by_role("navigation", name="Conversations")
        return entries.get_by_role("link", name=re.compile(rf"^{agent}\b"))

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log")

    @property
    def message_box(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message")

    def tool_card(self, name: str) -> Locator:
        """The card of a call, by the tool's name or its title."""
        return self.log.locator(".tool").filter(has_text=name).first

    def question_form(self, question: str) -> Locator:
        return self.page.locator("form").filter(has_text=question).first

    # ── What they do ────────────────────────────────────────────────────────────────────────

    async def open_conversation(self, agent: str) -> None:
        """Open a conversation from the list."""
        await self.conversation_link(agent).first.click()
        await expect(self.message_box).to_be_visible()

    async def send_text(self, text: str) -> None:
        await self.message_box.fill(text)
        await self.message_box.press("Enter")

    async def open_list(self) -> None:
        """Open the list, from any view."""
        await self.page.evaluate(
            "history.pushState(null, '', '/'); dispatchEvent(new Event('popstate'))"
        )

    async def expand(self, card: Locator) -> None:
        if not await card.evaluate(
            "card => card.matches('[open]') || !!card.querySelector('[open]')"
        ):
            await card.locator("summary").first.click()

    async def drop_file(self, name: str, kind: str, data: bytes) -> None:
        """Drop a file on the conversation."""
        file_data = {"name": name, "kind": kind, "data": b64encode(data).decode()}
        transfer = await self.page.evaluate_handle(
            """({ name, kind, data }) => {
              const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
              const transfer = new DataTransfer();
              transfer.items.add(new File([bytes], name, { type: kind }));
              return transfer;
            }""",
            file_data,
        )
        for event in ("dragenter", "dragover", "drop"):
            await self.log.dispatch_event(event, {"dataTransfer": transfer})

    async def expand_all(self) -> None:
        """Expand everything, including what appears by expanding."""
        closed = self.log.locator("details:not([open]) > summary:visible")
        while await closed.count():
            await closed.first.click()

    async def scroll_to_top(self, first: str) -> None:
        """Scroll up until the first message, this text, is in view."""
        words = self.log.get_by_text(first)
        async with asyncio.timeout(PATIENCE):
            while not await words.count() or await self.log.evaluate("log => log.scrollTop > 0"):
                await self.log.evaluate("log => { log.scrollTop = 0; }")
                await self.page.evaluate("() => new Promise(requestAnimationFrame)")
        await expect(words).to_be_in_viewport()

    async def search(self, words: str) -> None:
        await self.page.get_by_role("link", name="Search").click()
        await self.page.get_by_role("searchbox").fill(words)

    async def read_rows(self) -> list[str]:
        """The text of the conversation, row by row."""
        rows: list[str] = await self.log.locator(".entry").all_inner_texts()
        return [" ".join(row.split()) for row in rows]

    async def open_settings(self) -> None:
        back = self.button("Back")
        if await back.is_visible():  # in a narrow window the list is a separate view
            await back.click()
        await self.page.get_by_role("link", name="Settings").click()

    async def create_invitation(self) -> str:
        """Create the link for another device."""
        await self.open_settings()
        await self.button("Add a device").click()
        return await self.page.get_by_role("textbox", name="Link").input_value()

    async def read_backup_words(self) -> str:
        await self.open_settings()
        await self.button("Show backup words").click()
        await self.page.get_by_role("dialog").get_by_role("button", name="Show them").click()
        return (await self.page.locator("code.words").inner_text()).strip()

    async def log_out(self) -> None:
        await self.open_settings()
        await self.button("Log out").click()
        await self.page.get_by_role("dialog").get_by_role("button", name="Log out").click()

    async def wait_for_text(self, text: str | re.Pattern[str], count: int | None = None) -> None:
        """Wait for text in the conversation."""
        found = self.log.get_by_text(text)
        if count is None:
            await expect(found.first).to_be_visible()
        else:
            await expect(found).to_have_count(count)

    async def wait_for_service_worker(self) -> None:
        """Wait until the page itself is cached on this device."""
        await self.page.evaluate("() => navigator.serviceWorker.ready.then(() => null)")

    async def wait_for_scroll(self, is_so: Callable[[float], bool]) -> None:
        """Wait until the distance to the end of the conversation, in pixels, is as expected."""
        left = -1.0
        try:
            async with asyncio.timeout(PATIENCE / 3):
                while not is_so(left := await self.log.evaluate(LEFT)):
                    await self.page.evaluate("() => new Promise(requestAnimationFrame)")
        except TimeoutError:
            raise AssertionError(f"{left} pixels from the end") from None

    async def wait_for_unsent(self, count: int) -> None:
        """Wait until this many unsent messages are on disk."""
        async with asyncio.timeout(PATIENCE):
            while await self.page.evaluate(read_script("waiting")) != count:
                await self.page.evaluate("() => new Promise(requestAnimationFrame)")

    async def wait_for_turn_end(self) -> None:
        """Wait for the end of the turn, and until its live text is gone."""
        await expect(self.button("Stop")).to_be_hidden()

    async def set_appearance(self, width: int = 0, theme: str = "") -> None:
        """Set the window's width and the system theme."""
        if width:
            await self.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
        if theme:
            await self.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")

    # ── What is held against it ─────────────────────────────────────────────────────────────

    async def take_screenshot(self, name: str, width: int = 0, theme: str = "") -> Path:
        """Take a screenshot for people to look at."""
        await self.set_appearance(width, theme)
        size = self.page.viewport_size
        SHOTS.mkdir(exist_ok=True)
        theme_suffix = f"-{theme}" if theme else ""
        path = SHOTS / f"{name}-{size['width'] if size else 0}{theme_suffix}.png"
        await self.page.screenshot(path=path)
        return path

    async def find_faults(self) -> list[str]:
        """The violations that axe finds, and whether the page scrolls sideways."""
        results = await AXE.run(self.page)
        found = [
            f"{rule['id']}: {node['target']} {node['html'][:200]} {node['failureSummary']}"
            for rule in results.response["violations"]
            for node in rule["nodes"][:3]
        ]
        wide: int = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return [*found, *([f"{wide} pixels to scroll sideways"] if wide > 0 else [])]


@asynccontextmanager
async def open_browser_user(
    browser: Browser, url: str, *, width: int = 1440, theme: str = "light", keeps: bool = False
) -> AsyncIterator[BrowserUser]:
    """A person with a new browser. Afterwards asserts that it had no faults."""
    async with open_browser_page(browser, url, width=width, theme=theme, keeps=keeps) as (
        page,
        watch,
    ):
        yield BrowserUser(page, watch, url)
        watch.check()
