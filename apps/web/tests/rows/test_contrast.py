"""Appearance: every speaker is readable in both themes, and no row obstructs a screen reader."""

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser

from apps.web.tests.browser.chromium import open_browser_page

from .sample_rows import QUESTION, list_rows

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const worst = { name: 99, words: 99, page: 99 };
  const [element] = rows.show({
    kind: "text", id: "t", time: 0, revision: 1, text: "Words", thinking: false,
    speaker: { id: "g", name: "owl", kind: "guest", hue: 0 },
  });
  const page = getComputedStyle(document.body).backgroundColor;
  for (let hue = 0; hue < 360; hue += 1) {
    element.style.setProperty("--hue", String(hue));
    const back = getComputedStyle(element).backgroundColor;
    const name = getComputedStyle(element.querySelector(".speaker-name")).color;
    const words = getComputedStyle(element.querySelector("p:not(.speaker-name)")).color;
    const apart = (a, b) => {
      const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
      return (high + 0.05) / (low + 0.05);
    };
    worst.name = Math.min(worst.name, apart(name, back));
    worst.words = Math.min(worst.words, apart(words, back));
    worst.page = Math.min(worst.page, apart(name, page));
  }
  return worst;
}"""


@pytest.mark.req("rows.guests.contrast")
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_guest_can_be_read_whatever_its_colour(
    browser: Browser, gallery: str, theme: str
) -> None:
    async with open_browser_page(browser, gallery, theme=theme) as (page, _):
        await page.goto(f"{gallery}/gallery.html")
        await page.wait_for_selector("[data-ready]")
        worst = await page.evaluate(CONTRAST)
    assert min(worst.values()) >= 4.5, worst


@pytest.mark.timeout(120)
@pytest.mark.req("rows.accessible")
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
async def test_no_row_obstructs_a_screen_reader(browser: Browser, gallery: str, theme: str) -> None:
    async with open_browser_page(browser, gallery, theme=theme) as (page, _):
        await page.goto(f"{gallery}/gallery.html")
        await page.wait_for_selector("[data-ready]")
        await page.evaluate(
            """async ({ list, question }) => {
              await rows.picture("pic", 640, 420);
              rows.show(...list);
              rows.shelf.append(rows.all.renderQuestion(question, { answer() {}, dismiss() {} }));
              for (let round = 0; round < 4; round += 1) {
                document.querySelectorAll("details").forEach((one) => (one.open = true));
                await new Promise(requestAnimationFrame);
              }
            }""",
            {"list": list_rows(), "question": QUESTION},
        )
        await page.wait_for_selector(".picture-image.is-there")
        found = await Axe().run(page)
    faults = [
        (fault["id"], node["html"][:200], node.get("failureSummary", "")[:300])
        for fault in found.response["violations"]
        for node in fault["nodes"][:3]
    ]
    assert faults == []
