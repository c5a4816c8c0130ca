"""Runs without an end: which log has one, and how it is ended on the record."""

from pathlib import Path

import pytest

from crabtalk.model import Message
from crabtalk.runtime import Runtime, StopReason
from crabtalk.storage import (
    CUT_OFF,
    Accepted,
    Agent,
    EventRecord,
    FileStorage,
    MarkerRecord,
    MessageRecord,
    Meta,
    MetaRecord,
    Record,
    hash_content,
)
from crabtalk.storage.acceptance import closing_records, without_repetitions
from crabtalk.storage.run_log import OpenRun, find_open_run
from tests.runtime.provider import ScriptedProvider
from tests.storage.samples import AT, PAIR, log_of, opened, opening

MARKER = MarkerRecord("a-1", AT, "t", "s", 2)


def user(number: int, run: str, *, steer: int = 0, key: str = "", text: str = "hi") -> Record:
    content_hash = hash_content(text) if key else ""
    message = Message("user", text)
    return MessageRecord(
        number, AT, message, run=run, steer=steer, key=key, content_hash=content_hash
    )


def agent(number: int, run: str, guest: str = "") -> Record:
    return MessageRecord(number, AT, Message("assistant", "yes", agent=guest), run=run)


def done(run: str) -> Record:
    return EventRecord("done", AT, run, {"agent": "crab", "stop_reason": "completed"})


def trace(run: str) -> Record:
    return EventRecord("tool_start", AT, run)


def accepted(run: str, text: str, *, steer: int = 0, key: str = "", number: int = 1) -> Accepted:
    return Accepted(
        *PAIR, run, text, AT, number=number, steer=steer, speaker="crab", message_key=key
    )


PATCH = MetaRecord(title="A title")
LOGS: dict[str, tuple[list[Record], OpenRun | None]] = {
    "ended": ([user(0, "r1"), agent(1, "r1"), done("r1")], None),
    "ended, with a snapshot": ([user(0, "r1"), agent(1, "r1"), done("r1"), PATCH], None),
    "a message": ([user(0, "r1")], OpenRun("r1", "")),
    "a message and a title": ([user(0, "r1"), PATCH], OpenRun("r1", "")),
    "tools": ([user(0, "r1"), agent(1, "r1"), trace("r1")], OpenRun("r1", "")),
    "a guest": ([user(0, "r1"), agent(1, "r1", "owl")], OpenRun("r1", "owl")),
    "a steer after the end": (
        [user(0, "r1"), agent(1, "r1"), done("r1"), user(2, "r1", steer=1)],
        OpenRun("r1", ""),
    ),
    "after one that ended": (
        [user(0, "r1"), agent(1, "r1"), done("r1"), user(2, "r2")],
        OpenRun("r2", ""),
    ),
    "before a marker": ([user(0, "r1"), agent(1, "r1"), MARKER], None),
    "after a marker": ([user(0, "r1"), done("r1"), MARKER, user(1, "r2")], OpenRun("r2", "")),
    "an earlier version": ([user(0, "")], None),
    "nothing": ([], None),
    "long": (
        [user(0, "r1"), *(agent(n, "r1") for n in range(1, 500))],
        OpenRun("r1", ""),
    ),
}


@pytest.mark.req("delivery.interrupted.closed")
@pytest.mark.parametrize("name", LOGS)
async def test_the_last_run_of_a_log_is_open_when_nothing_says_how_it_ended(
    home: Path, name: str
) -> None:
    records, expected = LOGS[name]
    async with opened(home) as storage:
        await storage.append(PAIR, [opening(), *records], create=True)
        assert find_open_run(log_of(home)) == expected
        assert await storage.has_open_run(PAIR) == (expected is not None)
        before = log_of(home).read_bytes()
        await storage.load(PAIR)
        after = log_of(home).read_bytes()
        assert after.startswith(before)
        assert (after != before) == (expected is not None)
        assert not await storage.has_open_run(PAIR)
        await storage.load(PAIR)
        assert log_of(home).read_bytes() == after


async def test_what_is_not_there_has_no_open_run(home: Path) -> None:
    async with opened(home) as storage:
        assert not await storage.has_open_run(PAIR)


@pytest.mark.req("delivery.interrupted.closed")
async def test_a_run_in_flight_is_closed_before_the_turns_that_waited_behind_it(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening(), user(0, "r1"), agent(1, "r1")], create=True)
        await storage.accept(accepted("r2", "next", number=2))
        await storage.accept(accepted("r1", "and", steer=1, number=3))
    async with opened(home) as storage:
        await storage.load(PAIR)
        followed = await storage.read_records(PAIR, 0, 1 << 20)
    assert followed is not None
    found = [
        (r.run, r.message.text if isinstance(r, MessageRecord) else r.data["stop_reason"])
        for _, r in followed.records
        if isinstance(r, MessageRecord | EventRecord)
    ]
    assert found == [
        ("r1", "hi"),
        ("r1", "yes"),
        ("r1", "and"),
        ("r1", "interrupted"),
        ("r2", "next"),
        ("r2", "interrupted"),
    ]


def test_a_steer_that_comes_into_the_log_after_the_end_of_its_run_has_an_end_of_its_own() -> None:
    records = closing_records(PAIR, opening_meta(), [accepted("r1", "and", steer=1)], closed=["r1"])
    kinds = [type(record) for record in records]
    assert kinds == [MessageRecord, EventRecord, MetaRecord]
    # It is in the log already: nothing is left to say.
    entry = accepted("r1", "and", steer=1)
    assert not closing_records(PAIR, opening_meta(), [entry], written=[entry.key], closed=["r1"])


@pytest.mark.req("delivery.key.unique")
def test_of_accepted_texts_with_one_key_the_first_comes_into_the_log() -> None:
    first, second = accepted("r1", "a", key="k", number=1), accepted("r2", "a", key="k", number=2)
    other = accepted("r3", "a", number=3)
    assert list(without_repetitions([first, second, other], (), {})) == [first, other]
    assert list(without_repetitions([first, second], (), {"k": ""})) == []
    assert list(without_repetitions([second, first], (second.key,), {"k": ""})) == [second]


@pytest.mark.req("delivery.key.stored")
async def test_a_run_that_went_on_after_what_looked_like_its_end_is_told_as_cut_off(
    home: Path,
) -> None:
    """It was steered while its last words were being kept, and then the daemon died."""
    async with opened(home) as storage:
        records = [user(0, "r1", key="k"), agent(1, "r1"), done("r1"), user(2, "r1", steer=1)]
        await storage.append(PAIR, [opening(), *records], create=True)
        runtime = make_runtime(storage)
        done_again = await runtime.send(PAIR.agent, "hi", sender=PAIR.sender, key="k")
        assert done_again.reason is StopReason.ERROR
        assert done_again.error == CUT_OFF
        await runtime.close()


def make_runtime(storage: FileStorage) -> Runtime:
    runtime = Runtime(storage, ScriptedProvider())
    runtime.register(Agent(PAIR.agent, "You are crab.", model="m"))
    return runtime


def opening_meta() -> Meta:
    return Meta(*PAIR, created_at=AT)
