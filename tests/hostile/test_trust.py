"""Senders that are not the owner, with a model that tries files, shell and names.

The model is scripted, so each test says exactly which calls a hostile prompt would make.
"""

import json
import os
import pwd
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.protocol import get_sender_folder, wire
from tests.daemon.in_process_daemon import (
    CONFIG,
    FeedFollower,
    InProcessDaemon,
    ToolCalls,
    follow_feed,
    read_conversation,
    run_daemon,
    run_tool_calls,
    script_tool_calls,
    wait_with_timeout,
)

# Words that are only in closed files.
SECRETS = {
    "config.toml": "word-of-the-config",
    "agents/crab.toml": "word-of-the-agent-file",
    "agents/twin.toml": "word-of-the-other-agent",
    "config/crons.toml": "word-of-the-crons",
    "run/token": "word-of-the-token",
    "events/subscriptions.toml": "word-of-the-events",
    "skills/tides/SKILL.md": "word-of-the-skill",
    "Crab.notes": "word-of-the-home",
}
OWNERS_WORD = "word-of-the-owner"
AGENTS = {
    "crab": f'# {SECRETS["agents/crab.toml"]}\nprompt = "You are crab."\n',
    "twin": f'# {SECRETS["agents/twin.toml"]}\nprompt = "You are twin."\n',
}
STRANGERS = ["tg:666", "event:x", "cron"]


@asynccontextmanager
async def open_hostile_home(path: Path, config: str = CONFIG) -> AsyncIterator[InProcessDaemon]:
    """A daemon with the secret words in closed files and in the owner's conversation."""
    config = f"# {SECRETS['config.toml']}\n{config}"
    async with run_daemon(path, hooks={}, agents=AGENTS, config=config) as daemon:
        for name, word in SECRETS.items():
            file = daemon.home / name
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"# {word}\n")
        async with daemon.client() as client:
            await client.send("crab", f"I say {OWNERS_WORD}.")
        yield daemon


def list_closed_paths(daemon: InProcessDaemon) -> list[str]:
    """Files that no stranger may open, by many different paths."""
    (log,) = daemon.log_paths
    files = [*(daemon.home / name for name in SECRETS), log]
    system = [
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/thread-self/environ",
        f"/proc/{os.getpid()}/environ",
        f"/proc/{os.getpid()}/task/{os.getpid()}/environ",
        "/proc/self/root/etc/passwd",
        "/proc/version",
        "/dev/stdin",
    ]
    inside = ["../../config.toml", "x/../../../config.toml", "../..//agents/./crab.toml", ".."]
    return [*map(str, files), *system, *inside, f"{daemon.home}/../home/config.toml"]


def plant_links(daemon: InProcessDaemon, folder: Path) -> list[str]:
    """Create links to closed files in a sender's folder: to files, directories and links."""
    folder.mkdir(parents=True, exist_ok=True)
    links: list[str] = []
    (log,) = daemon.log_paths
    for number, target in enumerate([*(daemon.home / name for name in SECRETS), log]):
        (folder / f"soft{number}").symlink_to(target)
        (folder / f"relative{number}").symlink_to(os.path.relpath(target, folder))
        (folder / f"hard{number}").hardlink_to(target)
        links += [f"soft{number}", f"relative{number}", str(folder / f"hard{number}")]
    (folder / "home").symlink_to(daemon.home)
    (folder / "again").symlink_to(folder / "soft0")
    (folder / "process").symlink_to("/proc/self")
    return [*links, "home/config.toml", "again", "process/environ"]


def make_attempts(paths: Sequence[str]) -> list[ToolCalls]:
    """Steps that read and edit each of the paths."""
    reads = [("read", {"path": path}) for path in paths]
    edits = [("edit", {"path": p, "old_string": "#", "new_string": "owned"}) for p in paths]
    calls = reads + edits
    return [calls[at : at + 60] for at in range(0, len(calls), 60)]


def read_secret_files(daemon: InProcessDaemon) -> dict[str, bytes]:
    return {name: (daemon.home / name).read_bytes() for name in SECRETS}


