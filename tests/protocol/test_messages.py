"""The messages: exactly those of the contract, and additions that its clients do not notice.

The tables below were copied by hand from the contract's §1.2 to §1.6, not from the .proto file, so
that they can reveal differences.
"""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from crabtalk.protocol import wire

Fields = dict[str, tuple[int, str]]

# ── §1.3 and §1.5: the envelopes ────────────────────────────────────────────────────────────

CLIENT_MESSAGE: Fields = {
    "send": (1, "SendMsg"),
    "stream": (2, "StreamMsg"),
    "reply_to_ask": (3, "ReplyToAsk"),
    "list_active_conversations": (4, "ListActiveConversationsMsg"),
    "kill": (5, "KillMsg"),
    "compact": (6, "CompactMsg"),
    "list_conversations": (7, "ListConversationsMsg"),
    "set_active_model": (11, "SetActiveModelMsg"),
    "list_mcps": (13, "ListMcpsMsg"),
    "list_agents": (15, "ListAgentsMsg"),
    "get_agent": (16, "GetAgentMsg"),
    "create_agent": (17, "CreateAgentMsg"),
    "update_agent": (18, "UpdateAgentMsg"),
    "delete_agent": (19, "DeleteAgentMsg"),
    "list_skills": (23, "ListSkillsMsg"),
    "ping": (30, "Ping"),
    "get_config": (31, "GetConfig"),
    "reload": (32, "ReloadMsg"),
    "get_stats": (33, "GetStats"),
    "subscribe_events": (34, "SubscribeEvents"),
    "list_models": (36, "ListModelsMsg"),
    "get_conversation_history": (38, "GetConversationHistoryMsg"),
    "delete_conversation": (39, "DeleteConversationMsg"),
    "subscribe_event": (40, "SubscribeEventMsg"),
    "unsubscribe_event": (41, "UnsubscribeEventMsg"),
    "list_subscriptions": (42, "ListSubscriptionsMsg"),
    "publish_event": (43, "PublishEventMsg"),
    "steer_session": (44, "SteerSessionMsg"),
    "upsert_mcp": (45, "UpsertMcpMsg"),
    "delete_mcp": (46, "DeleteMcpMsg"),
    "rename_agent": (51, "RenameAgentMsg"),
    "subscribe_mcp_events": (52, "SubscribeMcpEventsMsg"),
    "extension": (100, "bytes"),
}

SERVER_MESSAGE: Fields = {
    "error": (1, "ErrorMsg"),
    "pong": (2, "Pong"),
    "response": (3, "SendResponse"),
    "stream": (4, "StreamEvent"),
    "active_conversations": (5, "ActiveConversationList"),
    "compact": (6, "CompactResponse"),
    "conversation_list": (7, "ConversationList"),
    "mcp_list": (10, "McpList"),
    "agent_info": (11, "AgentInfo"),
    "agent_list": (12, "AgentList"),
    "skill_list": (15, "SkillList"),
    "config": (19, "ConfigMsg"),
    "stats": (20, "DaemonStats"),
    "agent_event": (21, "AgentEventMsg"),
    "model_list": (22, "ModelList"),
    "conversation_history": (24, "ConversationHistory"),
    "subscription_info": (25, "SubscriptionInfo"),
    "subscription_list": (26, "SubscriptionList"),
    "mcp_info": (29, "McpInfo"),
    "mcp_event": (30, "McpEventMsg"),
    "extension": (100, "bytes"),
}

STREAM_EVENT: Fields = {
    "start": (1, "StreamStart"),
    "chunk": (2, "StreamChunk"),
    "thinking": (3, "StreamThinking"),
    "tool_start": (4, "ToolStartEvent"),
    "tool_result": (5, "ToolResultEvent"),
    "tools_complete": (6, "ToolsCompleteEvent"),
    "end": (7, "StreamEnd"),
    "ask_user": (8, "AskUserEvent"),
    "user_steered": (9, "UserSteeredEvent"),
    "text_start": (10, "TextStartEvent"),
    "text_end": (11, "TextEndEvent"),
    "thinking_start": (12, "ThinkingStartEvent"),
    "thinking_end": (13, "ThinkingEndEvent"),
    "context_usage": (14, "ContextUsageEvent"),
}

