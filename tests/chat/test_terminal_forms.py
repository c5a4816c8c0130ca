"""Questions and approvals at a terminal: filled in with keys, postponed, answered elsewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.chat.terminal import (
    DOWN,
    ENTER,
    ESCAPE,
    SPACE,
    TAB,
    ChatTerminal,
    KillableDaemon,
    get_control_key,
    open_chat,
    run_scripted_daemon,
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


def make_question_script(*questions: dict[str, Any]) -> str:
    return f"!tool ask_user {json.dumps({'questions': questions})}"


async def send_script(terminal: ChatTerminal, script: str) -> None:
    await terminal.wait_for_view("ready")
    terminal.type_keys(script + ENTER)


async def read_tool_result(daemon: KillableDaemon) -> str:
    """Return the tool result that the model got."""
    await daemon.model.until_asked(2)
    content = daemon.model.requests[1]["messages"][-1]["content"]
    assert isinstance(content, str)
    return content


@at_both_sizes
@pytest.mark.req("chat.form.keys")
async def test_a_question_is_answered_with_the_arrow_keys(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_script(terminal, make_question_script(COLOUR))
        await terminal.wait_for_view("▸ ○ red")
        assert "Which colour?" in terminal.view_text
        terminal.type_keys(DOWN)
        await terminal.wait_for_view("▸ ○ blue")
        terminal.type_keys(ENTER)
        assert json.loads(await read_tool_result(daemon)) == {"Which colour?": "blue"}
        await terminal.wait_for_view("ready")
        assert "▸" not in terminal.view_text


@at_both_sizes
@pytest.mark.req("chat.form.keys")
async def test_several_options_are_picked_with_space_and_text_is_added(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_script(terminal, make_question_script(TOPPINGS))
        await terminal.wait_for_view("▸ [ ] ham")
        terminal.type_keys(SPACE + DOWN + DOWN + SPACE)
        await terminal.wait_for_view("▸ [x] kelp")
        terminal.type_keys(DOWN + "extra sauce")
        await terminal.wait_for_view("▸ [x] extra sauce")
        terminal.type_keys(ENTER)
        assert json.loads(await read_tool_result(daemon)) == {
            "Which toppings?": "ham, kelp, extra sauce"
        }


@at_both_sizes
@pytest.mark.req("chat.form.pages")
async def test_several_questions_are_answered_page_by_page(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_script(terminal, make_question_script(COLOUR, TOPPINGS))
        await terminal.wait_for_view("▸ ○ red")
        terminal.type_keys("green" + ENTER)
        await terminal.wait_for_view("▸ [ ] ham")
        terminal.type_keys(SPACE + TAB)
        await terminal.wait_for_view("colour: green")
        assert "toppings: ham" in terminal.view_text
        terminal.type_keys(ENTER)
        answers = {"Which colour?": "green", "Which toppings?": "ham"}
        assert json.loads(await read_tool_result(daemon)) == answers


@at_both_sizes
@pytest.mark.parametrize(("keys", "ran"), [(ENTER, True), (DOWN + ENTER, False)], ids=["yes", "no"])
@pytest.mark.req("chat.form.approval")
async def test_a_call_that_needs_an_approval_waits_for_it(
    tmp_path: Path, size: tuple[int, int], keys: str, ran: bool
) -> None:
    mark = tmp_path / "mark"
    async with (
        run_scripted_daemon(tmp_path, agents=CAREFUL) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_script(terminal, f"!tool bash {json.dumps({'command': f'touch {mark}'})}")
        await terminal.wait_for_view("crab asks to use bash")
        await terminal.wait_for_view("▸ ○ Allow")
        assert not mark.exists()
        terminal.type_keys(END)
        await terminal.wait_for_view("Enter sends")
        assert "mark" in terminal.view_text
        terminal.type_keys(keys)
        assert ("permission denied" in await read_tool_result(daemon)) is not ran
        assert mark.exists() is ran


@pytest.mark.req("chat.form.later")
async def test_a_postponed_question_is_opened_again_as_it_was(
    tmp_path: Path,
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_script(terminal, make_question_script(TOPPINGS))
        await terminal.wait_for_view("▸ [ ] ham")
        terminal.type_keys(SPACE + ESCAPE)
        await terminal.wait_for_view("a question waits")
        assert "Which toppings?" not in terminal.screen[-8:]
        terminal.type_keys("a note")
        await terminal.wait_for_view("> a note")
        terminal.type_keys("\x7f" * 6 + ENTER)
        await terminal.wait_for_view("▸ [x] ham")
        terminal.type_keys(ENTER)
        assert json.loads(await read_tool_result(daemon)) == {"Which toppings?": "ham"}


@pytest.mark.req("chat.form.quiet")
async def test_a_form_does_not_open_while_a_person_types(
    tmp_path: Path,
) -> None:
    async with (
        run_scripted_daemon(tmp_path, agents=CAREFUL) as daemon,
        open_chat(daemon.home) as terminal,
    ):
        await send_script(terminal, '!wait\n!tool bash {"command": "true"}')
        await daemon.model.until_waiting()
        terminal.type_keys("not so")
        await terminal.wait_for_view("> not so")
        daemon.model.release()
        await terminal.wait_for_view("a question waits: Enter")
        terminal.type_keys(" fast" + ENTER)
        await terminal.wait_for_view("▸ ○ Allow")
        assert daemon.model.request_count == 1
        terminal.type_keys(ESCAPE)
        await terminal.wait_for_view("> not so fast")


@pytest.mark.req("chat.stop")
async def test_ctrl_c_at_a_question_stops_the_turn(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_script(terminal, make_question_script(COLOUR))
        await terminal.wait_for_view("▸ ○ red")
        terminal.type_keys(get_control_key("C"))
        await terminal.wait_until_gone("▸ ○ red")
        await terminal.wait_for_view("ready")
        assert daemon.model.request_count == 1


@pytest.mark.req("chat.form.elsewhere")
async def test_a_question_answered_by_another_client_goes_away(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_script(terminal, make_question_script(COLOUR))
        await terminal.wait_for_view("▸ ○ red")
        async with daemon.client() as client:
            await client.reply_to_ask("crab", "purple")
        await terminal.wait_until_gone("▸ ○ red")
        await terminal.wait_for_text("heard: purple")
        await terminal.wait_for_view("ready")


@pytest.mark.req("chat.form.waiting")
async def test_a_question_from_before_the_chat_opened_is_shown(
    tmp_path: Path,
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, daemon.client() as client:
        stream = client.stream("crab", make_question_script(COLOUR), detach=True)
        async for event in stream:
            if type(event).__name__ == "AskUserEvent":
                break
        async with open_chat(daemon.home) as terminal:
            await terminal.wait_for_view("▸ ○ red")
            terminal.type_keys(ENTER)
            assert json.loads(await read_tool_result(daemon)) == {"Which colour?": "red"}
        await stream.aclose()


@pytest.mark.req("chat.form.long")
async def test_a_question_too_long_for_the_form_is_printed_in_full(tmp_path: Path) -> None:
    question = "\n".join(["Which?", *(f": line {number}" for number in range(40))])
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=(40, 15)) as terminal,
    ):
        await send_script(terminal, make_question_script({**COLOUR, "question": question}))
        await terminal.wait_for_view("▸ ○ red")
        await terminal.wait_for_text(": line 39")
        assert all(f": line {number}" in terminal.full_text for number in range(40)), (
            terminal.render_picture()
        )
        row = next(y for y, line in enumerate(terminal.screen) if "▸ ○ red" in line)
        assert terminal.screen[row - 2 : row] == ["", "Which? …"]


@pytest.mark.req("chat.form.hints")
async def test_the_keys_named_in_a_form_work(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_script(terminal, make_question_script(TOPPINGS))
        await terminal.wait_for_view("▸ [ ] ham")
        await terminal.wait_for_view("Space picks · Enter sends · Esc later")
        await terminal.wait_for_view("Ctrl+C stops")
        assert "Esc stops" not in terminal.view_text
        terminal.type_keys(ESCAPE)
        await terminal.wait_for_view("a question waits: Enter")
        terminal.type_keys(ENTER)
        await terminal.wait_for_view("Ctrl+C stops")
        terminal.type_keys(get_control_key("C"))
        await daemon.model.until_asked()
        await terminal.wait_for_view("ready")


@pytest.mark.req("chat.form.asker")
async def test_of_two_asking_delegates_the_form_names_each(tmp_path: Path) -> None:
    tasks = [
        {"agent": "twin", "message": f"!say {where}\n{make_question_script(COLOUR)}"}
        for where in ("the north quay", "the south quay")
    ]
    script = f"!tool delegate {json.dumps({'tasks': tasks})}"
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=(100, 24)) as terminal,
    ):
        await send_script(terminal, script)
        await terminal.wait_for_view("▸ ○ red")
        asked = re.compile(r"twin \(!say the (north|south) quay.*\) asks: Which colour\?")
        seen = asked.findall(terminal.view_text)
        terminal.type_keys(ENTER)
        await terminal.wait_until(lambda: asked.findall(terminal.view_text) not in ([], seen))
        terminal.type_keys(DOWN + ENTER)
        await terminal.wait_for_view("ready")
        results = json.loads(daemon.model.requests[-1]["messages"][-1]["content"])
        colours = [re.findall("red|blue", json.dumps(result)) for result in results]
        assert colours == ([["red"], ["blue"]] if seen == ["north"] else [["blue"], ["red"]])
