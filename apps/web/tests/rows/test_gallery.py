"""Every kind of row on one page; its screenshots are for people."""

from pathlib import Path

import pytest
from playwright.async_api import Browser

from apps.web.tests.browser.chromium import open_browser_page

from .sample_rows import QUESTION, list_rows

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.req("rows.gallery")
@pytest.mark.parametrize(
    ("width", "theme"),
    [
        (360, "dark"),
        (1440, "light"),
        pytest.param(360, "light", marks=pytest.mark.slow),
        pytest.param(1440, "dark", marks=pytest.mark.slow),
    ],
)
async def test_every_kind_of_row_fits_any_screen_and_theme(
    browser: Browser, gallery: str, tmp_path: Path, width: int, theme: str
) -> None:
    async with open_browser_page(browser, gallery, width=width, theme=theme) as (page, watch):
        await page.goto(f"{gallery}/gallery.html")
        await page.wait_for_selector("[data-ready]")
        await page.evaluate(
            """async ({ list, question }) => {
              await rows.picture("pic", 640, 420);
              rows.show(...list);
              rows.shelf.append(rows.all.renderQuestion(question, { answer() {}, dismiss() {} }));
              document.querySelectorAll("details").forEach((one) => (one.open = true));
            }""",
            {"list": list_rows(), "question": QUESTION},
        )
        await page.wait_for_selector(".picture-image.is-there")
        await page.evaluate(
            "document.querySelectorAll('details').forEach((one) => (one.open = true))"
        )
        await page.evaluate("() => new Promise(requestAnimationFrame)")
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
        await page.screenshot(path=tmp_path / f"rows-{width}-{theme}.png", full_page=True)
        watch.check()
