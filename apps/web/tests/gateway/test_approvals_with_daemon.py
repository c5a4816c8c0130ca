"""Approvals and modes with the real daemon: devices see what it asks, and it does what they
answer."""

import asyncio
from pathlib import Path

import pytest

from apps.web.tests.gateway.device_client import check_order
from apps.web.tests.gateway.test_question_tracker import wait_for_question
from apps.web.tests.gateway.web_gateway_world import open_world
from crabtalk_web.stream import ToolCallEnd, ToolCallStart
from tests.daemon.in_process_daemon import script_tool_calls

COMMAND = "touch __init__.py '*line*'\n# comment\n\n    echo done"
AGENTS = {"crab": 'prompt = "You are crab."\napprove = ["bash", "remember"]\n'}


@pytest.mark.req("gateway.approval")
@pytest.mark.parametrize(("label", "receipt"), [("Allow", "Allowed once"), ("Deny", "Denied")])
async def test_the_daemon_does_what_a_device_answered(
    tmp_path: Path, label: str, receipt: str
) -> None:
    async with open_world(tmp_path, agents=AGENTS) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(session, script_tool_calls([("bash", {"command": COMMAND})]))
        name, entry, _ = await wait_for_question(world.phone)
        approval = entry["form"]["questions"][0]["approval"]
        assert (approval["tool"], approval["call"], approval["isWhole"]) == ("bash", COMMAND, True)
        answers = {"q0": {"options": [label], "digest": approval["digest"]}}
        reply = await world.phone.call_method(
            session, "communication", id=name, status="answered", answers=answers
        )
        assert reply == {"success": True}
        envelopes = check_order(await world.phone.wait_for_turns(session))
        results = {e.ev.call: e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd)}
        starts = [e.ev for e in envelopes if isinstance(e.ev, ToolCallStart)]
        assert [results[one.call] for one in starts if one.name == "ask-user"] == [receipt]
        is_created = (tmp_path / "work" / "__init__.py").exists()
        assert is_created is (label == "Allow")


@pytest.mark.req("gateway.approval.owner")
async def test_a_strangers_call_waits_for_the_owner(tmp_path: Path) -> None:
    async with open_world(tmp_path, agents=AGENTS) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        script = script_tool_calls([("remember", {"name": "__init__", "content": "*line*"})])
        run = asyncio.ensure_future(client.send("crab", script, sender="tg:666"))
        name, entry, _ = await wait_for_question(world.phone)
        approval = entry["form"]["questions"][0]["approval"]
        assert (approval["requestedBy"], approval["forOwner"]) == ("tg:666", True)
        answers = {"q0": {"options": ["Deny"]}}
        reply = await world.phone.call_method(
            session, "communication", id=name, status="answered", answers=answers
        )
        assert reply == {"success": True}
        await run
        page = await client.list_messages("crab", sender="tg:666")
        (result,) = [one.content for one in page.messages if one.role == "tool"]
        assert result.startswith("permission denied:")


@pytest.mark.req("gateway.mode")
async def test_the_daemons_mode_is_the_one_devices_see(tmp_path: Path) -> None:
    async with open_world(tmp_path, agents=AGENTS) as world, world.daemon.client() as client:
        await world.phone.connect()
        session = await world.phone.wait_for_session()
        reply = await world.phone.call_method(session, "setMode", mode="plan")
        assert reply == {"mode": "plan", "isSet": True}
        assert (await client.set_mode("crab")).mode == "plan"
        await client.set_mode("crab", "accept-edits")
        async with asyncio.timeout(20):
            while True:
                found = (await world.phone.wait_for_session()).metadata
                if found.get("currentOperatingModeCode") == "accept-edits":
                    break
                await asyncio.sleep(0.02)
