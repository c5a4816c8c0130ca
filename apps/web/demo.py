"""Plays the page in a browser and takes a picture of it: `python -m apps.web.demo [FILE]`.

Daemon, relay, gateway, tools and browser are real; only the model says what stands here. What it
works on is what the chat's pictures show, and the machine has the same name wherever it is taken.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from playwright.async_api import ViewportSize, expect

from apps.tui.demo import ANSWER, EDIT, QUESTIONS, READ, RUN, TABLE
from apps.web.stage import Stage, stage, talk
from apps.web.tests.browser.chromium import MISSING, find, launched
from apps.web.tests.browser.plays import Steps, call, say, think
from apps.web.tests.browser.visitor import Visitor, visitor
from apps.web.tests.gateway.phone import Phone, phone
from apps.web.tests.gateway.world import let_in
from crabtalk_web.sealing import to_backup_text

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "web.png"
SIZE: ViewportSize = {"width": 1440, "height": 1020}
MACHINE = "heron"
CAST = ("crab", "harbour", "owl", "reader", "scout")
NOON = "Why does the tide table stop at noon?"
OPINION = "what do you think?"
OFFICE = "Make it a page for the harbour office"
PAPERS = "What is in the papers?"
PROMISE = "What did I promise the harbour office?"
STORM = "Is there a storm coming?"
PLAYS: dict[str, Steps] = {
    NOON: (
        (
            think("Let me look at the file, and at what it prints."),
            call(READ[0], **READ[1]),
            call(RUN[0], **RUN[1]),
            call("set_title", title="Tide table"),
        ),
        (say("It stops at noon. I will mend it."), call(EDIT[0], **EDIT[1])),
        (call(RUN[0], **RUN[1]),),
        (say(ANSWER),),
    ),
    OPINION: (
        (say("It is right now. I would still write a **test** for the hour before midnight."),),
    ),
    OFFICE: ((say("Gladly. Two things first:"), call("ask_user", **QUESTIONS)),),
    PAPERS: (
        (call("set_title", title="Morning papers"),),
        (say("Three things: the ferry is back, the lighthouse has a keeper, and it will rain."),),
    ),
    PROMISE: ((say("A page by Friday, in metres. You said so on Monday."),),),
    STORM: (
        (
            say("I follow the barometer, and tell you when it falls."),
            call("bash", command="tail -f barometer.log", timeout=3600),
        ),
    ),
}


async def play(picture: Path) -> None:
    chromium = find()
    if chromium is None:
        sys.exit(MISSING)
    agents = {name: f'prompt = "You are {name}."\n' for name in CAST}
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("socket.gethostname", return_value=MACHINE),
    ):
        async with (
            stage(Path(folder), agents=agents) as on,
            phone(on.url) as device,
            launched(chromium) as browser,
            visitor(browser, on.url) as person,
        ):
            on.model.plays = dict(PLAYS)
            (on.work / "tides.py").write_text(TABLE)
            (on.work / "barometer.log").write_text("1013 hPa, steady\n")
            await on.start_gateway(await let_in(device, on.url))
            await perform(on, device)
            await arrive(person, to_backup_text(device.secret.secret))
            await person.page.screenshot(path=picture)


async def perform(on: Stage, device: Phone) -> None:
    """What is answered first, so that what goes on is on top of the list."""
    await talk(device, "reader", PAPERS)
    await talk(device, "owl", PROMISE)
    for agent, words in (("harbour", OFFICE), ("scout", STORM)):
        session = await device.session(agent)
        await device.say(session, words)
        await device.until(session, lambda found: len(found) > 2)
    await talk(device, "crab", NOON, f"@owl {OPINION}")


async def arrive(person: Visitor, words: str) -> None:
    await person.page.set_viewport_size(SIZE)
    await person.open("/")
    await person.restore(words)
    await person.enter("crab")
    await person.sees("before midnight")
    await person.unfold(person.tool("Edit"))
    await expect(person.log.get_by_text("HOURS = range(24)").first).to_be_visible()
    await person.is_at(lambda left: left < 2)


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE))
