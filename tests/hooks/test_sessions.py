"""search_sessions through a real socket: which messages agents find, and of which senders."""

import asyncio
import json
from pathlib import Path

import pytest

from crabtalk.client import Client
from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import run_daemon
from tests.model_server import model_server

# The behaviour does not depend on the event loop.
pytestmark = pytest.mark.one_loop

PLAIN = 'prompt = "You are crab."\n'
NOTHING = "no sessions found"


def build_agents(scope: str) -> dict[str, str]:
    text = f'{PLAIN}[hooks.sessions]\nscope = "{scope}"\n'
    return {"crab": text, "twin": PLAIN}


async def search_with_tool(
    client: Client, query: str, sender: str | None = None, agent: str = "crab", **more: object
) -> str:
    """Return the tool's answer. The call is stored as a message too, and can be found later."""
    script = f"!tool search_sessions {json.dumps({'query': query, **more})}\n!then\n!say ok"
    ((text, is_error),) = [
        (event.output, event.is_error)
        async for event in client.stream(agent, script, sender=sender)
        if isinstance(event, wire.ToolResultEvent)
    ]
    assert not is_error, text
    return text


def list_owners(text: str) -> set[tuple[str, str]]:
    """Agent and sender of each hit."""
    lines = [line.split(" · ") for line in text.splitlines() if line.startswith("session: ")]
    return {(a.removeprefix("agent: "), s.removeprefix("sender: ")) for _, a, s in lines}


@pytest.mark.req("sessions.tool")
async def test_a_new_message_is_found_with_the_messages_around_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("twin", "!say good morning")
        await client.send("twin", "where do periwinkles live?\n!say on rocks")
        # The question itself contains the word, and may be the better match.
        both = await search_with_tool(client, "periwinkles", limit=2)
        (text,) = [hit for hit in both.split("---\n") if "agent: twin" in hit]
        (listed,) = [
            row for row in (await client.list_conversations()).conversations if row.agent == "twin"
        ]
        assert text.strip().splitlines() == [
            "## (untitled)",
            f"session: {listed.file_path} · agent: twin · sender: user",
            text.splitlines()[2],
            "- [user #0] !say good morning",
            "- [assistant #1] good morning",
            "- [user #2] where do periwinkles live? !say on rocks",
            "- [assistant #3] on rocks",
        ]
        assert text.splitlines()[2].startswith("updated: 20")
        assert text.splitlines()[2].endswith(" · matched message #2")
        assert await search_with_tool(client, "xylophone missing") != NOTHING, "its own question"
        assert await search_with_tool(client, "!!") == NOTHING


@pytest.mark.req("sessions.tool")
async def test_a_hit_has_as_many_context_messages_as_requested(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        for word in ("one", "two", "periwinkle", "four"):
            await client.send("twin", f"!say {word}")
        text = await search_with_tool(
            client, "periwinkle", context_before=1, context_after=0, agent="crab"
        )
        hit = next(part for part in text.split("\n---\n") if "agent: twin" in part)
        lines = [line for line in hit.splitlines() if line.startswith("- ")]
        assert len(lines) == 2
        assert "periwinkle" in lines[1]


@pytest.mark.req("sessions.privacy")
async def test_by_default_an_agent_finds_only_messages_of_the_current_sender(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "the code word is periwinkle", sender="ann")
        await client.send("twin", "the code word is periwinkle", sender="ann")
        assert list_owners(await search_with_tool(client, "periwinkle", "ann")) == {
            ("crab", "ann"),
            ("twin", "ann"),
        }
        for other in ("bob", "tg:ann", "an"):
            text = await search_with_tool(client, "code word periwinkle", other)
            assert list_owners(text) <= {("crab", other)}
            assert "the code word is" not in text
        asked = await search_with_tool(
            client, "code word periwinkle", "bob", agent="crab", limit=20
        )
        assert ("crab", "ann") not in list_owners(asked)


@pytest.mark.req("sessions.privacy")
async def test_naming_another_sender_does_not_find_their_messages(tmp_path: Path) -> None:
    arguments = json.dumps({"query": "code word periwinkle", "sender": "ann", "agent": "crab"})
    script = f"!tool search_sessions {arguments}\n!then\n!say ok"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "the code word is periwinkle", sender="ann")
        results = [
            event.output
            async for event in client.stream("crab", script, sender="bob")
            if isinstance(event, wire.ToolResultEvent)
        ]
        assert "the code word is" not in results[0]


@pytest.mark.req("sessions.scope")
@pytest.mark.parametrize(
    ("scope", "seen"),
    [
        ("sender", {("twin", "user")}),
        ("agent", {("crab", "ann")}),
        ("all", {("crab", "ann"), ("twin", "ann"), ("twin", "user")}),
    ],
)
async def test_the_agents_file_sets_the_search_scope(
    tmp_path: Path, scope: str, seen: set[tuple[str, str]]
) -> None:
    async with (
        run_daemon(tmp_path, agents=build_agents(scope), hooks={}) as daemon,
        daemon.client() as client,
    ):
        for agent, sender in (("crab", "ann"), ("twin", "ann"), ("twin", "user")):
            await client.send(agent, "periwinkle", sender=sender)
        found_by_user = list_owners(await search_with_tool(client, "periwinkle", "user", limit=20))
        assert found_by_user - {("crab", "user")} == seen  # beside its own question
        # Regardless of the file, other senders than the owner find only their own conversations.
        assert list_owners(await search_with_tool(client, "periwinkle", "ann", limit=20)) <= {
            ("crab", "ann"),
            ("twin", "ann"),
        }


