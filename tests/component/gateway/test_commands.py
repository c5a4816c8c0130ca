"""Commands: what begins with a slash."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.component.gateway.commands import Command, guest_in, parse
from tests.component.gateway.world import world

# What it waits for is on the wire, and the loop makes no difference.
pytestmark = pytest.mark.one_loop


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", Command("help")),
        ("/agent twin", Command("agent", "twin")),
        ("/agent@our_bot twin", Command("agent", "twin")),
        ("/Title  a  b ", Command("title", "a  b")),
        ("/search\nsand", Command("search", "sand")),
        ("/", None),
        ("hello", None),
        (" /help", None),
    ],
)
def test_a_command_is_read(text: str, command: Command | None) -> None:
    assert parse(text) == command


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    for found in (parse(text), parse(f"/{text}"), guest_in(text), guest_in(f"@{text}")):
        assert found is None or found.name


@pytest.mark.req("gateways.commands")
async def test_help_lists_what_there_is(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("/start")
        w.loft.says("/help")
        await w.loft.until(lambda: len(w.loft.texts()) == 2)
        text = "\n".join(w.loft.texts())
        for name in ("agent", "agents", "guest", "stop", "new", "compact", "search", "title"):
            assert f"/{name}" in text
        await w.idle()


@pytest.mark.req("gateways.agent")
async def test_an_agent_is_chosen_for_a_chat_and_stays_chosen(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.running():
            w.loft.says("/agents")
            await w.told("Agents:\n- crab (here)\n- twin")
            w.loft.says("/agent ghost")
            w.loft.says("/agent twin")
            w.loft.says("/agent")
            await w.loft.until(lambda: len(w.loft.texts()) == 4)
            assert w.loft.texts()[1:] == [
                "You cannot talk to ghost in this chat; /agents lists who answers here.",
                "You are talking to twin now.",
                "You are talking to twin. /agent NAME changes that; /agents lists them.",
            ]
            await w.idle()
        async with w.running():
            w.loft.says("hello")
            w.loft.says("hello", "8")
            await w.loft.until(lambda: w.loft.texts()[-1] == "heard: hello")
            await w.told("heard: hello", chat="8")
            await w.idle()
            assert await w.said("pg:7", "twin")
            assert await w.said("pg:8", "crab")


@pytest.mark.req("gateways.new")
async def test_new_begins_anew_and_what_was_said_is_still_found(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("/new")
        await w.told("There is nothing here yet.")
        w.loft.says("sandcastle")
        await w.loft.until(lambda: len(w.loft.texts()) == 2)
        w.loft.says("/new")
        await w.loft.until(lambda: w.loft.texts()[-1] == "We begin anew.")
        w.loft.says("hello")
        await w.loft.until(lambda: w.loft.texts()[-1] == "heard: hello")
        w.loft.says("/search sandcastle")
        await w.loft.until(lambda: "user: sandcastle" in w.loft.texts()[-1])
        await w.idle()
        assert w.daemon is not None
        last = w.daemon.model.requests[-1]["messages"]
        assert not any("sandcastle" in str(message) for message in last)


@pytest.mark.req("gateways.compact")
async def test_compact_folds_what_was_said(tmp_path: Path) -> None:
    async with world(tmp_path, summary="It was about sand.") as w, w.running():
        w.loft.says("sandcastle")
        await w.loft.until(lambda: len(w.loft.texts()) == 1)
        w.loft.says("/compact")
        await w.loft.until(lambda: len(w.loft.texts()) == 2)
        assert w.loft.texts()[-1] == "Folded into a summary:\n\nIt was about sand."
        await w.idle()


@pytest.mark.req("gateways.title")
async def test_a_conversation_is_named(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("/title")
        w.loft.says("hello")
        await w.loft.until(lambda: w.loft.texts()[-1:] == ["heard: hello"])
        w.loft.says("/title Shells and sand")
        await w.loft.until(lambda: "is called “Shells and sand”" in w.loft.texts()[-1])
        await w.idle()
        assert w.daemon is not None
        async with w.daemon.client() as client:
            (found,) = (await client.list_conversations(sender="pg:7")).conversations
            assert found.title == "Shells and sand"


SKILL = "---\nname: tide\ndescription: Tells the tide.\n---\nSay the tide.\n"


@pytest.mark.req("gateways.skill")
async def test_what_names_a_skill_goes_to_the_agent_and_the_rest_is_no_command(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, hooks={}) as w:
        skill = w.home / "skills" / "tide" / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text(SKILL)
        assert w.daemon is not None
        async with w.daemon.client() as client:
            await client.reload()
        async with w.running():
            w.loft.says("/ebb now")
            await w.told("There is no command or skill /ebb; see /help")
            w.loft.says("/tide tomorrow")
            await w.loft.until(lambda: len(w.loft.texts()) >= 2)
            await w.idle()
        (request, *_) = w.daemon.model.requests
        assert "Say the tide." in str(request["messages"])


async def test_quick_commands_are_answered_while_a_turn_runs(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.running():
        w.loft.says("!say So far.\n!wait\n!say The end.")
        await w.told("So far.")
        w.loft.says("/agents")
        await w.told("So far.", "Agents:\n- crab (here)\n- twin")
        assert w.daemon is not None
        await w.daemon.model.until_waiting()
        w.daemon.model.release()
        await w.told("So far.The end.", "Agents:\n- crab (here)\n- twin")
        await w.idle()
