"""Compaction: a summary replaces the history, or nothing changes at all."""

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model import ApiError, ErrorKind, Image, Message, Request, Response, ToolCall, Usage
from crabtalk.runtime import (
    Compacted,
    CompactionError,
    Env,
    NothingInFlightError,
    NothingToCompactError,
    Runtime,
    ToolDispatch,
    UnknownAgentError,
    UnknownConversationError,
)
from crabtalk.runtime.compaction import (
    PROMPT,
    TITLE_LENGTH,
    make_summary_request,
    make_title,
    next_archive_name,
    render_transcript,
    truncate_bytes,
)
from crabtalk.storage import (
    Archive,
    MarkerRecord,
    MemoryStorage,
    MessageRecord,
    Pair,
    Storage,
    StorageError,
    StoredConversation,
    make_log_name,
)
from tests.runtime.runtime_world import (
    CRAB,
    NOW,
    PAIR,
    RuntimeWorld,
    ScriptedTools,
    WatchedStorage,
    YieldingStorage,
    assistant_message,
    read_history,
    run_ready_tasks,
    user_message,
    wait_for_done,
)
from tests.runtime.scripted_provider import (
    TEST_TIMEOUT,
    Gate,
    ScriptedProvider,
    answer_with_calls,
    answer_with_text,
)

NAME = make_log_name(PAIR)
SUMMARY = "They spoke of the sea. It was calm."
ARCHIVE = Archive(f"{NAME}-1", "They spoke of the sea.", NOW, SUMMARY, 0, 2)
BUSY = ApiError(ErrorKind.OVERLOADED, "come back later")


