"""crabtalkd migrate: files into a database and back, without changing a byte."""

import asyncio
import json
import os
import pty
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from crabtalk.daemon.events.subscription_file import SubscriptionFile
from crabtalk.daemon.process.home import Home
from crabtalk.hooks.memory_pool import build_memory_name
from crabtalk.memory import AddEntry, Memory
from crabtalk.model.messages import Message
from crabtalk.storage import (
    AcceptedMessage,
    ConversationMeta,
    FileStorage,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    Storage,
    make_log_name,
    verify_log,
)
from crabtalk.storage.postgres import PostgresStorage
from crabtalk.storage.records import encode_records
from tests.daemon.crabtalkd_program import CRABTALKD_PROGRAM, run_installed
from tests.forked_programs import PIPE, ForkedProcess
from tests.postgres import PostgresServer, execute_sql, with_parameters
from tests.storage.sample_records import (
    AT,
    PAIR,
    log_path,
    make_every_kind,
    make_marker,
    make_message,
    make_opening,
    seal_records,
)

# The tested processes have event loops of their own.
pytestmark = pytest.mark.one_loop

PATIENCE = 40
CJK = Pair("螃蟹", "微信:张三")
NUL = Pair("crab", "nul\0sender\\0")
LONG = Pair("crab", "long")
GUEST = Pair("crab", "guest")
SLASHES = Pair("crab", "back\\slash 'quoted' \"twice\" 🦀")
CONVERSATIONS = 450  # more than one batch

AGENT = '# mine\r\nprompt = """You are crab."""\r\n\r\n[hooks.memory]   # kept\nper_sender = true\n'
BROKEN = "prompt = 3 # no text\n"


def make_records(pair: Pair) -> list[Record]:
    text = "你好，世界 \0 \u2028 \x7f 🦀"
    return [
        make_opening(pair, title="标题 \0 \\0"),
        make_message(0, text),
        MessageRecord(
            1, AT, Message("assistant", "好", agent="guest\n", opaque={"x": [1.5, None]})
        ),
        MetaRecord(approved=("bash", "mcp:*\0")),
    ]


def make_compacted_records() -> list[Record]:
    records: list[Record] = [make_opening(LONG)]
    records += [make_message(number, f"{number} " * 40) for number in range(1500)]
    records += [make_marker(1500), ConversationMeta(*LONG, AT, "Long", AT, 1500).make_snapshot()]
    return [*records, *[make_message(number) for number in range(1500, 3000)]]


def write_log(home: Path, pair: Pair, data: bytes) -> Path:
    path = log_path(home, pair)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def fill_home(home: Path) -> dict[str, bytes]:
    """Fill a home with everything that can be in one. Returns its logs as they must be copied."""
    home.mkdir(mode=0o700)
    (home / "agents").mkdir()
    (home / "agents" / "crab.toml").write_bytes(AGENT.encode())
    (home / "agents" / "螃蟹.toml").write_text(BROKEN)
    for name in ("crab", build_memory_name("crab", "tg:1"), build_memory_name("crab", NUL.sender)):
        path = home / "memory" / f"{name}.crmem"
        with Memory.open(path) as memory:
            memory.apply(AddEntry(f"of {name}", "content \0 您好", ("alias",)))
            memory.archive("archived", "a summary")
    events = home / "events"
    events.mkdir()
    (events / "subscriptions.toml").write_text(
        '# who runs when\n[[subscription]]\nid = 7\nsource = "agent:crab:done"\n'
        'target_agent = "螃蟹"\n\n[[subscription]]\nid = 3\nsource = "x \\" \\\\ y"\n'
        'target_agent = "crab"\nonce = true\n'
    )
    logs = {
        PAIR: seal_records(make_every_kind()),
        CJK: seal_records(make_records(CJK)),
        NUL: seal_records(make_records(NUL)),
        SLASHES: seal_records(make_records(SLASHES)),
        LONG: seal_records(make_compacted_records()),
    }
    paths = {pair: write_log(home, pair, data) for pair, data in logs.items()}
    return {path.name: logs[pair] for pair, path in paths.items()}


