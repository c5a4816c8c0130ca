"""Forms: keys in, an answer out, and lines that fit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from crabtalk.chat.form import FormOutcome, TerminalForm, truncate_text, wrap_text
from crabtalk.protocol import wire

YES_NO = ("Yes", "No", "Always here")


def make_question(
    text: str, *options: str, header: str = "head", many: bool = False
) -> wire.AskQuestion:
    made = [wire.AskOption(label=label, description=f"about {label}") for label in options]
    return wire.AskQuestion(question=text, header=header, options=made, multi_select=many)


def make_form(*questions: wire.AskQuestion, asker: str = "") -> TerminalForm:
    return TerminalForm(wire.AskUserEvent(questions=questions, ask_id="r-1"), asker)


def press_keys(filled: TerminalForm, *keys: str) -> FormOutcome:
    """What the last of them comes to."""
    outcome: FormOutcome = ""
    for key in keys:
        assert outcome == "", f"it was over before {key!r}"
        outcome = filled.press_key(key)
    return outcome


def render_form(filled: TerminalForm, width: int = 80, height: int = 24) -> list[str]:
    return ["".join(text for _, text in line) for line in filled.render_lines(width, height)]


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
def test_one_question_is_sent_by_its_answer(keys: tuple[str, ...], answer: str) -> None:
    filled = make_form(make_question("May I?", *YES_NO))
    assert press_keys(filled, *keys) == "sent"
    assert json.loads(filled.answers) == {"May I?": answer}


@pytest.mark.req("chat.form.keys")
def test_several_options_are_picked_with_space_and_joined_in_their_order() -> None:
    filled = make_form(make_question("Which?", "a", "b", "c", many=True))
    assert (
        press_keys(filled, "down", "down", " ", "up", "up", " ", "down", " ", " ", "enter")
        == "sent"
    )
    assert json.loads(filled.answers) == {"Which?": "a, c"}


@pytest.mark.req("chat.form.keys")
def test_words_of_ones_own_go_beside_what_was_picked() -> None:
    filled = make_form(make_question("Which?", "a", "b", many=True))
    assert press_keys(filled, " ", "x", "y", "enter") == "sent"
    assert json.loads(filled.answers) == {"Which?": "a, xy"}


@pytest.mark.req("chat.form.keys")
def test_a_question_without_options_is_answered_in_words() -> None:
    filled = make_form(make_question("Your name?"))
    assert press_keys(filled, "enter", *"Bo", "enter") == "sent"
    assert json.loads(filled.answers) == {"Your name?": "Bo"}


@pytest.mark.req("chat.form.pages")
def test_several_questions_have_a_page_each_and_one_to_send_them_from() -> None:
    filled = make_form(
        make_question("One?", "a", "b", header="first"), make_question("Two?", "c", header="second")
    )
    assert render_form(filled)[0] == " first  second  send "
    press_keys(filled, "enter")
    assert render_form(filled)[0] == " ✓ first  second  send "
    assert render_form(filled)[1] == "Two?"
    press_keys(filled, "enter")
    assert render_form(filled)[1:3] == ["first: a", "second: c"]
    assert press_keys(filled, "left", "left", "down", "enter", "enter", "enter") == "sent"
    assert json.loads(filled.answers) == {"One?": "b", "Two?": "c"}


@pytest.mark.req("chat.form.pages")
def test_it_is_not_sent_before_every_question_has_an_answer() -> None:
    filled = make_form(make_question("One?", "a"), make_question("Two?", "b"))
    assert press_keys(filled, "tab", "enter", "enter") == ""
    assert "One?" in render_form(filled)
    assert press_keys(filled, "enter", "tab", "enter") == "sent"


@pytest.mark.req("chat.form.later")
def test_escape_leaves_it_as_it_is() -> None:
    filled = make_form(make_question("One?", "a", "b"), make_question("Two?", "c"))
    assert press_keys(filled, "down", " ", "escape") == "left"
    assert press_keys(filled, "tab", "enter", "enter") == "sent"
    assert json.loads(filled.answers) == {"One?": "b", "Two?": "c"}


def test_what_is_pasted_is_written() -> None:
    filled = make_form(make_question("Why?", "a"))
    filled.paste_text("two\nlines")
    assert press_keys(filled, "enter") == "sent"
    assert json.loads(filled.answers) == {"Why?": "two\nlines"}


def test_what_a_model_asks_cannot_steer_the_terminal() -> None:
    filled = make_form(
        make_question("ring\x07 \x1b[2J\u202e", "\x1b[31mred\nmore", header="\x9b5n")
    )
    assert not any(ord(c) < 32 or c in "\x9b\u202e" for line in render_form(filled) for c in line)
    assert press_keys(filled, "enter") == "sent"


def test_of_a_question_that_is_too_long_the_options_stay_in_view() -> None:
    filled = make_form(make_question("\n".join(f"line {n}" for n in range(100)), *YES_NO))
    lines = render_form(filled, 40, 8)
    assert lines[:3] == ["line 0", "line 1", "…"]
    assert [line[4:7] for line in lines[3:6]] == ["Yes", "No ", "Alw"]
    assert filled.is_question_cut(filled.pages[0], 40, 8)
    short = make_form(make_question("short?", *YES_NO))
    assert not short.is_question_cut(short.pages[0], 40, 8)


def test_many_options_do_not_make_a_short_question_one_that_is_cut() -> None:
    filled = make_form(make_question("Which?", *(f"option {n}" for n in range(50))))
    assert render_form(filled, 40, 8)[0] == "Which?"
    assert not filled.is_question_cut(filled.pages[0], 40, 8)


@pytest.mark.req("chat.form.long")
def test_a_question_that_is_printed_above_has_one_line_in_the_form() -> None:
    filled = make_form(make_question("May I?\n\nrm -r everything", *YES_NO))
    filled.pages[0].is_printed_above = True
    assert render_form(filled, 40, 20)[:2] == ["May I? …", "▸ ○ Yes  about Yes"]
    filled = make_form(make_question("May I?", *YES_NO))
    filled.pages[0].is_printed_above = True
    assert render_form(filled)[0] == "May I?"


@pytest.mark.req("chat.form.asker")
def test_who_asks_is_said_where_that_is_another() -> None:
    filled = make_form(make_question("May I?", *YES_NO), asker="twin (count shells)")
    assert render_form(filled)[0] == "twin (count shells) asks: May I?"
    assert press_keys(filled, "enter") == "sent"
    assert json.loads(filled.answers) == {"May I?": "Yes"}


@pytest.mark.req("chat.form.more")
def test_how_many_options_are_out_of_view_is_said() -> None:
    filled = make_form(make_question("Which?", *(f"option {n}" for n in range(50))))
    assert render_form(filled, 40, 8)[1:7] == [
        "▸ ○ option 0  about option 0",
        *(f"  ○ option {n}  about option {n}" for n in range(1, 5)),
        "  ↓ 46 more",
    ]
    press_keys(filled, *["down"] * 25)
    rows = render_form(filled, 40, 8)[1:7]
    assert (rows[0], rows[-1]) == ("  ↑ 23 more", "  ↓ 24 more")
    assert [row[:13] for row in rows[1:-1]] == [
        *("  ○ option 23", "  ○ option 24", "▸ ○ option 25", "  ○ option 26"),
    ]
    press_keys(filled, *["down"] * 25)
    rows = render_form(filled, 40, 8)[1:7]
    assert rows[0] == "  ↑ 46 more"
    assert rows[-1].startswith("▸ ○ something else")


@pytest.mark.req("chat.form.more")
def test_tabs_that_do_not_fit_scroll_and_arrows_say_where_there_are_more() -> None:
    names = [f"question {n}" for n in range(8)]
    filled = make_form(*(make_question(f"{name}?", "a", header=name) for name in names))
    assert render_form(filled, 40)[0] == " question 0  question 1  question 2 →"
    press_keys(filled, *["right"] * 4)
    assert render_form(filled, 40)[0] == "← question 4  question 5  question 6 →"
    press_keys(filled, *["right"] * 4)
    assert render_form(filled, 40)[0] == "← question 6  question 7  send "


@pytest.mark.req("chat.form.hints")
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "of two"])
@pytest.mark.parametrize("many", [True, False], ids=["several", "one"])
def test_what_enter_does_is_what_is_said(is_alone: bool, many: bool) -> None:
    asked = [make_question("One?", "a", "b", many=many), make_question("Two?", "c")]
    filled = make_form(*asked[: 1 if is_alone else 2])
    says_so = "Enter sends" in render_form(filled)[-1]
    assert says_so is is_alone
    press_keys(filled, "x")
    assert ("Enter sends" in render_form(filled)[-1]) is is_alone
    assert (press_keys(filled, "enter") == "sent") is is_alone


@pytest.mark.req("chat.form.hints")
def test_where_there_are_no_options_none_are_pointed_to() -> None:
    assert (
        render_form(make_form(make_question("Your name?")))[-1] == "write, Enter sends · Esc later"
    )
    filled = make_form(make_question("One?", "a"))
    press_keys(filled, "down")
    assert render_form(filled)[-1] == "write, Enter sends · ↑ options · Esc later"


def test_of_many_options_those_around_the_cursor_are_in_view() -> None:
    filled = make_form(make_question("Which?", *(f"option {n}" for n in range(50))))
    press_keys(filled, *["down"] * 30)
    assert any("▸ ○ option 30" in line for line in render_form(filled, 40, 10))


texts = st.text(max_size=200)
keys = st.sampled_from(
    ["up", "down", "left", "right", "tab", "backtab", " ", "backspace", "1", "x"]
)


@given(
    st.lists(
        st.builds(
            lambda text, options, many: make_question(text, *options, many=many),
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
def test_it_always_fits(
    questions: list[wire.AskQuestion],
    pressed: list[str],
    width: int,
    height: int,
    asker: str,
    is_above: bool,
) -> None:
    filled = make_form(*questions, asker=asker)
    for page in filled.pages:
        page.is_printed_above = is_above
    for key in pressed:
        if filled.press_key(key):
            break
    lines = render_form(filled, width, height)
    assert len(lines) <= height
    assert max(map(get_cwidth, lines)) <= width
    assert all("\n" not in line for line in lines)


@given(texts, st.integers(2, 60))
def test_wrapping_loses_nothing_but_spaces(text: str, width: int) -> None:
    lines = wrap_text(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert max(map(get_cwidth, lines)) <= width


def test_what_is_cut_ends_in_a_mark_and_fits() -> None:
    assert truncate_text("lighthouse", 10) == "lighthouse"
    assert truncate_text("lighthouse", 9) == "lighthou…"
    assert truncate_text("灯台の光", 5) == "灯台…"
