"""What was not heard as it happened is told from the conversation, all of it and once."""

import asyncio
from pathlib import Path

import pytest

from apps.web.tests.gateway.phone import Phone, endings, in_order, kinds, phone, texts
from apps.web.tests.gateway.world import let_in, world
from crabtalk.daemon.feed import FeedLimits
from crabtalk_web.gateway import Store
from crabtalk_web.stream import ToolCallEnd
from tests.daemon.served import calling, told


@pytest.mark.req("web.gateway.catch-up")
async def test_turns_while_the_gateway_was_away_are_told_when_it_is_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon.client() as client:
        session = await w.phone.session()
        await told(client.stream("crab", "!say one"))
        await w.phone.until_ended(session)
        await w.stop_gateway()
        await told(client.stream("crab", calling([("bash", {"command": "echo two"})])))
        await told(client.stream("crab", "!think hm\n!say three"))
        await w.start_gateway()
        envelopes = in_order(await w.phone.until_ended(session, 3))
        assert texts(envelopes) == ["one", "done", "three"]
        assert len(texts(envelopes, "user")) == 3
        assert any("two" in e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd))
        assert endings(envelopes) == ["completed"] * 3


@pytest.mark.req("web.gateway.catch-up")
async def test_a_turn_that_goes_on_without_the_gateway_is_told_to_its_end(tmp_path: Path) -> None:
    script = "\n!then\n".join(
        [
            '!say to begin with\n!tool bash {"command": "echo a"}',
            '!say then\n!tool bash {"command": "while ! test -e go; do sleep 0.02; done"}',
            "!say at last",
        ]
    )
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, script)
        await w.phone.until(session, lambda found: kinds(found).count("tool-call-start") == 2)
        await w.stop_gateway()
        (tmp_path / "work" / "go").touch()
        async with w.daemon.client() as client, asyncio.timeout(20):
            while (await client.get_stats()).runs:
                await asyncio.sleep(0.01)
        await w.start_gateway()
        envelopes = in_order(await w.phone.until_ended(session))
        assert texts(envelopes) == ["to begin with", "then", "at last"]
        assert texts(envelopes, "user") == []
        assert kinds(envelopes).count("tool-call-start") == 2
        assert endings(envelopes) == ["completed"]


@pytest.mark.req("web.gateway.reattach")
async def test_a_turn_that_still_runs_is_taken_up_again(tmp_path: Path) -> None:
    script = "\n!then\n".join(
        ['!say a\n!tool bash {"command": "while ! test -e go; do sleep 0.02; done"}', "!say b"]
    )
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, script)
        await w.phone.until(session, lambda found: "tool-call-start" in kinds(found))
        await w.stop_gateway()
        await w.start_gateway()
        (tmp_path / "work" / "go").touch()
        envelopes = in_order(await w.phone.until_ended(session))
        assert texts(envelopes) == ["a", "b"]
        assert endings(envelopes) == ["completed"]
        await w.phone.say(session, "!say c")
        assert texts(in_order(await w.phone.until_ended(session, 2))) == ["a", "b", "c"]


