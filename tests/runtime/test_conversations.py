"""Conversations and providers: the order of turns, eviction from memory, and reloading."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model import Chunk, Image, Message, Request, ToolCall
from crabtalk.runtime import (
    BusyError,
    Clock,
    Done,
    Env,
    Event,
    ParentRun,
    Run,
    Runtime,
    RuntimeLimits,
    StopReason,
    ToolDispatch,
    UnknownConversationError,
)
from crabtalk.runtime.conversation import INTERRUPTED, complete_tool_calls, estimate_size
from crabtalk.storage import (
    Archive,
    ConversationMeta,
    MemoryStorage,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    Storage,
)
from tests.runtime.runtime_world import (
    NOW,
    PAIR,
    RuntimeWorld,
    ScriptedTools,
    assistant_message,
    read_history,
    user_message,
    wait_for_done,
)
from tests.runtime.scripted_provider import (
    TEST_TIMEOUT,
    Gate,
    ScriptedProvider,
    answer_with_calls,
    answer_with_text,
    find_history_error,
)

LOOK = ToolCall("c1", "look", "{}")
SWIM = ToolCall("c2", "swim", "{}")


def answer_with_echo(request: Request) -> str:
    return f"You said {request.messages[-1].text}."


async def delete_crab_conversation(runtime: Runtime, sender: str = "") -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        await runtime.delete_conversation("crab", sender)


async def set_crab_title(runtime: Runtime, title: str) -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        await runtime.set_title("crab", title)


# ── Order and limits ────────────────────────────────────────────────────────────────────────────


async def test_turns_of_a_conversation_run_in_the_order_they_came(
    storage: Storage, world: RuntimeWorld
) -> None:
    senders = [f"s{n}" for n in range(10)]
    runtime = world.make_runtime(ScriptedProvider(respond=answer_with_echo), storage)
    runs = [runtime.start("crab", str(n), sender=sender) for n in range(30) for sender in senders]
    async with asyncio.timeout(4 * TEST_TIMEOUT):
        for run in runs:
            assert (await run.wait()).reason is StopReason.COMPLETED
    expected = [text for n in range(30) for text in (str(n), f"You said {n}.")]
    for sender in senders:
        history = await read_history(storage, Pair("crab", sender))
        assert [message.text for message in history] == expected


async def test_conversations_do_not_wait_for_each_other(world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([gate, *answer_with_text("Slow.")], "Fast.", "Fast too.")
    )
    slow = runtime.start("crab", "Hi", sender="slow")
    await gate.wait_until_reached()
    assert (await wait_for_done(runtime.start("crab", "Hi", sender="fast"))).text == "Fast."
    assert (await wait_for_done(runtime.start("owl", "Hi", sender="slow"))).text == "Fast too."
    gate.open()
    assert (await wait_for_done(slow)).text == "Slow."


async def test_many_first_messages_at_once_make_one_conversation(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider(respond=answer_with_echo), storage)
    runs = [runtime.start("crab", str(n)) for n in range(200)]
    assert runtime.running_count == 200
    for run in runs:
        assert (await wait_for_done(run)).reason is StopReason.COMPLETED
    ((_, meta),) = await storage.list_conversations()
    assert meta.message_count == 400
    texts = [m.text for m in await read_history(storage) if m.role == "user"]
    assert texts == [str(n) for n in range(200)]


async def test_agents_and_senders_tell_conversations_apart_and_nothing_else(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider(respond=answer_with_echo), storage)
    pairs = [("crab", "a:b"), ("crab", "a-b"), ("crab", "A B"), ("owl", "a:b"), ("crab", "user")]
    for agent, sender in pairs:
        await wait_for_done(runtime.start(agent, f"{agent} {sender}", sender=sender))
    await wait_for_done(runtime.start("crab", "again", sender=""))
    await wait_for_done(runtime.start("crab", "and again"))
    for agent, sender in pairs[:-1]:
        text = (await read_history(storage, Pair(agent, sender)))[0].text
        assert text == f"{agent} {sender}"
    user_texts = [m.text for m in await read_history(storage) if m.role == "user"]
    assert user_texts == ["crab user", "again", "and again"]
    assert len(await storage.list_conversations()) == len(pairs)


async def test_the_working_directory_holds_for_one_run(world: RuntimeWorld, tmp_path: Path) -> None:
    runtime = world.make_runtime(ScriptedProvider("One.", "Two."))
    there = runtime.start("crab", "Hi", cwd=tmp_path / "there")
    here = runtime.start("crab", "Hi")
    assert (there.cwd, here.cwd) == (tmp_path / "there", world.cwd)
    await wait_for_done(here)


async def test_turns_beyond_the_bound_are_refused(world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(ScriptedProvider([gate], "Hello."), limits=RuntimeLimits(runs=2))
    first, second = runtime.start("crab", "One"), runtime.start("crab", "Two")
    with pytest.raises(BusyError, match="2 turns are running or waiting; try again later"):
        runtime.start("crab", "Three")
    with pytest.raises(BusyError):
        await runtime.compact("crab")
    await gate.wait_until_reached()
    gate.open()
    await wait_for_done(first)
    await wait_for_done(second)
    runtime.set_provider(ScriptedProvider("Now."))
    assert (await wait_for_done(runtime.start("crab", "Three"))).text == "Now."


class TurnTrackingHook(ScriptedTools):
    """Tracks each turn from its beginning to its end, and rejects the content "never"."""

    def __init__(self) -> None:
        super().__init__()
        self.running_ids: set[str] = set()

    def on_turn(self, run: Run, content: str) -> None:
        if content == "never":
            raise ValueError("not that")
        self.running_ids.add(run.id)

    def on_event(self, run: Run, event: Event) -> None:
        if isinstance(event, Done):
            self.running_ids.discard(run.id)


@pytest.mark.req("bounds.held_bytes")
async def test_no_hook_hears_of_a_turn_that_is_refused(world: RuntimeWorld) -> None:
    hook = TurnTrackingHook()
    provider = ScriptedProvider(respond=answer_with_echo)
    runtime = world.make_runtime(provider, hook=hook, limits=RuntimeLimits(held_bytes=5))
    with pytest.raises(BusyError, match="too much was said"):
        runtime.start("crab", "Hello!")
    assert hook.running_ids == set()
    run = runtime.start("crab", "Hello")
    assert hook.running_ids == {run.id}
    await wait_for_done(run)
    assert hook.running_ids == set()


@pytest.mark.req("bounds.held_bytes")
async def test_the_text_of_a_turn_that_a_hook_rejects_is_not_counted(
    world: RuntimeWorld,
) -> None:
    provider = ScriptedProvider(respond=answer_with_echo)
    runtime = world.make_runtime(
        provider, hook=TurnTrackingHook(), limits=RuntimeLimits(held_bytes=5)
    )
    for _ in range(3):
        with pytest.raises(ValueError, match="not that"):
            runtime.start("crab", "never")
    assert runtime.running_count == 0
    assert (await wait_for_done(runtime.start("crab", "Hello"))).text == "You said Hello."


async def test_a_bound_that_is_lowered_holds_from_the_next_turn_on(world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([gate, *answer_with_text("Hello.")]), limits=RuntimeLimits(runs=2)
    )
    first = runtime.start("crab", "One")
    runtime.limits = RuntimeLimits(runs=1)
    with pytest.raises(BusyError):
        runtime.start("crab", "Two")
    await gate.wait_until_reached()
    gate.open()
    assert (await wait_for_done(first)).text == "Hello."


# ── Memory ──────────────────────────────────────────────────────────────────────────────────────


def list_senders(runtime: Runtime) -> list[str]:
    return [conversation.pair.sender for conversation in runtime.conversations]


async def test_idle_conversations_leave_memory_least_used_first(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(
        ScriptedProvider(respond=answer_with_echo),
        storage,
        limits=RuntimeLimits(live_conversations=2),
    )
    for sender in ("a", "b", "a", "c"):
        await wait_for_done(runtime.start("crab", "Hi", sender=sender))
    assert list_senders(runtime) == ["a", "c"]
    assert len(runtime.conversations) == 2


async def test_a_conversation_comes_back_from_storage_unchanged(
    storage: Storage, world: RuntimeWorld
) -> None:
    async def tool(call: ToolDispatch) -> str:
        return "wäves \0 \u2028 🦀"

    twice = ToolCall("c1", "look", "{}")
    model = ScriptedProvider(
        [
            Chunk(reasoning="hm", opaque={"scripted": {"s": [1, None]}}),
            *answer_with_calls(LOOK, twice),
        ],
        "Waves.",
        "Hoo.",
        "Elsewhere.",
    )
    runtime = world.make_runtime(
        model, storage, hook=ScriptedTools(look=tool), limits=RuntimeLimits(live_conversations=1)
    )
    await wait_for_done(runtime.start("crab", "Look!"))
    await wait_for_done(runtime.start("crab", "Owl?", guest="owl"))
    before = runtime.conversations.find(PAIR)
    assert before is not None
    await wait_for_done(runtime.start("crab", "Hi", sender="other"))
    assert runtime.conversations.find(PAIR) is None
    after = runtime.conversations.get(PAIR)
    assert after is not before
    await after.load()
    assert after.history == before.history
    assert after.meta == before.meta
    assert after.size == before.size > 0


async def test_conversations_leave_memory_until_their_bytes_are_within_the_limit(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(
        ScriptedProvider(respond=lambda request: "x" * 10_000),
        storage,
        limits=RuntimeLimits(live_bytes=50_000),
    )
    for n in range(16):
        await wait_for_done(runtime.start("crab", "Hi", sender=f"s{n}"))
    assert list_senders(runtime) == ["s12", "s13", "s14", "s15"]
    assert sum(conversation.size for conversation in runtime.conversations) <= 50_000
    assert len(await read_history(storage, Pair("crab", "s0"))) == 2


async def test_a_conversation_in_which_something_runs_or_waits_never_leaves(
    world: RuntimeWorld,
) -> None:
    gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([gate, *answer_with_text("One.")], respond=answer_with_echo),
        limits=RuntimeLimits(live_conversations=1),
    )
    running = runtime.start("crab", "First")
    waiting = runtime.start("crab", "Second")
    await gate.wait_until_reached()
    busy = runtime.conversations.find(PAIR)
    for n in range(20):
        await wait_for_done(runtime.start("crab", "Hi", sender=f"s{n}"))
    assert runtime.conversations.find(PAIR) is busy
    assert busy is not None
    assert busy.run is running
    gate.open()
    await wait_for_done(running)
    assert (await wait_for_done(waiting)).text == "You said Second."
    assert [message.text for message in busy.history] == [
        "First",
        "One.",
        "Second",
        "You said Second.",
    ]


def test_a_messages_estimated_size_grows_with_each_of_its_parts() -> None:
    parts = [
        Message("user", "x" * 1000),
        Message("assistant", reasoning="x" * 1000),
        Message("user", images=(Image(data=bytes(1000)),)),
        Message("user", images=(Image(url="x" * 1000),)),
        Message("assistant", tool_calls=(ToolCall("c", "t", "x" * 1000),)),
    ]
    assert {estimate_size(part) for part in parts} == {estimate_size(Message("user")) + 1000}


@pytest.mark.parametrize("name", list(RuntimeLimits.__slots__))
def test_every_bound_is_a_whole_number_above_zero(name: str) -> None:
    wrong: list[Any] = [0, -1, True, 1.5, "1"]
    for value in wrong:
        with pytest.raises(ValueError, match=f"{name} must be a whole number above zero"):
            RuntimeLimits(**{name: value})


# ── Histories that a crash interrupted ──────────────────────────────────────────────────────────


async def store_messages(storage: Storage, *messages: Message) -> None:
    """Stores a conversation as another process would leave it."""
    records = [MessageRecord(n, NOW, message) for n, message in enumerate(messages)]
    await storage.append(PAIR, [ConversationMeta(*PAIR).make_snapshot(), *records], create=True)


async def test_calls_that_were_cut_off_are_completed_when_a_conversation_is_read(
    storage: Storage, world: RuntimeWorld
) -> None:
    history = [
        user_message("Go!"),
        Message("assistant", tool_calls=(LOOK, SWIM)),
        Message("tool", "wet", call_id="c2", name="swim"),
    ]
    await store_messages(storage, *history)
    model = ScriptedProvider("Hello.")
    assert (
        await wait_for_done(world.make_runtime(model, storage).start("crab", "And?"))
    ).text == "Hello."
    assert list(model.last_messages) == [
        *history,
        Message("tool", INTERRUPTED, call_id="c1", name="look", is_error=True),
        user_message("And?"),
    ]
    # The next messages have the next ids.
    page = await storage.read_page(PAIR, 0, 100)
    assert page is not None
    assert [record.id for record in page.messages] == [0, 1, 2, 3, 4]


call_ids = st.sampled_from(["a", "b", "c"])
tool_calls = st.builds(ToolCall, id=call_ids, name=st.just("look"))
histories = st.lists(
    st.one_of(
        st.just(user_message("Hi")),
        st.just(assistant_message("Hello.")),
        st.lists(tool_calls, min_size=1, max_size=4).map(
            lambda calls: Message("assistant", tool_calls=tuple(calls))
        ),
        st.builds(Message, role=st.just("tool"), text=st.just("ok"), call_id=call_ids),
    ),
    max_size=12,
)


@given(histories)
def test_a_completed_history_has_one_result_for_each_call_right_after_it(
    history: list[Message],
) -> None:
    completed = complete_tool_calls(history)
    assert find_history_error(completed) is None
    assert complete_tool_calls(completed) == completed
    if find_history_error(history) is None:
        assert completed == history
    # Only interrupted results are added, and only results without a call are left out.
    assert [m for m in completed if m.role != "tool"] == [m for m in history if m.role != "tool"]
    added = [m for m in completed if m.text == INTERRUPTED]
    assert all(m.is_error and m.name == "look" for m in added)
    assert len(completed) - len(added) <= len(history)


# ── Deleting ────────────────────────────────────────────────────────────────────────────────────


async def test_a_deleted_conversation_is_gone_from_memory_and_storage_alike(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider("One.", "Two.")
    runtime = world.make_runtime(model, storage)
    await wait_for_done(runtime.start("crab", "First"))
    await delete_crab_conversation(runtime)
    assert await storage.list_conversations() == []
    with pytest.raises(UnknownConversationError):
        await runtime.kill("crab")
    await wait_for_done(runtime.start("crab", "Second"))
    assert model.last_messages == (user_message("Second"),)
    page = await storage.read_page(PAIR, 0, 100)
    assert page is not None
    assert [(r.id, r.message.text) for r in page.messages] == [(0, "Second"), (1, "Two.")]


async def test_deleting_kills_the_run_in_flight_and_turns_that_wait_begin_anew(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate], "Two.", "Three.")
    runtime = world.make_runtime(model, storage)
    first = runtime.start("crab", "First")
    await gate.wait_until_reached()
    second, third = runtime.start("crab", "Second"), runtime.start("crab", "Third")
    await delete_crab_conversation(runtime)
    assert (await wait_for_done(first)).reason is StopReason.CANCELLED
    assert (await wait_for_done(second)).text == "Two."
    assert (await wait_for_done(third)).text == "Three."
    assert [m.text for m in await read_history(storage)] == ["Second", "Two.", "Third", "Three."]


async def test_a_conversation_that_is_not_in_memory_can_be_deleted(
    storage: Storage, world: RuntimeWorld
) -> None:
    await store_messages(storage, user_message("Hi"))
    await delete_crab_conversation(world.make_runtime(ScriptedProvider(), storage))
    assert await storage.list_conversations() == []


async def test_an_unknown_conversation_cannot_be_deleted(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    with pytest.raises(UnknownConversationError, match="crab has had no conversation with user"):
        await delete_crab_conversation(runtime)
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    await delete_crab_conversation(runtime)
    with pytest.raises(UnknownConversationError):
        await delete_crab_conversation(runtime)


async def test_a_delete_finishes_when_its_caller_is_cancelled(
    world: RuntimeWorld,
) -> None:
    gate = Gate()

    class Slow(MemoryStorage):
        async def delete_conversation(self, pair: Pair) -> bool:
            await gate.pass_through()
            return await super().delete_conversation(pair)

    storage = Slow()
    runtime = world.make_runtime(ScriptedProvider("One.", "Two."), storage)
    await wait_for_done(runtime.start("crab", "First"))
    deleting = asyncio.ensure_future(runtime.delete_conversation("crab"))
    await gate.wait_until_reached()
    run = runtime.start("crab", "Second")
    deleting.cancel()
    await asyncio.wait([deleting], timeout=0)
    assert await read_history(storage) == [user_message("First"), assistant_message("One.")]
    gate.open()
    assert (await wait_for_done(run)).text == "Two."
    assert await read_history(storage) == [user_message("Second"), assistant_message("Two.")]


# ── Titles ──────────────────────────────────────────────────────────────────────────────────────


async def read_title(storage: Storage) -> str:
    meta = await storage.read_meta(PAIR)
    return meta.title if meta is not None else ""


async def test_a_title_is_set_in_one_line_of_bounded_length_and_survives_a_restart(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider("One.", "Two."), storage)
    await wait_for_done(runtime.start("crab", "First"))
    await set_crab_title(runtime, "  The\n sea\t")
    await wait_for_done(runtime.start("crab", "Second"))
    assert await read_title(storage) == "The sea"
    again = world.make_runtime(ScriptedProvider("Three."), storage)
    await set_crab_title(again, "x" * 1000)
    await wait_for_done(again.start("crab", "Third"))
    assert await read_title(storage) == "x" * 200


async def test_a_tool_of_the_run_in_flight_can_set_the_title(
    storage: Storage, world: RuntimeWorld
) -> None:
    async def set_title(call: ToolDispatch) -> str:
        await set_crab_title(runtime, call.arguments)
        return "set"

    model = ScriptedProvider(answer_with_calls(ToolCall("c1", "set_title", "The sea")), "Done.")
    runtime = world.make_runtime(model, storage, hook=ScriptedTools(set_title=set_title))
    assert (await wait_for_done(runtime.start("crab", "Name it!"))).text == "Done."
    assert await read_title(storage) == "The sea"


async def test_an_unknown_conversation_cannot_get_a_title(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    with pytest.raises(UnknownConversationError):
        await set_crab_title(runtime, "The sea")
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."


async def test_a_title_that_is_stored_while_a_run_stores_its_answer_stays(
    world: RuntimeWorld,
) -> None:
    model_gate, stored = Gate(), Gate()

    class Slow(MemoryStorage):
        async def append(
            self, pair: Pair, records: Sequence[Record], *, create: bool = False
        ) -> None:
            await super().append(pair, records, create=create)
            if records == [MetaRecord(title="The sea")]:
                await stored.pass_through()

    storage = Slow()
    runtime = world.make_runtime(
        ScriptedProvider([model_gate, *answer_with_text("One.")], respond=answer_with_echo), storage
    )
    run = runtime.start("crab", "First")
    await model_gate.wait_until_reached()
    setting_title = asyncio.ensure_future(set_crab_title(runtime, "The sea"))
    await stored.wait_until_reached()
    model_gate.open()
    # When this turn is done, the first would be done too if it did not wait.
    await wait_for_done(runtime.start("crab", "Hi", sender="other"))
    stored.open()
    await setting_title
    assert (await wait_for_done(run)).text == "One."
    assert await read_title(storage) == "The sea"


async def test_a_title_that_is_set_during_a_compaction_stays(
    storage: Storage, world: RuntimeWorld
) -> None:
    archiving = Gate()

    class Slow(Env):
        async def store_archive(self, pair: Pair, archive: Archive) -> None:
            await archiving.pass_through()

    runtime = world.make_runtime(ScriptedProvider("One.", "All of it."), storage, env=Slow())
    await wait_for_done(runtime.start("crab", "First"))
    compacting = asyncio.ensure_future(runtime.compact("crab"))
    await archiving.wait_until_reached()
    await set_crab_title(runtime, "The sea")
    archiving.open()
    async with asyncio.timeout(TEST_TIMEOUT):
        await compacting
    assert await read_title(storage) == "The sea"


# ── The provider ────────────────────────────────────────────────────────────────────────────────


async def test_a_run_in_flight_finishes_on_its_provider_which_is_closed_after_it(
    world: RuntimeWorld,
) -> None:
    gate = Gate()
    old, new = (
        ScriptedProvider([gate, *answer_with_text("Old.")]),
        ScriptedProvider("New.", "New too."),
    )
    runtime = world.make_runtime(old)
    run = runtime.start("crab", "Hi")
    waiting = runtime.start("crab", "Hi again")
    await gate.wait_until_reached()
    runtime.set_provider(new)
    assert runtime.provider is new
    assert (await wait_for_done(runtime.start("crab", "Hi", sender="other"))).text == "New."
    was_closed = old.is_closed
    gate.open()
    assert (await wait_for_done(run)).text == "Old."
    assert (await wait_for_done(waiting)).text == "New too."
    await old.wait_until_closed()
    assert (was_closed, new.is_closed) == (False, False)


async def test_a_provider_that_fails_to_close_blocks_nothing(
    world: RuntimeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(ScriptedProvider):
        async def close(self) -> None:
            raise OSError("stuck")

    runtime = world.make_runtime(Stuck())
    runtime.set_provider(Stuck("Hello."))
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    async with asyncio.timeout(TEST_TIMEOUT):
        await runtime.close()
    assert caplog.text.count("the provider scripted could not be closed") == 2


# ── Time and ids ────────────────────────────────────────────────────────────────────────────────


def test_the_clock_tells_utc_as_rfc_3339_and_never_gives_an_id_twice() -> None:
    clock = Clock()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", clock.now())
    assert clock.monotonic() <= clock.monotonic()
    assert len({clock.new_id() for _ in range(1000)}) == 1000


async def test_the_end_of_a_run_can_be_read_later(world: RuntimeWorld) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello."))
    run: Run = runtime.start("crab", "Hi")
    await wait_for_done(run)
    assert run.done == Done("crab", StopReason.COMPLETED, "Hello.", model="m", steps=1)
    assert await wait_for_done(run) == run.done


# ── Conversations with background tasks ───────────────────────────────────────────────────────


def begin_task(runtime: Runtime, root: Run) -> Run:
    """Starts a background task, as the delegate tool does."""
    parent = ParentRun(root.pair, root.id, "c1", root.origin, tree=root.tree)
    return runtime.start("owl", "Go on!", sender="delegate", detached=True, parent=parent)


@pytest.mark.req("trust.mode_kept")
async def test_the_mode_of_a_conversation_holds_as_long_as_a_task_of_it_runs(
    world: RuntimeWorld,
) -> None:
    gate = Gate()
    model = ScriptedProvider(
        answer_with_text("One."), [gate, *answer_with_text("Done.")], respond=answer_with_echo
    )
    runtime = world.make_runtime(model, limits=RuntimeLimits(live_conversations=1))
    await runtime.set_mode("crab", "plan")
    root = runtime.start("crab", "one")
    await wait_for_done(root)
    task = begin_task(runtime, root)
    await gate.wait_until_reached()
    for sender in ("a", "b", "c"):  # other turns evict idle conversations
        await wait_for_done(runtime.start("crab", "hello", sender=sender))
    assert runtime.get_mode(root.pair) == "plan"
    gate.open()
    await wait_for_done(task)
    await wait_for_done(runtime.start("crab", "hello", sender="d"))
    await wait_for_done(runtime.start("crab", "hello", sender="e"))
    assert len(runtime.conversations) == 1


@pytest.mark.req("trust.mode_kept")
async def test_deleting_a_conversation_ends_its_tasks_in_the_background(
    world: RuntimeWorld,
) -> None:
    gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider(answer_with_text("One."), [gate, *answer_with_text("Done.")])
    )
    root = runtime.start("crab", "one")
    await wait_for_done(root)
    task = begin_task(runtime, root)
    await gate.wait_until_reached()
    await runtime.delete_conversation("crab")
    assert (await wait_for_done(task)).reason is StopReason.CANCELLED
