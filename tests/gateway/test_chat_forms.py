"""Forms: questions, answered by any mix of buttons and text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.gateway.chat_forms import (
    ChatForm,
    FormQuestion,
    parse_labels,
    parse_question,
    restore_form,
)
from crabtalk.gateway.chat_service import MAX_PAYLOAD_BYTES
from crabtalk.protocol import wire

pytestmark = pytest.mark.req("gateways.questions")

ONE_CHOICE = FormQuestion("Which?", "H", (("Red", "as a crab"), ("Blue", "")))
MANY_CHOICES = FormQuestion("What?", "", (("Spade", ""), ("Net", "")), is_multiple=True)
LABELS = st.text(max_size=80)
QUESTIONS = st.builds(
    FormQuestion,
    question=st.text(max_size=40),
    header=st.text(max_size=10),
    options=st.lists(st.tuples(LABELS, st.text(max_size=10)), max_size=30).map(tuple),
    is_multiple=st.booleans(),
)


@given(st.lists(QUESTIONS, min_size=1, max_size=4), st.data())
def test_any_form_can_be_rendered_filled_in_and_sent(
    questions: list[FormQuestion], data: st.DataObject
) -> None:
    form = ChatForm("run-1", tuple(questions))
    for _ in range(200):
        if form.is_complete:
            break
        assert form.render_text(has_buttons=data.draw(st.booleans()))
        buttons = form.build_buttons()
        for button in buttons:
            assert button.payload.isascii()
            assert len(button.payload) <= MAX_PAYLOAD_BYTES
        is_pressing: bool = data.draw(st.booleans())
        if buttons and is_pressing:
            assert form.press_button(data.draw(st.sampled_from(buttons)).payload)
        else:
            form.answer_text(data.draw(st.text(max_size=20)))
    else:
        pytest.fail("it never ends")
    answers = json.loads(form.build_reply())
    assert set(answers) == {question.question for question in questions}


@given(st.text(max_size=70))
def test_a_payload_that_is_not_ours_presses_no_button(payload: str) -> None:
    form = ChatForm("run-1", (ONE_CHOICE,))
    assert not form.press_button(payload)
    assert not form.is_complete


def test_an_option_can_be_typed_by_number_or_label() -> None:
    assert parse_labels(ONE_CHOICE, "2") == ["Blue"]
    assert parse_labels(ONE_CHOICE, " blue ") == ["Blue"]
    assert parse_labels(ONE_CHOICE, "3") == []
    assert parse_labels(MANY_CHOICES, "1 2") == ["Spade", "Net"]
    assert parse_labels(MANY_CHOICES, "net, spade") == ["Net", "Spade"]
    assert parse_labels(MANY_CHOICES, "1、2") == ["Spade", "Net"]
    assert parse_labels(MANY_CHOICES, "1, something else") == []
    assert parse_labels(ONE_CHOICE, "9" * 5000) == []


def test_typed_options_are_added_to_pressed_ones() -> None:
    form = ChatForm("run-1", (MANY_CHOICES,))
    assert form.press_button(form.build_buttons()[1].payload)
    form.answer_text("and a hat")
    assert json.loads(form.build_reply()) == {"What?": "Net, and a hat"}


def test_the_option_other_is_left_out() -> None:
    question = wire.AskQuestion(
        question="Q", header="H", options=[wire.AskOption(label="A"), wire.AskOption(label="Other")]
    )
    assert parse_question(question).options == (("A", ""),)


def test_a_restored_form_continues_at_its_current_question() -> None:
    form = ChatForm("run-1", (ONE_CHOICE, MANY_CHOICES))
    form.answer_text("1")
    form.press_button(form.build_buttons()[0].payload)
    restored = restore_form(
        ChatForm("run-1", (ONE_CHOICE, MANY_CHOICES)), form.answers, sorted(form.settled)
    )
    assert restored.render_text(has_buttons=True) == form.render_text(has_buttons=True)
    assert restored.build_buttons() == form.build_buttons()
