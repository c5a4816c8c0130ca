"""Tap: the envelopes of one conversation as they come, in clear. Needs no relay and no keys."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import Client, connect
from crabtalk_web.adapter import Adapter, Switchboard, from_feed
from crabtalk_web.stream import Envelope

# Without a word for so long, what was said so far is shown. Seconds.
SILENCE = 2.0


async def tap(home: Path, agent: str, sender: str) -> AsyncGenerator[Envelope, None]:
    """From now on, until it is closed. Raises what the daemon's client raises, and GatewayError
    for an agent there is none of: nothing would ever happen."""
    adapter, switchboard = Adapter(f"tap:{agent}:{sender}"), Switchboard()
    last = 0
    async with (
        connect(home=home, client="web tap") as client,
        aclosing(client.subscribe_events(all_kinds=True)) as feed,
    ):
        await must_be_there(client, agent)
        coming = asyncio.ensure_future(anext(feed))
        try:
            while True:
                done, _ = await asyncio.wait([coming], timeout=SILENCE)
                if not done:
                    for envelope in adapter.idle(last):
                        yield envelope
                    continue
                message = coming.result()
                coming = asyncio.ensure_future(anext(feed))
                heard = from_feed(message)
                if heard is None or switchboard.pair_of(message) != (agent, sender):
                    continue
                last = heard.at
                for envelope in adapter.hear(heard):
                    yield envelope
        finally:
            coming.cancel()
            await asyncio.wait([coming])


async def must_be_there(client: Client, agent: str) -> None:
    names = [known.name for known in (await client.list_agents()).agents]
    if agent not in names:
        from .gateway import GatewayError  # late: a tap needs nothing else of a gateway

        listed = ", ".join(names[:20]) or "none yet"
        raise GatewayError(f"no agent is called {agent[:80]!r}; there are: {listed}")
