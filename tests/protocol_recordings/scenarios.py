"""Scenarios: what clients say, one scenario a recording. Every request of the protocol is in one.

Only the recorder reads this module. A recording holds the bytes, so a replay sends what was
recorded even after the proto file has changed.
"""

import json
from dataclasses import dataclass
from typing import Any

from crabtalk.protocol import wire

from .stage import TOKEN


@dataclass(frozen=True, slots=True)
class Ask:
    """Sends a message, or raw bytes, and reads until `until` (see `record.is_last`)."""

    message: wire.ClientMessage | bytes
    until: str = "answer"
    on: str = "main"


@dataclass(frozen=True, slots=True)
class Read:
    """Reads on without sending."""

    until: str
    on: str = "main"


@dataclass(frozen=True, slots=True)
class Do:
    """Something on the stage, such as `release the model`."""

    action: str


Step = Ask | Read | Do


def ask(request: str, payload: Any = None, *, until: str = "answer", on: str = "main") -> Ask:
    field = wire.ClientMessage.DESCRIPTOR.fields_by_name[request]
    if payload is None and field.message_type is not None:
        payload = getattr(wire, field.message_type.name)()
    return Ask(wire.ClientMessage(**{request: payload}), until, on)


def stream(content: str, *, until: str = "answer", on: str = "main", **fields: Any) -> Ask:
    agent = fields.pop("agent", "crab")
    return ask("stream", wire.StreamMsg(agent=agent, content=content, **fields), until=until, on=on)


def send(content: str, **fields: Any) -> Ask:
    return ask("send", wire.SendMsg(agent="crab", content=content, **fields))


NOTE = wire.MemoryEntry(number=1, name="tide", kind="note", content="High tide is at noon.")
# The handle of the pair (crab, user). It is made of their names and a hash of them.
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

