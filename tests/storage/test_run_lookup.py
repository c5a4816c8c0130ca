"""Runs and keys in a log: the guarantees of `find_run` and `read_records` for every storage."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from crabtalk.model.messages import Message
from crabtalk.storage import (
    AcceptedMessage,
    EventRecord,
    MessageRecord,
    Pair,
    Record,
    Storage,
    hash_content,
)
from tests.storage.backends import BACKENDS, open_backend
from tests.storage.sample_records import (
    AT,
    PAIR,
    make_every_kind,
    make_marker,
    make_message,
    make_opening,
)

OTHER = Pair("crab", "user")
PLENTY = 1 << 20
# Keys that a client may send, up to 128 bytes.
KEYS = (
    "plain",
    "",
    "nul \0 inside",
    "\0",
    "back\\slash\\0",
    '"quoted","key":"plain"',
    "%_",
    "🦀" * 32,
    "a" * 128,
    "line\nfeed",
    "\ufffe",
)


@pytest.fixture(params=BACKENDS)
async def storage(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Storage]:
    async with open_backend(request.param, home, request) as backend:
        yield backend


def make_run_message(
    number: int, run: str, text: str, *, key: str = "", role: str = "user", steer: int = 0
) -> MessageRecord:
    content_hash = hash_content(text, is_steer=bool(steer)) if key else ""
    message = Message(role, text)  # type: ignore[arg-type]
    return MessageRecord(
        number, AT, message, run=run, steer=steer, key=key, content_hash=content_hash
    )


def make_turn(number: int, run: str, key: str = "") -> list[Record]:
    """A complete turn whose first message has this number."""
    return [
        make_run_message(number, run, f"question {run}", key=key),
        make_run_message(number + 1, run, f"answer {run}", role="assistant"),
        EventRecord("done", AT, run, {"agent": "crab", "stop_reason": "completed"}),
    ]


def make_accepted(number: int, text: str, key: str, *, steer: int = 0) -> AcceptedMessage:
    return AcceptedMessage(
        *PAIR,
        f"w{number}",
        text,
        f"2026-04-28T10:00:{number:02}.000Z",
        number=number,
        steer=steer,
        speaker="crab",
        message_key=key,
        content_hash=hash_content(text, is_steer=bool(steer)),
    )


async def read_user_messages(storage: Storage) -> list[tuple[str, str]]:
    """The text and key of each user message."""
    page = await storage.read_page(PAIR, 0, 100)
    messages = page.messages if page is not None else ()
    return [(r.message.text, r.key) for r in messages if r.message.role == "user"]


@pytest.mark.req("delivery.find_run")
async def test_a_run_is_found_by_its_id_and_by_the_key_of_any_of_its_messages(
    storage: Storage,
) -> None:
    first, second, third = make_turn(0, "r1", "k1"), make_turn(2, "r2"), make_turn(4, "r3", "k3")
    third.insert(2, make_run_message(6, "r3", "and this", key="steer 3", steer=1))
    await storage.append(PAIR, [make_opening(), *first], create=True)
    await storage.append(PAIR, second)
    await storage.append(PAIR, third[:1])
    await storage.append(PAIR, third[1:])
    assert await storage.find_run(PAIR, run="r1") == first
    assert await storage.find_run(PAIR, run="r2") == second
    assert await storage.find_run(PAIR, run="r3") == third
    assert await storage.find_run(PAIR, key="k1") == first
    assert await storage.find_run(PAIR, key="k3") == third
    assert await storage.find_run(PAIR, key="steer 3") == third


@pytest.mark.req("delivery.find_run")
async def test_unknown_runs_and_keys_are_not_found(storage: Storage) -> None:
    assert await storage.find_run(PAIR, key="k1") == []
    await storage.append(
        PAIR, [make_opening(), *make_turn(0, "r1", "k1"), make_message(2)], create=True
    )
    await storage.append(OTHER, [make_opening(OTHER), *make_turn(0, "r2", "k2")], create=True)
    assert await storage.find_run(PAIR) == []
    assert await storage.find_run(PAIR, run="k1") == []
    assert await storage.find_run(PAIR, key="r1") == []
    assert await storage.find_run(PAIR, key="k") == []
    assert await storage.find_run(PAIR, key="k1 ") == []
    assert await storage.find_run(PAIR, key="k2") == []
    assert await storage.find_run(PAIR, run="r2") == []


@pytest.mark.req("delivery.find_run")
async def test_the_same_key_may_be_in_two_conversations(storage: Storage) -> None:
    for pair, run in ((PAIR, "r1"), (OTHER, "r2")):
        await storage.append(pair, [make_opening(pair), *make_turn(0, run, "same")], create=True)
    assert await storage.find_run(PAIR, key="same") == make_turn(0, "r1", "same")
    assert await storage.find_run(OTHER, key="same") == make_turn(0, "r2", "same")


@pytest.mark.req("delivery.find_run")
async def test_a_key_may_have_any_characters(storage: Storage) -> None:
    keys = [key for key in KEYS if key]
    await storage.append(PAIR, [make_opening()], create=True)
    for number, key in enumerate(keys):
        await storage.append(PAIR, make_turn(2 * number, f"r{number}", key))
    for number, key in enumerate(keys):
        assert await storage.find_run(PAIR, key=key) == make_turn(2 * number, f"r{number}", key)


@pytest.mark.req("delivery.find_run")
async def test_runs_before_a_marker_are_found_and_the_marker_keeps_its_fingerprints(
    storage: Storage,
) -> None:
    marker = msgspec.structs.replace(make_marker(2), keys="AAECAwQFBgc=", dropped_keys=3)
    await storage.append(PAIR, [make_opening(), *make_turn(0, "r1", "k1")], create=True)
    await storage.append(PAIR, [marker])
    await storage.append(PAIR, make_turn(2, "r2", "k2"))
    assert await storage.find_run(PAIR, key="k1") == make_turn(0, "r1", "k1")
    assert await storage.find_run(PAIR, key="k2") == make_turn(2, "r2", "k2")
    stored = await storage.load_and_repair(PAIR)
    assert stored is not None
    assert stored.marker == marker


@pytest.mark.req("delivery.find_run")
async def test_keys_are_gone_with_their_conversation(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), *make_turn(0, "r1", "k1")], create=True)
    await storage.delete_conversation(PAIR)
    assert await storage.find_run(PAIR, key="k1") == []
    await storage.append(PAIR, [make_opening(), *make_turn(0, "r9", "k1")], create=True)
    assert await storage.find_run(PAIR, key="k1") == make_turn(0, "r9", "k1")


# ── Records ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.read_records")
async def test_records_are_read_in_order_with_event_records(storage: Storage) -> None:
    records = make_every_kind()
    assert await storage.read_records(PAIR, 0, PLENTY) is None
    await storage.append(PAIR, records[:4], create=True)
    await storage.append(PAIR, records[4:])
    part = await storage.read_records(PAIR, 0, PLENTY)
    assert part is not None
    assert [record for _, record in part.records] == records
    assert (part.pair, part.origin, part.start, part.has_more) == (PAIR, AT, 0, False)
    for index, (position, _) in enumerate(part.records):
        rest = await storage.read_records(PAIR, position, PLENTY)
        assert rest is not None
        assert rest.start == position
        assert [record for _, record in rest.records] == records[index:]


@pytest.mark.req("delivery.read_records")
async def test_records_come_in_parts_and_go_on_where_they_stopped(storage: Storage) -> None:
    records: list[Record] = [make_opening(), *[make_message(n, "x" * 500) for n in range(40)]]
    await storage.append(PAIR, records, create=True)
    read: list[Record] = []
    position, parts = 0, 0
    while True:
        part = await storage.read_records(PAIR, position, 2000)
        assert part is not None
        read += [record for _, record in part.records]
        position, parts = part.position, parts + 1
        if not part.has_more:
            break
    assert read == records
    assert parts > 5
    await storage.append(PAIR, [make_message(40)])
    part = await storage.read_records(PAIR, position, PLENTY)
    assert part is not None
    assert [record for _, record in part.records] == [make_message(40)]


@pytest.mark.req("delivery.read_records")
async def test_a_position_of_a_longer_log_starts_again(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), *[make_message(n) for n in range(30)]], create=True)
    part = await storage.read_records(PAIR, 0, PLENTY)
    assert part is not None
    await storage.delete_conversation(PAIR)
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    again = await storage.read_records(PAIR, part.position, PLENTY)
    assert again is not None
    assert again.start == 0
    assert [record for _, record in again.records] == [make_opening(), make_message(0)]


# ── Accepted texts with a key ──────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.accepted_keys")
async def test_an_accepted_text_keeps_its_key_when_it_is_closed(storage: Storage) -> None:
    entry = make_accepted(1, "hello", "k\0 1")
    await storage.accept_message(entry)
    storage.abandon_messages([entry])
    await storage.load_and_repair(PAIR)
    assert await read_user_messages(storage) == [("hello", "k\0 1")]
    message, end = await storage.find_run(PAIR, key="k\0 1")
    assert isinstance(message, MessageRecord)
    assert isinstance(end, EventRecord)
    assert message.content_hash == entry.content_hash
    assert end.data["stop_reason"] == "interrupted"


@pytest.mark.req("delivery.accepted_keys")
async def test_a_repeated_message_is_not_written_again(storage: Storage) -> None:
    entries = [make_accepted(1, "question r1", "k1"), make_accepted(2, "new", "k2")]
    await storage.append(PAIR, [make_opening(), *make_turn(0, "r1", "k1")], create=True)
    for entry in entries:
        await storage.accept_message(entry)
    storage.abandon_messages(entries)
    await storage.load_and_repair(PAIR)
    assert await read_user_messages(storage) == [("question r1", "k1"), ("new", "k2")]
    assert await storage.list_unsettled() == []
    assert await storage.find_run(PAIR, key="k1") == make_turn(0, "r1", "k1")


@pytest.mark.req("delivery.accepted_keys")
async def test_of_several_accepted_texts_with_one_key_one_is_written(storage: Storage) -> None:
    entries = [make_accepted(number, "hello", "k1") for number in (1, 2, 3)]
    for entry in entries:
        await storage.accept_message(entry)
    storage.abandon_messages(entries)
    await storage.load_and_repair(PAIR)
    assert await read_user_messages(storage) == [("hello", "k1")]
    assert await storage.list_unsettled() == []
    assert len(await storage.find_run(PAIR, run="w1")) == 2


@pytest.mark.req("delivery.accepted_keys")
async def test_another_text_under_a_used_key_is_kept_without_the_key(storage: Storage) -> None:
    entries = [make_accepted(1, "hello", "k1"), make_accepted(2, "something else", "k1")]
    for entry in entries:
        await storage.accept_message(entry)
    storage.abandon_messages(entries)
    await storage.load_and_repair(PAIR)
    assert await read_user_messages(storage) == [("hello", "k1"), ("something else", "")]
    assert len(await storage.find_run(PAIR, key="k1")) == 2


@pytest.mark.req("delivery.accepted_keys")
async def test_the_key_of_a_withdrawn_message_is_free(storage: Storage) -> None:
    entry = make_accepted(1, "hello", "k1")
    await storage.accept_message(entry)
    await storage.withdraw_messages([entry])
    assert await storage.find_run(PAIR, key="k1") == []
    await storage.append(PAIR, [make_opening(), *make_turn(0, "r1", "k1")], create=True)
    assert await read_user_messages(storage) == [("question r1", "k1")]
