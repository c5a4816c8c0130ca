"""Turns requested without the client's additions, for tests of the daemon itself.

No retries, no generated keys, and closing a stream early does not kill its run.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from crabtalk.client import Client
from crabtalk.client.events import Event
from crabtalk.protocol import wire


async def plain_stream(
    client: Client,
    content: str,
    *,
    key: str,
    sender: str = "",
    guest: str | None = None,
    detach: bool | None = None,
) -> AsyncGenerator[Event, None]:
    """Closing the generator early only closes its connection."""
    request = wire.StreamMsg(
        agent="crab", content=content, sender=sender, guest=guest, detach=detach, key=key
    )
    replies = client.request_stream(wire.ClientMessage(stream=request))
    async with aclosing(replies):
        async for reply in replies:
            event: Event = getattr(reply.stream, reply.stream.WhichOneof("event") or "")
            yield event


async def plain_send(
    client: Client, content: str, *, key: str, sender: str = "", guest: str | None = None
) -> wire.SendResponse:
    request = wire.SendMsg(agent="crab", content=content, sender=sender, guest=guest, key=key)
    return (await client.request(wire.ClientMessage(send=request))).response


async def plain_steer(client: Client, content: str, *, key: str, sender: str = "") -> None:
    request = wire.SteerSessionMsg(agent="crab", sender=sender, content=content, key=key)
    await client.request(wire.ClientMessage(steer_session=request))