# ── §1.4 and §1.6: the payloads ─────────────────────────────────────────────────────────────

TURN: Fields = {
    "agent": (1, "string"),
    "content": (2, "string"),
    "sender": (4, "optional string"),
    "cwd": (5, "optional string"),
    "guest": (6, "optional string"),
    "tool_choice": (7, "optional string"),
}
PAIR: Fields = {"agent": (1, "string"), "sender": (2, "string")}
WORDS: Fields = {**PAIR, "content": (3, "string")}
NAME: Fields = {"name": (1, "string")}
AGENT: Fields = {"agent": (1, "string")}
CONTENT: Fields = {"content": (1, "string")}
HANDLE: Fields = {"file_path": (1, "string")}
AGENT_FILE: Fields = {"name": (1, "string"), "config": (2, "string"), "prompt": (3, "string")}

CONTRACT: dict[str, Fields] = {
    "ClientMessage": CLIENT_MESSAGE,
    "ServerMessage": SERVER_MESSAGE,
    # requests
    "SendMsg": TURN,
    "StreamMsg": TURN,
    "Ping": {},
    "SubscribeEvents": {},
    "GetConfig": {},
    "GetStats": {},
    "ReloadMsg": {},
    "ListSubscriptionsMsg": {},
    "ListAgentsMsg": {},
    "ListSkillsMsg": {},
    "ListModelsMsg": {},
    "SubscribeMcpEventsMsg": {},
    "ListActiveConversationsMsg": PAIR,
    "ListConversationsMsg": PAIR,
    "KillMsg": PAIR,
    "CompactMsg": PAIR,
    "ReplyToAsk": WORDS,
    "SteerSessionMsg": WORDS,
    "SubscribeEventMsg": {
        "source": (1, "string"),
        "target_agent": (2, "string"),
        "once": (3, "bool"),
    },
    "UnsubscribeEventMsg": {"id": (1, "uint64")},
    "PublishEventMsg": {"source": (1, "string"), "payload": (2, "string")},
    "GetAgentMsg": NAME,
    "DeleteAgentMsg": NAME,
    "CreateAgentMsg": AGENT_FILE,
    "UpdateAgentMsg": AGENT_FILE,
    "RenameAgentMsg": {"old_name": (1, "string"), "new_name": (2, "string")},
    "GetConversationHistoryMsg": HANDLE,
    "DeleteConversationMsg": HANDLE,
    "ListMcpsMsg": AGENT,
    "UpsertMcpMsg": {"config": (1, "string"), "agent": (2, "string")},
    "DeleteMcpMsg": {"name": (1, "string"), "agent": (2, "string")},
    "SetActiveModelMsg": {"model": (1, "string")},
    # replies
    "ErrorMsg": {"code": (1, "uint32"), "message": (2, "string")},
    "Pong": {},
    "ToolsCompleteEvent": {},
    "CompactResponse": {"summary": (1, "string")},
    "TokenUsage": {
        "prompt_tokens": (1, "uint32"),
        "completion_tokens": (2, "uint32"),
        "total_tokens": (3, "uint32"),
        "cache_hit_tokens": (4, "optional uint32"),
        "cache_miss_tokens": (5, "optional uint32"),
        "reasoning_tokens": (6, "optional uint32"),
    },
    "SendResponse": {
        "agent": (1, "string"),
        "content": (2, "string"),
        "model": (5, "string"),
        "usage": (6, "optional TokenUsage"),
    },
    "ToolCallInfo": {"name": (1, "string"), "arguments": (2, "string")},
    "StreamEvent": STREAM_EVENT,
    "StreamStart": AGENT,
    "TextStartEvent": AGENT,
    "TextEndEvent": AGENT,
    "ThinkingStartEvent": AGENT,
    "ThinkingEndEvent": AGENT,
    "StreamChunk": CONTENT,
    "StreamThinking": CONTENT,
    "UserSteeredEvent": CONTENT,
    "ContextUsageEvent": {"usage": (1, "TokenUsage")},
    "ToolStartEvent": {"calls": (1, "repeated ToolCallInfo")},
    "ToolResultEvent": {
        "call_id": (1, "string"),
        "output": (2, "string"),
        "duration_ms": (3, "uint64"),
        "is_error": (4, "bool"),
    },
    "StreamEnd": {
        "agent": (1, "string"),
        "error": (2, "string"),
        "model": (4, "string"),
        "usage": (5, "optional TokenUsage"),
    },
    "AskUserEvent": {"questions": (1, "repeated AskQuestion")},
    "AskQuestion": {
        "question": (1, "string"),
        "header": (2, "string"),
        "options": (3, "repeated AskOption"),
        "multi_select": (4, "bool"),
    },
    "AskOption": {"label": (1, "string"), "description": (2, "string")},
    "ActiveConversationInfo": {
        "agent": (1, "string"),
        "sender": (2, "string"),
        "message_count": (3, "uint64"),
        "alive_secs": (4, "uint64"),
        "title": (5, "string"),
    },
    "ActiveConversationList": {"conversations": (1, "repeated ActiveConversationInfo")},
    "ConversationInfo": {
        "agent": (1, "string"),
        "sender": (2, "string"),
        "seq": (3, "uint32"),
        "title": (4, "string"),
        "file_path": (5, "string"),
        "message_count": (6, "uint64"),
        "alive_secs": (7, "uint64"),
        "date": (8, "string"),
    },
    "ConversationList": {"conversations": (1, "repeated ConversationInfo")},
    "ConversationMessage": {"role": (1, "string"), "content": (2, "string")},
    "ConversationHistory": {
        "messages": (1, "repeated ConversationMessage"),
        "title": (2, "string"),
        "agent": (3, "string"),
    },
    "ConfigMsg": {"config": (1, "string")},
    "DaemonStats": {
        "uptime_secs": (1, "uint64"),
        "active_conversations": (2, "uint32"),
        "registered_agents": (3, "uint32"),
        "active_model": (4, "string"),
    },
    "AgentInfo": {
        "name": (1, "string"),
        "description": (2, "string"),
        "config": (3, "string"),
        "model": (4, "string"),
        "max_iterations": (5, "uint32"),
        "thinking": (6, "bool"),
        "skills": (8, "repeated string"),
        "mcps": (9, "repeated string"),
        "compact_tool_max_len": (11, "uint32"),
    },
    "AgentList": {"agents": (1, "repeated AgentInfo")},
    "SkillInfo": {
        "name": (1, "string"),
        "source": (3, "string"),
        "source_kind": (4, "SourceKind"),
    },
    "SkillList": {"skills": (1, "repeated SkillInfo")},
    "ModelInfo": {"name": (1, "string"), "active": (3, "bool")},
    "ModelList": {"models": (1, "repeated ModelInfo")},
    "SubscriptionInfo": {
        "id": (1, "uint64"),
        "source": (2, "string"),
        "target_agent": (3, "string"),
        "once": (4, "bool"),
    },
    "SubscriptionList": {"subscriptions": (1, "repeated SubscriptionInfo")},
    "McpInfo": {
        "name": (1, "string"),
        "command": (2, "string"),
        "args": (3, "repeated string"),
        "env": (4, "map<string, string>"),
        "url": (5, "string"),
        "auth": (6, "string"),
        "source": (7, "string"),
        "auto_restart": (8, "bool"),
        "source_kind": (10, "SourceKind"),
        "status": (11, "McpStatus"),
        "error": (12, "string"),
        "tool_count": (13, "uint32"),
    },
    "McpList": {"mcps": (1, "repeated McpInfo")},
    "McpEventMsg": {
        "kind": (1, "McpEventKind"),
        "name": (2, "string"),
        "tools": (3, "repeated string"),
        "error": (4, "string"),
        "timestamp": (5, "string"),
        "agent": (6, "string"),
    },
    "AgentEventMsg": {
        "agent": (1, "string"),
        "sender": (2, "string"),
        "kind": (3, "AgentEventKind"),
        "content": (4, "string"),
        "timestamp": (5, "string"),
        "tool_calls": (6, "repeated ToolCallInfo"),
        "tool_output": (7, "string"),
        "tool_is_error": (8, "bool"),
    },
}

