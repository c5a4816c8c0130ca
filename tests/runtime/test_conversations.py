"""Conversations and providers: who waits for whom, what stays in memory, what comes back."""

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
    Limits,
    Parent,
    Run,
    Runtime,
    StopReason,
    ToolDispatch,
    UnknownConversationError,
)
from crabtalk.runtime.conversation import INTERRUPTED, completed, weight
from crabtalk.storage import (
    Archive,
    MemoryStorage,
    MessageRecord,
    Meta,
    MetaRecord,
    Pair,
    Record,
    Storage,
)
from tests.runtime.provider import PATIENCE, Gate, ScriptedProvider, calls, refusal, says
from tests.runtime.world import (
    NOW,
    PAIR,
    Tools,
    World,
    assistant,
    ended,
    kept,
    user,
)

LOOK = ToolCall("c1", "look", "{}")
SWIM = ToolCall("c2", "swim", "{}")


def echo(request: Request) -> str:
    return f"You said {request.messages[-1].text}."


async def delete(runtime: Runtime, sender: str = "") -> None:
    async with asyncio.timeout(PATIENCE):
        await runtime.delete("crab", sender)


async def retitle(runtime: Runtime, title: str) -> None:
    async with asyncio.timeout(PATIENCE):
        await runtime.set_title("crab", title)


# ── The line ────────────────────────────────────────────────────────────────────────────────────


async def test_turns_of_a_conversation_run_in_the_order_they_came(
    storage: Storage, world: World
) -> None:
    senders = [f"s{n}" for n in range(10)]
    runtime = world.runtime(ScriptedProvider(respond=echo), storage)
    runs = [runtime.start("crab", str(n), sender=sender) for n in range(30) for sender in senders]
    async with asyncio.timeout(4 * PATIENCE):
        for run in runs:
            assert (await run.wait()).reason is StopReason.COMPLETED
    expected = [text for n in range(30) for text in (str(n), f"You said {n}.")]
    for sender in senders:
        history = await kept(storage, Pair("crab", sender))
        assert [message.text for message in history] == expected


async def test_conversations_do_not_wait_for_each_other(world: World) -> None:
    gate = Gate()
    runtime = world.runtime(ScriptedProvider([gate, *says("Slow.")], "Fast.", "Fast too."))
    slow = runtime.start("crab", "Hi", sender="slow")
    await gate.reached()
    assert (await ended(runtime.start("crab", "Hi", sender="fast"))).text == "Fast."
    assert (await ended(runtime.start("owl", "Hi", sender="slow"))).text == "Fast too."
    gate.open()
    assert (await ended(slow)).text == "Slow."


async def test_many_first_messages_at_once_make_one_conversation(
    storage: Storage, world: World
) -> None:
    runtime = world.runtime(ScriptedProvider(respond=echo), storage)
    runs = [runtime.start("crab", str(n)) for n in range(200)]
    assert runtime.running == 200
    for run in runs:
        assert (await ended(run)).reason is StopReason.COMPLETED
    ((_, meta),) = await storage.conversations()
    assert meta.message_count == 400
    said = [m.text for m in await kept(storage) if m.role == "user"]
    assert said == [str(n) for n in range(200)]


async def test_agents_and_senders_tell_conversations_apart_and_nothing_else(
    storage: Storage, world: World
) -> None:
    runtime = world.runtime(ScriptedProvider(respond=echo), storage)
    pairs = [("crab", "a:b"), ("crab", "a-b"), ("crab", "A B"), ("owl", "a:b"), ("crab", "user")]
    for agent, sender in pairs:
        await ended(runtime.start(agent, f"{agent} {sender}", sender=sender))
    await ended(runtime.start("crab", "again", sender=""))
    await ended(runtime.start("crab", "and again"))
    for agent, sender in pairs[:-1]:
        said = (await kept(storage, Pair(agent, sender)))[0].text
        assert said == f"{agent} {sender}"
    said_by_user = [m.text for m in await kept(storage) if m.role == "user"]
    assert said_by_user == ["crab user", "again", "and again"]
    assert len(await storage.conversations()) == len(pairs)