@pytest.mark.req("sessions.privacy")
async def test_a_delegated_run_finds_the_same_as_its_caller(tmp_path: Path) -> None:
    inner = '!tool search_sessions {"query": "periwinkle", "limit": 20}\n!then\n!say ok'
    task = json.dumps({"tasks": [{"message": inner}]})
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "periwinkle of ann", sender="ann")
        await client.send("crab", "periwinkle of bob", sender="bob")
        await client.send("crab", f"!tool delegate {task}\n!then\n!say ok", sender="bob")
        (worker,) = [
            row
            for row in (await client.list_conversations()).conversations
            if row.sender.startswith("delegate:")
        ]
        page = await client.list_messages(worker.agent, sender=worker.sender)
        (result,) = [message.content for message in page.messages if message.role == "tool"]
        assert "periwinkle of bob" in result
        assert "periwinkle of ann" not in result


@pytest.mark.req("sessions.tool_results")
@pytest.mark.parametrize("allowed", [False, True])
async def test_tool_results_are_found_only_if_the_agents_file_allows_it(
    tmp_path: Path, allowed: bool
) -> None:
    text = f"{PLAIN}[hooks.sessions]\nindex_tool_results = {str(allowed).lower()}\n"
    async with (
        run_daemon(tmp_path, agents={"crab": text}, hooks={}) as daemon,
        daemon.client() as client,
    ):
        (tmp_path / "secret").write_text("periwinkle42\n")
        arguments = json.dumps({"path": str(tmp_path / "secret")})
        await client.send("crab", f"!tool read {arguments}\n!then\n!say done")
        hits = (await client.search_sessions("periwinkle42")).hits
        assert bool(hits) is allowed
        (by_call,) = (await client.search_sessions("read secret")).hits
        shown = " ".join(item.snippet for item in by_call.window)
        assert ("periwinkle42" in shown) is allowed


@pytest.mark.req("sessions.refresh")
async def test_indexing_of_tool_results_also_applies_to_earlier_messages(
    tmp_path: Path,
) -> None:
    async with (
        run_daemon(tmp_path, agents={"crab": PLAIN}, hooks={}) as daemon,
        daemon.client() as client,
    ):
        (tmp_path / "secret").write_text("periwinkle42\n")
        arguments = json.dumps({"path": str(tmp_path / "secret")})
        await client.send("crab", f"!tool read {arguments}\n!then\n!say done")
        assert list((await client.search_sessions("periwinkle42")).hits) == []
        allowed = f"{PLAIN}[hooks.sessions]\nindex_tool_results = true\n"
        daemon.agent_file("crab").write_text(allowed)
        await client.reload()
        async with asyncio.timeout(20):
            while not (await client.search_sessions("periwinkle42")).hits:
                await asyncio.sleep(0.05)
        daemon.agent_file("crab").write_text(PLAIN)
        await client.reload()
        assert list((await client.search_sessions("periwinkle42")).hits) == []


@pytest.mark.req("sessions.settings")
async def test_invalid_settings_are_a_problem_of_the_agent(tmp_path: Path) -> None:
    agents = {**build_agents("world"), "crab": PLAIN, "odd": build_agents("world")["crab"]}
    async with run_daemon(tmp_path, agents=agents, hooks={}) as daemon, daemon.client() as client:
        (problem,) = (await client.get_stats()).problems
        assert "hooks.sessions: " in problem


# ── As a request ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("sessions.request")
async def test_a_client_can_search_everything_or_a_narrower_scope(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        for agent, sender in (("crab", "ann"), ("twin", "ann"), ("twin", "bob")):
            await client.send(agent, "where is the periwinkle?", sender=sender)
        hits = (await client.search_sessions("periwinkle")).hits
        assert {(hit.agent, hit.sender) for hit in hits} == {
            ("crab", "ann"),
            ("twin", "ann"),
            ("twin", "bob"),
        }
        (hit,) = (await client.search_sessions("periwinkle", agent="twin", sender="bob")).hits
        assert [item.message_id for item in hit.window] == [0, 1]
        assert hit.window[hit.message_id].snippet == "where is the periwinkle?"
        assert len((await client.search_sessions("periwinkle", limit=2)).hits) == 2
        assert list((await client.search_sessions("")).hits) == []
        past = await client.search_sessions("periwinkle", until="2020-01-01")
        assert list(past.hits) == []
        with pytest.raises(Exception, match="since must be a time such as"):
            await client.search_sessions("periwinkle", since="yesterday")


@pytest.mark.req("sessions.title")
async def test_titles_and_summaries_are_found_too(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, summary="All about limpets. And more.", hooks={}) as daemon,
        daemon.client() as client,
    ):
        await client.send("crab", '!tool set_title {"title": "Periwinkles"}\n!then\n!say ok')
        (hit,) = (await client.search_sessions("periwinkles")).hits
        assert hit.title == "Periwinkles"
        await client.compact("crab")
        (hit,) = (await client.search_sessions("limpets")).hits
        assert hit.agent == "crab"
        (hit,) = (await client.search_sessions("set_title")).hits
        assert hit.window, "what was compacted is found as before"


@pytest.mark.req("sessions.deleted")
async def test_a_deleted_conversation_is_no_longer_found(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "periwinkle")
        (row,) = (await client.list_conversations()).conversations
        await client.delete_conversation(row.file_path)
        assert list((await client.search_sessions("periwinkle")).hits) == []


@pytest.mark.req("sessions.restart")
async def test_everything_is_found_again_after_a_restart(tmp_path: Path) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model, hooks={}) as daemon, daemon.client() as client:
            await client.send("crab", "periwinkle")
        async with run_daemon(tmp_path, model, hooks={}) as daemon, daemon.client() as client:
            async with asyncio.timeout(20):
                (hit,) = (await client.search_sessions("periwinkle")).hits
            assert hit.agent == "crab"
