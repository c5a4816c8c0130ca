"""A scene: a stage, and a person in front of it who has just come in.

What comes in costs more than what is then done, so tests that leave the stage as it is share one,
and each has an agent of its own to talk with.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from playwright.async_api import Browser, expect

from apps.web.stage import Stage, keep_much, stage
from apps.web.tests.gateway.phone import Phone, Session, phone
from apps.web.tests.gateway.world import let_in
from crabtalk_web.sealing import to_backup_text
from tests.model_server import read_script

from .visitor import Visitor, visitor

OWL = "owl"  # who is a guest, and whom tasks are given to
NAMES = tuple(f"crab{ending}" for ending in (*ascii_lowercase, "za", "zb", "zc", "zd"))


def cast(*names: str) -> dict[str, str]:
    return {name: f'prompt = "You are {name}."\n' for name in (*names, OWL)}


@dataclass
class Scene:
    """`device` has the same account as the person, and is a program."""

    stage: Stage
    device: Phone
    person: Visitor
    browser: Browser
    agent: str = "crab"

    @property
    def words(self) -> str:
        return to_backup_text(self.device.secret.secret)

    async def session(self) -> Session:
        return await self.device.session(self.agent)

    async def ask(self, words: str, script: str) -> None:
        """The person says this, and the model then does that."""
        self.stage.model.plays[words] = read_script(script)
        await self.person.say(words)

    async def told(self, role: str) -> list[str]:
        """What the agent was told, by a person (user) or by its tools (tool)."""
        async with self.stage.daemon.client() as client:
            page = await client.list_messages(self.agent)
        return [message.content for message in page.messages if message.role == role]

    @asynccontextmanager
    async def somebody(self, *, width: int = 1440) -> AsyncIterator[Visitor]:
        """Another browser, that has never been here."""
        async with visitor(self.browser, self.stage.url, width=width) as other:
            yield other


class Home:
    """A scene that lasts. Each test gets a conversation in it that nobody has been in."""

    def __init__(self, made: Scene) -> None:
        self._scene = made
        self._names: Iterator[str] = iter(NAMES)

    @asynccontextmanager
    async def room(self, *, enters: bool = True) -> AsyncIterator[Scene]:
        found = self._scene
        person, agent = found.person, next(self._names)
        person.watch.forget()
        await person.open_list()
        if enters:
            await person.enter(agent)
        yield Scene(found.stage, found.device, person, found.browser, agent)
        person.watch.check()


@asynccontextmanager
async def scene(
    browser: Browser,
    path: Path,
    *names: str,
    enters: bool = True,
    events: int = 0,
    keeps: bool = False,
) -> AsyncIterator[Scene]:
    """With the person in the conversation with the first agent, or at the list. `events` are those
    of a long conversation that is there as well; a browser that `keeps` the page opens it without a
    network, too."""
    names = names or ("crab",)
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(stage(path, agents=cast(*names)))
        device = await stack.enter_async_context(phone(on.url))
        await on.start_gateway(await let_in(device, on.url))
        if events:
            await keep_much(device, events)
        person = await stack.enter_async_context(visitor(browser, on.url, keeps=keeps))
        made = Scene(on, device, person, browser, names[0])
        await person.open("/")
        await person.restore(made.words)
        await expect(person.conversation(names[0])).to_be_visible()
        if enters:
            await person.enter(names[0])
        yield made
