"""Objects: every message of the wire as JSON, whatever it holds."""

import json

from google.protobuf.json_format import MessageToDict

from crabtalk.protocol import wire
from crabtalk_tui.objects import as_object


def test_numbers_stay_numbers_and_what_is_absent_is_left_out() -> None:
    result = wire.ToolResultEvent(call_id="c", duration_ms=2**60)
    assert as_object(result) == {
        "call_id": "c",
        "output": "",
        "duration_ms": 2**60,
        "is_error": False,
    }
    assert as_object(wire.StreamStart(agent="crab")) == {"agent": "crab"}
    assert as_object(wire.StreamStart(run_id="")) == {"agent": "", "run_id": ""}


def test_what_is_within_a_message_is_told_too() -> None:
    end = wire.StreamEnd(
        agent="crab",
        usage=wire.TokenUsage(prompt_tokens=3),
        stop_reason=wire.STOP_REASON_COMPLETED,
    )
    assert as_object(end) == {
        "agent": "crab",
        "error": "",
        "model": "",
        "usage": {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 0},
        "stop_reason": "STOP_REASON_COMPLETED",
    }
    server = wire.McpInfo(name="tides", args=["a", "b"], env={"KEY": "***"}, status=wire.FAILED)
    known = as_object(server)
    assert (known["args"], known["env"], known["status"]) == (["a", "b"], {"KEY": "***"}, "FAILED")
    question = wire.AskQuestion(question="So?", options=[wire.AskOption(label="y")])
    asked = wire.AskUserEvent(questions=[question])
    assert as_object(asked)["questions"][0]["options"] == [{"label": "y", "description": ""}]


def test_a_value_of_a_newer_daemon_is_its_number() -> None:
    newer = wire.AgentEventMsg.FromString(b"\x18\xe7\x07")
    assert as_object(newer)["kind"] == 999


def test_nothing_is_told_that_protobuf_would_not_tell() -> None:
    """Every message there is, empty: the same names, but for what protobuf leaves out."""
    for name in wire.DESCRIPTOR.message_types_by_name:
        made = getattr(wire, name)()
        theirs = MessageToDict(
            made, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        assert as_object(made).keys() == theirs.keys()
        json.dumps(as_object(made))
