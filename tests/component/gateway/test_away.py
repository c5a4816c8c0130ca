"""Away and back: the daemon, the service, and what whoever waits is told of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from crabtalk.component.gateway import Chat, Person, Update
from crabtalk.component.gateway.entries import Came, Noticed
from crabtalk.component.journal import encoded
from tests.component.gateway.loft import Fault
from tests.component.gateway.world import world

# What it waits for is on the wire, and the loop makes no difference.
pytestmark = pytest.mark.one_loop

AWAY = "The agent daemon cannot be reached. Your message is kept, and answered when it is back."
BACK = "The agent daemon is back."


@pytest.mark.req("gateways.away.daemon")
async def test_a_daemon_that_is_away_is_told_once_and_answers_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, has_daemon=False) as w:
        async with w.running():
            w.loft.says("hello")
            await w.told(AWAY)
        async with w.running():  # a restart tells it no second time
            w.loft.says("/agents")
            await w.loft.until(lambda: len(w.loft.texts()) == 2)
            async with w.serving() as w.daemon:
                await w.loft.until(lambda: "heard: hello" in w.loft.texts())
                await w.idle()
                assert await w.heard() == ["hello"]
    texts = w.loft.texts()
    assert texts.count(AWAY) == 1
    assert texts.count(BACK) == 1
    assert texts.index(BACK) < texts.index("heard: hello")


@pytest.mark.req("gateways.away.daemon")
async def test_a_turn_that_the_daemon_took_down_with_it_is_not_begun_again(tmp_path: Path) -> None:
    async with world(tmp_path, has_daemon=False) as w, w.running():
        async with w.serving() as w.daemon:
            w.loft.says("!say So far.\n!hang")
            await w.told("So far.")
        await w.loft.until(lambda: AWAY in w.loft.texts())
        async with w.serving() as w.daemon:
            await w.loft.until(lambda: "(The daemon stopped" in "".join(w.loft.texts()))
            w.loft.says("hello")
            await w.loft.until(lambda: w.loft.texts()[-1] == "heard: hello")
            await w.idle()
            assert await w.heard() == ["!say So far.\n!hang", "hello"]
            assert w.loft.texts()[0].startswith("So far.\n\n(The daemon stopped")


@pytest.mark.req("gateways.away.service")
async def test_a_service_that_is_away_gets_the_answer_when_it_is_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        assert w.daemon is not None
        w.bounds = replace(w.bounds, late_after=0.0)
        async with w.running():
            w.loft.says("!wait\n!say done")
            await w.daemon.model.until_waiting()
            w.loft.is_away = True
            w.daemon.model.release()
            tries = len(w.loft.calls)
            await w.until(lambda: w.loft.calls[tries:].count("send") >= 2)
            w.loft.is_away = False
            await w.loft.until(lambda: w.loft.texts())
            await w.idle()
            (text,) = w.loft.texts()
            assert text.endswith("done")
            assert "(late: pigeon could not be reached for a while)" in text


@pytest.mark.req("gateways.away.notices")
async def test_a_notice_that_surely_did_not_arrive_is_sent_again(tmp_path: Path) -> None:
    async with world(tmp_path, has_daemon=False) as w, w.running():
        w.loft.fail("send", Fault(429, seconds=0.05), Fault(429, seconds=0.05))
        w.loft.says("hello")
        await w.told(AWAY)
        w.loft.fail("send", Fault(429, seconds=0.05))
        async with w.serving() as w.daemon:
            await w.told(AWAY, BACK, "heard: hello")
            await w.idle()


@pytest.mark.req("gateways.away.notices")
async def test_a_notice_that_may_have_arrived_is_not_sent_again(tmp_path: Path) -> None:
    async with world(tmp_path, has_daemon=False) as w, w.running():
        w.loft.fail("send", Fault(0))
        w.loft.says("hello")
        await w.until(lambda: "send" in w.loft.calls)
        async with w.serving() as w.daemon:
            await w.told(BACK, "heard: hello")
            await w.idle()
        assert w.loft.calls.count("send") == 3


@pytest.mark.req("gateways.away.notices")
async def test_what_the_service_takes_too_late_to_be_true_is_not_said(tmp_path: Path) -> None:
    async with world(tmp_path, has_daemon=False) as w, w.running():
        w.loft.fail("send", Fault(429, seconds=600))
        w.loft.says("hello")
        await w.until(lambda: "send" in w.loft.calls)
        async with w.serving() as w.daemon:
            await w.told("heard: hello")
            await w.idle()


@pytest.mark.req("gateways.away.notices")
async def test_who_was_told_by_a_process_that_died_is_told_once_that_it_is_back(
    tmp_path: Path,
) -> None:
    came = Came(Update("u-before", Chat("7"), Person("7", "Ann"), "hello"))
    async with world(tmp_path, has_daemon=False) as w:
        (w.home / "pigeon").mkdir(parents=True)
        records = (came, Noticed("7", is_away=True))
        (w.home / "pigeon" / "journal").write_bytes(b"".join(map(encoded, records)))
        async with w.running() as gateway:
            w.loft.says("/agents")
            await w.loft.until(lambda: w.loft.texts())  # which says that nobody answers
            await w.until(lambda: gateway.statistics()["waiting"] == 1)
            async with w.serving() as w.daemon:
                await w.loft.until(lambda: w.loft.texts()[1:] == [BACK, "heard: hello"])
                await w.idle()
