"""The adapter at a real daemon: its feed and its streams are what the adapter takes them for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from apps.web.tests.adapter.session import SESSION, Session
from crabtalk.client import Client
from crabtalk.protocol import wire
from crabtalk_web.adapter import Adapter, StreamReader, Switchboard, from_feed
from crabtalk_web.stream import TurnEnd
from tests.daemon.served import (
    Served,
    becomes,
    calling,
    following,
    served,
    told,
    until,
)

PAIR = ("crab", "user~bo")


class Mirror(Session):
    """What crab and bo do, as whoever follows the feed sees it."""

    def __init__(self) -> None:
        super().__init__(Adapter(SESSION))
        self.board = Switchboard()

    def see(self, message: wire.AgentEventMsg) -> None:
        heard = from_feed(message)
        if self.board.pair_of(message) == PAIR and heard is not None:
            self.play([heard])

    @property
    def ends(self) -> list[str]:
        return [e.ev.status for e in self.envelopes if isinstance(e.ev, TurnEnd)]


@asynccontextmanager
async def mirrored(daemon: Served) -> AsyncIterator[tuple[Mirror, Client]]:
    """And a client to make things happen with."""
    mirror = Mirror()
    async with following(daemon, all_kinds=True) as follower, daemon.client() as client:
        with patch.object(follower, "hear", mirror.see):
            yield mirror, client


@pytest.mark.req("adapter.daemon")
async def test_a_turn_with_tools_and_tasks_within_tasks(tmp_path: Path) -> None:
    inner = calling([("delegate", {"tasks": [{"message": "!say deep"}]})])
    outer: list[tuple[str, dict[str, Any]]] = [
        ("delegate", {"tasks": [{"agent": "twin", "message": inner}, {"message": "!say flat"}]}),
        ("recall", {"query": "sand"}),
    ]
    script = "!think hm\n!say Let me see.\n" + calling(outer)
    async with served(tmp_path, hooks={}) as daemon, mirrored(daemon) as (mirror, client):
        await client.send("crab", script, sender="user~bo")
        await becomes(lambda: mirror.ends == ["completed"])
        words = mirror.told
    assert words[:4] == [f"user-text {script}", "turn-start", "thinking hm", "text Let me see."]
    assert words[-2:] == ["text done", "turn-end completed"]
    assert "text[A] done" in words
    assert "text[B] flat" in words
    assert "text[C] deep" in words
    inside = [word for word in words if "[C]" in word]
    assert [word.split()[0] for word in inside] == ["start[C]", "text[C]", "stop[C]"]
    assert mirror.envelopes[-2].usage


@pytest.mark.req("adapter.daemon")
async def test_guests_steers_questions_and_kills_are_seen_by_whoever_follows(
    tmp_path: Path,
) -> None:
    async with (
        served(tmp_path, hooks={}) as daemon,
        mirrored(daemon) as (mirror, client),
        daemon.client() as other,
    ):
        await client.send("crab", "!say me too", sender="user~bo", guest="twin")
        await becomes(lambda: mirror.ends == ["completed"])
        assert mirror.told[1:] == [
            "turn-start",
            "start[A] twin",
            "text[A] me too",
            "stop[A]",
            "turn-end completed",
        ]
        script = calling([("ask_user", {"questions": [{"question": "Q?", "header": "H"}]})])
        stream = client.stream("crab", script, sender="user~bo")
        await until(stream, wire.AskUserEvent)
        await becomes(lambda: len(mirror.adapter.asks) == 1)
        (ask,) = mirror.adapter.asks
        assert (ask.agent, ask.sender) == PAIR
        await other.steer_session("crab", "!say turned", sender="user~bo")
        await other.reply_to_ask(ask.agent, "yes", sender=ask.sender, ask_id=ask.id)
        await told(stream)
        await becomes(lambda: len(mirror.ends) == 2)
        assert "user-text !say turned" in mirror.told
        assert mirror.adapter.asks == ()
        stream = client.stream("crab", "!say half\n!hang", sender="user~bo")
        await until(stream, wire.StreamChunk)
        await other.kill("crab", sender="user~bo")
        await told(stream)
        await becomes(lambda: mirror.ends == ["completed", "completed", "cancelled"])
        assert mirror.told[-2:] == ["text half", "turn-end cancelled"]


@pytest.mark.req("adapter.daemon")
@pytest.mark.req("adapter.deterministic")
async def test_a_stream_and_the_feed_of_the_same_turn_give_the_same_envelopes(
    tmp_path: Path,
) -> None:
    script = "!think hm\n" + calling([("recall", {"query": "a"}), ("recall", {"query": "b"})])
    async with served(tmp_path, hooks={}) as daemon, mirrored(daemon) as (mirror, client):
        own, reader = Session(Adapter(SESSION)), StreamReader("crab", "bo", said=script)
        async for event in client.stream("crab", script, sender="user~bo"):
            if (heard := reader.read(event, 5)) is not None:
                own.play([heard])
        await becomes(lambda: mirror.ends == ["completed"])
    assert own.told == mirror.told
    assert [e.id for e in own.envelopes] == [e.id for e in mirror.envelopes]


@pytest.mark.req("adapter.daemon")
@pytest.mark.req("adapter.background")
async def test_work_in_the_background_and_a_compaction_are_told_between_turns(
    tmp_path: Path,
) -> None:
    task = {"agent": "twin", "message": "!wait\n!say found it"}
    script = calling([("delegate", {"tasks": [task], "background": True})])
    async with (
        served(tmp_path, hooks={}, summary="Of sand. And sea.") as daemon,
        mirrored(daemon) as (mirror, client),
    ):
        await client.send("crab", script, sender="user~bo")
        await becomes(lambda: len(mirror.ends) == 1)
        assert mirror.told[-3:] == ["text done", "stop[A]", "turn-end completed"]
        await becomes(lambda: daemon.model.release() == 1)
        await becomes(lambda: len(mirror.ends) == 2)
        assert mirror.told[-2].endswith("has finished.\n\nfound it")
        await client.compact("crab", sender="user~bo")
        await becomes(lambda: len(mirror.ends) == 3)
        assert mirror.told[-2] == "service **Compacted:** Of sand."
