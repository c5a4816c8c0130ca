"""Routes: every request is answered with the message type that the contract names."""

import pytest

from crabtalk.protocol import ROUTES, ReplyShape, wire

# §1.3 of the contract, in its order: the request and the variant that answers it.
CONTRACT = {
    "send": "response",
    "stream": "stream",
    "reply_to_ask": "pong",
    "list_active_conversations": "active_conversations",
    "kill": "pong",
    "compact": "compact",
    "list_conversations": "conversation_list",
    "set_active_model": "pong",
    "list_mcps": "mcp_list",
    "list_agents": "agent_list",
    "get_agent": "agent_info",
    "create_agent": "agent_info",
    "update_agent": "agent_info",
    "delete_agent": "pong",
    "list_skills": "skill_list",
    "ping": "pong",
    "get_config": "config",  # never sent: the request is always answered with error 410
    "reload": "pong",
    "get_stats": "stats",
    "subscribe_events": "agent_event",
    "list_models": "model_list",
    "get_conversation_history": "conversation_history",
    "delete_conversation": "pong",
    "subscribe_event": "subscription_info",
    "unsubscribe_event": "pong",
    "list_subscriptions": "subscription_list",
    "publish_event": "pong",
    "steer_session": "pong",
    "upsert_mcp": "mcp_info",
    "delete_mcp": "pong",
    "rename_agent": "agent_info",
    "subscribe_mcp_events": "mcp_event",
    "extension": "extension",
}

ADDITIONS = {
    "hello": "welcome",
    "search_sessions": "session_hits",
    "list_messages": "message_page",
    "list_archives": "archive_list",
    "search_memory": "memory_hits",
    "list_memory": "memory_page",
    "replace_memory": "pong",
    "set_title": "pong",
    "set_mode": "mode_info",
    "explain_agent": "agent_permissions",
    "attach": "stream",
    "list_records": "record_page",
}

REQUESTS = {f.name: f for f in wire.ClientMessage.DESCRIPTOR.oneofs_by_name["msg"].fields}
REPLIES = {f.name: f for f in wire.ServerMessage.DESCRIPTOR.oneofs_by_name["msg"].fields}


@pytest.mark.req("dispatch.one_function")
def test_each_request_is_answered_with_the_variant_of_the_contract() -> None:
    replies = {name: route.reply for name, route in ROUTES.items()}
    assert replies == CONTRACT | ADDITIONS


@pytest.mark.req("dispatch.stream_many")
def test_only_turns_stream_to_an_end_and_only_subscriptions_are_feeds() -> None:
    shapes = {
        name: route.shape for name, route in ROUTES.items() if route.shape is not ReplyShape.ONE
    }
    assert shapes == {
        "stream": ReplyShape.STREAM,
        "attach": ReplyShape.STREAM,
        "subscribe_events": ReplyShape.FEED,
        "subscribe_mcp_events": ReplyShape.FEED,
    }


def test_a_route_is_found_under_the_name_of_its_request() -> None:
    assert {name: route.request for name, route in ROUTES.items()} == {
        name: name for name in ROUTES
    }


@pytest.mark.req("dispatch.server_method_per_request")
def test_every_request_of_the_protocol_has_a_route_and_every_route_a_request() -> None:
    assert set(ROUTES) == set(REQUESTS)


def test_every_reply_except_the_error_belongs_to_a_route() -> None:
    assert {route.reply for route in ROUTES.values()} == set(REPLIES) - {"error"}


@pytest.mark.req("wire.additions.optional")
def test_a_client_that_knows_only_the_contract_never_gets_a_newer_reply() -> None:
    newer = {route.request for route in ROUTES.values() if REPLIES[route.reply].number > 100}
    assert newer == {name for name, reply in ADDITIONS.items() if reply not in ("pong", "stream")}
    assert all(REQUESTS[name].number > 100 for name in newer)
