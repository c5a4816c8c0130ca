"""Accepted messages in a database: if their daemon is dead, another one appends and closes them in
one transaction; a daemon that was only suspended never does that to its own."""

import asyncio
from pathlib import Path

import pytest

from crabtalk.model.messages import Message
from crabtalk.storage import AcceptedMessage, ConversationMeta, FencedError, MessageRecord, Pair
from crabtalk.storage.postgres import PostgresStorage
from tests.storage.postgres.test_turn_claims import (
    PAIR,
    QUICK,
    TurnRequester,
    count_rows,
    expire_lease,
    open_storages,
    read_record,
    wait_until,
)

OTHER = Pair("crab", "other")


def make_accepted(
    number: int, *, steer: int = 0, run: str = "", pair: Pair = PAIR
) -> AcceptedMessage:
    at = f"2026-04-28T10:00:{number:02}.000Z"
    run = run or f"w{number}"
    return AcceptedMessage(
        *pair, run, f"text {number}", at, number=number, steer=steer, speaker="crab"
    )


async def expire_daemon(storage: PostgresStorage) -> None:
    """Let a daemon's registration expire."""
    await storage.database.change(
        "UPDATE daemons SET expires_at = clock_timestamp() - interval '1 second' WHERE id = $1",
        storage.id,
    )


@pytest.mark.req("accepted.recovery")
async def test_messages_of_a_live_daemon_are_not_closed(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        await one.accept_message(make_accepted(1))
        assert await two.list_unsettled() == []
        assert await two.load_and_repair(PAIR) is None
        await expire_daemon(one)
        assert await two.list_unsettled() == [PAIR]
        assert await two.load_and_repair(PAIR) is not None
        assert await read_record(two) == ["text 1", "w1 interrupted"]
        assert await two.list_unsettled() == []
        await two.load_and_repair(PAIR)
        assert await read_record(two) == ["text 1", "w1 interrupted"]


@pytest.mark.req("accepted.recovery")
async def test_a_suspended_daemon_does_not_close_messages_of_its_own_runs(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        entry = make_accepted(1)
        await one.accept_message(entry)
        await expire_daemon(one)
        assert await one.load_and_repair(PAIR) is None
        await one.append(
            PAIR,
            [
                ConversationMeta(*PAIR, created_at=entry.at).make_snapshot(),
                MessageRecord(0, entry.at, Message("user", entry.text), run=entry.run),
            ],
            create=True,
        )
        assert await read_record(two) == ["text 1"]
        await two.load_and_repair(PAIR)
        assert await read_record(two) == ["text 1"]


@pytest.mark.req("accepted.recovery")
async def test_a_dead_daemons_turn_is_closed_with_its_steers_and_queued_messages(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        requester = TurnRequester([one, two])
        turn = await (await requester.request_turn(0, "r1")).wait_until_reached()
        await turn.say("before")
        await one.accept_message(make_accepted(1))
        await one.accept_message(make_accepted(2, steer=1, run="r1"))
        await one.accept_message(make_accepted(3))
        await expire_lease(one)
        await expire_daemon(one)
        next_turn = await (await requester.request_turn(1, "r2")).wait_until_reached()
        assert await read_record(two) == [
            "before",
            "text 2",
            "r1 interrupted",
            "text 1",
            "w1 interrupted",
            "text 3",
            "w3 interrupted",
        ]
        await next_turn.say("after")
        assert (await read_record(two))[-1] == "after"
        assert await count_rows(two, "accepted") == 0
        await next_turn.leave()
        await turn.leave()


@pytest.mark.req("accepted.recovery")
async def test_a_suspended_daemon_cannot_append_a_message_that_another_has_closed(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        await one.append(PAIR, [ConversationMeta(*PAIR).make_snapshot()], create=True)
        await one.accept_message(make_accepted(1))
        await expire_daemon(one)
        await two.load_and_repair(PAIR)
        late = MessageRecord(1, "", Message("user", "text 1"), run="w1")
        with pytest.raises(FencedError, match="closed this message"):
            await one.append(PAIR, [late])
        assert await read_record(two) == ["text 1", "w1 interrupted"]


@pytest.mark.req("accepted.waiting_turn")
async def test_a_refused_append_settles_no_message(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        requester = TurnRequester([one, two])
        lost_turn = await (await requester.request_turn(0, "r1")).wait_until_reached()
        await lost_turn.say("before")
        await one.accept_message(make_accepted(1))
        await expire_lease(one)
        next_turn = await (await requester.request_turn(1, "r2")).wait_until_reached()
        with pytest.raises(FencedError):
            await one.append(PAIR, [MessageRecord(1, "", Message("user", "text 1"), run="w1")])
        assert await count_rows(one, "accepted") == 1
        await next_turn.leave()
        await lost_turn.leave()


@pytest.mark.req("accepted.recovery")
async def test_messages_are_recovered_once_by_concurrent_daemons(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 4) as (dead, *others):
        for number in range(1, 6):
            await dead.accept_message(make_accepted(number))
        await expire_daemon(dead)
        await asyncio.gather(
            *(storage.load_and_repair(PAIR) for storage in others), return_exceptions=True
        )
        record = await read_record(others[0])
        assert [line for line in record if line.startswith("text")] == [
            f"text {n}" for n in range(1, 6)
        ]
        assert len(record) == 10


@pytest.mark.req("accepted.recovery")
async def test_queued_messages_of_a_dead_daemon_are_noticed_by_live_ones(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2, lease=QUICK) as (one, two):
        await one.accept_message(make_accepted(1, pair=OTHER))
        noticed = asyncio.Event()
        two.membership.recover = noticed.set
        one.membership.count_runs = lambda: 1 // 0  # its heartbeats fail
        async with asyncio.timeout(20):
            await noticed.wait()

        async def is_left() -> bool:
            return await two.list_unsettled() == [OTHER]

        await wait_until(is_left)


async def test_abandoned_messages_of_a_closed_daemon_are_recovered_by_others(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        await one.accept_message(make_accepted(1))
        one.abandon_messages([make_accepted(1)])
        assert await one.list_unsettled() == [PAIR]
        await one.close()
        assert await two.list_unsettled() == [PAIR]
        await two.load_and_repair(PAIR)
        assert await read_record(two) == ["text 1", "w1 interrupted"]