ONEOFS = {"ClientMessage": "msg", "ServerMessage": "msg", "StreamEvent": "event"}

RESERVED: dict[str, tuple[set[int], set[str]]] = {
    "ClientMessage": (
        {8, 9, 10, 12, 14, 20, 21, 22, 24, 25, 26, 27, 28, 29, 35, 37, 47, 48, 49, 50},
        {
            *("set_local_mcps", "set_enabled", "get_setting", "set_setting", "delete_setting"),
            *("list_settings", "list_providers", "set_provider", "delete_provider"),
            *("list_provider_presets", "create_cron", "delete_cron", "list_crons"),
            *("start_service", "stop_service", "service_logs", "install_plugin"),
            *("uninstall_plugin", "list_plugins", "search_plugins"),
        },
    ),
    "ServerMessage": (
        {8, 9, 13, 14, 16, 17, 18, 23, 27, 28},
        {
            *("setting_value", "setting_list", "provider_list", "provider_preset_list"),
            *("cron_info", "cron_list", "service_log_output", "plugin_event", "plugin_list"),
            "plugin_search_list",
        },
    ),
    "SendResponse": ({3, 4}, {"provider"}),
    "StreamEnd": ({3}, {"provider"}),
    "AgentInfo": ({7, 10}, {"members", "compact_threshold"}),
    "SkillInfo": ({2}, {"enabled"}),
    "ModelInfo": ({2, 4, 5}, {"provider", "enabled", "kind"}),
    "McpInfo": ({9}, {"enabled"}),
}