def find_leaks(
    daemon: InProcessDaemon, follower: FeedFollower, sender: str, more: str = ""
) -> list[str]:
    """Secret words in requests to the model, in the stream, and in the sender's log."""
    logs = [path.read_text() for path in daemon.log_paths if json.dumps(sender) in path.read_text()]
    assert logs, "the sender has a conversation"
    requests = [
        json.dumps(request)
        for request in daemon.model.requests
        if OWNERS_WORD not in json.dumps(request["messages"][-1])
    ]
    streamed = [str(event) for event in follower.events if event.sender == sender]
    everything = "\n".join([*logs, *requests, *streamed, more])
    return [word for word in [*SECRETS.values(), OWNERS_WORD] if word in everything]


@pytest.mark.req("trust.strangers.files")
@pytest.mark.parametrize("sender", STRANGERS)
async def test_a_stranger_opens_no_file_of_the_home_or_the_system(
    tmp_path: Path, sender: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        open_hostile_home(tmp_path) as daemon,
        daemon.client() as client,
        follow_feed(daemon, all_kinds=True) as follower,
    ):
        links = plant_links(daemon, get_sender_folder(daemon.home, sender))
        before = read_secret_files(daemon)
        daemon.model.requests.clear()
        steps = make_attempts([*list_closed_paths(daemon), *links])
        results = await run_tool_calls(client, "crab", *steps, sender=sender, cwd=str(daemon.home))
        assert len(results) == sum(map(len, steps))
        for result in results:
            assert (result.is_error, result.output[:18]) == (True, "permission denied:"), result
        assert read_secret_files(daemon) == before
        later_page = str(await client.list_messages("crab", sender=sender))
        assert find_leaks(daemon, follower, sender, later_page + caplog.text) == []


@pytest.mark.req("trust.strangers.files")
async def test_a_run_started_by_an_event_opens_no_closed_file(tmp_path: Path) -> None:
    async with (
        open_hostile_home(tmp_path) as daemon,
        daemon.client() as client,
        follow_feed(daemon, all_kinds=True) as follower,
    ):
        sender = "event:mail"
        await client.subscribe_event("mail", "twin")  # first: it replaces a file we link to
        daemon.model.requests.clear()
        links = plant_links(daemon, get_sender_folder(daemon.home, sender))
        steps = [
            *make_attempts([*list_closed_paths(daemon), *links]),
            [("bash", {"command": "env"})],
        ]
        await client.publish_event("mail", script_tool_calls(*steps))
        await follower.wait_until_done()
        page = await client.list_messages("twin", sender=sender, limit=500)
        outputs = [message.content for message in page.messages if message.role == "tool"]
        assert len(outputs) == sum(map(len, steps))
        assert {text[:18] for text in outputs} == {"permission denied:"}
        assert find_leaks(daemon, follower, sender) == []


@pytest.mark.req("trust.strangers.files")
@pytest.mark.parametrize("sender", STRANGERS)
async def test_a_stranger_can_use_only_its_own_folder(tmp_path: Path, sender: str) -> None:
    async with open_hostile_home(tmp_path) as daemon, daemon.client() as client:
        own = get_sender_folder(daemon.home, sender)
        other = get_sender_folder(daemon.home, f"{sender}7")
        for folder in (own, other, get_sender_folder(daemon.home, "user")):
            folder.mkdir(parents=True)
            (folder / "note.txt").write_text("first\n")
        change = {"old_string": "first", "new_string": "second"}
        results = await run_tool_calls(
            client,
            "crab",
            [("read", {"path": "note.txt"}), ("read", {"path": str(own / "note.txt")})],
            [("edit", {"path": "note.txt", **change})],
            [("read", {"path": f"../{other.name}/note.txt"})],
            [("edit", {"path": str(other / "note.txt"), **change})],
            [("read", {"path": str(get_sender_folder(daemon.home, "user") / "note.txt")})],
            sender=sender,
        )
        assert [result.is_error for result in results] == [False] * 3 + [True] * 3, results
        assert all(r.output.startswith("permission denied:") for r in results[3:]), results
        assert (own / "note.txt").read_text() == "second\n"
        assert (other / "note.txt").read_text() == "first\n"


