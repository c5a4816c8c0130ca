"""Approvals and modes through the gateway: shown whole, answered once, by the right person."""

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

# What a page that reads it as Markdown changes.
COMMAND = "command: python __init__.py --grep *line*\n# comment\n\n    indented"


async def wait_for_state(
    w: ApprovalWorld, is_so: Callable[[dict[str, Any]], bool], key: str = "communications"
) -> dict[str, Any]:
    """The questions that wait, once it is so."""
    async with asyncio.timeout(20):
        while True:
            found: dict[str, Any] = (await w.phone.wait_for_session()).state.get(key, {})
            if is_so(found):
                return found
            await asyncio.sleep(0.02)


async def wait_for_ask(w: ApprovalWorld, ask: str, key: str = "communications") -> dict[str, Any]:
    found = await wait_for_state(w, lambda asks: ask in asks, key)
    entry: dict[str, Any] = found[ask]
    return entry


async def wait_for_metadata(
    w: ApprovalWorld, is_so: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            found = (await w.phone.wait_for_session()).metadata
            if is_so(found):
                return found
            await asyncio.sleep(0.02)


async def answer_ask(w: ApprovalWorld, session: DeviceSession, ask: str, **answers: Any) -> Any:
    given = {name: {"options": [label]} for name, label in answers.items()}
    return await w.phone.call_method(
        session, "communication", id=ask, status="answered", answers=given
    )


def list_approval_rows(envelopes: list[Any]) -> list[tuple[ToolCallStart, str]]:
    """The calls that asked, with what came of each."""
    ends = {e.ev.call: e.ev.result for e in envelopes if isinstance(e.ev, ToolCallEnd)}
    starts = [e.ev for e in envelopes if isinstance(e.ev, ToolCallStart)]
    return [(one, ends[one.call]) for one in starts if one.name in ("ask-user", "AskUserQuestion")]


@pytest.mark.req("gateway.approval")
async def test_devices_get_the_whole_call_and_their_answer_leaves_a_receipt(
    tmp_path: Path,
) -> None:
    async with open_approval_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        w.daemon.begin_run("r1")
        request = make_approval(COMMAND, env={"A": "1"}, always="python with any arguments")
        w.daemon.ask_approval("r1", "a1", request)
        entry = await wait_for_ask(w, "a1")
        (question,) = entry["form"]["questions"]
        # What clients that know nothing of approvals show.
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
        await w.phone.wait_for_event(lambda kind, it: it.get("kind") == "permission")
        assert await answer_ask(w, session, "a1", q0="Always") == {"success": True}
        reply = await w.daemon.wait_for_reply()
        assert json.loads(reply.content) == {COMMAND: "Always"}
        assert (reply.ask_id, reply.sender, reply.HasField("as_owner")) == ("a1", "user", False)
        w.daemon.finish_run("r1")
        envelopes = check_order(await w.phone.wait_for_turns(session))
        ((start, receipt),) = list_approval_rows(envelopes)
        assert start.title == "Approve `bash`"
        assert start.args["questions"][0]["approval"]["call"] == COMMAND
        assert receipt == "Always allowed: python with any arguments"
        done = await wait_for_state(w, lambda asks: "a1" in asks, "completedCommunications")
        assert done["a1"]["receipt"] == receipt
        assert done["a1"]["form"]["questions"][0]["approval"]["call"] == ""


@pytest.mark.req("gateway.approval.strict")
@pytest.mark.parametrize(
    "given",
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
async def test_an_answer_that_is_not_one_offered_label_is_a_no(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    async with open_approval_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        w.daemon.begin_run("r1")
        w.daemon.ask_approval("r1", "a1", make_approval())
        await wait_for_ask(w, "a1")
        await w.phone.call_method(
            session, "communication", id="a1", status="answered", answers=given
        )
        assert json.loads((await w.daemon.wait_for_reply()).content) == {"command: ls": "Deny"}
        w.daemon.finish_run("r1")
        envelopes = check_order(await w.phone.wait_for_turns(session))
        assert [receipt for _, receipt in list_approval_rows(envelopes)] == ["Denied"]


@pytest.mark.req("gateway.approval.strict")
async def test_an_answer_to_another_call_than_the_one_shown_is_refused(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        w.daemon.begin_run("r1")
        w.daemon.ask_approval("r1", "a1", make_approval())
        await wait_for_ask(w, "a1")
        answers = {"q0": {"options": ["Allow"], "digest": "of something else"}}
        told = await w.phone.call_method(
            session, "communication", id="a1", status="answered", answers=answers
        )
        assert told == {"error": "this is not the call that was shown; look at it again"}
        assert w.daemon.replies == []
        answers["q0"]["digest"] = "d1"
        told = await w.phone.call_method(
            session, "communication", id="a1", status="answered", answers=answers
        )
        assert told == {"success": True}


@pytest.mark.req("gateway.approval.strict")
async def test_two_calls_that_read_the_same_get_the_answer_that_allows_less(
    tmp_path: Path,
) -> None:
    async with open_approval_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        w.daemon.begin_run("r1")
        w.daemon.ask_approval(
            "r1", "a1", make_approval(), make_approval(), make_approval("path: a", tool="edit")
        )
        await wait_for_ask(w, "a1")
        await answer_ask(w, session, "a1", q0="Deny", q1="Allow", q2="Allow")
        reply = await w.daemon.wait_for_reply()
        assert json.loads(reply.content) == {"command: ls": "Deny", "path: a": "Allow"}
        w.daemon.finish_run("r1")
        ((_, receipt),) = list_approval_rows(check_order(await w.phone.wait_for_turns(session)))
        assert receipt == "bash: Denied\nbash: Denied\nedit: Allowed once"


@pytest.mark.req("page.approval.no_accident")
async def test_words_in_the_conversation_answer_no_approval(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        w.daemon.begin_run("r1")
        w.daemon.ask_approval("r1", "a1", make_approval())
        await wait_for_ask(w, "a1")
        await w.phone.send_text(session, "Allow")
        envelopes = await w.phone.wait_for_envelopes(
            session, lambda found: any(isinstance(e.ev, ServiceEvent) for e in found)
        )
        (note,) = [e.ev.text for e in envelopes if isinstance(e.ev, ServiceEvent)]
        assert note == "**Queued:** a call waits for your answer above; this is next."
        assert w.daemon.replies == []
        await answer_ask(w, session, "a1", q0="Deny")
        w.daemon.finish_run("r1")
        await w.phone.wait_for_envelopes(session, lambda found: len(list_turn_statuses(found)) == 2)
        assert w.daemon.received_texts == ["Allow"]


@pytest.mark.req("gateway.approval.owner")
async def test_the_owner_answers_for_a_strangers_run(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        w.daemon.call_tool("s1", "tg:666")
        request = make_approval(COMMAND, requested_by="tg:666", for_owner=True)
        w.daemon.ask_approval("s1", "a9", request, sender="tg:666")
        entry = await wait_for_ask(w, "a9")
        shown = entry["form"]["questions"][0]["approval"]
        assert (shown["requestedBy"], shown["forOwner"]) == ("tg:666", True)
        # Nothing of the stranger's conversation is told here.
        assert await w.phone.read_envelopes(session) == []
        assert await answer_ask(w, session, "a9", q0="Deny") == {"success": True}
        reply = await w.daemon.wait_for_reply()
        assert (reply.agent, reply.sender, reply.ask_id) == ("crab", "tg:666", "a9")
        assert reply.as_owner is True
        assert json.loads(reply.content) == {COMMAND: "Deny"}
        await wait_for_state(w, lambda asks: not asks)
        envelopes = check_order(await w.phone.wait_for_turns(session))
        ((start, receipt),) = list_approval_rows(envelopes)
        assert (start.title, receipt) == ("Approve `bash` for `tg:666`", "Denied")
        assert await answer_ask(w, session, "a9", q0="Allow") == {"error": "already answered"}


@pytest.mark.req("gateway.approval.owner")
async def test_a_scheduled_job_in_the_owners_name_asks_on_the_page(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        w.daemon.ask_approval("t1", "theirs", make_approval(requested_by="tg:1"), sender="tg:1")
        w.daemon.ask_approval("c1", "job", make_approval(requested_by="user"), sender="cron:daily")
        assert list(await wait_for_state(w, lambda asks: bool(asks))) == ["job"]
        assert await answer_ask(w, session, "job", q0="Allow") == {"success": True}
        reply = await w.daemon.wait_for_reply()
        assert (reply.sender, reply.ask_id) == ("cron:daily", "job")


@pytest.mark.req("gateway.approval.owner")
@pytest.mark.parametrize("kind", [wire.TOOLS_COMPLETE, wire.DONE])
async def test_a_strangers_approval_goes_with_its_step(tmp_path: Path, kind: int) -> None:
    async with open_approval_world(tmp_path) as w:
        for run in ("s1", "s2"):
            request = make_approval(requested_by="tg:666", for_owner=True)
            w.daemon.ask_approval(run, f"a-{run}", request, sender="tg:666")
        await wait_for_state(w, lambda asks: len(asks) == 2)
        w.daemon.emit(kind, "s1", "tg:666")
        assert list(await wait_for_state(w, lambda asks: len(asks) == 1)) == ["a-s2"]
        # It waits still when the gateway comes back, and the daemon tells it again.
        del w.daemon.waiting["a-s1"]
        await w.stop_gateway()
        await w.start_gateway()
        session = await w.phone.wait_for_session()
        async with asyncio.timeout(20):
            while await answer_ask(w, session, "a-s2", q0="Allow") != {"success": True}:
                await asyncio.sleep(0.05)
        assert (await w.daemon.wait_for_reply()).as_owner is True


@pytest.mark.req("gateway.approval.owner")
async def test_a_gateway_with_fewer_rights_does_not_answer_for_the_owner(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path, WebApprovalDaemon(), sender="web:me") as w:
        session = await w.phone.wait_for_session()
        for sender in ("web:me", "tg:666"):
            request = make_approval(requested_by=sender, for_owner=True)
            w.daemon.ask_approval(f"of {sender}", f"a {sender}", request, sender=sender)
        w.daemon.begin_run("r1", "web:me")
        w.daemon.ask_approval("r1", "own", make_approval(requested_by="web:me"), sender="web:me")
        assert list(await wait_for_state(w, lambda asks: bool(asks))) == ["own"]
        assert await answer_ask(w, session, "a tg:666", q0="Allow") == {"error": "already answered"}
        assert w.daemon.replies == []


@pytest.mark.req("page.approval.cut")
async def test_a_call_that_is_too_large_is_marked_and_can_only_be_denied(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        w.daemon.begin_run("r1")
        w.daemon.ask_approval("r1", "small", make_approval("x" * 100_000))
        w.daemon.ask_approval(
            "r1", "large", make_approval("head" + "y" * 2_000_000 + "tail", digest="d2")
        )
        found = await wait_for_state(w, lambda asks: len(asks) == 2)
        shown = {key: one["form"]["questions"][0]["approval"] for key, one in found.items()}
        assert (shown["small"]["isWhole"], len(shown["small"]["call"])) == (True, 100_000)
        assert shown["large"]["isWhole"] is False
        assert shown["large"]["call"].startswith("heady")
        assert shown["large"]["call"].endswith("ytail")
        assert "bytes and more left out" in shown["large"]["call"]
        told = await answer_ask(w, session, "large", q0="Allow")
        assert "too large to be shown here" in told["error"]
        assert w.daemon.replies == []
        assert await answer_ask(w, session, "large", q0="Deny") == {"success": True}
        assert json.loads((await w.daemon.wait_for_reply()).content).popitem()[1] == "Deny"
        assert await answer_ask(w, session, "small", q0="Allow") == {"success": True}
        w.daemon.finish_run("r1")
        check_order(await w.phone.wait_for_turns(session))


@pytest.mark.req("gateway.approval")
@pytest.mark.parametrize(
    ("given", "label", "status"),
    [
        ({"approved": True, "updatedInput": {"answers": {COMMAND: "Allow"}}}, "Allow", "approved"),
        ({"approved": True, "updatedInput": {"answers": {COMMAND: "Deny"}}}, "Deny", "denied"),
        ({"approved": True, "updatedInput": {"answers": {"other": "x"}}}, "Deny", "denied"),
        ({"approved": True}, "Allow", "approved"),
        ({"approved": False}, "Deny", "denied"),
    ],
)
async def test_apps_that_know_only_permissions_allow_and_deny(
    tmp_path: Path, given: dict[str, Any], label: str, status: str
) -> None:
    async with open_approval_world(tmp_path, compat=True) as w:
        session = await w.phone.wait_for_session()
        w.daemon.begin_run("r1")
        w.daemon.ask_approval("r1", "a1", make_approval(COMMAND))
        entry = await wait_for_ask(w, "a1", "requests")
        assert entry["tool"] == "AskUserQuestion"
        assert entry["arguments"]["questions"][0]["question"] == COMMAND
        await w.phone.call_method(session, "permission", id="a1", **given)
        assert json.loads((await w.daemon.wait_for_reply()).content) == {COMMAND: label}
        done = await wait_for_state(w, lambda asks: "a1" in asks, "completedRequests")
        assert done["a1"]["status"] == status


@pytest.mark.req("gateway.mode")
async def test_the_mode_is_shown_and_changed_by_a_device(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as w:
        found = await wait_for_metadata(w, lambda told: "currentOperatingModeCode" in told)
        assert found["currentOperatingModeCode"] == "ask"
        codes = [mode["code"] for mode in found["operatingModes"]]
        assert codes == ["plan", "ask", "accept-edits", "auto"]
        assert all(mode["description"] for mode in found["operatingModes"])
        session = await w.phone.wait_for_session()
        told = await w.phone.call_method(session, "setMode", mode="plan")
        assert told == {"mode": "plan", "isSet": True}
        assert w.daemon.modes == {("crab", "user"): "plan"}
        await wait_for_metadata(w, lambda told: told["currentOperatingModeCode"] == "plan")
        refused = await w.phone.call_method(session, "setMode", mode="yolo")
        assert "there are plan, ask, accept-edits, auto" in refused["error"]
        assert await w.phone.call_method(session, "setMode", mode="") == {
            "mode": "ask",
            "isSet": False,
        }
        found = await wait_for_metadata(w, lambda told: told["currentOperatingModeCode"] == "ask")
        assert found["operatingModeIsSet"] is False


@pytest.mark.req("gateway.mode")
async def test_a_mode_that_another_client_sets_is_shown_while_a_turn_runs(tmp_path: Path) -> None:
    async with open_approval_world(tmp_path) as w:
        await wait_for_metadata(w, lambda told: told.get("currentOperatingModeCode") == "ask")
        w.daemon.begin_run("r1")
        await w.phone.wait_for_envelopes(await w.phone.wait_for_session(), bool)
        await w.daemon.set_mode(wire.SetModeMsg(agent="crab", mode="auto"))
        await wait_for_metadata(w, lambda told: told["currentOperatingModeCode"] == "auto")
        # That of another person's conversation is not ours.
        await w.daemon.set_mode(wire.SetModeMsg(agent="crab", sender="bo", mode="plan"))
        w.daemon.finish_run("r1")
        await w.phone.wait_for_turns(await w.phone.wait_for_session())
        found = await wait_for_metadata(w, lambda told: True)
        assert found["currentOperatingModeCode"] == "auto"