# §1.2. The list index is the number.
ENUMS = {
    "SourceKind": ["SOURCE_KIND_UNKNOWN", "LOCAL", "PACKAGE", "EXTERNAL"],
    "AgentEventKind": [
        *("TEXT_DELTA", "THINKING_DELTA", "TOOL_START", "TOOL_RESULT", "TOOLS_COMPLETE", "DONE"),
        *("TEXT_START", "TEXT_END", "THINKING_START", "THINKING_END"),
    ],
    "McpStatus": ["MCP_STATUS_UNKNOWN", "CONNECTED", "DISCONNECTED", "FAILED", "CONNECTING"],
    "McpEventKind": [
        *("MCP_EVENT_KIND_UNKNOWN", "MCP_EVENT_KIND_CONNECTING", "MCP_EVENT_KIND_CONNECTED"),
        *("MCP_EVENT_KIND_FAILED", "MCP_EVENT_KIND_DISCONNECTED"),
    ],
}

# What this daemon adds to the contract's messages.
ADDITIONS = {
    *("ClientMessage.request_id", "ServerMessage.request_id"),
    *("ClientMessage.hello", "ClientMessage.search_sessions", "ClientMessage.list_messages"),
    *("ClientMessage.list_archives", "ClientMessage.search_memory", "ClientMessage.set_title"),
    *("ClientMessage.list_memory", "ClientMessage.replace_memory", "ServerMessage.memory_page"),
    *("ServerMessage.welcome", "ServerMessage.session_hits", "ServerMessage.message_page"),
    *("ServerMessage.archive_list", "ServerMessage.memory_hits"),
    *("StreamMsg.detach", "CompactMsg.fresh"),
    *("ClientMessage.set_mode", "ClientMessage.explain_agent"),
    *("ServerMessage.mode_info", "ServerMessage.agent_permissions"),
    *("SendMsg.mode", "SendMsg.unattended", "SendMsg.origin"),
    *("StreamMsg.mode", "StreamMsg.unattended", "StreamMsg.origin", "StreamStart.mode"),
    *("ReplyToAsk.as_owner", "AskQuestion.approval"),
    *("ActiveConversationInfo.mode", "ConversationInfo.mode"),
    *("SubscribeEventMsg.sender", "SubscriptionInfo.created_by"),
    "ToolCallInfo.id",
    "ToolStartEvent.early",
    "StreamEnd.stop_reason",
    "StreamStart.run_id",
    *("AskUserEvent.ask_id", "ReplyToAsk.ask_id"),
    "ModelInfo.context_limit",
    *("DaemonStats.runs", "DaemonStats.problems", "DaemonStats.fleet"),
    *("ConversationMessage.id", "ConversationMessage.timestamp", "ConversationMessage.agent"),
    *("ConversationMessage.reasoning", "ConversationMessage.tool_calls"),
    "ConversationMessage.call_id",
    *("SubscribeEvents.agent", "SubscribeEvents.sender"),
    *("AgentEventMsg.run_id", "AgentEventMsg.call_id", "AgentEventMsg.parent"),
    *("AgentEventMsg.missed", "AgentEventMsg.ask", "SubscribeEvents.all_kinds"),
    *("AgentEventMsg.progress", "AgentEventMsg.total", "AgentEventMsg.guest"),
    *("AgentEventMsg.usage", "AgentEventMsg.stop_reason"),
    *("AgentEventMsg.model", "AgentEventMsg.error"),
    *("SendMsg.key", "StreamMsg.key", "SteerSessionMsg.key", "ClientMessage.attach"),
    *("ClientMessage.list_records", "ServerMessage.record_page"),
    *("StreamEvent.number", "StreamStart.stored", "GetConversationHistoryMsg.with_runs"),
    *("ConversationMessage.is_error", "ConversationMessage.key", "ConversationMessage.run_id"),
    *("ConversationMessage.said", "ConversationMessage.steer", "KillMsg.run_id", "KillMsg.key"),
    "KillMsg.unless_shared",
}
# Values that only clients that ask for them get.
OPTIONAL_KINDS = {
    "AgentEventKind": {
        "ASK_USER": 101,
        "REFUSED": 102,
        "TOOL_PROGRESS": 103,
        "TURN_START": 104,
        "USER_STEERED": 105,
        "CONTEXT_USAGE": 106,
        "COMPACTED": 107,
        "MODE_CHANGED": 108,
    }
}