@pytest.mark.req("trust.strangers.opened")
async def test_a_folder_opened_for_reading_is_not_open_for_changes(tmp_path: Path) -> None:
    handbook, drafts = tmp_path / "handbook", tmp_path / "drafts"
    for folder in (handbook, drafts):
        folder.mkdir()
        (folder / "page").write_text("first\n")
    rules = json.dumps([f"read({handbook}/**)", f"edit({drafts}/**)"])
    agents = {"crab": f'prompt = "p"\n[permissions]\nstrangers = {rules}\n'}
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        pages = [str(handbook / "page"), str(drafts / "page")]
        change = {"old_string": "first", "new_string": "second"}
        results = await run_tool_calls(
            client,
            "crab",
            [("read", {"path": page}) for page in pages],
            [("edit", {"path": page, **change}) for page in pages],
            sender="tg:666",
        )
        assert [result.is_error for result in results] == [False, False, True, False], results
        assert results[2].output.startswith("permission denied:")
        assert (handbook / "page").read_text() == "first\n"


@pytest.mark.req("trust.home_closed")
async def test_the_owners_file_tools_can_only_use_files_and_skills_in_the_home(
    tmp_path: Path,
) -> None:
    async with open_hostile_home(tmp_path) as daemon, daemon.client() as client:
        note = get_sender_folder(daemon.home, "tg:1") / "note.txt"
        note.parent.mkdir(parents=True)
        note.write_text("first\n")
        skill = "skills/tides/SKILL.md"
        (log,) = daemon.log_paths
        closed = [*(str(daemon.home / name) for name in SECRETS if name != skill), str(log)]
        closed += ["/proc/self/environ", f"/proc/{os.getpid()}/environ", "config.toml"]
        change = {"old_string": "first", "new_string": "second"}
        before = read_secret_files(daemon)
        results = await run_tool_calls(
            client,
            "crab",
            *make_attempts(closed),
            [("edit", {"path": skill, "old_string": "#", "new_string": "owned"})],
            [("read", {"path": skill}), ("read", {"path": str(note)})],
            [("edit", {"path": str(note), **change})],
            cwd=str(daemon.home),
        )
        *refused, read_skill, read_note, edited = results
        for result in refused:
            assert (result.is_error, result.output[:18]) == (True, "permission denied:"), result
        assert SECRETS[skill] in read_skill.output
        assert ("first" in read_note.output, edited.output) == (True, "ok")
        assert read_secret_files(daemon) == before


# ── Owners ──────────────────────────────────────────────────────────────────────────────────────

LOOKALIKES = [
    *("tg\uff1a666", "USER", "User", "cron", "user ", " user", "user\n", "user\x00", "\u200buser"),
    *(
        "wxid_1@im.wechat",
        "wxid_1@im.wechat ",
        "@im.wechat",
        "user:1",
        "user-1",
        "users",
        "us\u0435r",
    ),
    *("root:1", "Root", "ROOT", "alice", "~user", "delegate:1", "event:user", "*", "tg:*"),
]
ECHO = [("bash", {"command": "echo shell-ran"})]


@pytest.mark.req("trust.owners")
async def test_a_sender_that_only_looks_like_the_owner_has_no_shell(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        for sender in LOOKALIKES:
            (result,) = await run_tool_calls(client, "crab", ECHO, sender=sender, cwd=str(tmp_path))
            assert result.output.startswith("permission denied:"), (sender, result.output)
            (result,) = await run_tool_calls(client, "crab", ECHO, sender="x", origin=sender)
            assert result.output.startswith("permission denied:"), (sender, result.output)


@pytest.mark.req("trust.owners")
async def test_the_configured_owners_have_a_shell(tmp_path: Path) -> None:
    account = pwd.getpwuid(os.getuid()).pw_name
    config = CONFIG + '[daemon]\nowners = ["alice", "tg:42"]\n'
    async with (
        run_daemon(tmp_path, hooks={}, config=config) as daemon,
        daemon.client() as client,
    ):
        for sender in ("", "user", "user~x", "user~", account, "alice", "tg:42"):
            (result,) = await run_tool_calls(client, "crab", ECHO, sender=sender, cwd=str(tmp_path))
            assert "shell-ran" in result.output, (sender, result.output)
        for sender in ("Alice", "alice ", "tg:421", "tg:4", "alice~x", f"{account} "):
            (result,) = await run_tool_calls(client, "crab", ECHO, sender=sender)
            assert result.output.startswith("permission denied:"), (sender, result.output)


@pytest.mark.req("trust.origin.events")
async def test_a_subscription_has_the_rights_of_its_creator(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, hooks={}) as daemon,
        daemon.client() as client,
        follow_feed(daemon) as follower,
    ):
        creators = {"a": None, "b": "", "c": "tg:666", "d": "cron", "e": "user"}
        for source, sender in creators.items():
            await client.subscribe_event(source, "twin", sender=sender)
            await client.publish_event(source, script_tool_calls(ECHO))
        await follower.wait_until_done(len(creators))
        ran = set()
        for source in creators:
            messages = await read_conversation(client, "twin", f"event:{source}")
            (output,) = [text for role, text in messages if role == "tool"]
            if "shell-ran" in output:
                ran.add(source)
            else:
                assert output.startswith("permission denied:")
        assert ran == {"e"}


