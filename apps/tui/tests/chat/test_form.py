"""Forms: keys in, an answer out, and lines that fit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from crabtalk.protocol import wire
from crabtalk_tui.chat.form import Form, Outcome, cut, wrapped

YES_NO = ("Yes", "No", "Always here")


def question(
    text: str, *options: str, header: str = "head", many: bool = False
) -> wire.AskQuestion:
    made = [wire.AskOption(label=label, description=f"about {label}") for label in options]
    return wire.AskQuestion(question=text, header=header, options=made, multi_select=many)


def form(*questions: wire.AskQuestion, asker: str = "") -> Form:
    return Form(wire.AskUserEvent(questions=questions, ask_id="r-1"), asker)


def press(filled: Form, *keys: str) -> Outcome:
    """What the last of them comes to."""
    outcome: Outcome = ""
    for key in keys:
        assert outcome == "", f"it was over before {key!r}"
        outcome = filled.press(key)
    return outcome


def shown(filled: Form, width: int = 80, height: int = 24) -> list[str]:
    return ["".join(text for _, text in line) for line in filled.lines(width, height)]


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
    filled = form(question("May I?", *YES_NO))
    assert press(filled, *keys) == "sent"
    assert json.loads(filled.answers) == {"May I?": answer}


@pytest.mark.req("chat.form.keys")
def test_several_options_are_picked_with_space_and_joined_in_their_order() -> None:
    filled = form(question("Which?", "a", "b", "c", many=True))
    assert press(filled, "down", "down", " ", "up", "up", " ", "down", " ", " ", "enter") == "sent"
    assert json.loads(filled.answers) == {"Which?": "a, c"}


@pytest.mark.req("chat.form.keys")
def test_words_of_ones_own_go_beside_what_was_picked() -> None:
    filled = form(question("Which?", "a", "b", many=True))
    assert press(filled, " ", "x", "y", "enter") == "sent"
    assert json.loads(filled.answers) == {"Which?": "a, xy"}


@pytest.mark.req("chat.form.keys")
def test_a_question_without_options_is_answered_in_words() -> None:
    filled = form(question("Your name?"))
    assert press(filled, "enter", *"Bo", "enter") == "sent"
    assert json.loads(filled.answers) == {"Your name?": "Bo"}


@pytest.mark.req("chat.form.pages")
def test_several_questions_have_a_page_each_and_one_to_send_them_from() -> None:
    filled = form(
        question("One?", "a", "b", header="first"), question("Two?", "c", header="second")
    )
    assert shown(filled)[0] == " first  second  send "
    press(filled, "enter")
    assert shown(filled)[0] == " ✓ first  second  send "
    assert shown(filled)[1] == "Two?"
    press(filled, "enter")
    assert shown(filled)[1:3] == ["first: a", "second: c"]
    assert press(filled, "left", "left", "down", "enter", "enter", "enter") == "sent"
    assert json.loads(filled.answers) == {"One?": "b", "Two?": "c"}


@pytest.mark.req("chat.form.pages")
def test_it_is_not_sent_before_every_question_has_an_answer() -> None:
    filled = form(question("One?", "a"), question("Two?", "b"))
    assert press(filled, "tab", "enter", "enter") == ""
    assert "One?" in shown(filled)
    assert press(filled, "enter", "tab", "enter") == "sent"


@pytest.mark.req("chat.form.later")
def test_escape_leaves_it_as_it_is() -> None:
    filled = form(question("One?", "a", "b"), question("Two?", "c"))
    assert press(filled, "down", " ", "escape") == "left"
    assert press(filled, "tab", "enter", "enter") == "sent"
    assert json.loads(filled.answers) == {"One?": "b", "Two?": "c"}


def test_what_is_pasted_is_written() -> None:
    filled = form(question("Why?", "a"))
    filled.paste("two\nlines")
    assert press(filled, "enter") == "sent"
    assert json.loads(filled.answers) == {"Why?": "two\nlines"}


def test_what_a_model_asks_cannot_steer_the_terminal() -> None:
    filled = form(question("ring\x07 \x1b[2J\u202e", "\x1b[31mred\nmore", header="\x9b5n"))
    assert not any(ord(c) < 32 or c in "\x9b\u202e" for line in shown(filled) for c in line)
    assert press(filled, "enter") == "sent"


def test_of_a_question_that_is_too_long_the_options_stay_in_view() -> None:
    filled = form(question("\n".join(f"line {n}" for n in range(100)), *YES_NO))
    lines = shown(filled, 40, 8)
    assert lines[:3] == ["line 0", "line 1", "…"]
    assert [line[4:7] for line in lines[3:6]] == ["Yes", "No ", "Alw"]
    assert filled.is_cut(filled.pages[0], 40, 8)
    short = form(question("short?", *YES_NO))
    assert not short.is_cut(short.pages[0], 40, 8)


def test_many_options_do_not_make_a_short_question_one_that_is_cut() -> None:
    filled = form(question("Which?", *(f"option {n}" for n in range(50))))
    assert shown(filled, 40, 8)[0] == "Which?"
    assert not filled.is_cut(filled.pages[0], 40, 8)


@pytest.mark.req("chat.form.long")
def test_a_question_that_is_printed_above_has_one_line_in_the_form() -> None:
    filled = form(question("May I?\n\nrm -r everything", *YES_NO))
    filled.pages[0].is_above = True
    assert shown(filled, 40, 20)[:2] == ["May I? …", "▸ ○ Yes  about Yes"]
    filled = form(question("May I?", *YES_NO))
    filled.pages[0].is_above = True
    assert shown(filled)[0] == "May I?"


@pytest.mark.req("chat.form.asker")
def test_who_asks_is_said_where_that_is_another() -> None:
    filled = form(question("May I?", *YES_NO), asker="twin (count shells)")
    assert shown(filled)[0] == "twin (count shells) asks: May I?"
    assert press(filled, "enter") == "sent"
    assert json.loads(filled.answers) == {"May I?": "Yes"}


@pytest.mark.req("chat.form.more")
def test_how_many_options_are_out_of_view_is_said() -> None:
    filled = form(question("Which?", *(f"option {n}" for n in range(50))))
    assert shown(filled, 40, 8)[1:7] == [
        "▸ ○ option 0  about option 0",
        *(f"  ○ option {n}  about option {n}" for n in range(1, 5)),
        "  ↓ 46 more",
    ]
    press(filled, *["down"] * 25)
    rows = shown(filled, 40, 8)[1:7]
    assert (rows[0], rows[-1]) == ("  ↑ 23 more", "  ↓ 24 more")
    assert [row[:13] for row in rows[1:-1]] == [
        *("  ○ option 23", "  ○ option 24", "▸ ○ option 25", "  ○ option 26"),
    ]
    press(filled, *["down"] * 25)
    rows = shown(filled, 40, 8)[1:7]
    assert rows[0] == "  ↑ 46 more"
    assert rows[-1].startswith("▸ ○ something else")


@pytest.mark.req("chat.form.more")
def test_tabs_that_do_not_fit_scroll_and_arrows_say_where_there_are_more() -> None:
    names = [f"question {n}" for n in range(8)]
    filled = form(*(question(f"{name}?", "a", header=name) for name in names))
    assert shown(filled, 40)[0] == " question 0  question 1  question 2 →"
    press(filled, *["right"] * 4)
    assert shown(filled, 40)[0] == "← question 4  question 5  question 6 →"
    press(filled, *["right"] * 4)
    assert shown(filled, 40)[0] == "← question 6  question 7  send "


@pytest.mark.req("chat.form.hints")
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "of two"])
@pytest.mark.parametrize("many", [True, False], ids=["several", "one"])
def test_what_enter_does_is_what_is_said(is_alone: bool, many: bool) -> None:
    asked = [question("One?", "a", "b", many=many), question("Two?", "c")]
    filled = form(*asked[: 1 if is_alone else 2])
    says_so = "Enter sends" in shown(filled)[-1]
    assert says_so is is_alone
    press(filled, "x")
    assert ("Enter sends" in shown(filled)[-1]) is is_alone
    assert (press(filled, "enter") == "sent") is is_alone


@pytest.mark.req("chat.form.hints")
def test_where_there_are_no_options_none_are_pointed_to() -> None:
    assert shown(form(question("Your name?")))[-1] == "write, Enter sends · Esc later"
    filled = form(question("One?", "a"))
    press(filled, "down")
    assert shown(filled)[-1] == "write, Enter sends · ↑ options · Esc later"


def test_of_many_options_those_around_the_cursor_are_in_view() -> None:
    filled = form(question("Which?", *(f"option {n}" for n in range(50))))
    press(filled, *["down"] * 30)
    assert any("▸ ○ option 30" in line for line in shown(filled, 40, 10))


texts = st.text(max_size=200)
keys = st.sampled_from(
    ["up", "down", "left", "right", "tab", "backtab", " ", "backspace", "1", "x"]
)


@given(
    st.lists(
        st.builds(
            lambda text, options, many: question(text, *options, many=many),
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
    filled = form(*questions, asker=asker)
    for page in filled.pages:
        page.is_above = is_above
    for key in pressed:
        if filled.press(key):
            break
    lines = shown(filled, width, height)
    assert len(lines) <= height
    assert max(map(get_cwidth, lines)) <= width
    assert all("\n" not in line for line in lines)


@given(texts, st.integers(2, 60))
def test_wrapping_loses_nothing_but_spaces(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert max(map(get_cwidth, lines)) <= width


def test_what_is_cut_ends_in_a_mark_and_fits() -> None:
    assert cut("lighthouse", 10) == "lighthouse"
    assert cut("lighthouse", 9) == "lighthou…"
    assert cut("灯台の光", 5) == "灯台…"
