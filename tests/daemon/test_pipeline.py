"""An event from outside, scout, crab, and a client that is told: with the daemon as a process of
its own, which is stopped and killed in the middle of it."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import Client, connect
from tests.crash.process import prepare
from tests.daemon.child import Child, Notified
from tests.daemon.served import messages, shown
from tests.model_server import ModelServer, model_server

pytestmark = pytest.mark.one_loop

FETCHED = "rss:fetch"
SCOUTED = "agent:scout:done"
TO_CRAB = f"event:{SCOUTED}"


@asynccontextmanager
async def pipeline(home: Path) -> AsyncIterator[tuple[Child, ModelServer, Notified]]:
    """Scout reads what is fetched, crab what scout says, and somebody wants to know what crab
    says. Owl is told once, of whatever comes first."""
    async with model_server() as model:
        prepare(home, model)
        (home / "agents" / "scout.toml").write_text('prompt = "You are scout."\n')
        child, notified = Child(home), Notified(home, "crab")
        listening = asyncio.ensure_future(notified.listen())
        try:
            await child.start()
            async with connect(home=home) as client:
                await client.subscribe_event(FETCHED, "scout")
                await client.subscribe_event(SCOUTED, "crab")
                await client.subscribe_event(SCOUTED, "owl", once=True)
            await notified.until_there()
            yield child, model, notified
        finally:
            listening.cancel()
            await asyncio.wait([listening])
            await child.kill()


async def publish(home: Path, payload: str) -> None:
    async with connect(home=home) as client:
        await client.publish_event(FETCHED, payload)


async def restart(child: Child, number: signal.Signals) -> None:
    child.signal(number)
    assert await child.gone() == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    await child.start()


async def told_of(client: Client, agent: str, source: str) -> list[str]:
    found = await messages(client, agent, f"event:{source}")
    return [text for role, text in found if role == "user"]


def asked_as(model: ModelServer, agent: str) -> list[str]:
    """What the model was asked in the name of an agent, from first to last."""
    requests = [shown(request) for request in model.requests]
    return [one[-1][1] for one in requests if one[0][1].startswith(f"You are {agent}.")]


async def until_asked_as(model: ModelServer, agent: str, text: str) -> None:
    while text not in asked_as(model, agent):
        await model.until_asked(model.asked + 1)


STOPS = [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.req("events.pipeline")
@pytest.mark.req("events.survive")
@pytest.mark.parametrize("number", STOPS)
async def test_the_pipeline_goes_on_with_the_next_event_after_a_restart(
    home: Path, number: signal.Signals
) -> None:
    async with pipeline(home) as (child, model, notified):
        await publish(home, "crabs on the moon")
        first = (TO_CRAB, "heard: heard: crabs on the moon")
        await notified.until_heard(first)
        await until_asked_as(model, "owl", "heard: crabs on the moon")
        async with connect(home=home) as client:
            before = await client.list_subscriptions()
        await restart(child, number)
        await notified.until_there()
        assert notified.times >= 1
        async with connect(home=home) as client:
            assert await client.list_subscriptions() == before
        await publish(home, "and on Mars")
        await notified.until_heard(first, (TO_CRAB, "heard: heard: and on Mars"))
        async with connect(home=home) as client:
            assert await told_of(client, "scout", FETCHED) == ["crabs on the moon", "and on Mars"]
            assert await told_of(client, "crab", SCOUTED) == [
                *("heard: crabs on the moon", "heard: and on Mars"),
            ]
            assert await told_of(client, "owl", SCOUTED) == ["heard: crabs on the moon"]
        assert len(asked_as(model, "scout")) == 2
        assert len(asked_as(model, "owl")) == 1


@pytest.mark.req("events.pipeline")
@pytest.mark.req("events.stop")
@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("stage", ["scout", "crab"])
async def test_an_event_that_is_cut_off_on_its_way_is_not_fired_again_and_the_next_one_is(
    home: Path, number: signal.Signals, stage: str
) -> None:
    async with pipeline(home) as (child, model, notified):
        script = "!hang" if stage == "scout" else "!say !hang"
        await publish(home, script)
        for agent in ["scout"] if stage == "scout" else ["crab", "owl"]:
            await until_asked_as(model, agent, "!hang")
        await restart(child, number)
        await notified.until_there()
        await publish(home, "!say the next one")
        await notified.until_heard((TO_CRAB, "heard: the next one"))
        assert [one for one in asked_as(model, "scout") if one != "!hang"] == [
            *([] if stage == "scout" else [script]),
            "!say the next one",
        ]
        assert asked_as(model, stage).count("!hang") == 1
        # Whoever had it once before the daemon ended does not get it again.
        first = "the next one" if stage == "scout" else "!hang"
        await until_asked_as(model, "owl", first)
        async with connect(home=home) as client:
            assert await told_of(client, "owl", SCOUTED) == [first]


@pytest.mark.req("events.pipeline")
async def test_the_pipeline_outlives_one_end_of_the_daemon_after_the_other(home: Path) -> None:
    async with pipeline(home) as (child, model, notified):
        expected: list[tuple[str, str]] = []
        for day, number in enumerate([*STOPS, *STOPS]):
            await publish(home, f"!say news of day {day}")
            expected.append((TO_CRAB, f"heard: news of day {day}"))
            await notified.until_heard(*expected)
            await restart(child, number)
            await notified.until_there()
        assert notified.times >= 4
        assert notified.notifications == expected
        assert asked_as(model, "scout") == [f"!say news of day {day}" for day in range(4)]
