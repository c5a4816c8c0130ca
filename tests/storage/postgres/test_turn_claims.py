"""Turns across daemons: one at a time, in order, and no writes by a daemon that lost its turn."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk.model.messages import Message
from crabtalk.runtime.clock import Clock
from crabtalk.runtime.conversation import Conversation
from crabtalk.storage import ConversationMeta, FencedError, MessageRecord, Pair, StorageError
from crabtalk.storage.postgres import PostgresStorage, mailbox
from crabtalk.storage.postgres.column_encoding import make_pair_key
from tests.postgres import PostgresServer

PAIR = Pair("crab", "user")
KEY = make_pair_key(PAIR)
# The longest time that a test waits for anything, in seconds.
PATIENCE = 20
# Lease seconds: CALM for no heartbeats during a test, QUICK for frequent ones.
CALM, QUICK = 60.0, 0.6


@asynccontextmanager
async def open_storages(
    path: Path, url: str, count: int, *, lease: float = CALM
) -> AsyncIterator[list[PostgresStorage]]:
    async with AsyncExitStack() as stack:
        storages = []
        for number in range(count):
            storage = PostgresStorage(path, url, lease=lease, name=f"daemon {number}")
            stack.push_async_callback(close_in_time, storage)
            await storage.open()
            storages.append(storage)
        yield storages


async def close_in_time(storage: PostgresStorage) -> None:
    async with asyncio.timeout(PATIENCE):
        await storage.close()


class ClaimedTurn:
    """A turn that is requested at once and held until `leave`, as the runtime does it."""

    def __init__(self, conversation: Conversation, run: str, *, first: bool = False) -> None:
        self.run = run
        self.conversation = conversation
        self.is_reached = asyncio.Event()
        self._may_leave = asyncio.Event()
        claim = conversation.claim_turn(run, first=first)
        self.task = asyncio.ensure_future(self._hold(claim))

    async def _hold(self, claim: Any) -> None:
        async with self.conversation.hold_turn(claim):
            await self.conversation.load()
            self.is_reached.set()
            await self._may_leave.wait()

    async def wait_until_reached(self) -> "ClaimedTurn":
        waiting = asyncio.ensure_future(self.is_reached.wait())
        await asyncio.wait(
            [waiting, self.task], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE
        )
        waiting.cancel()
        if self.task.done():
            self.task.result()
        assert self.is_reached.is_set(), f"the turn of {self.run} does not come"
        return self

    async def say(self, text: str) -> None:
        await self.conversation.append([Message("user", text)])

    async def leave(self) -> None:
        self._may_leave.set()
        await self.task


class TurnRequester:
    """Requests turns of one conversation from several daemons."""

    def __init__(self, storages: list[PostgresStorage], pair: Pair = PAIR) -> None:
        self.storages = storages
        self.key = make_pair_key(pair)
        self.conversations = [Conversation(pair, storage, Clock()) for storage in storages]

    async def request_turn(
        self, daemon_index: int, run: str, *, first: bool = False
    ) -> ClaimedTurn:
        """Request a turn. It is in the queue of all daemons when this returns."""
        storage = self.storages[daemon_index]
        before = await count_rows(storage, "tickets", self.key)
        turn = ClaimedTurn(self.conversations[daemon_index], run, first=first)

        async def is_queued() -> bool:
            return (
                turn.is_reached.is_set()
                or turn.task.done()
                or await count_rows(storage, "tickets", self.key) > before
            )

        await wait_until(is_queued)
        return turn


async def count_rows(storage: PostgresStorage, table: str, key: str = KEY) -> int:
    row = await storage.database.fetch_row(f"SELECT count(*) FROM {table} WHERE key = $1", key)
    assert row is not None
    return int(row["count"])


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.005)


async def wait_until_nothing_left(storage: PostgresStorage, key: str = KEY) -> None:
    async def is_empty() -> bool:
        return not await count_rows(storage, "leases", key) and not await count_rows(
            storage, "tickets", key
        )

    await wait_until(is_empty)


async def expire_lease(storage: PostgresStorage, key: str = KEY) -> None:
    """Let the lease expire."""
    await storage.database.change(
        "UPDATE leases SET expires_at = clock_timestamp() - interval '1 second' WHERE key = $1", key
    )


async def read_record(storage: PostgresStorage, pair: Pair = PAIR) -> list[str]:
    """The stored texts of users, and the stop reasons of runs."""
    rows = await storage.database.fetch(
        "SELECT e.seq, e.message_id, e.kind, e.body::jsonb AS body FROM entries e "
        "JOIN conversations c ON c.id = e.conversation WHERE c.key = $1 ORDER BY e.seq",
        make_pair_key(pair),
    )
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    numbers = [row["message_id"] for row in rows if row["message_id"] is not None]
    assert numbers == list(range(len(numbers)))
    record = []
    for row in rows:
        body = json.loads(row["body"])
        if row["kind"] == "message":
            record.append(body["message"]["text"])
        elif row["kind"] == "event":
            record.append(f"{body['run']} {body['data']['stop_reason']}")
    return record


# ── Fences ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.fencing")
async def test_a_daemon_that_lost_its_turn_can_neither_append_nor_delete(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        requester = TurnRequester([one, two])
        lost_turn = await (await requester.request_turn(0, "r1")).wait_until_reached()
        await lost_turn.say("before")
        await expire_lease(one)
        other = await (await requester.request_turn(1, "r2")).wait_until_reached()
        with pytest.raises(FencedError, match="say it again"):
            await lost_turn.say("stale")
        with pytest.raises(FencedError):
            await one.delete_conversation(PAIR)
        await other.say("after")
        with pytest.raises(FencedError):
            await one.append(PAIR, [MessageRecord(2, "", Message("user", "stale"))])
        assert await read_record(two) == ["before", "r1 interrupted", "after"]
        await lost_turn.leave()
        await wait_until_settled(one)
        await other.say("and on")  # releasing the lost turn did not release the other's
        await other.leave()
        await wait_until_nothing_left(two)
        assert await read_record(two) == ["before", "r1 interrupted", "after", "and on"]


async def wait_until_settled(storage: PostgresStorage) -> None:
    """Wait until a daemon has finished its pending work about turns."""
    await storage.turn_claims.close()


@pytest.mark.req("fleet.fencing")
async def test_a_daemon_that_lost_its_turn_cannot_create_the_conversation(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        requester = TurnRequester([one, two])
        lost_turn = await (await requester.request_turn(0, "r1")).wait_until_reached()
        await expire_lease(one)
        other = await (await requester.request_turn(1, "r2")).wait_until_reached()
        with pytest.raises(FencedError):
            await one.append(PAIR, [ConversationMeta(*PAIR).make_snapshot()], create=True)
        assert await two.read_meta(PAIR) is None
        await lost_turn.leave()
        await other.leave()


@pytest.mark.req("fleet.fencing")
async def test_an_expired_turn_that_no_other_daemon_took_is_still_valid(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (one,):
        turn = await (await TurnRequester([one]).request_turn(0, "r1")).wait_until_reached()
        await expire_lease(one)
        await turn.say("late")
        await turn.leave()
        await wait_until_nothing_left(one)
        assert await read_record(one) == ["late"]


@pytest.mark.req("fleet.fencing")
async def test_a_fence_is_never_used_twice(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        fences = []
        for number in range(6):
            claim = storages[number % 2].claim_turn(PAIR, f"r{number}")
            await claim.acquire()
            fences.append(claim.held_lease.fence)
            claim.release()
        assert fences == sorted(set(fences))


# ── Dead daemons ───────────────────────────────────────────────────────────────────────────────

MARK_DEAD = (
    "WITH gone AS (UPDATE daemons SET expires_at = clock_timestamp() - interval '1 second' "
    "WHERE id = $1), lost AS (UPDATE leases SET expires_at = clock_timestamp() "
    "- interval '1 second' WHERE owner = $1) SELECT 1"
)


async def mark_dead(storage: PostgresStorage) -> None:
    """Let a daemon's registration and leases expire, so that the others take it for dead."""
    await storage.database.change(MARK_DEAD, storage.id)


