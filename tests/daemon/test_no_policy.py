"""The daemon makes no requests of its own: clients decide about the cost and the future of a
conversation."""

from pathlib import Path

import pytest

from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import (
    collect_events,
    get_stream_end,
    list_request_messages,
    read_conversation,
    run_daemon,
)

# The result does not depend on the event loop.
pytestmark = pytest.mark.one_loop

TURNS = 12
FULL = 10_000_000  # tokens: more than any model reads


@pytest.mark.req("conv.no_policy")
async def test_the_model_only_gets_requests_for_turns_however_full_the_context_is(
    tmp_path: Path,
) -> None:
    """No compaction, titles or recall: each turn is one request, with all messages."""
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        for number in range(TURNS):
            events = await collect_events(client.stream("crab", f"!say {number}\n!usage {FULL} 1"))
            used = [event.usage for event in events if isinstance(event, wire.ContextUsageEvent)]
            assert [usage.prompt_tokens for usage in used] == [FULL]
        assert daemon.model.request_count == TURNS
        assert [len(list_request_messages(request)) for request in daemon.model.requests] == [
            1 + 2 * number + 1 for number in range(TURNS)
        ]
        assert len(await read_conversation(client, "crab")) == 2 * TURNS
        assert list((await client.list_archives("crab")).archives) == []
        assert list((await client.list_memory("crab")).entries) == []
        (conversation,) = (await client.list_conversations()).conversations
        assert conversation.title == ""


@pytest.mark.req("conv.no_policy")
async def test_a_failed_turn_is_not_retried(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        events = await collect_events(client.stream("crab", "!say so far\n!cut"))
        assert get_stream_end(events).stop_reason == wire.STOP_REASON_ERROR
        assert daemon.model.request_count == 1
        await client.send("crab", "hello")
        assert daemon.model.request_count == 2
