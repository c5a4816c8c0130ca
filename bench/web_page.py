"""The page in a browser: how soon it is there, how soon words are, and how it scrolls.

Daemon, relay, gateway and model run in one process, Chromium in its own, without a display: what a
graphics card would do is done by the same two cores.
"""

import gzip
import json
import subprocess
import sys
import time
from bisect import bisect
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import uvloop
from playwright.async_api import Browser, BrowserContext, Page, expect

from apps.web.tests.browser.browser_user import BrowserUser, open_browser_user
from apps.web.tests.browser.chromium import MISSING, find_chromium, launch_browser

from .processes import compute_percentile
from .tables import BenchTable

VISIT_COUNT = 10
OPENING_COUNT = 5
CHUNKS, RATES = 300, (20, 100)
SCROLL_PIXELS, SCROLL_SPEED = 48_000, 6_000
TRACE_CATEGORIES = ["devtools.timeline", "disabled-by-default-devtools.timeline.frame"]

# When somebody can do something, in milliseconds since they asked for the page.
READY_SCRIPT = """
new MutationObserver((_, observer) => {
  if (!document.documentElement?.dataset.ready) return;
  observer.disconnect();
  window.readyAt = performance.now();
}).observe(document, { attributes: true, subtree: true });
"""
LOADED_SCRIPT = """() => [...performance.getEntriesByType("navigation"),
  ...performance.getEntriesByType("resource")]
  .filter((entry) => entry.startTime <= window.readyAt && entry.name.startsWith(location.origin))
  .map((entry) => [entry.name, entry.encodedBodySize, entry.decodedBodySize])"""
# From the click on a conversation until its end has been painted.
OPENED_SCRIPT = """(words) => new Promise((done) => {
  const painted = (then) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = then;
    channel.port2.postMessage(null);
  });
  addEventListener("click", () => {
    const start = performance.now();
    const look = () => {
      const log = document.querySelector("[role=log]");
      if (log?.textContent.includes(words)) done(performance.now() - start);
      else painted(look);
    };
    painted(look);
  }, { capture: true, once: true });
})"""
# When each stamp that the model writes was painted first, by the clock on the wall.
WATCH_SCRIPT = """() => {
  window.stamps = new Map();
  const channel = new MessageChannel();
  channel.port1.onmessage = () => {
    const now = performance.timeOrigin + performance.now();
    const text = document.querySelector("[role=log]").textContent.slice(-20000);
    for (const [stamp] of text.matchAll(/(?<!\\d)\\d{19}(?!\\d)/g)) {
      if (!window.stamps.has(stamp)) window.stamps.set(stamp, now);
    }
  };
  const look = () => {
    channel.port2.postMessage(null);
    requestAnimationFrame(look);
  };
  look();
}"""


@dataclass(frozen=True)
class ServedPage:
    url: str
    words: str