SCENARIOS: dict[str, list[Step]] = {
    "daemon": [
        ask("hello", wire.HelloMsg(protocol_version=1, client="recorder")),
        ask("ping"),
        ask("get_stats"),
        ask("get_config"),
        ask("reload"),
        ask("extension", b"\x01"),
        ask("list_models"),
        ask("set_active_model", wire.SetActiveModelMsg(model="scripted")),
        ask("set_active_model", wire.SetActiveModelMsg(model="no such model")),
        ask("list_skills"),
    ],
    "tcp_greeting": [
        ask("hello", wire.HelloMsg(protocol_version=1, client="x", token=TOKEN), on="tcp 1"),
        ask("ping", on="tcp 1"),
        ask("hello", wire.HelloMsg(token="wrong"), on="tcp 2"),
        Read("close", on="tcp 2"),
        ask("ping", on="tcp 3"),
        Read("close", on="tcp 3"),
    ],
    "bad_frames": [
        Ask(b"\0\0\0\x02\xff\xff"),
        Ask(bytes(4)),
        Ask(b"\0\0\0\x03\xfa\x7f\x00"),
        ask("ping"),
        Ask((16 * 1024 * 1024 + 1).to_bytes(4, "big")),
        Read("close"),
    ],
    "agents": [
        ask("list_agents"),
        ask("get_agent", wire.GetAgentMsg(name="crab")),
        ask("get_agent", wire.GetAgentMsg(name="nobody")),
        ask("create_agent", wire.CreateAgentMsg(name="new", config="{}", prompt="You are new.")),
        ask("create_agent", wire.CreateAgentMsg(name="new", config="{}", prompt="Again.")),
        ask("update_agent", wire.UpdateAgentMsg(name="new", config='{"max_iterations": 3}')),
        ask("update_agent", wire.UpdateAgentMsg(name="new", config="not JSON")),
        ask("rename_agent", wire.RenameAgentMsg(old_name="new", new_name="newer")),
        ask("delete_agent", wire.DeleteAgentMsg(name="newer")),
        ask("delete_agent", wire.DeleteAgentMsg(name="newer")),
        ask("explain_agent", wire.ExplainAgentMsg(agent="crab")),
        ask("list_mcps", wire.ListMcpsMsg()),
        ask("delete_mcp", wire.DeleteMcpMsg(agent="crab", name="none")),
        ask("upsert_mcp", wire.UpsertMcpMsg(agent="nobody", config="{}")),
        ask("upsert_mcp", wire.UpsertMcpMsg(agent="crab", config="not JSON")),
    ],
    "turns": [
        stream("!say hello"),
        stream("!think hm\n!say so"),
        stream("plain words", sender="bo"),
        stream("!usage 7 3\n!say counted"),
        stream("!length\n!say cut"),
        stream("!nothing"),
        stream("!status 400 refused by the model"),
        stream("  "),
        stream("!say x", agent="nobody"),
        stream("!say x", cwd="/no/such/directory"),
        stream("!say x", tool_choice="no such tool"),
        stream("!say x", mode="no such mode"),
        stream("!say guest", guest="twin"),
        stream("!say plan", mode="plan"),
        stream("!say detached", detach=True),
        send("!say answered"),
        send("!say guest", guest="twin"),
        send("!status 400 refused by the model"),
        send(""),
        ask("ping"),
    ],
    "tools": [
        stream('!tool todo {"todos": []}\n!then\n!say done'),
        stream("!tool read {}\n!then\n!say done"),
        stream("!tool no_such_tool {}\n!then\n!say done"),
        stream('!tool set_title {"title": "A title"}\n!then\n!say done'),
        stream('!tool remember {"name": "tide", "content": "noon"}\n!then\n!say done'),
        ask("list_messages", wire.ListMessagesMsg(agent="crab")),
        ask("list_conversations", wire.ListConversationsMsg()),
        ask("list_active_conversations", wire.ListActiveConversationsMsg()),
        ask("search_memory", wire.SearchMemoryMsg(agent="crab", query="tide")),
    ],
    "questions": [
        stream(f"!tool ask_user {json.dumps(QUESTION)}\n!then\n!say thanks", until="ask_user"),
        ask(
            "reply_to_ask",
            wire.ReplyToAsk(agent="crab", sender="user", content="South"),
            on="control",
        ),
        Read("answer"),
        ask(
            "reply_to_ask", wire.ReplyToAsk(agent="crab", sender="user", content="x"), on="control"
        ),
    ],
    "control": [
        ask("kill", wire.KillMsg(agent="crab", sender="user")),
        ask("steer_session", wire.SteerSessionMsg(agent="crab", sender="user", content="x")),
        stream("!wait\n!say on", until="start"),
        Do("wait for the model"),
        ask("ping", on="control"),
        ask("get_stats", on="control"),
        ask(
            "steer_session",
            wire.SteerSessionMsg(agent="crab", sender="user", content="!say steered"),
            on="control",
        ),
        Do("release the model"),
        Read("answer"),
        stream("!wait\n!say never", until="start"),
        Do("wait for the model"),
        ask("kill", wire.KillMsg(agent="crab", sender="user"), on="control"),
        Read("answer"),
        ask("kill", wire.KillMsg(agent="crab", sender="user")),
        ask("list_messages", wire.ListMessagesMsg(agent="crab")),
    ],
    "conversations": [
        stream("!say one"),
        stream("!say two"),
        ask("list_conversations", wire.ListConversationsMsg(agent="crab")),
        ask("set_title", wire.SetTitleMsg(agent="crab", title="Numbers")),
        ask("set_title", wire.SetTitleMsg(agent="crab", sender="nobody", title="x")),
        ask("set_mode", wire.SetModeMsg(agent="crab", mode="ask")),
        ask("set_mode", wire.SetModeMsg(agent="crab")),
        ask("set_mode", wire.SetModeMsg(agent="crab", mode="")),
        ask("set_mode", wire.SetModeMsg(agent="crab", mode="no such mode")),
        ask("list_messages", wire.ListMessagesMsg(agent="crab", offset=1, limit=2)),
        ask("list_messages", wire.ListMessagesMsg(agent="crab", sender="nobody")),
        ask("search_sessions", wire.SearchSessionsMsg(query="two")),
        ask("search_sessions", wire.SearchSessionsMsg(query="absent")),
        ask("get_conversation_history", wire.GetConversationHistoryMsg(file_path=HANDLE)),
        ask("compact", wire.CompactMsg(agent="crab", sender="user")),
        ask("get_conversation_history", wire.GetConversationHistoryMsg(file_path=HANDLE)),
        ask("compact", wire.CompactMsg(agent="crab", sender="nobody")),
        ask("list_archives", wire.ListArchivesMsg(agent="crab")),
        ask("list_archives", wire.ListArchivesMsg(agent="crab", sender="nobody")),
        stream("!say three"),
        ask("compact", wire.CompactMsg(agent="crab", sender="user", fresh=True)),
        ask("list_active_conversations", wire.ListActiveConversationsMsg()),
        ask("get_conversation_history", wire.GetConversationHistoryMsg(file_path="none")),
        ask("delete_conversation", wire.DeleteConversationMsg(file_path="none")),
        ask("delete_conversation", wire.DeleteConversationMsg(file_path=HANDLE)),
    ],
    "memory": [
        ask("list_memory", wire.ListMemoryMsg(agent="crab")),
        ask("replace_memory", wire.ReplaceMemoryMsg(agent="crab", entries=[NOTE])),
        ask("list_memory", wire.ListMemoryMsg(agent="crab")),
        ask("list_memory", wire.ListMemoryMsg(agent="crab", name="tide")),
        ask("list_memory", wire.ListMemoryMsg(agent="nobody")),
        ask("search_memory", wire.SearchMemoryMsg(agent="crab", query="tide")),
        ask("search_memory", wire.SearchMemoryMsg(agent="nobody", query="tide")),
    ],
    "events": [
        ask("subscribe_event", wire.SubscribeEventMsg(source="bell", target_agent="crab")),
        ask("subscribe_event", wire.SubscribeEventMsg(source="", target_agent="crab")),
        ask("subscribe_event", wire.SubscribeEventMsg(source="bell", target_agent="nobody")),
        ask("list_subscriptions"),
        ask("publish_event", wire.PublishEventMsg(source="nobody hears", payload="x")),
        ask("unsubscribe_event", wire.UnsubscribeEventMsg(id=1)),
        ask("unsubscribe_event", wire.UnsubscribeEventMsg(id=1)),
        ask("list_subscriptions"),
    ],
    "feed": [
        ask("subscribe_events", wire.SubscribeEvents(), until="nothing", on="feed"),
        Do("wait for a subscriber"),
        stream("!think hm\n!say so"),
        Read("done", on="feed"),
        ask("subscribe_mcp_events", until="nothing", on="mcp feed"),
    ],
}
