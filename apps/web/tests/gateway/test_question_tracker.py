"""Questions: shown on every device, answered by the first."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.gateway.device_client import (
    DeviceClient,
    DeviceSession,
    check_order,
    list_event_tags,
    list_texts,
    list_turn_statuses,
    open_device,
)
from apps.web.tests.gateway.web_gateway_world import open_world
from crabtalk_web.stream import ToolCallEnd, ToolCallStart
from tests.daemon.in_process_daemon import script_tool_calls

ASK = script_tool_calls(
    [
        (
            "ask_user",
            {
                "questions": [
                    {
                        "question": "Which colour?",
                        "header": "Colour",
                        "options": [{"label": "red", "description": "warm"}, "blue"],
                    }
                ]
            },
        )
    ]
)


async def wait_for_question(
    device: DeviceClient, key: str = "communications"
) -> tuple[str, dict[str, Any], DeviceSession]:
    """Wait for a pending question."""
    async with asyncio.timeout(20):
        while True:
            session = await device.wait_for_session()
            for name, entry in session.state.get(key, {}).items():
                return name, entry, session
            await asyncio.sleep(0.02)


async def wait_for_outcome(device: DeviceClient, name: str, key: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            session = await device.wait_for_session()
            if name in session.state.get(key, {}):
                found: dict[str, Any] = session.state[key][name]
                return found
            await asyncio.sleep(0.02)


@pytest.mark.req("gateway.questions")
async def test_the_first_device_answers_and_the_second_is_told_so(tmp_path: Path) -> None:
    async with (
        open_world(tmp_path) as world,
        open_device(world.phone.url, world.phone.secret) as other,
    ):
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await other.connect()
        await world.phone.send_text(session, ASK)
        name, entry, _ = await wait_for_question(world.phone)
        (question,) = entry["form"]["questions"]
        assert entry["kind"] == "form"
        assert (question["id"], question["allowCustom"]) == ("q0", True)
        assert question["options"][0] == {"label": "red", "description": "warm"}
        answer = {
            "id": name,
            "kind": "form",
            "status": "answered",
            "answers": {"q0": {"options": ["red"]}},
        }
        both = await asyncio.gather(
            world.phone.call_method(session, "communication", **answer),
            other.call_method(session, "communication", **answer),
        )
        assert sorted(map(json.dumps, both)) == [
            '{"error": "already answered"}',
            '{"success": true}',
        ]
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_turn_statuses(envelopes) == ["completed"]
        (start,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallStart)]
        (end,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)]
        assert (start.name, start.call) == ("ask-user", entry["toolUseId"])
        assert json.loads(end.result) == {"Which colour?": "red"}
        done = await wait_for_outcome(world.phone, name, "completedCommunications")
        assert done["status"] == "answered"
        assert done["answers"] == {"q0": {"options": ["red"]}}
        await world.phone.wait_for_event(
            lambda kind, it: kind == "ephemeral" and it.get("kind") == "question"
        )


@pytest.mark.req("gateway.questions")
async def test_plain_text_answers_the_pending_question(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, ASK)
        await wait_for_question(world.phone)
        await world.phone.send_text(session, "something between the two")
        envelopes = check_order(await world.phone.wait_for_turns(session))
        (end,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)]
        assert end.result == "something between the two"
        assert list_texts(envelopes, "user") == []
        texts = [m["text"] for m in world.daemon.read_messages() if m["role"] == "user"]
        assert texts == [ASK]


@pytest.mark.req("gateway.questions")
async def test_an_abort_cancels_the_question(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(session, ASK)
        name, _, _ = await wait_for_question(world.phone)
        await world.phone.call_method(session, "abort")
        assert list_turn_statuses(check_order(await world.phone.wait_for_turns(session))) == [
            "cancelled"
        ]
        done = await wait_for_outcome(world.phone, name, "completedCommunications")
        assert done["status"] == "cancelled"
        reply = await world.phone.call_method(session, "communication", id=name, status="answered")
        assert reply == {"error": "already answered"}


@pytest.mark.req("gateway.questions")
async def test_a_call_that_needs_permission_asks_on_the_phone(tmp_path: Path) -> None:
    agents = {"crab": 'prompt = "You are crab."\napprove = ["bash"]\n'}
    async with open_world(tmp_path, agents=agents) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(
            session, script_tool_calls([("bash", {"command": "echo allowed"})])
        )
        name, entry, _ = await wait_for_question(world.phone)
        labels = [option["label"] for option in entry["form"]["questions"][0]["options"]]
        assert labels[:2] == ["Allow", "Deny"]
        answers = {"q0": {"options": ["Allow"]}}
        await world.phone.call_method(
            session, "communication", id=name, status="answered", answers=answers
        )
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert any("allowed" in e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd))


@pytest.mark.req("gateway.questions")
async def test_apps_that_know_only_permissions_are_asked_in_that_format(tmp_path: Path) -> None:
    async with open_world(tmp_path, compat=True) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(session, ASK)
        name, entry, found = await wait_for_question(world.phone, "requests")
        assert entry["tool"] == "AskUserQuestion"
        assert "communications" not in found.state
        updated = {"answers": {"Which colour?": "blue"}}
        await world.phone.call_method(
            session, "permission", id=name, approved=True, updatedInput=updated
        )
        envelopes = check_order(await world.phone.wait_for_turns(session))
        (end,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)]
        assert json.loads(end.result) == {"Which colour?": "blue"}
        done = await wait_for_outcome(world.phone, name, "completedRequests")
        assert done["status"] == "approved"


@pytest.mark.req("gateway.questions")
async def test_a_question_survives_the_gateway(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, ASK)
        name, _, _ = await wait_for_question(world.phone)
        await world.stop_gateway()
        await world.start_gateway()
        await world.phone.connect()
        answers = {"q0": {"options": [], "custom": "green"}}
        async with asyncio.timeout(20):
            while True:  # a restarted gateway learns it a moment later
                reply = await world.phone.call_method(
                    session, "communication", id=name, status="answered", answers=answers
                )
                if reply == {"success": True}:
                    break
                await asyncio.sleep(0.05)
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert list_turn_statuses(envelopes) == ["completed"]
        assert list_event_tags(envelopes).count("tool-call-start") == 1
        (end,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)]
        assert json.loads(end.result) == {"Which colour?": "green"}