@contextmanager
def serve_page() -> Iterator[ServedPage]:
    command = [sys.executable, "-m", "apps.web.dev_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = dict(process.stdout.readline().split() for _ in range(2))
            yield ServedPage(told["page"].rstrip("/"), told["words"])
        finally:
            process.terminate()


@asynccontextmanager
async def open_list(browser: Browser, place: ServedPage) -> AsyncIterator[BrowserUser]:
    """Somebody at the list."""
    async with open_browser_user(browser, place.url) as person:
        await person.open("/")
        await person.restore_account(place.words)
        await expect(person.conversation_link("keeper")).to_be_visible()
        yield person


# ── The first visit ────────────────────────────────────────────────────────────────────────────


async def measure_first_load(browser: Browser, place: ServedPage) -> BenchTable:
    ready, entries = [], []
    for _ in range(VISIT_COUNT):
        async with open_browser_user(browser, place.url, keeps=True) as person:
            await person.page.add_init_script(READY_SCRIPT)
            await person.open("/")
            await person.page.wait_for_function("() => window.readyAt")
            ready.append(float(await person.page.evaluate("() => window.readyAt")))
            entries = await person.page.evaluate(LOADED_SCRIPT)
            bodies = [await fetch_body(person.page.context, name) for name, _, _ in entries]
    packed = sum(len(gzip.compress(each, 6)) for each in bodies)
    table = BenchTable("The page, a first visit", ["", "", "target"])
    table.add_row("files", str(len(entries)), "")
    table.add_row("KB, as they are", f"{sum(map(len, bodies)) / 1024:.0f}", "")
    table.add_row("KB, gzipped", f"{packed / 1024:.0f}", "300")
    table.add_row("KB, over the wire", f"{sum(sent for _, sent, _ in entries) / 1024:.0f}", "")
    table.add_row("ms until it can be used, p50", f"{compute_percentile(ready, 0.5):.0f}", "1000")
    table.add_row(f"ms until it can be used, worst of {VISIT_COUNT}", f"{max(ready):.0f}", "1000")
    return table


async def fetch_body(context: BrowserContext, url: str) -> bytes:
    return await (await context.request.get(url)).body()


# ── A long conversation ────────────────────────────────────────────────────────────────────────


async def measure_opening(browser: Browser, place: ServedPage) -> list[float]:
    """Each time as if it had just been visited for the first time: all of it is at the relay."""
    taken = []
    for _ in range(OPENING_COUNT):
        async with open_list(browser, place) as person:
            taken.append(await time_opening(person))
    return taken


async def measure_reopening(browser: Browser, place: ServedPage) -> list[float]:
    taken = []
    async with open_list(browser, place) as person:
        await time_opening(person)
        for _ in range(OPENING_COUNT):
            await person.open("/")
            await expect(person.conversation_link("keeper")).to_be_visible()
            taken.append(await time_opening(person))
    return taken


async def time_opening(person: BrowserUser) -> float:
    await person.page.evaluate(
        f"(words) => {{ window.opened = ({OPENED_SCRIPT})(words); }}", LAST_QUESTION
    )
    await person.conversation_link("keeper").first.click()
    return float(await person.page.evaluate("() => window.opened"))


@dataclass
class ScrollTrace:
    """What a browser traced while somebody scrolled, up and down again."""

    gaps: list[float] = field(default_factory=list)  # ms between two frames that were drawn
    work: list[float] = field(default_factory=list)  # CPU ms of the page for a frame
    frame_states: Counter[str] = field(default_factory=Counter)

    async def trace(self, browser: Browser, page: Page, pixels: int) -> None:
        await browser.start_tracing(page=page, categories=TRACE_CATEGORIES)
        await scroll_page(page, pixels)
        events = json.loads(await browser.stop_tracing())["traceEvents"]
        drawn = sorted(event["ts"] for event in events if event["name"] == "DrawFrame")
        self.gaps += [(b - a) / 1000 for a, b in pairwise(drawn)]
        self.work += compute_frame_work(events)
        self.frame_states += count_frame_states(events)


async def measure_scrolling(browser: Browser, place: ServedPage) -> ScrollTrace:
    scrolled = ScrollTrace()
    async with open_list(browser, place) as person:
        await time_opening(person)
        await person.page.wait_for_timeout(1000)
        for pixels in (SCROLL_PIXELS, -SCROLL_PIXELS):
            await scrolled.trace(browser, person.page, pixels)
    return scrolled


async def measure_plain_scrolling(browser: Browser) -> ScrollTrace:
    """The same over lines of text with nothing behind them: what this machine can draw."""
    scrolled = ScrollTrace()
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    lines = "".join(f"<p>Line {number}: {WORDS}</p>" for number in range(2000))
    await page.set_content(f'<div role="log" {PLAIN_STYLE}>{lines}</div>')
    for pixels in (-SCROLL_PIXELS, SCROLL_PIXELS):
        await scrolled.trace(browser, page, pixels)
    await context.close()
    return scrolled


async def scroll_page(page: Page, pixels: int) -> None:
    session = await page.context.new_cdp_session(page)
    box = await page.get_by_role("log").bounding_box()
    assert box is not None
    gesture = {
        "x": box["x"] + box["width"] / 2,
        "y": box["y"] + box["height"] / 2,
        "yDistance": pixels,
        "speed": SCROLL_SPEED,
        "gestureSourceType": "mouse",
    }
    await session.send("Input.synthesizeScrollGesture", gesture)


def compute_frame_work(events: list[dict[str, Any]]) -> list[float]:
    """CPU time of a page's own thread from one frame to the next: without what others took."""
    begins = sorted(e["ts"] for e in events if e["name"] == "BeginMainThreadFrame")
    main = {(e["pid"], e["tid"]) for e in events if e["name"] == "BeginMainThreadFrame"}
    taken = [0.0] * (len(begins) + 1)
    end = 0
    tasks = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in main]
    for task in sorted(tasks, key=lambda e: (e["ts"], -e["dur"])):
        if task["ts"] >= end:  # else it is a part of one that was counted
            end = task["ts"] + task["dur"]
            taken[bisect(begins, task["ts"])] += task.get("tdur", 0) / 1000
    return taken[1:]


