"""A daemon or service that is away and comes back, and what people are told meanwhile."""

from dataclasses import replace
from pathlib import Path

import pytest

from crabtalk.gateway import Chat, Person, Update
from crabtalk.gateway.journal_records import AvailabilityNotified, UpdateReceived
from crabtalk.service.journal import encode_record
from tests.gateway.gateway_world import open_gateway_world
from tests.gateway.pigeon_server import PigeonFault

# It waits for network traffic, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop

AWAY_NOTICE = (
    "The agent daemon cannot be reached. Your message is kept, and answered when it is back."
)
BACK_NOTICE = "The agent daemon is back."


@pytest.mark.req("gateways.away.daemon")
async def test_people_are_told_once_that_the_daemon_is_away_and_answered_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w:
        async with w.run_gateway():
            w.server.add_message("hello")
            await w.wait_for_texts(AWAY_NOTICE)
        async with w.run_gateway():  # a restart does not repeat the notice
            w.server.add_message("/agents")
            await w.server.wait_until(lambda: len(w.server.texts_in()) == 2)
            async with w.serve_daemon() as w.daemon:
                await w.server.wait_until(lambda: "heard: hello" in w.server.texts_in())
                await w.wait_until_idle()
                assert await w.list_user_messages() == ["hello"]
    texts = w.server.texts_in()
    assert texts.count(AWAY_NOTICE) == 1
    assert texts.count(BACK_NOTICE) == 1
    assert texts.index(BACK_NOTICE) < texts.index("heard: hello")


@pytest.mark.req("gateways.away.daemon")
async def test_a_turn_that_ended_with_the_daemon_is_not_started_again(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w, w.run_gateway():
        async with w.serve_daemon() as w.daemon:
            w.server.add_message("!say So far.\n!hang")
            await w.wait_for_texts("So far.")
        await w.server.wait_until(lambda: AWAY_NOTICE in w.server.texts_in())
        async with w.serve_daemon() as w.daemon:
            await w.server.wait_until(lambda: "(The daemon stopped" in "".join(w.server.texts_in()))
            w.server.add_message("hello")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == "heard: hello")
            await w.wait_until_idle()
            assert await w.list_user_messages() == ["!say So far.\n!hang", "hello"]
            assert w.server.texts_in()[0].startswith("So far.\n\n(The daemon stopped")


@pytest.mark.req("gateways.away.service")
async def test_an_unreachable_service_gets_the_answer_when_it_is_back(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        assert w.daemon is not None
        w.bounds = replace(w.bounds, late_after=0.0)
        async with w.run_gateway():
            w.server.add_message("!wait\n!say done")
            await w.daemon.model.until_waiting()
            w.server.is_away = True
            w.daemon.model.release()
            tries = len(w.server.calls)
            await w.wait_until(lambda: w.server.calls[tries:].count("send") >= 2)
            w.server.is_away = False
            await w.server.wait_until(lambda: w.server.texts_in())
            await w.wait_until_idle()
            (text,) = w.server.texts_in()
            assert text.endswith("done")
            assert "(late: pigeon could not be reached for a while)" in text


@pytest.mark.req("gateways.away.notices")
async def test_a_notice_that_certainly_did_not_arrive_is_sent_again(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w, w.run_gateway():
        w.server.inject_faults(
            "send", PigeonFault(429, seconds=0.05), PigeonFault(429, seconds=0.05)
        )
        w.server.add_message("hello")
        await w.wait_for_texts(AWAY_NOTICE)
        w.server.inject_faults("send", PigeonFault(429, seconds=0.05))
        async with w.serve_daemon() as w.daemon:
            await w.wait_for_texts(AWAY_NOTICE, BACK_NOTICE, "heard: hello")
            await w.wait_until_idle()


@pytest.mark.req("gateways.away.notices")
async def test_a_notice_that_may_have_arrived_is_not_sent_again(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w, w.run_gateway():
        w.server.inject_faults("send", PigeonFault(0))
        w.server.add_message("hello")
        await w.wait_until(lambda: "send" in w.server.calls)
        async with w.serve_daemon() as w.daemon:
            await w.wait_for_texts(BACK_NOTICE, "heard: hello")
            await w.wait_until_idle()
        assert w.server.calls.count("send") == 3


@pytest.mark.req("gateways.away.notices")
async def test_a_notice_that_is_no_longer_true_is_not_sent(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w, w.run_gateway():
        w.server.inject_faults("send", PigeonFault(429, seconds=600))
        w.server.add_message("hello")
        await w.wait_until(lambda: "send" in w.server.calls)
        async with w.serve_daemon() as w.daemon:
            await w.wait_for_texts("heard: hello")
            await w.wait_until_idle()


@pytest.mark.req("gateways.away.notices")
async def test_after_a_crash_people_are_told_once_that_the_daemon_is_back(
    tmp_path: Path,
) -> None:
    received = UpdateReceived(Update("u-before", Chat("7"), Person("7", "Ann"), "hello"))
    async with open_gateway_world(tmp_path, has_daemon=False) as w:
        (w.home / "pigeon").mkdir(parents=True)
        records = (received, AvailabilityNotified("7", is_away=True))
        (w.home / "pigeon" / "journal").write_bytes(b"".join(map(encode_record, records)))
        async with w.run_gateway() as gateway:
            w.server.add_message("/agents")
            await w.server.wait_until(lambda: w.server.texts_in())  # the notice that it is away
            await w.wait_until(lambda: gateway.statistics()["waiting"] == 1)
            async with w.serve_daemon() as w.daemon:
                await w.server.wait_until(
                    lambda: w.server.texts_in()[1:] == [BACK_NOTICE, "heard: hello"]
                )
                await w.wait_until_idle()
