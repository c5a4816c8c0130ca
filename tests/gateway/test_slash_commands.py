"""Slash commands."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.gateway.slash_commands import ParsedCommand, parse_command, parse_guest
from tests.gateway.gateway_world import open_gateway_world

# It waits for network traffic, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", ParsedCommand("help")),
        ("/agent twin", ParsedCommand("agent", "twin")),
        ("/agent@our_bot twin", ParsedCommand("agent", "twin")),
        ("/Title  a  b ", ParsedCommand("title", "a  b")),
        ("/search\nsand", ParsedCommand("search", "sand")),
        ("/", None),
        ("hello", None),
        (" /help", None),
    ],
)
def test_a_command_is_parsed(text: str, command: ParsedCommand | None) -> None:
    assert parse_command(text) == command


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    for parsed in (
        parse_command(text),
        parse_command(f"/{text}"),
        parse_guest(text),
        parse_guest(f"@{text}"),
    ):
        assert parsed is None or parsed.name


@pytest.mark.req("gateways.commands")
async def test_help_lists_the_commands(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("/start")
        w.server.add_message("/help")
        await w.server.wait_until(lambda: len(w.server.texts_in()) == 2)
        text = "\n".join(w.server.texts_in())
        for name in ("agent", "agents", "guest", "stop", "new", "compact", "search", "title"):
            assert f"/{name}" in text
        await w.wait_until_idle()


@pytest.mark.req("gateways.agent")
async def test_an_agent_is_chosen_for_a_chat_and_stays_chosen(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w:
        async with w.run_gateway():
            w.server.add_message("/agents")
            await w.wait_for_texts("Agents:\n- crab (here)\n- twin")
            w.server.add_message("/agent ghost")
            w.server.add_message("/agent twin")
            w.server.add_message("/agent")
            await w.server.wait_until(lambda: len(w.server.texts_in()) == 4)
            assert w.server.texts_in()[1:] == [
                "You cannot talk to ghost in this chat; /agents lists who answers here.",
                "You are talking to twin now.",
                "You are talking to twin. /agent NAME changes that; /agents lists them.",
            ]
            await w.wait_until_idle()
        async with w.run_gateway():
            w.server.add_message("hello")
            w.server.add_message("hello", "8")
            await w.server.wait_until(lambda: w.server.texts_in()[-1] == "heard: hello")
            await w.wait_for_texts("heard: hello", chat="8")
            await w.wait_until_idle()
            assert await w.list_messages("pg:7", "twin")
            assert await w.list_messages("pg:8", "crab")


@pytest.mark.req("gateways.new")
async def test_new_starts_afresh_and_old_messages_are_still_found(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("/new")
        await w.wait_for_texts("There is nothing here yet.")
        w.server.add_message("sandcastle")
        await w.server.wait_until(lambda: len(w.server.texts_in()) == 2)
        w.server.add_message("/new")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "We begin anew.")
        w.server.add_message("hello")
        await w.server.wait_until(lambda: w.server.texts_in()[-1] == "heard: hello")
        w.server.add_message("/search sandcastle")
        await w.server.wait_until(lambda: "user: sandcastle" in w.server.texts_in()[-1])
        await w.wait_until_idle()
        assert w.daemon is not None
        last = w.daemon.model.requests[-1]["messages"]
        assert not any("sandcastle" in str(message) for message in last)


@pytest.mark.req("gateways.compact")
async def test_compact_summarises_the_conversation(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path, summary="It was about sand.") as w, w.run_gateway():
        w.server.add_message("sandcastle")
        await w.server.wait_until(lambda: len(w.server.texts_in()) == 1)
        w.server.add_message("/compact")
        await w.server.wait_until(lambda: len(w.server.texts_in()) == 2)
        assert w.server.texts_in()[-1] == "Folded into a summary:\n\nIt was about sand."
        await w.wait_until_idle()


@pytest.mark.req("gateways.title")
async def test_a_conversation_is_named(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("/title")
        w.server.add_message("hello")
        await w.server.wait_until(lambda: w.server.texts_in()[-1:] == ["heard: hello"])
        w.server.add_message("/title Shells and sand")
        await w.server.wait_until(lambda: "is called “Shells and sand”" in w.server.texts_in()[-1])
        await w.wait_until_idle()
        assert w.daemon is not None
        async with w.daemon.client() as client:
            (conversation,) = (await client.list_conversations(sender="pg:7")).conversations
            assert conversation.title == "Shells and sand"


SKILL = "---\nname: tide\ndescription: Tells the tide.\n---\nSay the tide.\n"


@pytest.mark.req("gateways.skill")
async def test_a_skill_name_goes_to_the_agent_and_other_names_are_no_command(
    tmp_path: Path,
) -> None:
    async with open_gateway_world(tmp_path, hooks={}) as w:
        skill = w.home / "skills" / "tide" / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text(SKILL)
        assert w.daemon is not None
        async with w.daemon.client() as client:
            await client.reload()
        async with w.run_gateway():
            w.server.add_message("/ebb now")
            await w.wait_for_texts("There is no command or skill /ebb; see /help")
            w.server.add_message("/tide tomorrow")
            await w.server.wait_until(lambda: len(w.server.texts_in()) >= 2)
            await w.wait_until_idle()
        (request, *_) = w.daemon.model.requests
        assert "Say the tide." in str(request["messages"])


async def test_quick_commands_are_answered_while_a_turn_runs(tmp_path: Path) -> None:
    async with open_gateway_world(tmp_path) as w, w.run_gateway():
        w.server.add_message("!say So far.\n!wait\n!say The end.")
        await w.wait_for_texts("So far.")
        w.server.add_message("/agents")
        await w.wait_for_texts("So far.", "Agents:\n- crab (here)\n- twin")
        assert w.daemon is not None
        await w.daemon.model.until_waiting()
        w.daemon.model.release()
        await w.wait_for_texts("So far.The end.", "Agents:\n- crab (here)\n- twin")
        await w.wait_until_idle()
