"""Server: one method per request, and the dispatch from a message to its method.

Dispatch is written once, here. The daemon, tests and any other server subclass Server and override
the methods they offer; the other requests get a 501.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NoReturn

from . import crabtalk_pb2 as wire
from .errors import (
    BadRequestError,
    GoneError,
    InternalError,
    UnsupportedError,
    to_error_message,
)
from .routes import ROUTES, ReplyShape, Route

log = logging.getLogger(__name__)

# A field of ServerMessage and what it holds: a message, or bytes for an extension.
ReplyField = tuple[str, Any]


class Server:
    """The requests a daemon can get. Methods take the request's payload and return the answer's.

    A method that returns None is answered with Pong. A method fails by raising a RequestError; see
    `to_error_message` for other exceptions. Streaming methods are async generators; when the client
    disconnects they are closed, or cancelled at their next await.
    """

    async def dispatch(
        self, message: wire.ClientMessage
    ) -> AsyncGenerator[wire.ServerMessage, None]:
        """Yield the answer to `message`: one message, or all of a stream.

        Never raises: a failure is yielded as an ErrorMsg, and nothing follows it. Closing the
        generator, or cancelling the task that waits on it, closes the method's own generator.
        """
        async with aclosing(self.answer(message)) as replies:
            async for field, payload in replies:
                yield wire.ServerMessage(**{field: payload})

    async def answer(self, message: wire.ClientMessage) -> AsyncGenerator[ReplyField, None]:
        """Dispatch without the ServerMessage, for a transport that only needs its bytes.

        Putting a payload into a ServerMessage copies it, which on a fast stream is the most
        expensive step; see `encode_reply`.
        """
        name = message.WhichOneof("msg")
        leaving: BaseException | None = None
        try:
            if name is None:
                raise_unknown_request()
            route = ROUTES[name]
            method = getattr(self, name)
            request = getattr(message, name)
            field = route.reply
            if route.shape is ReplyShape.ONE:
                payload = await method(request)
                yield field, make_empty_reply(route) if payload is None else payload
            else:
                async with aclosing(method(request)) as payloads:
                    try:
                        async for payload in payloads:
                            yield field, payload
                    except GeneratorExit as closed:
                        leaving = closed
                        raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the task that waits for the answer is being cancelled
            # Something the method awaited was cancelled: that is the method's failure.
            yield "error", to_error_message(InternalError(f"{name} was cancelled"))
        except Exception as error:  # the client gets an error for any failure
            task = asyncio.current_task()
            if leaving is None and task is not None and task.cancelling():
                leaving = asyncio.CancelledError()
            if leaving is not None:
                # The client is gone: a failing clean-up must not be answered.
                log.exception("%s failed while it was being closed", name)
                raise leaving from None
            yield "error", to_error_message(error)

    # ── Greeting and the daemon itself ──────────────────────────────────────────────────────

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        raise_unsupported("hello")

    async def ping(self, request: wire.Ping) -> None:
        return None

    async def get_config(self, request: wire.GetConfig) -> wire.ConfigMsg:
        raise GoneError("configuration is not served over the wire: it is config.toml in the home")

    async def reload(self, request: wire.ReloadMsg) -> None:
        raise_unsupported("reload")

    async def get_stats(self, request: wire.GetStats) -> wire.DaemonStats:
        raise_unsupported("get_stats")

    async def extension(self, request: bytes) -> bytes:
        raise_unsupported("extension")

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    async def send(self, request: wire.SendMsg) -> wire.SendResponse:
        raise_unsupported("send")

    def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        raise_unsupported("stream")

    def attach(self, request: wire.AttachMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        raise_unsupported("attach")

    async def reply_to_ask(self, request: wire.ReplyToAsk) -> None:
        raise_unsupported("reply_to_ask")

    async def steer_session(self, request: wire.SteerSessionMsg) -> None:
        raise_unsupported("steer_session")

    async def kill(self, request: wire.KillMsg) -> None:
        raise_unsupported("kill")

    async def compact(self, request: wire.CompactMsg) -> wire.CompactResponse:
        raise_unsupported("compact")

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    async def list_active_conversations(
        self, request: wire.ListActiveConversationsMsg
    ) -> wire.ActiveConversationList:
        raise_unsupported("list_active_conversations")

    async def list_conversations(self, request: wire.ListConversationsMsg) -> wire.ConversationList:
        raise_unsupported("list_conversations")

    async def get_conversation_history(
        self, request: wire.GetConversationHistoryMsg
    ) -> wire.ConversationHistory:
        raise_unsupported("get_conversation_history")

    async def delete_conversation(self, request: wire.DeleteConversationMsg) -> None:
        raise_unsupported("delete_conversation")

    async def list_messages(self, request: wire.ListMessagesMsg) -> wire.MessagePage:
        raise_unsupported("list_messages")

    async def list_records(self, request: wire.ListRecordsMsg) -> wire.RecordPage:
        raise_unsupported("list_records")

    async def list_archives(self, request: wire.ListArchivesMsg) -> wire.ArchiveList:
        raise_unsupported("list_archives")

    async def set_title(self, request: wire.SetTitleMsg) -> None:
        raise_unsupported("set_title")

    async def set_mode(self, request: wire.SetModeMsg) -> wire.ModeInfo:
        raise_unsupported("set_mode")

    async def explain_agent(self, request: wire.ExplainAgentMsg) -> wire.AgentPermissions:
        raise_unsupported("explain_agent")

    async def search_sessions(self, request: wire.SearchSessionsMsg) -> wire.SessionHitList:
        raise_unsupported("search_sessions")

    async def search_memory(self, request: wire.SearchMemoryMsg) -> wire.MemoryHitList:
        raise_unsupported("search_memory")

    async def list_memory(self, request: wire.ListMemoryMsg) -> wire.MemoryPage:
        raise_unsupported("list_memory")

    async def replace_memory(self, request: wire.ReplaceMemoryMsg) -> None:
        raise_unsupported("replace_memory")

    # ── Agents, skills, models ──────────────────────────────────────────────────────────────

    async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
        raise_unsupported("list_agents")

    async def get_agent(self, request: wire.GetAgentMsg) -> wire.AgentInfo:
        raise_unsupported("get_agent")

    async def create_agent(self, request: wire.CreateAgentMsg) -> wire.AgentInfo:
        raise_unsupported("create_agent")

    async def update_agent(self, request: wire.UpdateAgentMsg) -> wire.AgentInfo:
        raise_unsupported("update_agent")

    async def delete_agent(self, request: wire.DeleteAgentMsg) -> None:
        raise_unsupported("delete_agent")

    async def rename_agent(self, request: wire.RenameAgentMsg) -> wire.AgentInfo:
        raise_unsupported("rename_agent")

    async def list_skills(self, request: wire.ListSkillsMsg) -> wire.SkillList:
        raise_unsupported("list_skills")

    async def list_models(self, request: wire.ListModelsMsg) -> wire.ModelList:
        raise_unsupported("list_models")

    async def set_active_model(self, request: wire.SetActiveModelMsg) -> None:
        raise_unsupported("set_active_model")

    # ── MCP servers ─────────────────────────────────────────────────────────────────────────

    async def list_mcps(self, request: wire.ListMcpsMsg) -> wire.McpList:
        raise_unsupported("list_mcps")

    async def upsert_mcp(self, request: wire.UpsertMcpMsg) -> wire.McpInfo:
        raise_unsupported("upsert_mcp")

    async def delete_mcp(self, request: wire.DeleteMcpMsg) -> None:
        raise_unsupported("delete_mcp")

    def subscribe_mcp_events(
        self, request: wire.SubscribeMcpEventsMsg
    ) -> AsyncGenerator[wire.McpEventMsg, None]:
        raise_unsupported("subscribe_mcp_events")

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    def subscribe_events(
        self, request: wire.SubscribeEvents
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        raise_unsupported("subscribe_events")

    async def subscribe_event(self, request: wire.SubscribeEventMsg) -> wire.SubscriptionInfo:
        raise_unsupported("subscribe_event")

    async def unsubscribe_event(self, request: wire.UnsubscribeEventMsg) -> None:
        raise_unsupported("unsubscribe_event")

    async def list_subscriptions(self, request: wire.ListSubscriptionsMsg) -> wire.SubscriptionList:
        raise_unsupported("list_subscriptions")

    async def publish_event(self, request: wire.PublishEventMsg) -> None:
        raise_unsupported("publish_event")


def raise_unknown_request() -> NoReturn:
    raise BadRequestError("the message holds no request this daemon knows; is the client newer?")


def make_empty_reply(route: Route) -> wire.Pong:
    """The answer for a method that returned None."""
    if route.reply != "pong":
        raise TypeError(f"{route.request} must return what {route.reply} holds")
    return wire.Pong()


def raise_unsupported(request: str) -> NoReturn:
    raise UnsupportedError(f"this server does not offer {request}")
