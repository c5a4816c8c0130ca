"""Turns across daemons: one at a time, as they came, and not a word from who has lost it."""

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
# No test waits longer for anything.
PATIENCE = 20
# So long that nobody beats while a test looks, and so short that it need not wait for beats.
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
    """One that is asked for at once, and had until it is let go, as a runtime has it."""

    def __init__(self, conversation: Conversation, run: str, *, first: bool = False) -> None:
        self.run = run
        self.conversation = conversation
        self.is_reached = asyncio.Event()
        self._go = asyncio.Event()
        place = conversation.claim_turn(run, first=first)
        self.task = asyncio.ensure_future(self._hold(place))

    async def _hold(self, place: Any) -> None:
        async with self.conversation.hold_turn(place):
            await self.conversation.load()
            self.is_reached.set()
            await self._go.wait()

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
        self._go.set()
        await self.task


class TurnRequester:
    """Several turns in one conversation, from the daemons they are asked of."""

    def __init__(self, storages: list[PostgresStorage], pair: Pair = PAIR) -> None:
        self.storages = storages
        self.key = make_pair_key(pair)
        self.conversations = [Conversation(pair, each, Clock()) for each in storages]

    async def request_turn(self, place: int, run: str, *, first: bool = False) -> ClaimedTurn:
        """It is in everybody's line when this returns."""
        storage = self.storages[place]
        before = await count_rows(storage, "tickets", self.key)
        turn = ClaimedTurn(self.conversations[place], run, first=first)

        async def is_in_line() -> bool:
            return (
                turn.is_reached.is_set()
                or turn.task.done()
                or await count_rows(storage, "tickets", self.key) > before
            )

        await wait_until(is_in_line)
        return turn


async def count_rows(storage: PostgresStorage, table: str, key: str = KEY) -> int:
    row = await storage.database.fetch_row(f"SELECT count(*) FROM {table} WHERE key = $1", key)
    assert row is not None
    return int(row["count"])


