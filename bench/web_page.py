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

from apps.web.tests.browser.chromium import MISSING, find, launched
from apps.web.tests.browser.visitor import Visitor, visitor

from .peers import percentile
from .report import Table

VISITS = 10
OPENINGS = 5
CHUNKS, RATES = 300, (20, 100)
PIXELS, SPEED = 48_000, 6_000
TRACED = ["devtools.timeline", "disabled-by-default-devtools.timeline.frame"]

# When somebody can do something, in milliseconds since they asked for the page.
READY = """
new MutationObserver((_, observer) => {
  if (!document.documentElement?.dataset.ready) return;
  observer.disconnect();
  window.readyAt = performance.now();
}).observe(document, { attributes: true, subtree: true });
"""
LOADED = """() => [...performance.getEntriesByType("navigation"),
  ...performance.getEntriesByType("resource")]
  .filter((entry) => entry.startTime <= window.readyAt && entry.name.startsWith(location.origin))
  .map((entry) => [entry.name, entry.encodedBodySize, entry.decodedBodySize])"""
# From the click on a conversation until its end has been painted.
OPENED = """(words) => new Promise((done) => {
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
WATCH = """() => {
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
class Place:
    url: str
    words: str


@contextmanager
def stage() -> Iterator[Place]:
    command = [sys.executable, "-m", "apps.web.stage"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = dict(process.stdout.readline().split() for _ in range(2))
            yield Place(told["page"].rstrip("/"), told["words"])
        finally:
            process.terminate()


@asynccontextmanager
async def inside(browser: Browser, place: Place) -> AsyncIterator[Visitor]:
    """Somebody at the list."""
    async with visitor(browser, place.url) as person:
        await person.open("/")
        await person.restore(place.words)
        await expect(person.conversation("keeper")).to_be_visible()
        yield person


# ── The first visit ────────────────────────────────────────────────────────────────────────────


async def first_load(browser: Browser, place: Place) -> Table:
    ready, entries = [], []
    for _ in range(VISITS):
        async with visitor(browser, place.url, keeps=True) as person:
            await person.page.add_init_script(READY)
            await person.open("/")
            await person.page.wait_for_function("() => window.readyAt")
            ready.append(float(await person.page.evaluate("() => window.readyAt")))
            entries = await person.page.evaluate(LOADED)
            bodies = [await body(person.page.context, name) for name, _, _ in entries]
    packed = sum(len(gzip.compress(each, 6)) for each in bodies)
    table = Table("The page, a first visit", ["", "", "target"])
    table.row("files", str(len(entries)), "")
    table.row("KB, as they are", f"{sum(map(len, bodies)) / 1024:.0f}", "")
    table.row("KB, gzipped", f"{packed / 1024:.0f}", "300")
    table.row("KB, over the wire", f"{sum(sent for _, sent, _ in entries) / 1024:.0f}", "")
    table.row("ms until it can be used, p50", f"{percentile(ready, 0.5):.0f}", "1000")
    table.row(f"ms until it can be used, worst of {VISITS}", f"{max(ready):.0f}", "1000")
    return table


async def body(context: BrowserContext, url: str) -> bytes:
    return await (await context.request.get(url)).body()


# ── A long conversation ────────────────────────────────────────────────────────────────────────


async def opening(browser: Browser, place: Place) -> list[float]:
    """Each time as if it had just been visited for the first time: all of it is at the relay."""
    taken = []
    for _ in range(OPENINGS):
        async with inside(browser, place) as person:
            taken.append(await opened(person))
    return taken


async def reopening(browser: Browser, place: Place) -> list[float]:
    taken = []
    async with inside(browser, place) as person:
        await opened(person)
        for _ in range(OPENINGS):
            await person.open("/")
            await expect(person.conversation("keeper")).to_be_visible()
            taken.append(await opened(person))
    return taken


async def opened(person: Visitor) -> float:
    await person.page.evaluate(f"(words) => {{ window.opened = ({OPENED})(words); }}", LAST)
    await person.conversation("keeper").first.click()
    return float(await person.page.evaluate("() => window.opened"))


@dataclass
class Scrolled:
    """What a browser traced while somebody scrolled, up and down again."""

    gaps: list[float] = field(default_factory=list)  # ms between two frames that were drawn
    work: list[float] = field(default_factory=list)  # CPU ms of the page for a frame
    fates: Counter[str] = field(default_factory=Counter)

    async def trace(self, browser: Browser, page: Page, pixels: int) -> None:
        await browser.start_tracing(page=page, categories=TRACED)
        await scroll(page, pixels)
        events = json.loads(await browser.stop_tracing())["traceEvents"]
        drawn = sorted(event["ts"] for event in events if event["name"] == "DrawFrame")
        self.gaps += [(b - a) / 1000 for a, b in pairwise(drawn)]
        self.work += work(events)
        self.fates += fates(events)


async def scrolling(browser: Browser, place: Place) -> Scrolled:
    scrolled = Scrolled()
    async with inside(browser, place) as person:
        await opened(person)
        await person.page.wait_for_timeout(1000)
        for pixels in (PIXELS, -PIXELS):
            await scrolled.trace(browser, person.page, pixels)
    return scrolled


async def scrolling_plainly(browser: Browser) -> Scrolled:
    """The same over lines of text with nothing behind them: what this machine can draw."""
    scrolled = Scrolled()
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    lines = "".join(f"<p>Line {number}: {WORDS}</p>" for number in range(2000))
    await page.set_content(f'<div role="log" {PLAIN}>{lines}</div>')
    for pixels in (-PIXELS, PIXELS):
        await scrolled.trace(browser, page, pixels)
    await context.close()
    return scrolled


async def scroll(page: Page, pixels: int) -> None:
    session = await page.context.new_cdp_session(page)
    box = await page.get_by_role("log").bounding_box()
    assert box is not None
    gesture = {
        "x": box["x"] + box["width"] / 2,
        "y": box["y"] + box["height"] / 2,
        "yDistance": pixels,
        "speed": SPEED,
        "gestureSourceType": "mouse",
    }
    await session.send("Input.synthesizeScrollGesture", gesture)


def work(events: list[dict[str, Any]]) -> list[float]:
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


def fates(events: list[dict[str, Any]]) -> Counter[str]:
    reports = [e["args"] for e in events if (e["name"], e["ph"]) == ("PipelineReporter", "b")]
    return Counter(report.get("frame_reporter", {}).get("state", "") for report in reports)


# ── Words as they are written ──────────────────────────────────────────────────────────────────


async def chunks(browser: Browser, place: Place, rate: int) -> list[float]:
    async with inside(browser, place) as person:
        await person.enter("newcomer")
        await person.page.evaluate(WATCH)
        start = time.monotonic_ns()
        await person.say(f"!chunks {CHUNKS} {rate}")
        await expect(person.button("Stop")).to_be_visible()
        await expect(person.button("Stop")).to_be_hidden(timeout=60_000)
        stamps = await person.page.evaluate("() => [...window.stamps]")
    offset = (time.time_ns() - time.monotonic_ns()) / 1e6
    # What was there before is somebody else's.
    return [at - (int(stamp) / 1e6 + offset) for stamp, at in stamps if int(stamp) > start]


LAST = "Question 1429"
WORDS = "the quick brown fox jumps over the lazy dog and comes back again. " * 2
PLAIN = 'style="height: 800px; overflow: auto; font: 16px sans-serif"'


async def measured() -> list[Table]:
    path = find()
    if path is None:
        sys.exit(MISSING)
    with stage() as place:
        async with launched(path) as browser:
            tables = [await first_load(browser, place)]
            words = Table(
                "The page, ms from a chunk that the model writes to its pixels",
                ["chunks /s", "p50", "p99", "worst"],
                note="At most 100 ms is the target.",
            )
            for rate in RATES:
                taken = await chunks(browser, place, rate)
                cells = (percentile(taken, 0.5), percentile(taken, 0.99), max(taken))
                words.row(str(rate), *(f"{cell:.0f}" for cell in cells))
            long = Table(
                "The page, a conversation of 10,000 events",
                ["", "p50", "p95", "worst", "target"],
            )
            for name, samples in (
                ("ms to open it, all of it at the relay", await opening(browser, place)),
                ("ms to open it again", await reopening(browser, place)),
            ):
                long.row(name, *spread(samples, "0"), "500")
            ours, plain = await scrolling(browser, place), await scrolling_plainly(browser)
            long.row("CPU ms a frame while it is scrolled", *spread(ours.work, "1"), "16.7")
            long.row("ms between frames while it is scrolled", *spread(ours.gaps, "1"), "16.7")
            long.row("the same, over plain lines of text", *spread(plain.gaps, "1"), "")
            long.note = f"Frames: {told(ours.fates)}. Over plain lines: {told(plain.fates)}."
            return [*tables, words, long]


def spread(samples: list[float], digits: str) -> list[str]:
    cells = (percentile(samples, 0.5), percentile(samples, 0.95), max(samples))
    return [f"{cell:.{digits}f}" for cell in cells]


def told(states: Counter[str]) -> str:
    shown = {name.removeprefix("STATE_").lower().replace("_", " "): n for name, n in states.items()}
    return ", ".join(f"{count} {name}" for name, count in sorted(shown.items()) if name)


def run() -> list[Table]:
    return uvloop.run(measured())
