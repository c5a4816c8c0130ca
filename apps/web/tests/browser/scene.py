"""A scene: a small stage of its own, and a person in it who has just come in."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser, expect

from apps.web.stage import Stage, keep_much, stage
from apps.web.tests.gateway.phone import Phone, phone
from apps.web.tests.gateway.world import let_in
from crabtalk_web.sealing import to_backup_text
from tests.model_server import read_script

from .visitor import Visitor, visitor

CAST = {name: f'prompt = "You are {name}."\n' for name in ("crab", "owl")}


@dataclass
class Scene:
    """`device` has the same account as the person, and is a program."""

    stage: Stage
    device: Phone
    person: Visitor
    browser: Browser

    @property
    def words(self) -> str:
        return to_backup_text(self.device.secret.secret)

    async def ask(self, words: str, script: str) -> None:
        """The person says this, and the model then does that."""
        self.stage.model.plays[words] = read_script(script)
        await self.person.say(words)

    def agent_was_told(self, *words: str) -> bool:
        """By a tool's result, whatever it looks like."""
        results = [m["text"] for m in self.stage.daemon.kept() if m["role"] == "tool"]
        return any(all(word in result for word in words) for result in results)

    @asynccontextmanager
    async def somebody(self, *, width: int = 1440) -> AsyncIterator[Visitor]:
        """Another browser, that has never been here."""
        async with visitor(self.browser, self.stage.url, width=width) as other:
            yield other


@asynccontextmanager
async def scene(
    browser: Browser, path: Path, *, agent: str = "crab", width: int = 1440, events: int = 0
) -> AsyncIterator[Scene]:
    """With the person in the conversation with an agent; with none, at the list. `events` are those
    of a long conversation that is there as well."""
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(stage(path, agents=CAST))
        device = await stack.enter_async_context(phone(on.url))
        await on.start_gateway(await let_in(device, on.url))
        if events:
            await keep_much(device, events)
        person = await stack.enter_async_context(visitor(browser, on.url, width=width))
        made = Scene(on, device, person, browser)
        await person.open("/")
        await person.restore(made.words)
        await expect(person.conversation("crab")).to_be_visible()
        if agent:
            await person.enter(agent)
        yield made
