"""Scenarios: what clients send, one scenario per recording. They cover every request.

Only the recorder imports this module. A recording contains the bytes, so a replay sends what was
recorded even after the proto file has changed.
"""

import json
from dataclasses import dataclass
from typing import Any

from crabtalk.protocol import wire

from .recording_daemon import TOKEN


@dataclass(frozen=True, slots=True)
class SendStep:
    """Sends a message, or raw bytes, and reads until `until` (see `recorder.is_last`)."""

    message: wire.ClientMessage | bytes
    until: str = "answer"
    on: str = "main"


@dataclass(frozen=True, slots=True)
class ReadStep:
    """Reads without sending."""

    until: str
    on: str = "main"


@dataclass(frozen=True, slots=True)
class ActionStep:
    """An action of RecordingDaemon, such as `release the model`."""

    action: str


ScenarioStep = SendStep | ReadStep | ActionStep


def make_request(
    request: str, payload: Any = None, *, until: str = "answer", on: str = "main"
) -> SendStep:
    field = wire.ClientMessage.DESCRIPTOR.fields_by_name[request]
    if payload is None and field.message_type is not None:
        payload = getattr(wire, field.message_type.name)()
    return SendStep(wire.ClientMessage(**{request: payload}), until, on)


def make_stream(
    content: str, *, until: str = "answer", on: str = "main", **fields: Any
) -> SendStep:
    agent = fields.pop("agent", "crab")
    return make_request(
        "stream", wire.StreamMsg(agent=agent, content=content, **fields), until=until, on=on
    )


def make_send(content: str, **fields: Any) -> SendStep:
    return make_request("send", wire.SendMsg(agent="crab", content=content, **fields))


# An agent, or a sender, that does not exist. The recordings contain this name.
MISSING = "nobody"
NOTE = wire.MemoryEntry(number=1, name="tide", kind="note", content="High tide is at noon.")
# The handle of the pair (crab, user): their names and a hash of them.
HANDLE = "crab-user-a29b1b296a"
QUESTION = {
    "questions": [
        {
            "question": "Which beach?",
            "header": "Beach",
            "options": [
                {"label": "North", "description": "Windy"},
                {"label": "South", "description": "Calm"},
            ],
        }
    ]
}

