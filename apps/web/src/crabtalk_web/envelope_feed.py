"""Follows one conversation and yields its envelopes unencrypted. Needs no relay and no keys."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import Client, connect
from crabtalk_web.adapter import ConversationResolver, EnvelopeAdapter, parse_feed_event
from crabtalk_web.stream import Envelope

# Seconds without an event after which the text so far is shown.
IDLE_AFTER = 2.0


async def follow_envelopes(home: Path, agent: str, sender: str) -> AsyncGenerator[Envelope, None]:
    """Yield envelopes from now on, until closed. Raises what the daemon's client raises, and
    WebGatewayError for an agent that does not exist, because nothing would ever happen."""
    adapter, resolver = EnvelopeAdapter(f"tap:{agent}:{sender}"), ConversationResolver()
    last = 0
    async with (
        connect(home=home, client="web tap") as client,
        aclosing(client.subscribe_events(all_kinds=True)) as feed,
    ):
        await check_agent_exists(client, agent)
        next_message = asyncio.ensure_future(anext(feed))
        try:
            while True:
                done, _ = await asyncio.wait([next_message], timeout=IDLE_AFTER)
                if not done:
                    for envelope in adapter.flush_idle_text(last):
                        yield envelope
                    continue
                message = next_message.result()
                next_message = asyncio.ensure_future(anext(feed))
                received = parse_feed_event(message)
                if received is None or resolver.find_conversation(message) != (agent, sender):
                    continue
                last = received.at
                for envelope in adapter.handle_event(received):
                    yield envelope
        finally:
            next_message.cancel()
            await asyncio.wait([next_message])


async def check_agent_exists(client: Client, agent: str) -> None:
    names = [agent_info.name for agent_info in (await client.list_agents()).agents]
    if agent not in names:
        from .gateway import WebGatewayError  # imported late: `tap` needs nothing else of a gateway

        listed = ", ".join(names[:20]) or "none yet"
        raise WebGatewayError(f"no agent is called {agent[:80]!r}; there are: {listed}")
