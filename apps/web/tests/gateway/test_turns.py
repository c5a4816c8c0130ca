"""Turns, from a phone and from elsewhere, as a phone sees them."""

import asyncio
from pathlib import Path

import pytest

from apps.web.tests.gateway.phone import endings, in_order, kinds, story, texts
from apps.web.tests.gateway.world import world
from crabtalk_web.stream import Service, Start, Text, ToolCallEnd, ToolCallStart
from tests.daemon.served import calling, told


@pytest.mark.req("gateway.turn")
async def test_a_phone_says_something_and_sees_the_turn(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, "!think hm\n!say hello there")
        envelopes = in_order(await w.phone.until_ended(session))
        assert kinds(envelopes) == ["turn-start", "text", "text", "turn-end"]
        assert texts(envelopes) == ["hello there"]
        assert texts(envelopes, "user") == []  # the relay has what the phone said
        assert endings(envelopes) == ["completed"]


@pytest.mark.req("gateway.mirror")
async def test_a_turn_of_the_terminal_is_mirrored(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon.client() as client:
        session = await w.phone.session()
        await told(client.stream("crab", "!say from the terminal"))
        envelopes = in_order(await w.phone.until_ended(session))
        assert texts(envelopes, "user") == ["!say from the terminal"]
        assert texts(envelopes) == ["from the terminal"]
        await w.phone.say(session, "!say and on")
        envelopes = in_order(await w.phone.until_ended(session, 2))
        assert texts(envelopes) == ["from the terminal", "and on"]
        assert texts(envelopes, "user") == ["!say from the terminal"]


@pytest.mark.req("gateway.mirror")
async def test_other_senders_stay_to_themselves(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon.client() as client:
        session = await w.phone.session()
        await told(client.stream("crab", "!say not for you", sender="tg:1"))
        await told(client.stream("crab", "!say for you"))
        envelopes = await w.phone.until_ended(session)
        assert texts(envelopes) == ["for you"]


@pytest.mark.req("gateway.turn")
async def test_tools_are_shown_with_their_results(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, calling([("bash", {"command": "echo hi"})]))
        envelopes = in_order(await w.phone.until_ended(session))
        expected = ["turn-start", "tool-call-start", "tool-call-end", "text", "turn-end"]
        assert kinds(envelopes) == expected
        end = envelopes[2].ev
        assert isinstance(end, ToolCallEnd)
        assert "hi" in end.result


@pytest.mark.req("gateway.delegates")
async def test_delegated_tasks_are_nested_with_their_own_tools(tmp_path: Path) -> None:
    inner = calling([("delegate", {"tasks": [{"message": "!say innermost"}]})])
    outer = calling(
        [("delegate", {"tasks": [{"message": inner}, {"agent": "owl", "message": "!say hoo"}]})]
    )
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, outer)
        envelopes = in_order(await w.phone.until_ended(session))
        starts = [e for e in envelopes if isinstance(e.ev, ToolCallStart)]
        by_subagent = {str(e.ev.args.get("sessionSubagent")): e for e in starts}  # type: ignore[union-attr]
        assert len(by_subagent) == 3, story(envelopes)
        said = {e.ev.text: e.subagent for e in envelopes if isinstance(e.ev, Text)}
        assert by_subagent[said["hoo"]].subagent == ""
        middle = by_subagent[said["innermost"]].subagent
        assert by_subagent[middle].subagent == ""
        titles = [e.ev.title for e in envelopes if isinstance(e.ev, Start)]
        assert any(title.startswith("owl") for title in titles)
        assert endings(envelopes) == ["completed"]


@pytest.mark.req("gateway.guest")
async def test_a_guest_speaks_under_its_own_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, "@owl !say hoo")
        envelopes = in_order(await w.phone.until_ended(session))
        assert kinds(envelopes) == ["turn-start", "start", "text", "stop", "turn-end"]
        start = envelopes[1].ev
        assert isinstance(start, Start)
        assert start.title == "owl"
        assert envelopes[2].subagent == envelopes[1].subagent


@pytest.mark.req("gateway.abort")
async def test_an_abort_cancels_the_turn_and_closes_what_is_open(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.connect()
        await w.phone.say(session, calling([("bash", {"command": "sleep 60"})]))
        await w.phone.until(session, lambda found: "tool-call-start" in kinds(found))
        assert await w.phone.call(session, "abort") is None
        envelopes = in_order(await w.phone.until_ended(session))
        assert endings(envelopes) == ["cancelled"]
        assert await w.phone.call(session, "abort") is None  # with nothing to stop
        await w.phone.say(session, "!say still here")
        envelopes = in_order(await w.phone.until_ended(session, 2))
        assert endings(envelopes) == ["cancelled", "completed"]


@pytest.mark.req("gateway.abort")
async def test_a_kill_from_elsewhere_is_a_cancelled_turn_too(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon.client() as client:
        session = await w.phone.session()
        await w.phone.say(session, "!say so far\n!hang")
        await w.daemon.model.until_asked(1)
        await w.phone.until(session, lambda found: "turn-start" in kinds(found))
        assert await client.kill("crab")
        assert endings(in_order(await w.phone.until_ended(session))) == ["cancelled"]


@pytest.mark.req("gateway.failure")
async def test_a_failure_is_told_and_the_turn_has_failed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, "!status 400 no such thing")
        envelopes = in_order(await w.phone.until_ended(session))
        assert endings(envelopes) == ["failed"]
        services = [e.ev.text for e in envelopes if isinstance(e.ev, Service)]
        assert any("no such thing" in text for text in services), story(envelopes)


@pytest.mark.req("gateway.failure")
async def test_what_the_daemon_refuses_is_told_and_not_tried_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, "@nobody hello?")
        envelopes = in_order(await w.phone.until_ended(session))
        assert endings(envelopes) == ["failed"]
        await w.phone.say(session, "!say fine")
        assert texts(await w.phone.until_ended(session, 2)) == ["fine"]


