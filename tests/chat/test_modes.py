"""Permission modes in the chat: shown, set by key and command, for one chat or the conversation."""

import asyncio
from pathlib import Path

import pytest

from crabtalk.chat.status_line import StatusLine
from crabtalk.cli.options import MODES, get_next_mode
from crabtalk.protocol import BadRequestError, wire
from tests.chat.recording_session import open_session
from tests.chat.terminal import BACKTAB, ENTER, open_chat
from tests.chat.test_status_line import render_status
from tests.cli.canned_daemon import serve_daemon
from tests.cli.fake_approval_daemon import FakeApprovalDaemon, make_approval


@pytest.mark.req("chat.mode.status")
def test_the_status_line_keeps_the_mode_when_there_is_little_room() -> None:
    full = StatusLine(
        *("crab", "a-model-with-a-long-name", 1_234_567, 2_000_000, "$12.34", "running", 3.2),
        mode="accept-edits",
    )
    assert render_status(full, 120).startswith(
        "crab · accept-edits mode · a-model-with-a-long-name · "
    )
    assert render_status(full, 40) == "crab · accept-edits mode · 3s Esc stops"
    assert render_status(full, 35) == "accept-edits mode · 3s Esc stops"
    auto = StatusLine("crab", mode="auto")
    assert ("class:status.auto", "auto mode") in auto.render_line(80)
    assert ("class:status", "ask mode") in auto._replace(mode="ask").render_line(80)


@pytest.mark.req("chat.mode.keys")
def test_the_key_cycles_through_all_modes() -> None:
    seen = ["ask"]
    for _ in MODES:
        seen.append(get_next_mode(seen[-1]))
    assert seen == ["ask", "accept-edits", "plan", "auto", "ask"]
    assert get_next_mode("") == get_next_mode("of a newer daemon") == "ask"


@pytest.mark.req("chat.mode.keys")
async def test_shift_tab_sets_the_next_mode_of_the_conversation(home: Path) -> None:
    async with serve_daemon(daemon := FakeApprovalDaemon(), home), open_chat(home) as terminal:
        await terminal.wait_for_view("ask mode")
        terminal.type_keys(BACKTAB)
        await terminal.wait_for_view("accept-edits mode")
        terminal.type_keys(BACKTAB + BACKTAB)
        await terminal.wait_for_view("auto mode")
        assert "red" in terminal.get_styles("auto mode")
        await terminal.wait_until(lambda: daemon.mode == "auto")
        assert all((each.agent, each.sender) == ("crab", "") for each in daemon.mode_requests)
        assert "another client" not in terminal.full_text


@pytest.mark.req("chat.mode.keys")
async def test_shift_tab_in_the_completion_menu_goes_back(home: Path) -> None:
    async with serve_daemon(daemon := FakeApprovalDaemon(), home), open_chat(home) as terminal:
        await terminal.wait_for_view("ask mode")
        terminal.type_keys("/mo")
        await terminal.wait_for_view("/model")
        terminal.type_keys(BACKTAB)
        await terminal.wait_until(lambda: "> /mo\n" not in f"{terminal.view_text}\n")
        assert not any(each.HasField("mode") for each in daemon.mode_requests)


@pytest.mark.req("chat.mode.command")
async def test_the_command_shows_and_sets_the_mode(home: Path) -> None:
    async with serve_daemon(daemon := FakeApprovalDaemon(), home), open_chat(home) as terminal:
        await terminal.wait_for_view("ask mode")
        terminal.type_keys("/mode" + ENTER)
        await terminal.wait_for_text("It is the agent's own.")
        assert "everything the agent's file allows runs" in terminal.full_text
        terminal.type_keys("/mode plan" + ENTER)
        await terminal.wait_for_text("plan mode: read-only: nothing is changed")
        assert daemon.mode == "plan"
        terminal.type_keys("/mode" + ENTER)
        await terminal.wait_for_text("It is set for this conversation.")
        terminal.type_keys("/mode yolo" + ENTER)
        await terminal.wait_for_text(
            "there is no mode 'yolo'; there are ask, accept-edits, plan, auto"
        )
        terminal.type_keys("/mode default" + ENTER)
        await terminal.wait_until(lambda: daemon.mode == "" and "ask mode" in terminal.view_text)


@pytest.mark.req("chat.mode.elsewhere")
async def test_a_mode_set_by_another_client_is_shown(home: Path) -> None:
    async with serve_daemon(daemon := FakeApprovalDaemon(), home), open_chat(home) as terminal:
        await terminal.wait_for_view("ask mode")
        await daemon.wait_until_followed()
        daemon.change_mode("auto")
        await terminal.wait_for_text("another client set the mode to auto")
        await terminal.wait_for_view("auto mode")


