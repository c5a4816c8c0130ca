"""Questions of agents, as people see and answer them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.in_process_daemon import script_tool_calls
from tests.gateway.gateway_world import GatewayWorld, open_gateway_world

# It waits for network traffic, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop

COLOUR = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "Red", "description": "as a crab"}, "Blue", "Other"],
}
TOOLS = {
    "question": "Which tools?",
    "header": "Tools",
    "options": ["Spade", "Bucket", "Net"],
    "multi_select": True,
}
NAME = {"question": "What name?", "header": "Name"}


def make_ask_script(*questions: dict[str, Any]) -> str:
    return script_tool_calls([("ask_user", {"questions": list(questions)})])


async def read_answers(w: GatewayWorld) -> Any:
    """The answers that the agent received."""
    await w.wait_until_idle()
    (answer,) = [text for role, text in await w.list_messages() if role == "tool"]
    return json.loads(answer)


@pytest.mark.req("gateways.questions")
async def test_several_questions_are_answered_by_buttons_and_words(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w, w.run_gateway():
        w.server.add_message(make_ask_script(COLOUR, TOOLS, NAME))
        await w.server.wait_until(lambda: w.server.texts_in())
        (form,) = w.server.messages_in("7")
        assert "**Colour** (1/3)" in form.text
        assert "1. Red: as a crab" in form.text
        assert [label for label, _ in form.buttons] == ["Red", "Blue"]
        w.server.press_button(form, "Blue")
        await w.server.wait_until(lambda: "**Tools** (2/3)" in form.text)
        w.server.press_button(form, "Spade")
        await w.server.wait_until(lambda: any("☑ Spade" in label for label, _ in form.buttons))
        w.server.press_button(form, "Net")
        await w.server.wait_until(lambda: any("☑ Net" in label for label, _ in form.buttons))
        w.server.press_button(form, "Spade")
        await w.server.wait_until(lambda: any("☐ Spade" in label for label, _ in form.buttons))
        w.server.press_button(form, "Bucket")
        await w.server.wait_until(lambda: any("☑ Bucket" in label for label, _ in form.buttons))
        w.server.press_button(form, "Done")
        await w.server.wait_until(lambda: "What name?" in form.text)
        assert form.buttons == []
        w.server.add_message("Sandy Claws")
        await w.wait_for_texts(
            "✓ **Colour**: Blue\n\n✓ **Tools**: Net, Bucket\n\n✓ **Name**: Sandy Claws", "done"
        )
        assert await read_answers(w) == {
            "Which colour?": "Blue",
            "Which tools?": "Net, Bucket",
            "What name?": "Sandy Claws",
        }


@pytest.mark.req("gateways.questions")
async def test_without_buttons_and_edits_options_are_typed(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w:
        w.limits = replace(w.limits, buttons=False, edits=False)
        async with w.run_gateway():
            w.server.add_message(make_ask_script(COLOUR, TOOLS))
            await w.server.wait_until(lambda: w.server.texts_in())
            assert "1. Red: as a crab\n2. Blue" in w.server.texts_in()[0]
            w.server.add_message("2")
            await w.server.wait_until(lambda: len(w.server.texts_in()) == 2)
            assert "1. Spade\n2. Bucket\n3. Net" in w.server.texts_in()[1]
            w.server.add_message("1, net")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
            assert await read_answers(w) == {"Which colour?": "Blue", "Which tools?": "Spade, Net"}


@pytest.mark.req("gateways.questions")
async def test_a_free_text_is_an_answer(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w, w.run_gateway():
        w.server.add_message("!say Let me ask.\n" + make_ask_script(COLOUR))
        await w.server.wait_until(lambda: len(w.server.texts_in()) == 2)
        assert w.server.texts_in()[0] == "Let me ask."
        w.server.add_message("a sort of teal")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        assert await read_answers(w) == {"Which colour?": "a sort of teal"}


@pytest.mark.req("gateways.questions")
async def test_an_answer_may_begin_with_a_slash_unless_it_is_a_command(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w, w.run_gateway():
        w.server.add_message(make_ask_script(COLOUR, NAME))
        await w.server.wait_until(lambda: w.server.texts_in())
        w.server.add_message("/agents")
        await w.server.wait_until(lambda: w.server.texts_in()[-1].startswith("Agents:"))
        for answer in ("/dev/red", "/srv/claws now"):
            w.server.add_message(answer)
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        expected = {"Which colour?": "/dev/red", "What name?": "/srv/claws now"}
        assert await read_answers(w) == expected


async def test_a_question_longer_than_a_message_is_cut_to_one(tmp_path: Path) -> None:
    long = {"question": "Why? " * 300, "header": "Long", "options": ["A", "B"]}
    async with open_gateway_world(tmp_path, hooks={}) as w, w.run_gateway():
        w.server.add_message(make_ask_script(COLOUR, long))
        await w.server.wait_until(lambda: w.server.texts_in())
        (form,) = w.server.messages_in("7")
        w.server.press_button(form, "Red")
        await w.server.wait_until(lambda: "Why?" in form.text)
        assert len(form.text) <= 500
        w.server.press_button(form, "B")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        assert (await read_answers(w))["Which colour?"] == "Red"


@pytest.mark.req("gateways.once.questions")
async def test_a_button_pressed_while_the_gateway_was_away_counts(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w:
        journal = w.home / "pigeon" / "journal"
        async with w.run_gateway():
            w.server.add_message(make_ask_script(COLOUR))
            await w.server.wait_until(lambda: w.server.texts_in())
            (form,) = w.server.messages_in("7")
            await w.wait_until(lambda: b'"message":"b' in journal.read_bytes())
        w.server.press_button(form, "Blue")
        async with w.run_gateway():
            await w.wait_for_texts("✓ **Colour**: Blue", "done")
            assert await read_answers(w) == {"Which colour?": "Blue"}


async def test_a_button_that_is_pressed_late_or_was_never_ours_does_nothing(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w, w.run_gateway():
        w.server.add_message(make_ask_script(COLOUR))
        await w.server.wait_until(lambda: w.server.texts_in())
        (form,) = w.server.messages_in("7")
        payload = form.payload_of("Red")
        w.server.press_button(form, "Blue")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "done")
        for late in (payload, "nonsense", "a:b:c", "0123456789:99999999999999999999:0"):
            w.server.add_message("", press=late, message_id=form.id)
        assert await read_answers(w) == {"Which colour?": "Blue"}
        assert w.server.texts_in() == ["✓ **Colour**: Blue", "done"]


async def test_a_question_that_stop_has_ended_is_shown_as_closed(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w, w.run_gateway():
        w.server.add_message(make_ask_script(COLOUR))
        await w.server.wait_until(lambda: w.server.texts_in())
        w.server.add_message("/stop")
        await w.server.wait_until(lambda: len(w.server.texts_in()) == 2)
        await w.wait_until_idle()
        form, end = w.server.messages_in("7")
        assert form.buttons == []
        assert "(closed)" in form.text
        assert end.text == "(stopped)"


@pytest.mark.req("gateways.once.questions")
async def test_a_question_still_waits_after_a_restart(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w:
        async with w.run_gateway():
            w.server.add_message(make_ask_script(COLOUR, TOOLS))
            await w.server.wait_until(lambda: w.server.texts_in())
            (form,) = w.server.messages_in("7")
            w.server.press_button(form, "Red")
            await w.server.wait_until(lambda: "Which tools?" in form.text)
            w.server.press_button(form, "Net")
            await w.server.wait_until(lambda: any("☑ Net" in label for label, _ in form.buttons))
        async with w.run_gateway():
            w.server.press_button(form, "Done")
            await w.wait_for_texts("✓ **Colour**: Red\n\n✓ **Tools**: Net", "done")
            assert await read_answers(w) == {"Which colour?": "Red", "Which tools?": "Net"}
