"""Runs without an end record: which logs have one, and how loading closes it."""

from pathlib import Path

import pytest

from crabtalk.model import Message
from crabtalk.runtime import Runtime, StopReason
from crabtalk.storage import (
    CUT_OFF,
    AcceptedMessage,
    Agent,
    ConversationMeta,
    EventRecord,
    FileStorage,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Record,
    hash_content,
)
from crabtalk.storage.accepted_messages import drop_repeated_keys, make_closing_records
from crabtalk.storage.run_lookup import OpenRun, find_open_run
from tests.runtime.scripted_provider import ScriptedProvider
from tests.storage.sample_records import AT, PAIR, log_path, make_opening, open_file_storage

MARKER = MarkerRecord("a-1", AT, "t", "s", 2)


def make_user_record(
    number: int, run: str, *, steer: int = 0, key: str = "", text: str = "hi"
) -> Record:
    content_hash = hash_content(text) if key else ""
    message = Message("user", text)
    return MessageRecord(
        number, AT, message, run=run, steer=steer, key=key, content_hash=content_hash
    )


def make_agent_record(number: int, run: str, guest: str = "") -> Record:
    return MessageRecord(number, AT, Message("assistant", "yes", agent=guest), run=run)


def make_done_record(run: str) -> Record:
    return EventRecord("done", AT, run, {"agent": "crab", "stop_reason": "completed"})


def make_tool_start_record(run: str) -> Record:
    return EventRecord("tool_start", AT, run)


def make_accepted(
    run: str, text: str, *, steer: int = 0, key: str = "", number: int = 1
) -> AcceptedMessage:
    return AcceptedMessage(
        *PAIR, run, text, AT, number=number, steer=steer, speaker="crab", message_key=key
    )


PATCH = MetaRecord(title="A title")
LOGS: dict[str, tuple[list[Record], OpenRun | None]] = {
    "ended": (
        [make_user_record(0, "r1"), make_agent_record(1, "r1"), make_done_record("r1")],
        None,
    ),
    "ended, with a snapshot": (
        [make_user_record(0, "r1"), make_agent_record(1, "r1"), make_done_record("r1"), PATCH],
        None,
    ),
    "a message": ([make_user_record(0, "r1")], OpenRun("r1", "")),
    "a message and a title": ([make_user_record(0, "r1"), PATCH], OpenRun("r1", "")),
    "tools": (
        [make_user_record(0, "r1"), make_agent_record(1, "r1"), make_tool_start_record("r1")],
        OpenRun("r1", ""),
    ),
    "a guest": (
        [make_user_record(0, "r1"), make_agent_record(1, "r1", "owl")],
        OpenRun("r1", "owl"),
    ),
    "a steer after the end": (
        [
            make_user_record(0, "r1"),
            make_agent_record(1, "r1"),
            make_done_record("r1"),
            make_user_record(2, "r1", steer=1),
        ],
        OpenRun("r1", ""),
    ),
    "after one that ended": (
        [
            make_user_record(0, "r1"),
            make_agent_record(1, "r1"),
            make_done_record("r1"),
            make_user_record(2, "r2"),
        ],
        OpenRun("r2", ""),
    ),
    "before a marker": ([make_user_record(0, "r1"), make_agent_record(1, "r1"), MARKER], None),
    "after a marker": (
        [make_user_record(0, "r1"), make_done_record("r1"), MARKER, make_user_record(1, "r2")],
        OpenRun("r2", ""),
    ),
    "an earlier version": ([make_user_record(0, "")], None),
    "nothing": ([], None),
    "long": (
        [make_user_record(0, "r1"), *(make_agent_record(n, "r1") for n in range(1, 500))],
        OpenRun("r1", ""),
    ),
}


@pytest.mark.req("delivery.interrupted.closed")
@pytest.mark.parametrize("name", LOGS)
async def test_the_last_run_of_a_log_is_open_when_nothing_says_how_it_ended(
    home: Path, name: str
) -> None:
    records, expected = LOGS[name]
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), *records], create=True)
        assert find_open_run(log_path(home)) == expected
        assert await storage.has_open_run(PAIR) == (expected is not None)
        before = log_path(home).read_bytes()
        await storage.load_and_repair(PAIR)
        after = log_path(home).read_bytes()
        assert after.startswith(before)
        assert (after != before) == (expected is not None)
        assert not await storage.has_open_run(PAIR)
        await storage.load_and_repair(PAIR)
        assert log_path(home).read_bytes() == after


async def test_a_missing_conversation_has_no_open_run(home: Path) -> None:
    async with open_file_storage(home) as storage:
        assert not await storage.has_open_run(PAIR)


@pytest.mark.req("delivery.interrupted.closed")
async def test_a_run_in_flight_is_closed_before_the_turns_that_waited_behind_it(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(
            PAIR,
            [make_opening(), make_user_record(0, "r1"), make_agent_record(1, "r1")],
            create=True,
        )
        await storage.accept_message(make_accepted("r2", "next", number=2))
        await storage.accept_message(make_accepted("r1", "and", steer=1, number=3))
    async with open_file_storage(home) as storage:
        await storage.load_and_repair(PAIR)
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
    records = make_closing_records(
        PAIR, opening_meta(), [make_accepted("r1", "and", steer=1)], closed=["r1"]
    )
    kinds = [type(record) for record in records]
    assert kinds == [MessageRecord, EventRecord, MetaRecord]
    # When the message is in the log already, nothing is added.
    entry = make_accepted("r1", "and", steer=1)
    assert not make_closing_records(
        PAIR, opening_meta(), [entry], written=[entry.key], closed=["r1"]
    )


@pytest.mark.req("delivery.key.unique")
def test_of_accepted_texts_with_one_key_the_first_comes_into_the_log() -> None:
    first, second = (
        make_accepted("r1", "a", key="k", number=1),
        make_accepted("r2", "a", key="k", number=2),
    )
    other = make_accepted("r3", "a", number=3)
    assert list(drop_repeated_keys([first, second, other], (), {})) == [first, other]
    assert list(drop_repeated_keys([first, second], (), {"k": ""})) == []
    assert list(drop_repeated_keys([second, first], (second.key,), {"k": ""})) == [second]


@pytest.mark.req("delivery.key.stored")
async def test_a_run_that_went_on_after_an_end_record_is_reported_as_interrupted(
    home: Path,
) -> None:
    """It was steered while its last message was being stored, and then the daemon died."""
    async with open_file_storage(home) as storage:
        records = [
            make_user_record(0, "r1", key="k"),
            make_agent_record(1, "r1"),
            make_done_record("r1"),
            make_user_record(2, "r1", steer=1),
        ]
        await storage.append(PAIR, [make_opening(), *records], create=True)
        runtime = make_runtime(storage)
        done = await runtime.send(PAIR.agent, "hi", sender=PAIR.sender, key="k")
        assert done.reason is StopReason.ERROR
        assert done.error == CUT_OFF
        await runtime.close()


def make_runtime(storage: FileStorage) -> Runtime:
    runtime = Runtime(storage, ScriptedProvider())
    runtime.register(Agent(PAIR.agent, "You are crab.", model="m"))
    return runtime


def opening_meta() -> ConversationMeta:
    return ConversationMeta(*PAIR, created_at=AT)
