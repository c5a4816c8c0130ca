"""EventsServer: the requests about what happens: the feed, and events between agents."""

from collections.abc import AsyncGenerator

from crabtalk.protocol import BadRequestError, NotFoundError, Server, wire
from crabtalk.storage import Subscription

from .daemon import Daemon
from .refusals import answered, no_agent

LONGEST_SOURCE = 512
LARGEST_PAYLOAD = 1024 * 1024


class EventsServer(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def subscribe_events(
        self, request: wire.SubscribeEvents
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        return self._daemon.feed.subscribe(
            request.agent,
            request.sender,
            all_kinds=request.all_kinds,
            waiting=self._daemon.asks.waiting(),
        )

    # ── Events between agents ───────────────────────────────────────────────────────────────

    async def subscribe_event(self, request: wire.SubscribeEventMsg) -> wire.SubscriptionInfo:
        source = checked_source(request.source)
        runtime = await self._daemon.ready()
        if request.target_agent not in runtime.agents:
            raise no_agent(request.target_agent)
        with answered():
            new = await self._daemon.bus.subscribe(
                source, request.target_agent, once=request.once, created_by=request.sender
            )
        return subscription_info(new)

    async def unsubscribe_event(self, request: wire.UnsubscribeEventMsg) -> None:
        await self._daemon.ready()
        with answered():
            removed = await self._daemon.bus.unsubscribe(request.id)
        if not removed:
            raise NotFoundError(f"no subscription has the id {request.id}")

    async def list_subscriptions(self, request: wire.ListSubscriptionsMsg) -> wire.SubscriptionList:
        await self._daemon.ready()
        found = self._daemon.bus.subscriptions
        return wire.SubscriptionList(subscriptions=[subscription_info(one) for one in found])

    async def publish_event(self, request: wire.PublishEventMsg) -> None:
        await self._daemon.ready()
        source = checked_source(request.source)
        if len(request.payload) > LARGEST_PAYLOAD:
            raise BadRequestError(f"a payload may have {LARGEST_PAYLOAD} characters; send less")
        with answered():
            await self._daemon.bus.publish(source, request.payload)


def checked_source(source: str) -> str:
    if not source.strip():
        raise BadRequestError("the source is empty; name one, such as agent:crab:done")
    if len(source) > LONGEST_SOURCE:
        raise BadRequestError(f"source is longer than {LONGEST_SOURCE} characters; shorten it")
    return source


def subscription_info(one: Subscription) -> wire.SubscriptionInfo:
    return wire.SubscriptionInfo(
        id=one.id,
        source=one.source,
        target_agent=one.target_agent,
        once=one.once,
        created_by=one.created_by or None,
    )
