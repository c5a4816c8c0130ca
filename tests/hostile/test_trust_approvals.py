"""Approvals and modes under attack: what a question shows, and which answers count for what."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from crabtalk.client import Client
from crabtalk.client.events import Event
from crabtalk.policy import PermissionRequest, parse_rule
from crabtalk.policy.rules import find_covering_rules, find_matching_rule
from crabtalk.protocol import get_sender_folder, wire
from crabtalk.runtime import Run, ToolAccess, ToolDispatch
from tests.daemon.in_process_daemon import (
    FeedFollower,
    FunctionTools,
    InProcessDaemon,
    ToolCalls,
    collect_events,
    expect_error_code,
    follow_feed,
    read_conversation,
    run_daemon,
    run_tool_calls,
    script_tool_calls,
    select_tool_results,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)

ASKING = {
    "crab": 'prompt = "p"\nmode = "ask"\n',
}
STRANGER = "tg:666"


@asynccontextmanager
async def serve_asking_agent(path: Path) -> AsyncIterator[tuple[InProcessDaemon, Client]]:
    async with run_daemon(path, hooks={}, agents=ASKING) as daemon, daemon.client() as client:
        yield daemon, client


async def start_question(
    client: Client, *calls: tuple[str, dict[str, Any]], agent: str = "crab", **options: Any
) -> tuple[wire.AskUserEvent, AsyncGenerator[Event, None]]:
    """The question about calls of one step, and the stream that waits for an answer."""
    stream = client.stream(agent, script_tool_calls(calls), **options)
    return await wait_for_event(stream, wire.AskUserEvent), stream


async def answer_question(
    client: Client, stream: AsyncGenerator[Event, None], reply: str, agent: str = "crab"
) -> list[wire.ToolResultEvent]:
    await wait_with_timeout(client.reply_to_ask(agent, reply))
    return select_tool_results(await collect_events(stream))


def read_receipts(daemon: InProcessDaemon) -> list[dict[str, Any]]:
    lines = [
        json.loads(line) for path in daemon.log_paths for line in path.read_text().splitlines()
    ]
    return [line["data"] for line in lines if line.get("event") == "approval"]


# ── Questions ───────────────────────────────────────────────────────────────────────────────────

HIDDEN_COMMANDS = {
    "spaces": "echo hello" + " " * 50_000 + "; touch hidden-end",
    "newlines": "echo hello" + "\n" * 50_000 + "touch hidden-end",
    "comment": "echo hello # " + "x" * 100_000 + "\ntouch hidden-end",
    "words": "echo " + " ".join(f"w{number}" for number in range(18_000)) + " && touch hidden-end",
}


@pytest.mark.req("trust.approvals.whole")
@pytest.mark.parametrize("command", HIDDEN_COMMANDS.values(), ids=HIDDEN_COMMANDS)
async def test_the_question_shows_every_byte_of_a_long_command(
    tmp_path: Path, command: str
) -> None:
    async with serve_asking_agent(tmp_path) as (daemon, client):
        ask, stream = await start_question(
            client, ("bash", {"command": command}), cwd=str(tmp_path)
        )
        (question,) = ask.questions
        assert command in question.question
        assert question.approval.call == command
        assert "call_" not in question.question
        (result,) = await answer_question(client, stream, "Deny")
        assert result.output.startswith("permission denied: the user said no")
        assert not (tmp_path / "hidden-end").exists()
        assert [receipt["decision"] for receipt in read_receipts(daemon)] == ["denied"]


@pytest.mark.req("trust.approvals.whole")
async def test_the_question_shows_environment_directory_and_the_end_of_an_edit(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "a place"
    directory.mkdir()
    (directory / "f").write_text("old")
    env = {"ONE": "x" * 3000 + "-end-of-one", "TWO": "y\nz"}
    edit = {"path": "f", "old_string": "old", "new_string": "new\n" * 30_000 + "end-of-edit"}
    make: dict[str, Any] = {"command": "make", "env": env, "timeout": 7}
    async with serve_asking_agent(tmp_path) as (_, client):
        ask, stream = await start_question(
            client, ("bash", make), ("edit", edit), cwd=str(directory)
        )
        shell, change = ask.questions
        for part in ("make", f"ONE={env['ONE']}", "TWO=y\nz", f"in {directory}", "timeout: 7"):
            assert part in shell.question
        assert dict(shell.approval.env) == env
        assert shell.approval.cwd == str(directory)
        assert shell.approval.always == "", "a rule cannot include the environment"
        assert change.question.count("+ new\n") == 30_000
        assert "+ end-of-edit" in change.question
        assert "- old" in change.question
        await answer_question(client, stream, "Deny")
        assert (directory / "f").read_text() == "old"


@pytest.mark.req("trust.approvals.visible")
async def test_the_question_escapes_invisible_characters(tmp_path: Path) -> None:
    signs = "\x1b[2K\r\x08\x07\u202e\u2066\u200b\u00a0\ufeff\u2028\U000e0041"
    env = {"A": "b\x1b[8m"}
    async with serve_asking_agent(tmp_path) as (_, client):
        ask, stream = await start_question(
            client, ("bash", {"command": f"echo {signs}", "env": env})
        )
        (question,) = ask.questions
        shown = str(question.question) + question.approval.call + str(dict(question.approval.env))
        assert not set(signs + "\x1b") & set(shown) - set("[2K")
        for sign in set(signs) - set("[2K"):
            assert f"\\u{{{ord(sign):x}}}" in question.question
        await answer_question(client, stream, "Deny")


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("trust.approvals.always")
async def test_always_stores_a_narrow_rule_that_survives_a_restart(tmp_path: Path) -> None:
    touch, other = "touch kept", "chmod 600 kept"
    directory = tmp_path / "place"
    directory.mkdir()
    async with serve_asking_agent(tmp_path) as (daemon, client):
        ask, stream = await start_question(client, ("bash", {"command": "git push origin main"}))
        assert "git push origin main" in ask.questions[0].approval.always
        assert "begin" not in ask.questions[0].approval.always
        await answer_question(client, stream, "Always")
        (receipt,) = read_receipts(daemon)
        assert receipt["rules"] == ["bash(git push origin main)"]
        assert receipt["decision"] == "always"
        _, stream = await start_question(client, ("bash", {"command": touch}), cwd=str(directory))
        await answer_question(client, stream, "Always")
        assert (directory / "kept").exists()
        model = daemon.model
        for command in (
            "git push origin other",
            "git push --force origin main",
            other,
            "touch a; id>b",
        ):
            ask, stream = await start_question(
                client, ("bash", {"command": command}), cwd=str(directory)
            )
            await answer_question(client, stream, "Deny")
        url = model.url
    config = (tmp_path / "home" / "config.toml").read_text()
    assert url in config
    async with serve_asking_agent(tmp_path) as (daemon, client):
        (tmp_path / "home" / "config.toml").write_text(config.replace(url, daemon.model.url))
        await client.reload()
        (directory / "kept").unlink()
        (result,) = await run_tool_calls(
            client, "crab", [("bash", {"command": touch})], cwd=str(directory)
        )
        assert not result.is_error, result.output
        assert (directory / "kept").exists()
        _, stream = await start_question(client, ("bash", {"command": other}), cwd=str(directory))
        await answer_question(client, stream, "Deny")
        # Another conversation of the same agent is asked again.
        _, stream = await start_question(client, ("bash", {"command": touch}), sender="user~b")
        await stream.aclose()


@pytest.mark.req("trust.approvals.bound")
async def test_a_plain_answer_allows_nothing_if_there_are_two_questions(tmp_path: Path) -> None:
    calls = [("bash", {"command": "touch one"}), ("bash", {"command": "touch two"})]
    async with serve_asking_agent(tmp_path) as (daemon, client):
        for word in ("Allow", "Always", "yes", '"Allow"', "true", '["Allow"]'):
            ask, stream = await start_question(client, *calls, cwd=str(tmp_path))
            assert len(ask.questions) == 2
            results = await answer_question(client, stream, word)
            assert [result.is_error for result in results] == [True, True]
        assert not (tmp_path / "one").exists()
        assert not (tmp_path / "two").exists()
        assert {receipt["decision"] for receipt in read_receipts(daemon)} == {"denied"}


@pytest.mark.req("trust.approvals.bound")
async def test_an_answer_in_json_counts_for_its_own_question_only(tmp_path: Path) -> None:
    calls = [("bash", {"command": "touch one"}), ("bash", {"command": "touch two"})]
    async with serve_asking_agent(tmp_path) as (daemon, client):
        ask, stream = await start_question(client, *calls, cwd=str(tmp_path))
        reply = json.dumps({ask.questions[1].question: "Allow", "touch one": "Allow"})
        results = await answer_question(client, stream, reply)
        assert [result.is_error for result in results] == [True, False]
        assert not (tmp_path / "one").exists()
        assert (tmp_path / "two").exists()
        decisions = {receipt["digest"]: receipt["decision"] for receipt in read_receipts(daemon)}
        digests = [question.approval.digest for question in ask.questions]
        assert decisions == dict(zip(digests, ["denied", "allowed"], strict=True))


LOOK_ALIKE = {
    # Two calls whose questions would read the same.
    "env": [{"command": "true\nwith A=b"}, {"command": "true", "env": {"A": "b"}}],
    "escape": [{"command": "touch '\\u{202e}'"}, {"command": "touch '\u202e'"}],
    "timeout": [{"command": "true x\ntimeout: 5"}, {"command": "true x", "timeout": 5}],
}


@pytest.mark.req("trust.approvals.bound")
@pytest.mark.parametrize("calls", LOOK_ALIKE.values(), ids=LOOK_ALIKE)
async def test_an_answer_holds_for_the_bytes_of_one_call(
    tmp_path: Path, calls: list[dict[str, Any]]
) -> None:
    """Even if another call of the step has the same description."""
    async with serve_asking_agent(tmp_path) as (daemon, client):
        step = [("bash", {**call, "command": f"touch ran; {call['command']}"}) for call in calls]
        ask, stream = await start_question(client, *step, cwd=str(tmp_path))
        first = ask.questions[0]
        results = await answer_question(client, stream, json.dumps({first.question: "Allow"}))
        assert [result.is_error for result in results].count(False) <= 1, results
        allowed = [r["digest"] for r in read_receipts(daemon) if r["decision"] == "allowed"]
        assert set(allowed) <= {first.approval.digest}


@pytest.mark.req("trust.approvals.bound")
async def test_an_approval_allows_one_call_even_if_the_step_repeats_it(tmp_path: Path) -> None:
    async with serve_asking_agent(tmp_path) as (_, client):
        twice = [("bash", {"command": "echo paid >> bill"})] * 2
        ask, stream = await start_question(client, *twice, cwd=str(tmp_path))
        assert len(ask.questions) == 1
        results = await answer_question(client, stream, "Allow")
        assert sorted(result.is_error for result in results) == [False, True]
        assert (tmp_path / "bill").read_text() == "paid\n"


@pytest.mark.req("trust.approvals.always")
async def test_always_for_a_file_with_a_pattern_in_its_name_is_not_offered(tmp_path: Path) -> None:
    async with serve_asking_agent(tmp_path) as (_, client):
        for name in ("**", "*", "a?b"):
            change = {"path": name, "old_string": "a", "new_string": "b"}
            ask, stream = await start_question(client, ("edit", change), cwd=str(tmp_path))
            assert ask.questions[0].approval.always == ""
            await answer_question(client, stream, "Always")
        ask, stream = await start_question(
            client, ("edit", {**change, "path": "other"}), cwd=str(tmp_path)
        )
        await answer_question(client, stream, "Deny")


HUGE = "1" * 5000  # more digits than one of the parsers takes


@pytest.mark.req("trust.arguments")
async def test_arguments_that_parsers_read_differently_are_not_carried_out(tmp_path: Path) -> None:
    hidden = f'{{"command": "ls", "env": {{"A": "b"}}, "x": {HUGE}}}'
    deep = f'{{"command": "touch ran", "x": {"[" * 50_000}{"]" * 50_000}}}'
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        for mode in ("plan", "ask", "auto"):
            (result,) = await run_tool_calls(client, "crab", [("bash", hidden)], mode=mode)
            assert result.output.startswith("permission denied: its arguments"), result.output
        # Arguments that no parser accepts fail, and the turn continues.
        (result,) = await run_tool_calls(client, "crab", [("bash", deep)], cwd=str(tmp_path))
        assert result.output.startswith("invalid arguments:"), result.output
        assert not (tmp_path / "ran").exists()


URLS = [
    "http://internal.example.com/x",
    "http://INTERNAL.example.com./x",
    "http://internal%2eexample.com/x",
    "http://internal\uff0eexample.com/x",
    "http://internal\u3002example.com/x",
    "http://\u24d8nternal.example.com/x",
    "http://other.example.org\\@internal.example.com/x",
    "internal.example.com/x",
    "http://user:pass@db.internal.example.com:80/x",
]


@pytest.mark.req("trust.fetch_rules")
async def test_a_denied_domain_is_denied_however_it_is_written(tmp_path: Path) -> None:
    fetched: list[str] = []

    async def fetch(call: ToolDispatch) -> str:
        fetched.append(call.arguments)
        return "fetched"

    rules = 'deny = ["fetch(internal.example.com)"]\nallow = ["fetch(example.net)"]'
    agents = {"crab": f'prompt = "p"\nmode = "ask"\n[permissions]\n{rules}\n'}
    hooks = {"web": FunctionTools(fetch=fetch)}
    async with (
        run_daemon(tmp_path, hooks=hooks, agents=agents) as daemon,
        daemon.client() as client,
    ):
        for url in URLS:
            (result,) = await run_tool_calls(client, "crab", [("fetch", {"url": url})], mode="auto")
            assert result.output.startswith("permission denied:"), (url, result.output)
        (result,) = await run_tool_calls(client, "crab", [("fetch", {"uri": URLS[0]})], mode="auto")
        assert result.output.startswith("permission denied:"), result.output
        assert fetched == []
        # A rule does not allow urls whose domain is unclear.
        for url in ("http://example.net%2f.evil.org/", "http://evil.org"):
            (result,) = await run_tool_calls(
                client, "crab", [("fetch", {"url": url})], unattended=True
            )
            assert result.output.startswith("permission denied:"), (url, result.output)
        for url in ("http://example.net/x", "https://www.Example.NET./"):
            (result,) = await run_tool_calls(
                client, "crab", [("fetch", {"url": url})], unattended=True
            )
            assert result.output == "fetched"


@pytest.mark.req("trust.fetch_rules")
@pytest.mark.parametrize("is_text", [False, True])
def test_a_denied_domain_is_denied_for_the_mcp_tool_too(is_text: bool) -> None:
    """The arguments of the mcp tool itself may name another domain."""
    inner: Any = {"url": URLS[0]}
    arguments = {
        "name": "web__fetch",
        "url": "http://example.net/",
        "args": json.dumps(inner) if is_text else inner,
    }
    call = ToolDispatch(
        "mcp", json.dumps(arguments), "c", "crab", "user", cast("Run", None), Path("/")
    )
    request = PermissionRequest(call, ("fetch", "web__fetch"), ToolAccess("mcp", "web__fetch"))
    assert find_matching_rule([parse_rule("fetch(internal.example.com)")], request) is not None
    assert find_covering_rules([parse_rule("fetch(example.net)")], request) is None


# ── Owners and strangers ────────────────────────────────────────────────────────────────────────

TOUCH: ToolCalls = [("bash", {"command": "touch ran"})]


async def wait_for_owner_question(follower: FeedFollower) -> wire.AgentEventMsg:
    await wait_until(lambda: any(event.kind == wire.ASK_USER for event in follower.events))
    return next(event for event in follower.events if event.kind == wire.ASK_USER)


@pytest.mark.req("trust.approvals.strangers")
async def test_only_the_owner_can_approve_a_strangers_call(tmp_path: Path) -> None:
    async with (
        serve_asking_agent(tmp_path) as (daemon, client),
        follow_feed(daemon, all_kinds=True) as follower,
    ):
        folder = get_sender_folder(daemon.home, STRANGER)
        folder.mkdir(parents=True)
        (folder / "f").write_text("old")
        edit = ("edit", {"path": "f", "old_string": "old", "new_string": "new"})
        script = script_tool_calls([("set_title", {"title": "t"})], [edit])
        running = asyncio.ensure_future(
            collect_events(client.stream("crab", script, sender=STRANGER))
        )
        event = await wait_for_owner_question(follower)
        (question,) = event.ask.questions
        assert (question.approval.for_owner, question.approval.requested_by) == (True, STRANGER)
        ask_id = event.ask.ask_id
        tries: list[dict[str, Any]] = [
            {},
            {"ask_id": ask_id},
            {"as_owner": True},
            {"ask_id": "", "as_owner": True},
            {"ask_id": ask_id + "0", "as_owner": True},
        ]
        for options in tries:
            reply = client.reply_to_ask("crab", "Allow", sender=STRANGER, **options)
            assert await expect_error_code(reply) == 404
        assert not running.done()
        assert (folder / "f").read_text() == "old"
        await client.reply_to_ask("crab", "Deny", sender=STRANGER, ask_id=ask_id, as_owner=True)
        events = await wait_with_timeout(running)
        assert not [e for e in events if isinstance(e, wire.AskUserEvent)]
        assert select_tool_results(events)[-1].output.startswith(
            "permission denied: the owner said no"
        )
        (receipt,) = read_receipts(daemon)
        assert (receipt["by"], receipt["decision"]) == ("owner", "denied")


@pytest.mark.req("trust.approvals.strangers")
async def test_the_owner_can_allow_a_strangers_call(tmp_path: Path) -> None:
    async with (
        serve_asking_agent(tmp_path) as (daemon, client),
        follow_feed(daemon, all_kinds=True) as follower,
    ):
        folder = get_sender_folder(daemon.home, STRANGER)
        folder.mkdir(parents=True)
        (folder / "f").write_text("old")
        edit = ("edit", {"path": "f", "old_string": "old", "new_string": "new"})
        script = script_tool_calls([("read", {"path": "f"})], [edit])
        running = asyncio.ensure_future(
            collect_events(client.stream("crab", script, sender=STRANGER))
        )
        event = await wait_for_owner_question(follower)
        ask_id = event.ask.ask_id
        await client.reply_to_ask("crab", "Allow", sender=STRANGER, ask_id=ask_id, as_owner=True)
        events = await wait_with_timeout(running)
        assert [result.is_error for result in select_tool_results(events)] == [False, False]
        assert not [e for e in events if isinstance(e, wire.AskUserEvent)]
        assert (folder / "f").read_text() == "new"
        (receipt,) = read_receipts(daemon)
        digest = event.ask.questions[0].approval.digest
        assert (receipt["decision"], receipt["digest"]) == ("allowed", digest)


@pytest.mark.req("trust.approvals.unwatched")
async def test_calls_whose_question_no_client_could_answer_are_refused_at_once(
    tmp_path: Path,
) -> None:
    async with serve_asking_agent(tmp_path) as (daemon, client):
        folder = get_sender_folder(daemon.home, STRANGER)
        folder.mkdir(parents=True)
        (folder / "f").write_text("old")
        change = {"path": "f", "old_string": "old", "new_string": "new"}
        # A stranger's call, while no client of the owner follows.
        (result,) = await run_tool_calls(client, "crab", [("edit", change)], sender=STRANGER)
        assert result.output.startswith("permission denied: it needs the owner's approval")
        # The client said that the run is unattended.
        (result,) = await run_tool_calls(client, "crab", TOUCH, unattended=True, cwd=str(tmp_path))
        assert result.output.startswith("permission denied:")
        assert "--mode auto" in result.output
        # Started by an event, in the owner's name.
        await client.subscribe_event("x", "crab", sender="user")
        await client.publish_event("x", script_tool_calls(TOUCH))
        await wait_until(lambda: daemon.model.request_count == 6)
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        outputs = [
            text
            for role, text in await read_conversation(client, "crab", "event:x")
            if role == "tool"
        ]
        assert [text.split(";")[0][:18] for text in outputs] == ["permission denied:"]
        assert not (tmp_path / "ran").exists()
        # A delegate of an unattended run is unattended too.
        tasks = {"tasks": [{"message": script_tool_calls(TOUCH)}]}
        await wait_with_timeout(
            collect_events(
                client.stream("crab", script_tool_calls([("delegate", tasks)]), unattended=True)
            )
        )
        assert not (tmp_path / "ran").exists()


# ── Modes ───────────────────────────────────────────────────────────────────────────────────────

SHELL, HARMLESS = ("bash", {"command": "touch ran"}), ("bash", {"command": "ls"})
EDIT = ("edit", {"path": "f", "old_string": "old", "new_string": "new"})
READ, PLUGIN = ("read", {"path": "f"}), ("delegate", {"tasks": [{"message": "!say x"}]})
MODES = {
    #                (read,  harmless, edit,  shell, delegate)
    "plan": ("run", "run", "deny", "deny", "run"),
    "ask": ("run", "run", "ask", "ask", "run"),
    "accept-edits": ("run", "run", "run", "ask", "run"),
    "auto": ("run", "run", "run", "run", "run"),
}


@pytest.mark.req("trust.modes.table")
@pytest.mark.parametrize("mode", MODES)
async def test_a_mode_decides_for_each_kind_of_tool(tmp_path: Path, mode: str) -> None:
    (tmp_path / "f").write_text("old")
    agents = {"crab": 'prompt = "p"\n'}
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        await client.set_mode("crab", mode)
        verdicts = []
        for call in (READ, HARMLESS, EDIT, SHELL, PLUGIN):
            stream = client.stream("crab", script_tool_calls([call]), cwd=str(tmp_path))
            verdict = ""
            async with asyncio.timeout(30):
                async for event in stream:
                    if isinstance(event, wire.AskUserEvent):
                        verdict = "ask"
                        await client.reply_to_ask("crab", "Deny")
                    if isinstance(event, wire.ToolResultEvent) and not verdict:
                        is_denied = event.output.startswith(f"permission denied: mode {mode}")
                        verdict = "deny" if is_denied else "failed" if event.is_error else "run"
            verdicts.append(verdict)
        assert tuple(verdicts) == MODES[mode]
        assert ((tmp_path / "f").read_text() == "new") == (MODES[mode][2] == "run")
        assert (tmp_path / "ran").exists() == (MODES[mode][3] == "run")


@pytest.mark.req("trust.modes.wire")
async def test_a_mode_is_set_over_the_wire_reported_on_the_feed_and_stored(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        async with follow_feed(daemon, all_kinds=True) as follower:
            assert (await client.set_mode("crab")).mode == "auto"
            info = await client.set_mode("crab", "plan")
            assert (info.mode, info.is_set) == ("plan", True)
            kinds = [wire.MODE_CHANGED]
            await wait_until(lambda: [event.kind for event in follower.events] == kinds)
            (event,) = follower.events
            assert (event.agent, event.sender, event.content) == ("crab", "user", "plan")
        for bad in ("PLAN", "root", "auto ", "plan\n"):
            assert await expect_error_code(client.set_mode("crab", bad)) == 400
            assert (
                await expect_error_code(collect_events(client.stream("crab", "hi", mode=bad)))
                == 400
            )
            assert await expect_error_code(client.send("crab", "hi", mode=bad)) == 400
        (result,) = await run_tool_calls(client, "crab", TOUCH, cwd=str(tmp_path))
        assert result.output.startswith("permission denied: mode plan")
        # The mode of a turn does not change the next one.
        (result,) = await run_tool_calls(client, "crab", TOUCH, cwd=str(tmp_path), mode="auto")
        assert not result.is_error
        (tmp_path / "ran").unlink()
        (result,) = await run_tool_calls(client, "crab", TOUCH, cwd=str(tmp_path))
        assert result.is_error
        (result,) = await run_tool_calls(client, "crab", TOUCH, sender="user~b", mode="plan")
        assert result.is_error
        assert (await client.set_mode("crab", "")).mode == "auto"
        assert (await client.set_mode("crab", "plan")).mode == "plan"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        info = await client.set_mode("crab")
        assert (info.mode, info.is_set) == ("plan", True)
        info = await client.set_mode("crab", "")
        assert (info.mode, info.is_set) == ("auto", False)


@pytest.mark.req("trust.modes.delegates")
@pytest.mark.parametrize("how", ["agent", "system_prompt", "worker"])
async def test_a_delegate_has_no_looser_mode(tmp_path: Path, how: str) -> None:
    agents = {"crab": 'prompt = "p"\n', "free": 'prompt = "p"\nmode = "auto"\n'}
    task: dict[str, Any] = {"message": script_tool_calls(TOUCH)}
    task |= {"agent": {"agent": "free"}, "system_prompt": {"system_prompt": "s"}}.get(how, {})
    deeper = {"message": script_tool_calls([("delegate", {"tasks": [task]})])}
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        await client.set_mode("crab", "plan")
        for tasks in ([task], [deeper]):
            for is_background in (False, True):
                step = [("delegate", {"tasks": tasks, "background": is_background})]
                await run_tool_calls(client, "crab", step, cwd=str(tmp_path))
                await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        denials = json.dumps(daemon.model.requests).count("permission denied: mode plan")
        assert denials >= 4
        assert not (tmp_path / "ran").exists()