async def test_the_working_directory_holds_for_one_run(world: World, tmp_path: Path) -> None:
    runtime = world.runtime(ScriptedProvider("One.", "Two."))
    there = runtime.start("crab", "Hi", cwd=tmp_path / "there")
    here = runtime.start("crab", "Hi")
    assert (there.cwd, here.cwd) == (tmp_path / "there", world.cwd)
    await ended(here)


async def test_turns_beyond_the_bound_are_refused(world: World) -> None:
    gate = Gate()
    runtime = world.runtime(ScriptedProvider([gate], "Hello."), limits=Limits(runs=2))
    first, second = runtime.start("crab", "One"), runtime.start("crab", "Two")
    with pytest.raises(BusyError, match="2 turns are running or waiting; try again later"):
        runtime.start("crab", "Three")
    with pytest.raises(BusyError):
        await runtime.compact("crab")
    await gate.reached()
    gate.open()
    await ended(first)
    await ended(second)
    runtime.use(ScriptedProvider("Now."))
    assert (await ended(runtime.start("crab", "Three"))).text == "Now."


class Beginnings(Tools):
    """Knows of each turn from its beginning to its end, and will not have "never"."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[str] = set()

    def on_turn(self, run: Run, content: str) -> None:
        if content == "never":
            raise ValueError("not that")
        self.begun.add(run.id)

    def on_event(self, run: Run, event: Event) -> None:
        if isinstance(event, Done):
            self.begun.discard(run.id)


@pytest.mark.req("bounds.held_bytes")
async def test_no_hook_hears_of_a_turn_that_is_refused(world: World) -> None:
    hook = Beginnings()
    provider = ScriptedProvider(respond=echo)
    runtime = world.runtime(provider, hook=hook, limits=Limits(held_bytes=5))
    with pytest.raises(BusyError, match="too much was said"):
        runtime.start("crab", "Hello!")
    assert hook.begun == set()
    run = runtime.start("crab", "Hello")
    assert hook.begun == {run.id}
    await ended(run)
    assert hook.begun == set()


@pytest.mark.req("bounds.held_bytes")
async def test_what_was_said_to_a_turn_that_a_hook_will_not_begin_is_not_held(world: World) -> None:
    provider = ScriptedProvider(respond=echo)
    runtime = world.runtime(provider, hook=Beginnings(), limits=Limits(held_bytes=5))
    for _ in range(3):
        with pytest.raises(ValueError, match="not that"):
            runtime.start("crab", "never")
    assert runtime.running == 0
    assert (await ended(runtime.start("crab", "Hello"))).text == "You said Hello."


async def test_a_bound_that_is_lowered_holds_from_the_next_turn_on(world: World) -> None:
    gate = Gate()
    runtime = world.runtime(ScriptedProvider([gate, *says("Hello.")]), limits=Limits(runs=2))
    first = runtime.start("crab", "One")
    runtime.limits = Limits(runs=1)
    with pytest.raises(BusyError):
        runtime.start("crab", "Two")
    await gate.reached()
    gate.open()
    assert (await ended(first)).text == "Hello."


# ── Memory ──────────────────────────────────────────────────────────────────────────────────────


def senders_in(runtime: Runtime) -> list[str]:
    return [conversation.pair.sender for conversation in runtime.conversations]


async def test_idle_conversations_leave_memory_least_used_first(
    storage: Storage, world: World
) -> None:
    runtime = world.runtime(
        ScriptedProvider(respond=echo), storage, limits=Limits(live_conversations=2)
    )
    for sender in ("a", "b", "a", "c"):
        await ended(runtime.start("crab", "Hi", sender=sender))
    assert senders_in(runtime) == ["a", "c"]
    assert len(runtime.conversations) == 2


async def test_a_conversation_comes_back_from_storage_unchanged(
    storage: Storage, world: World
) -> None:
    async def tool(call: ToolDispatch) -> str:
        return "wäves \0 \u2028 🦀"

    twice = ToolCall("c1", "look", "{}")
    model = ScriptedProvider(
        [Chunk(reasoning="hm", opaque={"scripted": {"s": [1, None]}}), *calls(LOOK, twice)],
        "Waves.",
        "Hoo.",
        "Elsewhere.",
    )
    runtime = world.runtime(
        model, storage, hook=Tools(look=tool), limits=Limits(live_conversations=1)
    )
    await ended(runtime.start("crab", "Look!"))
    await ended(runtime.start("crab", "Owl?", guest="owl"))
    before = runtime.conversations.find(PAIR)
    assert before is not None
    await ended(runtime.start("crab", "Hi", sender="other"))
    assert runtime.conversations.find(PAIR) is None
    after = runtime.conversations.get(PAIR)
    assert after is not before
    await after.load()
    assert after.history == before.history
    assert after.meta == before.meta
    assert after.size == before.size > 0


async def test_heavy_conversations_leave_memory_until_the_rest_is_light(
    storage: Storage, world: World
) -> None:
    runtime = world.runtime(
        ScriptedProvider(respond=lambda request: "x" * 10_000),
        storage,
        limits=Limits(live_bytes=50_000),
    )
    for n in range(16):
        await ended(runtime.start("crab", "Hi", sender=f"s{n}"))
    assert senders_in(runtime) == ["s12", "s13", "s14", "s15"]
    assert sum(conversation.size for conversation in runtime.conversations) <= 50_000
    assert len(await kept(storage, Pair("crab", "s0"))) == 2


async def test_a_conversation_in_which_something_runs_or_waits_never_leaves(world: World) -> None:
    gate = Gate()
    runtime = world.runtime(
        ScriptedProvider([gate, *says("One.")], respond=echo), limits=Limits(live_conversations=1)
    )
    running = runtime.start("crab", "First")
    waiting = runtime.start("crab", "Second")
    await gate.reached()
    busy = runtime.conversations.find(PAIR)
    for n in range(20):
        await ended(runtime.start("crab", "Hi", sender=f"s{n}"))
    assert runtime.conversations.find(PAIR) is busy
    assert busy is not None
    assert busy.run is running
    gate.open()
    await ended(running)
    assert (await ended(waiting)).text == "You said Second."
    assert [message.text for message in busy.history] == [
        "First",
        "One.",
        "Second",
        "You said Second.",
    ]


def test_what_a_message_weighs_grows_with_all_that_is_in_it() -> None:
    parts = [
        Message("user", "x" * 1000),
        Message("assistant", reasoning="x" * 1000),
        Message("user", images=(Image(data=bytes(1000)),)),
        Message("user", images=(Image(url="x" * 1000),)),
        Message("assistant", tool_calls=(ToolCall("c", "t", "x" * 1000),)),
    ]
    assert {weight(part) for part in parts} == {weight(Message("user")) + 1000}


@pytest.mark.parametrize("name", list(Limits.__slots__))
def test_every_bound_is_a_whole_number_above_zero(name: str) -> None:
    wrong: list[Any] = [0, -1, True, 1.5, "1"]
    for value in wrong:
        with pytest.raises(ValueError, match=f"{name} must be a whole number above zero"):
            Limits(**{name: value})


# ── Histories that a crash cut off ──────────────────────────────────────────────────────────────


async def stored_before(storage: Storage, *messages: Message) -> None:
    """A conversation as another process left it."""
    records = [MessageRecord(n, NOW, message) for n, message in enumerate(messages)]
    await storage.append(PAIR, [Meta(*PAIR).snapshot(), *records], create=True)


async def test_calls_that_were_cut_off_are_completed_when_a_conversation_is_read(
    storage: Storage, world: World
) -> None:
    history = [
        user("Go!"),
        Message("assistant", tool_calls=(LOOK, SWIM)),
        Message("tool", "wet", call_id="c2", name="swim"),
    ]
    await stored_before(storage, *history)
    model = ScriptedProvider("Hello.")
    assert (await ended(world.runtime(model, storage).start("crab", "And?"))).text == "Hello."
    assert list(model.seen) == [
        *history,
        Message("tool", INTERRUPTED, call_id="c1", name="look", is_error=True),
        user("And?"),
    ]
    # What was said next has the next ids.
    page = await storage.page(PAIR, 0, 100)
    assert page is not None
    assert [record.id for record in page.messages] == [0, 1, 2, 3, 4]


call_ids = st.sampled_from(["a", "b", "c"])
tool_calls = st.builds(ToolCall, id=call_ids, name=st.just("look"))
histories = st.lists(
    st.one_of(
        st.just(user("Hi")),
        st.just(assistant("Hello.")),
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
    whole = completed(history)
    assert refusal(whole) is None
    assert completed(whole) == whole
    if refusal(history) is None:
        assert whole == history
    # Nothing is added but interruptions, nothing left out but results that nobody called for.
    assert [m for m in whole if m.role != "tool"] == [m for m in history if m.role != "tool"]
    added = [m for m in whole if m.text == INTERRUPTED]
    assert all(m.is_error and m.name == "look" for m in added)
    assert len(whole) - len(added) <= len(history)


# ── Deleting ────────────────────────────────────────────────────────────────────────────────────


async def test_a_deleted_conversation_is_gone_from_memory_and_storage_alike(
    storage: Storage, world: World
) -> None:
    model = ScriptedProvider("One.", "Two.")
    runtime = world.runtime(model, storage)
    await ended(runtime.start("crab", "First"))
    await delete(runtime)
    assert await storage.conversations() == []
    with pytest.raises(UnknownConversationError):
        await runtime.kill("crab")
    await ended(runtime.start("crab", "Second"))
    assert model.seen == (user("Second"),)
    page = await storage.page(PAIR, 0, 100)
    assert page is not None
    assert [(r.id, r.message.text) for r in page.messages] == [(0, "Second"), (1, "Two.")]


async def test_deleting_kills_the_run_in_flight_and_turns_that_wait_begin_anew(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate], "Two.", "Three.")
    runtime = world.runtime(model, storage)
    first = runtime.start("crab", "First")
    await gate.reached()
    second, third = runtime.start("crab", "Second"), runtime.start("crab", "Third")
    await delete(runtime)
    assert (await ended(first)).reason is StopReason.CANCELLED
    assert (await ended(second)).text == "Two."
    assert (await ended(third)).text == "Three."
    assert [m.text for m in await kept(storage)] == ["Second", "Two.", "Third", "Three."]


async def test_a_conversation_that_is_not_in_memory_can_be_deleted(
    storage: Storage, world: World
) -> None:
    await stored_before(storage, user("Hi"))
    await delete(world.runtime(ScriptedProvider(), storage))
    assert await storage.conversations() == []


async def test_a_conversation_there_never_was_cannot_be_deleted(
    storage: Storage, world: World
) -> None:
    runtime = world.runtime(ScriptedProvider("Hello."), storage)
    with pytest.raises(UnknownConversationError, match="crab has had no conversation with user"):
        await delete(runtime)
    assert (await ended(runtime.start("crab", "Hi"))).text == "Hello."
    await delete(runtime)
    with pytest.raises(UnknownConversationError):
        await delete(runtime)


async def test_whoever_leaves_while_a_conversation_is_being_deleted_leaves_it_in_order(
    world: World,
) -> None:
    gate = Gate()

    class Slow(MemoryStorage):
        async def delete(self, pair: Pair) -> bool:
            await gate.passed()
            return await super().delete(pair)

    storage = Slow()
    runtime = world.runtime(ScriptedProvider("One.", "Two."), storage)
    await ended(runtime.start("crab", "First"))
    deleting = asyncio.ensure_future(runtime.delete("crab"))
    await gate.reached()
    run = runtime.start("crab", "Second")
    deleting.cancel()
    await asyncio.wait([deleting], timeout=0)
    assert await kept(storage) == [user("First"), assistant("One.")]
    gate.open()
    assert (await ended(run)).text == "Two."
    assert await kept(storage) == [user("Second"), assistant("Two.")]


# ── Titles ──────────────────────────────────────────────────────────────────────────────────────


async def title_of(storage: Storage) -> str:
    meta = await storage.meta(PAIR)
    return meta.title if meta is not None else ""


async def test_a_title_is_set_in_one_line_of_bounded_length_and_survives_a_restart(
    storage: Storage, world: World
) -> None:
    runtime = world.runtime(ScriptedProvider("One.", "Two."), storage)
    await ended(runtime.start("crab", "First"))
    await retitle(runtime, "  The\n sea\t")
    await ended(runtime.start("crab", "Second"))
    assert await title_of(storage) == "The sea"
    again = world.runtime(ScriptedProvider("Three."), storage)
    await retitle(again, "x" * 1000)
    await ended(again.start("crab", "Third"))
    assert await title_of(storage) == "x" * 200


async def test_a_tool_of_the_run_in_flight_can_set_the_title(
    storage: Storage, world: World
) -> None:
    async def set_title(call: ToolDispatch) -> str:
        await retitle(runtime, call.arguments)
        return "set"

    model = ScriptedProvider(calls(ToolCall("c1", "set_title", "The sea")), "Done.")
    runtime = world.runtime(model, storage, hook=Tools(set_title=set_title))
    assert (await ended(runtime.start("crab", "Name it!"))).text == "Done."
    assert await title_of(storage) == "The sea"


async def test_there_must_be_a_conversation_to_give_a_title(storage: Storage, world: World) -> None:
    runtime = world.runtime(ScriptedProvider("Hello."), storage)
    with pytest.raises(UnknownConversationError):
        await retitle(runtime, "The sea")
    assert (await ended(runtime.start("crab", "Hi"))).text == "Hello."


async def test_a_title_that_is_being_kept_while_a_run_keeps_its_words_stays(world: World) -> None:
    asked, stored = Gate(), Gate()

    class Slow(MemoryStorage):
        async def append(
            self, pair: Pair, records: Sequence[Record], *, create: bool = False
        ) -> None:
            await super().append(pair, records, create=create)
            if records == [MetaRecord(title="The sea")]:
                await stored.passed()

    storage = Slow()
    runtime = world.runtime(ScriptedProvider([asked, *says("One.")], respond=echo), storage)
    run = runtime.start("crab", "First")
    await asked.reached()
    titling = asyncio.ensure_future(retitle(runtime, "The sea"))
    await stored.reached()
    asked.open()
    await ended(runtime.start("crab", "Hi", sender="other"))  # by then the first would be done too
    stored.open()
    await titling
    assert (await ended(run)).text == "One."
    assert await title_of(storage) == "The sea"


async def test_a_title_that_is_set_while_a_history_is_folded_stays(
    storage: Storage, world: World
) -> None:
    archiving = Gate()

    class Slow(Env):
        async def archive(self, pair: Pair, archive: Archive) -> None:
            await archiving.passed()

    runtime = world.runtime(ScriptedProvider("One.", "All of it."), storage, env=Slow())
    await ended(runtime.start("crab", "First"))
    folding = asyncio.ensure_future(runtime.compact("crab"))
    await archiving.reached()
    await retitle(runtime, "The sea")
    archiving.open()
    async with asyncio.timeout(PATIENCE):
        await folding
    assert await title_of(storage) == "The sea"


# ── The provider ────────────────────────────────────────────────────────────────────────────────


async def test_a_run_in_flight_finishes_on_its_provider_which_is_closed_after_it(
    world: World,
) -> None:
    gate = Gate()
    old, new = ScriptedProvider([gate, *says("Old.")]), ScriptedProvider("New.", "New too.")
    runtime = world.runtime(old)
    run = runtime.start("crab", "Hi")
    waiting = runtime.start("crab", "Hi again")
    await gate.reached()
    runtime.use(new)
    assert runtime.provider is new
    assert (await ended(runtime.start("crab", "Hi", sender="other"))).text == "New."
    was_closed = old.is_closed
    gate.open()
    assert (await ended(run)).text == "Old."
    assert (await ended(waiting)).text == "New too."
    await old.closed()
    assert (was_closed, new.is_closed) == (False, False)


async def test_a_provider_that_cannot_be_closed_holds_up_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(ScriptedProvider):
        async def close(self) -> None:
            raise OSError("stuck")

    runtime = world.runtime(Stuck())
    runtime.use(Stuck("Hello."))
    assert (await ended(runtime.start("crab", "Hi"))).text == "Hello."
    async with asyncio.timeout(PATIENCE):
        await runtime.close()
    assert caplog.text.count("the provider scripted could not be closed") == 2


# ── Time and ids ────────────────────────────────────────────────────────────────────────────────


def test_the_clock_tells_utc_as_rfc_3339_and_never_gives_an_id_twice() -> None:
    clock = Clock()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", clock.now())
    assert clock.seconds() <= clock.seconds()
    assert len({clock.new_id() for _ in range(1000)}) == 1000


async def test_a_run_that_nobody_waited_for_can_be_asked_later(world: World) -> None:
    runtime = world.runtime(ScriptedProvider("Hello."))
    run: Run = runtime.start("crab", "Hi")
    await ended(run)
    assert run.done == Done("crab", StopReason.COMPLETED, "Hello.", model="m", steps=1)
    assert await ended(run) == run.done


# ── Conversations whose tasks go on in the background ─────────────────────────────────────────


def begin_task(runtime: Runtime, root: Run) -> Run:
    """A task in the background, as a delegate starts one."""
    parent = Parent(root.pair, root.id, "c1", root.origin, tree=root.tree)
    return runtime.start("owl", "Go on!", sender="delegate", detached=True, parent=parent)


@pytest.mark.req("trust.mode_kept")
async def test_the_mode_of_a_conversation_holds_as_long_as_a_task_of_it_runs(world: World) -> None:
    gate = Gate()
    model = ScriptedProvider(says("One."), [gate, *says("Done.")], respond=echo)
    runtime = world.runtime(model, limits=Limits(live_conversations=1))
    await runtime.set_mode("crab", "plan")
    root = runtime.start("crab", "one")
    await ended(root)
    task = begin_task(runtime, root)
    await gate.reached()
    for sender in ("a", "b", "c"):  # others come, and idle conversations leave
        await ended(runtime.start("crab", "hello", sender=sender))
    assert runtime.mode(root.pair) == "plan"
    gate.open()
    await ended(task)
    await ended(runtime.start("crab", "hello", sender="d"))
    await ended(runtime.start("crab", "hello", sender="e"))
    assert len(runtime.conversations) == 1


@pytest.mark.req("trust.mode_kept")
async def test_deleting_a_conversation_ends_its_tasks_in_the_background(world: World) -> None:
    gate = Gate()
    runtime = world.runtime(ScriptedProvider(says("One."), [gate, *says("Done.")]))
    root = runtime.start("crab", "one")
    await ended(root)
    task = begin_task(runtime, root)
    await gate.reached()
    await runtime.delete("crab")
    assert (await ended(task)).reason is StopReason.CANCELLED
