"""Questions and approvals at a terminal: filled in with keys, put off, answered elsewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from apps.tui.tests.chat.terminal import (
    DOWN,
    ENTER,
    ESCAPE,
    SPACE,
    TAB,
    Daemon,
    Terminal,
    chatting,
    ctrl,
    daemon,
)

END = "\x1b[F"
SIZES = [(80, 24), (40, 15)]
at_both_sizes = pytest.mark.parametrize("size", SIZES, ids=["80x24", "40x15"])
COLOUR = {
    "question": "Which colour?",
    "header": "colour",
    "options": [{"label": "red", "description": "as a crab"}, {"label": "blue"}],
}
TOPPINGS = {
    "question": "Which toppings?",
    "header": "toppings",
    "options": ["ham", "corn", "kelp"],
    "multi_select": True,
}
CAREFUL = {"crab": 'prompt = "You are crab."\napprove = ["bash"]\n'}


def asking(*questions: dict[str, Any]) -> str:
    return f"!tool ask_user {json.dumps({'questions': questions})}"


async def ask(terminal: Terminal, script: str) -> None:
    await terminal.until_view("ready")
    terminal.type(script + ENTER)


async def result(served: Daemon) -> str:
    """What the tool told the model."""
    await served.model.until_asked(2)
    content = served.model.requests[1]["messages"][-1]["content"]
    assert isinstance(content, str)
    return content


@at_both_sizes
@pytest.mark.req("chat.form.keys")
async def test_a_question_is_answered_with_the_arrow_keys(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with daemon(tmp_path) as served, chatting(served.home, size=size) as terminal:
        await ask(terminal, asking(COLOUR))
        await terminal.until_view("▸ ○ red")
        assert "Which colour?" in terminal.view
        terminal.type(DOWN)
        await terminal.until_view("▸ ○ blue")
        terminal.type(ENTER)
        assert json.loads(await result(served)) == {"Which colour?": "blue"}
        await terminal.until_view("ready")
        assert "▸" not in terminal.view


@at_both_sizes
@pytest.mark.req("chat.form.keys")
async def test_several_options_are_picked_with_space_and_words_are_added(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with daemon(tmp_path) as served, chatting(served.home, size=size) as terminal:
        await ask(terminal, asking(TOPPINGS))
        await terminal.until_view("▸ [ ] ham")
        terminal.type(SPACE + DOWN + DOWN + SPACE)
        await terminal.until_view("▸ [x] kelp")
        terminal.type(DOWN + "extra sauce")
        await terminal.until_view("▸ [x] extra sauce")
        terminal.type(ENTER)
        assert json.loads(await result(served)) == {"Which toppings?": "ham, kelp, extra sauce"}


@at_both_sizes
@pytest.mark.req("chat.form.pages")
async def test_several_questions_are_answered_page_by_page(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with daemon(tmp_path) as served, chatting(served.home, size=size) as terminal:
        await ask(terminal, asking(COLOUR, TOPPINGS))
        await terminal.until_view("▸ ○ red")
        terminal.type("green" + ENTER)
        await terminal.until_view("▸ [ ] ham")
        terminal.type(SPACE + TAB)
        await terminal.until_view("colour: green")
        assert "toppings: ham" in terminal.view
        terminal.type(ENTER)
        answers = {"Which colour?": "green", "Which toppings?": "ham"}
        assert json.loads(await result(served)) == answers


@at_both_sizes
@pytest.mark.parametrize(("keys", "ran"), [(ENTER, True), (DOWN + ENTER, False)], ids=["yes", "no"])
@pytest.mark.req("chat.form.approval")
async def test_a_call_that_needs_a_yes_waits_for_one(
    tmp_path: Path, size: tuple[int, int], keys: str, ran: bool
) -> None:
    mark = tmp_path / "mark"
    async with (
        daemon(tmp_path, agents=CAREFUL) as served,
        chatting(served.home, size=size) as terminal,
    ):
        await ask(terminal, f"!tool bash {json.dumps({'command': f'touch {mark}'})}")
        await terminal.until_view("crab asks to use bash")
        await terminal.until_view("▸ ○ Allow")
        assert not mark.exists()
        terminal.type(END)
        await terminal.until_view("Enter sends")
        assert "mark" in terminal.view
        terminal.type(keys)
        assert ("permission denied" in await result(served)) is not ran
        assert mark.exists() is ran


@pytest.mark.req("chat.form.later")
async def test_a_question_that_was_put_off_waits_and_is_opened_again_as_it_was(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path) as served, chatting(served.home) as terminal:
        await ask(terminal, asking(TOPPINGS))
        await terminal.until_view("▸ [ ] ham")
        terminal.type(SPACE + ESCAPE)
        await terminal.until_view("a question waits")
        assert "Which toppings?" not in terminal.screen[-8:]
        terminal.type("a note")
        await terminal.until_view("> a note")
        terminal.type("\x7f" * 6 + ENTER)
        await terminal.until_view("▸ [x] ham")
        terminal.type(ENTER)
        assert json.loads(await result(served)) == {"Which toppings?": "ham"}


@pytest.mark.req("chat.form.quiet")
async def test_a_form_does_not_open_under_the_fingers_of_somebody_who_types(
    tmp_path: Path,
) -> None:
    async with (
        daemon(tmp_path, agents=CAREFUL) as served,
        chatting(served.home) as terminal,
    ):
        await ask(terminal, '!wait\n!tool bash {"command": "true"}')
        await served.model.until_waiting()
        terminal.type("not so")
        await terminal.until_view("> not so")
        served.model.release()
        await terminal.until_view("a question waits: Enter")
        terminal.type(" fast" + ENTER)
        await terminal.until_view("▸ ○ Allow")
        assert served.model.asked == 1
        terminal.type(ESCAPE)
        await terminal.until_view("> not so fast")


@pytest.mark.req("chat.stop")
async def test_ctrl_c_at_a_question_stops_the_turn(tmp_path: Path) -> None:
    async with daemon(tmp_path) as served, chatting(served.home) as terminal:
        await ask(terminal, asking(COLOUR))
        await terminal.until_view("▸ ○ red")
        terminal.type(ctrl("C"))
        await terminal.until_gone("▸ ○ red")
        await terminal.until_view("ready")
        assert served.model.asked == 1


@pytest.mark.req("chat.form.elsewhere")
async def test_a_question_that_somebody_else_answers_goes_away(tmp_path: Path) -> None:
    async with daemon(tmp_path) as served, chatting(served.home) as terminal:
        await ask(terminal, asking(COLOUR))
        await terminal.until_view("▸ ○ red")
        async with served.client() as client:
            await client.reply_to_ask("crab", "purple")
        await terminal.until_gone("▸ ○ red")
        await terminal.until("heard: purple")
        await terminal.until_view("ready")


@pytest.mark.req("chat.form.waiting")
async def test_a_question_from_before_the_chat_was_opened_is_put_to_whoever_opens_it(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path) as served, served.client() as client:
        stream = client.stream("crab", asking(COLOUR), detach=True)
        async for event in stream:
            if type(event).__name__ == "AskUserEvent":
                break
        async with chatting(served.home) as terminal:
            await terminal.until_view("▸ ○ red")
            terminal.type(ENTER)
            assert json.loads(await result(served)) == {"Which colour?": "red"}
        await stream.aclose()


@pytest.mark.req("chat.form.long")
async def test_a_question_too_long_for_the_form_is_printed_in_full(tmp_path: Path) -> None:
    question = "\n".join(["Which?", *(f": line {number}" for number in range(40))])
    async with daemon(tmp_path) as served, chatting(served.home, size=(40, 15)) as terminal:
        await ask(terminal, asking({**COLOUR, "question": question}))
        await terminal.until_view("▸ ○ red")
        await terminal.until(": line 39")
        assert all(f": line {number}" in terminal.text for number in range(40)), terminal.picture()
        place = next(y for y, line in enumerate(terminal.screen) if "▸ ○ red" in line)
        assert terminal.screen[place - 2 : place] == ["", "Which? …"]


@pytest.mark.req("chat.form.hints")
async def test_in_a_form_the_keys_that_are_named_do_what_is_said(tmp_path: Path) -> None:
    async with daemon(tmp_path) as served, chatting(served.home) as terminal:
        await ask(terminal, asking(TOPPINGS))
        await terminal.until_view("▸ [ ] ham")
        await terminal.until_view("Space picks · Enter sends · Esc later")
        await terminal.until_view("Ctrl+C stops")
        assert "Esc stops" not in terminal.view
        terminal.type(ESCAPE)
        await terminal.until_view("a question waits: Enter")
        terminal.type(ENTER)
        await terminal.until_view("Ctrl+C stops")
        terminal.type(ctrl("C"))
        await served.model.until_asked()
        await terminal.until_view("ready")


@pytest.mark.req("chat.form.asker")
async def test_of_two_delegates_that_ask_it_is_said_which_does(tmp_path: Path) -> None:
    tasks = [
        {"agent": "twin", "message": f"!say {where}\n{asking(COLOUR)}"}
        for where in ("the north quay", "the south quay")
    ]
    script = f"!tool delegate {json.dumps({'tasks': tasks})}"
    async with daemon(tmp_path) as served, chatting(served.home, size=(100, 24)) as terminal:
        await ask(terminal, script)
        await terminal.until_view("▸ ○ red")
        asked = re.compile(r"twin \(!say the (north|south) quay.*\) asks: Which colour\?")
        seen = asked.findall(terminal.view)
        terminal.type(ENTER)
        await terminal.until_so(lambda: asked.findall(terminal.view) not in ([], seen))
        terminal.type(DOWN + ENTER)
        await terminal.until_view("ready")
        results = json.loads(served.model.requests[-1]["messages"][-1]["content"])
        colours = [re.findall("red|blue", json.dumps(result)) for result in results]
        assert colours == ([["red"], ["blue"]] if seen == ["north"] else [["blue"], ["red"]])
