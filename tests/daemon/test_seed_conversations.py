"""The chapter on conversations: its sentences as seen by a client."""

import asyncio
from pathlib import Path

import pytest

from crabtalk.protocol import wire
from crabtalk.runtime import ToolDispatch
from crabtalk.storage import MemoryStorage
from tests.daemon.in_process_daemon import (
    collect_events,
    collect_text,
    expect_error_code,
    get_stream_end,
    list_framing_messages,
    list_request_messages,
    read_conversation,
    run_daemon,
    wait_for_event,
)
from tests.model_server import model_server

# The result does not depend on the event loop.
pytestmark = pytest.mark.one_loop


async def report_directory(call: ToolDispatch) -> str:
    """A tool that returns its working directory."""
    return str(call.cwd)


WHERE = "!tool where {}"


class PersistentMemoryStorage(MemoryStorage):
    """Storage that stays usable after the daemon closes it."""

    async def close(self) -> None:
        pass


@pytest.mark.req("conv.history.context")
async def test_a_conversation_holds_the_history_the_agent_works_from(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "my name is bo")
        await client.send("crab", "what is it?")
        assert list_request_messages(daemon.model.requests[-1])[1:] == [
            ("user", "my name is bo"),
            ("assistant", "heard: my name is bo"),
            ("user", "what is it?"),
        ]


