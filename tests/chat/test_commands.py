"""The commands of the chat, each against a real daemon."""

import json
from contextlib import aclosing
from pathlib import Path

import pytest

from crabtalk.chat import reply_markdown
from crabtalk.chat.command_table import COMMANDS
from crabtalk.chat.commands import (
    HANDLERS,
    CommandCall,
    CommandReply,
    QueuedTurn,
    parse_input,
    run_command,
)
from crabtalk.chat.completion import NameCatalogue, NameEntry
from crabtalk.chat.prices import Price, Spending
from crabtalk.chat.session import ChatSession
from crabtalk.protocol import wire
from tests.chat.recording_session import load_messages, open_session, start_task
from tests.chat.terminal import run_scripted_daemon
from tests.daemon.in_process_daemon import script_tool_calls, wait_with_timeout

pytestmark = pytest.mark.timeout(120)

CATALOGUE = NameCatalogue(
    agents=(NameEntry("crab"), NameEntry("twin")), skills=(NameEntry("tides"),)
)


async def run_typed(session: ChatSession, text: str) -> CommandReply:
    call = parse_input(text, session.catalogue)
    assert isinstance(call, CommandCall), call
    return await wait_with_timeout(run_command(call, session))


async def get_error_notice(session: ChatSession, text: str) -> str:
    reply = await run_typed(session, text)
    assert (reply.kind, reply.markdown) == ("error", "")
    return reply.notice


# ── Parsing ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.commands.read")
@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("/help", "help", ""),
        ("/search high  water ", "search", "high  water"),
        ("/guest twin do you\nagree?", "guest", "twin do you\nagree?"),
        ("/title\nTides", "title", "Tides"),
    ],
)
def test_a_command_is_its_name_and_the_rest(text: str, name: str, rest: str) -> None:
    assert parse_input(text, CATALOGUE) == CommandCall(COMMANDS[name], rest)


@pytest.mark.req("chat.commands.else")
@pytest.mark.parametrize(
    "text",
    [
        *("hello", "/tides for June", "/etc/hosts has what?", "/Help", "/", "//help", "/helpme"),
        *("  /help", "see /help", "@owl hello", "@twin", "mail @twin about it", "", "@ twin hi"),
    ],
)
def test_anything_else_goes_to_the_agent_as_it_is(text: str) -> None:
    assert parse_input(text, CATALOGUE) == QueuedTurn(text)


@pytest.mark.req("chat.turn.guest")
def test_an_at_sign_and_name_invite_a_guest() -> None:
    assert parse_input("@twin do you\nagree?", CATALOGUE) == QueuedTurn(
        "do you\nagree?", guest="twin"
    )


@pytest.mark.req("chat.commands.help")
def test_every_command_has_a_handler_and_is_in_the_help() -> None:
    assert HANDLERS.keys() == COMMANDS.keys()
    page = reply_markdown.format_help({})
    for command in COMMANDS.values():
        assert f"`{command.usage}`" in page
        assert command.about in reply_markdown.format_command_help(command.name)


