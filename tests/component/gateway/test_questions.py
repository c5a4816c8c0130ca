"""Questions of agents, as people are asked them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.component.gateway.world import World, world
from tests.daemon.served import calling

# What it waits for is on the wire, and the loop makes no difference.
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


def asking(*questions: dict[str, Any]) -> str:
    return calling([("ask_user", {"questions": list(questions)})])


async def answered(w: World) -> Any:
    """What the agent has read."""
    await w.idle()
    (answer,) = [text for role, text in await w.said() if role == "tool"]
    return json.loads(answer)


@pytest.mark.req("gateways.questions")
async def test_several_questions_are_answered_by_buttons_and_words(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w, w.running():
        w.loft.says(asking(COLOUR, TOOLS, NAME))
        await w.loft.until(lambda: w.loft.texts())
        (form,) = w.loft.of("7")
        assert "**Colour** (1/3)" in form.text
        assert "1. Red: as a crab" in form.text
        assert [label for label, _ in form.buttons] == ["Red", "Blue"]
        w.loft.presses(form, "Blue")
        await w.loft.until(lambda: "**Tools** (2/3)" in form.text)
        w.loft.presses(form, "Spade")
        await w.loft.until(lambda: any("☑ Spade" in label for label, _ in form.buttons))
        w.loft.presses(form, "Net")
        await w.loft.until(lambda: any("☑ Net" in label for label, _ in form.buttons))
        w.loft.presses(form, "Spade")
        await w.loft.until(lambda: any("☐ Spade" in label for label, _ in form.buttons))
        w.loft.presses(form, "Bucket")
        await w.loft.until(lambda: any("☑ Bucket" in label for label, _ in form.buttons))
        w.loft.presses(form, "Done")
        await w.loft.until(lambda: "What name?" in form.text)
        assert form.buttons == []
        w.loft.says("Sandy Claws")
        await w.told(
            "✓ **Colour**: Blue\n\n✓ **Tools**: Net, Bucket\n\n✓ **Name**: Sandy Claws", "done"
        )
        assert await answered(w) == {
            "Which colour?": "Blue",
            "Which tools?": "Net, Bucket",
            "What name?": "Sandy Claws",
        }


@pytest.mark.req("gateways.questions")
async def test_without_buttons_and_edits_options_are_typed(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w:
        w.limits = replace(w.limits, buttons=False, edits=False)
        async with w.running():
            w.loft.says(asking(COLOUR, TOOLS))
            await w.loft.until(lambda: w.loft.texts())
            assert "1. Red: as a crab\n2. Blue" in w.loft.texts()[0]
            w.loft.says("2")
            await w.loft.until(lambda: len(w.loft.texts()) == 2)
            assert "1. Spade\n2. Bucket\n3. Net" in w.loft.texts()[1]
            w.loft.says("1, net")
            await w.loft.until(lambda: w.loft.texts()[-1] == "done")
            assert await answered(w) == {"Which colour?": "Blue", "Which tools?": "Spade, Net"}


@pytest.mark.req("gateways.questions")
async def test_an_answer_of_ones_own_is_an_answer(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w, w.running():
        w.loft.says("!say Let me ask.\n" + asking(COLOUR))
        await w.loft.until(lambda: len(w.loft.texts()) == 2)
        assert w.loft.texts()[0] == "Let me ask."
        w.loft.says("a sort of teal")
        await w.loft.until(lambda: w.loft.texts()[-1] == "done")
        assert await answered(w) == {"Which colour?": "a sort of teal"}


@pytest.mark.req("gateways.questions")
async def test_an_answer_may_begin_with_a_slash_unless_it_is_a_command(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w, w.running():
        w.loft.says(asking(COLOUR, NAME))
        await w.loft.until(lambda: w.loft.texts())
        w.loft.says("/agents")
        await w.loft.until(lambda: w.loft.texts()[-1].startswith("Agents:"))
        for answer in ("/dev/red", "/srv/claws now"):
            w.loft.says(answer)
        await w.loft.until(lambda: w.loft.texts()[-1] == "done")
        expected = {"Which colour?": "/dev/red", "What name?": "/srv/claws now"}
        assert await answered(w) == expected


async def test_a_question_longer_than_a_message_is_cut_to_one(tmp_path: Path) -> None:
    long = {"question": "Why? " * 300, "header": "Long", "options": ["A", "B"]}
    async with world(tmp_path, hooks={}) as w, w.running():
        w.loft.says(asking(COLOUR, long))
        await w.loft.until(lambda: w.loft.texts())
        (form,) = w.loft.of("7")
        w.loft.presses(form, "Red")
        await w.loft.until(lambda: "Why?" in form.text)
        assert len(form.text) <= 500
        w.loft.presses(form, "B")
        await w.loft.until(lambda: w.loft.texts()[-1] == "done")
        assert (await answered(w))["Which colour?"] == "Red"


@pytest.mark.req("gateways.once.questions")
async def test_a_button_pressed_while_the_gateway_was_away_counts(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w:
        journal = w.home / "pigeon" / "journal"
        async with w.running():
            w.loft.says(asking(COLOUR))
            await w.loft.until(lambda: w.loft.texts())
            (form,) = w.loft.of("7")
            await w.until(lambda: b'"message":"b' in journal.read_bytes())
        w.loft.presses(form, "Blue")
        async with w.running():
            await w.told("✓ **Colour**: Blue", "done")
            assert await answered(w) == {"Which colour?": "Blue"}


async def test_a_button_that_is_pressed_late_or_was_never_ours_does_nothing(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, hooks={}) as w, w.running():
        w.loft.says(asking(COLOUR))
        await w.loft.until(lambda: w.loft.texts())
        (form,) = w.loft.of("7")
        payload = form.payload("Red")
        w.loft.presses(form, "Blue")
        await w.loft.until(lambda: w.loft.texts()[-1] == "done")
        for late in (payload, "nonsense", "a:b:c", "0123456789:99999999999999999999:0"):
            w.loft.says("", press=late, message_id=form.id)
        assert await answered(w) == {"Which colour?": "Blue"}
        assert w.loft.texts() == ["✓ **Colour**: Blue", "done"]


async def test_a_question_that_stop_has_ended_is_shown_as_closed(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w, w.running():
        w.loft.says(asking(COLOUR))
        await w.loft.until(lambda: w.loft.texts())
        w.loft.says("/stop")
        await w.loft.until(lambda: len(w.loft.texts()) == 2)
        await w.idle()
        form, end = w.loft.of("7")
        assert form.buttons == []
        assert "(closed)" in form.text
        assert end.text == "(stopped)"


@pytest.mark.req("gateways.once.questions")
async def test_after_a_restart_a_question_waits_where_it_was(tmp_path: Path) -> None:
    async with world(tmp_path, hooks={}) as w:
        async with w.running():
            w.loft.says(asking(COLOUR, TOOLS))
            await w.loft.until(lambda: w.loft.texts())
            (form,) = w.loft.of("7")
            w.loft.presses(form, "Red")
            await w.loft.until(lambda: "Which tools?" in form.text)
            w.loft.presses(form, "Net")
            await w.loft.until(lambda: any("☑ Net" in label for label, _ in form.buttons))
        async with w.running():
            w.loft.presses(form, "Done")
            await w.told("✓ **Colour**: Red\n\n✓ **Tools**: Net", "done")
            assert await answered(w) == {"Which colour?": "Red", "Which tools?": "Net"}