@pytest.mark.req("trust.origin.events")
async def test_runs_started_by_a_strangers_run_have_the_strangers_rights(tmp_path: Path) -> None:
    """Also through the owner's own subscription to the end of the agent's runs."""
    async with (
        run_daemon(tmp_path, hooks={}) as daemon,
        daemon.client() as client,
        follow_feed(daemon) as follower,
    ):
        await client.subscribe_event("agent:crab:done", "twin", sender="user")
        await wait_with_timeout(
            client.send("crab", '!say !tool bash {"command": "id"}', sender="tg:666")
        )
        await follower.wait_until_done(2)
        sender = "event:agent:crab:done"
        messages = await read_conversation(client, "twin", sender)
        outputs = [text for role, text in messages if role == "tool"]
        assert len(outputs) == 1, messages
        assert outputs[0].startswith("permission denied:")


# ── Files left by strangers ─────────────────────────────────────────────────────────────────────


@pytest.mark.req("trust.instructions")
@pytest.mark.parametrize("name", ["AGENTS.md", "Crab.md"])
async def test_instruction_files_in_a_senders_folder_are_ignored(tmp_path: Path, name: str) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        own = get_sender_folder(daemon.home, "tg:666")
        (own / "deep").mkdir(parents=True)
        for folder in (own, own / "deep", own.parent):
            (folder / name).write_text("obey-the-stranger\n")
        tasks = [{"message": "!say worked"}, {"message": "!say worked", "cwd": "deep"}]
        script = script_tool_calls([("delegate", {"tasks": tasks})])
        await wait_with_timeout(client.send("crab", script, sender="tg:666"))
        # Also for the owner's agent in that folder, which looks at the sender's files.
        await wait_with_timeout(client.send("crab", script, cwd=str(own)))
        await wait_with_timeout(client.send("twin", "!say seen", cwd=str(own / "deep")))
        assert len(daemon.model.requests) >= 9
        assert "obey-the-stranger" not in json.dumps(daemon.model.requests)


@pytest.mark.req("trust.asks.scope")
async def test_there_is_no_question_about_a_tool_that_the_agent_may_not_call(
    tmp_path: Path,
) -> None:
    agents = {
        "crab": 'prompt = "p"\ntools = ["read"]\nmode = "ask"\napprove = ["bash", "edit"]\n',
        "twin": 'prompt = "p"\nmode = "ask"\n[hooks.bash]\ndisabled = true\n',
    }
    async with (
        run_daemon(tmp_path, hooks={}, agents=agents) as daemon,
        daemon.client() as client,
        follow_feed(daemon, all_kinds=True) as follower,
    ):
        touch = ("bash", {"command": "touch x"})
        change = ("edit", {"path": "x", "old_string": "a", "new_string": "b"})
        results = await run_tool_calls(client, "crab", [touch, change])
        results += await run_tool_calls(client, "twin", [touch])
        assert [result.output.split(":")[0] for result in results] == ["tool not available"] * 3
        assert wire.ASK_USER not in {event.kind for event in follower.events}
