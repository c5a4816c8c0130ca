"""Conversion of every wire message to JSON values."""

import json

from google.protobuf.json_format import MessageToDict

from crabtalk.cli.wire_json import message_to_dict
from crabtalk.protocol import wire


def test_numbers_stay_numbers_and_absent_fields_are_left_out() -> None:
    result = wire.ToolResultEvent(call_id="c", duration_ms=2**60)
    assert message_to_dict(result) == {
        "call_id": "c",
        "output": "",
        "duration_ms": 2**60,
        "is_error": False,
    }
    assert message_to_dict(wire.StreamStart(agent="crab")) == {"agent": "crab"}
    assert message_to_dict(wire.StreamStart(run_id="")) == {"agent": "", "run_id": ""}


def test_nested_messages_are_converted() -> None:
    end = wire.StreamEnd(
        agent="crab",
        usage=wire.TokenUsage(prompt_tokens=3),
        stop_reason=wire.STOP_REASON_COMPLETED,
    )
    assert message_to_dict(end) == {
        "agent": "crab",
        "error": "",
        "model": "",
        "usage": {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 0},
        "stop_reason": "STOP_REASON_COMPLETED",
    }
    server = wire.McpInfo(name="tides", args=["a", "b"], env={"KEY": "***"}, status=wire.FAILED)
    converted = message_to_dict(server)
    assert (converted["args"], converted["env"], converted["status"]) == (
        ["a", "b"],
        {"KEY": "***"},
        "FAILED",
    )
    question = wire.AskQuestion(question="So?", options=[wire.AskOption(label="y")])
    event = wire.AskUserEvent(questions=[question])
    assert message_to_dict(event)["questions"][0]["options"] == [{"label": "y", "description": ""}]


def test_an_unknown_enum_value_is_its_number() -> None:
    newer = wire.AgentEventMsg.FromString(b"\x18\xe7\x07")
    assert message_to_dict(newer)["kind"] == 999


def test_field_names_are_those_of_protobufs_json() -> None:
    """For every empty message the names are the same as in protobuf's own JSON."""
    for name in wire.DESCRIPTOR.message_types_by_name:
        made = getattr(wire, name)()
        protobuf_json = MessageToDict(
            made, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        assert message_to_dict(made).keys() == protobuf_json.keys()
        json.dumps(message_to_dict(made))