SCENARIOS: dict[str, list[ScenarioStep]] = {
    "daemon": [
        make_request("hello", wire.HelloMsg(protocol_version=1, client="recorder")),
        make_request("ping"),
        make_request("get_stats"),
        make_request("get_config"),
        make_request("reload"),
        make_request("extension", b"\x01"),
        make_request("list_models"),
        make_request("set_active_model", wire.SetActiveModelMsg(model="scripted")),
        make_request("set_active_model", wire.SetActiveModelMsg(model="no such model")),
        make_request("list_skills"),
    ],
    "tcp_greeting": [
        make_request(
            "hello", wire.HelloMsg(protocol_version=1, client="x", token=TOKEN), on="tcp 1"
        ),
        make_request("ping", on="tcp 1"),
        make_request("hello", wire.HelloMsg(token="wrong"), on="tcp 2"),
        ReadStep("close", on="tcp 2"),
        make_request("ping", on="tcp 3"),
        ReadStep("close", on="tcp 3"),
    ],
    "bad_frames": [
        SendStep(b"\0\0\0\x02\xff\xff"),
        SendStep(bytes(4)),
        SendStep(b"\0\0\0\x03\xfa\x7f\x00"),
        make_request("ping"),
        SendStep((16 * 1024 * 1024 + 1).to_bytes(4, "big")),
        ReadStep("close"),
    ],
    "agents": [
        make_request("list_agents"),
        make_request("get_agent", wire.GetAgentMsg(name="crab")),
        make_request("get_agent", wire.GetAgentMsg(name=MISSING)),
        make_request(
            "create_agent", wire.CreateAgentMsg(name="new", config="{}", prompt="You are new.")
        ),
        make_request("create_agent", wire.CreateAgentMsg(name="new", config="{}", prompt="Again.")),
        make_request(
            "update_agent", wire.UpdateAgentMsg(name="new", config='{"max_iterations": 3}')
        ),
        make_request("update_agent", wire.UpdateAgentMsg(name="new", config="not JSON")),
        make_request("rename_agent", wire.RenameAgentMsg(old_name="new", new_name="newer")),
        make_request("delete_agent", wire.DeleteAgentMsg(name="newer")),
        make_request("delete_agent", wire.DeleteAgentMsg(name="newer")),
        make_request("explain_agent", wire.ExplainAgentMsg(agent="crab")),
        make_request("list_mcps", wire.ListMcpsMsg()),
        make_request("delete_mcp", wire.DeleteMcpMsg(agent="crab", name="none")),
        make_request("upsert_mcp", wire.UpsertMcpMsg(agent=MISSING, config="{}")),
        make_request("upsert_mcp", wire.UpsertMcpMsg(agent="crab", config="not JSON")),
    ],
    "turns": [
        make_stream("!say hello"),
        make_stream("!think hm\n!say so"),
        make_stream("plain words", sender="bo"),
        make_stream("!usage 7 3\n!say counted"),
        make_stream("!length\n!say cut"),
        make_stream("!nothing"),
        make_stream("!status 400 refused by the model"),
        make_stream("  "),
        make_stream("!say x", agent=MISSING),
        make_stream("!say x", cwd="/no/such/directory"),
        make_stream("!say x", tool_choice="no such tool"),
        make_stream("!say x", mode="no such mode"),
        make_stream("!say guest", guest="twin"),
        make_stream("!say plan", mode="plan"),
        make_stream("!say detached", detach=True),
        make_send("!say answered"),
        make_send("!say guest", guest="twin"),
        make_send("!status 400 refused by the model"),
        make_send(""),
        make_request("ping"),
    ],
    "tools": [
        make_stream('!tool todo {"todos": []}\n!then\n!say done'),
        make_stream("!tool read {}\n!then\n!say done"),
        make_stream("!tool no_such_tool {}\n!then\n!say done"),
        make_stream('!tool set_title {"title": "A title"}\n!then\n!say done'),
        make_stream('!tool remember {"name": "tide", "content": "noon"}\n!then\n!say done'),
        make_request("list_messages", wire.ListMessagesMsg(agent="crab")),
        make_request("list_conversations", wire.ListConversationsMsg()),
        make_request("list_active_conversations", wire.ListActiveConversationsMsg()),
        make_request("search_memory", wire.SearchMemoryMsg(agent="crab", query="tide")),
    ],
    "questions": [
        make_stream(f"!tool ask_user {json.dumps(QUESTION)}\n!then\n!say thanks", until="ask_user"),
        make_request(
            "reply_to_ask",
            wire.ReplyToAsk(agent="crab", sender="user", content="South"),
            on="control",
        ),
        ReadStep("answer"),
        make_request(
            "reply_to_ask", wire.ReplyToAsk(agent="crab", sender="user", content="x"), on="control"
        ),
    ],
    "control": [
        make_request("kill", wire.KillMsg(agent="crab", sender="user")),
        make_request(
            "steer_session", wire.SteerSessionMsg(agent="crab", sender="user", content="x")
        ),
        make_stream("!wait\n!say on", until="start"),
        ActionStep("wait for the model"),
        make_request("ping", on="control"),
        make_request("get_stats", on="control"),
        make_request(
            "steer_session",
            wire.SteerSessionMsg(agent="crab", sender="user", content="!say steered"),
            on="control",
        ),
        ActionStep("release the model"),
        ReadStep("answer"),
        make_stream("!wait\n!say never", until="start"),
        ActionStep("wait for the model"),
        make_request("kill", wire.KillMsg(agent="crab", sender="user"), on="control"),
        ReadStep("answer"),
        make_request("kill", wire.KillMsg(agent="crab", sender="user")),
        make_request("list_messages", wire.ListMessagesMsg(agent="crab")),
    ],
    "conversations": [
        make_stream("!say one"),
        make_stream("!say two"),
        make_request("list_conversations", wire.ListConversationsMsg(agent="crab")),
        make_request("set_title", wire.SetTitleMsg(agent="crab", title="Numbers")),
        make_request("set_title", wire.SetTitleMsg(agent="crab", sender=MISSING, title="x")),
        make_request("set_mode", wire.SetModeMsg(agent="crab", mode="ask")),
        make_request("set_mode", wire.SetModeMsg(agent="crab")),
        make_request("set_mode", wire.SetModeMsg(agent="crab", mode="")),
        make_request("set_mode", wire.SetModeMsg(agent="crab", mode="no such mode")),
        make_request("list_messages", wire.ListMessagesMsg(agent="crab", offset=1, limit=2)),
        make_request("list_messages", wire.ListMessagesMsg(agent="crab", sender=MISSING)),
        make_request("search_sessions", wire.SearchSessionsMsg(query="two")),
        make_request("search_sessions", wire.SearchSessionsMsg(query="absent")),
        make_request("get_conversation_history", wire.GetConversationHistoryMsg(file_path=HANDLE)),
        make_request("compact", wire.CompactMsg(agent="crab", sender="user")),
        make_request("get_conversation_history", wire.GetConversationHistoryMsg(file_path=HANDLE)),
        make_request("compact", wire.CompactMsg(agent="crab", sender=MISSING)),
        make_request("list_archives", wire.ListArchivesMsg(agent="crab")),
        make_request("list_archives", wire.ListArchivesMsg(agent="crab", sender=MISSING)),
        make_stream("!say three"),
        make_request("compact", wire.CompactMsg(agent="crab", sender="user", fresh=True)),
        make_request("list_active_conversations", wire.ListActiveConversationsMsg()),
        make_request("get_conversation_history", wire.GetConversationHistoryMsg(file_path="none")),
        make_request("delete_conversation", wire.DeleteConversationMsg(file_path="none")),
        make_request("delete_conversation", wire.DeleteConversationMsg(file_path=HANDLE)),
    ],
    "memory": [
        make_request("list_memory", wire.ListMemoryMsg(agent="crab")),
        make_request("replace_memory", wire.ReplaceMemoryMsg(agent="crab", entries=[NOTE])),
        make_request("list_memory", wire.ListMemoryMsg(agent="crab")),
        make_request("list_memory", wire.ListMemoryMsg(agent="crab", name="tide")),
        make_request("list_memory", wire.ListMemoryMsg(agent=MISSING)),
        make_request("search_memory", wire.SearchMemoryMsg(agent="crab", query="tide")),
        make_request("search_memory", wire.SearchMemoryMsg(agent=MISSING, query="tide")),
    ],
    "events": [
        make_request("subscribe_event", wire.SubscribeEventMsg(source="bell", target_agent="crab")),
        make_request("subscribe_event", wire.SubscribeEventMsg(source="", target_agent="crab")),
        make_request(
            "subscribe_event", wire.SubscribeEventMsg(source="bell", target_agent=MISSING)
        ),
        make_request("list_subscriptions"),
        make_request("publish_event", wire.PublishEventMsg(source=f"{MISSING} hears", payload="x")),
        make_request("unsubscribe_event", wire.UnsubscribeEventMsg(id=1)),
        make_request("unsubscribe_event", wire.UnsubscribeEventMsg(id=1)),
        make_request("list_subscriptions"),
    ],
    "feed": [
        make_request("subscribe_events", wire.SubscribeEvents(), until="nothing", on="feed"),
        ActionStep("wait for a subscriber"),
        make_stream("!think hm\n!say so"),
        ReadStep("done", on="feed"),
        make_request("subscribe_mcp_events", until="nothing", on="mcp feed"),
    ],
}
