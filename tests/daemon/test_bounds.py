"""Limits on client input, and what happens to waiting messages when the daemon stops."""

import asyncio
from pathlib import Path

import pytest

from crabtalk.client import ConnectionClosedError, ServerError
from crabtalk.protocol import wire
from crabtalk.runtime import RuntimeLimits
from tests.daemon.in_process_daemon import run_daemon, wait_for_event, wait_until


@pytest.mark.req("bounds.held_bytes")
async def test_the_size_of_waiting_messages_is_limited(tmp_path: Path) -> None:
    limits = RuntimeLimits(held_bytes=1000)
    async with run_daemon(tmp_path, limits=limits) as daemon, daemon.client() as client:
        running = client.stream("crab", "!wait\n!say ok")
        await wait_for_event(running, wire.StreamStart)
        await daemon.model.until_waiting()
        for request in (
            client.send("crab", "x" * 1000, sender="other"),
            client.steer_session("crab", "x" * 1000),
        ):
            with pytest.raises(ServerError) as caught:
                await request
            assert caught.value.code == 503
        await client.steer_session("crab", "x" * 500)
        daemon.model.release()
        await wait_for_event(running, wire.StreamEnd)
        await wait_until(lambda: not daemon.daemon.runtime.running_count)
        await client.send("crab", "x" * 1000, sender="other")


@pytest.mark.req("bounds.sender")
async def test_names_and_settings_are_limited_in_length(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hi", sender="s" * 1024)
        for request in (
            client.send("crab", "hi", sender="s" * 1025),
            client.send("crab", "hi", cwd="/" + "d" * 5000),
            client.send("crab", "hi", cwd="d\0" * 100_000),
            client.create_agent("big", "p" * 300_000),
            client.create_agent("big", "p", '{"description": "' + "d" * 300_000 + '"}'),
        ):
            with pytest.raises(ServerError) as caught:
                await request
            assert caught.value.code == 400
            assert len(caught.value.message) < 300


@pytest.mark.req("durability.detached_at_close")
async def test_a_waiting_detached_turn_is_stored_when_the_daemon_stops(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for content in ("!wait", "second"):
            stream = client.stream("crab", content, detach=True)
            await wait_for_event(stream, wire.StreamStart)
            await stream.aclose()
        sent = asyncio.ensure_future(client.send("crab", "third"))
        await wait_until(lambda: daemon.daemon.runtime.running_count == 3)
        await daemon.model.until_waiting()
    with pytest.raises((ServerError, ConnectionClosedError)):
        await sent
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        page = await client.list_messages("crab")
        assert [message.content for message in page.messages] == ["!wait", "second", "third"]


@pytest.mark.req("agents.hand_edits")
async def test_concurrent_edits_by_a_person_are_not_overwritten(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        daemon.agent_file("hand").write_text('prompt = "by hand"\n')
        daemon.agent_file("twin").write_text('prompt = "Mended."\n')
        with pytest.raises(ServerError) as caught:
            await client.create_agent("hand", "new")
        assert caught.value.code == 400
        await client.update_agent("twin", {"description": "d"})
        assert 'prompt = "Mended."' in daemon.agent_file("twin").read_text()
        await client.create_agent("lost", "p")
        daemon.agent_file("lost").unlink()
        with pytest.raises(ServerError) as caught:
            await client.rename_agent("lost", "found")
        assert caught.value.code == 404


async def test_an_unreachable_provider_accepts_any_active_model(tmp_path: Path) -> None:
    config = '[[providers]]\nname = "x"\nkind = "openai"\nbase_url = "http://127.0.0.1:9"\n'
    async with run_daemon(tmp_path, config=config) as daemon, daemon.client() as client:
        # The provider cannot be asked, so any name is accepted.
        await client.set_active_model("anything")
    assert "anything" in (daemon.home / "config.toml").read_text()