@pytest.mark.req("fleet.dead")
async def test_a_dead_daemons_turn_is_closed_once_by_the_first_heartbeat_of_another(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        open_storages(tmp_path, postgres_url, 1) as (dead,),
        open_storages(tmp_path, postgres_url, 3, lease=QUICK) as others,
    ):
        turn = await (await TurnRequester([dead]).request_turn(0, "r1")).wait_until_reached()
        await turn.say("hello")
        await mark_dead(dead)
        await wait_until_nothing_left(others[0])
        assert await read_record(others[0]) == ["hello", "r1 interrupted"]
        with pytest.raises(FencedError):
            await turn.say("and on")
        await turn.leave()


@pytest.mark.req("fleet.dead")
async def test_a_turn_with_a_stored_end_is_not_closed_again(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        open_storages(tmp_path, postgres_url, 1) as (dead,),
        open_storages(tmp_path, postgres_url, 1, lease=QUICK) as (other,),
    ):
        turn = await (await TurnRequester([dead]).request_turn(0, "r1")).wait_until_reached()
        await turn.say("hello")
        await close_run(dead, turn)
        await mark_dead(dead)
        await wait_until_nothing_left(other)
        assert await read_record(other) == ["hello", "r1 completed"]
        await turn.leave()


async def close_run(storage: PostgresStorage, turn: ClaimedTurn) -> None:
    from crabtalk.storage import EventRecord

    data = {"stop_reason": "completed"}
    await storage.append(PAIR, [EventRecord("done", "", turn.run, data)])