@pytest.mark.req("chat.mode.run")
async def test_a_mode_option_is_sent_with_every_turn_until_another_is_set(
    home: Path,
) -> None:
    async with (
        serve_daemon(daemon := FakeApprovalDaemon(), home),
        open_chat(home, "--mode", "plan") as terminal,
    ):
        await terminal.wait_for_view("plan mode")
        terminal.type_keys("one" + ENTER)
        await terminal.wait_for_text("done")
        terminal.type_keys("/mode" + ENTER)
        await terminal.wait_for_text("It holds for this chat.")
        assert not any(each.HasField("mode") for each in daemon.mode_requests)
        terminal.type_keys("/mode accept-edits" + ENTER)
        await terminal.wait_for_view("accept-edits mode")
        terminal.type_keys("two" + ENTER)
        await terminal.wait_until(lambda: terminal.full_text.count("done") == 2)
        assert [each.mode for each in daemon.streams] == ["plan", ""]


@pytest.mark.req("chat.mode.old")
async def test_a_daemon_without_modes_gives_an_error_and_no_mode_in_the_status_line(
    home: Path,
) -> None:
    async with serve_daemon(FakeApprovalDaemon(has_modes=False), home), open_chat(home) as terminal:
        await terminal.wait_for_view("ready")
        sentence = "this daemon has no permission modes; start a newer crabtalkd"
        terminal.type_keys(BACKTAB)
        await terminal.wait_for_text(sentence)
        terminal.type_keys("/mode plan" + ENTER)
        await terminal.wait_until(lambda: terminal.full_text.count(sentence) == 2)
        assert "mode ·" not in terminal.view_text


# ── The shown mode is the mode of the turns ─────────────────────────────────────────────────────


class SlowModeDaemon(FakeApprovalDaemon):
    """Answers mode requests only when the test allows it, or with an error."""

    def __init__(self, *questions: wire.AskQuestion) -> None:
        super().__init__(*questions)
        self.may_answer = asyncio.Event()
        self.requests: list[str] = []  # agents of the mode requests
        self.fails = False

    async def get_agent(self, request: wire.GetAgentMsg) -> wire.AgentInfo:
        return wire.AgentInfo(name=request.name)

    async def set_mode(self, request: wire.SetModeMsg) -> wire.ModeInfo:
        self.requests.append(request.agent)
        await self.may_answer.wait()
        if self.fails:
            raise BadRequestError("not now; try again")
        if request.agent == "twin":
            return wire.ModeInfo(mode="auto")
        return await super().set_mode(request)

    async def wait_until_requested(self, agent: str, count: int = 1) -> None:
        async with asyncio.timeout(20):
            while self.requests.count(agent) < count:
                await asyncio.sleep(0)


@pytest.mark.req("chat.mode.run")
async def test_the_chats_mode_stays_if_the_mode_request_fails(
    home: Path,
) -> None:
    daemon = SlowModeDaemon()
    async with (
        serve_daemon(daemon, home),
        open_session(home, agent="crab", mode="plan") as (session, _),
    ):
        await daemon.wait_until_followed()
        daemon.fails = True
        daemon.change_mode("auto")
        await daemon.wait_until_requested("crab")
        await session.run_turn("while it is asked")
        daemon.may_answer.set()
        await session.run_turn("after it was refused")
        assert (session.mode, [each.mode for each in daemon.streams]) == ("plan", ["plan", "plan"])


@pytest.mark.req("chat.mode.run")
async def test_a_turn_runs_in_the_shown_mode_before_the_daemon_confirms_it(
    home: Path,
) -> None:
    daemon = SlowModeDaemon()
    async with serve_daemon(daemon, home), open_session(home, agent="crab") as (session, listener):
        daemon.mode = "auto"
        daemon.may_answer.set()
        await listener.wait_until(lambda: session.mode == "auto")
        daemon.may_answer.clear()
        change = asyncio.create_task(session.set_mode("plan"))
        await session.run_turn("now")
        assert (session.mode, daemon.streams[0].mode) == ("plan", "plan")
        daemon.may_answer.set()
        await change
        await session.run_turn("later")
        assert not daemon.streams[1].mode


@pytest.mark.req("chat.mode.run")
async def test_a_notice_says_that_a_running_turn_keeps_its_own_mode(
    home: Path,
) -> None:
    daemon = SlowModeDaemon(make_approval())
    daemon.may_answer.set()
    async with (
        serve_daemon(daemon, home),
        open_session(home, agent="crab", mode="auto") as (session, listener),
    ):
        turn = asyncio.create_task(session.run_turn("go"))
        await listener.wait_until(lambda: bool(len(session.questions)))
        await session.set_mode("plan")
        assert "the turn that runs keeps its mode, auto; Esc stops it" in listener.notice_text
        assert await session.answer_question("own-1", "Deny")
        await turn
        assert session.mode == "plan"


@pytest.mark.req("chat.mode.status")
async def test_after_switching_agents_the_old_mode_is_not_shown(home: Path) -> None:
    daemon = SlowModeDaemon()
    async with serve_daemon(daemon, home), open_session(home, agent="crab") as (session, listener):
        await daemon.wait_until_requested("crab")
        await session.switch_agent("twin")
        seen: list[str] = []
        listener.on_change = lambda: seen.append(session.mode)  # type: ignore[method-assign]
        daemon.may_answer.set()
        async with asyncio.timeout(20):
            while session.mode != "auto":
                await asyncio.sleep(0)
        assert "ask" not in seen
