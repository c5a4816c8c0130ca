"""A database that other programs write to: invalid rows, and messages of fake daemons. Valid data
is used, the rest is reported, and no client waits for it."""

import asyncio
import json
import logging
import random
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from crabtalk.client import ServerError
from crabtalk.protocol import wire
from crabtalk.storage import Pair
from crabtalk.storage.postgres.column_encoding import make_pair_key
from tests.daemon import in_process_daemon
from tests.daemon.in_process_daemon import run_daemon, wait_for_event
from tests.fleet.fleet_daemons import run_daemons
from tests.hostile.corruption import corrupt_json, corrupt_lines
from tests.hostile.test_homes import AGENT, RequestSurvey, make_records
from tests.model_server import model_server
from tests.postgres import execute_sql

log = logging.getLogger(__name__)

# Each takes a JSON document with all rows, to insert them in one statement.
CONVERSATIONS = """
INSERT INTO conversations (key, handle, agent, sender, created_at, updated_at, title, message_count,
    approved, last_seq, marker_seq, changed)
SELECT row.key, one.handle || row.sender, 'crab', row.sender, row.created_at,
    row.updated_at, row.title, row.message_count, ARRAY[row.title], 9, row.marker_seq, one.changed
FROM jsonb_to_recordset($1::jsonb) AS row(key text, sender text, created_at text, updated_at text,
    title text, message_count bigint, marker_seq bigint)
CROSS JOIN (SELECT * FROM conversations WHERE sender = 'user' LIMIT 1) AS one
"""
ENTRIES = """
INSERT INTO entries SELECT id, row.seq, row.message_id, row.kind, row.body
FROM jsonb_to_recordset($1::jsonb) AS row(sender text, seq bigint, message_id bigint, kind text,
    body text)
JOIN conversations USING (sender)
"""
AGENTS = """
INSERT INTO agents SELECT name, body FROM jsonb_to_recordset($1::jsonb) AS row(name text, body text)
"""
SUBSCRIPTIONS = """
INSERT INTO subscriptions (source, target_agent, once) SELECT source, target_agent, true
FROM jsonb_to_recordset($1::jsonb) AS row(source text, target_agent text)
"""
MESSAGES = """
INSERT INTO mail (recipient, sender, kind, body)
SELECT $1, $2, unnest($3::text[]), unnest($4::bytea[])
"""
COUNTS = (0, 1, 5, 2**53)
NUMBERS = (*COUNTS, -1, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "x",
    "2026-01-31T12:00:00Z",
    "today",
    "é" * 3000,
    "\x7f",
    "9999-99-99T99:99:99Z",
    "\\u0000",
)


def insert_odd_rows(url: str, seed: int, count: int) -> list[Pair]:
    """Insert invalid conversations, modelled after an existing one, agents and subscriptions."""
    rng = random.Random(seed)
    pairs = [Pair("crab", f"s{number}") for number in range(count)]
    conversations = [
        {
            "key": make_pair_key(pair),
            "sender": pair.sender,
            **{key: rng.choice(TEXTS) for key in ("created_at", "updated_at", "title")},
            "message_count": rng.choice(COUNTS),
            "marker_seq": rng.choice((None, 6, *NUMBERS)),
        }
        for pair in pairs
    ]
    entries = [
        {
            "sender": pair.sender,
            "seq": seq,
            "message_id": rng.choice((None, seq, *NUMBERS)),
            "kind": rng.choice(("message", "event", "marker", "meta", "", "x")),
            "body": decode_column(
                corrupt_json(rng, json.loads(line)) if rng.random() < 0.4 else line[:-1]
            ),
        }
        for pair in pairs
        for seq, line in enumerate(make_records(pair), 1)
    ]
    agents = [
        {"name": f"odd{n}", "body": decode_column(corrupt_lines(rng, AGENT))} for n in range(count)
    ]
    agents += [{"name": n, "body": 'prompt = "p"'} for n in ("..", "a/b", "", "x" * 300, "a\nb")]
    targets = (("", ""), ("x", "missing"), ("y" * 2000, "../x"), ("z", "crab"))
    subscriptions = [{"source": source, "target_agent": target} for source, target in targets]
    for statement, rows in (
        *((CONVERSATIONS, conversations), (ENTRIES, entries)),
        *((AGENTS, agents), (SUBSCRIPTIONS, subscriptions)),
    ):
        execute_sql(url, statement, values=(json.dumps(rows),))
    return pairs


def decode_column(data: bytes) -> str:
    """Bytes as text that a column can hold."""
    return data.replace(b"\0", b"").decode(errors="replace")


@pytest.mark.timeout(120)
async def test_rows_of_other_programs_are_read_as_far_as_possible(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process_daemon, "DATABASE", postgres_url)
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await client.send("crab", "hello")
            pairs = await asyncio.to_thread(insert_odd_rows, postgres_url, 3, 40)
            await RequestSurvey(client).ask_everything(pairs)
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            survey = RequestSurvey(client)
            await survey.ask_everything(pairs)
            assert (await client.send("crab", "!say so")).content == "so"
    log.info("%s", survey.answers)
    assert survey.answers["history"] > 20


def make_odd_messages(rng: random.Random) -> list[tuple[str, bytes]]:
    """Messages that our daemons never write."""
    number = uuid4().hex
    kinds = (
        *(
            "",
            "ask",
            "ask ",
            "ask x",
            "ask  ",
            f"ask {number}",
            f"ask {number} ",
            "answer ",
            "refusal ",
        ),
        *(
            f"ask {number} request",
            f"ask {number} question",
            f"ask {number} asks",
            "events",
            "asks",
        ),
        *(f"ask {number} nothing", f"answer {number}", f"refusal {number}", "x" * 5000, "turn x"),
    )
    bodies = (
        b"",
        b"\xff" * 9,
        b"\0" * 99,
        rng.randbytes(200),
        b"\xff\xff\xff\xffx",
        b"\x00\x00\x00\x02\xff\xff",
    )
    return [(kind, body) for kind in kinds for body in bodies]