@pytest.mark.req("fleet.dead")
async def test_a_turn_whose_closing_failed_is_closed_later(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (dead, other):
        turn = await (await TurnRequester([dead]).request_turn(0, "r1")).wait_until_reached()
        await turn.say("hello")
        await mark_dead(dead)

        async def fails(*_: object) -> None:
            raise StorageError("the closing failed")

        with monkeypatch.context() as patch:
            patch.setattr(other.turn_claims, "_close_run", fails)
            with pytest.raises(StorageError, match="the closing failed"):
                await other.turn_claims.close_dead_lease(KEY, PAIR)
        await expire_lease(other)
        await other.turn_claims.close_dead_lease(KEY, PAIR)
        assert await read_record(other) == ["hello", "r1 interrupted"]
        await wait_until_nothing_left(other)
        await turn.leave()


@pytest.mark.req("fleet.dead")
async def test_a_turn_is_closed_by_the_next_daemon_if_its_new_owner_dies_too(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as (dead, successor, last):
        requester = TurnRequester([dead, successor, last])
        turn = await (await requester.request_turn(0, "r1")).wait_until_reached()
        await turn.say("hello")
        await mark_dead(dead)
        is_closing = asyncio.Event()

        async def dies(*_: object) -> None:
            await mark_dead(successor)
            is_closing.set()
            raise make_unavailable_error()

        monkeypatch.setattr(successor.turn_claims, "_close_run", dies)
        monkeypatch.setattr(successor.turn_claims, "release", skip_release)
        successor.claim_turn(PAIR, "r2")
        await asyncio.wait_for(is_closing.wait(), PATIENCE)
        after = await (await requester.request_turn(2, "r3")).wait_until_reached()
        await after.say("on")
        record = await read_record(last)
        assert record[:2] == ["hello", "r1 interrupted"]
        assert record.count("r1 interrupted") == 1
        assert record[-1] == "on"
        await turn.leave()
        await after.leave()


async def skip_release(*_: object) -> None:
    """Release nothing, as a dead daemon."""


@pytest.mark.req("fleet.dead")
async def test_tickets_of_dead_daemons_are_skipped(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        requester = TurnRequester(storages)
        first = await (await requester.request_turn(0, "r1")).wait_until_reached()
        await storages[0].database.change(
            "INSERT INTO daemons (id, name, version, expires_at) "
            "VALUES (gen_random_uuid(), 'dead', '1', clock_timestamp() - interval '1 second')"
        )
        await storages[0].database.change(
            "INSERT INTO tickets (key, daemon, first) "
            "SELECT $1, id, true FROM daemons WHERE name = 'dead'",
            KEY,
        )
        second = await requester.request_turn(1, "r2")
        await first.leave()
        await (await second.wait_until_reached()).leave()


@pytest.mark.req("fleet.dead")
async def test_rows_of_a_dead_daemon_are_deleted_after_a_while(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (dead,):
        requester = TurnRequester([dead])
        first = await (await requester.request_turn(0, "r1")).wait_until_reached()
        waiting = await requester.request_turn(0, "r2")
        await dead.publish_interests([("crab", "")])
        await dead.mailbox.close()
        async with open_storages(tmp_path, postgres_url, 1, lease=QUICK) as (other,):
            await other.mailbox.send(dead.id, "events", b"unread")
            await other.database.change(
                "UPDATE daemons SET expires_at = clock_timestamp() - interval '2 hours' "
                "WHERE id = $1",
                dead.id,
            )
            await other.database.change(
                "UPDATE mail SET at = clock_timestamp() - interval '2 hours'"
            )
            await expire_lease(other)
            await wait_until_nothing_left(other)

            async def all_is_gone() -> bool:
                row = await other.database.fetch_row(
                    "SELECT (SELECT count(*) FROM daemons WHERE id = $1) "
                    "+ (SELECT count(*) FROM mail WHERE recipient = $1) "
                    "+ (SELECT count(*) FROM interests WHERE daemon = $1) AS left_over",
                    dead.id,
                )
                return row is not None and row["left_over"] == 0

            await wait_until(all_is_gone)
        waiting.task.cancel()
        await asyncio.wait([waiting.task])
        await first.leave()


@pytest.mark.req("fleet.dead")
async def test_a_daemon_whose_row_was_deleted_joins_again(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        open_storages(tmp_path, postgres_url, 1, lease=QUICK) as (one,),
        open_storages(tmp_path, postgres_url, 1) as (two,),
    ):
        rejoined = asyncio.Event()
        one.membership.on_rejoin = rejoined.set
        await two.database.change("DELETE FROM daemons WHERE id = $1", one.id)
        await asyncio.wait_for(rejoined.wait(), PATIENCE)
        assert {member.id for member in await two.membership.list_members() if member.is_alive} == {
            one.id,
            two.id,
        }
        requester = TurnRequester([one, two])
        first = await (await requester.request_turn(1, "r1")).wait_until_reached()
        second = await requester.request_turn(0, "r2")
        await first.leave()
        await (await second.wait_until_reached()).leave()


@pytest.mark.req("fleet.dead")
async def test_a_daemon_whose_row_was_deleted_can_queue_for_a_turn(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        requester = TurnRequester([one, two])
        first = await (await requester.request_turn(0, "r1")).wait_until_reached()
        await one.database.change("DELETE FROM daemons WHERE id = $1", two.id)
        second = await requester.request_turn(1, "r2")
        await first.leave()
        await (await second.wait_until_reached()).leave()


# ── Order ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.fifo")
async def test_turns_come_in_the_order_of_requests_across_daemons(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as storages:
        requester = TurnRequester(storages)
        places = (0, 1, 2, 1, 1, 0, 2, 0)
        turns = [await requester.request_turn(place, f"r{n}") for n, place in enumerate(places)]
        for number, turn in enumerate(turns):
            await turn.wait_until_reached()
            assert not any(later.is_reached.is_set() for later in turns[number + 1 :])
            await turn.say(turn.run)
            await turn.leave()
        assert await read_record(storages[0]) == [turn.run for turn in turns]
        await wait_until_nothing_left(storages[0])


@pytest.mark.req("fleet.fifo")
async def test_a_first_claim_comes_before_all_waiting_claims_of_any_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as storages:
        requester = TurnRequester(storages)
        now = await requester.request_turn(0, "now")
        second = await requester.request_turn(1, "second")
        first = await requester.request_turn(2, "first", first=True)
        for turn in (now, first, second):
            await turn.wait_until_reached()
            await turn.leave()
        await wait_until_nothing_left(storages[0])


@pytest.mark.req("fleet.fifo")
@pytest.mark.parametrize("firsts", [1, 2, 3])
async def test_a_first_claim_does_not_deadlock_with_a_waiting_claim_of_its_daemon(
    tmp_path: Path, postgres_url: str, firsts: int
) -> None:
    """The first claim of a daemon's queue waits for another daemon, and new claims go before it."""
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        requester = TurnRequester(storages)
        now = await requester.request_turn(0, "now")
        waiting = [await requester.request_turn(1, "waits")]
        waiting += [
            await requester.request_turn(1, f"first {n}", first=True) for n in range(firsts)
        ]
        await now.leave()
        for turn in waiting:
            turn._may_leave.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(turn.task for turn in waiting))
        await wait_until_nothing_left(storages[0])


@pytest.mark.req("fleet.fifo")
async def test_a_waiting_first_claim_does_not_poll_continuously(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        requester = TurnRequester(storages)
        now = await requester.request_turn(0, "now")
        change = storages[1].database.change
        entered = 0

        async def count_enters(statement: str, *values: Any) -> Any:
            nonlocal entered
            entered += "crabtalk_enter" in statement
            return await change(statement, *values)

        monkeypatch.setattr(storages[1].database, "change", count_enters)
        first = await requester.request_turn(1, "first", first=True)
        for _ in range(30):
            await count_rows(storages[0], "tickets")
        assert entered < 10
        await now.leave()
        await (await first.wait_until_reached()).leave()


@pytest.mark.req("fleet.fifo")
async def test_turns_of_one_daemon_do_not_swap_tickets_needlessly(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (one,):
        change = one.database.change
        statements: list[str] = []

        async def record_statement(statement: str, *values: Any) -> Any:
            statements.append(statement)
            return await change(statement, *values)

        monkeypatch.setattr(one.database, "change", record_statement)
        (conversation,) = TurnRequester([one]).conversations
        turns = [ClaimedTurn(conversation, f"r{n}") for n in range(3)]
        for turn in turns:
            await turn.wait_until_reached()
            await turn.say(turn.run)
            await turn.leave()
        await wait_until_settled(one)
        assert await read_record(one) == ["r0", "r1", "r2"]
        entering = sum("crabtalk_enter" in statement for statement in statements)
        assert entering <= 3 + 2 * 2  # each when it arrives, and again after the turn before it
        assert not any("SET run" in statement for statement in statements)


@pytest.mark.req("fleet.fifo")
async def test_cancelled_claims_do_not_block_later_ones(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as storages:
        requester = TurnRequester(storages)
        now = await requester.request_turn(0, "now")
        cancelled = [await requester.request_turn(place, f"gone {place}") for place in (1, 2, 1)]
        last = await requester.request_turn(2, "last")
        for turn in cancelled:
            turn.task.cancel()
        await asyncio.wait([turn.task for turn in cancelled])
        await now.leave()
        await (await last.wait_until_reached()).leave()
        await wait_until_nothing_left(storages[0])


@pytest.mark.req("fleet.fifo")
async def test_claims_cancelled_while_the_database_is_unreachable_do_not_block_later_ones(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    async with open_storages(tmp_path, url, 2, lease=QUICK) as storages:
        requester = TurnRequester(storages)
        now = await requester.request_turn(0, "now")
        cancelled = await requester.request_turn(1, "gone")
        await asyncio.to_thread(private_postgres.stop, "fast")
        cancelled.task.cancel()
        await asyncio.wait([cancelled.task])
        await wait_until_settled(storages[1])
        await asyncio.to_thread(private_postgres.start)
        with suppress(StorageError):
            await now.leave()
        await wait_until_free(storages[0])


async def wait_until_free(storage: PostgresStorage) -> None:
    """Wait until the turn can be acquired."""
    async with asyncio.timeout(PATIENCE):
        while True:
            claim = storage.claim_turn(PAIR, "free")
            try:
                await claim.acquire()
            except StorageError:
                await asyncio.sleep(0.05)
            else:
                return
            finally:
                claim.release()


@pytest.mark.req("fleet.fifo")
async def test_a_ticket_that_its_daemon_does_not_know_is_dropped(
    tmp_path: Path, postgres_url: str
) -> None:
    """As if the answer with the ticket was lost with its connection."""
    async with open_storages(tmp_path, postgres_url, 2, lease=QUICK) as (one, two):
        await one.database.change(
            "INSERT INTO tickets (key, daemon, first) VALUES ($1, $2, false)", KEY, one.id
        )
        turn = ClaimedTurn(TurnRequester([two]).conversations[0], "r1")
        await (await turn.wait_until_reached()).leave()
        await wait_until_nothing_left(two)


@pytest.mark.req("fleet.fifo")
async def test_a_turn_whose_grant_was_lost_with_the_connection_is_granted_again(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        requester = TurnRequester([one, two])
        now = await requester.request_turn(0, "now")
        next_turn = await requester.request_turn(1, "next")
        change = two.database.change
        lost = 0

        async def lose_first_grant(statement: str, *values: Any) -> Any:
            nonlocal lost
            rows = await change(statement, *values)
            if "crabtalk_enter" in statement and rows[0]["fence"] is not None and not lost:
                lost += 1
                raise make_unavailable_error()
            return rows

        monkeypatch.setattr(two.database, "change", lose_first_grant)
        await now.leave()
        await next_turn.wait_until_reached()
        assert lost == 1
        await next_turn.say("said")
        await next_turn.leave()
        await wait_until_nothing_left(one)
        assert await read_record(one) == ["said"]


def make_unavailable_error() -> StorageError:
    from crabtalk.storage import StorageUnavailableError

    return StorageUnavailableError("the connection is gone")


# ── Notices and heartbeats ─────────────────────────────────────────────────────────────────────

LISTENERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'crabtalk' "
    "AND pid <> pg_backend_pid() AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')"
)


@pytest.mark.req("fleet.polling")
async def test_turns_and_messages_arrive_without_notices_too(
    tmp_path: Path, private_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Never listens again after the connection breaks.
    monkeypatch.setattr(mailbox, "FIRST_PAUSE", 3600.0)
    async with open_storages(tmp_path, private_postgres.url, 2) as (one, two):
        received: list[bytes] = []
        two.mailbox.on_message("word", lambda _sender, body: received.append(body))

        async def both_listen() -> bool:
            return one.mailbox.is_listening and two.mailbox.is_listening

        async def none_listen() -> bool:
            await one.database.fetch(LISTENERS)
            return not one.mailbox.is_listening and not two.mailbox.is_listening

        await wait_until(both_listen)
        await wait_until(none_listen)
        requester = TurnRequester([one, two])
        first = await (await requester.request_turn(0, "r1")).wait_until_reached()
        second = await requester.request_turn(1, "r2")
        await first.leave()
        await (await second.wait_until_reached()).leave()
        await one.mailbox.send(two.id, "word", b"hello")

        async def is_received() -> bool:
            return received == [b"hello"]

        await wait_until(is_received)


@pytest.mark.req("fleet.polling")
async def test_the_listening_connection_is_restored_after_it_broke(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    async with open_storages(tmp_path, private_postgres.url, 1) as (one,):
        notices: list[str] = []
        one.mailbox._on_other_notice = notices.append

        async def is_notified() -> bool:
            await one.mailbox.notify_all("hello all")
            return "hello all" in notices

        await wait_until(is_notified)
        await one.database.fetch(LISTENERS)
        notices.clear()
        await wait_until(is_notified)


@pytest.mark.req("fleet.fencing")
async def test_a_heartbeat_notices_a_turn_that_was_taken_over(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 1, lease=QUICK) as (one,):
        lost: asyncio.Queue[Pair] = asyncio.Queue()
        one.turn_claims.on_lost = lost.put_nowait
        turn = await (await TurnRequester([one]).request_turn(0, "r1")).wait_until_reached()
        await one.database.change(
            "UPDATE leases SET owner = gen_random_uuid(), fence = nextval('fences')"
        )
        assert await asyncio.wait_for(lost.get(), PATIENCE) == PAIR
        await turn.leave()
        assert lost.empty()  # reported only once


@pytest.mark.req("fleet.fencing")
async def test_a_turn_that_begins_during_a_heartbeat_does_not_count_as_lost(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        open_storages(tmp_path, postgres_url, 1, lease=QUICK) as (one,),
        open_storages(tmp_path, postgres_url, 1) as (two,),
    ):
        lost: list[Pair] = []
        one.turn_claims.on_lost = lost.append
        requester = TurnRequester([one])
        before = await (await requester.request_turn(0, "r1")).wait_until_reached()
        async with two.database.transaction() as connection:
            await connection.execute("SELECT FROM daemons WHERE id = $1 FOR UPDATE", one.id)
            await wait_until(lambda: is_blocked(two))
            await before.leave()
            after = await (await requester.request_turn(0, "r2")).wait_until_reached()
        await wait_until(lambda: has_sent_heartbeat(one, two))
        assert not lost
        await after.say("still here")
        await after.leave()


async def is_blocked(storage: PostgresStorage) -> bool:
    """Whether a statement waits for a lock."""
    rows = await storage.database.fetch(
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%UPDATE dae%'"
    )
    return bool(rows)


async def has_sent_heartbeat(one: PostgresStorage, two: PostgresStorage) -> bool:
    """Wait for two heartbeats of `one`, so that it got a complete answer in between."""
    beats = Counter[Any]()
    async with asyncio.timeout(PATIENCE):
        while len(beats) < 3:
            rows = await two.database.fetch("SELECT expires_at FROM daemons WHERE id = $1", one.id)
            beats[rows[0]["expires_at"]] += 1
            await asyncio.sleep(0.01)
    return True


@pytest.mark.req("fleet.fencing")
async def test_a_late_daemon_does_not_close_its_own_turns(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (one,):
        requester = TurnRequester([one])
        turn = await (await requester.request_turn(0, "r1")).wait_until_reached()
        await turn.say("hello")
        await expire_lease(one)
        await one.turn_claims.close_dead_lease(KEY, PAIR)
        await expire_lease(one)
        next_turn = await requester.request_turn(0, "r2")
        await turn.say("and on")
        await turn.leave()
        await (await next_turn.wait_until_reached()).leave()
        assert await read_record(one) == ["hello", "and on"]


@pytest.mark.req("fleet.fencing")
async def test_a_turn_is_renewed_as_long_as_its_daemon_is_alive(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2, lease=QUICK) as (one, two):
        turn = await (await TurnRequester([one]).request_turn(0, "r1")).wait_until_reached()
        for _ in range(3):
            await has_sent_heartbeat(one, two)
        await turn.say("still here")
        assert (await two.find_owner(PAIR)) == one.id
        await turn.leave()


# ── Cancellation ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.cancelled")
@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_turn_cancelled_at_any_point_leaves_neither_lease_nor_ticket(
    tmp_path: Path, postgres_url: str, is_busy: bool
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        requester = TurnRequester(storages)
        was_reached = 0
        for steps in range(1, 400):
            holder = (
                await (await requester.request_turn(0, "holder")).wait_until_reached()
                if is_busy
                else None
            )
            turn = ClaimedTurn(requester.conversations[1], "r1")
            leaving = None
            for step in range(steps):
                if holder is not None and step == steps // 2:
                    leaving = asyncio.ensure_future(holder.leave())
                await asyncio.sleep(0)
            turn.task.cancel()
            await asyncio.wait([turn.task])
            if holder is not None:
                await (leaving or holder.leave())
            await wait_until_settled(storages[0])
            await wait_until_settled(storages[1])
            for table in ("leases", "tickets"):
                assert not await count_rows(storages[0], table), f"after {steps} steps"
            assert not len(storages[1].turn_claims)
            was_reached += turn.is_reached.is_set()
            if was_reached == 5:
                break
        assert was_reached, "no cancellation came after the turn was reached"


# ── Random actions ─────────────────────────────────────────────────────────────────────────────

ACTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ask", "ask first"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["say", "leave", "expire", "give up"]), st.just(0)),
    ),
    max_size=25,
)


class TurnQueueModel:
    """A model of the queue of all daemons. Its first turn is the one that is held."""

    def __init__(self, storages: list[PostgresStorage], pair: Pair) -> None:
        self._requester = TurnRequester(storages, pair)
        self._storages = storages
        self._pair = pair
        self._queue: list[tuple[int, ClaimedTurn]] = []
        self._record: list[str] = []
        self._runs = 0

    async def ask(self, place: int, *, first: bool) -> None:
        self._runs += 1
        # Within one daemon the order is that of its own queue: `first` is for a turn elsewhere.
        first = first and all(other != place for other, _ in self._queue)
        turn = await self._requester.request_turn(place, f"r{self._runs}", first=first)
        if first and self._queue and not any("first" in t.run for _, t in self._queue[1:]):
            turn.run += " first"
            self._queue.insert(1, (place, turn))
        elif first and self._queue:
            turn.run += " first"
            last_first = max(
                n for n, (_, t) in enumerate(self._queue) if "first" in t.run or n == 0
            )
            self._queue.insert(last_first + 1, (place, turn))
        else:
            self._queue.append((place, turn))

    async def say(self) -> None:
        _, turn = self._queue[0]
        text = f"{turn.run}: {len(self._record)}"
        await turn.say(text)
        self._record.append(text)

    async def leave(self) -> None:
        place, turn = self._queue.pop(0)
        await turn.leave()
        await wait_until_settled(self._storages[place])

    async def give_up(self) -> None:
        if len(self._queue) > 1:
            place, turn = self._queue.pop()
            turn.task.cancel()
            await asyncio.wait([turn.task])
            await wait_until_settled(self._storages[place])

    async def expire(self) -> None:
        """The next turn takes over, unless it is of the same daemon, which knows it is alive."""
        place, turn = self._queue.pop(0)
        await expire_lease(self._storages[0], self._requester.key)
        for storage in self._storages:
            storage.turn_claims.wake(self._requester.key)
        if self._queue and self._queue[0][0] != place:
            await self._queue[0][1].wait_until_reached()
            # Without a message of the run, there is nothing to close.
            if self._record and self._record[-1].startswith(f"{turn.run}: "):
                self._record.append(f"{turn.run.removesuffix(' first')} interrupted")
            with pytest.raises(FencedError):
                await turn.say("stale")
        await turn.leave()
        await wait_until_settled(self._storages[place])

    async def check(self) -> None:
        """Exactly one turn is held: the first in the queue."""
        if self._queue:
            await self._queue[0][1].wait_until_reached()
            assert not any(turn.is_reached.is_set() for _, turn in self._queue[1:])

    async def end(self) -> None:
        while self._queue:
            await self.leave()
            await self.check()
        await wait_until_nothing_left(self._storages[0], self._requester.key)
        assert await read_record(self._storages[0], self._pair) == self._record


@pytest.mark.req("fleet.fifo")
@pytest.mark.req("fleet.fencing")
@pytest.mark.timeout(180)
def test_random_actions_of_three_daemons_keep_turns_exclusive_and_in_order(
    tmp_path: Path, postgres_url: str
) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        storages = runner.run(stack.enter_async_context(open_storages(tmp_path, postgres_url, 3)))
        examples = 0

        async def act(acts: list[tuple[str, int]]) -> None:
            nonlocal examples
            examples += 1
            model = TurnQueueModel(storages, Pair("crab", f"example {examples}"))
            for name, place in acts:
                if name.startswith("ask"):
                    await model.ask(place, first=name == "ask first")
                elif model._queue:
                    await {
                        "say": model.say,
                        "leave": model.leave,
                        "expire": model.expire,
                        "give up": model.give_up,
                    }[name]()
                await model.check()
            await model.end()

        @given(ACTS)
        @settings(max_examples=40)
        def any_order(acts: list[tuple[str, int]]) -> None:
            runner.run(act(acts))

        try:
            any_order()
        finally:
            runner.run(stack.aclose())