# ── Identity ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.identity.agent")
async def test_the_agent_must_be_configured(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert await expect_error_code(client.send("squid", "hello")) == 404
        assert await expect_error_code(collect_events(client.stream("squid", "hello"))) == 404
        assert daemon.log_paths == []
        assert daemon.model.requests == []


@pytest.mark.req("conv.identity.sender")
@pytest.mark.parametrize(
    "sender", ["user", "tg:12345", "delegate:42", "Zoë B.", "../../etc", "日本", "x" * 1000, " "]
)
async def test_clients_choose_their_own_convention_for_senders(tmp_path: Path, sender: str) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello", sender=sender)
        await client.send("crab", "again", sender=sender)
        (conversation,) = (await client.list_conversations()).conversations
        assert conversation.sender == sender
        assert conversation.message_count == 4
        (log,) = daemon.log_paths
        assert log.parent == daemon.sessions_directory


@pytest.mark.req("conv.identity.pair")
async def test_similar_pairs_are_different_conversations(tmp_path: Path) -> None:
    """Names that look the same in a file name are still different."""
    pairs = [("crab", "a:b"), ("crab", "A B"), ("crab", "a-b"), ("twin", "a:b")]
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for agent, sender in pairs:
            await client.send(agent, f"I am {sender}", sender=sender)
        for agent, sender in pairs:
            assert await read_conversation(client, agent, sender) == [
                ("user", f"I am {sender}"),
                ("assistant", f"heard: I am {sender}"),
            ]
        assert len(daemon.log_paths) == len(pairs)


@pytest.mark.req("wire.no_session_ids")
def test_the_wire_has_no_other_name_for_a_conversation() -> None:
    """Besides the pair, requests about a conversation only have the parameters of the request."""
    names = {
        field.name
        for request in (
            wire.StreamMsg,
            wire.SendMsg,
            wire.KillMsg,
            wire.CompactMsg,
            wire.ReplyToAsk,
            wire.SteerSessionMsg,
            wire.ListMessagesMsg,
            wire.ListArchivesMsg,
            wire.SetTitleMsg,
        )
        for field in request.DESCRIPTOR.fields
    }
    assert names == {
        *("agent", "sender"),
        *("content", "cwd", "guest", "tool_choice", "detach", "offset", "limit"),
        *("ask_id", "fresh", "title", "as_owner"),
        *("mode", "unattended", "origin"),  # the rights of a run, not its conversation
        *("key", "run_id", "unless_shared", "with_runs"),  # a message or a run in it
    }


# ── Lifetime ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.created_on_first_reference")
async def test_a_conversation_is_created_by_the_first_turn_and_by_nothing_else(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert not await client.kill("crab")
        assert await expect_error_code(client.steer_session("crab", "left")) == 404
        assert await expect_error_code(client.compact("crab")) == 404
        assert await expect_error_code(client.list_messages("crab")) == 404
        assert await expect_error_code(client.list_archives("crab")) == 404
        assert daemon.log_paths == []
        assert list((await client.list_conversations()).conversations) == []
        assert list((await client.list_active_conversations()).conversations) == []
        await client.send("crab", "hello")
        assert len(daemon.log_paths) == 1
        assert len((await client.list_conversations()).conversations) == 1


@pytest.mark.req("conv.persists")
async def test_a_conversation_persists_across_restarts(tmp_path: Path) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await client.send("crab", "before")
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await client.send("crab", "after")
            assert [text for _, text in list_request_messages(model.requests[-1])[1:]] == [
                "before",
                "heard: before",
                "after",
            ]


@pytest.mark.req("conv.persists.storage")
@pytest.mark.on_files
async def test_conversations_are_stored_only_in_the_configured_storage(tmp_path: Path) -> None:
    """With a storage in memory nothing is on disk; its conversations are there after a restart."""
    storage = PersistentMemoryStorage()
    async with model_server() as model:
        async with run_daemon(tmp_path, model, agents={}, storage=storage) as daemon:
            async with daemon.client() as client:
                await client.send("crab", "before")
            assert daemon.log_paths == []
            assert not daemon.agent_file("crab").exists()
        async with (
            run_daemon(tmp_path, model, storage=storage) as daemon,
            daemon.client() as client,
        ):
            await client.send("crab", "after")
            assert ("user", "before") in list_request_messages(model.requests[-1])


@pytest.mark.req("conv.one_per_pair")
async def test_at_most_one_conversation_exists_for_a_pair(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        async with asyncio.timeout(20):
            await asyncio.gather(*(client.send("crab", f"turn {n}") for n in range(20)))
        assert len(daemon.log_paths) == 1
        (conversation,) = (await client.list_conversations()).conversations
        assert conversation.message_count == 40


# ── Addressing ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.turn")
async def test_a_stream_appends_the_content_runs_the_agent_and_streams_the_response(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        events = await collect_events(client.stream("crab", "!say first second"))
        chunks = [event.content for event in events if isinstance(event, wire.StreamChunk)]
        assert "".join(chunks) == "first second"
        assert daemon.read_messages() == [
            {"role": "user", "text": "!say first second"},
            {"role": "assistant", "text": "first second"},
        ]


@pytest.mark.req("kill.cancels")
async def test_a_kill_cancels_the_run_in_flight(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        running = client.stream("crab", "!say so far\n!hang")
        await wait_for_event(running, wire.StreamChunk)
        assert await client.kill("crab")
        end = get_stream_end(await collect_events(running))
        assert (end.stop_reason, end.error) == (wire.STOP_REASON_CANCELLED, "")
        await daemon.model.until_hung_up()


@pytest.mark.req("kill.idle")
async def test_a_kill_of_a_conversation_where_nothing_runs_is_no_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        assert await client.kill("crab")
        await client.send("crab", "again")
        assert len(list_request_messages(daemon.model.requests[-1])) == 4


@pytest.mark.req("compact.folds")
async def test_compacting_folds_the_history_into_an_archive(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary="They met.") as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        assert await client.compact("crab") == "They met."
        (archive,) = (await client.list_archives("crab")).archives
        assert archive.summary == "They met."
        (handle,) = [c.file_path for c in (await client.list_conversations()).conversations]
        (summary,) = (await client.get_conversation_history(handle)).messages
        assert (summary.role, summary.content) == ("user", "They met.")


@pytest.mark.req("conv.sender.default")
async def test_an_omitted_sender_is_a_sender_of_its_own(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await collect_events(client.stream("crab", "no sender"))
        await collect_events(client.stream("crab", "an empty one", sender=""))
        await collect_events(client.stream("crab", "by name", sender="user"))
        (conversation,) = (await client.list_conversations()).conversations
        assert (conversation.sender, conversation.message_count) == ("user", 6)


# ── State ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.title")
async def test_a_title_is_a_short_label_for_people(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello")
        await daemon.daemon.runtime.set_title("crab", "x" * 10_000)
        (listed,) = (await client.list_conversations()).conversations
        assert 0 < len(listed.title) <= 200
        await daemon.daemon.runtime.set_title("crab", "Greetings,\n and more ")
        (listed,) = (await client.list_conversations()).conversations
        assert listed.title == "Greetings, and more"
        (active,) = (await client.list_active_conversations()).conversations
        history = await client.get_conversation_history(listed.file_path)
        assert (active.title, history.title) == (listed.title, listed.title)
        await client.send("crab", "again")
        (listed,) = (await client.list_conversations()).conversations
        assert listed.title == active.title
        assert listed.message_count == 4


@pytest.mark.req("conv.history.order")
async def test_the_order_of_the_history_is_total(tmp_path: Path) -> None:
    """Concurrent turns are stored one after the other, never mixed."""
    async with (
        run_daemon(tmp_path, tools={"where": report_directory}) as daemon,
        daemon.client() as client,
    ):
        turns = (f"{WHERE}\n!then\n!say answer {n}" for n in range(8))
        async with asyncio.timeout(20):
            await asyncio.gather(*(client.send("crab", turn) for turn in turns))
        page = await client.list_messages("crab")
        assert [message.id for message in page.messages] == list(range(32))
        assert [message.role for message in page.messages] == [
            *("user", "assistant", "tool", "assistant"),
        ] * 8
        for number in range(0, 32, 4):
            question, answer = page.messages[number], page.messages[number + 3]
            assert question.content.endswith(answer.content)
        times = [message.timestamp for message in page.messages]
        assert times == sorted(times)


@pytest.mark.req("conv.history.append_only")
async def test_entries_are_appended_and_never_reordered_or_removed(tmp_path: Path) -> None:
    """After any request, the old bytes of the log are unchanged."""
    async with run_daemon(tmp_path, summary="They met.") as daemon:
        before = b""
        async with daemon.client() as client:

            async def killed() -> None:
                running = client.stream("crab", "!say so far\n!hang")
                await wait_for_event(running, wire.StreamChunk)
                await client.kill("crab")
                await collect_events(running)

            for step in (
                lambda: client.send("crab", "one"),
                lambda: client.send("crab", "two", guest="twin"),
                killed,
                lambda: client.compact("crab"),
                lambda: client.send("crab", "three"),
                lambda: collect_events(client.stream("crab", "!status 400 no")),
            ):
                await step()
                (log,) = daemon.log_paths
                after = log.read_bytes()
                assert after.startswith(before)
                assert len(after) > len(before)
                before = after


@pytest.mark.req("compact.fresh")
async def test_a_conversation_can_be_started_fresh_without_a_model(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "my name is bo")
        request_count = len(daemon.model.requests)
        assert await client.compact("crab", fresh=True) == ""
        assert len(daemon.model.requests) == request_count
        handle = (await client.list_conversations("crab")).conversations[0].file_path
        assert list((await client.get_conversation_history(handle)).messages) == []
        await client.send("crab", "who am i?")
        assert list_request_messages(daemon.model.requests[-1])[1:] == [("user", "who am i?")]
        hits = (await client.search_sessions("bo", agent="crab")).hits
        assert [hit.message_id for hit in hits] == [0]
        archives = (await client.list_archives("crab")).archives
        assert [(a.title, a.summary, a.first_id, a.end_id) for a in archives] == [
            ("my name is bo", "", 0, 2)
        ]
        assert await expect_error_code(client.compact("crab", sender="other", fresh=True)) == 404


@pytest.mark.req("conv.title.by_client")
async def test_a_client_can_name_a_conversation(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "hello", sender="bo")
        await client.set_title("crab", "  the\n tide tables ", sender="bo")
        (info,) = (await client.list_conversations("crab")).conversations
        assert info.title == "the tide tables"
        assert await expect_error_code(client.set_title("crab", "x")) == 404


@pytest.mark.req("compact.keeps_entries")
async def test_only_compaction_removes_entries_from_the_working_context(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, summary="They met.") as daemon, daemon.client() as client:
        for number in range(5):
            await client.send("crab", f"turn {number}")
        assert len(list_request_messages(daemon.model.requests[-1])) == 1 + 9
        await client.compact("crab")
        await client.send("crab", "go on")
        assert len(list_request_messages(daemon.model.requests[-1])) == 1 + 2
        assert len(await read_conversation(client, "crab")) == 12


# ── Working directory ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.cwd.default")
async def test_a_conversation_has_a_default_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with (
        run_daemon(tmp_path, tools={"where": report_directory}) as daemon,
        daemon.client() as client,
    ):
        answer = await client.send("crab", WHERE)
        assert answer.content == f"heard: {tmp_path}"


@pytest.mark.req("conv.cwd.one_run")
async def test_a_directory_given_with_a_turn_applies_only_to_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    both = f"{WHERE}\n!then\n{WHERE}"
    async with (
        run_daemon(tmp_path, tools={"where": report_directory}) as daemon,
        daemon.client() as client,
    ):
        outputs = []
        for cwd in (str(other), None):
            events = await collect_events(client.stream("crab", both, cwd=cwd))
            outputs.append([e.output for e in events if isinstance(e, wire.ToolResultEvent)])
        assert (await client.send("crab", WHERE, cwd=str(other))).content == f"heard: {other}"
        assert outputs == [[str(other)] * 2, [str(tmp_path)] * 2]


# ── Message attribution ────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.attribution")
async def test_an_empty_agent_is_the_primary_and_any_other_a_guest(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "one")
        await client.send("crab", "two", guest="twin")
        page = await client.list_messages("crab")
        assert [(m.role, m.agent) for m in page.messages] == [
            ("user", ""),
            ("assistant", ""),
            ("user", ""),
            ("assistant", "twin"),
        ]


@pytest.mark.req("guest.framing.not_kept")
async def test_injected_messages_are_not_in_the_history(tmp_path: Path) -> None:
    """Instructions and framing reach the model; neither a client nor the log sees them."""
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        (daemon.home / "Crab.md").write_text("Speak softly.")
        events = await collect_events(client.stream("crab", "!say one", guest="twin"))
        await client.send("crab", "!say two")
        assert collect_text(events) == "one"
        for request in daemon.model.requests:
            assert len(list_framing_messages(request)) == 1
            assert any("Speak softly." in text for _, text in list_request_messages(request))
        assert [text for _, text in await read_conversation(client, "crab")] == [
            "!say one",
            "one",
            "!say two",
            "two",
        ]
        (log,) = daemon.log_paths
        assert "Speak softly." not in log.read_text()
        assert "<from" not in log.read_text()
