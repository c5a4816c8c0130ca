"""Drives the page in a browser and takes a screenshot: `python -m apps.web.demo [FILE]`.

Daemon, relay, gateway, tools and browser are real; only the model is scripted, below. The project
it works on is the one in the chat screenshots, and the machine name is fixed so that the picture is
the same everywhere.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from playwright.async_api import ViewportSize, expect

from apps.web.dev_server import DevServer, run_dev_server, send_and_wait
from apps.web.tests.browser.browser_user import BrowserUser, open_browser_user
from apps.web.tests.browser.chromium import MISSING, find_chromium, launch_browser
from apps.web.tests.browser.dialogues import DialogueSteps, call_tool, say_text, think_text
from apps.web.tests.gateway.device_client import DeviceClient, open_device
from apps.web.tests.gateway.web_gateway_world import pair_with_device
from crabtalk_web.sealing import to_backup_text
from docs.chat_demo import ANSWER, EDIT, QUESTIONS, READ, RUN, TABLE

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "web.png"
SIZE: ViewportSize = {"width": 1440, "height": 1020}
MACHINE = "heron"
AGENTS = ("crab", "harbour", "owl", "reader", "scout")
NOON = "Why does the tide table stop at noon?"
OPINION = "what do you think?"
OFFICE = "Make it a page for the harbour office"
PAPERS = "What is in the papers?"
PROMISE = "What did I promise the harbour office?"
STORM = "Is there a storm coming?"
DIALOGUES: dict[str, DialogueSteps] = {
    NOON: (
        (
            think_text("Let me look at the file, and at what it prints."),
            call_tool(READ[0], **READ[1]),
            call_tool(RUN[0], **RUN[1]),
            call_tool("set_title", title="Tide table"),
        ),
        (say_text("It stops at noon. I will mend it."), call_tool(EDIT[0], **EDIT[1])),
        (call_tool(RUN[0], **RUN[1]),),
        (say_text(ANSWER),),
    ),
    OPINION: (
        (
            say_text(
                "It is right now. I would still write a **test** for the hour before midnight."
            ),
        ),
    ),
    OFFICE: ((say_text("Gladly. Two things first:"), call_tool("ask_user", **QUESTIONS)),),
    PAPERS: (
        (call_tool("set_title", title="Morning papers"),),
        (
            say_text(
                "Three things: the ferry is back, the lighthouse has a keeper, and it will rain."
            ),
        ),
    ),
    PROMISE: ((say_text("A page by Friday, in metres. You said so on Monday."),),),
    STORM: (
        (
            say_text("I follow the barometer, and tell you when it falls."),
            call_tool("bash", command="tail -f barometer.log", timeout=3600),
        ),
    ),
}


async def take_picture(picture: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit(MISSING)
    agents = {name: f'prompt = "You are {name}."\n' for name in AGENTS}
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("socket.gethostname", return_value=MACHINE),
    ):
        async with (
            run_dev_server(Path(folder), agents=agents) as server,
            open_device(server.url) as device,
            launch_browser(chromium) as browser,
            open_browser_user(browser, server.url) as person,
        ):
            server.model.dialogues = dict(DIALOGUES)
            (server.work_folder / "tides.py").write_text(TABLE)
            (server.work_folder / "barometer.log").write_text("1013 hPa, steady\n")
            await server.start_gateway(await pair_with_device(device, server.url))
            await have_conversations(server, device)
            await open_conversation(person, to_backup_text(device.secret.secret))
            await person.page.screenshot(path=picture)


async def have_conversations(server: DevServer, device: DeviceClient) -> None:
    """Run the finished conversations first, so that the open one is at the top of the list."""
    await send_and_wait(device, "reader", PAPERS)
    await send_and_wait(device, "owl", PROMISE)
    for agent, text in (("harbour", OFFICE), ("scout", STORM)):
        session = await device.wait_for_session(agent)
        await device.send_text(session, text)
        await device.wait_for_envelopes(session, lambda envelopes: len(envelopes) > 2)
    await send_and_wait(device, "crab", NOON, f"@owl {OPINION}")


async def open_conversation(person: BrowserUser, backup_text: str) -> None:
    await person.page.set_viewport_size(SIZE)
    await person.open("/")
    await person.restore_account(backup_text)
    await person.open_conversation("crab")
    await person.wait_for_text("before midnight")
    await person.expand(person.tool_card("Edit"))
    await expect(person.log.get_by_text("HOURS = range(24)").first).to_be_visible()
    await person.wait_for_scroll(lambda left: left < 2)


if __name__ == "__main__":
    asyncio.run(take_picture(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE))
