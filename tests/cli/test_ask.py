"""crabtalk ask: the message, the output on stdout and stderr, and the exit status."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from crabtalk.cli.busy_notice import DELAY
from crabtalk.protocol import Server, wire
from crabtalk.runtime import ToolDispatch
from tests.cli.canned_daemon import serve_daemon
from tests.cli.cli_process import (
    CRABTALK,
    INTERRUPT,
    WARM,
    run_at_terminal,
    run_crabtalk,
    strip_colours,
)
from tests.cli.timing import assert_quick
from tests.daemon.in_process_daemon import (
    CONFIG,
    PATIENCE,
    prepare_home,
    read_conversation,
    run_daemon,
    run_tool_calls,
    script_tool_calls,
)
from tests.daemon.test_process import spawn_daemon as process
from tests.forked_programs import PIPE
from tests.model_server import model_server

OPTIONS: list[dict[str, Any]] = [{"label": "Boil", "description": "hot"}, {"label": "Bake"}]
DINNER: dict[str, Any] = {"question": "How shall I cook it?", "header": "Dinner"}
MENU = {"questions": [{**DINNER, "options": OPTIONS}]}
NULL = subprocess.DEVNULL
SEVERAL = {"questions": [{**DINNER, "options": OPTIONS, "multi_select": True}]}


def parse_json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def return_nothing(call: ToolDispatch) -> str:
    return ""


# ── The message ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "typed", "content"),
    [
        (("high", "water"), b"", "high water"),
        ((), b"high water\n", "high water"),
        (("-",), b"high water\n", "high water"),
        (("Is it so:",), b"high\nwater\n", "Is it so:\n\nhigh\nwater"),
        (("-", "Is it so:"), b"high", "Is it so:\n\nhigh"),
    ],
)
@pytest.mark.req("cli.ask.message")
async def test_a_message_is_built_from_words_and_standard_input(
    tmp_path: Path, words: tuple[str, ...], typed: bytes, content: str
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        outcome = await run_crabtalk("ask", "--home", daemon.home, *words, typed=typed)
        assert outcome.output == f"heard: {content}\n"
        assert (await read_conversation(client, "crab"))[0] == ("user", content)


@pytest.mark.req("cli.ask.message")
async def test_files_are_added_with_name_and_fence(tmp_path: Path) -> None:
    plain, fenced = tmp_path / "tide.txt", tmp_path / "page.md"
    plain.write_text("High at noon.")
    fenced.write_text("````\ncode\n````\n")
    async with run_daemon(tmp_path) as daemon:
        where = ("--home", daemon.home)
        outcome = await run_crabtalk(
            "ask", *where, "Why?", "-f", plain, "--file", fenced, typed=b"Hm."
        )
    assert outcome.output == (
        "heard: Why?\n\nHm.\n\n"
        f"{plain}:\n```\nHigh at noon.\n```\n\n"
        f"{fenced}:\n`````\n````\ncode\n````\n`````\n"
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff\xfe", "is not text in UTF-8; "),
        (b"x" * (9 << 20), "more than the 8 MiB"),
        ("é".encode() * (5 << 20), "more than the 8 MiB"),
        (None, "No such file or directory; "),
    ],
)
@pytest.mark.req("cli.ask.message")
async def test_a_file_that_cannot_be_sent_gives_one_error(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    outcome = await run_crabtalk("ask", "--no-start", "Why?", "-f", file)
    assert sentence in outcome.error


@pytest.mark.req("cli.ask.message")
async def test_words_that_are_not_utf8_give_one_error(tmp_path: Path) -> None:
    no_text = os.fsdecode(b"\xff")
    async with run_daemon(tmp_path) as daemon:
        for words in (("ask", no_text), ("ask", "--agent", no_text, "hello"), ("search", no_text)):
            outcome = await run_crabtalk(*words, "--home", daemon.home)
            assert outcome.error == (
                "what was typed is not text in UTF-8; leave out what is not"
            ), words


@pytest.mark.req("cli.ask.message")
async def test_many_files_together_are_limited_too(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_bytes(b"x" * (3 << 20))
    files: list[str | Path] = ["-f", file] * 3
    outcome = await run_crabtalk("ask", "--no-start", *files)
    assert "more than the 8 MiB" in outcome.error


@pytest.mark.parametrize("typed", [b"", b"\n \n"])
@pytest.mark.req("cli.ask.message")
async def test_an_empty_message_gives_one_error(typed: bytes) -> None:
    outcome = await run_crabtalk("ask", typed=typed)
    assert outcome.error.startswith("there is nothing to ask; ")


@pytest.mark.req("cli.ask.message")
async def test_at_a_terminal_an_empty_message_is_a_usage_error() -> None:
    code, screen = await run_at_terminal("ask")
    assert code == 2
    assert "say something: " in screen


@pytest.mark.parametrize(("words", "status"), [("ask hi", 0), ("ask", 1), ("", 1)])
@pytest.mark.req("cli.ask.message")
async def test_a_closed_standard_input_counts_as_empty(home: Path, words: str, status: int) -> None:
    async with serve_daemon(RecordingStreamDaemon(), home):
        process = await asyncio.create_subprocess_shell(
            f"{CRABTALK} --home {home} {words} <&-", stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(PATIENCE):
            _, err = await process.communicate()
    assert process.returncode == status
    assert (b"there is nothing to ask" in err) is bool(status)


@pytest.mark.req("cli.ask.message")
async def test_waiting_for_standard_input_prints_a_hint(home: Path) -> None:
    process = WARM.start("ask", "Why?", "--no-start", stdin=PIPE, stderr=PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        line = await process.stderr.readline()
        assert line.startswith(b"reading standard input to its end; ")
        process.stdin.close()
        await process.wait()
    assert process.returncode == 1  # no daemon


@pytest.mark.req("cli.ask.options")
async def test_the_options_reach_the_agent(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        where = ("--home", daemon.home)
        (there := tmp_path / "there").mkdir()
        words = ("--agent", "twin", "--sender", "bo", "--cwd", there, "--tool-choice", "none")
        assert (await run_crabtalk("ask", *where, *words, "!say hi")).output == "hi\n"
        assert (
            await run_crabtalk("ask", *where, *words, "--guest", "crab", "!say ho")
        ).output == "ho\n"
        page = await client.list_messages("twin", sender="bo")
        assert [(each.role, each.agent) for each in page.messages] == [
            ("user", ""),
            ("assistant", ""),
            ("user", ""),
            ("assistant", "crab"),
        ]


@pytest.mark.req("cli.ask.options")
async def test_options_before_the_command_apply_to_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        before = ("--home", daemon.home, "--agent", "twin", "--sender", "bo")
        assert (await run_crabtalk(*before, "ask", "!say hi")).output == "hi\n"
        assert len(await read_conversation(client, "twin", "bo")) == 2


@pytest.mark.req("cli.ask.options")
async def test_the_defaults_are_those_of_the_chat(home: Path) -> None:
    async with serve_daemon(peer := RecordingStreamDaemon(), home):
        (home / "config").mkdir()
        (home / "config" / "tui.toml").write_text('agent = "twin"\nsender = "bo"\n')
        assert (await run_crabtalk("ask", "--home", home, "hi")).output == ""
        assert (await run_crabtalk("ask", "--home", home, "--agent", "owl", "hi")).output == ""
        (home / "config" / "tui.toml").write_text("agent = ")
        outcome = await run_crabtalk("ask", "--home", home, "hi")
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (0, "", 1)
        assert "tui.toml is not used: " in outcome.err
    talked = [(request.agent, request.sender) for request in peer.requests]
    assert talked == [("twin", "bo"), ("owl", "bo"), ("crab", "")]


@pytest.mark.req("cli.ask.options")
def test_the_home_is_the_same_without_the_client(tmp_path: Path) -> None:
    code = (
        "from crabtalk.transport import default_home\n"
        "from crabtalk.cli.socket_stream import resolve_home\n"
        "assert resolve_home(None) == default_home(), resolve_home(None)\n"
    )
    for named in ("", "~/shells", "here", str(tmp_path)):
        env = {**os.environ, "CRABTALK_HOME": named, "HOME": str(tmp_path)}
        subprocess.run([sys.executable, "-c", code], check=True, env=env)


@pytest.mark.req("cli.ask.options")
async def test_an_agent_works_in_the_current_directory(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        (tmp_path / "there").mkdir()
        script = script_tool_calls([("bash", {"command": "pwd"})])
        process = WARM.start(
            *("ask", "--json", "--home", daemon.home, script),
            stdin=NULL,
            stdout=PIPE,
            cwd=tmp_path / "there",
        )
        out, _ = await process.communicate()
    (result,) = (each for each in parse_json_lines(out.decode()) if each["event"] == "tool_result")
    assert f"{tmp_path / 'there'}\\n" in result["output"]


class RecordingStreamDaemon(Server):
    """Ends every turn at once, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[wire.StreamMsg] = []

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        self.requests.append(request)
        yield wire.StreamEvent(end=wire.StreamEnd(agent=request.agent))