async def wait_until(claim: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await claim():
            await asyncio.sleep(0.005)


async def wait_until_nothing_left(storage: PostgresStorage, key: str = KEY) -> None:
    async def is_empty() -> bool:
        return not await count_rows(storage, "leases", key) and not await count_rows(
            storage, "tickets", key
        )

    await wait_until(is_empty)


async def expire_lease(storage: PostgresStorage, key: str = KEY) -> None:
    """As if its owner had not been heard of for too long."""
    await storage.database.change(
        "UPDATE leases SET expires_at = clock_timestamp() - interval '1 second' WHERE key = $1", key
    )


async def read_record(storage: PostgresStorage, pair: Pair = PAIR) -> list[str]:
    """What the record has: what users said, and how runs ended."""
    rows = await storage.database.fetch(
        "SELECT e.seq, e.message_id, e.kind, e.body::jsonb AS body FROM entries e "
        "JOIN conversations c ON c.id = e.conversation WHERE c.key = $1 ORDER BY e.seq",
        make_pair_key(pair),
    )
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    numbers = [row["message_id"] for row in rows if row["message_id"] is not None]
    assert numbers == list(range(len(numbers)))
    found = []
    for row in rows:
        body = json.loads(row["body"])
        if row["kind"] == "message":
            found.append(body["message"]["text"])
        elif row["kind"] == "event":
            found.append(f"{body['run']} {body['data']['stop_reason']}")
    return found


# ── Fences ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.fencing")
async def test_whoever_lost_the_turn_cannot_add_a_word_nor_take_one_away(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        told = TurnRequester([one, two])
        lost = await (await told.request_turn(0, "r1")).wait_until_reached()
        await lost.say("before")
        await expire_lease(one)
        other = await (await told.request_turn(1, "r2")).wait_until_reached()
        with pytest.raises(FencedError, match="say it again"):
            await lost.say("stale")
        with pytest.raises(FencedError):
            await one.delete_conversation(PAIR)
        await other.say("after")
        with pytest.raises(FencedError):
            await one.append(PAIR, [MessageRecord(2, "", Message("user", "stale"))])
        assert await read_record(two) == ["before", "r1 interrupted", "after"]
        await lost.leave()
        await wait_until_settled(one)
        await other.say("and on")  # what it left was not the other's
        await other.leave()
        await wait_until_nothing_left(two)
        assert await read_record(two) == ["before", "r1 interrupted", "after", "and on"]


async def wait_until_settled(storage: PostgresStorage) -> None:
    """Until it has done all it had in hand about turns."""
    await storage.turn_claims.close()


@pytest.mark.req("fleet.fencing")
async def test_a_conversation_cannot_be_begun_by_who_lost_its_turn(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        told = TurnRequester([one, two])
        lost = await (await told.request_turn(0, "r1")).wait_until_reached()
        await expire_lease(one)
        other = await (await told.request_turn(1, "r2")).wait_until_reached()
        with pytest.raises(FencedError):
            await one.append(PAIR, [ConversationMeta(*PAIR).make_snapshot()], create=True)
        assert await two.read_meta(PAIR) is None
        await lost.leave()
        await other.leave()


@pytest.mark.req("fleet.fencing")
async def test_an_expired_turn_that_nobody_wanted_is_still_ones_own(
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
async def test_a_fence_is_never_given_out_twice(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        fences = []
        for number in range(6):
            claim = storages[number % 2].claim_turn(PAIR, f"r{number}")
            await claim.acquire()
            fences.append(claim.held_lease.fence)
            claim.release()
        assert fences == sorted(set(fences))


# ── The dead ───────────────────────────────────────────────────────────────────────────────────

MARK_DEAD = (
    "WITH gone AS (UPDATE daemons SET expires_at = clock_timestamp() - interval '1 second' "
    "WHERE id = $1), lost AS (UPDATE leases SET expires_at = clock_timestamp() "
    "- interval '1 second' WHERE owner = $1) SELECT 1"
)


async def mark_dead(storage: PostgresStorage) -> None:
    """As the others see it: it has not been heard of for too long."""
    await storage.database.change(MARK_DEAD, storage.id)


@pytest.mark.req("fleet.dead")
async def test_a_dead_daemons_turn_is_closed_on_the_record_once_by_whoever_beats_first(
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
async def test_a_turn_that_had_ended_on_the_record_is_not_closed_again(
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
            patch.setattr(other.turn_claims, "_closing", fails)
            with pytest.raises(StorageError, match="the closing failed"):
                await other.turn_claims.close_dead_lease(KEY, PAIR)
        await expire_lease(other)
        await other.turn_claims.close_dead_lease(KEY, PAIR)
        assert await read_record(other) == ["hello", "r1 interrupted"]
        await wait_until_nothing_left(other)
        await turn.leave()


@pytest.mark.req("fleet.dead")
async def test_a_turn_whose_heir_died_before_it_closed_it_is_closed_by_the_next_one(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as (dead, heir, last):
        told = TurnRequester([dead, heir, last])
        turn = await (await told.request_turn(0, "r1")).wait_until_reached()
        await turn.say("hello")
        await mark_dead(dead)
        is_closing = asyncio.Event()

        async def dies(*_: object) -> None:
            await mark_dead(heir)
            is_closing.set()
            raise make_unavailable_error()

        monkeypatch.setattr(heir.turn_claims, "_closing", dies)
        monkeypatch.setattr(heir.turn_claims, "release", skip_release)
        heir.claim_turn(PAIR, "r2")
        await asyncio.wait_for(is_closing.wait(), PATIENCE)
        after = await (await told.request_turn(2, "r3")).wait_until_reached()
        await after.say("on")
        found = await read_record(last)
        assert found[:2] == ["hello", "r1 interrupted"]
        assert found.count("r1 interrupted") == 1
        assert found[-1] == "on"
        await turn.leave()
        await after.leave()


async def skip_release(*_: object) -> None:
    """It gives nothing back."""


@pytest.mark.req("fleet.dead")
async def test_what_a_dead_daemon_waited_for_is_passed_over(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        told = TurnRequester(storages)
        first = await (await told.request_turn(0, "r1")).wait_until_reached()
        await storages[0].database.change(
            "INSERT INTO daemons (id, name, version, expires_at) "
            "VALUES (gen_random_uuid(), 'dead', '1', clock_timestamp() - interval '1 second')"
        )
        await storages[0].database.change(
            "INSERT INTO tickets (key, daemon, first) "
            "SELECT $1, id, true FROM daemons WHERE name = 'dead'",
            KEY,
        )
        second = await told.request_turn(1, "r2")
        await first.leave()
        await (await second.wait_until_reached()).leave()


@pytest.mark.req("fleet.dead")
async def test_what_a_dead_daemon_left_is_gone_when_nobody_mourns_it_any_more(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (dead,):
        told = TurnRequester([dead])
        first = await (await told.request_turn(0, "r1")).wait_until_reached()
        waiting = await told.request_turn(0, "r2")
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
async def test_a_daemon_that_the_others_have_forgotten_joins_again(
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
        told = TurnRequester([one, two])
        first = await (await told.request_turn(1, "r1")).wait_until_reached()
        second = await told.request_turn(0, "r2")
        await first.leave()
        await (await second.wait_until_reached()).leave()


@pytest.mark.req("fleet.dead")
async def test_a_turn_can_be_waited_for_by_who_was_just_forgotten(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        told = TurnRequester([one, two])
        first = await (await told.request_turn(0, "r1")).wait_until_reached()
        await one.database.change("DELETE FROM daemons WHERE id = $1", two.id)
        second = await told.request_turn(1, "r2")
        await first.leave()
        await (await second.wait_until_reached()).leave()


# ── Order ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.fifo")
async def test_turns_are_had_in_the_order_they_were_asked_for_wherever_that_was(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as storages:
        told = TurnRequester(storages)
        places = (0, 1, 2, 1, 1, 0, 2, 0)
        turns = [await told.request_turn(place, f"r{n}") for n, place in enumerate(places)]
        for number, turn in enumerate(turns):
            await turn.wait_until_reached()
            assert not any(later.is_reached.is_set() for later in turns[number + 1 :])
            await turn.say(turn.run)
            await turn.leave()
        assert await read_record(storages[0]) == [turn.run for turn in turns]
        await wait_until_nothing_left(storages[0])


@pytest.mark.req("fleet.fifo")
async def test_who_is_to_be_first_comes_before_all_who_wait_in_any_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as storages:
        told = TurnRequester(storages)
        now = await told.request_turn(0, "now")
        second = await told.request_turn(1, "second")
        first = await told.request_turn(2, "first", first=True)
        for turn in (now, first, second):
            await turn.wait_until_reached()
            await turn.leave()
        await wait_until_nothing_left(storages[0])


@pytest.mark.req("fleet.fifo")
@pytest.mark.parametrize("firsts", [1, 2, 3])
async def test_who_is_to_be_first_does_not_wait_for_who_waits_for_it(
    tmp_path: Path, postgres_url: str, firsts: int
) -> None:
    """The first of a daemon's line waits for another daemon, and somebody is to go before it."""
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        told = TurnRequester(storages)
        now = await told.request_turn(0, "now")
        waiting = [await told.request_turn(1, "waits")]
        waiting += [await told.request_turn(1, f"first {n}", first=True) for n in range(firsts)]
        await now.leave()
        for turn in waiting:
            turn._go.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(turn.task for turn in waiting))
        await wait_until_nothing_left(storages[0])


@pytest.mark.req("fleet.fifo")
async def test_who_is_to_be_first_does_not_ask_all_the_time(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        told = TurnRequester(storages)
        now = await told.request_turn(0, "now")
        change = storages[1].database.change
        asked = 0

        async def noting(statement: str, *values: Any) -> Any:
            nonlocal asked
            asked += "crabtalk_enter" in statement
            return await change(statement, *values)

        monkeypatch.setattr(storages[1].database, "change", noting)
        first = await told.request_turn(1, "first", first=True)
        for _ in range(30):
            await count_rows(storages[0], "tickets")
        assert asked < 10
        await now.leave()
        await (await first.wait_until_reached()).leave()


@pytest.mark.req("fleet.fifo")
async def test_turns_of_one_daemon_do_not_take_each_others_place(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (one,):
        change = one.database.change
        statements: list[str] = []

        async def noting(statement: str, *values: Any) -> Any:
            statements.append(statement)
            return await change(statement, *values)

        monkeypatch.setattr(one.database, "change", noting)
        (conversation,) = TurnRequester([one]).conversations
        turns = [ClaimedTurn(conversation, f"r{n}") for n in range(3)]
        for turn in turns:
            await turn.wait_until_reached()
            await turn.say(turn.run)
            await turn.leave()
        await wait_until_settled(one)
        assert await read_record(one) == ["r0", "r1", "r2"]
        entering = sum("crabtalk_enter" in statement for statement in statements)
        assert entering <= 3 + 2 * 2  # each on coming, and then when the one before has left
        assert not any("SET run" in statement for statement in statements)


@pytest.mark.req("fleet.fifo")
async def test_whoever_gives_up_keeps_nobody_waiting(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as storages:
        told = TurnRequester(storages)
        now = await told.request_turn(0, "now")
        gone = [await told.request_turn(place, f"gone {place}") for place in (1, 2, 1)]
        last = await told.request_turn(2, "last")
        for turn in gone:
            turn.task.cancel()
        await asyncio.wait([turn.task for turn in gone])
        await now.leave()
        await (await last.wait_until_reached()).leave()
        await wait_until_nothing_left(storages[0])


@pytest.mark.req("fleet.fifo")
async def test_who_gave_up_while_the_database_was_away_keeps_nobody_waiting(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    async with open_storages(tmp_path, url, 2, lease=QUICK) as storages:
        told = TurnRequester(storages)
        now = await told.request_turn(0, "now")
        gone = await told.request_turn(1, "gone")
        await asyncio.to_thread(private_postgres.stop, "fast")
        gone.task.cancel()
        await asyncio.wait([gone.task])
        await wait_until_settled(storages[1])
        await asyncio.to_thread(private_postgres.start)
        with suppress(StorageError):
            await now.leave()
        await wait_until_free(storages[0])


async def wait_until_free(storage: PostgresStorage) -> None:
    """Until somebody has had the turn."""
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
async def test_a_ticket_whose_owner_never_heard_of_it_keeps_nobody_waiting(
    tmp_path: Path, postgres_url: str
) -> None:
    """As after an answer that was lost with its connection."""
    async with open_storages(tmp_path, postgres_url, 2, lease=QUICK) as (one, two):
        await one.database.change(
            "INSERT INTO tickets (key, daemon, first) VALUES ($1, $2, false)", KEY, one.id
        )
        turn = ClaimedTurn(TurnRequester([two]).conversations[0], "r1")
        await (await turn.wait_until_reached()).leave()
        await wait_until_nothing_left(two)


@pytest.mark.req("fleet.fifo")
async def test_a_turn_that_was_got_with_an_answer_that_was_lost_is_had_all_the_same(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        told = TurnRequester([one, two])
        now = await told.request_turn(0, "now")
        next_one = await told.request_turn(1, "next")
        change = two.database.change
        lost = 0

        async def losing(statement: str, *values: Any) -> Any:
            nonlocal lost
            rows = await change(statement, *values)
            if "crabtalk_enter" in statement and rows[0]["fence"] is not None and not lost:
                lost += 1
                raise make_unavailable_error()
            return rows

        monkeypatch.setattr(two.database, "change", losing)
        await now.leave()
        await next_one.wait_until_reached()
        assert lost == 1
        await next_one.say("said")
        await next_one.leave()
        await wait_until_nothing_left(one)
        assert await read_record(one) == ["said"]


def make_unavailable_error() -> StorageError:
    from crabtalk.storage import StorageUnavailableError

    return StorageUnavailableError("the connection is gone")


# ── Notices and beats ──────────────────────────────────────────────────────────────────────────

LISTENERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'crabtalk' "
    "AND pid <> pg_backend_pid() AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')"
)


@pytest.mark.req("fleet.polling")
async def test_turns_and_mail_come_without_a_notice_too(
    tmp_path: Path, private_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "FIRST_PAUSE", 3600.0)  # once deaf, for good
    async with open_storages(tmp_path, private_postgres.url, 2) as (one, two):
        heard: list[bytes] = []
        two.mailbox.on_message("word", lambda _sender, body: heard.append(body))

        async def both_listen() -> bool:
            return one.mailbox.is_listening and two.mailbox.is_listening

        async def nobody_listens() -> bool:
            await one.database.fetch(LISTENERS)
            return not one.mailbox.is_listening and not two.mailbox.is_listening

        await wait_until(both_listen)
        await wait_until(nobody_listens)
        told = TurnRequester([one, two])
        first = await (await told.request_turn(0, "r1")).wait_until_reached()
        second = await told.request_turn(1, "r2")
        await first.leave()
        await (await second.wait_until_reached()).leave()
        await one.mailbox.send(two.id, "word", b"hello")

        async def is_heard() -> bool:
            return heard == [b"hello"]

        await wait_until(is_heard)


@pytest.mark.req("fleet.polling")
async def test_whoever_listens_is_connected_again_after_the_connection_broke(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    async with open_storages(tmp_path, private_postgres.url, 1) as (one,):
        notices: list[str] = []
        one.mailbox._on_other_notice = notices.append

        async def is_told() -> bool:
            await one.mailbox.notify_all("hello all")
            return "hello all" in notices

        await wait_until(is_told)
        await one.database.fetch(LISTENERS)
        notices.clear()
        await wait_until(is_told)


@pytest.mark.req("fleet.fencing")
async def test_a_beat_notices_a_turn_that_was_taken_over(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 1, lease=QUICK) as (one,):
        lost: asyncio.Queue[Pair] = asyncio.Queue()
        one.turn_claims.on_lost = lost.put_nowait
        turn = await (await TurnRequester([one]).request_turn(0, "r1")).wait_until_reached()
        await one.database.change(
            "UPDATE leases SET owner = gen_random_uuid(), fence = nextval('fences')"
        )
        assert await asyncio.wait_for(lost.get(), PATIENCE) == PAIR
        await turn.leave()
        assert lost.empty()  # it is told once


@pytest.mark.req("fleet.fencing")
async def test_a_turn_that_begins_while_a_beat_is_under_way_is_not_taken_for_a_lost_one(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        open_storages(tmp_path, postgres_url, 1, lease=QUICK) as (one,),
        open_storages(tmp_path, postgres_url, 1) as (two,),
    ):
        lost: list[Pair] = []
        one.turn_claims.on_lost = lost.append
        told = TurnRequester([one])
        before = await (await told.request_turn(0, "r1")).wait_until_reached()
        async with two.database.transaction() as connection:
            await connection.execute("SELECT FROM daemons WHERE id = $1 FOR UPDATE", one.id)
            await wait_until(lambda: is_blocked(two))
            await before.leave()
            after = await (await told.request_turn(0, "r2")).wait_until_reached()
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
    """Whether `one` beats now: seen twice, so that it had all of an answer in between."""
    beats = Counter[Any]()
    async with asyncio.timeout(PATIENCE):
        while len(beats) < 3:
            rows = await two.database.fetch("SELECT expires_at FROM daemons WHERE id = $1", one.id)
            beats[rows[0]["expires_at"]] += 1
            await asyncio.sleep(0.01)
    return True


@pytest.mark.req("fleet.fencing")
async def test_a_daemon_that_is_late_does_not_take_its_own_turns_for_a_dead_ones(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (one,):
        told = TurnRequester([one])
        turn = await (await told.request_turn(0, "r1")).wait_until_reached()
        await turn.say("hello")
        await expire_lease(one)
        await one.turn_claims.close_dead_lease(KEY, PAIR)
        await expire_lease(one)
        following = await told.request_turn(0, "r2")
        await turn.say("and on")
        await turn.leave()
        await (await following.wait_until_reached()).leave()
        assert await read_record(one) == ["hello", "and on"]


@pytest.mark.req("fleet.fencing")
async def test_a_turn_is_renewed_as_long_as_its_daemon_lives(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 2, lease=QUICK) as (one, two):
        turn = await (await TurnRequester([one]).request_turn(0, "r1")).wait_until_reached()
        for _ in range(3):
            await has_sent_heartbeat(one, two)
        await turn.say("still here")
        assert (await two.find_owner(PAIR)) == one.id
        await turn.leave()


# ── Giving up ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.cancelled")
@pytest.mark.parametrize("is_busy", [False, True])
async def test_cancelled_anywhere_a_turn_leaves_neither_lease_nor_ticket(
    tmp_path: Path, postgres_url: str, is_busy: bool
) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as storages:
        told = TurnRequester(storages)
        was_reached = 0
        for steps in range(1, 400):
            holder = (
                await (await told.request_turn(0, "holder")).wait_until_reached()
                if is_busy
                else None
            )
            turn = ClaimedTurn(told.conversations[1], "r1")
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
        assert was_reached, "it was never so far that the turn was reached"


# ── Any order of anything ──────────────────────────────────────────────────────────────────────

ACTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ask", "ask first"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["say", "leave", "expire", "give up"]), st.just(0)),
    ),
    max_size=25,
)


class TurnQueueModel:
    """What the line of all daemons must be like. Who has the turn is its first."""

    def __init__(self, storages: list[PostgresStorage], pair: Pair) -> None:
        self._requester = TurnRequester(storages, pair)
        self._storages = storages
        self._pair = pair
        self._line: list[tuple[int, ClaimedTurn]] = []
        self._record: list[str] = []
        self._runs = 0

    async def ask(self, place: int, *, first: bool) -> None:
        self._runs += 1
        # In one daemon, the order is that of its own line: `first` is for a turn elsewhere.
        first = first and all(each != place for each, _ in self._line)
        turn = await self._requester.request_turn(place, f"r{self._runs}", first=first)
        if first and self._line and not any("first" in t.run for _, t in self._line[1:]):
            turn.run += " first"
            self._line.insert(1, (place, turn))
        elif first and self._line:
            turn.run += " first"
            at = max(n for n, (_, t) in enumerate(self._line) if "first" in t.run or n == 0)
            self._line.insert(at + 1, (place, turn))
        else:
            self._line.append((place, turn))

    async def say(self) -> None:
        _, turn = self._line[0]
        text = f"{turn.run}: {len(self._record)}"
        await turn.say(text)
        self._record.append(text)

    async def leave(self) -> None:
        place, turn = self._line.pop(0)
        await turn.leave()
        await wait_until_settled(self._storages[place])

    async def give_up(self) -> None:
        if len(self._line) > 1:
            place, turn = self._line.pop()
            turn.task.cancel()
            await asyncio.wait([turn.task])
            await wait_until_settled(self._storages[place])

    async def expire(self) -> None:
        """Whoever is next takes over, unless it is of the same daemon: that knows better."""
        place, turn = self._line.pop(0)
        await expire_lease(self._storages[0], self._requester.key)
        for storage in self._storages:
            storage.turn_claims.wake(self._requester.key)
        if self._line and self._line[0][0] != place:
            await self._line[0][1].wait_until_reached()
            if self._record and self._record[-1].startswith(
                f"{turn.run}: "
            ):  # else nothing is open
                self._record.append(f"{turn.run.removesuffix(' first')} interrupted")
            with pytest.raises(FencedError):
                await turn.say("stale")
        await turn.leave()
        await wait_until_settled(self._storages[place])

    async def check(self) -> None:
        """Exactly one has the turn: the first in line."""
        if self._line:
            await self._line[0][1].wait_until_reached()
            assert not any(turn.is_reached.is_set() for _, turn in self._line[1:])

    async def end(self) -> None:
        while self._line:
            await self.leave()
            await self.check()
        await wait_until_nothing_left(self._storages[0], self._requester.key)
        assert await read_record(self._storages[0], self._pair) == self._record


@pytest.mark.req("fleet.fifo")
@pytest.mark.req("fleet.fencing")
@pytest.mark.timeout(180)
def test_whatever_three_daemons_do_one_has_the_turn_and_they_come_in_order(
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
                elif model._line:
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