# ── Reading the descriptors ─────────────────────────────────────────────────────────────────

LAST = 100  # the last number that the contract may use


def copy_file_proto() -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto()
    wire.DESCRIPTOR.CopyToProto(proto)
    return proto


FILE = copy_file_proto()
PROTOS = {message.name: message for message in FILE.message_type}
each_message = pytest.mark.parametrize("name", CONTRACT)


def spell_type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """A field's type as it is written in a .proto file."""
    kind = field.type_name.removeprefix(".crabtalk.protocol.")
    kind = kind or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    for nested in message.nested_type:
        if nested.options.map_entry and kind == f"{message.name}.{nested.name}":
            return f"map<{', '.join(spell_type(part, nested) for part in nested.field)}>"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {kind}"
    return f"optional {kind}" if field.proto3_optional else kind


def list_oneofs(message: DescriptorProto) -> dict[str, set[str]]:
    """The fields of each oneof, without those that protobuf generates for optional fields."""
    members: dict[str, set[str]] = {}
    for field in message.field:
        if field.HasField("oneof_index") and not field.proto3_optional:
            name = message.oneof_decl[field.oneof_index].name
            members.setdefault(name, set()).add(field.name)
    return members


def find_descriptor(name: str) -> Descriptor:
    return wire.DESCRIPTOR.message_types_by_name[name]


# ── The contract ────────────────────────────────────────────────────────────────────────────


def test_the_copy_has_as_many_messages_and_fields_as_the_contract() -> None:
    assert len(CONTRACT) == 77
    assert sum(len(fields) for fields in CONTRACT.values()) == 232


