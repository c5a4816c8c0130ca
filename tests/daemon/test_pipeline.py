"""A pipeline of an external event, two agents and a listening client. The daemon is a child process
that is stopped and killed in between."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import Client, connect
from tests.crash.launched_daemon import prepare_home
from tests.daemon.crabtalkd_process import CrabtalkdProcess, NotificationListener
from tests.daemon.in_process_daemon import list_request_messages, read_conversation
from tests.model_server import ModelServer, model_server

pytestmark = pytest.mark.one_loop

FETCHED = "rss:fetch"
SCOUTED = "agent:scout:done"
TO_CRAB = f"event:{SCOUTED}"


@asynccontextmanager
async def run_pipeline(
    home: Path,
) -> AsyncIterator[tuple[CrabtalkdProcess, ModelServer, NotificationListener]]:
    """Scout gets the fetched events, crab gets scout's answers, and a client listens to crab. Owl
    gets scout's first answer only."""
    async with model_server() as model:
        prepare_home(home, model)
        (home / "agents" / "scout.toml").write_text('prompt = "You are scout."\n')
        child, listener = CrabtalkdProcess(home), NotificationListener(home, "crab")
        listening_task = asyncio.ensure_future(listener.listen())
        try:
            await child.start()
            async with connect(home=home) as client:
                await client.subscribe_event(FETCHED, "scout")
                await client.subscribe_event(SCOUTED, "crab")
                await client.subscribe_event(SCOUTED, "owl", once=True)
            await listener.wait_until_listening()
            yield child, model, listener
        finally:
            listening_task.cancel()
            await asyncio.wait([listening_task])
            await child.kill()


async def publish_fetched(home: Path, payload: str) -> None:
    async with connect(home=home) as client:
        await client.publish_event(FETCHED, payload)


async def restart_daemon(child: CrabtalkdProcess, number: signal.Signals) -> None:
    child.send_signal(number)
    assert await child.wait_for_exit() == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    await child.start()


async def list_event_texts(client: Client, agent: str, source: str) -> list[str]:
    messages = await read_conversation(client, agent, f"event:{source}")
    return [text for role, text in messages if role == "user"]


def list_questions_to(model: ModelServer, agent: str) -> list[str]:
    """The last messages of all requests for an agent, in order."""
    requests = [list_request_messages(request) for request in model.requests]
    return [
        messages[-1][1] for messages in requests if messages[0][1].startswith(f"You are {agent}.")
    ]


async def wait_until_asked(model: ModelServer, agent: str, text: str) -> None:
    while text not in list_questions_to(model, agent):
        await model.until_asked(model.request_count + 1)


STOPS = [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.req("events.pipeline")
@pytest.mark.req("events.survive")
@pytest.mark.parametrize("number", STOPS)
async def test_the_pipeline_goes_on_with_the_next_event_after_a_restart(
    home: Path, number: signal.Signals
) -> None:
    async with run_pipeline(home) as (child, model, listener):
        await publish_fetched(home, "crabs on the moon")
        first = (TO_CRAB, "heard: heard: crabs on the moon")
        await listener.wait_for_notifications(first)
        await wait_until_asked(model, "owl", "heard: crabs on the moon")
        async with connect(home=home) as client:
            before = await client.list_subscriptions()
        await restart_daemon(child, number)
        await listener.wait_until_listening()
        assert listener.disconnects >= 1
        async with connect(home=home) as client:
            assert await client.list_subscriptions() == before
        await publish_fetched(home, "and on Mars")
        await listener.wait_for_notifications(first, (TO_CRAB, "heard: heard: and on Mars"))
        async with connect(home=home) as client:
            assert await list_event_texts(client, "scout", FETCHED) == [
                "crabs on the moon",
                "and on Mars",
            ]
            assert await list_event_texts(client, "crab", SCOUTED) == [
                *("heard: crabs on the moon", "heard: and on Mars"),
            ]
            assert await list_event_texts(client, "owl", SCOUTED) == ["heard: crabs on the moon"]
        assert len(list_questions_to(model, "scout")) == 2
        assert len(list_questions_to(model, "owl")) == 1


@pytest.mark.req("events.pipeline")
@pytest.mark.req("events.stop")
@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("stage", ["scout", "crab"])
async def test_an_interrupted_event_is_not_fired_again_but_the_next_one_is(
    home: Path, number: signal.Signals, stage: str
) -> None:
    async with run_pipeline(home) as (child, model, listener):
        script = "!hang" if stage == "scout" else "!say !hang"
        await publish_fetched(home, script)
        for agent in ["scout"] if stage == "scout" else ["crab", "owl"]:
            await wait_until_asked(model, agent, "!hang")
        await restart_daemon(child, number)
        await listener.wait_until_listening()
        await publish_fetched(home, "!say the next one")
        await listener.wait_for_notifications((TO_CRAB, "heard: the next one"))
        assert [text for text in list_questions_to(model, "scout") if text != "!hang"] == [
            *([] if stage == "scout" else [script]),
            "!say the next one",
        ]
        assert list_questions_to(model, stage).count("!hang") == 1
        # A once subscription that fired before the daemon ended does not fire again.
        first = "the next one" if stage == "scout" else "!hang"
        await wait_until_asked(model, "owl", first)
        async with connect(home=home) as client:
            assert await list_event_texts(client, "owl", SCOUTED) == [first]


@pytest.mark.req("events.pipeline")
async def test_the_pipeline_survives_repeated_restarts_of_the_daemon(home: Path) -> None:
    async with run_pipeline(home) as (child, model, listener):
        expected: list[tuple[str, str]] = []
        for day, number in enumerate([*STOPS, *STOPS]):
            await publish_fetched(home, f"!say news of day {day}")
            expected.append((TO_CRAB, f"heard: news of day {day}"))
            await listener.wait_for_notifications(*expected)
            await restart_daemon(child, number)
            await listener.wait_until_listening()
        assert listener.disconnects >= 4
        assert listener.notifications == expected
        assert list_questions_to(model, "scout") == [f"!say news of day {day}" for day in range(4)]
