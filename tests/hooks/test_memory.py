"""Memory through a real socket: the tools, whose memory they use, and persistence."""

import json
from pathlib import Path

import pytest

from crabtalk.client import Client
from crabtalk.hooks.memory import format_age
from crabtalk.memory import AddEntry, EntryKind, Memory
from crabtalk.protocol import wire
from crabtalk.storage import Pair, make_log_name
from tests.daemon.in_process_daemon import InProcessDaemon, run_daemon
from tests.model_server import model_server

# The behaviour does not depend on the event loop.
pytestmark = pytest.mark.one_loop

PLAIN = 'prompt = "You are crab."\n'
OWN = PLAIN + '[hooks.memory]\nscope = "sender"\n'
OPEN = PLAIN + '[hooks.sessions]\nscope = "agent"\n'


async def call_tool(
    client: Client, tool: str, sender: str | None = None, agent: str = "crab", **arguments: object
) -> tuple[str, bool]:
    """Return the result of one tool call."""
    script = f"!tool {tool} {json.dumps(arguments)}\n!then\n!say ok"
    ((text, is_error),) = [
        (event.output, event.is_error)
        async for event in client.stream(agent, script, sender=sender)
        if isinstance(event, wire.ToolResultEvent)
    ]
    return text, is_error


@pytest.mark.req("memory.tools")
async def test_a_note_can_be_recalled_until_it_is_forgotten(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        outcome = await call_tool(
            client, "remember", name="rollout", content="ship on Fridays", aliases=["deploy"]
        )
        assert outcome == ("remembered: rollout", False)
        found = ("## rollout\nship on Fridays", False)
        assert await call_tool(client, "recall", query="fridays") == found
        assert await call_tool(client, "recall", query="when to deploy?") == found
        assert await call_tool(client, "recall", query="moon") == ("no memories found", False)
        assert await call_tool(client, "forget", name="deploy") == ("forgot: deploy", False)
        assert await call_tool(client, "forget", name="deploy") == ("no entry named: deploy", False)
        assert await call_tool(client, "recall", query="fridays") == ("no memories found", False)


@pytest.mark.req("memory.tools.upsert")
async def test_remember_replaces_a_note_with_the_same_name_or_alias(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", name="rollout", content="Fridays", aliases=["deploy"])
        await call_tool(client, "remember", name="deploy", content="Mondays")
        assert await call_tool(client, "recall", query="deploy") == ("## rollout\nMondays", False)
        await call_tool(client, "remember", name="rollout", content="never", aliases=[])
        assert await call_tool(client, "recall", query="deploy") == ("no memories found", False)


@pytest.mark.req("memory.recall.several")
async def test_recall_returns_the_best_hits_first_up_to_the_limit(tmp_path: Path) -> None:
    agents = {"crab": PLAIN + "[hooks.memory]\nrecall_limit = 2\n"}
    async with run_daemon(tmp_path, agents=agents, hooks={}) as daemon, daemon.client() as client:
        for number in range(4):
            content = "tide " * (number + 1) + "and more words than that"
            await call_tool(client, "remember", name=f"n{number}", content=content)
        text, _ = await call_tool(client, "recall", query="tide")
        assert [line for line in text.splitlines() if line.startswith(("##", "---"))] == [
            "## n3",
            "---",
            "## n2",
        ]
        text, _ = await call_tool(client, "recall", query="tide", limit=3)
        assert text.count("## ") == 3


@pytest.mark.req("memory.tools.notes_only")
async def test_tools_can_neither_change_nor_forget_archives(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, summary="They spoke of tides.", hooks={}) as daemon,
        daemon.client() as client,
    ):
        await client.send("crab", "hello")
        await client.compact("crab")
        (archive,) = (await client.list_archives("crab")).archives
        for arguments in ({"name": archive.name}, {"name": archive.name, "content": "x"}):
            tool = "remember" if "content" in arguments else "forget"
            text, is_error = await call_tool(client, tool, **arguments)
            assert is_error
            assert text.startswith("permission denied: ")
        (hit,) = (await client.search_memory("crab", "tides")).hits
        assert (hit.name, hit.kind, hit.content) == (
            archive.name,
            "archive",
            "They spoke of tides.",
        )


@pytest.mark.req("memory.archive")
@pytest.mark.req("memory.recall.archives")
async def test_a_compaction_stores_an_archive_which_recall_labels(tmp_path: Path) -> None:
    summary = "They spoke of tides. Then of the moon."
    async with run_daemon(tmp_path, summary=summary, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        await client.compact("crab")
        (archive,) = (await client.list_archives("crab")).archives
        assert await call_tool(client, "recall", query="moon") == (
            f"## {archive.name}\narchive: They spoke of tides. · new\n{summary}",
            False,
        )
        assert daemon.daemon.memory.get_settings("crab").scope == "author"
    with Memory.open(daemon.home / "memory" / "crab.crmem") as memory:
        entry = memory.get(archive.name)
        assert entry is not None
        assert (entry.kind, entry.content) == (EntryKind.ARCHIVE, summary)


@pytest.mark.req("memory.archive.failed")
async def test_a_compaction_fails_if_its_archive_cannot_be_stored(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary="s", hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        (daemon.home / "memory").write_text("in the way")
        with pytest.raises(Exception, match="the archive cannot be kept") as caught:
            await client.compact("crab")
        assert "nothing changed" in str(caught.value)
        assert list((await client.list_archives("crab")).archives) == []
        (daemon.home / "memory").unlink()
        await client.compact("crab")
        assert len((await client.list_archives("crab")).archives) == 1


# ── Whose memory ────────────────────────────────────────────────────────────────────────────────

SECRET = "The code word is periwinkle."


async def compact_conversation(client: Client, sender: str) -> None:
    await client.send("crab", "hello", sender=sender)
    await client.compact("crab", sender=sender)


@pytest.mark.req("memory.privacy")
async def test_a_sender_cannot_recall_archives_of_another_sender(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary=SECRET, hooks={}) as daemon, daemon.client() as client:
        await compact_conversation(client, "ann")
        assert "periwinkle" in (await call_tool(client, "recall", "ann", query="code word"))[0]
        for other in ("bob", "an", "ann-1", "tg:ann"):
            found = await call_tool(client, "recall", other, query="code word periwinkle")
            assert found == ("no memories found", False)


@pytest.mark.req("memory.privacy")
async def test_many_archives_of_other_senders_do_not_hide_ones_own(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(
            client, "remember", "ann", name="mine", content=f"{SECRET} " + "filler " * 50
        )
        with_others = daemon.daemon.memory.acquire("crab", "")
        async with with_others as memory:
            for number in range(50):
                memory.archive(f"{make_log_name(Pair('crab', 'bob'))}-{number}", SECRET)
        text, _ = await call_tool(client, "recall", "ann", query="code word periwinkle")
        assert text.startswith("## mine\n")
        assert text.count("## ") == 1


@pytest.mark.req("memory.privacy.allowed")
async def test_the_agents_file_can_allow_recalling_other_senders_archives(tmp_path: Path) -> None:
    agents = {"crab": OPEN}
    async with (
        run_daemon(tmp_path, summary=SECRET, agents=agents, hooks={}) as daemon,
        daemon.client() as client,
    ):
        await compact_conversation(client, "ann")
        assert "periwinkle" in (await call_tool(client, "recall", query="code word"))[0]


@pytest.mark.req("memory.shared")
async def test_notes_are_shared_only_by_the_owners_conversations_with_an_agent(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", "user", name="beach", content="north")
        found = await call_tool(client, "recall", "user~work", query="beach")
        assert found == ("## beach\nnorth", False)
        assert (await call_tool(client, "recall", agent="twin", query="beach"))[
            0
        ] == "no memories found"


@pytest.mark.req("memory.scope.sender")
async def test_an_agent_can_have_a_memory_for_each_sender(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, agents={"crab": OWN}, hooks={}) as daemon,
        daemon.client() as client,
    ):
        await call_tool(client, "remember", "ann", name="beach", content="north")
        assert (await call_tool(client, "recall", "bob", query="beach"))[0] == "no memories found"
        assert (await call_tool(client, "recall", "ann", query="beach"))[0] == "## beach\nnorth"
        found = await client.search_memory("crab", "beach", sender="ann")
        assert [hit.name for hit in found.hits] == ["beach"]
        assert list((await client.search_memory("crab", "beach")).hits) == []


@pytest.mark.req("memory.delegated")
async def test_a_temporary_agent_uses_the_memory_of_its_caller(tmp_path: Path) -> None:
    inner = '!tool remember {"name": "beach", "content": "north"}\n!then\n!say ok'
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "delegate", tasks=[{"message": inner}])
        assert await call_tool(client, "recall", query="beach") == ("## beach\nnorth", False)
        names = {path.name.partition(".")[0] for path in (daemon.home / "memory").iterdir()}
        assert names == {"crab"}


@pytest.mark.req("memory.rename")
async def test_renaming_an_agent_renames_its_memory(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", agent="twin", name="beach", content="north")
        await client.rename_agent("twin", "other")
        assert (await call_tool(client, "recall", agent="other", query="beach"))[0].startswith(
            "## beach"
        )
        assert [hit.name for hit in (await client.search_memory("other", "north")).hits] == [
            "beach"
        ]


@pytest.mark.req("memory.rename")
async def test_renaming_an_agent_renames_its_memories_for_each_sender(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, agents={"twin": OWN}, hooks={}) as daemon,
        daemon.client() as client,
    ):
        await call_tool(client, "remember", "ann", agent="twin", name="beach", content="north")
        await client.rename_agent("twin", "other")
        found = await client.search_memory("other", "north", sender="ann")
        assert [hit.name for hit in found.hits] == ["beach"]


@pytest.mark.req("memory.kept")
async def test_memory_survives_restarts_and_crashes(
    tmp_path: Path,
) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model, hooks={}) as daemon, daemon.client() as client:
            await call_tool(client, "remember", name="beach", content="north")
            with Memory.open_read_only(
                daemon.home / "memory" / "crab.crmem"
            ) as seen:  # as a crash leaves it
                assert [entry.name for entry in seen.entries()] == ["beach"]
        async with run_daemon(tmp_path, model, hooks={}) as daemon, daemon.client() as client:
            assert (await call_tool(client, "recall", query="beach"))[0] == "## beach\nnorth"


@pytest.mark.req("memory.damaged")
async def test_a_damaged_memory_is_set_aside_and_the_agent_goes_on(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        home = daemon.home / "memory"
        with Memory.open(home / "crab.crmem") as memory:
            memory.apply(AddEntry("beach", "north"))
            memory.apply(AddEntry("moon", "full"))
        data = (home / "crab.crmem").read_bytes()
        (home / "crab.crmem").write_bytes(data[:-6])
        assert (await call_tool(client, "recall", query="beach"))[0] == "## beach\nnorth"
        assert (await call_tool(client, "remember", name="sun", content="low"))[1] is False
    assert [path for path in home.iterdir() if "damaged" in path.name]


# ── Prompts and settings ────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.guidance")
@pytest.mark.parametrize(
    ("settings", "is_told"), [("", True), ('tools = ["bash"]\n', False)], ids=["all", "scoped"]
)
async def test_only_agents_with_the_memory_tools_get_guidance(
    tmp_path: Path, settings: str, is_told: bool
) -> None:
    async with (
        run_daemon(tmp_path, agents={"crab": PLAIN + settings}, hooks={}) as daemon,
        daemon.client() as client,
    ):
        await client.send("crab", "hi")
        prompt = daemon.model.requests[-1]["messages"][0]["content"]
        assert ("Recall before you say you do not know" in prompt) is is_told


@pytest.mark.req("memory.settings")
@pytest.mark.parametrize("line", ["recall_limit = 0", 'scope = "world"', 'recall_limit = "x"'])
async def test_invalid_settings_are_a_problem_of_the_agent(tmp_path: Path, line: str) -> None:
    agents = {"crab": PLAIN, "odd": f"{PLAIN}[hooks.memory]\n{line}\n"}
    async with run_daemon(tmp_path, agents=agents, hooks={}) as daemon, daemon.client() as client:
        (problem,) = (await client.get_stats()).problems
        assert "hooks.memory: " in problem


@pytest.mark.req("memory.recall.archives")
@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "new"),
        (0, "new"),
        (3599, "new"),
        (7200, "2 hours old"),
        (86400, "1 day old"),
        (86400 * 29, "29 days old"),
        (86400 * 60, "2 months old"),
        (86400 * 366, "1 year old"),
    ],
)
def test_an_age_is_shown_in_its_largest_unit(seconds: int, text: str) -> None:
    assert format_age(seconds) == text


# ── How many are open ───────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.open.bounded")
async def test_the_number_of_open_memories_is_limited(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, agents={"crab": OWN}, hooks={}) as daemon,
        daemon.client() as client,
    ):
        for number in range(40):
            await call_tool(client, "remember", f"s{number}", name="n", content="tide")
        assert count_open_memories(daemon) <= 32
        assert (await call_tool(client, "recall", "s0", query="tide"))[0] == "## n\ntide"
        assert count_open_memories(daemon) <= 32


def count_open_memories(daemon: InProcessDaemon) -> int:
    return daemon.daemon._memory_pool.statistics()["open"]