# ── Agents and turns ───────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.commands.agents")
async def test_agents_are_listed_and_the_chat_switches_to_another(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        await wait_with_timeout(session.run_turn("hello"))
        listed = (await run_typed(session, "/agents")).markdown
        assert "**crab**" in listed
        assert "twin" in listed
        reply = await run_typed(session, "/agent twin")
        assert reply == CommandReply(notice="now with twin", messages=[], resets_usage=True)
        await wait_with_timeout(session.run_turn("!say I am twin"))
        back = await run_typed(session, "/agent crab")
        assert [message.content for message in back.messages] == ["hello", "heard: hello"]
        assert [text for _, text in await load_messages(session.client, "twin")] == [
            *("!say I am twin", "I am twin")
        ]
        assert await get_error_notice(session, "/agent owl") == (
            "no agent is called 'owl'; /agents has them"
        )
        assert session.agent == "crab"
        assert "/agent NAME" in await get_error_notice(session, "/agent")


@pytest.mark.req("chat.commands.busy")
async def test_a_running_turn_blocks_switching_and_compaction(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        turn_task = start_task(session.run_turn("!say so\n!hang"))
        await listener.wait_until(lambda: listener.text == "so")
        for text in ("/agent twin", "/compact", "/new"):
            assert await get_error_notice(session, text) == "a turn runs; stop it first, with Esc"
        await session.stop()
        await wait_with_timeout(turn_task)


@pytest.mark.req("chat.commands.guest")
async def test_guest_becomes_a_turn_of_the_other_agent(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        reply = await run_typed(session, "/guest twin what do you make of it?")
        assert reply == CommandReply(turn=QueuedTurn("what do you make of it?", guest="twin"))
        assert await get_error_notice(session, "/guest owl hello") == (
            "no agent is called 'owl'; /agents has them"
        )
        assert "/guest NAME TEXT" in await get_error_notice(session, "/guest twin")


@pytest.mark.req("chat.commands.title")
async def test_the_title_is_shown_and_set(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        assert "no title yet" in (await run_typed(session, "/title")).notice
        assert "no conversation" in await get_error_notice(session, "/title High water")
        await wait_with_timeout(
            session.run_turn(script_tool_calls([("set_title", {"title": "Tides"})]))
        )
        assert (await run_typed(session, "/title")).notice == "Tides"
        asked = daemon.model.request_count
        assert (await run_typed(session, "/title High\nwater")).notice == "it is called High water"
        assert (await run_typed(session, "/title")).notice == "High water"
        assert daemon.model.request_count == asked


@pytest.mark.req("chat.commands.quit")
async def test_quit_leaves(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        assert await run_typed(session, "/quit") == CommandReply(leaves_chat=True)


@pytest.mark.req("chat.commands.help")
async def test_help_shows_all_commands_or_one(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        page = (await run_typed(session, "/help")).markdown
        assert "| `/export [FILE]` | write this" in page
        assert "| Ctrl+D | leave" in page
        assert (await run_typed(session, "/help /quit")).markdown.startswith("`/quit`: leave")
        assert "there is no command /sing" in await get_error_notice(session, "/help sing")


# ── History ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.commands.compact")
async def test_compact_shows_the_summary_and_archives_lists_it(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        daemon.model.summary = "They talked. More was said."
        assert "nothing was folded yet" in (await run_typed(session, "/archives")).notice
        await wait_with_timeout(session.run_turn("hello"))
        assert (await run_typed(session, "/compact")).markdown == "They talked. More was said."
        listed = (await run_typed(session, "/archives")).markdown
        assert "| 1 | 20" in listed
        assert "| 2 | They talked" in listed.replace("\\", "")
        assert (await run_typed(session, "/archives 1")).markdown == "They talked. More was said."
        for number in ("2", "0", "x", "-1", "99999999999999999999"):
            assert "is no number from 1 to 1" in await get_error_notice(
                session, f"/archives {number}"
            )
        assert await get_error_notice(session, "/compact")  # nothing left to fold


@pytest.mark.req("chat.commands.compact")
async def test_a_compaction_can_be_stopped(tmp_path: Path) -> None:
    """A summary request contains the agent's prompt, and this prompt makes the model hang."""
    agents = {"crab": 'prompt = """You are crab.\n!hang"""\n'}
    async with (
        run_scripted_daemon(tmp_path, agents=agents) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await wait_with_timeout(session.run_turn("hello"))
        compacting = start_task(run_typed(session, "/compact"))
        await daemon.model.until_asked(2)
        assert session.state == "compacting"
        await session.stop()
        reply = await wait_with_timeout(compacting)
        assert "nothing changed" in reply.notice
        await listener.wait_until(lambda: not session.is_busy)


@pytest.mark.req("chat.commands.compact")
async def test_a_conversation_too_long_to_compact_can_be_restarted(tmp_path: Path) -> None:
    """A summary request contains the agent's prompt, and this prompt makes the model refuse."""
    refusing = "!status 400 request exceeds the available context size"
    agents = {"crab": f'prompt = """You are crab.\n{refusing}"""\n'}
    async with (
        run_scripted_daemon(tmp_path, agents=agents) as daemon,
        open_session(daemon.home) as (session, _),
    ):
        await wait_with_timeout(session.run_turn("hello"))
        sentence = await get_error_notice(session, "/compact")
        assert "available context size" in sentence
        assert sentence.endswith("; /new begins afresh, and loses nothing")
        assert (await run_typed(session, "/new")).resets_usage


@pytest.mark.req("chat.commands.new")
async def test_new_starts_afresh_and_earlier_messages_are_still_found(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        assert "nothing was said yet" in (await run_typed(session, "/new")).notice
        await wait_with_timeout(session.run_turn("the lighthouse blinks"))
        assert "a new beginning" in (await run_typed(session, "/new")).notice
        asked = daemon.model.request_count
        await wait_with_timeout(session.run_turn("and now?"))
        assert daemon.model.request_count == asked + 1
        shown = [message["content"] for message in daemon.model.requests[-1]["messages"]]
        assert not any("lighthouse" in text for text in shown)
        assert "lighthouse" in (await run_typed(session, "/search lighthouse")).markdown
        assert (
            await run_typed(session, "/archives 1")
        ).markdown == "It was closed without a summary."


@pytest.mark.req("chat.commands.search")
async def test_search_finds_messages_in_any_conversation(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        await session.client.send("twin", "!say blinks *twice*", sender="bo")
        found = (await run_typed(session, "/search blinks")).markdown
        assert "**untitled** · twin with bo · 20" in found
        assert "blinks \\*twice\\*" in found
        assert (await run_typed(session, "/search nosuchword")).notice == "nothing found"
        assert "/search WORDS" in await get_error_notice(session, "/search")


@pytest.mark.req("chat.commands.history")
async def test_history_shows_the_last_messages(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        assert (await run_typed(session, "/history")).notice == "nothing was said yet"
        for word in ("one", "two"):
            await wait_with_timeout(session.run_turn(word))
        reply = await run_typed(session, "/history 3")
        assert [m.content for m in reply.messages] == ["heard: one", "two", "heard: two"]
        assert len((await run_typed(session, "/history")).messages) == 4
        assert "is no number" in await get_error_notice(session, "/history all")


@pytest.mark.req("chat.commands.export")
@pytest.mark.parametrize("form", ["md", "json", "html"])
async def test_export_writes_a_file_and_never_overwrites_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        await wait_with_timeout(session.run_turn("hello"))
        reply = await run_typed(session, f"/export talk.{form}")
        assert reply.notice == f"2 messages written to talk.{form}"
        text = (tmp_path / "out" / f"talk.{form}").read_text()
        assert "heard: hello" in text
        assert "is there already" in await get_error_notice(session, f"/export talk.{form}")
        assert (tmp_path / "out" / f"talk.{form}").read_text() == text
        if form == "json":
            assert [m["role"] for m in json.loads(text)["messages"]] == ["user", "assistant"]


@pytest.mark.req("chat.commands.export")
async def test_export_chooses_a_file_name_and_reports_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home, sender="a/b c") as (session, _),
    ):
        await wait_with_timeout(session.run_turn("hello"))
        await run_typed(session, "/export")
        (made,) = (tmp_path / "out").iterdir()
        assert made.name.startswith("crab-a-b-c-20")
        assert made.suffix == ".md"
        assert ".md, .json, .html" in await get_error_notice(session, "/export talk.pdf")
        assert "unknown user" in await get_error_notice(session, "/export ~nosuchuser/talk.md")
        sentence = await get_error_notice(session, "/export nosuch/talk.md")
        assert sentence.startswith("nosuch/talk.md cannot be written: No such file or directory; ")
        assert list((tmp_path / "out").iterdir()) == [made]


# ── Memory, models, servers and costs ──────────────────────────────────────────────────────────


@pytest.mark.req("chat.commands.memory")
async def test_memory_is_listed_and_searched(tmp_path: Path) -> None:
    note = {"name": "tides", "content": "High water at noon."}
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        assert (await run_typed(session, "/memory")).notice == "crab remembers nothing yet"
        await wait_with_timeout(session.run_turn(script_tool_calls([("remember", note)])))
        assert "tides | High water at noon" in (await run_typed(session, "/memory")).markdown
        assert "**tides** · note" in (await run_typed(session, "/memory water")).markdown
        assert (await run_typed(session, "/memory nosuchword")).notice == "nothing found"


@pytest.mark.req("chat.commands.skills")
async def test_skills_are_listed_and_sent_to_the_agent(tmp_path: Path) -> None:
    skill = tmp_path / "home" / "skills" / "tides" / "SKILL.md"
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        assert "There are no skills" in (await run_typed(session, "/skills")).markdown
        skill.parent.mkdir(parents=True)
        skill.write_text("---\nname: tides\ndescription: Tide tables\n---\n!say high\n")
        await session.client.reload()
        assert "`/tides`" in (await run_typed(session, "/skills")).markdown
        assert parse_input("/tides for June", session.catalogue) == QueuedTurn("/tides for June")
        await wait_with_timeout(session.run_turn("/tides for June"))
        assert listener.text == "high"


@pytest.mark.req("chat.commands.model")
async def test_a_model_is_made_the_active_one(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await listener.wait_until(lambda: session.model == "scripted")
        daemon.model.models.append("other")
        (tmp_path / "home" / "config.toml").write_text(f'[llm]\nbase_url = "{daemon.model.url}"\n')
        await session.client.reload()
        assert "| **scripted** | active |" in (await run_typed(session, "/model")).markdown
        assert (await run_typed(session, "/model other")).notice.startswith(
            "other answers from now on"
        )
        assert session.model == "other"
        said = await wait_with_timeout(session.run_turn("hello"))
        assert said.end is not None
        assert said.end.model == "other"
        assert "nosuch" in await get_error_notice(session, "/model nosuch")


@pytest.mark.req("chat.commands.model")
async def test_the_model_of_an_agent_with_its_own_is_not_changed(tmp_path: Path) -> None:
    agents = {"crab": 'prompt = "You are crab."\nmodel = "scripted"\n'}
    async with (
        run_scripted_daemon(tmp_path, agents=agents) as daemon,
        open_session(daemon.home) as (session, _),
    ):
        sentence = await get_error_notice(session, "/model scripted")
        assert sentence.startswith("crab has a model of its own, scripted")


@pytest.mark.req("chat.commands.mcp")
async def test_mcp_servers_are_shown_with_their_errors(tmp_path: Path) -> None:
    broken = 'prompt = "You are crab."\n[[mcps]]\nname = "sea"\ncommand = "/no/such/program"\n'
    agents = {"crab": broken, "twin": 'prompt = "You are twin."\n'}
    async with (
        run_scripted_daemon(tmp_path, agents=agents) as daemon,
        open_session(daemon.home) as (session, _),
    ):
        async with aclosing(session.client.subscribe_mcp_events()) as feed:
            async for event in feed:
                if event.kind == wire.MCP_EVENT_KIND_FAILED:
                    break
        shown = (await run_typed(session, "/mcp")).markdown
        assert "| sea | failed | 0 |" in shown
        assert "program" in shown
        await run_typed(session, "/agent twin")
        assert "twin has no MCP servers" in (await run_typed(session, "/mcp")).notice


@pytest.mark.req("chat.commands.events")
async def test_events_shows_recent_events_and_subscriptions(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_session(daemon.home) as (session, _):
        assert "Nothing happened" in (await run_typed(session, "/events")).markdown
        await session.client.subscribe_event("agent:twin:done", "crab")
        await session.client.send("twin", "!say hi", sender="bo")
        await wait_for_agent_event(session, "twin")
        shown = (await run_typed(session, "/events")).markdown.replace("\\", "")
        assert "twin with bo: done" in shown
        assert "| 1 | agent:twin:done | crab |" in shown


async def wait_for_agent_event(session: ChatSession, agent: str) -> None:
    """Wait for an event of the agent. Listeners do not get it, so this polls."""
    while not any(f" {agent} with " in line for line in session.recent_events):
        await session.client.ping()


@pytest.mark.req("chat.commands.cost")
async def test_cost_counts_tokens_and_money(tmp_path: Path) -> None:
    prices = Spending({"scripted": Price(2.0, 10.0)})
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home, spending=prices) as (session, _),
    ):
        assert "Nothing was spent" in (await run_typed(session, "/cost")).markdown
        await wait_with_timeout(session.run_turn("!say so\n!usage 1000000 100000"))
        await wait_with_timeout(session.run_turn("!say so\n!usage 500000 0"))
        shown = (await run_typed(session, "/cost")).markdown.replace("\\", "")
        assert "| last turn | 1 | 500,000 | 0 | $1.00 |" in shown
        assert "| scripted | 2 | 1,500,000 | 100,000 | $4.00 |" in shown


@pytest.mark.req("chat.commands.cost")
async def test_tokens_of_delegated_tasks_are_counted(tmp_path: Path) -> None:
    task = {"agent": "twin", "message": "!say so\n!usage 300 20"}
    script = script_tool_calls([("delegate", {"tasks": [task]})])
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home) as (session, listener),
    ):
        await wait_with_timeout(session.run_turn(f"!usage 5 5\n{script}\n!usage 5 5"))
        await listener.wait_until(lambda: session.spending.total.input_tokens >= 310)
        assert session.spending.total.output_tokens == 30
        assert session.spending.total.turns == 1


@pytest.mark.req("chat.commands.away")
async def test_a_command_without_a_daemon_reports_one_error(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_session(daemon.home, start=False) as (session, listener),
    ):
        await daemon.kill()
        await listener.wait_until(lambda: session.state == "away")
        for text in ("/agents", "/memory", "/compact", "/export x.md", "/search x", "/model"):
            assert "daemon" in await get_error_notice(session, text)
        assert not (Path.cwd() / "x.md").exists()
        assert (await run_typed(session, "/help")).markdown


@pytest.mark.req("chat.commands.safe")
def test_names_and_texts_are_escaped_in_replies() -> None:
    hostile = "a\x1b[2J|b`c*d_e\n# f <g> [h](i) \u202e"
    hit = wire.SessionHit(agent="a", sender=hostile, title=hostile, message_id=1)
    hit.window.add(message_id=1, role="user", snippet=hostile)
    for text in (
        reply_markdown.format_hits([hit]),
        reply_markdown.format_servers([wire.McpInfo(name=hostile, error=hostile)]),
        reply_markdown.format_agents(
            NameCatalogue(agents=(NameEntry(hostile, hostile, hostile),)), ""
        ),
        reply_markdown.format_memory_hits([wire.MemoryHit(name=hostile, content=hostile)]),
    ):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "|b" not in text.replace("\\|b", "")
        assert "*d" not in text.replace("\\*d", "")
        assert "\n# f" not in text
