"""Events that were missed are recovered from the conversation, completely and once."""

import asyncio
from pathlib import Path

import pytest

from apps.web.tests.gateway.device_client import (
    DeviceClient,
    check_order,
    list_event_tags,
    list_texts,
    list_turn_statuses,
    open_device,
)
from apps.web.tests.gateway.web_gateway_world import open_world, pair_with_device
from crabtalk.daemon.events.feed import FeedLimits
from crabtalk.daemon.handlers.daemon_server import DaemonServer
from crabtalk.transport import Listener, ListenOptions, RunFiles, TransportLimits, listen_unix
from crabtalk_web.gateway import WebFolder
from crabtalk_web.relay import RelayConfig, RelayServer
from crabtalk_web.relay import RelayLimits as RelayLimits
from crabtalk_web.sealing import to_base64
from crabtalk_web.stream import Envelope, ServiceEvent, TextEvent, ToolCallEnd
from tests.daemon.in_process_daemon import collect_events, run_daemon, script_tool_calls


@pytest.mark.req("gateway.catch_up")
async def test_turns_during_a_gateway_outage_are_written_afterwards(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say one"))
        await world.phone.wait_for_turns(session)
        await world.stop_gateway()
        await collect_events(
            client.stream("crab", script_tool_calls([("bash", {"command": "echo two"})]))
        )
        await collect_events(client.stream("crab", "!think hm\n!say three"))
        await world.start_gateway()
        envelopes = check_order(await world.phone.wait_for_turns(session, 3))
        assert list_texts(envelopes) == ["one", "done", "three"]
        assert len(list_texts(envelopes, "user")) == 3
        assert any("two" in e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd))
        assert list_turn_statuses(envelopes) == ["completed"] * 3


@pytest.mark.req("gateway.catch_up")
async def test_a_turn_that_continues_without_the_gateway_is_written_completely(
    tmp_path: Path,
) -> None:
    script = "\n!then\n".join(
        [
            '!say to begin with\n!tool bash {"command": "echo a"}',
            '!say then\n!tool bash {"command": "while ! test -e go; do sleep 0.02; done"}',
            "!say at last",
        ]
    )
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, script)
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: list_event_tags(envelopes).count("tool-call-start") == 2
        )
        await world.stop_gateway()
        (tmp_path / "work" / "go").touch()
        async with world.daemon.client() as client, asyncio.timeout(20):
            while (await client.get_stats()).runs:
                await asyncio.sleep(0.01)
        await world.start_gateway()
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_texts(envelopes) == ["to begin with", "then", "at last"]
        assert list_texts(envelopes, "user") == []
        assert list_event_tags(envelopes).count("tool-call-start") == 2
        assert list_turn_statuses(envelopes) == ["completed"]


@pytest.mark.req("gateway.reattach")
async def test_a_running_turn_is_resumed(tmp_path: Path) -> None:
    script = "\n!then\n".join(
        ['!say a\n!tool bash {"command": "while ! test -e go; do sleep 0.02; done"}', "!say b"]
    )
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, script)
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "tool-call-start" in list_event_tags(envelopes)
        )
        await world.stop_gateway()
        await world.start_gateway()
        (tmp_path / "work" / "go").touch()
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_texts(envelopes) == ["a", "b"]
        assert list_turn_statuses(envelopes) == ["completed"]
        await world.phone.send_text(session, "!say c")
        assert list_texts(check_order(await world.phone.wait_for_turns(session, 2))) == [
            "a",
            "b",
            "c",
        ]


@pytest.mark.req("gateway.reattach")
async def test_a_turn_that_was_interrupted_meanwhile_is_closed(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, script_tool_calls([("bash", {"command": "sleep 60"})]))
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "tool-call-start" in list_event_tags(envelopes)
        )
        await world.stop_gateway()
        await client.kill("crab")
        async with asyncio.timeout(20):
            while (await client.get_stats()).runs:
                await asyncio.sleep(0.01)
        await world.start_gateway()
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_turn_statuses(envelopes) == ["cancelled"]


@pytest.mark.req("gateway.missed")
async def test_events_lost_by_the_feed_are_read_from_the_conversation(tmp_path: Path) -> None:
    """The feed has room for a few events only, so a burst of chunks is more than it can hold."""
    async with (
        open_world(tmp_path, feed_limits=FeedLimits(feed_events=4)) as world,
        world.daemon.client() as client,
    ):
        session = await world.phone.wait_for_session()
        said = " ".join(f"w{number}" for number in range(300))
        for turn in range(4):
            await collect_events(
                client.stream("crab", f"!say {turn} {said}\n!tool recall {{}}\n!then\n!say x")
            )
        await collect_events(client.stream("crab", "!say the end"))
        # A final message that is received in any case, so that a gap is noticed.
        envelopes = await world.phone.wait_for_envelopes(
            session,
            lambda envelopes: (
                "the end" in list_texts(envelopes) and len(list_turn_statuses(envelopes)) >= 5
            ),
        )
        check_order(envelopes)
        for turn in range(4):
            assert any(text.startswith(f"{turn} w0 ") for text in list_texts(envelopes))
        assert "".join(list_texts(envelopes)).count("w299") == 4
        assert len(list_texts(envelopes, "user")) == 5