def read_copied_files(home: Path) -> dict[str, bytes]:
    """The copied files by path."""
    files = {
        str(path.relative_to(home)): path.read_bytes()
        for pattern in ("sessions/*.jsonl", "agents/*.toml", "memory/**/*.crmem")
        for path in home.glob(pattern)
    }
    return dict(sorted(files.items()))


def read_log_files(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.glob("sessions/*.jsonl")}


async def run_migrate(home: Path, source: str, target: str, *words: str) -> tuple[int, str, str]:
    return await CRABTALKD_PROGRAM.run_and_capture(
        "migrate", "--home", home, "--from", source, "--to", target, *words, patience=PATIENCE
    )


async def migrate_and_count(home: Path, source: str, target: str) -> dict[str, Any]:
    """Migrate successfully. Returns the numbers of items of each kind, in source and target."""
    code, out, err = await run_migrate(home, source, target, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["ok"] is True
    for totals in report["kinds"].values():
        assert totals["source_hash"] == totals["target_hash"]
        assert totals["is_same"] is True
    return {kind: (totals["source"], totals["target"]) for kind, totals in report["kinds"].items()}


async def expect_refusal(home: Path, source: str, target: str) -> str:
    """Run a migration that fails. Returns its one sentence."""
    code, out, err = await run_migrate(home, source, target)
    assert (code, out) == (1, ""), err
    assert err.startswith("crabtalkd: "), err
    assert err.count("\n") == 1, err
    return err


async def fetch_rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


@asynccontextmanager
async def open_database_storage(home: Path, url: str) -> AsyncIterator[PostgresStorage]:
    storage = PostgresStorage(home, url)
    try:
        await storage.open()
        yield storage
    finally:
        await storage.close()


async def read_everything(storage: Storage, pair: Pair) -> tuple[Any, ...]:
    stored = await storage.read_conversation(pair)
    assert stored is not None
    page = await storage.read_page(pair, 0, 5000)
    return stored.meta, stored.marker, stored.messages, page, await storage.list_archives(pair)


# ── There and back ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("migrate.exact")
async def test_a_migration_and_back_keeps_every_log_agent_and_memory_byte_for_byte(
    tmp_path: Path, home: Path, postgres_url: str
) -> None:
    logs = fill_home(home)
    before = read_copied_files(home)
    counts = {
        "agents": (2, 2),
        "memories": (3, 3),
        "subscriptions": (2, 2),
        "conversations": (5, 5),
        "entries": (sum(data.count(b"\n") for data in logs.values()),) * 2,
    }
    assert await migrate_and_count(home, "file:", postgres_url) == counts
    assert read_copied_files(home) == before
    back = tmp_path / "back"
    assert await migrate_and_count(back, postgres_url, "file:") == counts
    assert read_copied_files(back) == before
    assert read_log_files(back) == logs
    subscriptions = [
        await SubscriptionFile(directory / "events" / "subscriptions.toml").load()
        for directory in (home, back)
    ]
    assert sorted(subscriptions[0], key=lambda subscription: subscription.id) == subscriptions[1]
    assert {path.stat().st_mode & 0o777 for path in back.glob("sessions/*")} == {0o600}
    assert (back / "sessions").stat().st_mode & 0o777 == 0o700


@pytest.mark.req("checksums.migrate")
async def test_logs_without_checksums_come_back_with_valid_chains(
    tmp_path: Path, home: Path, postgres_url: str
) -> None:
    home.mkdir(mode=0o700)
    write_log(home, LONG, encode_records(make_compacted_records()))
    half = encode_records(make_every_kind()[:4])
    write_log(home, PAIR, half + seal_records(make_every_kind()[4:], half))
    await migrate_and_count(home, "file:", postgres_url)
    bodies = await fetch_rows(postgres_url, "SELECT body FROM entries")
    assert not any('"sum":' in body or '"prev":' in body for (body,) in bodies)
    back = tmp_path / "back"
    await migrate_and_count(back, postgres_url, "file:")
    assert log_path(back, LONG).read_bytes() == seal_records(make_compacted_records())
    assert log_path(back).read_bytes() == seal_records(make_every_kind())
    assert [verify_log(path) for path in back.glob("sessions/*.jsonl")] == [[], []]


@pytest.mark.req("migrate.exact")
async def test_the_database_reads_like_the_files_and_can_be_appended_to(
    home: Path, postgres_url: str
) -> None:
    fill_home(home)
    await migrate_and_count(home, "file:", postgres_url)
    files = FileStorage(home)
    async with open_database_storage(home, postgres_url) as storage:
        for pair in (PAIR, CJK, NUL, SLASHES, LONG):
            assert await read_everything(storage, pair) == await read_everything(files, pair)
            assert await storage.resolve_handle(make_log_name(pair)) == pair
        listed = dict(await storage.list_conversations())
        assert listed == dict(await files.list_conversations())
        await storage.append(LONG, [make_message(3000), make_marker(3001), make_message(3001)])
        stored = await storage.read_conversation(LONG)
        assert stored is not None
        assert [message.id for message in stored.messages] == [3001]
        assert stored.meta.message_count == 3002
        new = await storage.subscriptions.add("tide", "crab", once=False)
        assert new.id > 7
        assert (await storage.list_agents())[0][0].name == "crab"
    await files.close()


@pytest.mark.req("migrate.damaged")
async def test_unreadable_lines_are_reported_and_set_aside_without_changing_the_source(
    tmp_path: Path, home: Path, postgres_url: str
) -> None:
    home.mkdir(mode=0o700)
    lines = encode_records([make_opening(), make_message(0), make_message(1)]).splitlines(
        keepends=True
    )
    damaged = b'{"kind":"message","id":1,\xff\x00\n'
    torn = write_log(home, PAIR, b"".join([*lines[:2], damaged, b"\n", lines[2], b'{"kind":"mess']))
    # Lacks its line feed only.
    whole = write_log(home, CJK, encode_records([make_opening(CJK), make_message(0)])[:-1])
    extra = b'{"kind":"meta","title":"t","unknown":"\xff"}\n'
    odd = write_log(home, GUEST, encode_records([make_opening(GUEST)]) + extra)
    ownerless = home / "sessions" / "ownerless-0123456789.jsonl"
    ownerless.write_bytes(encode_records([make_message(0)]))
    (home / "sessions" / "not ours.jsonl").write_bytes(lines[0])
    (home / "sessions" / "empty-0123456789.jsonl").touch()
    copy = home / "sessions" / "copy-0123456789.jsonl"
    copy.write_bytes(lines[0])
    before = read_log_files(home)
    code, _, err = await run_migrate(home, "file:", postgres_url)
    assert code == 0, err
    for name in (torn.name, ownerless.name, "not ours.jsonl", copy.name):
        assert sum(name in line for line in err.splitlines()) >= 1, (name, err)
    assert "(1); they are left out" in err
    assert err.count("half a line") == 1
    assert torn.with_suffix(".damaged").read_bytes() == damaged
    assert read_log_files(home) == before
    await migrate_and_count(tmp_path / "back", postgres_url, "file:")
    assert read_log_files(tmp_path / "back") == {
        torn.name: seal_records([make_opening(), make_message(0), make_message(1)]),
        whole.name: seal_records([make_opening(CJK), make_message(0)]),
        odd.name: seal_records([make_opening(GUEST), MetaRecord(title="t")]),
    }


# ── Repeated migrations ────────────────────────────────────────────────────────────────────────


BEGUN = """
INSERT INTO conversations (key, handle, agent, sender, created_at, updated_at, title,
    message_count, approved, last_seq, changed)
VALUES ('k', $1, '', '', '', '', '', 0, '{}', 1, pg_current_xact_id())
"""


def write_many_logs(home: Path) -> list[str]:
    """Write more conversations than fit one batch. Returns their handles, sorted."""
    home.mkdir(mode=0o700)
    pairs = [Pair("crab", f"sender {number}") for number in range(CONVERSATIONS)]
    for pair in pairs:
        write_log(home, pair, seal_records([make_opening(pair), make_message(0), make_message(1)]))
    return sorted(map(make_log_name, pairs))


@asynccontextmanager
async def block_writers(url: str, statement: str, *values: Any) -> AsyncIterator[None]:
    """Block writers of the same rows until the end, when the rows are rolled back."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("BEGIN")
        await connection.execute(statement, *values)
        yield
    finally:
        connection.terminate()


WAITING = "SELECT 1 FROM pg_locks WHERE locktype = '{}' AND NOT granted"


async def wait_for_lock(url: str, lock: str, process: ForkedProcess) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await fetch_rows(url, WAITING.format(lock)):
            assert process.returncode is None, "it ended without waiting"
            await asyncio.sleep(0.01)


@pytest.mark.req("migrate.again")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
async def test_an_interrupted_migration_can_be_run_again(
    home: Path, private_postgres: PostgresServer, number: int, status: int
) -> None:
    url = private_postgres.url
    handles = write_many_logs(home)
    async with open_database_storage(home, url):
        pass  # the tables are there
    words = ("migrate", "--home", home, "--from", "file:", "--to", url)
    async with block_writers(url, BEGUN, handles[-1]):
        process = CRABTALKD_PROGRAM.start(*words, stdout=PIPE, stderr=PIPE)
        await wait_for_lock(url, "transactionid", process)
        process.send_signal(number)
        assert await process.wait() == status
    async with asyncio.timeout(PATIENCE):  # until the server notices that the process is gone
        while await fetch_rows(url, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"):
            await asyncio.sleep(0.01)
    written = await fetch_rows(url, "SELECT handle FROM conversations")
    assert 0 < len(written) < CONVERSATIONS
    ids = await fetch_rows(url, "SELECT handle, id FROM conversations")
    counts = await migrate_and_count(home, "file:", url)
    assert counts["conversations"] == (CONVERSATIONS, CONVERSATIONS)
    assert counts["entries"] == (3 * CONVERSATIONS, 3 * CONVERSATIONS)
    # Existing rows were not written again.
    assert set(ids) < set(await fetch_rows(url, "SELECT handle, id FROM conversations"))
    assert await migrate_and_count(home, "file:", url) == counts


@pytest.mark.req("migrate.again")
async def test_a_failing_disk_leaves_only_complete_logs_and_the_migration_can_be_run_again(
    tmp_path: Path, home: Path, postgres_url: str
) -> None:
    handles = write_many_logs(home)
    await migrate_and_count(home, "file:", postgres_url)
    back = tmp_path / "back"
    obstacle = back / "sessions" / f"{handles[-1]}.jsonl"
    obstacle.mkdir(parents=True)
    back.chmod(0o700)
    (back / "sessions" / ".0.999999999.new").write_text("half a log of one that died")
    code, out, err = await run_migrate(back, postgres_url, "file:")
    assert (code, out) == (1, "")
    assert "cannot use" in err
    obstacle.rmdir()
    written = read_log_files(back)
    assert 0 < len(written) < CONVERSATIONS
    assert written.items() < read_log_files(home).items()
    assert {path.suffix for path in back.glob("sessions/*")} == {".jsonl"}
    counts = await migrate_and_count(back, postgres_url, "file:")
    assert counts["conversations"] == (CONVERSATIONS, CONVERSATIONS)
    assert read_log_files(back) == read_log_files(home)


# ── Refusals ───────────────────────────────────────────────────────────────────────────────────

CHANGES = {
    "another agent": "INSERT INTO agents VALUES ('owl', 'prompt = \"Hoo.\"')",
    "an agent": "UPDATE agents SET body = body || ' ' WHERE name = 'crab'",
    "a memory": "DELETE FROM memory_entries WHERE id = 2",
    "a subscription": "UPDATE subscriptions SET once = NOT once WHERE id = 3",
    "an entry": "UPDATE entries SET body = replace(body, 'message 2999', 'message 0')",
    "a title": "UPDATE conversations SET title = 'other' WHERE title = 'Two files'",
    "a marker": "UPDATE conversations SET marker_seq = marker_seq - 1 WHERE sender = 'long'",
}
NAMED = {
    "another agent": "the agent owl, which {home} has not",
    "an agent": "the agent crab, which is another in {home}",
    "a memory": "the memory crab, which is another in {home}",
    "a subscription": "the subscription 3, which is another in {home}",
    "an entry": f"the conversation {make_log_name(LONG)}, which is another in {{home}}",
    "a title": f"the conversation {make_log_name(PAIR)}, which is another in {{home}}",
    "a marker": f"the conversation {make_log_name(LONG)}, which is another in {{home}}",
}


@pytest.mark.req("migrate.refuses.other")
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.slow
async def test_a_database_with_other_data_is_not_changed(
    home: Path, postgres_url: str, what: str
) -> None:
    fill_home(home)
    await migrate_and_count(home, "file:", postgres_url)
    execute_sql(postgres_url, CHANGES[what], "DELETE FROM conversations WHERE sender = 'tg:12345'")
    if what == "a title":
        await migrate_and_count(home, "file:", postgres_url)
        execute_sql(postgres_url, CHANGES[what])
    counting = "SELECT (SELECT count(*) FROM conversations), (SELECT count(*) FROM entries)"
    before = await fetch_rows(postgres_url, counting)
    err = await expect_refusal(home, "file:", postgres_url)
    assert NAMED[what].format(home=home) in err
    assert "nothing was written" in err
    assert await fetch_rows(postgres_url, counting) == before


@pytest.mark.req("migrate.refuses.other")
async def test_a_home_with_other_data_is_not_changed(
    tmp_path: Path, home: Path, postgres_url: str
) -> None:
    fill_home(home)
    await migrate_and_count(home, "file:", postgres_url)
    back = tmp_path / "back"
    back.mkdir(mode=0o700)
    path = write_log(back, PAIR, encode_records(make_every_kind()[:-1]))
    err = await expect_refusal(back, postgres_url, "file:")
    assert f"the conversation {make_log_name(PAIR)}, which is another in " in err
    assert read_log_files(back) == {path.name: encode_records(make_every_kind()[:-1])}
    shutil.rmtree(back / "sessions")
    write_log(back, GUEST, encode_records([make_opening(GUEST)]))
    err = await expect_refusal(back, postgres_url, "file:")
    assert f"the conversation {make_log_name(GUEST)}, which " in err
    assert "has not" in err


@pytest.mark.req("migrate.verified")
async def test_a_copy_that_differs_is_reported(home: Path, postgres_url: str) -> None:
    home.mkdir(mode=0o700)
    write_log(home, PAIR, encode_records([make_opening(), make_message(0)]))
    async with open_database_storage(home, postgres_url):
        pass  # the tables are there
    execute_sql(
        postgres_url,
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.body := replace(NEW.body, 'message 0', 'message O'); RETURN NEW; END $$",
        "CREATE TRIGGER spoil BEFORE INSERT ON entries FOR EACH ROW EXECUTE FUNCTION spoil()",
    )
    code, out, err = await run_migrate(home, "file:", postgres_url)
    assert code == 1
    lines = {line.split()[0]: line.split()[-1] for line in out.splitlines()[1:]}
    assert lines == {
        "agents": "same",
        "memories": "same",
        "subscriptions": "same",
        "conversations": "same",
        "entries": "DIFFERENT",
    }
    assert "not the same" in err
    assert "[storage]" not in err


@pytest.mark.req("migrate.refuses.daemons")
async def test_nothing_is_migrated_while_a_daemon_uses_the_home(
    home: Path, postgres_url: str
) -> None:
    fill_home(home)
    with Home(home):
        for sides in (("file:", postgres_url), (postgres_url, "file:")):
            err = await expect_refusal(home, *sides)
            assert f"another daemon (pid {os.getpid()}) already runs in {home}" in err
    assert await fetch_rows(postgres_url, "SELECT to_regclass('crabtalk_schema')") == [(None,)]


@pytest.mark.req("migrate.refuses.daemons")
async def test_nothing_is_migrated_while_a_daemon_uses_the_database(
    tmp_path: Path, home: Path, postgres_url: str
) -> None:
    fill_home(home)
    async with open_database_storage(tmp_path / "other", postgres_url):
        for sides in (("file:", postgres_url), (postgres_url, "file:")):
            err = await expect_refusal(home, *sides)
            assert f"{tmp_path / 'other'}; stop all of them first" in err
        assert await fetch_rows(postgres_url, "SELECT count(*) FROM conversations") == [(0,)]
    await migrate_and_count(home, "file:", postgres_url)


@pytest.mark.req("migrate.refuses.daemons")
async def test_a_daemon_that_starts_during_a_migration_waits(
    home: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    handles = write_many_logs(home)
    async with open_database_storage(home, url):
        pass  # the tables are there
    (home / "agents").mkdir()
    (home / "agents" / "crab.toml").write_text(AGENT)
    words = ("migrate", "--home", home, "--from", "file:", "--to", url)
    storage = PostgresStorage(home, url)
    async with block_writers(url, "INSERT INTO agents VALUES ('crab', '')"):
        process = CRABTALKD_PROGRAM.start(*words, stdout=PIPE, stderr=PIPE)
        await wait_for_lock(url, "transactionid", process)
        another = await expect_refusal(home.parent / "back", url, "file:")
        assert "another program is at work" in another
        starting = asyncio.ensure_future(storage.open())
        await wait_for_lock(url, "advisory", process)
        assert not starting.done()
    async with asyncio.timeout(PATIENCE):
        await starting
    assert len(await storage.list_conversations()) == len(handles)
    await storage.close()
    await process.communicate()


# ── Output ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("migrate.verified")
async def test_the_output_is_a_table_and_the_setting_for_the_configuration(
    tmp_path: Path, home: Path, postgres_url: str
) -> None:
    fill_home(home)
    url = postgres_url.replace("crabtalk@", "crabtalk:geheim%21@", 1)
    words = ("migrate", "--home", home, "--from", "file:", "--to", url)
    code, out, err = await run_installed(*words)
    assert code == 0, err
    heading, *lines = (line.split() for line in out.splitlines())
    assert heading == ["source", "target", "hash"]
    assert [line[:3] for line in lines][:4] == [
        ["agents", "2", "2"],
        ["memories", "3", "3"],
        ["subscriptions", "2", "2"],
        ["conversations", "5", "5"],
    ]
    assert {line[-1] for line in lines} == {"same"}
    assert all(len(line[3]) == 32 for line in lines)
    assert f"{home}/config.toml" in err
    assert '[storage]\nurl = "postgresql://crabtalk:********@' in err
    assert "geheim" not in out + err
    assert "\r" not in err
    code, _, err = await run_migrate(tmp_path / "back", url, "file:")
    assert code == 0, err
    assert '[storage]\nurl = "file:"\n' in err


@pytest.mark.req("migrate.verified")
async def test_progress_is_shown_on_a_terminal(home: Path, postgres_url: str) -> None:
    fill_home(home)
    master, slave = pty.openpty()
    words = ("migrate", "--home", home, "--from", "file:", "--to", postgres_url)
    try:
        process = CRABTALKD_PROGRAM.start(*words, stdout=PIPE, stderr=slave)
        async with asyncio.timeout(PATIENCE):
            out, _ = await process.communicate()
        screen = os.read(master, 65536).decode()
    finally:
        os.close(slave)
        os.close(master)
    assert process.returncode == 0
    assert "copying agents: 0 of 2" in screen
    assert b"\x1b" not in out


@pytest.mark.req("migrate.sentences")
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("file:", "file:"),
        ("postgresql://a/b", "postgres://c/d"),
        ("file:", "mysql://a/b"),
        ("file:", "postgresql://us/er:geheim@a/b"),
        ("file:", "postgresql://user:geheim@a:port/b"),
        ("", "file:"),
    ],
)
async def test_errors_about_urls_do_not_quote_them(home: Path, source: str, target: str) -> None:
    home.mkdir(mode=0o700)
    code, out, err = await run_migrate(home, source, target)
    assert (code, out) == (2, "")
    assert "--from" in err or "--to" in err
    assert "geheim" not in err


@pytest.mark.req("migrate.sentences")
async def test_a_missing_home_is_not_created(home: Path, postgres_url: str) -> None:
    code, _, err = await run_migrate(home, "file:", postgres_url)
    assert code == 2
    assert f"there is no home {home}" in err
    assert not home.exists()


@pytest.mark.req("migrate.sentences")
async def test_a_database_without_our_tables_is_reported_in_a_sentence(
    home: Path, postgres_url: str
) -> None:
    err = await expect_refusal(home, postgres_url, "file:")
    assert "nothing of crabtalk is in " in err
    assert await fetch_rows(postgres_url, "SELECT to_regclass('crabtalk_schema')") == [(None,)]
    err = await expect_refusal(home, "postgresql://crabtalk@/none?host=/nowhere", "file:")
    assert "cannot be used now ([Errno 2] No such file" in err
    missing = with_parameters(postgres_url, search_path="none_such")
    home.mkdir(mode=0o700, exist_ok=True)
    assert "search_path" in await expect_refusal(home, "file:", missing)


@pytest.mark.req("migrate.sentences")
async def test_an_unreachable_database_is_reported_and_the_migration_can_be_run_again(
    home: Path, private_postgres: PostgresServer
) -> None:
    fill_home(home)
    url = private_postgres.url
    private_postgres.stop()
    assert "cannot be used now" in await expect_refusal(home, "file:", url)
    private_postgres.start()
    await migrate_and_count(home, "file:", url)


# ── Accepted messages ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("accepted.recovery")
async def test_messages_that_a_killed_daemon_had_accepted_are_copied_too(
    home: Path, postgres_url: str
) -> None:
    write_log(home, PAIR, encode_records([make_opening(), make_message(0)]))
    storage = FileStorage(home)
    await storage.accept_message(AcceptedMessage(*PAIR, "r1", "wait for me", AT))
    await storage.close()
    assert (await migrate_and_count(home, "file:", postgres_url))["conversations"] == (1, 1)
    async with open_database_storage(home, postgres_url) as database:
        page = await database.read_page(PAIR, 0, 10)
        assert page is not None
        assert [record.message.text for record in page.messages] == ["message 0", "wait for me"]


@pytest.mark.req("accepted.recovery")
async def test_a_database_with_accepted_messages_is_refused(
    tmp_path: Path, home: Path, postgres_url: str
) -> None:
    async with open_database_storage(home, postgres_url) as database:
        await database.accept_message(AcceptedMessage(*PAIR, "r1", "wait for me", AT))
    empty = tmp_path / "empty"
    empty.mkdir(0o700)
    assert "1 accepted messages" in await expect_refusal(empty, postgres_url, "file:")
