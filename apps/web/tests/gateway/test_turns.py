"""Turns, from a phone and from elsewhere, as a phone sees them."""

import asyncio
from pathlib import Path

import pytest

from apps.web.tests.gateway.device_client import (
    check_order,
    format_envelopes,
    list_event_tags,
    list_texts,
    list_turn_statuses,
)
from apps.web.tests.gateway.web_gateway_world import open_world
from crabtalk_web.stream import ServiceEvent, SubagentStart, TextEvent, ToolCallEnd, ToolCallStart
from tests.daemon.in_process_daemon import collect_events, script_tool_calls


@pytest.mark.req("gateway.turn")
async def test_a_phone_sends_a_message_and_sees_the_turn(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!think hm\n!say hello there")
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_event_tags(envelopes) == ["turn-start", "text", "text", "turn-end"]
        assert list_texts(envelopes) == ["hello there"]
        assert list_texts(envelopes, "user") == []  # the relay already has the phone's message
        assert list_turn_statuses(envelopes) == ["completed"]


@pytest.mark.req("gateway.mirror")
async def test_a_turn_from_the_terminal_is_shown(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say from the terminal"))
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_texts(envelopes, "user") == ["!say from the terminal"]
        assert list_texts(envelopes) == ["from the terminal"]
        await world.phone.send_text(session, "!say and on")
        envelopes = check_order(await world.phone.wait_for_turns(session, 2))
        assert list_texts(envelopes) == ["from the terminal", "and on"]
        assert list_texts(envelopes, "user") == ["!say from the terminal"]


@pytest.mark.req("gateway.mirror")
async def test_other_senders_conversations_are_not_shown(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say not for you", sender="tg:1"))
        await collect_events(client.stream("crab", "!say for you"))
        envelopes = await world.phone.wait_for_turns(session)
        assert list_texts(envelopes) == ["for you"]


@pytest.mark.req("gateway.turn")
async def test_tools_are_shown_with_their_results(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, script_tool_calls([("bash", {"command": "echo hi"})]))
        envelopes = check_order(await world.phone.wait_for_turns(session))
        expected = ["turn-start", "tool-call-start", "tool-call-end", "text", "turn-end"]
        assert list_event_tags(envelopes) == expected
        end = envelopes[2].ev
        assert isinstance(end, ToolCallEnd)
        assert "hi" in end.result


@pytest.mark.req("gateway.delegates")
async def test_delegated_tasks_are_nested_with_their_own_tools(tmp_path: Path) -> None:
    inner = script_tool_calls([("delegate", {"tasks": [{"message": "!say innermost"}]})])
    outer = script_tool_calls(
        [("delegate", {"tasks": [{"message": inner}, {"agent": "owl", "message": "!say hoo"}]})]
    )
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, outer)
        envelopes = check_order(await world.phone.wait_for_turns(session))
        starts = [e for e in envelopes if isinstance(e.ev, ToolCallStart)]
        by_subagent = {str(e.ev.args.get("sessionSubagent")): e for e in starts}  # type: ignore[union-attr]
        assert len(by_subagent) == 3, format_envelopes(envelopes)
        texts = {e.ev.text: e.subagent for e in envelopes if isinstance(e.ev, TextEvent)}
        assert by_subagent[texts["hoo"]].subagent == ""
        middle = by_subagent[texts["innermost"]].subagent
        assert by_subagent[middle].subagent == ""
        titles = [e.ev.title for e in envelopes if isinstance(e.ev, SubagentStart)]
        assert any(title.startswith("owl") for title in titles)
        assert list_turn_statuses(envelopes) == ["completed"]


@pytest.mark.req("gateway.guest")
async def test_a_guest_speaks_under_its_own_name(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "@owl !say hoo")
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_event_tags(envelopes) == ["turn-start", "start", "text", "stop", "turn-end"]
        start = envelopes[1].ev
        assert isinstance(start, SubagentStart)
        assert start.title == "owl"
        assert envelopes[2].subagent == envelopes[1].subagent


@pytest.mark.req("gateway.abort")
async def test_an_abort_cancels_the_turn_and_closes_what_is_open(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(session, script_tool_calls([("bash", {"command": "sleep 60"})]))
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "tool-call-start" in list_event_tags(envelopes)
        )
        assert await world.phone.call_method(session, "abort") is None
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_turn_statuses(envelopes) == ["cancelled"]
        assert await world.phone.call_method(session, "abort") is None  # no turn is open
        await world.phone.send_text(session, "!say still here")
        envelopes = check_order(await world.phone.wait_for_turns(session, 2))
        assert list_turn_statuses(envelopes) == ["cancelled", "completed"]


@pytest.mark.req("gateway.abort")
async def test_a_kill_from_elsewhere_is_a_cancelled_turn_too(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say so far\n!hang")
        await world.daemon.model.until_asked(1)
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "turn-start" in list_event_tags(envelopes)
        )
        assert await client.kill("crab")
        assert list_turn_statuses(check_order(await world.phone.wait_for_turns(session))) == [
            "cancelled"
        ]


@pytest.mark.req("gateway.failure")
async def test_an_error_is_shown_and_the_turn_has_failed(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!status 400 no such thing")
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_turn_statuses(envelopes) == ["failed"]
        services = [e.ev.text for e in envelopes if isinstance(e.ev, ServiceEvent)]
        assert any("no such thing" in text for text in services), format_envelopes(envelopes)


@pytest.mark.req("gateway.failure")
async def test_a_message_that_the_daemon_refuses_is_reported_and_not_retried(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "@missing hello?")
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_turn_statuses(envelopes) == ["failed"]
        await world.phone.send_text(session, "!say fine")
        assert list_texts(await world.phone.wait_for_turns(session, 2)) == ["fine"]


@pytest.mark.req("gateway.queue")
async def test_a_message_during_a_turn_is_queued_and_announced_once(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!wait\n!say first")
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "turn-start" in list_event_tags(envelopes)
        )
        await world.phone.send_text(session, "!say second")
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "service" in list_event_tags(envelopes)
        )
        await world.phone.send_text(session, "!say third")
        await world.release_model()
        envelopes = check_order(await world.phone.wait_for_turns(session, 3))
        assert list_texts(envelopes) == ["first", "second", "third"]
        assert list_texts(envelopes, "user") == []


@pytest.mark.req("gateway.steer")
async def test_a_message_during_a_turn_can_steer_it_instead(tmp_path: Path) -> None:
    async with open_world(tmp_path, while_busy="steer") as world:
        session = await world.phone.wait_for_session()
        script = "\n".join(
            ['!tool bash {"command": "while ! test -e go; do sleep 0.02; done"}', "!then", "!say x"]
        )
        await world.phone.send_text(session, script)
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "tool-call-start" in list_event_tags(envelopes)
        )
        await world.phone.send_text(session, "!say steered")
        conversation = world.gateway._conversations["crab"]  # type: ignore[union-attr]
        async with asyncio.timeout(20):
            while conversation.journal.state.attempt or not conversation.journal.state.pending_keys:
                await asyncio.sleep(0.01)
        (tmp_path / "work" / "go").touch()
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_texts(envelopes) == ["steered"]
        assert list_texts(envelopes, "user") == []
        assert list_turn_statuses(envelopes) == ["completed"]


@pytest.mark.req("gateway.inbound")
async def test_every_kind_of_message_reaches_the_agent_once(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say legacy")
        await world.phone.wait_for_turns(session, 1)
        flat = world.phone.build_envelope({"t": "text", "text": "!say flat"})
        await world.phone.send_body(session, {"role": "session", "content": flat})
        await world.phone.wait_for_turns(session, 2)
        wrapped = world.phone.build_envelope({"t": "text", "text": "!say wrapped"})
        body = {"role": "session", "content": {"type": "session", "data": wrapped}}
        await world.phone.send_body(session, body)
        await world.phone.wait_for_turns(session, 3)
        # A body that cannot be parsed is skipped.
        await world.phone.send_body(session, {"role": "agent", "content": {"type": "output"}})
        await world.phone.send_body(session, {"role": "session", "content": {"t": "photo"}})
        await world.phone.request(
            "POST",
            f"/v3/sessions/{session.id}/messages",
            {"messages": [{"content": "AAAA", "localId": "odd"}]},
        )
        await world.phone.send_text(session, "!say last")
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: len(list_turn_statuses(envelopes)) == 4
        )
        texts = [m["text"] for m in world.daemon.read_messages() if m["role"] == "user"]
        assert texts == ["!say legacy", "!say flat", "!say wrapped", "!say last"]


@pytest.mark.req("adapter.compat.output")
@pytest.mark.req("adapter.compat.usage")
async def test_older_apps_get_their_format_also_from_the_next_process(tmp_path: Path) -> None:
    script = "\n!then\n".join(
        [
            '!think hm\n!tool bash {"command": "echo first"}',
            '!tool bash {"command": "while ! test -e go; do sleep 0.02; done; echo second"}',
            "!say at last",
        ]
    )
    async with open_world(tmp_path, compat=True, output_as_thinking=True) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, script)
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: list_event_tags(envelopes).count("tool-call-start") == 2
        )
        await world.stop_gateway()
        await world.start_gateway()
        (tmp_path / "work" / "go").touch()
        envelopes = check_order(await world.phone.wait_for_turns(session))
        thoughts = [e.ev.text for e in envelopes if isinstance(e.ev, TextEvent) and e.ev.thinking]
        hm, first, second = thoughts
        assert hm == "hm"
        assert "first" in first, format_envelopes(envelopes)
        assert "second" in second, format_envelopes(envelopes)
        assert any(e.is_bare_usage for e in envelopes)
        assert {e.ev.name for e in envelopes if isinstance(e.ev, ToolCallStart)} == {"Bash"}