@pytest.mark.req("gateway.daemon_away")
async def test_a_daemon_that_comes_back_is_followed_again(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say before")
        await world.phone.wait_for_turns(session)
        await world.daemon.listener.close()
        await world.daemon.daemon.close()
        await world.phone.send_text(session, "!say after")
        async with run_daemon(tmp_path, world.daemon.model, hooks={}):
            envelopes = check_order(await world.phone.wait_for_turns(session, 2))
            assert list_texts(envelopes) == ["before", "after"]


@pytest.mark.req("gateway.daemon_away")
async def test_a_turn_is_closed_when_the_daemon_stays_away_and_reopened_if_it_continues(
    tmp_path: Path,
) -> None:
    """The daemon keeps running; only its socket is unreachable for a while."""
    script = "\n!then\n".join(
        ['!say a\n!tool bash {"command": "while ! test -e go; do sleep 0.02; done"}', "!say b"]
    )
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, script)
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "tool-call-start" in list_event_tags(envelopes)
        )
        await world.daemon.listener.close()
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_turn_statuses(envelopes) == ["failed"]
        (tmp_path / "work" / "go").touch()
        again = Listener(DaemonServer(world.daemon.daemon), TransportLimits(drain_timeout=1))
        again.open(
            listen_unix(RunFiles.for_home(world.daemon.home).socket_path), ListenOptions("unix")
        )
        try:
            envelopes = check_order(await world.phone.wait_for_turns(session, 2))
            assert list_texts(envelopes) == ["a", "b"]
            assert list_turn_statuses(envelopes) == ["failed", "completed"]
            assert list_event_tags(envelopes).count("tool-call-start") == 1
            await world.phone.send_text(session, "!say c")
            assert list_texts(check_order(await world.phone.wait_for_turns(session, 3))) == [
                "a",
                "b",
                "c",
            ]
        finally:
            await again.close()