@pytest.mark.req("gateway.queue")
async def test_what_is_said_meanwhile_waits_and_says_so_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, "!wait\n!say first")
        await w.phone.until(session, lambda found: "turn-start" in kinds(found))
        await w.phone.say(session, "!say second")
        await w.phone.until(session, lambda found: "service" in kinds(found))
        await w.phone.say(session, "!say third")
        await w.release()
        envelopes = in_order(await w.phone.until_ended(session, 3))
        assert texts(envelopes) == ["first", "second", "third"]
        assert texts(envelopes, "user") == []


@pytest.mark.req("gateway.steer")
async def test_it_may_be_said_into_the_turn_instead(tmp_path: Path) -> None:
    async with world(tmp_path, while_busy="steer") as w:
        session = await w.phone.session()
        script = "\n".join(
            ['!tool bash {"command": "while ! test -e go; do sleep 0.02; done"}', "!then", "!say x"]
        )
        await w.phone.say(session, script)
        await w.phone.until(session, lambda found: "tool-call-start" in kinds(found))
        await w.phone.say(session, "!say steered")
        conversation = w.gateway._conversations["crab"]  # type: ignore[union-attr]
        async with asyncio.timeout(20):
            while conversation.journal.book.trying or not conversation.journal.book.pending:
                await asyncio.sleep(0.01)
        (tmp_path / "work" / "go").touch()
        envelopes = in_order(await w.phone.until_ended(session))
        assert texts(envelopes) == ["steered"]
        assert texts(envelopes, "user") == []
        assert endings(envelopes) == ["completed"]


@pytest.mark.req("gateway.inbound")
async def test_every_way_to_say_something_reaches_the_agent_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, "!say legacy")
        await w.phone.until_ended(session, 1)
        flat = w.phone.envelope({"t": "text", "text": "!say flat"})
        await w.phone.post(session, {"role": "session", "content": flat})
        await w.phone.until_ended(session, 2)
        wrapped = w.phone.envelope({"t": "text", "text": "!say wrapped"})
        body = {"role": "session", "content": {"type": "session", "data": wrapped}}
        await w.phone.post(session, body)
        await w.phone.until_ended(session, 3)
        # What nobody understands is passed over.
        await w.phone.post(session, {"role": "agent", "content": {"type": "output"}})
        await w.phone.post(session, {"role": "session", "content": {"t": "photo"}})
        await w.phone.ask(
            "POST",
            f"/v3/sessions/{session.id}/messages",
            {"messages": [{"content": "AAAA", "localId": "odd"}]},
        )
        await w.phone.say(session, "!say last")
        await w.phone.until(session, lambda found: len(endings(found)) == 4)
        said = [m["text"] for m in w.daemon.kept() if m["role"] == "user"]
        assert said == ["!say legacy", "!say flat", "!say wrapped", "!say last"]


@pytest.mark.req("adapter.compat.output")
@pytest.mark.req("adapter.compat.usage")
async def test_older_apps_are_told_in_their_way_also_by_the_next_process(tmp_path: Path) -> None:
    script = "\n!then\n".join(
        [
            '!think hm\n!tool bash {"command": "echo first"}',
            '!tool bash {"command": "while ! test -e go; do sleep 0.02; done; echo second"}',
            "!say at last",
        ]
    )
    async with world(tmp_path, compat=True, output_as_thinking=True) as w:
        session = await w.phone.session()
        await w.phone.say(session, script)
        await w.phone.until(session, lambda found: kinds(found).count("tool-call-start") == 2)
        await w.stop_gateway()
        await w.start_gateway()
        (tmp_path / "work" / "go").touch()
        envelopes = in_order(await w.phone.until_ended(session))
        thoughts = [e.ev.text for e in envelopes if isinstance(e.ev, Text) and e.ev.thinking]
        hm, first, second = thoughts
        assert hm == "hm"
        assert "first" in first, story(envelopes)
        assert "second" in second, story(envelopes)
        assert any(e.is_bare_usage for e in envelopes)
        assert {e.ev.name for e in envelopes if isinstance(e.ev, ToolCallStart)} == {"Bash"}
