"""Forms take keys, give an answer, and render lines that fit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from crabtalk.chat.form import FormOutcome, TerminalForm, truncate_text, wrap_text
from crabtalk.protocol import wire

YES_NO = ("Yes", "No", "Always here")


def make_question(
    text: str, *options: str, header: str = "head", several: bool = False
) -> wire.AskQuestion:
    choices = [wire.AskOption(label=label, description=f"about {label}") for label in options]
    return wire.AskQuestion(question=text, header=header, options=choices, multi_select=several)


def make_form(*questions: wire.AskQuestion, asker: str = "") -> TerminalForm:
    return TerminalForm(wire.AskUserEvent(questions=questions, ask_id="r-1"), asker)


def press_keys(form: TerminalForm, *keys: str) -> FormOutcome:
    """Press keys and return the outcome of the last one."""
    outcome: FormOutcome = ""
    for key in keys:
        assert outcome == "", f"it was over before {key!r}"
        outcome = form.press_key(key)
    return outcome


def render_form(form: TerminalForm, width: int = 80, height: int = 24) -> list[str]:
    return ["".join(text for _, text in line) for line in form.render_lines(width, height)]


@pytest.mark.req("chat.form.keys")
@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (("enter",), "Yes"),
        (("down", "enter"), "No"),
        (("down", "down", "up", "enter"), "No"),
        (("down", " ", "up", "enter"), "Yes"),
        (("3",), "Always here"),
        (("down", "down", "down", "down", "m", "y", " ", "o", "enter"), "my o"),
        (("u", "p", "backspace", "enter"), "u"),
        (("u", "clear", "n", "o", "enter"), "no"),
    ],
)
def test_a_single_question_is_sent_by_its_answer(keys: tuple[str, ...], answer: str) -> None:
    form = make_form(make_question("May I?", *YES_NO))
    assert press_keys(form, *keys) == "sent"
    assert json.loads(form.answers) == {"May I?": answer}


@pytest.mark.req("chat.form.keys")
def test_several_options_are_picked_with_space_and_joined_in_their_order() -> None:
    form = make_form(make_question("Which?", "a", "b", "c", several=True))
    assert (
        press_keys(form, "down", "down", " ", "up", "up", " ", "down", " ", " ", "enter") == "sent"
    )
    assert json.loads(form.answers) == {"Which?": "a, c"}


@pytest.mark.req("chat.form.keys")
def test_own_text_is_added_to_the_picked_options() -> None:
    form = make_form(make_question("Which?", "a", "b", several=True))
    assert press_keys(form, " ", "x", "y", "enter") == "sent"
    assert json.loads(form.answers) == {"Which?": "a, xy"}


@pytest.mark.req("chat.form.keys")
def test_a_question_without_options_takes_text() -> None:
    form = make_form(make_question("Your name?"))
    assert press_keys(form, "enter", *"Bo", "enter") == "sent"
    assert json.loads(form.answers) == {"Your name?": "Bo"}


@pytest.mark.req("chat.form.pages")
def test_several_questions_have_a_page_each_and_a_page_to_send() -> None:
    form = make_form(
        make_question("One?", "a", "b", header="first"), make_question("Two?", "c", header="second")
    )
    assert render_form(form)[0] == " first  second  send "
    press_keys(form, "enter")
    assert render_form(form)[0] == " ✓ first  second  send "
    assert render_form(form)[1] == "Two?"
    press_keys(form, "enter")
    assert render_form(form)[1:3] == ["first: a", "second: c"]
    assert press_keys(form, "left", "left", "down", "enter", "enter", "enter") == "sent"
    assert json.loads(form.answers) == {"One?": "b", "Two?": "c"}


@pytest.mark.req("chat.form.pages")
def test_a_form_is_not_sent_before_every_question_has_an_answer() -> None:
    form = make_form(make_question("One?", "a"), make_question("Two?", "b"))
    assert press_keys(form, "tab", "enter", "enter") == ""
    assert "One?" in render_form(form)
    assert press_keys(form, "enter", "tab", "enter") == "sent"


@pytest.mark.req("chat.form.later")
def test_escape_leaves_the_form_and_keeps_its_answers() -> None:
    form = make_form(make_question("One?", "a", "b"), make_question("Two?", "c"))
    assert press_keys(form, "down", " ", "escape") == "left"
    assert press_keys(form, "tab", "enter", "enter") == "sent"
    assert json.loads(form.answers) == {"One?": "b", "Two?": "c"}


def test_pasted_text_becomes_the_own_text() -> None:
    form = make_form(make_question("Why?", "a"))
    form.paste_text("two\nlines")
    assert press_keys(form, "enter") == "sent"
    assert json.loads(form.answers) == {"Why?": "two\nlines"}


def test_control_characters_in_a_question_are_escaped() -> None:
    form = make_form(make_question("ring\x07 \x1b[2J\u202e", "\x1b[31mred\nmore", header="\x9b5n"))
    assert not any(ord(c) < 32 or c in "\x9b\u202e" for line in render_form(form) for c in line)
    assert press_keys(form, "enter") == "sent"


def test_a_long_question_is_cut_and_its_options_stay_in_view() -> None:
    form = make_form(make_question("\n".join(f"line {n}" for n in range(100)), *YES_NO))
    lines = render_form(form, 40, 8)
    assert lines[:3] == ["line 0", "line 1", "…"]
    assert [line[4:7] for line in lines[3:6]] == ["Yes", "No ", "Alw"]
    assert form.is_question_cut(form.pages[0], 40, 8)
    short = make_form(make_question("short?", *YES_NO))
    assert not short.is_question_cut(short.pages[0], 40, 8)


def test_a_short_question_with_many_options_is_not_cut() -> None:
    form = make_form(make_question("Which?", *(f"option {n}" for n in range(50))))
    assert render_form(form, 40, 8)[0] == "Which?"
    assert not form.is_question_cut(form.pages[0], 40, 8)


@pytest.mark.req("chat.form.long")
def test_a_question_that_is_printed_above_has_one_line_in_the_form() -> None:
    form = make_form(make_question("May I?\n\nrm -r everything", *YES_NO))
    form.pages[0].is_printed_above = True
    assert render_form(form, 40, 20)[:2] == ["May I? …", "▸ ○ Yes  about Yes"]
    form = make_form(make_question("May I?", *YES_NO))
    form.pages[0].is_printed_above = True
    assert render_form(form)[0] == "May I?"


@pytest.mark.req("chat.form.asker")
def test_another_asker_is_named() -> None:
    form = make_form(make_question("May I?", *YES_NO), asker="twin (count shells)")
    assert render_form(form)[0] == "twin (count shells) asks: May I?"
    assert press_keys(form, "enter") == "sent"
    assert json.loads(form.answers) == {"May I?": "Yes"}


@pytest.mark.req("chat.form.more")
def test_the_number_of_hidden_options_is_shown() -> None:
    form = make_form(make_question("Which?", *(f"option {n}" for n in range(50))))
    assert render_form(form, 40, 8)[1:7] == [
        "▸ ○ option 0  about option 0",
        *(f"  ○ option {n}  about option {n}" for n in range(1, 5)),
        "  ↓ 46 more",
    ]
    press_keys(form, *["down"] * 25)
    rows = render_form(form, 40, 8)[1:7]
    assert (rows[0], rows[-1]) == ("  ↑ 23 more", "  ↓ 24 more")
    assert [row[:13] for row in rows[1:-1]] == [
        *("  ○ option 23", "  ○ option 24", "▸ ○ option 25", "  ○ option 26"),
    ]
    press_keys(form, *["down"] * 25)
    rows = render_form(form, 40, 8)[1:7]
    assert rows[0] == "  ↑ 46 more"
    assert rows[-1].startswith("▸ ○ something else")


@pytest.mark.req("chat.form.more")
def test_tabs_that_do_not_fit_scroll_with_arrows() -> None:
    names = [f"question {n}" for n in range(8)]
    form = make_form(*(make_question(f"{name}?", "a", header=name) for name in names))
    assert render_form(form, 40)[0] == " question 0  question 1  question 2 →"
    press_keys(form, *["right"] * 4)
    assert render_form(form, 40)[0] == "← question 4  question 5  question 6 →"
    press_keys(form, *["right"] * 4)
    assert render_form(form, 40)[0] == "← question 6  question 7  send "


@pytest.mark.req("chat.form.hints")
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "of two"])
@pytest.mark.parametrize("several", [True, False], ids=["several", "one"])
def test_the_hint_for_enter_is_right(is_alone: bool, several: bool) -> None:
    questions = [make_question("One?", "a", "b", several=several), make_question("Two?", "c")]
    form = make_form(*questions[: 1 if is_alone else 2])
    says_so = "Enter sends" in render_form(form)[-1]
    assert says_so is is_alone
    press_keys(form, "x")
    assert ("Enter sends" in render_form(form)[-1]) is is_alone
    assert (press_keys(form, "enter") == "sent") is is_alone


@pytest.mark.req("chat.form.hints")
def test_without_options_the_hint_names_none() -> None:
    assert (
        render_form(make_form(make_question("Your name?")))[-1] == "write, Enter sends · Esc later"
    )
    form = make_form(make_question("One?", "a"))
    press_keys(form, "down")
    assert render_form(form)[-1] == "write, Enter sends · ↑ options · Esc later"


def test_the_options_around_the_cursor_are_in_view() -> None:
    form = make_form(make_question("Which?", *(f"option {n}" for n in range(50))))
    press_keys(form, *["down"] * 30)
    assert any("▸ ○ option 30" in line for line in render_form(form, 40, 10))


texts = st.text(max_size=200)
keys = st.sampled_from(
    ["up", "down", "left", "right", "tab", "backtab", " ", "backspace", "1", "x"]
)


@given(
    st.lists(
        st.builds(
            lambda text, options, several: make_question(text, *options, several=several),
            texts,
            st.lists(texts, max_size=6),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(keys, max_size=20),
    st.integers(20, 100),
    st.integers(4, 30),
    texts,
    st.booleans(),
)
def test_a_form_always_fits(
    questions: list[wire.AskQuestion],
    pressed: list[str],
    width: int,
    height: int,
    asker: str,
    is_above: bool,
) -> None:
    form = make_form(*questions, asker=asker)
    for page in form.pages:
        page.is_printed_above = is_above
    for key in pressed:
        if form.press_key(key):
            break
    lines = render_form(form, width, height)
    assert len(lines) <= height
    assert max(map(get_cwidth, lines)) <= width
    assert all("\n" not in line for line in lines)


@given(texts, st.integers(2, 60))
def test_wrapping_loses_nothing_but_spaces(text: str, width: int) -> None:
    lines = wrap_text(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert max(map(get_cwidth, lines)) <= width


def test_truncated_text_ends_in_an_ellipsis_and_fits() -> None:
    assert truncate_text("lighthouse", 10) == "lighthouse"
    assert truncate_text("lighthouse", 9) == "lighthou…"
    assert truncate_text("灯台の光", 5) == "灯台…"
