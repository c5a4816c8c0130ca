"""A chat session with a daemon process, which some tests kill."""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from crabtalk.chat.session import BUSY_NOTICE, CONTEXT_FULL_NOTICE, UNCONFIRMED_NOTICE, ChatSession
from crabtalk.cli.errors import CommandError
from crabtalk.client import connect
from crabtalk.protocol import wire
from tests.chat.recording_session import (
    RecordingListener,
    get_daemon_pid,
    load_messages,
    open_session,
    start_task,
)
from tests.chat.terminal import KillableDaemon, run_scripted_daemon
from tests.daemon.in_process_daemon import PATIENCE, script_tool_calls, wait_with_timeout

pytestmark = pytest.mark.timeout(120)


def make_question_script(text: str) -> str:
    question = {"question": text, "header": "Tide", "options": ["high", "low"]}
    return script_tool_calls([("ask_user", {"questions": [question]})])


def list_event_kinds(listener: RecordingListener) -> list[str | None]:
    return [event.WhichOneof("event") for event in listener.events]


async def wait_until_ready(listener: RecordingListener, session: ChatSession) -> None:
    await listener.wait_until(lambda: session.state == "ready")


# ── Turns ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.turn")
async def test_a_turn_is_streamed_and_its_end_returned(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        assert session.agent == "crab"
        turn_task = start_task(session.run_turn("!say high water\n!wait"))
        await listener.wait_until(lambda: listener.text == "high water")
        assert session.state == "running"
        await daemon.model.until_waiting()
        daemon.model.release()
        turn_result = await wait_with_timeout(turn_task)
        assert turn_result.end is not None
        assert (turn_result.end.model, turn_result.end.stop_reason, turn_result.unsent_text) == (
            "scripted",
            wire.STOP_REASON_COMPLETED,
            "",
        )
        # The number of chunks depends on timing.
        assert [kind for kind in list_event_kinds(listener) if kind != "chunk"] == [
            *("start", "text_start", "text_end", "context_usage", "end")
        ]
        assert not session.is_busy
        assert session.spending.total.input_tokens == turn_result.end.usage.prompt_tokens > 0


@pytest.mark.req("chat.turn")
async def test_tools_work_in_the_directory_of_the_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beach").mkdir()
    monkeypatch.chdir(tmp_path / "beach")
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await wait_with_timeout(session.run_turn(script_tool_calls([("bash", {"command": "pwd"})])))
        (result,) = [e.tool_result for e in listener.events if e.HasField("tool_result")]
        assert str(tmp_path / "beach") in result.output


@pytest.mark.req("chat.turn.guest")
async def test_a_guest_speaks_under_its_own_name(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await wait_with_timeout(session.run_turn("!say I am twin", guest="twin"))
        assert listener.ends[0].agent == "twin"
        assert listener.text == "I am twin"


@pytest.mark.req("chat.turn.steer")
async def test_a_running_turn_reads_a_steer(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_task = start_task(session.run_turn("!say so\n!wait"))
        await daemon.model.until_waiting()
        assert await session.steer("!say and now this")
        daemon.model.release()
        await wait_with_timeout(turn_task)
        steered = [e.user_steered.content for e in listener.events if e.HasField("user_steered")]
        assert steered == ["!say and now this"]
        assert listener.text == "soand now this"


@pytest.mark.req("chat.turn.steer")
async def test_without_a_running_turn_nothing_is_steered(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        assert not await session.steer("too late")
        await wait_with_timeout(session.run_turn("hello"))
        assert not await session.steer("too late")
        assert ("user", "too late") not in await load_messages(session.client)


@pytest.mark.req("chat.turn.stop")
async def test_stop_ends_the_turn_and_keeps_its_messages(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_task = start_task(session.run_turn("!say one\n!hang"))
        await listener.wait_until(lambda: listener.text == "one")
        await session.stop()
        turn_result = await wait_with_timeout(turn_task)
        assert turn_result.end is not None
        assert turn_result.end.stop_reason == wire.STOP_REASON_CANCELLED
        assert turn_result.unsent_text == ""
        assert (await load_messages(session.client))[0] == ("user", "!say one\n!hang")
        assert (await wait_with_timeout(session.run_turn("!say two"))).end is not None


@pytest.mark.req("chat.turn.stop.own")
async def test_stopping_a_waiting_turn_does_not_stop_the_running_one(
    tmp_path: Path,
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
        daemon.client() as other,
    ):
        other_turn = start_task(
            other.send("crab", '!tool set_title {"title": "t"}\n!then\n!wait\n!say mine')
        )
        await daemon.model.until_waiting()
        await wait_for_feed(session)
        turn_task = start_task(session.run_turn("me too"))
        await listener.wait_until(lambda: bool(listener.events))
        assert listener.notices == [(BUSY_NOTICE, "info")]
        await session.stop()
        turn_result = await wait_with_timeout(turn_task)
        assert (turn_result.end, turn_result.unsent_text) == (None, "me too")
        assert listener.ends[-1].stop_reason == wire.STOP_REASON_CANCELLED
        daemon.model.release()
        assert (await wait_with_timeout(other_turn)).content == "mine"
        assert ("user", "me too") not in await load_messages(session.client)


async def wait_for_feed(session: ChatSession) -> None:
    """Wait until the feed has delivered an event. Listeners do not get it, so this polls."""
    async with asyncio.timeout(PATIENCE):
        while not session.recent_events:
            await session.client.ping()


@pytest.mark.req("chat.refused")
async def test_a_refused_message_is_returned_with_the_daemons_error(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_result = await wait_with_timeout(session.run_turn("hello", tool_choice="sing"))
        assert (turn_result.end, turn_result.unsent_text) == (None, "hello")
        ((sentence, kind),) = listener.notices
        assert "no tool called 'sing'" in sentence
        assert kind == "error"
        assert len(listener.ends) == 1


@pytest.mark.req("chat.turn.error")
async def test_a_failed_turn_ends_with_the_models_error(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        turn_result = await wait_with_timeout(session.run_turn("!status 401 wrong key"))
        assert turn_result.end is not None
        assert "wrong key" in turn_result.end.error


@pytest.mark.req("chat.turn.error")
async def test_a_full_context_gives_a_hint_how_to_go_on(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await wait_with_timeout(
            session.run_turn("!status 400 request (2066 tokens) exceeds the context size")
        )
        assert listener.notices == [(CONTEXT_FULL_NOTICE, "hint")]
        assert "/new begins afresh" in CONTEXT_FULL_NOTICE
        await wait_with_timeout(session.run_turn("!status 400 no such parameter"))
        assert len(listener.notices) == 1


@pytest.mark.req("chat.refused")
async def test_a_message_that_was_not_stored_is_returned(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        turn_result = await wait_with_timeout(session.run_turn("hello", guest="missing"))
        assert turn_result.end is not None
        assert "missing" in turn_result.end.error
        assert turn_result.unsent_text == "hello"
        assert await session.load_history() == []
        turn_result = await wait_with_timeout(session.run_turn("!status 401 wrong key"))
        assert turn_result.unsent_text == ""


@pytest.mark.req("chat.turn.left")
async def test_leaving_cancels_the_turn(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon:
        async with open_session(daemon.home) as (session, listener):
            turn_task = start_task(session.run_turn("!say one\n!hang"))
            await listener.wait_until(lambda: listener.text == "one")
        await asyncio.wait([turn_task])
        await daemon.model.until_hung_up()
        async with daemon.client() as client:
            assert (await load_messages(client))[0] == ("user", "!say one\n!hang")


# ── Questions ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.ask")
async def test_a_question_is_answered_from_the_form(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_task = start_task(session.run_turn(make_question_script("Which tide?")))
        await listener.wait_until(lambda: len(session.questions) == 1)
        (question,) = session.questions
        assert question.ask.questions[0].question == "Which tide?"
        assert await session.answer_question(question.ask_id, {"Which tide?": "low"})
        assert len(session.questions) == 0
        await wait_with_timeout(turn_task)
        (result,) = [e.tool_result for e in listener.events if e.HasField("tool_result")]
        assert json.loads(result.output) == {"Which tide?": "low"}


@pytest.mark.req("chat.ask.earlier")
async def test_a_question_from_before_the_chat_can_be_answered(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, daemon.client() as other:
        other_turn = start_task(other.send("crab", make_question_script("Which tide?")))
        await daemon.model.until_asked()
        async with open_session(daemon.home) as (session, listener):
            await listener.wait_until(lambda: len(session.questions) == 1)
            (question,) = session.questions
            assert await session.answer_question(question.ask_id, "low")
            await wait_with_timeout(other_turn)
        assert ("tool", "low") in await load_messages(other)


@pytest.mark.req("chat.ask.delegate")
async def test_a_delegates_question_is_answered_in_its_own_conversation(tmp_path: Path) -> None:
    script = script_tool_calls(
        [
            (
                "delegate",
                {"tasks": [{"agent": "twin", "message": make_question_script("Which tide?")}]},
            )
        ]
    )
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_task = start_task(session.run_turn(script))
        await listener.wait_until(lambda: len(session.questions) == 1)
        (question,) = session.questions
        assert question.agent == "twin"
        assert await session.answer_question(question.ask_id, {"Which tide?": "low"})
        await wait_with_timeout(turn_task)
        await listener.wait_until(
            lambda: any(event.kind == wire.DONE for event in listener.feed_events)
        )
        outputs = [
            event.tool_output for event in listener.feed_events if event.kind == wire.TOOL_RESULT
        ]
        assert json.loads(outputs[0]) == {"Which tide?": "low"}


@pytest.mark.req("chat.ask")
async def test_a_late_answer_gives_a_notice(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        assert await session.answer_question("gone-1", "yes")
        assert "no run waits" in listener.notice_text


@pytest.mark.req("chat.ask.elsewhere")
async def test_a_question_answered_by_another_client_is_removed(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
        daemon.client() as other,
    ):
        turn_task = start_task(session.run_turn(make_question_script("Which tide?")))
        await listener.wait_until(lambda: len(session.questions) == 1)
        await other.reply_to_ask("crab", "low")
        await listener.wait_until(lambda: len(session.questions) == 0)
        await wait_with_timeout(turn_task)


# ── Following ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.follow")
async def test_only_runs_started_by_a_turn_are_followed(tmp_path: Path) -> None:
    inner = script_tool_calls(
        [("delegate", {"tasks": [{"agent": "twin", "message": "!say deep"}]})]
    )
    script = script_tool_calls([("delegate", {"tasks": [{"agent": "twin", "message": inner}]})])
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
        daemon.client() as other,
    ):
        await other.send("twin", "!say by the way", sender="bo")
        await wait_with_timeout(session.run_turn(script))
        await listener.wait_until(
            lambda: sum(e.kind == wire.DONE for e in listener.feed_events) == 2
        )
        turn_result = "".join(e.content for e in listener.feed_events if e.kind == wire.TEXT_DELTA)
        assert "deep" in turn_result
        assert "by the way" not in turn_result
        own = listener.events[0].start.run_id
        parents = {e.run_id: e.parent.run_id for e in listener.feed_events if e.run_id != own}
        child, grandchild = sorted(parents, key=lambda run: parents[run] != own)
        assert parents == {child: own, grandchild: child}
        # The turn's own events come only if its stream does not have them.
        kinds = {event.kind for event in listener.feed_events if event.run_id == own}
        assert kinds <= {wire.REFUSED, wire.TOOL_PROGRESS}


# ── A daemon that goes away ────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.cut.kept")
async def test_a_turn_whose_daemon_dies_is_stored_and_not_sent_again(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await wait_with_timeout(session.run_turn("hello"))
        turn_task = start_task(session.run_turn("!say half an\n!hang"))
        await listener.wait_until(lambda: listener.text.endswith("half an"))
        await daemon.kill()
        await listener.wait_until(lambda: session.state == "away")
        await daemon.start()
        turn_result = await wait_with_timeout(turn_task)
        assert turn_result.end is not None
        assert turn_result.unsent_text == ""
        assert listener.ends[-1] == turn_result.end
        assert turn_result.end.error.startswith("the daemon ended while the agent was answering")
        assert "the daemon went away" in listener.notice_text
        assert "the daemon is back" in listener.notice_text
        assert await load_messages(session.client) == [
            ("user", "hello"),
            ("assistant", "heard: hello"),
            ("user", "!say half an\n!hang"),
        ]
        assert daemon.model.request_count == 2
        assert (await wait_with_timeout(session.run_turn("go on"))).end is not None
        assert listener.text.endswith("heard: go on")


@pytest.mark.req("chat.cut.kept")
async def test_tool_results_from_before_a_crash_are_delivered_once(tmp_path: Path) -> None:
    script = '!tool bash {"command": "echo waves"}\n!then\n!say so\n!hang'
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_task = start_task(session.run_turn(script))
        await listener.wait_until(lambda: listener.text == "so")
        await daemon.kill()
        await daemon.start()
        await wait_with_timeout(turn_task)
        assert list_event_kinds(listener).count("tool_result") == 1  # as it came the first time
        assert listener.text == "so"
        assert [role for role, _ in await load_messages(session.client)] == [
            "user",
            "assistant",
            "tool",
        ]


@pytest.mark.req("chat.cut.kept")
async def test_a_waiting_message_survives_a_crash_and_is_not_sent_again(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
        daemon.client() as other,
    ):
        other_turn = start_task(other.send("crab", "!hang"))
        await daemon.model.until_asked()
        turn_task = start_task(session.run_turn("me too"))
        await listener.wait_until(lambda: bool(listener.events))
        await daemon.kill()
        await asyncio.wait([other_turn])
        other_turn.exception()
        await daemon.start()
        turn_result = await wait_with_timeout(turn_task)
        assert turn_result.unsent_text == ""
        assert turn_result.end is not None
        assert "the daemon ended" in turn_result.end.error
        assert await load_messages(session.client) == [("user", "!hang"), ("user", "me too")]


FRAGILE = """
import asyncio, os, sys
from pathlib import Path
from crabtalk.protocol import NotFoundError, Server, wire
from crabtalk.transport import RunFiles
from tests.scripted_server import open_listener

files = RunFiles.for_home(Path(sys.argv[1]))

class Fragile(Server):
    async def ping(self, request):
        return None

    async def hello(self, request):
        return wire.WelcomeMsg(protocol_version=1, features=sys.argv[2:])

    async def list_agents(self, request):
        return wire.AgentList(agents=[wire.AgentInfo(name="crab")])

    async def list_messages(self, request):
        raise NotFoundError("nothing was said")

    async def stream(self, request):
        with (files.directory / "asked").open("a") as file:
            file.write(request.content)
        os._exit(1)
        yield

async def main():
    files.socket_path.unlink(missing_ok=True)
    files.lock_path.write_text(str(os.getpid()))
    async with open_listener(Fragile(), files.socket_path):
        print("ready", flush=True)
        await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


async def serve_again_and_again(home: Path, is_ready: asyncio.Event, *features: str) -> None:
    """Run a daemon that stores nothing and crashes on every turn, again and again."""
    while True:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FRAGILE, str(home), *features), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            await process.stdout.readline()
            is_ready.set()
            await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


@pytest.mark.req("chat.cut.unkept")
@pytest.mark.parametrize(("features", "times"), [(("keys",), 3), ((), 1)])
async def test_a_message_that_crashes_daemons_is_sent_three_times_at_most(
    home: Path, features: tuple[str, ...], times: int
) -> None:
    """To a daemon that knows no keys it is sent only once."""
    (home / "run").mkdir(mode=0o700, parents=True)
    is_ready = asyncio.Event()
    serving = start_task(serve_again_and_again(home, is_ready, *features))
    try:
        await wait_with_timeout(is_ready.wait())
        async with open_session(home, start=False) as (session, listener):
            turn_result = await wait_with_timeout(session.run_turn("boom "))
            assert (turn_result.end, turn_result.unsent_text) == (None, "boom ")
            assert UNCONFIRMED_NOTICE in listener.notice_text
            assert (home / "run" / "asked").read_text() == "boom " * times
    finally:
        serving.cancel()
        await asyncio.wait([serving])


@pytest.mark.req("chat.cut.steers")
async def test_a_steer_that_found_no_daemon_is_returned(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_task = start_task(session.run_turn("!say so\n!hang"))
        await listener.wait_until(lambda: listener.text == "so")
        assert await session.steer("and the moon?")
        await daemon.kill()
        assert await session.steer("and the sun?")
        await daemon.start()
        turn_result = await wait_with_timeout(turn_task)
        # The first was acknowledged, so it is in the log; the second found no daemon.
        assert turn_result.unsent_text == "and the sun?"
        assert [text for role, text in await load_messages(session.client) if role == "user"] == [
            "!say so\n!hang",
            "and the moon?",
        ]


@pytest.mark.req("chat.cut.starts")
async def test_a_daemon_that_died_is_started_again_by_the_chat(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        before = get_daemon_pid(daemon.home)
        turn_task = start_task(session.run_turn("!say half an\n!hang"))
        await listener.wait_until(lambda: listener.text == "half an")
        await daemon.kill()
        turn_result = await wait_with_timeout(turn_task)
        assert turn_result.end is not None
        assert turn_result.end.error
        assert get_daemon_pid(daemon.home) not in (before, 0)
        assert "started crabtalkd" in listener.notice_text
        assert (await wait_with_timeout(session.run_turn("still there?"))).end is not None


@pytest.mark.req("chat.cut.no_start")
async def test_if_it_may_not_start_a_daemon_it_waits_until_stopped(
    tmp_path: Path,
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home, start=False) as (session, listener),
    ):
        await daemon.kill()
        await listener.wait_until(lambda: session.state == "away")
        turn_task = start_task(session.run_turn("anybody?"))
        await listener.wait_until(lambda: "start one with" in listener.notice_text)
        await session.stop()
        turn_result = await wait_with_timeout(turn_task)
        assert (turn_result.end, turn_result.unsent_text) == (None, "anybody?")
        await daemon.start()
        await wait_until_ready(listener, session)
        assert (await wait_with_timeout(session.run_turn("hello"))).end is not None
        assert [text for _, text in await load_messages(session.client)] == [
            "hello",
            "heard: hello",
        ]


@pytest.mark.req("chat.cut.stopped")
async def test_a_stopped_daemon_is_started_only_by_the_next_message(
    tmp_path: Path,
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await stop_daemon(daemon)
        await listener.wait_until(lambda: "what you say next starts it" in listener.notice_text)
        assert get_daemon_pid(daemon.home) == 0
        assert (await wait_with_timeout(session.run_turn("hello"))).end is not None
        assert get_daemon_pid(daemon.home) != 0


async def stop_daemon(daemon: KillableDaemon) -> None:
    """Stop the daemon with SIGTERM."""
    process = daemon._process
    assert process is not None
    process.terminate()
    async with asyncio.timeout(PATIENCE):
        await process.wait()


@pytest.mark.req("chat.follow.again")
async def test_questions_and_the_feed_survive_a_restart(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_task = start_task(session.run_turn(make_question_script("Which tide?")))
        await listener.wait_until(lambda: len(session.questions) == 1)
        await daemon.kill()
        await daemon.start()
        await wait_with_timeout(turn_task)
        assert len(session.questions) == 0
        async with daemon.client() as other:
            other_turn = start_task(other.send("crab", make_question_script("And now?")))
            await listener.wait_until(lambda: len(session.questions) == 1)
            (question,) = session.questions
            assert await session.answer_question(question.ask_id, "high")
            await wait_with_timeout(other_turn)


@pytest.mark.req("chat.cut.kept")
async def test_a_turn_ended_by_a_stopping_daemon_is_stored(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await restart_with_limit(daemon, listener, session, "drain_timeout = 0.1")
        turn_task = start_task(session.run_turn("!say half an\n!hang"))
        await listener.wait_until(lambda: listener.text == "half an")
        await stop_daemon(daemon)
        await daemon.start()
        turn_result = await wait_with_timeout(turn_task)
        assert turn_result.end is not None
        assert turn_result.unsent_text == ""
        assert listener.text == "half an"
        assert [text for role, text in await load_messages(session.client) if role == "user"] == [
            "!say half an\n!hang"
        ]


@pytest.mark.req("chat.refused")
async def test_a_message_refused_by_a_full_daemon_is_returned(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
        daemon.client() as other,
    ):
        await restart_with_limit(daemon, listener, session, "runs = 1")
        other_turn = start_task(other.send("twin", "!wait"))
        await daemon.model.until_waiting()
        turn_result = await wait_with_timeout(session.run_turn("hello"))
        assert (turn_result.end, turn_result.unsent_text) == (None, "hello")
        assert "try again later" in listener.notice_text
        daemon.model.release()
        await wait_with_timeout(other_turn)
        assert (await wait_with_timeout(session.run_turn("hello"))).end is not None


async def restart_with_limit(
    daemon: KillableDaemon, listener: RecordingListener, session: ChatSession, limit: str
) -> None:
    """Restart the daemon with another limit."""
    await daemon.kill()
    with (daemon.home / "config.toml").open("a") as file:
        file.write(f"[limits]\n{limit}\n")
    await listener.wait_until(lambda: session.state == "away")
    await daemon.start()
    await wait_until_ready(listener, session)


@pytest.mark.req("chat.cut.random")
@pytest.mark.slow
async def test_no_message_is_lost_or_doubled_when_the_daemon_crashes_often(tmp_path: Path) -> None:
    """The daemon is killed at moments from before the message is stored until after the end."""
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        for number in range(40):
            text = f"message {number}\n!chunks 20 200"
            turn_task = start_task(session.run_turn(text))
            await asyncio.sleep(number * 0.003)
            await daemon.kill()
            await daemon.start()
            turn_result = await wait_with_timeout(turn_task)
            messages = await load_all_messages(session)
            count = sum(message == ("user", text) for message in messages)
            assert count == (0 if turn_result.unsent_text else 1), listener.notice_text


async def load_all_messages(session: ChatSession) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in await session.load_history(1000)]


# ── Opening ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.open.starts")
async def test_opening_starts_a_daemon_with_one_notice(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon:
        await daemon.kill()
        async with open_session(daemon.home) as (session, listener):
            await listener.wait_until(lambda: bool(listener.notices))
            ((sentence, kind),) = listener.notices
            assert sentence.startswith("started crabtalkd in ")
            assert kind == "info"
            assert (await wait_with_timeout(session.run_turn("hello"))).end is not None


@pytest.mark.req("chat.open.starts")
async def test_opening_without_a_daemon_fails_if_it_may_not_start_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(CommandError, match="start one with"):
        async with open_session(tmp_path / "home", start=False):
            pass


@pytest.mark.req("chat.open.agent")
async def test_the_agent_is_the_one_named_else_crab_else_the_first(tmp_path: Path) -> None:
    agents = {"owl": 'prompt = "You are owl."\n', "twin": 'prompt = "You are twin."\n'}
    async with run_scripted_daemon(tmp_path, agents=agents) as daemon:
        async with open_session(daemon.home) as (session, _):
            assert session.agent == "owl"
        async with open_session(daemon.home, agent="twin") as (session, _):
            assert session.agent == "twin"
        with pytest.raises(CommandError, match="no agent is called 'crab'; there are: owl, twin"):
            async with open_session(daemon.home, agent="crab"):
                pass


@pytest.mark.req("chat.open.history")
async def test_a_chat_opens_with_the_last_messages(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        assert await session.load_history() == []
        for word in ("one", "two", "three"):
            await wait_with_timeout(session.run_turn(word))
        texts = [message.content for message in await session.load_history(3)]
        assert texts == ["heard: two", "three", "heard: three"]


@pytest.mark.req("chat.history.failed")
async def test_the_history_has_failures_and_typed_texts(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        skill = daemon.home / "skills" / "tides"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: tides\ndescription: d\n---\nLook it up.\n")
        await session.client.reload()
        await wait_with_timeout(session.run_turn("/tides in June"))
        await wait_with_timeout(
            session.run_turn(script_tool_calls([("read", {"path": "nowhere"})]))
        )
        await wait_with_timeout(
            session.run_turn(script_tool_calls([("bash", {"command": "true"})]))
        )
        messages = await session.load_history()
        assert messages[0].said == "/tides in June"
        assert messages[0].content.endswith("</skill>")
        failed = [message.is_error for message in messages if message.role == "tool"]
        assert failed == [True, False]


@pytest.mark.req("chat.sender")
async def test_another_sender_is_another_conversation(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home, sender="bo") as (session, _),
    ):
        await wait_with_timeout(session.run_turn("hello"))
        assert len(await session.load_history()) == 2
        async with connect(home=daemon.home) as client:
            assert await load_messages(client, sender="bo") == [
                ("user", "hello"),
                ("assistant", "heard: hello"),
            ]
            assert [c.sender for c in (await client.list_conversations()).conversations] == ["bo"]


@pytest.mark.req("chat.catalogue")
async def test_names_are_there_for_completion_and_follow_changes(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        assert session.catalogue.has_agent("twin")
        await listener.wait_until(lambda: session.model == "scripted")
        await session.client.create_agent("owl", "You are owl.")
        await wait_with_timeout(session.run_turn("hello"))
        await listener.wait_until(lambda: session.catalogue.has_agent("owl"))
