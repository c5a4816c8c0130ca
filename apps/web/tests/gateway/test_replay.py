"""A relay cannot have a message acted on twice, leave one out or change their order unnoticed."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.web.tests.gateway.chained import (
    Chained,
    deliver_again,
    new_name,
    notices,
    reasons,
)
from apps.web.tests.gateway.phone import in_order, phone, texts
from apps.web.tests.gateway.processes import Killable, gateway_of
from apps.web.tests.gateway.world import World, let_in, world
from crabtalk_web.gateway import Store
from crabtalk_web.gateway.refusals import NOTICES_AN_HOUR, SENTENCES
from crabtalk_web.gateway.replay import MOST_CHAINS, MOST_SEEN, Mark, Memory, MemoryState
from crabtalk_web.standing import standing
from crabtalk_web.stream import Chain, Envelope


async def until_answered(w: World, chained: Chained, *answers: str) -> list[Envelope]:
    return await w.phone.until(
        chained.session, lambda found: sorted(texts(found)) == sorted(answers)
    )


async def until_told(w: World, chained: Chained, count: int = 1) -> list[Envelope]:
    return await w.phone.until(chained.session, lambda found: len(notices(found)) >= count)


@pytest.mark.req("gateway.replay.repeat")
async def test_a_sealed_message_under_a_new_id_is_refused_and_people_are_told(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        chained = Chained(w.phone, await w.phone.session())
        letter = await chained.say("!say paid")
        await until_answered(w, chained, "paid")
        await chained.send(letter, new_name())
        envelopes = await until_told(w, chained)
        assert reasons(envelopes) == ["repeat"]
        (notice,) = notices(envelopes)
        assert "`!say paid`" in notice
        assert "do not trust this relay" in notice
        # The conversation goes on, and nothing was done twice.
        await chained.say("!say next")
        envelopes = await until_answered(w, chained, "paid", "next")
        assert len(notices(envelopes)) == 1
        in_order(envelopes)


@pytest.mark.req("gateway.replay.plain")
async def test_a_message_without_a_counter_is_taken_once_and_its_client_is_named(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        session = await w.phone.session()
        chained = Chained(w.phone, session)
        body = {
            "role": "user",
            "content": {"type": "text", "text": "!say hello"},
            "meta": {"sentFrom": "ios"},
        }
        content = session.sealer.seal(body)
        path = f"/v3/sessions/{session.id}/messages"
        for local_id in ("one", "two"):
            message = {"content": content, "localId": local_id}
            await w.phone.ask("POST", path, {"messages": [message]})
        envelopes = await until_told(w, chained)
        assert reasons(envelopes) == ["repeat"]
        await until_answered(w, chained, "hello")
        # The same words in another message are another message.
        await w.phone.post(session, body)
        await until_answered(w, chained, "hello", "hello")
        async with asyncio.timeout(20):
            while (await w.phone.session()).metadata.get("unprotectedClients") != ["ios"]:
                await asyncio.sleep(0.02)
        (told,) = [
            one
            for one in standing(Store(w.daemon.home), w.credentials)["conversations"]
            if one["agent"] == "crab"
        ]
        assert (told["unprotected"], told["refused"]) == (["ios"], 1)


@pytest.mark.req("gateway.replay.gap")
async def test_a_message_that_was_left_out_is_noticed_and_the_device_begins_anew(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        chained = Chained(w.phone, await w.phone.session())
        await chained.say("!say one")
        withheld = chained.write("!say two")
        await chained.say("!say three")
        envelopes = await until_told(w, chained)
        assert reasons(envelopes) == ["gap"]
        assert "a message before it is missing" in notices(envelopes)[0]
        # Delivered in another order it is of no use either: the order of the chain is lost.
        await chained.send(withheld)
        envelopes = await until_told(w, chained, 2)
        assert reasons(envelopes) == ["gap", "closed"]
        again = Chained(w.phone, chained.session, device=chained.device)
        await again.say("!say again")
        envelopes = await until_answered(w, again, "one", "again")
        in_order(envelopes)


@pytest.mark.req("gateway.replay.gap")
async def test_messages_that_come_in_another_order_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        chained = Chained(w.phone, await w.phone.session())
        first, second = chained.write("!say one"), chained.write("!say two")
        await chained.send(second)
        await chained.send(first)
        envelopes = await until_told(w, chained, 2)
        assert reasons(envelopes) == ["gap", "closed"]
        assert texts(envelopes) == []


@pytest.mark.req("gateway.replay.idempotent")
async def test_what_is_delivered_again_under_its_own_name_is_passed_over_in_silence(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        chained = Chained(w.phone, await w.phone.session())
        letter = await chained.say("!say once")
        await chained.send(letter)  # a device that was not sure
        await until_answered(w, chained, "once")
        seq = next(s.seq for s in await w.phone.read(chained.session) if s.local_id in str(letter))
        deliver_again(tmp_path / "relay", chained.session.id, seq)
        await chained.say("!say after")
        envelopes = await until_answered(w, chained, "once", "after")
        assert notices(envelopes) == []


@pytest.mark.req("gateway.replay.devices")
async def test_devices_and_restored_ones_have_chains_of_their_own(tmp_path: Path) -> None:
    async with world(tmp_path) as w, phone(w.relay.url, w.phone.secret) as other:
        session = await w.phone.session()
        mine, theirs = Chained(w.phone, session), Chained(other, session)
        await mine.say("!say a")
        await theirs.say("!say b")
        await mine.say("!say c")
        restored = Chained(other, session, device=theirs.device)
        await restored.say("!say d")
        await theirs.say("!say e")
        envelopes = await until_answered(w, mine, "a", "b", "c", "d", "e")
        assert notices(envelopes) == []
        # A machine that is paired again has other sessions, and devices begin anew in them.
        await w.stop_gateway()
        w.credentials = await let_in(w.phone, w.relay.url)
        for path in Store(w.daemon.home).journal.glob("*.jsonl"):
            path.unlink()
        await w.start_gateway()
        async with asyncio.timeout(20):
            while (fresh := await w.phone.session()).id == session.id:
                await asyncio.sleep(0.02)
        paired = Chained(w.phone, fresh, device=mine.device)
        await paired.say("!say f")
        await w.phone.until(fresh, lambda found: "f" in texts(found))
        assert notices(await w.phone.envelopes(fresh)) == []


@pytest.mark.req("gateway.replay.restart")
async def test_a_gateway_remembers_after_a_restart_and_after_its_journal_was_lost(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        chained = Chained(w.phone, await w.phone.session())
        letter = await chained.say("!say one")
        await until_answered(w, chained, "one")
        await w.stop_gateway()
        await chained.send(letter, new_name())
        await w.start_gateway()
        assert reasons(await until_told(w, chained)) == ["repeat"]
        await chained.say("!say two")
        await until_answered(w, chained, "one", "two")
        await w.stop_gateway()
        for path in Store(w.daemon.home).journal.glob("*.jsonl"):
            path.unlink()
        await w.start_gateway()
        await chained.send(letter, new_name())
        await until_told(w, chained, 2)
        await chained.say("!say three")
        envelopes = await w.phone.until(chained.session, lambda found: "three" in texts(found))
        assert texts(envelopes).count("one") == 1
        assert reasons(envelopes) == ["repeat", "repeat"]


@pytest.mark.req("gateway.replay.restart")
async def test_messages_from_before_an_update_cannot_be_repeated_after_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        chained = Chained(w.phone, await w.phone.session())
        await w.phone.say(chained.session, "!say old", local_id="old")
        await until_answered(w, chained, "old")
        await w.stop_gateway()
        for journal in Store(w.daemon.home).journal.glob("*.jsonl"):
            lines = [json.loads(line) for line in journal.read_text().splitlines()]
            for line in lines:
                for key in ("mark", "learned", "memory"):
                    line.pop(key, None)
            journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        await w.start_gateway()
        page = await w.phone.ask("GET", f"/v3/sessions/{chained.session.id}/messages?limit=100")
        (old,) = [one for one in page["messages"] if one["localId"] == "old"]
        message = {"content": old["content"]["c"], "localId": new_name()}
        path = f"/v3/sessions/{chained.session.id}/messages"
        await w.phone.ask("POST", path, {"messages": [message]})
        assert reasons(await until_told(w, chained)) == ["repeat"]
        await chained.say("!say new")
        await until_answered(w, chained, "old", "new")


@pytest.mark.req("gateway.replay.crash")
async def test_killed_at_any_moment_it_neither_repeats_nor_loses_a_message(tmp_path: Path) -> None:
    """Kills between reading, remembering and handing over; a relay that repeats all the time."""
    chance = random.Random(7)
    async with world(tmp_path, starts=False) as w:
        (w.daemon.home / "config").mkdir()
        (w.daemon.home / "config" / "web.toml").write_text(f'cwd = "{tmp_path / "work"}"\n')
        gateway: Killable = gateway_of(w.daemon.home, tmp_path / "gateway.log")
        await gateway.start()
        try:
            chained = Chained(w.phone, await w.phone.session())
            for number in range(8):
                letter = await chained.say(f"!say {number}")
                await chained.send(letter, new_name())
                await asyncio.sleep(chance.random() * 0.2)
                await gateway.kill()
                await gateway.start()
            wanted = [str(number) for number in range(8)]
            envelopes = await until_answered(w, chained, *wanted)
            await w.phone.until(chained.session, lambda found: len(notices(found)) >= 8)
            envelopes = await w.phone.envelopes(chained.session)
        finally:
            await gateway.kill()
        assert texts(envelopes) == wanted
        assert set(reasons(envelopes)) == {"repeat"}


@pytest.mark.req("gateway.replay.bounds")
async def test_a_flood_of_repeats_is_told_a_few_times_and_counted(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        chained = Chained(w.phone, await w.phone.session())
        letter = await chained.say("!say one")
        await until_answered(w, chained, "one")
        messages = [{"content": letter.content, "localId": new_name()} for _ in range(100)]
        path = f"/v3/sessions/{chained.session.id}/messages"
        await w.phone.ask("POST", path, {"messages": messages})
        await chained.say("!say two")
        envelopes = await until_answered(w, chained, "one", "two")
        # Equal lines within a millisecond are one line.
        assert 2 <= len(notices(envelopes)) <= NOTICES_AN_HOUR + 1
        assert "counts them" in notices(envelopes)[-1]
        assert w.gateway is not None
        assert w.gateway._conversations["crab"].journal.book.memory is not None
        assert w.gateway._conversations["crab"].journal.book.memory.refused == 100


# ── The memory itself ───────────────────────────────────────────────────────────────────────────


def mark(chain: str, counter: int, *, session: str = "s") -> Mark:
    previous = f"{chain} {counter - 1}" if counter > 1 else ""
    return Mark(f"{chain} {counter}", "", Chain("d", chain, session, counter, previous))


@pytest.mark.req("gateway.replay.order")
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=60),
    st.integers(0, 60),
)
def test_whatever_a_relay_delivers_each_chain_is_acted_on_in_order_and_once(
    delivered: list[tuple[str, int]], restart: int
) -> None:
    memory = Memory()
    taken: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for at, (chain, counter) in enumerate(delivered):
        if at == restart:
            memory = Memory(memory.state())
        one = mark(chain, counter)
        reason = memory.judge(one, "s")
        if reason is None:
            taken[chain].append(counter)
            memory.apply(one, "s")
        else:
            memory.apply(Mark(one.hash, "", one.chain, "", reason), "s")
    for counters in taken.values():
        assert counters == list(range(1, len(counters) + 1))


@pytest.mark.req("gateway.replay.order")
def test_each_kind_of_fault_has_a_reason_and_each_reason_a_sentence() -> None:
    memory = Memory()
    memory.apply(mark("a", 1), "s")
    memory.apply(mark("a", 2), "s")
    forked = Mark("other", "", Chain("d", "a", "s", 3, "not the one before"))
    other_old = Mark("another", "", Chain("d", "a", "s", 2, "a 1"))
    assert memory.judge(mark("a", 2), "s") == "repeat"
    assert memory.judge(other_old, "s") == "old"
    assert memory.judge(mark("a", 4), "s") == "gap"
    assert memory.judge(mark("b", 2), "s") == "gap"
    assert memory.judge(forked, "s") == "fork"
    assert memory.judge(mark("a", 3, session="t"), "s") == "session"
    assert memory.judge(mark("a", 3), "s") is None
    for reason in ("repeat", "old", "gap", "fork", "closed", "session", "full"):
        assert reason in SENTENCES


@pytest.mark.req("gateway.replay.bounds")
def test_the_memory_has_bounds_and_forgets_no_chain() -> None:
    memory = Memory()
    for number in range(MOST_CHAINS):
        memory.apply(mark(f"chain{number}", 1), "s")
    for number in range(2 * MOST_SEEN):
        memory.apply(Mark(f"plain{number}", "", None, "ios"), "s")
    state = memory.state()
    assert (len(state.heads), len(state.seen)) == (MOST_CHAINS, MOST_SEEN)
    memory = Memory(MemoryState(state.heads, state.seen))
    assert memory.judge(mark("one more", 1), "s") == "full"
    assert memory.judge(mark("chain0", 1), "s") == "old"
    assert memory.judge(mark("chain0", 2), "s") is None


@pytest.mark.req("gateway.replay.plain")
def test_refused_messages_of_a_chain_make_no_other_message_forgotten() -> None:
    memory = Memory()
    for counter in range(1, 2 * MOST_SEEN + 1):
        memory.apply(mark("a", counter), "s")
    plain = Mark("plain", "", None, "ios")
    memory.apply(plain, "s")
    for counter in range(1, MOST_SEEN + 1):  # so old that their hashes are forgotten
        old = mark("a", counter)
        reason = memory.judge(old, "s")
        assert reason == "old"
        memory.apply(Mark(old.hash, "", old.chain, "", reason), "s")
    assert memory.judge(plain, "s") == "repeat"
