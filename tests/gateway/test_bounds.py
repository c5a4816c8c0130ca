"""Bounds: nothing grows without limit, whatever people send."""

import asyncio
import gc
from dataclasses import replace
from pathlib import Path

import pytest

from crabtalk.gateway.gateway import CHAT_FULL, TEXT_TOO_LONG
from tests.gateway.gateway_world import open_gateway_world
from tests.gateway.pigeon_server import PigeonFault

# It waits for network traffic, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop


@pytest.mark.req("gateways.bounds.chat")
async def test_a_chat_with_a_full_queue_is_told_so_once(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w:
        w.bounds = replace(w.bounds, waiting_in_chat=3, notice_after=60)
        async with w.run_gateway() as gateway:
            w.server.add_message("hello")
            await w.wait_until(lambda: gateway.statistics()["waiting"] == 1)
            for number in range(8):
                w.server.add_message(f"more {number}")
                await w.wait_until(lambda: not w.server.pending)
            await w.wait_for_texts(CHAT_FULL)
            assert gateway.statistics()["waiting"] == 4
            async with w.serve_daemon() as w.daemon:
                await w.wait_until_idle()
                assert await w.list_user_messages() == [
                    "hello",
                    *(f"more {number}" for number in range(3)),
                ]
                w.server.add_message("again")
                await w.wait_until_idle()
                assert "again" in await w.list_user_messages()
        assert w.server.texts_in().count(CHAT_FULL) == 1


@pytest.mark.req("gateways.bounds.waiting")
async def test_no_updates_are_fetched_while_too_many_wait(tmp_path: Path) -> None:
    people = tuple(str(number) for number in range(100, 140))
    async with open_gateway_world(tmp_path, has_daemon=False) as w:
        w.bounds = replace(w.bounds, waiting=5, notice_after=60)
        w.server.redeliver_after = 1000.0
        async with w.run_gateway(allowed_users=people) as gateway:
            for person in people:
                w.server.add_message("hello", person)
                await asyncio.sleep(0)
            await w.wait_until(lambda: gateway.statistics()["waiting"] >= 5)
            await asyncio.sleep(0.2)  # more would have been fetched by now
            assert len(w.server.acknowledged) == 5
            async with w.serve_daemon() as w.daemon:
                await w.wait_until_idle()
                assert all(w.server.texts_in(person) == ["heard: hello"] for person in people)


@pytest.mark.req("gateways.bounds.text")
async def test_a_message_that_is_too_long_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("x" * 70_000)
        await w.wait_for_texts(TEXT_TOO_LONG)
        await w.wait_until_idle()
        assert w.daemon is not None
        assert w.daemon.model.requests == []


@pytest.mark.req("gateways.bounds.notices")
async def test_strangers_do_not_fill_the_memory_when_the_service_asks_to_wait(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path, has_daemon=False) as w:
        w.bounds = replace(w.bounds, notices=3)
        w.server.inject_faults("send", *[PigeonFault(429, seconds=600)] * 20)
        async with w.run_gateway() as gateway:
            for number in range(20):
                w.server.add_message("hello", f"9{number:02}")
            await w.wait_until(lambda: not w.server.pending)
            await w.wait_until(lambda: w.server.calls.count("send") == 3)
            assert gateway.statistics()["notices"] == 3


@pytest.mark.req("gateways.bounds.turns")
async def test_the_number_of_turns_at_the_daemon_is_bounded(tmp_path: Path) -> None:
    people = tuple(str(number) for number in range(100, 106))
    async with open_gateway_world(tmp_path) as w:
        assert w.daemon is not None
        w.bounds = replace(w.bounds, turns=2)
        async with w.run_gateway(allowed_users=people) as gateway:
            for person in people:
                w.server.add_message("!wait\n!say done", person)
            await w.wait_until(lambda: gateway.statistics()["chats_at_work"] == 6)
            for number in (2, 4, 6):
                await w.wait_until(lambda n=number: len(w.daemon.model.requests) == n)  # type: ignore[misc]
                await w.daemon.model.until_waiting(2)
                assert w.daemon.daemon.runtime.running_count == 2
                w.daemon.model.release()
            await w.wait_until_idle()
            assert all(w.server.texts_in(person) == ["done"] for person in people)


@pytest.mark.req("gateways.crowd")
async def test_forty_chats_at_once_are_all_answered_and_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    people = tuple(str(number) for number in range(100, 140))
    async with open_gateway_world(tmp_path) as w, w.run_gateway(allowed_users=people) as gateway:
        for number in range(3):
            for person in people:
                w.server.add_message(f"!say {number}", person)
            await w.wait_until_idle()
        assert all(
            [text for item in w.server.texts_in(person) for text in item.split()] == ["0", "1", "2"]
            for person in people
        )
        await w.wait_until(lambda: gateway.statistics()["chats_at_work"] == 0)
        gc.collect()
        assert gateway.statistics()["waiting"] == 0
        assert gateway.statistics()["chats"] == 0