@pytest.mark.req("wire.numbers.contract")
@each_message
def test_a_message_has_exactly_the_fields_of_the_contract(name: str) -> None:
    message = PROTOS[name]
    fields = {f.name: (f.number, spell_type(f, message)) for f in message.field if f.number <= LAST}
    assert fields == CONTRACT[name]


@pytest.mark.req("wire.envelopes.oneof")
@each_message
def test_a_message_is_one_oneof_or_has_none(name: str) -> None:
    message = PROTOS[name]
    everything = {field.name for field in message.field}
    everything -= {"request_id", "number"}
    assert list_oneofs(message) == ({ONEOFS[name]: everything} if name in ONEOFS else {})


@pytest.mark.req("wire.envelopes.oneof")
@pytest.mark.parametrize("kind", [wire.ClientMessage, wire.ServerMessage, wire.StreamEvent])
def test_setting_a_variant_replaces_the_one_before(kind: type[Message]) -> None:
    names = [field.name for field in kind.DESCRIPTOR.fields if field.message_type is not None]
    message = kind()
    for name in names:
        getattr(message, name).SetInParent()
        assert [field.name for field, _ in message.ListFields()] == [name]
        assert message.WhichOneof(ONEOFS[kind.DESCRIPTOR.name]) == name


@pytest.mark.req("wire.numbers.contract")
@each_message
def test_a_message_reserves_exactly_what_the_contract_reserves(name: str) -> None:
    message = PROTOS[name]
    numbers = {n for part in message.reserved_range for n in range(part.start, part.end)}
    assert (numbers, set(message.reserved_name)) == RESERVED.get(name, (set(), set()))


@pytest.mark.req("wire.numbers.contract")
@pytest.mark.parametrize("name", ENUMS)
def test_an_enum_has_exactly_the_values_of_the_contract(name: str) -> None:
    (enum,) = [enum for enum in FILE.enum_type if enum.name == name]
    contract = {value: number for number, value in enumerate(ENUMS[name])}
    assert {value.name: value.number for value in enum.value} == {
        **contract,
        **OPTIONAL_KINDS.get(name, {}),
    }


@pytest.mark.req("wire.numbers.contract")
def test_the_messages_are_proto3_in_the_package_of_the_contract() -> None:
    assert (FILE.syntax, FILE.package) == ("proto3", "crabtalk.protocol")


# ── Our additions ───────────────────────────────────────────────────────────────────────────


def list_additions(name: str) -> list[FieldDescriptor]:
    return [field for field in find_descriptor(name).fields if field.name not in CONTRACT[name]]


@pytest.mark.req("wire.additions.optional")
def test_the_additions_to_the_contracts_messages_are_these() -> None:
    added = {f"{name}.{field.name}" for name in CONTRACT for field in list_additions(name)}
    assert added == ADDITIONS


@pytest.mark.req("wire.additions.optional")
@pytest.mark.parametrize("name", sorted({addition.split(".")[0] for addition in ADDITIONS}))
def test_an_addition_has_a_number_from_101_and_may_be_absent(name: str) -> None:
    for field in list_additions(name):
        assert field.number > LAST
        assert field.has_presence or field.is_repeated


@pytest.mark.req("wire.additions.optional")
def test_a_turn_has_no_event_the_contract_does_not_know() -> None:
    """Events are not optional: one that a client does not know would look empty to it."""
    events = wire.StreamEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    assert {field.name for field in events} == set(STREAM_EVENT)


# ── A client that knows only the contract ───────────────────────────────────────────────────


def build_contract_pool() -> DescriptorPool:
    """Our file without the additions, as an older client has compiled it."""
    file = copy_file_proto()
    del file.message_type[:], file.enum_type[:]
    file.enum_type.extend(enum for enum in FILE.enum_type if enum.name in ENUMS)
    for name in CONTRACT:
        message = file.message_type.add()
        message.CopyFrom(PROTOS[name])
        del message.field[:], message.oneof_decl[:]
        for field in PROTOS[name].field:
            if field.number <= LAST:
                known = message.field.add()
                known.CopyFrom(field)
                if field.HasField("oneof_index"):
                    oneof = PROTOS[name].oneof_decl[field.oneof_index].name
                    known.oneof_index = find_oneof_index(oneof, message)
    pool = DescriptorPool()
    pool.Add(file)
    return pool