@pytest.mark.req("gateway.compaction")
async def test_compacted_messages_are_written_once(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say one"))
        await client.compact("crab")
        await collect_events(client.stream("crab", "!say two"))
        envelopes = check_order(await world.phone.wait_for_turns(session, 3))
        assert count_compactions(envelopes) == 1
        await world.stop_gateway()
        await client.compact("crab")
        await collect_events(client.stream("crab", "!say three"))
        await world.start_gateway()
        envelopes = check_order(await world.phone.wait_for_turns(session, 5))
        assert count_compactions(envelopes) == 2
        assert list_texts(envelopes) == ["one", "two", "three"]
        assert len(list_texts(envelopes, "user")) == 3
        await world.stop_gateway()
        await world.start_gateway()
        await collect_events(client.stream("crab", "!say four"))
        envelopes = check_order(await world.phone.wait_for_turns(session, 6))
        assert count_compactions(envelopes) == 2


@pytest.mark.req("gateway.compaction")
@pytest.mark.parametrize("after", [[], ["two"]], ids=["with nothing after it", "before a turn"])
async def test_a_compaction_after_the_last_read_record_is_written(
    tmp_path: Path, after: list[str]
) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await world.stop_gateway()
        await collect_events(client.stream("crab", "!say one"))
        await world.start_gateway()
        await world.phone.wait_for_turns(session)
        await world.stop_gateway()
        await client.compact("crab")
        for text in after:
            await collect_events(client.stream("crab", f"!say {text}"))
        await world.start_gateway()
        envelopes = check_order(await world.phone.wait_for_turns(session, 2 + len(after)))
        assert list_texts(envelopes) == ["one", *after]
        assert count_compactions(envelopes) == 1
        last = next(e for e in reversed(envelopes) if isinstance(e.ev, ServiceEvent | TextEvent))
        assert isinstance(last.ev, TextEvent if after else ServiceEvent)


def count_compactions(envelopes: list[Envelope]) -> int:
    return sum(isinstance(e.ev, ServiceEvent) and "Compacted" in e.ev.text for e in envelopes)


@pytest.mark.req("gateway.journal.bounded")
async def test_a_relay_catches_up_after_a_long_outage(tmp_path: Path) -> None:
    """The journal has room for a few envelopes only, so the rest waits in the conversation
    itself."""
    async with open_world(tmp_path, journal_bytes=3000) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await world.relay.__aexit__(None, None, None)
        for number in range(12):
            await collect_events(client.stream("crab", f"!say {number} {'x' * 400}"))
        assert world.gateway is not None
        async with asyncio.timeout(20):
            while world.gateway.statistics()["unsent"] < 4:
                await asyncio.sleep(0.02)
        assert world.gateway.statistics()["unsent"] < 20
        again = RelayServer(RelayConfig(tmp_path / "relay", port=world.relay.port, durability="os"))
        async with again:
            envelopes = check_order(await world.phone.wait_for_turns(session, 12))
            said = [text.split()[0] for text in list_texts(envelopes)]
            assert said == [str(number) for number in range(12)]
            assert len(list_texts(envelopes, "user")) == 12
            await world.stop_gateway()


@pytest.mark.req("gateway.poison")
async def test_an_envelope_that_the_relay_never_accepts_does_not_block_others(
    tmp_path: Path,
) -> None:
    limits = RelayLimits(body=40_000)
    async with open_world(tmp_path, limits=limits) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say short"))
        await world.phone.wait_for_turns(session)
        await collect_events(client.stream("crab", f"!say {'long ' * 12000}"))
        await collect_events(client.stream("crab", "!say short again"))
        envelopes = await world.phone.wait_for_turns(session, 3)
        assert list_texts(envelopes) == ["short", "short again"]


@pytest.mark.req("gateway.deleted")
async def test_a_deleted_session_comes_back_with_new_messages(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say old"))
        await world.phone.wait_for_turns(session)
        await world.phone.request("DELETE", f"/v1/sessions/{session.id}")
        async with asyncio.timeout(20):
            while any(one.id == session.id for one in await world.phone.list_sessions()):
                await asyncio.sleep(0.02)
        await collect_events(client.stream("crab", "!say new"))
        session = await world.phone.wait_for_session()
        assert list_texts(check_order(await world.phone.wait_for_turns(session))) == ["new"]
        await world.phone.send_text(session, "!say newer")
        assert list_texts(check_order(await world.phone.wait_for_turns(session, 2))) == [
            "new",
            "newer",
        ]


@pytest.mark.req("gateway.backfill")
async def test_a_conversation_that_is_older_than_its_session_is_shown_in_it(tmp_path: Path) -> None:
    async with open_world(tmp_path, starts=False) as world, world.daemon.client() as client:
        for number in range(3):
            await collect_events(client.stream("crab", f"!say {number}"))
        await world.start_gateway()
        session = await world.phone.wait_for_session()
        envelopes = check_order(await world.phone.wait_for_turns(session, 3))
        assert list_texts(envelopes) == ["0", "1", "2"]
        assert list_texts(envelopes, "user") == ["!say 0", "!say 1", "!say 2"]


@pytest.mark.req("gateway.keys")
async def test_a_gateway_that_lost_its_journals_repeats_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say once")
        await world.phone.wait_for_turns(session)
        await world.stop_gateway()
        for path in WebFolder(world.daemon.home).journal_folder.iterdir():
            path.unlink()
        await world.start_gateway()
        await world.phone.send_text(session, "!say twice")
        envelopes = check_order(await world.phone.wait_for_turns(session, 2))
        assert list_texts(envelopes) == ["once", "twice"]
        assert [
            one.id for one in await world.phone.list_sessions() if one.metadata["name"] == "crab"
        ] == [session.id]


@pytest.mark.req("gateway.keys")
async def test_a_machine_paired_the_older_way_stores_no_master_secret(tmp_path: Path) -> None:
    async with open_world(tmp_path, starts=False) as world:
        world.credentials = await pair_with_device(
            world.phone, world.phone.url, in_the_old_way=True
        )
        world.credentials.save(WebFolder(world.daemon.home).credentials_file)
        credentials = WebFolder(world.daemon.home).credentials_file.read_text()
        assert to_base64(world.phone.secret.secret) not in credentials
        await world.start_gateway()
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say hello")
        assert list_texts(await world.phone.wait_for_turns(session)) == ["hello"]


@pytest.mark.req("gateway.late_device")
async def test_a_device_that_joins_late_can_read_everything(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        for number in range(60):
            await collect_events(client.stream("crab", f"!say {number}"))
        seen = await world.phone.wait_for_turns(session, 60)
        async with open_device(world.phone.url, world.phone.secret) as late:
            assert await list_envelope_ids(late) == [e.id for e in seen]
        assert len(seen) > 200


async def list_envelope_ids(device: DeviceClient) -> list[str]:
    return [e.id for e in await device.read_envelopes(await device.wait_for_session())]
