"""Forms: questions, whatever is pressed and typed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.component.gateway.forms import Form, Question, labels_in, question_of, restored
from crabtalk.component.gateway.service import PAYLOAD
from crabtalk.protocol import wire

pytestmark = pytest.mark.req("gateways.questions")

ONE = Question("Which?", "H", (("Red", "as a crab"), ("Blue", "")))
MANY = Question("What?", "", (("Spade", ""), ("Net", "")), is_multiple=True)
LABELS = st.text(max_size=80)
QUESTIONS = st.builds(
    Question,
    question=st.text(max_size=40),
    header=st.text(max_size=10),
    options=st.lists(st.tuples(LABELS, st.text(max_size=10)), max_size=30).map(tuple),
    is_multiple=st.booleans(),
)


@given(st.lists(QUESTIONS, min_size=1, max_size=4), st.data())
def test_any_form_can_be_shown_filled_and_sent(
    questions: list[Question], data: st.DataObject
) -> None:
    form = Form("run-1", tuple(questions))
    for _ in range(200):
        if form.is_complete:
            break
        assert form.text(has_buttons=data.draw(st.booleans()))
        buttons = form.buttons()
        for button in buttons:
            assert button.payload.isascii()
            assert len(button.payload) <= PAYLOAD
        is_pressing: bool = data.draw(st.booleans())
        if buttons and is_pressing:
            assert form.press(data.draw(st.sampled_from(buttons)).payload)
        else:
            form.say(data.draw(st.text(max_size=20)))
    else:
        pytest.fail("it never ends")
    answers = json.loads(form.reply())
    assert set(answers) == {question.question for question in questions}


@given(st.text(max_size=70))
def test_a_button_of_somebody_else_is_not_pressed(payload: str) -> None:
    form = Form("run-1", (ONE,))
    assert not form.press(payload)
    assert not form.is_complete


def test_an_option_is_typed_by_number_or_by_name() -> None:
    assert labels_in(ONE, "2") == ["Blue"]
    assert labels_in(ONE, " blue ") == ["Blue"]
    assert labels_in(ONE, "3") == []
    assert labels_in(MANY, "1 2") == ["Spade", "Net"]
    assert labels_in(MANY, "net, spade") == ["Net", "Spade"]
    assert labels_in(MANY, "1、2") == ["Spade", "Net"]
    assert labels_in(MANY, "1, something else") == []
    assert labels_in(ONE, "9" * 5000) == []


def test_what_is_typed_is_added_to_what_was_pressed() -> None:
    form = Form("run-1", (MANY,))
    assert form.press(form.buttons()[1].payload)
    form.say("and a hat")
    assert json.loads(form.reply()) == {"What?": "Net, and a hat"}


def test_an_option_called_other_is_what_typing_is_for() -> None:
    asked = wire.AskQuestion(
        question="Q", header="H", options=[wire.AskOption(label="A"), wire.AskOption(label="Other")]
    )
    assert question_of(asked).options == (("A", ""),)


def test_a_form_goes_on_where_it_was() -> None:
    form = Form("run-1", (ONE, MANY))
    form.say("1")
    form.press(form.buttons()[0].payload)
    again = restored(Form("run-1", (ONE, MANY)), form.answers, sorted(form.settled))
    assert again.text(has_buttons=True) == form.text(has_buttons=True)
    assert again.buttons() == form.buttons()