@pytest.mark.req("cli.ask.options")
async def test_options_not_given_are_left_to_the_daemon(home: Path) -> None:
    async with serve_daemon(peer := RecordingStreamDaemon(), home):
        assert (await run_crabtalk("ask", "--home", home, "hi")).output == ""
    outcome = wire.StreamMsg(agent="crab", content="hi", cwd=str(Path.cwd()), unattended=True)
    assert peer.requests == [outcome]


@pytest.mark.req("cli.ask.options")
async def test_a_home_too_deep_for_a_socket_address_is_reached(tmp_path: Path) -> None:
    home = tmp_path.joinpath(*["deep" * 10] * 4)
    async with serve_daemon(peer := RecordingStreamDaemon(), home):
        assert (await run_crabtalk("ask", "--home", home, "hi")).output == ""
    assert len(peer.requests) == 1


@pytest.mark.req("cli.ask.pipe")
async def test_without_a_command_piped_input_is_answered(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        where = ("--home", daemon.home, "--sender", "bo", "--agent", "twin")
        assert (await run_crabtalk(*where, typed=b"!say hello\n")).output == "hello\n"
        assert len(await read_conversation(client, "twin", "bo")) == 2
        assert (await run_crabtalk(*where)).error.startswith("there is nothing to ask; ")


# ── The output ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.ask.stream")
async def test_the_answer_is_printed_as_it_comes(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        process = WARM.start(
            *("ask", "--home", daemon.home, "!say high\n!wait\n!say water"),
            stdin=NULL,
            stdout=PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.read(4) == b"high"
            await daemon.model.until_waiting()
            daemon.model.release()
            rest = await process.stdout.read()
            assert (rest.strip(), await process.wait()) == (b"water", 0)


@pytest.mark.req("cli.ask.stream")
async def test_actions_of_the_agent_go_to_stderr(tmp_path: Path) -> None:
    script = script_tool_calls([("bash", {"command": "echo hi"}), ("read", {"path": "/no/such"})])
    async with run_daemon(tmp_path, hooks={}) as daemon:
        where = ("ask", "--home", daemon.home)
        outcome = await run_crabtalk(*where, f"!think well then\n!say so\n{script}")
        assert (outcome.code, outcome.out) == (0, "so\ndone\n")
        thinks, bash, read, failed = outcome.err.splitlines()
        assert (thinks, bash, read) == ("thinks: well then", "bash: echo hi", "read: /no/such")
        assert failed.startswith("read failed: ")
        outcome = await run_crabtalk(*where, "--quiet", script)
        assert outcome.output == "done\n"


@pytest.mark.req("cli.ask.json")
async def test_json_output_is_one_object_per_event_up_to_the_end(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        script = script_tool_calls([("bash", {"command": "echo hi"})])
        outcome = await run_crabtalk("ask", "--json", "--home", daemon.home, script)
    events = parse_json_lines(outcome.output)
    assert [each["event"] for each in events] == [
        *("start", "tool_start", "tool_start", "tool_result", "tools_complete", "context_usage"),
        *("text_start", "chunk", "text_end", "context_usage", "end"),
    ]
    assert events[0]["agent"] == "crab"
    (call,) = events[2]["calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("bash", {"command": "echo hi"})
    result = events[3]
    assert (result["call_id"], result["is_error"]) == (call["id"], False)
    assert isinstance(result["duration_ms"], int)
    end = events[-1]
    assert (end["error"], end["stop_reason"]) == ("", "STOP_REASON_COMPLETED")
    assert end["usage"]["completion_tokens"] > 0


@pytest.mark.req("cli.terminal.safe")
async def test_an_answer_is_escaped_at_a_terminal_and_unchanged_in_a_pipe(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon:
        words = ("ask", "--home", daemon.home, "!say a\x1b[2J\x07 \u202e海")
        assert (await run_crabtalk(*words)).output == "a\x1b[2J\x07 \u202e海\n"
        code, screen = await run_at_terminal(*words)
        assert (code, screen) == (0, "a\\x1b[2J\\x07 \\u202e海\n")


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.req("cli.colour")
async def test_actions_are_dim_if_there_is_colour(tmp_path: Path, env: dict[str, str]) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        script = script_tool_calls([("bash", {"command": "echo hi"})])
        code, screen = await run_at_terminal("ask", "--home", daemon.home, script, **env)
    assert code == 0
    assert strip_colours(screen) == "bash: echo hi\ndone\n"
    assert ("\x1b[2mbash" in screen) is (not env)
    assert ("\x1b" in screen) is (not env)


@pytest.mark.req("cli.pipes")
async def test_a_closed_output_pipe_ends_the_turn_without_an_error(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon:
        process = await asyncio.create_subprocess_shell(
            f"{CRABTALK} ask --home {daemon.home} '!chunks 100000 2000' < /dev/null | head -c 5; "
            "exit ${PIPESTATUS[0]}",
            stdout=PIPE,
            stderr=PIPE,
            executable="/bin/bash",
        )
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
            await daemon.model.until_hung_up()
    assert (process.returncode, len(out), err) == (0, 5, b"")


# ── The exit status ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.ask.end")
async def test_a_failed_turn_gives_one_error_and_status_1(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        where = ("ask", "--home", daemon.home)
        outcome = await run_crabtalk(*where, "!status 500 the model is tired")
        assert "the model is tired" in outcome.error
        outcome = await run_crabtalk(*where, "--agent", "owl", "x")
        assert outcome.error == "no agent is called 'owl'; there are: crab, twin"
        assert (await run_crabtalk(*where, "!nothing")).error.startswith("the model said nothing; ")
        outcome = await run_crabtalk(*where, "!status 400 it exceeds the maximum context length")
        assert outcome.code == 1
        assert outcome.err.splitlines()[1].endswith("/new in it, begins afresh")
        outcome = await run_crabtalk(*where, "--json", "!status 500 the model is tired")
        assert outcome.code == 1
        assert "the model is tired" in parse_json_lines(outcome.out)[-1]["error"]


@pytest.mark.req("cli.ask.end")
async def test_an_unknown_tool_gives_an_error_with_the_known_tools(tmp_path: Path) -> None:
    async with run_daemon(
        tmp_path, tools={"look": return_nothing, "wait": return_nothing}
    ) as daemon:
        outcome = await run_crabtalk("ask", "--home", daemon.home, "--tool-choice", "nosuch", "x")
        assert outcome.error == "crab has no tool called 'nosuch' to choose; it has look, wait"


@pytest.mark.req("cli.ask.end")
async def test_a_turn_that_uses_up_its_steps_fails(tmp_path: Path) -> None:
    agents = {"crab": 'prompt = "You are crab."\nmax_iterations = 1\n'}
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon:
        script = script_tool_calls([("bash", {"command": "true"})], [("bash", {"command": "true"})])
        outcome = await run_crabtalk("ask", "-q", "--home", daemon.home, script)
        assert "used up its steps" in outcome.error


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.req("cli.ask.cancel")
async def test_ctrl_c_stops_the_turn(tmp_path: Path, options: tuple[str, ...]) -> None:
    async with run_daemon(tmp_path) as daemon:
        words = ("ask", *options, "--home", str(daemon.home), "!say so far\n!hang")
        process = WARM.start(
            *words,
            stdin=NULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            await process.stdout.readuntil(b"far")
            process.send_signal(signal.SIGINT)
            rest, err = await process.communicate()
            await daemon.model.until_hung_up()
        assert (process.returncode, err) == (130, b"")
        assert rest.endswith(b"\n")  # further output begins on a new line


@pytest.mark.req("cli.ask.cancel")
async def test_a_turn_stopped_by_another_client_exits_with_130(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        ask_task = asyncio.ensure_future(run_crabtalk("ask", "--home", daemon.home, "!hang"))
        await daemon.model.until_asked()
        outcome = await run_crabtalk("kill", "crab", "--home", daemon.home)
        assert (outcome.code, outcome.out) == (0, "")
        outcome = await ask_task
        assert (outcome.code, outcome.out) == (130, "")
        assert outcome.err.startswith("crabtalk: the turn was stopped; ")


@pytest.mark.req("cli.ask.waiting")
async def test_a_turn_waiting_for_another_says_so_and_how_to_stop_that(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        where = ("--home", daemon.home)
        first = client.stream("crab", "!hang", sender="bo")
        await anext(first)
        await daemon.model.until_asked()
        words = ("ask", "--sender", "bo", *where, "!say hi")
        code, screen = await run_at_terminal(*words, typed=INTERRUPT, when="stops what it does")
        assert code == 130
        assert f"`crabtalk kill crab --sender bo --home {daemon.home}` stops" in screen
        await first.aclose()


@pytest.mark.req("cli.ask.waiting")
async def test_a_slow_model_gives_no_busy_notice(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        words = ("ask", "--home", daemon.home, "!wait\n!say hi")
        ask_task = asyncio.ensure_future(run_at_terminal(*words))
        await daemon.model.until_waiting()
        done, _ = await asyncio.wait([ask_task], timeout=DELAY + 0.5)
        assert not done
        daemon.model.release()
        assert await ask_task == (0, "hi\n")


@pytest.mark.req("cli.ask.end")
async def test_a_daemon_that_goes_away_gives_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        ask_task = asyncio.ensure_future(run_crabtalk("ask", "--home", daemon.home, "!hang"))
        await daemon.model.until_asked()
        await daemon.listener.close()
        outcome = await ask_task
    show = f"`crabtalk conversations show crab --home {daemon.home}`"
    assert outcome.error == (
        f"the daemon is shutting down; {show} tells whether what was said is kept; "
        "look before you say it again"
    )


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGTERM, "the daemon is shutting down"),
        (signal.SIGKILL, "the daemon went away (the daemon closed the connection)"),
    ],
)
@pytest.mark.req("cli.ask.end")
async def test_after_a_lost_daemon_the_message_of_a_begun_turn_is_stored(
    home: Path, number: signal.Signals, reason: str
) -> None:
    config = f"{CONFIG}[limits]\ndrain_timeout = 1\n"
    async with model_server() as model:
        prepare_home(
            home, {"crab": 'prompt = "You are crab."\n'}, config.replace("{url}", model.url)
        )
        async with process(home, "--tcp", "off") as daemon:
            ask_task = WARM.start(
                *("ask", "--home", home, "!say so far\n!hang"), stdin=NULL, stdout=PIPE, stderr=PIPE
            )
            assert ask_task.stdout is not None
            async with asyncio.timeout(PATIENCE):
                await ask_task.stdout.readuntil(b"far")
                daemon.process.send_signal(number)
                _, err = await ask_task.communicate()
    assert ask_task.returncode == 1
    assert err.decode() == (
        f"crabtalk: {reason}; what was said is kept; ask it to go on when the daemon is back\n"
    )


class FailingStreamDaemon(Server):
    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        yield wire.StreamEvent()  # what a newer daemon may send
        yield wire.StreamEvent(start=wire.StreamStart(agent="crab"))
        raise RuntimeError("no")


@pytest.mark.req("cli.ask.end")
async def test_a_stream_error_gives_one_error_and_unknown_events_are_ignored(
    home: Path,
) -> None:
    async with serve_daemon(FailingStreamDaemon(), home):
        outcome = await run_crabtalk("ask", "--home", home, "hi")
    assert outcome.error
    assert outcome.out == ""


# ── Questions ──────────────────────────────────────────────────────────────────────────────────


def select_tool_results(history: list[tuple[str, str]]) -> list[str]:
    return [text for role, text in history if role == "tool"]


@pytest.mark.parametrize(
    ("menu", "typed", "answer"),
    [
        (MENU, "2\n", "Bake"),
        (MENU, "raw, please\n", "raw, please"),
        (MENU, "7\n1\n", "Boil"),
        (SEVERAL, "1, 2\n", "Boil, Bake"),
        ({"questions": [DINNER]}, "2\n", "2"),
    ],
)
@pytest.mark.req("cli.ask.question")
async def test_a_question_is_answered_at_the_terminal(
    tmp_path: Path, menu: dict[str, Any], typed: str, answer: str
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        words = ("ask", "-q", "--home", daemon.home, script_tool_calls([("ask_user", menu)]))
        code, screen = await run_at_terminal(*words, typed=typed, when="cook it?")
        assert code == 0, screen
        assert "crab asks: How shall I cook it?" in screen
        assert ("  1  Boil  hot" in screen) is ("options" in menu["questions"][0])
        assert screen.endswith("done\n")
        (result,) = select_tool_results(await read_conversation(client, "crab"))
        assert json.loads(result) == {"How shall I cook it?": answer}


@pytest.mark.req("cli.ask.question")
async def test_a_call_is_approved_at_the_terminal(tmp_path: Path) -> None:
    agents = {"crab": 'prompt = "You are crab."\napprove = ["bash"]\n'}
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        script = script_tool_calls([("bash", {"command": "echo $((40 + 2))"})])
        words = ("ask", "--home", daemon.home, script)
        code, screen = await run_at_terminal(*words, typed="1\n", when="crab asks to use bash")
        assert code == 0, screen
        (result,) = select_tool_results(await read_conversation(client, "crab"))
        assert "42" in result


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.req("cli.ask.question.nobody")
async def test_a_question_without_a_terminal_stops_the_turn(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        script = script_tool_calls([("ask_user", MENU)])
        outcome = await run_crabtalk("ask", "-q", *options, "--home", daemon.home, script)
        assert "How shall I cook it?" in outcome.error
        assert outcome.error.endswith("the turn was stopped, ask again at a terminal")
        if options:
            *_, asked, end = parse_json_lines(outcome.out)
            assert (asked["event"], end["event"]) == ("ask_user", "end")
            assert end["stop_reason"] == "STOP_REASON_CANCELLED"
        async with daemon.client() as client:
            stats = await client.get_stats()
            assert stats.runs == 0


@pytest.mark.req("cli.ask.question.nobody")
async def test_the_question_of_an_earlier_turn_is_not_answered_here(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        earlier = asyncio.ensure_future(run_tool_calls(client, "crab", [("ask_user", MENU)]))
        feed = client.subscribe_events(all_kinds=True)
        async with asyncio.timeout(PATIENCE):
            async for event in feed:
                if event.kind == wire.ASK_USER:
                    break
        await feed.aclose()
        process = WARM.start(
            *("ask", "--home", daemon.home, "!say hi"),
            stdin=NULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            line = await process.stderr.readline()
            assert line.startswith(b"an earlier turn waits for an answer, and this one for it: ")
            await client.reply_to_ask("crab", "Boil")
            (result,) = await earlier
            out, _ = await process.communicate()
        assert (result.output, out, process.returncode) == ("Boil", b"hi\n", 0)


# ── Speed ──────────────────────────────────────────────────────────────────────────────────────


def measure_time_to_request(home: Path) -> float:
    """Return seconds from the start of the process to the first byte of its request."""
    path = home / "run" / "crabtalk.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(PATIENCE)
        start = time.perf_counter()
        words = [str(CRABTALK), "ask", "--home", str(home), "hello"]
        with subprocess.Popen(words, stdin=NULL, stdout=NULL, stderr=NULL):
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4)
                seconds = time.perf_counter() - start
    path.unlink()
    return seconds


@pytest.mark.req("cli.ask.quick")
@pytest.mark.clock
def test_a_request_is_sent_within_150_ms(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert_quick(lambda: measure_time_to_request(tmp_path), 0.15)


@pytest.mark.req("cli.ask.quick")
def test_with_a_running_daemon_the_client_is_not_loaded(tmp_path: Path) -> None:
    """Loading the client would double the time."""
    (tmp_path / "run").mkdir()
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from crabtalk.cli import ask, socket_stream\n"
        "from crabtalk.protocol import wire\n"
        f"line = socket_stream.connect_socket(Path({str(tmp_path)!r}))\n"
        "events = socket_stream.stream_turn(line, wire.StreamMsg(agent='crab', content='hello'))\n"
        "try:\n"
        "    next(events)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
        "print(*sys.modules)\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "run" / "crabtalk.sock"))
        listener.listen()
        listener.settimeout(PATIENCE)
        words = [sys.executable, "-c", code]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4)
            out, _ = process.communicate()
    failed, loaded = out.splitlines()
    assert failed == "ConnectionClosedError"
    assert not set(loaded.split()) & {"crabtalk.client", "crabtalk.transport"}