def insert_messages(url: str, recipient: UUID, messages: list[tuple[str, bytes]]) -> None:
    kinds, bodies = zip(*messages, strict=True)
    execute_sql(url, MESSAGES, values=(recipient, uuid4(), list(kinds), list(bodies)))


def find_daemon_id(url: str, number: int) -> UUID:
    rows = execute_sql(url, "SELECT id FROM daemons ORDER BY started_at")
    daemon_id: UUID = rows[number]["id"]
    return daemon_id


@pytest.mark.timeout(120)
async def test_invalid_messages_do_not_affect_a_daemon(tmp_path: Path, postgres_url: str) -> None:
    rng = random.Random(9)
    async with run_daemons(tmp_path, postgres_url, 2) as (one, two):
        recipient = await asyncio.to_thread(find_daemon_id, postgres_url, 0)
        await asyncio.to_thread(insert_messages, postgres_url, recipient, make_odd_messages(rng))
        notices = ["", "mail", "mail x", "turn", "turn \x01", "revision", "revision x", "x" * 7000]
        channel = one.daemon.storage.mailbox._channel  # type: ignore[attr-defined]
        notify = "SELECT pg_notify($1, unnest($2::text[]))"
        await asyncio.to_thread(execute_sql, postgres_url, notify, values=(channel, notices))
        count = "SELECT count(*) FROM mail"
        while (await asyncio.to_thread(execute_sql, postgres_url, count))[0]["count"]:
            await asyncio.sleep(0.05)
        async with one.client() as mine, two.client() as theirs:
            running = mine.stream("crab", "!say so\n!wait")
            await wait_for_event(running, wire.StreamChunk)
            await theirs.kill("crab")  # forwarded as a message to the first daemon
            await wait_for_event(running, wire.StreamEnd)
            assert (await mine.send("twin", "!say so")).content == "so"


@pytest.mark.timeout(120)
async def test_an_unreadable_message_does_not_affect_others(
    tmp_path: Path, postgres_url: str
) -> None:
    async with run_daemons(tmp_path, postgres_url, 2) as (one, _):
        recipient = await asyncio.to_thread(find_daemon_id, postgres_url, 0)
        mail = one.daemon.storage.mailbox  # type: ignore[attr-defined]
        received: list[bytes] = []
        mail.on_message("test", lambda _sender, body: received.append(body))
        await asyncio.to_thread(
            insert_messages, postgres_url, recipient, [("ask x", b""), ("test", b"good")]
        )
        async with asyncio.timeout(3):
            while not received:
                await asyncio.sleep(0.01)


async def answer_messages_as(url: str, impostor: UUID, word: str, body: bytes) -> None:
    """Answer all messages for `impostor` with the same body."""
    while True:
        take = "DELETE FROM mail WHERE recipient = $1 RETURNING sender, kind"
        for row in await asyncio.to_thread(execute_sql, url, take, values=(impostor,)):
            number = row["kind"].split(" ")[1]
            await asyncio.to_thread(
                insert_messages, url, row["sender"], [(f"{word} {number}", body)]
            )
        await asyncio.sleep(0.2)


IMPOSTOR = """
INSERT INTO daemons (id, name, version, expires_at)
VALUES ($1, 'impostor', '9.9', clock_timestamp() + interval '1 hour')
"""
TURN = """
INSERT INTO leases (key, agent, sender, owner, run, since, fence, expires_at)
SELECT key, agent, sender, $1, 'r', 0, 1, clock_timestamp() + interval '1 hour' FROM conversations
ON CONFLICT (key) DO UPDATE SET owner = $1, expires_at = clock_timestamp() + interval '1 hour'
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("word", "body"),
    [("answer", b"\xff\xff"), ("answer", b""), ("refusal", b"no")],
)
@pytest.mark.slow
async def test_a_daemon_that_answers_nonsense_is_a_clear_error(
    tmp_path: Path, postgres_url: str, word: str, body: bytes
) -> None:
    impostor = uuid4()
    async with run_daemons(tmp_path, postgres_url, 1) as (one,), one.client() as client:
        await client.send("crab", "hello")
        for statement in (IMPOSTOR, TURN):
            await asyncio.to_thread(execute_sql, postgres_url, statement, values=(impostor,))
        answering = asyncio.ensure_future(answer_messages_as(postgres_url, impostor, word, body))
        try:
            requests: list[Awaitable[Any]] = [
                client.kill("crab"),
                client.steer_session("crab", "x"),
                client.reply_to_ask("crab", "x"),
                client.set_title("crab", "t"),
            ]
            codes = [await get_error_code(request) for request in requests]
        finally:
            answering.cancel()
        assert codes == [503] * 4


async def get_error_code(request: Awaitable[Any]) -> int:
    with pytest.raises(ServerError) as caught:
        await request
    assert "internal error (" not in caught.value.message
    return caught.value.code


@pytest.mark.timeout(120)
async def test_an_invalid_count_does_not_hide_other_conversations(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process_daemon, "DATABASE", postgres_url)
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for sender in ("one", "two"):
            await client.send("crab", "hello", sender=sender)
        spoil = "UPDATE conversations SET message_count = -1 WHERE sender = 'one'"
        await asyncio.to_thread(execute_sql, postgres_url, spoil)
        listed = await client.list_conversations()
        assert "two" in [row.sender for row in listed.conversations]
