"""The reply type of each request. Server, client and docs all use this table."""

from dataclasses import dataclass
from enum import Enum


class ReplyShape(Enum):
    """How many messages a request is answered with."""

    ONE = "one"
    STREAM = "stream"  # many, then an end
    FEED = "feed"  # many, until the client disconnects


@dataclass(frozen=True, slots=True)
class Route:
    """A request: its field in ClientMessage, and the field of ServerMessage that answers it."""

    request: str
    reply: str
    shape: ReplyShape = ReplyShape.ONE
    # A single answer that may take minutes, or waits for other machines.
    is_long: bool = False

    # It is queued with its conversation, so turns sent on one connection begin in order.
    is_turn: bool = False

    @property
    def is_concurrent(self) -> bool:
        """Whether later requests on the same connection are answered while this one runs."""
        return self.is_long or self.shape is not ReplyShape.ONE


ROUTES: dict[str, Route] = {
    route.request: route
    for route in (
        Route("send", "response", is_long=True, is_turn=True),
        Route("stream", "stream", ReplyShape.STREAM, is_turn=True),
        Route("reply_to_ask", "pong"),
        Route("list_active_conversations", "active_conversations"),
        Route("kill", "pong"),
        Route("compact", "compact", is_long=True, is_turn=True),
        Route("list_conversations", "conversation_list"),
        Route("set_active_model", "pong"),
        Route("list_mcps", "mcp_list"),
        Route("list_agents", "agent_list"),
        Route("get_agent", "agent_info"),
        Route("create_agent", "agent_info"),
        Route("update_agent", "agent_info"),
        Route("delete_agent", "pong"),
        Route("list_skills", "skill_list"),
        Route("ping", "pong"),
        Route("get_config", "config"),
        Route("reload", "pong"),
        Route("get_stats", "stats"),
        Route("subscribe_events", "agent_event", ReplyShape.FEED),
        Route("list_models", "model_list", is_long=True),
        Route("get_conversation_history", "conversation_history"),
        Route("delete_conversation", "pong"),
        Route("subscribe_event", "subscription_info"),
        Route("unsubscribe_event", "pong"),
        Route("list_subscriptions", "subscription_list"),
        Route("publish_event", "pong"),
        Route("steer_session", "pong"),
        Route("upsert_mcp", "mcp_info"),
        Route("delete_mcp", "pong"),
        Route("rename_agent", "agent_info"),
        Route("subscribe_mcp_events", "mcp_event", ReplyShape.FEED),
        Route("extension", "extension"),
        Route("hello", "welcome"),
        Route("search_sessions", "session_hits"),
        Route("list_messages", "message_page"),
        Route("list_archives", "archive_list"),
        Route("search_memory", "memory_hits"),
        Route("list_memory", "memory_page"),
        Route("replace_memory", "pong"),
        Route("set_title", "pong"),
        Route("attach", "stream", ReplyShape.STREAM),
        Route("set_mode", "mode_info"),
        Route("explain_agent", "agent_permissions"),
        Route("list_records", "record_page"),
    )
}
