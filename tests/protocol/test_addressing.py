"""Addressing: only an agent and a sender identify a conversation."""

import pytest

from crabtalk.protocol import wire

MESSAGES = wire.DESCRIPTOR.message_types_by_name
ON_A_CONVERSATION = [
    "SendMsg",
    "StreamMsg",
    "ReplyToAsk",
    "SteerSessionMsg",
    "KillMsg",
    "CompactMsg",
    "ListMessagesMsg",
    "ListArchivesMsg",
]


@pytest.mark.req("wire.addressing.pair")
@pytest.mark.parametrize("name", ON_A_CONVERSATION)
def test_a_message_on_a_conversation_names_agent_and_sender(name: str) -> None:
    fields = MESSAGES[name].fields_by_name
    assert fields["agent"].type == fields["agent"].TYPE_STRING
    assert fields["sender"].type == fields["sender"].TYPE_STRING


@pytest.mark.req("wire.no_session_ids")
def test_no_field_has_the_id_of_a_session_or_conversation() -> None:
    names = {field.name for message in MESSAGES.values() for field in message.fields}
    assert not {name for name in names if name in ("session", "session_id", "conversation_id")}
    identified = {name for name, message in MESSAGES.items() if "id" in message.fields_by_name}
    assert identified == {
        "ToolCallInfo",
        "ConversationMessage",
        "UnsubscribeEventMsg",
        "SubscriptionInfo",
    }


@pytest.mark.req("wire.guest_field")
@pytest.mark.parametrize("name", ["SendMsg", "StreamMsg"])
def test_both_requests_that_run_a_turn_can_name_a_guest(name: str) -> None:
    guest = MESSAGES[name].fields_by_name["guest"]
    assert guest.number == 6
    assert guest.has_presence
