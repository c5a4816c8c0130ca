"""Tap: the envelopes of one conversation as they come, in clear. Needs no relay and no keys."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import connect
from crabtalk_web.adapter import Adapter, Switchboard, from_feed
from crabtalk_web.stream import Envelope

# Without a word for so long, what was said so far is shown. Seconds.
SILENCE = 2.0


async def tap(home: Path, agent: str, sender: str) -> AsyncGenerator[Envelope, None]:
    """From now on, until it is closed. Raises what the daemon's client raises."""
    adapter, switchboard = Adapter(f"tap:{agent}:{sender}"), Switchboard()
    last = 0
    async with (
        connect(home=home, client="web tap") as client,
        aclosing(client.subscribe_events(all_kinds=True)) as feed,
    ):
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
