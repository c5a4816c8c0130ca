"""A page setup: a dev server, and a person who has just logged in.

Starting it costs more than most tests, so tests that leave the server unchanged share one, and each
gets its own agent.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from playwright.async_api import Browser, expect

from apps.web.dev_server import DevServer, create_long_session, run_dev_server
from apps.web.tests.gateway.device_client import DeviceClient, DeviceSession, open_device
from apps.web.tests.gateway.web_gateway_world import pair_with_device
from crabtalk_web.sealing import to_backup_text
from tests.model_server import read_script

from .browser_user import BrowserUser, open_browser_user

OWL = "owl"  # the guest, and the agent that gets tasks
NAMES = tuple(f"crab{ending}" for ending in (*ascii_lowercase, "za", "zb", "zc", "zd"))


def build_agents(*names: str) -> dict[str, str]:
    return {name: f'prompt = "You are {name}."\n' for name in (*names, OWL)}


@dataclass
class PageSetup:
    """`device` is a program with the same account as the person."""

    server: DevServer
    device: DeviceClient
    person: BrowserUser
    browser: Browser
    agent: str = "crab"

    @property
    def backup_words(self) -> str:
        return to_backup_text(self.device.secret.secret)

    async def wait_for_session(self) -> DeviceSession:
        return await self.device.wait_for_session(self.agent)

    async def say_scripted(self, words: str, script: str) -> None:
        """The person sends this message, and the model then follows the script."""
        self.server.model.dialogues[words] = read_script(script)
        await self.person.send_text(words)

    async def read_stored_texts(self, role: str) -> list[str]:
        """The texts that the agent got from a person (user) or from its tools (tool)."""
        async with self.server.daemon.client() as client:
            page = await client.list_messages(self.agent)
        return [message.content for message in page.messages if message.role == role]

    @asynccontextmanager
    async def open_other_browser(self, *, width: int = 1440) -> AsyncIterator[BrowserUser]:
        """Another, new browser."""
        async with open_browser_user(self.browser, self.server.url, width=width) as other:
            yield other


class SharedPage:
    """A shared page. Each test gets a conversation in it that no test has used."""

    def __init__(self, setup: PageSetup) -> None:
        self._scene = setup
        self._names: Iterator[str] = iter(NAMES)

    @asynccontextmanager
    async def open_new_conversation(self, *, enters: bool = True) -> AsyncIterator[PageSetup]:
        found = self._scene
        person, agent = found.person, next(self._names)
        person.watch.reset()
        await person.open_list()
        if enters:
            await person.open_conversation(agent)
        yield PageSetup(found.server, found.device, person, found.browser, agent)
        person.watch.check()


@asynccontextmanager
async def set_up_page(
    browser: Browser,
    path: Path,
    *names: str,
    enters: bool = True,
    events: int = 0,
    keeps: bool = False,
) -> AsyncIterator[PageSetup]:
    """With the person in the conversation with the first agent, or at the list. `events` adds a
    long conversation of that length; a browser that `keeps` the page also opens it offline."""
    names = names or ("crab",)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(run_dev_server(path, agents=build_agents(*names)))
        device = await stack.enter_async_context(open_device(server.url))
        await server.start_gateway(await pair_with_device(device, server.url))
        if events:
            await create_long_session(device, events)
        person = await stack.enter_async_context(
            open_browser_user(browser, server.url, keeps=keeps)
        )
        setup = PageSetup(server, device, person, browser, names[0])
        await person.open("/")
        await person.restore_account(setup.backup_words)
        await expect(person.conversation_link(names[0])).to_be_visible()
        if enters:
            await person.open_conversation(names[0])
        yield setup
