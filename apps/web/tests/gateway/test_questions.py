"""Questions: asked on every device, answered by the first."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.gateway.phone import Phone, Session, endings, in_order, kinds, phone, texts
from apps.web.tests.gateway.world import world
from crabtalk_web.stream import ToolCallEnd, ToolCallStart
from tests.daemon.served import calling

ASK = calling(
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


async def asked(device: Phone, key: str = "communications") -> tuple[str, dict[str, Any], Session]:
    """The question that waits, once one does."""
    async with asyncio.timeout(20):
        while True:
            session = await device.session()
            for name, entry in session.state.get(key, {}).items():
                return name, entry, session
            await asyncio.sleep(0.02)


async def settled(device: Phone, name: str, key: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            session = await device.session()
            if name in session.state.get(key, {}):
                found: dict[str, Any] = session.state[key][name]
                return found
            await asyncio.sleep(0.02)


@pytest.mark.req("gateway.questions")
async def test_the_first_device_answers_and_the_second_is_told_so(tmp_path: Path) -> None:
    async with world(tmp_path) as w, phone(w.phone.url, w.phone.secret) as other:
        session = await w.phone.session()
        await w.phone.connect()
        await other.connect()
        await w.phone.say(session, ASK)
        name, entry, _ = await asked(w.phone)
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
            w.phone.call(session, "communication", **answer),
            other.call(session, "communication", **answer),
        )
        assert sorted(map(json.dumps, both)) == [
            '{"error": "already answered"}',
            '{"success": true}',
        ]
        envelopes = in_order(await w.phone.until_ended(session))
        assert endings(envelopes) == ["completed"]
        (start,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallStart)]
        (end,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)]
        assert (start.name, start.call) == ("ask-user", entry["toolUseId"])
        assert json.loads(end.result) == {"Which colour?": "red"}
        done = await settled(w.phone, name, "completedCommunications")
        assert done["status"] == "answered"
        assert done["answers"] == {"q0": {"options": ["red"]}}
        await w.phone.heard(lambda kind, it: kind == "ephemeral" and it.get("kind") == "question")


@pytest.mark.req("gateway.questions")
async def test_plain_words_answer_what_is_being_asked(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, ASK)
        await asked(w.phone)
        await w.phone.say(session, "something between the two")
        envelopes = in_order(await w.phone.until_ended(session))
        (end,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)]
        assert end.result == "something between the two"
        assert texts(envelopes, "user") == []
        said = [m["text"] for m in w.daemon.kept() if m["role"] == "user"]
        assert said == [ASK]


@pytest.mark.req("gateway.questions")
async def test_an_abort_gives_the_question_up(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.connect()
        await w.phone.say(session, ASK)
        name, _, _ = await asked(w.phone)
        await w.phone.call(session, "abort")
        assert endings(in_order(await w.phone.until_ended(session))) == ["cancelled"]
        done = await settled(w.phone, name, "completedCommunications")
        assert done["status"] == "cancelled"
        told = await w.phone.call(session, "communication", id=name, status="answered")
        assert told == {"error": "already answered"}


@pytest.mark.req("gateway.questions")
async def test_a_call_that_needs_a_yes_is_asked_about_on_the_phone(tmp_path: Path) -> None:
    agents = {"crab": 'prompt = "You are crab."\napprove = ["bash"]\n'}
    async with world(tmp_path, agents=agents) as w:
        session = await w.phone.session()
        await w.phone.connect()
        await w.phone.say(session, calling([("bash", {"command": "echo allowed"})]))
        name, entry, _ = await asked(w.phone)
        labels = [option["label"] for option in entry["form"]["questions"][0]["options"]]
        assert labels[:2] == ["Allow", "Deny"]
        answers = {"q0": {"options": ["Allow"]}}
        await w.phone.call(session, "communication", id=name, status="answered", answers=answers)
        envelopes = in_order(await w.phone.until_ended(session))
        assert any("allowed" in e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd))


@pytest.mark.req("gateway.questions")
async def test_apps_that_know_only_permissions_are_asked_their_way(tmp_path: Path) -> None:
    async with world(tmp_path, compat=True) as w:
        session = await w.phone.session()
        await w.phone.connect()
        await w.phone.say(session, ASK)
        name, entry, found = await asked(w.phone, "requests")
        assert entry["tool"] == "AskUserQuestion"
        assert "communications" not in found.state
        updated = {"answers": {"Which colour?": "blue"}}
        await w.phone.call(session, "permission", id=name, approved=True, updatedInput=updated)
        envelopes = in_order(await w.phone.until_ended(session))
        (end,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)]
        assert json.loads(end.result) == {"Which colour?": "blue"}
        done = await settled(w.phone, name, "completedRequests")
        assert done["status"] == "approved"


@pytest.mark.req("gateway.questions")
async def test_a_question_survives_the_gateway(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        await w.phone.say(session, ASK)
        name, _, _ = await asked(w.phone)
        await w.stop_gateway()
        await w.start_gateway()
        await w.phone.connect()
        answers = {"q0": {"options": [], "custom": "green"}}
        async with asyncio.timeout(20):
            while True:  # it is known again a moment after the gateway is
                told = await w.phone.call(
                    session, "communication", id=name, status="answered", answers=answers
                )
                if told == {"success": True}:
                    break
                await asyncio.sleep(0.05)
        envelopes = in_order(await w.phone.until_ended(session))
        assert endings(envelopes) == ["completed"]
        assert kinds(envelopes).count("tool-call-start") == 1
        (end,) = [e.ev for e in envelopes if isinstance(e.ev, ToolCallEnd)]
        assert json.loads(end.result) == {"Which colour?": "green"}
