"""The adapter with a real daemon: its feed and streams have the form the adapter expects."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.adapter.adapter_session import SESSION, AdapterSession
from crabtalk.client import Client
from crabtalk.protocol import wire
from crabtalk_web.adapter import (
    ConversationResolver,
    EnvelopeAdapter,
    TurnStreamReader,
    parse_feed_event,
)
from crabtalk_web.stream import TurnEnd
from tests.daemon.in_process_daemon import (
    InProcessDaemon,
    collect_events,
    run_daemon,
    script_tool_calls,
    wait_for_event,
    wait_until,
)

PAIR = ("crab", "user~bo")


class FeedSession(AdapterSession):
    """The events of crab and bo, as a client of the feed receives them."""

    def __init__(self) -> None:
        super().__init__(EnvelopeAdapter(SESSION))
        self.resolver = ConversationResolver()

    async def follow(self, feed: AsyncGenerator[wire.AgentEventMsg, None]) -> None:
        async for message in feed:
            received = parse_feed_event(message)
            if self.resolver.find_conversation(message) == PAIR and received is not None:
                self.handle_events([received])

    @property
    def turn_statuses(self) -> list[str]:
        return [e.ev.status for e in self.envelopes if isinstance(e.ev, TurnEnd)]


@asynccontextmanager
async def follow_daemon(daemon: InProcessDaemon) -> AsyncIterator[tuple[FeedSession, Client]]:
    """Also yields a client to act with."""
    feed_session = FeedSession()
    others = len(daemon.daemon.feed)
    async with daemon.client() as subscriber, daemon.client() as client:
        feed = subscriber.subscribe_events(all_kinds=True)
        task = asyncio.ensure_future(feed_session.follow(feed))
        await wait_until(lambda: len(daemon.daemon.feed) > others)
        try:
            yield feed_session, client
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.req("adapter.daemon")
async def test_a_turn_with_tools_and_tasks_within_tasks(tmp_path: Path) -> None:
    inner = script_tool_calls([("delegate", {"tasks": [{"message": "!say deep"}]})])
    outer: list[tuple[str, dict[str, Any]]] = [
        ("delegate", {"tasks": [{"agent": "twin", "message": inner}, {"message": "!say flat"}]}),
        ("recall", {"query": "sand"}),
    ]
    script = "!think hm\n!say Let me see.\n" + script_tool_calls(outer)
    async with (
        run_daemon(tmp_path, hooks={}) as daemon,
        follow_daemon(daemon) as (feed_session, client),
    ):
        await client.send("crab", script, sender="user~bo")
        await wait_until(lambda: feed_session.turn_statuses == ["completed"])
        words = feed_session.summaries
    assert words[:4] == [f"user-text {script}", "turn-start", "thinking hm", "text Let me see."]
    assert words[-2:] == ["text done", "turn-end completed"]
    assert "text[A] done" in words
    assert "text[B] flat" in words
    assert "text[C] deep" in words
    inside = [word for word in words if "[C]" in word]
    assert [word.split()[0] for word in inside] == ["start[C]", "text[C]", "stop[C]"]
    assert feed_session.envelopes[-2].usage


@pytest.mark.req("adapter.daemon")
async def test_guests_steers_questions_and_kills_are_on_the_feed(
    tmp_path: Path,
) -> None:
    async with (
        run_daemon(tmp_path, hooks={}) as daemon,
        follow_daemon(daemon) as (feed_session, client),
        daemon.client() as other,
    ):
        await client.send("crab", "!say me too", sender="user~bo", guest="twin")
        await wait_until(lambda: feed_session.turn_statuses == ["completed"])
        assert feed_session.summaries[1:] == [
            "turn-start",
            "start[A] twin",
            "text[A] me too",
            "stop[A]",
            "turn-end completed",
        ]
        script = script_tool_calls(
            [("ask_user", {"questions": [{"question": "Q?", "header": "H"}]})]
        )
        stream = client.stream("crab", script, sender="user~bo")
        await wait_for_event(stream, wire.AskUserEvent)
        await wait_until(lambda: len(feed_session.adapter.pending_asks) == 1)
        (ask,) = feed_session.adapter.pending_asks
        assert (ask.agent, ask.sender) == PAIR
        await other.steer_session("crab", "!say turned", sender="user~bo")
        await other.reply_to_ask(ask.agent, "yes", sender=ask.sender, ask_id=ask.id)
        await collect_events(stream)
        await wait_until(lambda: len(feed_session.turn_statuses) == 2)
        assert "user-text !say turned" in feed_session.summaries
        assert feed_session.adapter.pending_asks == ()
        stream = client.stream("crab", "!say half\n!hang", sender="user~bo")
        await wait_for_event(stream, wire.StreamChunk)
        await other.kill("crab", sender="user~bo")
        await collect_events(stream)
        await wait_until(
            lambda: feed_session.turn_statuses == ["completed", "completed", "cancelled"]
        )
        assert feed_session.summaries[-2:] == ["text half", "turn-end cancelled"]


@pytest.mark.req("adapter.daemon")
@pytest.mark.req("adapter.deterministic")
async def test_a_stream_and_the_feed_of_the_same_turn_give_the_same_envelopes(
    tmp_path: Path,
) -> None:
    script = "!think hm\n" + script_tool_calls(
        [("recall", {"query": "a"}), ("recall", {"query": "b"})]
    )
    async with (
        run_daemon(tmp_path, hooks={}) as daemon,
        follow_daemon(daemon) as (feed_session, client),
    ):
        own, reader = (
            AdapterSession(EnvelopeAdapter(SESSION)),
            TurnStreamReader("crab", "bo", text=script),
        )
        async for event in client.stream("crab", script, sender="user~bo"):
            if (received := reader.parse_event(event, 5)) is not None:
                own.handle_events([received])
        await wait_until(lambda: feed_session.turn_statuses == ["completed"])
    assert own.summaries == feed_session.summaries
    assert [e.id for e in own.envelopes] == [e.id for e in feed_session.envelopes]


@pytest.mark.req("adapter.daemon")
@pytest.mark.req("adapter.background")
async def test_background_reports_and_compactions_are_written_between_turns(
    tmp_path: Path,
) -> None:
    task = {"agent": "twin", "message": "!wait\n!say found it"}
    script = script_tool_calls([("delegate", {"tasks": [task], "background": True})])
    async with (
        run_daemon(tmp_path, hooks={}, summary="Of sand. And sea.") as daemon,
        follow_daemon(daemon) as (feed_session, client),
    ):
        await client.send("crab", script, sender="user~bo")
        await wait_until(lambda: len(feed_session.turn_statuses) == 1)
        assert feed_session.summaries[-3:] == ["text done", "stop[A]", "turn-end completed"]
        await wait_until(lambda: daemon.model.release() == 1)
        await wait_until(lambda: len(feed_session.turn_statuses) == 2)
        assert feed_session.summaries[-2].endswith("has finished.\n\nfound it")
        await client.compact("crab", sender="user~bo")
        await wait_until(lambda: len(feed_session.turn_statuses) == 3)
        assert feed_session.summaries[-2] == "service **Compacted:** Of sand."