def count_frame_states(events: list[dict[str, Any]]) -> Counter[str]:
    reports = [e["args"] for e in events if (e["name"], e["ph"]) == ("PipelineReporter", "b")]
    return Counter(report.get("frame_reporter", {}).get("state", "") for report in reports)


# ── Words as they are written ──────────────────────────────────────────────────────────────────


async def measure_chunks(browser: Browser, place: ServedPage, rate: int) -> list[float]:
    async with open_list(browser, place) as person:
        await person.open_conversation("newcomer")
        await person.page.evaluate(WATCH_SCRIPT)
        start = time.monotonic_ns()
        await person.send_text(f"!chunks {CHUNKS} {rate}")
        await expect(person.button("Stop")).to_be_visible()
        await expect(person.button("Stop")).to_be_hidden(timeout=60_000)
        stamps = await person.page.evaluate("() => [...window.stamps]")
    offset = (time.time_ns() - time.monotonic_ns()) / 1e6
    # What was there before is somebody else's.
    return [at - (int(stamp) / 1e6 + offset) for stamp, at in stamps if int(stamp) > start]


LAST_QUESTION = "Question 1429"
WORDS = "the quick brown fox jumps over the lazy dog and comes back again. " * 2
PLAIN_STYLE = 'style="height: 800px; overflow: auto; font: 16px sans-serif"'


async def measure_page() -> list[BenchTable]:
    path = find_chromium()
    if path is None:
        sys.exit(MISSING)
    with serve_page() as place:
        async with launch_browser(path) as browser:
            tables = [await measure_first_load(browser, place)]
            words = BenchTable(
                "The page, ms from a chunk that the model writes to its pixels",
                ["chunks /s", "p50", "p99", "worst"],
                note="At most 100 ms is the target.",
            )
            for rate in RATES:
                taken = await measure_chunks(browser, place, rate)
                cells = (
                    compute_percentile(taken, 0.5),
                    compute_percentile(taken, 0.99),
                    max(taken),
                )
                words.add_row(str(rate), *(f"{cell:.0f}" for cell in cells))
            long = BenchTable(
                "The page, a conversation of 10,000 events",
                ["", "p50", "p95", "worst", "target"],
            )
            for name, samples in (
                ("ms to open it, all of it at the relay", await measure_opening(browser, place)),
                ("ms to open it again", await measure_reopening(browser, place)),
            ):
                long.add_row(name, *format_spread(samples, "0"), "500")
            ours, plain = (
                await measure_scrolling(browser, place),
                await measure_plain_scrolling(browser),
            )
            long.add_row(
                "CPU ms a frame while it is scrolled", *format_spread(ours.work, "1"), "16.7"
            )
            long.add_row(
                "ms between frames while it is scrolled", *format_spread(ours.gaps, "1"), "16.7"
            )
            long.add_row("the same, over plain lines of text", *format_spread(plain.gaps, "1"), "")
            long.note = (
                f"Frames: {format_states(ours.frame_states)}. "
                f"Over plain lines: {format_states(plain.frame_states)}."
            )
            return [*tables, words, long]


def format_spread(samples: list[float], digits: str) -> list[str]:
    cells = (compute_percentile(samples, 0.5), compute_percentile(samples, 0.95), max(samples))
    return [f"{cell:.{digits}f}" for cell in cells]


def format_states(states: Counter[str]) -> str:
    shown = {name.removeprefix("STATE_").lower().replace("_", " "): n for name, n in states.items()}
    return ", ".join(f"{count} {name}" for name, count in sorted(shown.items()) if name)


def run_benchmark() -> list[BenchTable]:
    return uvloop.run(measure_page())
