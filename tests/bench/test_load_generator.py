"""The load generator finds lost, doubled and reordered chunks, and a small load passes."""

import asyncio
import resource
from pathlib import Path
from subprocess import PIPE

import pytest

from bench.load_generator import (
    PLAIN_TURN_EVENTS,
    TOOL_TURN_EVENTS,
    CrowdLoad,
    CrowdTurn,
    TurnListener,
    fit_slope,
    join_stamps,
    run_daemon,
    run_load,
)
from crabtalk.runtime.clock import Clock
from crabtalk.runtime.conversation_cache import MAX_BUSY_SKIPPED, ConversationCache
from crabtalk.runtime.limits import RuntimeLimits
from crabtalk.storage import MemoryStorage, Pair
from tests.daemon.crabtalkd_program import CRABTALKD
from tests.model_server import model_process

STAMPS = [1000, 2000, 3000, 4000]


async def make_listener(stamps: list[int], order: list[str] = PLAIN_TURN_EVENTS) -> TurnListener:
    listener = TurnListener(b"", len(stamps))
    listener.received_stamps, listener.event_kinds = list(stamps), list(order)
    return listener


# ── Faults it finds ────────────────────────────────────────────────────────────────────────────


async def test_a_turn_received_and_stored_unchanged_has_no_fault() -> None:
    assert CrowdTurn(0, 4, 5).find_fault(await make_listener(STAMPS), [join_stamps(STAMPS)]) == ""
    calling = await make_listener(STAMPS, TOOL_TURN_EVENTS)
    assert (
        CrowdTurn(1, 4, 5).find_fault(calling, [join_stamps(STAMPS[:2]), join_stamps(STAMPS[2:])])
        == ""
    )


@pytest.mark.parametrize(
    ("stamps", "stored", "fault"),
    [
        (STAMPS[:3], STAMPS[:3], "1 of 4 chunks lost"),
        ([1000, 3000, 2000, 4000], STAMPS, "chunks out of order"),
        ([1000, 2000, 2000, 4000], STAMPS, "chunks out of order"),
        (STAMPS, STAMPS[1:], "what is kept differs"),
        (STAMPS, [], "what is kept differs"),
    ],
)
async def test_lost_doubled_reordered_or_unstored_chunks_are_faults(
    stamps: list[int], stored: list[int], fault: str
) -> None:
    assert (
        CrowdTurn(0, 4, 5).find_fault(await make_listener(stamps), [join_stamps(stored)]) == fault
    )


async def test_events_in_another_order_are_a_fault() -> None:
    swapped = ["start", "chunk", "text_start", "text_end", "context_usage", "end"]
    fault = CrowdTurn(0, 4, 5).find_fault(
        await make_listener(STAMPS, swapped), [join_stamps(STAMPS)]
    )
    assert fault.startswith("events out of order")


def test_five_of_a_hundred_turns_call_a_tool_and_one_is_a_guests() -> None:
    turns = [CrowdTurn(number, 4, 5) for number in range(1000)]
    assert sum(turn.calls_tool for turn in turns) == 50
    assert sum(turn.is_guest for turn in turns) == 10


def test_the_slope_is_that_of_the_best_fitting_line() -> None:
    assert fit_slope([(0, 1.0), (1, 3.0), (2, 5.0)]) == pytest.approx(2)
    assert fit_slope([(0, 1.0), (1, 2.0), (2, 1.0)]) == pytest.approx(0)


# ── Regressions it found ───────────────────────────────────────────────────────────────────────


async def test_evicting_idle_conversations_skips_few_busy_ones() -> None:
    conversations = ConversationCache(
        MemoryStorage(), RuntimeLimits(live_conversations=10), Clock()
    )
    pairs = [Pair("crab", f"s{number}") for number in range(500)]
    for pair in pairs:
        await conversations.get(pair).turn_lock.enqueue()
    first = [conversation.pair for conversation in conversations]
    conversations.evict_idle()
    # The conversations it skipped are the last ones now, and nothing else moved.
    assert [c.pair for c in conversations] == first[MAX_BUSY_SKIPPED:] + first[:MAX_BUSY_SKIPPED]


async def test_the_bound_on_conversations_holds_after_many_turns() -> None:
    conversations = ConversationCache(
        MemoryStorage(), RuntimeLimits(live_conversations=10), Clock()
    )
    running = [conversations.get(Pair("crab", f"s{number}")) for number in range(500)]
    for conversation in running:
        await conversation.turn_lock.enqueue()
    for conversation in running:
        conversation.turn_lock.release()
        conversations.evict_idle()
    assert len(conversations) == 10


async def test_a_daemon_raises_its_descriptor_limit_for_clients_and_models(
    tmp_path: Path,
) -> None:
    limited = f"ulimit -Sn 256; exec {CRABTALKD} run --home {tmp_path / 'h'} --tcp off"
    process = await asyncio.create_subprocess_shell(limited, stderr=PIPE)
    assert process.stderr is not None
    assert b"ready" in await process.stderr.readline()
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    process.terminate()
    await process.communicate()
    assert soft >= 2 * 4096 or soft == hard


# ── A whole load ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.timeout(180)
async def test_nothing_is_lost_or_reordered_when_two_hundred_talk_at_once(tmp_path: Path) -> None:
    with (
        model_process("--no-record") as (url, model),
        run_daemon("it", tmp_path / "h", url) as daemon,
    ):
        outcome = await run_load(CrowdLoad(200, 10, 10), daemon, model)
    assert not outcome.faults
    assert len(outcome.lags) > 200 * 10 * 10 * 0.7
    assert all(outcome.background.latencies.values())
