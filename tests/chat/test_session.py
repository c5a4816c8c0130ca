"""A session with a daemon that is a process of its own, killed where that is the question."""

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


def list_event_kinds(heard: RecordingListener) -> list[str | None]:
    return [event.WhichOneof("event") for event in heard.events]


async def wait_until_ready(heard: RecordingListener, session: ChatSession) -> None:
    await heard.wait_until(lambda: session.state == "ready")


# ── Turns ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.turn")
async def test_a_turn_is_streamed_and_its_end_comes_back(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        assert session.agent == "crab"
        saying = start_task(session.run_turn("!say high water\n!wait"))
        await heard.wait_until(lambda: heard.text == "high water")
        assert session.state == "running"
        await running.model.until_waiting()
        running.model.release()
        said = await wait_with_timeout(saying)
        assert said.end is not None
        assert (said.end.model, said.end.stop_reason, said.unsent_text) == (
            "scripted",
            wire.STOP_REASON_COMPLETED,
            "",
        )
        # Pieces that are there at once come as one.
        assert [kind for kind in list_event_kinds(heard) if kind != "chunk"] == [
            *("start", "text_start", "text_end", "context_usage", "end")
        ]
        assert not session.is_busy
        assert session.spending.total.input_tokens == said.end.usage.prompt_tokens > 0


@pytest.mark.req("chat.turn")
async def test_tools_work_where_the_chat_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beach").mkdir()
    monkeypatch.chdir(tmp_path / "beach")
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        await wait_with_timeout(session.run_turn(script_tool_calls([("bash", {"command": "pwd"})])))
        (result,) = [e.tool_result for e in heard.events if e.HasField("tool_result")]
        assert str(tmp_path / "beach") in result.output


@pytest.mark.req("chat.turn.guest")
async def test_a_guest_speaks_under_its_own_name(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        await wait_with_timeout(session.run_turn("!say I am twin", guest="twin"))
        assert heard.ends[0].agent == "twin"
        assert heard.text == "I am twin"


@pytest.mark.req("chat.turn.steer")
async def test_what_is_said_into_a_turn_is_read_by_it(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        saying = start_task(session.run_turn("!say so\n!wait"))
        await running.model.until_waiting()
        assert await session.steer("!say and now this")
        running.model.release()
        await wait_with_timeout(saying)
        steered = [e.user_steered.content for e in heard.events if e.HasField("user_steered")]
        assert steered == ["!say and now this"]
        assert heard.text == "soand now this"


@pytest.mark.req("chat.turn.steer")
async def test_what_comes_after_a_turn_is_not_taken_for_steering(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as running, open_session(running.home) as (session, _):
        assert not await session.steer("too late")
        await wait_with_timeout(session.run_turn("hello"))
        assert not await session.steer("too late")
        assert ("user", "too late") not in await load_messages(session.client)


@pytest.mark.req("chat.turn.stop")
async def test_stop_ends_the_turn_and_what_was_said_stays(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        saying = start_task(session.run_turn("!say one\n!hang"))
        await heard.wait_until(lambda: heard.text == "one")
        await session.stop()
        said = await wait_with_timeout(saying)
        assert said.end is not None
        assert said.end.stop_reason == wire.STOP_REASON_CANCELLED
        assert said.unsent_text == ""
        assert (await load_messages(session.client))[0] == ("user", "!say one\n!hang")
        assert (await wait_with_timeout(session.run_turn("!say two"))).end is not None


@pytest.mark.req("chat.turn.stop.own")
async def test_a_turn_that_waits_for_anothers_is_stopped_without_stopping_that(
    tmp_path: Path,
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
        running.client() as other,
    ):
        theirs = start_task(
            other.send("crab", '!tool set_title {"title": "t"}\n!then\n!wait\n!say mine')
        )
        await running.model.until_waiting()
        await wait_for_feed(session)
        saying = start_task(session.run_turn("me too"))
        await heard.wait_until(lambda: bool(heard.events))
        assert heard.notices == [(BUSY_NOTICE, "info")]
        await session.stop()
        said = await wait_with_timeout(saying)
        assert (said.end, said.unsent_text) == (None, "me too")
        assert heard.ends[-1].stop_reason == wire.STOP_REASON_CANCELLED
        running.model.release()
        assert (await wait_with_timeout(theirs)).content == "mine"
        assert ("user", "me too") not in await load_messages(session.client)


async def wait_for_feed(session: ChatSession) -> None:
    """Until the feed has brought something, of which no listener is told."""
    async with asyncio.timeout(PATIENCE):
        while not session.recent_events:
            await session.client.ping()


@pytest.mark.req("chat.refused")
async def test_what_the_daemon_refuses_comes_back_with_its_sentence(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        said = await wait_with_timeout(session.run_turn("hello", tool_choice="sing"))
        assert (said.end, said.unsent_text) == (None, "hello")
        ((sentence, kind),) = heard.notices
        assert "no tool called 'sing'" in sentence
        assert kind == "error"
        assert len(heard.ends) == 1


@pytest.mark.req("chat.turn.error")
async def test_a_turn_that_fails_ends_with_the_models_sentence(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as running, open_session(running.home) as (session, _):
        said = await wait_with_timeout(session.run_turn("!status 401 wrong key"))
        assert said.end is not None
        assert "wrong key" in said.end.error


@pytest.mark.req("chat.turn.error")
async def test_a_conversation_longer_than_the_model_reads_says_how_to_go_on(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        await wait_with_timeout(
            session.run_turn("!status 400 request (2066 tokens) exceeds the context size")
        )
        assert heard.notices == [(CONTEXT_FULL_NOTICE, "hint")]
        assert "/new begins afresh" in CONTEXT_FULL_NOTICE
        await wait_with_timeout(session.run_turn("!status 400 no such parameter"))
        assert len(heard.notices) == 1


@pytest.mark.req("chat.refused")
async def test_what_failed_before_it_was_kept_comes_back(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as running, open_session(running.home) as (session, _):
        said = await wait_with_timeout(session.run_turn("hello", guest="nobody"))
        assert said.end is not None
        assert "nobody" in said.end.error
        assert said.unsent_text == "hello"
        assert await session.load_history() == []
        said = await wait_with_timeout(session.run_turn("!status 401 wrong key"))
        assert said.unsent_text == ""


@pytest.mark.req("chat.turn.left")
async def test_leaving_takes_the_turn_along(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as running:
        async with open_session(running.home) as (session, heard):
            saying = start_task(session.run_turn("!say one\n!hang"))
            await heard.wait_until(lambda: heard.text == "one")
        await asyncio.wait([saying])
        await running.model.until_hung_up()
        async with running.client() as client:
            assert (await load_messages(client))[0] == ("user", "!say one\n!hang")


# ── Questions ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.ask")
async def test_a_question_is_answered_from_the_form(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        saying = start_task(session.run_turn(make_question_script("Which tide?")))
        await heard.wait_until(lambda: len(session.questions) == 1)
        (question,) = session.questions
        assert question.ask.questions[0].question == "Which tide?"
        assert await session.answer_question(question.ask_id, {"Which tide?": "low"})
        assert len(session.questions) == 0
        await wait_with_timeout(saying)
        (result,) = [e.tool_result for e in heard.events if e.HasField("tool_result")]
        assert json.loads(result.output) == {"Which tide?": "low"}


@pytest.mark.req("chat.ask.earlier")
async def test_a_question_from_before_the_chat_is_picked_up(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as running, running.client() as other:
        theirs = start_task(other.send("crab", make_question_script("Which tide?")))
        await running.model.until_asked()
        async with open_session(running.home) as (session, heard):
            await heard.wait_until(lambda: len(session.questions) == 1)
            (question,) = session.questions
            assert await session.answer_question(question.ask_id, "low")
            await wait_with_timeout(theirs)
        assert ("tool", "low") in await load_messages(other)


@pytest.mark.req("chat.ask.delegate")
async def test_a_delegates_question_is_answered_where_it_was_asked(tmp_path: Path) -> None:
    script = script_tool_calls(
        [
            (
                "delegate",
                {"tasks": [{"agent": "twin", "message": make_question_script("Which tide?")}]},
            )
        ]
    )
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        saying = start_task(session.run_turn(script))
        await heard.wait_until(lambda: len(session.questions) == 1)
        (question,) = session.questions
        assert question.agent == "twin"
        assert await session.answer_question(question.ask_id, {"Which tide?": "low"})
        await wait_with_timeout(saying)
        await heard.wait_until(lambda: any(event.kind == wire.DONE for event in heard.feed_events))
        outputs = [
            event.tool_output for event in heard.feed_events if event.kind == wire.TOOL_RESULT
        ]
        assert json.loads(outputs[0]) == {"Which tide?": "low"}


@pytest.mark.req("chat.ask")
async def test_an_answer_nobody_waits_for_is_said_to_be_late(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        assert await session.answer_question("gone-1", "yes")
        assert "nobody waits" in heard.notice_text


@pytest.mark.req("chat.ask.elsewhere")
async def test_a_question_answered_elsewhere_is_gone_here(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
        running.client() as other,
    ):
        saying = start_task(session.run_turn(make_question_script("Which tide?")))
        await heard.wait_until(lambda: len(session.questions) == 1)
        await other.reply_to_ask("crab", "low")
        await heard.wait_until(lambda: len(session.questions) == 0)
        await wait_with_timeout(saying)


# ── Following ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.follow")
async def test_runs_that_a_turn_set_off_are_followed_and_no_others(tmp_path: Path) -> None:
    inner = script_tool_calls(
        [("delegate", {"tasks": [{"agent": "twin", "message": "!say deep"}]})]
    )
    script = script_tool_calls([("delegate", {"tasks": [{"agent": "twin", "message": inner}]})])
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
        running.client() as other,
    ):
        await other.send("twin", "!say by the way", sender="bo")
        await wait_with_timeout(session.run_turn(script))
        await heard.wait_until(lambda: sum(e.kind == wire.DONE for e in heard.feed_events) == 2)
        said = "".join(e.content for e in heard.feed_events if e.kind == wire.TEXT_DELTA)
        assert "deep" in said
        assert "by the way" not in said
        own = heard.events[0].start.run_id
        parents = {e.run_id: e.parent.run_id for e in heard.feed_events if e.run_id != own}
        child, grandchild = sorted(parents, key=lambda run: parents[run] != own)
        assert parents == {child: own, grandchild: child}
        # Of the turn itself only what its stream does not have.
        kinds = {event.kind for event in heard.feed_events if event.run_id == own}
        assert kinds <= {wire.REFUSED, wire.TOOL_PROGRESS}


# ── A daemon that goes away ────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.cut.kept")
async def test_a_turn_whose_daemon_dies_is_kept_and_not_sent_again(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        await wait_with_timeout(session.run_turn("hello"))
        saying = start_task(session.run_turn("!say half an\n!hang"))
        await heard.wait_until(lambda: heard.text.endswith("half an"))
        await running.kill()
        await heard.wait_until(lambda: session.state == "away")
        await running.start()
        said = await wait_with_timeout(saying)
        assert said.end is not None
        assert said.unsent_text == ""
        assert heard.ends[-1] == said.end
        assert said.end.error.startswith("the daemon ended while the agent was answering")
        assert "the daemon went away" in heard.notice_text
        assert "the daemon is back" in heard.notice_text
        assert await load_messages(session.client) == [
            ("user", "hello"),
            ("assistant", "heard: hello"),
            ("user", "!say half an\n!hang"),
        ]
        assert running.model.request_count == 2
        assert (await wait_with_timeout(session.run_turn("go on"))).end is not None
        assert heard.text.endswith("heard: go on")


@pytest.mark.req("chat.cut.kept")
async def test_what_tools_had_done_before_the_daemon_died_is_told(tmp_path: Path) -> None:
    script = '!tool bash {"command": "echo waves"}\n!then\n!say so\n!hang'
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        saying = start_task(session.run_turn(script))
        await heard.wait_until(lambda: heard.text == "so")
        await running.kill()
        await running.start()
        await wait_with_timeout(saying)
        assert list_event_kinds(heard).count("tool_result") == 1  # as it came the first time
        assert heard.text == "so"
        assert [role for role, _ in await load_messages(session.client)] == [
            "user",
            "assistant",
            "tool",
        ]


@pytest.mark.req("chat.cut.kept")
async def test_a_message_that_waited_in_line_is_kept_and_not_sent_again(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
        running.client() as other,
    ):
        theirs = start_task(other.send("crab", "!hang"))
        await running.model.until_asked()
        saying = start_task(session.run_turn("me too"))
        await heard.wait_until(lambda: bool(heard.events))
        await running.kill()
        await asyncio.wait([theirs])
        theirs.exception()
        await running.start()
        said = await wait_with_timeout(saying)
        assert said.unsent_text == ""
        assert said.end is not None
        assert "the daemon ended" in said.end.error
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
    """A daemon that keeps nothing and dies of every turn, and its next of kin."""
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
async def test_a_message_that_takes_daemons_down_is_sent_three_times_and_no_more(
    home: Path, features: tuple[str, ...], times: int
) -> None:
    """And once to a daemon that knows no keys."""
    (home / "run").mkdir(mode=0o700, parents=True)
    is_ready = asyncio.Event()
    serving = start_task(serve_again_and_again(home, is_ready, *features))
    try:
        await wait_with_timeout(is_ready.wait())
        async with open_session(home, start=False) as (session, heard):
            said = await wait_with_timeout(session.run_turn("boom "))
            assert (said.end, said.unsent_text) == (None, "boom ")
            assert UNCONFIRMED_NOTICE in heard.notice_text
            assert (home / "run" / "asked").read_text() == "boom " * times
    finally:
        serving.cancel()
        await asyncio.wait([serving])


@pytest.mark.req("chat.cut.steers")
async def test_steering_that_died_with_the_daemon_comes_back(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        saying = start_task(session.run_turn("!say so\n!hang"))
        await heard.wait_until(lambda: heard.text == "so")
        assert await session.steer("and the moon?")
        await running.kill()
        assert await session.steer("and the sun?")
        await running.start()
        said = await wait_with_timeout(saying)
        # The first was acknowledged, so it is in the log; the second found no daemon.
        assert said.unsent_text == "and the sun?"
        assert [text for role, text in await load_messages(session.client) if role == "user"] == [
            "!say so\n!hang",
            "and the moon?",
        ]


@pytest.mark.req("chat.cut.starts")
async def test_a_daemon_that_died_is_started_again_by_the_chat(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        before = get_daemon_pid(running.home)
        saying = start_task(session.run_turn("!say half an\n!hang"))
        await heard.wait_until(lambda: heard.text == "half an")
        await running.kill()
        said = await wait_with_timeout(saying)
        assert said.end is not None
        assert said.end.error
        assert get_daemon_pid(running.home) not in (before, 0)
        assert "started crabtalkd" in heard.notice_text
        assert (await wait_with_timeout(session.run_turn("still there?"))).end is not None


@pytest.mark.req("chat.cut.no_start")
async def test_without_leave_to_start_one_it_waits_and_esc_gives_the_words_back(
    tmp_path: Path,
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home, start=False) as (session, heard),
    ):
        await running.kill()
        await heard.wait_until(lambda: session.state == "away")
        saying = start_task(session.run_turn("anybody?"))
        await heard.wait_until(lambda: "start one with" in heard.notice_text)
        await session.stop()
        said = await wait_with_timeout(saying)
        assert (said.end, said.unsent_text) == (None, "anybody?")
        await running.start()
        await wait_until_ready(heard, session)
        assert (await wait_with_timeout(session.run_turn("hello"))).end is not None
        assert [text for _, text in await load_messages(session.client)] == [
            "hello",
            "heard: hello",
        ]


@pytest.mark.req("chat.cut.stopped")
async def test_a_daemon_that_was_stopped_is_left_alone_until_something_is_said(
    tmp_path: Path,
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        await stop_daemon(running)
        await heard.wait_until(lambda: "what you say next starts it" in heard.notice_text)
        assert get_daemon_pid(running.home) == 0
        assert (await wait_with_timeout(session.run_turn("hello"))).end is not None
        assert get_daemon_pid(running.home) != 0


async def stop_daemon(running: KillableDaemon) -> None:
    """In good order."""
    process = running._process
    assert process is not None
    process.terminate()
    async with asyncio.timeout(PATIENCE):
        await process.wait()


@pytest.mark.req("chat.follow.again")
async def test_questions_and_the_feed_survive_a_restart(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        saying = start_task(session.run_turn(make_question_script("Which tide?")))
        await heard.wait_until(lambda: len(session.questions) == 1)
        await running.kill()
        await running.start()
        await wait_with_timeout(saying)
        assert len(session.questions) == 0
        async with running.client() as other:
            theirs = start_task(other.send("crab", make_question_script("And now?")))
            await heard.wait_until(lambda: len(session.questions) == 1)
            (question,) = session.questions
            assert await session.answer_question(question.ask_id, "high")
            await wait_with_timeout(theirs)


@pytest.mark.req("chat.cut.kept")
async def test_a_turn_that_a_stopping_daemon_ends_is_kept_too(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        await restart_with_limit(running, heard, session, "drain_timeout = 0.1")
        saying = start_task(session.run_turn("!say half an\n!hang"))
        await heard.wait_until(lambda: heard.text == "half an")
        await stop_daemon(running)
        await running.start()
        said = await wait_with_timeout(saying)
        assert said.end is not None
        assert said.unsent_text == ""
        assert heard.text == "half an"
        assert [text for role, text in await load_messages(session.client) if role == "user"] == [
            "!say half an\n!hang"
        ]


@pytest.mark.req("chat.refused")
async def test_a_daemon_that_is_full_gives_the_words_back(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
        running.client() as other,
    ):
        await restart_with_limit(running, heard, session, "runs = 1")
        theirs = start_task(other.send("twin", "!wait"))
        await running.model.until_waiting()
        said = await wait_with_timeout(session.run_turn("hello"))
        assert (said.end, said.unsent_text) == (None, "hello")
        assert "try again later" in heard.notice_text
        running.model.release()
        await wait_with_timeout(theirs)
        assert (await wait_with_timeout(session.run_turn("hello"))).end is not None


async def restart_with_limit(
    running: KillableDaemon, heard: RecordingListener, session: ChatSession, limit: str
) -> None:
    """The daemon again, with another limit."""
    await running.kill()
    with (running.home / "config.toml").open("a") as file:
        file.write(f"[limits]\n{limit}\n")
    await heard.wait_until(lambda: session.state == "away")
    await running.start()
    await wait_until_ready(heard, session)


@pytest.mark.req("chat.cut.random")
@pytest.mark.slow
async def test_nothing_is_lost_or_doubled_however_often_the_daemon_dies(tmp_path: Path) -> None:
    """Killed at moments spread over a turn, from before it is kept until after its end."""
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        for number in range(40):
            text = f"message {number}\n!chunks 20 200"
            saying = start_task(session.run_turn(text))
            await asyncio.sleep(number * 0.003)
            await running.kill()
            await running.start()
            said = await wait_with_timeout(saying)
            found = [said for role, said in await load_all_messages(session) if role == "user"]
            count = found.count(text)
            assert count == (0 if said.unsent_text else 1), heard.notice_text


async def load_all_messages(session: ChatSession) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in await session.load_history(1000)]


# ── Opening ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.open.starts")
async def test_opening_starts_a_daemon_and_says_one_line(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as running:
        await running.kill()
        async with open_session(running.home) as (session, heard):
            await heard.wait_until(lambda: bool(heard.notices))
            ((sentence, kind),) = heard.notices
            assert sentence.startswith("started crabtalkd in ")
            assert kind == "info"
            assert (await wait_with_timeout(session.run_turn("hello"))).end is not None


@pytest.mark.req("chat.open.starts")
async def test_opening_without_a_daemon_and_without_leave_to_start_one_is_a_sentence(
    tmp_path: Path,
) -> None:
    with pytest.raises(CommandError, match="start one with"):
        async with open_session(tmp_path / "home", start=False):
            pass


@pytest.mark.req("chat.open.agent")
async def test_the_agent_is_the_one_named_else_crab_else_the_first(tmp_path: Path) -> None:
    agents = {"owl": 'prompt = "You are owl."\n', "twin": 'prompt = "You are twin."\n'}
    async with run_scripted_daemon(tmp_path, agents=agents) as running:
        async with open_session(running.home) as (session, _):
            assert session.agent == "owl"
        async with open_session(running.home, agent="twin") as (session, _):
            assert session.agent == "twin"
        with pytest.raises(CommandError, match="no agent is called 'crab'; there are: owl, twin"):
            async with open_session(running.home, agent="crab"):
                pass


@pytest.mark.req("chat.open.history")
async def test_a_chat_opens_with_the_last_of_what_was_said(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as running, open_session(running.home) as (session, _):
        assert await session.load_history() == []
        for word in ("one", "two", "three"):
            await wait_with_timeout(session.run_turn(word))
        texts = [message.content for message in await session.load_history(3)]
        assert texts == ["heard: two", "three", "heard: three"]


@pytest.mark.req("chat.history.failed")
async def test_the_history_says_what_failed_and_what_was_typed(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as running, open_session(running.home) as (session, _):
        skill = running.home / "skills" / "tides"
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
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home, sender="bo") as (session, _),
    ):
        await wait_with_timeout(session.run_turn("hello"))
        assert len(await session.load_history()) == 2
        async with connect(home=running.home) as client:
            assert await load_messages(client, sender="bo") == [
                ("user", "hello"),
                ("assistant", "heard: hello"),
            ]
            assert [c.sender for c in (await client.list_conversations()).conversations] == ["bo"]


@pytest.mark.req("chat.catalogue")
async def test_names_are_there_for_completion_and_follow_changes(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as running,
        open_session(running.home) as (session, heard),
    ):
        assert session.catalogue.has_agent("twin")
        await heard.wait_until(lambda: session.model == "scripted")
        await session.client.create_agent("owl", "You are owl.")
        await wait_with_timeout(session.run_turn("hello"))
        await heard.wait_until(lambda: session.catalogue.has_agent("owl"))
