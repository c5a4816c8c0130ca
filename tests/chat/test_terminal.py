"""The chat at a terminal: typing, streaming, the scrollback, steering, stopping, leaving."""

import re
from pathlib import Path

import pytest

from tests.chat.terminal import (
    ALT_ENTER,
    ENTER,
    ESCAPE,
    UP,
    ChatTerminal,
    get_control_key,
    open_chat,
    run_scripted_daemon,
)
from tests.daemon.in_process_daemon import PATIENCE

SIZES = [(80, 24), (40, 15)]
at_both_sizes = pytest.mark.parametrize("size", SIZES, ids=["80x24", "40x15"])
STAMP = re.compile(r"\b\d{19}\b")


async def send_message(terminal: ChatTerminal, text: str) -> None:
    """Type and send a message once the chat is ready."""
    await terminal.wait_for_view("ready")
    terminal.type_keys(text + ENTER)


@at_both_sizes
@pytest.mark.req("chat.talk")
async def test_a_message_is_answered_and_the_prompt_is_ready_again(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_message(terminal, "good morning")
        await terminal.wait_for_text("heard: good morning")
        await terminal.wait_for_view("ready")
        await send_message(terminal, "and good night")
        await terminal.wait_for_text("heard: and good night")
        await terminal.wait_for_view("ready")
        terminal.type_keys(get_control_key("D"))
        assert await terminal.wait_for_exit() == 0
        async with daemon.client() as client:
            page = await client.list_messages("crab")
        assert [message.content for message in page.messages] == [
            "good morning",
            "heard: good morning",
            "and good night",
            "heard: and good night",
        ]


@at_both_sizes
@pytest.mark.req("chat.scrollback")
async def test_streamed_text_is_in_the_scrollback_once_and_in_order(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_message(terminal, "!chunks 400 0")
        await terminal.wait_until(lambda: len(STAMP.findall(terminal.full_text)) >= 400)
        await send_message(terminal, "!chunks 400 2000")
        await terminal.wait_until(lambda: len(STAMP.findall(terminal.full_text)) >= 800)
        await terminal.wait_for_view("ready")
        terminal.type_keys(get_control_key("D"))
        assert await terminal.wait_for_exit() == 0
        async with daemon.client() as client:
            page = await client.list_messages("crab")
        spoken = " ".join(m.content for m in page.messages if m.role == "assistant")
        assert STAMP.findall(terminal.full_text) == STAMP.findall(spoken)
        assert len(terminal.scrollback) > 0
        # The live lines left no remains above.
        assert terminal.full_text.count("Esc stops") == 0
        assert "ready" not in terminal.full_text


@pytest.mark.req("chat.scrollback")
async def test_earlier_lines_stay_on_the_terminal(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        for number in range(12):
            await send_message(terminal, f"message number {number}.")
            await terminal.wait_for_text(f"heard: message number {number}.")
        answers = re.findall(r"heard: message number (\d+)\.", terminal.full_text)
        assert answers == [str(number) for number in range(12)]
        assert "\x1b[2J" not in terminal.written.decode()
        assert "\x1b[?1049" not in terminal.written.decode()


@at_both_sizes
@pytest.mark.req("chat.steer")
async def test_a_message_typed_during_a_turn_steers_it(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_message(terminal, '!say begun\n!wait\n!tool bash {"command": "true"}')
        await daemon.model.until_waiting()
        await terminal.wait_for_view("Esc stops")
        terminal.type_keys("rather this way" + ENTER)
        await terminal.wait_for_view("rather this way")
        async with daemon.client() as client:
            stats = await client.get_stats()
        assert stats.runs == 1
        daemon.model.release()
        await terminal.wait_for_text("heard: rather this way")
        await terminal.wait_for_view("ready")
        assert daemon.model.request_count == 2


@at_both_sizes
@pytest.mark.parametrize("key", [ESCAPE, get_control_key("C")], ids=["Esc", "Ctrl+C"])
@pytest.mark.req("chat.stop")
async def test_a_key_stops_the_turn_and_keeps_the_input(
    tmp_path: Path, size: tuple[int, int], key: str
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_message(terminal, "!say begun\n!wait\n!say never")
        await daemon.model.until_waiting()
        terminal.type_keys("half a thought")
        await terminal.wait_for_view("> half a thought")
        terminal.type_keys(key)
        await daemon.model.until_hung_up()
        await terminal.wait_for_view("ready")
        assert "> half a thought" in terminal.view_text
        await terminal.wait_until_gone("again leaves")
        terminal.type_keys(", and the rest" + ENTER)
        await terminal.wait_for_text("heard: half a thought, and the rest")


@pytest.mark.parametrize("key", [ESCAPE, get_control_key("C")], ids=["Esc", "Ctrl+C"])
@pytest.mark.req("chat.stop")
async def test_a_second_press_leaves_and_the_input_is_in_the_history(
    tmp_path: Path, key: str
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon:
        async with open_chat(daemon.home) as terminal:
            await send_message(terminal, "!say begun\n!wait")
            await daemon.model.until_waiting()
            terminal.type_keys("half a thought")
            await terminal.wait_for_view("> half a thought")
            terminal.type_keys(key)
            await terminal.wait_for_view("again leaves")
            terminal.type_keys(key)
            assert await terminal.wait_for_exit() == 0
        async with open_chat(daemon.home) as terminal:
            await terminal.wait_for_view("ready")
            terminal.type_keys(UP)
            await terminal.wait_for_view("> half a thought")


@pytest.mark.req("chat.stop")
async def test_with_nothing_to_stop_the_first_ctrl_c_only_warns(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await terminal.wait_for_view("ready")
        terminal.type_keys("words" + get_control_key("C"))
        await terminal.wait_for_view("Ctrl+C again leaves")
        assert "> words" in terminal.view_text
        terminal.type_keys(get_control_key("C"))
        assert await terminal.wait_for_exit() == 0


@pytest.mark.req("chat.leave")
async def test_ctrl_d_leaves_only_when_nothing_is_typed(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await terminal.wait_for_view("ready")
        terminal.type_keys("x" + get_control_key("D") + "y")
        await terminal.wait_for_view("> xy")
        terminal.type_keys("\x7f\x7f" + get_control_key("D"))
        assert await terminal.wait_for_exit() == 0


@pytest.mark.req("chat.leave")
async def test_an_unfinished_answer_is_left_on_the_screen(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_message(terminal, "!say begun and never ended\n!wait")
        await daemon.model.until_waiting()
        await terminal.wait_until(lambda: "begun and never ended" in terminal.screen)
        terminal.type_keys(get_control_key("D"))
        assert await terminal.wait_for_exit() == 0
        assert "begun and never ended" in terminal.screen
        assert "ready" not in terminal.full_text
        assert "Esc stops" not in terminal.full_text


@pytest.mark.req("chat.leave")
async def test_quit_leaves(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_message(terminal, "/quit")
        assert await terminal.wait_for_exit() == 0


@at_both_sizes
@pytest.mark.req("chat.guest")
async def test_an_at_sign_and_name_have_another_agent_answer(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_message(terminal, "hello")
        await terminal.wait_for_text("heard: hello")
        await send_message(terminal, "@twin !say twin was here")
        await terminal.wait_for_text("twin was here")
        await terminal.wait_for_view("ready")
        async with daemon.client() as client:
            page = await client.list_messages("crab")
        assert [(m.role, m.agent) for m in page.messages][-1] == ("assistant", "twin")
        (head,) = [y for y, line in enumerate(terminal.screen) if line == "twin"]
        colours = {cell.fg for cell in terminal.cells[head][:4]}
        assert len(colours) == 1
        assert colours != {"default"}


@pytest.mark.req("chat.multiline")
async def test_a_message_can_have_several_lines(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await terminal.wait_for_view("ready")
        terminal.type_keys(
            "one" + ALT_ENTER + "  two" + get_control_key("J") + "three\x1b[13;2ufour" + ENTER
        )
        await daemon.model.until_asked()
        assert daemon.model.requests[0]["messages"][-1]["content"] == "one\n  two\nthree\nfour"


@pytest.mark.req("chat.scrollback")
async def test_redrawing_does_not_change_printed_lines(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_message(terminal, "hello")
        await terminal.wait_for_text("heard: hello")
        await terminal.wait_for_view("ready")
        before = terminal.lines
        terminal.type_keys(get_control_key("L"))
        await terminal.wait_for_bytes(len(terminal.written) + 1)
        terminal.type_keys("x")
        await terminal.wait_for_view("> x")
        terminal.type_keys("\x7f")
        await terminal.wait_until_gone("> x")
        assert terminal.lines == before


@at_both_sizes
@pytest.mark.req("chat.expand")
async def test_keys_show_the_full_output_and_the_full_thought(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await terminal.wait_for_view("ready")
        terminal.type_keys(get_control_key("O"))
        await terminal.wait_for_text("no output to show")
        terminal.type_keys(get_control_key("T"))
        await terminal.wait_for_text("no thoughts to show")
        thought = "deep and long and deeper still, as far down as thoughts go"
        await send_message(terminal, f'!think {thought}\n!tool bash {{"command": "seq 1000 1060"}}')
        await terminal.wait_for_text("Ctrl+O")
        await terminal.wait_for_view("ready")
        assert not re.search(r"^\s*1033$", terminal.full_text, re.MULTILINE)
        terminal.type_keys(get_control_key("O"))
        await terminal.wait_until(
            lambda: re.search(r"^\s*1060$", terminal.full_text, re.MULTILINE) is not None
        )
        shown = re.findall(r"^\s*(10\d\d)$", terminal.full_text, re.MULTILINE)
        assert shown[-61:] == [str(number) for number in range(1000, 1061)]
        before = terminal.full_text.count("down as thoughts go")
        terminal.type_keys(get_control_key("T"))
        await terminal.wait_until(
            lambda: " ".join(terminal.full_text.split()).count("down as thoughts go") > before
        )


@pytest.mark.req("chat.commands")
async def test_unknown_slash_words_go_to_the_agent(
    tmp_path: Path,
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_message(terminal, "/agents")
        await terminal.wait_for_text("twin")
        assert daemon.model.request_count == 0
        await send_message(terminal, "/nothing of ours")
        await terminal.wait_for_text("heard: /nothing of ours")


@pytest.mark.req("chat.options")
async def test_options_choose_agent_and_sender(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, "--agent", "twin", "--sender", "bo") as terminal,
    ):
        await terminal.wait_for_view("twin")
        await send_message(terminal, "hello")
        await terminal.wait_for_text("heard: hello")
        await terminal.wait_for_view("ready")
        async with daemon.client() as client:
            page = await client.list_messages("twin", sender="bo")
        assert len(page.messages) == 2


@pytest.mark.req("chat.status.compacting")
async def test_a_compaction_is_shown_with_its_own_clock_and_can_be_stopped(
    tmp_path: Path,
) -> None:
    """A summary request contains the agent's prompt, and this prompt makes the model hang."""
    agents = {"crab": 'prompt = """You are crab.\n!hang"""\n'}
    clock = re.compile(r"compacting (\d+)s Esc stops")
    async with run_scripted_daemon(tmp_path, agents=agents) as daemon:
        async with daemon.client() as client:
            await client.send("crab", "hello")
        async with open_chat(daemon.home) as terminal:
            await send_message(terminal, "/compact")
            await terminal.wait_until(lambda: clock.search(terminal.view_text) is not None)
            assert int(clock.findall(terminal.view_text)[0]) < PATIENCE
            await daemon.model.until_asked(2)
            terminal.type_keys(ESCAPE)
            await terminal.wait_for_text("nothing changed")
            await terminal.wait_for_view("ready")


@pytest.mark.req("chat.status.compact")
async def test_the_meter_shows_the_models_context(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon:
        daemon.model.context = 2048
        async with open_chat(daemon.home) as terminal:
            await send_message(terminal, "!usage 316 5\n!say yes")
            await terminal.wait_for_view("316/2.0k")


@pytest.mark.req("chat.status")
async def test_context_usage_is_reset_with_the_conversation(
    tmp_path: Path,
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        for command in ("/agent twin", "/new"):
            await send_message(terminal, "!usage 4321 5\n!say yes")
            await terminal.wait_for_view("4.3k/100k")
            await send_message(terminal, command)
            await terminal.wait_until_gone("4.3k/100k")
