"""Tap: the envelopes of one conversation as they come, in clear. Needs no relay and no keys."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import Client, connect
from crabtalk_web.adapter import ConversationResolver, EnvelopeAdapter, parse_feed_event
from crabtalk_web.stream import Envelope

# Without a word for so long, what was said so far is shown. Seconds.
IDLE_AFTER = 2.0


async def follow_envelopes(home: Path, agent: str, sender: str) -> AsyncGenerator[Envelope, None]:
    """From now on, until it is closed. Raises what the daemon's client raises, and GatewayError
    for an agent there is none of: nothing would ever happen."""
    adapter, switchboard = EnvelopeAdapter(f"tap:{agent}:{sender}"), ConversationResolver()
    last = 0
    async with (
        connect(home=home, client="web tap") as client,
        aclosing(client.subscribe_events(all_kinds=True)) as feed,
    ):
        await check_agent_exists(client, agent)
        coming = asyncio.ensure_future(anext(feed))
        try:
            while True:
                done, _ = await asyncio.wait([coming], timeout=IDLE_AFTER)
                if not done:
                    for envelope in adapter.flush_idle_text(last):
                        yield envelope
                    continue
                message = coming.result()
                coming = asyncio.ensure_future(anext(feed))
                heard = parse_feed_event(message)
                if heard is None or switchboard.find_conversation(message) != (agent, sender):
                    continue
                last = heard.at
                for envelope in adapter.handle_event(heard):
                    yield envelope
        finally:
            coming.cancel()
            await asyncio.wait([coming])


async def check_agent_exists(client: Client, agent: str) -> None:
    names = [known.name for known in (await client.list_agents()).agents]
    if agent not in names:
        from .gateway import WebGatewayError  # late: a tap needs nothing else of a gateway

        listed = ", ".join(names[:20]) or "none yet"
        raise WebGatewayError(f"no agent is called {agent[:80]!r}; there are: {listed}")
