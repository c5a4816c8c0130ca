"""Modes, approvals and explanations at the command line, with a real daemon."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from crabtalk.client import ServerError
from crabtalk.protocol import wire
from tests.cli.cli_process import run_crabtalk
from tests.daemon.in_process_daemon import (
    PATIENCE,
    read_conversation,
    run_daemon,
    script_tool_calls,
    wait_until,
)

ASKING = {"crab": 'prompt = "You are crab."\nmode = "ask"\n'}


@pytest.mark.req("cli.ask.unattended")
async def test_a_call_needing_approval_is_refused_in_a_script_and_runs_in_auto_mode(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "mark"
    async with run_daemon(tmp_path, hooks={}, agents=ASKING) as daemon:
        where = ("--home", daemon.home, "-q")
        script = script_tool_calls([("bash", {"command": f"touch {mark}"})])
        outcome = await run_crabtalk("ask", *where, script)
        assert outcome.code == 0, outcome
        assert outcome.err.startswith("bash was not allowed: ")
        assert "`crabtalk ask --mode auto`" in outcome.err
        assert not mark.exists()
        outcome = await run_crabtalk("ask", *where, "--mode", "auto", script)
        assert (outcome.code, outcome.err) == (0, "")
        assert mark.exists()


@pytest.mark.req("cli.explain")
async def test_permissions_of_strangers_and_owners_are_explained(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}, agents=ASKING) as daemon:
        words = ("agents", "explain", "crab", "--home", daemon.home)
        owner = json.loads((await run_crabtalk(*words, "--json")).output)
        stranger = json.loads((await run_crabtalk(*words, "--sender", "tg:1", "--json")).output)
        assert (owner["origin"], stranger["origin"]) == ("owner", "stranger")
        assert owner["mode"] == "ask"
        bash = {each["tool"]: each["verdict"] for each in stranger["tools"]}["bash"]
        assert bash == "deny"
        text = (await run_crabtalk(*words, "--sender", "tg:1")).output
        assert text.startswith("tg:1 is a stranger: ")
        assert "mode: ask\n" in text


@pytest.mark.req("cli.agents.permissions")
async def test_mode_and_permissions_are_edited_and_shown(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        where = ("--home", daemon.home)
        page = (await run_crabtalk("agents", "show", "crab", *where)).output
        head, _, _ = page.partition("\n[")
        lines = [line for line in head.splitlines() if not line.startswith("mode =")]
        wanted = "\n".join(
            [*lines, 'mode = "plan"', "[permissions]", 'allow = ["bash(git status:*)"]', ""]
        )
        outcome = await run_crabtalk(
            "agents", "edit", "crab", "--config", "-", *where, typed=wanted.encode()
        )
        assert outcome.code == 0, outcome
        shown = (await run_crabtalk("agents", "show", "crab", *where)).output
        assert 'mode = "plan"' in shown
        assert "\n[permissions]\n" in shown
        assert 'allow = ["bash(git status:*)"]' in shown
        explained = json.loads(
            (await run_crabtalk("agents", "explain", "crab", *where, "--json")).output
        )
        assert explained["mode"] == "plan"
        bad = wanted.replace('"plan"', '"yolo"')
        outcome = await run_crabtalk(
            "agents", "edit", "crab", "--config", "-", *where, typed=bad.encode()
        )
        assert "yolo" in outcome.error


@pytest.mark.parametrize(("word", "is_allowed"), [("allow", True), ("deny", False)])
@pytest.mark.req("cli.approvals.answer")
async def test_the_owner_answers_a_strangers_approval_from_the_shell(
    tmp_path: Path, word: str, is_allowed: bool
) -> None:
    async with run_daemon(tmp_path, hooks={}, agents=ASKING) as daemon, daemon.client() as client:
        edit = {"path": "shells.txt", "old_string": "", "new_string": "a shell"}
        feed = client.subscribe_events(all_kinds=True)
        following = asyncio.ensure_future(wait_for_approval(feed))
        async with asyncio.timeout(PATIENCE):
            await wait_until(lambda: len(daemon.daemon.feed) > 0)
            run = asyncio.ensure_future(
                client.send("crab", script_tool_calls([("edit", edit)]), sender="tg:666")
            )
            ask_id = await following
            listed = await run_crabtalk("approvals", "--home", daemon.home)
            assert listed.output.startswith(f"{ask_id}  crab with tg:666\n")
            assert "for tg:666, who is not an owner" in listed.output
            assert "a shell" in listed.output
            # The stranger cannot answer it.
            with pytest.raises(ServerError):
                await client.reply_to_ask("crab", "Allow", sender="tg:666", ask_id=ask_id)
            outcome = await run_crabtalk("approvals", word, ask_id, "--home", daemon.home)
            assert (outcome.code, outcome.err) == (0, f"{ask_id}: {word.title()}\n")
            await run
        await feed.aclose()
        (result,) = [
            text
            for role, text in await read_conversation(client, "crab", "tg:666")
            if role == "tool"
        ]
        assert result.startswith("permission denied:") is not is_allowed, result


async def wait_for_approval(feed: AsyncGenerator[wire.AgentEventMsg, None]) -> str:
    async for event in feed:
        if event.kind == wire.ASK_USER and event.ask.questions[0].approval.for_owner:
            return event.ask.ask_id
    raise AssertionError("the feed ended")
