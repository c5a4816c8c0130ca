"""The web page in a browser: loading, the delay of streamed words, and scrolling.

Daemon, relay, gateway and model run in one process, Chromium in its own, without a display: the
same two cores do the work of a graphics card.
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

# Milliseconds from requesting the page until it can be used.
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
# Milliseconds from the click on a conversation until its end has been painted.
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
# The wall-clock time at which each stamp of the model was first painted.
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
            served_values = dict(process.stdout.readline().split() for _ in range(2))
            yield ServedPage(served_values["page"].rstrip("/"), served_values["words"])
        finally:
            process.terminate()


@asynccontextmanager
async def open_list(browser: Browser, served: ServedPage) -> AsyncIterator[BrowserUser]:
    """Open a browser user at the list of conversations."""
    async with open_browser_user(browser, served.url) as user:
        await user.open("/")
        await user.restore_account(served.words)
        await expect(user.conversation_link("keeper")).to_be_visible()
        yield user


# ── The first visit ────────────────────────────────────────────────────────────────────────────


async def measure_first_load(browser: Browser, served: ServedPage) -> BenchTable:
    ready, entries = [], []
    for _ in range(VISIT_COUNT):
        async with open_browser_user(browser, served.url, keeps=True) as user:
            await user.page.add_init_script(READY_SCRIPT)
            await user.open("/")
            await user.page.wait_for_function("() => window.readyAt")
            ready.append(float(await user.page.evaluate("() => window.readyAt")))
            entries = await user.page.evaluate(LOADED_SCRIPT)
            bodies = [await fetch_body(user.page.context, name) for name, _, _ in entries]
    packed = sum(len(gzip.compress(body, 6)) for body in bodies)
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


async def measure_opening(browser: Browser, served: ServedPage) -> list[float]:
    """Measure opening a conversation on a first visit, when all of it is at the relay."""
    times = []
    for _ in range(OPENING_COUNT):
        async with open_list(browser, served) as user:
            times.append(await time_opening(user))
    return times


async def measure_reopening(browser: Browser, served: ServedPage) -> list[float]:
    times = []
    async with open_list(browser, served) as user:
        await time_opening(user)
        for _ in range(OPENING_COUNT):
            await user.open("/")
            await expect(user.conversation_link("keeper")).to_be_visible()
            times.append(await time_opening(user))
    return times


async def time_opening(user: BrowserUser) -> float:
    await user.page.evaluate(
        f"(words) => {{ window.opened = ({OPENED_SCRIPT})(words); }}", LAST_QUESTION
    )
    await user.conversation_link("keeper").first.click()
    return float(await user.page.evaluate("() => window.opened"))


@dataclass
class ScrollTrace:
    """A browser's trace while a user scrolls up and down again."""

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


async def measure_scrolling(browser: Browser, served: ServedPage) -> ScrollTrace:
    trace = ScrollTrace()
    async with open_list(browser, served) as user:
        await time_opening(user)
        await user.page.wait_for_timeout(1000)
        for pixels in (SCROLL_PIXELS, -SCROLL_PIXELS):
            await trace.trace(browser, user.page, pixels)
    return trace


async def measure_plain_scrolling(browser: Browser) -> ScrollTrace:
    """Measure scrolling plain lines of text: the fastest this machine can draw."""
    trace = ScrollTrace()
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    lines = "".join(f"<p>Line {number}: {WORDS}</p>" for number in range(2000))
    await page.set_content(f'<div role="log" {PLAIN_STYLE}>{lines}</div>')
    for pixels in (-SCROLL_PIXELS, SCROLL_PIXELS):
        await trace.trace(browser, page, pixels)
    await context.close()
    return trace


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
    """Return the CPU time of the page's main thread between frames, without other threads."""
    begins = sorted(e["ts"] for e in events if e["name"] == "BeginMainThreadFrame")
    main = {(e["pid"], e["tid"]) for e in events if e["name"] == "BeginMainThreadFrame"}
    work = [0.0] * (len(begins) + 1)
    end = 0
    tasks = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in main]
    for task in sorted(tasks, key=lambda e: (e["ts"], -e["dur"])):
        if task["ts"] >= end:  # else it is part of a task already counted
            end = task["ts"] + task["dur"]
            work[bisect(begins, task["ts"])] += task.get("tdur", 0) / 1000
    return work[1:]


def count_frame_states(events: list[dict[str, Any]]) -> Counter[str]:
    reports = [e["args"] for e in events if (e["name"], e["ph"]) == ("PipelineReporter", "b")]
    return Counter(report.get("frame_reporter", {}).get("state", "") for report in reports)


# ── Words as they are written ──────────────────────────────────────────────────────────────────


async def measure_chunks(browser: Browser, served: ServedPage, rate: int) -> list[float]:
    async with open_list(browser, served) as user:
        await user.open_conversation("newcomer")
        await user.page.evaluate(WATCH_SCRIPT)
        start = time.monotonic_ns()
        await user.send_text(f"!chunks {CHUNKS} {rate}")
        await expect(user.button("Stop")).to_be_visible()
        await expect(user.button("Stop")).to_be_hidden(timeout=60_000)
        stamps = await user.page.evaluate("() => [...window.stamps]")
    offset = (time.time_ns() - time.monotonic_ns()) / 1e6
    # Earlier stamps belong to other answers.
    return [at - (int(stamp) / 1e6 + offset) for stamp, at in stamps if int(stamp) > start]


LAST_QUESTION = "Question 1429"
WORDS = "the quick brown fox jumps over the lazy dog and comes back again. " * 2
PLAIN_STYLE = 'style="height: 800px; overflow: auto; font: 16px sans-serif"'


async def measure_page() -> list[BenchTable]:
    path = find_chromium()
    if path is None:
        sys.exit(MISSING)
    with serve_page() as served:
        async with launch_browser(path) as browser:
            tables = [await measure_first_load(browser, served)]
            words = BenchTable(
                "The page, ms from a chunk that the model writes to its pixels",
                ["chunks /s", "p50", "p99", "worst"],
                note="At most 100 ms is the target.",
            )
            for rate in RATES:
                delays = await measure_chunks(browser, served, rate)
                cells = (
                    compute_percentile(delays, 0.5),
                    compute_percentile(delays, 0.99),
                    max(delays),
                )
                words.add_row(str(rate), *(f"{cell:.0f}" for cell in cells))
            long = BenchTable(
                "The page, a conversation of 10,000 events",
                ["", "p50", "p95", "worst", "target"],
            )
            for name, samples in (
                ("ms to open it, all of it at the relay", await measure_opening(browser, served)),
                ("ms to open it again", await measure_reopening(browser, served)),
            ):
                long.add_row(name, *format_spread(samples, "0"), "500")
            ours, plain = (
                await measure_scrolling(browser, served),
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
    counts = {
        name.removeprefix("STATE_").lower().replace("_", " "): n for name, n in states.items()
    }
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if name)


def run_benchmark() -> list[BenchTable]:
    return uvloop.run(measure_page())
