"""Approvals and modes through the gateway: shown in full, and answered once, by the right
person."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.gateway.approval_daemon import (
    ApprovalWorld,
    WebApprovalDaemon,
    make_approval,
    open_approval_world,
)
from apps.web.tests.gateway.device_client import DeviceSession, check_order, list_turn_statuses
from crabtalk.protocol import wire
from crabtalk_web.stream import ServiceEvent, ToolCallEnd, ToolCallStart

# Text that a page would change if it read it as Markdown.
COMMAND = "command: python __init__.py --grep *line*\n# comment\n\n    indented"


async def wait_for_state(
    world: ApprovalWorld, is_so: Callable[[dict[str, Any]], bool], key: str = "communications"
) -> dict[str, Any]:
    """The agent state, once the condition holds."""
    async with asyncio.timeout(20):
        while True:
            found: dict[str, Any] = (await world.phone.wait_for_session()).state.get(key, {})
            if is_so(found):
                return found
            await asyncio.sleep(0.02)


async def wait_for_ask(
    world: ApprovalWorld, ask: str, key: str = "communications"
) -> dict[str, Any]:
    found = await wait_for_state(world, lambda asks: ask in asks, key)
    entry: dict[str, Any] = found[ask]
    return entry


async def wait_for_metadata(
    world: ApprovalWorld, is_so: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            found = (await world.phone.wait_for_session()).metadata
            if is_so(found):
                return found
            await asyncio.sleep(0.02)


async def answer_ask(world: ApprovalWorld, session: DeviceSession, ask: str, **answers: Any) -> Any:
    answer = {name: {"options": [label]} for name, label in answers.items()}
    return await world.phone.call_method(
        session, "communication", id=ask, status="answered", answers=answer
    )


def list_approval_rows(envelopes: list[Any]) -> list[tuple[ToolCallStart, str]]:
    """The calls that asked, each with its result."""
    ends = {e.ev.call: e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd)}
    starts = [e.ev for e in envelopes if isinstance(e.ev, ToolCallStart)]
    return [(one, ends[one.call]) for one in starts if one.name in ("ask-user", "AskUserQuestion")]


@pytest.mark.req("gateway.approval")
async def test_devices_get_the_whole_call_and_their_answer_leaves_a_receipt(
    tmp_path: Path,
) -> None:
    async with open_approval_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        world.daemon.begin_run("r1")
        request = make_approval(COMMAND, env={"A": "1"}, always="python with any arguments")
        world.daemon.ask_approval("r1", "a1", request)
        entry = await wait_for_ask(world, "a1")
        (question,) = entry["form"]["questions"]
        # What clients without support for approvals show.
        assert (question["question"], question["header"]) == (COMMAND, "bash")
        labels = [option["label"] for option in question["options"]]
        assert labels == ["Allow", "Deny", "Always"]
        assert question["allowCustom"] is False
        assert question["approval"] == {
            "agent": "crab",
            "tool": "bash",
            "call": COMMAND,
            "cwd": "/w",
            "env": {"A": "1"},
            "always": "python with any arguments",
            "digest": "d1",
            "requestedBy": "user",
            "forOwner": False,
            "reason": "mode ask",
            "isWhole": True,
        }
        await world.phone.wait_for_event(lambda kind, it: it.get("kind") == "permission")
        assert await answer_ask(world, session, "a1", q0="Always") == {"success": True}
        reply = await world.daemon.wait_for_reply()
        assert json.loads(reply.content) == {COMMAND: "Always"}
        assert (reply.ask_id, reply.sender, reply.HasField("as_owner")) == ("a1", "user", False)
        world.daemon.finish_run("r1")
        envelopes = check_order(await world.phone.wait_for_turns(session))
        ((start, receipt),) = list_approval_rows(envelopes)
        assert start.title == "Approve `bash`"
        assert start.args["questions"][0]["approval"]["call"] == COMMAND
        assert receipt == "Always allowed: python with any arguments"
        done = await wait_for_state(world, lambda asks: "a1" in asks, "completedCommunications")
        assert done["a1"]["receipt"] == receipt
        assert done["a1"]["form"]["questions"][0]["approval"]["call"] == ""


@pytest.mark.req("gateway.approval.strict")
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"q0": {"options": []}},
        {"q0": {"options": ["Allow", "Always"]}},
        {"q0": {"options": ["allow it"]}},
        {"q0": {"options": ["Always"]}},  # not offered
        {"q0": {"options": [], "custom": "Allow"}},
        {"q0": {"options": ["Allow"], "custom": "but carefully"}},
    ],
)
async def test_an_answer_other_than_one_offered_label_denies(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    async with open_approval_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        world.daemon.begin_run("r1")
        world.daemon.ask_approval("r1", "a1", make_approval())
        await wait_for_ask(world, "a1")
        await world.phone.call_method(
            session, "communication", id="a1", status="answered", answers=answer
        )
        assert json.loads((await world.daemon.wait_for_reply()).content) == {"command: ls": "Deny"}
        world.daemon.finish_run("r1")
        envelopes = check_order(await world.phone.wait_for_turns(session))
        assert [receipt for _, receipt in list_approval_rows(envelopes)] == ["Denied"]


@pytest.mark.req("gateway.approval.strict")
async def test_an_answer_to_another_call_than_the_one_shown_is_refused(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        world.daemon.begin_run("r1")
        world.daemon.ask_approval("r1", "a1", make_approval())
        await wait_for_ask(world, "a1")
        answers = {"q0": {"options": ["Allow"], "digest": "of something else"}}
        reply = await world.phone.call_method(
            session, "communication", id="a1", status="answered", answers=answers
        )
        assert reply == {"error": "this is not the call that was shown; look at it again"}
        assert world.daemon.replies == []
        answers["q0"]["digest"] = "d1"
        reply = await world.phone.call_method(
            session, "communication", id="a1", status="answered", answers=answers
        )
        assert reply == {"success": True}


@pytest.mark.req("gateway.approval.strict")
async def test_two_calls_with_the_same_text_get_the_stricter_answer(
    tmp_path: Path,
) -> None:
    async with open_approval_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        world.daemon.begin_run("r1")
        world.daemon.ask_approval(
            "r1", "a1", make_approval(), make_approval(), make_approval("path: a", tool="edit")
        )
        await wait_for_ask(world, "a1")
        await answer_ask(world, session, "a1", q0="Deny", q1="Allow", q2="Allow")
        reply = await world.daemon.wait_for_reply()
        assert json.loads(reply.content) == {"command: ls": "Deny", "path: a": "Allow"}
        world.daemon.finish_run("r1")
        ((_, receipt),) = list_approval_rows(check_order(await world.phone.wait_for_turns(session)))
        assert receipt == "bash: Denied\nbash: Denied\nedit: Allowed once"


@pytest.mark.req("page.approval.no_accident")
async def test_messages_do_not_answer_approvals(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        world.daemon.begin_run("r1")
        world.daemon.ask_approval("r1", "a1", make_approval())
        await wait_for_ask(world, "a1")
        await world.phone.send_text(session, "Allow")
        envelopes = await world.phone.wait_for_envelopes(
            session, lambda envelopes: any(isinstance(e.ev, ServiceEvent) for e in envelopes)
        )
        (note,) = [e.ev.text for e in envelopes if isinstance(e.ev, ServiceEvent)]
        assert note == "**Queued:** a call waits for your answer above; this is next."
        assert world.daemon.replies == []
        await answer_ask(world, session, "a1", q0="Deny")
        world.daemon.finish_run("r1")
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: len(list_turn_statuses(envelopes)) == 2
        )
        assert world.daemon.received_texts == ["Allow"]


@pytest.mark.req("gateway.approval.owner")
async def test_the_owner_answers_for_a_strangers_run(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        world.daemon.call_tool("s1", "tg:666")
        request = make_approval(COMMAND, requested_by="tg:666", for_owner=True)
        world.daemon.ask_approval("s1", "a9", request, sender="tg:666")
        entry = await wait_for_ask(world, "a9")
        approval = entry["form"]["questions"][0]["approval"]
        assert (approval["requestedBy"], approval["forOwner"]) == ("tg:666", True)
        # Nothing of the other sender's conversation is shown here.
        assert await world.phone.read_envelopes(session) == []
        assert await answer_ask(world, session, "a9", q0="Deny") == {"success": True}
        reply = await world.daemon.wait_for_reply()
        assert (reply.agent, reply.sender, reply.ask_id) == ("crab", "tg:666", "a9")
        assert reply.as_owner is True
        assert json.loads(reply.content) == {COMMAND: "Deny"}
        await wait_for_state(world, lambda asks: not asks)
        envelopes = check_order(await world.phone.wait_for_turns(session))
        ((start, receipt),) = list_approval_rows(envelopes)
        assert (start.title, receipt) == ("Approve `bash` for `tg:666`", "Denied")
        assert await answer_ask(world, session, "a9", q0="Allow") == {"error": "already answered"}


@pytest.mark.req("gateway.approval.owner")
async def test_a_scheduled_job_for_the_owner_asks_on_the_page(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        world.daemon.ask_approval("t1", "theirs", make_approval(requested_by="tg:1"), sender="tg:1")
        world.daemon.ask_approval(
            "c1", "job", make_approval(requested_by="user"), sender="cron:daily"
        )
        assert list(await wait_for_state(world, lambda asks: bool(asks))) == ["job"]
        assert await answer_ask(world, session, "job", q0="Allow") == {"success": True}
        reply = await world.daemon.wait_for_reply()
        assert (reply.sender, reply.ask_id) == ("cron:daily", "job")


@pytest.mark.req("gateway.approval.owner")
@pytest.mark.parametrize("kind", [wire.TOOLS_COMPLETE, wire.DONE])
async def test_a_strangers_approval_ends_with_its_step(tmp_path: Path, kind: int) -> None:
    async with open_approval_world(tmp_path) as world:
        for run in ("s1", "s2"):
            request = make_approval(requested_by="tg:666", for_owner=True)
            world.daemon.ask_approval(run, f"a-{run}", request, sender="tg:666")
        await wait_for_state(world, lambda asks: len(asks) == 2)
        world.daemon.emit(kind, "s1", "tg:666")
        assert list(await wait_for_state(world, lambda asks: len(asks) == 1)) == ["a-s2"]
        # It is still pending when the gateway comes back, and the daemon sends it again.
        del world.daemon.waiting["a-s1"]
        await world.stop_gateway()
        await world.start_gateway()
        session = await world.phone.wait_for_session()
        async with asyncio.timeout(20):
            while await answer_ask(world, session, "a-s2", q0="Allow") != {"success": True}:
                await asyncio.sleep(0.05)
        assert (await world.daemon.wait_for_reply()).as_owner is True


@pytest.mark.req("gateway.approval.owner")
async def test_a_gateway_with_fewer_rights_does_not_answer_for_the_owner(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path, WebApprovalDaemon(), sender="web:me") as world:
        session = await world.phone.wait_for_session()
        for sender in ("web:me", "tg:666"):
            request = make_approval(requested_by=sender, for_owner=True)
            world.daemon.ask_approval(f"of {sender}", f"a {sender}", request, sender=sender)
        world.daemon.begin_run("r1", "web:me")
        world.daemon.ask_approval(
            "r1", "own", make_approval(requested_by="web:me"), sender="web:me"
        )
        assert list(await wait_for_state(world, lambda asks: bool(asks))) == ["own"]
        assert await answer_ask(world, session, "a tg:666", q0="Allow") == {
            "error": "already answered"
        }
        assert world.daemon.replies == []


@pytest.mark.req("page.approval.cut")
async def test_a_call_that_is_too_large_is_marked_and_can_only_be_denied(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        world.daemon.begin_run("r1")
        world.daemon.ask_approval("r1", "small", make_approval("x" * 100_000))
        world.daemon.ask_approval(
            "r1", "large", make_approval("head" + "y" * 2_000_000 + "tail", digest="d2")
        )
        found = await wait_for_state(world, lambda asks: len(asks) == 2)
        approval = {key: one["form"]["questions"][0]["approval"] for key, one in found.items()}
        assert (approval["small"]["isWhole"], len(approval["small"]["call"])) == (True, 100_000)
        assert approval["large"]["isWhole"] is False
        assert approval["large"]["call"].startswith("heady")
        assert approval["large"]["call"].endswith("ytail")
        assert "bytes and more left out" in approval["large"]["call"]
        reply = await answer_ask(world, session, "large", q0="Allow")
        assert "too large to be shown here" in reply["error"]
        assert world.daemon.replies == []
        assert await answer_ask(world, session, "large", q0="Deny") == {"success": True}
        assert json.loads((await world.daemon.wait_for_reply()).content).popitem()[1] == "Deny"
        assert await answer_ask(world, session, "small", q0="Allow") == {"success": True}
        world.daemon.finish_run("r1")
        check_order(await world.phone.wait_for_turns(session))


@pytest.mark.req("gateway.approval")
@pytest.mark.parametrize(
    ("answer", "label", "status"),
    [
        ({"approved": True, "updatedInput": {"answers": {COMMAND: "Allow"}}}, "Allow", "approved"),
        ({"approved": True, "updatedInput": {"answers": {COMMAND: "Deny"}}}, "Deny", "denied"),
        ({"approved": True, "updatedInput": {"answers": {"other": "x"}}}, "Deny", "denied"),
        ({"approved": True}, "Allow", "approved"),
        ({"approved": False}, "Deny", "denied"),
    ],
)
async def test_apps_that_know_only_permissions_allow_and_deny(
    tmp_path: Path, answer: dict[str, Any], label: str, status: str
) -> None:
    async with open_approval_world(tmp_path, compat=True) as world:
        session = await world.phone.wait_for_session()
        world.daemon.begin_run("r1")
        world.daemon.ask_approval("r1", "a1", make_approval(COMMAND))
        entry = await wait_for_ask(world, "a1", "requests")
        assert entry["tool"] == "AskUserQuestion"
        assert entry["arguments"]["questions"][0]["question"] == COMMAND
        await world.phone.call_method(session, "permission", id="a1", **answer)
        assert json.loads((await world.daemon.wait_for_reply()).content) == {COMMAND: label}
        done = await wait_for_state(world, lambda asks: "a1" in asks, "completedRequests")
        assert done["a1"]["status"] == status


@pytest.mark.req("gateway.mode")
async def test_the_mode_is_shown_and_changed_by_a_device(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as world:
        found = await wait_for_metadata(
            world, lambda metadata: "currentOperatingModeCode" in metadata
        )
        assert found["currentOperatingModeCode"] == "ask"
        codes = [mode["code"] for mode in found["operatingModes"]]
        assert codes == ["plan", "ask", "accept-edits", "auto"]
        assert all(mode["description"] for mode in found["operatingModes"])
        session = await world.phone.wait_for_session()
        reply = await world.phone.call_method(session, "setMode", mode="plan")
        assert reply == {"mode": "plan", "isSet": True}
        assert world.daemon.modes == {("crab", "user"): "plan"}
        await wait_for_metadata(
            world, lambda metadata: metadata["currentOperatingModeCode"] == "plan"
        )
        refused = await world.phone.call_method(session, "setMode", mode="yolo")
        assert "there are plan, ask, accept-edits, auto" in refused["error"]
        assert await world.phone.call_method(session, "setMode", mode="") == {
            "mode": "ask",
            "isSet": False,
        }
        found = await wait_for_metadata(
            world, lambda metadata: metadata["currentOperatingModeCode"] == "ask"
        )
        assert found["operatingModeIsSet"] is False


@pytest.mark.req("gateway.mode")
async def test_a_mode_that_another_client_sets_is_shown_while_a_turn_runs(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as world:
        await wait_for_metadata(
            world, lambda metadata: metadata.get("currentOperatingModeCode") == "ask"
        )
        world.daemon.begin_run("r1")
        await world.phone.wait_for_envelopes(await world.phone.wait_for_session(), bool)
        await world.daemon.set_mode(wire.SetModeMsg(agent="crab", mode="auto"))
        await wait_for_metadata(
            world, lambda metadata: metadata["currentOperatingModeCode"] == "auto"
        )
        # The mode of another sender's conversation does not affect ours.
        await world.daemon.set_mode(wire.SetModeMsg(agent="crab", sender="bo", mode="plan"))
        world.daemon.finish_run("r1")
        await world.phone.wait_for_turns(await world.phone.wait_for_session())
        found = await wait_for_metadata(world, lambda metadata: True)
        assert found["currentOperatingModeCode"] == "auto"