@pytest.mark.req("web.gateway.reattach")
async def test_a_turn_that_was_cut_off_meanwhile_is_closed(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon.client() as client:
        session = await w.phone.session()
        await w.phone.say(session, calling([("bash", {"command": "sleep 60"})]))
        await w.phone.until(session, lambda found: "tool-call-start" in kinds(found))
        await w.stop_gateway()
        await client.kill("crab")
        async with asyncio.timeout(20):
            while (await client.get_stats()).runs:
                await asyncio.sleep(0.01)
        await w.start_gateway()
        envelopes = in_order(await w.phone.until_ended(session))
        assert endings(envelopes) == ["failed"]


@pytest.mark.req("web.gateway.missed")
async def test_what_the_feed_leaves_out_is_told_from_the_conversation(tmp_path: Path) -> None:
    """With room for a few elements only, a burst of chunks is more than a feed can keep."""
    async with (
        world(tmp_path, feed_limits=FeedLimits(feed_events=4)) as w,
        w.daemon.client() as client,
    ):
        session = await w.phone.session()
        said = " ".join(f"w{number}" for number in range(300))
        for turn in range(4):
            await told(
                client.stream("crab", f"!say {turn} {said}\n!tool recall {{}}\n!then\n!say x")
            )
        await told(client.stream("crab", "!say the end"))
        # A last word that is heard in any case, so that whoever missed something knows it.
        envelopes = await w.phone.until(
            session, lambda found: "the end" in texts(found) and len(endings(found)) >= 5
        )
        in_order(envelopes)
        for turn in range(4):
            assert any(text.startswith(f"{turn} w0 ") for text in texts(envelopes))
        assert "".join(texts(envelopes)).count("w299") == 4
        assert len(texts(envelopes, "user")) == 5


@pytest.mark.req("web.gateway.daemon-away")
async def test_a_daemon_that_comes_back_is_followed_again(tmp_path: Path) -> None:
    from tests.daemon.served import served

    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, "!say before")
        await w.phone.until_ended(session)
        await w.daemon.listener.close()
        await w.daemon.daemon.close()
        await w.phone.say(session, "!say after")
        async with served(tmp_path, w.daemon.model, hooks={}):
            envelopes = in_order(await w.phone.until_ended(session, 2))
            assert texts(envelopes) == ["before", "after"]


@pytest.mark.req("web.gateway.backfill")
async def test_a_conversation_that_is_older_than_its_session_is_shown_in_it(tmp_path: Path) -> None:
    async with world(tmp_path, starts=False) as w, w.daemon.client() as client:
        for number in range(3):
            await told(client.stream("crab", f"!say {number}"))
        await w.start_gateway()
        session = await w.phone.session()
        envelopes = in_order(await w.phone.until_ended(session, 3))
        assert texts(envelopes) == ["0", "1", "2"]
        assert texts(envelopes, "user") == ["!say 0", "!say 1", "!say 2"]


@pytest.mark.req("web.gateway.keys")
async def test_a_gateway_that_lost_its_journals_repeats_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, "!say once")
        await w.phone.until_ended(session)
        await w.stop_gateway()
        for path in Store(w.daemon.home).journal.iterdir():
            path.unlink()
        await w.start_gateway()
        await w.phone.say(session, "!say twice")
        envelopes = in_order(await w.phone.until_ended(session, 2))
        assert texts(envelopes) == ["once", "twice"]
        assert [one.id for one in await w.phone.sessions() if one.metadata["name"] == "crab"] == [
            session.id
        ]


@pytest.mark.req("web.gateway.keys")
async def test_a_machine_paired_in_the_old_way_keeps_no_master_secret(tmp_path: Path) -> None:
    async with world(tmp_path, starts=False) as w:
        w.credentials = await let_in(w.phone, w.phone.url, in_the_old_way=True)
        w.credentials.save(Store(w.daemon.home).credentials)
        kept = Store(w.daemon.home).credentials.read_text()
        from crabtalk_web.sealing import to_base64

        assert to_base64(w.phone.secret.secret) not in kept
        await w.start_gateway()
        session = await w.phone.session()
        await w.phone.say(session, "!say hello")
        assert texts(await w.phone.until_ended(session)) == ["hello"]


@pytest.mark.req("web.gateway.late-device")
async def test_a_device_that_joins_late_pages_all_of_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon.client() as client:
        session = await w.phone.session()
        for number in range(60):
            await told(client.stream("crab", f"!say {number}"))
        seen = await w.phone.until_ended(session, 60)
        async with phone(w.phone.url, w.phone.secret) as late:
            assert await all_of(late) == [e.id for e in seen]
        assert len(seen) > 200


async def all_of(device: Phone) -> list[str]:
    return [e.id for e in await device.envelopes(await device.session())]