class ArchivingEnv(Env):
    """Records the archives it is given; awaits `before` first."""

    def __init__(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self.archives: list[tuple[Pair, Archive]] = []
        self._before = before

    async def store_archive(self, pair: Pair, archive: Archive) -> None:
        if self._before is not None:
            await self._before()
        self.archives.append((pair, archive))


async def compact_agent(runtime: Runtime, agent: str = "crab") -> Archive:
    async with asyncio.timeout(TEST_TIMEOUT):
        return await runtime.compact(agent)


# ── Results ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_history_becomes_an_archive_a_marker_and_one_message(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider("Hello.", f"  {SUMMARY}\n", "Calm.")
    env = ArchivingEnv()
    runtime = world.make_runtime(model, storage, env=env)
    await wait_for_done(runtime.start("crab", "The sea?"))
    assert await compact_agent(runtime) == ARCHIVE
    assert env.archives == [(PAIR, ARCHIVE)]
    stored = await storage.read_conversation(PAIR)
    assert stored is not None
    assert stored.marker == MarkerRecord(ARCHIVE.name, NOW, ARCHIVE.title, SUMMARY, 2)
    assert stored.meta.summary == SUMMARY
    assert stored.messages == ()
    assert await storage.list_archives(PAIR) == [ARCHIVE]

    await wait_for_done(runtime.start("crab", "And now?"))
    assert model.last_messages == (user_message(SUMMARY), user_message("And now?"))
    assert await read_history(storage) == [user_message("And now?"), assistant_message("Calm.")]


async def test_messages_before_the_marker_stay_browsable_and_ids_go_on(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello.", SUMMARY, "Calm."), storage)
    await wait_for_done(runtime.start("crab", "The sea?"))
    await compact_agent(runtime)
    await wait_for_done(runtime.start("crab", "And now?"))
    page = await storage.read_page(PAIR, 0, 100)
    assert page is not None
    assert page.messages == (
        MessageRecord(0, NOW, user_message("The sea?"), run="run-1"),
        MessageRecord(1, NOW, assistant_message("Hello."), run="run-1"),
        MessageRecord(2, NOW, user_message("And now?"), run="run-3"),
        MessageRecord(3, NOW, assistant_message("Calm."), run="run-3"),
    )


async def test_after_a_restart_the_history_is_replayed_from_the_marker(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello.", SUMMARY, "Calm."), storage)
    await wait_for_done(runtime.start("crab", "The sea?"))
    await compact_agent(runtime)
    await wait_for_done(runtime.start("crab", "And now?"))
    model = ScriptedProvider("Still calm.")
    await wait_for_done(world.make_runtime(model, storage).start("crab", "Now?"))
    assert model.last_messages == (
        user_message(SUMMARY),
        user_message("And now?"),
        assistant_message("Calm."),
        user_message("Now?"),
    )


async def test_a_conversation_that_is_not_in_memory_can_be_compacted(
    storage: Storage, world: RuntimeWorld
) -> None:
    await wait_for_done(
        world.make_runtime(ScriptedProvider("Hello."), storage).start("crab", "The sea?")
    )
    model = ScriptedProvider(SUMMARY, "Calm.")
    runtime = world.make_runtime(model, storage)
    assert await compact_agent(runtime) == ARCHIVE
    await wait_for_done(runtime.start("crab", "And now?"))
    assert model.last_messages == (user_message(SUMMARY), user_message("And now?"))


@pytest.mark.req("compact.fresh")
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_conversation_compacted_with_fresh_has_no_history_and_no_title(
    storage: Storage, world: RuntimeWorld, restarted: bool
) -> None:
    model = ScriptedProvider("Hello.", SUMMARY, "Calm.", "Who is there?", "A second summary.")
    env = ArchivingEnv()
    runtime = world.make_runtime(model, storage, env=env)
    await wait_for_done(runtime.start("crab", "The sea?"))
    await compact_agent(runtime)
    await wait_for_done(runtime.start("crab", "And now?"))
    await runtime.set_title("crab", "The sea")
    second = await runtime.compact("crab", fresh=True)
    assert second == Archive(f"{NAME}-2", "The sea", NOW, "", 2, 4)
    with pytest.raises(NothingToCompactError):
        await runtime.compact("crab", fresh=True)
    with pytest.raises(NothingToCompactError):
        await compact_agent(runtime)
    stored = await storage.read_conversation(PAIR)
    assert stored is not None
    assert (stored.meta.title, stored.meta.summary, stored.messages) == ("", "", ())

    if restarted:
        runtime = world.make_runtime(model, storage, env=env)
    await wait_for_done(runtime.start("crab", "Hello?"))
    assert model.last_messages == (user_message("Hello?"),)
    page = await storage.read_page(PAIR, 0, 100)
    assert page is not None
    assert [record.id for record in page.messages] == [0, 1, 2, 3, 4, 5]
    # Only archives with a summary are given to the Env, and no name is used twice.
    last = await compact_agent(runtime)
    assert last.name == f"{NAME}-3"
    assert [archive.name for _, archive in env.archives] == [f"{NAME}-1", f"{NAME}-3"]
    assert await storage.list_archives(PAIR) == [ARCHIVE, second, last]


@pytest.mark.parametrize("restarted", [False, True])
async def test_archive_numbers_continue_after_a_restart(
    storage: Storage, world: RuntimeWorld, restarted: bool
) -> None:
    env = ArchivingEnv()
    runtime = world.make_runtime(ScriptedProvider("Hello.", SUMMARY), storage, env=env)
    await wait_for_done(runtime.start("crab", "The sea?"))
    await compact_agent(runtime)
    model = ScriptedProvider("Calm.", "More of the sea")
    if restarted:
        runtime = world.make_runtime(model, storage, env=env)
    else:
        runtime.set_provider(model)
    await wait_for_done(runtime.start("crab", "And now?"))
    second = Archive(f"{NAME}-2", "More of the sea", NOW, "More of the sea", 2, 4)
    assert await compact_agent(runtime) == second
    assert await storage.list_archives(PAIR) == [ARCHIVE, second]
    # The second summary is made from the first one and the turns since.
    assert f"user: {SUMMARY}\n\nuser: And now?\n\nassistant: Calm." in model.last_messages[0].text


async def test_hooks_get_a_compacted_event(world: RuntimeWorld) -> None:
    hook = ScriptedTools()
    runtime = world.make_runtime(ScriptedProvider("Hello.", SUMMARY), hook=hook)
    await wait_for_done(runtime.start("crab", "The sea?"))
    await compact_agent(runtime)
    assert hook.events[-1] == Compacted(ARCHIVE)


# ── Concurrent turns ────────────────────────────────────────────────────────────────────────────


async def test_turns_that_come_meanwhile_wait_and_see_the_summary(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider("Hello.", [gate, *answer_with_text(SUMMARY)], "Calm.")
    runtime = world.make_runtime(model, storage)
    await wait_for_done(runtime.start("crab", "The sea?"))
    compacting = asyncio.ensure_future(compact_agent(runtime))
    await gate.wait_until_reached()
    run = runtime.start("crab", "And now?")
    gate.open()
    assert await compacting == ARCHIVE
    assert (await wait_for_done(run)).text == "Calm."
    assert model.last_messages == (user_message(SUMMARY), user_message("And now?"))
    assert await read_history(storage) == [user_message("And now?"), assistant_message("Calm.")]


async def test_a_compaction_waits_for_the_turn_before_it(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *answer_with_text("Hello.")], SUMMARY)
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "The sea?")
    await gate.wait_until_reached()
    compacting = asyncio.ensure_future(compact_agent(runtime))
    await asyncio.wait([compacting], timeout=0)
    gate.open()
    assert (await wait_for_done(run)).text == "Hello."
    assert await compacting == ARCHIVE
    assert "assistant: Hello." in model.last_messages[0].text


async def test_a_compaction_goes_on_when_its_caller_is_cancelled(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider("Hello.", [gate, *answer_with_text(SUMMARY)], "Calm.")
    runtime = world.make_runtime(model, storage)
    await wait_for_done(runtime.start("crab", "The sea?"))
    compacting = asyncio.ensure_future(compact_agent(runtime))
    await gate.wait_until_reached()
    compacting.cancel()
    await asyncio.wait([compacting])
    gate.open()
    await wait_for_done(runtime.start("crab", "And now?"))
    assert model.last_messages == (user_message(SUMMARY), user_message("And now?"))


async def test_a_compaction_takes_no_steering_messages(world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(ScriptedProvider("Hello.", [gate, *answer_with_text(SUMMARY)]))
    await wait_for_done(runtime.start("crab", "The sea?"))
    compacting = asyncio.ensure_future(compact_agent(runtime))
    await gate.wait_until_reached()
    with pytest.raises(NothingInFlightError):
        await runtime.steer("crab", "Keep the fish.")
    gate.open()
    await compacting


# ── When it fails ───────────────────────────────────────────────────────────────────────────────


async def check_nothing_changed(
    runtime: Runtime, model: ScriptedProvider, storage: Storage
) -> None:
    """The next turn goes on from the one before, as if there had been no compaction."""
    stored = await storage.read_conversation(PAIR)
    assert stored is not None
    assert stored.marker is None
    assert stored.meta.summary == ""
    assert await storage.list_archives(PAIR) == []
    model.add("Calm.")
    assert (await wait_for_done(runtime.start("crab", "And now?"))).text == "Calm."
    assert model.last_messages == (
        user_message("The sea?"),
        assistant_message("Hello."),
        user_message("And now?"),
    )


async def test_a_model_that_fails_changes_nothing(storage: Storage, world: RuntimeWorld) -> None:
    model = ScriptedProvider("Hello.", [BUSY])
    env = ArchivingEnv()
    runtime = world.make_runtime(model, storage, env=env)
    await wait_for_done(runtime.start("crab", "The sea?"))
    with pytest.raises(CompactionError, match=r"^come back later; nothing changed$"):
        await compact_agent(runtime)
    assert env.archives == []
    await check_nothing_changed(runtime, model, storage)


async def test_a_model_that_writes_nothing_changes_nothing(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider("Hello.", " \n")
    env = ArchivingEnv()
    runtime = world.make_runtime(model, storage, env=env)
    await wait_for_done(runtime.start("crab", "The sea?"))
    with pytest.raises(CompactionError, match="the model wrote no summary; nothing changed"):
        await compact_agent(runtime)
    assert env.archives == []
    await check_nothing_changed(runtime, model, storage)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (StorageError("no room for memories; make some"), "no room for memories; make some; "),
        (OSError(28, "No space left"), r"internal error \(OSError\); "),
    ],
)
async def test_an_archive_that_cannot_be_stored_changes_nothing(
    storage: Storage, world: RuntimeWorld, error: Exception, sentence: str
) -> None:
    async def fail() -> None:
        raise error

    model = ScriptedProvider("Hello.", SUMMARY)
    runtime = world.make_runtime(model, storage, env=ArchivingEnv(fail))
    await wait_for_done(runtime.start("crab", "The sea?"))
    with pytest.raises(CompactionError, match=f"^{sentence}nothing changed$"):
        await compact_agent(runtime)
    await check_nothing_changed(runtime, model, storage)


async def test_a_marker_that_cannot_be_stored_changes_nothing(world: RuntimeWorld) -> None:
    storage = WatchedStorage()
    storage.failing_appends.add(2)
    model = ScriptedProvider("Hello.", SUMMARY)
    runtime = world.make_runtime(model, storage)
    await wait_for_done(runtime.start("crab", "The sea?"))
    with pytest.raises(CompactionError, match="the disk is full; make room; nothing changed"):
        await compact_agent(runtime)
    await check_nothing_changed(runtime, model, storage)


async def test_a_kill_stops_a_compaction_and_nothing_has_changed(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider("Hello.", [gate, *answer_with_text(SUMMARY)])
    runtime = world.make_runtime(model, storage)
    await wait_for_done(runtime.start("crab", "The sea?"))
    compacting = asyncio.ensure_future(compact_agent(runtime))
    await gate.wait_until_reached()
    assert await runtime.kill("crab")
    with pytest.raises(CompactionError, match="the compaction was killed; nothing changed"):
        await compacting
    assert model.cut_off_streams == 1
    await check_nothing_changed(runtime, model, storage)


@pytest.mark.parametrize("during", ["archive", "marker"])
async def test_a_kill_that_comes_too_late_does_not_say_that_nothing_changed(
    world: RuntimeWorld, during: str
) -> None:
    """It does not leave an archive without its marker either."""
    storage = WatchedStorage()
    gate = Gate()
    env = ArchivingEnv(gate.pass_through if during == "archive" else None)
    if during == "marker":
        storage.append_gates[2] = gate
    model = ScriptedProvider("Hello.", SUMMARY, "Calm.")
    runtime = world.make_runtime(model, storage, env=env)
    await wait_for_done(runtime.start("crab", "The sea?"))
    compacting = asyncio.ensure_future(compact_agent(runtime))
    await gate.wait_until_reached()
    assert await runtime.kill("crab")
    gate.open()
    assert await compacting == ARCHIVE
    assert env.archives == [(PAIR, ARCHIVE)]
    assert await storage.list_archives(PAIR) == [ARCHIVE]
    await wait_for_done(runtime.start("crab", "And now?"))
    assert model.last_messages == (user_message(SUMMARY), user_message("And now?"))


async def test_a_kill_at_any_moment_leaves_a_whole_compaction_or_none(world: RuntimeWorld) -> None:
    moment = 0
    was_killed = True
    while was_killed:
        storage = YieldingStorage()
        env = ArchivingEnv(lambda: run_ready_tasks(2))
        model = ScriptedProvider("Hello.", SUMMARY, respond=lambda request: "Calm.")
        runtime = world.make_runtime(model, storage, env=env)
        await wait_for_done(runtime.start("crab", "The sea?"))
        compacting = asyncio.ensure_future(compact_agent(runtime))
        await run_ready_tasks(moment)
        was_killed = await runtime.kill("crab")
        await asyncio.wait([compacting])
        is_compacted = compacting.exception() is None
        assert await storage.list_archives(PAIR) == ([ARCHIVE] if is_compacted else []), moment
        assert len(env.archives) == int(is_compacted), moment
        await wait_for_done(runtime.start("crab", "And now?"))
        before = (
            [user_message(SUMMARY)]
            if is_compacted
            else [user_message("The sea?"), assistant_message("Hello.")]
        )
        assert list(model.last_messages) == [*before, user_message("And now?")], moment
        moment += 1
        was_killed = was_killed or moment < 5  # not even begun
    assert moment > 10


async def test_closing_the_runtime_stops_a_compaction(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider("Hello.", [Gate()])
    runtime = world.make_runtime(model, storage)
    await wait_for_done(runtime.start("crab", "The sea?"))
    compacting = asyncio.ensure_future(compact_agent(runtime))
    await asyncio.wait([compacting], timeout=0)
    async with asyncio.timeout(TEST_TIMEOUT):
        await runtime.close()
    with pytest.raises(CompactionError, match="killed"):
        await compacting
    assert await read_history(storage) == [user_message("The sea?"), assistant_message("Hello.")]


async def test_a_kill_while_the_log_is_read_waits_for_the_read(world: RuntimeWorld) -> None:
    """Loading repairs the log after a crash, which must not happen while the next turn appends."""
    gate = Gate()

    class Slow(MemoryStorage):
        reading = 0
        most_at_once = 0

        async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
            self.reading += 1
            self.most_at_once = max(self.most_at_once, self.reading)
            await gate.pass_through()
            self.reading -= 1  # only now, because a cancellation does not stop a reading thread
            return await super().load_and_repair(pair)

    storage = Slow()
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    compacting = asyncio.ensure_future(compact_agent(runtime))
    await gate.wait_until_reached()
    assert await runtime.kill("crab")
    run = runtime.start("crab", "Hi")
    gate.open()
    with pytest.raises(CompactionError, match="killed"):
        await compacting
    assert (await wait_for_done(run)).text == "Hello."
    assert storage.most_at_once == 1


async def test_archived_messages_are_not_compacted_again(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello.", SUMMARY), storage)
    await wait_for_done(runtime.start("crab", "The sea?"))
    await compact_agent(runtime)
    with pytest.raises(NothingToCompactError, match="not in an archive already"):
        await compact_agent(runtime)
    with pytest.raises(NothingToCompactError):
        await compact_agent(world.make_runtime(ScriptedProvider(), storage))
    assert await storage.list_archives(PAIR) == [ARCHIVE]


async def test_compacting_an_unknown_conversation_or_agent_is_an_error(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    with pytest.raises(UnknownConversationError):
        await compact_agent(runtime)
    with pytest.raises(UnknownAgentError):
        await compact_agent(runtime, "cat")
    assert await storage.list_conversations() == []
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."


@pytest.mark.req("compact.long")
@pytest.mark.parametrize("is_one_message", [False, True])
async def test_a_history_longer_than_the_models_context_is_summarised_in_parts(
    world: RuntimeWorld, is_one_message: bool
) -> None:
    class Small(ScriptedProvider):
        """Has a small context, and says how much it read."""

        async def complete(self, request: Request) -> Response:
            text = request.messages[-1].text
            if len(text) > 4000:
                raise ApiError(ErrorKind.CONTEXT, "too long")
            self.requests.append(request)
            words = sorted(set(re.findall(r"word\d+", text)))
            summary = f"Read {len(words)}: {' '.join(words[:9])}."
            return Response(Message("assistant", summary), "stop", Usage(), "m")

    model = Small("Hello.", "Hello.", "Hello.")
    runtime = world.make_runtime(model)
    texts = [" ".join(f"word{n}" for n in range(start, start + 500)) for start in (0, 500, 1000)]
    for text in ["\n".join(texts)] if is_one_message else texts:
        await wait_for_done(runtime.start("crab", text))
    first_request = len(model.requests)
    archive = await compact_agent(runtime)
    texts = [request.messages[-1].text for request in model.requests[first_request:]]
    assert archive.summary.startswith("Read ")
    # Every word was in some request, and the last one has a summary of the part before it.
    assert {f"word{n}" for n in range(1500)} <= set(re.findall(r"word\d+", " ".join(texts)))
    assert "A summary of what was said before: Read " in texts[-1]


@pytest.mark.req("compact.long")
async def test_a_model_that_cannot_read_even_a_short_part_fails_the_compaction(
    world: RuntimeWorld,
) -> None:
    class Blind(ScriptedProvider):
        async def complete(self, request: Request) -> Response:
            raise ApiError(ErrorKind.CONTEXT, "too long")

    runtime = world.make_runtime(Blind("Hello."))
    await wait_for_done(runtime.start("crab", "words " * 5000))
    with pytest.raises(CompactionError, match="too long; nothing changed"):
        await compact_agent(runtime)


# ── The summary request ─────────────────────────────────────────────────────────────────────────


async def test_the_model_gets_the_agents_prompt_and_the_whole_conversation(
    world: RuntimeWorld,
) -> None:
    look = ToolCall("c1", "look", '{"at": "sea"}')

    async def waves(call: ToolDispatch) -> str:
        return "wäves" * 10

    model = ScriptedProvider(answer_with_calls(look, text="I look."), "Waves.", SUMMARY)
    brief = msgspec.structs.replace(CRAB, compact_tool_max_len=8)
    runtime = world.make_runtime(model, agents=[brief], hook=ScriptedTools(look=waves))
    await wait_for_done(runtime.start("crab", "Look!"))
    await compact_agent(runtime)
    request = model.requests[-1]
    assert request.model == "m"
    assert request.tools == ()
    assert request.messages[0] == Message("system", PROMPT)
    assert request.messages[1:] == (
        user_message(
            "The agent's own instructions, so that you know who it is:\n\nYou are crab."
            "\n\n---\n\nThe conversation to compact:"
            "\n\nuser: Look!"
            '\n\nassistant: I look.\n  [calls look with {"at": "sea"}]'
            "\n\n[result of look]\n  wävesw... [truncated]"
            "\n\nassistant: Waves."
            "\n\n---\n\nWrite the summary now."
        ),
    )


def render_for_model(*history: Message) -> str:
    request: Request = make_summary_request(CRAB, render_transcript(history, CRAB), "m")
    return request.messages[-1].text


def test_images_and_tools_without_a_name_are_named_as_such() -> None:
    assert "user: See:\n  [an image]\n  [an image]" in render_for_model(
        Message("user", "See:", images=(Image(data=b"1"), Image(data=b"2")))
    )
    assert "[result of a tool]\n  waves" in render_for_model(Message("tool", "waves"))


def test_messages_without_text_are_left_out_of_the_transcript() -> None:
    assert "The conversation to compact:\n\nuser: Hi\n\n---" in render_for_model(
        user_message("Hi"), Message("assistant", reasoning="hm")
    )


def test_an_agent_without_a_prompt_is_not_introduced() -> None:
    plain = msgspec.structs.replace(CRAB, prompt="")
    request = make_summary_request(plain, render_transcript([user_message("Hi")], plain), "m")
    assert request.messages[-1].text.startswith("The conversation to compact:")


@given(st.text(st.characters(codec="utf-8")), st.integers(0, 40))
def test_a_tools_output_is_cut_to_bytes_between_characters(text: str, limit: int) -> None:
    shorter = truncate_bytes(text, limit)
    if len(text.encode()) <= limit:
        assert shorter == text
        return
    head = shorter.removesuffix("... [truncated]")
    assert head != shorter
    assert text.startswith(head)
    assert limit - 3 <= len(head.encode()) <= limit


# ── Names and titles ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("summary", "title"),
    [
        ("They spoke of the sea. It was calm.", "They spoke of the sea."),
        ("Is it calm? It is.", "Is it calm?"),
        ("Calm! Then not.", "Calm!"),
        ("Version 1.2 of the sea is out. More.", "Version 1.2 of the sea is out."),
        ("他们谈到了大海。海很平静。", "他们谈到了大海。"),
        ("海は静か？はい。", "海は静か？"),
        ("海很平静。Then it rained. More.", "海很平静。"),
        ("The sea\n\nIt was calm.", "The sea"),
        ("no end in sight", "no end in sight"),
        ("\n  The sea.  \n", "The sea."),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("海" * 100 + "。", "海" * 59 + "…"),
        (f"{'word ' * 20}end. More.", ("word " * 20)[:59].rstrip() + "…"),
        ("", ""),
    ],
)
def test_a_title_is_the_first_sentence_in_at_most_sixty_characters(
    summary: str, title: str
) -> None:
    assert make_title(summary) == title


@given(st.text())
def test_a_title_is_always_one_line_of_at_most_sixty_characters(summary: str) -> None:
    title = make_title(summary)
    assert len(title) <= TITLE_LENGTH == 60
    assert "\n" not in title
    assert bool(title) == bool(summary.strip())
    assert summary.strip().startswith(title.removesuffix("…"))


@pytest.mark.parametrize(
    ("last", "name"),
    [("", "crab-user-1"), ("crab-user-1", "crab-user-2"), ("crab-user-99", "crab-user-100")],
)
def test_archive_names_count_from_one(last: str, name: str) -> None:
    assert next_archive_name("crab-user", last) == name