def find_oneof_index(oneof: str, message: DescriptorProto) -> int:
    names = [declared.name for declared in message.oneof_decl]
    if oneof not in names:
        message.oneof_decl.add().name = oneof
        return len(names)
    return names.index(oneof)


POOL = build_contract_pool()


def find_older_descriptor(name: str) -> Descriptor:
    return POOL.FindMessageTypeByName(f"crabtalk.protocol.{name}")


def make_samples(descriptor: Descriptor, last: int) -> list[Message]:
    """Messages with a value in every field up to the number `last`, nested ones included.

    One message, or one for each variant of the contract if the message is a oneof.
    """
    kind = GetMessageClass(descriptor)
    if descriptor.name in ONEOFS:
        known = [field for field in descriptor.fields if field.number <= LAST]
        return [kind(**{field.name: make_content(field, last)}) for field in known]
    fields = [field for field in descriptor.fields if field.number <= last]
    return [kind(**{field.name: make_content(field, last) for field in fields})]


def make_content(field: FieldDescriptor, last: int) -> Any:
    """A value for `field`, in the form that a message's constructor takes."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {"key": "value"}
    if field.message_type is not None:
        values: list[Any] = list(make_samples(field.message_type, last))
    elif field.type == FieldDescriptor.TYPE_STRING:
        values = [f"{field.name} {field.number}"]
    elif field.type == FieldDescriptor.TYPE_BYTES:
        values = [b"\x00\xff"]
    else:  # any number, including bool and enum
        values = [1]
    return values * 2 if field.is_repeated else values[0]


EVERYTHING = 2**29
AMENDED = sorted({addition.split(".")[0] for addition in ADDITIONS} - set(ONEOFS))


@pytest.mark.req("wire.additions.optional")
@each_message
def test_an_older_client_reads_the_same_with_and_without_the_additions(name: str) -> None:
    kind = GetMessageClass(find_older_descriptor(name))
    sent = make_samples(find_descriptor(name), EVERYTHING)
    for message, known in zip(sent, make_samples(find_older_descriptor(name), LAST), strict=True):
        read = kind.FromString(message.SerializeToString())
        read.DiscardUnknownFields()
        assert read == known


@pytest.mark.req("wire.additions.optional")
@pytest.mark.parametrize("name", AMENDED)
def test_an_older_client_that_forwards_a_message_keeps_the_additions(name: str) -> None:
    (sent,) = make_samples(find_descriptor(name), EVERYTHING)
    assert {field.name for field, _ in sent.ListFields()} > set(CONTRACT[name])
    read = GetMessageClass(find_older_descriptor(name)).FromString(sent.SerializeToString())
    assert type(sent).FromString(read.SerializeToString()) == sent


@pytest.mark.req("wire.additions.optional")
@each_message
def test_a_message_from_an_older_client_has_no_additions(name: str) -> None:
    kind = GetMessageClass(find_descriptor(name))
    sent = make_samples(find_older_descriptor(name), LAST)
    for message, expected in zip(sent, make_samples(find_descriptor(name), LAST), strict=True):
        read = kind.FromString(message.SerializeToString())
        assert read == expected
        assert {field.name for field, _ in read.ListFields()} <= set(CONTRACT[name])


@pytest.mark.req("wire.additions.optional")
@pytest.mark.parametrize("name", ["ClientMessage", "ServerMessage"])
def test_an_older_peer_reads_an_unknown_variant_as_an_empty_message(
    name: str,
) -> None:
    for field in list_additions(name):
        sent = GetMessageClass(find_descriptor(name))(
            **{field.name: make_content(field, EVERYTHING)}
        )
        read = GetMessageClass(find_older_descriptor(name)).FromString(sent.SerializeToString())
        assert read.WhichOneof("msg") is None
        assert read.ListFields() == []
