"""Authors of notes, through a real socket: what each sender recalls, replaces and forgets."""

import asyncio
import os
import pwd
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.client import Client, ServerError
from crabtalk.memory import AddEntry, EntryKind, Memory, MemoryEntry, get_author
from crabtalk.protocol import wire
from crabtalk.storage import Pair, make_log_name
from tests.daemon.in_process_daemon import CONFIG, run_daemon
from tests.hooks.test_memory import PLAIN, call_tool
from tests.model_server import model_server

# The behaviour does not depend on the event loop.
pytestmark = pytest.mark.one_loop

SHARED = PLAIN + '[hooks.memory]\nscope = "agent"\n'
TRUSTING = PLAIN + '[hooks.bash]\nallow_senders = ["tg:7"]\n'
WIDE = PLAIN + '[hooks.sessions]\nscope = "agent"\n'
NOTHING = ("no memories found", False)
ACCOUNT = pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.req("memory.author.isolated")
@pytest.mark.parametrize("stranger", ["tg:666", "USER", "user ~x", "tg\x1e666", "x" * 1000])
async def test_notes_do_not_cross_between_the_owner_and_a_stranger(
    tmp_path: Path, stranger: str
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(
            client, "remember", name="door", content="the code is 1234", aliases=["lock"]
        )
        assert await call_tool(client, "recall", stranger, query="door code lock") == NOTHING
        await call_tool(client, "remember", stranger, name="gift", content="a code for the party")
        assert await call_tool(client, "recall", query="gift party") == NOTHING
        found = await call_tool(client, "recall", stranger, query="gift")
        assert found == ("## gift\na code for the party", False)


@pytest.mark.req("memory.author.isolated")
async def test_a_trusted_sender_also_has_only_its_own_notes(
    tmp_path: Path,
) -> None:
    agents = {"crab": TRUSTING}
    async with run_daemon(tmp_path, agents=agents, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", name="door", content="the code is 1234")
        assert await call_tool(client, "recall", "tg:7", query="door code") == NOTHING
        assert (await call_tool(client, "forget", "tg:7", name="door"))[0] == "no entry named: door"


@pytest.mark.req("memory.author.names")
async def test_two_senders_can_use_the_same_name_or_alias(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", name="door", content="1234", aliases=["lock", "gate"])
        for stranger in ("tg:1", "tg:2"):
            outcome = await call_tool(
                client,
                "remember",
                stranger,
                name="door",
                content=f"of {stranger}",
                aliases=["gate", "key"],
            )
            assert outcome == ("remembered: door", False)
            outcome = await call_tool(client, "remember", stranger, name="lock", content="another")
            assert outcome == ("remembered: lock", False)
        assert await call_tool(client, "recall", query="door") == ("## door\n1234", False)
        await call_tool(client, "remember", name="gate", content="5678")
        assert await call_tool(client, "recall", query="door") == ("## door\n5678", False)
        for stranger in ("tg:1", "tg:2"):
            found = await call_tool(client, "recall", stranger, query="key")
            assert found == (f"## door\nof {stranger}", False)


@pytest.mark.req("memory.author.no_oracle")
async def test_forgetting_anothers_note_looks_like_forgetting_a_missing_one(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, summary="They spoke.", hooks={}) as daemon,
        daemon.client() as client,
    ):
        await call_tool(client, "remember", name="door", content="1234", aliases=["lock"])
        await client.compact("crab")
        (archive,) = (await client.list_archives("crab")).archives
        for name in ("door", "lock", archive.name, "\x1etg:1\x1ex"):
            answer = await call_tool(client, "forget", "tg:666", name=name)
            assert answer == (f"no entry named: {name}", False)
            outcome = await call_tool(client, "remember", "tg:666", name=name, content="x")
            assert outcome == (f"remembered: {name}", False)
            answer = await call_tool(client, "forget", "tg:666", name=name)
            assert answer == (f"forgot: {name}", False)
        assert await call_tool(client, "recall", query="door") == ("## door\n1234", False)


@pytest.mark.req("memory.author.names")
async def test_the_owner_cannot_be_tricked_into_changing_a_strangers_note_by_its_stored_name(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", "tg:1", name="door", content="mine")
        stored = "\x1etg:1\x1edoor"
        text, is_error = await call_tool(client, "remember", name=stored, content="changed")
        assert is_error
        assert text.startswith("memory failed: ")
        text, is_error = await call_tool(
            client, "remember", name="x", content="y", aliases=[stored]
        )
        assert is_error
        assert (await call_tool(client, "forget", name=stored))[0].startswith("no entry named")
        assert await call_tool(client, "recall", "tg:1", query="door") == ("## door\nmine", False)


@pytest.mark.req("memory.author.owner")
async def test_the_owner_is_one_person_under_all_senders(tmp_path: Path) -> None:
    config = CONFIG + '[daemon]\nowners = ["alice"]\n'
    senders = [None, "user", "user~work", ACCOUNT, "alice"]
    async with run_daemon(tmp_path, config=config, hooks={}) as daemon, daemon.client() as client:
        for sender in senders:
            name = f"from {sender}"
            await call_tool(client, "remember", sender, name=name, content="harbour", aliases=[])
        for sender in senders:
            text, _ = await call_tool(client, "recall", sender, query="harbour", limit=9)
            assert text.count("## ") == len(senders)
        await call_tool(client, "forget", "user~work", name="from alice")
        text, _ = await call_tool(client, "recall", "alice", query="harbour", limit=9)
        assert text.count("## ") == len(senders) - 1


@pytest.mark.req("memory.author.owner")
async def test_notes_of_a_sender_that_becomes_an_owner_belong_to_the_owner(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", "alice", name="door", content="1234")
        assert await call_tool(client, "recall", query="door") == NOTHING
        text = (daemon.home / "config.toml").read_text()
        daemon.write_config(text + '\n[daemon]\nowners = ["alice"]\n')
        await client.reload()
        assert await call_tool(client, "recall", query="door") == ("## door\n1234", False)
        await call_tool(client, "remember", name="door", content="5678")
        assert await call_tool(client, "recall", "alice", query="door") == ("## door\n5678", False)
        assert await call_tool(client, "forget", name="door") == ("forgot: door", False)
        assert await call_tool(client, "recall", "alice", query="door") == NOTHING


@pytest.mark.req("memory.author.asked")
async def test_only_the_owner_can_recall_notes_of_other_senders(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", "tg:1", name="door", content="obey me")
        found = await recall_notes_of_sender(client, "tg:1", "user")
        assert found == ("## door\nwritten by the sender 'tg:1'\nobey me", False)
        assert await recall_notes_of_sender(client, "tg:2", "user") == NOTHING
        assert await recall_notes_of_sender(client, "tg:1", "tg:1") == ("## door\nobey me", False)
        for other in ("tg:1", "user", "tg:unknown"):
            refusal = "permission denied: only the owner may recall the notes of others"
            assert await recall_notes_of_sender(client, other, "tg:2") == (refusal, True)


async def recall_notes_of_sender(client: Client, other: str, sender: str) -> tuple[str, bool]:
    script = f'!tool recall {{"query": "door", "sender": "{other}"}}\n!then\n!say ok'
    ((text, is_error),) = [
        (event.output, event.is_error)
        async for event in client.stream("crab", script, sender=sender)
        if isinstance(event, wire.ToolResultEvent)
    ]
    return text, is_error


@pytest.mark.req("memory.author.legacy")
async def test_notes_without_an_author_belong_to_the_owner(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        with Memory.open(daemon.home / "memory" / "crab.crmem") as memory:
            memory.apply(AddEntry("door", "1234"))
        assert await call_tool(client, "recall", "tg:1", query="door") == NOTHING
        assert await call_tool(client, "recall", query="door") == ("## door\n1234", False)


@pytest.mark.req("memory.author.shared")
async def test_the_agents_file_can_share_all_notes(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", "tg:1", name="early", content="tide")
        path = daemon.agent_file("crab")
        path.write_text(SHARED)
        await client.reload()
        await call_tool(client, "remember", "tg:1", name="door", content="1234")
        for sender in (None, "tg:2"):
            assert await call_tool(client, "recall", sender, query="door") == (
                "## door\n1234",
                False,
            )
            found = "## early\nwritten by the sender 'tg:1'\ntide"
            assert await call_tool(client, "recall", sender, query="tide") == (found, False)
        await call_tool(client, "remember", "tg:2", name="door", content="5678")
        assert await call_tool(client, "recall", "tg:1", query="door") == ("## door\n5678", False)
        assert await call_tool(client, "forget", "tg:1", name="early") == ("forgot: early", False)


@pytest.mark.req("memory.author.delegated")
async def test_a_delegated_run_has_the_notes_of_its_origin(tmp_path: Path) -> None:
    write = '!tool remember {"name": "beach", "content": "north"}\n!then\n!say ok'
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", name="door", content="1234")
        await call_tool(client, "delegate", "tg:1", tasks=[{"message": write}])
        assert await call_tool(client, "recall", query="beach") == NOTHING
        assert await call_tool(client, "recall", "tg:1", query="beach") == (
            "## beach\nnorth",
            False,
        )
        read = '!tool recall {"query": "door"}\n!then\n!say ok'
        await call_tool(client, "delegate", "tg:1", tasks=[{"message": read}])
        queried_sender = [
            message for request in daemon.model.requests for message in request["messages"]
        ]
        assert not any(
            "1234" in str(m.get("content")) for m in queried_sender if m["role"] == "tool"
        )


@pytest.mark.req("memory.author.archives")
async def test_only_the_owner_sees_archives_of_other_senders(tmp_path: Path) -> None:
    agents = {"crab": WIDE}
    async with (
        run_daemon(tmp_path, summary="periwinkle", agents=agents, hooks={}) as daemon,
        daemon.client() as client,
    ):
        for sender in ("user", "tg:1"):
            await client.send("crab", "hello", sender=sender)
            await client.compact("crab", sender=sender)
        assert (await call_tool(client, "recall", query="periwinkle"))[0].count("archive:") == 2
        text, _ = await call_tool(client, "recall", "tg:1", query="periwinkle")
        assert text.count("archive:") == 1
        assert make_log_name(Pair("crab", "tg:1")) in text


# ── Over the wire ───────────────────────────────────────────────────────────────────────────────


async def list_notes(client: Client, sender: str | None = None) -> dict[str, str]:
    page = await client.list_memory("crab", sender=sender)
    assert page.total == len(page.entries)
    return {entry.name: entry.content for entry in page.entries}


@pytest.mark.req("memory.author.requests")
async def test_requests_for_a_sender_return_what_that_sender_sees(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await call_tool(client, "remember", name="door", content="owner", aliases=["lock"])
        for sender in ("tg:1", "tg:2"):
            await call_tool(
                client, "remember", sender, name="door", content=sender, aliases=["lock"]
            )
        assert await list_notes(client, "tg:1") == {"door": "tg:1"}
        assert await list_notes(client, "user~work") == {"door": "owner"}
        everything = {"door": "owner", "\x1etg:1\x1edoor": "tg:1", "\x1etg:2\x1edoor": "tg:2"}
        assert await list_notes(client) == everything
        for queried_sender, content in (("tg:1", "tg:1"), ("user", "owner"), (None, "owner")):
            (entry,) = (
                await client.list_memory("crab", sender=queried_sender, name="lock")
            ).entries
            assert (entry.name, entry.content) == ("door", content)
        for name in ("\x1etg:2\x1edoor", "nothing"):
            with pytest.raises(ServerError, match="remembers nothing called"):
                await client.list_memory("crab", sender="tg:1", name=name)
        hits = (await client.search_memory("crab", "lock", sender="tg:1")).hits
        assert [(hit.name, hit.content, list(hit.aliases)) for hit in hits] == [
            ("door", "tg:1", ["lock"])
        ]
        assert len((await client.search_memory("crab", "lock")).hits) == 3


@pytest.mark.req("memory.author.requests")
async def test_replacing_a_senders_entries_keeps_those_of_others(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, summary="They spoke.", hooks={}) as daemon,
        daemon.client() as client,
    ):
        await client.send("crab", "hello")
        await client.compact("crab")
        (archive,) = (await client.list_archives("crab")).archives
        await call_tool(client, "remember", name="door", content="owner")
        for sender in ("tg:1", "tg:2"):
            await call_tool(client, "remember", sender, name="door", content=sender)
        new_entries = [wire.MemoryEntry(name=name, content="new") for name in ("door", "gate")]
        await client.replace_memory("crab", new_entries, sender="tg:1")
        assert await list_notes(client, "tg:1") == {"door": "new", "gate": "new"}
        assert await list_notes(client, "tg:2") == {"door": "tg:2"}
        assert await list_notes(client, "user") == {archive.name: "They spoke.", "door": "owner"}
        foreign = wire.MemoryEntry(name=archive.name, kind="archive", content="forged")
        with pytest.raises(ServerError, match="not among the entries of this sender"):
            await client.replace_memory("crab", [foreign], sender="tg:1")
        before = await client.list_memory("crab")
        await client.replace_memory("crab", before.entries)
        assert await list_notes(client) == {entry.name: entry.content for entry in before.entries}
        assert await list_notes(client, "tg:2") == {"door": "tg:2"}


@pytest.mark.req("memory.author.kept")
async def test_authors_survive_journal_merges_restarts_and_renames(tmp_path: Path) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model, hooks={}) as daemon, daemon.client() as client:
            for sender, content in (("user", "owner"), ("tg:1", "stranger")):
                await call_tool(client, "remember", sender, "twin", name="door", content=content)
            async with daemon.daemon.memory.acquire("twin", "user") as memory:
                await asyncio.to_thread(memory.checkpoint)
            await client.rename_agent("twin", "lobster")
        async with run_daemon(tmp_path, model, hooks={}) as daemon, daemon.client() as client:
            for sender, content in (("user~x", "owner"), ("tg:1", "stranger")):
                found = await call_tool(client, "recall", sender, agent="lobster", query="door")
                assert found == (f"## door\n{content}", False)


# ── Crashes ─────────────────────────────────────────────────────────────────────────────────────

BUSY = """
import sys
from pathlib import Path
from crabtalk.hooks.memory_access import forget_note, grant_access, write_note
from crabtalk.memory import Memory
from crabtalk.policy import Owners
from crabtalk.storage import Pair

owners = Owners(account="me")
memory = Memory.open(sys.argv[1])
number = 0
while True:
    number += 1
    sender = "user" if number % 5 == 0 else f"tg:{number % 7}"
    access = grant_access("author", owners, Pair("crab", sender), sees_all_archives=False)
    write_note(memory, access, f"note {number % 11}", f"by {sender}", (f"alias {number % 11}",))
    if number % 4 == 0:
        forget_note(memory, access, f"alias {number % 11}")
    if number % 10 == 0:
        memory.checkpoint()
    print(number, flush=True)
"""


@pytest.mark.req("memory.author.crash")
def test_a_killed_process_leaves_no_note_without_its_author(tmp_path: Path) -> None:
    dice = random.Random(5)
    path = tmp_path / "memory" / "crab.crmem"
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", BUSY, str(path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            for _ in range(dice.randrange(1, 60)):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        for memory in (Memory.open_read_only(path), Memory.open(path)):
            assert memory.entries()
            for entry in memory.entries():
                assert entry.content == f"by {get_author(entry) or 'user'}"
            memory.close()


@pytest.mark.req("memory.author.kept")
def test_a_dump_contains_authors_and_load_restores_them(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "crab.crmem") as memory:
        memory.replace(
            [
                MemoryEntry(1, 10, EntryKind.NOTE, "door", "owner", ("lock",)),
                MemoryEntry(
                    2, 20, EntryKind.NOTE, "\x1etg:1\x1edoor", "one", ("\x1etg:1\x1elock",)
                ),
                MemoryEntry(3, 30, EntryKind.NOTE, "\x1etg:<2>&\x1ea/b", "two"),
            ]
        )
        before = {entry.name: entry for entry in memory.entries()}
        memory.dump(tmp_path / "book")
        pages = [path.read_text() for path in (tmp_path / "book" / "notes").iterdir()]
        assert sum("<dt>Author</dt>\n  <dd><code>tg:1</code></dd>" in page for page in pages) == 1
        assert not any("\x1e" in page or "&#30;" in page for page in pages)
        memory.load(tmp_path / "book")
        after = {entry.name: entry for entry in memory.entries()}
    assert {name: entry[1:] for name, entry in key_entry_fields(before).items()} == {
        name: entry[1:] for name, entry in key_entry_fields(after).items()
    }


def key_entry_fields(entries: dict[str, MemoryEntry]) -> dict[str, tuple[object, ...]]:
    return {
        name: (entry.id, entry.created_at, entry.kind, entry.name, entry.content, entry.aliases)
        for name, entry in entries.items()
    }
