"""A relay cannot replay, drop or reorder messages without being noticed."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.web.tests.gateway.device_client import check_order, list_texts, open_device
from apps.web.tests.gateway.killable_process import KillableProcess, build_gateway_process
from apps.web.tests.gateway.message_chain import (
    MessageChain,
    deliver_again,
    find_refusal_notices,
    find_refusal_reasons,
    new_local_id,
)
from apps.web.tests.gateway.web_gateway_world import WebGatewayWorld, open_world, pair_with_device
from crabtalk_web.gateway import WebFolder
from crabtalk_web.gateway.refusal_notices import NOTICES_AN_HOUR, REASON_TEXTS
from crabtalk_web.gateway.replay_guard import (
    MAX_CHAINS,
    MAX_SEEN,
    MessageMark,
    ReplayGuard,
    ReplayGuardState,
)
from crabtalk_web.status import read_status
from crabtalk_web.stream import ChainLink, Envelope


async def wait_for_answers(
    world: WebGatewayWorld, chained: MessageChain, *answers: str
) -> list[Envelope]:
    return await world.phone.wait_for_envelopes(
        chained.session, lambda envelopes: sorted(list_texts(envelopes)) == sorted(answers)
    )


async def wait_for_notices(
    world: WebGatewayWorld, chained: MessageChain, count: int = 1
) -> list[Envelope]:
    return await world.phone.wait_for_envelopes(
        chained.session, lambda envelopes: len(find_refusal_notices(envelopes)) >= count
    )


@pytest.mark.req("gateway.replay.repeat")
async def test_a_replay_under_a_new_id_is_refused_and_reported(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        chained = MessageChain(world.phone, await world.phone.wait_for_session())
        message = await chained.send_text("!say paid")
        await wait_for_answers(world, chained, "paid")
        await chained.send(message, new_local_id())
        envelopes = await wait_for_notices(world, chained)
        assert find_refusal_reasons(envelopes) == ["repeat"]
        (notice,) = find_refusal_notices(envelopes)
        assert "`!say paid`" in notice
        assert "do not trust this relay" in notice
        # The conversation continues, and nothing was done twice.
        await chained.send_text("!say next")
        envelopes = await wait_for_answers(world, chained, "paid", "next")
        assert len(find_refusal_notices(envelopes)) == 1
        check_order(envelopes)


@pytest.mark.req("gateway.replay.plain")
async def test_a_message_without_a_counter_is_accepted_once_and_its_client_is_named(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        chained = MessageChain(world.phone, session)
        body = {
            "role": "user",
            "content": {"type": "text", "text": "!say hello"},
            "meta": {"sentFrom": "ios"},
        }
        content = session.sealer.seal(body)
        path = f"/v3/sessions/{session.id}/messages"
        for local_id in ("one", "two"):
            message = {"content": content, "localId": local_id}
            await world.phone.request("POST", path, {"messages": [message]})
        envelopes = await wait_for_notices(world, chained)
        assert find_refusal_reasons(envelopes) == ["repeat"]
        await wait_for_answers(world, chained, "hello")
        # The same text in another message is another message.
        await world.phone.send_body(session, body)
        await wait_for_answers(world, chained, "hello", "hello")
        async with asyncio.timeout(20):
            while (await world.phone.wait_for_session()).metadata.get("unprotectedClients") != [
                "ios"
            ]:
                await asyncio.sleep(0.02)
        (told,) = [
            one
            for one in read_status(WebFolder(world.daemon.home), world.credentials)["conversations"]
            if one["agent"] == "crab"
        ]
        assert (told["unprotected"], told["refused"]) == (["ios"], 1)


@pytest.mark.req("gateway.replay.gap")
async def test_a_dropped_message_is_noticed_and_the_device_starts_a_new_chain(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        chained = MessageChain(world.phone, await world.phone.wait_for_session())
        await chained.send_text("!say one")
        withheld = chained.seal_text("!say two")
        await chained.send_text("!say three")
        envelopes = await wait_for_notices(world, chained)
        assert find_refusal_reasons(envelopes) == ["gap"]
        assert "a message before it is missing" in find_refusal_notices(envelopes)[0]
        # Out of order it is of no use either: the order of the chain is lost.
        await chained.send(withheld)
        envelopes = await wait_for_notices(world, chained, 2)
        assert find_refusal_reasons(envelopes) == ["gap", "closed"]
        restored = MessageChain(world.phone, chained.session, device=chained.device)
        await restored.send_text("!say again")
        envelopes = await wait_for_answers(world, restored, "one", "again")
        check_order(envelopes)


@pytest.mark.req("gateway.replay.gap")
async def test_reordered_messages_are_refused(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        chained = MessageChain(world.phone, await world.phone.wait_for_session())
        first, second = chained.seal_text("!say one"), chained.seal_text("!say two")
        await chained.send(second)
        await chained.send(first)
        envelopes = await wait_for_notices(world, chained, 2)
        assert find_refusal_reasons(envelopes) == ["gap", "closed"]
        assert list_texts(envelopes) == []


@pytest.mark.req("gateway.replay.idempotent")
async def test_a_redelivery_under_the_same_id_is_skipped_silently(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        chained = MessageChain(world.phone, await world.phone.wait_for_session())
        message = await chained.send_text("!say once")
        await chained.send(message)  # a device that was not sure
        await wait_for_answers(world, chained, "once")
        seq = next(
            s.seq
            for s in await world.phone.read_messages(chained.session)
            if s.local_id in str(message)
        )
        deliver_again(tmp_path / "relay", chained.session.id, seq)
        await chained.send_text("!say after")
        envelopes = await wait_for_answers(world, chained, "once", "after")
        assert find_refusal_notices(envelopes) == []


@pytest.mark.req("gateway.replay.devices")
async def test_each_device_and_each_restored_device_has_its_own_chain(tmp_path: Path) -> None:
    async with (
        open_world(tmp_path) as world,
        open_device(world.relay.url, world.phone.secret) as other,
    ):
        session = await world.phone.wait_for_session()
        mine, theirs = MessageChain(world.phone, session), MessageChain(other, session)
        await mine.send_text("!say a")
        await theirs.send_text("!say b")
        await mine.send_text("!say c")
        restored = MessageChain(other, session, device=theirs.device)
        await restored.send_text("!say d")
        await theirs.send_text("!say e")
        envelopes = await wait_for_answers(world, mine, "a", "b", "c", "d", "e")
        assert find_refusal_notices(envelopes) == []
        # A machine that is paired again has other sessions, and devices start new chains in them.
        await world.stop_gateway()
        world.credentials = await pair_with_device(world.phone, world.relay.url)
        for path in WebFolder(world.daemon.home).journal_folder.glob("*.jsonl"):
            path.unlink()
        await world.start_gateway()
        async with asyncio.timeout(20):
            while (fresh := await world.phone.wait_for_session()).id == session.id:
                await asyncio.sleep(0.02)
        paired = MessageChain(world.phone, fresh, device=mine.device)
        await paired.send_text("!say f")
        await world.phone.wait_for_envelopes(fresh, lambda envelopes: "f" in list_texts(envelopes))
        assert find_refusal_notices(await world.phone.read_envelopes(fresh)) == []


@pytest.mark.req("gateway.replay.restart")
async def test_a_gateway_remembers_after_a_restart_and_after_its_journal_was_lost(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        chained = MessageChain(world.phone, await world.phone.wait_for_session())
        message = await chained.send_text("!say one")
        await wait_for_answers(world, chained, "one")
        await world.stop_gateway()
        await chained.send(message, new_local_id())
        await world.start_gateway()
        assert find_refusal_reasons(await wait_for_notices(world, chained)) == ["repeat"]
        await chained.send_text("!say two")
        await wait_for_answers(world, chained, "one", "two")
        await world.stop_gateway()
        for path in WebFolder(world.daemon.home).journal_folder.glob("*.jsonl"):
            path.unlink()
        await world.start_gateway()
        await chained.send(message, new_local_id())
        await wait_for_notices(world, chained, 2)
        await chained.send_text("!say three")
        envelopes = await world.phone.wait_for_envelopes(
            chained.session, lambda envelopes: "three" in list_texts(envelopes)
        )
        assert list_texts(envelopes).count("one") == 1
        assert find_refusal_reasons(envelopes) == ["repeat", "repeat"]


@pytest.mark.req("gateway.replay.restart")
async def test_messages_from_before_an_update_cannot_be_repeated_after_it(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        chained = MessageChain(world.phone, await world.phone.wait_for_session())
        await world.phone.send_text(chained.session, "!say old", local_id="old")
        await wait_for_answers(world, chained, "old")
        await world.stop_gateway()
        for journal in WebFolder(world.daemon.home).journal_folder.glob("*.jsonl"):
            lines = [json.loads(line) for line in journal.read_text().splitlines()]
            for line in lines:
                for key in ("mark", "learned", "memory"):
                    line.pop(key, None)
            journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        await world.start_gateway()
        page = await world.phone.request(
            "GET", f"/v3/sessions/{chained.session.id}/messages?limit=100"
        )
        (old,) = [one for one in page["messages"] if one["localId"] == "old"]
        message = {"content": old["content"]["c"], "localId": new_local_id()}
        path = f"/v3/sessions/{chained.session.id}/messages"
        await world.phone.request("POST", path, {"messages": [message]})
        assert find_refusal_reasons(await wait_for_notices(world, chained)) == ["repeat"]
        await chained.send_text("!say new")
        await wait_for_answers(world, chained, "old", "new")


@pytest.mark.req("gateway.replay.crash")
async def test_kills_at_any_moment_neither_repeat_nor_lose_a_message(tmp_path: Path) -> None:
    """Kills between reading, storing and delivering, while the relay replays all the time."""
    chance = random.Random(7)
    async with open_world(tmp_path, starts=False) as world:
        (world.daemon.home / "config").mkdir()
        (world.daemon.home / "config" / "web.toml").write_text(f'cwd = "{tmp_path / "work"}"\n')
        gateway: KillableProcess = build_gateway_process(
            world.daemon.home, tmp_path / "gateway.log"
        )
        await gateway.start()
        try:
            chained = MessageChain(world.phone, await world.phone.wait_for_session())
            for number in range(8):
                message = await chained.send_text(f"!say {number}")
                await chained.send(message, new_local_id())
                await asyncio.sleep(chance.random() * 0.2)
                await gateway.kill()
                await gateway.start()
            expected = [str(number) for number in range(8)]
            envelopes = await wait_for_answers(world, chained, *expected)
            await world.phone.wait_for_envelopes(
                chained.session, lambda envelopes: len(find_refusal_notices(envelopes)) >= 8
            )
            envelopes = await world.phone.read_envelopes(chained.session)
        finally:
            await gateway.kill()
        assert list_texts(envelopes) == expected
        assert set(find_refusal_reasons(envelopes)) == {"repeat"}


@pytest.mark.req("gateway.replay.bounds")
async def test_a_flood_of_replays_is_reported_a_few_times_and_counted(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        chained = MessageChain(world.phone, await world.phone.wait_for_session())
        message = await chained.send_text("!say one")
        await wait_for_answers(world, chained, "one")
        messages = [{"content": message.content, "localId": new_local_id()} for _ in range(100)]
        path = f"/v3/sessions/{chained.session.id}/messages"
        await world.phone.request("POST", path, {"messages": messages})
        await chained.send_text("!say two")
        envelopes = await wait_for_answers(world, chained, "one", "two")
        # Equal lines within a millisecond are one line.
        assert 2 <= len(find_refusal_notices(envelopes)) <= NOTICES_AN_HOUR + 1
        assert "counts them" in find_refusal_notices(envelopes)[-1]
        assert world.gateway is not None
        assert world.gateway._conversations["crab"].journal.state.replay_guard is not None
        assert world.gateway._conversations["crab"].journal.state.replay_guard.refused == 100


# ── The memory itself ───────────────────────────────────────────────────────────────────────────


def make_mark(chain: str, counter: int, *, session: str = "s") -> MessageMark:
    previous = f"{chain} {counter - 1}" if counter > 1 else ""
    return MessageMark(f"{chain} {counter}", "", ChainLink("d", chain, session, counter, previous))


@pytest.mark.req("gateway.replay.order")
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=60),
    st.integers(0, 60),
)
def test_each_chain_is_acted_on_in_order_and_once_whatever_a_relay_delivers(
    delivered: list[tuple[str, int]], restart: int
) -> None:
    memory = ReplayGuard()
    accepted: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for at, (chain, counter) in enumerate(delivered):
        if at == restart:
            memory = ReplayGuard(memory.to_state())
        one = make_mark(chain, counter)
        reason = memory.find_refusal_reason(one, "s")
        if reason is None:
            accepted[chain].append(counter)
            memory.apply(one, "s")
        else:
            memory.apply(MessageMark(one.hash, "", one.chain, "", reason), "s")
    for counters in accepted.values():
        assert counters == list(range(1, len(counters) + 1))


@pytest.mark.req("gateway.replay.order")
def test_each_fault_has_a_reason_and_each_reason_a_message() -> None:
    memory = ReplayGuard()
    memory.apply(make_mark("a", 1), "s")
    memory.apply(make_mark("a", 2), "s")
    forked = MessageMark("other", "", ChainLink("d", "a", "s", 3, "not the one before"))
    other_old = MessageMark("another", "", ChainLink("d", "a", "s", 2, "a 1"))
    assert memory.find_refusal_reason(make_mark("a", 2), "s") == "repeat"
    assert memory.find_refusal_reason(other_old, "s") == "old"
    assert memory.find_refusal_reason(make_mark("a", 4), "s") == "gap"
    assert memory.find_refusal_reason(make_mark("b", 2), "s") == "gap"
    assert memory.find_refusal_reason(forked, "s") == "fork"
    assert memory.find_refusal_reason(make_mark("a", 3, session="t"), "s") == "session"
    assert memory.find_refusal_reason(make_mark("a", 3), "s") is None
    for reason in ("repeat", "old", "gap", "fork", "closed", "session", "full"):
        assert reason in REASON_TEXTS


@pytest.mark.req("gateway.replay.bounds")
def test_the_guard_is_bounded_and_forgets_no_chain() -> None:
    memory = ReplayGuard()
    for number in range(MAX_CHAINS):
        memory.apply(make_mark(f"chain{number}", 1), "s")
    for number in range(2 * MAX_SEEN):
        memory.apply(MessageMark(f"plain{number}", "", None, "ios"), "s")
    state = memory.to_state()
    assert (len(state.heads), len(state.seen)) == (MAX_CHAINS, MAX_SEEN)
    memory = ReplayGuard(ReplayGuardState(state.heads, state.seen))
    assert memory.find_refusal_reason(make_mark("one more", 1), "s") == "full"
    assert memory.find_refusal_reason(make_mark("chain0", 1), "s") == "old"
    assert memory.find_refusal_reason(make_mark("chain0", 2), "s") is None


@pytest.mark.req("gateway.replay.plain")
def test_refused_messages_do_not_evict_remembered_hashes() -> None:
    memory = ReplayGuard()
    for counter in range(1, 2 * MAX_SEEN + 1):
        memory.apply(make_mark("a", counter), "s")
    plain = MessageMark("plain", "", None, "ios")
    memory.apply(plain, "s")
    for counter in range(1, MAX_SEEN + 1):  # so old that their hashes are forgotten
        old = make_mark("a", counter)
        reason = memory.find_refusal_reason(old, "s")
        assert reason == "old"
        memory.apply(MessageMark(old.hash, "", old.chain, "", reason), "s")
    assert memory.find_refusal_reason(plain, "s") == "repeat"
