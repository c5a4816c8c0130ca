"""A restarted daemon continues where it was."""

from pathlib import Path

import pytest

from crabtalk.protocol import wire
from crabtalk.runtime import ToolDispatch
from crabtalk.transport import TransportLimits
from tests.daemon.in_process_daemon import (
    collect_events,
    expect_error_code,
    get_stream_end,
    list_request_messages,
    run_daemon,
    wait_for_event,
)
from tests.model_server import model_server


async def look_around(call: ToolDispatch) -> str:
    return "waves"


@pytest.mark.req("conv.persists")
async def test_the_model_gets_the_same_history_after_a_restart(tmp_path: Path) -> None:
    """Calls, results and guests included."""
    tools = {"look": look_around}
    async with model_server() as model:
        async with run_daemon(tmp_path, model, tools=tools) as daemon, daemon.client() as client:
            await client.send("crab", "!think hm\n!say wait\n!tool look {}\n!then\n!say done")
            await client.send("crab", "!say and I", guest="twin")
            await client.send("crab", "one")
        async with run_daemon(tmp_path, model, tools=tools) as daemon, daemon.client() as client:
            await client.send("crab", "one")
        before, after = (request["messages"] for request in model.requests[-2:])
        # Except for the framing, which is built again.
        assert after[: len(before) - 2] == before[:-2]
        assert after[-4:] == [
            before[-1],
            {"role": "assistant", "content": "heard: one"},
            before[-2],
            before[-1],
        ]


@pytest.mark.req("conv.persists.compacted")
async def test_a_restart_after_a_compaction_continues_from_the_summary(tmp_path: Path) -> None:
    async with model_server(summary="They met. At sea.") as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await client.send("crab", "before")
            await client.compact("crab")
            await client.send("crab", "between")
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await client.send("crab", "after")
            assert [text for _, text in list_request_messages(model.requests[-1])[1:]] == [
                *("They met. At sea.", "between", "heard: between", "after"),
            ]
            page = await client.list_messages("crab")
            assert [message.id for message in page.messages] == list(range(6))
            await client.compact("crab")
            first, second = (await client.list_archives("crab")).archives
            assert (first.end_id, second.first_id, second.end_id) == (2, 2, 6)
            assert first.name != second.name


@pytest.mark.req("conv.persists.listed")
async def test_lists_titles_and_handles_are_the_same_after_a_restart(tmp_path: Path) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            for sender in ("bo", "eva"):
                await client.send("crab", "hello", sender=sender)
            await daemon.daemon.runtime.set_title("crab", "A talk with bo", "bo")
            before = await client.list_conversations()
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            assert list((await client.list_active_conversations()).conversations) == []
            after = await client.list_conversations()
            assert after == before
            titles = {c.sender: c.title for c in after.conversations}
            assert titles == {"bo": "A talk with bo", "eva": ""}
            (handle,) = [c.file_path for c in after.conversations if c.sender == "bo"]
            history = await client.get_conversation_history(handle)
            assert (history.title, len(history.messages)) == ("A talk with bo", 2)
            await client.send("crab", "again", sender="bo")
            (active,) = (await client.list_active_conversations()).conversations
            assert (active.title, active.message_count) == ("A talk with bo", 4)
            (listed,) = (await client.list_conversations(sender="bo")).conversations
            assert (listed.title, listed.message_count) == ("A talk with bo", 4)


@pytest.mark.req("conv.persists.killed")
async def test_a_running_turn_ends_with_the_daemon_and_its_message_stays(
    tmp_path: Path,
) -> None:
    async with model_server() as model:
        tools = {"look": look_around}
        async with run_daemon(tmp_path, model, tools=tools) as daemon, daemon.client() as client:
            running = client.stream("crab", "!tool look {}\n!then\n!hang", detach=True)
            await wait_for_event(running, wire.ToolsCompleteEvent)
            await model.until_asked(2)
            await running.aclose()
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            assert get_stream_end(await collect_events(client.stream("crab", "go on"))).error == ""
            roles = [role for role, _ in list_request_messages(model.requests[-1])]
            assert roles == ["system", "user", "assistant", "tool", "user"]


@pytest.mark.req("daemon.shutdown.order")
async def test_a_stream_that_does_not_end_in_time_ends_with_503(tmp_path: Path) -> None:
    limits = TransportLimits(drain_timeout=0.1)
    async with run_daemon(tmp_path, transport_limits=limits) as daemon:
        running = daemon.client().stream("crab", "!say so far\n!hang")
        await wait_for_event(running, wire.StreamChunk)
    assert await expect_error_code(collect_events(running)) == 503


@pytest.mark.req("conv.delete")
async def test_a_deleted_conversation_does_not_come_back(tmp_path: Path) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await client.send("crab", "hello")
            (conversation,) = (await client.list_conversations()).conversations
            await client.delete_conversation(conversation.file_path)
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            assert list((await client.list_conversations()).conversations) == []
            assert await expect_error_code(client.list_messages("crab")) == 404


@pytest.mark.req("models.set_active")
async def test_the_active_model_survives_a_restart(tmp_path: Path) -> None:
    config = '[llm]\nbase_url = "{url}"\n'
    async with model_server() as model:
        model.models += ["other"]
        async with run_daemon(tmp_path, model, config=config) as daemon, daemon.client() as client:
            await client.set_active_model("other")
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            assert (await client.get_stats()).active_model == "other"
            assert (await client.send("crab", "hello")).model == "other"
