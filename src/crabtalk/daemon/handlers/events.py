"""EventHandlers: the requests about the feed and about events between agents."""

from collections.abc import AsyncGenerator

from crabtalk.daemon.daemon import Daemon
from crabtalk.protocol import BadRequestError, NotFoundError, Server, wire
from crabtalk.storage import Subscription

from .error_mapping import translate_errors, unknown_agent_error

MAX_SOURCE_CHARS = 512
MAX_PAYLOAD_CHARS = 1024 * 1024


class EventHandlers(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def subscribe_events(
        self, request: wire.SubscribeEvents
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        return self._daemon.feed.subscribe(
            request.agent,
            request.sender,
            all_kinds=request.all_kinds,
            waiting=self._daemon.pending_questions.list_unanswered(),
        )

    # ── Events between agents ───────────────────────────────────────────────────────────────

    async def subscribe_event(self, request: wire.SubscribeEventMsg) -> wire.SubscriptionInfo:
        source = check_source(request.source)
        runtime = await self._daemon.wait_until_ready()
        if request.target_agent not in runtime.agents:
            raise unknown_agent_error(request.target_agent)
        with translate_errors():
            new = await self._daemon.bus.subscribe(
                source, request.target_agent, once=request.once, created_by=request.sender
            )
        return to_subscription_info(new)

    async def unsubscribe_event(self, request: wire.UnsubscribeEventMsg) -> None:
        await self._daemon.wait_until_ready()
        with translate_errors():
            removed = await self._daemon.bus.unsubscribe(request.id)
        if not removed:
            raise NotFoundError(f"no subscription has the id {request.id}")

    async def list_subscriptions(self, request: wire.ListSubscriptionsMsg) -> wire.SubscriptionList:
        await self._daemon.wait_until_ready()
        subscriptions = self._daemon.bus.subscriptions
        return wire.SubscriptionList(subscriptions=map(to_subscription_info, subscriptions))

    async def publish_event(self, request: wire.PublishEventMsg) -> None:
        await self._daemon.wait_until_ready()
        source = check_source(request.source)
        if len(request.payload) > MAX_PAYLOAD_CHARS:
            raise BadRequestError(f"a payload may have {MAX_PAYLOAD_CHARS} characters; send less")
        with translate_errors():
            await self._daemon.bus.publish(source, request.payload)


def check_source(source: str) -> str:
    if not source.strip():
        raise BadRequestError("the source is empty; name one, such as agent:crab:done")
    if len(source) > MAX_SOURCE_CHARS:
        raise BadRequestError(f"source is longer than {MAX_SOURCE_CHARS} characters; shorten it")
    return source


def to_subscription_info(subscription: Subscription) -> wire.SubscriptionInfo:
    return wire.SubscriptionInfo(
        id=subscription.id,
        source=subscription.source,
        target_agent=subscription.target_agent,
        once=subscription.once,
        created_by=subscription.created_by or None,
    )
